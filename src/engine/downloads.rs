//! Backups and images that clients are downloading: the writer produces them piece by piece between commits, and each lasts until its
//! client lets go of it.

use super::backup::{ArchiveSource, ImageSource};
use super::request::Request;
use super::{Engine, SubmitError};
use crate::domain::{FilterId, Seq};
use crate::journal::{Journal, JournalError, Taken};
use crate::store::{Store, StoreError};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use tokio::sync::oneshot;

/// The most backups, and the most images, that may be under way at once.
const DOWNLOADS_MAX: usize = 4;

/// Downloads of one kind, by number. Each has a token that its client holds.
struct Running<T> {
    all: BTreeMap<u64, (Weak<()>, T)>,
    begun: u64,
}

impl<T> Default for Running<T> {
    fn default() -> Self {
        Self { all: BTreeMap::new(), begun: 0 }
    }
}

impl<T> Running<T> {
    fn make_room(&mut self) -> Result<(), SubmitError> {
        self.all.retain(|_, (token, _)| token.strong_count() > 0);
        if self.all.len() < DOWNLOADS_MAX { Ok(()) } else { Err(SubmitError::Overloaded) }
    }

    fn insert(&mut self, token: Weak<()>, source: T) -> u64 {
        self.begun += 1;
        self.all.insert(self.begun, (token, source));
        self.begun
    }
}

/// All downloads, as the writer sees them.
#[derive(Default)]
pub(super) struct Downloads {
    backups: Running<ArchiveSource>,
    images: Running<ImageSource>,
}

fn failed(error: impl Display) -> SubmitError {
    tracing::error!(%error, "a backup or an image could not be produced");
    SubmitError::StorageFailed
}

/// The newest snapshot, and where the log goes on behind it.
fn newest(store: &Arc<Store>, journal: &dyn Journal) -> Result<(ArchiveSource, Taken), JournalError> {
    let none = || JournalError::Failed("there is no snapshot that could be shared".to_owned());
    let source = ArchiveSource::of_newest_snapshot(store)?.ok_or_else(none)?;
    let manifest = source.snapshot().ok_or_else(none)?;
    let (seq, taken_at) = (manifest.seq, manifest.taken_at);
    let place = journal.place(seq)?.ok_or_else(none)?;
    Ok((source, Taken { seq, taken_at, place }))
}

impl Downloads {
    /// Whether a backup is under way.
    pub(super) fn has_backup(&self) -> bool {
        self.backups.all.values().any(|(token, _)| token.strong_count() > 0)
    }

    /// Drops those that their clients have let go of: they keep snapshots.
    pub(super) fn forget_abandoned(&mut self) {
        self.backups.all.retain(|_, (token, _)| token.strong_count() > 0);
        self.images.all.retain(|_, (token, _)| token.strong_count() > 0);
    }

    pub(super) fn begin_backup(
        &mut self,
        store: &Arc<Store>,
        through: Seq,
        token: Weak<()>,
    ) -> Result<u64, SubmitError> {
        self.backups.make_room()?;
        let source = ArchiveSource::begin(store, through).map_err(failed)?;
        Ok(self.backups.insert(token, source))
    }

    /// Begins a backup of the newest snapshot alone, which nodes are to share.
    pub(super) fn begin_sharing(
        &mut self,
        store: &Arc<Store>,
        journal: &dyn Journal,
        token: Weak<()>,
    ) -> Result<(u64, Taken), SubmitError> {
        self.backups.make_room()?;
        let (source, taken) = newest(store, journal).map_err(failed)?;
        Ok((self.backups.insert(token, source), taken))
    }

    pub(super) fn backup_part(
        &mut self,
        store: &Store,
        journal: &mut dyn Journal,
        id: u64,
    ) -> Result<Option<Vec<u8>>, SubmitError> {
        let Some((_, source)) = self.backups.all.get_mut(&id) else { return Err(SubmitError::StorageFailed) };
        let part = source.next_part(store, journal).map_err(failed);
        if !matches!(part, Ok(Some(_))) {
            self.backups.all.remove(&id);
        }
        part
    }

