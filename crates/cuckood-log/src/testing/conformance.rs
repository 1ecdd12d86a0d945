//! Requirements of every adapter of the journal's port.

use super::stores::{Positioned, append, entries, proposal};
use crate::journal::{Delivery, JournalError, Ticket};
use cuckood_state::domain::{Entry, Seq};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

/// A check with its name. It wants a journal whose log is empty.
type Check = (&'static str, fn(&mut dyn Positioned));

/// All checks.
pub const CHECKS: [Check; 5] = [
    (
        "hands back what it was given in order",
        hands_back_what_it_was_given_in_order,
    ),
    (
        "delivers the end of the log, then barriers",
        delivers_the_end_of_the_log_then_barriers,
    ),
    (
        "refuses to read what was pruned or never written",
        refuses_to_read_what_was_pruned_or_never_written,
    ),
    (
        "a large command is split and put together again",
        a_large_command_is_split_and_put_together_again,
    ),
    (
        "reading continues while the log is pruned",
        reading_continues_while_the_log_is_pruned,
    ),
];

fn hands_back_what_it_was_given_in_order(journal: &mut dyn Positioned) {
    assert_eq!(journal.position(), Seq(0));
    assert!(entries(journal, 0).unwrap().is_empty());
    assert!(append(journal, Vec::new()).unwrap().is_empty());
    let mut given = Vec::new();
    for batch in 0..20u64 {
        let batch: Vec<_> = (0..batch % 5 + 1)
            .map(|at| proposal(batch * 10 + at, at * 3))
            .collect();
        for (index, committed) in append(journal, batch.clone())
            .unwrap()
            .into_iter()
            .enumerate()
        {
            assert_eq!(committed.ticket, Some(Ticket(1_000 + index as u64)));
            assert_eq!(committed.entry.proposal, batch[index]);
            given.push(committed.entry);
        }
    }
    let expected: Vec<Seq> = (1..=given.len() as u64).map(Seq).collect();
    assert_eq!(
        given.iter().map(|entry| entry.seq).collect::<Vec<_>>(),
        expected
    );
    assert_eq!(journal.position(), Seq(given.len() as u64));
    for after in [0, 1, 7, given.len() - 1, given.len()] {
        assert_eq!(entries(journal, after as u64).unwrap(), given[after..]);
    }
}

fn delivers_the_end_of_the_log_then_barriers(journal: &mut dyn Positioned) {
    let mut context = Context::from_waker(Waker::noop());
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
    append(journal, vec![proposal(1, 1), proposal(2, 1)]).unwrap();
    journal.barrier(Ticket(1));
    journal.barrier(Ticket(2));
    let passed = journal
        .poll(Seq(2), Instant::now(), &mut context)
        .map(Result::unwrap);
    assert_eq!(
        passed,
        Poll::Ready(Delivery::Passed(Ticket(2))),
        "one barrier passes all before it"
    );
    assert!(
        journal
            .poll(Seq(2), Instant::now(), &mut context)
            .is_pending()
    );
}

fn refuses_to_read_what_was_pruned_or_never_written(journal: &mut dyn Positioned) {
    for number in 0..40 {
        append(journal, vec![proposal(number, 1_000)]).unwrap();
    }
    while journal.prune(Seq(30), 1).unwrap() {}
    let first = (0..=30)
        .find(|after| entries(journal, *after).is_ok())
        .unwrap()
        + 1;
    assert!((2..=31).contains(&first), "{first}");
    assert!(matches!(
        entries(journal, first - 2),
        Err(JournalError::Damaged(_))
    ));
    assert!(matches!(
        entries(journal, 41),
        Err(JournalError::Damaged(_))
    ));
    assert_eq!(
        entries(journal, first - 1).unwrap().len() as u64,
        41 - first
    );
    assert_eq!(entries(journal, 30).unwrap().len(), 10);
    append(journal, vec![proposal(40, 1)]).unwrap();
    assert_eq!(journal.position(), Seq(41));
}

fn a_large_command_is_split_and_put_together_again(journal: &mut dyn Positioned) {
    let batch: Vec<_> = (0..12).map(|number| proposal(number, 10_000)).collect();
    let committed = append(journal, batch).unwrap();
    let expected: Vec<Entry> = committed
        .into_iter()
        .map(|committed| committed.entry)
        .collect();
    assert_eq!(expected.len(), 12);
    assert_eq!(entries(journal, 0).unwrap(), expected);
}

fn reading_continues_while_the_log_is_pruned(journal: &mut dyn Positioned) {
    for number in 0..60 {
        append(
            journal,
            vec![proposal(number * 2, 500), proposal(number * 2 + 1, 3)],
        )
        .unwrap();
    }
    let mut next = 0;
    let mut context = Context::from_waker(Waker::noop());
    while next < 120 {
        let Poll::Ready(Ok(Delivery::Entries(committed))) =
            journal.poll(Seq(next), Instant::now(), &mut context)
        else {
            panic!("no entries after {next}")
        };
        for committed in committed.into_iter().take(7) {
            next += 1;
            assert_eq!(committed.entry.seq, Seq(next));
        }
        while journal.prune(Seq(next / 2), 1 << 20).unwrap() {}
    }
}
