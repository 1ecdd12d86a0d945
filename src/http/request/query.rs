//! Query strings. Unknown, repeated and invalid parameters are rejected, with a pointer. Those of lists ask for a page, and have the cursor
//! of the next one.

use super::json;
use crate::access::Caller;
use crate::domain::{Label, Labels, Name};
use crate::http::answer::Problem;
use axum::extract::Request;
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use serde::de::value::{Error, MapDeserializer, StrDeserializer};
use serde::de::{DeserializeOwned, Deserializer, Error as _, IntoDeserializer, Unexpected, Visitor};
use serde::{Deserialize, forward_to_deserialize_any};
use serde_path_to_error::Track;
use std::borrow::Cow;
use utoipa::IntoParams;

/// Parses the query's parameters.
///
/// # Errors
/// 422, with a pointer to the parameter if it is known.
pub(crate) fn parse<T: DeserializeOwned>(request: &Request) -> Result<T, Problem> {
    let query = request.uri().query().unwrap_or_default();
    let parameters = form_urlencoded::parse(query.as_bytes());
    let values = MapDeserializer::new(parameters.map(|(name, text)| (name, Parameter(text))));
    let mut track = Track::new();
    T::deserialize(serde_path_to_error::Deserializer::new(values, &mut track))
        .map_err(|error: Error| json::fault_at(&track.path(), &error.to_string()))
}

/// One parameter's value.
struct Parameter<'a>(Cow<'a, str>);

impl<'de> IntoDeserializer<'de, Error> for Parameter<'_> {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

/// Parses a number from its text.
macro_rules! numbers {
    ($($deserialize:ident, $visit:ident, $type:literal;)*) => {
        $(fn $deserialize<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
            let number = self.0.parse().map_err(|_| Error::invalid_type(Unexpected::Str(&self.0), &$type))?;
            visitor.$visit(number)
        })*
    };
}

impl<'de> Deserializer<'de> for Parameter<'_> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_str(&self.0)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_some(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        let word: StrDeserializer<'_, Error> = (*self.0).into_deserializer();
        visitor.visit_enum(word)
    }

    numbers! {
        deserialize_u32, visit_u32, "u32";
        deserialize_u64, visit_u64, "u64";
        deserialize_f64, visit_f64, "f64";
        deserialize_bool, visit_bool, "a boolean";
    }

    forward_to_deserialize_any! {
        i8 i16 i32 i64 i128 u8 u16 u128 f32 char str string bytes byte_buf unit unit_struct newtype_struct seq tuple
        tuple_struct map struct identifier ignored_any
    }
}

/// The most entries on a page.
pub(crate) const PAGE_MAX: usize = 1_000;

/// Maximum number of entries that a request with a label scans. If they don't fill a page, the next page continues after them.
const SCANNED_MAX: usize = 4_096;

/// The default number of entries on a page.
pub(crate) const PAGE_DEFAULT: usize = 100;

/// Which part of a list to return.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct PageQuery {
    /// Maximum number of entries.
    #[param(minimum = 1, maximum = 1000, default = 100)]
    limit: Option<usize>,
    /// The `next_cursor` of the previous page. Empty means the first page.
    #[param(value_type = Option<String>)]
    cursor: Option<String>,
    /// Only names that start with this.
    #[serde(default)]
    #[param(value_type = Option<String>)]
    prefix: String,
    /// Only entries with this label, as `key=value`. A page can then have fewer entries although more follow.
    #[param(value_type = Option<String>, pattern = "^[a-z0-9][a-z0-9._-]{0,127}=", example = "team=shop")]
    label: Option<Label>,
}

