//! Archives on their way out, produced piece by piece between commits: a backup has the newest snapshot, the events up to it and the log
//! after it; an image has one filter of that snapshot. Each lasts until the client that downloads it lets go of it.

use super::request::{Reply, Request};
use super::{Engine, SubmitError};
use crate::domain::{Chunk, FilterId, ImagePart, ImageSection, Seq};
use crate::journal::{Journal, JournalError, Taken};
use crate::state::Export;
use crate::store::archive::{ArchiveWriter, IMAGE_PART_BYTES, ImageBody, ImageWriter, Piece};
use crate::store::{Manifest, SectionRef, Store, StoreError};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::iter::Peekable;
use std::mem::discriminant;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use tokio::sync::oneshot;

/// The most bytes that [`ArchiveSource::next_part`] returns at once.
pub const PART_BYTES_MAX: usize = 1 << 20;

/// A running backup. Its snapshot, and the log after that, are kept until it is dropped. No tree of events may be removed meanwhile.
pub struct ArchiveSource {
    snapshot: Option<Arc<Manifest>>,
    archive: ArchiveWriter,
    next: Step,
    through: Seq,
}

/// Which part of the archive comes next.
enum Step {
    Chunk {
        section: usize,
        index: u32,
    },
    /// The pack with the event of this number, or the first one after it.
    Events {
        number: u64,
    },
    Log {
        after: Seq,
    },
    Done,
}

impl ArchiveSource {
    /// Begins a backup of everything up to and including `through`, which the journal must hold.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] if the snapshot can't be read.
    pub fn begin(store: &Arc<Store>, through: Seq) -> Result<ArchiveSource, StoreError> {
        Ok(ArchiveSource::over(store.pin_newest()?, through))
    }

    /// Begins an archive of the newest snapshot alone, without the log after it. `None` if there is no snapshot.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] if the snapshot can't be read.
    pub fn of_newest_snapshot(store: &Arc<Store>) -> Result<Option<ArchiveSource>, StoreError> {
        let Some(snapshot) = store.pin_newest()? else { return Ok(None) };
        let through = snapshot.seq;
        Ok(Some(ArchiveSource::over(Some(snapshot), through)))
    }

    /// The snapshot in the archive.
    pub fn snapshot(&self) -> Option<&Manifest> {
        self.snapshot.as_deref()
    }

    fn over(snapshot: Option<Arc<Manifest>>, through: Seq) -> ArchiveSource {
        let mut archive = ArchiveWriter::default();
        let next = match snapshot.as_deref() {
            Some(manifest) => {
                archive.push(&Piece::Manifest(manifest.clone()));
                Step::Chunk { section: 0, index: 0 }
            }
            None => Step::Events { number: 0 },
        };
        ArchiveSource { snapshot, archive, next, through }
    }

    /// The next piece of the archive, at most [`PART_BYTES_MAX`] bytes; `None` after the last one.
    ///
    /// # Errors
    /// [`JournalError::Damaged`] if something can't be read. The archive then lacks its end, and a restore refuses it.
    pub fn next_part(
        &mut self,
        store: &Store,
        journal: &mut dyn Journal,
    ) -> Result<Option<Vec<u8>>, JournalError> {
        while self.archive.pending_bytes() < PART_BYTES_MAX {
            match self.next {
                Step::Chunk { section, index } => self.write_chunk(store, section, index)?,
                Step::Events { number } => self.write_events(store, number)?,
                Step::Log { after } => self.write_log(journal, after)?,
                Step::Done => break,
            }
        }
        let part = self.archive.take(PART_BYTES_MAX);
        Ok((!part.is_empty()).then_some(part))
    }

    fn write_chunk(&mut self, store: &Store, section: usize, index: u32) -> Result<(), StoreError> {
        let found = self.snapshot.as_ref().and_then(|snapshot| snapshot.sections.get(section).copied());
        self.next = match found {
            None => Step::Events { number: 0 },
            Some(found) if index == found.chunks => Step::Chunk { section: section + 1, index: 0 },
            Some(found) => {
                let mut bytes = Vec::new();
                store.read_chunk(&found, index, &mut bytes)?;
                self.archive.push(&Piece::Chunk { key: found.key, bytes: &bytes });
                Step::Chunk { section, index: index + 1 }
            }
        };
        Ok(())
    }

