//! The data directory: sled, opened with every care, and what lies in it. Knows bytes and positions; what they
//! mean is for the journal and the engine to say.
//!
//! One thread owns a [`Store`], and it is never one of tokio's workers: sled blocks, and waits for itself.
//! After the first failed write or sync the store is *poisoned*: nothing is written any more, whatever was under
//! way is of unknown outcome, and reads go on.

mod acknowledged;
pub mod archive;
pub mod backing;
mod copy;
mod directory;
mod error;
mod kept_clock;
mod layout;
pub(crate) mod log;
mod migrations;
mod open;
pub(crate) mod removal;
mod restore;
mod sled_backing;
mod snapshots;
mod space;
pub mod verify;

pub use copy::StoreCopy;
pub use error::StoreError;
pub use kept_clock::KeptClock;
pub use restore::restore;
pub use snapshots::{
    CHUNK_BYTES_MAX, GENERATIONS_KEPT, Manifest, SectionKey, SectionRef, SnapshotWriter, Sweep,
};

use crate::domain::ClockReading;
use acknowledged::Acknowledged;
use backing::{Backing, Change, Fault};
use directory::Directory;
use kept_clock::KeptClockFile;
use log::Link;
use parking_lot::{Mutex, MutexGuard};
use serde::{Deserialize, Serialize};
use space::Space;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

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

/// How long what was acknowledged at once may wait to be flushed.
const RELAXED_PATIENCE: Duration = Duration::from_millis(100);

/// How a store is kept.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoreOptions {
    /// What an acknowledged write survives.
    pub durability: Durability,
    /// Nothing is written while fewer bytes than this are free.
    pub free_space_min_bytes: u64,
    /// Space held in reserve, so that a full disk can be opened.
    pub ballast_bytes: u64,
    /// How long sled may take to open.
    pub open_timeout: Duration,
    /// How large sled's file is made in a new directory. Where blocks are there already, a sync has no metadata
    /// to write along: half the time of a small commit.
    pub preallocate_bytes: u64,
    /// Memory for sled's cache, in bytes.
    pub cache_bytes: u64,
    /// Bytes of log after which a new segment is begun, each value counted as half a kilobyte more; whole segments are dropped.
    pub wal_segment_bytes: u64,
    /// Rest between two syncs of the acknowledged position: how far it may be behind after a power cut.
    pub acknowledged_sync_pause: Duration,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            durability: Durability::Fsync,
            free_space_min_bytes: 256 << 20,
            ballast_bytes: 64 << 20,
            open_timeout: Duration::from_secs(25),
            preallocate_bytes: 64 << 20,
            cache_bytes: 64 << 20,
            wal_segment_bytes: 8 << 20,
            acknowledged_sync_pause: Duration::from_millis(10),
        }
    }
}

/// Figures for `/v1/info` and the metrics.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StoreFigures {
    /// Bytes that the directory takes up on disk.
    pub disk_bytes: u64,
    /// Bytes that are free on its file system.
    pub free_bytes: u64,
    /// Bytes of log written since the start.
    pub wal_bytes_written: u64,
    /// Bytes of snapshots written since the start.
    pub snapshot_bytes_written: u64,
}

/// An open data directory.
pub struct Store {
    // Dropped first: sled has let go of its files when the lock is released.
    backing: Box<dyn Backing>,
    directory: Directory,
    options: StoreOptions,
    space: Space,
    identity: [u8; 16],
    boot: u128,
    acknowledged: Mutex<Acknowledged>,
    clock: KeptClockFile,
    poison: OnceLock<String>,
    pinned: Mutex<Vec<Arc<Manifest>>>,
    writing: AtomicU64,
    wal_bytes_written: AtomicU64,
    snapshot_bytes_written: AtomicU64,
    /// Bytes of chunks that were written since everything was last made durable.
    unsynced_chunk_bytes: AtomicU64,
}

impl Store {
    /// Opens a data directory, made if it is absent or empty.
    ///
    /// # Errors
    /// [`StoreError::Locked`], [`StoreError::NotOurs`] and [`StoreError::Newer`] before anything is written;
    /// [`StoreError::Damaged`] rather than a store that lacks something acknowledged;
    /// [`StoreError::DiskFull`] if sled finds no room even without the ballast.
    pub fn open(dir: &Path, options: &StoreOptions) -> Result<Store, StoreError> {
        Store::open_over(dir, options, |backing| backing)
    }

    /// The same over an adapter that stands between the store and sled, for tests that inject faults.
    pub fn open_over(
        dir: &Path,
        options: &StoreOptions,
        over: impl FnOnce(Box<dyn Backing>) -> Box<dyn Backing>,
    ) -> Result<Store, StoreError> {
        open::open(dir, options, open::Purpose::Serve, over)
    }

    /// The data directory.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Sizes and counts; walks the directory's dozen of files.
    pub fn figures(&self) -> StoreFigures {
        StoreFigures {
            disk_bytes: directory::bytes_on_disk(self.path()),
            free_bytes: self.space.free_bytes().unwrap_or(0),
            wal_bytes_written: self.wal_bytes_written.load(Relaxed),
            snapshot_bytes_written: self.snapshot_bytes_written.load(Relaxed),
        }
    }

    /// What the clocks said when they were last trusted, if that was kept.
    pub fn kept_clock(&self) -> Option<KeptClock> {
        self.clock.load()
    }

    /// Keeps what the clocks say now, for the next start to judge the clock by. Nothing depends on whether it can be written.
    pub fn keep_clock(&self, reading: ClockReading) {
        if let Err(error) = self.clock.keep(reading) {
            tracing::debug!(%error, "what the clock says can't be kept");
        }
    }

