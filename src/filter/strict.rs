//! Strict filters: 62 bits of each item's digest and a state. A set; a "yes" is wrong about n / 2^62 of the time.
//!
//! A full table grows into a larger one, a few buckets with every command, so that no single one pays for it. While
//! items move, one is in the smaller table or in the larger, or for a moment in both, never in none.

use super::codec::{FilterImage, Load, RestoreError, TableId, TableImage, restore_table};
use super::layout::{BUCKETS_MAX, Growth, Layout};
use super::memory::MemoryNeed;
use super::place::STATE_MASK;
use super::plan::Plan;
use super::strict_view::{Shared, StrictReader};
use super::table::GROUP;
use super::writer::{NoPath, TableWriter};
use super::{Digest, Full};
use arc_swap::ArcSwap;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, Release};

/// Buckets of the smaller table that move with every change. A table doubles, so it would do with one in four.
const BUCKETS_MOVED: u64 = 4;

/// A table of fewer buckets moves in one go.
const BUCKETS_AT_ONCE: u64 = 1 << 10;

/// The state of an item, as its slot holds it: never zero, so that a taken slot is not either.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum SlotState {
    /// There.
    Available = 1,
    /// Set aside.
    Held = 2,
    /// Used.
    Redeemed = 3,
}

impl SlotState {
    pub(super) fn of(value: u64) -> Self {
        match value & STATE_MASK {
            2 => SlotState::Held,
            3 => SlotState::Redeemed,
            _ => SlotState::Available,
        }
    }

    fn bits(self) -> u64 {
        self as u64
    }
}

/// What became of an item.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StrictInsert {
    /// It is in now, available.
    Added,
    /// It was in, in this state, and still is.
    Present(SlotState),
}

/// How far a walk over the items of a strict filter has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Walk {
    /// The table that comes next, or one that is gone: then it is the next newer one.
    table: TableId,
    bucket: u64,
}

impl Walk {
    /// Nothing has been walked.
    pub const START: Self = Self { table: TableId(0), bucket: 0 };
}

/// The writer's side of a strict filter.
pub struct StrictFilter {
    layout: Layout,
    growth: Growth,
    next_table: u64,
    /// One, or while it moves two: the smaller, then the larger.
    tables: Vec<TableWriter>,
    moved_buckets: u64,
    retired: Vec<TableWriter>,
    in_snapshot: bool,
    shared: Arc<Shared>,
}

fn plan(buckets: u64) -> Plan {
    Plan::Strict { buckets }
}

/// The memory of the tables that are tried one after the other, from so many buckets on, until so many items fit.
fn tables_up_to(items: u64, mut buckets: u64) -> MemoryNeed {
    let mut need = MemoryNeed::default();
    while buckets <= BUCKETS_MAX {
        need += plan(buckets).memory();
        if items <= sure_items(buckets) {
            break;
        }
        buckets *= 2;
    }
    need
}

/// Items that a table takes for sure. In a small one an item may find no place though there is room.
fn sure_items(buckets: u64) -> u64 {
    let limit = plan(buckets).fill_limit();
    if buckets < BUCKETS_AT_ONCE { limit / 2 } else { limit }
}

impl StrictFilter {
    /// An empty filter.
    pub fn new(layout: Layout, growth: Growth) -> Self {
        let first = TableWriter::new(TableId(0), plan(layout.buckets), layout.max_search);
        Self::of(layout, growth, 1, vec![first], 0)
    }

    fn of(
        layout: Layout,
        growth: Growth,
        next_table: u64,
        tables: Vec<TableWriter>,
        moved_buckets: u64,
    ) -> Self {
        let shared = Shared {
            tables: ArcSwap::default(),
            published: AtomicU64::new(0),
            held: AtomicU64::new(0),
            redeemed: AtomicU64::new(0),
        };
        let filter = Self {
            layout,
            growth,
            next_table,
            tables,
            moved_buckets,
            retired: Vec::new(),
            in_snapshot: false,
            shared: Arc::new(shared),
        };
        filter.publish();
        filter
    }

    /// A reader's side.
    pub fn reader(&self) -> StrictReader {
        StrictReader { shared: self.shared.clone() }
    }

    fn publish(&self) {
        let tables = self.tables.iter().map(|table| table.table.clone()).collect();
        self.shared.tables.store(Arc::new(tables));
        self.shared.published.fetch_add(1, Release);
    }

