//! Images: downloads of one filter. If the newest snapshot has the filter as it is now, the image is read from there. Otherwise the writer
//! freezes this filter alone and copies it to a spool, in steps between commits. So an image never waits for other filters, and a slow
//! client pins a file, not memory.

use super::backup::BackupDownload;
use super::protocol::{Request, Rest};
use super::request::{Reply, respond};
use super::{Engine, SubmitError};
use cuckood_log::store::archive::{ArchiveWriter, IMAGE_PART_BYTES};
use cuckood_log::store::{Manifest, Spool, Store, StoreError};
use cuckood_state::domain::{FilterHead, FilterId, ImageBody, ImageChunk, ImagePart, ImageSection};
use cuckood_state::{Export, FrozenFilter, Section, State};
use std::collections::VecDeque;
use std::sync::Arc;

/// Chunks of a filter that a step copies, and a few more: a fraction of a millisecond's work. An empty chunk of a table takes as long.
const STEP_CHUNKS: u64 = 4;

/// The most chunks in a part of an image. Empty ones take few bytes.
const PART_CHUNKS: usize = 16;

/// A chunk of a filter, and the section of the image that it belongs to.
type FilterChunk = (ImageSection, ImageChunk);

/// Reads the next chunk of a filter; `None` after the last one.
type FilterChunks = Box<dyn FnMut(&Store) -> Result<Option<FilterChunk>, StoreError> + Send>;

/// The records of an image: its head, its parts and its end.
struct ImageRecords {
    head: Option<Box<FilterHead>>,
    chunks: FilterChunks,
    /// The chunk after the last part: it may belong to another section.
    waiting: Option<FilterChunk>,
    end: Option<u64>,
    writer: ArchiveWriter,
    /// The version of entries that is enabled.
    version: u16,
    /// Chunks that were read.
    chunks_read: u64,
}

impl ImageRecords {
    fn new(version: u16, head: FilterHead, redemptions: u64, chunks: FilterChunks) -> Self {
        let head = Some(Box::new(head));
        let end = Some(redemptions);
        let writer = ArchiveWriter::default();
        Self {
            head,
            chunks,
            waiting: None,
            end,
            writer,
            version,
            chunks_read: 0,
        }
    }

    /// The records of a filter in a snapshot, which they pin.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] if the snapshot lacks a section.
    fn stored(
        version: u16,
        store: &Store,
        snapshot: Arc<Manifest>,
        export: Export,
    ) -> Result<Self, StoreError> {
        let mut chunks = VecDeque::new();
        for (kind, id) in export.sections {
            let section = snapshot.find(id);
            let section =
                *section.ok_or_else(|| store.damaged("a snapshot lacks a section of a filter"))?;
            chunks.extend((0..section.chunks).map(|index| (kind, section, index)));
        }
        let next = move |store: &Store| {
            let _pinned = &snapshot;
            let Some((kind, section, index)) = chunks.pop_front() else {
                return Ok(None);
            };
            let mut bytes = Vec::new();
            store.read_chunk(&section, index, &mut bytes)?;
            Ok(Some((kind, ImageChunk(bytes))))
        };
        Ok(Self::new(
            version,
            export.head,
            export.redemptions,
            Box::new(next),
        ))
    }

    /// The records of a frozen filter.
    fn frozen(
        version: u16,
        FrozenFilter {
            export,
            mut sections,
        }: FrozenFilter,
    ) -> Self {
        let next = move |_: &Store| {
            while let Some((kind, section)) = sections.front_mut() {
                let mut bytes = Vec::new();
                if section.next_chunk(&mut bytes) {
                    return Ok(Some((*kind, ImageChunk(bytes))));
                }
                sections.pop_front();
            }
            Ok(None)
        };
        Self::new(version, export.head, export.redemptions, Box::new(next))
    }

    fn read_chunk(&mut self, store: &Store) -> Result<(), StoreError> {
        self.waiting = (self.chunks)(store)?;
        self.chunks_read += 1;
        Ok(())
    }

    /// Returns the next record; `None` after the last one.
    fn next(&mut self, store: &Store) -> Result<Option<Vec<u8>>, StoreError> {
        let body = if let Some(head) = self.head.take() {
            self.read_chunk(store)?;
            ImageBody::Head(head)
        } else if let Some((section, chunk)) = self.waiting.take() {
            let mut part = ImagePart {
                section,
                chunks: vec![chunk],
            };
            self.read_chunk(store)?;
            while part.bytes() < IMAGE_PART_BYTES
                && part.chunks.len() < PART_CHUNKS
                && let Some((_, chunk)) = self.waiting.take_if(|(other, _)| *other == section)
            {
                part.chunks.push(chunk);
                self.read_chunk(store)?;
            }
            ImageBody::Part(part)
        } else if let Some(redemptions) = self.end.take() {
            ImageBody::End { redemptions }
        } else {
            return Ok(None);
        };
        Ok(Some(self.writer.record(self.version, &body)))
    }
}

/// An image that is being copied to a spool, and its caller.
struct ImageCopy {
    records: ImageRecords,
    spool: Spool,
    reply: Reply<Option<Rest>>,
}

/// The parts of a filter in a snapshot, if it has the filter as it is now: with the same head, and sections with the same changes.
///
/// # Errors
/// [`StoreError::Damaged`] if the snapshot can't be read.
fn find_unchanged(
    store: &Store,
    snapshot: &Manifest,
    id: FilterId,
    now: &FrozenFilter,
) -> Result<Option<Export>, StoreError> {
    let is_stored = |section: &Section| {
        snapshot
            .find(section.id)
            .is_some_and(|stored| stored.changes == section.changes)
    };
    if !now.sections.iter().all(|(_, section)| is_stored(section)) {
        return Ok(None);
    }
    let found =
        Export::find(&snapshot.meta, id).map_err(|error| store.damaged(error.to_string()))?;
    Ok(found.filter(|found| *found == now.export))
}

