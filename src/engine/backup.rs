//! Downloads, produced part by part between commits. Each lasts until its client ends it. A backup has the newest snapshot and the events up
//! to it; [`super::images`] has one filter.

use super::handle::WeakEngine;
use super::{Engine, EngineStatus, Inner, SubmitError};
use cuckood_log::store::archive::{ArchiveWriter, BackupPiece};
use cuckood_log::store::{Manifest, Spool, Store, StoreError};
use cuckood_state::domain::Timestamp;
use std::panic::resume_unwind;
use std::sync::Arc;
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::spawn_blocking;

/// Parts that have reached this size together are enough for one request, in bytes.
const PARTS_BYTES: usize = 512 << 10;

/// Maximum number of backups, and of images, in progress.
pub(super) const DOWNLOADS_MAX: usize = 4;

/// The rest of an archive: reads its next part from the store of its snapshot; `None` after the last one. It keeps the snapshot, but not the
/// store open. No tree of events may be removed during a backup. An archive is rejected without its end, so nothing of it counts after an
/// error.
pub type ArchiveParts = Box<dyn FnMut(&Store) -> Result<Option<Vec<u8>>, StoreError> + Send>;

/// The rest of a download.
pub(super) enum Rest {
    /// The writer reads it from the store.
    Stored(ArchiveParts),
    /// Any thread reads it from a file.
    Spooled(Spool),
}

/// The archive of a snapshot, and of the events up to it.
pub fn archive(snapshot: Arc<Manifest>) -> ArchiveParts {
    let sections = snapshot.sections.clone().into_iter();
    let mut chunks =
        sections.flat_map(|section| (0..section.chunks).map(move |index| (section, index)));
    let mut first = Some(Manifest::clone(&snapshot));
    let mut number = 0;
    let mut is_ended = false;
    let mut writer = ArchiveWriter::default();
    Box::new(move |store: &Store| {
        let last = snapshot.events_last;
        let find = |number| store.events().find_from(&store.events().trees(), number);
        let piece = if let Some(manifest) = first.take() {
            BackupPiece::Manifest(manifest)
        } else if let Some((section, index)) = chunks.next() {
            let mut bytes = Vec::new();
            store.read_chunk(&section, index, &mut bytes)?;
            BackupPiece::Chunk {
                key: section.key,
                bytes: bytes.into(),
            }
        } else if number <= last
            && let Some(pack) = find(number)?.filter(|pack| pack.first <= last)
        {
            // The last pack may have grown since the snapshot, and may grow again.
            number = pack.last() + 1;
            BackupPiece::Events(pack.up_to(pack.last().min(last)))
        } else if !std::mem::replace(&mut is_ended, true) {
            BackupPiece::End
        } else {
            return Ok(None);
        };
        Ok(Some(writer.frame(&piece)))
    })
}

/// Reads the next parts; none after the last one.
pub(super) fn read_parts(
    rest: &mut ArchiveParts,
    store: &Store,
) -> Result<Vec<Vec<u8>>, StoreError> {
    let mut parts = Vec::new();
    let mut bytes = 0;
    while bytes < PARTS_BYTES
        && let Some(part) = rest(store)?
    {
        bytes += part.len();
        parts.push(part);
    }
    Ok(parts)
}

/// Sets the time of the last backup, or of the first startup if there was none, and stores it for the next startup.
pub(super) fn note_backup(inner: &Inner, store: &Store, at: Timestamp) {
    inner.figures.lock().backup_at = Some(at);
    if let Err(error) = store.keep_backup_at(at) {
        tracing::warn!(%error, "failed to store the time of the backup");
    }
}

/// A running download. Dropping it ends it. It does not keep the engine running.
pub struct BackupDownload {
    engine: WeakEngine,
    /// The remaining parts; `None` after an error.
    rest: Option<Rest>,
    is_backup: bool,
    _place: OwnedSemaphorePermit,
}

impl BackupDownload {
    /// A download of these parts, in a slot of its kind.
    pub(super) fn new(engine: &Engine, rest: Rest, place: OwnedSemaphorePermit) -> Self {
        Self {
            engine: engine.downgrade(),
            rest: Some(rest),
            is_backup: false,
            _place: place,
        }
    }

    /// The next parts: of an image, its records. None after the last one. An archive without its end is rejected when it is read.
    ///
    /// # Errors
    /// [`SubmitError`]. Nothing follows after an error.
    pub async fn next(&mut self) -> Result<Vec<Vec<u8>>, SubmitError> {
        let rest = self.rest.take().ok_or(SubmitError::StorageFailed)?;
        let engine = self.engine.upgrade()?;
        let (parts, rest) = match rest {
            Rest::Stored(rest) => read_stored(&engine, rest, self.is_backup).await?,
            Rest::Spooled(mut spool) => {
                if matches!(engine.status(), EngineStatus::Diverged(_)) {
                    return Err(SubmitError::StorageFailed);
                }
                let read = spawn_blocking(move || (spool.pop(PARTS_BYTES), spool)).await;
                let (parts, spool) = read.unwrap_or_else(|panic| resume_unwind(panic.into_panic()));
                (
                    parts.map_err(SubmitError::unreadable)?,
                    Rest::Spooled(spool),
                )
            }
        };
        self.rest = Some(rest);
        Ok(parts)
    }
}

async fn read_stored(
    engine: &Engine,
    mut rest: ArchiveParts,
    is_backup: bool,
) -> Result<(Vec<Vec<u8>>, Rest), SubmitError> {
    let now = engine.now();
    let read = engine.ask(PARTS_BYTES as u64, move |writer, reply| {
        // The rest of a state that may be wrong is given to no client.
        if !reply.is_closed() && !matches!(*writer.inner.status.borrow(), EngineStatus::Diverged(_))
        {
            let parts = read_parts(&mut rest, &writer.store).map_err(SubmitError::unreadable);
            if is_backup && parts.as_ref().is_ok_and(Vec::is_empty) {
                note_backup(&writer.inner, &writer.store, now);
            }
            drop(reply.send(parts.map(|parts| (parts, Rest::Stored(rest)))));
        }
    });
    read.await
}

impl Engine {
    /// Takes a snapshot, and starts a backup of it. Writes continue.
    ///
    /// # Errors
    /// [`SubmitError`]; [`SubmitError::Overloaded`] also when too many backups are running.
    pub async fn backup(&self) -> Result<BackupDownload, SubmitError> {
        let (_, backup) = self.archive().await?;
        Ok(BackupDownload {
            is_backup: true,
            ..backup
        })
    }

    /// Takes a snapshot, and starts an archive of it, with the snapshot. Writes continue. It reserves a slot first: from then on no tree of
    /// events is deleted.
    ///
    /// # Errors
    /// [`SubmitError`]; [`SubmitError::Overloaded`] also when too many of them are being taken.
    pub(super) async fn archive(&self) -> Result<(Arc<Manifest>, BackupDownload), SubmitError> {
        let place = self
            .inner
            .backups
            .clone()
            .try_acquire_owned()
            .map_err(|_| SubmitError::Overloaded)?;
        self.snapshot().await?;
        let pinned = self.ask(0, |writer, reply| {
            // Storage may have failed since the snapshot. A dropped reply says so.
            if !writer.failed {
                drop(reply.send(writer.store.pin_newest().map_err(SubmitError::unreadable)));
            }
        });
        let snapshot = pinned.await?.ok_or(SubmitError::StorageFailed)?;
        Ok((
            snapshot.clone(),
            BackupDownload::new(self, Rest::Stored(archive(snapshot)), place),
        ))
    }
}
