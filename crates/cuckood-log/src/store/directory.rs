//! The data directory as files: its format and identity, the lock that keeps other processes out, permissions, the last trusted reading of
//! the clocks, and free space. And the names of files, trees and keys, and the size limits of values.
//!
//! ```text
//! DIR/lock           held while a process has the directory open
//! DIR/format         magic, format number, identity of the directory
//! DIR/acknowledged   a small separate record: the last acknowledged position
//! DIR/clock          the last trusted reading of the clocks
//! DIR/ballast        reserved space; deleted when the disk is full
//! DIR/backup         time of the last backup, or of the first startup
//! DIR/diverged       the reason why a node with this directory has stopped
//! DIR/initialising, DIR/restoring, DIR/filling   exist while the directory is created, restored or filled
//! DIR/sled/          sled's own files
//! DIR/sled.aside/    a copy of a damaged `sled`
//!
//! tree meta               identity, log-base, replicated-log, migration/NNNN, skipped/SEQ
//! tree log/SEQ            a segment of the log (`journal/local`); key: first seq, part
//! tree manifests/GENERATION   key: part
//! tree chunks/GENERATION/PIECE   key: number of the chunk in its generation
//! tree events/TREE        key: number of the first event of a pack (`events.rs`)
//! ```
//!
//! Numbers in names are 16 hexadecimal digits, numbers in keys big-endian, so that their order is sled's.
//!
//! There is a watermark for free space, and a ballast file that is deleted when the disk is full, because sled needs space to open. Below
//! the watermark only operations that free space are written. They use a reserve there, and the ballast. A snapshot must leave a part of
//! the reserve to deletions, unless it fits into free space inside sled's file, which the file system does not show.

use super::{StoreError, StoreOptions};
use cuckood_state::domain::{ClockReading, Timestamp};
use cuckood_state::frame::{self, decode};
use derive_more::Display;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, Read, Write};
use std::ops::Range;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const MAGIC: &str = "cuckood data directory";

/// Permission bits of everybody but the owner.
const OTHERS: u32 = 0o077;

/// Contents of the `format` file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Display)]
#[display("{MAGIC}\nformat {number}\nidentity {:032x}\n", u128::from_be_bytes(*identity))]
pub struct DirectoryFormat {
    /// The number of the last migration.
    pub number: u32,
    /// Random number drawn when the directory was created; every part of the directory carries it.
    pub identity: [u8; 16],
}

impl DirectoryFormat {
    fn parse(text: &str) -> Option<DirectoryFormat> {
        let mut lines = text.lines();
        if lines.next() != Some(MAGIC) {
            return None;
        }
        let number = lines.next()?.strip_prefix("format ")?.parse().ok()?;
        let identity = u128::from_str_radix(lines.next()?.strip_prefix("identity ")?, 16).ok()?;
        Some(DirectoryFormat {
            number,
            identity: identity.to_be_bytes(),
        })
    }
}

/// A data directory that this process has locked.
pub struct Directory {
    path: PathBuf,
    // Kept only for its lock, which ends with the process in any case.
    lock: File,
}

impl Drop for Directory {
    fn drop(&mut self) {
        // Closing is not enough while a child process that was just forked has a copy of the descriptor.
        if let Err(error) = self.lock.unlock() {
            tracing::warn!(path = %self.path.display(), %error, "can't release the lock");
        }
    }
}

