//! Free disk space: a watermark, and a ballast file that is deleted when the disk is full, because sled needs space to open.
//!
//! Below the watermark only operations that free space are written. They have a reserve there, and the ballast. A snapshot must leave
//! a part of the reserve to deletions, unless it fits into free space inside sled's file, which the file system does not show.

use super::StoreError;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// Bytes that stay free whatever is written: two of sled's segments.
const SPARE_BYTES: u64 = 16 << 20;

/// Bytes beyond those that any snapshot leaves to deletions.
const DELETIONS_BYTES: u64 = 16 << 20;

/// Bytes beyond those at which a snapshot stops that makes sled's file longer.
const GROWTH_BYTES: u64 = 24 << 20;

/// What a snapshot takes of the file system even if it fits into free space inside sled's file: the rest of a segment.
const SEGMENT_BYTES: u64 = super::layout::SLED_SEGMENT_BYTES as u64;

/// Watches the free space of the file system that holds a data directory.
pub(crate) struct Space {
    dir: PathBuf,
    ballast: PathBuf,
    free_bytes_min: u64,
    ballast_bytes: u64,
    /// Whether free space was below the watermark at the last check.
    is_full: AtomicBool,
    /// The ballast does not exist, as far as is known.
    is_ballast_missing: AtomicBool,
}

impl Space {
    pub(crate) fn new(dir: &Path, ballast: PathBuf, free_bytes_min: u64, ballast_bytes: u64) -> Space {
        let (is_full, is_ballast_missing) = (AtomicBool::new(false), AtomicBool::new(true));
        Space { dir: dir.to_owned(), ballast, free_bytes_min, ballast_bytes, is_full, is_ballast_missing }
    }

    /// Bytes that this user may still write.
    pub(crate) fn free_bytes(&self) -> Result<u64, StoreError> {
        // By path, because that needs no descriptor.
        let stat = rustix::fs::statvfs(&self.dir)
            .map_err(|error| StoreError::io(&self.dir, "ask for free space of")(error.into()))?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }

    /// Refuses below the watermark. Logs once when that begins and once when it ends.
    pub(crate) fn check(&self) -> Result<(), StoreError> {
        let free_bytes = self.free_bytes()?;
        let is_full = free_bytes < self.free_bytes_min;
        if self.is_full.swap(is_full, Ordering::Relaxed) != is_full {
            let (path, needed_bytes) = (self.dir.display(), self.free_bytes_min);
            match is_full {
                true => {
                    tracing::warn!(%path, free_bytes, needed_bytes, "the disk is full: writes are rejected")
                }
                false => tracing::info!(%path, free_bytes, "the disk has room again: writes go on"),
            }
        }
        self.check_free(free_bytes, self.free_bytes_min)
    }

    /// Refuses unless so many bytes are free beyond the watermark.
    pub(crate) fn check_beyond(&self, bytes: u64) -> Result<(), StoreError> {
        self.check()?;
        self.check_free(self.free_bytes()?, self.free_bytes_min.saturating_add(bytes))
    }

    /// Rejects an operation that frees space unless `bytes` fit into the reserve below the watermark. Deletes the ballast if that helps.
    pub(crate) fn check_reserve(&self, bytes: u64) -> Result<(), StoreError> {
        let needed_bytes = self.spare_bytes().saturating_add(bytes);
        if self.free_bytes()? < needed_bytes && self.ballast.exists() {
            self.delete_ballast()?;
        }
        self.check_free(self.free_bytes()?, needed_bytes)
    }

    /// Rejects the next chunk of a snapshot, before which `free_before` bytes were free. Near the end of the reserve it continues only
    /// while the file system has hardly less free than before: then sled reuses space inside its file.
    pub(crate) fn check_snapshot(&self, free_before: u64) -> Result<(), StoreError> {
        let deletions_bytes = DELETIONS_BYTES.min(self.free_bytes_min / 4);
        self.check_reserve(deletions_bytes)?;
        let growth_bytes = GROWTH_BYTES.min(self.free_bytes_min / 2);
        let needed_bytes = free_before.saturating_sub(SEGMENT_BYTES).min(self.spare_bytes() + growth_bytes);
        self.check_free(self.free_bytes()?, needed_bytes)
    }

    fn spare_bytes(&self) -> u64 {
        SPARE_BYTES.min(self.free_bytes_min / 2)
    }

    fn check_free(&self, free_bytes: u64, needed_bytes: u64) -> Result<(), StoreError> {
        if free_bytes < needed_bytes {
            return Err(StoreError::DiskFull { path: self.dir.clone(), free_bytes, needed_bytes });
        }
        Ok(())
    }

    fn delete_ballast(&self) -> Result<(), StoreError> {
        fs::remove_file(&self.ballast).map_err(StoreError::io(&self.ballast, "remove"))?;
        self.is_ballast_missing.store(true, Ordering::Relaxed);
        tracing::warn!(path = %self.ballast.display(), "the disk is full: the ballast was deleted");
        Ok(())
    }

    /// Deletes the ballast if the disk is too full to open sled: below the watermark or, where that is lower, below the ballast's size.
    pub(crate) fn give_up_ballast_if_full(&self) -> Result<(), StoreError> {
        if self.free_bytes()? < self.free_bytes_min.max(self.ballast_bytes) && self.ballast.exists() {
            self.delete_ballast()?;
        }
        Ok(())
    }

    /// Creates the ballast again if it is missing and there is space for it above the watermark. A later start needs it, so a failure
    /// now is only logged.
    pub(crate) fn restore_ballast(&self) {
        if !self.is_ballast_missing.load(Ordering::Relaxed) {
            return;
        }
        if let Err(error) = self.try_to_restore_ballast() {
            self.is_ballast_missing.store(false, Ordering::Relaxed);
            tracing::warn!(%error, "failed to create the ballast; the next start retries");
        }
    }

    fn try_to_restore_ballast(&self) -> Result<(), StoreError> {
        let held = fs::metadata(&self.ballast).map(|found| found.len()).unwrap_or(0);
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

    /// sled needs space to open, whatever the watermark for writes.
    #[test]
    fn ballast_is_deleted_on_full_disk_without_watermark() {
        let dir = tempfile::tempdir().unwrap();
        let ballast = dir.path().join("ballast");
        fs::write(&ballast, "ballast").unwrap();
        let space = |ballast_bytes| Space::new(dir.path(), ballast.clone(), 0, ballast_bytes);
        space(7).give_up_ballast_if_full().unwrap();
        assert!(ballast.exists(), "there is space");
        // No disk has so much.
        space(u64::MAX).give_up_ballast_if_full().unwrap();
        assert!(!ballast.exists());
    }

    #[test]
    fn what_is_asked_beyond_the_watermark_must_be_free_too() {
        let dir = tempfile::tempdir().unwrap();
        let space = Space::new(dir.path(), dir.path().join("ballast"), 0, 0);
        space.check_beyond(0).unwrap();
        let refused = space.check_beyond(u64::MAX).unwrap_err();
        assert!(matches!(refused, StoreError::DiskFull { needed_bytes: u64::MAX, .. }), "{refused}");
        // That is about one batch, and no reason to say that the disk is full.
        assert!(!space.is_full.load(Ordering::Relaxed));
    }
}
