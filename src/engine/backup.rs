//! Archives on their way out, produced part by part between commits: a backup has the newest snapshot and the events up to it, an image has
//! one filter of that snapshot. Each lasts until the client that downloads it lets go of it.

use super::request::Request;
use super::{Engine, SubmitError};
use crate::domain::{Chunk, FilterId, ImageBody, ImagePart, ImageSection};
use crate::state::Export;
use crate::store::archive::{ArchiveWriter, IMAGE_PART_BYTES, ImageWriter, Piece};
use crate::store::{Manifest, SectionRef, Store, StoreError};
use std::collections::BTreeMap;
use std::fmt::Display;
use std::iter::{self, Peekable};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use tokio::sync::oneshot;

/// Parts that have reached this size together are enough for one request, in bytes.
const PARTS_BYTES: usize = 512 << 10;

/// Maximum number of backups, and of images, in progress.
const DOWNLOADS_MAX: usize = 4;

/// The parts of an archive, in order. They keep its snapshot until they are dropped. No tree of events may be removed during a backup. An
/// archive is rejected without its end, so nothing of it counts after an error.
pub type ArchiveParts = Box<dyn Iterator<Item = Result<Vec<u8>, StoreError>> + Send>;

/// The archive of a snapshot, and of the events up to it.
pub fn archive(store: &Arc<Store>, snapshot: Arc<Manifest>) -> ArchiveParts {
    let sections = snapshot.sections.clone().into_iter();
    let numbered = sections.flat_map(|section| (0..section.chunks).map(move |index| (section, index)));
    let from = store.clone();
    let chunks = numbered.map(move |(section, index)| {
        let mut bytes = Vec::new();
        from.read_chunk(&section, index, &mut bytes)?;
        Ok(Piece::Chunk { key: section.key, bytes: bytes.into() })
    });
    let (from, last, mut number) = (store.clone(), snapshot.events_last, 0);
    let events = iter::from_fn(move || {
        let found = from.events().find_from(&from.events().trees(), number);
        let pack = found.map(|pack| pack.filter(|pack| pack.first <= last)).transpose()?;
        Some(pack.map(|pack| {
            number = pack.last() + 1;
            Piece::Events(pack.up_to(pack.last().min(last)))
        }))
    });
    let first = iter::once(Ok(Piece::Manifest(Manifest::clone(&snapshot))));
    let pieces = first.chain(chunks).chain(events).chain(iter::once(Ok(Piece::End)));
    let mut writer = ArchiveWriter::default();
    Box::new(pieces.map(move |piece| {
        let _kept = &snapshot;
        Ok(writer.frame(&piece?))
    }))
}

/// The records of a filter's image: its head, its parts and its end. `None` if the snapshot has no such filter.
///
/// # Errors
/// [`StoreError::Damaged`] if the snapshot can't be read.
fn image(
    store: &Arc<Store>,
    snapshot: Arc<Manifest>,
    filter: FilterId,
) -> Result<Option<ArchiveParts>, StoreError> {
    let found = Export::find(&snapshot.meta, filter).map_err(|error| store.damaged(error.to_string()))?;
    let Some(Export { head, sections, redemptions }) = found else { return Ok(None) };
    let find = |(kind, id)| Some((kind, *snapshot.find(id)?));
    let sections: Option<Vec<(ImageSection, SectionRef)>> = sections.into_iter().map(find).collect();
    let sections = sections.ok_or_else(|| store.damaged("a snapshot lacks a section of a filter"))?;
    let chunks =
        |(kind, section): (_, SectionRef)| (0..section.chunks).map(move |index| (kind, section, index));
    let (mut chunks, from) = (sections.into_iter().flat_map(chunks).peekable(), store.clone());
    let parts = iter::from_fn(move || next_part(&from, &mut chunks).transpose());
    let first = iter::once(Ok(ImageBody::Head(Box::new(head))));
    let bodies = first.chain(parts.map(|part| part.map(ImageBody::Part)));
    let bodies = bodies.chain(iter::once(Ok(ImageBody::End { redemptions })));
    let mut writer = ImageWriter::default();
    Ok(Some(Box::new(bodies.map(move |body| {
        let _kept = &snapshot;
        Ok(writer.record(&body?))
    }))))
}

/// The next chunks, all of one kind; `None` after the last one.
fn next_part(
    store: &Store,
    chunks: &mut Peekable<impl Iterator<Item = (ImageSection, SectionRef, u32)>>,
) -> Result<Option<ImagePart>, StoreError> {
    let Some(&(kind, ..)) = chunks.peek() else { return Ok(None) };
    let mut part = ImagePart { section: kind, chunks: Vec::new() };
    while part.bytes() < IMAGE_PART_BYTES
        && let Some((_, section, index)) = chunks.next_if(|(other, ..)| *other == kind)
    {
        let mut read = Vec::new();
        store.read_chunk(&section, index, &mut read)?;
        part.chunks.push(Chunk(read));
    }
    Ok(Some(part))
}

