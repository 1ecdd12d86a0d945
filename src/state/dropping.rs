//! How parts of the state are dropped: a running snapshot may still need them, and afterwards they are freed a little at a time.

use super::due::Queue;
use super::ledger::Ledger;
use super::machine::{Shared, State};
use super::piece::Piece;
use super::running_snapshot::Retired;
use super::tables::Tables;
use crate::filter::Dropped;
use parking_lot::RwLock;
use std::sync::Arc;

/// Memory of an entry in a queue, in bytes, estimated.
const QUEUE_ENTRY_BYTES: u64 = 64;

impl Shared {
    /// Drops all tables of a filter, or those that an import was building aside.
    pub(super) fn drop_tables(&mut self, tables: Tables) {
        let unneeded = self.snapshot.retire(tables.epoch, Retired::Tables(tables));
        unneeded.into_iter().for_each(|part| self.free_later(part));
    }

    /// Drops the ledger of a deleted filter.
    pub(super) fn drop_ledger(&mut self, ledger: Arc<RwLock<Ledger>>) {
        let epoch = ledger.read().epoch();
        let unneeded = self.snapshot.retire(epoch, Retired::Ledger(ledger));
        unneeded.into_iter().for_each(|part| self.free_later(part));
    }

    /// Drops the queue of a deleted filter. No snapshot needs it.
    pub(super) fn drop_queue(&mut self, queue: Queue) {
        self.discarded.push_piece(Piece::new(queue, 1, QUEUE_ENTRY_BYTES));
    }

    /// Drops tables that a filter has replaced by others.
    pub(super) fn drop_replaced(&mut self, mut tables: Dropped) {
        self.discarded.tables.append(&mut tables);
    }

    /// Lets a part be freed that no snapshot needs.
    pub(super) fn free_later(&mut self, part: Retired) {
        match part {
            Retired::Tables(tables) => self.drop_replaced(tables.filter.into_dropped()),
            Retired::Ledger(ledger) => self.discarded.push_ledger(ledger),
            // It has few pages: they are freed at once.
            Retired::Changes(_) => {}
        }
    }
}

impl State {
    /// Frees some of what commands have dropped: about so many entries of ledgers, or as much of tables as takes as long. Returns
    /// whether it was anything. What readers still look at waits.
    ///
    /// No command depends on when this happens.
    pub fn free_discarded(&mut self, entries_max: u64) -> bool {
        self.has_discarded() && self.shared.discarded.free(entries_max) > 0
    }

    /// Whether something that commands have dropped is not freed yet.
    pub fn has_discarded(&self) -> bool {
        !self.shared.discarded.is_empty()
    }

    /// Bytes of tables that commands have dropped, and that are not freed yet.
    pub fn discarded_tables_bytes(&self) -> u64 {
        self.shared.discarded.tables.memory_bytes()
    }

    /// Bytes of redemptions that commands have dropped, and that are not freed yet, estimated. The running snapshot may still need them.
    pub fn discarded_records_bytes(&self) -> u64 {
        self.shared.discarded.records_bytes() + self.shared.snapshot.ledgers_bytes()
    }
}
