//! What is in JSON bodies, and every fault with a pointer to it. What is not asked for takes no memory, however long it is.
//!
//! Bodies that carry items are read by visitors ([`Fields`]), so that an item is hashed where it lies and no copy
//! of it is made; the rest are plain structs ([`json`]).

use crate::http::answer::problem::{Code, FAULTS_MAX, Fault, Problem};
use serde::Deserialize;
use serde::de::value::{CowStrDeserializer, MapAccessDeserializer};
use serde::de::{self, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

/// Makes a visitor note a fault, rather than give up, where JSON of another type stands.
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

/// Parses a body without items.
///
/// # Errors
/// Broken JSON (400), or not what was asked for (422, with a pointer to the first fault).
pub(crate) fn json<'de, T: Deserialize<'de>>(body: &'de [u8]) -> Result<T, Problem> {
    let mut deserializer = serde_json::Deserializer::from_slice(body);
    let mut track = serde_path_to_error::Track::new();
    let parsed = NoList::deserialize(serde_path_to_error::Deserializer::new(&mut deserializer, &mut track));
    let NoList(value) = parsed.map_err(|error| {
        let pointer: String = track.path().iter().map(pointer_step).collect();
        json_problem(body, &error, &pointer)
    })?;
    deserializer.end().map_err(|error| json_problem(body, &error, ""))?;
    Ok(value)
}

/// A struct from an object only: derived code would also read it from a list of its fields' values.
struct NoList<T>(T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for NoList<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Struct<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Struct<T> {
            type Value = NoList<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<NoList<T>, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(NoList)
            }
        }
        deserializer.deserialize_map(Struct(PhantomData))
    }
}

/// An optional object within a body: [`present`], and no list.
pub(crate) fn present_object<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    NoList::deserialize(deserializer).map(|NoList(value)| Some(value))
}

/// An optional word out of a few: [`present`], and no object, which derived code would also read an enum from.
pub(crate) fn present_word<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    T::deserialize(CowStrDeserializer::new(Cow::deserialize(deserializer)?)).map(Some)
}

/// A list of which at most `KEPT` elements are kept: one more than there may be tells that there are too many.
pub(crate) fn list<'de, const KEPT: usize, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    struct List<const KEPT: usize, T>(PhantomData<T>);
    impl<'de, const KEPT: usize, T: Deserialize<'de>> Visitor<'de> for List<KEPT, T> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<T>, A::Error> {
            let mut kept = Vec::new();
            while kept.len() < KEPT {
                let Some(element) = seq.next_element()? else { return Ok(kept) };
                kept.push(element);
            }
            while seq.next_element::<IgnoredAny>()?.is_some() {}
            Ok(kept)
        }
    }
    deserializer.deserialize_seq(List::<KEPT, T>(PhantomData))
}

/// The same of objects, none of them a list.
pub(crate) fn objects<'de, const KEPT: usize, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    let kept: Vec<NoList<T>> = list::<KEPT, D, _>(deserializer)?;
    Ok(kept.into_iter().map(|NoList(value)| value).collect())
}

fn pointer_step(segment: &serde_path_to_error::Segment) -> String {
    use serde_path_to_error::Segment;
    match segment {
        Segment::Seq { index } => format!("/{index}"),
        Segment::Map { key } => format!("/{}", escaped(key)),
        Segment::Enum { .. } | Segment::Unknown => String::new(),
    }
}

fn json_problem(body: &[u8], error: &serde_json::Error, pointer: &str) -> Problem {
    // The parser calls a null where a word should be a fault of syntax, though the JSON is whole.
    let message = error.to_string();
    let whole = message.starts_with("expected value") && serde_json::from_slice::<IgnoredAny>(body).is_ok();
    if whole || error.is_data() {
        // The path ends at the object that lacks a field, not at the field.
        let missing = message.strip_prefix("missing field `").and_then(|rest| rest.split('`').next());
        return match missing {
            Some(field) => Problem::invalid_at(&format!("{pointer}/{field}"), "missing"),
            None => Problem::invalid_at(pointer, expectation(&message)),
        };
    }
    let detail = format!("at line {}, column {}", error.line(), error.column());
    Problem::new(Code::MalformedJson, detail)
}

