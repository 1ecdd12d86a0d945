//! Statistics: what the state counts per day and hour is what its events and outcomes say, whatever has happened in between.

use crate::filter_image::Image;
use crate::machine::{Snapshot, filters};
use crate::random_log::{Numbers, RandomLog};
use cuckood::domain::statistics::{Days, Hours};
use cuckood::domain::{
    Command, Count, Counts, Entry, Event, FilterChange, FilterId, Happened, Import, ImportMode, ImportState,
    Kind, Name, Outcome, Proposal, RedemptionStep, Settings, Statistics, Status, Timestamp, UploadId,
};
use cuckood::state::{FilterView, FreshEvents, State};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;

const DAY: u64 = 86_400_000;
const HOUR: u64 = 3_600_000;

/// The counts of one filter: of each period, by its number.
#[derive(Clone, Default)]
struct Expected {
    days: BTreeMap<u64, Counts>,
    hours: BTreeMap<u64, Counts>,
}

impl Expected {
    fn periods(&mut self) -> [(&mut BTreeMap<u64, Counts>, u64, u64); 2] {
        [(&mut self.days, DAY, Days::MAX), (&mut self.hours, HOUR, Hours::MAX)]
    }

    fn count(&mut self, now: Timestamp, what: Count, number: u64) {
        for (counts, length, kept) in self.periods().into_iter().filter(|_| number > 0) {
            let period = now.0 / length;
            counts.entry(period).or_default()[what as usize] += number;
            counts.retain(|earlier, _| earlier + kept > period);
        }
    }

    fn turn_back(&mut self, now: Timestamp) {
        for (counts, length, _) in self.periods() {
            for (_, later) in counts.split_off(&(now.0 / length + 1)) {
                let sums = counts.entry(now.0 / length).or_default();
                sums.iter_mut().zip(later).for_each(|(sum, count)| *sum += count);
            }
        }
    }
}

