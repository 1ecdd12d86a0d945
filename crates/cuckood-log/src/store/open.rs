//! Opening a data directory, step by step, so that a damaged directory is never mistaken for an empty one. Migrations bring its format up
//! to date: each has its file under `migrations/`, is compiled in, and runs once. A directory that must not change is copied before it is
//! opened, because sled writes to it.

use super::backing::{
    Backing, KeyChange, OpenFault, Opened, RECORD_BYTES_MAX, RECORD_SLOTS, RecordFile, SledBacking,
    open_sled,
};
use super::directory::{
    self, Directory, DirectoryFormat, SavedClockFile, Space, refuse_foreign, refuse_locked,
};
use super::{Store, StoreError, StoreOptions};
use parking_lot::Mutex;
use rustix::fs::ioctl_ficlone;
use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use tempfile::TempDir;

#[path = "../../../../migrations/0001_first.rs"]
mod step_0001;

/// A directory with a restore in progress. Nothing else opens it until the restore is complete, even if this process is killed.
pub struct RestoreTarget {
    directory: Directory,
    /// The state before this restore.
    before: Before,
}

/// What was there before a restore, so that a rejected one leaves nothing.
struct Before {
    /// The directories that did not exist, the innermost first.
    missing: Vec<PathBuf>,
    has_lock: bool,
    permissions: Option<Permissions>,
}

impl Before {
    fn of(dir: &Path) -> Self {
        let missing = dir
            .ancestors()
            .take_while(|path| !path.as_os_str().is_empty() && !path.exists());
        Self {
            missing: missing.map(Path::to_owned).collect(),
            has_lock: dir.join(directory::LOCK_FILE).exists(),
            permissions: dir.metadata().ok().map(|found| found.permissions()),
        }
    }

    /// Removes everything that is new in an empty directory.
    fn restore(&self, dir: &Path) -> Result<(), StoreError> {
        if !self.has_lock {
            let lock = dir.join(directory::LOCK_FILE);
            fs::remove_file(&lock).map_err(StoreError::io(&lock, "remove"))?;
        }
        if let Some(permissions) = &self.permissions {
            let set = fs::set_permissions(dir, permissions.clone());
            set.map_err(StoreError::io(dir, "set the permissions of"))?;
        }
        self.missing
            .iter()
            .try_for_each(|made| fs::remove_dir(made).map_err(StoreError::io(made, "remove")))
    }
}

impl RestoreTarget {
    /// Begins a restore into an empty or absent directory. From here on, only [`Self::open`] opens it, until [`Store::seal`].
    ///
    /// # Errors
    /// [`StoreError::NotOurs`] or [`StoreError::NotEmpty`] if the directory is not empty, [`StoreError::Damaged`] if another restore into
    /// it was interrupted.
    pub fn begin(dir: &Path) -> Result<Self, StoreError> {
        let before = Before::of(dir);
        let directory = Directory::lock(dir)?;
        if found_format(&directory)?.is_some() {
            return Err(StoreError::NotEmpty {
                path: dir.to_owned(),
            });
        }
        directory.mark(directory::RESTORING_FILE)?;
        Ok(Self { directory, before })
    }

    /// Checks that there is space for a restore.
    ///
    /// # Errors
    /// [`StoreError::DiskFull`].
    pub fn check_space(&self, options: &StoreOptions) -> Result<(), StoreError> {
        let ballast = self.directory.file(directory::BALLAST_FILE);
        Space::new(self.directory.path(), ballast, options).check()
    }

    /// Opens it for writing. It can't be served before [`Store::seal`].
    ///
    /// # Errors
    /// Those of [`Store::open`].
    pub fn open(self, options: &StoreOptions) -> Result<Store, StoreError> {
        open(
            self.directory,
            options,
            Some(directory::RESTORING_FILE),
            |backing| backing,
        )
    }

    /// Ends a restore that has written nothing: the directory is as empty, or absent, as before.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn abandon(self) -> Result<(), StoreError> {
        self.directory.remove(directory::RESTORING_FILE)?;
        self.before.restore(self.directory.path())
    }
}

/// Whether a directory was never served: it is absent, empty or new, or was about to be filled.
pub fn is_unused(dir: &Path) -> bool {
    let has = |name: &str| dir.join(name).exists();
    let is_empty = || !has(directory::ACKNOWLEDGED_FILE) && !has(directory::SLED_DIR);
    let is_begun =
        || !has(directory::FORMAT_FILE) && (has(directory::INITIALISING_FILE) || is_empty());
    has(directory::FILLING_FILE) || is_begun()
}

