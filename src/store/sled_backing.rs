//! sled as a [`Backing`], with guards for its sharp edges. sled may panic or hang while it opens, its `flush` does not sync, it
//! never syncs what it moves to `blobs/`, and left to itself it may never stop writing.

use super::backing::{Backing, Change, Fault, Visit};
use super::error::is_full;
use super::layout;
use super::record_file::RecordFile;
use parking_lot::RwLock;
use rustix::fs::RawDir;
use std::any::Any;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

/// Why sled did not open.
pub(crate) enum OpenFault {
    /// sled found damage, or panicked over it.
    Corrupt(String),
    /// sled neither opened nor failed in time.
    TimedOut,
    /// Its file is locked: a child process that was just forked still has a copy of an old descriptor.
    Busy,
    /// No space is left.
    Full,
    /// Anything else.
    Other(String),
}

/// sled, open.
pub(crate) struct SledBacking {
    blobs: Blobs,
    /// Our own descriptor of sled's file: what `fdatasync` is called on.
    file: File,
    record: RecordFile,
    trees: RwLock<BTreeMap<String, sled::Tree>>,
    db: sled::Db,
}

/// Opens sled in a thread of its own, since it may panic or never return.
///
/// A thread that does not return in time is abandoned: the process is about to end anyway.
pub(crate) fn open_sled(
    dir: &Path,
    cache_bytes: u64,
    timeout: Duration,
) -> Result<(sled::Db, BTreeMap<String, sled::Tree>), OpenFault> {
    let config = sled::Config::new()
        .path(dir)
        .segment_size(layout::SLED_SEGMENT_BYTES)
        .cache_capacity(cache_bytes)
        // sled compacts segments that hold little: one page with each page that it writes, and all that it can in its flusher.
        // After a start the flusher may never finish: a segment that waits to be freed counts neither as free nor as used, so
        // sled fills and empties the same few again, at 80 MB a second. So the flusher is off. The writer flushes, and the
        // snapshotter writes so that little is left to compact.
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
            // After the time-out nobody receives this.
            let _ = sender.send(catch_unwind(AssertUnwindSafe(open)));
        })
        .map_err(|error| OpenFault::Other(error.to_string()))?;
    match receiver.recv_timeout(timeout) {
        Ok(Ok(Ok(opened))) => Ok(opened),
        Ok(Ok(Err(error))) => Err(match &error {
            sled::Error::Io(source) if is_full(source) => OpenFault::Full,
            sled::Error::Io(source) if source.to_string().contains("could not acquire lock") => {
                OpenFault::Busy
            }
            // An error without a number is sled's own judgement of what it read.
            sled::Error::Io(source) if source.raw_os_error().is_some() => OpenFault::Other(error.to_string()),
            _ => OpenFault::Corrupt(error.to_string()),
        }),
        Ok(Err(panic)) => Err(OpenFault::Corrupt(panic_text(&*panic))),
        Err(mpsc::RecvTimeoutError::Timeout) => Err(OpenFault::TimedOut),
        Err(mpsc::RecvTimeoutError::Disconnected) => {
            Err(OpenFault::Corrupt("the opening thread died".to_owned()))
        }
    }
}

impl SledBacking {
    /// Wraps sled once it is open.
    pub(crate) fn new(
        dir: &Path,
        db: sled::Db,
        trees: BTreeMap<String, sled::Tree>,
        record: RecordFile,
    ) -> io::Result<SledBacking> {
        let file = fs::OpenOptions::new().read(true).write(true).open(dir.join("db"))?;
        let blobs = Blobs::open(dir.join("blobs"))?;
        Ok(SledBacking { blobs, file, record, trees: RwLock::new(trees), db })
    }

    fn tree(&self, name: &str) -> Option<sled::Tree> {
        self.trees.read().get(name).cloned()
    }
}

impl Backing for SledBacking {
    fn tree_names(&self) -> Vec<String> {
        self.trees.read().keys().cloned().collect()
    }

    fn drop_tree(&self, tree: &str) -> Result<(), Fault> {
        guarded("dropping a tree", || {
            self.trees.write().remove(tree);
            self.db.drop_tree(tree).map(drop)
        })
    }

