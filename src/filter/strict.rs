//! Strict filters: a set that keeps 62 bits of each item's digest, and a state. With `n` items in it, about `n` in 2^62 strangers
//! are taken for one of them.
//!
//! A filter whose table is full gets a second one, twice as large, and one whose capacity is raised gets one that is large enough.
//! Every later change moves the items of a few buckets there, so that no single one pays for all. While an item moves it is in both
//! tables for a moment, and always in at least one. A filter may need a still larger table before the move is over. Then all tables are
//! emptied into the newest, the oldest first.

use super::codec::{FilterImage, Load, RestoreError, TableId};
use super::hash::Digest;
use super::insert::{Full, Insert};
use super::layout::{BUCKETS_MAX, Growth, Layout, Mode};
use super::memory::MemoryNeed;
use super::place::stored_digest;
use super::plan::Plan;
use super::sizing::sure_strict_items;
use super::slot_state::{STATE_MASK, SlotState};
use super::strict_view::{Shared, StrictReader};
use super::table::GROUP;
use super::table_set::TableSet;
use super::writer::{NoPath, TableWriter};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, Release};

/// Buckets of the oldest table whose items every change moves to the newest one. After growth the move is over long before that one
/// is full: a quarter of a bucket with every change would be enough.
const BUCKETS_MOVED: u64 = 4;

/// Tables of fewer buckets are moved all at once.
const BUCKETS_AT_ONCE: u64 = 1 << 10;

/// The most tables of a filter. Only many raises of its capacity in a short time lead to so many. Then the oldest is emptied at once.
const TABLES_MAX: usize = 8;

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
    set: TableSet,
    shared: Arc<Shared>,
}

fn plan(buckets: u64) -> Plan {
    Plan::Strict { buckets }
}

