//! JSON bodies as plain structs, by the rules of the contract: a struct is an object and never a list, an enum is a string, and an
//! optional field may be absent but not null. The first fault is reported with a pointer to it, but without the value, which could be
//! a user's id or a code.

use crate::http::response::problem::FAULTS_MAX;
use crate::http::response::{Code, Problem, RequestFault};
use crate::turn::{Turn, UNMEASURED_MAX};
use cuckood_filter::Digest;
use cuckood_state::FilterView;
use cuckood_state::domain::ITEM_BYTES_MAX;
use derive_more::AsRef;
use serde::de::IntoDeserializer;
use serde::de::value::{MapAccessDeserializer, StrDeserializer};
use serde::de::{
    self, DeserializeOwned, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess,
    Visitor,
};
use serde::{Deserialize, Serialize, forward_to_deserialize_any};
use serde_path_to_error::{Path, Segment, Track};
use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;
use utoipa::ToSchema;

/// Parses a body.
///
/// # Errors
/// Invalid JSON (400), or JSON of the wrong shape (422, with a pointer to the first fault).
pub(crate) fn parse<'de, T: Deserialize<'de>>(
    body: &'de (impl AsRef<[u8]> + ?Sized),
) -> Result<T, Problem> {
    let text = str::from_utf8(body.as_ref()).map_err(|error| {
        Problem::new(
            Code::MalformedJson,
            format!("not UTF-8 after {} bytes", error.valid_up_to()),
        )
    })?;
    let mut json = serde_json::Deserializer::from_str(text);
    let value = T::deserialize(Strict(&mut json)).and_then(|value| json.end().map(|()| value));
    value.map_err(|_| located::<T>(text))
}

/// The problem of a text that is not a `T`. It is parsed again, since only a fault is worth the pointer's cost.
fn located<'de, T: Deserialize<'de>>(text: &'de str) -> Problem {
    // Invalid JSON is reported first, wherever it is.
    if let Err(error) = serde_json::from_str::<IgnoredAny>(text) {
        return malformed(&error);
    }
    let mut json = serde_json::Deserializer::from_str(text);
    let mut track = Track::new();
    let deserializer = serde_path_to_error::Deserializer::new(Strict(&mut json), &mut track);
    match T::deserialize(deserializer) {
        Err(error) if error.is_data() => {
            let message = error.to_string();
            let message = message
                .rsplit_once(" at line ")
                .map_or(&*message, |(message, _)| message);
            fault_at(&track.path(), message)
        }
        Err(error) => malformed(&error),
        Ok(_) => Problem::new(Code::Internal, "the body was read the second time only"),
    }
}

fn malformed(error: &serde_json::Error) -> Problem {
    let detail = format!("at line {}, column {}", error.line(), error.column());
    Problem::new(Code::MalformedJson, detail)
}

/// A deserializer that enforces the contract's rules, and all that is inside it: visitors, elements, fields.
struct Strict<T>(T);

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Strict<D> {
    type Error = D::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.0.deserialize_any(Strict(visitor))
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0.deserialize_map(Strict(visitor))
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0.deserialize_str(Word(visitor))
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.0.deserialize_ignored_any(visitor)
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
            self.0.$visit(value)
        })*
    };
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Strict<V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.expecting(f)
    }

    fn visit_unit<E: de::Error>(self) -> Result<V::Value, E> {
        self.0.visit_unit()
    }

    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<V::Value, A::Error> {
        self.0.visit_seq(Strict(seq))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<V::Value, A::Error> {
        self.0.visit_map(Strict(map))
    }

    pass_on!(visit_bool: bool, visit_i64: i64, visit_u64: u64, visit_f64: f64, visit_str: &str, visit_borrowed_str: &'de str);
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Strict<S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<S::Value, D::Error> {
        self.0.deserialize(Strict(deserializer))
    }
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for Strict<A> {
    type Error = A::Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, A::Error> {
        self.0.next_element_seed(Strict(seed))
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Strict<A> {
    type Error = A::Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, A::Error> {
        self.0.next_key_seed(seed)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        self.0.next_value_seed(Strict(seed))
    }
}

/// Accepts only a string: derived code would also read an enum from an object.
struct Word<V>(V);

impl<'de, V: Visitor<'de>> Visitor<'de> for Word<V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_str<E: de::Error>(self, word: &str) -> Result<V::Value, E> {
        let word: StrDeserializer<'_, E> = word.into_deserializer();
        self.0.visit_enum(word)
    }
}

/// A list that keeps at most `RETAINED` elements: one more than allowed, which shows that there are too many.
pub(crate) fn list<'de, const RETAINED: usize, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    struct List<const RETAINED: usize, T>(PhantomData<T>);
    impl<'de, const RETAINED: usize, T: Deserialize<'de>> Visitor<'de> for List<RETAINED, T> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<T>, A::Error> {
            let mut retained = Vec::new();
            while retained.len() < RETAINED {
                let Some(element) = seq.next_element()? else {
                    return Ok(retained);
                };
                retained.push(element);
            }
            while seq.next_element::<IgnoredAny>()?.is_some() {}
            Ok(retained)
        }
    }
    deserializer.deserialize_seq(List::<RETAINED, T>(PhantomData))
}

