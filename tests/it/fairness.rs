//! No command pays for all items of a large pool: clearing, deleting and replacing it take effect immediately, and every entry does a
//! little of the remaining work.

use crate::random_log::code;
use cuckood::domain::{
    Command, Digests, Ending, Entry, FilterId, Forget, Guards, ImportId, ImportMode, KeyName, Kind, Name,
    Outcome, Proposal, RedemptionId, Reference, SectionId, Settings, Sizing, Spec, Target, Timestamp,
    UploadDigest, Window,
};
use cuckood::filter::{Growth, Layout, Mode, Secret};
use cuckood::state::{CodeFound, FilterView, State, WaitingDemand};
use std::collections::HashMap;
use std::sync::Arc;

const LARGE: Target = Target(FilterId(1));
const SMALL: Target = Target(FilterId(2));

/// Codes of the large pool, and how many of them are redeemed.
const CODES: u64 = 40_000;
const REDEEMED: u64 = 3_000;

/// Words and redemptions that a small command may change: those of the buckets that every entry empties, and where their items go.
const CHANGES_MAX: u64 = 150;

fn strict(capacity: u64) -> Spec {
    let (mode, growth, sizing) = (Mode::Strict, Growth::Auto, Sizing::Exact);
    Spec { capacity, mode, growth, sizing, ignore_case: false, stock: None, forget: None }
}

struct Pools(State);

impl Pools {
    fn new() -> Self {
        let mut pools = Self(State::new());
        pools.create(LARGE, CODES);
        pools.create(SMALL, 100);
        pools.insert(LARGE, 0..CODES);
        for number in 0..REDEEMED {
            let outcome = pools.apply(Command::Redeem {
                target: LARGE,
                digest: code(number),
                redemption: RedemptionId(u128::from(number).to_be_bytes()),
                reference: Reference::new("order").unwrap(),
                hold_seconds: 0,
            });
            assert!(matches!(outcome, Outcome::Redeemed(_)));
        }
        pools
    }

    fn apply(&mut self, command: Command) -> Outcome {
        self.apply_at(Timestamp(1_000), command)
    }

    fn apply_at(&mut self, at: Timestamp, command: Command) -> Outcome {
        let seq = self.0.applied().next();
        let outcome = self.0.apply(Entry { seq, proposal: Proposal::new(at, command) }).outcome;
        self.0.publish();
        outcome
    }

    /// Applies a command, and counts the changes of words and of redemptions that it made. Those of a table that is gone don't count.
    fn measure(&mut self, command: Command) -> u64 {
        self.measure_at(Timestamp(1_000), command)
    }

    fn measure_at(&mut self, at: Timestamp, command: Command) -> u64 {
        let before = self.changes();
        self.apply_at(at, command);
        let after = self.changes();
        after.iter().map(|(section, changes)| changes - before.get(section).unwrap_or(&0)).sum()
    }

    fn changes(&mut self) -> HashMap<SectionId, u64> {
        let image = self.0.begin_snapshot();
        image.sections.iter().map(|section| (section.id, section.changes)).collect()
    }

    fn create(&mut self, target: Target, capacity: u64) {
        self.create_as(target, Kind::Coupon, Layout::strict(capacity).unwrap(), strict(capacity));
    }

    fn create_as(&mut self, Target(id): Target, kind: Kind, layout: Layout, spec: Spec) {
        let name = Name::new(&format!("p{}", id.0)).unwrap();
        let (secret, window) = (Secret::new([7; 192]), Window::default());
        let outcome = self.apply(Command::Create {
            kind,
            name,
            id,
            secret,
            layout,
            spec,
            window,
            annotations: Default::default(),
        });
        assert!(matches!(outcome, Outcome::Created(_)), "{outcome:?}");
    }

    fn insert(&mut self, target: Target, numbers: std::ops::Range<u64>) {
        for number in numbers.clone().step_by(10_000) {
            let digests = Digests((number..numbers.end.min(number + 10_000)).map(code).collect());
            self.apply(Command::Insert { target, digests, if_absent: false, revive: false });
        }
    }

    fn large(&self) -> Arc<FilterView> {
        self.0.view().list(Kind::Coupon, "p1", None, 1).remove(0)
    }

