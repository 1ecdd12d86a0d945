//! The few storage operations that the journal and the snapshots are built on. sled implements them in service; tests put an
//! adapter in front that injects faults.
//!
//! sled has sharp edges, which are guarded here: it may panic or hang while it opens, its `flush` does not sync, it never syncs the files
//! it moves to `blobs/`, and by default it may never stop writing.
//!
//! A separate file holds a small record, which survives if sled loses data. The journal defines its content. Two slots, each in one sector,
//! are written in turn: a torn write leaves the other one intact. A write costs a microsecond and immediately survives a crash of the
//! process. A thread syncs the file alongside the next commit: after a power loss the record can lag by about one sync, but never be ahead.

use super::directory::Directory;
use super::error::is_full;
use super::{StoreError, StoreOptions, directory};
use parking_lot::RwLock;
use std::any::Any;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Once, OnceLock, mpsc};
use std::time::Duration;

/// A failed operation, described by whatever failed.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{operation}: {detail}")]
pub struct BackingFault {
    /// The failed operation.
    pub operation: &'static str,
    /// The details.
    pub detail: String,
}

/// One change to a tree.
#[derive(Clone, Debug)]
pub enum KeyChange {
    /// Set a key.
    Put(Vec<u8>, Vec<u8>),
    /// Remove a key if it exists.
    Remove(Vec<u8>),
}

/// The callback of [`Backing::scan`] for each key and value.
pub type VisitEntry<'a> = dyn FnMut(&[u8], &[u8]) -> ControlFlow<()> + 'a;

/// Ordered trees of keys and values, and a separate small record with two slots. One thread calls it.
pub trait Backing: Send + Sync {
    /// The names of all trees.
    fn tree_names(&self) -> Vec<String>;
    /// Drops a tree and everything in it; no error if it does not exist.
    fn drop_tree(&self, tree: &str) -> Result<(), BackingFault>;
    /// Applies the changes to a tree, all or none. Creates the tree if needed.
    fn write(&self, tree: &str, changes: Vec<KeyChange>) -> Result<(), BackingFault>;
    /// Appends the key's value to `value`; `false` if the key does not exist.
    fn read(&self, tree: &str, key: &[u8], value: &mut Vec<u8>) -> Result<bool, BackingFault>;
    /// Visits the keys from `from` on, in order, until the callback stops it.
    fn scan(&self, tree: &str, from: &[u8], visit: &mut VisitEntry<'_>)
    -> Result<(), BackingFault>;
    /// The last key of a tree, or its last one that is not after `to`.
    fn last_key(&self, tree: &str, to: Option<&[u8]>) -> Result<Option<Vec<u8>>, BackingFault>;
    /// Passes everything written to the operating system, so that it survives a crash of the process.
    fn flush(&self) -> Result<(), BackingFault>;
    /// Makes everything flushed survive a power loss.
    fn sync(&self) -> Result<(), BackingFault>;
    /// Reads a slot of the small record; a slot that was never written reads as zeros.
    fn read_record(&self, slot: u64, record: &mut [u8]) -> Result<(), BackingFault>;
    /// Writes a slot of the small record, which then survives a crash of the process.
    fn write_record(&self, slot: u64, record: &[u8]) -> Result<(), BackingFault>;
    /// Waits until the record would survive a power loss.
    fn sync_record(&self) -> Result<(), BackingFault>;
}

/// Why sled did not open.
pub(super) enum OpenFault {
    /// sled found damage, or panicked over it.
    Corrupt(String),
    /// Its file is locked: a child process that was just forked still has a copy of an old descriptor.
    Busy,
    /// Anything else.
    Other(StoreError),
}

/// sled, open.
pub(super) struct SledBacking {
    /// The folder of values that are too large for sled's file.
    blobs: PathBuf,
    /// Our own descriptor of sled's file: what `fdatasync` is called on.
    file: File,
    record: RecordFile,
    trees: RwLock<BTreeMap<String, sled::Tree>>,
    db: sled::Db,
}

/// sled, and its trees by name.
pub(super) type Opened = (sled::Db, BTreeMap<String, sled::Tree>);

/// Opens sled in a separate thread, since it may panic or never return.
///
/// A thread that does not return in time is abandoned: the process is about to end anyway.
pub(super) fn open_sled(
    directory: &Directory,
    options: &StoreOptions,
) -> Result<Opened, OpenFault> {
    let timeout = options.open_timeout;
    let dir = directory.file(directory::SLED_DIR);
    let config = sled::Config::new()
        .path(&dir)
        .segment_size(directory::SLED_SEGMENT_BYTES)
        .cache_capacity(options.cache_bytes)
        // sled compacts sparse segments: one page with each page that it writes, and as many as possible in its flusher. After a start the
        // flusher may never finish: a segment that waits to be freed counts neither as free nor as used, so sled fills and empties the same
        // few again, at 80 MB a second. So the flusher is off. The writer flushes, and the snapshotter writes so that little is left to
        // compact.
        .flush_every_ms(None);
    let (sender, receiver) = mpsc::channel();
    let open = move || {
        let db = config.open()?;
        let mut trees = BTreeMap::new();
        for name in db.tree_names() {
            if let Ok(name) = std::str::from_utf8(&name) {
                trees.insert(name.to_owned(), db.open_tree(name)?);
            }
        }
        Ok((db, trees))
    };
    std::thread::Builder::new()
        .name("open-sled".to_owned())
        .spawn(move || {
            // After the timeout the receiver is gone.
            let _ = sender.send(catch_quietly(open));
        })
        .map_err(|error| OpenFault::Other(StoreError::io(&dir, "open")(error)))?;
    match receiver.recv_timeout(timeout) {
        Ok(Ok(Ok(opened))) => Ok(opened),
        Ok(Ok(Err(error))) => Err(match &error {
            sled::Error::Io(source) if is_full(source) => OpenFault::Other(StoreError::DiskFull {
                path: directory.path().to_owned(),
                free_bytes: 0,
                needed_bytes: options.free_space_min_bytes,
            }),
            sled::Error::Io(source) if source.to_string().contains("could not acquire lock") => {
                OpenFault::Busy
            }
            // An error without a number is sled's own verdict on its data.
            sled::Error::Io(source) if source.raw_os_error().is_some() => {
                OpenFault::Other(StoreError::io(&dir, "open")(io::Error::other(error)))
            }
            _ => OpenFault::Corrupt(error.to_string()),
        }),
        Ok(Err(panic)) => Err(OpenFault::Corrupt(unreadable(&*panic))),
        Err(mpsc::RecvTimeoutError::Timeout) => {
            let seconds = timeout.as_secs_f32();
            let what = format!("{} did not open within {seconds} s", dir.display());
            Err(OpenFault::Other(StoreError::damaged(
                directory.path(),
                what,
            )))
        }
        Err(mpsc::RecvTimeoutError::Disconnected) => Err(OpenFault::Corrupt(
            "the thread that opens it has ended".to_owned(),
        )),
    }
}

impl SledBacking {
    /// Wraps sled once it is open.
    pub(super) fn new(
        dir: &Path,
        (db, trees): Opened,
        record: RecordFile,
    ) -> io::Result<SledBacking> {
        let file = fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(dir.join("db"))?;
        Ok(SledBacking {
            blobs: dir.join("blobs"),
            file,
            record,
            trees: RwLock::new(trees),
            db,
        })
    }

