//! Items in a body: user ids and codes. They are borrowed from it, hashed in one loop, and never copied.

use super::json::Faults;
use crate::domain::ITEM_BYTES_MAX;
use crate::engine::{Digest, FilterView};
use crate::http::answer::Problem;
use serde::Deserialize;
use serde::de::{self, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use std::borrow::Cow;
use std::fmt;
use utoipa::ToSchema;

/// A user id or a code, used exactly as given: 1 to 512 bytes of UTF-8.
///
/// It is `None` where the body has no string, so that one loop can report every item that is not valid.
#[derive(Default, ToSchema)]
#[schema(value_type = String, min_length = 1, max_length = 512, example = "u1")]
pub(crate) struct Item<'a>(Option<Cow<'a, str>>);

impl Item<'_> {
    /// What is wrong with it; its text if nothing is.
    pub(crate) fn text(&self) -> Result<&str, &'static str> {
        let text = self.0.as_deref().ok_or("expected a string")?;
        match text.len() {
            0 => Err("empty"),
            1..=ITEM_BYTES_MAX => Ok(text),
            _ => Err("longer than 512 bytes"),
        }
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Item<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyItem)
    }
}

/// Reads an item from any JSON.
struct AnyItem;

macro_rules! no_items {
    ($($visit:ident: $type:ty),*) => {
        $(fn $visit<E: de::Error>(self, _: $type) -> Result<Item<'de>, E> {
            Ok(Item(None))
        })*
    };
}

impl<'de> Visitor<'de> for AnyItem {
    type Value = Item<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_borrowed_str<E: de::Error>(self, text: &'de str) -> Result<Item<'de>, E> {
        Ok(Item(Some(Cow::Borrowed(text))))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Item<'de>, E> {
        Ok(Item(Some(Cow::Owned(text.to_owned()))))
    }

    fn visit_unit<E: de::Error>(self) -> Result<Item<'de>, E> {
        Ok(Item(None))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Item<'de>, A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Item(None))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Item<'de>, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Item(None))
    }

    no_items!(visit_bool: bool, visit_i64: i64, visit_u64: u64, visit_f64: f64);
}

/// Hashes the items of a body with the secret of their filter, and notes those that are not valid.
pub(crate) struct Hashing<'a> {
    view: &'a FilterView,
    faults: Faults,
}

impl<'a> Hashing<'a> {
    /// Hashes for the filter of `view`.
    pub(crate) fn new(view: &'a FilterView) -> Self {
        Self { view, faults: Faults::default() }
    }

    /// The digest of an item. That of an invalid one means nothing.
    pub(crate) fn digest(&mut self, item: &Item<'_>, pointer: impl FnOnce() -> String) -> Digest {
        let digest = match item.text() {
            Ok(text) if self.view.is_blank(text) => Err("nothing but white space, which this coupon ignores"),
            Ok(text) => Ok(self.view.digest(text)),
            Err(fault) => Err(fault),
        };
        digest.unwrap_or_else(|fault| {
            self.note(pointer, fault);
            Digest(0)
        })
    }

    /// Notes another fault of the body.
    pub(crate) fn note(&mut self, pointer: impl FnOnce() -> String, fault: impl Into<Cow<'static, str>>) {
        self.faults.note(pointer, fault);
    }

    /// Refuses a list that is empty or too long.
    pub(crate) fn check_length(field: &str, length: usize, items_max: usize) -> Result<(), Problem> {
        if (1..=items_max).contains(&length) {
            return Ok(());
        }
        Err(Problem::invalid_at(&format!("/{field}"), format!("expected 1 to {items_max} elements")))
    }

    /// The digests of a list of 1 to `items_max` items.
    pub(crate) fn list(
        mut self,
        field: &str,
        items: &[Item<'_>],
        items_max: usize,
    ) -> Result<Vec<Digest>, Problem> {
        Self::check_length(field, items.len(), items_max)?;
        let each = items.iter().enumerate();
        let digests = each.map(|(index, item)| self.digest(item, || format!("/{field}/{index}"))).collect();
        self.finish()?;
        Ok(digests)
    }

    /// The problem of all that was noted.
    pub(crate) fn finish(self) -> Result<(), Problem> {
        self.faults.check()
    }
}
