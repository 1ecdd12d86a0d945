//! A filter, as its writer sees it.

use crate::chunk::{BadChunk, CHUNK_WORDS, ChunkWords, FrozenTable, chunks, decode_chunk};
use crate::hash::Digest;
use crate::image::{FillError, Filled, FilterImage, Load, RestoreError, TABLES_EVER_MAX};
use crate::layout::{Growth, GrowthRule, Layout, Mode};
use crate::memory::MemoryNeed;
use crate::multiset::Multiset;
use crate::plan::TablePlan;
use crate::reader::Reader;
use crate::set::{Set, Walk};
use crate::table::GROUP;
use crate::tables::{Dropped, Full, Tables};
use crate::tags::{InsertOutcome, SlotState, StateCounts};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// The writer's side of a filter. One thread owns it; any number of threads look items up in its [`Reader`]s.
pub struct Filter(Structure);

enum Structure {
    /// Fingerprints, and perhaps when they were added.
    Multiset(Multiset),
    /// Digests and states.
    Set(Set),
}

impl Filter {
    /// An empty filter. A compact one may forget its items after this many steps; items that are added before the first
    /// [`Self::advance`] count as added in its step.
    ///
    /// # Panics
    /// If the layout has too few bits for the steps: [`Layout::with_steps`] adds them.
    pub fn new(mode: Mode, layout: Layout, growth: Growth, forget_steps: Option<u32>) -> Self {
        let retained = forget_steps.filter(|_| mode == Mode::Compact);
        let step_bits = retained.map_or(Ok(0), |steps| {
            layout.with_steps(steps).map(|fit| fit.step_bits)
        });
        assert_eq!(
            step_bits,
            Ok(layout.step_bits),
            "the layout is made for these steps"
        );
        Self::over(Tables::new(mode, layout, growth, retained))
    }

    /// Restores a filter from its snapshot. It continues exactly as the one that the snapshot was taken of, which may have been filled so far
    /// only.
    ///
    /// # Errors
    /// When a chunk is missing, damaged or misplaced, or the image contradicts itself.
    pub fn restore<E>(
        mode: Mode,
        image: &FilterImage,
        filled: Option<Filled>,
        load: &mut Load<'_, E>,
    ) -> Result<Self, RestoreError<E>> {
        let mut filter = Self::over(Tables::restore(mode, image, Some(load))?);
        let items_are_known =
            filled.is_none() && mode == Mode::Compact && image.first.step_bits == 0;
        let end = filled.unwrap_or(Filled {
            table: u32::MAX,
            chunk: 0,
        });
        for (table, of) in (0..=end.table).zip(&image.tables) {
            let words = if table < end.table {
                u64::MAX
            } else {
                words_before(end.chunk)
            };
            let table = table as usize;
            let buckets = 0..buckets_in(&of.plan, words);
            if items_are_known {
                let table = &mut filter.tables_mut().tables[table];
                table.set_items(of.items);
                table.copy_filled(buckets);
            } else {
                let counted = filter.count_in(table, buckets);
                counted.map_err(|_| RestoreError::Image("an item was added in no step"))?;
            }
        }
        if filled.is_none() {
            filter.finish_counting();
        }
        Ok(filter)
    }

    /// A filter with the tables of this image, which are empty: [`Self::fill`] fills them.
    ///
    /// # Errors
    /// When the image contradicts itself.
    pub fn unfilled(
        mode: Mode,
        image: &FilterImage,
    ) -> Result<Self, RestoreError<std::convert::Infallible>> {
        // A filter continues to count from there.
        if image.next_table > TABLES_EVER_MAX / 2 {
            return Err(RestoreError::Image("the numbers of its tables are wrong"));
        }
        Ok(Self::over(Tables::restore(mode, image, None)?))
    }

    fn over(tables: Tables) -> Self {
        Self(match tables.mode {
            Mode::Compact => Structure::Multiset(Multiset { tables }),
            Mode::Strict => Structure::Set(Set { tables }),
        })
    }

