//! Statistics: what the state counts per day and hour is what its events and outcomes say, whatever has happened in between.

use cuckood_state::domain::statistics::Unit;
use cuckood_state::domain::{
    ChangeCounts, Command, Count, CountedPeriod, Entry, Event, FilterChange, FilterId, Happened,
    HourRetention, Import, ImportMode, ImportState, Kind, LOCAL_DAYS_MAX, LocalDays, Name, Outcome,
    Proposal, RedemptionStatus, RedemptionStep, Settings, Timestamp, UploadId,
};
use cuckood_state::frame::decode;
use cuckood_state::testing::commands::{NewFilter, insert, target};
use cuckood_state::testing::filter_image::Image;
use cuckood_state::testing::machine::{Machine, Snapshot, filters};
use cuckood_state::testing::random_log::{EntryNumbers, RandomLog};
use cuckood_state::{FilterStatistics, FilterView, FreshEvents, State};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;

const DAY: u64 = 86_400_000;
const HOUR: u64 = 3_600_000;
const DAYS_MAX: u64 = Unit::Day.periods_max(LONG);
const HOURS_MAX: u64 = LONG.periods();
const LONG: HourRetention = HourRetention::ThirtySixDays;

/// How long a state has hours.
fn retention(state: &State) -> HourRetention {
    match state.format() {
        0 | 1 => HourRetention::TwoDays,
        _ => LONG,
    }
}

/// Changes of one kind.
fn only(what: Count, number: u64) -> ChangeCounts {
    let mut counts = ChangeCounts::default();
    counts[what as usize] = number;
    counts
}

/// The counts of one filter: of each period, by its number.
#[derive(Clone, Default)]
struct Expected {
    days: BTreeMap<u64, ChangeCounts>,
    hours: BTreeMap<u64, ChangeCounts>,
    /// Those of all hours, however old.
    all: BTreeMap<u64, ChangeCounts>,
}

impl Expected {
    fn periods(
        &mut self,
        hours: HourRetention,
    ) -> [(&mut BTreeMap<u64, ChangeCounts>, u64, u64); 3] {
        [
            (&mut self.days, DAY, DAYS_MAX),
            (&mut self.hours, HOUR, hours.periods()),
            (&mut self.all, HOUR, u64::MAX / 2),
        ]
    }

    fn count(&mut self, now: Timestamp, what: Count, number: u64, hours: HourRetention) {
        for (counts, length, kept) in self.periods(hours).into_iter().filter(|_| number > 0) {
            let period = now.0 / length;
            counts.entry(period).or_default()[what as usize] += number;
            counts.retain(|earlier, _| earlier + kept > period);
        }
    }

    /// The sums of all hours per day, in a time zone that is `offset_hours` ahead of UTC.
    fn local_days(&self, offset_hours: i64) -> BTreeMap<u64, ChangeCounts> {
        let mut days = BTreeMap::<u64, ChangeCounts>::new();
        for (hour, counts) in &self.all {
            let sums = days
                .entry(hour.saturating_add_signed(offset_hours) / 24)
                .or_default();
            sums.iter_mut()
                .zip(counts)
                .for_each(|(sum, count)| *sum += count);
        }
        days
    }

    /// Complete days have the sums of all hours. Others lack some, and none has counts that did not happen.
    fn check_local_days(&self, offset_hours: i64, found: &LocalDays, number: u64, now: Timestamp) {
        let today = (now.0 / HOUR).saturating_add_signed(offset_hours) / 24;
        let LocalDays {
            days,
            complete_from,
        } = found;
        let first = (today + 1).saturating_sub(number);
        let mut expected = self.local_days(offset_hours);
        expected.retain(|day, _| *day >= first);
        for CountedPeriod { number, counts } in days {
            let sums = expected.get(number).copied().unwrap_or_default();
            let is_part = counts.iter().zip(sums).all(|(count, sum)| *count <= sum);
            assert!(
                is_part,
                "day {number} at {offset_hours}: {counts:?} of {sums:?}"
            );
        }
        let complete: Vec<_> = days.iter().map(|day| (day.number, day.counts)).collect();
        let expected: Vec<_> = expected.into_iter().collect();
        let from = |days: &[(u64, ChangeCounts)]| -> Vec<_> {
            days.iter()
                .filter(|(day, _)| day >= complete_from)
                .copied()
                .collect()
        };
        assert_eq!(
            from(&complete),
            from(&expected),
            "from {complete_from} at {offset_hours}"
        );
    }

