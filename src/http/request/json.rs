//! JSON bodies as plain structs, by the rules of the contract: a struct is an object and never a list, an enum is a string, and
//! an optional field may be absent but not null. The first fault is reported with a pointer to it, but without the value, which
//! could be somebody's id or code.

use super::faults::escaped;
use super::shape::ShapeError;
use crate::http::answer::problem::{Code, Problem};
use serde::de::value::{BorrowedStrDeserializer, StrDeserializer};
use serde::de::{
    self, DeserializeSeed, Deserializer, IgnoredAny, IntoDeserializer, MapAccess, SeqAccess, Visitor,
};
use serde::{Deserialize, Serialize, Serializer, forward_to_deserialize_any};
use std::borrow::Cow;
use std::cell::RefCell;
use std::fmt;
use std::marker::PhantomData;

/// Parses a body without items.
///
/// # Errors
/// Invalid JSON (400), or JSON of the wrong shape (422, with a pointer to the first fault).
pub(crate) fn parse<'de, T: Deserialize<'de>>(body: &'de [u8]) -> Result<T, Problem> {
    let mut deserializer = serde_json::Deserializer::from_slice(body);
    let found = RefCell::new(None);
    let parsed = T::deserialize(Strict { inner: &mut deserializer, found: &found });
    let value = parsed.map_err(|error| match error {
        JsonError::Shape(fault) => Problem::from(fault),
        JsonError::Syntax(error) => syntax_problem(&error),
    })?;
    deserializer.end().map_err(|error| syntax_problem(&error))?;
    Ok(value)
}

/// The problem of a body that is not JSON.
pub(super) fn syntax_problem(error: &serde_json::Error) -> Problem {
    let detail = format!("at line {}, column {}", error.line(), error.column());
    Problem::new(Code::MalformedJson, detail)
}

/// Why a body can't be parsed. `E` is the parser's own error.
#[derive(Debug)]
enum JsonError<E> {
    /// It is JSON, but of the wrong shape.
    Shape(ShapeError),
    /// It is not JSON.
    Syntax(E),
}

impl<E: fmt::Display> fmt::Display for JsonError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JsonError::Shape(fault) => fault.fmt(f),
            JsonError::Syntax(error) => error.fmt(f),
        }
    }
}

impl<E: de::Error> std::error::Error for JsonError<E> {}

impl<E: de::Error> de::Error for JsonError<E> {
    fn custom<T: fmt::Display>(message: T) -> Self {
        JsonError::Shape(ShapeError::custom(message))
    }

    fn invalid_type(met: de::Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        JsonError::Shape(ShapeError::invalid_type(met, expected))
    }

    fn invalid_value(met: de::Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        JsonError::Shape(ShapeError::invalid_value(met, expected))
    }

    fn unknown_variant(variant: &str, expected: &'static [&'static str]) -> Self {
        JsonError::Shape(ShapeError::unknown_variant(variant, expected))
    }

    fn unknown_field(field: &str, expected: &'static [&'static str]) -> Self {
        JsonError::Shape(ShapeError::unknown_field(field, expected))
    }

    fn missing_field(field: &'static str) -> Self {
        JsonError::Shape(ShapeError::missing_field(field))
    }

    fn duplicate_field(field: &'static str) -> Self {
        JsonError::Shape(ShapeError::duplicate_field(field))
    }
}

impl<E: de::Error> JsonError<E> {
    /// Stores the fault beside the parser, whose own error can't carry it, for [`JsonError::of`] to find.
    fn leave(self, found: &Found) -> E {
        match self {
            JsonError::Syntax(error) => error,
            JsonError::Shape(fault) => {
                *found.borrow_mut() = Some(fault);
                E::custom("not the shape that was asked for")
            }
        }
    }

    /// What an error of the parser means: a stored fault, or an error of its own.
    fn of(error: E, found: &Found) -> Self {
        found.borrow_mut().take().map_or(JsonError::Syntax(error), JsonError::Shape)
    }

    /// Wraps the error in one more step of the pointer.
    fn inside(self, step: impl fmt::Display) -> Self {
        match self {
            JsonError::Shape(fault) => JsonError::Shape(fault.inside(step)),
            syntax => syntax,
        }
    }
}

/// A fault on its way through the parser.
type Found = RefCell<Option<ShapeError>>;

/// A deserializer that enforces the contract's rules. It also wraps everything inside: visitors, elements, fields.
struct Strict<'f, D> {
    inner: D,
    found: &'f Found,
}