/// The memory of all tables that are tried, each twice as large as the one before, from so many buckets on until so many items fit.
fn tables_up_to(items: u64, mut buckets: u64) -> MemoryNeed {
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

    /// Its tables, for snapshots.
    pub fn tables_mut(&mut self) -> &mut TableSet {
        &mut self.set
    }

    /// A reader's side.
    pub fn reader(&self) -> StrictReader {
        StrictReader { shared: self.shared.clone() }
    }

    fn publish(&self) {
        self.shared.tables.store(Arc::new(self.set.shared()));
        self.shared.published.fetch_add(1, Release);
    }

    /// The state of an item, if it is there.
    pub fn get(&self, digest: Digest) -> Option<SlotState> {
        self.set.tables.iter().find_map(|table| table.table.get(digest)).map(SlotState::of)
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
        if self.set.growth == Growth::Auto && self.set.newest().room() <= self.waiting() {
            self.grow()?;
        }
        if self.set.newest().insert(digest, AVAILABLE).is_err() {
            if self.set.growth == Growth::Fixed {
                return Err(Full);
            }
            // This hardly ever happens: there is no path, though the table counts as having room.
            let buckets = self.newest_buckets();
            self.rebuild(buckets * 2, |_| true)?;
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
        let held = self.set.tables.iter_mut().find_map(|table| table.set_state(digest, state.bits()))?;
        let before = SlotState::of(held);
        self.count(before, -1);
        self.count(state, 1);
        Some(before)
    }

    /// Removes an item, if it is there, and returns its state.
    pub fn remove(&mut self, digest: Digest) -> Option<SlotState> {
        self.move_on();
        let held = self.set.tables.iter_mut().find_map(|table| table.remove(digest))?;
        let state = SlotState::of(held);
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

    /// Removes all available items, and shrinks to the smallest table that the others fit into. Returns how many were removed.
    pub fn clear(&mut self) -> u64 {
        let available = self.reader().view().counts().available;
        // If the others don't fit into a table of the first one's size, larger ones are tried, up to the present one's.
        let rebuilt = self.rebuild(self.set.first.buckets, |state| state != SlotState::Available);
        if rebuilt.is_err() {
            let mut leaving = Vec::new();
            self.for_each(|digest, state| {
                if state == SlotState::Available {
                    leaving.push(digest);
                }
            });
            self.remove_many(&leaving);
        }
        available
    }

    /// Calls `visit` with 62 bits of digest and the state of every item, in the order of their slots.
    pub fn for_each(&self, mut visit: impl FnMut(Digest, SlotState)) {
        for table in &self.set.tables {
            table.table.for_each_in(0..table.table.plan.buckets(), |_, _, value| {
                visit(stored_digest(value), SlotState::of(value));
            });
        }
    }

    /// Goes on with a walk: calls `visit` with the items of up to so many more buckets. Returns how many buckets that were; none at the
    /// end. If the filter changes between two calls, an item that moves may be visited once, twice or not at all.
    pub fn walk(&self, walk: &mut Walk, buckets: u64, mut visit: impl FnMut(Digest, SlotState)) -> u64 {
        let Some(table) = self.set.tables.iter().find(|table| table.id >= walk.table) else { return 0 };
        let first = if table.id == walk.table { walk.bucket } else { 0 };
        let all = table.table.plan.buckets();
        let last = all.min(first.saturating_add(buckets));
        table.table.for_each_in(first..last, |_, _, value| visit(stored_digest(value), SlotState::of(value)));
        *walk = if last == all {
            Walk { table: TableId(table.id.0 + 1), bucket: 0 }
        } else {
            Walk { table: table.id, bucket: last }
        };
        last.saturating_sub(first)
    }

    /// The most memory that so many more items can make the filter ask for.
    pub fn growth(&self, additional: u64) -> MemoryNeed {
        if self.set.growth == Growth::Fixed || additional == 0 {
            return MemoryNeed::default();
        }
        let buckets = self.newest_buckets();
        let items = self.set.items() + additional;
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

    /// The memory that [`Self::clear`] asks for before it gives the old tables back.
    pub fn clearing(&self) -> MemoryNeed {
        let counts = self.reader().view().counts();
        tables_up_to(counts.held + counts.redeemed, self.set.first.buckets)
    }

    fn count(&self, state: SlotState, change: i64) {
        let counter = match state {
            SlotState::Available => return,
            SlotState::Held => &self.shared.held,
            SlotState::Redeemed => &self.shared.redeemed,
        };
        counter.store(counter.load(Relaxed).wrapping_add_signed(change), Relaxed);
    }

    /// Makes room for as many items as a filter of this layout begins with.
    ///
    /// # Errors
    /// [`Full`] if no table can be so large. Then nothing has changed.
    pub fn raise(&mut self, first: Layout) -> Result<(), Full> {
        if first.buckets > self.newest_buckets() {
            if self.set.items() == 0 && first.buckets <= BUCKETS_MAX {
                let table = self.set.make(plan(first.buckets));
                self.set.replace_all(table);
                self.publish();
            } else {
                self.enlarge(first.buckets)?;
            }
        }
        self.set.first = first;
        Ok(())
    }

    /// The memory that [`Self::raise`] asks for.
    ///
    /// # Errors
    /// [`Full`] as for [`Self::raise`].
    pub fn raising(&self, first: &Layout) -> Result<MemoryNeed, Full> {
        match first.buckets {
            ..=BUCKETS_MAX if first.buckets <= self.newest_buckets() => Ok(MemoryNeed::default()),
            ..=BUCKETS_MAX if self.is_moved_at_once() => Ok(tables_up_to(self.set.items(), first.buckets)),
            ..=BUCKETS_MAX => Ok(plan(first.buckets).memory()),
            _ => Err(Full),
        }
    }

    /// Adds a table of twice the size.
    fn grow(&mut self) -> Result<(), Full> {
        self.enlarge(self.newest_buckets() * 2)
    }

    /// Adds a table of so many buckets. Later changes move the items there.
    fn enlarge(&mut self, buckets: u64) -> Result<(), Full> {
        if buckets > BUCKETS_MAX {
            return Err(Full);
        }
        if self.is_moved_at_once() {
            return self.rebuild(buckets, |_| true);
        }
        while self.set.tables.len() >= TABLES_MAX {
            self.move_buckets(u64::MAX);
        }
        self.set.put_newest(plan(buckets));
        self.publish();
        Ok(())
    }

    fn is_moved_at_once(&self) -> bool {
        self.set.tables.iter().map(|table| table.table.plan.buckets()).sum::<u64>() < BUCKETS_AT_ONCE
    }

    fn newest_buckets(&self) -> u64 {
        self.set.tables.last().map_or(0, |newest| newest.table.plan.buckets())
    }

    /// Items that have still to be moved to the newest table.
    fn waiting(&self) -> u64 {
        match &self.set.tables[..] {
            [_] => 0,
            tables => tables[..tables.len() - 1].iter().map(TableWriter::items).sum(),
        }
    }

    /// Goes on with a move to the newest table, if there is one.
    #[inline]
    fn move_on(&mut self) {
        if self.set.tables.len() > 1 {
            self.move_buckets(BUCKETS_MOVED);
        }
    }

    /// Moves the items of so many more buckets of the oldest table to the newest one.
    #[inline(never)]
    fn move_buckets(&mut self, buckets: u64) {
        let [oldest, .., newest] = &mut self.set.tables[..] else { return };
        let last = oldest.table.plan.buckets().min(self.set.drained_buckets.saturating_add(buckets));
        let mut moving = Vec::new();
        oldest.table.for_each_in(self.set.drained_buckets..last, |bucket, slot, value| {
            moving.push((bucket, slot, value))
        });
        for (bucket, slot, value) in moving {
            if newest.insert(stored_digest(value), value & STATE_MASK).is_err() {
                // This hardly ever happens in a table that is not full. Then all items move at once to a new one.
                let buckets = newest.table.plan.buckets();
                let _ = self.rebuild(buckets * 2, |_| true);
                return;
            }
            oldest.free_slot(bucket, slot);
        }
        self.set.drained_buckets = last;
        if last == oldest.table.plan.buckets() {
            self.set.drop_drained(0);
            self.publish();
        }
    }

    /// Replaces all tables by a new one of at least so many buckets, with the items that `keep` picks.
    fn rebuild(&mut self, mut buckets: u64, keep: impl Fn(SlotState) -> bool) -> Result<(), Full> {
        let rebuilt = loop {
            if buckets > BUCKETS_MAX {
                return Err(Full);
            }
            let mut rebuilt = self.set.make(plan(buckets));
            if self.set.tables.iter().try_for_each(|table| copy_items(table, &mut rebuilt, &keep)).is_ok() {
                break rebuilt;
            }
            buckets *= 2;
        };
        self.set.replace_all(rebuilt);
        self.publish();
        Ok(())
    }

    /// Restores a filter from its snapshot. It goes on exactly as the one that the snapshot was taken of.
    ///
    /// # Errors
    /// When a chunk is missing, damaged or belongs elsewhere, or the image contradicts itself.
    pub fn restore<E>(image: &FilterImage, load: &mut Load<'_, E>) -> Result<Self, RestoreError<E>> {
        if !(1..=TABLES_MAX).contains(&image.tables.len()) {
            return Err(RestoreError::Image("a strict filter has a wrong number of tables"));
        }
        if !image.tables.iter().all(|table| table.plan.is_sane()) {
            return Err(RestoreError::Image("a table has an impossible shape"));
        }
        if !image.tables.iter().all(|table| matches!(table.plan, Plan::Strict { .. })) {
            return Err(RestoreError::Image("a table is out of place"));
        }
        let drained_max = if image.tables.len() > 1 { image.tables[0].plan.buckets() } else { 0 };
        if image.drained_buckets > drained_max {
            return Err(RestoreError::Image("more buckets were drained than there are"));
        }
        let filter = Self::over(TableSet::restore(Mode::Strict, image, load)?);
        filter.for_each(|_, state| filter.count(state, 1));
        Ok(filter)
    }
}

/// Copies the items that `keep` picks into another table.
///
/// # Errors
/// [`NoPath`] if one of them finds no place there.
fn copy_items(
    from: &TableWriter,
    to: &mut TableWriter,
    keep: impl Fn(SlotState) -> bool,
) -> Result<(), NoPath> {
    let mut copied = Ok(());
    from.table.for_each_in(0..from.table.plan.buckets(), |_, _, value| {
        // An item that is being moved may be in both tables.
        if copied.is_ok() && keep(SlotState::of(value)) && to.table.get(stored_digest(value)).is_none() {
            copied = to.insert(stored_digest(value), value & STATE_MASK);
        }
    });
    copied
}
