//! A filter of any kind, and its reader: one type each for those who use all kinds.

use super::codec::{FilterImage, Load, RestoreError};
use super::compact::CompactFilter;
use super::compact_view::CompactReader;
use super::dropped::Dropped;
use super::forgetting::ForgettingFilter;
use super::forgetting_view::ForgettingReader;
use super::frozen::FrozenTable;
use super::hash::Digest;
use super::insert::{Full, Insert};
use super::layout::{Expansion, Growth, Layout, Mode};
use super::memory::MemoryNeed;
use super::slot_state::{SlotState, StateCounts};
use super::steps::StepStats;
use super::strict::{StrictFilter, Walk};
use super::strict_view::StrictReader;
use super::table::SegmentStats;
use super::table_set::TableSet;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// The writer's side of a filter of any kind.
pub enum Filter {
    /// Fingerprints: a multiset.
    Compact(CompactFilter),
    /// Fingerprints, and when they were added: a multiset that forgets.
    Forgetting(ForgettingFilter),
    /// Digests and states: a set.
    Strict(StrictFilter),
}

/// The reader's side of a filter of any kind. Takes no lock; clones are cheap.
#[derive(Clone)]
pub enum Reader {
    /// Fingerprints: a multiset.
    Compact(CompactReader),
    /// Fingerprints, and when they were added: a multiset that forgets.
    Forgetting(ForgettingReader),
    /// Digests and states: a set.
    Strict(StrictReader),
}

/// The figures of a filter at one moment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FilterStats {
    /// Items in all tables.
    pub items: u64,
    /// Bytes of all tables.
    pub memory_bytes: u64,
    /// The tables, oldest first.
    pub segments: Vec<SegmentStats>,
    /// Items by state; none in a compact filter, which keeps no states.
    pub states: Option<StateCounts>,
    /// The most copies that [`Reader::count`] can tell of one item.
    pub copies_max: u32,
    /// If it forgets: the steps that have items, oldest first.
    pub steps: Vec<StepStats>,
}

impl Filter {
    /// An empty filter. If it is compact, it may forget items after so many steps; otherwise it expands in this way.
    pub fn new(
        mode: Mode,
        layout: Layout,
        growth: Growth,
        expansion: Expansion,
        forget_steps: Option<u32>,
    ) -> Self {
        match (mode, forget_steps) {
            (Mode::Compact, None) => Self::Compact(CompactFilter::new(layout, growth, expansion)),
            (Mode::Compact, Some(steps)) => Self::Forgetting(ForgettingFilter::new(layout, growth, steps)),
            (Mode::Strict, _) => Self::Strict(StrictFilter::new(layout, growth)),
        }
    }

    /// Restores a filter from its snapshot. It goes on exactly as the one that the snapshot was taken of.
    ///
    /// # Errors
    /// When a chunk is missing, damaged or belongs elsewhere, or the image contradicts itself.
    pub fn restore<E>(
        mode: Mode,
        image: &FilterImage,
        load: &mut Load<'_, E>,
    ) -> Result<Self, RestoreError<E>> {
        match mode {
            Mode::Compact if image.is_forgetting() => {
                ForgettingFilter::restore(image, load).map(Self::Forgetting)
            }
            Mode::Compact => CompactFilter::restore(image, load).map(Self::Compact),
            Mode::Strict => StrictFilter::restore(image, load).map(Self::Strict),
        }
    }

    /// Its mode.
    pub fn mode(&self) -> Mode {
        match self {
            Self::Compact(_) | Self::Forgetting(_) => Mode::Compact,
            Self::Strict(_) => Mode::Strict,
        }
    }

    /// How it takes more memory, as far as that differs from filter to filter: only compact ones know two ways.
    pub fn expansion(&self) -> Expansion {
        match self {
            Self::Compact(filter) => filter.expansion(),
            Self::Forgetting(_) | Self::Strict(_) => Expansion::Segments,
        }
    }

