//! The engine: one state, one journal and one writer, and everything that requests need of them.
//!
//! [`Engine::submit`] is the only way for requests to change anything. It resolves once the change is committed at the configured
//! durability and applied, or its outcome is unknown. Reads go straight to the filters. Their tables have no lock; redemptions have one per
//! coupon.

mod admission;
pub mod applying;
mod backup;
mod cluster;
mod commits;
pub mod event_log;
mod event_reader;
mod handle;
mod images;
mod in_use;
pub mod journal;
mod metrics;
mod offline;
mod plan;
mod protocol;
pub mod recovery;
mod refusals;
mod request;
mod restore;
mod snapshotter;
mod start;
mod status;
#[cfg(feature = "testing")]
pub mod stepped;
mod timekeeping;
mod upkeep;
mod verify;
mod writer;

pub use backup::{BackupDownload, archive};
pub use cluster::{ClusterOptions, SharingFigures};
pub use event_log::EventFigures;
pub use event_reader::{EventReader, EventsError, NumberedEvent};
pub use handle::Engine;
pub use in_use::UseReason;
pub use metrics::EngineMetrics;
pub use offline::{
    ClockRepair, archive_directory, positions, repair_clock, restore_into_cluster, skip_entry,
};
pub use plan::{
    Plan, REPLACEMENT_QUEUE_BYTES, creation, disk_bytes, image_part, plan, startup_seconds,
};
pub use protocol::ArchiveParts;
pub use recovery::{Progress, RecoveryError};
pub use request::SubmitError;
pub use restore::restore;
pub use snapshotter::{RunningSnapshot, SnapshotOptions, SnapshotReport};
pub use start::EngineOptions;
pub use status::EngineStatus;
pub use verify::verify;

use crate::clock::Clock;
use arc_swap::ArcSwapOption;
use cuckood_log::journal::Replication;
use cuckood_log::store::{Store, StoreFigures};
use cuckood_state::domain::{Seq, Timestamp};
use cuckood_state::{Sizes, Views};
use parking_lot::Mutex;
use refusals::Refusals;
use serde::Serialize;
use status::CurrentStatus;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};
use std::time::Instant;
use tokio::sync::{Notify, Semaphore, watch};
use utoipa::ToSchema;

/// The newest snapshot.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, ToSchema)]
#[schema(as = SnapshotInfo)]
pub struct LatestSnapshot {
    /// The last log entry that it covers.
    #[schema(value_type = u64)]
    pub seq: Seq,
    /// When it was taken.
    pub taken_at: Timestamp,
}

/// Sizes and positions of the engine. The writer records most of them for threads that can't read the state themselves.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct EngineInfo {
    /// The version of entries that is enabled.
    pub format: u16,
    /// The last entry applied.
    pub last_seq: Seq,
    /// The newest snapshot, if there is one.
    pub snapshot: Option<LatestSnapshot>,
    /// Sizes of the state.
    pub sizes: Sizes,
    /// Bytes of tables, including dropped ones that are not freed yet.
    pub tables_bytes: u64,
    /// Bytes of redemptions and stored outcomes, approximately; in the same way.
    pub records_bytes: u64,
    /// The store's metrics.
    pub storage: StoreFigures,
    /// When the last backup was completed; before the first one, when the directory was first served.
    pub backup_at: Option<Timestamp>,
    /// Commands in the queue.
    pub queue_commands: u64,
    /// Sizes of the log of events.
    pub events: EventFigures,
    /// The shared snapshots.
    pub sharing: SharingFigures,
    /// Seconds since the start.
    pub uptime_seconds: u64,
}

struct Inner {
    options: EngineOptions,
    clock: Clock,
    metrics: EngineMetrics,
    started: Instant,
    /// Set once recovery is done.
    view: OnceLock<Views>,
    /// Set while the writer has the store open.
    store: ArcSwapOption<Store>,
    status: CurrentStatus,
    figures: Mutex<EngineInfo>,
    /// The last entry that readers see.
    applied: AtomicU64,
    /// Notified when that changes.
    moved: Notify,
    /// The time of the last entry, in milliseconds since the epoch.
    logged_at: AtomicU64,
    refusals: Arc<Refusals>,
    /// Set once a replicated log is open.
    replication: OnceLock<Arc<Mutex<Replication>>>,
    /// The log was trimmed past this node while it was running: only a restart helps.
    outdated: Notify,
    /// Asks the thread that shares snapshots for one, or to look whether the engine has ended.
    share: Notify,
    /// The memory at which writes that add items are rejected: the limit or, while a table can't grow, what was used at the last rejection.
    memory_short_bytes: AtomicU64,
    /// The number of the last event.
    events_last: watch::Sender<u64>,
    event_waiters: Semaphore,
    room: Arc<Semaphore>,
    /// Places for backups, and for images, in progress.
    backups: Arc<Semaphore>,
    images: Arc<Semaphore>,
}
