//! Strict filters: a set that keeps 62 bits of each item's digest, and a state. With `n` items in it, about `n` in 2^62 strangers
//! are taken for one of them.
//!
//! A filter may have several tables, while its items move from one to the other (see [`super::strict_move`]). Items are added to the
//! newest one only. Of a table that was cleared, only held and redeemed items are still there.

use super::codec::{FilterImage, Load, RestoreError, TableId};
use super::dropped::Dropped;
use super::hash::Digest;
use super::insert::{Full, Insert};
use super::layout::{BUCKETS_MAX, Growth, Layout, Mode};
use super::memory::MemoryNeed;
use super::place::stored_digest;
use super::plan::TablePlan;
use super::sizing::sure_strict_items;
use super::slot_state::{SlotState, StateCounts};
use super::strict_view::{Shared, StrictReader, Tables, state_in};
use super::table::{GROUP, Table};
use super::table_set::TableSet;
use super::writer::{NoPath, TableWriter};
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// How far a walk over the items of a strict filter has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Walk {
    /// The table that comes next. If it is gone by then, the next newer one is meant.
    table: TableId,
    bucket: u64,
}

impl Walk {
    /// The start of a walk.
    pub const START: Self = Self { table: TableId(0), bucket: 0 };
}

/// The writer's side of a strict filter.
pub struct StrictFilter {
    /// One table, or several while items move: they go to the newest.
    pub(super) set: TableSet,
    pub(super) shared: Arc<Shared>,
}

/// The most tables of a filter.
pub(super) const TABLES_MAX: usize = 16;

/// Tables from which on a filter should be neither cleared nor raised. The others are for growth.
pub(super) const TABLES_MANY: usize = 8;

pub(super) fn plan(buckets: u64) -> TablePlan {
    TablePlan::Strict { buckets }
}

/// The memory of all tables that are tried, each twice as large as the one before, from so many buckets on until so many items fit.
pub(super) fn tables_up_to(items: u64, mut buckets: u64) -> MemoryNeed {
    let mut need = MemoryNeed::default();
    while buckets <= BUCKETS_MAX {
        need += plan(buckets).memory();
        if items <= sure_strict_items(buckets) {
            break;
        }
        buckets *= 2;
    }
    need
}

impl StrictFilter {
    /// An empty filter.
    pub fn new(layout: Layout, growth: Growth) -> Self {
        Self::over(TableSet::new(layout, growth, plan(layout.buckets)))
    }

    fn over(set: TableSet) -> Self {
        let filter = Self { set, shared: Arc::default() };
        filter.publish();
        filter
    }

    /// Its tables, for snapshots and figures.
    pub fn tables(&self) -> &TableSet {
        &self.set
    }

    /// All its tables, as dropped.
    pub fn into_dropped(self) -> Dropped {
        self.set.into_dropped()
    }

    /// Its tables, for snapshots.
    pub fn tables_mut(&mut self) -> &mut TableSet {
        &mut self.set
    }

    /// A reader's side.
    pub fn reader(&self) -> StrictReader {
        StrictReader { shared: self.shared.clone() }
    }

    pub(super) fn publish(&self) {
        let tables = Tables { tables: self.set.shared(), cleared: self.set.cleared };
        self.shared.shown.replace(tables);
    }

    /// Items in it.
    pub fn items(&self) -> u64 {
        let live = &self.set.tables[self.set.cleared..];
        live.iter().map(TableWriter::items).sum::<u64>() + self.shared.staying.load(Relaxed)
    }

    /// Items by state.
    pub fn counts(&self) -> StateCounts {
        let (held, redeemed) = (self.shared.held.load(Relaxed), self.shared.redeemed.load(Relaxed));
        StateCounts { available: self.items() - held - redeemed, held, redeemed }
    }

    /// The state of an item, if it is there.
    pub fn get(&self, digest: Digest) -> Option<SlotState> {
        self.locate(digest).map(|(_, state)| state)
    }

    /// The table that has an item, and the item's state.
    pub(super) fn locate(&self, digest: Digest) -> Option<(usize, SlotState)> {
        let mut tables = self.set.tables.iter().enumerate();
        tables.find_map(|(table, writer)| {
            state_in(table, self.set.cleared, writer.table.get(digest)?).map(|state| (table, state))
        })
    }

