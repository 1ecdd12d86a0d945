//! The image of the state that a snapshot stores: a small head, and sections, which own what they consist of as it was when the snapshot
//! began. So commands go on while their chunks are taken.
//!
//! Sections are the tables of every filter, the ledgers of coupons, the changes kept for imports, and the pages of stored answers.

use super::catalog::NamedLineUp;
use super::images::Images;
use super::ledger::Ledger;
use super::machine::{FilterState, State};
use super::section::{Epoch, RECORDS, Section, SectionId};
use super::tables::Tables;
use crate::domain::{
    FORMAT_VERSION, FilterHead, FilterId, ImageSection, Import, ImportId, Seq, Settings, StateHash, Timestamp,
};
use crate::filter::{FilterImage, RestoreError, Walk};
use crate::paged::{Copied, Extent, Queue};
use serde::{Deserialize, Serialize};
use std::convert::Infallible;
use thiserror::Error;

/// The version of the head's encoding: as that of the entries that are enabled, for these decide what can be in it. A build that does not know
/// one can tell that it is newer, not damaged.
pub(crate) const IMAGE_VERSION: u16 = FORMAT_VERSION;

/// What a snapshot begins with.
pub struct SnapshotImage {
    /// The last entry that the snapshot covers.
    pub seq: Seq,
    /// The head, encoded.
    pub head: Vec<u8>,
    /// The sections that belong to it.
    pub sections: Vec<Section>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct Head {
    pub(super) beginning: Beginning,
    pub(super) imports: Vec<Import>,
    pub(super) images: Images,
    pub(super) line_ups: Vec<NamedLineUp>,
    /// The campaign that was the last to free slots of forgotten users.
    pub(super) last_retired: Option<FilterId>,
}

/// What a head begins with. It can be read by itself.
#[derive(Serialize, Deserialize)]
pub(super) struct Beginning {
    pub(super) applied: Seq,
    /// The hash of everything applied, and that of the last position at which nodes compare.
    pub(super) hashes: (u128, StateHash),
    /// The version of entries that is enabled.
    pub(super) format: u16,
    pub(super) now: Timestamp,
    pub(super) settings: Settings,
    pub(super) epochs: u64,
    /// The numbers of the last event and of the next one.
    pub(super) events: (u64, u64),
    pub(super) records: Extent,
    pub(super) filters: Vec<FilterStateImage>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct FilterStateImage {
    pub(super) id: FilterId,
    pub(super) head: FilterHead,
    pub(super) tables: Epoch,
    pub(super) ledger: LedgerImage,
    pub(super) staging: Option<StagingImage>,
    pub(super) is_hidden: bool,
}

#[derive(Serialize, Deserialize)]
pub(super) struct LedgerImage {
    pub(super) epoch: Epoch,
    pub(super) redemptions: u64,
    pub(super) changes: u64,
    /// Memory that it takes. Its chunks don't tell, for they have no free slots.
    pub(super) memory_bytes: u64,
    /// Of an open pool: how often its ordinals have changed.
    pub(super) ordinals_changes: Option<u64>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct StagingImage {
    pub(super) import: ImportId,
    pub(super) tables: (Epoch, FilterImage),
    pub(super) changes: (Epoch, Extent),
    pub(super) cleared: bool,
    pub(super) walk: Option<Walk>,
}

/// Why a state can't be built from a snapshot.
#[derive(Debug, Error)]
pub enum RestoreStateError<E> {
    /// The head can't be read.
    #[error("the snapshot's head can't be read: {0}")]
    Head(postcard::Error),
    /// A newer program wrote the head.
    #[error("the snapshot's head has version {0}, this program reads 1 to {IMAGE_VERSION}")]
    Newer(u16),
    /// A filter's tables can't be read.
    #[error(transparent)]
    Tables(RestoreError<E>),
    /// Redemptions, stored answers or changes kept for an import can't be read.
    #[error("the snapshot is damaged: {0}")]
    Damaged(&'static str),
    /// A chunk could not be loaded.
    #[error(transparent)]
    Load(E),
}

/// The version of entries that is enabled in a snapshot.
///
/// # Errors
/// [`RestoreStateError::Head`] or [`RestoreStateError::Newer`] if the head can't be read.
pub fn enabled_in(head: &[u8]) -> Result<u16, RestoreStateError<Infallible>> {
    Ok(beginning(head)?.format)
}

/// What a head begins with. The imports and line-ups behind it may be many.
fn beginning(head: &[u8]) -> Result<Beginning, RestoreStateError<Infallible>> {
    let (version, rest) = postcard::take_from_bytes::<u16>(head).map_err(RestoreStateError::Head)?;
    if !(1..=IMAGE_VERSION).contains(&version) {
        return Err(RestoreStateError::Newer(version));
    }
    let (beginning, _) = postcard::take_from_bytes(rest).map_err(RestoreStateError::Head)?;
    Ok(beginning)
}

impl State {
    /// Begins a snapshot of the state as it is now. A dropped section is left out.
    pub fn begin_snapshot(&mut self) -> SnapshotImage {
        let (mut sections, copied) = (Vec::new(), self.shared.copied.clone());
        let records = freeze_queue(self.records.queue_mut(), RECORDS, &copied, &mut sections);
        let filters = self.filters.values_mut().map(|filter| filter.freeze(&copied, &mut sections)).collect();
        let shared = &self.shared;
        let beginning = Beginning {
            applied: self.applied,
            hashes: (self.history.hash, self.history.last),
            format: self.format,
            now: shared.now,
            settings: shared.settings.clone(),
            epochs: shared.epochs,
            events: (shared.events.last(), shared.events.next()),
            records,
            filters,
        };
        let head = Head {
            beginning,
            images: shared.images.clone(),
            imports: shared.view.imports.read().iter().map(|import| Import::clone(import)).collect(),
            line_ups: shared.catalog.line_ups().map(|line_up| NamedLineUp::clone(line_up)).collect(),
            last_retired: shared.agenda.last_retired,
        };
        let head =
            postcard::to_stdvec(&(self.format.min(IMAGE_VERSION), head)).expect("plain data always encodes");
        SnapshotImage { seq: self.applied, head, sections }
    }
}

/// Adds a section for each page of a queue.
fn freeze_queue(queue: &mut Queue, epoch: Epoch, copied: &Copied, sections: &mut Vec<Section>) -> Extent {
    // A page only grows: its length tells its contents.
    sections.extend(queue.freeze(copied).map(|(number, length, mut page)| {
        Section::new(SectionId::page(epoch, number), length, move |out| page.next_chunk(out))
    }));
    queue.extent()
}

impl Tables {
    /// Adds a section for each table.
    fn freeze(&mut self, copied: &Copied, sections: &mut Vec<Section>) -> (Epoch, FilterImage) {
        let epoch = self.epoch;
        let (image, tables) = self.filter.freeze(copied);
        sections.extend(tables.into_iter().map(|mut table| {
            let id = SectionId::table(epoch, table.id());
            Section::new(id, table.changes(), move |out| table.next_chunk(out))
        }));
        (epoch, image)
    }
}

impl Ledger {
    /// Adds sections for the redemptions and the ordinals.
    fn freeze(&mut self, copied: &Copied, sections: &mut Vec<Section>) -> LedgerImage {
        let (epoch, redemptions, memory_bytes) = (self.epoch(), self.len() as u64, self.memory_bytes());
        let slab = self.slab_mut();
        let (changes, mut frozen) = (slab.changes(), slab.freeze(copied));
        let id = SectionId::redemptions(epoch);
        sections.push(Section::new(id, changes, move |out| frozen.next_chunk(out)));
        let ordinals_changes = self.ordinals_mut().map(|ordinals| {
            let (changes, mut frozen) = (ordinals.changes(), ordinals.freeze(copied));
            let id = SectionId::ordinals(epoch);
            sections.push(Section::new(id, changes, move |out| frozen.next_chunk(out)));
            changes
        });
        LedgerImage { epoch, redemptions, changes, memory_bytes, ordinals_changes }
    }
}

impl FilterState {
    fn freeze(&mut self, copied: &Copied, sections: &mut Vec<Section>) -> FilterStateImage {
        let ledger = self.view.ledger.write().freeze(copied, sections);
        let (tables, image) = self.tables.freeze(copied, sections);
        let staging = self.staging.as_mut().map(|staging| {
            let changes = &mut staging.changes;
            StagingImage {
                import: staging.import.clone(),
                tables: staging.tables.freeze(copied, sections),
                changes: (changes.epoch, freeze_queue(&mut changes.queue, changes.epoch, copied, sections)),
                cleared: staging.cleared,
                walk: staging.walk,
            }
        });
        let (id, head, is_hidden) = (self.view.id, self.view.head(image), self.is_hidden);
        FilterStateImage { id, head, tables, ledger, staging, is_hidden }
    }
}

/// What an image of one filter consists of.
pub struct Export {
    /// What it begins with.
    pub head: FilterHead,
    /// The sections of the snapshot that follow, in order.
    pub sections: Vec<(ImageSection, SectionId)>,
    /// Number of redemptions.
    pub redemptions: u64,
}

impl Export {
    /// Finds a filter in a snapshot's head; `None` if it is not there, or not complete itself.
    ///
    /// # Errors
    /// [`RestoreStateError::Head`] or [`RestoreStateError::Newer`] if the head can't be read.
    pub fn find(head: &[u8], filter: FilterId) -> Result<Option<Self>, RestoreStateError<Infallible>> {
        let filters = beginning(head)?.filters;
        let found = filters.into_iter().find(|image| image.id == filter && !image.is_hidden);
        let Some(FilterStateImage { head, tables, ledger, .. }) = found else { return Ok(None) };
        let ordinals = ledger.ordinals_changes.map(|_| SectionId::ordinals(ledger.epoch));
        let ids = head.tables.tables().map(|(table, ..)| SectionId::table(tables, table));
        let sections = ids.map(|id| (ImageSection::Tables, id));
        let sections = sections.chain(ordinals.map(|id| (ImageSection::Ordinals, id)));
        let sections = sections.chain([(ImageSection::Redemptions, SectionId::redemptions(ledger.epoch))]);
        Ok(Some(Self { sections: sections.collect(), head, redemptions: ledger.redemptions }))
    }
}
