//! One suite for every adapter of the journal, and what only the one on disk has to keep.

use crate::store_support::{entries, open, options, proposal};
use cuckood::domain::{Entry, Seq};
use cuckood::journal::{Journal, JournalError, LocalJournal, MemoryJournal};
use cuckood::store::{Durability, Store};
use std::sync::Arc;

fn over_every_adapter(test: impl Fn(&mut dyn Journal)) {
    test(&mut MemoryJournal::new());
    for durability in [Durability::Fsync, Durability::Flush, Durability::Relaxed] {
        let dir = tempfile::tempdir().unwrap();
        let store = Arc::new(Store::open(dir.path(), &options(durability)).unwrap());
        test(&mut LocalJournal::open(store).unwrap());
    }
}

#[test]
fn hands_back_what_it_was_given_in_order() {
    over_every_adapter(|journal| {
        assert_eq!(journal.last(), Seq(0));
        assert_eq!(journal.first_available(), Seq(1));
        assert!(entries(journal, 0).unwrap().is_empty());
        assert!(journal.append(Vec::new()).unwrap().is_empty());
        let mut given = Vec::new();
        for batch in 0..20u64 {
            let batch: Vec<_> = (0..batch % 5 + 1).map(|at| proposal(batch * 10 + at, at * 3)).collect();
            for (index, committed) in journal.append(batch.clone()).unwrap().into_iter().enumerate() {
                assert_eq!(committed.ticket, Some(index));
                assert_eq!(committed.entry.proposal, batch[index]);
                given.push(committed.entry);
            }
        }
        let expected: Vec<Seq> = (1..=given.len() as u64).map(Seq).collect();
        assert_eq!(given.iter().map(|entry| entry.seq).collect::<Vec<_>>(), expected);
        assert_eq!(journal.last(), Seq(given.len() as u64));
        for after in [0, 1, 7, given.len() - 1, given.len()] {
            assert_eq!(entries(journal, after as u64).unwrap(), given[after..]);
        }
    });
}

#[test]
fn passes_the_sinks_error_through() {
    over_every_adapter(|journal| {
        journal.append(vec![proposal(1, 1), proposal(2, 1)]).unwrap();
        let mut seen = 0;
        let result = journal.read_from(Seq(0), &mut |_| {
            seen += 1;
            Err(JournalError::Failed("enough".to_owned()))
        });
        assert!(matches!(result, Err(JournalError::Failed(why)) if why == "enough"));
        assert_eq!(seen, 1);
    });
}

#[test]
fn refuses_to_read_what_was_pruned_or_never_written() {
    over_every_adapter(|journal| {
        for number in 0..40 {
            journal.append(vec![proposal(number, 1_000)]).unwrap();
        }
        while journal.prune(Seq(30), 1).unwrap() {}
        let first = journal.first_available().0;
        assert!((2..=31).contains(&first), "{first}");
        assert!(matches!(entries(journal, first - 2), Err(JournalError::Damaged(_))));
        assert!(matches!(entries(journal, 41), Err(JournalError::Damaged(_))));
        assert_eq!(entries(journal, first - 1).unwrap().len() as u64, 41 - first);
        assert_eq!(entries(journal, 30).unwrap().len(), 10);
        journal.append(vec![proposal(40, 1)]).unwrap();
        assert_eq!(journal.last(), Seq(41));
    });
}

#[test]
fn a_large_command_is_split_and_put_together_again() {
    over_every_adapter(|journal| {
        let batch: Vec<_> = (0..12).map(|number| proposal(number, 10_000)).collect();
        let committed = journal.append(batch).unwrap();
        let expected: Vec<Entry> = committed.into_iter().map(|committed| committed.entry).collect();
        assert_eq!(entries(journal, 0).unwrap(), expected);
    });
}

#[test]
fn goes_on_where_it_ended() {
    let dir = tempfile::tempdir().unwrap();
    let mut given = Vec::new();
    for round in 0..6u64 {
        let mut journal = LocalJournal::open(open(dir.path())).unwrap();
        assert_eq!(journal.last().0, given.len() as u64);
        assert_eq!(entries(&mut journal, 0).unwrap(), given);
        for number in 0..5 {
            let committed = journal.append(vec![proposal(round * 100 + number, 3_000)]).unwrap();
            given.extend(committed.into_iter().map(|committed| committed.entry));
        }
        if round % 2 == 0 {
            journal.settle().unwrap();
        }
    }
}

#[test]
fn a_log_that_was_pruned_whole_keeps_its_end() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = LocalJournal::open(open(dir.path())).unwrap();
    for number in 0..30 {
        journal.append(vec![proposal(number, 2_000)]).unwrap();
    }
    while journal.prune(Seq(30), 1).unwrap() {}
    drop(journal);
    let mut journal = LocalJournal::open(open(dir.path())).unwrap();
    assert_eq!(journal.last(), Seq(30));
    assert!(entries(&mut journal, 30).unwrap().is_empty());
    assert_eq!(journal.append(vec![proposal(30, 1)]).unwrap()[0].entry.seq, Seq(31));
}
