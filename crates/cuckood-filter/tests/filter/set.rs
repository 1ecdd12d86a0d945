//! Strict filters against a map from items to states.

use super::*;
use cuckood_filter::{InsertOutcome, SlotState, Walk};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

#[derive(Clone, Debug)]
enum Operation {
    Insert(u64, u64),
    /// Makes one in three available, held or redeemed.
    Use(u64, u64),
    Remove(u64, u64),
    Clear,
    Raise(u64),
    Move(u64),
    Restart,
    Send,
}

const NUMBERS: u64 = 21_000;

fn operations() -> impl Strategy<Value = Vec<Operation>> {
    let operation = prop_oneof![
        10 => (0_u64..20_000, 1_u64..600).prop_map(|(from, count)| Operation::Insert(from, count)),
        3 => (0_u64..15_000, 1_u64..6_000).prop_map(|(from, count)| Operation::Insert(from, count)),
        6 => (0_u64..20_000, 1_u64..600).prop_map(|(from, count)| Operation::Use(from, count)),
        6 => (0_u64..20_000, 1_u64..900).prop_map(|(from, count)| Operation::Remove(from, count)),
        1 => Just(Operation::Remove(0, NUMBERS)),
        3 => Just(Operation::Clear),
        2 => (1_u64..2_000).prop_map(Operation::Move),
        2 => prop_oneof![10_u64..400, 10_u64..20_000].prop_map(Operation::Raise),
        2 => Just(Operation::Restart),
        1 => Just(Operation::Send),
    ];
    proptest::collection::vec(operation, 1..60)
}

struct Model {
    filter: Filter,
    twin: Filter,
    states: BTreeMap<u64, SlotState>,
    promised: u64,
}

impl Model {
    fn apply(&mut self, operation: &Operation) -> Result<(), TestCaseError> {
        match *operation {
            Operation::Insert(from, count) => {
                let digests = digests(from, from + count);
                let inserted = self.filter.insert_many(&digests, false).unwrap();
                let one_by_one: Vec<InsertOutcome> = digests
                    .iter()
                    .map(|&d| self.twin.insert(d, false).unwrap())
                    .collect();
                prop_assert_eq!(&inserted, &one_by_one);
                for (number, outcome) in (from..).zip(inserted) {
                    let expected = self
                        .states
                        .get(&number)
                        .map_or(InsertOutcome::Added, |state| InsertOutcome::Present(*state));
                    prop_assert_eq!(outcome, expected);
                    self.states.entry(number).or_insert(SlotState::Available);
                }
            }
            Operation::Use(from, count) => {
                for number in from..from + count {
                    let next = [SlotState::Available, SlotState::Held, SlotState::Redeemed]
                        [number as usize % 3];
                    let before = self
                        .states
                        .get_mut(&number)
                        .map(|state| std::mem::replace(state, next));
                    prop_assert_eq!(self.filter.set_state(digest(number), next), before);
                    prop_assert_eq!(self.twin.set_state(digest(number), next), before);
                }
            }
            Operation::Remove(from, count) => {
                for number in from..from + count {
                    let was_there = self.states.remove(&number).is_some();
                    prop_assert_eq!(self.filter.remove(digest(number)), was_there);
                    prop_assert_eq!(self.twin.remove(digest(number)), was_there);
                }
            }
            Operation::Clear => {
                let before = self.states.len();
                self.states
                    .retain(|_, state| *state != SlotState::Available);
                prop_assert_eq!(self.filter.clear(), (before - self.states.len()) as u64);
                self.twin.clear();
            }
            Operation::Raise(capacity) if capacity > self.promised => {
                let layout = Layout::strict(capacity).unwrap();
                self.filter.raise(layout).unwrap();
                self.twin.raise(layout).unwrap();
                self.promised = capacity;
            }
            Operation::Raise(_) => {}
            Operation::Move(buckets) => {
                self.filter.move_items(buckets);
                self.twin.move_items(buckets);
            }
            Operation::Restart => {
                self.filter = restarted(std::mem::replace(&mut self.filter, strict(1)))
            }
            Operation::Send => {
                for filter in [&mut self.filter, &mut self.twin] {
                    *filter = sent(std::mem::replace(filter, strict(1)));
                }
            }
        }
        Ok(())
    }

