//! A snapshot in progress: which parts of the state belong to it, and those of them that the state has dropped since.

use super::epoch::Epoch;
use super::kept::KeptChanges;
use super::ledger::Ledger;
use super::section::{Section, SectionId};
use super::tables::{Tables, TablesImage};
use crate::domain::FilterId;
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A snapshot in progress; empty while there is none.
#[derive(Default)]
pub(super) struct RunningSnapshot {
    pub(super) is_running: bool,
    /// Its parts, and whose they were when it began.
    pub(super) parts: BTreeMap<Epoch, FilterId>,
    /// How many chunks each of its tables has.
    pub(super) table_chunks: BTreeMap<SectionId, u32>,
    /// Its parts that commands have dropped since.
    pub(super) retired: BTreeMap<Epoch, Retired>,
}

/// A part that the state has dropped, kept alive until the snapshot ends.
pub(super) enum Retired {
    Ledger(Arc<RwLock<Ledger>>),
    Changes(KeptChanges),
    Tables(Tables),
}

impl RunningSnapshot {
    /// Adds a ledger, or the changes kept for an import, of this filter.
    pub(super) fn add(&mut self, filter: FilterId, epoch: Epoch, changes: u64) -> Section {
        self.parts.insert(epoch, filter);
        Section { id: SectionId::only(epoch), changes }
    }

    /// Adds tables of this filter.
    pub(super) fn add_tables<'a>(
        &'a mut self,
        filter: FilterId,
        tables: &'a TablesImage,
    ) -> impl Iterator<Item = Section> + 'a {
        self.parts.insert(tables.epoch, filter);
        tables.filter.tables().map(|(table, changes, chunks)| {
            let id = SectionId::table(tables.epoch, table);
            self.table_chunks.insert(id, chunks);
            Section { id, changes }
        })
    }

    /// Keeps the changes of an import that is over alive if the snapshot needs them.
    pub(super) fn retire_changes(&mut self, changes: KeptChanges) {
        self.retire(changes.epoch(), Retired::Changes(changes));
    }

    /// Keeps a part alive if the snapshot needs it. Returns it if not.
    pub(super) fn retire(&mut self, epoch: Epoch, part: Retired) -> Option<Retired> {
        if self.parts.contains_key(&epoch) {
            self.retired.insert(epoch, part);
            return None;
        }
        Some(part)
    }

    /// Bytes of the tables that only the running snapshot still needs.
    pub(super) fn tables_bytes(&self) -> u64 {
        let tables = self.retired.values().filter_map(|part| match part {
            Retired::Tables(tables) => Some(tables.memory_bytes()),
            Retired::Ledger(_) | Retired::Changes(_) => None,
        });
        tables.sum()
    }

    /// Bytes of the ledgers that only the running snapshot still needs, estimated.
    pub(super) fn ledgers_bytes(&self) -> u64 {
        let ledgers = self.retired.values().filter_map(|part| match part {
            Retired::Ledger(ledger) => Some(ledger.read().memory_bytes()),
            Retired::Tables(_) | Retired::Changes(_) => None,
        });
        ledgers.sum()
    }

    /// Bytes of the changes that only the running snapshot still needs.
    pub(super) fn changes_bytes(&self) -> u64 {
        let changes = self.retired.values().filter_map(|part| match part {
            Retired::Changes(changes) => Some(changes.untaken_bytes()),
            Retired::Ledger(_) | Retired::Tables(_) => None,
        });
        changes.sum()
    }
}