/// The page of a collection that is asked for, and the cursor of the next one. `find` returns one entry more than the page has, or
/// with a label up to [`SCANNED_MAX`].
pub(crate) fn page<T>(
    request: &Request,
    caller: &Caller,
    find: impl FnOnce(&str, Option<&Name>, usize) -> Vec<T>,
    annotated: impl Fn(&T) -> (&Name, &Labels),
) -> Result<(Vec<T>, Option<String>), Problem> {
    let asked: PageQuery = parse(request)?;
    let page = asked.limit.unwrap_or(PAGE_DEFAULT);
    Problem::unless_within("/limit", page, 1..=PAGE_MAX)?;
    let cursor = asked.cursor.as_deref().filter(|cursor| !cursor.is_empty());
    let after = cursor.map(|cursor| {
        let name = read_cursor(cursor)?;
        str::from_utf8(&name).ok().and_then(|name| Name::new(name).ok()).ok_or_else(invalid_cursor)
    });
    let after = after.transpose()?;
    let Some(prefix) = caller.narrow(&asked.prefix) else { return Ok((Vec::new(), None)) };
    let limit = if asked.label.is_some() { SCANNED_MAX } else { page + 1 };
    let mut all = find(prefix, after.as_ref(), limit);
    let is_wanted = |entry: &T| asked.label.as_ref().is_none_or(|label| annotated(entry).1.contains(label));
    // The first entry after this page.
    let beyond = (0..all.len()).filter(|index| is_wanted(&all[*index])).nth(page);
    let beyond = beyond.or((all.len() == limit).then_some(limit));
    all.truncate(beyond.unwrap_or(limit));
    let next = all.last().filter(|_| beyond.is_some()).map(|last| write_cursor(annotated(last).0.as_str()));
    all.retain(is_wanted);
    Ok((all, next))
}

/// Encodes bytes as a cursor.
pub(crate) fn write_cursor(bytes: impl AsRef<[u8]>) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(bytes)
}

/// Decodes the bytes of a cursor.
pub(crate) fn read_cursor(cursor: &str) -> Result<Vec<u8>, Problem> {
    BASE64_URL_SAFE_NO_PAD.decode(cursor).map_err(|_| invalid_cursor())
}

/// The problem of a cursor that the service never issued.
pub(crate) fn invalid_cursor() -> Problem {
    Problem::invalid_at("/cursor", "not a next_cursor of this service")
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;

    #[derive(Deserialize, PartialEq, Debug)]
    #[serde(rename_all = "lowercase")]
    enum Mode {
        Append,
    }

    #[derive(Deserialize, PartialEq, Debug)]
    #[serde(deny_unknown_fields)]
    struct Parameters {
        limit: Option<u64>,
        rate: Option<f64>,
        mode: Option<Mode>,
        #[serde(default)]
        prefix: String,
    }

    fn parsed(query: &str) -> Result<Parameters, (String, String)> {
        let request = Request::get(format!("/x?{query}")).body(Body::empty()).unwrap();
        parse(&request).map_err(|problem: Problem| {
            let fault = &problem.faults[0];
            (fault.pointer.clone(), fault.detail.to_string())
        })
    }

    #[test]
    fn parameters_are_read_by_their_types() {
        let all = parsed("limit=3&rate=0.5&mode=append&prefix=a%2Bb+c").unwrap();
        let expected =
            Parameters { limit: Some(3), rate: Some(0.5), mode: Some(Mode::Append), prefix: "a+b c".into() };
        assert_eq!(all, expected);
        let none = Parameters { limit: None, rate: None, mode: None, prefix: String::new() };
        assert_eq!(parsed(""), Ok(none));
    }

    #[test]
    fn error_names_parameter_without_value() {
        for (query, pointer, detail) in [
            ("limit=x", "/limit", "expected a whole number from 0 on"),
            ("limit=-1", "/limit", "expected a whole number from 0 on"),
            ("limit=", "/limit", "expected a whole number from 0 on"),
            ("limit=1&limit=2", "/limit", "given twice"),
            ("rate=x", "/rate", "expected a number"),
            ("mode=x", "/mode", "expected `append`"),
            ("other=1", "/other", "unknown field, expected one of `limit`, `rate`, `mode`, `prefix`"),
        ] {
            assert_eq!(parsed(query), Err((pointer.into(), detail.into())), "{query}");
        }
    }
}
