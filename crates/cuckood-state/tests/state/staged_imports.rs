//! Imports with `mode=replace` and concurrent writes: accepted writes survive the swap, rejected ones have no effect, used codes stay used,
//! and no command pays for everything.

use cuckood_filter::Digest;
use cuckood_state::domain::{
    Command, Digests, Ending, Fraction, Guards, ImportEnd, ImportId, ImportMode, ImportState,
    ItemOutcome, Kind, Outcome, RedemptionId, RedemptionStatus, Refusal, Target, Tripped,
};
use cuckood_state::testing::commands::{
    NewFilter, code, import_begin, import_end, import_lines, insert, remove, replace, target,
};
use cuckood_state::testing::machine::Machine;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const TARGET: Target = target(1);

fn begin(import: &str, mode: ImportMode) -> Command {
    guarded(import, mode, Guards::default())
}

fn guarded(import: &str, mode: ImportMode, guards: Guards) -> Command {
    import_begin(TARGET, import, mode, guards)
}

fn lines(import: &str, numbers: impl IntoIterator<Item = u64>) -> Command {
    import_lines(TARGET, import, numbers)
}

fn end(import: &str, entries_max: u32) -> Command {
    import_end(TARGET, import, entries_max)
}

fn compact(capacity: u64) -> NewFilter {
    NewFilter {
        kind: Kind::Coupon,
        ..NewFilter::campaign(capacity, 0.001)
    }
}

/// One coupon and its commands.
struct Coupon(Machine);

impl Coupon {
    fn new(filter: &NewFilter) -> Self {
        let mut machine = Machine::new();
        machine.create(TARGET, filter);
        Self(machine)
    }

    fn strict(capacity: u64) -> Self {
        Self::new(&NewFilter::coupon(capacity))
    }

    fn apply(&mut self, command: Command) -> Outcome {
        self.0.apply(command)
    }

    fn insert(&mut self, numbers: impl IntoIterator<Item = u64>) -> Outcome {
        self.apply(insert(TARGET, numbers))
    }

    fn remove(&mut self, numbers: impl IntoIterator<Item = u64>) -> Outcome {
        self.apply(remove(TARGET, numbers))
    }

    /// Redeems a code, or holds it.
    fn redeem(&mut self, number: u64, hold_seconds: u64) -> Option<RedemptionId> {
        match self.0.redeem(
            TARGET,
            number,
            &format!("order-{}", self.0.redemptions),
            hold_seconds,
        ) {
            Outcome::Redeemed(redemption) => Some(redemption.id),
            _ => None,
        }
    }

    fn cancel(&mut self, redemption: RedemptionId) {
        let cancelled = self.apply(Command::Cancel {
            target: TARGET,
            redemption,
        });
        assert!(
            matches!(cancelled, Outcome::Settled(r) if r.status == RedemptionStatus::Cancelled)
        );
    }

    /// Ends an import in as few steps as possible; returns their number.
    fn end(&mut self, import: &str, entries_max: u32) -> u32 {
        let mut steps = 1;
        while self.0.import(end(import, entries_max)) == ImportState::Running {
            steps += 1;
            assert!(steps < 10_000, "it never ends");
        }
        steps
    }

    fn records_bytes(&self) -> u64 {
        self.0.state.sizes().records_bytes
    }

    fn tables_bytes(&self) -> u64 {
        self.0.state.sizes().tables_bytes
    }

    fn count(&self, number: u64) -> u32 {
        self.0.filter(TARGET).count(code(number), self.0.now)
    }

    fn present(&self, numbers: std::ops::Range<u64>) -> Vec<u64> {
        let coupon = self.0.filter(TARGET);
        let now = self.0.now;
        numbers
            .filter(|&number| coupon.count(code(number), now) > 0)
            .collect()
    }

    fn valid(&self, number: u64) -> bool {
        self.0.filter(TARGET).contains(code(number), self.0.now)
    }
}

