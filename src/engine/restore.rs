//! Fills data directories with archives. Each is read twice: completely first, so that nothing is written or deleted for a damaged one.

use super::event_log::EventLog;
use super::recovery::{RecoveryError, Result};
use cuckood_log::journal::{Durability, Journal, LocalJournal, LocalOptions};
use cuckood_log::store::archive::{self, BackupPiece};
use cuckood_log::store::{Manifest, RestoreTarget, Store, StoreError, StoreOptions};
use cuckood_state::State;
use cuckood_state::domain::{ClockReading, Command, Proposal, Seq, Timestamp};
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

/// Bytes of events between two syncs, so that sled holds no more than this in memory.
const UNSYNCED_BYTES_MAX: u64 = 4 << 20;

/// Takes the pieces of an archive.
pub(super) type Sink<'a> = dyn FnMut(BackupPiece<'_>) -> Result<(), StoreError> + 'a;

/// Restores an archive into an empty or absent directory and returns the last position of its log, whose single entry records the restore.
/// The archive is read twice: first to verify it, then to write it; both times through the reader that `wrap` returns, such as one that
/// reports progress. `clock` is the clocks' current reading.
///
/// # Errors
/// Those of the archive, before anything is written; [`StoreError::NotOurs`] or [`StoreError::NotEmpty`] for a directory that is not empty. A directory whose
/// restore was interrupted is not served.
pub fn restore<R: Read>(
    file: &Path,
    dir: &Path,
    options: &StoreOptions,
    clock: ClockReading,
    wrap: impl Fn(Box<dyn Read>) -> R,
) -> Result<Seq> {
    // Before the archive is verified, which takes long: a service that starts during that must not take the directory for a new one.
    let begun = RestoreTarget::begin(dir)?;
    let read = |sink: &mut Sink<'_>| {
        Ok(archive::read(
            file,
            wrap(Box::new(archive::open(file)?)),
            sink,
        )?)
    };
    let verified = begun
        .check_space(options)
        .map_err(RecoveryError::from)
        .and_then(|()| verify_archive(read));
    let mut manifest = match verified {
        Ok(manifest) => manifest,
        Err(error) => {
            begun.abandon()?;
            return Err(error);
        }
    };
    // It may have been a replicated log's.
    manifest.place.clear();
    let store = Arc::new(begun.open(options)?);
    let seq = manifest.seq;
    write_archive(&store, manifest, read)?;
    let mut log =
        LocalJournal::begin_after(store.clone(), seq, LocalOptions::at(Durability::Relaxed))?;
    // At the time of the entry before it, whatever this machine's clock says.
    log.append(vec![Proposal::new(
        Timestamp(0),
        Command::Restored { clock: clock.wall },
    )])?;
    log.settle()?;
    // However old the archive is, this machine's clock counts from now on.
    store.save_clock(clock);
    store.seal()?;
    Ok(log.last())
}

/// Reads an archive to its end. Returns its manifest.
///
/// # Errors
/// Those of the archive.
pub(super) fn verify_archive(read: impl FnOnce(&mut Sink<'_>) -> Result<()>) -> Result<Manifest> {
    let mut manifest = None;
    read(&mut |piece| {
        if let BackupPiece::Manifest(found) = piece {
            manifest = Some(found);
        }
        Ok(())
    })?;
    manifest.ok_or_else(|| StoreError::Misuse("an archive without a manifest".to_owned()).into())
}

/// Writes an archive with this manifest into a directory that was opened to be filled.
///
/// # Errors
/// Those of the archive and the store. The directory can't be served then.
pub(super) fn write_archive(
    store: &Store,
    manifest: Manifest,
    read: impl FnOnce(&mut Sink<'_>) -> Result<()>,
) -> Result<()> {
    let mut writer = store.begin_snapshot(manifest.seq)?;
    let mut events = EventLog::open(store, &State::default())?;
    let mut unsynced_bytes = 0;
    read(&mut |piece| {
        store.space.check()?;
        match piece {
            BackupPiece::Manifest(mut found) => {
                found.place.clone_from(&manifest.place);
                if found != manifest {
                    let replaced =
                        io::Error::other("the archive has just been replaced: restore again");
                    return Err(StoreError::io(store.path(), "fill")(replaced));
                }
            }
            BackupPiece::End => {}
            BackupPiece::Chunk { key, bytes } => writer.put_chunk(store, key, &bytes)?,
            BackupPiece::Events(pack) => {
                unsynced_bytes += pack.size().bytes;
                events.add(store, pack)?;
                if unsynced_bytes >= UNSYNCED_BYTES_MAX {
                    store.make_durable()?;
                    unsynced_bytes = 0;
                }
            }
        }
        Ok(())
    })?;
    let Manifest {
        taken_at,
        events_last,
        place,
        sections,
        meta,
        ..
    } = manifest;
    for section in &sections {
        writer.end_section(section.key, section.changes);
    }
    // If the archive has no events, all of them had expired.
    events.leave_out(store, events_last)?;
    (writer.events_last, writer.place) = (events_last, place);
    writer.finish(store, taken_at, meta)?;
    Ok(())
}
