//! The statistics of one campaign or coupon: counts of changes per day and per hour.
//!
//! The latest day and hour change with every write, and are in the head of a snapshot. The earlier ones are a section, which is only written
//! again once a day or an hour with counts is over.

use super::section::{Epoch, STATISTICS, Section, freeze};
use crate::domain::{
    ChangeCounts, CountedPeriod, HourRetention, LOCAL_DAYS_MAX, Latest, LocalDays, SectionId,
    Timestamp, Unit,
};
use crate::frame::{append, take};
use crate::paged::{Copied, Page, Paged};

/// The bytes of one encoded period: varints of up to 10 bytes.
const PERIOD_BYTES_MAX: u64 = 10 * (1 + size_of::<ChangeCounts>() as u64 / 8);

/// Maximum size of a page of days: that of 400 such periods.
const DAYS_BYTES_MAX: usize = 32_000;

/// Maximum size of a page of hours. Beyond it, the oldest ones are dropped early. Those of 36 days fit with 27 bytes each, enough for two
/// million changes of each kind per hour. A page of days below the size of a chunk, and this one, fit into one chunk: it is never split.
const HOURS_BYTES_MAX: usize = 24_000;

/// Hours of a day.
const DAY_HOURS: u64 = 24;

/// Memory of a page besides its periods, in bytes. Rounded up.
const PAGE_BYTES: u64 = 64;

/// The statistics of one filter. A new filter has none.
#[derive(Debug, Default)]
pub struct FilterStatistics {
    pub(super) latest: Latest,
    /// The earlier periods of each [`Unit`], in that order; no pages before there are any.
    pub(super) earlier: Paged<Earlier>,
}

/// Periods with counts, in order, encoded (postcard). This takes a fifth of the memory: they are only read and dropped.
#[derive(Clone, Debug, Default)]
pub(super) struct Earlier(Box<[u8]>);

/// Splits encoded periods after the first ones that `is_wanted` accepts.
fn split(periods: &[u8], mut is_wanted: impl FnMut(&CountedPeriod) -> bool) -> (&[u8], &[u8]) {
    let mut wanted = 0;
    let mut rest = periods;
    while take(&mut rest).is_some_and(|period| is_wanted(&period)) {
        wanted = periods.len() - rest.len();
    }
    periods.split_at(wanted)
}

/// Returns the maximum size of a page.
const fn bytes_max(unit: Unit) -> usize {
    match unit {
        Unit::Day => DAYS_BYTES_MAX,
        Unit::Hour => HOURS_BYTES_MAX,
    }
}

/// Sums hours up to days of a time zone that is `offset_hours` ahead of UTC.
fn sums(hours: &[CountedPeriod], offset_hours: i64) -> Vec<CountedPeriod> {
    let mut days: Vec<CountedPeriod> = Vec::new();
    for hour in hours {
        let number = hour.number.saturating_add_signed(offset_hours) / DAY_HOURS;
        match days.last_mut() {
            Some(day) if day.number == number => day.add(&hour.counts),
            Some(_) | None => days.push(CountedPeriod {
                number,
                counts: hour.counts,
            }),
        }
    }
    days
}

/// Decodes periods.
fn periods(mut encoded: &[u8]) -> impl Iterator<Item = CountedPeriod> {
    std::iter::from_fn(move || take(&mut encoded))
}

impl Page for Earlier {
    fn encode(&self, out: &mut Vec<u8>) {
        append(&serde_bytes::Bytes::new(&self.0), out);
    }

    fn decode(bytes: &mut &[u8]) -> Option<Self> {
        take::<&[u8]>(bytes).map(|periods| Self(periods.into()))
    }

    fn bytes(&self) -> u64 {
        PAGE_BYTES + self.0.len() as u64
    }
}