    /// Without a snapshot the log makes all events again.
    fn write_events(&mut self, store: &Store, number: u64) -> Result<(), StoreError> {
        let (seq, last) =
            self.snapshot.as_ref().map_or((Seq(0), 0), |snapshot| (snapshot.seq, snapshot.events_last));
        let pack =
            store.events().find_from(&store.events().trees(), number)?.filter(|pack| pack.first <= last);
        self.next = match pack {
            None => Step::Log { after: seq },
            Some(pack) => {
                self.archive.push(&Piece::Events(pack.up_to(pack.last().min(last))));
                Step::Events { number: pack.last() + 1 }
            }
        };
        Ok(())
    }

    fn write_log(&mut self, journal: &mut dyn Journal, after: Seq) -> Result<(), JournalError> {
        let (mut last, mut count, mut payload) = (after, 0, Vec::new());
        if after < self.through {
            journal.read(after, &mut |entry| {
                payload = postcard::to_extend(&entry.proposal, std::mem::take(&mut payload))
                    .map_err(|error| JournalError::Failed(format!("a command can't be encoded: {error}")))?;
                (last, count) = (entry.seq, count + 1);
                let enough = last == self.through || payload.len() >= PART_BYTES_MAX;
                Ok(if enough { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
            })?;
            if last == after {
                return Err(JournalError::Damaged(format!("the log ends at position {}", after.0)));
            }
            self.archive.push(&Piece::Entries { first: after.next(), count, payload: &payload });
        }
        self.next = Step::Log { after: last };
        if last >= self.through {
            self.archive.push(&Piece::End(last));
            self.next = Step::Done;
        }
        Ok(())
    }
}

/// Records of an image that are read together: about half a megabyte.
const RECORDS_AT_ONCE: usize = 8;

/// The records of an image: of its head, its parts and its end. They keep its snapshot until they are dropped.
type Records = Box<dyn Iterator<Item = Result<Vec<u8>, StoreError>> + Send>;

/// The image of a filter as the newest snapshot has it; `None` if that has not got it.
///
/// # Errors
/// [`StoreError::Damaged`] if the snapshot can't be read. The image of records that can't be read lacks its end.
fn image(store: &Arc<Store>, filter: FilterId) -> Result<Option<Records>, StoreError> {
    let Some(snapshot) = store.pin_newest()? else { return Ok(None) };
    let found = Export::find(&snapshot.meta, filter).map_err(|error| store.damaged(error.to_string()))?;
    let Some(Export { head, sections, redemptions }) = found else { return Ok(None) };
    let find = |(kind, id)| {
        let found = snapshot.sections.binary_search_by_key(&id, |section| section.key).ok()?;
        Some((kind, *snapshot.sections.get(found)?))
    };
    let sections: Option<Vec<(ImageSection, SectionRef)>> = sections.into_iter().map(find).collect();
    let sections = sections.ok_or_else(|| store.damaged("a snapshot lacks a section of a filter"))?;
    let chunks =
        |(kind, section): (_, SectionRef)| (0..section.chunks).map(move |index| (kind, section, index));
    let mut chunks = sections.into_iter().flat_map(chunks).peekable();
    let mut ends = [ImageBody::Head(Box::new(head)), ImageBody::End { redemptions }].into_iter();
    let (store, mut writer, mut next) = (store.clone(), ImageWriter::default(), ends.next());
    Ok(Some(Box::new(std::iter::from_fn(move || {
        let _kept = &snapshot;
        let body = match next.take() {
            Some(head) => head,
            None => match next_part(&store, &mut chunks) {
                Ok(part) => part.map(ImageBody::Part).or_else(|| ends.next())?,
                Err(error) => return Some(Err(error)),
            },
        };
        Some(Ok(writer.record(&body)))
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

/// Maximum number of backups, and of images, in progress.
const DOWNLOADS_MAX: usize = 4;

/// What a client downloads.
enum Source {
    Backup(ArchiveSource),
    Image(Records),
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
        let source = image(store, filter).map_err(failed)?;
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
            Some((_, Source::Image(records))) => {
                records.take(RECORDS_AT_ONCE).collect::<Result<_, _>>().map_err(failed)
            }
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
        let sent = self.engine.requests.send(Request::Parts(self.id, reply)).await;
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