/// Rejects a directory that can't be read because it was never served.
///
/// # Errors
/// [`StoreError::NotData`].
pub fn refuse_unused(dir: &Path) -> Result<(), StoreError> {
    let found = match dir.metadata() {
        Ok(found) if !found.is_dir() => "it is not a directory",
        Ok(_) if !is_unused(dir) || dir.join(directory::RESTORING_FILE).exists() => return Ok(()),
        Ok(_) => "it holds no data",
        Err(error) if error.kind() == io::ErrorKind::NotFound => "it does not exist",
        Err(error) => return Err(StoreError::io(dir, "read")(error)),
    };
    Err(StoreError::NotData {
        path: dir.to_owned(),
        found: found.to_owned(),
    })
}

/// Rejects a directory of another user if this process is root's.
///
/// # Errors
/// [`StoreError::NotOwner`].
pub fn refuse_other_owner(dir: &Path) -> Result<(), StoreError> {
    let found = dir.metadata().map_err(StoreError::io(dir, "read"))?;
    let owner = found.uid();
    if owner != 0 && rustix::process::geteuid().is_root() {
        let path = dir.to_owned();
        return Err(StoreError::NotOwner { path, owner });
    }
    Ok(())
}

/// Opens a locked directory, with an adapter over sled. With a marker it is filled, and can't be served before [`Store::seal`]:
/// [`directory::RESTORING_FILE`] for a [`RestoreTarget`], [`directory::FILLING_FILE`] whatever it holds.
pub(super) fn open(
    directory: Directory,
    options: &StoreOptions,
    marker: Option<&str>,
    over: impl FnOnce(Box<dyn Backing>) -> Box<dyn Backing>,
) -> Result<Store, StoreError> {
    open_on(directory, options, marker, |directory, space, is_new| {
        let sled = open_backing(directory, space, options, is_new)?;
        Ok(over(Box::new(sled)))
    })
}

/// Opens a locked directory on a backing, which is told whether the directory is new.
pub(super) fn open_on(
    directory: Directory,
    options: &StoreOptions,
    marker: Option<&str>,
    backing: impl FnOnce(&Directory, &Space, bool) -> Result<Box<dyn Backing>, StoreError>,
) -> Result<Store, StoreError> {
    let space = Space::new(
        directory.path(),
        directory.file(directory::BALLAST_FILE),
        options,
    );
    let found = if marker.is_none() {
        found_format(&directory)?
    } else {
        None
    };
    let is_new = found.is_none();
    let format = match found {
        Some(format) => format,
        None => {
            space.check()?;
            begin(&directory, marker.unwrap_or(directory::INITIALISING_FILE))?
        }
    };
    space.delete_ballast_if_full()?;
    let backing = backing(&directory, &space, is_new)?;
    let clock = SavedClockFile {
        path: directory.file(directory::CLOCK_FILE),
        boot: directory::boot_id(),
    };
    let store = Store {
        backing,
        directory,
        options: options.clone(),
        space,
        identity: format.identity,
        clock,
        poison: OnceLock::new(),
        pinned: Mutex::new(Vec::new()),
        writing: AtomicU64::new(0),
        wal_bytes_written: AtomicU64::new(0),
        snapshot_bytes_written: AtomicU64::new(0),
        unsynced_chunk_bytes: AtomicU64::new(0),
    };
    migrate(&store, format)?;
    store.space.restore_ballast();
    Ok(store)
}

/// Opens a locked directory whose trees are on this backing instead of sled's files.
#[cfg(feature = "testing")]
pub(super) fn open_without_sled(
    directory: Directory,
    options: &StoreOptions,
    marker: Option<&str>,
    backing: impl FnOnce(bool) -> Box<dyn Backing>,
) -> Result<Store, StoreError> {
    open_on(directory, options, marker, |directory, _, is_new| {
        // Without this file, a directory counts as damaged.
        let path = directory.file(directory::SLED_DIR).join("db");
        fs::write(&path, []).map_err(StoreError::io(&path, "write"))?;
        Ok(backing(is_new))
    })
}

