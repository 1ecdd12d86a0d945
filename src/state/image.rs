//! The image of the state that a snapshot stores: a small head, and sections that are taken chunk by chunk while commands go on.
//! Every chunk is as it was when the snapshot began.
//!
//! Sections are the tables of every filter, the ledgers of coupons, the changes kept for imports, and the pages of stored
//! answers. A part that a command drops meanwhile (a filter, a table, what an import builds aside) lives on until the snapshot ends.

use super::catalog::NamedLineUp;
use super::epoch::Epoch;
use super::idempotency::Records;
use super::kept::{KeptChanges, KeptImage};
use super::ledger::{Change, Ledger};
use super::loading::Loading;
use super::machine::{FilterState, Shared, State};
use super::ordinals::Ordinals;
use super::queue::Extent;
use super::running_snapshot::{Retired, RunningSnapshot};
use super::section::{RECORDS, Section, SectionId};
use super::staging::Staging;
use super::tables::{Tables, TablesImage};
use crate::domain::{
    FORMAT_VERSION, FilterId, Import, ImportId, Kind, Name, Seq, Settings, Spec, StateHash, Timestamp, Window,
};
use crate::filter::{Layout, Secret, TableId, Walk};
use parking_lot::RwLock;
use serde::{Deserialize, Serialize};
use std::sync::atomic::Ordering;

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

