//! A log with an entry that an operator has skipped.

use cuckood::engine::recovery::recover;
use cuckood_log::journal::{LocalJournal, LocalOptions};
use cuckood_log::store::{Store, StoreOptions};
use cuckood_state::State;
use cuckood_state::domain::{Entry, Proposal, Seq, Timestamp};
use cuckood_state::testing::commands::{NewFilter, insert, target};
use cuckood_state::testing::machine::Snapshot;
use std::sync::Arc;

/// A directory whose log has one entry that `cuckood repair skip` has marked.
#[test]
fn skipped_entry_is_deterministic() {
    let dir = tempfile::tempdir().unwrap();
    let options = StoreOptions {
        ballast_bytes: 0,
        free_space_min_bytes: 0,
        ..StoreOptions::default()
    };
    let store = Arc::new(Store::open(dir.path(), &options).unwrap());
    let mut journal = LocalJournal::open(store.clone(), LocalOptions::default()).unwrap();
    let filter = target(1);
    let create = NewFilter::coupon(100).create(filter);
    let commands = [create]
        .into_iter()
        .chain((1..20).map(|number| insert(filter, [number])));
    let proposals = commands.map(|command| Proposal::new(Timestamp(1_000_000), command));
    let entries: Vec<Entry> = journal
        .append(proposals.collect())
        .unwrap()
        .into_iter()
        .map(|committed| committed.entry)
        .collect();
    let skipped = Seq(8);
    store.mark_skipped(skipped, Timestamp(7)).unwrap();
    let mut expected = State::default();
    for entry in &entries {
        match entry.seq == skipped {
            true => expected.skip(entry),
            false => drop(expected.apply(entry.clone())),
        }
    }
    let without = entries.iter().filter(|entry| entry.seq != skipped).count();
    assert_eq!(without + 1, entries.len());
    drop(journal);
    drop(store);
    for start in 0..2 {
        let store = Arc::new(Store::open(dir.path(), &options).unwrap());
        assert_eq!(
            store
                .skipped_entries()
                .unwrap()
                .into_iter()
                .collect::<Vec<_>>(),
            [(skipped, Timestamp(7))]
        );
        let mut journal = LocalJournal::open(store.clone(), LocalOptions::default()).unwrap();
        let mut state = recover(&store, &mut journal, &mut |_| ()).unwrap().state;
        assert_eq!(state.hash(), expected.hash(), "start {start}");
        assert_eq!(
            Snapshot::of(&mut state),
            Snapshot::of(&mut expected),
            "start {start}"
        );
    }
    // The mark is a part of the history: a state that has applied the entry differs.
    let mut applied = State::default();
    entries
        .into_iter()
        .for_each(|entry| drop(applied.apply(entry)));
    assert_ne!(applied.hash(), expected.hash());
}
