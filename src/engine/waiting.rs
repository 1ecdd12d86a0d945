//! The callers that wait: for the outcome of a proposed command, by ticket, or until everything that any node has acknowledged is applied here.

use super::SubmitError;
use super::request::{Reply, Room};
use crate::domain::Applied;
use crate::journal::{Journal, Ticket};
use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

/// A caller that waits.
pub(super) struct Waiting {
    pub(super) reply: Reply<Applied>,
    /// When its command was picked up.
    pub(super) since: Instant,
    /// What it takes up until it is answered.
    pub(super) room: Room,
}

impl Waiting {
    /// Answers the caller. Its share of the queue is free again by the time it has the answer.
    pub(super) fn answer(self, answer: Result<Applied, SubmitError>) {
        let Self { reply, room, .. } = self;
        drop(room);
        // The caller may be gone; the command stands all the same.
        let _ = reply.send(answer);
    }
}

/// Everything that was proposed and is neither committed nor refused, by ticket. Tickets are never reused.
#[derive(Default)]
pub(super) struct WaitingList {
    next: u64,
    waiting: BTreeMap<Ticket, Waiting>,
    /// Callers that were told that the outcome is unknown. They keep their share of the queue until the journal has decided:
    /// otherwise a journal that never answers would take any number of commands.
    given_up: BTreeMap<Ticket, Room>,
}

impl WaitingList {
    /// The ticket that the next caller gets.
    pub(super) fn next_ticket(&self) -> Ticket {
        Ticket(self.next)
    }

    /// Whether everything that was proposed is committed or refused.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.given_up.is_empty()
    }

    /// Since when the longest-waiting caller has waited.
    pub(super) fn oldest(&self) -> Option<Instant> {
        self.waiting.first_key_value().map(|(_, waiting)| waiting.since)
    }

    /// Adds callers and gives them the next tickets, in order.
    pub(super) fn extend(&mut self, waiting: Vec<Waiting>) {
        let first = self.reserve(waiting.len()).0;
        self.waiting.extend((first..).map(Ticket).zip(waiting));
    }

    /// Reserves `count` tickets without a caller; returns the first.
    pub(super) fn reserve(&mut self, count: usize) -> Ticket {
        let first = self.next_ticket();
        self.next += count as u64;
        first
    }

    /// Removes and returns the caller with this ticket, which is committed; once.
    pub(super) fn take(&mut self, ticket: Ticket) -> Option<Waiting> {
        self.given_up.remove(&ticket);
        self.waiting.remove(&ticket)
    }

    /// Removes and returns all callers with this ticket or a later one, which are refused.
    pub(super) fn take_from(&mut self, ticket: Ticket) -> Vec<Waiting> {
        self.given_up.split_off(&ticket);
        self.waiting.split_off(&ticket).into_values().collect()
    }

    /// Answers all callers that have waited since `before` or longer.
    pub(super) fn give_up(&mut self, before: Instant, answer: &SubmitError) {
        while let Some(oldest) = self.waiting.first_entry()
            && oldest.get().since <= before
        {
            let (ticket, Waiting { reply, room, .. }) = oldest.remove_entry();
            let _ = reply.send(Err(answer.clone()));
            self.given_up.insert(ticket, room);
        }
    }
}

/// Beyond this number of callers, those that have gone are dropped.
const CALLERS_MAX: usize = 1_024;

/// Callers in the order of their barriers.
#[derive(Default)]
pub(super) struct Barriers {
    last: u64,
    waiting: VecDeque<(Ticket, Reply<()>)>,
}

impl Barriers {
    /// Asks for a barrier for a caller.
    pub(super) fn begin(&mut self, journal: &mut dyn Journal, reply: Reply<()>) {
        self.last += 1;
        let barrier = Ticket(self.last);
        match journal.barrier(barrier) {
            Ok(()) => self.waiting.push_back((barrier, reply)),
            Err(_) => drop(reply.send(Err(SubmitError::StorageFailed))),
        }
        // A log that never answers must not gather callers that have given up.
        if self.waiting.len() > CALLERS_MAX {
            self.waiting.retain(|(_, reply)| !reply.is_closed());
        }
    }

