//! The journal: the one order of all changes. The state is what the journal says; nothing else may change it.
//!
//! The writer *proposes* batches of commands and *polls* what is committed: entries in the log's order, its own with
//! their tickets, other nodes' without. The local journal commits inside `propose`. A replicated one may have several
//! batches in flight, and delivers other nodes' entries to a node that proposes nothing.

mod local;
mod memory;

pub use local::{LocalJournal, LocalOptions};
pub use memory::{MemoryJournal, MemoryLog};

use crate::domain::{Entry, Proposal, Seq};
use crate::store::{Store, StoreError};
use serde::{Deserialize, Serialize};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

/// What an acknowledged write survives.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Durability {
    /// The death of the machine: acknowledged after an `fdatasync`.
    #[default]
    Fsync,
    /// The death of the process: acknowledged after the engine's flush.
    Flush,
    /// Neither for the last 100 ms: acknowledged at once.
    Relaxed,
}

/// Which journal an engine runs on.
#[derive(Clone, Debug)]
pub enum JournalOptions {
    /// The log in the node's own store.
    Local(LocalOptions),
    /// A log in memory that several engines may share: for tests and for models.
    Memory(MemoryLog),
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
    /// [`StoreError::Damaged`] if something that was acknowledged is not there.
    pub fn open(&self, store: &Arc<Store>) -> Result<Box<dyn Journal>, StoreError> {
        Ok(match self {
            JournalOptions::Local(options) => Box::new(LocalJournal::open(store.clone(), *options)?),
            JournalOptions::Memory(log) => {
                store.begin_use()?;
                Box::new(log.join())
            }
        })
    }

    /// What an acknowledged write survives.
    pub fn durability(&self) -> Durability {
        match self {
            JournalOptions::Local(options) => options.durability,
            JournalOptions::Memory(_) => Durability::Relaxed,
        }
    }
}

/// Names a proposal to the node that made it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Ticket(pub u64);

/// An entry that is durable and may be applied.
#[derive(Clone, PartialEq, Debug)]
pub struct Committed {
    /// The entry.
    pub entry: Entry,
    /// The ticket under which it was proposed, if this node did.
    pub ticket: Option<Ticket>,
}

/// A failure of the journal.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// Too little free space; nothing was written, and nothing is spoilt: it may be tried again later.
    #[error("{0}")]
    DiskFull(String),
    /// A write or sync failed. The outcome of the batch is unknown, and nothing is written any more.
    #[error("{0}")]
    Failed(String),
    /// What was acknowledged can't be read; tells the path, the tree, the position and the command to run.
    #[error("{0}")]
    Damaged(String),
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
    /// Proposes a group commit. It enters the log whole or not at all, at the configured durability, and then comes back
    /// from [`Journal::poll`]; the proposals bear consecutive tickets from `first` on.
    ///
    /// # Errors
    /// [`JournalError::DiskFull`] before anything is written; after [`JournalError::Failed`] the batch may or
    /// may not be there at the next start, and every later proposal fails.
    fn propose(&mut self, first: Ticket, batch: Vec<Proposal>) -> Result<(), JournalError>;

    /// What has been committed after `after`, in the log's order: ready only if there is something. Otherwise the
    /// context's waker is woken when there is. Must be called at [`Journal::poll_at`] at the latest.
    ///
    /// # Errors
    /// [`JournalError::Failed`], as for a proposal; [`JournalError::Damaged`] if entries after `after` are gone.
    fn poll(&mut self, after: Seq, context: &mut Context<'_>) -> Poll<Result<Vec<Committed>, JournalError>>;

    /// When the journal has something to do by itself, such as flushing what was acknowledged at once.
    fn poll_at(&self) -> Option<Instant>;

    /// Streams the entries after `after` in order, until the sink has enough or the log ends. What was written is verified on
    /// the way: checksums, their chain, the end.
    ///
    /// # Errors
    /// [`JournalError::Damaged`] for a gap, a bad value or an end before what was acknowledged; errors of the
    /// sink end the reading and pass through.
    fn read(
        &mut self,
        after: Seq,
        sink: &mut dyn FnMut(Entry) -> Result<ControlFlow<()>, JournalError>,
    ) -> Result<(), JournalError>;

    /// Tells that entries up to and including `through` are not needed any more. About `budget` bytes of them are looked
    /// through or go, so that nobody waits long for it; answers whether it should be called again.
    ///
    /// # Errors
    /// [`JournalError::Failed`], as for a proposal.
    fn prune(&mut self, through: Seq, budget: u64) -> Result<bool, JournalError>;

    /// Makes everything committed so far durable whatever the level: for a clean end.
    ///
    /// # Errors
    /// [`JournalError::Failed`], as for a proposal.
    fn settle(&mut self) -> Result<(), JournalError>;

    /// The position of the last entry; 0 if there was never one.
    fn last(&self) -> Seq;

    /// The first position that can be read; the one after [`Journal::last`] if nothing can.
    fn first_available(&self) -> Seq;

    /// Whether everything can be read that the log ever held, but for what lies before the backup that it was restored from.
    ///
    /// # Errors
    /// [`JournalError::Damaged`] if the log's beginning can't be read.
    fn is_whole(&self) -> Result<bool, JournalError>;
}
