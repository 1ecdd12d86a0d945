//! The journal: the write-ahead log that puts all changes in one order. The state follows from it alone.
//!
//! The writer *proposes* batches of commands and *polls* what is committed: entries in the log's order, its own with their
//! tickets and in the order in which it proposed them, those of other nodes without. The local journal commits inside `propose`. A
//! replicated one may have several batches in flight, and delivers other nodes' entries to a node that proposes nothing.

mod local;
mod memory;
mod nats;

pub use local::{LocalJournal, LocalOptions};
pub use memory::{MemoryJournal, MemoryLog};
pub use nats::{
    Check, LogTime, NatsJournal, NatsLogin, NatsOptions, NatsSnapshots, NatsTls, Parts, Peer, Replication,
    SharedSnapshot, Taken, check_shared, init_log, is_of_replicated_log, read_shared,
};

use crate::domain::{Entry, FORMAT_VERSION, Proposal, Seq, StateHash};
use crate::store::{Store, StoreError};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;
use utoipa::ToSchema;

/// Draws random bytes from the operating system.
pub(crate) fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("the operating system gives random bytes once it has booted");
    bytes
}

/// What an acknowledged write survives.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Durability {
    /// A crash of the machine: acknowledged after an `fdatasync`.
    #[default]
    Fsync,
    /// A crash of the process: acknowledged after a flush to the operating system.
    Flush,
    /// Neither, for the last 100 ms: acknowledged immediately.
    Relaxed,
}

/// Which journal an engine runs on.
#[derive(Clone, Debug)]
pub enum JournalOptions {
    /// The log in the node's own store.
    Local(LocalOptions),
    /// A log in memory that several engines may share: for tests and for models.
    Memory(MemoryLog),
    /// A replicated log on NATS JetStream.
    Nats(Box<NatsOptions>),
}

impl Default for JournalOptions {
    fn default() -> Self {
        JournalOptions::Local(LocalOptions::default())
    }
}

impl JournalOptions {
    /// Opens the journal.
    ///
    /// # Errors
    /// [`JournalError::Damaged`] if something acknowledged is missing; [`JournalError::Failed`] if the log can't be reached.
    pub fn open(&self, store: &Arc<Store>) -> Result<Box<dyn Journal>, JournalError> {
        let path = store.path().display();
        match self {
            JournalOptions::Local(_) if is_of_replicated_log(store) => {
                return Err(JournalError::Damaged(format!(
                    "{path} holds snapshots of a replicated log, and no log: set journal.kind to \"nats\", or restore a backup elsewhere"
                )));
            }
            JournalOptions::Nats(_) if local::has_log(store) => {
                return Err(JournalError::Damaged(format!(
                    "{path} has a log of its own: a node of a replicated log begins with an empty directory"
                )));
            }
            _ => {}
        }
        Ok(match self {
            JournalOptions::Local(options) => Box::new(LocalJournal::open(store.clone(), *options)?),
            JournalOptions::Memory(log) => {
                store.begin_use()?;
                Box::new(log.join())
            }
            JournalOptions::Nats(options) => Box::new(NatsJournal::open(store.clone(), options)?),
        })
    }

    /// Opens the access to the snapshots that nodes share; `None` if they share none.
    ///
    /// # Errors
    /// [`JournalError::Failed`] if it can't be reached.
    pub fn shared_snapshots(&self) -> Result<Option<NatsSnapshots>, JournalError> {
        Ok(match self {
            JournalOptions::Nats(options) => Some(NatsSnapshots::open(options)?),
            JournalOptions::Local(_) | JournalOptions::Memory(_) => None,
        })
    }

    /// Whether other nodes write to the same log.
    pub fn is_shared(&self) -> bool {
        !matches!(self, JournalOptions::Local(_))
    }

    /// What an acknowledged write survives.
    pub fn durability(&self) -> Durability {
        match self {
            JournalOptions::Local(options) => options.durability,
            JournalOptions::Memory(_) => Durability::Relaxed,
            // The servers sync before they acknowledge, or the operator was told that they must.
            JournalOptions::Nats(_) => Durability::Fsync,
        }
    }
}

/// Rejects a batch if too little space is free for it. One that only frees space may use the reserve below the watermark.
fn check_space(store: &Store, batch: &[Proposal]) -> Result<(), StoreError> {
    match batch.iter().all(|proposal| proposal.command.frees_space()) {
        true => store.space.check_reserve(0),
        false => store.space.check(),
    }
}

/// The number that a node gives to its proposal, to recognise the outcome.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Ticket(pub u64);

/// A committed entry, which may be applied.
#[derive(Clone, PartialEq, Debug)]
pub struct Committed {
    /// The entry.
    pub entry: Entry,
    /// The ticket of the proposal, if this node made it.
    pub ticket: Option<Ticket>,
}

/// A failure of the journal.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// Too little space is free. Nothing was written and nothing is damaged: the caller may try again later.
    #[error("{0}")]
    DiskFull(String),
    /// A write or sync failed. The outcome of the batch is unknown, and nothing is written any more.
    #[error("{0}")]
    Failed(String),
    /// The log can't be used as it is set up: a server, the stream or an option must be changed.
    #[error("{0}")]
    Unusable(String),
    /// Acknowledged data can't be read. The message names the path, the tree, the position and the command to run.
    #[error("{0}")]
    Damaged(String),
    /// The log was trimmed past what the directory has. A newer snapshot helps, such as one that other nodes share.
    #[error("{0}")]
    Trimmed(String),
    /// The state of this node is not that of the others, and it is not for this node to go on.
    #[error(
        "the state of this node differs from that of {others} at position {}: stop it, and go by \
         docs/CLUSTER.md, When nodes differ", .at.0
    )]
    Diverged {
        /// The position at which it shows.
        at: Seq,
        /// The nodes that differ.
        others: String,
    },
    /// An entry is of a version that this build does not understand.
    #[error(
        "from position {} on the log has entries of version {version}, and this build understands those up to {understands}: update this node", .at.0
    )]
    Newer {
        /// The position that enables them.
        at: Seq,
        /// Their version.
        version: u16,
        /// What this build understands.
        understands: u16,
    },
}