/// A field of a merge-patch (RFC 7396); null clears it.
pub(crate) struct OrNull<T>(pub(crate) Option<T>);

/// A string or an object that a merge-patch can clear.
pub(crate) trait Clearable: DeserializeOwned {
    /// The expected value in error messages.
    const WORDS: &str;
}

impl<'de, T: Clearable> Deserialize<'de> for OrNull<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ValueOrNull<T>(PhantomData<T>);
        impl<'de, T: Clearable> Visitor<'de> for ValueOrNull<T> {
            type Value = Option<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{} or null", T::WORDS)
            }

            fn visit_unit<E: de::Error>(self) -> Result<Option<T>, E> {
                Ok(None)
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Option<T>, E> {
                T::deserialize(StrDeserializer::new(text)).map(Some)
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Option<T>, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(Some)
            }
        }
        deserializer
            .deserialize_any(ValueOrNull(PhantomData))
            .map(Self)
    }
}

/// A text, borrowed unless it has escapes.
#[derive(AsRef, Serialize, Deserialize)]
#[as_ref(str)]
pub(crate) struct JsonText<'a>(#[serde(borrow)] pub(crate) Cow<'a, str>);

/// A user id or a code: 1 to 512 bytes of UTF-8. `normalize` of its filter decides which spellings are the same item.
///
/// It is `None` where the body has no string, so that one loop can report every item that is not valid.
#[derive(Default, ToSchema)]
#[schema(value_type = String, min_length = 1, max_length = 512, example = "u1")]
pub(crate) struct Item<'a>(Option<Cow<'a, str>>);

impl Item<'_> {
    /// Returns its length.
    pub(crate) fn bytes(&self) -> usize {
        self.0.as_ref().map_or(0, |text| text.len())
    }

    /// Returns the text of the item, or its error.
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

/// Reads an item, which is borrowed from the body, from any JSON.
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

/// The longest field name that a pointer spells out, in characters.
const NAME_CHARACTERS_MAX: usize = 64;

/// The faults of a request, up to a limit.
#[derive(Default)]
pub(crate) struct Faults(Vec<RequestFault>);

impl Faults {
    /// Adds a fault.
    pub(crate) fn note(
        &mut self,
        pointer: impl FnOnce() -> String,
        detail: impl Into<Cow<'static, str>>,
    ) {
        if self.0.len() < FAULTS_MAX {
            self.0.push(RequestFault {
                pointer: pointer(),
                detail: detail.into(),
            });
        }
    }

    /// The digest of an item in the filter of `view`. For an invalid one, whose error is added, it is meaningless.
    pub(crate) fn digest(
        &mut self,
        view: &FilterView,
        item: &Item<'_>,
        pointer: impl FnOnce() -> String,
    ) -> Digest {
        let digest = match item.text() {
            Ok(text) => view
                .digest(text)
                .map_err(|unusable| unusable.to_string().into()),
            Err(fault) => Err(Cow::Borrowed(fault)),
        };
        digest.unwrap_or_else(|fault| {
            self.note(pointer, fault);
            Digest(0)
        })
    }