/// The format of the directory, if it holds data. Refuses data that is newer or incomplete.
fn found_format(directory: &Directory) -> Result<Option<DirectoryFormat>, StoreError> {
    let dir = directory.path();
    let interrupted = [
        (
            directory::RESTORING_FILE,
            "a restore into it was interrupted: empty it, then restore again",
        ),
        (
            directory::FILLING_FILE,
            "a shared snapshot was not loaded to its end: start the node again where the others are, or empty it",
        ),
    ];
    if let Some((_, what)) = interrupted
        .into_iter()
        .find(|(marker, _)| directory.file(marker).exists())
    {
        let command = format!("cuckood restore FILE {}", dir.display());
        return Err(StoreError::Damaged {
            path: dir.to_owned(),
            what: what.to_owned(),
            command,
        });
    }
    if let Some(why) = directory.text(directory::DIVERGED_FILE)? {
        return Err(StoreError::Diverged {
            path: dir.to_owned(),
            why: why.trim_end().to_owned(),
        });
    }
    let Some(format) = directory.format()? else {
        return Ok(None);
    };
    refuse_unknown(dir, format.number)?;
    if !directory.file(directory::SLED_DIR).join("db").exists() {
        return Err(StoreError::damaged(dir, "sled/db is missing"));
    }
    Ok(Some(format))
}

/// Opens sled and the record of acknowledged entries. Files that this creates are synced, and their names as well.
fn open_backing(
    directory: &Directory,
    space: &Space,
    options: &StoreOptions,
    is_new: bool,
) -> Result<SledBacking, StoreError> {
    let dir = directory.path();
    let record_path = directory.file(directory::ACKNOWLEDGED_FILE);
    if !record_path.exists() {
        return Err(StoreError::damaged(
            dir,
            format!("{} is missing", record_path.display()),
        ));
    }
    let sled_dir = directory.file(directory::SLED_DIR);
    // Snapshots that sled was writing when the process crashed: sled 0.34 would read them (spacejam/sled #1533).
    remove_snapshots(&sled_dir, |name| name.ends_with(".generating"))?;
    let opened = open_guarded(directory, options)?;
    let room = options
        .free_space_min_bytes
        .saturating_add(options.preallocate_bytes);
    if is_new && space.free_bytes()? >= room {
        let path = sled_dir.join("db");
        preallocate(&path, options.preallocate_bytes)
            .map_err(StoreError::io(&path, "preallocate"))?;
    }
    let record = RecordFile::open(&record_path, options.record_sync_pause)
        .map_err(StoreError::io(&record_path, "open"))?;
    let backing = SledBacking::new(&sled_dir, opened, record)
        .map_err(StoreError::io(&sled_dir, "open the file in"))?;
    directory::sync_files(&sled_dir)?;
    directory::sync_directory(dir)?;
    Ok(backing)
}

/// Creates a new directory. The marker is created first and removed last: other files in a marked directory are unused or obsolete.
fn begin(directory: &Directory, marker: &str) -> Result<DirectoryFormat, StoreError> {
    let identity = draw_identity(directory)?;
    directory.mark(marker)?;
    if marker == directory::FILLING_FILE {
        // The format first: without it nothing takes the directory for a used one.
        let old = [
            directory::FORMAT_FILE,
            directory::INITIALISING_FILE,
            directory::RESTORING_FILE,
            directory::CLOCK_FILE,
            directory::DAMAGED_COPY_DIR,
        ];
        old.iter().try_for_each(|name| directory.remove(name))?;
    }
    directory.remove(directory::SLED_DIR)?;
    // At its full size, so that later writes change no metadata.
    let record = [0; RECORD_SLOTS as usize * RECORD_BYTES_MAX];
    directory.write_file(directory::ACKNOWLEDGED_FILE, &record)?;
    let sled_dir = directory.file(directory::SLED_DIR);
    fs::create_dir(&sled_dir).map_err(StoreError::io(&sled_dir, "make"))?;
    directory::sync_directory(directory.path())?;
    Ok(DirectoryFormat {
        number: 0,
        identity,
    })
}

/// Draws the identity of a new directory.
fn draw_identity(directory: &Directory) -> Result<[u8; 16], StoreError> {
    let mut identity = [0; 16];
    #[cfg(feature = "testing")]
    if cuckood_state::testing::seeded::fill(&mut identity) {
        return Ok(identity);
    }
    getrandom::fill(&mut identity).map_err(|error| {
        StoreError::io(directory.path(), "draw an identity for")(io::Error::other(error))
    })?;
    Ok(identity)
}

/// Extends sled's file to the size that it would reach anyway. It writes zeros, because an unwritten block costs the same metadata as none,
/// and sled takes a segment of zeros for a free one. The segment in use by sled is not touched.
fn preallocate(path: &Path, bytes: u64) -> io::Result<()> {
    let file = fs::OpenOptions::new().write(true).open(path)?;
    let segment = directory::SLED_SEGMENT_BYTES as u64;
    let begun = file.metadata()?.len().max(1).div_ceil(segment);
    let zeros = vec![0; directory::SLED_SEGMENT_BYTES];
    (begun..bytes / segment).try_for_each(|at| file.write_all_at(&zeros, at * segment))?;
    file.sync_all()
}