    /// The item's state, if it is in.
    pub fn get(&self, digest: Digest) -> Option<SlotState> {
        self.tables.iter().find_map(|table| table.table.get(digest)).map(SlotState::of)
    }

    /// Adds an item, available; one that is in stays as it is.
    ///
    /// # Errors
    /// [`Full`] if there is no room and the filter can't grow (further); no item has changed.
    pub fn insert(&mut self, digest: Digest) -> Result<StrictInsert, Full> {
        self.insert_as(digest, SlotState::Available)
    }

    fn insert_as(&mut self, digest: Digest, state: SlotState) -> Result<StrictInsert, Full> {
        self.move_on(BUCKETS_MOVED);
        if let [only] = &mut self.tables[..]
            && (self.growth == Growth::Fixed || only.room() > 0)
            && let Ok(held) = only.insert_if_absent(digest, state.bits())
        {
            return Ok(held.map_or(StrictInsert::Added, |held| StrictInsert::Present(SlotState::of(held))));
        }
        if let Some(state) = self.get(digest) {
            return Ok(StrictInsert::Present(state));
        }
        if self.tables.len() == 1 && self.growth == Growth::Auto && self.newest().room() == 0 {
            self.grow()?;
        }
        if self.newest().insert(digest, state.bits()).is_err() {
            if self.growth == Growth::Fixed {
                return Err(Full);
            }
            // Hardly ever: no path though the table isn't full.
            let buckets = self.newest().table.plan.buckets();
            self.rebuild(buckets * 2, |_| true)?;
            self.newest().insert(digest, state.bits()).map_err(|NoPath| Full)?;
        }
        Ok(StrictInsert::Added)
    }

