//! Filters that forget against a model that knows every copy and its step.

use super::{digest, restarted, restored, sent, snapshot, snapshot_while};
use cuckood_filter::{Digest, Filter, Growth, Insert, Layout, Mode, RestoreError, SlotState};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering, fence};

fn digests(from: u64, count: u64) -> Vec<Digest> {
    super::digests(from, from + count)
}

fn forgetting(layout: Layout, growth: Growth, kept: u32) -> Filter {
    Filter::new(Mode::Compact, layout, growth, Some(kept))
}

#[derive(Clone, Debug)]
enum Operation {
    Insert {
        from: u64,
        count: u64,
        if_absent: bool,
    },
    Remove {
        from: u64,
        count: u64,
        all: bool,
    },
    /// Passes this many steps.
    Pass(u64),
    TurnBack(u64),
    Retire(u64),
    Clear,
    /// The capacity is raised to this one.
    Raise(u64),
    Snapshot,
    Restart,
    Send,
}

fn operations() -> impl Strategy<Value = Vec<Operation>> {
    let operation = prop_oneof![
        12 => (0_u64..600, 1_u64..150, 0_u8..5)
            .prop_map(|(from, count, absent)| Operation::Insert { from, count, if_absent: absent == 0 }),
        5 => (0_u64..600, 1_u64..150, 0_u8..4)
            .prop_map(|(from, count, all)| Operation::Remove { from, count, all: all == 0 }),
        10 => (0_u64..4).prop_map(Operation::Pass),
        // A year of minutes.
        1 => Just(Operation::Pass(525_600)),
        1 => (0_u64..20).prop_map(Operation::TurnBack),
        5 => (1_u64..5_000).prop_map(Operation::Retire),
        1 => Just(Operation::Clear),
        1 => (1_u64..700).prop_map(Operation::Raise),
        2 => Just(Operation::Snapshot),
        1 => Just(Operation::Restart),
        1 => Just(Operation::Send),
    ];
    proptest::collection::vec(operation, 1..80)
}

/// The steps of each item's copies.
#[derive(Clone, Default)]
struct Model {
    now: u64,
    kept: u64,
    copies: BTreeMap<u64, Vec<u64>>,
}

impl Model {
    fn count(&self, item: u64, now: u64) -> u32 {
        let copies = self.copies.get(&item).into_iter().flatten();
        copies.filter(|step| **step + self.kept >= now).count() as u32
    }

    fn pass(&mut self, steps: u64) {
        self.now += steps;
        for copies in self.copies.values_mut() {
            copies.retain(|step| *step + self.kept >= self.now);
        }
    }

    fn turn_back(&mut self, step: u64) {
        self.now = step;
        self.copies.values_mut().flatten().for_each(|copy| *copy = step.min(*copy));
    }

    fn items(&self) -> u64 {
        self.copies.values().map(|copies| copies.len() as u64).sum()
    }
}

/// Bits of a fingerprint, enough that no two items of these tests collide.
const BITS: u8 = 28;