    fn write(&self, tree: &str, changes: Vec<Change>) -> Result<(), Fault> {
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
            let changes = match <[Change; 1]>::try_from(changes) {
                Ok([Change::Put(key, value)]) => return tree.insert(key, value).map(drop),
                Ok([Change::Remove(key)]) => return tree.remove(key).map(drop),
                Err(changes) => changes,
            };
            let mut batch = sled::Batch::default();
            for change in changes {
                match change {
                    Change::Put(key, value) => batch.insert(key, value),
                    Change::Remove(key) => batch.remove(key),
                }
            }
            tree.apply_batch(batch)
        })
    }

    fn read(&self, tree: &str, key: &[u8], value: &mut Vec<u8>) -> Result<bool, Fault> {
        guarded("reading", || {
            let Some(tree) = self.tree(tree) else { return Ok(false) };
            let found = tree.get(key)?;
            if let Some(found) = &found {
                value.extend_from_slice(found);
            }
            Ok(found.is_some())
        })
    }

    fn scan(&self, tree: &str, from: &[u8], visit: &mut Visit<'_>) -> Result<(), Fault> {
        let Some(tree) = self.tree(tree) else { return Ok(()) };
        let mut values = guarded("reading", || Ok(tree.range(from..)))?;
        // The visitor runs outside the guard: a panic of the visitor is not sled's.
        while let Some((key, value)) = guarded("reading", || values.next().transpose())? {
            if visit(&key, &value).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn last_key(&self, tree: &str, to: Option<&[u8]>) -> Result<Option<Vec<u8>>, Fault> {
        guarded("reading", || {
            let Some(tree) = self.tree(tree) else { return Ok(None) };
            let last = match to {
                Some(to) => tree.range(..=to).next_back().transpose()?,
                None => tree.last()?,
            };
            Ok(last.map(|(key, _)| key.to_vec()))
        })
    }

    fn flush(&self) -> Result<(), Fault> {
        guarded("flushing", || self.db.flush().map(drop))
    }

    fn sync(&self) -> Result<(), Fault> {
        let doing = "syncing";
        self.file.sync_data().map_err(|error| fault(doing, &error))?;
        if !self.blobs.are_none().map_err(|error| fault(doing, &error))? {
            let detail = format!("{} holds a file, and sled never syncs those", self.blobs.path.display());
            return Err(Fault { doing, detail });
        }
        Ok(())
    }

    fn read_record(&self, slot: u64, record: &mut [u8]) -> Result<(), Fault> {
        self.record.read(slot, record).map_err(|error| fault("reading the record", &error))
    }

    fn write_record(&self, slot: u64, record: &[u8]) -> Result<(), Fault> {
        self.record.write(slot, record).map_err(|error| fault("writing the record", &error))
    }

    fn sync_record(&self) -> Result<(), Fault> {
        self.record.sync().map_err(|error| fault("syncing the record", &error))
    }
}

/// sled's folder of values that are too large for its file. It stays open: each commit checks it, and must not depend on a free
/// descriptor.
struct Blobs {
    path: PathBuf,
    folder: File,
}

impl Blobs {
    fn open(path: PathBuf) -> io::Result<Blobs> {
        Ok(Blobs { folder: File::open(&path)?, path })
    }

    /// Whether the folder is empty. Only one thread at a time may ask, as the descriptor has one position.
    fn are_none(&self) -> io::Result<bool> {
        rustix::fs::seek(&self.folder, rustix::fs::SeekFrom::Start(0))?;
        // Room for the longest name, so that every entry fits.
        let mut buffer = [MaybeUninit::uninit(); 1024];
        let mut entries = RawDir::new(&self.folder, &mut buffer);
        while let Some(entry) = entries.next() {
            if !matches!(entry?.file_name().to_bytes(), b"." | b"..") {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Describes an error of the operating system.
fn fault(doing: &'static str, error: &io::Error) -> Fault {
    let remedy = if is_full(error) { ": make room, then restart" } else { "" };
    Fault { doing, detail: format!("{error}{remedy}") }
}

/// Runs an operation of sled, and turns a panic into an error.
fn guarded<T>(doing: &'static str, operation: impl FnOnce() -> sled::Result<T>) -> Result<T, Fault> {
    match catch_unwind(AssertUnwindSafe(operation)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(sled::Error::Io(error))) => Err(fault(doing, &error)),
        Ok(Err(error)) => Err(Fault { doing, detail: error.to_string() }),
        Err(panic) => Err(Fault { doing, detail: panic_text(&*panic) }),
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text =
        panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("sled panicked: {}", text.unwrap_or("without a message"))
}
