//! The image of one filter on its way out: its sections in a snapshot, record by record, read between commits.

use super::running_snapshot::key;
use crate::domain::{Chunk, FilterId, ImageHead, ImagePart, PlacedRedemption};
use crate::state::{Export, RedemptionReader, SectionId};
use crate::store::archive::PinnedManifest;
use crate::store::image::{ImageWriter, PART_BYTES};
use crate::store::{SectionRef, Store, StoreError};
use std::collections::VecDeque;
use std::sync::Arc;

/// Records that are read at once: about half a megabyte.
const RECORDS_AT_ONCE: usize = 8;

/// An image that is being taken. Its snapshot is kept until it is dropped.
pub(super) struct ImageSource {
    snapshot: PinnedManifest,
    writer: ImageWriter,
    /// None once it is written.
    head: Option<ImageHead>,
    tables: Vec<(SectionId, u32)>,
    /// The table, and its chunk, that come next.
    next: (usize, u32),
    /// The section of the ordinals, and its chunk that comes next; none once they are written.
    ordinals: Option<(SectionId, u32)>,
    ledger: SectionId,
    /// The chunk of the ledger that comes next.
    ledger_chunk: u32,
    reader: RedemptionReader,
    /// Redemptions that are read and not written yet.
    redemptions: VecDeque<PlacedRedemption>,
    /// Redemptions written.
    written: u64,
    has_ended: bool,
}

impl ImageSource {
    /// Begins the image of a filter as the newest snapshot has it; none if that has not got it.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] if the snapshot can't be read.
    pub(super) fn begin(store: &Arc<Store>, filter: FilterId) -> Result<Option<Self>, StoreError> {
        let Some(snapshot) = store.pin_newest()? else { return Ok(None) };
        let found = Export::find(&snapshot.meta, filter).map_err(|error| store.damaged(error.to_string()))?;
        let Some(Export { head, tables, ordinals, ledger }) = found else { return Ok(None) };
        Ok(Some(Self {
            snapshot,
            writer: ImageWriter::default(),
            head: Some(head),
            tables,
            next: (0, 0),
            ordinals: ordinals.map(|section| (section, 0)),
            ledger,
            ledger_chunk: 0,
            reader: RedemptionReader::default(),
            redemptions: VecDeque::new(),
            written: 0,
            has_ended: false,
        }))
    }

    /// The next records; none after the last one.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] if something can't be read. The image then lacks its end.
    pub(super) fn next_records(&mut self, store: &Store) -> Result<Vec<Vec<u8>>, StoreError> {
        let mut records = Vec::new();
        while records.len() < RECORDS_AT_ONCE && !self.has_ended {
            records.push(self.next_record(store)?);
        }
        Ok(records)
    }

    fn next_record(&mut self, store: &Store) -> Result<Vec<u8>, StoreError> {
        if let Some(head) = self.head.take() {
            return Ok(self.writer.head(&head));
        }
        let chunks = self.next_chunks(store)?;
        if !chunks.is_empty() {
            return Ok(self.writer.part(&ImagePart::Chunks(chunks)));
        }
        if let Some((section, chunk)) = self.ordinals.take() {
            let section_ref = *self.section(store, section)?;
            if chunk < section_ref.chunks {
                self.ordinals = Some((section, chunk + 1));
                let mut read = Vec::new();
                store.read_chunk(&section_ref, chunk, &mut read)?;
                return Ok(self.writer.part(&ImagePart::Ordinals(Chunk(read))));
            }
        }
        let redemptions = self.next_redemptions(store)?;
        if !redemptions.is_empty() {
            self.written += redemptions.len() as u64;
            return Ok(self.writer.part(&ImagePart::Redemptions(redemptions)));
        }
        self.has_ended = true;
        Ok(self.writer.end(self.written))
    }

    fn next_chunks(&mut self, store: &Store) -> Result<Vec<Chunk>, StoreError> {
        let (mut chunks, mut bytes) = (Vec::new(), 0);
        while let Some(&(table, count)) = self.tables.get(self.next.0) {
            let (index, chunk) = self.next;
            if chunk == count {
                self.next = (index + 1, 0);
                continue;
            }
            if bytes >= PART_BYTES {
                break;
            }
            let mut read = Vec::new();
            store.read_chunk(self.section(store, table)?, chunk, &mut read)?;
            bytes += read.len() + 3;
            chunks.push(Chunk(read));
            self.next = (index, chunk + 1);
        }
        Ok(chunks)
    }

    fn next_redemptions(&mut self, store: &Store) -> Result<Vec<PlacedRedemption>, StoreError> {
        let section = *self.section(store, self.ledger)?;
        let (mut taken, mut bytes) = (Vec::new(), 0);
        while bytes < PART_BYTES {
            if let Some(redemption) = self.redemptions.pop_front() {
                // Far more than its numbers take.
                bytes += 128 + redemption.redemption.reference.as_str().len();
                taken.push(redemption);
            } else if self.ledger_chunk < section.chunks {
                let mut read = Vec::new();
                store.read_chunk(&section, self.ledger_chunk, &mut read)?;
                self.ledger_chunk += 1;
                let pushed = self.reader.push(&read, &mut self.redemptions);
                pushed.map_err(|error| store.damaged(error.to_string()))?;
            } else if self.reader.is_at_end() {
                break;
            } else {
                return Err(store.damaged("a ledger ends within a page".to_owned()));
            }
        }
        Ok(taken)
    }

    fn section(&self, store: &Store, id: SectionId) -> Result<&SectionRef, StoreError> {
        let sections = &self.snapshot.sections;
        let found = sections.binary_search_by_key(&key(id), |section| section.key).ok();
        let section = found.and_then(|at| sections.get(at));
        section.ok_or_else(|| store.damaged("a snapshot lacks a section of a filter".to_owned()))
    }
}