impl Earlier {
    /// Appends a period, and drops those before the number `first`, and the oldest ones beyond the maximum size.
    fn append(&mut self, period: &CountedPeriod, first: u64, bytes_max: usize) {
        let (_, recent) = split(&self.0, |period| period.number < first);
        let mut periods = Vec::with_capacity(recent.len() + PERIOD_BYTES_MAX as usize);
        periods.extend_from_slice(recent);
        if period.number >= first {
            append(period, &mut periods);
        }
        let mut recent = &periods[..];
        while recent.len() > bytes_max && take::<CountedPeriod>(&mut recent).is_some() {}
        self.0 = recent.into();
    }

    /// Moves the counts of a period and of later ones to it.
    fn move_to(&mut self, present: &mut CountedPeriod) {
        let (before, later) = split(&self.0, |period| period.number < present.number);
        periods(later).for_each(|period| present.add(&period.counts));
        self.0 = before.into();
    }

    /// Whether it is nothing but periods with counts, in order, and none that is too old or too late next to the latest one, which has
    /// counts too: each further period drops outdated ones only with counts that it completes.
    fn is_sound(&self, unit: Unit, latest: &CountedPeriod, hours: HourRetention) -> bool {
        let first = latest.number.saturating_sub(unit.periods_max(hours) - 1);
        let mut next = 0;
        let (_, rest) = split(&self.0, |&CountedPeriod { number, counts }| {
            let is_sound = number >= next && (first..latest.number).contains(&number);
            next = number.saturating_add(1);
            is_sound && counts != ChangeCounts::default()
        });
        rest.is_empty()
            && self.0.len() <= bytes_max(unit)
            && (self.0.is_empty() || latest.counts != ChangeCounts::default())
    }
}

impl FilterStatistics {
    /// The most memory that a command can add, in bytes: it completes a day and an hour.
    pub const GROWTH_BYTES: u64 = 2 * (PAGE_BYTES + PERIOD_BYTES_MAX);

    /// Adds changes. Returns its memory besides its own size, in bytes.
    #[inline]
    pub fn add(&mut self, now: Timestamp, counts: &ChangeCounts, hours: HourRetention) -> u64 {
        if *counts != ChangeCounts::default() {
            for unit in Unit::ALL {
                let present = unit.number_at(now);
                if present > self.latest[unit as usize].number {
                    self.begin(unit, present, hours);
                }
                self.latest[unit as usize].add(counts);
            }
        }
        self.earlier.bytes
    }

    #[cold]
    fn begin(&mut self, unit: Unit, number: u64, hours: HourRetention) {
        let present = CountedPeriod {
            number,
            ..CountedPeriod::default()
        };
        let complete = std::mem::replace(&mut self.latest[unit as usize], present);
        if complete.counts != ChangeCounts::default() {
            while self.earlier.end() < Unit::ALL.len() as u64 {
                self.earlier.push(Earlier::default());
            }
            let first = number.saturating_sub(unit.periods_max(hours) - 1);
            self.earlier.change(unit as u64, |earlier| {
                earlier.append(&complete, first, bytes_max(unit));
            });
        }
    }

    /// Turns the time back: later counts move to the present day and hour.
    pub fn turn_back(&mut self, now: Timestamp) {
        for unit in Unit::ALL {
            let number = unit.number_at(now);
            let latest = &mut self.latest[unit as usize];
            if latest.number > number {
                latest.number = number;
                self.earlier
                    .change(unit as u64, |earlier| earlier.move_to(latest));
            }
        }
    }

    /// The periods with counts among the last `number` up to `now`, each with its beginning, in order.
    pub fn last(&self, unit: Unit, number: u64, now: Timestamp) -> Vec<(Timestamp, ChangeCounts)> {
        let length = unit.length();
        let first = (unit.number_at(now) + 1).saturating_sub(number);
        let wanted = self.counted(unit).filter(|period| period.number >= first);
        wanted
            .map(|period| {
                (
                    Timestamp(period.number.saturating_mul(length)),
                    period.counts,
                )
            })
            .collect()
    }