    /// A reader's side.
    pub fn reader(&self) -> Reader {
        match self {
            Self::Compact(filter) => Reader::Compact(filter.reader()),
            Self::Forgetting(filter) => Reader::Forgetting(filter.reader()),
            Self::Strict(filter) => Reader::Strict(filter.reader()),
        }
    }

    /// Its tables, for snapshots and figures.
    pub fn tables(&self) -> &TableSet {
        match self {
            Self::Compact(filter) => filter.tables(),
            Self::Forgetting(filter) => filter.tables(),
            Self::Strict(filter) => filter.tables(),
        }
    }

    /// All its tables, as dropped.
    pub fn into_dropped(self) -> Dropped {
        match self {
            Self::Compact(filter) => filter.into_dropped(),
            Self::Forgetting(filter) => filter.into_dropped(),
            Self::Strict(filter) => filter.into_dropped(),
        }
    }

    /// Its tables, for snapshots.
    pub fn tables_mut(&mut self) -> &mut TableSet {
        match self {
            Self::Compact(filter) => filter.tables_mut(),
            Self::Forgetting(filter) => filter.tables_mut(),
            Self::Strict(filter) => filter.tables_mut(),
        }
    }

    /// Freezes it as it is now, for a snapshot: see [`TableSet::freeze`].
    pub fn freeze(&mut self, copied: &Arc<AtomicU64>) -> (FilterImage, Vec<FrozenTable>) {
        match self {
            Self::Compact(filter) => filter.tables_mut().freeze(copied),
            Self::Forgetting(filter) => filter.freeze(copied),
            Self::Strict(filter) => filter.tables_mut().freeze(copied),
        }
    }

    /// How many items it holds; in a compact filter, every copy counts.
    pub fn items(&self) -> u64 {
        match self {
            Self::Compact(filter) => filter.tables().items(),
            Self::Forgetting(filter) => filter.items(),
            Self::Strict(filter) => filter.items(),
        }
    }

    /// Items by state; none in a compact filter, which keeps no states.
    pub fn counts(&self) -> Option<StateCounts> {
        match self {
            Self::Compact(_) | Self::Forgetting(_) => None,
            Self::Strict(filter) => Some(filter.counts()),
        }
    }

    /// If it forgets: itself.
    pub fn forgetting(&self) -> Option<&ForgettingFilter> {
        match self {
            Self::Forgetting(filter) => Some(filter),
            _ => None,
        }
    }

    /// If it forgets: itself.
    pub fn forgetting_mut(&mut self) -> Option<&mut ForgettingFilter> {
        match self {
            Self::Forgetting(filter) => Some(filter),
            _ => None,
        }
    }

    /// Copies of an item. Never too low; in a compact filter, items that look alike count too.
    pub fn count(&self, digest: Digest) -> u32 {
        match self {
            Self::Compact(filter) => filter.reader().view().count(digest),
            Self::Forgetting(filter) => filter.count(digest),
            Self::Strict(filter) => u32::from(filter.get(digest).is_some()),
        }
    }

    /// Adds many items, all or none. A strict filter holds no item twice, so `if_absent` makes no difference there.
    ///
    /// # Errors
    /// [`Full`] if there is no room and the filter can't grow (any further). Then it holds what it held before.
    pub fn insert_many(&mut self, digests: &[Digest], if_absent: bool) -> Result<Vec<Insert>, Full> {
        match self {
            Self::Compact(filter) => filter.insert_many(digests, if_absent),
            Self::Forgetting(filter) => filter.insert_many(digests, if_absent),
            Self::Strict(filter) => filter.insert_many(digests),
        }
    }

    /// Removes one copy of an item, whatever its state. Returns whether there was one.
    pub fn remove(&mut self, digest: Digest) -> bool {
        match self {
            Self::Compact(filter) => filter.remove(digest),
            Self::Forgetting(filter) => filter.remove(digest),
            Self::Strict(filter) => filter.remove(digest).is_some(),
        }
    }

