//! The requests that the writer serves, its inbox, and the reasons why a command has no outcome.

use super::event_log::EventsFound;
use super::refusals::Attempt;
use super::snapshotter::SnapshotReport;
use crate::clock::ClockUnsure;
use crate::domain::{Applied, Command, FilterId, IdempotencyKey, KeyName};
use crate::journal::Taken;
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
    /// The command is of a version that some node may not understand yet.
    #[error(
        "this needs version {needs} of the log's entries, and only {enabled} is enabled: update every node first"
    )]
    NotEnabled {
        /// The version that the command needs.
        needs: u16,
        /// The version that is enabled.
        enabled: u16,
    },
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
    /// Begin a backup, which lasts until the token is dropped.
    Backup(Weak<()>, Reply<u64>),
    /// Begin an archive of the newest snapshot, which is to be shared, in the same way.
    ShareSnapshot(Weak<()>, Reply<(u64, Taken)>),
    /// Begin an image of this filter as the newest snapshot has it, which lasts until the token is dropped; none if that has not got it.
    Image(FilterId, Weak<()>, Reply<Option<u64>>),
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
    pub(super) since: Instant,
    pub(super) reply: Reply<Applied>,
    pub(super) room: Room,
}

/// What a command occupies until it is applied or rejected.
pub(super) struct Room {
    pub(super) _share: OwnedSemaphorePermit,
    pub(super) _attempt: Option<Attempt>,
}

/// Ends the wait of the writer's thread.
struct Bell {
    writer: Thread,
    is_rung: AtomicBool,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.is_rung.store(true, Ordering::Release);
        self.writer.unpark();
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
        Inbox {
            requests,
            bell: Arc::new(Bell { writer: thread::current(), is_rung: AtomicBool::new(false) }),
        }
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
                self.park(until);
                self.next()
            }
        }
    }

    /// Waits for the bell, or until `until`.
    pub(super) fn park(&self, until: Option<Instant>) {
        while !self.bell.is_rung.swap(false, Ordering::Acquire) {
            match until.map(|until| until.saturating_duration_since(Instant::now())) {
                None => thread::park(),
                Some(left) if left.is_zero() => return,
                Some(left) => thread::park_timeout(left),
            }
        }
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

/// Checks that all nodes are known to understand a command.
///
/// # Errors
/// [`SubmitError::NotEnabled`].
pub(super) fn check_enabled(needs: u16, enabled: u16) -> Result<(), SubmitError> {
    if needs > enabled { Err(SubmitError::NotEnabled { needs, enabled }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_is_not_enabled_is_not_logged() {
        assert_eq!(check_enabled(1, 1), Ok(()));
        assert_eq!(check_enabled(2, 3), Ok(()));
        let refused = check_enabled(2, 1).unwrap_err();
        assert_eq!(refused, SubmitError::NotEnabled { needs: 2, enabled: 1 });
        assert!(refused.to_string().contains("update every node"), "{refused}");
    }
}