    pub(super) fn begin_image(
        &mut self,
        store: &Arc<Store>,
        filter: FilterId,
        token: Weak<()>,
    ) -> Result<Option<u64>, SubmitError> {
        self.images.make_room()?;
        let source: Result<_, StoreError> = ImageSource::begin(store, filter);
        Ok(source.map_err(failed)?.map(|source| self.images.insert(token, source)))
    }

    pub(super) fn image_records(&mut self, store: &Store, id: u64) -> Result<Vec<Vec<u8>>, SubmitError> {
        let Some((_, source)) = self.images.all.get_mut(&id) else { return Err(SubmitError::StorageFailed) };
        let records = source.next_records(store).map_err(failed);
        if !records.as_ref().is_ok_and(|records| !records.is_empty()) {
            self.images.all.remove(&id);
        }
        records
    }
}

/// A running backup. Dropping it ends it.
pub struct Backup {
    engine: Engine,
    id: u64,
    _token: Arc<()>,
}

impl Backup {
    /// The next piece of the archive; `None` after the last one. An archive without its end is refused when it is read.
    pub async fn next(&mut self) -> Option<Result<Bytes, SubmitError>> {
        let (reply, answer) = oneshot::channel();
        if self.engine.inner.requests.send(Request::BackupPart(self.id, reply)).await.is_err() {
            return Some(Err(SubmitError::Draining));
        }
        let part = answer.await.unwrap_or(Err(SubmitError::StorageFailed));
        if matches!(part, Ok(None)) {
            let inner = &self.engine.inner;
            inner.latest_backup.store(inner.clock.read().0, Ordering::Relaxed);
        }
        part.map(|part| part.map(Bytes::from)).transpose()
    }
}

/// A running download of an image. Dropping it ends it.
pub struct ImageDownload {
    engine: Engine,
    id: u64,
    _token: Arc<()>,
}

impl ImageDownload {
    /// The next records; none after the last one. An image without its end is refused when it is read.
    ///
    /// # Errors
    /// [`SubmitError`].
    pub async fn next(&mut self) -> Result<Vec<Vec<u8>>, SubmitError> {
        let (reply, answer) = oneshot::channel();
        let sent = self.engine.inner.requests.send(Request::ImageRecords(self.id, reply)).await;
        sent.map_err(|_| SubmitError::Draining)?;
        answer.await.unwrap_or(Err(SubmitError::StorageFailed))
    }
}

impl Engine {
    /// Begins a backup as of now: the newest snapshot and the log after it. Writes go on meanwhile.
    ///
    /// # Errors
    /// [`SubmitError`]; [`SubmitError::Overloaded`] also when too many backups are running.
    pub async fn backup(&self) -> Result<Backup, SubmitError> {
        self.refuse_unless_ready()?;
        let token = Arc::new(());
        let (reply, answer) = oneshot::channel();
        self.send(Request::Backup(Arc::downgrade(&token), reply))?;
        let id = answer.await.unwrap_or(Err(SubmitError::StorageFailed))?;
        Ok(Backup { engine: self.clone(), id, _token: token })
    }

    /// Takes a snapshot, and begins an image of a filter as it is in there; none if the filter is gone. Writes go on meanwhile.
    ///
    /// # Errors
    /// [`SubmitError`]; [`SubmitError::Overloaded`] also when too many images are being taken.
    pub async fn image(&self, filter: FilterId) -> Result<Option<ImageDownload>, SubmitError> {
        self.snapshot().await?;
        let token = Arc::new(());
        let (reply, answer) = oneshot::channel();
        self.send(Request::Image(filter, Arc::downgrade(&token), reply))?;
        let id = answer.await.unwrap_or(Err(SubmitError::StorageFailed))?;
        Ok(id.map(|id| ImageDownload { engine: self.clone(), id, _token: token }))
    }
}