    /// Fills in the next chunk.
    ///
    /// # Errors
    /// [`FillError`]. The filter is worthless then.
    pub fn fill(&mut self, filled: &mut Filled, bytes: &[u8]) -> Result<(), FillError> {
        let index = filled.table as usize;
        let table = self
            .tables_mut()
            .tables
            .get_mut(index)
            .ok_or(FillError::TooMany)?;
        let plan = *table.plan();
        let first = words_before(filled.chunk);
        let words = decode_chunk(bytes, table.id, filled.chunk)?;
        let last = (first + CHUNK_WORDS as u64).min(plan.words());
        if words.len() as u64 != last - first {
            return Err(BadChunk::Length.into());
        }
        if let ChunkWords::Written(words) = words {
            table.fill(first as usize, words);
        }
        let buckets = buckets_in(&plan, first)..buckets_in(&plan, last);
        if !table.table.are_items(buckets.clone()) {
            return Err(FillError::Contradiction);
        }
        self.count_in(index, buckets)?;
        filled.chunk += 1;
        if filled.chunk == chunks(plan.words()) {
            *filled = Filled {
                table: filled.table + 1,
                chunk: 0,
            };
        }
        Ok(())
    }

    /// Completes the filling: the filter has the content of the image.
    ///
    /// # Errors
    /// [`FillError::Contradiction`] if it does not.
    pub fn finish_filling(&mut self, filled: Filled, items: &[u64]) -> Result<(), FillError> {
        let tables = &self.tables().tables;
        if filled.table as usize != tables.len()
            || !tables
                .iter()
                .map(|table| table.items())
                .eq(items.iter().copied())
        {
            return Err(FillError::Contradiction);
        }
        self.finish_counting();
        Ok(())
    }

    /// Counts the contents of some buckets of a table, and copies what counts as copied already.
    fn count_in(&mut self, table: usize, buckets: Range<u64>) -> Result<(), FillError> {
        let counted = match &self.0 {
            Structure::Multiset(filter) => filter
                .count_in(table, buckets.clone())
                .ok_or(FillError::Contradiction)?,
            Structure::Set(filter) => filter.count_in(buckets.clone()),
        };
        let table = &mut self.tables_mut().tables[table];
        table.copy_filled(buckets);
        table.set_items(table.items() + counted);
        Ok(())
    }

    /// All items are counted: it is known which of them are forgotten or cleared.
    fn finish_counting(&mut self) {
        self.tables_mut()
            .steps
            .iter_mut()
            .for_each(|steps| steps.update_forgotten());
        if let Structure::Set(filter) = &mut self.0 {
            filter.finish_counting();
        }
        self.tables().publish();
    }

    /// Its mode.
    pub fn mode(&self) -> Mode {
        self.tables().mode
    }

    /// A reader's side.
    pub fn reader(&self) -> Reader {
        Reader(self.tables().shared.clone())
    }

    /// Its tables, for snapshots and statistics.
    pub fn tables(&self) -> &Tables {
        match &self.0 {
            Structure::Multiset(Multiset { tables }) | Structure::Set(Set { tables }) => tables,
        }
    }

    /// Its tables, for snapshots.
    pub fn tables_mut(&mut self) -> &mut Tables {
        match &mut self.0 {
            Structure::Multiset(Multiset { tables }) | Structure::Set(Set { tables }) => tables,
        }
    }

    fn set(&self) -> Option<&Set> {
        if let Structure::Set(filter) = &self.0 {
            Some(filter)
        } else {
            None
        }
    }

    fn multiset_mut(&mut self) -> Option<&mut Multiset> {
        if let Structure::Multiset(filter) = &mut self.0 {
            Some(filter)
        } else {
            None
        }
    }

    /// All its tables, as dropped.
    pub fn into_dropped(self) -> Dropped {
        match self.0 {
            Structure::Multiset(Multiset { tables }) | Structure::Set(Set { tables }) => {
                tables.into_dropped()
            }
        }
    }

    /// Freezes the current state for a snapshot. The image describes everything except the contents of the tables. `copied` counts the
    /// bytes that only the snapshot needs.
    pub fn freeze(&mut self, copied: &Arc<AtomicU64>) -> (FilterImage, Vec<FrozenTable>) {
        self.tables_mut().freeze(copied)
    }

    /// How many items it holds; in a compact filter, every copy counts.
    pub fn items(&self) -> u64 {
        match &self.0 {
            Structure::Multiset(filter) => filter.items(),
            Structure::Set(filter) => filter.counts().all(),
        }
    }

    /// Items by state; none in a compact filter, which has no states.
    pub fn counts(&self) -> Option<StateCounts> {
        self.set().map(Set::counts)
    }