    /// Removes one copy of each item, or all of them, whatever their states. Returns how many copies of each were removed.
    pub fn remove_many(&mut self, digests: &[Digest], all: bool) -> Vec<u32> {
        match self {
            Self::Compact(filter) if all => digests.iter().map(|&digest| filter.remove_all(digest)).collect(),
            Self::Compact(filter) => filter.remove_many(digests).into_iter().map(u32::from).collect(),
            Self::Forgetting(filter) if all => {
                digests.iter().map(|&digest| filter.remove_all(digest)).collect()
            }
            Self::Forgetting(filter) => filter.remove_many(digests).into_iter().map(u32::from).collect(),
            Self::Strict(filter) => {
                filter.remove_many(digests).into_iter().map(|state| u32::from(state.is_some())).collect()
            }
        }
    }

    /// Removes everything except held and redeemed items, and gives memory back. Returns how many items were removed. It takes effect at
    /// once; a large strict filter is emptied a little with every later change.
    pub fn clear(&mut self) -> u64 {
        match self {
            Self::Compact(filter) => filter.clear(),
            Self::Forgetting(filter) => filter.clear(),
            Self::Strict(filter) => filter.clear(),
        }
    }

    /// Makes room for as many items as a filter of this layout begins with. From now on it also begins with this layout when it is
    /// cleared. If it is compact, the layout must keep its error rate.
    ///
    /// # Errors
    /// [`Full`] if no table can be so large. Then nothing has changed.
    pub fn raise(&mut self, first: Layout) -> Result<(), Full> {
        match self {
            Self::Compact(filter) => filter.raise(first),
            Self::Forgetting(filter) => filter.raise(first),
            Self::Strict(filter) => filter.raise(first),
        }
    }

    /// The memory that [`Self::raise`] asks for.
    ///
    /// # Errors
    /// [`Full`] as for [`Self::raise`].
    pub fn raising(&self, first: &Layout) -> Result<MemoryNeed, Full> {
        match self {
            Self::Compact(filter) => filter.raising(first),
            Self::Forgetting(filter) => filter.raising(first),
            Self::Strict(filter) => filter.raising(first),
        }
    }

    /// The most memory that [`Self::raise`] may ask for, whatever is forgotten or folded before.
    pub fn raising_at_most(&self, first: &Layout) -> MemoryNeed {
        match self {
            Self::Compact(filter) => filter.raising_at_most(first),
            Self::Forgetting(filter) => filter.raising_at_most(first),
            Self::Strict(filter) => filter.raising(first).unwrap_or_default(),
        }
    }

    /// The state of an item; none if it is not there, and in a compact filter, which keeps no states.
    pub fn state(&self, digest: Digest) -> Option<SlotState> {
        match self {
            Self::Compact(_) | Self::Forgetting(_) => None,
            Self::Strict(filter) => filter.get(digest),
        }
    }

    /// [`Self::state`] of many, faster.
    pub fn states(&self, digests: &[Digest]) -> Vec<Option<SlotState>> {
        self.reader().states(digests)
    }

    /// Gives an item that is in a strict filter another state.
    pub fn set_state(&mut self, digest: Digest, state: SlotState) {
        if let Self::Strict(filter) = self {
            filter.set(digest, state);
        }
    }

    /// Puts an item into a strict filter unless it is there, and gives it this state.
    ///
    /// # Errors
    /// [`Full`] as for [`Self::insert_many`].
    pub fn put(&mut self, digest: Digest, state: SlotState) -> Result<(), Full> {
        if let Self::Strict(filter) = self
            && filter.get(digest) != Some(state)
        {
            filter.insert(digest)?;
            filter.set(digest, state);
        }
        Ok(())
    }

