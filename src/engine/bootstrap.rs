//! Opens a node's directory and its log. If the directory is empty, or the log was trimmed past it, it is filled from a snapshot that
//! nodes share first, as a restore does it.

use super::restore::load_shared;
use super::{Progress, RecoveryError};
use crate::domain::ClockReading;
use crate::journal::{Journal, JournalError, JournalOptions, NatsSnapshots, SharedSnapshot, read_shared};
use crate::state::{IMAGE_VERSION, RestoreStateError, enabled_in};
use crate::store::archive::Piece;
use crate::store::{Manifest, Store, StoreError, StoreOptions, is_unused};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// How often the directory is filled. While that happens the log may be trimmed past it again.
const ROUNDS: usize = 3;

/// Pause before shared snapshots are tried again.
const PAUSE: Duration = Duration::from_millis(500);

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
        let may_fill = self.journal.is_shared() && is_unused(self.path);
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

    /// Fills the directory from the newest shared snapshot that is complete. What it held is given up, but not before such a snapshot was
    /// found. Servers that were just started may fail for a while, and other nodes may share another snapshot, so it tries again until
    /// `nats.connect_timeout`. Returns whether there is any; a log that reaches back to its first message does without.
    fn fill(&self, report: &mut dyn FnMut(Progress)) -> Result<bool, RecoveryError> {
        let Some(mut shared) = self.journal.shared_snapshots()? else { return Ok(false) };
        let until = Instant::now() + self.journal.connect_timeout();
        loop {
            let error = match self.fill_once(&mut shared, report) {
                Ok(is_filled) => return Ok(is_filled),
                Err(error) => error,
            };
            // Nothing is damaged: this build is too old.
            if is_newer(&error) {
                return Err(error);
            }
            if Instant::now() >= until {
                if !shared.is_log_whole()? {
                    return Err(error);
                }
                tracing::warn!(%error, "can't use shared snapshots; reading the log from its first message");
                return Ok(false);
            }
            report(Progress { phase: "waiting for a shared snapshot", done: 0, total: None });
            thread::sleep(PAUSE);
        }
    }

    /// Tries the shared snapshots, the newest first.
    fn fill_once(
        &self,
        shared: &mut NatsSnapshots,
        report: &mut dyn FnMut(Progress),
    ) -> Result<bool, RecoveryError> {
        let listed = shared.list()?;
        let (is_empty, mut faults) = (listed.is_empty(), Vec::new());
        for snapshot in listed {
            report(Progress { phase: "checking a shared snapshot", done: 0, total: Some(snapshot.bytes) });
            let loaded = self.check(shared, &snapshot).and_then(|()| self.load(shared, &snapshot, report));
            let SharedSnapshot { name, bytes, node, seq, .. } = snapshot;
            match loaded {
                Ok(()) => {
                    tracing::info!(name, bytes, node, seq = seq.0, "began with a shared snapshot");
                    return Ok(true);
                }
                Err(error) if is_newer(&error) => return Err(error),
                Err(error) => {
                    tracing::error!(name, %error, "can't use a shared snapshot");
                    faults.push(error.to_string());
                }
            }
        }
        if is_empty {
            return Ok(false);
        }
        let why = format!("no shared snapshot can be used: {}", faults.join("; "));
        Err(JournalError::Damaged(why).into())
    }

    /// Reads a snapshot to its end, without anything being given up for it.
    fn check(&self, shared: &mut NatsSnapshots, snapshot: &SharedSnapshot) -> Result<(), RecoveryError> {
        let (archive, mut understood) = (shared.read(snapshot)?, Ok(()));
        read_shared(snapshot, archive, |piece| {
            if let Piece::Manifest(manifest) = piece {
                understood = check_snapshot(&snapshot.name, &manifest, self.journal.understands());
            }
            Ok(())
        })?;
        understood
    }

    fn load(
        &self,
        shared: &mut NatsSnapshots,
        snapshot: &SharedSnapshot,
        report: &mut dyn FnMut(Progress),
    ) -> Result<(), RecoveryError> {
        let archive = shared.read(snapshot)?;
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

fn is_newer(error: &RecoveryError) -> bool {
    matches!(
        error,
        RecoveryError::Store(StoreError::Newer { .. }) | RecoveryError::Journal(JournalError::Newer { .. })
    )
}

/// Refuses a snapshot that this build can't load, or behind which there may be entries that it does not understand.
///
/// # Errors
/// [`StoreError::Newer`] or [`JournalError::Newer`]; [`JournalError::Damaged`] if it can't be told.
fn check_snapshot(name: &str, manifest: &Manifest, understands: u16) -> Result<(), RecoveryError> {
    match enabled_in(&manifest.meta) {
        Ok(version) if version > understands => {
            Err(JournalError::Newer { at: manifest.seq, version, understands }.into())
        }
        Ok(_) => Ok(()),
        Err(RestoreStateError::Newer(found)) => {
            let (path, found, known) = (name.into(), found.into(), IMAGE_VERSION.into());
            Err(StoreError::Newer { path, found, known }.into())
        }
        Err(error) => Err(JournalError::Damaged(error.to_string()).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{Command, Entry, Proposal, Seq, Timestamp};
    use crate::state::State;

    #[test]
    fn a_snapshot_of_a_later_build_says_that_this_one_is_to_be_updated() {
        let mut state = State::new();
        let enable = Proposal::new(Timestamp(1), Command::Enable { version: 2 });
        state.apply(Entry { seq: Seq(1), proposal: enable });
        let meta = state.begin_snapshot().head;
        let (seq, taken_at) = (Seq(1), Timestamp(1));
        let manifest =
            |meta| Manifest { generation: 1, seq, taken_at, events_last: 0, sections: Vec::new(), meta };
        let check = |meta, understands| check_snapshot("snapshot-1", &manifest(meta), understands);
        check(meta.clone(), 2).unwrap();
        let refused = check(meta.clone(), 1).unwrap_err().to_string();
        assert!(refused.contains("update this node"), "{refused}");
        // The head begins with its version.
        let mut newer = meta.clone();
        newer[0] += 1;
        let refused = check(newer, 2).unwrap_err().to_string();
        assert!(refused.contains("snapshot-1") && refused.contains("run a newer cuckood"), "{refused}");
        assert!(matches!(
            check(meta[..2].to_vec(), 2),
            Err(RecoveryError::Journal(JournalError::Damaged(_)))
        ));
    }
}
