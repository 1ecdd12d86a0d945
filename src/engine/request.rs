//! The requests that the writer serves.

use super::snapshotter::SnapshotReport;
use super::submit_error::SubmitError;
use crate::domain::{Applied, Command, IdempotencyKey, KeyName};
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
    /// Produce the next piece of a backup.
    BackupPart(u64, Reply<Option<Vec<u8>>>),
    /// Finish the pending commands, take a snapshot, and stop.
    Shutdown(oneshot::Sender<()>),
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
    /// Its share of the queue's bytes, released once it is answered.
    pub(super) room: OwnedSemaphorePermit,
}