impl Directory {
    /// Locks the directory, creates it if needed, and closes it to other users. A foreign directory is rejected before anything is written.
    pub fn lock(path: &Path) -> Result<Directory, StoreError> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path)
            .map_err(StoreError::io(path, "make"))?;
        refuse_foreign(path)?;
        let lock_path = path.join(LOCK_FILE);
        let lock = open_or_create(&lock_path).map_err(StoreError::io(&lock_path, "open"))?;
        refuse_locked(path, lock.try_lock())?;
        close_to_others(path);
        Ok(Directory {
            path: path.to_owned(),
            lock,
        })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Reads the `format` file; `None` if there is none yet.
    pub fn format(&self) -> Result<Option<DirectoryFormat>, StoreError> {
        let Some(text) = self.text(FORMAT_FILE)? else {
            return Ok(None);
        };
        let path = self.file(FORMAT_FILE);
        let damaged =
            || StoreError::damaged(&self.path, format!("{} can't be read", path.display()));
        DirectoryFormat::parse(&text).map(Some).ok_or_else(damaged)
    }

    /// Reads a small file of text; `None` if it is not there. Bytes that are no text are replaced.
    pub fn text(&self, name: &str) -> Result<Option<String>, StoreError> {
        let path = self.file(name);
        match fs::read(&path) {
            Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(StoreError::io(&path, "read")(error)),
        }
    }

    /// Creates an empty file and makes it durable, if it does not exist yet.
    pub fn mark(&self, name: &str) -> Result<(), StoreError> {
        let path = self.file(name);
        let created = open_or_create(&path).and_then(|file| file.sync_all());
        created.map_err(StoreError::io(&path, "create"))?;
        sync_directory(&self.path)
    }

    /// Writes a small file atomically and makes it durable.
    pub fn write_file(&self, name: &str, bytes: &[u8]) -> Result<(), StoreError> {
        let path = self.file(name);
        let fresh = self.file(&format!("{name}.new"));
        let write = || {
            let mut file = File::create(&fresh)?;
            file.write_all(bytes)?;
            file.sync_all()?;
            fs::rename(&fresh, &path)
        };
        write().map_err(StoreError::io(&path, "write"))?;
        sync_directory(&self.path)
    }

    /// Removes a file or folder of ours, if it exists, and makes that durable.
    pub fn remove(&self, name: &str) -> Result<(), StoreError> {
        let path = self.file(name);
        let removed = if path.is_dir() {
            fs::remove_dir_all(&path)
        } else {
            fs::remove_file(&path)
        };
        match removed {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(StoreError::io(&path, "remove")(error)),
            Ok(()) => sync_directory(&self.path),
        }
    }
}

/// Opens a file of the owner's for writing. It is created if it does not exist yet.
fn open_or_create(path: &Path) -> io::Result<File> {
    File::options()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)
}

/// Maps a lock that another process holds to [`StoreError::Locked`].
pub(super) fn refuse_locked(
    path: &Path,
    attempt: Result<(), TryLockError>,
) -> Result<(), StoreError> {
    attempt.map_err(|error| match error {
        TryLockError::WouldBlock => StoreError::Locked {
            path: path.to_owned(),
        },
        TryLockError::Error(error) => StoreError::io(&path.join(LOCK_FILE), "lock")(error),
    })
}

/// Removes other users' access to the directory, and so to everything in it. One that belongs to another user stays unchanged: a volume may
/// be shared with this process on purpose.
fn close_to_others(path: &Path) {
    let close = || {
        let found = fs::metadata(path)?;
        if found.mode() & OTHERS == 0 {
            return Ok(());
        }
        if found.uid() != rustix::process::geteuid().as_raw() {
            return Err(io::Error::other("it belongs to another user"));
        }
        fs::set_permissions(path, Permissions::from_mode(found.mode() & !OTHERS))?;
        tracing::warn!(path = %path.display(), "other users had access to the data directory; it was removed");
        Ok(())
    };
    if let Err(error) = close() {
        tracing::warn!(path = %path.display(), %error, "other users may have access to the data directory, and it can't be removed");
    }
}

