//! The data directory as files: its format and identity, the lock that keeps other processes out, permissions, and the last trusted reading
//! of the clocks.

use super::{StoreError, layout};
use crate::domain::{ClockReading, Timestamp};
use crate::frame::{self, decode};
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

const MAGIC: &str = "cuckood data directory";

/// Permission bits of everybody but the owner.
const OTHERS: u32 = 0o077;

/// Contents of the `format` file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Format {
    /// The number of the last migration.
    pub(crate) number: u32,
    /// Random number drawn when the directory was created; every part of the directory carries it.
    pub(crate) identity: [u8; 16],
}

impl Format {
    fn text(self) -> String {
        format!("{MAGIC}\nformat {}\nidentity {:032x}\n", self.number, u128::from_be_bytes(self.identity))
    }

    fn parse(text: &str) -> Option<Format> {
        let mut lines = text.lines();
        if lines.next() != Some(MAGIC) {
            return None;
        }
        let number = lines.next()?.strip_prefix("format ")?.parse().ok()?;
        let identity = u128::from_str_radix(lines.next()?.strip_prefix("identity ")?, 16).ok()?;
        Some(Format { number, identity: identity.to_be_bytes() })
    }
}

/// A data directory that this process has locked.
pub(crate) struct Directory {
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
    /// Locks the directory, creates it if needed, and closes it to other users. A foreign directory is refused before anything is
    /// written.
    pub(crate) fn lock(path: &Path) -> Result<Directory, StoreError> {
        DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(StoreError::io(path, "make"))?;
        refuse_foreign(path)?;
        let lock_path = path.join(layout::LOCK_FILE);
        let lock = File::options()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&lock_path)
            .map_err(StoreError::io(&lock_path, "open"))?;
        refuse_locked(path, lock.try_lock())?;
        close_to_others(path);
        Ok(Directory { path: path.to_owned(), lock })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.file(name).exists()
    }

    /// Reads the `format` file; `None` if there is none yet.
    pub(crate) fn format(&self) -> Result<Option<Format>, StoreError> {
        let Some(text) = self.text(layout::FORMAT_FILE)? else { return Ok(None) };
        let path = self.file(layout::FORMAT_FILE);
        let damaged = || StoreError::damaged(&self.path, format!("{} can't be read", path.display()));
        Format::parse(&text).map(Some).ok_or_else(damaged)
    }

    /// Reads a small file of text; `None` if it is not there. Bytes that are no text are replaced.
    pub(crate) fn text(&self, name: &str) -> Result<Option<String>, StoreError> {
        let path = self.file(name);
        match fs::read(&path) {
            Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(StoreError::io(&path, "read")(error)),
        }
    }

    /// Writes the `format` file atomically.
    pub(crate) fn write_format(&self, format: Format) -> Result<(), StoreError> {
        self.write_file(layout::FORMAT_FILE, format.text().as_bytes())
    }

    /// Creates an empty file and makes it durable, if it does not exist yet.
    pub(crate) fn mark(&self, name: &str) -> Result<(), StoreError> {
        let path = self.file(name);
        let create =
            || File::options().write(true).create(true).truncate(false).mode(0o600).open(&path)?.sync_all();
        create().map_err(StoreError::io(&path, "create"))?;
        sync_directory(&self.path)
    }

    /// Writes a small file atomically and makes it durable.
    pub(crate) fn write_file(&self, name: &str, bytes: &[u8]) -> Result<(), StoreError> {
        let (path, fresh) = (self.file(name), self.file(&format!("{name}.new")));
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
    pub(crate) fn remove(&self, name: &str) -> Result<(), StoreError> {
        let path = self.file(name);
        let removed = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        match removed {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(StoreError::io(&path, "remove")(error)),
            Ok(()) => sync_directory(&self.path),
        }
    }
}

/// Maps a lock that another process holds to [`StoreError::Locked`].
pub(super) fn refuse_locked(path: &Path, attempt: Result<(), TryLockError>) -> Result<(), StoreError> {
    attempt.map_err(|error| match error {
        TryLockError::WouldBlock => StoreError::Locked { path: path.to_owned() },
        TryLockError::Error(error) => StoreError::io(&path.join(layout::LOCK_FILE), "lock")(error),
    })
}

/// Removes other users' access to the directory, and so to everything in it. One that belongs to another user stays as it is: a volume may
/// be shared with this process on purpose.
fn close_to_others(path: &Path) {
    let close = || {
        let found = fs::metadata(path)?;
        if found.mode() & OTHERS == 0 {
            return Ok(false);
        }
        if found.uid() != rustix::process::geteuid().as_raw() {
            return Err(io::Error::other("it belongs to another user"));
        }
        fs::set_permissions(path, Permissions::from_mode(found.mode() & !OTHERS)).map(|()| true)
    };
    match close() {
        Ok(false) => {}
        Ok(true) => {
            tracing::warn!(path = %path.display(), "other users had access to the data directory; it was removed")
        }
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "other users may have access to the data directory, and it can't be removed");
        }
    }
}

