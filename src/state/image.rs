//! The state as a snapshot holds it: a small head, and sections that are streamed chunk by chunk while
//! commands go on. Every chunk is as it was when the snapshot began.
//!
//! Sections are the tables of every filter, the ledgers of coupons, the changes kept for imports, and the pages of
//! stored answers. What a command drops meanwhile (a filter, a table, an import's staging) lives on here until it is
//! taken.

use super::idempotency::Records;
use super::imports::Imports;
use super::kept::{KeptChanges, KeptImage};
use super::ledger::{Change, Ledger};
use super::queue::{DamagedQueue, Extent};
use super::slab::{DamagedSlab, Slab};
use super::staging::Staging;
use super::tables::{Tables, TablesImage};
use super::view::{Counters, FilterView};
use super::{Bearer, Epoch, State};
use crate::domain::{FilterId, Import, ImportId, Kind, Name, Seq, Settings, Spec, Status, Timestamp, Window};
use crate::filter::{Layout, RestoreError, Restoring, Secret, TableId, Walk};
use parking_lot::RwLock;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use thiserror::Error;

/// The version of the head's encoding.
const IMAGE_VERSION: u16 = 1;

/// Names a section for good. Whatever has sections of its own has an epoch, and in a state's life none is given twice: neither
/// to a filter that is deleted and made again, nor to what one import after another builds aside.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SectionId {
    /// Whose it is.
    pub epoch: Epoch,
    /// A table's number, or that of a page of stored answers; 0 for a slab.
    pub table: u64,
}

/// The epoch of the stored answers, which are there from the beginning. All others come later.
const RECORDS: Epoch = Epoch(0);

impl SectionId {
    fn table(epoch: Epoch, table: TableId) -> Self {
        Self { epoch, table: table.0 }
    }

    fn records(page: u64) -> Self {
        Self { epoch: RECORDS, table: page }
    }

    fn slab(epoch: Epoch) -> Self {
        Self { epoch, table: 0 }
    }
}