    /// Adds many items, all or none: the same as one by one, but that a failure takes back what went before.
    ///
    /// # Errors
    /// [`Full`] as for [`Self::insert`].
    pub fn insert_many(&mut self, digests: &[Digest]) -> Result<Vec<StrictInsert>, Full> {
        let mut outcomes = Vec::with_capacity(digests.len());
        for group in digests.chunks(GROUP) {
            self.prefetch(group);
            for &digest in group {
                match self.insert(digest) {
                    Ok(outcome) => outcomes.push(outcome),
                    Err(full) => {
                        for (_, &digest) in
                            outcomes.iter().zip(digests).rev().filter(|(o, _)| **o == StrictInsert::Added)
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

    /// Gives an item that is in another state, in place; tells the one before.
    pub fn set(&mut self, digest: Digest, state: SlotState) -> Option<SlotState> {
        let held = self.tables.iter_mut().find_map(|table| table.set_state(digest, state.bits()))?;
        let before = SlotState::of(held);
        self.count(before, -1);
        self.count(state, 1);
        Some(before)
    }

    /// Takes an item out; tells the state that it was in.
    pub fn remove(&mut self, digest: Digest) -> Option<SlotState> {
        self.move_on(BUCKETS_MOVED);
        let held = self.tables.iter_mut().find_map(|table| table.remove(digest))?;
        let state = SlotState::of(held);
        self.count(state, -1);
        Some(state)
    }

    /// Takes many out, in order.
    pub fn remove_many(&mut self, digests: &[Digest]) -> Vec<Option<SlotState>> {
        let mut removed = Vec::with_capacity(digests.len());
        for group in digests.chunks(GROUP) {
            self.prefetch(group);
            removed.extend(group.iter().map(|&digest| self.remove(digest)));
        }
        removed
    }

    /// Takes the available items out, and shrinks to the first table if the others fit; tells how many went.
    pub fn clear(&mut self) -> u64 {
        let available = self.reader().view().counts().available;
        // What doesn't fit the first table fits a larger one; the present one at the latest.
        let rebuilt = self.rebuild(self.layout.buckets, |state| state != SlotState::Available);
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

    /// Calls with every item's 62 bits of digest and its state, in the order of their slots.
    pub fn for_each(&self, mut visit: impl FnMut(Digest, SlotState)) {
        for table in &self.tables {
            table.table.for_each_in(0..table.table.plan.buckets(), |_, _, value| {
                visit(Digest(value >> 2), SlotState::of(value));
            });
        }
    }

    /// Calls with the items of the next buckets, at most so many, and tells how many these were: none once all have been walked.
    /// Where the filter changes between two calls, an item that moves is met once, twice or not at all.
    pub fn walk(&self, walk: &mut Walk, buckets: u64, mut visit: impl FnMut(Digest, SlotState)) -> u64 {
        let Some(table) = self.tables.iter().find(|table| table.id >= walk.table) else { return 0 };
        let first = if table.id == walk.table { walk.bucket } else { 0 };
        let all = table.table.plan.buckets();
        let last = all.min(first.saturating_add(buckets));
        table.table.for_each_in(first..last, |_, _, value| visit(Digest(value >> 2), SlotState::of(value)));
        *walk = if last == all {
            Walk { table: TableId(table.id.0 + 1), bucket: 0 }
        } else {
            Walk { table: table.id, bucket: last }
        };
        last.saturating_sub(first)
    }

    /// The most memory that so many more items can make it ask for.
    pub fn growth(&self, additional: u64) -> MemoryNeed {
        if self.growth == Growth::Fixed || additional == 0 {
            return MemoryNeed::default();
        }
        let newest = &self.tables[self.tables.len() - 1];
        let waiting = if self.tables.len() > 1 { self.tables[0].items() } else { 0 };
        let buckets = newest.table.plan.buckets();
        let items = newest.items() + waiting + additional;
        if items <= sure_items(buckets) { MemoryNeed::default() } else { tables_up_to(items, buckets * 2) }
    }

    /// The most memory that so many items can make it ask for beside the first table, which is empty.
    pub fn growth_from_empty(&self, items: u64) -> MemoryNeed {
        match self.growth {
            Growth::Auto if items > sure_items(self.layout.buckets) => {
                tables_up_to(items, self.layout.buckets * 2)
            }
            _ => MemoryNeed::default(),
        }
    }

    /// The memory that [`Self::clear`] asks for: the tables that it has go only afterwards.
    pub fn clearing(&self) -> MemoryNeed {
        let counts = self.reader().view().counts();
        tables_up_to(counts.held + counts.redeemed, self.layout.buckets)
    }

    /// Bytes of its tables, those that only the running snapshot wants with them.
    pub fn memory_bytes(&self) -> u64 {
        self.tables.iter().chain(&self.retired).map(|table| table.table.memory_bytes()).sum()
    }

    fn newest(&mut self) -> &mut TableWriter {
        self.tables.last_mut().expect("there is always a table")
    }

    fn prefetch(&self, group: &[Digest]) {
        for &digest in group {
            self.tables.iter().for_each(|table| table.prefetch(digest));
        }
    }

    fn count(&self, state: SlotState, change: i64) {
        let counter = match state {
            SlotState::Available => return,
            SlotState::Held => &self.shared.held,
            SlotState::Redeemed => &self.shared.redeemed,
        };
        counter.store(counter.load(Relaxed).wrapping_add_signed(change), Relaxed);
    }

    fn new_table(&mut self, buckets: u64) -> TableWriter {
        let id = TableId(self.next_table);
        self.next_table += 1;
        TableWriter::new(id, plan(buckets), self.layout.max_search)
    }

    /// Sets a table of twice the size up; items move into it with the commands that follow.
    fn grow(&mut self) -> Result<(), Full> {
        let buckets = self.newest().table.plan.buckets();
        if buckets > BUCKETS_MAX / 2 {
            return Err(Full);
        }
        if buckets < BUCKETS_AT_ONCE {
            return self.rebuild(buckets * 2, |_| true);
        }
        let larger = self.new_table(buckets * 2);
        self.tables.push(larger);
        self.moved_buckets = 0;
        self.publish();
        Ok(())
    }

    /// Moves the items of so many more buckets into the larger table, if there is one.
    fn move_on(&mut self, buckets: u64) {
        let [smaller, larger] = &mut self.tables[..] else { return };
        let last = smaller.table.plan.buckets().min(self.moved_buckets + buckets);
        let mut moving = Vec::new();
        smaller
            .table
            .for_each_in(self.moved_buckets..last, |bucket, slot, value| moving.push((bucket, slot, value)));
        for (bucket, slot, value) in moving {
            if larger.insert(Digest(value >> 2), value & STATE_MASK).is_err() {
                // Hardly ever, in a table that is half empty: everything moves at once into one that has room.
                let buckets = larger.table.plan.buckets();
                let _ = self.rebuild(buckets * 2, |_| true);
                return;
            }
            smaller.free_slot(bucket, slot);
        }
        self.moved_buckets = last;
        if last == smaller.table.plan.buckets() {
            let smaller = self.tables.remove(0);
            self.moved_buckets = 0;
            self.publish();
            self.retire(smaller);
        }
    }

    /// Puts the items that `keep` picks into one new table of at least so many buckets.
    fn rebuild(&mut self, mut buckets: u64, keep: impl Fn(SlotState) -> bool) -> Result<(), Full> {
        'larger: loop {
            if buckets > BUCKETS_MAX {
                return Err(Full);
            }
            let mut rebuilt = self.new_table(buckets);
            for table in &self.tables {
                let mut fits = Ok(());
                table.table.for_each_in(0..table.table.plan.buckets(), |_, _, value| {
                    // While a move was cut short an item can be in both tables.
                    if keep(SlotState::of(value))
                        && fits.is_ok()
                        && rebuilt.table.get(Digest(value >> 2)).is_none()
                    {
                        fits = rebuilt.insert(Digest(value >> 2), value & STATE_MASK);
                    }
                });
                if fits.is_err() {
                    buckets *= 2;
                    continue 'larger;
                }
            }
            let old = std::mem::replace(&mut self.tables, vec![rebuilt]);
            self.moved_buckets = 0;
            self.publish();
            old.into_iter().for_each(|table| self.retire(table));
            return Ok(());
        }
    }

    fn retire(&mut self, table: TableWriter) {
        // One that was made since is not part of it, and would only pile up.
        if self.in_snapshot && table.is_in_snapshot() {
            self.retired.push(table);
        }
    }

    /// Begins a snapshot of the filter as it is; tells what belongs to it beside the tables' chunks.
    pub fn begin_snapshot(&mut self) -> FilterImage {
        self.end_snapshot();
        self.in_snapshot = true;
        let tables = self.tables.iter_mut().map(|table| {
            table.begin_snapshot();
            TableImage {
                id: table.id,
                plan: table.table.plan,
                items: table.items(),
                changes: table.changes(),
            }
        });
        FilterImage {
            layout: self.layout,
            growth: self.growth,
            next_table: self.next_table,
            tables: tables.collect(),
            moved_buckets: self.moved_buckets,
        }
    }

    fn table(&mut self, id: TableId) -> Option<&mut TableWriter> {
        self.tables.iter_mut().chain(&mut self.retired).find(|table| table.id == id)
    }

    /// Puts a chunk of the running snapshot, as it was at its beginning, in the place of what `out` held.
    pub fn take_chunk(&mut self, table: TableId, chunk: u32, out: &mut Vec<u8>) {
        out.clear();
        if let Some(table) = self.table(table) {
            table.take_chunk(chunk, out);
        }
    }

    /// Tells that a table need not be taken, because an equal one is stored.
    pub fn skip_table(&mut self, table: TableId) {
        if let Some(table) = self.table(table) {
            table.end_snapshot();
        }
    }

    /// Memory kept for the running snapshot, in bytes.
    pub fn undo_bytes(&self) -> usize {
        self.tables.iter().chain(&self.retired).map(TableWriter::undo_bytes).sum()
    }

    /// Ends the running snapshot, whole or not.
    pub fn end_snapshot(&mut self) {
        self.in_snapshot = false;
        self.retired.clear();
        self.tables.iter_mut().for_each(TableWriter::end_snapshot);
    }

    /// The filter whose snapshot this is. It goes on exactly as the one that it was taken of.
    ///
    /// # Errors
    /// When a chunk is missing, damaged or another's, or the image contradicts itself.
    pub fn restore<E>(image: &FilterImage, load: &mut Load<'_, E>) -> Result<Self, RestoreError<E>> {
        if !matches!(image.tables.len(), 1 | 2) {
            return Err(RestoreError::Image("a strict filter has a wrong number of tables"));
        }
        if !image.tables.iter().all(|table| table.plan.is_sane()) {
            return Err(RestoreError::Image("a table has an impossible shape"));
        }
        if image.moved_buckets > image.tables[0].plan.buckets() {
            return Err(RestoreError::Image("more buckets were moved than there are"));
        }
        let mut tables = Vec::with_capacity(2);
        for table in &image.tables {
            if !matches!(table.plan, Plan::Strict { .. }) || table.id.0 >= image.next_table {
                return Err(RestoreError::Image("a table is out of place"));
            }
            let restored = restore_table(table, load)?;
            tables.push(TableWriter::resume(table.id, restored, table.changes, image.layout.max_search));
        }
        let filter = Self::of(image.layout, image.growth, image.next_table, tables, image.moved_buckets);
        filter.for_each(|_, state| filter.count(state, 1));
        Ok(filter)
    }
}
