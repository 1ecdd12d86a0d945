//! The requests that the writer serves, its inbox, the reasons why a command has no outcome, and the callers that wait: for the outcome of a
//! proposed command, by ticket, or until everything that any node has acknowledged is applied here.

use super::event_log::EventsFound;
use super::refusals::Attempt;
use super::snapshotter::SnapshotReport;
use crate::clock::ClockUnsure;
use crate::domain::{Applied, Command, FilterId, IdempotencyKey, KeyName};
use crate::journal::{Journal, Ticket};
use crate::store::Manifest;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Instant;
use thiserror::Error;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};

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
    #[error("the service is stopping")]
    Draining,
    /// A write or sync failed. Only the next start can tell whether the command took effect.
    #[error("storage has failed; whether the write took effect is unknown")]
    StorageFailed,
    /// The command might exceed the memory limit.
    #[error("the memory limit is reached")]
    MemoryLimit,
    /// The system has no memory for the command.
    #[error("the system has no more memory to give")]
    NoMemory,
    /// The disk's free space is below the watermark.
    #[error("the disk is too full")]
    DiskFull,
    /// This node has not applied the position that was asked for, or may be too far behind the log.
    #[error("this node is too far behind the log")]
    TooFarBehind,
    /// The log does not respond: most of its servers may be gone, or this node can't reach them.
    #[error("the log does not respond: most of its servers are down or unreachable")]
    NoQuorum,
    /// The log's servers have no space for more messages.
    #[error("the log is full: its servers reject more messages")]
    LogFull,
    /// The clock has jumped, or is behind the log, so holds would expire at the wrong time.
    #[error(transparent)]
    ClockUnsure(#[from] ClockUnsure),
}

/// Where the writer sends its answer.
pub(super) type Reply<T> = oneshot::Sender<Result<T, SubmitError>>;

/// A request to the writer.
pub(super) enum Request {
    /// Log and apply a command.
    Submit(Box<Submission>),
    /// Take a snapshot now.
    Snapshot(Reply<SnapshotReport>),
    /// Begin a backup of the newest snapshot, or the image of a filter in it, which lasts until the token is dropped; none if that does
    /// not exist.
    Download(Option<FilterId>, Weak<()>, Reply<Option<(u64, Arc<Manifest>)>>),
    /// Produce the next parts of a backup or the next records of an image; none after the last one.
    Parts(u64, Reply<Vec<Vec<u8>>>),
    /// Find the event of this number. Unless that one is wanted, the first one that is kept after it will do.
    Events { number: u64, is_wanted: bool, reply: Reply<EventsAnswer> },
    /// Tell when everything that any node has acknowledged before is applied.
    Barrier(Reply<()>),
    /// Finish the pending commands, take a snapshot, and stop.
    Shutdown(oneshot::Sender<()>),
}

/// The answer to a reader of events.
pub(super) struct EventsAnswer {
    pub(super) found: EventsFound,
    /// How long events are kept, in seconds.
    pub(super) retention_seconds: u64,
    /// The number that the next event gets.
    pub(super) next: u64,
}

/// A command that was submitted.
pub(super) struct Submission {
    /// The API key that asks.
    pub(super) by: Option<KeyName>,
    pub(super) command: Command,
    pub(super) key: Option<IdempotencyKey>,
    /// Its approximate size in the log, in bytes.
    pub(super) bytes: u64,
    pub(super) waiting: Waiting,
}

/// A caller that waits for the outcome of its command.
pub(super) struct Waiting {
    pub(super) reply: Reply<Applied>,
    /// When the command was submitted, or picked up for its group commit.
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

/// What a command occupies until it is applied or rejected.
pub(super) struct Room {
    pub(super) _share: OwnedSemaphorePermit,
    pub(super) _attempt: Option<Attempt>,
}

/// Ends the wait of the thread that made it.
pub(super) struct Bell {
    thread: Thread,
    is_rung: AtomicBool,
}

impl Bell {
    pub(super) fn of_this_thread() -> Arc<Bell> {
        Arc::new(Bell { thread: thread::current(), is_rung: AtomicBool::new(false) })
    }

    /// Waits until it rings, or until `until`. For the thread that made it.
    pub(super) fn wait(&self, until: Option<Instant>) {
        while !self.is_rung.swap(false, Ordering::Acquire) {
            match until.map(|until| until.saturating_duration_since(Instant::now())) {
                None => thread::park(),
                Some(left) if left.is_zero() => return,
                Some(left) => thread::park_timeout(left),
            }
        }
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.is_rung.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

/// The writer's end of the queue, and the journal's bell.
pub(super) struct Inbox {
    requests: mpsc::Receiver<Request>,
    bell: Arc<Bell>,
}

impl Inbox {
    /// The inbox of the calling thread.
    pub(super) fn new(requests: mpsc::Receiver<Request>) -> Inbox {
        Inbox { requests, bell: Bell::of_this_thread() }
    }

    /// A waker that ends the writer's wait.
    pub(super) fn waker(&self) -> Waker {
        self.bell.clone().into()
    }

    /// Waits for the next request. Returns without one at `until`, or when the journal has news.
    pub(super) fn wait(&mut self, until: Option<Instant>) -> Option<Request> {
        let waker = self.waker();
        match self.requests.poll_recv(&mut Context::from_waker(&waker)) {
            Poll::Ready(request) => request,
            Poll::Pending => {
                self.bell.wait(until);
                self.next()
            }
        }
    }

    /// Waits for the bell, or until `until`.
    pub(super) fn park(&self, until: Option<Instant>) {
        self.bell.wait(until);
    }

    /// A request that has already arrived.
    pub(super) fn next(&mut self) -> Option<Request> {
        self.requests.try_recv().ok()
    }

    /// Whether no request can arrive any more.
    pub(super) fn is_closed(&self) -> bool {
        self.requests.is_closed() && self.requests.is_empty()
    }

    /// Closes the queue: no more requests are accepted.
    pub(super) fn close(&mut self) {
        self.requests.close();
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

    /// Answers the callers whose barrier is passed: this one, and all before. Everything that was polled is applied.
    pub(super) fn pass(&mut self, passed: Ticket) {
        while let Some((_, reply)) = self.waiting.pop_front_if(|(barrier, _)| *barrier <= passed) {
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
