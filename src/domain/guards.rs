//! Rejected lines of an upload, and guards: conditions that an import must satisfy, so that the wrong file does no harm.

use serde::{Deserialize, Serialize};
use std::fmt;
use thiserror::Error;
use utoipa::ToSchema;

/// A share from 0 to 1, stored as a whole number of millionths, so that it is equal on every machine.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(try_from = "u32")]
pub struct Share(u32);

impl TryFrom<u32> for Share {
    type Error = InvalidShare;

    fn try_from(millionths: u32) -> Result<Self, InvalidShare> {
        (millionths <= WHOLE).then_some(Self(millionths)).ok_or(InvalidShare)
    }
}

/// The error for a number that is not a [`Share`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("a share is a number from 0 to 1")]
pub struct InvalidShare;

const WHOLE: u32 = 1_000_000;

impl Share {
    /// Creates a share, rounded to millionths.
    ///
    /// # Errors
    /// [`InvalidShare`] for a number below 0, above 1 or NaN.
    pub fn new(share: f64) -> Result<Self, InvalidShare> {
        if !(0.0..=1.0).contains(&share) {
            return Err(InvalidShare);
        }
        Ok(Self((share * f64::from(WHOLE)).round() as u32))
    }

    /// Whether `after` is below `before` by more than this share of `before`.
    pub fn is_exceeded(self, before: u64, after: u64) -> bool {
        u128::from(after) * u128::from(WHOLE) < u128::from(before) * u128::from(WHOLE - self.0)
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", f64::from(self.0) / f64::from(WHOLE))
    }
}

/// What is wrong with a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema, Error)]
#[serde(rename_all = "kebab-case")]
#[schema(as = LineErrorCode)]
pub enum LineFault {
    /// Longer than 512 bytes.
    #[error("item-too-long")]
    ItemTooLong,
    /// Not UTF-8.
    #[error("not-utf8")]
    NotUtf8,
    /// Neither a JSON string nor `{"item":…}`; not a CSV record, or one without the column.
    #[error("malformed")]
    Malformed,
    /// An empty item.
    #[error("empty")]
    Empty,
}

/// A rejected line.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema, Error)]
#[error("line {line} ({fault})")]
pub struct LineError {
    /// Its number; the first line is 1.
    #[schema(minimum = 1)]
    pub line: u64,
    /// What is wrong with it.
    #[serde(rename = "code")]
    pub fault: LineFault,
}

/// The conditions of an import.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Guards {
    /// The fewest items in a whole upload; 0 for no limit.
    pub min_items: u64,
    /// By how much a replacement may be smaller than what it replaces; `None` for no limit.
    pub max_shrink: Option<Share>,
    /// The most rejected lines; `None` for no limit.
    pub max_rejected: Option<u64>,
}

/// The guard that an import violated, with the numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, Error)]
pub enum Tripped {
    /// The upload was complete, and had too few items.
    #[error("the upload brings {items} items, and min_items is {min_items}")]
    TooFewItems {
        /// Items in the upload.
        items: u64,
        /// Items required.
        min_items: u64,
    },
    /// The replacement is too much smaller.
    #[error("{after} available items would take the place of {before}, and max_shrink is {max_shrink}")]
    Shrunk {
        /// Available items in the filter now.
        before: u64,
        /// Available items after the replacement.
        after: u64,
        /// The largest share by which it may shrink.
        max_shrink: Share,
    },
    /// Too many lines were rejected.
    #[error("{rejected} lines were rejected, the last one {}, and max_rejected is {max_rejected}", .last.map_or("untold".to_owned(), |last| last.to_string()))]
    Rejected {
        /// Lines rejected.
        rejected: u64,
        /// Rejected lines allowed.
        max_rejected: u64,
        /// The last rejected line, if it was reported.
        last: Option<LineError>,
    },
}

impl Guards {
    /// Checks that so many lines may be rejected; `last` is the last one.
    ///
    /// # Errors
    /// The violated guard.
    pub fn allow_rejected(&self, rejected: u64, last: Option<LineError>) -> Result<(), Tripped> {
        match self.max_rejected {
            Some(max_rejected) if rejected > max_rejected => {
                Err(Tripped::Rejected { rejected, max_rejected, last })
            }
            _ => Ok(()),
        }
    }

    /// Checks that a whole upload may have this many items.
    ///
    /// # Errors
    /// The violated guard.
    pub fn allow_items(&self, items: u64) -> Result<(), Tripped> {
        let min_items = self.min_items;
        if items < min_items { Err(Tripped::TooFewItems { items, min_items }) } else { Ok(()) }
    }

    /// Checks that a filter may have `after` available items instead of `before`.
    ///
    /// # Errors
    /// The violated guard.
    pub fn allow_swap(&self, before: u64, after: u64) -> Result<(), Tripped> {
        match self.max_shrink {
            Some(max_shrink) if max_shrink.is_exceeded(before, after) => {
                Err(Tripped::Shrunk { before, after, max_shrink })
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn decoded_share_is_at_most_one() {
        for (millionths, is_possible) in [(0, true), (WHOLE, true), (WHOLE + 1, false), (u32::MAX, false)] {
            let bytes = postcard::to_stdvec(&millionths).unwrap();
            assert_eq!(postcard::from_bytes::<Share>(&bytes).is_ok(), is_possible, "{millionths}");
        }
    }

    #[test]
    fn the_share_itself_is_allowed() {
        let share = Share::new(0.2).unwrap();
        assert!(!share.is_exceeded(10, 8) && share.is_exceeded(10, 7));
        assert!(!share.is_exceeded(0, 0) && !share.is_exceeded(8, 10));
        assert!(Share::new(0.0).unwrap().is_exceeded(10, 9) && !Share::new(1.0).unwrap().is_exceeded(10, 0));
        assert_eq!(share.to_string(), "0.2");
        for no_share in [-0.1, 1.000_001, f64::NAN, f64::INFINITY] {
            assert_eq!(Share::new(no_share), Err(InvalidShare));
        }
    }

    proptest! {
        #[test]
        fn the_larger_of_two_is_exceeded_only_if_the_smaller_is(
            a in 0.0..=1.0f64,
            b in 0.0..=1.0f64,
            before: u64,
            after: u64,
        ) {
            let (smaller, larger) = (Share::new(a.min(b)).unwrap(), Share::new(a.max(b)).unwrap());
            prop_assert!(smaller.is_exceeded(before, after) || !larger.is_exceeded(before, after));
            prop_assert!(!larger.is_exceeded(before, before) && !Share::new(1.0).unwrap().is_exceeded(before, after));
        }
    }
}
