//! The callers that wait for the outcome of a command, the reasons why a command has none, and the bell that wakes the writer's thread.

use super::refusals::PendingRedemption;
use crate::clock::ClockUnsure;
use cuckood_log::journal::Ticket;
use cuckood_state::domain::Applied;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::Arc;
use std::task::{Wake, Waker};
use std::thread::{self, Thread};
use std::time::Instant;
use thiserror::Error;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

/// Why a command has no outcome. The command was not applied, except perhaps after [`SubmitError::StorageFailed`].
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum SubmitError {
    /// The queue is full.
    #[error("too many writes are waiting")]
    Overloaded,
    /// Recovery is not finished.
    #[error("the service is recovering")]
    Recovering,
    /// The service is shutting down.
    #[error("the service is draining")]
    Draining,
    /// A write or sync failed. Only the next startup can decide whether the command took effect.
    #[error("storage has failed; whether the write took effect is unknown")]
    StorageFailed,
    /// The command might exceed the memory limit.
    #[error("the memory limit is reached")]
    MemoryLimit,
    /// The system has no memory for the command.
    #[error("the system has no more memory to give")]
    NoMemory,
    /// The memory limit is reached, and so is that of the reserve for the records of operations that free memory.
    #[error("the memory limit is reached, and the reserve for idempotency records is used up")]
    IdempotencyFull {
        /// Seconds until the oldest record is deleted.
        retry_after_seconds: u64,
    },
    /// The disk's free space is below the watermark.
    #[error("the disk is too full")]
    DiskFull,
    /// This node has not applied the requested position, or may be too far behind the log.
    #[error("this node lags too far behind the log")]
    TooFarBehind,
    /// The log does not respond: most of its servers may be down, or this node can't reach them.
    #[error("the log does not respond: most of its servers are down or unreachable")]
    NoQuorum,
    /// The log's servers have no space for more messages.
    #[error("the log is full: its servers reject more messages")]
    LogFull,
    /// Some nodes may not understand the command yet.
    #[error("some nodes do not understand this yet: its version of entries is not enabled")]
    NotEnabled,
    /// The clock has jumped, or lags behind the log, so holds would expire at the wrong time.
    #[error(transparent)]
    ClockUnsure(#[from] ClockUnsure),
}

impl SubmitError {
    /// The error of a caller for whom the store can't be read; logs why.
    pub(super) fn unreadable(error: impl Display) -> SubmitError {
        tracing::error!(%error, "the store can't be read for a client");
        SubmitError::StorageFailed
    }
}

/// The writer's response. If it is dropped, the caller gets an unknown outcome: [`SubmitError::StorageFailed`].
pub(super) type Reply<T> = oneshot::Sender<Result<T, SubmitError>>;

/// Sends a response. The caller may be gone.
pub(super) fn respond<T>(reply: Reply<T>, response: Result<T, SubmitError>) {
    let _ = reply.send(response);
}

/// A caller that waits for the outcome of its command.
pub(super) struct Waiter {
    /// `None` once the caller has waited too long.
    pub(super) reply: Option<Reply<Applied>>,
    /// When the command was submitted, or picked up for its group commit.
    pub(super) since: Instant,
    /// The resources of the command until it is applied or rejected.
    pub(super) room: (OwnedSemaphorePermit, Option<PendingRedemption>),
    /// The runtime in which it was submitted.
    pub(super) runtime: Handle,
}

impl Waiter {
    /// Answers the caller. Its share of the queue is free again by the time it has the answer.
    pub(super) fn answer(self, answer: Result<Applied, SubmitError>) {
        drop(self.room);
        // The caller may be gone; the command remains valid.
        if let Some(reply) = self.reply {
            let _ = reply.send(answer);
        }
    }
}

/// Answers callers after a group commit. All callers of a runtime are woken by one task in it: from this thread, each would take a system
/// call.
pub(super) fn answer_all(answers: Vec<(Waiter, Applied)>) {
    let mut groups: Vec<(Handle, Vec<_>)> = Vec::new();
    for (caller, applied) in answers {
        match groups
            .iter_mut()
            .find(|(known, _)| known.id() == caller.runtime.id())
        {
            Some((_, group)) => group.push((caller, applied)),
            None => groups.push((caller.runtime.clone(), vec![(caller, applied)])),
        }
    }
    for (runtime, group) in groups {
        runtime.spawn(async {
            group
                .into_iter()
                .for_each(|(caller, applied)| caller.answer(Ok(applied)))
        });
    }
}

/// Ends the wait of a thread.
struct Bell(Thread);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Returns a waker that ends [`wait`] in this thread.
pub(super) fn bell() -> Waker {
    Arc::new(Bell(thread::current())).into()
}

/// Waits for the thread's bell, or until `until`; it is `now`. May end sooner, so callers look for news again.
pub(super) fn wait(until: Option<Instant>, now: Instant) {
    match until {
        Some(until) if until <= now => {}
        Some(until) => thread::park_timeout(until - now),
        None => thread::park(),
    }
}

/// The callers of all proposals that are neither committed nor rejected.
#[derive(Default)]
pub(super) struct Proposed {
    /// Overdue callers stay, and keep their share of the queue: otherwise a journal that never answers would take any number of commands.
    pub(super) callers: BTreeMap<Ticket, Waiter>,
    /// The next ticket. Tickets are never reused.
    next: u64,
    /// All callers before this ticket have waited too long.
    failed_below: u64,
}

impl Proposed {
    /// Reserves `count` tickets; returns the first.
    pub(super) fn reserve(&mut self, count: usize) -> Ticket {
        let first = self.next;
        self.next += count as u64;
        Ticket(first)
    }

    /// Returns the caller that has waited longest of those still waiting.
    pub(super) fn oldest(&self) -> Option<&Waiter> {
        self.callers
            .range(Ticket(self.failed_below)..)
            .next()
            .map(|(_, caller)| caller)
    }

    /// Reports an unknown outcome to all callers that have waited since `before`.
    pub(super) fn fail_overdue(&mut self, before: Instant) {
        let waiting = self.callers.range_mut(Ticket(self.failed_below)..);
        for (ticket, caller) in waiting.take_while(|(_, caller)| caller.since <= before) {
            caller.reply = None;
            self.failed_below = ticket.0 + 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cuckood_state::domain::Outcome;
    use tokio::runtime::Builder;
    use tokio::sync::Semaphore;
    use tokio::sync::oneshot::error::TryRecvError;

    #[test]
    fn callers_are_answered_in_their_runtimes() {
        let runtimes = [0; 2].map(|_| Builder::new_current_thread().build().unwrap());
        let room = Arc::new(Semaphore::new(5));
        let mut answers = Vec::new();
        let mut pending = Vec::new();
        for (number, runtime) in (0..).zip([0, 1, 0]) {
            let (reply, answer) = oneshot::channel();
            let room = (room.clone().try_acquire_owned().unwrap(), None);
            let runtime = runtimes[runtime].handle().clone();
            let caller = Waiter {
                reply: Some(reply),
                since: Instant::now(),
                room,
                runtime,
            };
            answers.push((
                caller,
                Applied {
                    outcome: Outcome::Cleared(number),
                    replayed: false,
                },
            ));
            pending.push(answer);
        }
        answer_all(answers);
        assert!(
            pending
                .iter_mut()
                .all(|answer| answer.try_recv() == Err(TryRecvError::Empty))
        );
        for (runtime, wanted) in [(0, 0), (1, 1), (0, 2)] {
            let answer = runtimes[runtime]
                .block_on(&mut pending[wanted])
                .unwrap()
                .unwrap();
            assert_eq!(answer.outcome, Outcome::Cleared(wanted as u64));
        }
        assert_eq!(room.available_permits(), 5);
    }
}