/// A further import into the same filter is a write like others.
#[test]
fn concurrent_append_survives_swap() {
    for filter in [NewFilter::coupon(200), compact(200)] {
        let mut coupon = Coupon::new(&filter);
        coupon.insert([1, 2, 3]);
        coupon.apply(begin("nightly", ImportMode::Replace));
        coupon.apply(begin("more", ImportMode::Append));
        coupon.apply(lines("more", [2, 40, 41]));
        coupon.apply(lines("nightly", [1, 50]));
        assert_eq!(coupon.0.import(end("more", 0)), ImportState::Done);
        coupon.end("nightly", 100);
        assert_eq!(coupon.present(0..60), [1, 2, 40, 41, 50]);
    }
}

/// A response `replaced` stays true, though the upload doesn't contain the replaced item.
#[test]
fn replaced_item_survives_swap() {
    for filter in [NewFilter::coupon(200), compact(200)] {
        let mut coupon = Coupon::new(&filter);
        coupon.insert([1, 2]);
        coupon.apply(begin("nightly", ImportMode::Replace));
        coupon.apply(replace(TARGET, [1, 2, 7], [11, 2, 17]));
        coupon.apply(lines("nightly", [1, 5]));
        coupon.end("nightly", 100);
        assert_eq!(coupon.present(0..20), [2, 5, 11], "{filter:?}");
    }
}

/// No single command pays for the transferred codes or the repeated changes, and while the import catches up, new changes arrive slower
/// than old ones are repeated.
#[test]
fn swap_is_spread_over_commands() {
    const STEP: u32 = 500;
    const STEP_BYTES: u64 = STEP as u64 * 16;
    let mut coupon = Coupon::strict(20_000);
    coupon.insert(0..9_000);
    coupon.apply(begin("nightly", ImportMode::Replace));
    let records_bytes = coupon.records_bytes();
    coupon.apply(lines("nightly", 5_000..10_000));
    for from in (10_000..18_000).step_by(1_000) {
        coupon.insert(from..from + 1_000);
    }
    assert_eq!(coupon.records_bytes(), records_bytes + 8_000 * 16);
    let mut steps = 0;
    let mut kept = coupon.records_bytes();
    while coupon.0.import(end("nightly", STEP)) == ImportState::Running {
        assert!(kept - coupon.records_bytes() <= STEP_BYTES);
        coupon.insert(20_000 + 10 * steps..20_010 + 10 * steps);
        kept = coupon.records_bytes();
        steps += 1;
    }
    assert!(steps >= 8_000 / u64::from(STEP) - 1, "{steps} steps");
    assert_eq!(coupon.records_bytes(), records_bytes);
    assert_eq!(
        coupon.present(0..20_000),
        (5_000..18_000).collect::<Vec<_>>()
    );
    assert_eq!(coupon.present(20_000..30_000).len() as u64, 10 * steps);

    // Used codes, this many at a time.
    let mut coupon = Coupon::strict(20_000);
    coupon.insert(0..1_000);
    (0..1_000).for_each(|number| assert!(coupon.redeem(number, number % 2 * 60).is_some()));
    coupon.apply(begin("nightly", ImportMode::Replace));
    let steps = coupon.end("nightly", 50);
    assert!(steps >= 1_000 / (50 + 64), "{steps} steps");
    assert_eq!(coupon.present(0..2_000).len(), 1_000);
    assert!((0..1_000).all(|number| coupon.redeem(number, 0).is_none()));
}

/// In a nearly full table, inserts move items all the time: a code that moves to a part the import has already read is not lost.
#[test]
fn moved_used_codes_survive_swap() {
    let mut coupon = Coupon::strict(4_000);
    coupon.insert(0..3_900);
    (0..700).for_each(|number| assert!(coupon.redeem(number, number % 2 * 60).is_some()));
    coupon.apply(begin("nightly", ImportMode::Replace));
    coupon.apply(lines("nightly", [9_000]));
    let mut from = 10_000;
    while coupon.0.import(end("nightly", 2)) == ImportState::Running {
        coupon.remove(from - 10..from);
        coupon.insert(from..from + 10);
        from += 10;
        assert!(from < 100_000, "it never ends");
    }
    assert!((0..700).all(|number| coupon.count(number) == 1 && !coupon.valid(number)));
    assert_eq!(coupon.present(700..100_000).first(), Some(&9_000));
}