/// Removes sled's own snapshots whose names `go`.
fn remove_snapshots(sled_dir: &Path, go: impl Fn(&str) -> bool) -> Result<(), StoreError> {
    for entry in fs::read_dir(sled_dir).map_err(StoreError::io(sled_dir, "list"))? {
        let entry = entry.map_err(StoreError::io(sled_dir, "list"))?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with("snap.") && go(&name) {
            fs::remove_file(entry.path()).map_err(StoreError::io(&entry.path(), "remove"))?;
        }
    }
    Ok(())
}

/// How often sled is opened again while its file is locked.
const BUSY_TRIES_MAX: u32 = 100;
const BUSY_PAUSE: Duration = Duration::from_millis(10);

/// Opens sled. If sled finds damage, its files are copied, and it is opened again without its own snapshots, from its log alone.
fn open_guarded(directory: &Directory, options: &StoreOptions) -> Result<Opened, StoreError> {
    let path = directory.path();
    let sled_dir = &directory.file(directory::SLED_DIR);
    let attempt = || {
        let mut tries = 0;
        loop {
            match open_sled(directory, options) {
                Err(OpenFault::Busy) if tries < BUSY_TRIES_MAX => tries += 1,
                result => return result,
            }
            std::thread::sleep(BUSY_PAUSE);
        }
    };
    let why = match attempt() {
        Ok(opened) => return Ok(opened),
        Err(OpenFault::Corrupt(why)) => why,
        Err(fault) => return Err(refusal(directory, fault)),
    };
    let aside = directory.file(directory::DAMAGED_COPY_DIR);
    if aside.exists() {
        let what = format!(
            "{}: {why}; {} has a copy of the files as they were",
            sled_dir.display(),
            aside.display()
        );
        return Err(StoreError::damaged(path, what));
    }
    tracing::error!(path = %sled_dir.display(), why, "sled is damaged; copying its files and retrying without snapshots");
    copy(sled_dir, &aside)?;
    remove_snapshots(sled_dir, |_| true)?;
    attempt().map_err(|fault| refusal(directory, fault))
}

fn refusal(directory: &Directory, fault: OpenFault) -> StoreError {
    let path = directory.path();
    match fault {
        OpenFault::Corrupt(why) => StoreError::damaged(
            path,
            format!("{}: {why}", directory.file(directory::SLED_DIR).display()),
        ),
        OpenFault::Busy => StoreError::Locked {
            path: path.to_owned(),
        },
        OpenFault::Other(error) => error,
    }
}

/// The resources of a migration.
pub(super) struct Step {
    number: u32,
    run: fn(&Store) -> Result<(), StoreError>,
}

const STEPS: &[Step] = &[Step {
    number: 1,
    run: step_0001::run,
}];

/// The format number that this program writes.
pub(super) const FORMAT: u32 = STEPS[STEPS.len() - 1].number;

/// Rejects a directory whose format this version does not know.
///
/// # Errors
/// [`StoreError::Newer`], and [`StoreError::Damaged`] for format 0: a `format` file is written after the first migration only.
fn refuse_unknown(path: &Path, found: u32) -> Result<(), StoreError> {
    match found {
        0 => Err(StoreError::damaged(
            path,
            "the format file has format 0, which does not exist",
        )),
        1..=FORMAT => Ok(()),
        _ => Err(StoreError::Newer {
            path: path.to_owned(),
            found,
            known: FORMAT,
        }),
    }
}

/// Runs the migrations that the directory has not had, in order. Each is durable before the `format` file records it. If this is
/// interrupted, the next start repeats the migration that was not recorded.
fn migrate(store: &Store, mut format: DirectoryFormat) -> Result<(), StoreError> {
    for step in STEPS {
        let key = format!("migration/{:04}", step.number).into_bytes();
        let mut record = Vec::new();
        let recorded = store.run(
            store
                .backing()
                .read(directory::META_TREE, &key, &mut record),
        )?;
        if step.number <= format.number {
            if !recorded {
                let what = format!("tree meta: there is no record of migration {}", step.number);
                return Err(store.damaged(what));
            }
            continue;
        }
        if !recorded {
            (step.run)(store)?;
            let version = env!("CARGO_PKG_VERSION").as_bytes().to_vec();
            store.write(directory::META_TREE, vec![KeyChange::Put(key, version)])?;
        }
        store.flush()?;
        store.sync()?;
        format.number = step.number;
        store
            .directory
            .write_file(directory::FORMAT_FILE, format.to_string().as_bytes())?;
    }
    let mut identity = Vec::new();
    store.run(store.backing().read(
        directory::META_TREE,
        directory::IDENTITY_KEY,
        &mut identity,
    ))?;
    if identity != store.identity {
        return Err(store.damaged("sled's files belong to another directory than the format file"));
    }
    Ok(())
}