/// Refuses a directory that holds anything but cuckood's own files.
pub(super) fn refuse_foreign(path: &Path) -> Result<(), StoreError> {
    let not_ours = |found: String| StoreError::NotOurs { path: path.to_owned(), found };
    let format = path.join(layout::FORMAT_FILE);
    match fs::read(&format) {
        Ok(bytes) if bytes.starts_with(MAGIC.as_bytes()) => return Ok(()),
        // Our other files are there, so the directory is ours and damaged; `format()` reports that.
        Ok(_) if path.join(layout::ACKNOWLEDGED_FILE).exists() => return Ok(()),
        Ok(_) => return Err(not_ours(format!("{} is not a format file of cuckood", format.display()))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(StoreError::io(&format, "read")(error)),
    }
    if layout::MARKERS.iter().any(|marker| path.join(marker).exists()) {
        return Ok(());
    }
    if path.join(layout::ACKNOWLEDGED_FILE).exists() && path.join(layout::SLED_DIR).exists() {
        return Err(StoreError::damaged(path, format!("{} is missing", format.display())));
    }
    for entry in fs::read_dir(path).map_err(StoreError::io(path, "list"))? {
        let name = entry.map_err(StoreError::io(path, "list"))?.file_name();
        // A fresh volume has lost+found; an interrupted first start leaves the rest.
        let harmless = ["lost+found", layout::LOCK_FILE];
        if !harmless.iter().any(|harmless| name == *harmless) {
            return Err(not_ours(format!("it holds {}", name.display())));
        }
    }
    Ok(())
}

/// Makes the names in a directory durable.
pub(crate) fn sync_directory(path: &Path) -> Result<(), StoreError> {
    let sync = || File::open(path)?.sync_all();
    sync().map_err(StoreError::io(path, "sync"))
}

/// Makes the files of a directory, and their names, durable.
pub(crate) fn sync_files(path: &Path) -> Result<(), StoreError> {
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
pub(crate) fn bytes_on_disk(path: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(path) else { return 0 };
    let sizes = entries.flatten().map(|entry| match entry.metadata() {
        Ok(found) if found.is_dir() => bytes_on_disk(&entry.path()),
        Ok(found) => found.blocks() * 512,
        // Removed meanwhile.
        Err(_) => 0,
    });
    sizes.sum()
}

/// Identifies the current boot of the machine; 0 if the system does not say.
pub(crate) fn boot_id() -> u128 {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    u128::from_str_radix(&id.trim().replace('-', ""), 16).unwrap_or(0)
}

const CLOCK: frame::Format = frame::Format { magic: *b"ckcl", version: 1, payload_max: 64 };

/// The time of day and the time since the boot in milliseconds, and the boot.
type ClockRecord = (Timestamp, u64, u128);

/// A saved reading.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeptClock {
    /// What the clocks said.
    pub reading: ClockReading,
    /// Whether the machine has not been booted since, so that the monotonic clock has gone on.
    pub same_boot: bool,
}

/// The file.
pub(super) struct KeptClockFile {
    path: PathBuf,
    boot: u128,
}

impl KeptClockFile {
    /// `boot` identifies the current boot of the machine; 0 if the system does not say.
    pub(super) fn new(path: PathBuf, boot: u128) -> Self {
        Self { path, boot }
    }

    /// The saved reading, if it can be read.
    pub(super) fn load(&self) -> Option<KeptClock> {
        // The rest of a longer record may follow.
        let bytes = fs::read(&self.path).ok()?;
        let (frame, _) = CLOCK.open(&bytes).ok()??;
        let (wall, uptime, boot): ClockRecord = decode(frame.payload)?;
        let reading = ClockReading { wall, uptime: Duration::from_millis(uptime) };
        Some(KeptClock { reading, same_boot: boot == self.boot && boot != 0 })
    }

    /// Saves a reading in place of the last one.
    pub(super) fn keep(&self, reading: ClockReading) -> io::Result<()> {
        let uptime = u64::try_from(reading.uptime.as_millis()).unwrap_or(u64::MAX);
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(&self.path)?;
        file.write_all_at(&CLOCK.pack::<ClockRecord>(&(reading.wall, uptime, self.boot)), 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const READING: ClockReading =
        ClockReading { wall: Timestamp(1_800_000_000_000), uptime: Duration::from_millis(12_345) };

    fn file(dir: &tempfile::TempDir, boot: u128) -> KeptClockFile {
        KeptClockFile::new(dir.path().join("clock"), boot)
    }

    #[test]
    fn record_tells_its_boot() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        file(&dir, 7).keep(READING).expect("written");
        for (boot, same_boot) in [(7, true), (8, false), (0, false)] {
            assert_eq!(file(&dir, boot).load(), Some(KeptClock { reading: READING, same_boot }));
        }
        file(&dir, 0).keep(READING).expect("written");
        assert_eq!(file(&dir, 0).load(), Some(KeptClock { reading: READING, same_boot: false }));
    }

    #[test]
    fn damaged_record_is_none() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let file = file(&dir, 7);
        file.keep(READING).expect("written");
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
    fn last_reading_is_kept() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        assert_eq!(file(&dir, 7).load(), None);
        let open = file(&dir, 7);
        // The second one is shorter.
        for seconds in [1 << 40, 2] {
            let reading = ClockReading { wall: READING.wall.plus_seconds(seconds), ..READING };
            open.keep(reading).expect("written");
            assert_eq!(file(&dir, 7).load().map(|kept| kept.reading), Some(reading));
        }
    }
}
