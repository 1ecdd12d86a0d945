//! The data directory: sled, opened with care, and the files around it. It handles bytes and positions; the journal and the engine define
//! their meaning.
//!
//! Only one thread writes to a [`Store`]. Reads and writes block in sled, so no tokio worker may call them. After the first failed write or
//! sync the store is *poisoned*: nothing is written any more, the outcome of running writes is unknown, and reads continue.

pub mod archive;
pub mod backing;
mod directory;
mod error;
mod events;
mod open;
mod snapshots;
mod spool;

pub use backing::panic_message;
pub use backing::{RECORD_BYTES_MAX, RECORD_SLOTS};
#[cfg(feature = "testing")]
pub(crate) use directory::MANIFEST_TREES;
pub use directory::SavedClock;
pub use directory::{
    LOG_BASE_KEY, META_TREE, REPLICATED_LOG_KEY, VALUE_BYTES_MAX, boot_id, number_of_name,
    part_key, part_of_key,
};
pub use error::StoreError;
pub use events::{EventPack, EventSize, EventStore, EventTree};
pub use open::{RestoreTarget, StoreCopy, is_unused, refuse_other_owner, refuse_unused};
pub use snapshots::{
    CHUNK_BYTES_MAX, Findings, GENERATIONS_KEPT, Manifest, SectionRef, SnapshotWriter, Sweep,
    check_snapshots,
};
pub use snapshots::{KEY_COST_BYTES, Removal};
pub use spool::Spool;

use backing::{Backing, BackingFault, KeyChange};
use cuckood_state::domain::{ClockReading, Seq, Timestamp};
use derive_more::Debug;
use directory::{Directory, SavedClockFile, Space};
use parking_lot::Mutex;
use serde::Serialize;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{OnceLock, Weak};
use std::time::Duration;

/// Options of a store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoreOptions {
    /// Whether snapshots are synced, or only flushed. A snapshot needs to survive no more than the log does.
    pub sync_snapshots: bool,
    /// Watermark: nothing is written while fewer bytes are free.
    pub free_space_min_bytes: u64,
    /// Size of the ballast, a reserve of disk space that is freed so that sled can open on a full disk.
    pub ballast_bytes: u64,
    /// How long sled may take to open.
    pub open_timeout: Duration,
    /// Initial size of sled's file in a new directory. Where blocks are allocated already, a sync has no metadata to write, which
    /// saves half the time of a small commit.
    pub preallocate_bytes: u64,
    /// Memory for sled's cache, in bytes.
    pub cache_bytes: u64,
    /// Maximum size of a manifest that is written, in bytes. No reader accepts more than 1 GiB.
    pub manifest_bytes_max: usize,
    /// Pause between two syncs of the record. After a power loss the record may lag by this much.
    pub record_sync_pause: Duration,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            sync_snapshots: true,
            free_space_min_bytes: 256 << 20,
            ballast_bytes: 64 << 20,
            open_timeout: Duration::from_secs(25),
            preallocate_bytes: 64 << 20,
            cache_bytes: 64 << 20,
            manifest_bytes_max: snapshots::MANIFEST_BYTES_MAX,
            record_sync_pause: Duration::from_millis(10),
        }
    }
}

/// Storage, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "utoipa", schema(as = StorageInfo))]
pub struct StoreFigures {
    /// Disk space that the directory takes, in bytes.
    pub disk_bytes: u64,
    /// Free bytes on its file system.
    pub free_bytes: u64,
    /// Bytes of log written since startup.
    pub wal_bytes_written: u64,
    /// Bytes of snapshots written since startup.
    pub snapshot_bytes_written: u64,
}

/// An open data directory.
#[derive(Debug)]
#[debug("Store({})", self.path().display())]
pub struct Store {
    // Dropped first: sled must have closed its files when the lock is released.
    backing: Box<dyn Backing>,
    directory: Directory,
    options: StoreOptions,
    /// Watches the free space on the disk.
    pub space: Space,
    identity: [u8; 16],
    clock: SavedClockFile,
    poison: OnceLock<String>,
    /// Snapshots that are protected from removal for as long as a reader has them.
    pinned: Mutex<Vec<Weak<Manifest>>>,
    writing: AtomicU64,
    /// Counted by the journal.
    pub wal_bytes_written: AtomicU64,
    snapshot_bytes_written: AtomicU64,
    /// Bytes of chunks written since the last sync.
    unsynced_chunk_bytes: AtomicU64,
}

