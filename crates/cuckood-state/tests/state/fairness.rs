//! No command pays for all items of a large pool: clearing, deleting and replacing it take effect immediately, and every entry does a
//! little of the remaining work.

use cuckood_state::domain::{
    Command, Forget, Guards, ImportMode, Kind, Outcome, SectionId, Settings, Target, Timestamp,
};
use cuckood_state::testing::commands::{
    NewFilter, codes, import_begin, import_end, import_lines, insert, redemption, target,
};
use cuckood_state::testing::machine::Machine;
use cuckood_state::{CodeFound, FilterView, WaitingDemand};
use std::collections::HashMap;
use std::sync::Arc;

const LARGE: Target = target(1);
const SMALL: Target = target(2);

/// Codes of the large pool, and how many of them are redeemed.
const CODES: u64 = 40_000;
const REDEEMED: u64 = 3_000;

/// Words and redemptions that a small command may change: those of the buckets that every entry empties, and where their items go.
const CHANGES_MAX: u64 = 150;

struct Pools(Machine);

impl Pools {
    fn new() -> Self {
        let mut pools = Self(Machine::new());
        pools.0.create(LARGE, &NewFilter::coupon(CODES));
        pools.0.create(SMALL, &NewFilter::coupon(100));
        pools.insert(LARGE, 0..CODES);
        for number in 0..REDEEMED {
            assert!(matches!(
                pools.0.redeem(LARGE, number, "order", 0),
                Outcome::Redeemed(_)
            ));
        }
        pools
    }

    fn apply(&mut self, command: Command) -> Outcome {
        self.0.apply(command)
    }

    /// Applies a command, and counts the changes of words and of redemptions that it made. Those of a table that is gone don't count.
    fn measure(&mut self, command: Command) -> u64 {
        let before = self.changes();
        self.apply(command);
        let after = self.changes();
        after
            .iter()
            .map(|(section, changes)| changes - before.get(section).unwrap_or(&0))
            .sum()
    }

    fn changes(&mut self) -> HashMap<SectionId, u64> {
        let image = self.0.state.begin_snapshot();
        image
            .sections
            .iter()
            .map(|section| (section.id, section.changes))
            .collect()
    }

    fn insert(&mut self, target: Target, numbers: std::ops::Range<u64>) {
        for number in numbers.clone().step_by(10_000) {
            self.apply(insert(target, number..numbers.end.min(number + 10_000)));
        }
    }

    fn large(&self) -> Arc<FilterView> {
        self.0.filter(LARGE)
    }

    /// Codes of the large pool by what readers see, of these numbers: valid ones, and redeemed ones.
    fn seen_of(&self, numbers: std::ops::Range<u64>) -> (u64, u64) {
        let large = self.large();
        let now = self.0.now;
        let digests = codes(numbers).0;
        let mut valid = Vec::new();
        large.contains_many(&digests, now, &mut valid);
        let redeemed = large.look_up(&digests, now).unwrap().into_iter();
        let redeemed = redeemed.filter(|found| matches!(found, CodeFound::Redeemed(Some(_))));
        (
            valid.into_iter().filter(|valid| *valid).count() as u64,
            redeemed.count() as u64,
        )
    }

    /// The same for all numbers, from the pool's own counts.
    fn counts(&self) -> (u64, u64) {
        let stats = self
            .large()
            .describe(Timestamp(0))
            .stats
            .codes
            .states
            .unwrap();
        let counts = self.seen_of(0..2 * CODES);
        assert_eq!(counts, (stats.available, stats.redeemed));
        counts
    }
}

fn small_command() -> Command {
    insert(SMALL, [1])
}

#[test]
fn large_pool_clears_immediately_and_frees_incrementally() {
    let mut pools = Pools::new();
    assert_eq!(pools.counts(), (CODES - REDEEMED, REDEEMED));
    let changes = pools.measure(Command::Clear { target: LARGE });
    assert!(changes <= CHANGES_MAX, "clearing changed {changes}");
    assert_eq!(pools.counts(), (0, REDEEMED));
    let mut commands = 0;
    let mut most = 0;
    while pools.0.state.can_advance() {
        most = most.max(pools.measure(small_command()));
        commands += 1;
        if commands % 500 == 0 {
            assert_eq!(pools.counts(), (0, REDEEMED));
        }
    }
    assert!(most <= CHANGES_MAX, "one command changed {most}");
    assert!(commands > 1_000, "{commands} commands did all");
    assert_eq!(pools.counts(), (0, REDEEMED));
    assert_eq!(pools.large().describe(Timestamp(0)).stats.segments.len(), 1);
    // The cleared codes can be added again, except used ones.
    pools.insert(LARGE, 0..CODES);
    assert_eq!(pools.counts(), (CODES - REDEEMED, REDEEMED));
}

