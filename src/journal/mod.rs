//! The journal: the write-ahead log that puts all changes in one order. The state follows from it alone.
//!
//! The writer *proposes* batches of commands and *polls* what is committed: entries in the log's order, its own with their
//! tickets, those of other nodes without. The local journal commits inside `propose`. A replicated one may have several batches
//! in flight, and delivers other nodes' entries to a node that proposes nothing.

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

/// Durability level: what an acknowledged write survives.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Durability {
    /// The death of the machine: acknowledged after an `fdatasync`.
    #[default]
    Fsync,
    /// The death of the process: acknowledged after a flush to the operating system.
    Flush,
    /// Neither, for the last 100 ms: acknowledged at once.
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
    /// [`StoreError::Damaged`] if something acknowledged is missing.
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
    /// Acknowledged data can't be read. The message names the path, the tree, the position and the command to run.
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
    /// Proposes a group commit. It enters the log whole or not at all, at the configured durability, and [`Journal::poll`] then
    /// returns it. The proposals have consecutive tickets from `first` on.
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
}
