//! Points in time as JSON has them: RFC 3339, UTC.

use crate::domain::Timestamp;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::fmt;
use utoipa::ToSchema;

/// A point in time, to the millisecond.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ToSchema)]
#[schema(value_type = String, format = DateTime, example = "2026-12-01T00:00:00Z")]
pub(super) struct Time(pub(super) Timestamp);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let milliseconds = i64::try_from(self.0.0).unwrap_or(i64::MAX);
        jiff::Timestamp::from_millisecond(milliseconds).unwrap_or(jiff::Timestamp::MAX).fmt(f)
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl de::Visitor<'_> for Text {
            type Value = Time;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a time of 1970 or later as in RFC 3339, like 2026-12-01T00:00:00Z")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Time, E> {
                parse(text).ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
            }
        }
        deserializer.deserialize_str(Text)
    }
}

/// RFC 3339 alone: the parser itself would also take other forms of ISO 8601.
fn parse(text: &str) -> Option<Time> {
    let bytes = text.as_bytes();
    let at = |index: usize, of: &[u8]| bytes.get(index).is_some_and(|byte| of.contains(byte));
    let zone = bytes.len().checked_sub(6);
    let zoned = bytes.ends_with(b"Z")
        || bytes.ends_with(b"z")
        || zone.is_some_and(|zone| at(zone, b"+-") && at(zone + 3, b":"));
    let formed = at(4, b"-") && at(7, b"-") && at(10, b"Tt") && at(13, b":") && at(16, b":") && zoned;
    let time: jiff::Timestamp = if formed { text.parse().ok()? } else { return None };
    u64::try_from(time.as_millisecond()).ok().map(|milliseconds| Time(Timestamp(milliseconds)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_comes_back_as_it_was_written() {
        for text in ["1970-01-01T00:00:00Z", "2026-12-01T00:00:00Z", "2026-12-01T23:59:59.125Z"] {
            assert_eq!(parse(text).map(|time| time.to_string()).as_deref(), Some(text));
        }
        assert_eq!(parse("2026-12-01T02:00:00+02:00"), parse("2026-12-01T00:00:00Z"));
    }

    #[test]
    fn nothing_but_rfc_3339_is_a_time() {
        for text in [
            "",
            "2026-12-01",
            "2026-12-01 00:00:00Z",
            "2026-12-01T00:00:00",
            "1969-12-31T23:59:59Z",
            "20261201T000000Z",
            "2026-12-01T00:00:00Z[UTC]",
            "2026-13-01T00:00:00Z",
            "2026-12-01T00:00Z",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