fn apply(filter: &mut Filter, model: &mut Model, operation: &Operation) {
    match *operation {
        Operation::Insert { from, count, if_absent } => {
            let outcomes = filter.insert_many(&digests(from, count), if_absent).unwrap_or_default();
            for (item, outcome) in (from..).zip(outcomes) {
                let copies = model.count(item, model.now);
                let expected = match copies {
                    1.. if if_absent => Insert::Present(SlotState::Available),
                    _ if u64::from(copies) == filter.copies_max() => Insert::Saturated,
                    _ => Insert::Added,
                };
                assert_eq!(outcome, expected);
                if outcome == Insert::Added {
                    let now = model.now;
                    model.copies.entry(item).or_default().push(now);
                }
            }
        }
        Operation::Remove { from, count, all } => {
            for item in from..from + count {
                let removed = if all {
                    filter.remove_many(&[digest(item)], true)[0]
                } else {
                    u32::from(filter.remove(digest(item)))
                };
                let copies = model.copies.entry(item).or_default();
                for _ in 0..removed {
                    let newest = copies.iter().enumerate().max_by_key(|(_, step)| **step);
                    let (newest, _) = newest.expect("nothing is removed that was not there");
                    copies.remove(newest);
                }
                assert!(removed == 1 || copies.is_empty(), "something is left");
            }
        }
        Operation::Pass(steps) => {
            model.pass(steps);
            filter.advance(model.now);
        }
        Operation::TurnBack(steps) => {
            model.turn_back(model.now.saturating_sub(steps));
            filter.turn_back(model.now);
        }
        Operation::Retire(words) => drop(filter.retire(words)),
        Operation::Clear => {
            assert_eq!(filter.clear(), model.items());
            model.copies.clear();
        }
        Operation::Raise(capacity) => {
            let (bucket_size, kept) = (filter.copies_max() as u8 / 2, model.kept as u32);
            let _ = filter.raise(layout(capacity, BITS, bucket_size, Growth::Auto, kept));
        }
        Operation::Snapshot | Operation::Restart | Operation::Send => {}
    }
}

/// Readers agree with the model, by clocks that are right, ahead and slow.
fn compare(filter: &Filter, model: &Model, has_been_turned_back: bool) {
    let items: Vec<Digest> = digests(0, 760);
    for now in [model.now, model.now + 1, model.now + model.kept, model.now + model.kept + 1] {
        let (reader, mut found) = (filter.reader(), Vec::new());
        let view = reader.view(now);
        view.contains_many(&items, &mut found);
        let mut sum = 0;
        for (item, &found) in found.iter().enumerate() {
            let copies = model.count(item as u64, now);
            let seen = view.count(items[item]);
            // Items are only retained longer if the time was turned back repeatedly.
            assert!(seen == copies || seen > copies && has_been_turned_back, "{item}: {seen}, not {copies}");
            assert_eq!((found, view.contains(items[item])), (seen > 0, seen > 0));
            sum += u64::from(seen);
        }
        assert_eq!(view.items(), sum);
        assert!(view.stats().steps.iter().all(|step| step.items > 0 && step.step + model.kept >= now));
        assert!(view.stats().steps.is_sorted_by_key(|step| step.step));
        assert!(view.segments().iter().map(|segment| segment.items).sum::<u64>() >= sum);
    }
    let reader = filter.reader();
    let behind = reader.view(model.now.saturating_sub(3));
    assert!(model.copies.iter().all(|(&item, copies)| behind.count(digest(item)) as usize >= copies.len()));
    assert_eq!(filter.items(), reader.view(model.now).items());
}

