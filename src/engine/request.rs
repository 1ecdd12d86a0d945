//! The requests that the writer serves.

use super::event_log::EventsFound;
use super::snapshotter::SnapshotReport;
use super::submit_error::SubmitError;
use super::unlogged::Attempt;
use crate::domain::{Applied, Command, FilterId, IdempotencyKey, KeyName};
use crate::journal::Taken;
use std::sync::Weak;
use std::time::Instant;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

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

/// What a command takes up, and gives back once it is applied or refused.
pub(super) struct Room {
    _share: OwnedSemaphorePermit,
    _attempt: Option<Attempt>,
}

impl Room {
    /// A share of the queue's bytes, and the attempt that the command is, if it is one.
    pub(super) fn new(share: OwnedSemaphorePermit, attempt: Option<Attempt>) -> Room {
        Room { _share: share, _attempt: attempt }
    }
}
