//! A copy of a data directory, to be inspected where the original must not change: sled writes to what it opens.

use super::directory::{refuse_foreign, refuse_locked};
use super::{Store, StoreError, StoreOptions, layout};
use rustix::fs::{ioctl_ficlone, statvfs};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// A copy of a data directory. It is removed when dropped.
pub struct StoreCopy {
    original: PathBuf,
    copy: TempDir,
    // Keeps servers from opening the original meanwhile: findings about the copy would no longer hold.
    _lock: Option<File>,
}

impl StoreCopy {
    /// Copies a data directory that no server has open into `scratch`. Without `scratch` the copy goes beside the original, where
    /// the file system may share the blocks, or else into the directory for temporary files.
    ///
    /// # Errors
    /// [`StoreError::Locked`], [`StoreError::NotOurs`]; [`StoreError::DiskFull`] if there is no room for the copy;
    /// [`StoreError::Io`], also if there is no data directory.
    pub fn of(dir: &Path, scratch: Option<&Path>) -> Result<StoreCopy, StoreError> {
        refuse_foreign(dir)?;
        let lock = lock(dir)?;
        let mut builder = tempfile::Builder::new();
        builder.prefix(".cuckood-verify-");
        let beside = dir.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let copy = match scratch {
            Some(scratch) => builder.tempdir_in(scratch).map_err(StoreError::io(scratch, "make a folder in")),
            None => builder
                .tempdir_in(beside)
                .or_else(|_| builder.tempdir())
                .map_err(StoreError::io(beside, "make a folder in")),
        }?;
        let this = StoreCopy { original: dir.to_owned(), copy, _lock: lock };
        this.fill()?;
        Ok(this)
    }

    /// Opens the copy.
    ///
    /// # Errors
    /// As [`Store::open`]. [`StoreCopy::of_original`] makes the message name the original.
    pub fn open(&self, options: &StoreOptions) -> Result<Store, StoreError> {
        Store::open(self.copy.path(), options)
    }

    /// Rewrites a message about the copy so that it names the original.
    pub fn of_original(&self, text: &str) -> String {
        text.replace(&*self.copy.path().to_string_lossy(), &self.original.to_string_lossy())
    }

    fn fill(&self) -> Result<(), StoreError> {
        let mut is_begun = false;
        for name in layout::MARKERS.iter().chain(&[layout::FORMAT_FILE, layout::ACKNOWLEDGED_FILE]) {
            let copied = self.copy(name);
            // Opening judges which files may be missing, but there must be at least one.
            let is_missing = matches!(&copied, Err(StoreError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound);
            if !is_missing {
                copied?;
                is_begun = true;
            }
        }
        if !is_begun {
            let format = self.original.join(layout::FORMAT_FILE);
            return Err(StoreError::io(&format, "read")(io::ErrorKind::NotFound.into()));
        }
        // Its contents don't matter, only that it exists.
        if self.original.join(layout::ASIDE_DIR).exists() {
            let aside = self.copy.path().join(layout::ASIDE_DIR);
            fs::create_dir(&aside).map_err(StoreError::io(&aside, "make"))?;
        }
        if self.original.join(layout::SLED_DIR).exists() {
            self.copy(layout::SLED_DIR)?;
        }
        Ok(())
    }

    /// Copies a file or folder of this name.
    fn copy(&self, name: &str) -> Result<(), StoreError> {
        copy(&self.original.join(name), &self.copy.path().join(name))
    }
}

/// Copies a file, or a folder and everything in it, without permissions: the copy must be writable. It must not exist yet.
pub(super) fn copy(from: &Path, to: &Path) -> Result<(), StoreError> {
    if from.is_dir() {
        fs::create_dir(to).map_err(StoreError::io(to, "make"))?;
        for entry in fs::read_dir(from).map_err(StoreError::io(from, "list"))? {
            let name = entry.map_err(StoreError::io(from, "list"))?.file_name();
            copy(&from.join(&name), &to.join(&name))?;
        }
        return Ok(());
    }
    let mut source = File::open(from).map_err(StoreError::io(from, "open"))?;
    let mut target = File::options()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(to)
        .map_err(StoreError::io(to, "make"))?;
    if ioctl_ficlone(&target, &source).is_ok() {
        return Ok(());
    }
    let needed_bytes = source.metadata().map_err(StoreError::io(from, "measure"))?.len();
    let there = statvfs(to).map_err(|error| StoreError::io(to, "ask for free space of")(error.into()))?;
    let free_bytes = there.f_bavail.saturating_mul(there.f_frsize);
    if free_bytes < needed_bytes {
        return Err(StoreError::DiskFull { path: to.to_owned(), free_bytes, needed_bytes });
    }
    io::copy(&mut source, &mut target).map_err(StoreError::io(to, "copy to"))?;
    Ok(())
}

/// Locks a data directory for reading, without writing to it.
fn lock(dir: &Path) -> Result<Option<File>, StoreError> {
    let path = dir.join(layout::LOCK_FILE);
    match File::open(&path) {
        Ok(lock) => {
            refuse_locked(dir, lock.try_lock_shared())?;
            Ok(Some(lock))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(StoreError::io(&path, "open")(error)),
    }
}
