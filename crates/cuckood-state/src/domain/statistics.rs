//! Counts of changes of one campaign or coupon, per day and per hour of the log's time, in UTC.

use super::{RedemptionStatus, Timestamp};
use serde::{Deserialize, Serialize};

/// A kind of change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Count {
    /// Items added by requests.
    Added,
    /// Copies removed by requests.
    Removed,
    /// Items added by imports.
    Imported,
    /// Redemptions that became redeemed.
    Redeemed,
    /// Redemptions that became held.
    Held,
    /// Redemptions that became cancelled.
    Cancelled,
    /// Redemptions that became expired.
    Expired,
}

impl From<RedemptionStatus> for Count {
    /// The count of redemptions that get this status.
    fn from(status: RedemptionStatus) -> Self {
        match status {
            RedemptionStatus::Held => Self::Held,
            RedemptionStatus::Redeemed => Self::Redeemed,
            RedemptionStatus::Cancelled => Self::Cancelled,
            RedemptionStatus::Expired => Self::Expired,
        }
    }
}

/// The counts of one period, in the order of [`Count`].
pub type ChangeCounts = [u64; Count::Expired as usize + 1];

/// A length of periods.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// Days.
    Day,
    /// Hours.
    Hour,
}

impl Unit {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Day, Self::Hour];

    /// Milliseconds of a period, and the number of periods that are counted separately, up to the latest one.
    pub const fn extent(self) -> (u64, u64) {
        match self {
            Self::Day => (86_400_000, 400),
            Self::Hour => (3_600_000, 48),
        }
    }

    /// Number of periods that are counted separately, up to the latest one.
    pub const fn periods_max(self) -> u64 {
        self.extent().1
    }

    /// The number of the period at a time.
    #[inline]
    pub const fn number_at(self, at: Timestamp) -> u64 {
        at.0 / self.extent().0
    }
}

/// A day or an hour with its counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct CountedPeriod {
    /// Number of such periods since 1970.
    pub number: u64,
    /// Its counts.
    pub counts: ChangeCounts,
}

impl CountedPeriod {
    /// Adds counts.
    #[inline]
    pub fn add(&mut self, counts: &ChangeCounts) {
        self.counts
            .iter_mut()
            .zip(counts)
            .for_each(|(sum, count)| *sum = sum.saturating_add(*count));
    }
}

/// The latest period of each [`Unit`], in that order.
pub type Latest = [CountedPeriod; Unit::ALL.len()];