    /// Items by state; all zero in a compact filter, which keeps no states.
    pub fn state_counts(&self) -> StateCounts {
        match self {
            Self::Compact(_) | Self::Forgetting(_) => StateCounts::default(),
            Self::Strict(filter) => filter.reader().view().counts(),
        }
    }

    /// Goes on with a walk over a strict filter: calls `visit` with the items of up to so many more buckets. Returns how many buckets
    /// that were; none at the end.
    pub fn walk(&self, walk: &mut Walk, buckets: u64, visit: impl FnMut(Digest, SlotState)) -> u64 {
        match self {
            Self::Compact(_) | Self::Forgetting(_) => 0,
            Self::Strict(filter) => filter.walk(walk, buckets, visit),
        }
    }

    /// The most copies that an item can have, together with those that look alike.
    pub fn copies_max(&self) -> u64 {
        match self {
            Self::Compact(filter) => u64::from(filter.copies_max()),
            Self::Forgetting(filter) => u64::from(filter.copies_max()),
            Self::Strict(_) => 1,
        }
    }

    /// The most memory that so many more items can make the filter ask for, if so many copies may be removed meanwhile.
    pub fn growth(&self, items: u64, removes: u64) -> MemoryNeed {
        match self {
            Self::Compact(filter) => filter.growth(items, removes),
            Self::Forgetting(filter) => filter.growth(items),
            Self::Strict(filter) => filter.growth(items),
        }
    }

    /// As [`Self::growth`], of the filter once it is empty and has only its first table.
    pub fn growth_from_empty(&self, items: u64, removes: u64) -> MemoryNeed {
        match self {
            Self::Compact(filter) => filter.growth_from_empty(items, removes),
            Self::Forgetting(filter) => filter.growth_from_empty(items),
            Self::Strict(filter) => filter.growth_from_empty(items),
        }
    }

    /// Whether items are moving to another table. Then changes of the filter move some, and so does [`Self::move_items`].
    pub fn is_moving(&self) -> bool {
        match self {
            Self::Compact(filter) => filter.is_moving(),
            Self::Forgetting(_) => false,
            Self::Strict(filter) => filter.is_moving(),
        }
    }

    /// Whether so many tables of a strict filter are still to be emptied that it should get no other one by being cleared or raised.
    pub fn has_many_tables(&self) -> bool {
        matches!(self, Self::Strict(filter) if filter.has_many_tables())
    }

    /// Goes on with such a move: empties so many more buckets.
    pub fn move_items(&mut self, buckets: u64) {
        match self {
            Self::Compact(filter) => filter.move_items(buckets),
            Self::Forgetting(_) => {}
            Self::Strict(filter) => filter.move_items(buckets),
        }
    }

    /// The memory of the table that a filter begins with once it is empty.
    pub fn beginning(&self) -> MemoryNeed {
        match self {
            Self::Compact(filter) => filter.beginning(),
            Self::Forgetting(filter) => filter.beginning(),
            Self::Strict(filter) => filter.beginning(),
        }
    }

    /// The memory that [`Self::clear`] asks for before it gives any back. It counts towards the limit as far as the filter takes more
    /// afterwards.
    pub fn clearing(&self) -> MemoryNeed {
        match self {
            Self::Compact(filter) => filter.clearing(),
            Self::Forgetting(filter) => filter.clearing(),
            Self::Strict(filter) => filter.clearing(),
        }
    }
}

impl Reader {
    /// Whether the filter holds an item, in a strict filter also whether `accepts` says yes to its state. A compact filter may take
    /// another item for it, but never misses one that it holds. One that forgets is seen in this step.
    #[inline]
    pub fn contains(&self, digest: Digest, step: u64, accepts: impl FnOnce(SlotState) -> bool) -> bool {
        match self {
            Self::Compact(reader) => reader.view().contains(digest),
            Self::Forgetting(reader) => reader.view(step).contains(digest),
            Self::Strict(reader) => reader.view().get(digest).is_some_and(accepts),
        }
    }