/// Refuses a directory that holds anything but cuckood's own files.
pub(super) fn refuse_foreign(path: &Path) -> Result<(), StoreError> {
    let not_ours = |found: String| StoreError::NotOurs {
        path: path.to_owned(),
        found,
    };
    let format = path.join(FORMAT_FILE);
    match fs::read(&format) {
        Ok(bytes) if bytes.starts_with(MAGIC.as_bytes()) => return Ok(()),
        // Our other files are there, so the directory is ours and damaged; `format()` reports that.
        Ok(_) if path.join(ACKNOWLEDGED_FILE).exists() => return Ok(()),
        Ok(_) => {
            return Err(not_ours(format!(
                "{} is not a format file of cuckood",
                format.display()
            )));
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(StoreError::io(&format, "read")(error)),
    }
    if MARKERS.iter().any(|marker| path.join(marker).exists()) {
        return Ok(());
    }
    if path.join(ACKNOWLEDGED_FILE).exists() && path.join(SLED_DIR).exists() {
        return Err(StoreError::damaged(
            path,
            format!("{} is missing", format.display()),
        ));
    }
    for entry in fs::read_dir(path).map_err(StoreError::io(path, "list"))? {
        let name = entry.map_err(StoreError::io(path, "list"))?.file_name();
        // A fresh volume has lost+found; an interrupted first start leaves the rest.
        let harmless = ["lost+found", LOCK_FILE];
        if !harmless.iter().any(|harmless| name == *harmless) {
            return Err(not_ours(format!("it holds {}", name.display())));
        }
    }
    Ok(())
}

/// Makes the names in a directory durable.
pub fn sync_directory(path: &Path) -> Result<(), StoreError> {
    let sync = || File::open(path)?.sync_all();
    sync().map_err(StoreError::io(path, "sync"))
}

/// Makes the files of a directory, and their names, durable.
pub fn sync_files(path: &Path) -> Result<(), StoreError> {
    for entry in fs::read_dir(path).map_err(StoreError::io(path, "list"))? {
        let entry = entry.map_err(StoreError::io(path, "list"))?.path();
        match File::open(&entry).and_then(|file| file.sync_all()) {
            // sled may replace its snapshots at any time.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            synced => synced.map_err(StoreError::io(&entry, "sync"))?,
        }
    }
    sync_directory(path)
}

/// Disk space used by the files below a directory, in bytes.
pub fn bytes_on_disk(path: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(path) else {
        return 0;
    };
    let sizes = entries.flatten().map(|entry| match entry.metadata() {
        Ok(found) if found.is_dir() => bytes_on_disk(&entry.path()),
        Ok(found) => found.blocks() * 512,
        // Removed concurrently.
        Err(_) => 0,
    });
    sizes.sum()
}

/// Identifies the current boot of the machine; 0 if the system does not say.
pub fn boot_id() -> u128 {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    u128::from_str_radix(&id.trim().replace('-', ""), 16).unwrap_or(0)
}

const CLOCK: frame::FrameFormat = frame::FrameFormat {
    magic: *b"ckcl",
    version: 1,
    oldest: 1,
    payload_max: 64,
};

/// The time of day and the time since the boot in milliseconds, and the boot.
type ClockRecord = (Timestamp, u64, u128);

/// A saved reading.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SavedClock {
    /// The readings of both clocks.
    pub reading: ClockReading,
    /// Whether the machine has not been booted since, so that the monotonic clock is comparable.
    pub same_boot: bool,
}

/// The file.
pub(super) struct SavedClockFile {
    pub(super) path: PathBuf,
    /// Identifies the current boot of the machine; 0 if the system does not say.
    pub(super) boot: u128,
}

impl SavedClockFile {
    /// The saved reading, if it can be read.
    pub(super) fn load(&self) -> Option<SavedClock> {
        // The rest of a longer record may follow.
        let bytes = fs::read(&self.path).ok()?;
        let (frame, _) = CLOCK.open(&bytes).ok()??;
        let (wall, uptime, boot): ClockRecord = decode(frame.payload)?;
        let reading = ClockReading {
            wall,
            uptime: Duration::from_millis(uptime),
        };
        Some(SavedClock {
            reading,
            same_boot: boot == self.boot && boot != 0,
        })
    }

