//! Why a command that was submitted has no outcome.

use crate::clock::ClockUnsure;
use thiserror::Error;

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