    /// All periods with counts, in order.
    fn counted(&self, unit: Unit) -> impl Iterator<Item = CountedPeriod> {
        let earlier = self
            .earlier
            .get(unit as u64)
            .map_or(&[][..], |earlier| &earlier.0);
        periods(earlier)
            .chain([self.latest[unit as usize]])
            .filter(|period| period.counts != ChangeCounts::default())
    }

    /// The last `number` days up to `now` in a time zone that is `offset_hours` ahead of UTC, as sums of hours.
    pub fn local_days(&self, offset_hours: i64, number: u64, now: Timestamp) -> LocalDays {
        let hours: Vec<CountedPeriod> = self.counted(Unit::Hour).collect();
        let now = Unit::Hour
            .number_at(now)
            .saturating_add_signed(offset_hours);
        let today = now / DAY_HOURS;
        let first = (today + 1).saturating_sub(number);
        let mut days = sums(&hours, offset_hours);
        days.retain(|day| day.number >= first);
        let complete_hour = self
            .complete_from(&hours)
            .saturating_mul(DAY_HOURS)
            .saturating_add_signed(offset_hours);
        let oldest = (today + 1).saturating_sub(LOCAL_DAYS_MAX);
        LocalDays {
            days,
            complete_from: complete_hour.div_ceil(DAY_HOURS).max(oldest),
        }
    }

    /// The first day in UTC from which on the hours of all days are there: their sums equal the counts of the days. Hours are missing that
    /// were counted before [`HourRetention::ThirtySixDays`] was enabled, or are too old.
    fn complete_from(&self, hours: &[CountedPeriod]) -> u64 {
        let sums = sums(hours, 0);
        let incomplete = self.counted(Unit::Day).filter(|day| !sums.contains(day));
        incomplete.last().map_or(0, |day| day.number + 1)
    }

    /// Adds a section for the earlier periods, if there are any. Returns the number of their changes.
    pub(super) fn freeze(
        &mut self,
        tables: Epoch,
        copied: &Copied,
        sections: &mut Vec<Section>,
    ) -> u64 {
        match self.earlier.changes {
            0 => 0,
            _ => freeze(
                SectionId::new(tables, STATISTICS),
                &mut self.earlier,
                copied,
                sections,
            ),
        }
    }

    /// Takes the next chunk of the earlier periods of an image or a snapshot. Returns whether it contradicts nothing.
    pub(super) fn load(&mut self, chunk: &[u8], hours: HourRetention) -> bool {
        let is_sound = |(unit, (_, page)): (Unit, (_, &Earlier))| {
            page.is_sound(unit, &self.latest[unit as usize], hours)
        };
        self.earlier.load(chunk).is_some()
            && self.earlier.end() <= Unit::ALL.len() as u64
            && Unit::ALL.into_iter().zip(self.earlier.iter()).all(is_sound)
    }

    /// Whether all earlier periods are loaded, if there are any.
    pub(super) fn is_complete(&self) -> bool {
        let pages = if self.earlier.changes > 0 {
            Unit::ALL.len()
        } else {
            0
        };
        self.earlier.end() == pages as u64
    }