    /// Codes of the large pool by what readers see, of these numbers: valid ones, and redeemed ones.
    fn seen_of(&self, numbers: std::ops::Range<u64>) -> (u64, u64) {
        let (large, now) = (self.large(), self.0.now());
        let digests: Vec<_> = numbers.map(code).collect();
        let mut valid = Vec::new();
        large.contains_many(&digests, now, &mut valid);
        let redeemed = large.look_up(&digests, now).unwrap().into_iter();
        let redeemed = redeemed.filter(|found| matches!(found, CodeFound::Redeemed(Some(_))));
        (valid.into_iter().filter(|valid| *valid).count() as u64, redeemed.count() as u64)
    }

    /// The same for all numbers, from the pool's own counts.
    fn counts(&self) -> (u64, u64) {
        let stats = self.large().describe(Timestamp(0)).stats.codes.unwrap();
        let counts = self.seen_of(0..2 * CODES);
        assert_eq!(counts, (stats.available, stats.redeemed));
        counts
    }
}

fn small_command() -> Command {
    Command::Insert { target: SMALL, digests: Digests(vec![code(1)]), if_absent: false, revive: false }
}

#[test]
fn large_pool_clears_immediately_and_frees_incrementally() {
    let mut pools = Pools::new();
    assert_eq!(pools.counts(), (CODES - REDEEMED, REDEEMED));
    let changes = pools.measure(Command::Clear { target: LARGE });
    assert!(changes <= CHANGES_MAX, "clearing changed {changes}");
    assert_eq!(pools.counts(), (0, REDEEMED));
    let (mut commands, mut most) = (0, 0);
    while pools.0.can_advance() {
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
        assert!(WaitingDemand::must_wait_for_clear(&pools.0, &Command::Clear { target: LARGE }));
        let first = round * 2 * CODES;
        pools.insert(LARGE, first..first + 20);
        assert_eq!(pools.seen_of(0..first + CODES), (20, REDEEMED));
        while pools.0.can_advance() {
            pools.apply(Command::Advance { buckets_max: 1_000 });
        }
        assert!(!WaitingDemand::must_wait_for_clear(&pools.0, &Command::Clear { target: LARGE }));
        pools.insert(LARGE, first + 20..first + CODES / 2);
        assert_eq!(pools.seen_of(0..first + CODES), (CODES / 2, REDEEMED));
        assert_eq!(pools.large().describe(Timestamp(0)).stats.segments.len(), 1);
    }
}

/// Campaigns that have forgotten all their users free the slots bit by bit, and none has to wait until another one is done.
#[test]
fn large_campaigns_forget_incrementally_in_turns() {
    const WORDS_AN_ENTRY: u64 = 1_024;
    let mut pools = Pools(State::new());
    let forget = Forget::new(60, 4).unwrap();
    let campaigns = [1, 2].map(|id| Target(FilterId(id)));
    for target in campaigns {
        let layout = Layout::forgetting(CODES, 0.001, Growth::Auto, forget.steps()).unwrap();
        let sizing = Sizing::ErrorRate(0.001);
        let spec = Spec { mode: Mode::Compact, sizing, forget: Some(forget), ..strict(CODES) };
        pools.create_as(target, Kind::Campaign, layout, spec);
        pools.insert(target, 0..CODES);
    }
    let later = Timestamp(200_000);
    let of = |changes: &HashMap<SectionId, u64>| changes.values().copied().collect::<Vec<_>>();
    let before = of(&pools.changes());
    let (mut commands, mut most) = (0, 0);
    while commands == 0 || pools.0.can_advance() {
        most = most.max(pools.measure_at(later, Command::Advance { buckets_max: 0 }));
        commands += 1;
        if commands == 2 {
            let moved = pools.changes().values().filter(|changes| !before.contains(changes)).count();
            assert_eq!(moved, campaigns.len(), "each had a turn");
        }
    }
    // A word has parts of a few slots, and a slot may span two words.
    assert!(most <= 8 * WORDS_AN_ENTRY, "one command changed {most}");
    assert!(commands > 10, "{commands} commands did all");
    assert_eq!(pools.0.sizes().users_forgotten, 2 * CODES);
    // Each added user makes its campaign free some more.
    pools.insert(campaigns[0], CODES..CODES + 10);
}