fn layout(capacity: u64, bits: u8, bucket_size: u8, growth: Growth, kept: u32) -> Layout {
    Layout::compact_with(capacity, bits, bucket_size, 500, growth).unwrap().with_steps(kept).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Nothing is forgotten early or retained for longer, whatever happens: clocks that stop or jump, growth inside steps, removes,
    /// snapshots and restores. Fingerprints are long enough that no two items collide.
    #[test]
    fn filter_forgets_each_copy_after_its_steps(
        operations in operations(),
        capacity in 1_u64..150,
        bucket_size in prop_oneof![Just(2_u8), Just(4), Just(8)],
        kept in 2_u32..=32,
        is_fixed in 0_u8..6,
        begin in 0_u64..1_000,
    ) {
        let growth = if is_fixed == 0 { Growth::Fixed } else { Growth::Auto };
        let layout = layout(capacity, BITS, bucket_size, growth, kept);
        let mut filter = forgetting(layout, growth, kept);
        let mut model = Model { now: begin, kept: u64::from(kept), ..Model::default() };
        filter.advance(begin);
        let (mut turned_back, mut left) = (0, operations.iter());
        while let Some(operation) = left.next() {
            if growth == Growth::Fixed && matches!(operation, Operation::Raise(_)) {
                continue;
            }
            turned_back += u32::from(matches!(operation, Operation::TurnBack(_)));
            apply(&mut filter, &mut model, operation);
            match operation {
                Operation::Restart => filter = restarted(filter),
                Operation::Send => filter = sent(filter),
                Operation::Snapshot => {
                    let mut before = model.clone();
                    let (image, chunks) = snapshot_while(&mut filter, |filter| {
                        let next = left.next().filter(|operation| !matches!(operation, Operation::Raise(_)));
                        if let Some(operation) = next {
                            turned_back += u32::from(matches!(operation, Operation::TurnBack(_)));
                            apply(filter, &mut model, operation);
                        }
                    });
                    let mut then = restored(Mode::Compact, &image, &chunks).unwrap();
                    compare(&then, &before, turned_back > 0);
                    // A restored filter continues without the original.
                    apply(&mut then, &mut before, &Operation::Pass(1));
                    compare(&then, &before, turned_back > 0);
                }
                _ => {}
            }
            compare(&filter, &model, turned_back > 1);
        }
        // Nothing forgotten is left in the tables in the end.
        filter.retire(u64::MAX);
        prop_assert!(!filter.is_retiring() && filter.retire(u64::MAX) == 0);
        let held: u64 = filter.reader().view(model.now).stats().segments.iter().map(|segment| segment.items).sum();
        prop_assert_eq!(held, filter.items());
    }

    /// With short fingerprints, too, nothing is missed before its time, and nothing is left after it.
    #[test]
    fn colliding_items_are_not_forgotten_early(
        bits in 6_u8..=14,
        rounds in proptest::collection::vec((0_u64..3, 1_u64..400), 1..40),
        kept in 2_u32..=9,
    ) {
        let mut filter = forgetting(layout(200, bits, 8, Growth::Auto, kept), Growth::Auto, kept);
        let (mut now, mut next, mut added) = (0, 0, Vec::new());
        for (pause, count) in rounds {
            now += pause;
            filter.advance(now);
            let outcomes = filter.insert_many(&digests(next, count), false).unwrap_or_default();
            added.extend((next..).zip(outcomes).filter(|(_, o)| *o == Insert::Added).map(|(item, _)| (item, now)));
            next += count;
            filter.retire(100);
            let reader = filter.reader();
            let view = reader.view(now);
            added.retain(|(_, step)| step + u64::from(kept) >= now);
            prop_assert!(added.iter().all(|(item, _)| view.contains(digest(*item))));
            prop_assert_eq!(view.items(), added.len() as u64);
        }
        let reader = filter.reader();
        let view = reader.view(now + u64::from(kept) + 1);
        prop_assert!(!(0..next).any(|item| view.contains(digest(item))));
    }
}

/// The error rate holds for all steps together, and while segments are added in them.
#[test]
fn error_rate_holds_over_all_steps() {
    let layout = Layout::forgetting(1_000, 0.01, Growth::Auto, 8).unwrap();
    let mut filter = forgetting(layout, Growth::Auto, 8);
    let strangers = 200_000;
    let mut items = 0;
    for step in 0..25_u64 {
        filter.advance(step);
        // Each step brings more than the one before, up to a size that stays.
        let count = 2_000 * step.min(12);
        filter.insert_many(&digests(items, count), false).unwrap();
        items += count;
        filter.retire(1_000);
        let reader = filter.reader();
        let view = reader.view(step);
        let wrong = (0..strangers).filter(|number| view.contains(digest(1 << 40 | number))).count();
        assert!(wrong as f64 <= 0.01 * strangers as f64, "{wrong} of {strangers} in step {step}");
    }
    assert!(filter.reader().view(24).stats().segments.len() >= 2);
}

