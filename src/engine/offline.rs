//! Data directories that no service has open are backups: archives of them, and the beginning of a log that nodes share.

use super::recovery::{Recovered, recover};
use super::restore::restore;
use super::running_snapshot::RunningSnapshot;
use super::{ArchiveSource, RecoveryError};
use crate::domain::{ClockReading, Seq};
use crate::journal::{
    Journal, JournalError, JournalOptions, LocalJournal, LocalOptions, MemoryLog, Taken, is_of_replicated_log,
};
use crate::store::{Store, StoreOptions, is_unused};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes of a snapshot that are written at once. No client waits.
const STEP_BYTES: u64 = 64 << 20;

/// How long that may take.
const STEP_TIME: Duration = Duration::from_secs(3_600);

/// A directory that was opened to be read: its journal, and the last position in it. A node among several stores snapshots alone.
struct Opened {
    store: Arc<Store>,
    journal: Box<dyn Journal>,
    last: Seq,
}

fn options() -> StoreOptions {
    StoreOptions {
        free_space_min_bytes: 0,
        ballast_bytes: 0,
        sync_snapshots: false,
        ..StoreOptions::default()
    }
}

fn open(dir: &Path) -> Result<Opened, RecoveryError> {
    if is_unused(dir) {
        return Err(JournalError::Failed(format!("{}: not a data directory", dir.display())).into());
    }
    let store = Arc::new(Store::open(dir, &options())?);
    if is_of_replicated_log(&store) {
        let last = store.manifests()?.first().map_or(Seq(0), |manifest| manifest.seq);
        return Ok(Opened { store, journal: Box::new(MemoryLog::new().join()), last });
    }
    let journal = LocalJournal::open(store.clone(), LocalOptions::default())?;
    let last = journal.last();
    Ok(Opened { store, journal: Box::new(journal), last })
}

/// The last position that a directory has.
///
/// # Errors
/// Those of the store and its log.
pub fn position_of(dir: &Path) -> Result<Seq, RecoveryError> {
    Ok(open(dir)?.last)
}

/// Writes an archive of a directory. Returns the last position in it.
///
/// # Errors
/// Those of the store, its log, and `to`.
pub fn archive_directory(dir: &Path, to: &mut dyn Write) -> Result<Seq, RecoveryError> {
    let Opened { store, mut journal, last } = open(dir)?;
    let mut source = ArchiveSource::begin(&store, last)?;
    let failed = |error: io::Error| JournalError::Failed(format!("can't write the archive: {error}"));
    while let Some(part) = source.next_part(&store, &mut *journal)? {
        to.write_all(&part).map_err(failed)?;
    }
    to.flush().map_err(failed)?;
    Ok(last)
}

/// Chooses the source that is furthest ahead; a single one may be a backup. Returns it, and the positions of the directories.
///
/// # Errors
/// If there are several and one of them is no directory; otherwise as [`position_of`].
pub fn furthest(sources: &[PathBuf]) -> Result<(PathBuf, Vec<(PathBuf, Seq)>), RecoveryError> {
    let [first, others @ ..] = sources else {
        return Err(JournalError::Failed("no backup and no directory is named".to_owned()).into());
    };
    if others.is_empty() && !first.is_dir() {
        return Ok((first.clone(), Vec::new()));
    }
    let positions = sources.iter().map(|dir| Ok((dir.clone(), position_of(dir)?)));
    let positions = positions.collect::<Result<Vec<_>, RecoveryError>>()?;
    let chosen = positions.iter().max_by_key(|(_, at)| *at).map_or(first, |(dir, _)| dir);
    Ok((chosen.clone(), positions))
}

/// Begins an empty log with a backup. It is unpacked into `scratch` first, an empty or absent directory, which holds nothing of use
/// afterwards. Returns the position behind which the log continues.
///
/// # Errors
/// If nodes share no such log, or it is not empty; otherwise those of [`restore`] and of the log.
pub fn restore_into_cluster(
    file: &Path,
    scratch: &Path,
    journal: &JournalOptions,
    clock: ClockReading,
) -> Result<Seq, RecoveryError> {
    let failed = |why: &str| JournalError::Failed(why.to_owned());
    let shared = journal.shared_snapshots()?;
    let mut shared = shared.ok_or_else(|| failed("journal.kind is not \"nats\": no nodes share a log"))?;
    if shared.has_begun()? {
        return Err(failed("the log is not empty: set nats.stream to another name, or remove it").into());
    }
    restore(file, scratch, &options(), clock)?;
    let store = Arc::new(Store::open(scratch, &options())?);
    let mut log = LocalJournal::open(store.clone(), LocalOptions::default())?;
    let Recovered { mut state, mut events, .. } = recover(&store, &mut log, &mut |_| ())?;
    let mut running = RunningSnapshot::begin(&store, &mut state, &mut events, None, clock.wall)?;
    while !running.is_whole() {
        running.write(&store, STEP_BYTES, Instant::now() + STEP_TIME)?;
    }
    let manifest = running.finish(&store)?;
    let source = ArchiveSource::of_newest_snapshot(&store)?;
    let mut source = source.ok_or_else(|| failed("the snapshot of the backup is gone"))?;
    let taken = Taken { seq: manifest.seq, taken_at: manifest.taken_at, place: Vec::new() };
    let begun = shared.begin_log(&taken, &mut || source.next_part(&store, &mut log))?;
    Ok(begun.seq)
}