    /// Copies of an item. Never too low; in a compact filter, colliding items count too.
    pub fn count(&self, digest: Digest) -> u32 {
        match &self.0 {
            Structure::Multiset(filter) => filter.count(digest),
            Structure::Set(filter) => u32::from(filter.get(digest).is_some()),
        }
    }

    /// The most copies that an item can have, together with colliding ones.
    pub fn copies_max(&self) -> u64 {
        u64::from(self.tables().newest().plan().copies_max())
    }

    /// Adds many items, all or none. A strict filter holds no item twice, so `if_absent` makes no difference there.
    ///
    /// # Errors
    /// [`Full`] if no slot is free and the filter can't grow (any further). The filter is unchanged then.
    pub fn insert_many(
        &mut self,
        digests: &[Digest],
        if_absent: bool,
    ) -> Result<Vec<InsertOutcome>, Full> {
        let mut outcomes = Vec::with_capacity(digests.len());
        if let Structure::Multiset(filter) = &mut self.0
            && !if_absent
        {
            filter.insert_first(digests, &mut outcomes);
        }
        for group in digests[outcomes.len()..].chunks(GROUP) {
            group
                .iter()
                .for_each(|&digest| self.tables().prefetch(digest));
            for &digest in group {
                match self.insert(digest, if_absent) {
                    Ok(outcome) => outcomes.push(outcome),
                    Err(full) => {
                        let of = digests.iter().zip(&outcomes).rev();
                        let added = of.filter(|(_, outcome)| **outcome == InsertOutcome::Added);
                        added.for_each(|(&digest, _)| self.take_back(digest));
                        return Err(full);
                    }
                }
            }
        }
        Ok(outcomes)
    }

    fn take_back(&mut self, digest: Digest) {
        match &mut self.0 {
            Structure::Multiset(filter) => filter.take_back(digest),
            Structure::Set(filter) => _ = filter.remove(digest),
        }
    }

    /// Adds one item: [`Self::insert_many`] of one.
    ///
    /// # Errors
    /// [`Full`] as for [`Self::insert_many`].
    #[inline]
    pub fn insert(&mut self, digest: Digest, if_absent: bool) -> Result<InsertOutcome, Full> {
        match &mut self.0 {
            Structure::Multiset(filter) => filter.insert(digest, if_absent),
            Structure::Set(filter) => filter.insert(digest),
        }
    }

    /// Removes one copy of an item, whatever its state: if it forgets, the newest one in the newest table that has
    /// any. Returns whether there was one.
    #[inline]
    pub fn remove(&mut self, digest: Digest) -> bool {
        match &mut self.0 {
            Structure::Multiset(filter) => filter.remove(digest),
            Structure::Set(filter) => filter.remove(digest).is_some(),
        }
    }

    /// Removes one copy of each item, or all of them, whatever their states. Returns how many copies of each were removed.
    pub fn remove_many(&mut self, digests: &[Digest], all: bool) -> Vec<u32> {
        if let Structure::Multiset(filter) = &mut self.0
            && !all
            && let Some(removed) = filter.remove_many(digests)
        {
            return removed.into_iter().map(u32::from).collect();
        }
        let most = if all { usize::MAX } else { 1 };
        let mut removed = Vec::with_capacity(digests.len());
        for group in digests.chunks(GROUP) {
            group
                .iter()
                .for_each(|&digest| self.tables().prefetch(digest));
            let remove = |&digest| (0..most).take_while(|_| self.remove(digest)).count() as u32;
            removed.extend(group.iter().map(remove));
        }
        removed
    }

    /// Removes everything except held and redeemed items, immediately. Returns how many items were removed. Memory is released if nothing
    /// is left; otherwise slots are freed a few with every later change.
    pub fn clear(&mut self) -> u64 {
        match &mut self.0 {
            Structure::Multiset(filter) => filter.clear(),
            Structure::Set(filter) => filter.clear(),
        }
    }

    /// The memory that [`Self::clear`] needs before it releases any, and a remove that empties the filter as well.
    pub fn clearing(&self) -> MemoryNeed {
        MemoryNeed::table(self.tables().first.memory_bytes()).temporary()
    }

