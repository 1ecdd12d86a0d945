//! One suite for every adapter of the journal, and what only the one on disk has to keep.

use cuckood_log::journal::{Delivery, Durability, Journal, Ticket};
use cuckood_log::store::Store;
use cuckood_log::store::backing::KeyChange;
use cuckood_log::testing::conformance::CHECKS;
use cuckood_log::testing::fuse::Fuse;
use cuckood_log::testing::memory_disk::{Crash, MemoryDisk};
use cuckood_log::testing::memory_log::MemoryLog;
use cuckood_log::testing::stores::{
    Positioned, append, entries, open, open_journal, open_journal_at, options, proposal,
};
use cuckood_state::domain::Seq;
use cuckood_state::testing::random::Random;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

fn over_every_adapter(test: impl Fn(&mut dyn Positioned)) {
    test(&mut MemoryLog::new().join());
    for durability in [Durability::Fsync, Durability::Flush, Durability::Relaxed] {
        let dir = tempfile::tempdir().unwrap();
        let store = Arc::new(Store::open(dir.path(), &options(durability)).unwrap());
        test(&mut open_journal_at(&store, durability).unwrap());
        let dir = tempfile::tempdir().unwrap();
        let store = Arc::new(open_in_memory(dir.path(), &MemoryDisk::new()));
        test(&mut open_journal_at(&store, durability).unwrap());
    }
}

/// A data directory whose trees are on a disk in memory.
fn open_in_memory(dir: &Path, disk: &MemoryDisk) -> Store {
    let fuse = Fuse::unlit();
    Store::open_without_sled(dir, &options(Durability::Fsync), |is_new| {
        disk.open(&fuse, is_new)
    })
    .unwrap()
}

/// The simulation relies on it: a disk that lost less or more would hide or invent errors.
#[test]
fn memory_disk_loses_only_what_is_not_synced() {
    let mut left = BTreeSet::new();
    for seed in 0..60 {
        let mut random = Random::new(seed);
        let disk = MemoryDisk::new();
        let dir = tempfile::tempdir().unwrap();
        let kind = [Crash::Process, Crash::Power][(seed % 2) as usize];
        {
            let store = open_in_memory(dir.path(), &disk);
            for number in 0..9u8 {
                let change = KeyChange::Put(vec![number], vec![number]);
                store.write("tree", vec![change]).unwrap();
                if number == 5 {
                    store.flush().unwrap();
                }
                if number == 2 {
                    store.flush().unwrap();
                    store.sync().unwrap();
                }
            }
            store.seal().unwrap();
            store.begin_use().unwrap();
            disk.crash(kind, &mut random);
        }
        let store = open_in_memory(dir.path(), &disk);
        let last = store.backing().last_key("tree", None).unwrap().unwrap();
        let certain = if kind == Crash::Power { 2 } else { 5 };
        assert!(last[0] >= certain, "{kind:?} left {last:?}");
        let mut value = Vec::new();
        assert!((0..=last[0]).all(|key| store.backing().read("tree", &[key], &mut value).unwrap()));
        left.insert((kind == Crash::Power, last[0]));
    }
    let extremes = [(false, 5), (false, 8), (true, 2), (true, 8)];
    assert!(
        extremes.iter().all(|extreme| left.contains(extreme)),
        "{left:?}"
    );
    assert!(left.len() > extremes.len(), "{left:?}");
}

#[test]
fn every_journal_conforms() {
    for (name, check) in CHECKS {
        println!("{name}");
        over_every_adapter(check);
    }
}

#[test]
fn local_journal_continues_after_restart() {
    let dir = tempfile::tempdir().unwrap();
    let mut given = Vec::new();
    for round in 0..6u64 {
        let mut journal = open_journal(&open(dir.path())).unwrap();
        assert_eq!(journal.last().0, given.len() as u64);
        assert_eq!(entries(&mut journal, 0).unwrap(), given);
        for number in 0..5 {
            let committed =
                append(&mut journal, vec![proposal(round * 100 + number, 3_000)]).unwrap();
            given.extend(committed.into_iter().map(|committed| committed.entry));
        }
        if round % 2 == 0 {
            journal.settle().unwrap();
        }
    }
}

#[test]
fn completely_pruned_log_keeps_its_end() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = open_journal(&open(dir.path())).unwrap();
    for number in 0..30 {
        append(&mut journal, vec![proposal(number, 2_000)]).unwrap();
    }
    while journal.prune(Seq(30), 1).unwrap() {}
    drop(journal);
    let mut journal = open_journal(&open(dir.path())).unwrap();
    assert_eq!(journal.last(), Seq(30));
    assert!(entries(&mut journal, 30).unwrap().is_empty());
    assert_eq!(
        append(&mut journal, vec![proposal(30, 1)]).unwrap()[0]
            .entry
            .seq,
        Seq(31)
    );
}

/// Two nodes of one log: each sees the other's entries, and only its own have tickets.
#[test]
fn shared_log_delivers_foreign_entries() {
    let log = MemoryLog::new();
    let mut ours = log.join();
    let mut theirs = log.join();
    let mut context = Context::from_waker(Waker::noop());
    for journal in [&mut ours, &mut theirs] {
        assert_eq!(
            journal
                .poll(Seq(0), Instant::now(), &mut context)
                .map(Result::unwrap),
            Poll::Ready(Delivery::Current)
        );
        assert!(
            journal
                .poll(Seq(0), Instant::now(), &mut context)
                .is_pending()
        );
    }
    ours.propose(Ticket(7), vec![proposal(1, 1), proposal(2, 2)])
        .unwrap();
    theirs.propose(Ticket(7), vec![proposal(3, 3)]).unwrap();
    let mut tickets = |journal: &mut dyn Journal, after| match journal.poll(
        Seq(after),
        Instant::now(),
        &mut context,
    ) {
        Poll::Ready(Ok(Delivery::Entries(committed))) => committed
            .iter()
            .map(|one| (one.entry.seq.0, one.ticket.map(|ticket| ticket.0)))
            .collect(),
        Poll::Ready(other) => panic!("{other:?}"),
        Poll::Pending => Vec::new(),
    };
    assert_eq!(
        tickets(&mut ours, 0),
        [(1, Some(7)), (2, Some(8)), (3, None)]
    );
    assert_eq!(tickets(&mut theirs, 1), [(2, None), (3, Some(7))]);
    assert_eq!(tickets(&mut theirs, 3), []);
}
