//! Restores an archive into a data directory.

use crate::domain::{ClockReading, Proposal, Seq};
use crate::journal::{Durability, Journal, JournalError, LocalJournal, LocalOptions};
use crate::store::archive::{self, Piece};
use crate::store::{Manifest, SnapshotWriter, Store, StoreError, StoreOptions};
use std::path::Path;
use std::sync::Arc;

/// Bytes of log between two syncs, so that sled holds no more than this in memory.
const UNSYNCED_BYTES_MAX: usize = 4 << 20;

/// Restores an archive into an empty or absent directory and returns its last position. The archive is read twice: first to
/// verify it, then to write it. `clock` is what the clocks say now.
///
/// # Errors
/// Those of the archive, before anything is written; [`StoreError::NotOurs`] for a directory that is not empty. A directory whose
/// restore was interrupted can't be served, and an attempt says so.
pub fn restore(
    file: &Path,
    dir: &Path,
    options: &StoreOptions,
    clock: ClockReading,
) -> Result<Seq, StoreError> {
    archive::read(file, archive::open(file)?, |_| Ok(()))?;
    let store = Arc::new(Store::open_for_restore(dir, options)?);
    let mut target = Target { store: &store, manifest: None, writer: None, journal: None, unsynced_bytes: 0 };
    archive::read(file, archive::open(file)?, |piece| target.write(piece))?;
    let last = target.finish()?;
    // However old the archive is, this machine's clock counts from now on.
    store.keep_clock(clock);
    store.seal()?;
    Ok(last)
}

struct Target<'a> {
    store: &'a Arc<Store>,
    manifest: Option<Manifest>,
    writer: Option<SnapshotWriter>,
    journal: Option<LocalJournal>,
    unsynced_bytes: usize,
}

impl Target<'_> {
    fn write(&mut self, piece: Piece<'_>) -> Result<(), StoreError> {
        match piece {
            Piece::Manifest(manifest) => {
                self.writer = Some(self.store.begin_snapshot(manifest.seq)?);
                self.manifest = Some(manifest);
                Ok(())
            }
            Piece::Chunk { key, index, bytes } => match &mut self.writer {
                Some(writer) => writer.put_chunk(self.store, key, index, bytes),
                None => Err(StoreError::Misuse("a chunk before the manifest".to_owned())),
            },
            Piece::Entries { first, count, payload } => self.write_entries(first, count, payload),
            Piece::End => Ok(()),
        }
    }

    fn write_entries(&mut self, first: Seq, count: u32, mut payload: &[u8]) -> Result<(), StoreError> {
        self.store.check_space()?;
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

    fn finish(mut self) -> Result<Seq, StoreError> {
        let mut seq = Seq(0);
        if let (Some(manifest), Some(mut writer)) = (self.manifest.take(), self.writer.take()) {
            for section in &manifest.sections {
                writer.end_section(section.key, section.changes, section.chunks)?;
            }
            seq = manifest.seq;
            writer.finish(self.store, manifest.taken_at, manifest.meta)?;
        }
        let journal = self.log_after(seq)?;
        let last = journal.last();
        let settled = journal.settle();
        settled.map_err(|error| self.failed(error)).map(|()| last)
    }

    fn failed(&self, error: JournalError) -> StoreError {
        StoreError::Failed { path: self.store.path().to_owned(), reason: error.to_string() }
    }
}
