//! Sections: the parts that a snapshot of the state stores by themselves, each in chunks.

use super::epoch::Epoch;
use crate::filter::{RestoreError, Restoring, TableId};

/// The epoch of the stored answers, which are there from the beginning. All other epochs are given later.
pub(super) const RECORDS: Epoch = Epoch(0);

/// Names a section for good: what is deleted and made again, and what one import after another builds aside, has another epoch.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SectionId {
    /// The part of the state that it belongs to.
    pub epoch: Epoch,
    /// The number of a table, or of a page of stored answers; 1 for the ordinals of an open pool, 0 for all else.
    pub table: u64,
}

impl SectionId {
    pub(super) fn table(epoch: Epoch, table: TableId) -> Self {
        Self { epoch, table: table.0 }
    }

    pub(super) fn records(page: u64) -> Self {
        Self { epoch: RECORDS, table: page }
    }

    /// The redemptions of a ledger, or an import's queue of changes.
    pub(super) fn only(epoch: Epoch) -> Self {
        Self { epoch, table: 0 }
    }

    /// The ordinals of the open pool with this ledger.
    pub(super) fn ordinals(epoch: Epoch) -> Self {
        Self { epoch, table: 1 }
    }
}

/// A section that a snapshot needs. The store need not write it again if it has one with the same id and number of changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Section {
    /// Its name.
    pub id: SectionId,
    /// A number that differs whenever the contents may.
    pub changes: u64,
}

/// Where a state that is being restored gets its sections from.
pub trait Sections {
    /// Why a chunk could not be loaded.
    type Error;

    /// Replaces `out` with a section's chunk of this number, counted from 0; false after the last.
    fn chunk(&mut self, section: SectionId, chunk: u32, out: &mut Vec<u8>) -> Result<bool, Self::Error>;

    /// Checks that there is memory for a part that will take so much, in bytes, once its sections are loaded.
    fn reserve(&mut self, _bytes: u64) -> Result<(), Self::Error> {
        Ok(())
    }

    /// Loads all chunks of a table, one after the other unless there is a better way.
    fn table(&mut self, section: SectionId, table: &Restoring<'_>) -> Result<(), RestoreError<Self::Error>> {
        table.load(0..table.chunks(), |chunk, out| {
            // A missing chunk stays empty, and its checksum refuses it.
            out.clear();
            self.chunk(section, chunk, out).map(drop)
        })
    }
}
