//! Bodies that carry items, parsed field by field with visitors, so that an item is hashed inside the body and never copied. All
//! other bodies are plain structs ([`super::json`]).

use super::faults::{Faults, escaped};
use super::json::{Text, syntax_problem};
use crate::http::answer::problem::Problem;
use serde::Deserialize;
use serde::de::{self, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use std::borrow::Cow;
use std::fmt;

/// Makes a visitor note a fault, instead of failing, when it meets JSON of another type.
macro_rules! note_other_types {
    ($($visit:ident: $type:ty),*) => {
        $(fn $visit<E: de::Error>(self, _: $type) -> Result<Self::Value, E> {
            Ok(self.other_type())
        })*

        fn visit_unit<E: de::Error>(self) -> Result<Self::Value, E> {
            Ok(self.other_type())
        }
    };
}

pub(crate) use note_other_types;

/// The fields of a JSON object, read in the order of the body.
pub(crate) trait Fields<'de> {
    /// Their names, at most 32.
    fn names(&self) -> &[&'static str];

    /// How many of them, counted from the first, are required.
    fn required(&self) -> usize;

    /// Reads the value of a field. Faults other than invalid JSON go to `faults`.
    fn read<A: MapAccess<'de>>(
        &mut self,
        index: usize,
        map: &mut A,
        faults: &mut Faults,
    ) -> Result<(), A::Error>;
}

/// Parses a body that is one object.
///
/// # Errors
/// Invalid JSON (400), or JSON of the wrong shape (422, with a pointer to every fault).
pub(crate) fn read<'de>(body: &'de [u8], fields: &mut impl Fields<'de>) -> Result<(), Problem> {
    let mut deserializer = serde_json::Deserializer::from_slice(body);
    let mut faults = Faults::default();
    Object { fields, pointer: String::new(), faults: &mut faults }
        .deserialize(&mut deserializer)
        .and_then(|()| deserializer.end())
        .map_err(|error| syntax_problem(&error))?;
    faults.check()
}

/// An object somewhere in a body.
pub(crate) struct Object<'a, F> {
    /// Its fields.
    pub(crate) fields: &'a mut F,
    /// The pointer to it.
    pub(crate) pointer: String,
    /// Collects the faults.
    pub(crate) faults: &'a mut Faults,
}

impl<F> Object<'_, F> {
    fn other_type(self) {
        self.faults.note(|| self.pointer, "expected an object");
    }
}

impl<'de, F: Fields<'de>> DeserializeSeed<'de> for Object<'_, F> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, F: Fields<'de>> Visitor<'de> for Object<'_, F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let Object { fields, pointer, faults } = self;
        let mut seen = 0u32;
        while let Some(Text(name)) = map.next_key()? {
            let at = || format!("{pointer}/{}", escaped(&name));
            match fields.names().iter().position(|known| *known == name) {
                Some(index) if seen & (1 << index) == 0 => {
                    seen |= 1 << index;
                    fields.read(index, &mut map, faults)?;
                    continue;
                }
                Some(_) => faults.note(at, "given twice"),
                None => faults.note(at, "unknown field"),
            }
            map.next_value::<IgnoredAny>()?;
        }
        for (index, name) in fields.names()[..fields.required()].iter().enumerate() {
            if seen & (1 << index) == 0 {
                faults.note(|| format!("{pointer}/{name}"), "missing");
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        self.other_type();
        Ok(())
    }

    note_other_types!(visit_bool: bool, visit_u64: u64, visit_i64: i64, visit_f64: f64, visit_str: &str);
}

/// A value that should be a string, a number or the like; lists and objects are skipped.
pub(crate) enum Scalar<'de> {
    Bool(bool),
    Number(u64),
    Text(Cow<'de, str>),
    Other,
}

impl Scalar<'_> {
    fn other_type(self) -> Self {
        Scalar::Other
    }
}

impl<'de> Deserialize<'de> for Scalar<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Scalar::Other)
    }
}

impl<'de> Visitor<'de> for Scalar<'de> {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Self, E> {
        Ok(Scalar::Bool(value))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Self, E> {
        Ok(Scalar::Number(value))
    }

    fn visit_borrowed_str<E: de::Error>(self, value: &'de str) -> Result<Self, E> {
        Ok(Scalar::Text(Cow::Borrowed(value)))
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<Self, E> {
        Ok(Scalar::Text(Cow::Owned(value.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self, A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Scalar::Other)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Scalar::Other)
    }

    note_other_types!(visit_i64: i64, visit_f64: f64);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_value_only_a_word_is_kept() {
        let of = |text: &'static str| serde_json::from_str::<Scalar<'_>>(text).unwrap();
        assert!(matches!(of("true"), Scalar::Bool(true)));
        assert!(matches!(of("7"), Scalar::Number(7)));
        assert!(matches!(of("\"a\""), Scalar::Text(text) if text == "a"));
        for other in ["null", "-1", "1.5", "[1,[2]]", "{\"a\":[]}"] {
            assert!(matches!(of(other), Scalar::Other), "{other}");
        }
    }
}
