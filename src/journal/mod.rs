//! The journal: the one order of all changes. The state is what the journal says; nothing else may change it.

mod local;
mod memory;

pub use local::LocalJournal;
pub use memory::MemoryJournal;

use crate::domain::{Entry, Proposal, Seq};
use crate::store::StoreError;

/// An entry that is durable and may be applied.
#[derive(Clone, PartialEq, Debug)]
pub struct Committed {
    /// The entry.
    pub entry: Entry,
    /// Its index in the batch that was appended, if it is one of ours.
    pub ticket: Option<usize>,
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
    /// Appends a group commit, all or nothing, and makes it durable at the configured level. Hands back what is
    /// now in the log, in its order: what was given, and with a replicated journal other nodes' entries too.
    ///
    /// # Errors
    /// [`JournalError::DiskFull`] before anything is written; after [`JournalError::Failed`] the batch may or
    /// may not be there at the next start, and every later append fails.
    fn append(&mut self, batch: Vec<Proposal>) -> Result<Vec<Committed>, JournalError>;

    /// Streams the entries after `after` in order, verifying checksums and their chain.
    ///
    /// # Errors
    /// [`JournalError::Damaged`] for a gap, a bad value or an end before what was acknowledged; errors of the
    /// sink end the reading and pass through.
    fn read_from(
        &mut self,
        after: Seq,
        sink: &mut dyn FnMut(Entry) -> Result<(), JournalError>,
    ) -> Result<(), JournalError>;

    /// Tells that entries up to and including `through` are not needed any more. About `budget` bytes of them are looked
    /// through or go, so that nobody waits long for it; answers whether it should be called again.
    ///
    /// # Errors
    /// [`JournalError::Failed`], as for an append.
    fn prune(&mut self, through: Seq, budget: u64) -> Result<bool, JournalError>;

    /// Makes everything appended so far durable whatever the level: for a clean end.
    ///
    /// # Errors
    /// [`JournalError::Failed`], as for an append.
    fn settle(&mut self) -> Result<(), JournalError>;

    /// The position of the last entry; 0 if there was never one.
    fn last(&self) -> Seq;

    /// The first position that can be read; the one after [`Journal::last`] if nothing can.
    fn first_available(&self) -> Seq;
}
