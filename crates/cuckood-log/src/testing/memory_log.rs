//! A journal in memory; it ends with the process. Engines that share its log see each other's entries, as the nodes of a replicated log
//! do.

use super::stores::Positioned;
use crate::journal::{Committed, Delivery, Journal, JournalError, OpenJournal, Ticket};
use crate::store::Store;
use cuckood_state::domain::{Entry, Proposal, Seq};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

/// A log that several journals share; clones share the same log.
#[derive(Clone, Debug, Default)]
pub struct MemoryLog {
    shared: Arc<Mutex<Shared>>,
}

#[derive(Debug, Default)]
struct Shared {
    /// Entries that were not pruned, each with the member that proposed it and the ticket.
    entries: VecDeque<(Entry, u64, Ticket)>,
    last: Seq,
    members: u64,
    /// The proposals made since [`MemoryLog::hold`]; `None` unless the log is held.
    held: Option<Vec<(Proposal, u64, Ticket)>>,
    /// Wakers of the journals that wait for the next entry.
    waiting: Vec<Waker>,
}

impl Shared {
    fn commit(&mut self, proposals: Vec<(Proposal, u64, Ticket)>) {
        for (proposal, member, ticket) in proposals {
            self.last = self.last.next();
            self.entries.push_back((
                Entry {
                    seq: self.last,
                    proposal,
                },
                member,
                ticket,
            ));
        }
        self.waiting.drain(..).for_each(Waker::wake);
    }

    fn first(&self) -> Seq {
        self.entries
            .front()
            .map_or(self.last.next(), |(entry, ..)| entry.seq)
    }

    /// The entries after `after`.
    fn after(
        &self,
        after: Seq,
    ) -> Result<impl Iterator<Item = &(Entry, u64, Ticket)>, JournalError> {
        let first = self.first();
        if after.next() < first || after > self.last {
            let what = format!(
                "the log holds positions {} to {}, not {}",
                first.0,
                self.last.0,
                after.0 + 1
            );
            return Err(JournalError::Damaged(what));
        }
        Ok(self
            .entries
            .iter()
            .skip((after.next().0 - first.0) as usize))
    }
}

impl MemoryLog {
    /// An empty log.
    pub fn new() -> MemoryLog {
        MemoryLog::default()
    }

    /// Accepts proposals but commits none until [`MemoryLog::go_on`], as a log without a leader does.
    pub fn hold(&self) {
        self.shared.lock().held.get_or_insert_default();
    }

    /// Commits the proposals made since [`MemoryLog::hold`], in order.
    pub fn go_on(&self) {
        let mut shared = self.shared.lock();
        let held = shared.held.take().unwrap_or_default();
        shared.commit(held);
    }

    /// Commits the first `count` of the held proposals, and keeps holding the others.
    pub fn commit_first(&self, count: usize) {
        let mut shared = self.shared.lock();
        if let Some(mut first) = shared.held.take() {
            let others = first.split_off(count.min(first.len()));
            shared.commit(first);
            shared.held = Some(others);
        }
    }

    /// Number of held proposals.
    pub fn held(&self) -> usize {
        self.shared.lock().held.as_ref().map_or(0, Vec::len)
    }

    /// A new journal on this log.
    pub fn join(&self) -> MemoryJournal {
        let mut shared = self.shared.lock();
        shared.members += 1;
        MemoryJournal {
            log: self.clone(),
            member: shared.members,
            is_current: false,
            barrier: None,
        }
    }
}

/// One node's journal over a [`MemoryLog`].
#[derive(Debug)]
pub struct MemoryJournal {
    log: MemoryLog,
    member: u64,
    /// [`Delivery::Current`] was delivered.
    is_current: bool,
    /// The last barrier that is not passed.
    barrier: Option<Ticket>,
}

impl OpenJournal for MemoryLog {
    fn open(&self, _: &Arc<Store>) -> Result<Box<dyn Journal>, JournalError> {
        Ok(Box::new(self.join()))
    }
}

impl Positioned for MemoryJournal {
    fn position(&self) -> Seq {
        self.log.shared.lock().last
    }
}

impl Journal for MemoryJournal {
    fn propose(&mut self, first: Ticket, batch: Vec<Proposal>) -> Result<(), JournalError> {
        let tickets = (first.0..).map(Ticket);
        let proposals = batch
            .into_iter()
            .zip(tickets)
            .map(|(proposal, ticket)| (proposal, self.member, ticket));
        let mut shared = self.log.shared.lock();
        match &mut shared.held {
            Some(held) => held.extend(proposals),
            None => shared.commit(proposals.collect()),
        }
        Ok(())
    }

    fn poll(
        &mut self,
        after: Seq,
        _now: Instant,
        context: &mut Context<'_>,
    ) -> Poll<Result<Delivery, JournalError>> {
        let mut shared = self.log.shared.lock();
        let committed: Vec<Committed> = match shared.after(after) {
            Err(error) => return Poll::Ready(Err(error)),
            Ok(entries) => {
                let of = |(entry, member, ticket): &(Entry, u64, Ticket)| Committed {
                    entry: entry.clone(),
                    ticket: (*member == self.member).then_some(*ticket),
                };
                entries.map(of).collect()
            }
        };
        if !committed.is_empty() {
            return Poll::Ready(Ok(Delivery::Entries(committed)));
        }
        if !std::mem::replace(&mut self.is_current, true) {
            return Poll::Ready(Ok(Delivery::Current));
        }
        if let Some(barrier) = self.barrier.take() {
            return Poll::Ready(Ok(Delivery::Passed(barrier)));
        }
        if !shared
            .waiting
            .iter()
            .any(|waker| waker.will_wake(context.waker()))
        {
            shared.waiting.push(context.waker().clone());
        }
        Poll::Pending
    }

    fn wake_at(&self, _now: Instant) -> Option<Instant> {
        None
    }

    fn barrier(&mut self, barrier: Ticket) {
        self.barrier = Some(barrier);
    }

    fn prune(&mut self, through: Seq, _budget: u64) -> Result<bool, JournalError> {
        let mut shared = self.log.shared.lock();
        // Others may not have polled them yet.
        while shared.members == 1
            && shared
                .entries
                .front()
                .is_some_and(|(entry, ..)| entry.seq <= through)
        {
            shared.entries.pop_front();
        }
        Ok(false)
    }

    fn settle(&mut self) -> Result<(), JournalError> {
        Ok(())
    }
}
