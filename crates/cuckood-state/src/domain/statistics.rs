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

    /// Milliseconds of a period.
    pub const fn length(self) -> u64 {
        match self {
            Self::Day => 86_400_000,
            Self::Hour => 3_600_000,
        }
    }

    /// Number of periods that are counted separately, up to the latest one.
    pub const fn periods_max(self, hours: HourRetention) -> u64 {
        match self {
            Self::Day => 400,
            Self::Hour => hours.periods(),
        }
    }

    /// The number of the period at a time.
    #[inline]
    pub const fn number_at(self, at: Timestamp) -> u64 {
        at.0 / self.length()
    }
}

/// How long hours are counted separately.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum HourRetention {
    /// For 48 hours.
    #[default]
    TwoDays,
    /// For 36 days ([`Meaning::HoursForLocalDays`](super::Meaning::HoursForLocalDays)): the last 35 days of each time zone, and the hours
    /// until the end of a day in UTC.
    ThirtySixDays,
}

impl HourRetention {
    /// Number of hours that are counted separately, up to the latest one.
    pub const fn periods(self) -> u64 {
        match self {
            Self::TwoDays => 48,
            Self::ThirtySixDays => 36 * 24,
        }
    }
}

/// Maximum number of local days that hours are summed up to.
pub const LOCAL_DAYS_MAX: u64 = 35;

/// Days of a time zone.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LocalDays {
    /// Those with counts, in order. A number is that of the date, since 1970-01-01.
    pub days: Vec<CountedPeriod>,
    /// The first day, among the last [`LOCAL_DAYS_MAX`], from which on the hours of all days are counted.
    pub complete_from: u64,
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
