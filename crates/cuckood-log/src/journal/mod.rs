//! The journal: the write-ahead log that puts all changes in one order. The state follows from it alone.
//!
//! The writer *proposes* batches of commands and *polls* committed entries: in the log's order, its own with their tickets and in the order
//! in which it proposed them, those of other nodes without. A startup polls in the same way, from the position of its snapshot on. The
//! local journal commits inside `propose`. A replicated one may have several batches in flight, and delivers other nodes' entries to a node
//! that proposes nothing.

mod local;
mod replication;

pub use local::{LocalJournal, LocalOptions, has_log};
pub use replication::{LogTime, OtherNode, Replication};

#[cfg(feature = "testing")]
use crate::store::StoreOptions;
use crate::store::{Store, StoreError};
use cuckood_state::domain::{Command, Entry, Proposal, Seq, understood_version};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
#[cfg(feature = "testing")]
use std::path::Path;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

/// Draws random bytes from the operating system; in a simulation, from its seed.
pub fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    #[cfg(feature = "testing")]
    if cuckood_state::testing::seeded::fill(&mut bytes) {
        return bytes;
    }
    getrandom::fill(&mut bytes)
        .expect("the operating system gives random bytes once it has booted");
    bytes
}

/// The crashes that an acknowledged write survives.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
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

/// Rejects a batch if too little space is free for it. One that only frees space may use the reserve below the watermark.
///
/// # Errors
/// [`StoreError::DiskFull`].
pub fn check_space(store: &Store, batch: &[Proposal]) -> Result<(), StoreError> {
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

/// News of the log, in its order.
#[derive(Clone, PartialEq, Debug)]
pub enum Delivery {
    /// Entries, at least one.
    Entries(Vec<Committed>),
    /// Everything is delivered that was in the log when the journal was opened.
    Current,
    /// Everything is delivered that any node had acknowledged when this barrier was requested, or one before it.
    Passed(Ticket),
}

/// Decodes entries that were encoded one after the other, the first of which has this position.
///
/// # Errors
/// The defect, if the entries are damaged.
pub fn decode_entries(first: Seq, count: u64, mut payload: &[u8]) -> Result<Vec<Entry>, String> {
    let mut entries = Vec::new();
    for seq in (first.0..).take(count as usize).map(Seq) {
        let (proposal, rest) =
            postcard::take_from_bytes::<Proposal>(payload).map_err(|error| error.to_string())?;
        payload = rest;
        entries.push(Entry { seq, proposal });
    }
    if payload.is_empty() {
        Ok(entries)
    } else {
        Err("its entries do not fill it".to_owned())
    }
}

/// Rejects entries after one that enables a version which this build does not understand.
///
/// # Errors
/// [`JournalError::Newer`].
pub fn check_understood(entries: &[Entry]) -> Result<()> {
    entries
        .iter()
        .try_for_each(|entry| match entry.proposal.command {
            Command::Enable { version } => JournalError::check_version(entry.seq, version),
            _ => Ok(()),
        })
}

/// The result of a call of the journal.
pub type Result<T, E = JournalError> = std::result::Result<T, E>;

/// A failure of the journal.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// Too little space is free. Nothing was written and nothing is damaged: the caller may try again later.
    #[error("{0}")]
    DiskFull(String),
    /// A snapshot is too long to be read again. Nothing was written and nothing is damaged.
    #[error("{0}")]
    TooLong(String),
    /// A write or sync failed. The outcome of the batch is unknown, and nothing is written any more.
    #[error("{0}")]
    Failed(String),
    /// The log can't be used as it is set up: a server, the stream or an option must be changed.
    #[error("{0}")]
    Unusable(String),
    /// Acknowledged data can't be read. The message names the path, the tree, the position and the command to run.
    #[error("{0}")]
    Damaged(String),
    /// The log was trimmed past the directory's position. A newer snapshot helps, such as one shared by other nodes.
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
    /// A later version wrote an entry, a snapshot or its label, and nothing is damaged: this build is too old.
    #[error("{0}")]
    Newer(String),
}

