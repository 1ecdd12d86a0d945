//! Data directories that no service has open are backups: archives of them, and the beginning of a log that nodes share.

use super::RecoveryError;
use super::backup::archive;
use super::recovery::{Recovered, recover};
use super::restore::restore;
use super::snapshotter::RunningSnapshot;
use crate::domain::{ClockReading, Seq};
use crate::journal::{JournalError, JournalOptions, LocalJournal, LocalOptions, Taken, is_of_replicated_log};
use crate::store::{Store, StoreOptions, is_unused};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn options() -> StoreOptions {
    StoreOptions {
        free_space_min_bytes: 0,
        ballast_bytes: 0,
        sync_snapshots: false,
        ..StoreOptions::default()
    }
}

fn open(dir: &Path, options: &StoreOptions) -> Result<Arc<Store>, RecoveryError> {
    if is_unused(dir) {
        return Err(failed(format!("{}: not a data directory", dir.display())));
    }
    Ok(Arc::new(Store::open(dir, options)?))
}

fn failed(why: impl Into<String>) -> RecoveryError {
    JournalError::Failed(why.into()).into()
}

/// The last position that a directory has. A node among several stores snapshots alone.
///
/// # Errors
/// Those of the store and its log.
pub fn position_of(dir: &Path) -> Result<Seq, RecoveryError> {
    let store = open(dir, &options())?;
    if is_of_replicated_log(&store) {
        return Ok(store.manifests()?.first().map_or(Seq(0), |manifest| manifest.seq));
    }
    Ok(LocalJournal::open(store, LocalOptions::default())?.last())
}

/// Takes a snapshot of a directory with a local log, unless the newest snapshot covers the whole log.
fn take_snapshot(store: &Arc<Store>) -> Result<(), RecoveryError> {
    let mut log = LocalJournal::open(store.clone(), LocalOptions::default())?;
    let Recovered { mut state, mut events, manifest, damaged, .. } = recover(store, &mut log, &mut |_| ())?;
    for manifest in &damaged {
        store.forget_snapshot(manifest)?;
    }
    if manifest.as_ref().is_none_or(|manifest| manifest.seq < state.applied()) {
        let at = state.now();
        RunningSnapshot::take(store, &mut state, &mut events, manifest.as_ref(), at)?;
    }
    Ok(())
}

/// Writes an archive of a directory. Returns the last position in it.
///
/// # Errors
/// Those of the store, its log, and `to`.
pub fn archive_directory(dir: &Path, to: &mut dyn Write) -> Result<Seq, RecoveryError> {
    // The directory may be the only copy, so its snapshot is synced, and leaves the space that the next start needs.
    let store = open(dir, &StoreOptions::default())?;
    if !is_of_replicated_log(&store) {
        take_snapshot(&store)?;
    }
    let snapshot = store.pin_newest()?;
    let snapshot = snapshot.ok_or_else(|| failed(format!("{} has no snapshot yet", dir.display())))?;
    let seq = snapshot.seq;
    let unwritten = |error: io::Error| failed(format!("can't write the archive: {error}"));
    for part in archive(&store, snapshot) {
        to.write_all(&part?).map_err(unwritten)?;
    }
    to.flush().map_err(unwritten)?;
    Ok(seq)
}

/// Chooses the source that is furthest ahead; a single one may be a backup. Returns it, and the positions of the directories.
///
/// # Errors
/// If there are several and one of them is no directory; otherwise as [`position_of`].
pub fn furthest(sources: &[PathBuf]) -> Result<(PathBuf, Vec<(PathBuf, Seq)>), RecoveryError> {
    let [first, others @ ..] = sources else {
        return Err(failed("no backup and no directory is named"));
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
    let shared = journal.shared_snapshots()?;
    let shared = shared.ok_or_else(|| failed("journal.kind is not \"nats\": no nodes share a log"))?;
    if shared.has_begun()? {
        return Err(failed("the log is not empty: set nats.stream to another name, or remove it"));
    }
    restore(file, scratch, &options(), clock, |archive| archive)?;
    let store = Arc::new(Store::open(scratch, &options())?);
    take_snapshot(&store)?;
    let snapshot = store.pin_newest()?;
    let snapshot = snapshot.ok_or_else(|| failed("the snapshot of the backup is gone"))?;
    let taken = Taken { seq: snapshot.seq, taken_at: clock.wall, place: Vec::new() };
    let mut parts = archive(&store, snapshot);
    let begun = shared.begin_log(&taken, &mut || Ok(parts.next().transpose()?))?;
    Ok(begun.seq)
}
