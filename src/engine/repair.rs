//! `cuckood repair clock`: a data directory is told that this machine's clock is right, and entries from the future are mended.
//!
//! Only ever adds to the log: an entry that turns the time back, then a snapshot. Broken off at any point it can be run again.

use super::recovery::{RecoveryError, recover};
use super::snapshotter::{SnapshotOptions, Snapshotter};
use crate::clock::Clock;
use crate::domain::{Command, Outcome, Proposal, Seq, Timestamp};
use crate::journal::{Journal, JournalError, LocalJournal, LocalOptions};
use crate::store::{Store, StoreError, StoreOptions};
use std::path::Path;
use std::sync::Arc;
use thiserror::Error;

/// Why a directory was not mended. It can be tried again.
#[derive(Debug, Error)]
pub enum RepairError {
    /// It can't be opened or written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Its log can't be written.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// Its state can't be built.
    #[error(transparent)]
    Recovery(#[from] RecoveryError),
}

/// What there was to mend.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClockRepair {
    /// What the machine's clock says.
    pub clock: Timestamp,
    /// When the log's last entry was written, by what it says; none if there is no entry.
    pub logged: Option<Timestamp>,
    /// What was done about entries from the future, if there were any.
    pub turned_back: Option<TurnedBack>,
}

/// What turning the time back has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TurnedBack {
    /// The entry that did it.
    pub seq: Seq,
    /// Redemptions whose times were brought back.
    pub redemptions: u64,
    /// Holds that had been ended too soon, and stand again.
    pub holds: u64,
}

/// Takes the machine's clock for right: turns the time of a directory back if its log is ahead, and has the next start believe
/// the clock.
///
/// # Errors
/// [`RepairError`]; then nothing acknowledged has changed.
pub fn clock(path: &Path, options: &StoreOptions, clock: &Clock) -> Result<ClockRepair, RepairError> {
    let store = Arc::new(Store::open(path, options)?);
    let mut journal = LocalJournal::open(store.clone(), LocalOptions::default())?;
    let recovered = recover(&store, &mut journal, &mut |_| ())?;
    let mut state = recovered.state;
    let now = clock.reading().wall;
    let logged = (state.applied() > Seq(0)).then(|| state.now());
    let mut repair = ClockRepair { clock: now, logged, turned_back: None };
    if state.now() > now {
        let proposal = Proposal { at: now, command: Command::TurnBack, idempotency: None };
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
        snapshotter.begin(&mut state, now)?;
        while snapshotter.step(&mut state, true)?.is_none() {}
    }
    journal.settle()?;
    store.keep_clock(clock.reading());
    Ok(repair)
}
