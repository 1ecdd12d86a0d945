//! One suite for every adapter of the journal, and what only the one on disk has to keep.

use crate::store_support::{append, entries, open, open_journal, open_journal_at, options, proposal};
use cuckood::domain::{Entry, Seq};
use cuckood::journal::{Durability, Journal, JournalError, MemoryLog, Ticket};
use cuckood::store::Store;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

fn over_every_adapter(test: impl Fn(&mut dyn Journal)) {
    test(&mut MemoryLog::new().join());
    for durability in [Durability::Fsync, Durability::Flush, Durability::Relaxed] {
        let dir = tempfile::tempdir().unwrap();
        let store = Arc::new(Store::open(dir.path(), &options(durability)).unwrap());
        test(&mut open_journal_at(&store, durability).unwrap());
    }
}

#[test]
fn hands_back_what_it_was_given_in_order() {
    over_every_adapter(|journal| {
        assert_eq!(journal.last(), Seq(0));
        assert_eq!(journal.first_available(), Seq(1));
        assert!(entries(journal, 0).unwrap().is_empty());
        assert!(append(journal, Vec::new()).unwrap().is_empty());
        let mut given = Vec::new();
        for batch in 0..20u64 {
            let batch: Vec<_> = (0..batch % 5 + 1).map(|at| proposal(batch * 10 + at, at * 3)).collect();
            for (index, committed) in append(journal, batch.clone()).unwrap().into_iter().enumerate() {
                assert_eq!(committed.ticket, Some(Ticket(1_000 + index as u64)));
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
        append(journal, vec![proposal(1, 1), proposal(2, 1)]).unwrap();
        let mut seen = 0;
        let result = journal.read(Seq(0), &mut |_| {
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
            append(journal, vec![proposal(number, 1_000)]).unwrap();
        }
        while journal.prune(Seq(30), 1).unwrap() {}
        let first = journal.first_available().0;
        assert!((2..=31).contains(&first), "{first}");
        assert!(matches!(entries(journal, first - 2), Err(JournalError::Damaged(_))));
        assert!(matches!(entries(journal, 41), Err(JournalError::Damaged(_))));
        assert_eq!(entries(journal, first - 1).unwrap().len() as u64, 41 - first);
        assert_eq!(entries(journal, 30).unwrap().len(), 10);
        append(journal, vec![proposal(40, 1)]).unwrap();
        assert_eq!(journal.last(), Seq(41));
    });
}

#[test]
fn a_large_command_is_split_and_put_together_again() {
    over_every_adapter(|journal| {
        let batch: Vec<_> = (0..12).map(|number| proposal(number, 10_000)).collect();
        let committed = append(journal, batch).unwrap();
        let expected: Vec<Entry> = committed.into_iter().map(|committed| committed.entry).collect();
        assert_eq!(entries(journal, 0).unwrap(), expected);
    });
}

#[test]
fn goes_on_where_it_ended() {
    let dir = tempfile::tempdir().unwrap();
    let mut given = Vec::new();
    for round in 0..6u64 {
        let mut journal = open_journal(&open(dir.path())).unwrap();
        assert_eq!(journal.last().0, given.len() as u64);
        assert_eq!(entries(&mut journal, 0).unwrap(), given);
        for number in 0..5 {
            let committed = append(&mut journal, vec![proposal(round * 100 + number, 3_000)]).unwrap();
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
    let mut journal = open_journal(&open(dir.path())).unwrap();
    for number in 0..30 {
        append(&mut journal, vec![proposal(number, 2_000)]).unwrap();
    }
    while journal.prune(Seq(30), 1).unwrap() {}
    drop(journal);
    let mut journal = open_journal(&open(dir.path())).unwrap();
    assert_eq!(journal.last(), Seq(30));
    assert!(entries(&mut journal, 30).unwrap().is_empty());
    assert_eq!(append(&mut journal, vec![proposal(30, 1)]).unwrap()[0].entry.seq, Seq(31));
}

/// A backup reads piece by piece, while more is proposed and what is read is pruned.
#[test]
fn a_reading_goes_on_where_it_was_broken_off() {
    over_every_adapter(|journal| {
        for number in 0..60 {
            append(journal, vec![proposal(number * 2, 500), proposal(number * 2 + 1, 3)]).unwrap();
        }
        let (mut next, mut pieces) = (0, 0);
        while next < 120 {
            let enough = next + 1 + pieces % 7;
            journal
                .read(Seq(next), &mut |entry| {
                    next += 1;
                    assert_eq!(entry.seq, Seq(next));
                    Ok(if next == enough { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
                })
                .unwrap();
            assert!(next >= enough.min(120));
            pieces += 1;
            while journal.prune(Seq(next / 2), 1 << 20).unwrap() {}
        }
    });
}

/// Two nodes of one log: each sees the other's entries, and only its own come back with their tickets.
#[test]
fn a_shared_log_delivers_others_entries() {
    let log = MemoryLog::new();
    let (mut ours, mut theirs) = (log.join(), log.join());
    let mut context = Context::from_waker(Waker::noop());
    assert!(theirs.poll(Seq(0), &mut context).is_pending());
    ours.propose(Ticket(7), vec![proposal(1, 1), proposal(2, 2)]).unwrap();
    theirs.propose(Ticket(7), vec![proposal(3, 3)]).unwrap();
    let mut tickets = |journal: &mut dyn Journal, after| match journal.poll(Seq(after), &mut context) {
        Poll::Ready(committed) => {
            let committed = committed.unwrap();
            committed.iter().map(|one| (one.entry.seq.0, one.ticket.map(|ticket| ticket.0))).collect()
        }
        Poll::Pending => Vec::new(),
    };
    assert_eq!(tickets(&mut ours, 0), [(1, Some(7)), (2, Some(8)), (3, None)]);
    assert_eq!(tickets(&mut theirs, 1), [(2, None), (3, Some(7))]);
    assert_eq!(tickets(&mut theirs, 3), []);
}