/// A download in progress. Its client holds the token.
struct Running {
    token: Weak<()>,
    is_backup: bool,
    parts: ArchiveParts,
}

/// All downloads, as the writer sees them, by number.
#[derive(Default)]
pub(super) struct Downloads {
    running: BTreeMap<u64, Running>,
    begun: u64,
}

fn failed(error: impl Display) -> SubmitError {
    tracing::error!(%error, "a backup or an image could not be produced");
    SubmitError::StorageFailed
}

impl Downloads {
    /// Whether a backup is in progress.
    pub(super) fn has_backup(&self) -> bool {
        self.running.values().any(|download| download.is_backup && download.token.strong_count() > 0)
    }

    /// Drops those that their clients have let go of: they keep snapshots.
    pub(super) fn forget_abandoned(&mut self) {
        self.running.retain(|_, download| download.token.strong_count() > 0);
    }

    /// Begins an archive of the newest snapshot, or the image of a filter in it; `None` if that does not exist.
    pub(super) fn begin(
        &mut self,
        store: &Arc<Store>,
        filter: Option<FilterId>,
        token: Weak<()>,
    ) -> Result<Option<(u64, Arc<Manifest>)>, SubmitError> {
        self.forget_abandoned();
        let is_backup = filter.is_none();
        if self.running.values().filter(|other| other.is_backup == is_backup).count() >= DOWNLOADS_MAX {
            return Err(SubmitError::Overloaded);
        }
        let Some(snapshot) = store.pin_newest().map_err(failed)? else { return Ok(None) };
        let parts = match filter {
            None => Some(archive(store, snapshot.clone())),
            Some(filter) => image(store, snapshot.clone(), filter).map_err(failed)?,
        };
        let Some(parts) = parts else { return Ok(None) };
        self.begun += 1;
        self.running.insert(self.begun, Running { token, is_backup, parts });
        Ok(Some((self.begun, snapshot)))
    }

    /// The next parts of a download; none after the last one.
    pub(super) fn next_parts(&mut self, id: u64) -> Result<Vec<Vec<u8>>, SubmitError> {
        let download = self.running.get_mut(&id).ok_or(SubmitError::StorageFailed)?;
        let (mut parts, mut bytes) = (Vec::new(), 0);
        while bytes < PARTS_BYTES
            && let Some(part) = download.parts.next()
        {
            match part {
                Ok(part) => {
                    bytes += part.len();
                    parts.push(part);
                }
                Err(error) => {
                    self.running.remove(&id);
                    return Err(failed(error));
                }
            }
        }
        Ok(parts)
    }
}

/// A running download. Dropping it ends it.
pub struct Download {
    engine: Engine,
    id: u64,
    is_backup: bool,
    _token: Arc<()>,
}

impl Download {
    /// The next parts: of an image, its records. None after the last one. An archive without its end is rejected when it is read.
    ///
    /// # Errors
    /// [`SubmitError`].
    pub async fn next(&mut self) -> Result<Vec<Vec<u8>>, SubmitError> {
        let (reply, answer) = oneshot::channel();
        let sent = self.engine.requests.send(Request::Parts(self.id, reply)).await;
        sent.map_err(|_| SubmitError::Draining)?;
        let parts = answer.await.unwrap_or(Err(SubmitError::StorageFailed))?;
        if parts.is_empty() && self.is_backup {
            let inner = &self.engine.inner;
            inner.latest_backup.store(inner.clock.read().0, Ordering::Relaxed);
        }
        Ok(parts)
    }
}

impl Engine {
    /// Takes a snapshot, and begins a backup of it. Writes continue.
    ///
    /// # Errors
    /// [`SubmitError`]; [`SubmitError::Overloaded`] also when too many backups are running.
    pub async fn backup(&self) -> Result<Download, SubmitError> {
        self.download(None).await?.ok_or(SubmitError::StorageFailed)
    }

    /// Takes a snapshot, and begins an image of a filter as it is in there; `None` if the filter is gone. Writes continue.
    ///
    /// # Errors
    /// [`SubmitError`]; [`SubmitError::Overloaded`] also when too many images are being taken.
    pub async fn image(&self, filter: FilterId) -> Result<Option<Download>, SubmitError> {
        self.download(Some(filter)).await
    }

    async fn download(&self, filter: Option<FilterId>) -> Result<Option<Download>, SubmitError> {
        self.snapshot().await?;
        let token = Arc::new(());
        let (reply, answer) = oneshot::channel();
        self.send(Request::Download(filter, Arc::downgrade(&token), reply))?;
        let begun = answer.await.unwrap_or(Err(SubmitError::StorageFailed))?;
        let (engine, is_backup) = (self.clone(), filter.is_none());
        Ok(begun.map(|(id, _)| Download { engine, id, is_backup, _token: token }))
    }
}