impl Store {
    /// Opens a data directory; creates it if it is absent or empty.
    ///
    /// # Errors
    /// [`StoreError::Locked`], [`StoreError::NotOurs`] and [`StoreError::Newer`] before anything is written;
    /// [`StoreError::Damaged`] if anything acknowledged is missing; [`StoreError::DiskFull`] if sled finds no space even without
    /// the ballast.
    pub fn open(dir: &Path, options: &StoreOptions) -> Result<Store, StoreError> {
        open::open(Directory::lock(dir)?, options, None, |backing| backing)
    }

    /// Opens it with an adapter between the store and sled, for tests that inject faults.
    #[cfg(feature = "testing")]
    pub fn open_over(
        dir: &Path,
        options: &StoreOptions,
        over: impl FnOnce(Box<dyn Backing>) -> Box<dyn Backing>,
    ) -> Result<Store, StoreError> {
        open::open(Directory::lock(dir)?, options, None, over)
    }

    /// Opens it with its trees on a backing other than sled, which is told whether the directory is new.
    #[cfg(feature = "testing")]
    pub fn open_without_sled(
        dir: &Path,
        options: &StoreOptions,
        backing: impl FnOnce(bool) -> Box<dyn Backing>,
    ) -> Result<Store, StoreError> {
        open::open_without_sled(Directory::lock(dir)?, options, None, backing)
    }

    /// Opens a directory to be filled from a shared snapshot, and deletes its content. It can't be served before [`Store::seal`]; until
    /// then it may be opened like this again.
    ///
    /// # Errors
    /// Those of [`Store::open`]; [`StoreError::NotOurs`] if it contains anything other than data of this service.
    pub fn open_to_fill(dir: &Path, options: &StoreOptions) -> Result<Store, StoreError> {
        open::open(
            Directory::lock(dir)?,
            options,
            Some(directory::FILLING_FILE),
            |backing| backing,
        )
    }

    /// Marks a restored directory as complete.
    pub fn seal(&self) -> Result<(), StoreError> {
        self.directory.remove(directory::RESTORING_FILE)?;
        self.directory.remove(directory::FILLING_FILE)
    }

    /// The data directory.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Sizes and counts. Walks the directory, which has about a dozen files.
    pub fn figures(&self) -> StoreFigures {
        StoreFigures {
            disk_bytes: directory::bytes_on_disk(self.path()),
            free_bytes: self.space.free_bytes().unwrap_or(0),
            wal_bytes_written: self.wal_bytes_written.load(Relaxed),
            snapshot_bytes_written: self.snapshot_bytes_written.load(Relaxed),
        }
    }

    /// The last trusted reading of the clocks, if it was saved.
    pub fn saved_clock(&self) -> Option<SavedClock> {
        self.clock.load()
    }

    /// Saves the clocks' readings for the next start. Nothing depends on whether that succeeds.
    pub fn save_clock(&self, reading: ClockReading) {
        if let Err(error) = self.clock.save(reading) {
            tracing::debug!(%error, "the clock's reading can't be saved");
        }
    }

    /// The stored time of the last backup, if it can be read. Otherwise, logs what is stored instead.
    pub fn backup_at(&self) -> Option<Timestamp> {
        let text = self
            .directory
            .text(directory::BACKUP_FILE)
            .unwrap_or_else(|why| Some(why.to_string()))?;
        let at = text.trim().parse().ok().map(Timestamp);
        if at.is_none() {
            tracing::warn!(
                text,
                "can't read the time of the last backup; counting from this startup"
            );
        }
        at
    }

