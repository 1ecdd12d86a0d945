//! The writer's side of one filter: its tables, whichever the mode, and the words that commands use of them.

use super::Epoch;
use super::view::Reader;
use crate::domain::ItemOutcome;
use crate::filter::codec::Load;
use crate::filter::{
    CompactFilter, Digest, FilterImage, Full, Growth, Insert, Layout, MemoryNeed, Mode, RestoreError,
    SlotState, StrictFilter, StrictInsert, TableId, Walk,
};
use serde::{Deserialize, Serialize};

/// A filter's tables. Under their epoch, and by a table's own number, no table is mistaken for another.
pub(super) struct Tables {
    pub(super) epoch: Epoch,
    pub(super) filter: Filter,
}

/// A filter of either mode.
pub(super) enum Filter {
    Compact(CompactFilter),
    Strict(StrictFilter),
}

/// What a snapshot says of the tables beside their chunks.
#[derive(Serialize, Deserialize)]
pub(super) struct TablesImage {
    pub(super) epoch: Epoch,
    pub(super) mode: Mode,
    pub(super) filter: FilterImage,
}

impl Tables {
    pub(super) fn new(epoch: Epoch, mode: Mode, layout: Layout, growth: Growth) -> Self {
        let filter = match mode {
            Mode::Compact => Filter::Compact(CompactFilter::new(layout, growth)),
            Mode::Strict => Filter::Strict(StrictFilter::new(layout, growth)),
        };
        Self { epoch, filter }
    }

    pub(super) fn reader(&self) -> Reader {
        match &self.filter {
            Filter::Compact(filter) => Reader::Compact(filter.reader()),
            Filter::Strict(filter) => Reader::Strict(filter.reader()),
        }
    }

    /// Bytes of the tables, those that only the running snapshot wants with them.
    pub(super) fn memory_bytes(&self) -> u64 {
        match &self.filter {
            Filter::Compact(filter) => filter.memory_bytes(),
            Filter::Strict(filter) => filter.memory_bytes(),
        }
    }

    pub(super) fn is_strict(&self) -> bool {
        matches!(self.filter, Filter::Strict(_))
    }

    /// The most memory that so many items can make it ask for, where so many copies may go meanwhile.
    pub(super) fn growth(&self, items: u64, removes: u64) -> MemoryNeed {
        match &self.filter {
            Filter::Compact(filter) => filter.growth(items, removes),
            Filter::Strict(filter) => filter.growth(items),
        }
    }

    /// The most memory that so many items can make it ask for once it is cleared, the clearing included.
    pub(super) fn growth_from_empty(&self, items: u64, removes: u64) -> MemoryNeed {
        let mut need = self.clearing();
        need += match &self.filter {
            Filter::Compact(filter) => filter.growth_from_empty(items, removes),
            Filter::Strict(filter) => filter.growth_from_empty(items),
        };
        need
    }

    /// Copies of an item that it can have.
    pub(super) fn copies_max(&self) -> u64 {
        match &self.filter {
            Filter::Compact(filter) => u64::from(filter.copies_max()),
            Filter::Strict(_) => 1,
        }
    }

    /// The memory that [`Self::clear`] asks for before it gives any back.
    pub(super) fn clearing(&self) -> MemoryNeed {
        match &self.filter {
            Filter::Compact(filter) => filter.clearing(),
            Filter::Strict(filter) => filter.clearing(),
        }
    }

    /// Adds items, all or none. A used code stays used.
    pub(super) fn insert_many(
        &mut self,
        digests: &[Digest],
        if_absent: bool,
    ) -> Result<Vec<ItemOutcome>, Full> {
        Ok(match &mut self.filter {
            Filter::Compact(filter) => filter
                .insert_many(digests, if_absent)?
                .into_iter()
                .map(|insert| match insert {
                    Insert::Added => ItemOutcome::Added,
                    Insert::AlreadyPresent => ItemOutcome::AlreadyPresent,
                    Insert::Saturated => ItemOutcome::Saturated,
                })
                .collect(),
            Filter::Strict(filter) => filter
                .insert_many(digests)?
                .into_iter()
                .map(|insert| match insert {
                    StrictInsert::Added => ItemOutcome::Added,
                    StrictInsert::Present(SlotState::Redeemed) => ItemOutcome::AlreadyRedeemed,
                    StrictInsert::Present(_) => ItemOutcome::AlreadyPresent,
                })
                .collect(),
        })
    }

    /// Items in it.
    pub(super) fn items(&self) -> u64 {
        match self.reader() {
            Reader::Compact(reader) => reader.view().items(),
            Reader::Strict(reader) => reader.view().items(),
        }
    }

    /// Copies of an item.
    pub(super) fn count(&self, digest: Digest) -> u32 {
        match &self.filter {
            Filter::Compact(filter) => filter.reader().view().count(digest),
            Filter::Strict(filter) => u32::from(filter.get(digest).is_some()),
        }
    }