    fn turn_back(&mut self, now: Timestamp) {
        for (counts, length, _) in self.periods(LONG) {
            for (_, later) in counts.split_off(&(now.0 / length + 1)) {
                let sums = counts.entry(now.0 / length).or_default();
                sums.iter_mut()
                    .zip(later)
                    .for_each(|(sum, count)| *sum += count);
            }
        }
    }
}

/// The counts of the last `number` periods.
fn last(
    all: &BTreeMap<u64, ChangeCounts>,
    length: u64,
    number: u64,
    now: Timestamp,
) -> Vec<(Timestamp, ChangeCounts)> {
    let recent = all
        .iter()
        .filter(|(period, _)| **period + number > now.0 / length);
    recent
        .map(|(period, counts)| (Timestamp(period * length), *counts))
        .collect()
}

/// An entry, or one of no effect if its version is not enabled: no log has that.
fn within(format: u16, mut entry: Entry) -> Entry {
    if entry.proposal.command.version() > format {
        entry.proposal.command = Command::Advance { buckets_max: 0 };
    }
    entry
}

/// A state, and what is expected of it.
#[derive(Default)]
struct Model {
    state: State,
    expected: BTreeMap<FilterId, Expected>,
    /// The imports that run, as they were last seen.
    imports: BTreeMap<String, Import>,
}

impl Model {
    fn filters(&mut self) -> Vec<Arc<FilterView>> {
        self.state.publish();
        filters(&self.state)
    }

    /// Adds and removes of each filter so far.
    fn totals(&mut self) -> BTreeMap<FilterId, (u64, u64)> {
        let now = self.state.now();
        let totals = |filter: Arc<FilterView>| {
            let stats = filter.describe(now).stats;
            (filter.id, (stats.adds, stats.removes))
        };
        self.filters().into_iter().map(totals).collect()
    }