/// What has sections of its own.
enum Part<'a> {
    Records(&'a mut Records),
    Ledger(&'a RwLock<Ledger>),
    Changes(&'a mut KeptChanges),
    Tables(&'a mut Tables),
}

/// A part that is gone from the state.
enum Retired {
    Ledger(Arc<RwLock<Ledger>>),
    Changes(KeptChanges),
    Tables(Tables),
}

/// A section to be written, unless one with the same id and number of changes has been.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Section {
    /// Which.
    pub id: SectionId,
    /// A number that differs whenever the contents may.
    pub changes: u64,
}

/// What a snapshot begins with.
pub struct SnapshotImage {
    /// The last entry that the snapshot covers.
    pub seq: Seq,
    /// The head, encoded.
    pub head: Vec<u8>,
    /// The sections that belong to it.
    pub sections: Vec<Section>,
}

/// Where the sections of a snapshot come from.
pub trait Sections {
    /// Why a chunk could not be loaded.
    type Error;

    /// Puts a section's chunk of this number in the place of what the bytes held; false after its last.
    fn chunk(&mut self, section: SectionId, chunk: u32, out: &mut Vec<u8>) -> Result<bool, Self::Error>;

    /// Loads all chunks of a table, one after the other unless there is a better way.
    fn table(&mut self, section: SectionId, table: &Restoring<'_>) -> Result<(), RestoreError<Self::Error>> {
        table.load(0..table.chunks(), |chunk, out| {
            // One that isn't there stays empty, which its checksum refuses.
            out.clear();
            self.chunk(section, chunk, out).map(drop)
        })
    }
}

/// Why a state can't be built from a snapshot.
#[derive(Debug, Error)]
pub enum RestoreStateError<E> {
    /// The head can't be read.
    #[error("the snapshot's head can't be read: {0}")]
    Head(postcard::Error),
    /// The head is of a newer program.
    #[error("the snapshot's head has version {0}, this program reads {IMAGE_VERSION}")]
    Newer(u16),
    /// A filter's tables can't be read.
    #[error(transparent)]
    Tables(RestoreError<E>),
    /// A slab can't be read.
    #[error(transparent)]
    Slab(#[from] DamagedSlab),
    /// The stored answers can't be read.
    #[error(transparent)]
    Records(#[from] DamagedQueue),
    /// A chunk could not be loaded.
    #[error(transparent)]
    Load(E),
}

#[derive(Serialize, Deserialize)]
struct Head {
    applied: Seq,
    now: Timestamp,
    settings: Settings,
    epochs: u64,
    records: Extent,
    filters: Vec<BearerImage>,
    imports: Vec<Import>,
}

#[derive(Serialize, Deserialize)]
struct BearerImage {
    id: FilterId,
    kind: Kind,
    name: Name,
    secret: Secret,
    spec: Spec,
    layout: Layout,
    window: Window,
    created_at: Timestamp,
    adds: u64,
    removes: u64,
    ledger_epoch: Epoch,
    ledger_changes: u64,
    ledger_last_change: Change,
    tables: TablesImage,
    staging: Option<StagingImage>,
}

#[derive(Serialize, Deserialize)]
struct StagingImage {
    import: ImportId,
    tables: TablesImage,
    changes: KeptImage,
    cleared: bool,
    walk: Option<Walk>,
}

/// A snapshot in progress.
#[derive(Default)]
pub(super) struct Cursor {
    running: bool,
    /// What belongs to it: the filter whose each part was when it began.
    parts: BTreeMap<Epoch, FilterId>,
    /// Chunks of the tables that belong to it.
    table_chunks: BTreeMap<SectionId, u32>,
    retired: BTreeMap<Epoch, Retired>,
}

impl Cursor {
    /// A deleted filter's parts, which the running snapshot may still want; it builds nothing aside any more.
    pub(super) fn keep_alive(&mut self, bearer: Bearer) {
        let ledger = bearer.view.ledger.clone();
        let epoch = ledger.read().epoch();
        self.retire(epoch, Retired::Ledger(ledger));
        self.keep_tables_alive(bearer.tables);
    }

    /// Tables that others have taken the place of.
    pub(super) fn keep_tables_alive(&mut self, tables: Tables) {
        self.retire(tables.epoch, Retired::Tables(tables));
    }

    /// Changes whose import is over.
    pub(super) fn keep_changes_alive(&mut self, changes: KeptChanges) {
        self.retire(changes.epoch(), Retired::Changes(changes));
    }

    /// Bytes of the tables that live on for the running snapshot alone.
    pub(super) fn tables_bytes(&self) -> u64 {
        let tables = self.retired.values().filter_map(|part| match part {
            Retired::Tables(tables) => Some(tables.memory_bytes()),
            _ => None,
        });
        tables.sum()
    }

    fn retire(&mut self, epoch: Epoch, part: Retired) {
        if self.parts.contains_key(&epoch) {
            self.retired.insert(epoch, part);
        }
    }
}

impl State {
    /// Begins a snapshot of the state as it is now. Its sections are taken with [`Self::take_chunk`] while
    /// commands go on, then it is ended.
    pub fn begin_snapshot(&mut self) -> SnapshotImage {
        self.end_snapshot();
        self.snapshot.running = true;
        let pages = self.records.queue_mut().begin_snapshot();
        // A page's length counts its changes: nothing in it is ever another.
        let mut sections: Vec<Section> =
            pages.map(|(page, length)| Section { id: SectionId::records(page), changes: length }).collect();
        let mut filters = Vec::with_capacity(self.filters.len());
        for (&id, bearer) in &mut self.filters {
            let (ledger_epoch, ledger_changes, ledger_last_change) = {
                let mut ledger = bearer.view.ledger.write();
                ledger.slab_mut().begin_snapshot();
                (ledger.epoch(), ledger.slab().changes(), ledger.last_change())
            };
            self.snapshot.parts.insert(ledger_epoch, id);
            sections.push(Section { id: SectionId::slab(ledger_epoch), changes: ledger_changes });
            let mut note = |tables: &TablesImage| {
                self.snapshot.parts.insert(tables.epoch, id);
                for (table, changes, chunks) in tables.filter.tables() {
                    let id = SectionId::table(tables.epoch, table);
                    self.snapshot.table_chunks.insert(id, chunks);
                    sections.push(Section { id, changes });
                }
            };
            let tables = bearer.tables.begin_snapshot();
            note(&tables);
            let staging = bearer.staging.as_mut().map(|staging| {
                let tables = staging.tables.begin_snapshot();
                note(&tables);
                StagingImage {
                    import: staging.import.clone(),
                    tables,
                    changes: staging.changes.begin_snapshot(),
                    cleared: staging.cleared,
                    walk: staging.walk,
                }
            });
            if let Some(StagingImage { changes, .. }) = &staging {
                self.snapshot.parts.insert(changes.epoch, id);
                sections.push(Section { id: SectionId::slab(changes.epoch), changes: changes.changes() });
            }
            let view = &bearer.view;
            filters.push(BearerImage {
                id,
                kind: view.kind,
                name: view.name.clone(),
                secret: view.secret.clone(),
                spec: view.spec.clone(),
                layout: view.layout,
                window: view.window,
                created_at: view.created_at,
                adds: view.counters.adds.load(Ordering::Relaxed),
                removes: view.counters.removes.load(Ordering::Relaxed),
                ledger_epoch,
                ledger_changes,
                ledger_last_change,
                tables,
                staging,
            });
        }
        let head = Head {
            applied: self.applied,
            now: self.now,
            settings: self.settings.clone(),
            epochs: self.epochs,
            records: self.records.queue().extent(),
            filters,
            imports: self.view.imports.read().iter().map(|import| Import::clone(import)).collect(),
        };
        let head = postcard::to_stdvec(&(IMAGE_VERSION, head)).expect("plain data always encodes");
        SnapshotImage { seq: self.applied, head, sections }
    }

    /// The section's chunk of this number, counted from 0 without a gap; false, and nothing, after its last.
    pub fn take_chunk(&mut self, section: SectionId, chunk: u32, out: &mut Vec<u8>) -> bool {
        out.clear();
        let chunks = self.snapshot.table_chunks.get(&section).copied();
        match self.part(section.epoch) {
            None => false,
            Some(Part::Records(records)) => records.queue_mut().take_chunk(section.table, chunk, out),
            Some(Part::Ledger(ledger)) => ledger.write().slab_mut().take_chunk(out),
            Some(Part::Changes(changes)) => changes.take_chunk(out),
            Some(Part::Tables(tables)) => {
                let there = chunks.is_some_and(|chunks| chunk < chunks);
                if there {
                    tables.take_chunk(TableId(section.table), chunk, out);
                }
                there
            }
        }
    }

    /// A section that need not be taken, because an equal one is stored.
    pub fn skip_section(&mut self, section: SectionId) {
        match self.part(section.epoch) {
            None => {}
            Some(Part::Records(records)) => records.queue_mut().skip_page(section.table),
            Some(Part::Ledger(ledger)) => ledger.write().slab_mut().end_snapshot(),
            Some(Part::Changes(changes)) => changes.end_snapshot(),
            Some(Part::Tables(tables)) => tables.skip_table(TableId(section.table)),
        }
    }

    /// What belongs to the running snapshot under this epoch, wherever it is by now.
    fn part(&mut self, epoch: Epoch) -> Option<Part<'_>> {
        if epoch == RECORDS {
            return Some(Part::Records(&mut self.records));
        }
        let filter = self.snapshot.parts.get(&epoch)?;
        if let Some(retired) = self.snapshot.retired.get_mut(&epoch) {
            return Some(match retired {
                Retired::Ledger(ledger) => Part::Ledger(ledger),
                Retired::Changes(changes) => Part::Changes(changes),
                Retired::Tables(tables) => Part::Tables(tables),
            });
        }
        let Bearer { view, tables, staging } = self.filters.get_mut(filter)?;
        if tables.epoch == epoch {
            return Some(Part::Tables(tables));
        }
        if view.ledger.read().epoch() == epoch {
            return Some(Part::Ledger(&view.ledger));
        }
        let Staging { tables, changes, .. } = staging.as_mut()?;
        if tables.epoch == epoch {
            return Some(Part::Tables(tables));
        }
        (changes.epoch() == epoch).then_some(Part::Changes(changes))
    }

    /// Bytes kept for the running snapshot, about: what has been changed since it began, and changes kept for imports that are
    /// needed no more. Tables and ledgers of filters that are gone are not counted: nothing is kept, they only go later.
    pub fn snapshot_bytes(&self) -> usize {
        let slots = |slots: usize| slots * super::ledger::REDEMPTION_BYTES as usize;
        let of_filters: usize = self
            .filters
            .values()
            .map(|bearer| {
                let staging = bearer.staging.as_ref().map_or(0, |staging| {
                    staging.tables.undo_bytes() + staging.changes.snapshot_bytes() as usize
                });
                bearer.tables.undo_bytes()
                    + staging
                    + slots(bearer.view.ledger.read().slab().snapshot_slots())
            })
            .sum();
        let retired = self.snapshot.retired.values().map(|part| match part {
            Retired::Changes(changes) => changes.untaken_bytes() as usize,
            Retired::Ledger(_) | Retired::Tables(_) => 0,
        });
        of_filters + retired.sum::<usize>() + self.records.queue().snapshot_bytes()
    }

    /// Ends the running snapshot, whole or not.
    pub fn end_snapshot(&mut self) {
        if !self.snapshot.running {
            return;
        }
        self.snapshot = Cursor::default();
        self.records.queue_mut().end_snapshot();
        for bearer in self.filters.values_mut() {
            bearer.view.ledger.write().slab_mut().end_snapshot();
            bearer.tables.end_snapshot();
            if let Some(staging) = &mut bearer.staging {
                staging.tables.end_snapshot();
                staging.changes.end_snapshot();
            }
        }
        // The tables that others have taken the place of are gone now.
        let of_filter = |bearer: &Bearer| {
            bearer.tables.memory_bytes() + bearer.staging.as_ref().map_or(0, |s| s.tables.memory_bytes())
        };
        self.tables_bytes = self.filters.values().map(of_filter).sum();
    }

    /// The state whose snapshot this is.
    ///
    /// # Errors
    /// When anything is missing, damaged or of a newer version.
    pub fn restore<S: Sections>(head: &[u8], sections: &mut S) -> Result<Self, RestoreStateError<S::Error>> {
        let (version, rest) = postcard::take_from_bytes::<u16>(head).map_err(RestoreStateError::Head)?;
        if version != IMAGE_VERSION {
            return Err(RestoreStateError::Newer(version));
        }
        let head: Head = postcard::from_bytes(rest).map_err(RestoreStateError::Head)?;
        let mut state = Self::new();
        state.applied = head.applied;
        state.now = head.now;
        state.configure(head.settings);
        state.epochs = head.epochs;
        state.records = restore_records(head.records, sections)?;
        *state.view.imports.write() = Imports::restore(head.imports);
        for image in head.filters {
            state.restore_bearer(image, sections)?;
        }
        state.catalog_changed = true;
        state.publish();
        Ok(state)
    }

    fn restore_bearer<S: Sections>(
        &mut self,
        image: BearerImage,
        sections: &mut S,
    ) -> Result<(), RestoreStateError<S::Error>> {
        let id = image.id;
        let ledger = load_all(sections, SectionId::slab(image.ledger_epoch))?;
        let redemptions = Slab::restore(&ledger, image.ledger_changes)?;
        let ledger = Ledger::restore(image.ledger_epoch, redemptions, image.ledger_last_change);
        for redemption in ledger.iter() {
            match (redemption.status, redemption.expires_at) {
                (Status::Held, Some(expires_at)) => self.holds.insert((expires_at, redemption.id, id)),
                _ => self.ended.insert((redemption.changed_at, redemption.id, id)),
            };
        }
        self.redemptions += ledger.len() as u64;
        self.references_bytes += ledger.references_bytes();
        let tables = restore_tables(&image.tables, sections)?;
        self.tables_bytes += tables.memory_bytes();
        let staging = image.staging.map(|image| self.restore_staging(image, sections)).transpose()?;
        let counters = Counters::default();
        counters.adds.store(image.adds, Ordering::Relaxed);
        counters.removes.store(image.removes, Ordering::Relaxed);
        let view = Arc::new(FilterView {
            id,
            kind: image.kind,
            name: image.name,
            spec: image.spec,
            layout: image.layout,
            window: image.window,
            created_at: image.created_at,
            secret: image.secret,
            reader: tables.reader(),
            counters: Arc::new(counters),
            ledger: Arc::new(RwLock::new(ledger)),
            redemptions_retention: self.view.redemptions_retention.clone(),
        });
        self.show(view.clone());
        self.filters.insert(id, Bearer { view, tables, staging });
        Ok(())
    }

    fn restore_staging<S: Sections>(
        &mut self,
        image: StagingImage,
        sections: &mut S,
    ) -> Result<Staging, RestoreStateError<S::Error>> {
        let StagingImage { import, tables, changes, cleared, walk } = image;
        let tables = restore_tables(&tables, sections)?;
        self.tables_bytes += tables.memory_bytes();
        let bytes = load_all(sections, SectionId::slab(changes.epoch))?;
        let changes = KeptChanges::restore(changes, &bytes)?;
        self.kept_changes += changes.len();
        self.catching_up += u64::from(walk.is_some());
        Ok(Staging { import, tables, changes, cleared, walk })
    }
}

fn restore_tables<S: Sections>(
    image: &TablesImage,
    sections: &mut S,
) -> Result<Tables, RestoreStateError<S::Error>> {
    let mut load = |table: &Restoring<'_>| sections.table(SectionId::table(image.epoch, table.id()), table);
    Tables::restore(image, &mut load).map_err(RestoreStateError::Tables)
}

fn restore_records<S: Sections>(
    extent: Extent,
    sections: &mut S,
) -> Result<Records, RestoreStateError<S::Error>> {
    let numbers = extent.first..extent.first.saturating_add(extent.pages);
    let mut pages = Vec::new();
    for number in numbers {
        let page = load_all(sections, SectionId::records(number))?;
        if page.is_empty() {
            return Err(DamagedQueue::missing().into());
        }
        pages.push(page);
    }
    Ok(Records::restore(extent, pages)?)
}

/// All chunks of a section, joined.
fn load_all<S: Sections>(
    sections: &mut S,
    section: SectionId,
) -> Result<Vec<u8>, RestoreStateError<S::Error>> {
    let (mut all, mut chunk) = (Vec::new(), Vec::new());
    for number in 0.. {
        chunk.clear();
        if !sections.chunk(section, number, &mut chunk).map_err(RestoreStateError::Load)? {
            break;
        }
        all.extend_from_slice(&chunk);
    }
    Ok(all)
}
