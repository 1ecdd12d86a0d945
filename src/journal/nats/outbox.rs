//! What this node has proposed and not yet read back from the log: what waits to be published, and what is under way.

use super::message::OVERHEAD_BYTES;
use super::under_way::Bracket;
use crate::domain::Proposal;
use crate::journal::{JournalError, Ticket};
use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

/// The most commits that are under way at once.
const IN_FLIGHT_MAX: usize = 16;

/// The most bytes in a commit of several commands.
const COMMIT_BYTES_MAX: usize = 256 << 10;

/// The most bytes in a message. Servers allow 1 MiB by default.
pub(super) const MESSAGE_BYTES_MAX: usize = 1 << 20;

/// A group commit, as it is published.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Commit {
    /// Its number in the session in which it was last published.
    pub(super) number: u64,
    /// The tickets of its proposals, in order.
    pub(super) tickets: Vec<Ticket>,
    /// The proposals, encoded.
    pub(super) payload: Vec<u8>,
    /// When it was last published.
    pub(super) sent: Instant,
    /// When a server has acknowledged that.
    pub(super) acked_at: Option<Instant>,
}

impl Commit {
    /// It is read back now.
    pub(super) fn bracket(&self, now: Instant) -> Bracket {
        Bracket { sent: self.sent, seen: self.acked_at.unwrap_or(now) }
    }
}

/// Proposals on their way into the log.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    waiting: VecDeque<(Ticket, Vec<u8>)>,
    in_flight: BTreeMap<u64, Commit>,
    /// Commits that must be published again as they are, before anything else.
    again: VecDeque<Commit>,
    /// How many commits were published in this session, which is the next one's number.
    published: u64,
}

impl Outbox {
    /// Takes proposals up, with consecutive tickets.
    ///
    /// # Errors
    /// [`JournalError::Failed`] if one is too large for a message; nothing is taken up then.
    pub(super) fn push(&mut self, first: Ticket, batch: &[Proposal]) -> Result<(), JournalError> {
        let mut encoded = Vec::with_capacity(batch.len());
        for (proposal, ticket) in batch.iter().zip(first.0..) {
            let bytes = postcard::to_stdvec(proposal)
                .map_err(|error| JournalError::Failed(format!("a command can't be encoded: {error}")))?;
            if bytes.len() > MESSAGE_BYTES_MAX - OVERHEAD_BYTES {
                return Err(JournalError::Failed(format!("a command of {} bytes", bytes.len())));
            }
            encoded.push((Ticket(ticket), bytes));
        }
        self.waiting.extend(encoded);
        Ok(())
    }

    /// The next commit to publish; it counts as under way from here on. `None` if nothing waits or enough is under way.
    pub(super) fn next(&mut self, now: Instant) -> Option<&Commit> {
        if self.in_flight.len() >= IN_FLIGHT_MAX {
            return None;
        }
        let mut commit = match self.again.pop_front() {
            Some(commit) => commit,
            None => self.gather(now)?,
        };
        (commit.number, commit.sent, commit.acked_at) = (self.published, now, None);
        self.published += 1;
        Some(self.in_flight.entry(commit.number).or_insert(commit))
    }

    /// Makes a commit of what waits, as much as fits.
    fn gather(&mut self, now: Instant) -> Option<Commit> {
        let (mut tickets, mut payload) = (Vec::new(), Vec::new());
        while let Some((ticket, bytes)) = self.waiting.pop_front_if(|(_, bytes)| {
            payload.is_empty() || payload.len() + bytes.len() + OVERHEAD_BYTES <= COMMIT_BYTES_MAX
        }) {
            tickets.push(ticket);
            payload.extend_from_slice(&bytes);
        }
        (!tickets.is_empty()).then_some(Commit { number: 0, tickets, payload, sent: now, acked_at: None })
    }

    /// A server has acknowledged a commit.
    pub(super) fn acked(&mut self, number: u64, now: Instant) {
        if let Some(commit) = self.in_flight.get_mut(&number) {
            commit.acked_at = Some(now);
        }
    }

