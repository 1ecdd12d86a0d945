//! Compact filters, with and without steps, against a model of every copy and its step.

use super::*;
use cuckood_filter::{InsertOutcome, SlotState};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Operation {
    /// Adds the items, again and again.
    Insert {
        from: u64,
        count: u64,
        times: u8,
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
    Move(u64),
    Clear,
    /// The capacity is raised to this one.
    Raise(u64),
    Snapshot,
    Restart,
    Send,
}

/// Operations on items below this number.
fn operations(items: u64, most: usize) -> impl Strategy<Value = Vec<Operation>> {
    let range = move |most: u64| (0..items - most, 1..most);
    let insert = move |most: u64, times: u8| {
        let once = (range(most), 0_u8..5);
        once.prop_map(move |((from, count), absent)| Operation::Insert {
            from,
            count,
            times,
            if_absent: absent == 0,
        })
    };
    let remove = move |most: u64| {
        let once = (range(most), 0_u8..4);
        once.prop_map(|((from, count), all)| Operation::Remove {
            from,
            count,
            all: all == 0,
        })
    };
    let operation = prop_oneof![
        6 => insert(items / 4, 1),
        6 => insert(items / 50, 1),
        4 => insert(items / 30, 16),
        5 => remove(items / 5),
        2 => remove(items / 2),
        10 => (0_u64..4).prop_map(Operation::Pass),
        // A year of minutes.
        1 => Just(Operation::Pass(525_600)),
        1 => (0_u64..20).prop_map(Operation::TurnBack),
        5 => (1_u64..5_000).prop_map(Operation::Retire),
        3 => (1_u64..20_000).prop_map(Operation::Move),
        1 => Just(Operation::Clear),
        2 => (10..items + items / 3).prop_map(Operation::Raise),
        2 => Just(Operation::Snapshot),
        2 => Just(Operation::Restart),
        1 => Just(Operation::Send),
    ];
    proptest::collection::vec(operation, 1..most)
}

pub(crate) fn rules() -> impl Strategy<Value = GrowthRule> {
    prop_oneof![Just(GrowthRule::Immediate), Just(GrowthRule::Paced)]
}

/// Bits of a fingerprint with which no two of a few hundred items collide.
const EXACT: u8 = 28;

#[derive(Clone, Debug)]
struct Kind {
    bits: u8,
    bucket_size: u8,
    growth: Growth,
    rule: GrowthRule,
    steps: Option<u32>,
}

impl Kind {
    fn layout(&self, capacity: u64) -> Layout {
        let layout =
            Layout::compact_with(capacity, self.bits, self.bucket_size, 500, self.growth).unwrap();
        self.steps
            .map_or(layout, |steps| layout.with_steps(steps).unwrap())
    }

    fn filter(&self, capacity: u64) -> Filter {
        let mut filter = Filter::new(
            Mode::Compact,
            self.layout(capacity),
            self.growth,
            self.steps,
        );
        filter.set_growth_rule(self.rule);
        filter
    }

    /// An item that collides with another one may be removed in its place, and then is forgotten at another time.
    fn allows(&self, operation: &Operation) -> bool {
        match operation {
            Operation::Raise(_) => self.growth != Growth::Fixed,
            // So may one of which a newer copy is in an older table, because its place in the newest one was crowded.
            Operation::Remove { .. } if self.steps.is_some() => {
                self.bits == EXACT && self.rule == GrowthRule::Immediate
            }
            Operation::Pass(_) | Operation::TurnBack(_) => self.steps.is_some(),
            _ => true,
        }
    }
}

#[derive(Clone)]
struct Model {
    kind: Kind,
    now: u64,
    /// The steps of each item's copies.
    copies: Vec<Vec<u64>>,
    promised: u64,
    turned_back: u32,
}

impl Model {
    fn is_exact(&self) -> bool {
        self.kind.bits == EXACT
    }

    /// Items are retained longer if the time was turned back repeatedly.
    fn may_be_longer(&self) -> bool {
        self.turned_back > 1
    }

    /// The copies that are not forgotten at a time.
    fn count(&self, item: u64, now: u64) -> u32 {
        let oldest = self
            .kind
            .steps
            .map_or(0, |steps| now.saturating_sub(steps.into()));
        self.copies[item as usize]
            .iter()
            .filter(|step| **step >= oldest)
            .count() as u32
    }

    fn items(&self, now: u64) -> u64 {
        (0..self.copies.len() as u64)
            .map(|item| u64::from(self.count(item, now)))
            .sum()
    }

    fn pass(&mut self, steps: u64) {
        self.now += steps;
        if let Some(steps) = self.kind.steps {
            let oldest = self.now.saturating_sub(steps.into());
            self.copies
                .iter_mut()
                .for_each(|copies| copies.retain(|step| *step >= oldest));
        }
    }

    fn insert(&mut self, item: u64, outcome: InsertOutcome, if_absent: bool, copies_max: u64) {
        let copies = self.count(item, self.now);
        let expected = match copies {
            1.. if if_absent => InsertOutcome::Present(SlotState::Available),
            _ if u64::from(copies) == copies_max => InsertOutcome::Saturated,
            _ => InsertOutcome::Added,
        };
        // An item counts as present, and as saturated, with those that collide with it.
        let may_differ =
            expected == InsertOutcome::Added && (!self.is_exact() || self.may_be_longer());
        assert!(outcome == expected || may_differ, "{item}: {outcome:?}");
        if outcome == InsertOutcome::Added {
            self.copies[item as usize].push(self.now);
        }
    }

    /// The newest copies are removed.
    fn remove(&mut self, item: u64, removed: u32, all: bool) {
        let may_be_longer = self.may_be_longer();
        let copies = &mut self.copies[item as usize];
        for _ in 0..removed {
            let newest = (0..copies.len()).max_by_key(|copy| copies[*copy]);
            assert!(
                newest.is_some() || may_be_longer,
                "nothing is removed that was not there"
            );
            newest
                .into_iter()
                .for_each(|newest| _ = copies.remove(newest));
        }
        assert!(
            copies.is_empty() || removed == 1 && !all,
            "something is left"
        );
    }

    /// Changes the filter, and its twin, whose items are added one by one.
    fn apply(&mut self, operation: &Operation, filter: &mut Filter, twin: &mut Filter) {
        match *operation {
            Operation::Insert {
                from,
                count,
                times,
                if_absent,
            } => {
                let digests = digests(from, from + count);
                for _ in 0..times {
                    let outcomes = filter.insert_many(&digests, if_absent);
                    let same: Result<Vec<InsertOutcome>, _> = match outcomes {
                        Ok(_) => digests
                            .iter()
                            .map(|&digest| twin.insert(digest, if_absent))
                            .collect(),
                        Err(_) => twin.insert_many(&digests, if_absent),
                    };
                    assert_eq!(outcomes, same);
                    for (item, outcome) in (from..).zip(outcomes.unwrap_or_default()) {
                        self.insert(item, outcome, if_absent, filter.copies_max());
                    }
                }
            }
            // Colliding items are removed one copy at a time, and only those that are there: others would take their copies.
            Operation::Remove { from, count, all } => {
                let all = all && self.is_exact();
                for item in from..from + count {
                    if self.is_exact() || self.count(item, self.now) > 0 {
                        let removed = filter.remove_many(&[digest(item)], all)[0];
                        assert_eq!(twin.remove_many(&[digest(item)], all)[0], removed);
                        self.remove(item, removed, all);
                    }
                }
            }
            Operation::Pass(steps) => {
                self.pass(steps);
                assert_eq!(filter.advance(self.now), twin.advance(self.now));
            }
            Operation::TurnBack(steps) => {
                self.turned_back += 1;
                self.now = self.now.saturating_sub(steps);
                self.copies
                    .iter_mut()
                    .flatten()
                    .for_each(|step| *step = self.now.min(*step));
                filter.turn_back(self.now);
                twin.turn_back(self.now);
            }
            Operation::Retire(words) => assert_eq!(filter.retire(words), twin.retire(words)),
            Operation::Move(buckets) => {
                filter.move_items(buckets);
                twin.move_items(buckets);
            }
            Operation::Clear => {
                assert_eq!([filter.clear(), twin.clear()], [self.items(self.now); 2]);
                self.copies.iter_mut().for_each(Vec::clear);
            }
            Operation::Raise(capacity) if capacity > self.promised => {
                let layout = self.kind.layout(capacity);
                let raised = filter.raise(layout);
                assert_eq!(raised, twin.raise(layout));
                // Short fingerprints leave no bits for more tables in every step.
                assert!(raised.is_ok() || self.kind.steps.is_some());
                self.promised = raised.map_or(self.promised, |()| capacity);
            }
            Operation::Raise(_) | Operation::Snapshot | Operation::Restart | Operation::Send => {}
        }
    }

    /// Readers agree with the model; of a filter that forgets also readers whose clocks are ahead or slow.
    fn check(&self, filter: &Filter) {
        let reader = filter.reader();
        let mut found = Vec::new();
        let items = digests(0, self.copies.len() as u64);
        let kept = u64::from(self.kind.steps.unwrap_or(0));
        let clocks = [self.now, self.now + 1, self.now + kept, self.now + kept + 1];
        for now in clocks.into_iter().take(if kept == 0 { 1 } else { 4 }) {
            let view = reader.view(now);
            view.contains_many(&items, &mut found);
            let may_be_more = self.may_be_longer() || !self.is_exact() && view.items() > 0;
            let mut sum = 0;
            for (item, (&digest, &found)) in (0..).zip(items.iter().zip(&found)) {
                let copies = self.count(item, now);
                // Absent items may collide with others, so their number says nothing.
                let seen = if self.is_exact() || copies > 0 {
                    view.count(digest)
                } else {
                    found.into()
                };
                assert!(
                    seen == copies || seen > copies && may_be_more,
                    "{item}: {seen}, not {copies}"
                );
                assert_eq!((found, view.contains(digest)), (seen > 0, seen > 0));
                sum += u64::from(if self.is_exact() { seen } else { copies });
            }
            assert!(view.items() == sum || self.may_be_longer() && !self.is_exact());
            let stats = view.stats();
            assert!(
                stats
                    .steps
                    .iter()
                    .all(|step| step.items > 0 && step.step + kept >= now)
            );
            assert!(stats.steps.is_sorted_by_key(|step| step.step));
            assert!(
                stats
                    .segments
                    .iter()
                    .map(|segment| segment.items)
                    .sum::<u64>()
                    >= sum
            );
            assert!(
                stats
                    .segments
                    .iter()
                    .map(|segment| segment.capacity)
                    .sum::<u64>()
                    >= self.promised
            );
        }
        let slow = reader.view(self.now.saturating_sub(if kept == 0 { 0 } else { 3 }));
        let mut present = items
            .iter()
            .zip(&self.copies)
            .filter(|(_, copies)| !copies.is_empty());
        assert!(present.all(|(&item, copies)| slow.count(item) as usize >= copies.len()));
        assert_eq!(filter.items(), reader.view(self.now).items());
    }
}

/// Applies the operations to a filter, and checks it after each one.
fn run(kind: Kind, capacity: u64, begin: u64, items: u64, operations: &[Operation]) {
    let [mut filter, mut twin] = [(); 2].map(|()| kind.filter(capacity));
    let copies = vec![Vec::new(); items as usize];
    let mut model = Model {
        kind,
        now: 0,
        copies,
        promised: capacity,
        turned_back: 0,
    };
    let kind = model.kind.clone();
    model.apply(&Operation::Pass(begin), &mut filter, &mut twin);
    let mut left = operations.iter().filter(|operation| kind.allows(operation));
    while let Some(operation) = left.next() {
        model.apply(operation, &mut filter, &mut twin);
        match operation {
            Operation::Restart => filter = restarted(filter),
            Operation::Send => [filter, twin] = [filter, twin].map(sent),
            Operation::Snapshot => {
                let mut then = model.clone();
                let (image, chunks) = snapshot_while(&mut filter, |filter| {
                    let next = left
                        .next()
                        .filter(|operation| !matches!(operation, Operation::Raise(_)));
                    next.into_iter()
                        .for_each(|operation| model.apply(operation, filter, &mut twin));
                });
                let mut restored = restored(Mode::Compact, &image, &chunks).unwrap();
                restored.set_growth_rule(kind.rule);
                then.check(&restored);
                // A restored filter continues without the original.
                then.pass(1);
                restored.advance(then.now);
                then.check(&restored);
            }
            _ => {}
        }
        model.check(&filter);
    }
    assert!(snapshot(&mut filter) == snapshot(&mut twin));
    // In the end, nothing forgotten is left in the tables, and nothing is remembered for longer.
    filter.retire(u64::MAX);
    assert!(!filter.is_retiring() && filter.retire(u64::MAX) == 0);
    let stats = filter.reader().view(model.now).stats();
    assert_eq!(
        stats
            .segments
            .iter()
            .map(|segment| segment.items)
            .sum::<u64>(),
        filter.items()
    );
    if let Some(steps) = kind.steps {
        model.pass(u64::from(steps) + 1);
        filter.advance(model.now);
        assert_eq!(filter.reader().view(model.now).items(), 0);
        model.check(&filter);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    /// No member is missed, no remove takes another member's last copy, and a replay is identical to the byte, while fingerprints collide
    /// and tables grow a thousandfold.
    #[test]
    fn compact_filters_are_multisets(
        operations in operations(300_000, 30),
        bits in prop_oneof![Just(8_u8), Just(10), Just(14), Just(22)],
        bucket_size in prop_oneof![1 => Just(2_u8), 3 => Just(4), 1 => Just(8)],
        capacity in prop_oneof![10_u64..400, 50_000_u64..90_000],
        rule in rules(),
    ) {
        let kind = Kind { bits, bucket_size, growth: Growth::Auto, rule, steps: None };
        run(kind, capacity, 0, 300_000, &operations);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Nothing is forgotten early or retained for longer, whatever happens: clocks that stop or jump, growth inside steps, removes,
    /// snapshots and restores. Nothing is missed with short fingerprints, either.
    #[test]
    fn filter_forgets_each_copy_after_its_steps(
        operations in operations(760, 80),
        bits in prop_oneof![3 => Just(EXACT), 1 => 6_u8..=14],
        capacity in 1_u64..150,
        bucket_size in prop_oneof![Just(2_u8), Just(4), Just(8)],
        steps in 2_u32..=32,
        is_fixed in 0_u8..6,
        begin in 0_u64..1_000,
        rule in rules(),
    ) {
        let growth = if is_fixed == 0 && bits == EXACT { Growth::Fixed } else { Growth::Auto };
        run(Kind { bits, bucket_size, growth, rule, steps: Some(steps) }, capacity, begin, 760, &operations);
    }
}

/// A rejected batch changes nothing, not even the age of copies that items have in newer tables than those that it took back.
#[test]
fn rejected_batch_keeps_ages() {
    let insert = |from, count, times, if_absent| Operation::Insert {
        from,
        count,
        times,
        if_absent,
    };
    let operations = [
        insert(298, 63, 1, true),
        insert(401, 77, 1, true),
        insert(264, 18, 16, false),
        insert(269, 167, 1, false),
        insert(186, 75, 1, true),
        insert(139, 4, 1, true),
        Operation::Pass(525_600),
        insert(611, 22, 16, false),
        insert(0, 1, 1, true),
        insert(226, 79, 1, true),
        insert(16, 23, 16, false),
        insert(0, 1, 1, true),
        insert(48, 8, 16, false),
        Operation::Pass(1),
        insert(215, 95, 1, false),
    ];
    let kind = Kind {
        bits: EXACT,
        bucket_size: 8,
        growth: Growth::Auto,
        rule: GrowthRule::Paced,
        steps: Some(2),
    };
    run(kind, 58, 0, 760, &operations);
}