/// Writes are not rejected because of an import; the import fails, and says why.
#[test]
fn import_fails_if_repeat_queue_overflows() {
    let mut coupon = Coupon::new(&compact(100));
    coupon.insert(0..10);
    let tables_bytes = coupon.tables_bytes();
    coupon.apply(begin("nightly", ImportMode::Replace));
    // With the record of the import, which stays.
    let records_bytes = coupon.records_bytes();
    coupon.apply(lines("nightly", 20..30));
    let mut most = 0;
    // Strangers, who are not there.
    for _ in 0..(2 << 20) / 10_000 + 1 {
        coupon.apply(Command::Remove {
            target: TARGET,
            digests: Digests((0..10_000).map(|number| Digest(number << 40)).collect()),
            all: false,
        });
        most = most.max(coupon.records_bytes());
    }
    assert!(most > records_bytes + (30 << 20) && most <= records_bytes + (32 << 20));
    let overtaken = Outcome::Refused(Refusal::ImportOvertaken);
    assert_eq!(coupon.apply(lines("nightly", 30..40)), overtaken);
    assert_eq!(coupon.apply(end("nightly", 100)), overtaken);
    let sizes = (coupon.tables_bytes(), coupon.records_bytes());
    assert_eq!(
        sizes,
        (tables_bytes, records_bytes),
        "nothing is left of it"
    );
    assert_eq!(coupon.present(0..40), (0..10).collect::<Vec<_>>());
    // The same upload again.
    coupon.apply(begin("nightly", ImportMode::Replace));
    coupon.apply(lines("nightly", 20..30));
    coupon.end("nightly", 100);
    assert_eq!(coupon.present(0..40), (20..30).collect::<Vec<_>>());
}

/// A coupon in which this version of entries is enabled.
fn at_version(version: u16) -> Coupon {
    let mut coupon = Coupon::strict(200);
    assert_eq!(coupon.apply(Command::Enable { version }), Outcome::Enabled);
    coupon
}

fn broken_off(import: &str) -> Command {
    let import = ImportId::new(import).unwrap();
    Command::ImportEnd(ImportEnd {
        target: TARGET,
        import,
        ending: Ending::BrokenOff,
        entries_max: 1,
    })
}

/// Nodes of 0.1.0 don't store it, so it has no effect before the version is enabled.
#[test]
fn clear_overtakes_imports_from_version_2_on() {
    for version in [1, 2] {
        let mut coupon = at_version(version);
        for import in ["done", "broken", "empty"] {
            coupon.apply(begin(import, ImportMode::Append));
        }
        coupon.apply(lines("done", 0..10));
        coupon.apply(end("done", 1));
        coupon.apply(lines("broken", 10..20));
        coupon.apply(broken_off("broken"));
        coupon.apply(broken_off("empty"));
        coupon.apply(begin("restarted", ImportMode::Replace));
        coupon.apply(lines("restarted", 0..10));
        // Its tables are emptied with its later items, so it counts although it has no items yet.
        coupon.apply(begin("staged", ImportMode::Replace));
        coupon.apply(Command::Clear { target: TARGET });
        coupon.apply(lines("staged", 30..40));
        coupon.end("staged", 100);
        coupon.0.restart();
        coupon.apply(Command::Enable { version: 2 });
        let overtaken = Outcome::Refused(Refusal::ImportOvertaken);
        for (import, mode, is_overtaken) in [
            ("done", ImportMode::Append, true),
            ("broken", ImportMode::Append, true),
            ("staged", ImportMode::Replace, true),
            ("empty", ImportMode::Append, false),
            ("restarted", ImportMode::Replace, false),
        ] {
            let outcome = coupon.apply(begin(import, mode));
            assert_eq!(
                outcome == overtaken,
                is_overtaken && version == 2,
                "{import}, version {version}"
            );
        }
    }
}

