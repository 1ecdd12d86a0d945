//! `cuckood repair clock`: declares this machine's clock right, and repairs entries that were stamped in the future.
//!
//! The repair only adds to the log: an entry that turns the time back, then a snapshot. If it is interrupted it can be run again.

use super::recovery::{RecoveryError, recover};
use super::snapshotter::{SnapshotOptions, Snapshotter};
use crate::clock::Clock;
use crate::domain::{Command, Outcome, Proposal, Seq, Timestamp};
use crate::journal::{Journal, JournalError, LocalJournal, LocalOptions, is_of_replicated_log};
use crate::store::{Store, StoreError, StoreOptions};
use std::path::Path;
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
    let store = Arc::new(Store::open(path, options)?);
    if is_of_replicated_log(&store) {
        let what = "the directory belongs to a replicated log, whose nodes compare their clocks: set this machine's clock right";
        return Err(JournalError::Failed(what.to_owned()).into());
    }
    let mut journal = LocalJournal::open(store.clone(), LocalOptions::default())?;
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
        let options = SnapshotOptions::default();
        let mut snapshotter = Snapshotter::new(store.clone(), options, recovered.manifest, 0);
        snapshotter.begin(&mut state, &mut events, now)?;
        while snapshotter.step(&mut state, true)?.is_none() {}
    }
    journal.settle()?;
    store.keep_clock(clock.reading());
    Ok(repair)
}