/// What a parser's message says without the value that it met: that could be somebody's id or code.
fn expectation(message: &str) -> String {
    let message = message.split(" at line ").next().unwrap_or(message);
    match message.rsplit_once(", expected ") {
        Some((met, expected)) if met.starts_with("invalid ") || met.starts_with("unknown variant") => {
            format!("expected {expected}")
        }
        _ => message.to_owned(),
    }
}

/// A field's name as a step of a JSON pointer; a very long one is cut.
fn escaped(name: &str) -> String {
    let cut: String = name.chars().take(64).collect();
    cut.replace('~', "~0").replace('/', "~1")
}

/// A merge-patch or an optional field: that it may be absent does not mean that it may be null.
pub(crate) fn present<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

/// What is wrong with a request: all of it, up to a limit.
#[derive(Default)]
pub(crate) struct Faults(Vec<Fault>);

impl Faults {
    /// Takes note of a fault.
    pub(crate) fn note(&mut self, pointer: impl FnOnce() -> String, detail: impl Into<Cow<'static, str>>) {
        if self.0.len() < FAULTS_MAX {
            self.0.push(Fault { pointer: pointer(), detail: detail.into() });
        }
    }

    /// The problem that they make up, if there are any.
    pub(crate) fn check(self) -> Result<(), Problem> {
        if self.0.is_empty() { Ok(()) } else { Err(Problem::invalid(self.0)) }
    }
}

/// The fields of a JSON object, to be read as they come.
pub(crate) trait Fields<'de> {
    /// Their names, at most 32.
    fn names(&self) -> &[&'static str];

    /// How many of them, from the first on, must be there.
    fn required(&self) -> usize;

    /// Reads the value of one. What is wrong with it, but not with the JSON, goes to `faults`.
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
/// Broken JSON (400), or not what was asked for (422, with a pointer to every fault).
pub(crate) fn object<'de>(body: &'de [u8], fields: &mut impl Fields<'de>) -> Result<(), Problem> {
    let mut deserializer = serde_json::Deserializer::from_slice(body);
    let mut faults = Faults::default();
    Object { fields, pointer: String::new(), faults: &mut faults }
        .deserialize(&mut deserializer)
        .and_then(|()| deserializer.end())
        .map_err(|error| json_problem(body, &error, ""))?;
    faults.check()
}

/// An object somewhere in a body.
pub(crate) struct Object<'a, F> {
    /// Its fields.
    pub(crate) fields: &'a mut F,
    /// Where it is.
    pub(crate) pointer: String,
    /// Where faults go.
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

/// A text, borrowed unless it has escapes.
pub(crate) struct Text<'de>(pub(crate) Cow<'de, str>);

impl<'de> Deserialize<'de> for Text<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Borrowed;
        impl<'de> Visitor<'de> for Borrowed {
            type Value = Text<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_borrowed_str<E: de::Error>(self, text: &'de str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Borrowed(text)))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(text.to_owned())))
            }
        }
        deserializer.deserialize_str(Borrowed)
    }
}

/// A value out of which at most one word is wanted: a list or an object is passed over.
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

    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Names<'a> {
        #[serde(borrow, deserialize_with = "list::<4, _, _>")]
        names: Vec<Text<'a>>,
    }

    #[derive(Deserialize)]
    struct Objects<'a> {
        #[serde(borrow, deserialize_with = "objects::<2, _, _>")]
        objects: Vec<Names<'a>>,
    }

    #[test]
    fn of_a_list_no_more_is_kept_than_tells_that_it_is_too_long() {
        let many = format!(r#"{{"names":["a","\u0062"{}]}}"#, r#","c""#.repeat(100_000));
        let Names { names } = json(many.as_bytes()).unwrap();
        assert!(names.len() == 4 && names.capacity() < 16);
        assert!(matches!(&names[..2], [Text(Cow::Borrowed("a")), Text(Cow::Owned(b))] if b == "b"));
        // What is passed over still has to be JSON.
        for broken in [r#"{"names":["a","b","c","d","e",]}"#, r#"{"names":["a","b","c","d","#] {
            assert_eq!(json::<Names<'_>>(broken.as_bytes()).err().unwrap().code, Code::MalformedJson);
        }
        let Objects { objects } =
            json(br#"{"objects":[{"names":[]},{"names":["a"]},{"names":[]}]}"#).unwrap();
        assert_eq!(objects.len(), 2);
        assert!(json::<Objects<'_>>(br#"{"objects":[[["a"]]]}"#).is_err());
    }

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
