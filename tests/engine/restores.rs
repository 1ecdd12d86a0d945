//! After any history, a snapshot restores the state: logs of all commands, snapshots taken in pieces between them and aborted sometimes,
//! restarts. A restored state equals the live one byte for byte, and stays equal. The log of events has each event once, in order, even if
//! the end of the log is lost.
//!
//! The snapshots are those of the engine, including the sections it reuses from the previous one, in a store on disk. `SOAK_SECONDS` sets
//! the duration; the default is a few hundred random logs.

use crate::life::Life;
use cuckood_filter::StateCounts;
use cuckood_log::journal::Durability;
use cuckood_log::store::Store;
use cuckood_log::testing::stores::options;
use cuckood_state::State;
use cuckood_state::domain::{Command, Entry, Guards, ImportMode, ImportState, Timestamp};
use cuckood_state::testing::commands::{import_begin, import_end, insert, target};
use cuckood_state::testing::machine::{Snapshot, filters};
use cuckood_state::testing::random_log::{EntryNumbers, RandomLog};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestError, TestRunner};
use std::sync::Arc;
use std::time::{Duration, Instant};

fn assert_equal(restored: &mut State, live: &mut State) {
    assert_eq!(restored.sizes().tables_bytes, live.sizes().tables_bytes);
    assert_eq!(restored.sizes().records_bytes, live.sizes().records_bytes);
    assert_eq!(restored.sizes().redemptions, live.sizes().redemptions);
    assert_eq!(
        (restored.sizes().codes, codes(restored)),
        (live.sizes().codes, codes(live))
    );
    assert_imports_have_filters(restored);
    assert_eq!(
        restored.sizes().idempotency_records,
        live.sizes().idempotency_records
    );
    assert!(
        Snapshot::of(restored) == Snapshot::of(live),
        "the snapshots differ"
    );
}

/// No import runs into a filter that is gone. The state must have been published.
fn assert_imports_have_filters(state: &State) {
    let view = state.view();
    for import in view
        .imports()
        .iter()
        .filter(|import| import.state == ImportState::Running)
    {
        let filter = view.find(import.kind, &import.name).map(|view| view.id);
        assert_eq!(filter, Some(import.filter), "{import:?}");
    }
}

/// Codes of all strict coupons, counted one coupon at a time.
fn codes(state: &mut State) -> StateCounts {
    state.publish();
    let mut sum = StateCounts::default();
    filters(state)
        .iter()
        .filter_map(|it| it.describe(Timestamp(0)).stats.codes.states)
        .for_each(|codes| sum += codes);
    sum
}

/// Frees some of what the state has discarded. The moment makes no difference.
fn apply(life: &mut Life, entry: Entry) {
    life.apply(entry);
    life.state.free_discarded(life.log.len() as u64 % 40);
}

/// Continues the running snapshot; once it is complete, it is restored and compared.
fn write_snapshot(life: &mut Life, budget: u64) {
    if life.write_snapshot(budget) {
        assert_equal(&mut life.restored(), &mut life.state);
    }
}

fn snapshot(life: &mut Life) {
    life.begin_snapshot();
    while life.running.is_some() {
        write_snapshot(life, u64::MAX / 2);
    }
}

/// Restarts, and compares the state with the one before.
fn restart(life: &mut Life) {
    let mut restored = life.restored();
    assert_equal(&mut restored, &mut life.state);
    lose(life, 0);
    assert_equal(&mut restored, &mut life.state);
}

/// Restarts after the last entries are lost, as they may be if they were not synced.
fn lose(life: &mut Life, entries: usize) {
    life.restart(entries);
    let stored = life.stored();
    assert_eq!(life.events.figures().kept, stored.len() as u64);
    let reported = life
        .reported
        .iter()
        .map(|(number, _, bytes)| (*number, bytes.clone()));
    assert!(reported.eq(stored), "events are lost, or there twice");
}

fn store_in(dir: &tempfile::TempDir) -> Arc<Store> {
    // Other tests cover the disk.
    Arc::new(Store::open(dir.path(), &options(Durability::Flush)).unwrap())
}

fn run(store: &Arc<Store>, steps: &[(u8, EntryNumbers)]) {
    let mut life = Life::new(store.clone());
    let mut log = RandomLog::new();
    for entry in log.beginning() {
        apply(&mut life, entry);
    }
    for &(step, numbers) in steps {
        match step {
            0..16 if life.running.is_none() => life.begin_snapshot(),
            0..80 => write_snapshot(&mut life, u64::from(step) * 400),
            80..83 => life.running = None,
            83..86 => restart(&mut life),
            86 => {
                lose(&mut life, usize::from(numbers.3 % 40));
                log.go_back_to(life.state.applied());
            }
            87..90 => log.pass(3_600_000 * u64::from(numbers.3 % 50)),
            _ => {}
        }
        let mut entry = log.next(numbers);
        // The entry that enables its version may be lost. Then no log has it.
        if entry.proposal.command.version() > life.state.format() {
            entry.proposal.command = Command::Advance { buckets_max: 0 };
        }
        apply(&mut life, entry);
    }
    snapshot(&mut life);
    lose(&mut life, 0);
    life.latest = None;
    assert_equal(&mut life.restored(), &mut life.state);
    lose(&mut life, 0);
    let mut sweep = store.sweep().unwrap();
    while sweep.step(store, 4 << 20).unwrap() {}
}

/// The general one: random logs of all commands.
#[test]
fn restored_state_equals_live_state() {
    let soak = std::env::var("SOAK_SECONDS")
        .ok()
        .map(|seconds| seconds.parse().unwrap());
    let until = Instant::now() + Duration::from_secs(soak.unwrap_or(0));
    let steps = proptest::collection::vec((any::<u8>(), any::<EntryNumbers>()), 1..400);
    loop {
        let dir = tempfile::tempdir().unwrap();
        let store = store_in(&dir);
        let config = Config {
            cases: 200,
            failure_persistence: None,
            ..Config::default()
        };
        match TestRunner::new(config).run(&steps, |steps| {
            run(&store, &steps);
            Ok(())
        }) {
            Ok(()) => {}
            Err(TestError::Fail(reason, steps)) => panic!("{reason}\nafter {steps:?}"),
            Err(error) => panic!("{error}"),
        }
        if Instant::now() >= until {
            break;
        }
    }
}

/// Two snapshots, each inside another import into one filter, after the same number of changes.
#[test]
fn import_section_is_never_reused() {
    let dir = tempfile::tempdir().unwrap();
    let store = store_in(&dir);
    let mut life = Life::new(store);
    let now = Timestamp(1_000);
    for entry in RandomLog::new().beginning() {
        life.apply(entry);
    }
    let target = target(1);
    for (import, item) in [("first", 1), ("second", 2)] {
        life.submit(
            now,
            import_begin(target, import, ImportMode::Replace, Guards::default()),
        );
        life.submit(now, insert(target, [item]));
        snapshot(&mut life);
        life.submit(now, import_end(target, import, 9));
        restart(&mut life);
    }
}
