//! serde's objections to a value, as pointer and detail instead of one text.

use super::faults::escaped;
use crate::http::answer::problem::Problem;
use serde::de;
use std::fmt;

/// A value of the wrong shape. It does not contain the value, which could be somebody's id or code.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct ShapeError {
    /// The part of the value, as a JSON pointer.
    pointer: String,
    detail: String,
}

impl ShapeError {
    /// An error about the whole value.
    pub(super) fn new(detail: impl Into<String>) -> Self {
        Self { pointer: String::new(), detail: detail.into() }
    }

    /// Something else was expected, as serde says it: a Rust type, or plain words.
    pub(super) fn expected(expected: &str) -> Self {
        let words = match expected {
            "u8" => "a whole number from 0 to 255",
            "u16" => "a whole number from 0 to 65535",
            "u32" => "a whole number from 0 to 4294967295",
            "u64" | "usize" => "a whole number from 0 on",
            "f32" | "f64" => "a number",
            "a boolean" => "true or false",
            "a sequence" => "a list",
            "a map" => "an object",
            words => words,
        };
        Self::new(format!("expected {words}"))
    }

    /// Adds an outer step to the pointer.
    pub(super) fn inside(self, step: impl fmt::Display) -> Self {
        Self { pointer: format!("/{step}{}", self.pointer), ..self }
    }
}

impl From<ShapeError> for Problem {
    fn from(error: ShapeError) -> Self {
        Problem::invalid_at(&error.pointer, error.detail)
    }
}

impl fmt::Display for ShapeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.pointer, self.detail)
    }
}

impl std::error::Error for ShapeError {}

impl de::Error for ShapeError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::new(message.to_string())
    }

    fn invalid_type(_: de::Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        Self::expected(&expected.to_string())
    }

    fn invalid_value(_: de::Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        Self::expected(&expected.to_string())
    }

    fn unknown_variant(_: &str, expected: &'static [&'static str]) -> Self {
        Self::new(format!("expected {}", OneOf(expected)))
    }

    fn unknown_field(field: &str, expected: &'static [&'static str]) -> Self {
        Self::new(format!("unknown field, expected {}", OneOf(expected))).inside(escaped(field))
    }

    fn missing_field(field: &'static str) -> Self {
        Self::new("missing").inside(field)
    }

    fn duplicate_field(field: &'static str) -> Self {
        Self::new("given twice").inside(field)
    }
}

/// The expected words.
struct OneOf(&'static [&'static str]);

impl fmt::Display for OneOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            [] => f.write_str("none"),
            [only] => write!(f, "`{only}`"),
            [one, other] => write!(f, "`{one}` or `{other}`"),
            all => write!(f, "one of `{}`", all.join("`, `")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::de::Error;

    #[test]
    fn a_pointer_leads_from_the_outside_to_the_fault() {
        let fault = ShapeError::missing_field("user").inside(3).inside("requests");
        assert_eq!(fault, ShapeError { pointer: "/requests/3/user".into(), detail: "missing".into() });
    }

    #[test]
    fn what_was_met_is_not_told() {
        let met = "somebody's id";
        let faults = [
            ShapeError::invalid_type(de::Unexpected::Str(met), &"a list"),
            ShapeError::invalid_value(de::Unexpected::Str(met), &"a time"),
            ShapeError::unknown_variant(met, &["a", "b", "c"]),
        ];
        assert_eq!(
            faults.map(|fault| fault.detail),
            ["expected a list", "expected a time", "expected one of `a`, `b`, `c`"]
        );
    }
}
