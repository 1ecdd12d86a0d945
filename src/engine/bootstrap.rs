//! Opens a node's directory and its log. If the directory is empty, or the log was trimmed past it, it is filled from a snapshot that
//! nodes share first, as a restore does it.

use super::restore::load_shared;
use super::{Progress, RecoveryError};
use crate::domain::ClockReading;
use crate::journal::{Journal, JournalError, JournalOptions, SharedSnapshot, SharedSnapshots, check_shared};
use crate::store::{Store, StoreOptions};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// How often the directory is filled. While that happens the log may be trimmed past it again.
const ROUNDS: usize = 3;

/// How many shared snapshots are tried. They may be replaced, and removed, while one is being read.
const ATTEMPTS: usize = 4;

/// An open directory and its log.
pub(super) struct Opened {
    pub(super) store: Arc<Store>,
    pub(super) journal: Box<dyn Journal>,
    /// Whether the directory was filled from a shared snapshot.
    pub(super) is_filled: bool,
}

/// What is to be opened.
pub(super) struct Bootstrap<'a> {
    /// The directory.
    pub(super) path: &'a Path,
    pub(super) store: &'a StoreOptions,
    pub(super) journal: &'a JournalOptions,
    /// What the clocks say now.
    pub(super) clock: ClockReading,
}

impl Bootstrap<'_> {
    /// Opens the directory and the log.
    ///
    /// # Errors
    /// If the log was trimmed past the directory, and no shared snapshot can be used; otherwise those of the store and the journal.
    pub(super) fn open(&self, report: &mut dyn FnMut(Progress)) -> Result<Opened, RecoveryError> {
        let may_fill = self.journal.is_shared() && Store::is_unused(self.path);
        let mut is_filled = may_fill && self.fill(report)?;
        for _ in 0..ROUNDS {
            let store = Arc::new(Store::open(self.path, self.store)?);
            let why = match self.journal.open(&store) {
                Err(JournalError::Trimmed(why)) => why,
                journal => return Ok(Opened { journal: journal?, store, is_filled }),
            };
            tracing::warn!(why, "the log was trimmed: beginning with a snapshot that nodes share");
            drop(store);
            is_filled = self.fill(report)?;
            if !is_filled {
                return Err(JournalError::Trimmed(format!("{why}; and the nodes share no snapshot")).into());
            }
        }
        let why = "the log is trimmed faster than a snapshot is loaded: raise cluster.snapshot_interval";
        Err(JournalError::Trimmed(why.to_owned()).into())
    }

    /// Fills the directory from the newest shared snapshot that is whole. Whatever it held is given up, but not before such a snapshot
    /// was found. Returns whether there is any.
    fn fill(&self, report: &mut dyn FnMut(Progress)) -> Result<bool, RecoveryError> {
        let Some(mut shared) = self.journal.shared_snapshots()? else { return Ok(false) };
        let mut faults = BTreeMap::new();
        for _ in 0..ATTEMPTS {
            let listed = shared.list()?;
            if listed.is_empty() {
                return Ok(false);
            }
            let next = listed.into_iter().find(|snapshot| !faults.contains_key(&snapshot.name));
            let Some(snapshot) = next else { break };
            report(Progress { phase: "checking a shared snapshot", done: 0, total: Some(snapshot.bytes) });
            let loaded =
                check(&mut *shared, &snapshot).and_then(|()| self.load(&mut *shared, &snapshot, report));
            let SharedSnapshot { name, bytes, node, seq, .. } = snapshot;
            match loaded {
                Ok(()) => {
                    tracing::info!(name, bytes, node, seq = seq.0, "began with a shared snapshot");
                    return Ok(true);
                }
                Err(error) => {
                    tracing::error!(name, %error, "a shared snapshot can't be used");
                    faults.insert(name, error.to_string());
                }
            }
        }
        let faults = faults.into_values().collect::<Vec<_>>().join("; ");
        let why = format!("none of the snapshots that nodes share can be used: {faults}");
        Err(JournalError::Damaged(why).into())
    }

    fn load(
        &self,
        shared: &mut dyn SharedSnapshots,
        snapshot: &SharedSnapshot,
        report: &mut dyn FnMut(Progress),
    ) -> Result<(), RecoveryError> {
        let archive = shared.open(snapshot)?;
        let store = Arc::new(Store::open_to_fill(self.path, self.store)?);
        // Durable with the snapshot.
        shared.adopt(snapshot, &store)?;
        let total = Some(snapshot.bytes);
        load_shared(&store, snapshot, archive, &mut |done| {
            report(Progress { phase: "loading a shared snapshot", done, total });
        })?;
        // However old the snapshot is, this machine's clock counts.
        store.keep_clock(self.clock);
        Ok(store.seal()?)
    }
}

fn check(shared: &mut dyn SharedSnapshots, snapshot: &SharedSnapshot) -> Result<(), RecoveryError> {
    let archive = shared.open(snapshot)?;
    Ok(check_shared(snapshot, archive)?)
}