/// A segment that was needed once is dropped after its items are forgotten.
#[test]
fn segment_is_dropped_once_items_are_forgotten() {
    let layout = Layout::forgetting(1_000, 0.001, Growth::Auto, 4).unwrap();
    let mut filter = forgetting(layout, Growth::Auto, 4);
    filter.insert_many(&digests(0, 20_000), false).unwrap();
    assert!(filter.reader().view(0).stats().segments.len() >= 2);
    for step in 1..=12 {
        filter.advance(step);
        filter.insert_many(&digests(20_000 + 20 * step, 20), false).unwrap();
        while filter.is_retiring() {
            assert!(filter.retire(50) > 0);
        }
    }
    assert_eq!((filter.reader().view(12).stats().segments.len(), filter.items()), (1, 100));
}

/// Users who return often: a filter of the requested capacity holds all of them, step after step.
#[test]
fn returning_users_fit_in_planned_capacity() {
    let layout = Layout::forgetting(30_000, 0.001, Growth::Auto, 8).unwrap();
    let mut filter = forgetting(layout, Growth::Auto, 8);
    for step in 0..60_u64 {
        filter.advance(step);
        // Three copies of each, over three steps: 27 000 copies in nine steps.
        for part in 0..3 {
            filter.insert_many(&digests((step + part) * 1_000, 1_000), false).unwrap();
        }
        filter.retire(200);
    }
    assert_eq!(filter.reader().view(59).stats().segments.len(), 1);
    assert_eq!(filter.items(), 27_000);
}

/// Tags wrap around many times while a reader looks up the latest items.
#[test]
fn reader_finds_items_while_steps_rotate() {
    let kept = 5;
    let mut filter = forgetting(layout(3_000, 13, 8, Growth::Auto, kept), Growth::Auto, kept);
    // All steps before `begun` are complete; the writer may have freed the items forgotten in step `entered`.
    let (begun, entered, reader) = (AtomicU64::new(0), AtomicU64::new(0), filter.reader());
    std::thread::scope(|scope| {
        let watching = scope.spawn(|| {
            let (mut missed, mut found) = (0, Vec::new());
            loop {
                let begun = begun.load(Ordering::Acquire);
                if begun == u64::MAX {
                    return missed;
                }
                for step in begun.saturating_sub(3)..begun {
                    let items = digests(step * 500, 500);
                    let view = reader.view(step);
                    view.contains_many(&items, &mut found);
                    // Pairs with the store that freed a slot: `entered` is then at least the step of that.
                    fence(Ordering::Acquire);
                    let is_over = begun + 2 < entered.load(Ordering::Relaxed);
                    let missing = found.iter().filter(|found| !**found).count();
                    missed += if is_over { 0 } else { missing };
                }
            }
        });
        for step in 0..3_000 {
            entered.store(step, Ordering::Release);
            filter.advance(step);
            filter.insert_many(&digests(step * 500, 500), false).unwrap();
            begun.store(step + 1, Ordering::Release);
            if step % 7 == 0 {
                filter.retire(u64::MAX);
            } else {
                filter.retire(500);
            }
        }
        begun.store(u64::MAX, Ordering::Release);
        assert_eq!(watching.join().unwrap(), 0, "items were missed");
    });
}

/// Tables with items of a step that is not in the image are rejected.
#[test]
fn inconsistent_image_is_rejected() {
    let mut filter = forgetting(layout(100, 12, 8, Growth::Auto, 3), Growth::Auto, 3);
    filter.advance(1);
    filter.insert_many(&digests(0, 50), false).unwrap();
    let (image, chunks) = snapshot(&mut filter);
    filter.advance(2);
    filter.insert_many(&digests(50, 10), false).unwrap();
    let (later_image, later_chunks) = snapshot(&mut filter);
    assert!(
        restored(Mode::Compact, &image, &chunks).is_ok()
            && restored(Mode::Compact, &later_image, &later_chunks).is_ok()
    );
    assert!(matches!(restored(Mode::Compact, &image, &later_chunks), Err(RestoreError::Image(_))));
}
