//! Data directories that no service has open: archives of them, repairs, and the beginning of a log that nodes share. If one of these is
//! interrupted it can be run again.
//!
//! A repair of the clock declares this machine's clock right, and repairs entries that were stamped in the future. It only adds to the log:
//! an entry that turns the time back, then a snapshot.
//!
//! Another one marks an entry that can't be applied, then takes a snapshot after it. The log keeps the entry. Every replay finds the mark,
//! so the state and its hash are the same each time.

use super::backup::{archive, read_parts};
use super::journal::JournalOptions;
use super::recovery::{RecoveryError, Result, recover};
use super::restore::restore;
use cuckood_log::journal::{Journal, JournalError, LocalJournal, LocalOptions};
use cuckood_log::store::{
    Manifest, Store, StoreError, StoreOptions, refuse_other_owner, refuse_unused,
};
use cuckood_nats::{is_of_replicated_log, log_of};
use cuckood_state::domain::{ClockReading, Command, Outcome, Proposal, Seq, Timestamp};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn options() -> StoreOptions {
    StoreOptions {
        free_space_min_bytes: 0,
        ballast_bytes: 0,
        sync_snapshots: false,
        ..Default::default()
    }
}

fn open(dir: &Path, options: &StoreOptions) -> Result<Arc<Store>> {
    refuse_unused(dir)?;
    refuse_other_owner(dir)?;
    Ok(Arc::new(Store::open(dir, options)?))
}

fn failed(why: impl Into<String>) -> RecoveryError {
    JournalError::Failed(why.into()).into()
}

/// The log of a directory; `None` if it belongs to a replicated one, which its servers have.
///
/// # Errors
/// Those of [`LocalJournal::open`].
pub(super) fn local_log(store: &Arc<Store>) -> Result<Option<LocalJournal>, StoreError> {
    if is_of_replicated_log(store) {
        return Ok(None);
    }
    LocalJournal::open(store.clone(), LocalOptions::default()).map(Some)
}

/// The newest snapshot of a directory. It covers a local log to its end.
fn snapshot_of(store: &Arc<Store>) -> Result<Arc<Manifest>> {
    if let Some(mut log) = local_log(store)? {
        let mut recovered = recover(store, &mut log, &mut |_| ())?;
        let last = recovered.state.applied();
        let at = recovered.state.now();
        if recovered
            .manifest
            .as_ref()
            .is_none_or(|manifest| manifest.seq < last)
        {
            recovered.take_snapshot(store, at)?;
        }
    }
    let newest = store.pin_newest()?;
    newest.ok_or_else(|| failed(format!("{} has no snapshot yet", store.path().display())))
}

/// Writes an archive of a directory.
///
/// # Errors
/// Those of the store, its log, and `to`.
pub fn archive_directory(dir: &Path, to: &mut dyn Write) -> Result<()> {
    // The directory may be the only copy, so its snapshot is synced, and leaves the space that the next start needs.
    let store = open(dir, &StoreOptions::default())?;
    let unwritten = |error: io::Error| failed(format!("can't write the archive: {error}"));
    let mut parts = archive(snapshot_of(&store)?);
    while let Some(part) = parts(&store)? {
        to.write_all(&part).map_err(unwritten)?;
    }
    to.flush().map_err(unwritten)
}

/// The positions of directories, with the one that is furthest ahead last; none for a single backup. A node among several stores snapshots
/// alone.
///
/// # Errors
/// If one of several is no directory, or they don't belong to one replicated log; otherwise those of the store and its log.
pub fn positions(sources: &[PathBuf]) -> Result<Vec<(PathBuf, Seq)>> {
    if let [backup] = sources
        && !backup.is_dir()
    {
        return Ok(Vec::new());
    }
    let mut positions = Vec::new();
    let mut first = None;
    for dir in sources {
        let store = open(dir, &options())?;
        let log = log_of(&store)?;
        if sources.len() > 1 && (log.is_none() || *first.get_or_insert(log) != log) {
            let dir = dir.display();
            return Err(failed(format!(
                "{dir} has another log than the other directories: name those of one cluster"
            )));
        }
        let position = match local_log(&store)? {
            Some(log) => log.last(),
            None => store
                .manifests()?
                .first()
                .map_or(Seq(0), |manifest| manifest.seq),
        };
        positions.push((dir.clone(), position));
    }
    positions.sort_by_key(|(_, position)| *position);
    Ok(positions)
}