/// A clear waits until most slots of the previous one are free. By then, codes were added to the new table.
#[test]
fn large_pools_clear_repeatedly() {
    let mut pools = Pools::new();
    for round in 1..5 {
        let changes = pools.measure(Command::Clear { target: LARGE });
        assert!(changes <= CHANGES_MAX, "clear {round} changed {changes}");
        assert!(WaitingDemand::must_wait_for_clear(
            &pools.0.state,
            &Command::Clear { target: LARGE }
        ));
        let first = round * 2 * CODES;
        pools.insert(LARGE, first..first + 20);
        assert_eq!(pools.seen_of(0..first + CODES), (20, REDEEMED));
        while pools.0.state.can_advance() {
            pools.apply(Command::Advance { buckets_max: 1_000 });
        }
        assert!(!WaitingDemand::must_wait_for_clear(
            &pools.0.state,
            &Command::Clear { target: LARGE }
        ));
        pools.insert(LARGE, first + 20..first + CODES / 2);
        assert_eq!(pools.seen_of(0..first + CODES), (CODES / 2, REDEEMED));
        assert_eq!(pools.large().describe(Timestamp(0)).stats.segments.len(), 1);
    }
}

/// Campaigns that have forgotten all their users free the slots bit by bit, and none has to wait until another one is done.
#[test]
fn large_campaigns_forget_incrementally_in_turns() {
    const WORDS_AN_ENTRY: u64 = 1_024;
    let mut pools = Pools(Machine::new());
    let forget = Some(Forget::new(60, 4).unwrap());
    let campaigns = [1, 2].map(target);
    for target in campaigns {
        pools.0.create(
            target,
            &NewFilter {
                forget,
                ..NewFilter::campaign(CODES, 0.001)
            },
        );
        pools.insert(target, 0..CODES);
    }
    pools.0.pass_seconds(200);
    let of = |changes: &HashMap<SectionId, u64>| changes.values().copied().collect::<Vec<_>>();
    let before = of(&pools.changes());
    let mut commands = 0;
    let mut most = 0;
    while commands == 0 || pools.0.state.can_advance() {
        most = most.max(pools.measure(Command::Advance { buckets_max: 0 }));
        commands += 1;
        if commands == 2 {
            let moved = pools
                .changes()
                .values()
                .filter(|changes| !before.contains(changes))
                .count();
            assert_eq!(moved, campaigns.len(), "each had a turn");
        }
    }
    // A word has parts of a few slots, and a slot may span two words.
    assert!(most <= 8 * WORDS_AN_ENTRY, "one command changed {most}");
    assert!(commands > 10, "{commands} commands did all");
    assert_eq!(pools.0.state.sizes().users_forgotten, 2 * CODES);
    // Each added user makes its campaign free some more.
    pools.insert(campaigns[0], CODES..CODES + 10);
}

/// Forgotten redemptions of an open pool don't affect the initial step of a snapshot.
#[test]
fn snapshot_start_cost_ignores_forgotten_items() {
    let mut pools = Pools(Machine::new());
    let settings = Settings {
        redemptions_retention_seconds: 1,
        ..Settings::default()
    };
    pools.apply(Command::Configure(settings));
    pools.0.create(LARGE, &NewFilter::pool(CODES, CODES));
    let before = pools.0.state.begin_snapshot().head.len();
    for number in 0..4_000 {
        pools.0.redeem(LARGE, number, "order", 0);
    }
    // Every second ordinal is free, and all others are taken for good.
    for serial in (1..=4_000).step_by(2) {
        pools.apply(Command::Cancel {
            target: LARGE,
            redemption: redemption(serial),
        });
    }
    pools.0.pass_seconds(9);
    while pools.0.state.sizes().redemptions > 0 {
        pools.apply(small_command());
    }
    let after = pools.0.state.begin_snapshot().head.len();
    assert!(after < before + 100, "{before} bytes, and then {after}");
}