    /// Adds an item, in the state available. If it is there already it keeps its state.
    ///
    /// # Errors
    /// [`Full`] if there is no room and the filter can't grow (any further). Then no item has changed.
    pub fn insert(&mut self, digest: Digest) -> Result<Insert, Full> {
        const AVAILABLE: u64 = SlotState::Available as u64;
        self.move_on();
        if let [only] = &mut self.set.tables[..]
            && (self.set.growth == Growth::Fixed || only.room() > 0)
            && let Ok(held) = only.insert_if_absent(digest, AVAILABLE)
        {
            return Ok(held.map_or(Insert::Added, |held| Insert::Present(SlotState::of(held))));
        }
        if let Some(state) = self.get(digest) {
            return Ok(Insert::Present(state));
        }
        if (self.set.growth == Growth::Auto || self.is_moving()) && self.set.newest().room() <= self.waiting()
        {
            self.grow()?;
        }
        if self.set.newest().insert(digest, AVAILABLE).is_err() {
            if self.set.growth == Growth::Fixed {
                return Err(Full);
            }
            // This hardly ever happens: there is no path, though the table counts as having room.
            let buckets = self.newest_buckets();
            self.rebuild(self.set.cleared, buckets * 2, |_| true)?;
            self.set.newest().insert(digest, AVAILABLE).map_err(|NoPath| Full)?;
        }
        Ok(Insert::Added)
    }

    /// Adds many items, all or none. If all fit, the result is the same as one by one.
    ///
    /// # Errors
    /// [`Full`] as for [`Self::insert`].
    pub fn insert_many(&mut self, digests: &[Digest]) -> Result<Vec<Insert>, Full> {
        let mut outcomes = Vec::with_capacity(digests.len());
        for group in digests.chunks(GROUP) {
            group.iter().for_each(|&digest| self.set.prefetch(digest));
            for &digest in group {
                match self.insert(digest) {
                    Ok(outcome) => outcomes.push(outcome),
                    Err(full) => {
                        for (_, &digest) in
                            outcomes.iter().zip(digests).rev().filter(|(o, _)| **o == Insert::Added)
                        {
                            self.remove(digest);
                        }
                        return Err(full);
                    }
                }
            }
        }
        Ok(outcomes)
    }

    /// Changes the state of an item that is there, and returns the state from before.
    pub fn set(&mut self, digest: Digest, state: SlotState) -> Option<SlotState> {
        let before = if self.set.cleared == 0 {
            let held = self.set.tables.iter_mut().find_map(|table| table.set_state(digest, state.bits()))?;
            SlotState::of(held)
        } else {
            self.set_in_cleared(digest, state)?
        };
        self.count(before, -1);
        self.count(state, 1);
        Some(before)
    }

    /// Removes an item, if it is there, and returns its state.
    pub fn remove(&mut self, digest: Digest) -> Option<SlotState> {
        self.move_on();
        let state = if self.set.cleared == 0 {
            let held = self.set.tables.iter_mut().find_map(|table| table.remove(digest))?;
            SlotState::of(held)
        } else {
            let (table, state) = self.locate(digest)?;
            self.set.tables[table].remove(digest);
            if table < self.set.cleared {
                self.note_left_cleared();
            }
            state
        };
        self.count(state, -1);
        Some(state)
    }

    /// Removes many items, in order, and returns their states.
    pub fn remove_many(&mut self, digests: &[Digest]) -> Vec<Option<SlotState>> {
        let mut removed = Vec::with_capacity(digests.len());
        for group in digests.chunks(GROUP) {
            group.iter().for_each(|&digest| self.set.prefetch(digest));
            removed.extend(group.iter().map(|&digest| self.remove(digest)));
        }
        removed
    }

    /// Calls `visit` with 62 bits of digest and the state of every item, in the order of their slots.
    pub fn for_each(&self, mut visit: impl FnMut(Digest, SlotState)) {
        for table in 0..self.set.tables.len() {
            self.for_each_in(table, 0..u64::MAX, &mut visit);
        }
    }

    /// [`Self::for_each`] for some buckets of a table. Returns how many there are.
    fn for_each_in(
        &self,
        table: usize,
        buckets: Range<u64>,
        mut visit: impl FnMut(Digest, SlotState),
    ) -> u64 {
        let Table { plan, .. } = &*self.set.tables[table].table;
        let last = plan.buckets().min(buckets.end);
        self.set.tables[table].table.for_each_in(buckets.start..last, |_, _, value| {
            if let Some(state) = state_in(table, self.set.cleared, value) {
                visit(stored_digest(value), state);
            }
        });
        last.saturating_sub(buckets.start)
    }