/// Starts a log with a backup. It is unpacked into `scratch` first, an empty or absent directory, which is useless afterwards. Returns the
/// position after which the log continues.
///
/// # Errors
/// If nodes share no such log, or it exists; otherwise those of [`restore`] and of the log.
pub fn restore_into_cluster(
    file: &Path,
    scratch: &Path,
    journal: &JournalOptions,
    clock: ClockReading,
) -> Result<Seq> {
    let shared = journal.shared_snapshots()?;
    let shared = shared.ok_or_else(|| {
        failed(
            "journal.kind is \"local\", expected \"nats\"; set it to start a log for several nodes",
        )
    })?;
    shared.check_absent()?;
    restore(file, scratch, &options(), clock, |archive| archive)?;
    let store = Arc::new(Store::open(scratch, &options())?);
    let snapshot = snapshot_of(&store)?;
    let mut parts = archive(snapshot.clone());
    shared.begin_log(&snapshot, &mut || {
        let bytes = read_parts(&mut parts, &store)?.concat();
        Ok((!bytes.is_empty()).then_some(bytes))
    })?;
    Ok(snapshot.seq)
}

/// The findings and effects of a repair of the clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ClockRepair {
    /// The time of the log's last entry; `None` if the log is empty.
    pub logged: Option<Timestamp>,
    /// The entry that turned the time back, if the log had entries from the future.
    pub turned_back: Option<Seq>,
    /// Redemptions whose times were moved back.
    pub redemptions: u64,
    /// Holds that had expired too soon and are active again.
    pub holds: u64,
}

/// Opens a directory that has a local log. A repair needs no free space to start.
fn open_to_repair(dir: &Path, instead: &str) -> Result<(Arc<Store>, LocalJournal)> {
    let store = open(
        dir,
        &StoreOptions {
            free_space_min_bytes: 0,
            ..StoreOptions::default()
        },
    )?;
    let replicated = || {
        failed(format!(
            "{} belongs to a replicated log: {instead}",
            dir.display()
        ))
    };
    let log = local_log(&store)?.ok_or_else(replicated)?;
    Ok((store, log))
}

/// Declares the machine's clock right. Turns the directory's time back if its log is ahead, and makes the next start trust the clock.
///
/// # Errors
/// [`RecoveryError`]; nothing acknowledged has changed then.
pub fn repair_clock(dir: &Path, clock: ClockReading) -> Result<ClockRepair> {
    let instead = "its nodes compare their clocks, so set this machine's clock right";
    let (store, mut log) = open_to_repair(dir, instead)?;
    let mut recovered = recover(&store, &mut log, &mut |_| ())?;
    let now = clock.wall;
    let state = &mut recovered.state;
    let mut repair = ClockRepair {
        logged: (state.applied() > Seq(0)).then(|| state.now()),
        ..ClockRepair::default()
    };
    if state.now() > now {
        for committed in log.append(vec![Proposal::new(now, Command::TurnBack)])? {
            let seq = committed.entry.seq;
            if let Outcome::TurnedBack { redemptions, holds } = state.apply(committed.entry).outcome
            {
                repair = ClockRepair {
                    turned_back: Some(seq),
                    redemptions,
                    holds,
                    ..repair
                };
            }
        }
    }
    let is_ahead = recovered
        .manifest
        .as_ref()
        .is_some_and(|manifest| manifest.taken_at > now);
    if repair.turned_back.is_some() || is_ahead {
        recovered.take_snapshot(&store, now)?;
    }
    log.settle()?;
    store.save_clock(clock);
    Ok(repair)
}

/// Marks an entry that can't be applied as skipped, and takes a snapshot after it. Returns the position of the snapshot.
///
/// # Errors
/// If the entry can be applied, or another one can't; nothing has changed then. Also if a later one can't be applied either.
pub fn skip_entry(dir: &Path, now: Timestamp, entry: Seq) -> Result<Seq> {
    let instead = "its nodes must all apply the same entries, see docs/CLUSTER.md";
    let (store, mut log) = open_to_repair(dir, instead)?;
    let number = entry.0;
    if !store.skipped_entries()?.contains_key(&entry) {
        let sound = "can be applied, or a snapshot covers it: nothing is skipped";
        match recover(&store, &mut log, &mut |_| ()) {
            Ok(_) => return Err(failed(format!("{}: entry {number} {sound}", dir.display()))),
            Err(RecoveryError::Unappliable(found, _)) if found == entry => {}
            Err(other) => return Err(other),
        }
        store.mark_skipped(entry, now)?;
    }
    let recovered = recover(&store, &mut log, &mut |_| ());
    let mut recovered =
        recovered.map_err(|next| failed(format!("entry {number} is skipped; {next}")))?;
    recovered.take_snapshot(&store, now)?;
    log.settle()?;
    Ok(recovered.state.applied())
}