/// The image of a filter in the latest snapshot; `None` if the filter has changed since.
fn stored_image(
    version: u16,
    store: &Store,
    latest: &Manifest,
    id: FilterId,
    now: &FrozenFilter,
) -> Result<Option<Rest>, StoreError> {
    let Some(export) = find_unchanged(store, latest, id, now)? else {
        return Ok(None);
    };
    let newest = store
        .pin_newest()?
        .filter(|newest| newest.generation == latest.generation);
    let Some(snapshot) = newest else {
        return Ok(None);
    };
    let mut records = ImageRecords::stored(version, store, snapshot, export)?;
    Ok(Some(Rest::Stored(Box::new(move |store: &Store| {
        records.next(store)
    }))))
}

/// The images that are being copied. Their number is limited.
#[derive(Default)]
pub(super) struct ImageCopies(VecDeque<ImageCopy>);

impl ImageCopies {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Drops all: their callers learn that storage has failed.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Starts an image of a filter, from the latest snapshot if it has the filter as it is now. Responds `None` if there is no such filter.
    pub(super) fn start(
        &mut self,
        filter: FilterId,
        state: &mut State,
        store: &Store,
        latest: Option<&Manifest>,
        reply: Reply<Option<Rest>>,
    ) {
        // Callers who disconnect and ask again would pile up.
        self.0.retain(|image| !image.reply.is_closed());
        if reply.is_closed() {
            return;
        }
        let Some(frozen) = state.freeze_filter(filter) else {
            return respond(reply, Ok(None));
        };
        let version = state.format();
        let stored = latest.map_or(Ok(None), |latest| {
            stored_image(version, store, latest, filter, &frozen)
        });
        match stored {
            Ok(Some(rest)) => return respond(reply, Ok(Some(rest))),
            Ok(None) => {}
            Err(error) => return respond(reply, Err(SubmitError::unreadable(error))),
        }
        match store.spool() {
            Ok(spool) => self.0.push_back(ImageCopy {
                records: ImageRecords::frozen(version, frozen),
                spool,
                reply,
            }),
            Err(error) => respond(reply, Err(unstorable(&error))),
        }
    }

    /// Continues the first image, then puts it last, so that a small one does not wait for a large one.
    pub(super) fn step(&mut self, store: &Store) {
        let Some(mut image) = self.0.pop_front() else {
            return;
        };
        if image.reply.is_closed() {
            return;
        }
        match image.step(store) {
            Ok(false) => self.0.push_back(image),
            Ok(true) => respond(image.reply, Ok(Some(Rest::Spooled(image.spool)))),
            Err(error) => respond(image.reply, Err(unstorable(&error))),
        }
    }
}

impl ImageCopy {
    /// Copies some records. Returns whether all are copied.
    fn step(&mut self, store: &Store) -> Result<bool, StoreError> {
        let end = self.records.chunks_read + STEP_CHUNKS;
        while self.records.chunks_read < end {
            let Some(record) = self.records.next(store)? else {
                return Ok(true);
            };
            self.spool.push(store, &record)?;
        }
        Ok(false)
    }
}

/// The error of a caller whose image can't be copied. The log is not affected, so the service continues.
fn unstorable(error: &StoreError) -> SubmitError {
    if error.is_disk_full() {
        return SubmitError::DiskFull;
    }
    SubmitError::unreadable(error)
}

impl Engine {
    /// Starts an image of a filter as it is now; `None` if the filter is deleted. Writes continue.
    ///
    /// # Errors
    /// [`SubmitError`]; [`SubmitError::Overloaded`] also when too many images are being taken.
    pub async fn image(&self, filter: FilterId) -> Result<Option<BackupDownload>, SubmitError> {
        let place = self
            .inner
            .images
            .clone()
            .try_acquire_owned()
            .map_err(|_| SubmitError::Overloaded)?;
        self.refuse_unless_ready()?;
        let parts = self
            .ask(|reply| Request::StartImage { filter, reply })
            .await?;
        Ok(parts.map(|parts| BackupDownload::new(self, parts, place)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cuckood_log::store::StoreOptions;

    /// Empty chunks of a sparse table take few bytes, but as long as others.
    #[test]
    fn steps_read_few_empty_chunks() {
        let directory = tempfile::tempdir().unwrap();
        let options = StoreOptions {
            free_space_min_bytes: 0,
            ballast_bytes: 0,
            ..StoreOptions::default()
        };
        let store = Store::open(directory.path(), &options).unwrap();
        let mut left = 100;
        let chunks: FilterChunks = Box::new(move |_: &Store| {
            left -= i32::from(left > 0);
            Ok((left > 0).then(|| (ImageSection::Tables, ImageChunk(vec![0; 40]))))
        });
        let writer = ArchiveWriter::default();
        let spool = store.spool().unwrap();
        let mut records = ImageRecords {
            head: None,
            chunks,
            waiting: None,
            end: Some(0),
            writer,
            version: 1,
            chunks_read: 0,
        };
        records.read_chunk(&store).unwrap();
        let mut image = ImageCopy {
            records,
            spool,
            reply: tokio::sync::oneshot::channel().0,
        };
        for steps in 1.. {
            let before = image.records.chunks_read;
            let is_complete = image.step(&store).unwrap();
            assert!(image.records.chunks_read - before <= STEP_CHUNKS + PART_CHUNKS as u64);
            if is_complete {
                assert!(steps > 5, "{steps}");
                break;
            }
        }
    }
}
