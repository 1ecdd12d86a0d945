//! Statistics of one campaign or coupon: counts of changes per day and per hour of the log's time, in UTC.

use super::{Invalid, Status, Timestamp};
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

impl From<Status> for Count {
    /// The count of redemptions that get this status.
    fn from(status: Status) -> Self {
        match status {
            Status::Held => Self::Held,
            Status::Redeemed => Self::Redeemed,
            Status::Cancelled => Self::Cancelled,
            Status::Expired => Self::Expired,
        }
    }
}

/// The counts of one period, in the order of [`Count`].
pub type Counts = [u64; Count::Expired as usize + 1];

/// The counts per day of the last 400 days.
pub type Days = Periods<86_400, 400>;

/// The counts per hour of the last 48 hours.
pub type Hours = Periods<3_600, 48>;

/// The statistics of one filter. A new filter has none.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Statistics {
    /// Per day.
    pub days: Days,
    /// Per hour.
    pub hours: Hours,
}

/// The counts of up to `MAX` periods of `SECONDS`, up to the latest with any. Periods without counts are not stored.
///
/// Earlier periods are encoded, which takes a fifth of the memory: they are only read and dropped.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(try_from = "Wire")]
pub struct Periods<const SECONDS: u64, const MAX: u64> {
    /// The earlier periods in order, each with its counts (postcard).
    #[serde(with = "serde_bytes")]
    earlier: Vec<u8>,
    latest: u64,
    /// The counts of the latest period; all 0 only before the first.
    counts: Counts,
}

/// The unchecked form.
#[derive(Deserialize)]
struct Wire {
    #[serde(with = "serde_bytes")]
    earlier: Vec<u8>,
    latest: u64,
    counts: Counts,
}

/// The bytes of one encoded period: varints of up to 10 bytes.
const PERIOD_BYTES_MAX: u64 = 10 * (1 + size_of::<Counts>() as u64 / 8);

impl Statistics {
    /// The most memory that a command can add, in bytes: it completes a day and an hour.
    pub const GROWTH_BYTES: u64 = 2 * PERIOD_BYTES_MAX;

    /// Counts this many changes.
    #[inline]
    pub fn count(&mut self, now: Timestamp, what: Count, number: u64) {
        if number > 0 {
            for counts in [self.days.at(Days::period(now)), self.hours.at(Hours::period(now))] {
                counts[what as usize] = counts[what as usize].saturating_add(number);
            }
        }
    }

    /// Turns the time back: later counts move to the present day and hour.
    pub fn turn_back(&mut self, now: Timestamp) {
        self.days = self.days.until(Days::period(now));
        self.hours = self.hours.until(Hours::period(now));
    }

    /// Its memory besides its own size, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        (self.days.earlier.len() + self.hours.earlier.len()) as u64
    }
}

impl<const SECONDS: u64, const MAX: u64> Periods<SECONDS, MAX> {
    /// Maximum number of periods.
    pub const MAX: u64 = MAX;

    fn period(at: Timestamp) -> u64 {
        at.0 / (SECONDS * 1_000)
    }

    /// The periods with counts among the last `number` up to `now`, each with its beginning, in order.
    pub fn last(&self, number: u64, now: Timestamp) -> impl Iterator<Item = (Timestamp, Counts)> {
        let is_recent = move |(period, _): &(u64, Counts)| period.saturating_add(number) > Self::period(now);
        let begin = |period: u64| Timestamp(period.saturating_mul(SECONDS * 1_000));
        self.iter().filter(is_recent).map(move |(period, counts)| (begin(period), counts))
    }

    fn iter(&self) -> impl Iterator<Item = (u64, Counts)> {
        let mut earlier = self.earlier.as_slice();
        let earlier = std::iter::from_fn(move || {
            let (period, rest) = split_first(earlier)?;
            earlier = rest;
            Some(period)
        });
        earlier.chain((self.counts != Counts::default()).then_some((self.latest, self.counts)))
    }

    /// The counts of this period, or of the latest one if that is later.
    #[inline]
    fn at(&mut self, period: u64) -> &mut Counts {
        if period > self.latest {
            self.begin(period);
        }
        &mut self.counts
    }

    #[cold]
    fn begin(&mut self, period: u64) {
        if self.counts != Counts::default() {
            let mut earlier = std::mem::take(&mut self.earlier);
            earlier.reserve_exact(PERIOD_BYTES_MAX as usize);
            let complete = (self.latest, std::mem::take(&mut self.counts));
            self.earlier = postcard::to_extend(&complete, earlier).expect("plain data always encodes");
        }
        self.latest = period;
        let mut rest = self.earlier.as_slice();
        while let Some(((first, _), after)) = split_first(rest)
            && first.saturating_add(MAX) <= period
        {
            rest = after;
        }
        let outdated = self.earlier.len() - rest.len();
        self.earlier.drain(..outdated);
    }

    /// The same counts, with those of later periods added to this one.
    fn until(&self, last: u64) -> Self {
        let mut until = Self::default();
        for (period, counts) in self.iter() {
            for (sum, count) in until.at(period.min(last)).iter_mut().zip(counts) {
                *sum = sum.saturating_add(count);
            }
        }
        until
    }
}

fn split_first(earlier: &[u8]) -> Option<((u64, Counts), &[u8])> {
    postcard::take_from_bytes(earlier).ok()
}

impl<const SECONDS: u64, const MAX: u64> TryFrom<Wire> for Periods<SECONDS, MAX> {
    type Error = Invalid;

    fn try_from(Wire { earlier, latest, counts }: Wire) -> Result<Self, Invalid> {
        let read = Self { earlier, latest, counts };
        // Counting the periods again gives other bytes if one is out of order, repeated, empty or too old.
        (read.until(u64::MAX) == read).then_some(read).ok_or(Invalid("periods with counts, in order"))
    }
}