    fn check(&self) -> Result<(), TestCaseError> {
        let reader = self.filter.reader();
        let stats = reader.view(0).stats();
        prop_assert!(stats.segments.len() == 1 && stats.segments[0].capacity >= self.promised);
        for (number, state) in (0..).zip(reader.view(0).states(&digests(0, NUMBERS))) {
            prop_assert_eq!(state, self.states.get(&number).copied(), "{}", number);
        }
        prop_assert!((0..NUMBERS).step_by(7).all(
            |number| reader.view(0).state(digest(number)) == self.states.get(&number).copied()
        ));
        let of = |wanted| {
            self.states
                .values()
                .filter(|state| **state == wanted)
                .count() as u64
        };
        let counts = stats.states.unwrap();
        prop_assert_eq!(
            (counts.available, counts.held, counts.redeemed),
            (
                of(SlotState::Available),
                of(SlotState::Held),
                of(SlotState::Redeemed)
            )
        );
        prop_assert_eq!(stats.items, self.states.len() as u64);
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn strict_filters_are_sets_with_states(operations in operations(), capacity in 1_u64..2_000) {
        let mut model = Model { filter: strict(capacity), twin: strict(capacity), states: BTreeMap::new(), promised: capacity };
        for operation in operations {
            model.apply(&operation)?;
            model.check()?;
        }
        prop_assert!(snapshot(&mut model.filter) == snapshot(&mut model.twin));
        let mut walked = BTreeMap::new();
        let mut walk = Walk::START;
        while model.filter.walk(&mut walk, 16, |digest, state| _ = walked.insert(digest, state)) > 0 {}
        prop_assert_eq!(walked.len(), model.states.len());
    }
}

/// A pool of the right size never grows, though it is filled to its capacity, cleared and filled again.
#[test]
fn pool_of_right_size_does_not_grow() {
    for capacity in [1, 10, 1_000, 100_000] {
        let mut filter = strict(capacity);
        let bytes = filter.reader().view(0).memory_bytes();
        for round in 0..3 {
            filter
                .insert_many(&digests(round * capacity, (round + 1) * capacity), false)
                .unwrap();
            assert_eq!(
                filter.reader().view(0).memory_bytes(),
                bytes,
                "{capacity} in round {round}"
            );
            assert_eq!(filter.clear(), capacity);
        }
        // With used codes, cleared slots are freed as they are needed.
        filter.insert_many(&digests(0, capacity), false).unwrap();
        filter.set_state(digest(0), SlotState::Redeemed);
        for round in 1..5 {
            assert_eq!(filter.clear(), capacity - 1);
            filter
                .insert_many(
                    &digests(round * capacity + 1, (round + 1) * capacity),
                    false,
                )
                .unwrap();
            assert_eq!(
                filter.reader().view(0).memory_bytes(),
                bytes,
                "{capacity} in round {round}"
            );
        }
    }
}

/// A large filter that is cleared is empty for readers immediately, though later changes free its slots. No held or redeemed item is ever
/// missed; a released one is available again, and an item that is added again is present.
#[test]
fn cleared_filters_are_empty_immediately() {
    let mut filter = strict(60_000);
    let digests = digests(0, 60_000);
    let (used, free) = digests.split_at(6_000);
    filter.insert_many(&digests, false).unwrap();
    for &digest in used {
        filter.set_state(digest, SlotState::Redeemed);
    }
    let reader = filter.reader();
    let cleared = AtomicBool::new(false);
    let done = AtomicBool::new(false);
    let mut moves = 0;
    let mut contained = 0;
    std::thread::scope(|scope| {
        let watching = scope.spawn(|| {
            let mut wrong = 0;
            while !done.load(Ordering::Acquire) {
                let was_cleared = cleared.load(Ordering::Acquire);
                wrong += reader
                    .view(0)
                    .states(used)
                    .iter()
                    .filter(|state| state.is_none())
                    .count();
                wrong += used
                    .iter()
                    .filter(|digest| reader.view(0).state(**digest).is_none())
                    .count();
                let states = reader.view(0).states(&free[1_000..]);
                wrong += states
                    .iter()
                    .filter(|state| was_cleared && state.is_some())
                    .count();
            }
            wrong
        });
        assert_eq!(filter.clear(), 54_000);
        cleared.store(true, Ordering::Release);
        contained = digests
            .iter()
            .filter(|digest| reader.view(0).contains(**digest))
            .count();
        while filter.is_moving() {
            let counts = reader.view(0).stats().states.unwrap();
            assert_eq!(
                reader.view(0).stats().items,
                counts.available + counts.redeemed
            );
            // Returned, and added again.
            filter.set_state(used[moves % 3_000], SlotState::Available);
            filter.insert(free[moves % 1_000], false).unwrap();
            moves += 1;
        }
        done.store(true, Ordering::Release);
        assert_eq!(watching.join().unwrap(), 0, "readers saw wrong states");
    });
    assert_eq!(contained, used.len(), "single lookups after the clear");
    assert!(moves > 500, "{moves} moves");
    let returned = moves.min(3_000) as u64;
    let added = moves.min(1_000) as u64;
    let counts = reader.view(0).stats().states.unwrap();
    assert_eq!(
        (counts.available, counts.redeemed),
        (returned + added, 6_000 - returned)
    );
    assert_eq!(filter.clear(), returned + added);
}

/// However often the capacity is raised while the table is copied, each item is found at any time.
#[test]
fn consecutive_raises_lose_no_item() {
    let mut filter = strict(20_000);
    let digests = digests(0, 20_000);
    filter.insert_many(&digests, false).unwrap();
    let reader = filter.reader();
    let mut found = Vec::new();
    for raise in 1..30 {
        filter
            .raise(Layout::strict(20_000 * raise + 1_000).unwrap())
            .unwrap();
        filter.insert_many(&digests[..20], false).unwrap();
        assert!(reader.view(0).stats().segments[0].capacity >= 20_000 * raise + 1_000);
        reader.view(0).contains_many(&digests, &mut found);
        assert!(found.iter().all(|found| *found));
        assert_eq!(reader.view(0).stats().items, 20_000);
    }
    filter.move_items(u64::MAX);
    assert!(!filter.is_moving());
    assert_eq!(reader.view(0).stats().items, 20_000);
}