    /// [`Self::contains`] for many, faster; `found` is cleared first.
    pub fn contains_many(
        &self,
        digests: &[Digest],
        step: u64,
        found: &mut Vec<bool>,
        accepts: impl Fn(Digest, SlotState) -> bool,
    ) {
        match self {
            Self::Compact(reader) => reader.view().contains_many(digests, found),
            Self::Forgetting(reader) => reader.view(step).contains_many(digests, found),
            Self::Strict(reader) => {
                let mut states = Vec::with_capacity(digests.len());
                reader.view().get_many(digests, &mut states);
                let accepted = |(state, &digest): (Option<SlotState>, &Digest)| {
                    state.is_some_and(|state| accepts(digest, state))
                };
                found.clear();
                found.extend(states.into_iter().zip(digests).map(accepted));
            }
        }
    }

    /// Copies of an item. Never too low; in a compact filter, items that look alike count too. One that forgets is seen in this step.
    pub fn count(&self, digest: Digest, step: u64) -> u32 {
        match self {
            Self::Compact(reader) => reader.view().count(digest),
            Self::Forgetting(reader) => reader.view(step).count(digest),
            Self::Strict(reader) => u32::from(reader.view().get(digest).is_some()),
        }
    }

    /// The most copies that [`Self::count`] can tell of one item.
    pub fn copies_max(&self) -> u32 {
        match self {
            Self::Compact(reader) => reader.view().copies_max(),
            Self::Forgetting(reader) => reader.copies_max(),
            Self::Strict(_) => 1,
        }
    }

    /// Prefetches the cache lines in which an item may lie, so that a look-up soon after finds them in the cache.
    #[inline]
    pub fn prefetch(&self, digest: Digest) {
        match self {
            Self::Compact(reader) => reader.view().prefetch(digest),
            Self::Forgetting(reader) => reader.prefetch(digest),
            Self::Strict(reader) => reader.view().prefetch(digest),
        }
    }

    /// The state of an item; none if it is not there, and in a compact filter, which keeps no states.
    pub fn state(&self, digest: Digest) -> Option<SlotState> {
        match self {
            Self::Compact(_) | Self::Forgetting(_) => None,
            Self::Strict(reader) => reader.view().get(digest),
        }
    }

    /// [`Self::state`] of many items, faster.
    pub fn states(&self, digests: &[Digest]) -> Vec<Option<SlotState>> {
        let mut states = Vec::with_capacity(digests.len());
        match self {
            Self::Compact(_) | Self::Forgetting(_) => states.resize(digests.len(), None),
            Self::Strict(reader) => reader.view().get_many(digests, &mut states),
        }
        states
    }

    /// Its figures. One that forgets is seen in this step.
    pub fn stats(&self, step: u64) -> FilterStats {
        let figures = |items, memory_bytes, segments, copies_max| FilterStats {
            items,
            memory_bytes,
            segments,
            states: None,
            copies_max,
            steps: Vec::new(),
        };
        match self {
            Self::Compact(reader) => {
                let view = reader.view();
                figures(view.items(), view.memory_bytes(), view.segments(), view.copies_max())
            }
            Self::Forgetting(reader) => {
                let view = reader.view(step);
                let figures =
                    figures(view.items(), view.memory_bytes(), view.segments(), reader.copies_max());
                FilterStats { steps: view.steps(), ..figures }
            }
            Self::Strict(reader) => {
                let view = reader.view();
                let figures = figures(view.items(), view.memory_bytes(), view.segments(), 1);
                FilterStats { states: Some(view.counts()), ..figures }
            }
        }
    }

    /// Bytes of all tables.
    pub fn memory_bytes(&self) -> u64 {
        match self {
            Self::Compact(reader) => reader.view().memory_bytes(),
            Self::Forgetting(reader) => reader.memory_bytes(),
            Self::Strict(reader) => reader.view().memory_bytes(),
        }
    }
}