    /// Takes one copy out (strict: whatever its state).
    pub(super) fn remove(&mut self, digest: Digest) -> bool {
        match &mut self.filter {
            Filter::Compact(filter) => filter.remove(digest),
            Filter::Strict(filter) => filter.remove(digest).is_some(),
        }
    }

    /// Takes out of each item one copy, or all, in order; tells how many went (strict: one, whatever its state).
    pub(super) fn remove_many(&mut self, digests: &[Digest], all: bool) -> Vec<u32> {
        match &mut self.filter {
            Filter::Compact(filter) if all => {
                digests.iter().map(|&digest| filter.remove_all(digest)).collect()
            }
            Filter::Compact(filter) => filter.remove_many(digests).into_iter().map(u32::from).collect(),
            Filter::Strict(filter) => {
                let removed = filter.remove_many(digests).into_iter();
                removed.map(|state| u32::from(state.is_some())).collect()
            }
        }
    }

    /// The codes' states; compact filters have none.
    pub(super) fn states(&self, digests: &[Digest]) -> Vec<Option<SlotState>> {
        let mut states = Vec::new();
        match &self.filter {
            Filter::Compact(_) => states.resize(digests.len(), None),
            Filter::Strict(filter) => filter.reader().view().get_many(digests, &mut states),
        }
        states
    }

    /// A code's state; compact filters have none.
    pub(super) fn state(&self, digest: Digest) -> Option<SlotState> {
        match &self.filter {
            Filter::Compact(_) => None,
            Filter::Strict(filter) => filter.get(digest),
        }
    }

    /// Gives a code another state, in place.
    pub(super) fn set_state(&mut self, digest: Digest, state: SlotState) {
        if let Filter::Strict(filter) = &mut self.filter {
            filter.set(digest, state);
        }
    }

    /// Takes everything out but held and used codes; tells how many items went.
    pub(super) fn clear(&mut self) -> u64 {
        match &mut self.filter {
            Filter::Compact(filter) => filter.clear(),
            Filter::Strict(filter) => filter.clear(),
        }
    }

    /// Codes that are held, and that are used.
    pub(super) fn used(&self) -> (u64, u64) {
        match self.reader() {
            Reader::Compact(_) => (0, 0),
            Reader::Strict(reader) => {
                let counts = reader.view().counts();
                (counts.held, counts.redeemed)
            }
        }
    }

    /// Goes on with a walk by so many buckets, and adds the held and used codes that it meets to what was found. Tells how many
    /// buckets there were: none at its end.
    pub(super) fn walk_used(
        &self,
        walk: &mut Walk,
        buckets: u64,
        found: &mut Vec<(Digest, SlotState)>,
    ) -> u64 {
        match &self.filter {
            Filter::Compact(_) => 0,
            Filter::Strict(filter) => filter.walk(walk, buckets, |digest, state| {
                if state != SlotState::Available {
                    found.push((digest, state));
                }
            }),
        }
    }

    /// Sees to it that a code is there and in this state.
    pub(super) fn put(&mut self, digest: Digest, state: SlotState) -> Result<(), Full> {
        if let Filter::Strict(filter) = &mut self.filter
            && filter.get(digest) != Some(state)
        {
            filter.insert(digest)?;
            filter.set(digest, state);
        }
        Ok(())
    }

    pub(super) fn begin_snapshot(&mut self) -> TablesImage {
        let (mode, filter) = match &mut self.filter {
            Filter::Compact(filter) => (Mode::Compact, filter.begin_snapshot()),
            Filter::Strict(filter) => (Mode::Strict, filter.begin_snapshot()),
        };
        TablesImage { epoch: self.epoch, mode, filter }
    }

    pub(super) fn take_chunk(&mut self, table: TableId, chunk: u32, out: &mut Vec<u8>) {
        match &mut self.filter {
            Filter::Compact(filter) => filter.take_chunk(table, chunk, out),
            Filter::Strict(filter) => filter.take_chunk(table, chunk, out),
        }
    }

    pub(super) fn skip_table(&mut self, table: TableId) {
        match &mut self.filter {
            Filter::Compact(filter) => filter.skip_table(table),
            Filter::Strict(filter) => filter.skip_table(table),
        }
    }

    pub(super) fn end_snapshot(&mut self) {
        match &mut self.filter {
            Filter::Compact(filter) => filter.end_snapshot(),
            Filter::Strict(filter) => filter.end_snapshot(),
        }
    }

    pub(super) fn undo_bytes(&self) -> usize {
        match &self.filter {
            Filter::Compact(filter) => filter.undo_bytes(),
            Filter::Strict(filter) => filter.undo_bytes(),
        }
    }

    pub(super) fn restore<E>(image: &TablesImage, load: &mut Load<'_, E>) -> Result<Self, RestoreError<E>> {
        let filter = match image.mode {
            Mode::Compact => Filter::Compact(CompactFilter::restore(&image.filter, load)?),
            Mode::Strict => Filter::Strict(StrictFilter::restore(&image.filter, load)?),
        };
        Ok(Self { epoch: image.epoch, filter })
    }
}
