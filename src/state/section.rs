//! Sections: the parts of the state that a snapshot stores separately, each in chunks.

use crate::domain::SectionId;
use crate::filter::{RestoreError, Restoring};
use crate::paged::{Copied, Page, Paged};
use serde::{Deserialize, Serialize};

/// The identity of a part of the state that a snapshot stores separately: the tables of a filter, a ledger, an import's queue of changes. A
/// state assigns each number once, so a snapshot never takes a new part for one it already holds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Epoch(pub u64);

/// The epoch of the stored answers, which are there from the beginning. All other epochs are given later.
pub(super) const RECORDS: Epoch = Epoch(0);

/// Sections belong to an epoch. The part is the number of a table or a page, or one of those below.
impl SectionId {
    pub(super) fn new(epoch: Epoch, part: u64) -> Self {
        Self { owner: epoch.0, part }
    }
}

/// The part of a filter's tables with its statistics. Tables have lower numbers.
pub(super) const STATISTICS: u64 = u32::MAX as u64;

/// The part of a ledger with its redemptions.
pub(super) const REDEMPTIONS: u64 = 0;

/// The part of the ledger of an open pool with its ordinals.
pub(super) const ORDINALS: u64 = 1;

/// Replaces the bytes by the next chunk; `false` after the last one.
type Chunks = Box<dyn FnMut(&mut Vec<u8>) -> bool + Send>;

/// A section of a snapshot. It owns its data as of the snapshot's start, until it is dropped. The store need not write it again if it has
/// one with the same ID and number of changes.
pub struct Section {
    /// Its name.
    pub id: SectionId,
    /// A number that differs whenever the contents may.
    pub changes: u64,
    chunks: Chunks,
}

impl Section {
    /// A section whose chunks are returned in order: each call replaces the bytes by the next one, and returns `false` after the last.
    pub(super) fn new(
        id: SectionId,
        changes: u64,
        chunks: impl FnMut(&mut Vec<u8>) -> bool + Send + 'static,
    ) -> Self {
        Self { id, changes, chunks: Box::new(chunks) }
    }

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
    sections.push(Section::new(id, pages.changes, move |out| frozen.next_chunk(out)));
    pages.changes
}

/// Where a state that is being restored gets its sections from.
pub trait Sections {
    /// Why a chunk could not be loaded.
    type Error;

    /// Replaces `out` with a section's chunk of this number, counted from 0; false after the last.
    fn chunk(&mut self, section: SectionId, chunk: u32, out: &mut Vec<u8>) -> Result<bool, Self::Error>;

    /// Checks that memory is available for a part of this size in bytes, before its sections are loaded.
    fn reserve(&mut self, _bytes: u64) -> Result<(), Self::Error> {
        Ok(())
    }

    /// Loads all chunks of a table, one after the other unless there is a better way.
    fn table(&mut self, section: SectionId, table: &Restoring<'_>) -> Result<(), RestoreError<Self::Error>> {
        table.load(0..table.chunks(), |chunk, out| {
            // A missing chunk stays empty, and its checksum rejects it.
            out.clear();
            self.chunk(section, chunk, out).map(drop)
        })
    }
}