    /// Saves a reading in place of the last one.
    pub(super) fn save(&self, reading: ClockReading) -> io::Result<()> {
        let uptime = u64::try_from(reading.uptime.as_millis()).unwrap_or(u64::MAX);
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .open(&self.path)?;
        file.write_all_at(
            &CLOCK.pack::<ClockRecord>(&(reading.wall, uptime, self.boot)),
            0,
        )
    }
}

pub const LOCK_FILE: &str = "lock";
pub const FORMAT_FILE: &str = "format";
pub const ACKNOWLEDGED_FILE: &str = "acknowledged";
pub const CLOCK_FILE: &str = "clock";
pub const BACKUP_FILE: &str = "backup";
pub const BALLAST_FILE: &str = "ballast";
/// Exists while a new directory is being created; its other files hold no data yet.
pub const INITIALISING_FILE: &str = "initialising";
/// Exists while a restore runs. Such a directory must never be served.
pub const RESTORING_FILE: &str = "restoring";
/// Exists while a directory is filled from a snapshot that nodes share. Such a directory must never be served, and can be filled again.
pub const FILLING_FILE: &str = "filling";
/// Exists if the state is not that of the other nodes; it says how that showed. Such a directory is not served again.
pub const DIVERGED_FILE: &str = "diverged";
pub const SLED_DIR: &str = "sled";
/// A copy of a damaged `sled` folder, made before a repair is tried.
pub const DAMAGED_COPY_DIR: &str = "sled.aside";

/// The files whose existence says that a directory is not complete.
pub const MARKERS: &[&str] = &[INITIALISING_FILE, RESTORING_FILE, FILLING_FILE];

/// The longest value that is written. Longer ones could end up in sled's `blobs/`, which it never syncs.
pub const VALUE_BYTES_MAX: usize = 64 * 1024;

/// sled's segment size. It determines the largest leaf that stays out of `blobs/`.
pub const SLED_SEGMENT_BYTES: usize = 8 * 1024 * 1024;

/// Chunks in a tree: usually 8 MB of them. A tree must fit into sled's cache while it is dropped. Creating a tree costs sled the time of
/// writing many chunks.
pub const TREE_CHUNKS: u64 = 1024;

/// The tree of the directory's own values.
pub const META_TREE: &str = "meta";
pub const IDENTITY_KEY: &[u8] = b"identity";
/// The key in [`META_TREE`] of the position before which the local log starts.
pub const LOG_BASE_KEY: &[u8] = b"log-base";
/// The identity of the replicated log that the directory belongs to.
pub const REPLICATED_LOG_KEY: &[u8] = b"replicated-log";
/// Prefix of the keys of skipped entries in [`META_TREE`].
pub const SKIPPED_KEYS: &[u8] = b"skipped/";
/// Prefix of the names of trees of manifests.
pub const MANIFEST_TREES: &str = "manifests/";
const CHUNK_TREES: &str = "chunks/";
/// Prefix of the names of trees of events.
pub const EVENT_TREES: &str = "events/";

/// The tree that holds the manifest of a generation.
pub fn manifest_tree(generation: u64) -> String {
    format!("{MANIFEST_TREES}{generation:016x}")
}

/// The generation whose manifest a tree holds; `None` if it holds none.
pub fn manifest_of_tree(tree: &str) -> Option<u64> {
    number_of_name(tree.strip_prefix(MANIFEST_TREES)?)
}

/// The tree that holds a chunk of a generation; chunks are numbered across all sections.
pub fn chunk_tree(generation: u64, chunk: u64) -> String {
    format!(
        "{CHUNK_TREES}{generation:016x}/{:016x}",
        chunk / TREE_CHUNKS
    )
}

/// The generation and the chunk numbers of a tree; `None` if it holds no chunks.
pub fn chunks_of_tree(tree: &str) -> Option<(u64, Range<u64>)> {
    let (generation, piece) = tree.strip_prefix(CHUNK_TREES)?.split_once('/')?;
    let first = number_of_name(piece)?.checked_mul(TREE_CHUNKS)?;
    Some((
        number_of_name(generation)?,
        first..first.checked_add(TREE_CHUNKS)?,
    ))
}

