//! The callers that wait for the outcome of a proposed command, by ticket.

use super::SubmitError;
use super::request::Reply;
use crate::domain::Applied;
use crate::journal::Ticket;
use std::collections::VecDeque;
use std::time::Instant;
use tokio::sync::OwnedSemaphorePermit;

/// A caller that waits.
pub(super) struct Waiting {
    pub(super) reply: Reply<Applied>,
    /// When its command was picked up.
    pub(super) since: Instant,
    /// Its share of the queue's bytes, released once it is answered.
    pub(super) room: OwnedSemaphorePermit,
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

/// The waiting callers in the order of their tickets. Tickets are consecutive and never reused, so a caller is found by index.
#[derive(Default)]
pub(super) struct WaitingList {
    first: u64,
    /// `None` where a caller was answered or there never was one.
    places: VecDeque<Option<Waiting>>,
    /// How many callers wait.
    waiting: usize,
}

impl WaitingList {
    /// The ticket that the next caller gets.
    pub(super) fn next_ticket(&self) -> Ticket {
        Ticket(self.first + self.places.len() as u64)
    }

    /// Whether no caller waits.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    /// Since when the longest-waiting caller has waited.
    pub(super) fn oldest(&self) -> Option<Instant> {
        if self.is_empty() {
            return None;
        }
        self.places.iter().flatten().next().map(|waiting| waiting.since)
    }

    /// Adds callers and gives them the next tickets, in order.
    pub(super) fn extend(&mut self, waiting: Vec<Waiting>) {
        self.waiting += waiting.len();
        self.places.extend(waiting.into_iter().map(Some));
    }

    /// Reserves `count` tickets without a caller; returns the first.
    pub(super) fn reserve(&mut self, count: usize) -> Ticket {
        let first = self.next_ticket();
        self.places.extend((0..count).map(|_| None));
        first
    }

    /// Removes and returns the caller with this ticket, once.
    pub(super) fn take(&mut self, ticket: Ticket) -> Option<Waiting> {
        let place = usize::try_from(ticket.0.checked_sub(self.first)?).ok()?;
        let taken = self.places.get_mut(place)?.take();
        self.waiting -= usize::from(taken.is_some());
        while matches!(self.places.front(), Some(None)) {
            self.places.pop_front();
            self.first += 1;
        }
        taken
    }

    /// Removes all callers with this ticket or a later one.
    pub(super) fn take_from(&mut self, ticket: Ticket) -> Vec<Waiting> {
        let place = ticket.0.saturating_sub(self.first).min(self.places.len() as u64) as usize;
        // The places stay empty: tickets are never reused.
        let taken: Vec<Waiting> = self.places.range_mut(place..).filter_map(Option::take).collect();
        self.waiting -= taken.len();
        taken
    }

    /// Removes all callers that have waited since `before` or longer.
    pub(super) fn take_until(&mut self, before: Instant) -> Vec<Waiting> {
        let mut taken = Vec::new();
        while self.oldest().is_some_and(|since| since <= before) {
            let oldest = self.places.iter_mut().find(|place| place.is_some()).and_then(Option::take);
            self.waiting -= 1;
            taken.extend(oldest);
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::time::Duration;
    use tokio::sync::{Semaphore, oneshot};

    fn waiting(since: Instant) -> Waiting {
        let room = Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap();
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
    fn those_who_wait_too_long_are_taken_and_the_others_stay() {
        let (mut list, now) = (WaitingList::default(), Instant::now());
        let later = now + Duration::from_secs(1);
        list.reserve(1);
        list.extend(vec![waiting(now), waiting(now), waiting(later)]);
        assert_eq!(list.oldest(), Some(now));
        assert_eq!(list.take_until(now).len(), 2);
        assert_eq!(list.oldest(), Some(later));
        assert!(list.take(Ticket(3)).is_some());
        assert_eq!((list.oldest(), list.is_empty()), (None, true));
    }
}