/// Forgotten redemptions of an open pool don't affect the initial step of a snapshot.
#[test]
fn snapshot_start_cost_ignores_forgotten_items() {
    let mut pools = Pools(State::new());
    let settings = Settings { redemptions_retention_seconds: 1, ..Settings::default() };
    pools.apply(Command::Configure(settings));
    pools.create_as(
        LARGE,
        Kind::Coupon,
        Layout::strict(CODES).unwrap(),
        Spec { stock: Some(CODES), ..strict(CODES) },
    );
    let before = pools.0.begin_snapshot().head.len();
    let id = |number: u64| RedemptionId(u128::from(number).to_be_bytes());
    for number in 0..4_000 {
        pools.apply(Command::Redeem {
            target: LARGE,
            digest: code(number),
            redemption: id(number),
            reference: Reference::new("order").unwrap(),
            hold_seconds: 0,
        });
    }
    // Every second ordinal is free, and all others are taken for good.
    for number in (0..4_000).step_by(2) {
        pools.apply(Command::Cancel { target: LARGE, redemption: id(number) });
    }
    while pools.0.sizes().redemptions > 0 {
        pools.apply_at(Timestamp(10_000), small_command());
    }
    let after = pools.0.begin_snapshot().head.len();
    assert!(after < before + 100, "{before} bytes, and then {after}");
}

/// An explicit command does the requested amount.
#[test]
fn advance_is_bounded() {
    let mut pools = Pools::new();
    pools.apply(Command::Clear { target: LARGE });
    let mut commands = 0;
    while pools.0.can_advance() {
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
    let sizes = (pools.0.sizes().tables_bytes, pools.0.sizes().records_bytes);
    let (name, kind) = (pools.large().name.clone(), Kind::Coupon);
    assert_eq!(pools.apply(Command::Delete { kind, name: name.clone() }), Outcome::Deleted);
    assert!(pools.0.view().find(kind, &name).is_none());
    // The command has freed nothing.
    let left = (pools.0.sizes().tables_bytes, pools.0.sizes().records_bytes);
    let discarded = (pools.0.sizes().discarded_tables_bytes, pools.0.sizes().discarded_records_bytes);
    assert!(left.0 < sizes.0 / 10 && left.1 < sizes.1 / 10);
    assert!(left.1 + discarded.1 >= sizes.1, "{left:?} and {discarded:?} of {sizes:?}");
    let mut steps = 0;
    while pools.0.free_discarded(1_000) {
        steps += 1;
    }
    assert!(steps as u64 >= 6 * REDEEMED / 1_000, "{steps} steps");
    assert!(!pools.0.has_discarded());
    assert_eq!(pools.0.sizes().discarded_records_bytes, 0);
}

/// An earlier snapshot retains deleted tables, and the account continues to count them.
#[test]
fn memory_pinned_by_snapshot_is_counted() {
    let mut pools = Pools::new();
    let sizes = (pools.0.sizes().tables_bytes, pools.0.sizes().records_bytes);
    let snapshot = pools.0.begin_snapshot();
    let name = pools.large().name.clone();
    pools.apply(Command::Delete { kind: Kind::Coupon, name });
    while pools.0.free_discarded(1_000) {}
    assert!(pools.0.sizes().tables_bytes + pools.0.sizes().discarded_tables_bytes >= sizes.0);
    assert!(pools.0.sizes().records_bytes + pools.0.sizes().discarded_records_bytes >= sizes.1);
    drop(snapshot);
    while pools.0.free_discarded(1_000) {}
    assert_eq!((pools.0.sizes().discarded_tables_bytes, pools.0.sizes().discarded_records_bytes), (0, 0));
}

#[test]
fn large_pool_is_replaced_immediately() {
    let mut pools = Pools::new();
    let import = ImportId::new("nightly").unwrap();
    pools.apply(Command::ImportBegin {
        target: LARGE,
        import: import.clone(),
        mode: ImportMode::Replace,
        if_absent: false,
        guards: Guards::default(),
        owner: KeyName::new(""),
        is_named: true,
    });
    for from in (0..CODES).step_by(10_000) {
        pools.apply(Command::ImportLines {
            target: LARGE,
            import: import.clone(),
            digests: Digests((from + CODES..from + CODES + 10_000).map(code).collect()),
            lines: 10_000,
            rejected: 0,
            errors: Vec::new(),
            chain: from,
        });
    }
    let ending = Ending::Whole { upload: UploadDigest { bytes: 1, hash: 1 }, warnings: Vec::new() };
    let end = Command::ImportEnd { target: LARGE, import, ending, entries_max: 100 };
    let (mut ends, mut most) = (0, 0);
    while pools.large().describe(Timestamp(0)).stats.codes.unwrap().available != CODES {
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