    /// Answers the callers whose barrier is passed. Everything that was polled is applied.
    pub(super) fn answer(&mut self, journal: &dyn Journal) {
        let passed = journal.passed();
        while let Some((_, reply)) = self.waiting.pop_front_if(|(barrier, _)| Some(*barrier) <= passed) {
            let _ = reply.send(Ok(()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{Command, FilterId, RedemptionId, Reference, Target};
    use crate::engine::refusals::{Attempt, Refusals};
    use crate::filter::Digest;
    use std::sync::Arc;
    use std::time::Duration;
    use tokio::sync::{Semaphore, oneshot};

    fn waiting(since: Instant) -> Waiting {
        let room = Room { _share: Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap(), _attempt: None };
        Waiting { reply: oneshot::channel().0, since, room }
    }

    #[test]
    fn each_is_found_by_its_ticket_once_in_whatever_order() {
        let (mut list, now) = (WaitingList::default(), Instant::now());
        assert_eq!(list.reserve(2), Ticket(0));
        list.extend(vec![waiting(now), waiting(now)]);
        assert_eq!(list.next_ticket(), Ticket(4));
        assert!(list.take(Ticket(0)).is_none());
        assert!(list.take(Ticket(3)).is_some());
        assert!(list.take(Ticket(3)).is_none());
        assert!(!list.is_empty());
        assert!(list.take(Ticket(2)).is_some());
        assert!(list.is_empty());
        assert!(list.take(Ticket(9)).is_none());
        assert_eq!(list.next_ticket(), Ticket(4));
    }

    #[test]
    fn a_refused_ticket_is_not_used_again() {
        let (mut list, now) = (WaitingList::default(), Instant::now());
        list.extend(vec![waiting(now), waiting(now)]);
        assert_eq!(list.take_from(Ticket(1)).len(), 1);
        list.extend(vec![waiting(now)]);
        assert!(list.take(Ticket(1)).is_none());
        assert!(list.take(Ticket(0)).is_some());
        assert!(list.take(Ticket(2)).is_some());
        assert!(list.is_empty());
    }

    #[test]
    fn refused_tickets_take_no_memory() {
        let (mut list, now) = (WaitingList::default(), Instant::now());
        list.extend(vec![waiting(now)]);
        for ticket in 1..1_000 {
            list.extend(vec![waiting(now)]);
            assert_eq!(list.take_from(Ticket(ticket)).len(), 1);
        }
        assert_eq!((list.waiting.len(), list.next_ticket()), (1, Ticket(1_000)));
    }

    fn redeem(code: u64) -> Command {
        Command::Redeem {
            target: Target(FilterId(1)),
            digest: Digest(code << 32),
            redemption: RedemptionId([0; 16]),
            reference: Reference::new("order").unwrap(),
            hold_seconds: 0,
        }
    }

    #[test]
    fn who_waits_too_long_is_answered_and_keeps_its_share_of_the_queue() {
        let (mut list, now) = (WaitingList::default(), Instant::now());
        let (later, queue) = (now + Duration::from_secs(1), Arc::new(Semaphore::new(3)));
        let (refusals, mut codes) = (Arc::<Refusals>::default(), 1..);
        let mut waiting = |since| {
            let attempt = codes.next().and_then(|code| Attempt::of(&refusals, &redeem(code)));
            let room = Room { _share: queue.clone().try_acquire_owned().unwrap(), _attempt: attempt };
            let (reply, answer) = oneshot::channel();
            (Waiting { reply, since, room }, answer)
        };
        list.reserve(1);
        let ((first, mut told), (second, mut untold)) = (waiting(now), waiting(later));
        list.extend(vec![first, second]);
        list.give_up(now, &SubmitError::StorageFailed);
        assert_eq!(told.try_recv(), Ok(Err(SubmitError::StorageFailed)));
        assert!(untold.try_recv().is_err());
        assert_eq!((list.oldest(), queue.available_permits()), (Some(later), 1));
        let attempted = || [1, 2].map(|code| refusals.is_attempted(Digest(code << 32)));
        assert_eq!(attempted(), [true, true]);
        assert!(list.take(Ticket(2)).is_some());
        assert_eq!((list.oldest(), list.is_empty(), attempted()), (None, false, [true, false]));
        // Committed at last.
        assert!(list.take(Ticket(1)).is_none());
        assert!(list.is_empty());
        assert_eq!((queue.available_permits(), attempted()), (3, [false, false]));
    }
}
