//! Replacing items pair by pair: from version 2 of entries on, only the outcome `replaced` has an effect.

use cuckood_filter::{Growth, Mode};
use cuckood_state::domain::ItemOutcome::{
    Absent, AlreadyPresent, AlreadyRedeemed, Replaced, Saturated,
};
use cuckood_state::domain::{ChangeCounts, Command, ItemOutcome, Outcome, Target, Unit};
use cuckood_state::testing::commands::{NewFilter, code, insert, redemption, replace, target};
use cuckood_state::testing::machine::Machine;
use proptest::prelude::*;
use std::collections::BTreeMap;

const TARGET: Target = target(1);

/// Items of the random filters.
const ITEMS: u64 = 8;

/// A filter in which this version of entries is enabled.
fn machine(version: u16, filter: &NewFilter) -> Machine {
    let mut machine = Machine::new();
    assert_eq!(machine.apply(Command::Enable { version }), Outcome::Enabled);
    machine.create(TARGET, filter);
    machine
}

fn outcomes(machine: &mut Machine, pairs: &[(u64, u64)]) -> Vec<ItemOutcome> {
    let (from, to): (Vec<_>, Vec<_>) = pairs.iter().copied().unzip();
    match machine.apply(replace(TARGET, from, to)) {
        Outcome::Replaced(outcomes) => outcomes,
        other => panic!("{other:?}"),
    }
}

fn counts(machine: &Machine, items: impl IntoIterator<Item = u64>) -> Vec<u32> {
    let filter = machine.filter(TARGET);
    items
        .into_iter()
        .map(|item| filter.count(code(item), machine.now))
        .collect()
}

/// Copies added and removed, by the statistics of the day.
fn counted(machine: &Machine) -> (u64, u64) {
    let days = machine.filter(TARGET).statistics(Unit::Day, 1, machine.now);
    let counts = days
        .first()
        .map_or(ChangeCounts::default(), |(_, counts)| *counts);
    (counts[0], counts[1])
}

/// A campaign with the most copies of item 1, and one of item 2. Returns how many those are, too.
fn saturated(version: u16) -> (Machine, u32) {
    let mut campaign = machine(version, &NewFilter::campaign(100, 0.001));
    let copies_max = campaign.filter(TARGET).copies_max();
    campaign.apply(insert(TARGET, (0..copies_max).map(|_| 1)));
    campaign.apply(insert(TARGET, [2]));
    assert_eq!(counts(&campaign, [1, 2]), [copies_max, 1]);
    (campaign, copies_max)
}

#[test]
fn saturated_pair_changes_nothing() {
    for (version, expected, left) in [(1, Replaced, 0), (2, Saturated, 1)] {
        let (mut campaign, copies_max) = saturated(version);
        assert_eq!(
            outcomes(&mut campaign, &[(2, 1)]),
            [expected],
            "version {version}"
        );
        assert_eq!(
            counts(&campaign, [1, 2]),
            [copies_max, left],
            "version {version}"
        );
    }
    // A copy that leaves in an earlier pair makes space.
    let (mut campaign, copies_max) = saturated(2);
    assert_eq!(
        outcomes(&mut campaign, &[(1, 3), (2, 1), (3, 1)]),
        [Replaced, Replaced, Saturated]
    );
    assert_eq!(counts(&campaign, [1, 2, 3]), [copies_max, 0, 1]);
}

#[test]
fn occupied_code_changes_nothing() {
    for (version, expected, left) in [
        (1, Replaced, [0, 0, 1, 1]),
        (2, AlreadyPresent, [1, 1, 1, 1]),
    ] {
        let mut coupon = machine(version, &NewFilter::coupon(100));
        coupon.apply(insert(TARGET, 1..5));
        coupon.redeem(TARGET, 4, "order", 60);
        assert_eq!(
            outcomes(&mut coupon, &[(1, 3), (2, 4)]),
            [expected, expected],
            "version {version}"
        );
        assert_eq!(counts(&coupon, 1..5), left, "version {version}");
        // The hold remains.
        let Outcome::Settled(_) = coupon.apply(Command::Confirm {
            target: TARGET,
            redemption: redemption(1),
        }) else {
            panic!("version {version}")
        };
        assert_eq!(
            outcomes(&mut coupon, &[(3, 4), (4, 3)]),
            [AlreadyRedeemed, AlreadyRedeemed]
        );
    }
}

/// Strict filters hold at most one copy, compact ones here at most `copies_max`.
struct Model {
    copies_max: u32,
    present: ItemOutcome,
    items: BTreeMap<u64, u32>,
}

impl Model {
    fn count(&self, item: u64) -> u32 {
        self.items.get(&item).copied().unwrap_or(0)
    }

    /// Replaces one pair.
    fn replace(&mut self, from: u64, to: u64) -> ItemOutcome {
        if self.count(from) == 0 {
            return Absent;
        }
        if from == to {
            return Replaced;
        }
        if self.count(to) == self.copies_max {
            return self.present;
        }
        *self.items.entry(to).or_default() += 1;
        *self.items.entry(from).or_default() -= 1;
        Replaced
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// A request has the outcomes and the effect of its pairs one by one.
    #[test]
    fn replaced_pairs_equal_single_pairs(
        is_strict in any::<bool>(),
        stored in proptest::collection::vec((0..ITEMS, 1..9_u32), 0..8),
        pairs in proptest::collection::vec((0..ITEMS, 0..ITEMS), 1..30),
    ) {
        // Too few items to collide.
        let filter = if is_strict { NewFilter::coupon(200) } else { NewFilter::campaign(200, 0.000_001) };
        let mut real = machine(2, &NewFilter { growth: Growth::Auto, ..filter });
        let mode = real.filter(TARGET).spec.mode;
        let (copies_max, present) = match mode {
            Mode::Strict => (1, AlreadyPresent),
            Mode::Compact => (real.filter(TARGET).copies_max(), Saturated),
        };
        let mut model = Model { copies_max, present, items: BTreeMap::new() };
        for (item, copies) in stored {
            for _ in 0..copies {
                real.apply(insert(TARGET, [item]));
                let count = model.items.entry(item).or_default();
                *count = (*count + 1).min(copies_max);
            }
        }
        let before = counted(&real);
        let total: u32 = model.items.values().sum();
        let expected: Vec<_> = pairs.iter().map(|&(from, to)| model.replace(from, to)).collect();
        prop_assert_eq!(outcomes(&mut real, &pairs), expected);
        let left: Vec<_> = (0..ITEMS).map(|item| model.count(item)).collect();
        prop_assert_eq!(counts(&real, 0..ITEMS), left);
        // No copy is lost, and the statistics balance.
        prop_assert_eq!(real.filter(TARGET).describe(real.now).stats.items, u64::from(total));
        let after = counted(&real);
        prop_assert_eq!(after.0 - before.0, after.1 - before.1);
    }
}
