//! Query strings. Unknown, repeated and invalid parameters are refused, with a pointer.

use super::json;
use crate::http::answer::Problem;
use axum::extract::Request;
use serde::de::value::{Error, MapDeserializer, StrDeserializer};
use serde::de::{DeserializeOwned, Deserializer, Error as _, IntoDeserializer, Unexpected, Visitor};
use serde::forward_to_deserialize_any;
use serde_path_to_error::Track;
use std::borrow::Cow;

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

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
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
        deserialize_u8, visit_u8, "u8";
        deserialize_u16, visit_u16, "u16";
        deserialize_u32, visit_u32, "u32";
        deserialize_u64, visit_u64, "u64";
        deserialize_f64, visit_f64, "f64";
        deserialize_bool, visit_bool, "a boolean";
    }

    forward_to_deserialize_any! {
        i8 i16 i32 i64 i128 u128 f32 char str string bytes byte_buf unit unit_struct seq tuple tuple_struct map struct
        identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;
    use serde::Deserialize;

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
    fn a_fault_names_its_parameter_and_not_its_value() {
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