/// The key of a chunk, of a part of a manifest, of the pack whose first event it names, or of an entry.
pub fn number_key(number: u64) -> [u8; 8] {
    number.to_be_bytes()
}

/// The inverse of [`number_key`].
pub fn number_of_key(key: &[u8]) -> Option<u64> {
    key.try_into().ok().map(u64::from_be_bytes)
}

/// A number in the name of a tree.
pub fn number_of_name(digits: &str) -> Option<u64> {
    (digits.len() == 16)
        .then(|| u64::from_str_radix(digits, 16).ok())
        .flatten()
}

/// The key of one part of a value that is split into several: its position, then the number of the part.
pub fn part_key(position: u64, part: u16) -> [u8; 10] {
    let mut key = [0; 10];
    key[..8].copy_from_slice(&position.to_be_bytes());
    key[8..].copy_from_slice(&part.to_be_bytes());
    key
}

/// The inverse of [`part_key`].
pub fn part_of_key(key: &[u8]) -> Option<(u64, u16)> {
    let (position, part) = key.split_first_chunk::<8>()?;
    Some((
        u64::from_be_bytes(*position),
        u16::from_be_bytes(part.try_into().ok()?),
    ))
}

/// Bytes that stay free whatever is written: two of sled's segments.
const SPARE_BYTES: u64 = 16 << 20;

/// Bytes beyond those that any snapshot leaves to deletions.
const DELETIONS_BYTES: u64 = 16 << 20;

/// Bytes beyond those at which a snapshot stops that makes sled's file longer.
const GROWTH_BYTES: u64 = 24 << 20;

/// Watches the free space of the file system that holds a data directory.
pub struct Space {
    dir: PathBuf,
    ballast: PathBuf,
    free_bytes_min: u64,
    ballast_bytes: u64,
    /// Whether free space was below the watermark at the last check.
    is_full: AtomicBool,
    /// Whether the ballast is known to be missing.
    is_ballast_missing: AtomicBool,
}

impl Space {
    pub fn new(dir: &Path, ballast: PathBuf, options: &StoreOptions) -> Space {
        let &StoreOptions {
            free_space_min_bytes: free_bytes_min,
            ballast_bytes,
            ..
        } = options;
        let is_full = AtomicBool::new(false);
        let is_ballast_missing = AtomicBool::new(true);
        Space {
            dir: dir.to_owned(),
            ballast,
            free_bytes_min,
            ballast_bytes,
            is_full,
            is_ballast_missing,
        }
    }

    /// Bytes that this user may still write.
    pub fn free_bytes(&self) -> Result<u64, StoreError> {
        free_bytes(&self.dir)
    }

    /// Fails below the watermark. Logs once when that starts and once when it ends.
    pub fn check(&self) -> Result<(), StoreError> {
        let free_bytes = self.free_bytes()?;
        let is_full = free_bytes < self.free_bytes_min;
        if self.is_full.swap(is_full, Ordering::Relaxed) != is_full {
            let path = self.dir.display();
            let needed_bytes = self.free_bytes_min;
            match is_full {
                true => {
                    tracing::warn!(%path, free_bytes, needed_bytes, "the disk is full: writes are rejected")
                }
                false => {
                    tracing::info!(%path, free_bytes, "disk space is available again; accepting writes")
                }
            }
        }
        self.check_free(free_bytes, self.free_bytes_min)
    }

    /// Fails unless this many bytes are free beyond the watermark.
    pub fn check_beyond(&self, bytes: u64) -> Result<(), StoreError> {
        self.check()?;
        self.check_free(
            self.free_bytes()?,
            self.free_bytes_min.saturating_add(bytes),
        )
    }

