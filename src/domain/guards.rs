//! Guards: what an import must keep to, so that the wrong file does no harm.

use super::line_error::LineError;
use serde::{Deserialize, Serialize};
use std::fmt;
use thiserror::Error;

/// A share from 0 to 1, as a whole number of millionths: equal on every machine.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Share(u32);

/// Why a number is no [`Share`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("a share is a number from 0 to 1")]
pub struct InvalidShare;

const WHOLE: u32 = 1_000_000;

impl Share {
    /// The share, rounded to millionths.
    ///
    /// # Errors
    /// [`InvalidShare`] below 0, above 1, and for what is no number.
    pub fn new(share: f64) -> Result<Self, InvalidShare> {
        if !(0.0..=1.0).contains(&share) {
            return Err(InvalidShare);
        }
        Ok(Self((share * f64::from(WHOLE)).round() as u32))
    }

    /// Whether `after` is less than `before` by more than this share of it.
    pub fn is_exceeded(self, before: u64, after: u64) -> bool {
        u128::from(after) * u128::from(WHOLE) < u128::from(before) * u128::from(WHOLE - self.0)
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", f64::from(self.0) / f64::from(WHOLE))
    }
}

/// What an import must keep to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Guards {
    /// The fewest items that a whole upload may bring; 0 for any number.
    pub min_items: u64,
    /// How much less a replacement may hold than what it replaces; none for as little as it likes.
    pub max_shrink: Option<Share>,
    /// The most lines that may be rejected; none for any number.
    pub max_rejected: Option<u64>,
}

/// The guard that an import did not keep to, with the figures.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, Error)]
pub enum Tripped {
    /// The upload was whole, and brought too few items.
    #[error("the upload brings {items} items, and min_items is {min_items}")]
    TooFewItems {
        /// How many it brought.
        items: u64,
        /// How many were wanted.
        min_items: u64,
    },
    /// The replacement holds too much less.
    #[error("{after} available items would take the place of {before}, and max_shrink is {max_shrink}")]
    Shrunk {
        /// What the filter holds, in available items.
        before: u64,
        /// What it would hold.
        after: u64,
        /// How much less it may be.
        max_shrink: Share,
    },
    /// Too many lines were rejected.
    #[error("{rejected} lines were rejected, the last one {}, and max_rejected is {max_rejected}", Told(*.last))]
    Rejected {
        /// How many.
        rejected: u64,
        /// How many might be.
        max_rejected: u64,
        /// The last of them, if it was told.
        last: Option<LineError>,
    },
}

/// A rejected line in words.
struct Told(Option<LineError>);

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(LineError { line, fault }) => write!(f, "line {line} ({fault})"),
            None => f.write_str("untold"),
        }
    }
}

impl Guards {
    /// Whether so many lines may be rejected, `last` being the last one.
    ///
    /// # Errors
    /// The guard that trips.
    pub fn allow_rejected(&self, rejected: u64, last: Option<LineError>) -> Result<(), Tripped> {
        match self.max_rejected {
            Some(max_rejected) if rejected > max_rejected => {
                Err(Tripped::Rejected { rejected, max_rejected, last })
            }
            _ => Ok(()),
        }
    }

    /// Whether a whole upload may bring so many items.
    ///
    /// # Errors
    /// The guard that trips.
    pub fn allow_items(&self, items: u64) -> Result<(), Tripped> {
        let min_items = self.min_items;
        if items < min_items { Err(Tripped::TooFewItems { items, min_items }) } else { Ok(()) }
    }

    /// Whether a filter may hold `after` available items in the place of `before`.
    ///
    /// # Errors
    /// The guard that trips.
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