#[test]
fn replacement_overtakes_earlier_imports_only() {
    let mut coupon = at_version(2);
    for import in ["done", "broken"] {
        coupon.apply(begin(import, ImportMode::Append));
        coupon.apply(lines(import, 0..10));
    }
    coupon.apply(end("done", 1));
    coupon.apply(broken_off("broken"));
    coupon.apply(begin("nightly", ImportMode::Replace));
    coupon.0.pass_seconds(1);
    coupon.apply(begin("during", ImportMode::Append));
    coupon.apply(lines("during", 20..30));
    coupon.apply(begin("still", ImportMode::Append));
    coupon.apply(lines("still", 30..35));
    coupon.apply(end("during", 1));
    coupon.apply(lines("nightly", 40..50));
    coupon.end("nightly", 100);
    coupon.0.restart();
    let overtaken = Outcome::Refused(Refusal::ImportOvertaken);
    for import in ["done", "broken"] {
        assert_eq!(
            coupon.apply(begin(import, ImportMode::Append)),
            overtaken,
            "{import}"
        );
    }
    assert_eq!(
        coupon.0.import(begin("during", ImportMode::Append)),
        ImportState::Done
    );
    assert_eq!(
        coupon.0.import(begin("still", ImportMode::Append)),
        ImportState::Running
    );
    assert_eq!(
        coupon.0.import(begin("nightly", ImportMode::Replace)),
        ImportState::Done
    );
    assert_eq!(
        coupon.present(0..60),
        (20..35).chain(40..50).collect::<Vec<_>>()
    );
}

#[test]
fn newer_replacement_supersedes_older() {
    let mut coupon = Coupon::strict(100);
    coupon.apply(begin("first", ImportMode::Replace));
    coupon.apply(lines("first", 0..10));
    coupon.apply(begin("second", ImportMode::Replace));
    let overtaken = Outcome::Refused(Refusal::ImportOvertaken);
    assert_eq!(coupon.apply(lines("first", 10..20)), overtaken);
    assert_eq!(coupon.apply(end("first", 100)), overtaken);
    coupon.apply(lines("second", 30..40));
    coupon.end("second", 100);
    assert_eq!(coupon.present(0..50), (30..40).collect::<Vec<_>>());
    // A restarted one overtakes no other.
    coupon.apply(begin("first", ImportMode::Replace));
    coupon.apply(begin("first", ImportMode::Replace));
    coupon.apply(lines("first", 0..10));
    coupon.end("first", 100);
    assert_eq!(coupon.present(0..50), (0..10).collect::<Vec<_>>());
}

/// The guard compares both tables' content at the swap, whatever was written during the upload.
#[test]
fn guards_compare_with_table_at_swap() {
    let guards = |max_shrink| Guards {
        max_shrink: Fraction::new(max_shrink).ok(),
        ..Guards::default()
    };
    for (removed, is_done) in [(0, false), (5, true)] {
        let mut coupon = Coupon::strict(200);
        coupon.insert(0..10);
        let tables_bytes = coupon.tables_bytes();
        coupon.apply(guarded("nightly", ImportMode::Replace, guards(0.2)));
        coupon.apply(lines("nightly", 100..105));
        // Concurrent adds are in both.
        coupon.insert(50..55);
        coupon.remove(0..removed);
        coupon.redeem(50, 0).unwrap();
        let ended = loop {
            match coupon.apply(end("nightly", 1)) {
                Outcome::Import(import) if import.state == ImportState::Running => {}
                ended => break ended,
            }
        };
        if is_done {
            assert!(matches!(ended, Outcome::Import(import) if import.state == ImportState::Done));
            assert_eq!(
                coupon.present(0..200),
                [50, 51, 52, 53, 54, 100, 101, 102, 103, 104]
            );
            continue;
        }
        let max_shrink = Fraction::new(0.2).unwrap();
        let refused = Outcome::Refused(Refusal::ImportGuarded(Tripped::Shrunk {
            before: 14,
            after: 9,
            max_shrink,
        }));
        assert_eq!(ended, refused);
        assert_eq!(coupon.apply(end("nightly", 1)), refused);
        assert_eq!(coupon.apply(lines("nightly", 110..115)), refused);
        assert_eq!(coupon.tables_bytes(), tables_bytes, "nothing is left of it");
        assert_eq!(coupon.present(0..200).len(), 15);
        // A broken upload keeps to no guard.
        coupon.apply(guarded("nightly", ImportMode::Replace, guards(0.0)));
        let import = ImportId::new("nightly").unwrap();
        let ending = Ending::BrokenOff;
        let broken = Command::ImportEnd(ImportEnd {
            target: TARGET,
            import,
            ending,
            entries_max: 0,
        });
        assert_eq!(coupon.0.import(broken), ImportState::Interrupted);
    }
}

