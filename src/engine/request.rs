//! What the writer is asked for, and how it answers.

use super::SubmitError;
use super::snapshotter::SnapshotReport;
use crate::domain::{Applied, Command, IdempotencyKey};
use std::sync::Weak;
use std::time::Instant;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

/// Who waits for an answer.
pub(super) type Reply<T> = oneshot::Sender<Result<T, SubmitError>>;

/// What the writer is asked for.
pub(super) enum Request {
    /// Log and apply a command.
    Submit(Box<Submission>),
    /// Take a snapshot now.
    Snapshot(Reply<SnapshotReport>),
    /// Begin a backup; the token keeps it alive.
    Backup(Weak<()>, Reply<u64>),
    /// The next piece of a backup.
    BackupPart(u64, Reply<Option<Vec<u8>>>),
    /// Finish what waits, take a snapshot, end.
    Shutdown(oneshot::Sender<()>),
}

/// A command on its way in.
pub(super) struct Submission {
    pub(super) command: Command,
    pub(super) key: Option<IdempotencyKey>,
    /// Its size in the log, about, in bytes.
    pub(super) bytes: u64,
    pub(super) since: Instant,
    pub(super) reply: Reply<Applied>,
    /// Its share of the queue's bytes, given back once it is answered.
    pub(super) room: OwnedSemaphorePermit,
}