/// The counts of the last `number` periods.
fn last(all: &BTreeMap<u64, Counts>, length: u64, number: u64, now: Timestamp) -> Vec<(Timestamp, Counts)> {
    let recent = all.iter().filter(|(period, _)| **period + number > now.0 / length);
    recent.map(|(period, counts)| (Timestamp(period * length), *counts)).collect()
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
            *settings = Settings { events_retention_seconds: 60, ..settings.clone() };
        }
        let names: BTreeMap<(Kind, String), FilterId> =
            self.filters().iter().map(|filter| ((filter.kind, filter.name.to_string()), filter.id)).collect();
        let (before, was) = (self.totals(), self.state.now());
        let outcome = self.state.apply(entry);
        let (after, now) = (self.totals(), self.state.now());
        if now < was {
            self.expected.values_mut().for_each(|expected| expected.turn_back(now));
        }
        let mut fresh = FreshEvents::default();
        self.state.take_events(&mut fresh);
        for event in fresh.iter() {
            match Event::decode(event.bytes).unwrap().what {
                Happened::Redemption { step: RedemptionStep::Extended, .. } => {}
                Happened::Redemption { coupon, status, .. } => {
                    let id = names[&(Kind::Coupon, coupon.into_owned())];
                    let what = match status {
                        Status::Redeemed => Count::Redeemed,
                        Status::Held => Count::Held,
                        Status::Cancelled => Count::Cancelled,
                        Status::Expired => Count::Expired,
                    };
                    self.expected.entry(id).or_default().count(now, what, 1);
                }
                Happened::Filter { kind, name, change } => {
                    let id = names.get(&(kind, name.into_owned()));
                    let mut count = |what, number| {
                        self.expected.entry(*id.unwrap()).or_default().count(now, what, number);
                    };
                    match change {
                        FilterChange::Added(added) => count(Count::Added, added),
                        FilterChange::Removed(removed) | FilterChange::Cleared(removed) => {
                            count(Count::Removed, removed);
                        }
                        FilterChange::Replaced(_) => {
                            let (before, after) = (before[id.unwrap()], after[id.unwrap()]);
                            count(Count::Added, after.0 - before.0);
                            count(Count::Removed, after.1 - before.1);
                        }
                        FilterChange::Created | FilterChange::Updated { .. } | FilterChange::Deleted => {}
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
        let known = self.imports.insert(import.id.as_str().to_owned(), import.clone());
        let is_running = known.as_ref().is_some_and(|known| known.state == ImportState::Running);
        let added = known.map_or(0, |known| known.counts.added);
        let number = match import.mode {
            ImportMode::Append => import.counts.added.saturating_sub(added),
            ImportMode::Replace if import.state == ImportState::Done && is_running => import.counts.added,
            ImportMode::Replace => 0,
        };
        self.expected.entry(import.filter).or_default().count(now, Count::Imported, number);
    }

    /// Copies a filter to another name, as an image does.
    fn copy_image(&mut self, which: usize, serial: u64) {
        let filters = self.filters();
        let Some(filter) = filters.get(which % filters.len().max(1)) else { return };
        let (image, to) = (Image::of(&mut self.state, filter.id), FilterId(1_000_000 + serial));
        let name = Name::new(&format!("moved{}", serial % 2)).unwrap();
        let delete = Command::Delete { kind: filter.kind, name: name.clone() };
        let expected = self.expected.get(&filter.id).cloned().unwrap_or_default();
        let mut last = None;
        for command in [delete].into_iter().chain(image.all(UploadId(99), to, &name)) {
            let proposal = Proposal::new(self.state.now(), command);
            last = Some(self.state.apply(Entry { seq: self.state.applied().next(), proposal }).outcome);
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
            let (found, expected) = (filter.statistics(), self.expected.entry(filter.id).or_default());
            for number in [1, 3, Hours::MAX, Days::MAX] {
                let days = last(&expected.days, DAY, number, now);
                assert_eq!(found.days.last(number, now).collect::<Vec<_>>(), days, "{}", filter.name);
                let hours = last(&expected.hours, HOUR, number, now);
                assert_eq!(found.hours.last(number, now).collect::<Vec<_>>(), hours, "{}", filter.name);
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
        steps in proptest::collection::vec((any::<u8>(), any::<Numbers>()), 1..250),
    ) {
        let (mut model, mut log) = (Model::default(), RandomLog::without_images());
        log.beginning().into_iter().for_each(|entry| model.apply(entry));
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
            let entry = log.next(numbers);
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
    fn statistics_that_decode_are_as_they_were_counted(
        counted in proptest::collection::vec((0..900 * 24_u64, 0..7_usize, any::<u64>()), 0..700),
    ) {
        let (mut statistics, mut expected, mut now) = (Statistics::default(), Expected::default(), Timestamp(0));
        for (number, (hours, what, count)) in counted.iter().enumerate() {
            let what = [Count::Added, Count::Removed, Count::Imported, Count::Redeemed, Count::Held, Count::Cancelled, Count::Expired][*what];
            if hours % 50 == 0 {
                now = Timestamp(hours * HOUR);
                statistics.turn_back(now);
                expected.turn_back(now);
            }
            now = Timestamp(now.0 + hours % 30 * HOUR + number as u64);
            let count = count >> (hours % 64).max(16);
            statistics.count(now, what, count);
            expected.count(now, what, count);
        }
        prop_assert_eq!(statistics.days.last(Days::MAX, now).collect::<Vec<_>>(), last(&expected.days, DAY, Days::MAX, now));
        prop_assert_eq!(statistics.hours.last(Hours::MAX, now).collect::<Vec<_>>(), last(&expected.hours, HOUR, Hours::MAX, now));
        let bytes = postcard::to_stdvec(&statistics).unwrap();
        prop_assert_eq!(postcard::from_bytes::<Statistics>(&bytes), Ok(statistics));
    }
}

/// What one period of days is stored as.
type Wire = (Vec<u8>, u64, Counts);

fn read((earlier, latest, counts): Wire) -> Option<Statistics> {
    let hours = (Vec::<u8>::new(), 0_u64, Counts::default());
    let bytes = postcard::to_stdvec(&((earlier, latest, counts), hours)).unwrap();
    postcard::from_bytes(&bytes).ok()
}

#[test]
fn statistics_out_of_order_or_range_are_rejected() {
    let one: Counts = [1, 0, 0, 0, 0, 0, 0];
    let earlier = |periods: &[(u64, Counts)]| {
        periods.iter().fold(Vec::new(), |bytes, period| postcard::to_extend(period, bytes).unwrap())
    };
    let whole = earlier(&[(601, one), (999, one)]);
    assert!(read((whole.clone(), 1_000, one)).is_some());
    assert!(read((Vec::new(), 0, Counts::default())).is_some());
    assert!(read((Vec::new(), u64::MAX, [u64::MAX; 7])).is_some());
    for (what, wire) in [
        ("out of order", (earlier(&[(999, one), (601, one)]), 1_000, one)),
        ("twice", (earlier(&[(999, one), (999, one)]), 1_000, one)),
        ("twice the latest", (earlier(&[(1_000, one)]), 1_000, one)),
        ("later than the latest", (earlier(&[(1_001, one)]), 1_000, one)),
        ("too old", (earlier(&[(600, one)]), 1_000, one)),
        ("empty", (earlier(&[(999, Counts::default())]), 1_000, one)),
        ("the latest is empty", (whole.clone(), 1_000, Counts::default())),
        ("empty at a time", (Vec::new(), 1_000, Counts::default())),
        ("cut short", (whole[..whole.len() - 1].to_vec(), 1_000, one)),
        (
            "longer than need be",
            ([vec![0xe7, 0x87, 0x00], earlier(&[(0, one)])[1..].to_vec()].concat(), 1_000, one),
        ),
        ("too much", ([whole, vec![1]].concat(), 1_000, one)),
    ] {
        assert_eq!(read(wire), None, "{what}");
    }
}

/// A clock that was far ahead leaves nothing behind that lies in the future, and counts end where numbers do.
#[test]
fn turned_back_clock_moves_statistics_to_now() {
    let mut statistics = Statistics::default();
    for (day, number) in [(1, 5), (2, u64::MAX), (3, 7), (u64::MAX / DAY, 9)] {
        statistics.count(Timestamp(day * DAY), Count::Added, number);
    }
    statistics.turn_back(Timestamp(2 * DAY + 1));
    let days: Vec<_> = statistics.days.last(Days::MAX, Timestamp(2 * DAY)).collect();
    // The jump has made the others too old.
    assert_eq!(days, [(Timestamp(2 * DAY), [9, 0, 0, 0, 0, 0, 0])]);
    statistics.count(Timestamp(2 * DAY + 1), Count::Added, u64::MAX);
    let hours: Vec<_> = statistics.hours.last(1, Timestamp(2 * DAY + 1)).collect();
    assert_eq!(hours, [(Timestamp(2 * DAY), [u64::MAX, 0, 0, 0, 0, 0, 0])]);
}

/// The clock of the server that an image comes from may have been ahead.
#[test]
fn image_from_future_moves_statistics_to_now() {
    let (mut source, mut log, mut target) = (State::new(), RandomLog::without_images(), Model::default());
    log.pass(10 * DAY);
    for entry in log.beginning() {
        source.apply(entry);
    }
    let (image, name, now) =
        (Image::of(&mut source, FilterId(4)), Name::new("moved").unwrap(), Timestamp(3 * DAY));
    for command in image.all(UploadId(1), FilterId(9), &name) {
        let seq = target.state.applied().next();
        target.state.apply(Entry { seq, proposal: Proposal::new(now, command) });
    }
    let statistics = target.filters()[0].statistics();
    let days: Vec<_> = statistics.days.last(Days::MAX, now).collect();
    let added = image.head.adds;
    assert_eq!(days, [(now, [added, 0, 0, 0, 0, 0, 0])]);
}