    fn tree(&self, name: &str) -> Option<sled::Tree> {
        self.trees.read().get(name).cloned()
    }
}

impl Backing for SledBacking {
    fn tree_names(&self) -> Vec<String> {
        self.trees.read().keys().cloned().collect()
    }

    fn drop_tree(&self, tree: &str) -> Result<(), BackingFault> {
        guarded("dropping a tree", || {
            self.trees.write().remove(tree);
            self.db.drop_tree(tree).map(drop)
        })
    }

    fn write(&self, tree: &str, changes: Vec<KeyChange>) -> Result<(), BackingFault> {
        guarded("writing", || {
            let tree = match self.tree(tree) {
                Some(tree) => tree,
                None => {
                    let made = self.db.open_tree(tree)?;
                    self.trees.write().insert(tree.to_owned(), made.clone());
                    made
                }
            };
            // A single change needs no batch: a batch has a manifest, which is a second write to wait for.
            let changes = match <[KeyChange; 1]>::try_from(changes) {
                Ok([KeyChange::Put(key, value)]) => return tree.insert(key, value).map(drop),
                Ok([KeyChange::Remove(key)]) => return tree.remove(key).map(drop),
                Err(changes) => changes,
            };
            let mut batch = sled::Batch::default();
            for change in changes {
                match change {
                    KeyChange::Put(key, value) => batch.insert(key, value),
                    KeyChange::Remove(key) => batch.remove(key),
                }
            }
            tree.apply_batch(batch)
        })
    }

    fn read(&self, tree: &str, key: &[u8], value: &mut Vec<u8>) -> Result<bool, BackingFault> {
        guarded("reading", || {
            let Some(tree) = self.tree(tree) else {
                return Ok(false);
            };
            let found = tree.get(key)?;
            if let Some(found) = &found {
                value.extend_from_slice(found);
            }
            Ok(found.is_some())
        })
    }

