//! `cuckood repair`: repairs of a data directory that no service has open. If one is interrupted it can be run again.
//!
//! `clock` declares this machine's clock right, and repairs entries that were stamped in the future. It only adds to the log: an entry
//! that turns the time back, then a snapshot.
//!
//! `skip` marks an entry that can't be applied, then takes a snapshot after it. The log keeps the entry. Every replay that comes to it
//! sees the mark, so the state and its hash are the same each time.

use super::recovery::{RecoveryError, recover};
use super::snapshotter::RunningSnapshot;
use crate::clock::Clock;
use crate::domain::{Command, Outcome, Proposal, Seq, Timestamp};
use crate::journal::{Journal, JournalError, LocalJournal, LocalOptions, is_of_replicated_log};
use crate::store::{Store, StoreError, StoreOptions};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use thiserror::Error;

/// Why a directory was not repaired. The repair can be tried again.
#[derive(Debug, Error)]
pub enum RepairError {
    /// The directory can't be opened or written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Its log can't be written.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// Its state can't be built.
    #[error(transparent)]
    Recovery(#[from] RecoveryError),
    /// The directory has no log of its own.
    #[error("{path} belongs to a replicated log: {next_step}")]
    ReplicatedLog {
        /// The data directory.
        path: PathBuf,
        /// What helps instead.
        next_step: &'static str,
    },
    /// Nothing is wrong with the entry.
    #[error("{path}: entry {} can be applied, or a snapshot covers it: nothing is skipped", .entry.0)]
    Applicable {
        /// The data directory.
        path: PathBuf,
        /// The entry.
        entry: Seq,
    },
    /// The entry is marked, and a later one can't be applied either.
    #[error("entry {} is skipped; {next}", .entry.0)]
    Next {
        /// The marked entry.
        entry: Seq,
        /// The later one.
        next: Box<RecoveryError>,
    },
}

/// What the repair found and did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClockRepair {
    /// The time by this machine's clock.
    pub clock: Timestamp,
    /// The time of the log's last entry; `None` if the log is empty.
    pub logged: Option<Timestamp>,
    /// What was changed, if the log had entries from the future.
    pub turned_back: Option<TurnedBack>,
}

/// The effect of turning the time back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TurnedBack {
    /// The entry that turned it back.
    pub seq: Seq,
    /// Redemptions whose times were moved back.
    pub redemptions: u64,
    /// Holds that had expired too soon and are active again.
    pub holds: u64,
}

/// Declares the machine's clock right. Turns the directory's time back if its log is ahead, and makes the next start trust the
/// clock.
///
/// # Errors
/// [`RepairError`]; nothing acknowledged has changed then.
pub fn clock(path: &Path, options: &StoreOptions, clock: &Clock) -> Result<ClockRepair, RepairError> {
    let (store, mut journal) =
        open(path, options, "its nodes compare their clocks, so set this machine's clock right")?;
    let recovered = recover(&store, &mut journal, &mut |_| ())?;
    let (mut state, mut events) = (recovered.state, recovered.events);
    let now = clock.reading().wall;
    let logged = (state.applied() > Seq(0)).then(|| state.now());
    let mut repair = ClockRepair { clock: now, logged, turned_back: None };
    if state.now() > now {
        let proposal = Proposal::new(now, Command::TurnBack);
        for committed in journal.append(vec![proposal])? {
            let seq = committed.entry.seq;
            if let Outcome::TurnedBack { redemptions, holds } = state.apply(committed.entry).outcome {
                repair.turned_back = Some(TurnedBack { seq, redemptions, holds });
            }
        }
    }
    let is_ahead = recovered.manifest.as_ref().is_some_and(|manifest| manifest.taken_at > now);
    if repair.turned_back.is_some() || is_ahead {
        RunningSnapshot::take(&store, &mut state, &mut events, recovered.manifest.as_ref(), now)?;
    }
    journal.settle()?;
    store.keep_clock(clock.reading());
    Ok(repair)
}

/// Marks an entry that can't be applied as skipped, and takes a snapshot after it. Returns the position of the snapshot.
///
/// # Errors
/// [`RepairError::Applicable`] if the entry can be applied, [`RecoveryError::Unappliable`] if another one can't; nothing has changed
/// then. [`RepairError::Next`] if a later one can't be applied either.
pub fn skip(path: &Path, options: &StoreOptions, clock: &Clock, entry: Seq) -> Result<Seq, RepairError> {
    let (store, mut journal) =
        open(path, options, "its nodes must all apply the same entries, see docs/CLUSTER.md")?;
    let now = clock.reading().wall;
    if !store.skipped_entries()?.contains_key(&entry) {
        match recover(&store, &mut journal, &mut |_| ()) {
            Ok(_) => return Err(RepairError::Applicable { path: path.to_owned(), entry }),
            Err(RecoveryError::Unappliable { entry: found, .. }) if found == entry => {}
            Err(other) => return Err(other.into()),
        }
        store.mark_skipped(entry, now)?;
    }
    let recovered = recover(&store, &mut journal, &mut |_| ())
        .map_err(|next| RepairError::Next { entry, next: Box::new(next) })?;
    let (mut state, mut events) = (recovered.state, recovered.events);
    RunningSnapshot::take(&store, &mut state, &mut events, recovered.manifest.as_ref(), now)?;
    journal.settle()?;
    Ok(state.applied())
}

/// Opens a directory that has a local log.
fn open(
    path: &Path,
    options: &StoreOptions,
    next_step: &'static str,
) -> Result<(Arc<Store>, LocalJournal), RepairError> {
    let store = Arc::new(Store::open(path, options)?);
    if is_of_replicated_log(&store) {
        return Err(RepairError::ReplicatedLog { path: path.to_owned(), next_step });
    }
    let journal = LocalJournal::open(store.clone(), LocalOptions::default())?;
    Ok((store, journal))
}