impl<'de, D: Deserializer<'de>> Strict<'_, D> {
    fn any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, JsonError<D::Error>> {
        let visitor = Strict { inner: visitor, found: self.found };
        self.inner.deserialize_any(visitor).map_err(|error| JsonError::of(error, self.found))
    }
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Strict<'_, D> {
    type Error = JsonError<D::Error>;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        self.any(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        self.any(ObjectOnly(visitor))
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        self.any(WordOnly(visitor))
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        let visitor = Strict { inner: visitor, found: self.found };
        self.inner.deserialize_ignored_any(visitor).map_err(|error| JsonError::of(error, self.found))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple
        tuple_struct map identifier
    }
}

/// Passes a value on to the visitor that expects it.
macro_rules! pass_on {
    ($($visit:ident: $type:ty),*) => {
        $(fn $visit<E: de::Error>(self, value: $type) -> Result<V::Value, E> {
            self.inner.$visit(value).map_err(|error: JsonError<E>| error.leave(self.found))
        })*
    };
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Strict<'_, V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.expecting(f)
    }

    fn visit_unit<E: de::Error>(self) -> Result<V::Value, E> {
        self.inner.visit_unit().map_err(|error: JsonError<E>| error.leave(self.found))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<V::Value, A::Error> {
        let elements = Elements { inner: seq, index: 0, found: self.found };
        self.inner.visit_seq(elements).map_err(|error| error.leave(self.found))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<V::Value, A::Error> {
        let members = Members { inner: map, name: Cow::Borrowed(""), found: self.found };
        self.inner.visit_map(members).map_err(|error| error.leave(self.found))
    }

    pass_on!(visit_bool: bool, visit_i64: i64, visit_u64: u64, visit_f64: f64, visit_str: &str, visit_borrowed_str: &'de str);
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Strict<'_, S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<S::Value, D::Error> {
        let strict = Strict { inner: deserializer, found: self.found };
        self.inner.deserialize(strict).map_err(|error| error.leave(self.found))
    }
}

struct Elements<'f, A> {
    inner: A,
    index: usize,
    found: &'f Found,
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for Elements<'_, A> {
    type Error = JsonError<A::Error>;

    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, Self::Error> {
        let element = self.inner.next_element_seed(Strict { inner: seed, found: self.found });
        let element = element.map_err(|error| JsonError::of(error, self.found).inside(self.index));
        self.index += 1;
        element
    }
}

struct Members<'de, 'f, A> {
    inner: A,
    /// The name of the member whose value comes next.
    name: Cow<'de, str>,
    found: &'f Found,
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Members<'de, '_, A> {
    type Error = JsonError<A::Error>;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, Self::Error> {
        let name = self.inner.next_key().map_err(|error| JsonError::of(error, self.found))?;
        let Some(Text(name)) = name else { return Ok(None) };
        let key = match &name {
            Cow::Borrowed(name) => seed.deserialize(BorrowedStrDeserializer::new(name)),
            Cow::Owned(name) => seed.deserialize(StrDeserializer::new(name)),
        };
        self.name = name;
        key.map(Some)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Self::Error> {
        let value = self.inner.next_value_seed(Strict { inner: seed, found: self.found });
        value.map_err(|error| JsonError::of(error, self.found).inside(escaped(&self.name)))
    }
}

/// Accepts only an object: derived code would also read a struct from a list of its fields' values.
struct ObjectOnly<V>(V);

impl<'de, V: Visitor<'de>> Visitor<'de> for ObjectOnly<V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<V::Value, A::Error> {
        self.0.visit_map(map)
    }
}

/// Accepts only a string: derived code would also read an enum from an object.
struct WordOnly<V>(V);

impl<'de, V: Visitor<'de>> Visitor<'de> for WordOnly<V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_str<E: de::Error>(self, word: &str) -> Result<V::Value, E> {
        let word: StrDeserializer<'_, E> = word.into_deserializer();
        self.0.visit_enum(word)
    }
}

/// A list that keeps at most `KEPT` elements: one more than allowed, which shows that there are too many.
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

/// A text, borrowed unless it has escapes.
pub(crate) struct Text<'de>(pub(crate) Cow<'de, str>);