    /// Sets how it grows from now on. No snapshot contains the rule: set it again after a restore.
    pub fn set_growth_rule(&mut self, rule: GrowthRule) {
        self.tables_mut().set_rule(rule);
    }

    /// Adds the capacity of a new filter of this layout. Later clears also start with this layout. If it is compact,
    /// the layout must have its error rate.
    ///
    /// # Errors
    /// [`Full`] if no table can be that large. Then nothing has changed.
    pub fn raise(&mut self, to: Layout) -> Result<(), Full> {
        self.tables_mut().raise(to)
    }

    /// The state of an item; none if it is absent, and in a compact filter, which has no states.
    pub fn state(&self, digest: Digest) -> Option<SlotState> {
        self.set()?.get(digest)
    }

    /// Changes the state of an item that is in a strict filter, and returns the state from before.
    pub fn set_state(&mut self, digest: Digest, state: SlotState) -> Option<SlotState> {
        if let Structure::Set(filter) = &mut self.0 {
            filter.set(digest, state)
        } else {
            None
        }
    }

    /// Adds an item to a strict filter unless it is present, and sets its state.
    ///
    /// # Errors
    /// [`Full`] as for [`Self::insert_many`].
    pub fn put(&mut self, digest: Digest, state: SlotState) -> Result<(), Full> {
        if let Structure::Set(filter) = &mut self.0
            && filter.get(digest) != Some(state)
        {
            filter.insert(digest)?;
            filter.set(digest, state);
        }
        Ok(())
    }

    /// Continues a walk over a strict filter: calls `visit` with the items of up to this many more buckets. Returns how many buckets
    /// that were; none at the end.
    pub fn walk(&self, walk: &mut Walk, buckets: u64, visit: impl FnMut(Digest, SlotState)) -> u64 {
        self.set()
            .map_or(0, |filter| filter.walk(walk, buckets, visit))
    }

    /// Returns whether a table is being copied, or slots of cleared items are being freed. Changes of the filter continue with that, and so
    /// does [`Self::move_items`].
    pub fn is_moving(&self) -> bool {
        match &self.0 {
            Structure::Multiset(filter) => filter.tables.newest().copy().is_some(),
            Structure::Set(filter) => filter.is_moving(),
        }
    }

    /// Continues with that, in this many more buckets.
    pub fn move_items(&mut self, buckets: u64) {
        match &mut self.0 {
            Structure::Multiset(filter) => _ = filter.tables.copy_on(buckets),
            Structure::Set(filter) => filter.move_items(buckets),
        }
    }

    /// Returns whether another [`Self::clear`] would first have to free many slots of items that were cleared before.
    pub fn has_much_to_sweep(&self) -> bool {
        self.set().is_some_and(Set::has_much_to_sweep)
    }

    /// If it forgets: the oldest step that has items which are not forgotten.
    pub fn oldest_step(&self) -> Option<u64> {
        self.tables().steps.as_ref()?.oldest()
    }

    /// Advances to a step, unless a later one was reached. Cheap, whatever the number of items to forget. Returns that number.
    pub fn advance(&mut self, step: u64) -> u64 {
        self.multiset_mut().map_or(0, |filter| filter.advance(step))
    }

    /// Returns to an earlier step. Items that were added in later ones count as added in this one; forgotten ones stay forgotten.
    pub fn turn_back(&mut self, step: u64) {
        self.multiset_mut()
            .into_iter()
            .for_each(|filter| filter.turn_back(step));
    }

    /// Returns whether [`Self::retire`] has something to do.
    pub fn is_retiring(&self) -> bool {
        matches!(&self.0, Structure::Multiset(filter) if filter.is_retiring())
    }

    /// Frees the slots of forgotten items, in this many more words or a few more. Returns how many words that were; none if
    /// nothing is left to do.
    pub fn retire(&mut self, words: u64) -> u64 {
        self.multiset_mut().map_or(0, |filter| filter.retire(words))
    }
}

/// How many of a table's buckets are in its first words.
fn buckets_in(plan: &TablePlan, words: u64) -> u64 {
    if words >= plan.words() {
        return plan.buckets();
    }
    let lanes = plan.lanes();
    (words * 64 / u64::from(lanes.slots * lanes.bits)).min(plan.buckets())
}

fn words_before(chunk: u32) -> u64 {
    u64::from(chunk) * CHUNK_WORDS as u64
}
