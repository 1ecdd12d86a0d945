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

/// Bytes of events between two syncs, so that sled holds no more than this in memory.
const UNSYNCED_BYTES_MAX: u64 = 4 << 20;

/// Restores an archive into an empty or absent directory and returns the last position of its log, which has a single entry: it says that
/// the directory was restored. The archive is read twice: first to verify it, then to write it; both times through what `wrap` makes of it,
/// such as a reader that reports progress. `clock` is what the clocks say now.
///
/// # Errors
/// Those of the archive, before anything is written; [`StoreError::NotOurs`] for a directory that is not empty. A directory whose
/// restore was interrupted is not served.
pub fn restore<R: Read>(
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
    let mut target = Target::new(&store, Vec::new())?;
    archive::read(file, wrap(Box::new(archive::open(file)?)), |piece| target.write(piece))?;
    let last = log_restored(&store, target.seq, clock.wall)?;
    // However old the archive is, this machine's clock counts from now on.
    store.keep_clock(clock);
    store.seal()?;
    Ok(last)
}

/// Begins the log of a restored directory after its snapshot.
fn log_restored(store: &Arc<Store>, after: Seq, clock: Timestamp) -> Result<Seq, StoreError> {
    let mut journal = LocalJournal::begin_after(store.clone(), after, LocalOptions::at(Durability::Relaxed))?;
    // At the time of the entry before it, whatever this machine's clock says.
    let appended = journal.append(vec![Proposal::new(Timestamp(0), Command::Restored { clock })]);
    let settled = appended.and_then(|_| journal.settle());
    let failed =
        |error: JournalError| StoreError::Failed { path: store.path().to_owned(), reason: error.to_string() };
    settled.map(|()| journal.last()).map_err(failed)
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
    let (mut target, mut bytes) = (Target::new(store, snapshot.place.clone())?, 0);
    read_shared(snapshot, from, |piece| {
        if let Piece::Chunk { bytes: chunk, .. } = &piece {
            bytes += chunk.len() as u64;
            progress(bytes);
        }
        target.write(piece)
    })
}

/// A directory that is being filled.
struct Target<'a> {
    store: &'a Arc<Store>,
    /// Where the directory's log continues after the snapshot, if it is a replicated one.
    place: Vec<u8>,
    snapshot: Option<(Manifest, SnapshotWriter)>,
    events: EventLog,
    unsynced_bytes: u64,
    /// The position of the snapshot, once that is complete.
    seq: Seq,
}

impl<'a> Target<'a> {
    fn new(store: &'a Arc<Store>, place: Vec<u8>) -> Result<Self, StoreError> {
        let events = EventLog::open(store, &State::new())?;
        Ok(Self { store, place, snapshot: None, events, unsynced_bytes: 0, seq: Seq(0) })
    }

    /// Writes the next piece. An archive begins with its manifest; its end completes the snapshot.
    fn write(&mut self, piece: Piece<'_>) -> Result<(), StoreError> {
        self.store.space.check()?;
        match piece {
            Piece::Manifest(manifest) => {
                let writer = self.store.begin_snapshot(manifest.seq)?;
                self.snapshot = Some((manifest, writer));
            }
            Piece::Chunk { key, bytes } => {
                let (_, writer) = self.snapshot.as_mut().ok_or_else(misplaced)?;
                writer.put_chunk(self.store, key, &bytes)?;
            }
            Piece::Events(pack) => {
                self.unsynced_bytes += pack.size().bytes;
                self.events.add(self.store, pack)?;
                if self.unsynced_bytes >= UNSYNCED_BYTES_MAX {
                    self.store.make_durable()?;
                    self.unsynced_bytes = 0;
                }
            }
            Piece::End => {
                let (manifest, writer) = self.snapshot.take().ok_or_else(misplaced)?;
                self.finish(manifest, writer)?;
            }
        }
        Ok(())
    }

    fn finish(&mut self, manifest: Manifest, mut writer: SnapshotWriter) -> Result<(), StoreError> {
        let Manifest { seq, taken_at, events_last, sections, meta, .. } = manifest;
        for section in &sections {
            writer.end_section(section.key, section.changes);
        }
        // If the archive has no events, all of them had gone.
        self.events.leave_out(self.store, events_last)?;
        writer.events_last = events_last;
        writer.place = std::mem::take(&mut self.place);
        writer.finish(self.store, taken_at, meta)?;
        self.seq = seq;
        Ok(())
    }
}

fn misplaced() -> StoreError {
    StoreError::Misuse("a piece of an archive before its manifest".to_owned())
}