/// An operation on a few codes or on an import, or a restart.
#[derive(Clone, Copy, Debug)]
enum Step {
    Line,
    Append,
    Insert,
    Remove,
    Replace,
    Redeem,
    Cancel,
    Clear,
    Restart,
    End,
}

fn steps() -> impl Strategy<Value = Vec<(Step, u64, u64)>> {
    let step = prop_oneof![
        6 => Just(Step::Line),
        2 => Just(Step::Append),
        4 => Just(Step::Insert),
        4 => Just(Step::Remove),
        3 => Just(Step::Replace),
        4 => Just(Step::Redeem),
        3 => Just(Step::Cancel),
        1 => Just(Step::Clear),
        1 => Just(Step::Restart),
    ];
    let before = proptest::collection::vec((step.clone(), 0..60u64, 0..60u64), 0..60);
    let after = prop_oneof![3 => step, 1 => Just(Step::End)];
    let after = proptest::collection::vec((after, 0..60u64, 0..60u64), 0..60);
    (before, after).prop_map(|(mut steps, after)| {
        steps.push((Step::End, 0, 0));
        steps.extend(after);
        steps
    })
}

/// The expected result of the upload and the accepted changes, in order.
#[derive(Default)]
struct Expected {
    uploaded: BTreeSet<u64>,
    cleared: bool,
    /// Whether an item must be present, by the last accepted change.
    changed: BTreeMap<u64, bool>,
    /// Codes that were held or used once the upload was whole: they may be there.
    used: BTreeSet<u64>,
}

impl Expected {
    fn note(&mut self, numbers: &[u64], outcomes: &[ItemOutcome], there: bool) {
        for (&number, &outcome) in numbers.iter().zip(outcomes) {
            if outcome != ItemOutcome::AlreadyRedeemed {
                self.changed.insert(number, there);
            }
        }
    }