    /// Rejects an operation that frees space unless `bytes` fit into the reserve below the watermark. Deletes the ballast if that helps.
    pub fn check_reserve(&self, bytes: u64) -> Result<(), StoreError> {
        let needed_bytes = self.spare_bytes().saturating_add(bytes);
        self.delete_ballast_below(needed_bytes)?;
        self.check_free(self.free_bytes()?, needed_bytes)
    }

    /// Rejects the next chunk of a snapshot, before which `free_before` bytes were free. Near the end of the reserve it continues only
    /// while the file system has hardly less free than before: then sled reuses space inside its file.
    pub fn check_snapshot(&self, free_before: u64) -> Result<(), StoreError> {
        let deletions_bytes = DELETIONS_BYTES.min(self.free_bytes_min / 4);
        self.check_reserve(deletions_bytes)?;
        let growth_bytes = GROWTH_BYTES.min(self.free_bytes_min / 2);
        // Even a snapshot that fits into free space inside sled's file takes the rest of a segment on the disk.
        let left_bytes = free_before.saturating_sub(SLED_SEGMENT_BYTES as u64);
        let needed_bytes = left_bytes.min(self.spare_bytes() + growth_bytes);
        self.check_free(self.free_bytes()?, needed_bytes)
    }

    fn spare_bytes(&self) -> u64 {
        SPARE_BYTES.min(self.free_bytes_min / 2)
    }

    fn check_free(&self, free_bytes: u64, needed_bytes: u64) -> Result<(), StoreError> {
        if free_bytes < needed_bytes {
            return Err(StoreError::DiskFull {
                path: self.dir.clone(),
                free_bytes,
                needed_bytes,
            });
        }
        Ok(())
    }

    /// Deletes the ballast, if it exists and fewer bytes than `needed` are free.
    fn delete_ballast_below(&self, needed: u64) -> Result<(), StoreError> {
        if self.free_bytes()? < needed && self.ballast.exists() {
            fs::remove_file(&self.ballast).map_err(StoreError::io(&self.ballast, "remove"))?;
            self.is_ballast_missing.store(true, Ordering::Relaxed);
            tracing::warn!(path = %self.ballast.display(), "the disk is full: the ballast was deleted");
        }
        Ok(())
    }

    /// Deletes the ballast if the disk is too full to open sled: below the watermark or, where that is lower, below the ballast's size.
    pub fn delete_ballast_if_full(&self) -> Result<(), StoreError> {
        self.delete_ballast_below(self.free_bytes_min.max(self.ballast_bytes))
    }

    /// Creates the ballast again if it is missing and there is space for it above the watermark. A later start needs it, so a failure
    /// now is only logged.
    pub fn restore_ballast(&self) {
        if !self.is_ballast_missing.load(Ordering::Relaxed) {
            return;
        }
        if let Err(error) = self.try_to_restore_ballast() {
            self.is_ballast_missing.store(false, Ordering::Relaxed);
            tracing::warn!(%error, "failed to create the ballast; the next start retries");
        }
    }

    fn try_to_restore_ballast(&self) -> Result<(), StoreError> {
        let held = fs::metadata(&self.ballast)
            .map(|found| found.len())
            .unwrap_or(0);
        if held < self.ballast_bytes {
            if self.free_bytes()?.saturating_add(held)
                < self.free_bytes_min.saturating_add(self.ballast_bytes)
            {
                return Ok(());
            }
            let reserved = reserve(&self.ballast, self.ballast_bytes);
            if reserved.is_err() {
                // An incomplete ballast is useless.
                let _ = fs::remove_file(&self.ballast);
            }
            reserved.map_err(StoreError::io(&self.ballast, "reserve"))?;
        }
        self.is_ballast_missing.store(false, Ordering::Relaxed);
        Ok(())
    }
}

