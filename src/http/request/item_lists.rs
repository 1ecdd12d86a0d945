//! Bodies that carry items. Each item is hashed inside the body, and only its digest is passed on.

use super::faults::Faults;
use super::object::{Fields, Object, Scalar, note_other_types};
use crate::domain::ITEM_BYTES_MAX;
use crate::engine::{Digest, FilterView};
use serde::de::{self, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use std::fmt;

/// `{"users":[…]}` or `{"codes":[…]}`, for some routes with a flag.
pub(crate) struct ItemsBody<'a> {
    names: [&'static str; 2],
    has_flag: bool,
    view: &'a FilterView,
    items_max: usize,
    /// The items' digests, in order.
    pub(crate) digests: Vec<Digest>,
    /// The flag; `false` by default.
    pub(crate) flag: bool,
}

impl<'a> ItemsBody<'a> {
    /// Reads items from `field`, for the filter of `view`.
    pub(crate) fn new(
        field: &'static str,
        flag: Option<&'static str>,
        view: &'a FilterView,
        items_max: usize,
    ) -> Self {
        let names = [field, flag.unwrap_or_default()];
        Self { names, has_flag: flag.is_some(), view, items_max, digests: Vec::new(), flag: false }
    }
}

impl<'de> Fields<'de> for ItemsBody<'_> {
    fn names(&self) -> &[&'static str] {
        &self.names[..1 + usize::from(self.has_flag)]
    }

    fn required(&self) -> usize {
        1
    }

    fn read<A: MapAccess<'de>>(
        &mut self,
        index: usize,
        map: &mut A,
        faults: &mut Faults,
    ) -> Result<(), A::Error> {
        let name = self.names[index];
        if index == 1 {
            match map.next_value()? {
                Scalar::Bool(flag) => self.flag = flag,
                _ => faults.note(|| format!("/{name}"), "expected true or false"),
            }
            return Ok(());
        }
        let each = Items { view: self.view, digests: &mut self.digests };
        map.next_value_seed(List { name, items_max: self.items_max, faults, each })
    }
}

/// `{"replacements":[{"from":…,"to":…}]}`.
pub(crate) struct ReplacementsBody<'a> {
    view: &'a FilterView,
    items_max: usize,
    /// Digests of the items to remove.
    pub(crate) from: Vec<Digest>,
    /// Digests of the items to add in their place, in the same order.
    pub(crate) to: Vec<Digest>,
}

impl<'a> ReplacementsBody<'a> {
    /// Reads items for the filter of `view`.
    pub(crate) fn new(view: &'a FilterView, items_max: usize) -> Self {
        Self { view, items_max, from: Vec::new(), to: Vec::new() }
    }
}

impl<'de> Fields<'de> for ReplacementsBody<'_> {
    fn names(&self) -> &[&'static str] {
        &["replacements"]
    }

    fn required(&self) -> usize {
        1
    }

    fn read<A: MapAccess<'de>>(
        &mut self,
        _: usize,
        map: &mut A,
        faults: &mut Faults,
    ) -> Result<(), A::Error> {
        let each = Pairs { view: self.view, from: &mut self.from, to: &mut self.to };
        map.next_value_seed(List { name: "replacements", items_max: self.items_max, faults, each })
    }
}

/// How the elements of a list are read.
trait Each<'de> {
    /// Reads the next element, if there is one.
    fn next<A: SeqAccess<'de>>(
        &mut self,
        seq: &mut A,
        at: Place<'_>,
        faults: &mut Faults,
    ) -> Result<bool, A::Error>;
}

/// An element's position in the body.
#[derive(Clone, Copy)]
struct Place<'a> {
    list: &'a str,
    index: usize,
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "/{}/{}", self.list, self.index)
    }
}

struct Items<'a> {
    view: &'a FilterView,
    digests: &'a mut Vec<Digest>,
}

impl<'de> Each<'de> for Items<'_> {
    fn next<A: SeqAccess<'de>>(
        &mut self,
        seq: &mut A,
        at: Place<'_>,
        faults: &mut Faults,
    ) -> Result<bool, A::Error> {
        match seq.next_element_seed(Item(self.view))? {
            None => return Ok(false),
            Some(Ok(digest)) => self.digests.push(digest),
            Some(Err(fault)) => faults.note(|| at.to_string(), fault),
        }
        Ok(true)
    }
}

