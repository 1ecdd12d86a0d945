//! What every adapter of the journal's port has to do.

use crate::store_support::{append, entries, proposal};
use cuckood::domain::{Entry, Seq};
use cuckood::journal::{Journal, JournalError, Ticket};
use std::ops::ControlFlow;

/// A check with its name. It wants a journal whose log is empty.
type Check = (&'static str, fn(&mut dyn Journal));

/// All checks.
pub const CHECKS: [Check; 5] = [
    ("hands back what it was given in order", hands_back_what_it_was_given_in_order),
    ("passes the sink's error through", passes_the_sinks_error_through),
    ("refuses to read what was pruned or never written", refuses_to_read_what_was_pruned_or_never_written),
    ("a large command is split and put together again", a_large_command_is_split_and_put_together_again),
    ("a reading goes on where it was broken off", a_reading_goes_on_where_it_was_broken_off),
];

fn hands_back_what_it_was_given_in_order(journal: &mut dyn Journal) {
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
}

fn passes_the_sinks_error_through(journal: &mut dyn Journal) {
    append(journal, vec![proposal(1, 1), proposal(2, 1)]).unwrap();
    let mut seen = 0;
    let result = journal.read(Seq(0), &mut |_| {
        seen += 1;
        Err(JournalError::Failed("enough".to_owned()))
    });
    assert!(matches!(result, Err(JournalError::Failed(why)) if why == "enough"));
    assert_eq!(seen, 1);
}

fn refuses_to_read_what_was_pruned_or_never_written(journal: &mut dyn Journal) {
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
}

fn a_large_command_is_split_and_put_together_again(journal: &mut dyn Journal) {
    let batch: Vec<_> = (0..12).map(|number| proposal(number, 10_000)).collect();
    let committed = append(journal, batch).unwrap();
    let expected: Vec<Entry> = committed.into_iter().map(|committed| committed.entry).collect();
    assert_eq!(expected.len(), 12);
    assert_eq!(entries(journal, 0).unwrap(), expected);
}

/// A backup reads piece by piece, while more is proposed and what is read is pruned.
fn a_reading_goes_on_where_it_was_broken_off(journal: &mut dyn Journal) {
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
}