    /// Drops the earlier periods. A snapshot may still need them.
    pub(super) fn discard(&mut self) {
        while self.earlier.end() > 0 {
            self.earlier.pop_last();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::encode;

    const ONE: ChangeCounts = [1, 0, 0, 0, 0, 0, 0];

    fn page(periods: &[u8]) -> Vec<u8> {
        encode(&serde_bytes::Bytes::new(periods))
    }

    fn periods(periods: &[(u64, ChangeCounts)]) -> Vec<u8> {
        periods.iter().flat_map(encode).collect()
    }

    fn loads(latest: (u64, ChangeCounts), earlier: &[u8]) -> bool {
        let (number, counts) = latest;
        let latest = [CountedPeriod { number, counts }, CountedPeriod::default()];
        let mut statistics = FilterStatistics {
            latest,
            ..FilterStatistics::default()
        };
        let chunk = [page(earlier), page(&[])].concat();
        statistics.load(&chunk, HourRetention::TwoDays) && statistics.is_complete()
    }

    #[test]
    fn statistics_out_of_order_or_range_are_rejected() {
        let all = periods(&[(601, ONE), (999, ONE)]);
        assert!(loads((1_000, ONE), &all));
        assert!(loads((0, ChangeCounts::default()), &[]));
        assert!(loads((u64::MAX, [u64::MAX; 7]), &[]));
        for (what, earlier) in [
            ("out of order", periods(&[(999, ONE), (601, ONE)])),
            ("twice", periods(&[(999, ONE), (999, ONE)])),
            ("twice the latest", periods(&[(1_000, ONE)])),
            ("later than the latest", periods(&[(1_001, ONE)])),
            ("too old", periods(&[(600, ONE)])),
            ("empty", periods(&[(999, ChangeCounts::default())])),
            ("cut short", all[..all.len() - 1].to_vec()),
            ("too much", [&all[..], &[1]].concat()),
        ] {
            assert!(!loads((1_000, ONE), &earlier), "{what}");
        }
        assert!(
            !loads((0, ChangeCounts::default()), &all),
            "earlier than none"
        );
        assert!(
            !loads((1_000, ChangeCounts::default()), &all),
            "before an empty one"
        );
    }

    #[test]
    fn retention_of_hours_limits_loaded_hours() {
        let latest = CountedPeriod {
            number: 1_000,
            counts: ONE,
        };
        let loads = |first, hours| {
            let mut statistics = FilterStatistics {
                latest: [
                    CountedPeriod {
                        number: 41,
                        ..latest
                    },
                    latest,
                ],
                ..FilterStatistics::default()
            };
            let chunk = [page(&[]), page(&periods(&[(first, ONE)]))].concat();
            statistics.load(&chunk, hours) && statistics.is_complete()
        };
        assert!(loads(953, HourRetention::TwoDays) && !loads(952, HourRetention::TwoDays));
        assert!(loads(137, HourRetention::ThirtySixDays));
        assert!(!loads(136, HourRetention::ThirtySixDays));
    }

    /// A chunk has complete pages only, however large the counts are.
    #[test]
    fn largest_counts_fit_into_chunks() {
        const LARGE: ChangeCounts = [u64::MAX; 7];
        let hours = HourRetention::ThirtySixDays;
        for days in [36, 90, 410] {
            let mut statistics = FilterStatistics::default();
            let is_counted = |hour: &u64| hour.is_multiple_of(24) || *hour >= (days - 36) * 24;
            for hour in (0..days * 24).filter(is_counted) {
                let now = Timestamp((1 << 62) + hour * Unit::Hour.length());
                statistics.add(now, &LARGE, hours);
            }
            let mut restored = FilterStatistics {
                latest: statistics.latest,
                ..FilterStatistics::default()
            };
            let mut frozen = statistics.earlier.freeze(&Copied::default());
            let mut chunk = Vec::new();
            while frozen.next_chunk(&mut chunk) {
                assert!(restored.load(&chunk, hours), "{days} days");
            }
            assert!(restored.is_complete());
            for (page, of) in statistics.earlier.iter() {
                assert_eq!(restored.earlier.get(page).unwrap().0, of.0);
            }
        }
    }

    #[test]
    fn incomplete_statistics_are_rejected() {
        let page = page(&[]);
        for (pages, is_complete) in [(0, true), (1, false), (2, true), (3, false)] {
            let mut statistics = FilterStatistics::default();
            let are_loaded = (0..pages).all(|_| statistics.load(&page, HourRetention::TwoDays));
            assert_eq!(
                are_loaded && statistics.is_complete(),
                is_complete,
                "{pages} pages"
            );
        }
    }
}
