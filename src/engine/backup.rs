//! Archives on their way out, produced piece by piece between commits: a backup has the newest snapshot, the events up to it and the log
//! after it; an image has one filter of that snapshot.

use super::running_snapshot::key;
use crate::domain::{Chunk, FilterId, ImagePart, ImageSection, Seq};
use crate::journal::{Journal, JournalError};
use crate::state::Export;
use crate::store::archive::{ArchiveWriter, IMAGE_PART_BYTES, ImageBody, ImageWriter, PinnedManifest};
use crate::store::{Manifest, SectionRef, Store, StoreError};
use std::ops::ControlFlow;
use std::sync::Arc;

/// The most bytes that [`ArchiveSource::next_part`] returns at once.
pub const PART_BYTES_MAX: usize = 1 << 20;

/// A running backup. Its snapshot, and the log after that, are kept until it is dropped. No tree of events may be removed meanwhile.
pub struct ArchiveSource {
    snapshot: Option<PinnedManifest>,
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
        Ok(ArchiveSource::over(PinnedManifest::newest(store)?, through))
    }

    /// Begins an archive of the newest snapshot alone, without the log after it. `None` if there is no snapshot.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] if the snapshot can't be read.
    pub fn of_newest_snapshot(store: &Arc<Store>) -> Result<Option<ArchiveSource>, StoreError> {
        let Some(snapshot) = PinnedManifest::newest(store)? else { return Ok(None) };
        let through = snapshot.seq;
        Ok(Some(ArchiveSource::over(Some(snapshot), through)))
    }

    /// The snapshot in the archive.
    pub fn snapshot(&self) -> Option<&Manifest> {
        self.snapshot.as_deref()
    }

    fn over(snapshot: Option<PinnedManifest>, through: Seq) -> ArchiveSource {
        let archive = ArchiveWriter::begin(snapshot.as_deref());
        let next = match &snapshot {
            Some(_) => Step::Chunk { section: 0, index: 0 },
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
                self.archive.chunk(&bytes);
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
                self.archive.events(&pack.up_to(pack.last().min(last)));
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
            self.archive.entries(after.next(), count, &payload);
        }
        self.next = Step::Log { after: last };
        if last >= self.through {
            self.archive.end(last);
            self.next = Step::Done;
        }
        Ok(())
    }
}

/// Records of an image that are read together: about half a megabyte.
const RECORDS_AT_ONCE: usize = 8;

/// An image that is being taken. Its snapshot is kept until it is dropped.
pub(super) struct ImageSource {
    _snapshot: PinnedManifest,
    writer: ImageWriter,
    /// `None` once it is written.
    head: Option<ImageBody>,
    sections: Vec<(ImageSection, SectionRef)>,
    /// The section, and its chunk, that come next.
    next: (usize, u32),
    /// `None` once it is written.
    end: Option<ImageBody>,
}

impl ImageSource {
    /// Begins the image of a filter as the newest snapshot has it; `None` if that has not got it.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] if the snapshot can't be read.
    pub(super) fn begin(store: &Arc<Store>, filter: FilterId) -> Result<Option<Self>, StoreError> {
        let Some(snapshot) = PinnedManifest::newest(store)? else { return Ok(None) };
        let found = Export::find(&snapshot.meta, filter).map_err(|error| store.damaged(error.to_string()))?;
        let Some(Export { head, sections, redemptions }) = found else { return Ok(None) };
        let find = |(kind, id)| {
            let found = snapshot.sections.binary_search_by_key(&key(id), |section| section.key);
            let section = found.ok().and_then(|at| snapshot.sections.get(at));
            section.map(|section| (kind, *section))
        };
        let sections: Option<Vec<_>> = sections.into_iter().map(find).collect();
        Ok(Some(Self {
            sections: sections.ok_or_else(|| store.damaged("a snapshot lacks a section of a filter"))?,
            _snapshot: snapshot,
            writer: ImageWriter::default(),
            head: Some(ImageBody::Head(Box::new(head))),
            next: (0, 0),
            end: Some(ImageBody::End { redemptions }),
        }))
    }

    /// The next records; none after the last one.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] if something can't be read. The image then lacks its end.
    pub(super) fn next_records(&mut self, store: &Store) -> Result<Vec<Vec<u8>>, StoreError> {
        let mut records = Vec::new();
        while records.len() < RECORDS_AT_ONCE {
            let body = match self.head.take() {
                Some(head) => Some(head),
                None => self.next_part(store)?.map(ImageBody::Part).or_else(|| self.end.take()),
            };
            let Some(body) = body else { break };
            records.push(self.writer.record(&body));
        }
        Ok(records)
    }

    /// The next chunks, all of one kind.
    fn next_part(&mut self, store: &Store) -> Result<Option<ImagePart>, StoreError> {
        let mut part: Option<ImagePart> = None;
        while let Some((kind, section)) = self.sections.get(self.next.0) {
            let (index, chunk) = self.next;
            if chunk == section.chunks {
                self.next = (index + 1, 0);
                continue;
            }
            let part = part.get_or_insert_with(|| ImagePart { section: *kind, chunks: Vec::new() });
            if part.section != *kind || part.bytes() >= IMAGE_PART_BYTES {
                break;
            }
            let mut read = Vec::new();
            store.read_chunk(section, chunk, &mut read)?;
            part.chunks.push(Chunk(read));
            self.next = (index, chunk + 1);
        }
        Ok(part)
    }
}