    fn has(&self, number: u64) -> bool {
        let uploaded = !self.cleared && self.uploaded.contains(&number);
        self.changed.get(&number).copied().unwrap_or(uploaded)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Used codes are as they were. Else an item is there or not by the last change that was accepted; if there was none, by
    /// the upload.
    #[test]
    fn accepted_writes_survive_swap(steps in steps(), entries_max in 1..12u32) {
        let mut coupon = Coupon::strict(40);
        coupon.insert((0..60).filter(|number| number % 3 > 0));
        let mut standing: BTreeMap<u64, RedemptionId> =
            (0..60).step_by(7).filter_map(|number| Some((number, coupon.redeem(number, number % 2 * 60)?))).collect();
        coupon.apply(begin("nightly", ImportMode::Replace));
        coupon.apply(begin("more", ImportMode::Append));
        let mut expected = Expected::default();
        let mut ended = false;
        let mut done = false;
        for (step, a, b) in steps {
            let numbers: Vec<u64> = (a..a + b % 6 + 1).map(|number| number % 60).collect();
            match step {
                Step::Line if !ended => {
                    coupon.apply(lines("nightly", numbers.clone()));
                    expected.uploaded.extend(numbers);
                }
                Step::Insert => {
                    if let Outcome::Inserted(inserted) = coupon.insert(numbers.clone()) {
                        expected.note(&numbers, &inserted.outcomes, true);
                    }
                }
                Step::Append => {
                    // Used codes stay used, whatever happens to them.
                    let unused = numbers.iter().copied().filter(|number| !standing.contains_key(number));
                    let numbers: Vec<u64> = unused.collect();
                    coupon.apply(lines("more", numbers.clone()));
                    expected.changed.extend(numbers.into_iter().map(|number| (number, true)));
                }
                Step::Remove => {
                    if let Outcome::Removed(removed) = coupon.remove(numbers.clone()) {
                        expected.note(&numbers, &removed.outcomes, false);
                        let gone = |number: &u64| numbers.contains(number) && coupon.count(*number) == 0;
                        standing.retain(|number, _| !gone(number));
                    }
                }
                Step::Replace => {
                    if coupon.apply(replace(TARGET, [a], [b])) == Outcome::Replaced(vec![ItemOutcome::Replaced]) {
                        if a != b {
                            expected.changed.insert(a, false);
                            standing.remove(&a);
                        }
                        expected.changed.insert(b, true);
                    }
                }
                Step::Redeem => {
                    if let Some(redemption) = coupon.redeem(a, b % 2 * 60) {
                        standing.insert(a, redemption);
                    }
                }
                Step::Cancel => {
                    if let Some(redemption) = standing.remove(&a) {
                        coupon.cancel(redemption);
                    }
                }
                Step::Clear => {
                    coupon.apply(Command::Clear { target: TARGET });
                    expected.cleared = true;
                    expected.changed.clear();
                }
                Step::Restart => coupon.0.restart(),
                Step::End => {
                    ended = true;
                    done = coupon.0.import(end("nightly", entries_max)) != ImportState::Running;
                    if done {
                        break;
                    }
                }
                Step::Line => {}
            }
            if ended {
                expected.used.extend(standing.keys());
            }
        }
        if !done {
            expected.used.extend(standing.keys());
            coupon.end("nightly", entries_max);
        }
        for number in 0..60 {
            let there = coupon.count(number) > 0;
            let used = standing.contains_key(&number);
            let may_be = expected.used.contains(&number) && !expected.changed.contains_key(&number);
            prop_assert!(there == (used || expected.has(number)) || may_be, "code {}: {}", number, there);
            prop_assert_eq!(coupon.valid(number), there && !used, "code {}", number);
        }
    }
}

/// A code that is used when the upload completes stays, though it is cancelled while the replacement catches up, at any point.
#[test]
fn used_code_stays_when_cancelled_while_catching_up() {
    const CODES: u64 = 400;
    // Of the held codes, one is in the upload, two are not; another one is used and cancelled while it catches up.
    let outcome = |steps: u32, hold_seconds: u64| {
        let mut coupon = Coupon::strict(CODES);
        coupon.insert(0..CODES);
        let early = coupon.redeem(3, hold_seconds).unwrap();
        let used: Vec<_> = [0, 200, 399]
            .map(|code| coupon.redeem(code, hold_seconds).unwrap())
            .to_vec();
        coupon.apply(begin("nightly", ImportMode::Replace));
        coupon.apply(lines("nightly", 100..201));
        // Cancelled before the upload is whole, it goes like any other code that the upload lacks.
        coupon.cancel(early);
        let mut state = coupon.0.import(end("nightly", 1));
        for _ in 0..steps {
            if state == ImportState::Running {
                state = coupon.0.import(end("nightly", 1));
            }
        }
        let is_late = state != ImportState::Running;
        let between = (!is_late).then(|| coupon.redeem(5, hold_seconds).unwrap());
        used.into_iter()
            .chain(between)
            .for_each(|redemption| coupon.cancel(redemption));
        if !is_late {
            coupon.end("nightly", 7);
        }
        let valid: Vec<u64> = (0..CODES).filter(|code| coupon.valid(*code)).collect();
        (is_late, valid)
    };
    for hold_seconds in [0, 60] {
        let mut expected: Vec<u64> = [0, 5].into_iter().chain(100..201).chain([399]).collect();
        let mut steps = 0;
        loop {
            let (is_late, valid) = outcome(steps, hold_seconds);
            if is_late {
                // Code 5 was not used before the swap, and the swap has removed it.
                expected.retain(|code| *code != 5);
            }
            assert_eq!(valid, expected, "after {steps} steps");
            if is_late {
                break;
            }
            steps += 1;
        }
        assert!(steps > 4, "{steps} steps");
    }
}
