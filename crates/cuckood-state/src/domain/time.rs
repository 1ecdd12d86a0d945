//! Points in time, as the log records them.

use jiff::SignedDuration;
use jiff::civil::{DateTime, date};
use jiff::fmt::temporal::Pieces;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::fmt;
use std::time::Duration;

/// A point in time, to the millisecond.
///
/// Milliseconds since 1970-01-01T00:00:00Z, without leap seconds. In JSON it is a string as in RFC 3339, in the log a number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "utoipa", schema(as = Time, value_type = String, format = DateTime, example = "2026-12-01T00:00:00.000Z"))]
pub struct Timestamp(pub u64);

/// The date and the time to the second in RFC 3339, with 0 for each digit.
const SECONDS: &str = "0000-00-00T00:00:00";

/// The epoch of a [`Timestamp`].
const EPOCH: DateTime = date(1970, 1, 1).at(0, 0, 0, 0);

/// The last time that RFC 3339 can express in UTC: 9999-12-31T23:59:59.999Z. jiff's own timestamps end a day earlier, so that
/// they can be shown in any zone.
const LAST_MILLISECOND: u64 = 253_402_300_799_999;

impl Timestamp {
    /// The largest time, which is never reached.
    pub const MAX: Timestamp = Timestamp(u64::MAX);

    /// This many seconds later; saturates at [`Timestamp::MAX`].
    pub fn plus_seconds(self, seconds: u64) -> Timestamp {
        Timestamp(self.0.saturating_add(seconds.saturating_mul(1_000)))
    }

    /// This much later, in whole milliseconds; saturates at [`Timestamp::MAX`].
    pub fn plus(self, time: Duration) -> Timestamp {
        let milliseconds = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        Timestamp(self.0.saturating_add(milliseconds))
    }
}

impl fmt::Display for Timestamp {
    /// Formats the time as in RFC 3339, always with three fraction digits, so that the strings sort like the times.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let milliseconds = self.0.min(LAST_MILLISECOND);
        let since_epoch =
            SignedDuration::from_millis(milliseconds.try_into().map_err(|_| fmt::Error)?);
        write!(
            f,
            "{:.3}Z",
            EPOCH.checked_add(since_epoch).map_err(|_| fmt::Error)?
        )
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match serializer.is_human_readable() {
            true => serializer.collect_str(self),
            false => serializer.serialize_u64(self.0),
        }
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if !deserializer.is_human_readable() {
            return u64::deserialize(deserializer).map(Timestamp);
        }
        let text = String::deserialize(deserializer)?;
        let expected = &"a time of 1970 or later as in RFC 3339, like 2026-12-01T00:00:00Z";
        parse(&text).ok_or_else(|| de::Error::invalid_value(de::Unexpected::Str(&text), expected))
    }
}

/// Parses RFC 3339 only; jiff would also accept other forms of ISO 8601.
fn parse(text: &str) -> Option<Timestamp> {
    let shape: String = text
        .chars()
        .map(|c| {
            if c.is_ascii_digit() {
                '0'
            } else {
                c.to_ascii_uppercase()
            }
        })
        .collect();
    let rest = shape.strip_prefix(SECONDS)?;
    let zone = match rest.strip_prefix('.') {
        Some(fraction) if fraction.starts_with('0') => fraction.trim_start_matches('0'),
        Some(_) => return None,
        None => rest,
    };
    if !matches!(zone, "Z" | "+00:00" | "-00:00") {
        return None;
    }
    let (local, zone) = text.split_at(text.len() - zone.len());
    // jiff reads nothing finer than nanoseconds.
    let local = &local[..local.len().min(SECONDS.len() + ".000000000".len())];
    let parsed = format!("{local}{zone}");
    let pieces = Pieces::parse(&parsed).ok()?;
    let offset = SignedDuration::from_secs(pieces.to_numeric_offset()?.seconds().into());
    let since_epoch = pieces
        .date()
        .to_datetime(pieces.time()?)
        .duration_since(EPOCH)
        - offset;
    let milliseconds = u64::try_from(since_epoch.as_millis()).ok()?;
    let is_offset = offset.abs() < SignedDuration::from_hours(24);
    (is_offset && !since_epoch.is_negative() && milliseconds <= LAST_MILLISECOND)
        .then_some(Timestamp(milliseconds))
}

/// The readings of a machine's two clocks at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClockReading {
    /// The time of day.
    pub wall: Timestamp,
    /// The time since the machine's boot, including suspended time.
    pub uptime: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn timestamp_arithmetic_saturates() {
        assert_eq!(Timestamp(1).plus_seconds(2), Timestamp(2_001));
        assert_eq!(Timestamp(1).plus_seconds(u64::MAX), Timestamp::MAX);
        assert_eq!(Timestamp::MAX.plus_seconds(1), Timestamp::MAX);
        assert_eq!(Timestamp(0).to_string(), "1970-01-01T00:00:00.000Z");
        assert!(Timestamp::MAX.to_string().starts_with("9999-"));
    }

    #[test]
    fn timestamp_round_trips() {
        for text in [
            "1970-01-01T00:00:00.000Z",
            "2026-12-01T00:00:00.100Z",
            "2026-12-01T23:59:59.120Z",
            "2026-12-01T23:59:59.125Z",
            "9999-12-31T23:59:59.999Z",
        ] {
            assert_eq!(
                parse(text).map(|time| time.to_string()).as_deref(),
                Some(text)
            );
        }
        assert_eq!(
            parse("2026-12-01T02:00:00+02:00"),
            parse("2026-12-01T00:00:00Z")
        );
        assert_eq!(Timestamp::MAX.to_string(), "9999-12-31T23:59:59.999Z");
    }

    proptest! {
        #[test]
        fn timestamp_parses_in_every_zone(
            milliseconds in 0..=LAST_MILLISECOND,
            minutes_ahead in -1_439_i64..1_440,
        ) {
            let time = Timestamp(milliseconds);
            prop_assert_eq!(parse(&time.to_string()), Some(time));
            prop_assert_eq!(time.to_string().len(), Timestamp::MAX.to_string().len());
            let since_epoch = SignedDuration::from_millis(milliseconds as i64);
            let local = EPOCH.checked_add(since_epoch + SignedDuration::from_mins(minutes_ahead));
            if let Ok(local) = local {
                let sign = if minutes_ahead < 0 { '-' } else { '+' };
                let ahead = minutes_ahead.abs();
                let text = format!("{local}{sign}{:02}:{:02}", ahead / 60, ahead % 60);
                prop_assert_eq!(parse(&text), Some(time), "{}", text);
            }
        }

        #[test]
        fn parser_agrees_with_jiff(text in "[12][0-9]{3}-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-6][0-9]:[0-6][0-9](\\.[0-9]{1,9})?(Z|[+-][0-2][0-9]:[0-6][0-9])") {
            if let Some(time) = parse(&text) {
                let expected: jiff::Timestamp = text.parse().unwrap();
                prop_assert_eq!(i128::from(time.0), i128::from(expected.as_millisecond()));
            }
        }
    }

    #[test]
    fn only_rfc_3339_parses() {
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
            "2026-12-01T00:00:00.Z",
            "2026-12-01T00:00:00,5Z",
            "2026-12-01T00:00:00+24:00",
            "2026-12-01T00:00:00+00:60",
            "2026-12-01T00:00:00+0000",
            "2026-12-01T00:00:00é:00",
            "1969-12-31T23:59:59.9999Z",
            "9999-12-31T23:59:59-00:01",
            "+2026-12-01T00:00:00Z",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
