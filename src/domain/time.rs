//! A point in time as the log knows it: milliseconds of the Unix epoch, UTC.

use serde::{Deserialize, Serialize};

/// Milliseconds since 1970-01-01T00:00:00Z, leap seconds not counted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// The later end of all time: what never comes due.
    pub const MAX: Timestamp = Timestamp(u64::MAX);

    /// This many seconds later; stays at [`Timestamp::MAX`] instead of wrapping.
    pub fn plus_seconds(self, seconds: u64) -> Timestamp {
        Timestamp(self.0.saturating_add(seconds.saturating_mul(1_000)))
    }
}