    fn scan(
        &self,
        tree: &str,
        from: &[u8],
        visit: &mut VisitEntry<'_>,
    ) -> Result<(), BackingFault> {
        let Some(tree) = self.tree(tree) else {
            return Ok(());
        };
        let mut values = guarded("reading", || Ok(tree.range(from..)))?;
        // The visitor runs outside the guard: a panic of the visitor is not sled's.
        while let Some((key, value)) = guarded("reading", || values.next().transpose())? {
            if visit(&key, &value).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn last_key(&self, tree: &str, to: Option<&[u8]>) -> Result<Option<Vec<u8>>, BackingFault> {
        guarded("reading", || {
            let Some(tree) = self.tree(tree) else {
                return Ok(None);
            };
            let last = match to {
                Some(to) => tree.range(..=to).next_back().transpose()?,
                None => tree.last()?,
            };
            Ok(last.map(|(key, _)| key.to_vec()))
        })
    }

    fn flush(&self) -> Result<(), BackingFault> {
        guarded("flushing", || self.db.flush().map(drop))
    }

    fn sync(&self) -> Result<(), BackingFault> {
        let operation = "syncing";
        self.file
            .sync_data()
            .map_err(|error| fault(operation, &error))?;
        let mut blobs = fs::read_dir(&self.blobs).map_err(|error| fault(operation, &error))?;
        if blobs.next().is_some() {
            let detail = format!(
                "{} holds a file, and sled never syncs those",
                self.blobs.display()
            );
            return Err(BackingFault { operation, detail });
        }
        Ok(())
    }

    fn read_record(&self, slot: u64, record: &mut [u8]) -> Result<(), BackingFault> {
        match self
            .record
            .file
            .read_exact_at(record, slot * RECORD_BYTES_MAX as u64)
        {
            // The file has not got this slot.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => record.fill(0),
            read => read.map_err(|error| fault("reading the record", &error))?,
        }
        Ok(())
    }

    fn write_record(&self, slot: u64, record: &[u8]) -> Result<(), BackingFault> {
        let RecordFile {
            file,
            failed,
            written,
        } = &self.record;
        let synced = failed.get().map_or(Ok(()), |kind| Err((*kind).into()));
        let write = |()| file.write_all_at(record, slot * RECORD_BYTES_MAX as u64);
        synced
            .and_then(write)
            .map_err(|error| fault("writing the record", &error))?;
        // If the channel is full, the sync that it asks for has not started.
        let _ = written.try_send(());
        Ok(())
    }

    fn sync_record(&self) -> Result<(), BackingFault> {
        self.record
            .file
            .sync_data()
            .map_err(|error| fault("syncing the record", &error))
    }
}

/// Describes an error of the operating system.
fn fault(operation: &'static str, error: &io::Error) -> BackingFault {
    let remedy = if is_full(error) {
        ": make room, then restart"
    } else {
        ""
    };
    BackingFault {
        operation,
        detail: format!("{error}{remedy}"),
    }
}

/// Runs an operation of sled, and turns a panic into an error.
fn guarded<T>(
    operation: &'static str,
    call: impl FnOnce() -> sled::Result<T>,
) -> Result<T, BackingFault> {
    match catch_quietly(call) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(sled::Error::Io(error))) => Err(fault(operation, &error)),
        Ok(Err(error)) => Err(BackingFault {
            operation,
            detail: error.to_string(),
        }),
        Err(panic) => Err(BackingFault {
            operation,
            detail: unreadable(&*panic),
        }),
    }
}

thread_local! {
    /// Whether this thread is inside sled, whose panics are reported as errors.
    static IS_GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// Runs a call of sled. A panic is returned, and not printed: to an operator, it is damaged data and no fault of the program.
fn catch_quietly<T>(call: impl FnOnce() -> T) -> std::thread::Result<T> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let print = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !IS_GUARDED.get() {
                print(panic);
            }
        }));
    });
    IS_GUARDED.set(true);
    let result = catch_unwind(AssertUnwindSafe(call));
    IS_GUARDED.set(false);
    result
}

/// Describes data over which sled has panicked, in one line.
fn unreadable(panic: &(dyn Any + Send)) -> String {
    let why = panic_message(panic).lines().next().unwrap_or_default();
    format!("the storage engine can't read it: {why}")
}

/// The message of a panic.
pub fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref().map(String::as_str))
        .unwrap_or("without a message")
}

/// The number of slots.
pub const RECORD_SLOTS: u64 = 2;

/// The longest record, in bytes. A slot is as large as a sector of any disk.
pub const RECORD_BYTES_MAX: usize = 4096;

/// The file, open for writing. A thread syncs it.
pub(super) struct RecordFile {
    file: Arc<File>,
    failed: Arc<OnceLock<io::ErrorKind>>,
    written: SyncSender<()>,
}

impl RecordFile {
    /// Opens the file. A thread syncs written records until it is dropped or a sync fails, and pauses for `pause` after each sync.
    pub(super) fn open(path: &Path, pause: Duration) -> io::Result<RecordFile> {
        let file = Arc::new(OpenOptions::new().read(true).write(true).open(path)?);
        let failed = Arc::new(OnceLock::new());
        let (written, is_written) = sync_channel(1);
        let synced = file.clone();
        let outcome = failed.clone();
        // A new record during the pause must not cost a context switch, so it waits for the end of the pause.
        let sync = move || {
            while is_written.recv().is_ok() {
                if let Err(error) = synced.sync_data() {
                    let _ = outcome.set(error.kind());
                    return;
                }
                std::thread::sleep(pause);
            }
        };
        std::thread::Builder::new()
            .name("record-sync".to_owned())
            .spawn(sync)?;
        Ok(RecordFile {
            file,
            failed,
            written,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panic_of_sled_is_described_in_one_line() {
        let fault =
            guarded::<()>("reading", || panic!("page 7 is missing\nfile a bug")).unwrap_err();
        assert_eq!(
            fault.to_string(),
            "reading: the storage engine can't read it: page 7 is missing"
        );
        assert!(!IS_GUARDED.get(), "later panics are printed");
    }
}
