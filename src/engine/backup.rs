//! Downloads of archives, produced part by part between commits: a backup has the newest snapshot and the events up to it, an image has one
//! filter of that snapshot. Each lasts until its client ends the download.

use super::handle::WeakEngine;
use super::{Engine, Inner, Status, SubmitError};
use crate::domain::{Chunk, FilterId, ImageBody, ImagePart, Timestamp};
use crate::state::Export;
use crate::store::archive::{ArchiveWriter, IMAGE_PART_BYTES, Piece};
use crate::store::{Manifest, Store, StoreError};
use std::collections::VecDeque;
use std::sync::Arc;
use tokio::sync::OwnedSemaphorePermit;

/// Parts that have reached this size together are enough for one request, in bytes.
const PARTS_BYTES: usize = 512 << 10;

/// Maximum number of backups, and of images, in progress.
pub(super) const DOWNLOADS_MAX: usize = 4;

/// The rest of an archive: reads its next part from the store of its snapshot; `None` after the last one. It keeps the snapshot, but not the
/// store open. No tree of events may be removed during a backup. An archive is rejected without its end, so nothing of it counts after an
/// error.
pub type ArchiveParts = Box<dyn FnMut(&Store) -> Result<Option<Vec<u8>>, StoreError> + Send>;

/// The archive of a snapshot, and of the events up to it.
pub fn archive(snapshot: Arc<Manifest>) -> ArchiveParts {
    let sections = snapshot.sections.clone().into_iter();
    let mut chunks = sections.flat_map(|section| (0..section.chunks).map(move |index| (section, index)));
    let (mut first, mut number, mut is_ended) = (Some(Manifest::clone(&snapshot)), 0, false);
    let mut writer = ArchiveWriter::default();
    Box::new(move |store: &Store| {
        let last = snapshot.events_last;
        let find = |number| store.events().find_from(&store.events().trees(), number);
        let piece = if let Some(manifest) = first.take() {
            Piece::Manifest(manifest)
        } else if let Some((section, index)) = chunks.next() {
            let mut bytes = Vec::new();
            store.read_chunk(&section, index, &mut bytes)?;
            Piece::Chunk { key: section.key, bytes: bytes.into() }
        } else if number <= last
            && let Some(pack) = find(number)?.filter(|pack| pack.first <= last)
        {
            // The last pack may have grown since the snapshot, and may grow again.
            number = pack.last() + 1;
            Piece::Events(pack.up_to(pack.last().min(last)))
        } else if !std::mem::replace(&mut is_ended, true) {
            Piece::End
        } else {
            return Ok(None);
        };
        Ok(Some(writer.frame(&piece)))
    })
}

/// The records of a filter's image: its head, its parts and its end. `None` if the snapshot has no such filter.
///
/// # Errors
/// [`StoreError::Damaged`] if the snapshot can't be read.
fn image(
    store: &Store,
    snapshot: Arc<Manifest>,
    filter: FilterId,
) -> Result<Option<ArchiveParts>, StoreError> {
    let found = Export::find(&snapshot.meta, filter).map_err(|error| store.damaged(error.to_string()))?;
    let Some(Export { head, sections, redemptions }) = found else { return Ok(None) };
    let mut chunks = VecDeque::new();
    for (kind, id) in sections {
        let section = snapshot.find(id);
        let section = *section.ok_or_else(|| store.damaged("a snapshot lacks a section of a filter"))?;
        chunks.extend((0..section.chunks).map(|index| (kind, section, index)));
    }
    let (mut first, mut end) = (Some(Box::new(head)), Some(redemptions));
    let mut writer = ArchiveWriter::default();
    Ok(Some(Box::new(move |store: &Store| {
        let _kept = &snapshot;
        let body = if let Some(head) = first.take() {
            ImageBody::Head(head)
        } else if let Some(&(kind, ..)) = chunks.front() {
            let mut part = ImagePart { section: kind, chunks: Vec::new() };
            while part.bytes() < IMAGE_PART_BYTES
                && let Some((_, section, index)) = chunks.pop_front_if(|(other, ..)| *other == kind)
            {
                let mut read = Vec::new();
                store.read_chunk(&section, index, &mut read)?;
                part.chunks.push(Chunk(read));
            }
            ImageBody::Part(part)
        } else if let Some(redemptions) = end.take() {
            ImageBody::End { redemptions }
        } else {
            return Ok(None);
        };
        Ok(Some(writer.record(&body)))
    })))
}