    /// Stores the time of a backup, in milliseconds since 1970.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn keep_backup_at(&self, at: Timestamp) -> Result<(), StoreError> {
        self.directory
            .write_file(directory::BACKUP_FILE, format!("{}\n", at.0).as_bytes())
    }

    /// The first failed write or sync, if there was one: nothing is written any more then.
    pub fn poisoned(&self) -> Option<&str> {
        self.poison.get().map(String::as_str)
    }

    /// Makes everything written so far as durable as snapshots must be.
    pub fn make_durable(&self) -> Result<(), StoreError> {
        self.flush()?;
        if self.options.sync_snapshots {
            self.sync()
        } else {
            Ok(())
        }
    }

    /// Passes everything written so far to the operating system, so that it survives a crash of the process.
    pub fn flush(&self) -> Result<(), StoreError> {
        self.change(|backing| backing.flush())?;
        if !self.options.sync_snapshots {
            self.unsynced_chunk_bytes.store(0, Relaxed);
        }
        Ok(())
    }

    /// Makes everything flushed so far survive a power loss.
    pub fn sync(&self) -> Result<(), StoreError> {
        self.change(|backing| backing.sync())?;
        self.unsynced_chunk_bytes.store(0, Relaxed);
        Ok(())
    }

    /// Random number drawn when the directory was created; it never changes.
    pub fn identity(&self) -> &[u8; 16] {
        &self.identity
    }

    /// Whether the directory has been created, or is being restored, but was never used.
    pub fn is_new(&self) -> bool {
        directory::MARKERS
            .iter()
            .any(|marker| self.directory.file(marker).exists())
    }

    /// Notes why the state in the directory must not be served again.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn note_diverged(&self, why: &str) -> Result<(), StoreError> {
        self.directory
            .write_file(directory::DIVERGED_FILE, format!("{why}\n").as_bytes())
    }

    /// Marks the directory as used: from here on a missing part is damage.
    pub fn begin_use(&self) -> Result<(), StoreError> {
        self.directory.remove(directory::INITIALISING_FILE)
    }

    /// Returns the port below: values by tree and key.
    pub fn backing(&self) -> &dyn Backing {
        &*self.backing
    }

    /// Returns the error for something in this directory that can't be read.
    pub fn damaged(&self, what: impl Into<String>) -> StoreError {
        StoreError::damaged(self.path(), what)
    }

    /// Writes to a tree.
    pub fn write(&self, tree: &str, changes: Vec<KeyChange>) -> Result<(), StoreError> {
        self.change(|backing| backing.write(tree, changes))
    }

    /// Drops a tree with all its values.
    ///
    /// # Errors
    /// [`StoreError::Failed`].
    pub fn drop_tree(&self, tree: &str) -> Result<(), StoreError> {
        self.change(|backing| backing.drop_tree(tree))
    }

    /// Converts the result of a read; a failed read does not poison the store.
    pub fn run<T>(&self, result: Result<T, BackingFault>) -> Result<T, StoreError> {
        result.map_err(|fault| self.damaged(fault.to_string()))
    }

    /// Writes or syncs, unless that has failed before. A failure poisons the store.
    pub fn change(
        &self,
        change: impl FnOnce(&dyn Backing) -> Result<(), BackingFault>,
    ) -> Result<(), StoreError> {
        if let Some(reason) = self.poisoned() {
            return Err(StoreError::failed(self.path(), reason.to_owned()));
        }
        change(&*self.backing).map_err(|fault| {
            let reason = self.poison.get_or_init(|| fault.to_string());
            tracing::error!(path = %self.path().display(), reason, "storage failed: no more writes");
            StoreError::failed(self.path(), reason.clone())
        })
    }

    /// Marks an entry as skipped, at this time by the machine's clock. The mark is durable on return, and is never removed.
    ///
    /// # Errors
    /// [`StoreError::Failed`].
    pub fn mark_skipped(&self, entry: Seq, at: Timestamp) -> Result<(), StoreError> {
        let key = [directory::SKIPPED_KEYS, &directory::number_key(entry.0)].concat();
        self.write(
            META_TREE,
            vec![KeyChange::Put(key, at.0.to_le_bytes().to_vec())],
        )?;
        self.flush()?;
        self.sync()
    }

    /// The marked entries, and when each was marked.
    ///
    /// # Errors
    /// [`StoreError::Damaged`].
    pub fn skipped_entries(&self) -> Result<BTreeMap<Seq, Timestamp>, StoreError> {
        let mut found = BTreeMap::new();
        let mut is_damaged = false;
        self.run(
            self.backing()
                .scan(META_TREE, directory::SKIPPED_KEYS, &mut |key, value| {
                    let Some(entry) = key.strip_prefix(directory::SKIPPED_KEYS) else {
                        return ControlFlow::Break(());
                    };
                    match (
                        directory::number_of_key(entry),
                        value.try_into().map(u64::from_le_bytes),
                    ) {
                        (Some(entry), Ok(at)) => drop(found.insert(Seq(entry), Timestamp(at))),
                        _ => is_damaged = true,
                    }
                    ControlFlow::Continue(())
                }),
        )?;
        if is_damaged {
            Err(self.damaged("tree meta: the mark of a skipped entry is damaged"))
        } else {
            Ok(found)
        }
    }
}
