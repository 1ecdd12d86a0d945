//! Points in time, as the log records them.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// Milliseconds since 1970-01-01T00:00:00Z, without leap seconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// The largest time: what has it never comes due.
    pub const MAX: Timestamp = Timestamp(u64::MAX);

    /// This many seconds later; saturates at [`Timestamp::MAX`].
    pub fn plus_seconds(self, seconds: u64) -> Timestamp {
        Timestamp(self.0.saturating_add(seconds.saturating_mul(1_000)))
    }
}

impl fmt::Display for Timestamp {
    /// Formats the time as in RFC 3339.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let milliseconds = i64::try_from(self.0).unwrap_or(i64::MAX);
        jiff::Timestamp::from_millisecond(milliseconds).unwrap_or(jiff::Timestamp::MAX).fmt(f)
    }
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

    #[test]
    fn no_time_wraps() {
        assert_eq!(Timestamp(1).plus_seconds(2), Timestamp(2_001));
        assert_eq!(Timestamp(1).plus_seconds(u64::MAX), Timestamp::MAX);
        assert_eq!(Timestamp::MAX.plus_seconds(1), Timestamp::MAX);
        assert_eq!(Timestamp(0).to_string(), "1970-01-01T00:00:00Z");
        assert!(Timestamp::MAX.to_string().starts_with("9999-"));
    }
}