impl Serialize for Text<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl AsRef<str> for Text<'_> {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
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
        #[serde(borrow, deserialize_with = "list::<2, _, _>")]
        objects: Vec<Names<'a>>,
    }

    #[test]
    fn of_a_list_no_more_is_kept_than_tells_that_it_is_too_long() {
        let many = format!(r#"{{"names":["a","\u0062"{}]}}"#, r#","c""#.repeat(100_000));
        let Names { names } = parse(many.as_bytes()).unwrap();
        assert!(names.len() == 4 && names.capacity() < 16);
        assert!(matches!(&names[..2], [Text(Cow::Borrowed("a")), Text(Cow::Owned(b))] if b == "b"));
        // Skipped elements must be valid JSON too.
        for broken in [r#"{"names":["a","b","c","d","e",]}"#, r#"{"names":["a","b","c","d","#] {
            assert_eq!(parse::<Names<'_>>(broken.as_bytes()).err().unwrap().code, Code::MalformedJson);
        }
        let Objects { objects } =
            parse(br#"{"objects":[{"names":[]},{"names":["a"]},{"names":[]}]}"#).unwrap();
        assert_eq!(objects.len(), 2);
        assert!(parse::<Objects<'_>>(br#"{"objects":[[["a"]]]}"#).is_err());
    }

    #[derive(Deserialize, Debug)]
    #[serde(rename_all = "lowercase")]
    enum Mode {
        Compact,
        Strict,
    }

    #[derive(Deserialize, Debug)]
    #[serde(deny_unknown_fields)]
    struct Layout {
        #[serde(default)]
        bits: u8,
    }

    #[derive(Deserialize, Debug)]
    #[serde(deny_unknown_fields)]
    struct Spec {
        capacity: u64,
        #[serde(default)]
        mode: Option<Mode>,
        #[serde(default)]
        layout: Option<Layout>,
        #[serde(default)]
        rates: Vec<f64>,
        #[serde(default)]
        is_open: bool,
    }

    /// The pointer and the detail of the one fault.
    fn fault(body: &str) -> (String, String) {
        let problem = parse::<Spec>(body.as_bytes()).unwrap_err();
        assert_eq!(problem.code, Code::InvalidRequest, "{body}: {problem:?}");
        (problem.faults[0].pointer.clone(), problem.faults[0].detail.to_string())
    }

    #[test]
    fn a_body_that_is_what_was_asked_for_is_read() {
        let spec: Spec =
            parse(br#" {"capacity":7,"mode":"strict","layout":{"bits":8},"rates":[1,0.5]} "#).unwrap();
        assert!(spec.capacity == 7 && !spec.is_open);
        assert!(matches!(spec.mode, Some(Mode::Strict)));
        assert_eq!(spec.layout.unwrap().bits, 8);
        assert_eq!(spec.rates, [1.0, 0.5]);
    }

    #[test]
    fn a_fault_is_told_with_its_place_and_without_what_was_met() {
        for (body, pointer, detail) in [
            ("[7]", "", "expected an object"),
            ("null", "", "expected an object"),
            ("\"secret\"", "", "expected an object"),
            ("{}", "/capacity", "missing"),
            (r#"{"capacity":"secret"}"#, "/capacity", "expected a whole number from 0 on"),
            (r#"{"capacity":-1}"#, "/capacity", "expected a whole number from 0 on"),
            (r#"{"capacity":1.5}"#, "/capacity", "expected a whole number from 0 on"),
            (r#"{"capacity":1,"capacity":1}"#, "/capacity", "given twice"),
            (r#"{"capacity":1,"mode":null}"#, "/mode", "expected a string"),
            (r#"{"capacity":1,"mode":{"strict":null}}"#, "/mode", "expected a string"),
            (r#"{"capacity":1,"mode":"secret"}"#, "/mode", "expected `compact` or `strict`"),
            (r#"{"capacity":1,"layout":null}"#, "/layout", "expected an object"),
            (r#"{"capacity":1,"layout":[8]}"#, "/layout", "expected an object"),
            (
                r#"{"capacity":1,"layout":{"bits":300}}"#,
                "/layout/bits",
                "expected a whole number from 0 to 255",
            ),
            (r#"{"capacity":1,"layout":{"a/b":1}}"#, "/layout/a~1b", "unknown field, expected `bits`"),
            (r#"{"capacity":1,"rates":[1,true]}"#, "/rates/1", "expected a number"),
            (r#"{"capacity":1,"\u0072ates":7}"#, "/rates", "expected a list"),
            (r#"{"capacity":1,"is_open":"secret"}"#, "/is_open", "expected true or false"),
            (r#"{"capacity":null}"#, "/capacity", "expected a whole number from 0 on"),
        ] {
            assert_eq!(fault(body), (pointer.into(), detail.into()), "{body}");
        }
    }

    #[test]
    fn broken_json_is_told_with_its_line_and_column() {
        for broken in
            ["", "{", "{\"capacity\":}", "{\"capacity\":1}x", "{\"capacity\":1e999}", "{'capacity':1}"]
        {
            assert_eq!(parse::<Spec>(broken.as_bytes()).unwrap_err().code, Code::MalformedJson, "{broken}");
        }
        let problem = parse::<Spec>(b"{\n  \"capacity\": x}").unwrap_err();
        assert_eq!(problem.detail, "at line 2, column 15");
    }
}