impl From<StoreError> for JournalError {
    fn from(error: StoreError) -> JournalError {
        let kind = match error {
            _ if error.is_disk_full() => JournalError::DiskFull,
            StoreError::TooLong(_) => JournalError::TooLong,
            StoreError::Damaged { .. } => JournalError::Damaged,
            StoreError::Newer { .. } => JournalError::Newer,
            _ => JournalError::Failed,
        };
        kind(error.to_string())
    }
}

impl JournalError {
    /// Rejects entries after a position at which a version is enabled that this build does not understand.
    ///
    /// # Errors
    /// [`JournalError::Newer`].
    pub fn check_version(at: Seq, version: u16) -> Result<()> {
        if version > understood_version() {
            Err(JournalError::newer(at, version))
        } else {
            Ok(())
        }
    }

    /// The rejection of entries after a position at which a version is enabled that this build does not understand.
    pub fn newer(Seq(at): Seq, version: u16) -> JournalError {
        let understands = understood_version();
        JournalError::Newer(format!(
            "from position {at} on the log has entries of version {version}, and this build understands those up to {understands}: \
             update this node"
        ))
    }
}

/// An ordered, durable log. Positions count from 1 without gaps.
pub trait Journal: Send {
    /// Proposes a group commit. Each proposal enters the log once or not at all, at the configured durability, and
    /// [`Journal::poll`] then returns it. The proposals have consecutive tickets from `first` on, and enter the log in that order.
    ///
    /// # Errors
    /// [`JournalError::DiskFull`] before anything is written. After [`JournalError::Failed`] the batch may or may not be there at
    /// the next start, and the journal must not be used any more.
    fn propose(&mut self, first: Ticket, batch: Vec<Proposal>) -> Result<()>;

    /// Returns the entries after `after`, the last applied one: first those already in the log, then newly committed ones. Otherwise it is
    /// pending, and wakes the context's waker when there is news. Must be called at [`Journal::wake_at`] at the latest. `now` is the
    /// caller's monotonic time: a journal has no other clock for its deadlines.
    ///
    /// # Errors
    /// [`JournalError::Failed`], as for a proposal; [`JournalError::Damaged`] if entries after `after` are missing or damaged;
    /// [`JournalError::Newer`] if they are of a version that this build does not understand.
    fn poll(
        &mut self,
        after: Seq,
        now: Instant,
        context: &mut Context<'_>,
    ) -> Poll<Result<Delivery>>;

    /// When the journal has internal work, such as flushing writes that were acknowledged immediately.
    fn wake_at(&self, now: Instant) -> Option<Instant>;

    /// Requests a point in the log after everything that any node has acknowledged: [`Delivery::Passed`]. Barriers have ascending tickets.
    fn barrier(&mut self, barrier: Ticket);

    /// Where the log continues after the last delivery. A snapshot keeps it; empty if the position alone is enough.
    fn place(&self) -> Vec<u8> {
        Vec::new()
    }

    /// The state of the log's replication, if it is replicated. The engine notes the hash of its state in it, which is reported to the other
    /// nodes; if theirs show that this node has diverged, [`Journal::poll`] fails.
    fn replication(&self) -> Option<Arc<Mutex<Replication>>> {
        None
    }

    /// Allows the journal to drop entries up to and including `through`. One call reads or drops about `budget` bytes, so that commits
    /// don't wait long. Returns whether it should be called again.
    ///
    /// # Errors
    /// [`JournalError::Failed`], as for a proposal.
    fn prune(&mut self, through: Seq, budget: u64) -> Result<bool>;

    /// Makes everything committed so far durable, at any level: for a clean end.
    ///
    /// # Errors
    /// [`JournalError::Failed`], as for a proposal.
    fn settle(&mut self) -> Result<()>;
}

/// Opens a log that only tests know.
#[cfg(feature = "testing")]
pub trait OpenJournal: std::fmt::Debug + Send + Sync {
    /// Opens the journal of a node with this store.
    ///
    /// # Errors
    /// Those of a journal's start.
    fn open(&self, store: &Arc<Store>) -> Result<Box<dyn Journal>>;

    /// Opens the data directory that the journal belongs to.
    ///
    /// # Errors
    /// Those of [`Store::open`].
    fn open_store(&self, path: &Path, options: &StoreOptions) -> Result<Store, StoreError> {
        Store::open(path, options)
    }

    /// Whether other nodes write to the same log.
    fn is_shared(&self) -> bool {
        true
    }
}