/// An explicit command does the requested amount.
#[test]
fn advance_is_bounded() {
    let mut pools = Pools::new();
    pools.apply(Command::Clear { target: LARGE });
    let mut commands = 0;
    while pools.0.state.can_advance() {
        let changes = pools.measure(Command::Advance { buckets_max: 1_000 });
        assert!(changes <= 1_000 * 8 + CHANGES_MAX, "{changes} changes");
        commands += 1;
    }
    assert!((9..=12).contains(&commands), "{commands} commands");
    assert_eq!(pools.measure(Command::Advance { buckets_max: 1_000 }), 0);
}

#[test]
fn large_pool_deletes_immediately_and_frees_incrementally() {
    let mut pools = Pools::new();
    let sizes = (
        pools.0.state.sizes().tables_bytes,
        pools.0.state.sizes().records_bytes,
    );
    let name = pools.large().name.clone();
    let kind = Kind::Coupon;
    assert_eq!(
        pools.apply(Command::Delete {
            kind,
            name: name.clone()
        }),
        Outcome::Deleted
    );
    assert!(pools.0.state.view().find(kind, &name).is_none());
    // The command has freed nothing.
    let left = (
        pools.0.state.sizes().tables_bytes,
        pools.0.state.sizes().records_bytes,
    );
    let discarded = (
        pools.0.state.sizes().discarded_tables_bytes,
        pools.0.state.sizes().discarded_records_bytes,
    );
    assert!(
        left.0 < sizes.0 / 10 && left.1 < sizes.1 / 3,
        "{left:?} of {sizes:?}"
    );
    assert!(
        left.1 + discarded.1 >= sizes.1,
        "{left:?} and {discarded:?} of {sizes:?}"
    );
    let mut steps = 0;
    while pools.0.state.free_discarded(1_000) {
        steps += 1;
    }
    assert!(steps as u64 >= 3 * REDEEMED / 1_000, "{steps} steps");
    assert!(!pools.0.state.has_discarded());
    assert_eq!(pools.0.state.sizes().discarded_records_bytes, 0);
}

/// An earlier snapshot retains deleted tables, and the account continues to count them.
#[test]
fn memory_pinned_by_snapshot_is_counted() {
    let mut pools = Pools::new();
    let sizes = (
        pools.0.state.sizes().tables_bytes,
        pools.0.state.sizes().records_bytes,
    );
    let snapshot = pools.0.state.begin_snapshot();
    let name = pools.large().name.clone();
    pools.apply(Command::Delete {
        kind: Kind::Coupon,
        name,
    });
    while pools.0.state.free_discarded(1_000) {}
    assert!(
        pools.0.state.sizes().tables_bytes + pools.0.state.sizes().discarded_tables_bytes
            >= sizes.0
    );
    assert!(
        pools.0.state.sizes().records_bytes + pools.0.state.sizes().discarded_records_bytes
            >= sizes.1
    );
    drop(snapshot);
    while pools.0.state.free_discarded(1_000) {}
    assert_eq!(
        (
            pools.0.state.sizes().discarded_tables_bytes,
            pools.0.state.sizes().discarded_records_bytes
        ),
        (0, 0)
    );
}

#[test]
fn large_pool_is_replaced_immediately() {
    let mut pools = Pools::new();
    pools.apply(import_begin(
        LARGE,
        "nightly",
        ImportMode::Replace,
        Guards::default(),
    ));
    for from in (CODES..2 * CODES).step_by(10_000) {
        pools.apply(import_lines(LARGE, "nightly", from..from + 10_000));
    }
    let end = import_end(LARGE, "nightly", 100);
    let mut ends = 0;
    let mut most = 0;
    while pools
        .large()
        .describe(Timestamp(0))
        .stats
        .codes
        .states
        .unwrap()
        .available
        != CODES
    {
        most = most.max(pools.measure(end.clone()));
        ends += 1;
        assert!(ends < 2_000, "it does not end");
    }
    // Each code that it copies moves the items of some buckets, for the new table has grown.
    assert!(most <= 100 * 40 + CHANGES_MAX, "{most} changes");
    assert!(ends > 30, "{ends} commands");
    assert_eq!(pools.counts(), (CODES, REDEEMED));
    assert_eq!(pools.seen_of(0..CODES), (0, REDEEMED));
}
