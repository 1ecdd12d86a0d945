//! The parts of the state that a snapshot stores separately. A section owns its data as of the snapshot's start, so commands continue while
//! its chunks are taken.

use crate::domain::SectionId;
use crate::paged::{Copied, Extent, Page, Paged, Queue};
use serde::{Deserialize, Serialize};

/// The identity of a part of the state that a snapshot stores separately: the tables of a filter, a ledger, an import's queue of changes. A
/// state assigns each number once, so a snapshot never takes a new part for one it already holds.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Epoch(pub u64);

/// The epoch of the stored outcomes, which are there from the beginning. All other epochs are given later.
pub(super) const RECORDS: Epoch = Epoch(0);

/// Sections belong to an epoch. The part is the number of a table or a page, or one of those below.
impl SectionId {
    pub(super) fn new(epoch: Epoch, part: u64) -> Self {
        Self {
            owner: epoch.0,
            part,
        }
    }
}

/// The part of a filter's tables with its statistics. Tables have lower numbers.
pub(super) const STATISTICS: u64 = u32::MAX as u64;

/// The part of a ledger with its redemptions.
pub(super) const REDEMPTIONS: u64 = 0;

/// The part of the ledger of an open pool with its ordinals.
pub(super) const ORDINALS: u64 = 1;

/// The part of a ledger with the exceptions of its membership.
pub(super) const MEMBERSHIP: u64 = 2;

/// The part of a ledger with the tallies of codes.
pub(super) const USES: u64 = 3;

/// The part of a ledger with the tallies of customers.
pub(super) const CUSTOMERS: u64 = 4;

/// The part of an import's queue with the exceptions of the staged membership. Pages have lower numbers.
pub(super) const STAGED_MEMBERSHIP: u64 = u64::MAX;

/// Replaces the bytes by the next chunk; `false` after the last one.
pub(super) type SectionChunks = Box<dyn FnMut(&mut Vec<u8>) -> bool + Send>;

/// A section of a snapshot. It owns its data as of the snapshot's start, until it is dropped. The store need not write it again if it has
/// one with the same ID and number of changes.
pub struct Section {
    /// Its name.
    pub id: SectionId,
    /// A number that differs whenever the contents may.
    pub changes: u64,
    pub(super) chunks: SectionChunks,
}

impl Section {
    /// Replaces `out` with the next chunk; `false` after the last one.
    pub fn next_chunk(&mut self, out: &mut Vec<u8>) -> bool {
        (self.chunks)(out)
    }
}

/// Adds a section of pages. Returns its number of changes.
pub(super) fn freeze<P: Page + Send + Sync + 'static>(
    id: SectionId,
    pages: &mut Paged<P>,
    copied: &Copied,
    sections: &mut Vec<Section>,
) -> u64 {
    let mut frozen = pages.freeze(copied);
    let chunks = Box::new(move |out: &mut Vec<u8>| frozen.next_chunk(out));
    sections.push(Section {
        id,
        changes: pages.changes,
        chunks,
    });
    pages.changes
}

/// Adds a section for each page of a queue.
pub(super) fn freeze_queue(
    queue: &mut Queue,
    epoch: Epoch,
    copied: &Copied,
    sections: &mut Vec<Section>,
) -> Extent {
    // A page only grows, so its length identifies its content.
    sections.extend(queue.freeze(copied).map(|(number, changes, mut page)| {
        let id = SectionId::new(epoch, number);
        Section {
            id,
            changes,
            chunks: Box::new(move |out| page.next_chunk(out)),
        }
    }));
    queue.extent()
}
