//! Downloads, produced part by part between commits. Each lasts until its client ends it. A backup has the newest snapshot and the events up
//! to it; [`super::images`] has one filter.

use super::handle::WeakEngine;
use super::protocol::{ArchiveParts, PARTS_BYTES, PartsQuery, Request, Rest, StoredParts};
use super::request::respond;
use super::{Engine, EngineStatus, Inner, SubmitError};
use cuckood_log::store::archive::{ArchiveWriter, BackupPiece};
use cuckood_log::store::{Manifest, Store, StoreError};
use cuckood_state::domain::Timestamp;
use std::panic::resume_unwind;
use std::sync::Arc;
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::spawn_blocking;

/// Maximum number of backups, and of images, in progress.
pub(super) const DOWNLOADS_MAX: usize = 4;

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
        match rest {
            Rest::Stored(rest) => {
                let is_backup = self.is_backup;
                let now = engine.now();
                let read = engine.ask(|reply| {
                    Request::DownloadParts(PartsQuery {
                        rest,
                        is_backup,
                        now,
                        reply,
                    })
                });
                let StoredParts { parts, rest } = read.await?;
                self.rest = Some(Rest::Stored(rest));
                Ok(parts)
            }
            Rest::Spooled(mut spool) => {
                if matches!(engine.status(), EngineStatus::Diverged(_)) {
                    return Err(SubmitError::StorageFailed);
                }
                let read = spawn_blocking(move || (spool.pop(PARTS_BYTES), spool)).await;
                let (parts, spool) = read.unwrap_or_else(|panic| resume_unwind(panic.into_panic()));
                let parts = parts.map_err(SubmitError::unreadable)?;
                self.rest = Some(Rest::Spooled(spool));
                Ok(parts)
            }
        }
    }
}

/// Serves a read of the next parts.
pub(super) fn serve_parts(query: PartsQuery, inner: &Inner, store: &Store) {
    // The rest of a state that may be wrong is given to no client.
    if query.reply.is_closed() || matches!(inner.status.get(), EngineStatus::Diverged(_)) {
        return;
    }
    let mut rest = query.rest;
    let parts = match read_parts(&mut rest, store) {
        Ok(parts) => parts,
        Err(error) => return respond(query.reply, Err(SubmitError::unreadable(error))),
    };
    if query.is_backup && parts.is_empty() {
        note_backup(inner, store, query.now);
    }
    respond(query.reply, Ok(StoredParts { parts, rest }));
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
        let pinned = self.ask(Request::StartBackup).await?;
        let snapshot = pinned.ok_or(SubmitError::StorageFailed)?;
        Ok((
            snapshot.clone(),
            BackupDownload::new(self, Rest::Stored(archive(snapshot)), place),
        ))
    }
}