    /// The problem that the faults make up, if there are any.
    pub(crate) fn check(self) -> Result<(), Problem> {
        if self.0.is_empty() {
            Ok(())
        } else {
            Err(Problem::invalid(self.0))
        }
    }
}

/// The digests of a list of 1 to `items_max` items. Normalization can take long, so other tasks run in between.
pub(crate) async fn digests(
    view: &FilterView,
    field: &str,
    items: &[Item<'_>],
    items_max: usize,
) -> Result<Vec<Digest>, Problem> {
    check_length(field, items.len(), items_max)?;
    let mut faults = Faults::default();
    let mut turn = Turn::default();
    let mut digests = Vec::with_capacity(items.len());
    loop {
        hash_some(view, field, items, &mut digests, &mut faults);
        if digests.len() == items.len() {
            faults.check()?;
            return Ok(digests);
        }
        turn.step().await;
    }
}

/// Hashes the next items, of as many bytes as a turn allows unmeasured. No step of an asynchronous loop: that takes longer than hashing.
fn hash_some(
    view: &FilterView,
    field: &str,
    items: &[Item<'_>],
    digests: &mut Vec<Digest>,
    faults: &mut Faults,
) {
    let mut bytes = 0;
    for item in &items[digests.len()..] {
        let index = digests.len();
        digests.push(faults.digest(view, item, || format!("/{field}/{index}")));
        bytes += item.bytes();
        if bytes >= UNMEASURED_MAX {
            return;
        }
    }
}

/// Refuses a list that is empty or too long.
pub(crate) fn check_length(field: &str, length: usize, length_max: usize) -> Result<(), Problem> {
    if (1..=length_max).contains(&length) {
        return Ok(());
    }
    Err(Problem::invalid_at(
        &format!("/{field}"),
        format!("expected 1 to {length_max} elements"),
    ))
}

/// Returns the problem for serde's message about a part of a request. It contains no value of the request.
pub(super) fn fault_at(path: &Path, message: &str) -> Problem {
    let mut pointer = String::new();
    for segment in path {
        match segment {
            Segment::Seq { index } => pointer.push_str(&format!("/{index}")),
            Segment::Map { key } => pointer.push_str(&format!("/{}", escaped(key))),
            Segment::Enum { .. } | Segment::Unknown => {}
        }
    }
    for (beginning, detail) in [
        ("missing field `", "missing"),
        ("duplicate field `", "given twice"),
    ] {
        if let Some(field) = message
            .strip_prefix(beginning)
            .and_then(|rest| rest.strip_suffix('`'))
        {
            return Problem::invalid_at(&format!("{pointer}/{field}"), detail);
        }
    }
    let detail = match message.rsplit_once(", expected ") {
        Some((met, expected)) if met.starts_with("unknown field") => {
            format!("unknown field, expected {expected}")
        }
        Some((_, expected)) => format!("expected {}", words(expected)),
        // A message of our own types, which never quotes.
        None => message.to_owned(),
    };
    Problem::invalid_at(&pointer, detail)
}

/// A field's name as a step of a JSON pointer; a very long name is cut.
fn escaped(name: &str) -> String {
    let cut: String = name.chars().take(NAME_CHARACTERS_MAX).collect();
    cut.replace('~', "~0").replace('/', "~1")
}

/// Describes a type that serde expects in plain words.
fn words(expected: &str) -> &str {
    match expected {
        "u8" => "a whole number from 0 to 255",
        "u16" => "a whole number from 0 to 65535",
        "u32" => "a whole number from 0 to 4294967295",
        "u64" | "usize" => "a whole number from 0 on",
        "f32" | "f64" => "a number",
        "a boolean" => "true or false",
        "a sequence" => "a list",
        _ if expected.starts_with("struct ") => "an object",
        words => words,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Names<'a> {
        #[serde(borrow, deserialize_with = "list::<4, _, _>")]
        names: Vec<JsonText<'a>>,
    }

    #[derive(Deserialize)]
    struct Objects<'a> {
        #[serde(borrow, deserialize_with = "list::<2, _, _>")]
        objects: Vec<Names<'a>>,
    }

    #[test]
    fn long_list_is_not_buffered() {
        let many = format!(r#"{{"names":["a","\u0062"{}]}}"#, r#","c""#.repeat(100_000));
        let Names { names } = parse(many.as_bytes()).unwrap();
        assert!(names.len() == 4 && names.capacity() < 16);
        assert!(
            matches!(&names[..2], [JsonText(Cow::Borrowed("a")), JsonText(Cow::Owned(b))] if b == "b")
        );
        // Skipped elements must be valid JSON too.
        for broken in [
            r#"{"names":["a","b","c","d","e",]}"#,
            r#"{"names":["a","b","c","d","#,
        ] {
            assert_eq!(
                parse::<Names<'_>>(broken.as_bytes()).err().unwrap().code,
                Code::MalformedJson
            );
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
        (
            problem.faults[0].pointer.clone(),
            problem.faults[0].detail.to_string(),
        )
    }

    #[test]
    fn valid_body_is_parsed() {
        let spec: Spec =
            parse(br#" {"capacity":7,"mode":"strict","layout":{"bits":8},"rates":[1,0.5]} "#)
                .unwrap();
        assert!(spec.capacity == 7 && !spec.is_open);
        assert!(matches!(spec.mode, Some(Mode::Strict)));
        assert_eq!(spec.layout.unwrap().bits, 8);
        assert_eq!(spec.rates, [1.0, 0.5]);
    }

    #[test]
    fn error_names_location_without_value() {
        for (body, pointer, detail) in [
            ("[7]", "", "expected an object"),
            ("null", "", "expected an object"),
            ("\"secret\"", "", "expected an object"),
            ("{}", "/capacity", "missing"),
            (
                r#"{"capacity":"secret"}"#,
                "/capacity",
                "expected a whole number from 0 on",
            ),
            (
                r#"{"capacity":-1}"#,
                "/capacity",
                "expected a whole number from 0 on",
            ),
            (
                r#"{"capacity":1.5}"#,
                "/capacity",
                "expected a whole number from 0 on",
            ),
            (r#"{"capacity":1,"capacity":1}"#, "/capacity", "given twice"),
            (
                r#"{"capacity":1,"mode":null}"#,
                "/mode",
                "expected a string",
            ),
            (
                r#"{"capacity":1,"mode":{"strict":null}}"#,
                "/mode",
                "expected a string",
            ),
            (
                r#"{"capacity":1,"mode":"secret"}"#,
                "/mode",
                "expected `compact` or `strict`",
            ),
            (
                r#"{"capacity":1,"layout":null}"#,
                "/layout",
                "expected an object",
            ),
            (
                r#"{"capacity":1,"layout":[8]}"#,
                "/layout",
                "expected an object",
            ),
            (
                r#"{"capacity":1,"layout":{"bits":300}}"#,
                "/layout/bits",
                "expected a whole number from 0 to 255",
            ),
            (
                r#"{"capacity":1,"layout":{"a/b":1}}"#,
                "/layout/a~1b",
                "unknown field, expected `bits`",
            ),
            (
                r#"{"capacity":1,"rates":[1,true]}"#,
                "/rates/1",
                "expected a number",
            ),
            (
                r#"{"capacity":1,"\u0072ates":7}"#,
                "/rates",
                "expected a list",
            ),
            (
                r#"{"capacity":1,"is_open":"secret"}"#,
                "/is_open",
                "expected true or false",
            ),
            (
                r#"{"capacity":null}"#,
                "/capacity",
                "expected a whole number from 0 on",
            ),
        ] {
            assert_eq!(fault(body), (pointer.into(), detail.into()), "{body}");
        }
    }

    #[test]
    fn invalid_json_names_line_and_column() {
        for broken in [
            "",
            "{",
            "{\"capacity\":}",
            "{\"capacity\":1}x",
            "{\"capacity\":1e999}",
            "{'capacity':1}",
        ] {
            assert_eq!(
                parse::<Spec>(broken.as_bytes()).unwrap_err().code,
                Code::MalformedJson,
                "{broken}"
            );
        }
        let problem = parse::<Spec>(b"{\n  \"capacity\": x}").unwrap_err();
        assert_eq!(problem.detail, "at line 2, column 15");
    }
}