struct Pairs<'a> {
    view: &'a FilterView,
    from: &'a mut Vec<Digest>,
    to: &'a mut Vec<Digest>,
}

impl<'de> Each<'de> for Pairs<'_> {
    fn next<A: SeqAccess<'de>>(
        &mut self,
        seq: &mut A,
        at: Place<'_>,
        faults: &mut Faults,
    ) -> Result<bool, A::Error> {
        let mut pair = Pair { view: self.view, at, digests: [None; 2] };
        if seq.next_element_seed(Object { fields: &mut pair, pointer: at.to_string(), faults })?.is_none() {
            return Ok(false);
        }
        if let [Some(from), Some(to)] = pair.digests {
            self.from.push(from);
            self.to.push(to);
        }
        Ok(true)
    }
}

struct Pair<'a> {
    view: &'a FilterView,
    at: Place<'a>,
    digests: [Option<Digest>; 2],
}

impl<'de> Fields<'de> for Pair<'_> {
    fn names(&self) -> &[&'static str] {
        &["from", "to"]
    }

    fn required(&self) -> usize {
        2
    }

    fn read<A: MapAccess<'de>>(
        &mut self,
        index: usize,
        map: &mut A,
        faults: &mut Faults,
    ) -> Result<(), A::Error> {
        match map.next_value_seed(Item(self.view))? {
            Ok(digest) => self.digests[index] = Some(digest),
            Err(fault) => faults.note(|| format!("{}/{}", self.at, ["from", "to"][index]), fault),
        }
        Ok(())
    }
}

/// A list of 1 to `items_max` elements.
struct List<'a, R> {
    name: &'static str,
    items_max: usize,
    faults: &'a mut Faults,
    each: R,
}

impl<R> List<'_, R> {
    fn other_type(self) {
        self.faults.note(|| format!("/{}", self.name), "expected a list");
    }
}

impl<'de, R: Each<'de>> DeserializeSeed<'de> for List<'_, R> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, R: Each<'de>> Visitor<'de> for List<'_, R> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut seq: A) -> Result<(), A::Error> {
        let mut index = 0;
        while index < self.items_max {
            let at = Place { list: self.name, index };
            if !self.each.next(&mut seq, at, self.faults)? {
                break;
            }
            index += 1;
        }
        let is_too_long = index == self.items_max && seq.next_element::<IgnoredAny>()?.is_some();
        while is_too_long && seq.next_element::<IgnoredAny>()?.is_some() {}
        if index == 0 || is_too_long {
            let detail = format!("expected 1 to {} elements", self.items_max);
            self.faults.note(|| format!("/{}", self.name), detail);
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        self.other_type();
        Ok(())
    }

    note_other_types!(visit_bool: bool, visit_u64: u64, visit_i64: i64, visit_f64: f64, visit_str: &str);
}

/// One item; gives its digest, or what is wrong with it.
pub(crate) struct Item<'a>(pub(crate) &'a FilterView);

impl Item<'_> {
    fn other_type(self) -> Result<Digest, &'static str> {
        Err("expected a string")
    }
}

impl<'de> DeserializeSeed<'de> for Item<'_> {
    type Value = Result<Digest, &'static str>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Item<'_> {
    type Value = Result<Digest, &'static str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_str<E: de::Error>(self, item: &str) -> Result<Self::Value, E> {
        Ok(digest(self.0, item))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(self.other_type())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(self.other_type())
    }

    note_other_types!(visit_bool: bool, visit_u64: u64, visit_i64: i64, visit_f64: f64);
}

/// The digest of an item, or what is wrong with it.
fn digest(view: &FilterView, item: &str) -> Result<Digest, &'static str> {
    match fault(item) {
        Some(fault) => Err(fault),
        None if view.is_blank(item) => Err("nothing but white space, which this coupon ignores"),
        None => Ok(view.digest(item)),
    }
}

/// What is wrong with an item's length; `None` if it is valid.
pub(crate) fn fault(item: &str) -> Option<&'static str> {
    match item.len() {
        0 => Some("empty"),
        1..=ITEM_BYTES_MAX => None,
        _ => Some("longer than 512 bytes"),
    }
}