/// An archive and its snapshot; `None` if the requested filter does not exist.
type Begun = Option<(Arc<Manifest>, ArchiveParts)>;

/// Begins an archive of the newest snapshot, or the image of a filter in it.
fn begin(store: &Store, filter: Option<FilterId>) -> Result<Begun, StoreError> {
    let Some(snapshot) = store.pin_newest()? else { return Ok(None) };
    let parts = match filter {
        None => Some(archive(snapshot.clone())),
        Some(filter) => image(store, snapshot.clone(), filter)?,
    };
    Ok(parts.map(|parts| (snapshot, parts)))
}

/// Reads the next parts; none after the last one.
pub(super) fn read_parts(rest: &mut ArchiveParts, store: &Store) -> Result<Vec<Vec<u8>>, StoreError> {
    let (mut parts, mut bytes) = (Vec::new(), 0);
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
pub struct Download {
    engine: WeakEngine,
    /// The snapshot that it is taken from.
    pub(super) snapshot: Arc<Manifest>,
    /// The remaining parts; `None` after an error.
    rest: Option<ArchiveParts>,
    is_backup: bool,
    _place: OwnedSemaphorePermit,
}

impl Download {
    /// The next parts: of an image, its records. None after the last one. An archive without its end is rejected when it is read.
    ///
    /// # Errors
    /// [`SubmitError`]. Nothing follows after an error.
    pub async fn next(&mut self) -> Result<Vec<Vec<u8>>, SubmitError> {
        let mut rest = self.rest.take().ok_or(SubmitError::StorageFailed)?;
        let engine = self.engine.upgrade()?;
        let (is_backup, now) = (self.is_backup, engine.now());
        let read = engine.ask(PARTS_BYTES as u64, move |writer, reply| {
            // The rest of a state that may be wrong is given to no client.
            if !reply.is_closed() && !matches!(*writer.inner.status.borrow(), Status::Diverged(_)) {
                let parts = read_parts(&mut rest, &writer.store).map_err(SubmitError::unreadable);
                if is_backup && parts.as_ref().is_ok_and(Vec::is_empty) {
                    note_backup(&writer.inner, &writer.store, now);
                }
                drop(reply.send(parts.map(|parts| (parts, rest))));
            }
        });
        let (parts, rest) = read.await?;
        self.rest = Some(rest);
        Ok(parts)
    }
}

impl Engine {
    /// Takes a snapshot, and starts a backup of it. Writes continue.
    ///
    /// # Errors
    /// [`SubmitError`]; [`SubmitError::Overloaded`] also when too many backups are running.
    pub async fn backup(&self) -> Result<Download, SubmitError> {
        let backup = self.download(None).await?.ok_or(SubmitError::StorageFailed)?;
        Ok(Download { is_backup: true, ..backup })
    }

    /// Takes a snapshot, and starts an archive of it or an image of a filter in it; `None` if the filter is deleted. Writes continue. It
    /// reserves a slot first: from then on no tree of events is deleted.
    ///
    /// # Errors
    /// [`SubmitError`]; [`SubmitError::Overloaded`] also when too many of them are being taken.
    pub async fn download(&self, filter: Option<FilterId>) -> Result<Option<Download>, SubmitError> {
        let places = if filter.is_none() { &self.inner.backups } else { &self.inner.images };
        let place = places.clone().try_acquire_owned().map_err(|_| SubmitError::Overloaded)?;
        self.snapshot().await?;
        let begun = self.ask(0, move |writer, reply| {
            // Storage may have failed since the snapshot. A dropped reply says so.
            if !writer.failed {
                drop(reply.send(begin(&writer.store, filter).map_err(SubmitError::unreadable)));
            }
        });
        let Some((snapshot, rest)) = begun.await? else { return Ok(None) };
        let (engine, rest) = (self.downgrade(), Some(rest));
        Ok(Some(Download { engine, snapshot, rest, is_backup: false, _place: place }))
    }
}
