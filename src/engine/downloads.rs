//! Backups and images that clients are downloading: the writer produces them piece by piece between commits, and each lasts until its
//! client lets go of it.

use super::backup::{ArchiveSource, ImageSource};
use super::request::{Reply, Request};
use super::{Engine, SubmitError};
use crate::domain::{FilterId, Seq};
use crate::journal::{Journal, JournalError, Taken};
use crate::store::Store;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::mem::discriminant;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use tokio::sync::oneshot;

/// Maximum number of backups, and of images, in progress.
const DOWNLOADS_MAX: usize = 4;

/// What a client downloads.
enum Source {
    Backup(ArchiveSource),
    Image(ImageSource),
}

/// All downloads, as the writer sees them, by number. Each has a token that its client holds.
#[derive(Default)]
pub(super) struct Downloads {
    running: BTreeMap<u64, (Weak<()>, Source)>,
    begun: u64,
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
    /// Whether a backup is in progress.
    pub(super) fn has_backup(&self) -> bool {
        let mut running = self.running.values();
        running.any(|(token, source)| token.strong_count() > 0 && matches!(source, Source::Backup(_)))
    }

    /// Drops those that their clients have let go of: they keep snapshots.
    pub(super) fn forget_abandoned(&mut self) {
        self.running.retain(|_, (token, _)| token.strong_count() > 0);
    }

    fn insert(&mut self, token: Weak<()>, source: Source) -> Result<u64, SubmitError> {
        self.forget_abandoned();
        let alike = self.running.values().filter(|(_, other)| discriminant(other) == discriminant(&source));
        if alike.count() >= DOWNLOADS_MAX {
            return Err(SubmitError::Overloaded);
        }
        self.begun += 1;
        self.running.insert(self.begun, (token, source));
        Ok(self.begun)
    }

    pub(super) fn begin_backup(
        &mut self,
        store: &Arc<Store>,
        through: Seq,
        token: Weak<()>,
    ) -> Result<u64, SubmitError> {
        self.insert(token, Source::Backup(ArchiveSource::begin(store, through).map_err(failed)?))
    }

    /// Begins a backup of the newest snapshot alone, which nodes are to share.
    pub(super) fn begin_sharing(
        &mut self,
        store: &Arc<Store>,
        journal: &dyn Journal,
        token: Weak<()>,
    ) -> Result<(u64, Taken), SubmitError> {
        let (source, taken) = newest(store, journal).map_err(failed)?;
        Ok((self.insert(token, Source::Backup(source))?, taken))
    }

    /// Begins an image of a filter as the newest snapshot has it; `None` if that has not got it.
    pub(super) fn begin_image(
        &mut self,
        store: &Arc<Store>,
        filter: FilterId,
        token: Weak<()>,
    ) -> Result<Option<u64>, SubmitError> {
        let source = ImageSource::begin(store, filter).map_err(failed)?;
        source.map(|source| self.insert(token, Source::Image(source))).transpose()
    }

    /// The next parts of a download; none after the last one.
    pub(super) fn next_parts(
        &mut self,
        store: &Store,
        journal: &mut dyn Journal,
        id: u64,
    ) -> Result<Vec<Vec<u8>>, SubmitError> {
        let parts = match self.running.get_mut(&id) {
            None => return Err(SubmitError::StorageFailed),
            Some((_, Source::Backup(source))) => {
                source.next_part(store, journal).map(|part| part.into_iter().collect()).map_err(failed)
            }
            Some((_, Source::Image(source))) => source.next_records(store).map_err(failed),
        };
        if !parts.as_ref().is_ok_and(|parts: &Vec<_>| !parts.is_empty()) {
            self.running.remove(&id);
        }
        parts
    }
}

/// A running download. Dropping it ends it.
pub struct Download {
    engine: Engine,
    id: u64,
    _token: Arc<()>,
}

impl Download {
    /// The next parts: of an image, its records. None after the last one. An archive without its end is rejected when it is read.
    ///
    /// # Errors
    /// [`SubmitError`].
    pub async fn next(&mut self) -> Result<Vec<Vec<u8>>, SubmitError> {
        let (reply, answer) = oneshot::channel();
        let sent = self.engine.inner.requests.send(Request::Parts(self.id, reply)).await;
        sent.map_err(|_| SubmitError::Draining)?;
        answer.await.unwrap_or(Err(SubmitError::StorageFailed))
    }
}

/// A running backup. Dropping it ends it.
pub struct Backup(Download);

impl Backup {
    /// The next piece of the archive; `None` after the last one.
    pub async fn next(&mut self) -> Option<Result<Bytes, SubmitError>> {
        let part = self.0.next().await.map(|parts| parts.into_iter().next().map(Bytes::from));
        if matches!(part, Ok(None)) {
            let inner = &self.0.engine.inner;
            inner.latest_backup.store(inner.clock.read().0, Ordering::Relaxed);
        }
        part.transpose()
    }
}

impl Engine {
    /// Begins a backup as of now: the newest snapshot and the log after it, or a new snapshot where nodes share the log. Writes continue.
    ///
    /// # Errors
    /// [`SubmitError`]; [`SubmitError::Overloaded`] also when too many backups are running.
    pub async fn backup(&self) -> Result<Backup, SubmitError> {
        self.refuse_unless_ready()?;
        if self.is_shared() {
            self.snapshot().await?;
        }
        let (id, token) = self.begin_download(Request::Backup).await?;
        Ok(Backup(Download { engine: self.clone(), id, _token: token }))
    }

    /// Takes a snapshot, and begins an image of a filter as it is in there; `None` if the filter is gone. Writes go on during it.
    ///
    /// # Errors
    /// [`SubmitError`]; [`SubmitError::Overloaded`] also when too many images are being taken.
    pub async fn image(&self, filter: FilterId) -> Result<Option<Download>, SubmitError> {
        self.snapshot().await?;
        let (id, token) = self.begin_download(|token, reply| Request::Image(filter, token, reply)).await?;
        Ok(id.map(|id| Download { engine: self.clone(), id, _token: token }))
    }

    async fn begin_download<T>(
        &self,
        request: impl FnOnce(Weak<()>, Reply<T>) -> Request,
    ) -> Result<(T, Arc<()>), SubmitError> {
        let token = Arc::new(());
        let (reply, answer) = oneshot::channel();
        self.send(request(Arc::downgrade(&token), reply))?;
        Ok((answer.await.unwrap_or(Err(SubmitError::StorageFailed))?, token))
    }
}