/// A part of the state that has sections of its own.
enum Part<'a> {
    Records(&'a mut Records),
    Ledger(&'a RwLock<Ledger>),
    Changes(&'a mut KeptChanges),
    Tables(&'a mut Tables),
}

#[derive(Serialize, Deserialize)]
pub(super) struct Head {
    pub(super) beginning: Beginning,
    pub(super) imports: Vec<Import>,
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
    pub(super) kind: Kind,
    pub(super) name: Name,
    pub(super) secret: Secret,
    pub(super) spec: Spec,
    pub(super) layout: Layout,
    pub(super) window: Window,
    pub(super) created_at: Timestamp,
    pub(super) adds: u64,
    pub(super) removes: u64,
    pub(super) ledger: LedgerImage,
    pub(super) tables: TablesImage,
    pub(super) staging: Option<StagingImage>,
    /// Of a hidden filter.
    pub(super) loading: Option<Loading>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct LedgerImage {
    pub(super) epoch: Epoch,
    pub(super) changes: u64,
    pub(super) last_change: Change,
    /// Memory that it takes. Its chunks don't tell, for they have no free slots.
    pub(super) memory_bytes: u64,
    /// Of an open pool: how often its ordinals have changed.
    pub(super) ordinals_changes: Option<u64>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct StagingImage {
    pub(super) import: ImportId,
    pub(super) tables: TablesImage,
    pub(super) changes: KeptImage,
    pub(super) cleared: bool,
    pub(super) walk: Option<Walk>,
}

impl State {
    /// Begins a snapshot of the state as it is now. Its sections are taken with [`Self::take_chunk`] while commands go on; then
    /// it is ended.
    pub fn begin_snapshot(&mut self) -> SnapshotImage {
        self.end_snapshot();
        let pages = self.records.queue_mut().begin_snapshot();
        // A page only grows: its length tells its contents.
        let mut sections: Vec<Section> =
            pages.map(|(page, length)| Section { id: SectionId::records(page), changes: length }).collect();
        self.shared.snapshot.is_running = true;
        let snapshot = &mut self.shared.snapshot;
        let filters =
            self.filters.values_mut().map(|filter| filter.begin_snapshot(snapshot, &mut sections)).collect();
        let shared = &self.shared;
        let beginning = Beginning {
            applied: self.applied,
            hashes: (self.history.hash, self.history.last),
            format: self.format,
            now: shared.now,
            settings: shared.settings.clone(),
            epochs: shared.epochs,
            events: (shared.events.last(), shared.events.next()),
            records: self.records.queue().extent(),
            filters,
        };
        let head = Head {
            beginning,
            imports: shared.view.imports.read().iter().map(|import| Import::clone(import)).collect(),
            line_ups: shared.catalog.line_ups().map(|line_up| NamedLineUp::clone(line_up)).collect(),
            last_retired: shared.agenda.last,
        };
        let head =
            postcard::to_stdvec(&(self.format.min(IMAGE_VERSION), head)).expect("plain data always encodes");
        SnapshotImage { seq: self.applied, head, sections }
    }

    /// Replaces `out` with the section's chunk of this number, counted from 0 without a gap; false, and nothing, after its last.
    pub fn take_chunk(&mut self, section: SectionId, chunk: u32, out: &mut Vec<u8>) -> bool {
        out.clear();
        let chunks = self.shared.snapshot.table_chunks.get(&section).copied();
        match self.part(section.epoch) {
            None => false,
            Some(Part::Records(records)) => records.queue_mut().take_chunk(section.table, chunk, out),
            Some(Part::Ledger(ledger)) if section == SectionId::ordinals(section.epoch) => {
                ledger.write().ordinals_mut().is_some_and(|ordinals| ordinals.take_chunk(out))
            }
            Some(Part::Ledger(ledger)) => ledger.write().slab_mut().take_chunk(out),
            Some(Part::Changes(changes)) => changes.take_chunk(out),
            Some(Part::Tables(tables)) => {
                let is_there = chunks.is_some_and(|chunks| chunk < chunks);
                if is_there {
                    tables.filter.tables_mut().take_chunk(TableId(section.table), chunk, out);
                }
                is_there
            }
        }
    }

    /// Leaves a section out of the running snapshot, because the store has an equal one.
    pub fn skip_section(&mut self, section: SectionId) {
        match self.part(section.epoch) {
            None => {}
            Some(Part::Records(records)) => records.queue_mut().skip_page(section.table),
            Some(Part::Ledger(ledger)) if section == SectionId::ordinals(section.epoch) => {
                ledger.write().ordinals_mut().into_iter().for_each(Ordinals::end_snapshot);
            }
            Some(Part::Ledger(ledger)) => ledger.write().slab_mut().end_snapshot(),
            Some(Part::Changes(changes)) => changes.end_snapshot(),
            Some(Part::Tables(tables)) => tables.filter.tables_mut().skip_table(TableId(section.table)),
        }
    }

    /// The part of the running snapshot under this epoch, wherever it is by now.
    fn part(&mut self, epoch: Epoch) -> Option<Part<'_>> {
        if epoch == RECORDS {
            return Some(Part::Records(&mut self.records));
        }
        let snapshot = &mut self.shared.snapshot;
        let filter = snapshot.parts.get(&epoch)?;
        if let Some(retired) = snapshot.retired.get_mut(&epoch) {
            return Some(match retired {
                Retired::Ledger(ledger) => Part::Ledger(ledger),
                Retired::Changes(changes) => Part::Changes(changes),
                Retired::Tables(tables) => Part::Tables(tables),
            });
        }
        self.filters.get_mut(filter)?.part(epoch)
    }

    /// Bytes kept for the running snapshot, about: undo logs, and changes whose import is over. Dropped tables and ledgers are not
    /// counted: they only go later.
    pub fn snapshot_bytes(&self) -> usize {
        let filters: usize = self.filters.values().map(FilterState::snapshot_bytes).sum();
        let retired = self.shared.snapshot.changes_bytes() as usize;
        filters + retired + self.records.queue().snapshot_bytes()
    }

    /// Ends the running snapshot, whether all of it was taken or not.
    pub fn end_snapshot(&mut self) {
        if !self.shared.snapshot.is_running {
            return;
        }
        let snapshot = std::mem::take(&mut self.shared.snapshot);
        snapshot.retired.into_values().for_each(|part| self.shared.free_later(part));
        self.records.queue_mut().end_snapshot();
        for filter in self.filters.values_mut() {
            filter.end_snapshot(&mut self.shared);
        }
        // Tables that only the snapshot needed are gone now.
        self.shared.tables_bytes = self.filters.values().map(FilterState::tables_bytes).sum();
    }
}

impl FilterState {
    fn begin_snapshot(
        &mut self,
        snapshot: &mut RunningSnapshot,
        sections: &mut Vec<Section>,
    ) -> FilterStateImage {
        let id = self.view.id;
        let ledger = {
            let mut ledger = self.view.ledger.write();
            let (changes, ordinals_changes) = ledger.begin_snapshot();
            let (epoch, last_change) = (ledger.epoch(), ledger.last_change());
            LedgerImage { epoch, changes, last_change, memory_bytes: ledger.memory_bytes(), ordinals_changes }
        };
        sections.push(snapshot.add(id, ledger.epoch, ledger.changes));
        let ordinals = |changes| Section { id: SectionId::ordinals(ledger.epoch), changes };
        sections.extend(ledger.ordinals_changes.map(ordinals));
        let tables = self.tables.begin_snapshot();
        sections.extend(snapshot.add_tables(id, &tables));
        let staging = self.staging.as_mut().map(|staging| {
            let image = StagingImage {
                import: staging.import.clone(),
                tables: staging.tables.begin_snapshot(),
                changes: staging.changes.begin_snapshot(),
                cleared: staging.cleared,
                walk: staging.walk,
            };
            sections.extend(snapshot.add_tables(id, &image.tables));
            sections.push(snapshot.add(id, image.changes.epoch, image.changes.changes()));
            image
        });
        let view = &self.view;
        FilterStateImage {
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
            ledger,
            tables,
            staging,
            loading: self.loading.as_deref().cloned(),
        }
    }

    fn part(&mut self, epoch: Epoch) -> Option<Part<'_>> {
        if self.tables.epoch == epoch {
            return Some(Part::Tables(&mut self.tables));
        }
        if self.view.ledger.read().epoch() == epoch {
            return Some(Part::Ledger(&self.view.ledger));
        }
        let Staging { tables, changes, .. } = self.staging.as_mut()?;
        if tables.epoch == epoch {
            return Some(Part::Tables(tables));
        }
        (changes.epoch() == epoch).then_some(Part::Changes(changes))
    }

    fn snapshot_bytes(&self) -> usize {
        let staging = self.staging.as_ref().map_or(0, |staging| {
            staging.tables.filter.tables().undo_bytes() + staging.changes.snapshot_bytes() as usize
        });
        let ledger_bytes = self.view.ledger.read().snapshot_bytes();
        self.tables.filter.tables().undo_bytes() + staging + ledger_bytes
    }

    fn end_snapshot(&mut self, shared: &mut Shared) {
        self.view.ledger.write().end_snapshot();
        let staged = self.staging.as_mut().map(|staging| &mut staging.tables);
        for tables in [Some(&mut self.tables), staged].into_iter().flatten() {
            let tables = tables.filter.tables_mut();
            tables.end_snapshot();
            shared.drop_replaced(tables.take_dropped());
        }
        if let Some(staging) = &mut self.staging {
            staging.changes.end_snapshot();
        }
    }
}