    /// A commit was read back: it is in the log. `None` if it was not under way.
    pub(super) fn take(&mut self, number: u64) -> Option<Commit> {
        self.in_flight.remove(&number)
    }

    /// Whether this commit is still under way.
    pub(super) fn is_in_flight(&self, number: u64) -> bool {
        self.in_flight.contains_key(&number)
    }

    /// A session begins. What is under way will never be committed: it is to be published again, in the same order.
    pub(super) fn start_over(&mut self) {
        let mut again: VecDeque<Commit> = std::mem::take(&mut self.in_flight).into_values().collect();
        again.append(&mut self.again);
        self.again = again;
        self.published = 0;
    }

    /// When the oldest commit that is under way was published.
    pub(super) fn oldest(&self) -> Option<Instant> {
        self.in_flight.values().map(|commit| commit.sent).min()
    }

    /// Since when a commit is acknowledged that was not read back.
    pub(super) fn acked_since(&self) -> Option<Instant> {
        self.in_flight.values().filter_map(|commit| commit.acked_at).min()
    }

    /// How many commits are under way.
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{Command, Digests, FilterId, Target, Timestamp};
    use crate::filter::Digest;

    fn proposal(digests: usize) -> Proposal {
        let (target, digests) = (Target(FilterId(1)), Digests(vec![Digest(u64::MAX); digests]));
        Proposal::new(Timestamp(1), Command::Insert { target, digests, if_absent: false, revive: false })
    }

    fn published(outbox: &mut Outbox) -> Vec<(u64, usize)> {
        let mut found = Vec::new();
        while let Some(commit) = outbox.next(Instant::now()) {
            found.push((commit.number, commit.tickets.len()));
        }
        found
    }

    #[test]
    fn what_waits_is_gathered_and_only_so_much_is_under_way() {
        let mut outbox = Outbox::default();
        outbox.push(Ticket(0), &vec![proposal(10); 100]).unwrap();
        assert_eq!(published(&mut outbox), [(0, 100)]);
        for ticket in 0..40 {
            outbox.push(Ticket(100 + ticket), &[proposal(20_000)]).unwrap();
        }
        let many = published(&mut outbox);
        assert_eq!((many.len(), outbox.in_flight()), (IN_FLIGHT_MAX - 1, IN_FLIGHT_MAX));
        assert!(many.iter().all(|(_, entries)| *entries == 1), "two would be more than a commit may have");
        assert_eq!(outbox.take(0).unwrap().tickets.len(), 100);
        assert!(outbox.take(0).is_none());
        assert_eq!(published(&mut outbox), [(IN_FLIGHT_MAX as u64, 1)]);
    }

    #[test]
    fn what_got_lost_is_published_again_first_and_in_order() {
        let mut outbox = Outbox::default();
        for ticket in 0..5 {
            outbox.push(Ticket(ticket), &[proposal(20_000)]).unwrap();
        }
        assert_eq!(published(&mut outbox).len(), 5);
        outbox.take(1);
        outbox.push(Ticket(5), &[proposal(1)]).unwrap();
        outbox.start_over();
        assert_eq!(outbox.in_flight(), 0);
        // It gets lost again before all were published.
        assert_eq!(outbox.next(Instant::now()).unwrap().number, 0);
        outbox.start_over();
        let mut again = Vec::new();
        while let Some(commit) = outbox.next(Instant::now()) {
            again.push((commit.number, commit.tickets[0].0));
        }
        assert_eq!(again, [(0, 0), (1, 2), (2, 3), (3, 4), (4, 5)]);
    }

    #[test]
    fn a_command_that_no_message_can_carry_is_refused() {
        let mut outbox = Outbox::default();
        assert!(outbox.push(Ticket(0), &[proposal(1), proposal(200_000)]).is_err());
        assert_eq!(published(&mut outbox), []);
    }
}
