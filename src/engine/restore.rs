//! Restores an archive into a data directory.

use super::event_log::EventLog;
use crate::domain::{ClockReading, Command, Proposal, Seq, Timestamp};
use crate::journal::{
    Durability, Journal, JournalError, LocalJournal, LocalOptions, SharedSnapshot, read_shared,
};
use crate::state::State;
use crate::store::archive::{self, Piece};
use crate::store::{Manifest, RestoreTarget, SnapshotWriter, Store, StoreError, StoreOptions};
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

/// Bytes of log between two syncs, so that sled holds no more than this in memory.
const UNSYNCED_BYTES_MAX: usize = 4 << 20;

/// Restores an archive into an empty or absent directory and returns the last position of its log, which has one more entry than the
/// archive: it says that the directory was restored. The archive is read twice: first to
/// verify it, then to write it. `clock` is what the clocks say now.
///
/// # Errors
/// Those of the archive, before anything is written; [`StoreError::NotOurs`] for a directory that is not empty. A directory whose
/// restore was interrupted is not served.
pub fn restore(
    file: &Path,
    dir: &Path,
    options: &StoreOptions,
    clock: ClockReading,
) -> Result<Seq, StoreError> {
    restore_through(file, dir, options, clock, |archive| archive)
}

/// [`restore`], reading the archive through what `wrap` makes of it, such as a reader that reports progress.
///
/// # Errors
/// As for [`restore`].
pub fn restore_through<R: Read>(
    file: &Path,
    dir: &Path,
    options: &StoreOptions,
    clock: ClockReading,
    wrap: impl Fn(Box<dyn Read>) -> R,
) -> Result<Seq, StoreError> {
    // Before the archive is verified, which takes long: a service that starts meanwhile must not take the directory for a new one.
    let begun = RestoreTarget::begin(dir)?;
    let verified =
        archive::open(file).and_then(|archive| archive::read(file, wrap(Box::new(archive)), |_| Ok(())));
    if let Err(error) = verified {
        begun.abandon()?;
        return Err(error);
    }
    let store = Arc::new(begun.open(options)?);
    let mut target = Target::new(&store)?;
    archive::read(file, wrap(Box::new(archive::open(file)?)), |piece| target.write(piece))?;
    let last = target.finish(clock.wall)?;
    // However old the archive is, this machine's clock counts from now on.
    store.keep_clock(clock);
    store.seal()?;
    Ok(last)
}

/// Writes a snapshot that nodes share into a directory that was opened to be filled. `progress` is told how many bytes it has come to.
///
/// # Errors
/// Those of the archive. The directory can't be served then.
pub(super) fn load_shared(
    store: &Arc<Store>,
    snapshot: &SharedSnapshot,
    from: impl Read,
    progress: &mut dyn FnMut(u64),
) -> Result<(), StoreError> {
    let (mut target, mut bytes) = (Target::new(store)?, 0);
    read_shared(snapshot, from, |piece| {
        if let Piece::Chunk { bytes: chunk, .. } = &piece {
            bytes += chunk.len() as u64;
            progress(bytes);
        }
        target.write(piece)
    })?;
    target.finish_snapshot().map(drop)
}

/// A directory that is being filled.
struct Target<'a> {
    store: &'a Arc<Store>,
    manifest: Option<Manifest>,
    writer: Option<SnapshotWriter>,
    events: EventLog,
    journal: Option<LocalJournal>,
    unsynced_bytes: usize,
}

impl<'a> Target<'a> {
    fn new(store: &'a Arc<Store>) -> Result<Self, StoreError> {
        Ok(Self {
            store,
            manifest: None,
            writer: None,
            events: EventLog::open(store, &State::new())?,
            journal: None,
            unsynced_bytes: 0,
        })
    }

    fn write(&mut self, piece: Piece<'_>) -> Result<(), StoreError> {
        match piece {
            Piece::Manifest(manifest) => {
                self.writer = Some(self.store.begin_snapshot(manifest.seq)?);
                self.manifest = Some(manifest);
                Ok(())
            }
            Piece::Chunk { key, bytes } => match &mut self.writer {
                Some(writer) => {
                    self.store.space.check()?;
                    writer.put_chunk(self.store, key, bytes)
                }
                None => Err(StoreError::Misuse("a chunk before the manifest".to_owned())),
            },
            Piece::Events(pack) => {
                self.store.space.check()?;
                let bytes = pack.size().bytes as usize;
                self.events.add(self.store, pack)?;
                self.count_unsynced(bytes)
            }
            Piece::Entries { first, count, payload } => self.write_entries(first, count, payload),
            Piece::End(_) => Ok(()),
        }
    }

    fn write_entries(&mut self, first: Seq, count: u32, mut payload: &[u8]) -> Result<(), StoreError> {
        self.store.space.check()?;
        let bytes = payload.len();
        let damaged =
            |why: String| self.store.damaged(format!("the archive's log at position {}: {why}", first.0));
        let mut batch = Vec::new();
        for _ in 0..count {
            let (proposal, rest) =
                postcard::take_from_bytes::<Proposal>(payload).map_err(|error| damaged(error.to_string()))?;
            payload = rest;
            batch.push(proposal);
        }
        if !payload.is_empty() {
            return Err(damaged("bytes too many".to_owned()));
        }
        let journal = self.log_after(Seq(first.0 - 1))?;
        let appended = journal.append(batch);
        appended.map_err(|error| self.failed(error))?;
        self.count_unsynced(bytes)
    }

    fn count_unsynced(&mut self, bytes: usize) -> Result<(), StoreError> {
        self.unsynced_bytes += bytes;
        if self.unsynced_bytes >= UNSYNCED_BYTES_MAX {
            self.store.make_durable()?;
            self.unsynced_bytes = 0;
        }
        Ok(())
    }

    /// The log of the new directory. It is created behind `after` on the first call.
    fn log_after(&mut self, after: Seq) -> Result<&mut LocalJournal, StoreError> {
        // One sync at the end is enough: until then the directory is not valid.
        let options = LocalOptions { durability: Durability::Relaxed, ..LocalOptions::default() };
        match &mut self.journal {
            Some(journal) => Ok(journal),
            none => Ok(none.insert(LocalJournal::begin_after(self.store.clone(), after, options)?)),
        }
    }

    /// Completes the snapshot, if there is one. Returns its position.
    fn finish_snapshot(&mut self) -> Result<Seq, StoreError> {
        let mut seq = Seq(0);
        if let (Some(manifest), Some(mut writer)) = (self.manifest.take(), self.writer.take()) {
            for section in &manifest.sections {
                writer.end_section(section.key, section.changes);
            }
            seq = manifest.seq;
            // If the archive has no events, all of them had gone.
            self.events.leave_out(self.store, manifest.events_last, manifest.taken_at)?;
            writer.cover_events(manifest.events_last);
            writer.finish(self.store, manifest.taken_at, manifest.meta)?;
        }
        Ok(seq)
    }

    fn finish(mut self, clock: Timestamp) -> Result<Seq, StoreError> {
        let seq = self.finish_snapshot()?;
        let journal = self.log_after(seq)?;
        // At the time of the entry before it, whatever this machine's clock says.
        let appended = journal.append(vec![Proposal::new(Timestamp(0), Command::Restored { clock })]);
        let (last, settled) = (journal.last(), appended.and_then(|_| journal.settle()));
        settled.map_err(|error| self.failed(error)).map(|()| last)
    }

    fn failed(&self, error: JournalError) -> StoreError {
        StoreError::Failed { path: self.store.path().to_owned(), reason: error.to_string() }
    }
}
