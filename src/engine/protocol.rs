//! The writer's protocol: everything that other threads can request of it. Requests wait in a bounded queue. The writer serves
//! them between two group commits, in `Writer::serve`, and responds through the request's reply.

use super::event_log::EventsFound;
use super::request::{Reply, Waiter};
use super::snapshotter::SnapshotReport;
use cuckood_filter::CopySource;
use cuckood_log::store::{Manifest, Spool, Store, StoreError};
use cuckood_state::Lookup;
use cuckood_state::domain::{Command, FilterId, IdempotencyKey, Proposal, Timestamp};
use std::sync::Arc;
use tokio::sync::mpsc;

/// Approximate size of a pack of events.
const PACK_BYTES: u64 = 48 << 10;

/// Parts that have reached this size together are enough for one request, in bytes.
pub(super) const PARTS_BYTES: usize = 512 << 10;

/// The writer's queue.
pub(super) type Inbox = mpsc::Receiver<Request>;

/// A request of the writer. If it is dropped without a response, its caller gets [`super::SubmitError::StorageFailed`].
pub(super) enum Request {
    /// Log and apply a command.
    Submit(Box<Submission>),
    /// Look up the stored outcome of a command.
    StoredOutcome(Box<OutcomeQuery>),
    /// Return the time that every stored outcome remains, in seconds.
    OutcomeRetention(Reply<u64>),
    /// Take a snapshot of everything applied so far.
    Snapshot(Reply<SnapshotReport>),
    /// Return the source of a copy of a filter's tables; `None` if the filter does not exist.
    CopyTables {
        filter: FilterId,
        reply: Reply<Option<CopySource>>,
    },
    /// Respond once everything that any node has acknowledged is applied.
    Barrier(Reply<()>),
    /// Find an event.
    Events(EventsQuery),
    /// Pin the newest snapshot, for an archive of it; `None` if there is none.
    StartBackup(Reply<Option<Arc<Manifest>>>),
    /// Start an image of a filter; `None` if the filter does not exist.
    StartImage {
        filter: FilterId,
        reply: Reply<Option<Rest>>,
    },
    /// Read the next parts of a download from the store.
    DownloadParts(PartsQuery),
    /// Finish the accepted commands and end. The response follows once the store is closed.
    End(Reply<()>),
}

impl Request {
    /// Returns how much of the next group commit it takes up, in bytes: clients that immediately ask again must not delay commits.
    pub(super) fn cost_bytes(&self) -> u64 {
        match self {
            Request::Submit(submission) => submission.weight_bytes,
            Request::StoredOutcome(query) => query.command.weight_bytes(),
            Request::Events(_) => PACK_BYTES,
            Request::DownloadParts(_) => PARTS_BYTES as u64,
            Request::OutcomeRetention(_)
            | Request::Snapshot(_)
            | Request::CopyTables { .. }
            | Request::Barrier(_)
            | Request::StartBackup(_)
            | Request::StartImage { .. }
            | Request::End(_) => 0,
        }
    }
}

/// A command to be logged, and its caller.
pub(super) struct Submission {
    /// The writer stamps it once it is admitted.
    pub(super) proposal: Proposal,
    pub(super) waiter: Waiter,
    /// The weight of its command.
    pub(super) weight_bytes: u64,
}

/// A lookup of the outcome that is stored for a command under an idempotency key.
pub(super) struct OutcomeQuery {
    pub(super) command: Command,
    pub(super) key: IdempotencyKey,
    /// The caller's time.
    pub(super) now: Timestamp,
    pub(super) reply: Reply<Lookup>,
}

/// A lookup of an event by its number.
pub(super) struct EventsQuery {
    pub(super) number: u64,
    /// Whether a later event is no substitute.
    pub(super) must_exist: bool,
    pub(super) reply: Reply<EventsResponse>,
}

/// The result of a lookup of an event.
pub(super) struct EventsResponse {
    pub(super) found: EventsFound,
    pub(super) retention_seconds: u64,
    /// The number of the next event of the state.
    pub(super) next: u64,
}

/// The rest of an archive: reads its next part from the store of its snapshot; `None` after the last one. It keeps the snapshot, but not the
/// store open. No tree of events may be removed during a backup. An archive is rejected without its end, so nothing of it counts after an
/// error.
pub type ArchiveParts = Box<dyn FnMut(&Store) -> Result<Option<Vec<u8>>, StoreError> + Send>;

/// The rest of a download.
pub(super) enum Rest {
    /// The writer reads it from the store.
    Stored(ArchiveParts),
    /// Any thread reads it from a file.
    Spooled(Spool),
}

/// A read of the next parts of a download.
pub(super) struct PartsQuery {
    pub(super) rest: ArchiveParts,
    pub(super) is_backup: bool,
    /// The caller's time: that of the backup, if these parts are its last.
    pub(super) now: Timestamp,
    pub(super) reply: Reply<StoredParts>,
}

/// Parts of a download, read from the store.
pub(super) struct StoredParts {
    /// None after the last one.
    pub(super) parts: Vec<Vec<u8>>,
    pub(super) rest: ArchiveParts,
}