/// Bytes that this user may still write to the file system of a path.
pub(super) fn free_bytes(path: &Path) -> Result<u64, StoreError> {
    // By path, because that needs no descriptor.
    let stat = rustix::fs::statvfs(path)
        .map_err(|error| StoreError::io(path, "ask for free space of")(error.into()))?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// Creates a file of the given length whose blocks are really allocated.
fn reserve(path: &Path, bytes: u64) -> io::Result<()> {
    let mut file = File::create(path)?;
    if bytes == 0 {
        return Ok(());
    }
    match rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes) {
        Ok(()) => {}
        Err(rustix::io::Errno::OPNOTSUPP) => {
            io::copy(&mut io::repeat(0).take(bytes), &mut file)?;
        }
        Err(error) => return Err(error.into()),
    }
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    const READING: ClockReading = ClockReading {
        wall: Timestamp(1_800_000_000_000),
        uptime: Duration::from_millis(12_345),
    };

    fn options(ballast_bytes: u64) -> StoreOptions {
        StoreOptions {
            free_space_min_bytes: 0,
            ballast_bytes,
            ..StoreOptions::default()
        }
    }

    fn file(dir: &tempfile::TempDir, boot: u128) -> SavedClockFile {
        SavedClockFile {
            path: dir.path().join("clock"),
            boot,
        }
    }

    #[test]
    fn record_contains_its_boot() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        file(&dir, 7).save(READING).expect("written");
        for (boot, same_boot) in [(7, true), (8, false), (0, false)] {
            assert_eq!(
                file(&dir, boot).load(),
                Some(SavedClock {
                    reading: READING,
                    same_boot
                })
            );
        }
        file(&dir, 0).save(READING).expect("written");
        assert_eq!(
            file(&dir, 0).load(),
            Some(SavedClock {
                reading: READING,
                same_boot: false
            })
        );
    }

    #[test]
    fn damaged_record_is_ignored() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let file = file(&dir, 7);
        file.save(READING).expect("written");
        let record = fs::read(&file.path).expect("read");
        for at in 0..record.len() {
            let mut damaged = record.clone();
            damaged[at] ^= 1;
            fs::write(&file.path, damaged).expect("written");
            assert_eq!(file.load(), None, "{at}");
            fs::write(&file.path, &record[..at]).expect("written");
            assert_eq!(file.load(), None, "{at}");
        }
    }

    #[test]
    fn last_clock_reading_is_stored() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        assert_eq!(file(&dir, 7).load(), None);
        let open = file(&dir, 7);
        // The second one is shorter.
        for seconds in [1 << 40, 2] {
            let reading = ClockReading {
                wall: READING.wall.plus_seconds(seconds),
                ..READING
            };
            open.save(reading).expect("written");
            assert_eq!(file(&dir, 7).load().map(|kept| kept.reading), Some(reading));
        }
    }

    /// sled needs space to open, whatever the watermark for writes.
    #[test]
    fn ballast_is_deleted_on_full_disk_without_watermark() {
        let dir = tempfile::tempdir().unwrap();
        let ballast = dir.path().join("ballast");
        fs::write(&ballast, "ballast").unwrap();
        let space =
            |ballast_bytes| Space::new(dir.path(), ballast.clone(), &options(ballast_bytes));
        space(7).delete_ballast_if_full().unwrap();
        assert!(ballast.exists(), "there is space");
        // More than any disk has.
        space(u64::MAX).delete_ballast_if_full().unwrap();
        assert!(!ballast.exists());
    }

    #[test]
    fn request_beyond_watermark_needs_free_space() {
        let dir = tempfile::tempdir().unwrap();
        let space = Space::new(dir.path(), dir.path().join("ballast"), &options(0));
        space.check_beyond(0).unwrap();
        let refused = space.check_beyond(u64::MAX).unwrap_err();
        assert!(
            matches!(
                refused,
                StoreError::DiskFull {
                    needed_bytes: u64::MAX,
                    ..
                }
            ),
            "{refused}"
        );
        // That is about one batch, and no reason to report a full disk.
        assert!(!space.is_full.load(Ordering::Relaxed));
    }
}