    /// Why nothing is written any more, if a write or sync has failed.
    pub fn poisoned(&self) -> Option<&str> {
        self.poison.get().map(String::as_str)
    }

    /// Makes everything written so far durable, whatever the level: before the process ends, for one.
    pub fn make_durable(&self) -> Result<(), StoreError> {
        self.refuse_if_poisoned()?;
        self.poisoning(self.backing.flush())?;
        if self.options.durability == Durability::Fsync {
            self.poisoning(self.backing.sync())?;
        }
        self.unsynced_chunk_bytes.store(0, Relaxed);
        Ok(())
    }

    /// How long what was committed may wait for [`Store::make_durable`]; not at all but at [`Durability::Relaxed`].
    pub fn patience(&self) -> Option<Duration> {
        (self.options.durability == Durability::Relaxed).then_some(RELAXED_PATIENCE)
    }

    /// Makes a commit durable at the configured level and notes that it is about to be acknowledged.
    pub(crate) fn commit(&self, link: Link) -> Result<(), StoreError> {
        if self.options.durability == Durability::Relaxed {
            return Ok(());
        }
        self.make_durable()?;
        self.note_acknowledged(link, self.options.durability == Durability::Fsync)
    }

    fn note_acknowledged(&self, link: Link, synced: bool) -> Result<(), StoreError> {
        let mut acknowledged = self.acknowledged.lock();
        let synced = if synced { link } else { acknowledged.synced };
        *acknowledged = Acknowledged { last: link, synced };
        self.poisoning(self.backing.acknowledge(&acknowledged.encode(&self.identity, self.boot)))
    }

    /// Flushes and syncs at whatever level, and notes the end of the log as acknowledged.
    pub(crate) fn settle(&self, link: Link) -> Result<(), StoreError> {
        self.refuse_if_poisoned()?;
        self.poisoning(self.backing.flush())?;
        self.poisoning(self.backing.sync())?;
        self.note_acknowledged(link, true)?;
        self.poisoning(self.backing.sync_acknowledged())
    }

    pub(crate) fn acknowledged(&self) -> Link {
        self.acknowledged.lock().last
    }

    /// Where the log begins: position 0, or that of the backup that was restored.
    pub(crate) fn log_base(&self) -> Result<Link, StoreError> {
        let mut bytes = Vec::new();
        self.run(self.backing.read(layout::META_TREE, layout::LOG_BASE_KEY, &mut bytes))?;
        Link::decode(&bytes).ok_or_else(|| self.damaged("tree meta: log-base is missing"))
    }

    pub(crate) fn backing(&self) -> &dyn Backing {
        &*self.backing
    }

    pub(crate) fn options(&self) -> &StoreOptions {
        &self.options
    }

    pub(crate) fn damaged(&self, what: impl Into<String>) -> StoreError {
        StoreError::damaged(self.path(), what)
    }

    pub(crate) fn check_space(&self) -> Result<(), StoreError> {
        self.space.check()
    }

    /// Writes to a tree. A failure poisons the store.
    pub(crate) fn write(&self, tree: &str, changes: Vec<Change>) -> Result<(), StoreError> {
        self.refuse_if_poisoned()?;
        self.poisoning(self.backing.write(tree, changes))
    }

    pub(crate) fn drop_tree(&self, tree: &str) -> Result<(), StoreError> {
        self.refuse_if_poisoned()?;
        self.poisoning(self.backing.drop_tree(tree))
    }

    /// What a read came to; a failed one poisons nothing.
    pub(crate) fn run<T>(&self, result: Result<T, Fault>) -> Result<T, StoreError> {
        result.map_err(|fault| self.damaged(fault.to_string()))
    }

    fn refuse_if_poisoned(&self) -> Result<(), StoreError> {
        match self.poison.get() {
            Some(reason) => Err(self.failed(reason.clone())),
            None => Ok(()),
        }
    }

    fn poisoning<T>(&self, result: Result<T, Fault>) -> Result<T, StoreError> {
        result.map_err(|fault| {
            let reason = self.poison.get_or_init(|| fault.to_string());
            tracing::error!(path = %self.path().display(), reason, "storage failed: no more writes");
            self.failed(reason.clone())
        })
    }

    fn failed(&self, reason: String) -> StoreError {
        StoreError::Failed { path: PathBuf::from(self.path()), reason }
    }

    pub(crate) fn take_ballast(&self) {
        self.space.take_ballast();
    }

    fn pinned(&self) -> MutexGuard<'_, Vec<Arc<Manifest>>> {
        self.pinned.lock()
    }

    fn writing(&self) -> u64 {
        self.writing.load(Relaxed)
    }

    fn set_writing(&self, generation: u64) {
        self.writing.store(generation, Relaxed);
    }

    fn count_wal_bytes(&self, bytes: u64) {
        self.wal_bytes_written.fetch_add(bytes, Relaxed);
    }

    /// Answers how many bytes of chunks are not durable yet, these among them.
    fn count_chunk_bytes(&self, bytes: u64) -> u64 {
        self.count_snapshot_bytes(bytes);
        self.unsynced_chunk_bytes.fetch_add(bytes, Relaxed) + bytes
    }

    fn count_snapshot_bytes(&self, bytes: u64) {
        self.snapshot_bytes_written.fetch_add(bytes, Relaxed);
    }
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("path", &self.path()).finish_non_exhaustive()
    }
}