impl From<StoreError> for JournalError {
    fn from(error: StoreError) -> JournalError {
        match error {
            StoreError::DiskFull { .. } | StoreError::NoSpace { .. } => {
                JournalError::DiskFull(error.to_string())
            }
            StoreError::Damaged { .. } => JournalError::Damaged(error.to_string()),
            _ => JournalError::Failed(error.to_string()),
        }
    }
}

/// An ordered, durable log. Positions count from 1 without gaps.
pub trait Journal: Send {
    /// Proposes a group commit. Each proposal enters the log once or not at all, at the configured durability, and
    /// [`Journal::poll`] then returns it. The proposals have consecutive tickets from `first` on, and enter the log in that order.
    ///
    /// # Errors
    /// [`JournalError::DiskFull`] before anything is written. After [`JournalError::Failed`] the batch may or may not be there at
    /// the next start, and every later proposal fails.
    fn propose(&mut self, first: Ticket, batch: Vec<Proposal>) -> Result<(), JournalError>;

    /// Returns what was committed after `after`, in the log's order; never an empty batch. Otherwise it is pending, and wakes the
    /// context's waker when there is news. Must be called at [`Journal::poll_at`] at the latest.
    ///
    /// # Errors
    /// [`JournalError::Failed`], as for a proposal; [`JournalError::Damaged`] if entries after `after` are gone.
    fn poll(&mut self, after: Seq, context: &mut Context<'_>) -> Poll<Result<Vec<Committed>, JournalError>>;

    /// When the journal has work of its own to do, such as flushing what was acknowledged at once.
    fn poll_at(&self) -> Option<Instant>;

    /// Streams the entries after `after` in order, until the sink stops it or the log ends. Verifies checksums, their chain and
    /// the end on the way.
    ///
    /// # Errors
    /// [`JournalError::Damaged`] for a gap, a bad value or an end before the acknowledged position. Errors of the sink end the
    /// stream and are passed on.
    fn read(
        &mut self,
        after: Seq,
        sink: &mut dyn FnMut(Entry) -> Result<ControlFlow<()>, JournalError>,
    ) -> Result<(), JournalError>;

    /// Allows the journal to drop entries up to and including `through`. One call reads or drops about `budget` bytes, so that
    /// nobody waits long. Returns whether it should be called again.
    ///
    /// # Errors
    /// [`JournalError::Failed`], as for a proposal.
    fn prune(&mut self, through: Seq, budget: u64) -> Result<bool, JournalError>;

    /// Makes everything committed so far durable, at any level: for a clean end.
    ///
    /// # Errors
    /// [`JournalError::Failed`], as for a proposal.
    fn settle(&mut self) -> Result<(), JournalError>;

    /// The position of the last entry; 0 if there never was one.
    fn last(&self) -> Seq;

    /// The first position that can be read; the one after [`Journal::last`] if there is none.
    fn first_available(&self) -> Seq;

    /// Whether the log reaches back to its beginning, or to the backup that it was restored from.
    ///
    /// # Errors
    /// [`JournalError::Damaged`] if the log's beginning can't be read.
    fn is_whole(&self) -> Result<bool, JournalError>;

    /// A snapshot of everything up to `at`, which was just polled, begins: the journal notes what it needs to be read from there at
    /// the next start. It is durable once the snapshot is.
    ///
    /// # Errors
    /// [`JournalError::Failed`], as for a proposal.
    fn note_snapshot(&mut self, at: Seq) -> Result<(), JournalError> {
        let _ = at;
        Ok(())
    }

    /// What another node needs to follow the log behind this position, at which a snapshot of this node was taken; `None` if nobody
    /// can, or the position is not known.
    ///
    /// # Errors
    /// [`JournalError::Damaged`] if it can't be read.
    fn place(&self, at: Seq) -> Result<Option<Vec<u8>>, JournalError> {
        let _ = at;
        Ok(None)
    }

    /// Asks for a point in the log behind everything that any node has acknowledged. Once [`Journal::passed`] has reached the ticket, all
    /// of that was polled.
    ///
    /// # Errors
    /// [`JournalError::Failed`], as for a proposal.
    fn barrier(&mut self, barrier: Ticket) -> Result<(), JournalError> {
        let _ = barrier;
        Ok(())
    }

    /// The last barrier that is passed. Where nothing is replicated, all are as soon as [`Journal::poll`] is pending.
    fn passed(&self) -> Option<Ticket> {
        Some(Ticket(u64::MAX))
    }

    /// Tells the other nodes the hash of this node's state, and compares it with theirs. If they show that it has diverged,
    /// [`Journal::poll`] fails.
    fn compare(&mut self, hash: StateHash) {
        let _ = hash;
    }

    /// The highest version of entries that this node understands.
    fn understands(&self) -> u16 {
        FORMAT_VERSION
    }

    /// What is known about the log's replication; `None` if it is not replicated.
    fn replication(&self) -> Option<Arc<Mutex<Replication>>> {
        None
    }
}