    /// Goes on with a walk: calls `visit` with the items of up to so many more buckets. Returns how many buckets that were; none at the
    /// end. If the filter changes between two calls, an item that moves may be visited once, twice or not at all.
    pub fn walk(&self, walk: &mut Walk, buckets: u64, visit: impl FnMut(Digest, SlotState)) -> u64 {
        let tables = &self.set.tables;
        let Some(index) = tables.iter().position(|table| table.id >= walk.table) else { return 0 };
        let id = tables[index].id;
        let first = if id == walk.table { walk.bucket } else { 0 };
        let walked = self.for_each_in(index, first..first.saturating_add(buckets), visit);
        *walk = if first + walked >= tables[index].table.plan.buckets() {
            Walk { table: TableId(id.0 + 1), bucket: 0 }
        } else {
            Walk { table: id, bucket: first + walked }
        };
        walked
    }

    /// The most memory that so many more items can make the filter ask for.
    pub fn growth(&self, additional: u64) -> MemoryNeed {
        if self.set.growth == Growth::Fixed || additional == 0 {
            return MemoryNeed::default();
        }
        let buckets = self.newest_buckets();
        let items = self.items() + additional;
        if items <= sure_strict_items(buckets) {
            MemoryNeed::default()
        } else {
            tables_up_to(items, buckets * 2)
        }
    }

    /// The most memory that so many items can make a filter ask for that is empty and has only its first table.
    pub fn growth_from_empty(&self, items: u64) -> MemoryNeed {
        match self.set.growth {
            Growth::Auto if items > sure_strict_items(self.set.first.buckets) => {
                tables_up_to(items, self.set.first.buckets * 2)
            }
            _ => MemoryNeed::default(),
        }
    }

    /// The memory of the table that it begins with once it is empty.
    pub fn beginning(&self) -> MemoryNeed {
        plan(self.set.first.buckets).memory()
    }

    pub(super) fn count(&self, state: SlotState, change: i64) {
        let counter = match state {
            SlotState::Available => return,
            SlotState::Held => &self.shared.held,
            SlotState::Redeemed => &self.shared.redeemed,
        };
        counter.store(counter.load(Relaxed).wrapping_add_signed(change), Relaxed);
    }

    /// Restores a filter from its snapshot. It goes on exactly as the one that the snapshot was taken of.
    ///
    /// # Errors
    /// When a chunk is missing, damaged or belongs elsewhere, or the image contradicts itself.
    pub fn restore<E>(image: &FilterImage, load: &mut Load<'_, E>) -> Result<Self, RestoreError<E>> {
        let mut filter = Self::uncounted(image, |mode, image| TableSet::restore(mode, image, load))?;
        for table in 0..filter.set.tables.len() {
            filter.count_in(table, 0..u64::MAX);
        }
        Ok(filter)
    }

    /// A filter with tables that are made as an image says. What is in them is yet to be counted.
    pub(super) fn uncounted<E>(
        image: &FilterImage,
        make: impl FnOnce(Mode, &FilterImage) -> Result<TableSet, RestoreError<E>>,
    ) -> Result<Self, RestoreError<E>> {
        if !(1..=TABLES_MAX).contains(&image.tables.len()) {
            return Err(RestoreError::Image("a strict filter has a wrong number of tables"));
        }
        if !image.tables.iter().all(|table| table.plan.is_sane()) {
            return Err(RestoreError::Image("a table has an impossible shape"));
        }
        if !image.tables.iter().all(|table| matches!(table.plan, TablePlan::Strict { .. })) {
            return Err(RestoreError::Image("a table is out of place"));
        }
        let drained_max = if image.tables.len() > 1 { image.tables[0].plan.buckets() } else { 0 };
        if image.drained_buckets > drained_max {
            return Err(RestoreError::Image("more buckets were drained than there are"));
        }
        if image.cleared_tables >= image.tables.len() {
            return Err(RestoreError::Image("the newest table was cleared"));
        }
        Ok(Self::over(make(Mode::Strict, image)?))
    }

    /// Counts the items in some buckets of a table by their states. Returns how many slots are taken there.
    pub(super) fn count_in(&mut self, table: usize, buckets: Range<u64>) -> u64 {
        let Table { plan, .. } = &*self.set.tables[table].table;
        let (mut taken, mut staying) = (0, 0);
        let buckets = buckets.start..buckets.end.min(plan.buckets());
        self.set.tables[table].table.for_each_in(buckets, |_, _, value| {
            taken += 1;
            if let Some(state) = state_in(table, self.set.cleared, value) {
                staying += 1;
                self.count(state, 1);
            }
        });
        if table < self.set.cleared {
            self.shared.staying.store(self.shared.staying.load(Relaxed) + staying, Relaxed);
        }
        taken
    }
}
