//! Query strings. Unknown, repeated and invalid parameters are rejected, with a pointer. Those of lists ask for a page, and have the cursor
//! of the next one.

use super::json;
use crate::access::Caller;
use crate::http::response::Problem;
use axum::extract::Request;
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use cuckood_state::domain::{Label, Labels, Name};
use serde::de::value::{Error, MapDeserializer, StrDeserializer};
use serde::de::{
    DeserializeOwned, Deserializer, Error as _, IntoDeserializer, Unexpected, Visitor,
};
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
        deserialize_i32, visit_i32, "i32";
        deserialize_u32, visit_u32, "u32";
        deserialize_u64, visit_u64, "u64";
        deserialize_f64, visit_f64, "f64";
        deserialize_bool, visit_bool, "a boolean";
    }

    forward_to_deserialize_any! {
        i8 i16 i64 i128 u8 u16 u128 f32 char str string bytes byte_buf unit unit_struct newtype_struct seq tuple
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

/// A page of a collection, sorted by name, which is read in parts.
pub(crate) struct CollectionPage {
    /// The prefix of all names; `None` if no name can match.
    prefix: Option<String>,
    label: Option<Label>,
    /// The last name that was read.
    after: Option<Name>,
    /// Entries that the page has space for.
    left: usize,
    /// Entries that may be scanned.
    scans_left: usize,
    has_more: bool,
    has_ended: bool,
}

impl CollectionPage {
    /// The page that a request asks for.
    ///
    /// # Errors
    /// 422.
    pub(crate) fn asked(request: &Request, caller: &Caller) -> Result<Self, Problem> {
        let PageQuery {
            limit,
            cursor,
            prefix,
            label,
        } = parse(request)?;
        let left = limit.unwrap_or(PAGE_DEFAULT);
        Problem::unless_within("/limit", left, 1..=PAGE_MAX)?;
        let after = cursor
            .as_deref()
            .filter(|cursor| !cursor.is_empty())
            .map(name_at)
            .transpose()?;
        let prefix = caller.narrow(&prefix).map(str::to_owned);
        let scans_left = if label.is_some() {
            SCANNED_MAX
        } else {
            usize::MAX
        };
        Ok(Self {
            prefix,
            label,
            after,
            left,
            scans_left,
            has_more: false,
            has_ended: false,
        })
    }

    /// Reads the next entries of the page, up to `part`; `None` after the last ones. `find` returns up to a number of entries with a
    /// prefix, after a name.
    pub(crate) fn read<T>(
        &mut self,
        part: usize,
        find: impl FnOnce(&str, Option<&Name>, usize) -> Vec<T>,
        annotated: impl Fn(&T) -> (&Name, &Labels),
    ) -> Option<Vec<T>> {
        let prefix = self.prefix.as_deref().filter(|_| !self.has_ended)?;
        let wanted = part.min(self.scans_left);
        let found = find(prefix, self.after.as_ref(), wanted);
        let is_last = found.len() < wanted;
        self.scans_left -= found.len();
        let mut entries = Vec::new();
        for entry in found {
            let (name, labels) = annotated(&entry);
            let is_wanted = self
                .label
                .as_ref()
                .is_none_or(|label| labels.contains(label));
            if is_wanted && self.left == 0 {
                // The first entry of the next page.
                self.has_more = true;
                self.has_ended = true;
                return Some(entries);
            }
            self.after = Some(name.clone());
            if is_wanted {
                self.left -= 1;
                entries.push(entry);
            }
        }
        self.has_more = !is_last && self.scans_left == 0;
        self.has_ended = is_last || self.scans_left == 0;
        Some(entries)
    }

    /// The cursor of the next page, once this one was read; `None` after the last page.
    pub(crate) fn next_cursor(&self) -> Option<String> {
        self.after
            .as_ref()
            .filter(|_| self.has_more)
            .map(|name| write_cursor(name.as_str()))
    }
}

fn name_at(cursor: &str) -> Result<Name, Problem> {
    let name = String::from_utf8(read_cursor(cursor)?).map_err(|_| invalid_cursor())?;
    Name::new(&name).map_err(|_| invalid_cursor())
}

/// Encodes bytes as a cursor.
pub(crate) fn write_cursor(bytes: impl AsRef<[u8]>) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(bytes)
}

/// Decodes the bytes of a cursor.
pub(crate) fn read_cursor(cursor: &str) -> Result<Vec<u8>, Problem> {
    BASE64_URL_SAFE_NO_PAD
        .decode(cursor)
        .map_err(|_| invalid_cursor())
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
        let request = Request::get(format!("/x?{query}"))
            .body(Body::empty())
            .unwrap();
        parse(&request).map_err(|problem: Problem| {
            let fault = &problem.faults[0];
            (fault.pointer.clone(), fault.detail.to_string())
        })
    }

    #[test]
    fn parameters_are_read_by_their_types() {
        let all = parsed("limit=3&rate=0.5&mode=append&prefix=a%2Bb+c").unwrap();
        let expected = Parameters {
            limit: Some(3),
            rate: Some(0.5),
            mode: Some(Mode::Append),
            prefix: "a+b c".into(),
        };
        assert_eq!(all, expected);
        let none = Parameters {
            limit: None,
            rate: None,
            mode: None,
            prefix: String::new(),
        };
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
            (
                "other=1",
                "/other",
                "unknown field, expected one of `limit`, `rate`, `mode`, `prefix`",
            ),
        ] {
            assert_eq!(
                parsed(query),
                Err((pointer.into(), detail.into())),
                "{query}"
            );
        }
    }
}