/// A copy of a data directory. It is removed when dropped.
pub struct StoreCopy {
    original: PathBuf,
    copy: TempDir,
    // Keeps servers from opening the original, which would invalidate the findings about the copy.
    _lock: Option<File>,
}

impl StoreCopy {
    /// Copies a data directory that no server has open into `scratch`. Without `scratch` the copy is placed next to the original, where the
    /// file system may share the blocks, or else in the directory for temporary files.
    ///
    /// # Errors
    /// [`StoreError::Locked`], [`StoreError::NotData`]; [`StoreError::DiskFull`] if there is no space for the copy; [`StoreError::Io`].
    pub fn of(dir: &Path, scratch: Option<&Path>) -> Result<StoreCopy, StoreError> {
        refuse_unused(dir)?;
        refuse_foreign(dir).map_err(|error| match error {
            StoreError::NotOurs { path, found } => StoreError::NotData { path, found },
            error => error,
        })?;
        let lock = lock(dir)?;
        let mut builder = tempfile::Builder::new();
        builder.prefix(".cuckood-verify-");
        let beside = dir
            .parent()
            .filter(|parent| !parent.as_os_str().is_empty())
            .unwrap_or(Path::new("."));
        let place = scratch.unwrap_or(beside);
        let copy = match builder.tempdir_in(place) {
            Err(_) if scratch.is_none() => builder.tempdir(),
            made => made,
        };
        let copy = copy.map_err(StoreError::io(place, "make a folder in"))?;
        let this = StoreCopy {
            original: dir.to_owned(),
            copy,
            _lock: lock,
        };
        this.fill()?;
        Ok(this)
    }

    /// Opens the copy.
    ///
    /// # Errors
    /// Those of [`Store::open`]. [`StoreCopy::of_original`] makes the message name the original.
    pub fn open(&self, options: &StoreOptions) -> Result<Store, StoreError> {
        Store::open(self.copy.path(), options)
    }

    /// Rewrites a message about the copy so that it names the original.
    pub fn of_original(&self, text: &str) -> String {
        text.replace(
            &*self.copy.path().to_string_lossy(),
            &self.original.to_string_lossy(),
        )
    }

    fn fill(&self) -> Result<(), StoreError> {
        let judged = [
            directory::FORMAT_FILE,
            directory::ACKNOWLEDGED_FILE,
            directory::SLED_DIR,
        ];
        let there = |name: &&&str| self.original.join(name).exists();
        let found: Vec<_> = directory::MARKERS
            .iter()
            .chain(&judged)
            .filter(there)
            .collect();
        // Opening judges which files may be missing, but there must be at least one.
        if found.is_empty() {
            let format = self.original.join(directory::FORMAT_FILE);
            return Err(StoreError::io(&format, "read")(
                io::ErrorKind::NotFound.into(),
            ));
        }
        found
            .into_iter()
            .try_for_each(|name| copy(&self.original.join(name), &self.copy.path().join(name)))?;
        // Its contents don't matter, only that it exists.
        if self.original.join(directory::DAMAGED_COPY_DIR).exists() {
            let aside = self.copy.path().join(directory::DAMAGED_COPY_DIR);
            fs::create_dir(&aside).map_err(StoreError::io(&aside, "make"))?;
        }
        Ok(())
    }
}

/// Copies a file, or a folder and everything in it, without permissions: the copy must be writable. It must not exist yet.
fn copy(from: &Path, to: &Path) -> Result<(), StoreError> {
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
    let needed_bytes = source
        .metadata()
        .map_err(StoreError::io(from, "measure"))?
        .len();
    let free_bytes = directory::free_bytes(to)?;
    if free_bytes < needed_bytes {
        return Err(StoreError::DiskFull {
            path: to.to_owned(),
            free_bytes,
            needed_bytes,
        });
    }
    io::copy(&mut source, &mut target).map_err(StoreError::io(to, "copy to"))?;
    Ok(())
}

/// Locks a data directory for reading, without writing to it.
fn lock(dir: &Path) -> Result<Option<File>, StoreError> {
    let path = dir.join(directory::LOCK_FILE);
    match File::open(&path) {
        Ok(lock) => {
            refuse_locked(dir, lock.try_lock_shared())?;
            Ok(Some(lock))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(StoreError::io(&path, "open")(error)),
    }
}