    fn apply(&mut self, mut entry: Entry) {
        if let Command::Configure(settings) = &mut entry.proposal.command {
            // Without events it can't be told what is expected.
            *settings = Settings {
                events_retention_seconds: 60,
                ..settings.clone()
            };
        }
        let names: BTreeMap<(Kind, String), FilterId> = self
            .filters()
            .iter()
            .map(|filter| ((filter.kind, filter.name.to_string()), filter.id))
            .collect();
        let before = self.totals();
        let was = self.state.now();
        let outcome = self.state.apply(entry);
        let after = self.totals();
        let now = self.state.now();
        let hours = retention(&self.state);
        if now < was {
            self.expected
                .values_mut()
                .for_each(|expected| expected.turn_back(now));
        }
        let mut fresh = FreshEvents::default();
        self.state.take_events(&mut fresh);
        for event in fresh.iter() {
            match decode::<Event<'_>>(event.bytes).unwrap().what {
                Happened::Redemption {
                    step: RedemptionStep::Extended,
                    ..
                } => {}
                Happened::Redemption { coupon, status, .. } => {
                    let id = names[&(Kind::Coupon, coupon.into_owned())];
                    let what = match status {
                        RedemptionStatus::Redeemed => Count::Redeemed,
                        RedemptionStatus::Held => Count::Held,
                        RedemptionStatus::Cancelled => Count::Cancelled,
                        RedemptionStatus::Expired => Count::Expired,
                    };
                    self.expected
                        .entry(id)
                        .or_default()
                        .count(now, what, 1, hours);
                }
                Happened::Filter { kind, name, change } => {
                    let id = names.get(&(kind, name.into_owned()));
                    let mut count = |what, number| {
                        self.expected
                            .entry(*id.unwrap())
                            .or_default()
                            .count(now, what, number, hours);
                    };
                    match change {
                        FilterChange::Added(added) => count(Count::Added, added),
                        FilterChange::Removed(removed) | FilterChange::Cleared(removed) => {
                            count(Count::Removed, removed);
                        }
                        FilterChange::Replaced(_) => {
                            let before = before[id.unwrap()];
                            let after = after[id.unwrap()];
                            count(Count::Added, after.0 - before.0);
                            count(Count::Removed, after.1 - before.1);
                        }
                        FilterChange::Created
                        | FilterChange::Updated { .. }
                        | FilterChange::Deleted => {}
                    }
                }
                _ => {}
            }
        }
        if let (Outcome::Import(import), false) = (outcome.outcome, outcome.replayed) {
            self.expect_import(*import, now);
        }
    }

    fn expect_import(&mut self, import: Import, now: Timestamp) {
        let known = self
            .imports
            .insert(import.id.as_str().to_owned(), import.clone());
        let is_running = known
            .as_ref()
            .is_some_and(|known| known.state == ImportState::Running);
        let added = known.map_or(0, |known| known.counts.added);
        let number = match import.mode {
            ImportMode::Append => import.counts.added.saturating_sub(added),
            ImportMode::Replace if import.state == ImportState::Done && is_running => {
                import.counts.added
            }
            ImportMode::Replace => 0,
        };
        self.expected.entry(import.filter).or_default().count(
            now,
            Count::Imported,
            number,
            retention(&self.state),
        );
    }

    /// Copies a filter to another name, as an image does.
    fn copy_image(&mut self, which: usize, serial: u64) {
        let filters = self.filters();
        let Some(filter) = filters.get(which % filters.len().max(1)) else {
            return;
        };
        let image = Image::of(&mut self.state, filter.id);
        let to = FilterId(1_000_000 + serial);
        let name = Name::new(&format!("moved{}", serial % 2)).unwrap();
        let delete = Command::Delete {
            kind: filter.kind,
            name: name.clone(),
        };
        let expected = self.expected.get(&filter.id).cloned().unwrap_or_default();
        let mut last = None;
        for command in [delete]
            .into_iter()
            .chain(image.all(UploadId(99), to, &name))
        {
            let proposal = Proposal::new(self.state.now(), command);
            last = Some(
                self.state
                    .apply(Entry {
                        seq: self.state.applied().next(),
                        proposal,
                    })
                    .outcome,
            );
        }
        // There may be too many filters.
        if matches!(last, Some(Outcome::Created(_))) {
            self.expected.insert(to, expected);
        }
        self.state.take_events(&mut FreshEvents::default());
    }

    fn check(&mut self) {
        let now = self.state.now();
        for filter in self.filters() {
            let expected = self.expected.entry(filter.id).or_default();
            for offset_hours in [-12, -5, 0, 1, 8, 14] {
                let found = filter.local_days(offset_hours, LOCAL_DAYS_MAX, now);
                expected.check_local_days(offset_hours, &found, LOCAL_DAYS_MAX, now);
            }
            for number in [1, 3, HOURS_MAX, DAYS_MAX] {
                let days = last(&expected.days, DAY, number, now);
                assert_eq!(
                    filter.statistics(Unit::Day, number, now),
                    days,
                    "{}",
                    filter.name
                );
                let hours = last(&expected.hours, HOUR, number, now);
                assert_eq!(
                    filter.statistics(Unit::Hour, number, now),
                    hours,
                    "{}",
                    filter.name
                );
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Hours and days pass, the clock is turned back, images are taken in, and the process dies: its state is that of a snapshot, and the
    /// end of the log is lost.
    #[test]
    fn statistics_match_events_and_outcomes(
        is_enabled in any::<bool>(),
        steps in proptest::collection::vec((any::<u8>(), any::<EntryNumbers>()), 1..250),
    ) {
        let mut model = Model::default();
        let mut log = RandomLog::without_images();
        for mut entry in log.beginning() {
            if let (Command::Enable { version }, false) = (&mut entry.proposal.command, is_enabled) {
                *version = 1;
            }
            model.apply(within(model.state.format(), entry));
        }
        let mut saved = (Snapshot::of(&mut model.state), model.expected.clone(), model.imports.clone());
        let mut since = Vec::new();
        for (step, numbers) in steps {
            match step {
                0..12 => log.pass(HOUR / 2 * (numbers.1 % 60)),
                12..16 => log.pass(DAY * (numbers.1 % 500)),
                16..20 => {
                    let entry = log.turn_back(HOUR * (numbers.1 % 2_000));
                    since.push(entry.clone());
                    model.apply(entry);
                }
                20..40 => {
                    if step < 28 {
                        model.copy_image(numbers.1 as usize, numbers.2 % 1_000);
                        log.go_back_to(model.state.applied());
                    }
                    saved = (Snapshot::of(&mut model.state), model.expected.clone(), model.imports.clone());
                    since.clear();
                }
                40..48 => {
                    let (stored, expected, imports) = saved.clone();
                    since.truncate(since.len() - usize::from(step % 3).min(since.len()));
                    model = Model { state: stored.restore(), expected, imports };
                    since.iter().cloned().for_each(|entry| model.apply(entry));
                    log.go_back_to(model.state.applied());
                }
                _ => {}
            }
            let entry = within(model.state.format(), log.next(numbers));
            since.push(entry.clone());
            model.apply(entry);
            model.check();
        }
        let mut restored = Snapshot::of(&mut model.state).restore();
        assert!(Snapshot::of(&mut restored) == Snapshot::of(&mut model.state), "a restore differs");
        model.state = restored;
        model.check();
    }

    /// Times may also come in any order.
    #[test]
    fn statistics_are_as_they_were_counted(
        counted in proptest::collection::vec((0..900 * 24_u64, 0..7_usize, any::<u64>()), 0..700),
        enabled in 0..700_usize,
    ) {
        let mut statistics = FilterStatistics::default();
        let mut expected = Expected::default();
        let mut now = Timestamp(0);
        for (number, (hours, what, count)) in counted.iter().enumerate() {
            let what = [Count::Added, Count::Removed, Count::Imported, Count::Redeemed, Count::Held, Count::Cancelled, Count::Expired][*what];
            if hours % 50 == 0 {
                now = Timestamp(hours * HOUR);
                statistics.turn_back(now);
                expected.turn_back(now);
            }
            now = Timestamp(now.0 + hours % 30 * HOUR + number as u64);
            let count = count >> (hours % 64).max(16);
            let retention = if number < enabled { HourRetention::TwoDays } else { LONG };
            statistics.add(now, &only(what, count), retention);
            expected.count(now, what, count, retention);
        }
        prop_assert_eq!(statistics.last(Unit::Day, DAYS_MAX, now), last(&expected.days, DAY, DAYS_MAX, now));
        prop_assert_eq!(statistics.last(Unit::Hour, HOURS_MAX, now), last(&expected.hours, HOUR, HOURS_MAX, now));
    }
}

/// Counts one more in each hour than in the one before.
fn count_hours(
    statistics: &mut FilterStatistics,
    hours: std::ops::Range<u64>,
    retention: HourRetention,
) {
    for hour in hours {
        statistics.add(
            Timestamp(hour * HOUR),
            &only(Count::Added, hour + 1),
            retention,
        );
    }
}

#[test]
fn local_days_sum_hours_of_time_zone() {
    let mut statistics = FilterStatistics::default();
    count_hours(&mut statistics, 0..1_000, LONG);
    let now = Timestamp(999 * HOUR);
    for offset in -12..=14_i64 {
        let LocalDays {
            days,
            complete_from,
        } = statistics.local_days(offset, LOCAL_DAYS_MAX, now);
        let today = 999_u64.saturating_add_signed(offset) / 24;
        assert_eq!((days.len(), complete_from), (35, today - 34), "{offset}");
        for CountedPeriod { number, counts } in days {
            let hours =
                (number * 24..number * 24 + 24).map(|hour| hour.saturating_add_signed(-offset));
            let sum: u64 = hours
                .filter(|hour| *hour < 1_000)
                .map(|hour| hour + 1)
                .sum();
            assert_eq!(counts, only(Count::Added, sum), "day {number} at {offset}");
        }
    }
    let days: Vec<_> = statistics.local_days(0, LOCAL_DAYS_MAX, now).days;
    let days: Vec<_> = days
        .iter()
        .map(|day| (Timestamp(day.number * DAY), day.counts))
        .collect();
    assert_eq!(days, statistics.last(Unit::Day, LOCAL_DAYS_MAX, now));
}

/// Hours are counted for 48 hours before the version is enabled: those from hour 52 on are there.
#[test]
fn complete_days_start_after_missing_hours() {
    let mut statistics = FilterStatistics::default();
    count_hours(&mut statistics, 0..100, HourRetention::TwoDays);
    count_hours(&mut statistics, 100..400, LONG);
    let now = Timestamp(399 * HOUR);
    let first =
        [-12, -1, 0, 1, 14].map(|offset| statistics.local_days(offset, 35, now).complete_from);
    assert_eq!(first, [3, 3, 3, 4, 4]);
    // Hours without counts are not missing.
    let mut idle = FilterStatistics::default();
    count_hours(&mut idle, 0..1, HourRetention::TwoDays);
    count_hours(&mut idle, 1_000..1_001, LONG);
    assert_eq!(
        idle.local_days(8, 35, Timestamp(1_000 * HOUR))
            .complete_from,
        42 - 34
    );
}

/// A clock that was far ahead leaves nothing behind that lies in the future, and counts end where numbers do.
#[test]
fn turned_back_clock_moves_statistics_to_now() {
    let mut statistics = FilterStatistics::default();
    for (day, number) in [(1, 5), (2, u64::MAX), (3, 7), (u64::MAX / DAY, 9)] {
        statistics.add(Timestamp(day * DAY), &only(Count::Added, number), LONG);
    }
    statistics.turn_back(Timestamp(2 * DAY + 1));
    let days = statistics.last(Unit::Day, DAYS_MAX, Timestamp(2 * DAY));
    // The jump has made the others too old.
    assert_eq!(days, [(Timestamp(2 * DAY), [9, 0, 0, 0, 0, 0, 0])]);
    statistics.add(Timestamp(2 * DAY + 1), &only(Count::Added, u64::MAX), LONG);
    let hours = statistics.last(Unit::Hour, 1, Timestamp(2 * DAY + 1));
    assert_eq!(hours, [(Timestamp(2 * DAY), [u64::MAX, 0, 0, 0, 0, 0, 0])]);
}

/// The clock of the server that an image comes from may have been ahead.
#[test]
fn image_from_future_moves_statistics_to_now() {
    let mut source = State::default();
    let mut log = RandomLog::without_images();
    let mut target = Model::default();
    log.pass(10 * DAY);
    for entry in log.beginning() {
        source.apply(entry);
    }
    let image = Image::of(&mut source, FilterId(4));
    let name = Name::new("moved").unwrap();
    let now = Timestamp(3 * DAY);
    for command in image.all(UploadId(1), FilterId(9), &name) {
        let seq = target.state.applied().next();
        target.state.apply(Entry {
            seq,
            proposal: Proposal::new(now, command),
        });
    }
    let days = target.filters()[0].statistics(Unit::Day, DAYS_MAX, now);
    let added = image.head.adds;
    assert_eq!(days, [(now, [added, 0, 0, 0, 0, 0, 0])]);
}

#[test]
fn statistics_section_changes_with_completed_periods() {
    let mut machine = Machine {
        now: Timestamp(0),
        ..Machine::new()
    };
    machine.create(target(1), &NewFilter::campaign(100, 0.001));
    let mut changes = |hour| {
        machine.now = Timestamp(hour * HOUR);
        machine.apply(insert(target(1), [hour]));
        let sections = machine.state.begin_snapshot().sections;
        let statistics = sections
            .iter()
            .filter(|section| section.id.part == u64::from(u32::MAX));
        statistics
            .map(|section| section.changes)
            .collect::<Vec<_>>()
    };
    let found = [0, 0, 1, 1, 23, 24, 24, 25].map(&mut changes);
    assert_eq!(
        found.each_ref().map(Vec::as_slice),
        [&[][..], &[], &[1], &[1], &[2], &[4], &[4], &[5]]
    );
}
