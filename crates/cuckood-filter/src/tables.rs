//! The tables of a filter: growth, numbering, replacement, publication to readers and snapshots, which all filters share.
//!
//! A full filter doubles its newest table: the table is copied to one of twice the size, a few buckets with every change, and then replaced
//! by it. While it is copied, the old table serves alone. If its slots have no bits to spare, the filter appends a table instead. It also
//! does so if an item finds no place before the table is full, because copies of a few items crowd their buckets ([`GrowthRule::Paced`]).

use crate::chunk::{FrozenTable, TableId};
use crate::hash::Digest;
use crate::image::{CopySource, FilterImage, Load, RestoreError, TableImage, restore_table};
use crate::layout::{Growth, GrowthRule, Layout, Mode};
use crate::memory::{MemoryNeed, Remains};
use crate::plan::TablePlan;
use crate::reader::{Published, SharedFilter};
use crate::table::Table;
use crate::tags::Steps;
use crate::writer::TableWriter;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Buckets that every change copies.
pub(crate) const BUCKETS_COPIED: u64 = 16;

/// Tables of up to this many buckets are copied in one step.
const BUCKETS_AT_ONCE: u64 = 1 << 10;

/// Tables of up to this many buckets are copied in one step if an item needs the larger one: about two milliseconds' work.
const BUCKETS_CROWDED: u64 = 1 << 14;

/// The most tables that a command makes a filter append because copies of a few items crowd their buckets. Some thousand random commands
/// made it append one in general, and in small filters up to this many.
const CROWDED_TABLES: u64 = 4;

/// A table with a capacity for this many times the items of a command is not crowded by them.
const CROWDING_ITEMS: u64 = 16;

/// The tables of one filter, as its writer sees them.
///
/// A snapshot owns the tables that it [freezes](FrozenTable). A table that the filter drops lives on until the snapshot releases it.
pub struct Tables {
    pub(crate) mode: Mode,
    /// The layout that the filter starts with once it is empty: another one if its capacity was raised.
    pub(crate) first: Layout,
    pub(crate) growth: Growth,
    rule: GrowthRule,
    /// The number of the next table; none is used twice.
    next_table: u64,
    /// Oldest first; never empty.
    pub(crate) tables: Vec<TableWriter>,
    /// Tables that the filter has dropped.
    dropped: Option<Box<Dropped>>,
    /// The steps of a filter that forgets.
    pub(crate) steps: Option<Box<Steps>>,
    /// The table and the bucket at which freeing the slots of forgotten items continues; in a strict filter, while there are any, of
    /// cleared ones.
    pub(crate) sweep: Option<(usize, u64)>,
    pub(crate) shared: Arc<SharedFilter>,
}

/// The filter can't take all the items, and has changed nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the filter is full")]
pub struct Full;

/// The table change that raises a filter's capacity.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum TableRaise {
    /// The tables are large enough.
    Nothing,
    /// The filter is empty, and starts over.
    StartOver,
    /// The newest table is copied to one of this plan.
    Double(TablePlan),
    /// A table of this plan is appended.
    Append(TablePlan),
}

/// Returns the table that follows the newest one if that holds this many items and is full, or has no place for an item.
///
/// If the newest table is less than half full, copies of a few items crowd their buckets, and doubling doesn't separate those. So it is
/// doubled only until it has half of all buckets; then a table for the same number of items is appended. Short fingerprints also crowd
/// different items, which doubling separates.
fn successor(newest: &TablePlan, held: u64, all_buckets: u64, items_min: u64) -> Option<TablePlan> {
    let is_crowded =
        newest.mode == Mode::Compact && !newest.is_hard_to_fill() && 2 * held < newest.capacity();
    let doubled = newest
        .doubled(1)
        .filter(|_| !is_crowded || 2 * newest.buckets() < all_buckets);
    doubled.or_else(|| newest.appended(all_buckets, items_min))
}

/// The tables that a filter would have after growth, and the memory for that.
struct Forecast {
    newest: TablePlan,
    /// Items in the newest table.
    held: u64,
    /// Buckets of all tables.
    buckets: u64,
    need: MemoryNeed,
}

impl Forecast {
    fn grow(&mut self, next: TablePlan) {
        if next.number > self.newest.number {
            (self.held, self.buckets) = (0, self.buckets + next.buckets());
        } else {
            self.buckets += next.buckets() - self.newest.buckets();
        }
        self.need += MemoryNeed::table(next.memory_bytes());
        self.newest = next;
    }
}

impl Tables {
    /// The first table, which is empty. If the filter forgets, it keeps items for this many steps after the one in which they were added.
    pub(crate) fn new(mode: Mode, first: Layout, growth: Growth, kept: Option<u32>) -> Self {
        let table = Table::new(TablePlan::first(mode, &first));
        let tables = vec![TableWriter::new(TableId(0), table, first.max_search)];
        let steps = kept.map(|kept| Box::new(Steps::new(kept, first.step_bits)));
        let rule = GrowthRule::default();
        let shared = SharedFilter::new(mode, published(&tables, steps.as_deref(), rule));
        let sweep = steps.as_ref().map(|_| (0, 0));
        Self {
            mode,
            first,
            growth,
            rule,
            next_table: 1,
            tables,
            dropped: None,
            steps,
            sweep,
            shared,
        }
    }

    /// Shows readers the tables and steps as they are now.
    pub(crate) fn publish(&self) {
        let published = published(&self.tables, self.steps.as_deref(), self.rule);
        self.shared.published.store(Arc::new(published));
    }

    /// How the filter grows.
    pub(crate) fn rule(&self) -> GrowthRule {
        self.rule
    }

    pub(crate) fn set_rule(&mut self, rule: GrowthRule) {
        if self.rule != rule {
            self.rule = rule;
            self.tables
                .iter_mut()
                .for_each(|table| table.set_limit(rule));
            self.publish();
        }
    }

    fn push(&mut self, table: impl Into<Arc<Table>>, items: u64) {
        let id = TableId(self.next_table);
        self.next_table += 1;
        let mut writer = TableWriter::new(id, table, self.first.max_search);
        writer.set_limit(self.rule);
        writer.set_items(items);
        self.tables.push(writer);
    }

    pub(crate) fn newest(&self) -> &TableWriter {
        self.tables.last().expect("there is always a table")
    }

    pub(crate) fn newest_mut(&mut self) -> &mut TableWriter {
        self.tables.last_mut().expect("there is always a table")
    }

    /// Items in all tables, forgotten and cleared ones included.
    pub(crate) fn items(&self) -> u64 {
        self.tables.iter().map(TableWriter::items).sum()
    }

    /// Buckets of all tables, the newest one counted as it will be once it is copied.
    fn buckets(&self) -> u64 {
        let older = &self.tables[..self.tables.len() - 1];
        older
            .iter()
            .map(|table| table.plan().buckets())
            .sum::<u64>()
            + self.newest_plan().buckets()
    }

    /// The plan of the newest table, or of the one that it is copied to.
    fn newest_plan(&self) -> TablePlan {
        self.newest()
            .copy()
            .map_or(*self.newest().plan(), |(plan, _)| plan)
    }

    /// Prefetches the cache lines in which an item may be stored.
    #[inline]
    pub(crate) fn prefetch(&self, digest: Digest) {
        self.tables
            .iter()
            .for_each(|table| table.table.prefetch(digest));
    }

    /// Bytes of all tables, including the one that is being copied to.
    pub fn memory_bytes(&self) -> u64 {
        let copy = self
            .newest()
            .copy()
            .map_or(0, |(plan, _)| plan.memory_bytes());
        self.tables
            .iter()
            .map(|table| table.table.memory_bytes())
            .sum::<u64>()
            + copy
    }

    /// Returns whether the filter only has its first table, in its initial size.
    pub(crate) fn is_as_created(&self) -> bool {
        self.tables.len() == 1 && self.newest_plan() == TablePlan::first(self.mode, &self.first)
    }

    /// Replaces all tables by an empty one of this layout.
    pub(crate) fn start_over(&mut self, first: Layout) {
        self.first = first;
        let replaced = std::mem::replace(&mut self.tables, Vec::with_capacity(1));
        self.push(Table::new(TablePlan::first(self.mode, &first)), 0);
        replaced.into_iter().for_each(|table| self.retire(table));
        self.steps.iter_mut().for_each(|steps| steps.clear());
        self.sweep = self.steps.as_ref().map(|_| (0, 0));
        self.shared
            .counts
            .iter()
            .for_each(|count| count.store(0, Relaxed));
        self.publish();
    }

    /// Shrinks to the first table if no item is left.
    #[inline(never)]
    pub(crate) fn shrink_if_empty(&mut self) {
        if self.items() == 0 && !self.is_as_created() {
            self.start_over(self.first);
        }
    }

    /// Grows, because the newest table is full or has no place for an item.
    ///
    /// # Errors
    /// [`Full`] if there can be no such table. Then nothing has changed.
    pub(crate) fn grow(&mut self, items_min: u64) -> Result<(), Full> {
        match (self.rule, self.mode) {
            (GrowthRule::Paced, Mode::Compact) => self.grow_paced(items_min),
            // A strict filter has one table and no copies: searches fail only in a table that is fuller than full.
            (GrowthRule::Paced, Mode::Strict) | (GrowthRule::Immediate, _) => {
                self.grow_at_once(items_min)
            }
        }
    }

    /// Grows so that no insert copies more than a small table.
    fn grow_paced(&mut self, items_min: u64) -> Result<(), Full> {
        if self.growth == Growth::Fixed {
            return Err(Full);
        }
        let newest = self.newest();
        let plan = *newest.plan();
        let held = newest.items();
        let is_full = newest.room() == 0;
        if newest
            .copy()
            .is_some_and(|(_, done)| plan.buckets() - done <= BUCKETS_CROWDED)
        {
            self.copy_on(BUCKETS_CROWDED);
            return Ok(());
        }
        let all = self.tables.iter().map(|table| table.plan().buckets()).sum();
        let items_min = items_min.max(self.missing_capacity());
        let next = match is_full {
            true => successor(&plan, held, all, items_min),
            false => self.uncrowded(&plan, held, all, items_min),
        };
        let next = next.ok_or(Full)?;
        self.drop_copy();
        if next.number > plan.number {
            self.push(Table::new(next), 0);
        } else {
            self.newest_mut().start_copy(Table::new(next), 0);
            if !is_full || plan.buckets() <= BUCKETS_AT_ONCE {
                self.copy_on(BUCKETS_CROWDED);
            }
        }
        self.publish();
        Ok(())
    }

    /// Returns the table that follows the newest one if that is not full, but has no place for an item.
    fn uncrowded(
        &self,
        newest: &TablePlan,
        held: u64,
        all_buckets: u64,
        items_min: u64,
    ) -> Option<TablePlan> {
        match self.rule {
            GrowthRule::Paced if newest.buckets() > BUCKETS_CROWDED => {
                newest.overflow(all_buckets, held, items_min)
            }
            GrowthRule::Paced | GrowthRule::Immediate => {
                successor(newest, held, all_buckets, items_min)
            }
        }
    }

    /// Grows, and copies a table at once if the item needs that. Completes a copy in progress first.
    fn grow_at_once(&mut self, items_min: u64) -> Result<(), Full> {
        if self.copy_on(u64::MAX) {
            return Ok(());
        }
        let newest = self.newest();
        let plan = *newest.plan();
        let held = newest.items();
        let room = newest.room();
        let next = match self.growth {
            Growth::Fixed => None,
            Growth::Auto => successor(&plan, held, self.buckets(), items_min),
        };
        match next.ok_or(Full)? {
            next if next.number > plan.number => self.push(Table::new(next), 0),
            next => {
                self.newest_mut().start_copy(Table::new(next), 0);
                // An item that has no place now needs the table complete.
                if room > 0 || plan.buckets() <= BUCKETS_AT_ONCE {
                    self.copy_on(u64::MAX);
                }
            }
        }
        self.publish();
        Ok(())
    }

    /// Copies this many more buckets of the newest table, if it is being copied. Returns whether it was replaced.
    #[inline]
    pub(crate) fn copy_on(&mut self, buckets: u64) -> bool {
        self.newest().copy().is_some() && self.copy_more(buckets)
    }

    /// A separate function, so that changes of tables that are not copied need no stack.
    #[cold]
    #[inline(never)]
    fn copy_more(&mut self, buckets: u64) -> bool {
        let Some(copy) = self.newest_mut().copy_on(buckets) else {
            return false;
        };
        let Some(old) = self.tables.pop() else {
            return false;
        };
        copy.set_available_tag(old.table.available_tag());
        if let Some((table, bucket)) = &mut self.sweep
            && *table == self.tables.len()
        {
            *bucket <<= copy.plan.doublings - old.plan().doublings;
        }
        self.push(copy, old.items());
        self.retire(old);
        self.publish();
        true
    }

    /// Drops the copy of the newest table.
    pub(crate) fn drop_copy(&mut self) {
        if let Some(copy) = self.newest_mut().drop_copy() {
            self.dropped.get_or_insert_default().push(false, copy);
        }
    }

    /// Drops a table that holds nothing.
    pub(crate) fn drop_empty(&mut self, index: usize) {
        let empty = self.tables.remove(index);
        debug_assert_eq!(empty.items(), 0);
        self.retire(empty);
        self.sweep = Some((0, 0));
        self.publish();
    }

    fn retire(&mut self, mut table: TableWriter) {
        let dropped = self.dropped.get_or_insert_default();
        table
            .drop_copy()
            .into_iter()
            .for_each(|copy| dropped.push(false, copy));
        dropped.push(table.is_frozen(), table.table);
    }

    /// The tables that were dropped since the last call. The caller releases their memory; until then it is held.
    pub fn take_dropped(&mut self) -> Dropped {
        self.dropped
            .take()
            .map_or_else(Dropped::default, |dropped| *dropped)
    }

    /// All tables, as dropped.
    pub(crate) fn into_dropped(mut self) -> Dropped {
        std::mem::take(&mut self.tables)
            .into_iter()
            .for_each(|table| self.retire(table));
        self.take_dropped()
    }

    /// Returns the change that adds capacity for the items of a filter of this layout. In a filter that forgets, the items of older tables
    /// may expire, so those don't count.
    fn plan_raise(&self, to: &Layout) -> Result<TableRaise, Full> {
        if self.items() == 0 {
            let is_right = self.is_as_created() && self.first == *to;
            return Ok(if is_right {
                TableRaise::Nothing
            } else {
                TableRaise::StartOver
            });
        }
        let newest = self.newest_plan();
        let wanted = to.capacity();
        let older = if self.first.step_bits > 0 {
            &[]
        } else {
            &self.tables[..self.tables.len() - 1]
        };
        let missing =
            wanted.saturating_sub(older.iter().map(|table| table.plan().capacity()).sum());
        if newest.capacity() >= missing {
            return Ok(TableRaise::Nothing);
        }
        let current = self.newest().plan();
        let mut doubled = (1..32).filter_map(|times| current.doubled(times));
        if let Some(plan) = doubled.find(|plan| plan.capacity() >= missing) {
            return Ok(TableRaise::Double(plan));
        }
        let missing = if self.first.step_bits > 0 {
            missing
        } else {
            missing - current.capacity()
        };
        current
            .appended(self.buckets(), missing)
            .map(TableRaise::Append)
            .ok_or(Full)
    }

    /// Adds the capacity of a new filter of this layout.
    ///
    /// # Errors
    /// [`Full`] if no table can be that large. Then nothing has changed.
    pub(crate) fn raise(&mut self, to: Layout) -> Result<(), Full> {
        match self.plan_raise(&to)? {
            TableRaise::Nothing => {}
            TableRaise::StartOver => self.start_over(to),
            TableRaise::Double(plan) => {
                self.drop_copy();
                self.newest_mut().start_copy(Table::new(plan), 0);
                if self.newest().plan().buckets() <= BUCKETS_AT_ONCE {
                    self.copy_on(u64::MAX);
                }
            }
            TableRaise::Append(plan) => {
                self.drop_copy();
                self.push(Table::new(plan), 0);
            }
        }
        self.first = to;
        self.publish();
        Ok(())
    }

    /// The memory that [`Self::raise`] needs. If the filter is emptied before, it may start over instead.
    ///
    /// # Errors
    /// [`Full`] as for [`Self::raise`].
    pub fn raising(&self, to: &Layout) -> Result<MemoryNeed, Full> {
        let start_over = MemoryNeed::table(to.memory_bytes());
        let table = match self.plan_raise(to)? {
            TableRaise::Nothing => None,
            TableRaise::StartOver => return Ok(start_over),
            TableRaise::Double(plan) | TableRaise::Append(plan) => Some(plan),
        };
        let mut need = table.map_or_else(MemoryNeed::default, |plan| {
            MemoryNeed::table(plan.memory_bytes())
        });
        if self.first.step_bits > 0 {
            need += start_over.beyond(&need).temporary();
        }
        Ok(need)
    }

    /// The most memory that this many more items can make the filter need. The tables for fewer items are among those for more.
    pub fn growth(&self, items: u64) -> MemoryNeed {
        self.forecast(
            self.newest_plan(),
            self.newest().items(),
            self.buckets(),
            items,
        )
    }

    /// [`Self::growth`] of the filter once it is empty, its first table included.
    pub fn growth_from_empty(&self, items: u64) -> MemoryNeed {
        let first = TablePlan::first(self.mode, &self.first);
        let mut need = MemoryNeed::table(first.memory_bytes());
        need += self.forecast(first, 0, first.buckets(), items);
        need
    }

    fn forecast(&self, newest: TablePlan, held: u64, buckets: u64, items: u64) -> MemoryNeed {
        let mut forecast = Forecast {
            newest,
            held,
            buckets,
            need: MemoryNeed::default(),
        };
        if self.growth == Growth::Fixed || items == 0 {
            return forecast.need;
        }
        self.forecast_different(&mut forecast, items);
        if self.mode == Mode::Compact {
            let is_small = |newest: &TablePlan| newest.capacity() / CROWDING_ITEMS < items;
            for appended in 0..CROWDED_TABLES {
                if appended == 0 || is_small(&forecast.newest) {
                    self.forecast_crowded(&mut forecast, items);
                }
            }
        }
        forecast.need
    }

    /// Grows for different items.
    fn forecast_different(&self, forecast: &mut Forecast, mut items: u64) {
        while items > 0 && forecast.held.saturating_add(items) > forecast.newest.certain_items() {
            let Forecast {
                newest,
                held,
                buckets,
                ..
            } = *forecast;
            let Some(next) = successor(
                &newest,
                newest.capacity(),
                buckets,
                self.appended_items_min(),
            ) else {
                break;
            };
            if next.number > newest.number {
                items -= items.min(newest.certain_items().saturating_sub(held));
            }
            forecast.grow(next);
        }
    }

    /// Grows for an item that has no place because copies of a few items crowd their buckets, until a table is appended. That one takes
    /// this many items.
    fn forecast_crowded(&self, forecast: &mut Forecast, items: u64) {
        let number = forecast.newest.number;
        let items_min = self.appended_items_min().max(self.missing_capacity());
        while forecast.newest.number == number {
            let newest = forecast.newest;
            let held = forecast.held.saturating_add(items);
            let Some(next) = self.uncrowded(&newest, held, forecast.buckets, items_min) else {
                return;
            };
            forecast.grow(next);
        }
        self.forecast_different(forecast, items);
    }

    /// The part of the promised capacity that the tables lack as long as the newest one is not copied. In a filter that forgets, the items
    /// of older tables may expire, so those don't count.
    fn missing_capacity(&self) -> u64 {
        let all = self.tables.len();
        let counted = if self.first.step_bits > 0 {
            &self.tables[all - 1..]
        } else {
            &self.tables
        };
        let capacity = counted.iter().map(|table| table.plan().capacity()).sum();
        self.first.capacity().saturating_sub(capacity)
    }

    /// Minimum number of items of an appended table.
    pub(crate) fn appended_items_min(&self) -> u64 {
        self.first.appended_items_min()
    }

    /// What a copy of the filter is made of. The copy itself needs no writer.
    pub fn source(&self) -> CopySource {
        let tables = self
            .tables
            .iter()
            .map(|table| table.table.clone())
            .collect();
        CopySource {
            mode: self.mode,
            rule: self.rule,
            image: self.image(),
            tables,
        }
    }

    /// Freezes the tables as they are now, for a snapshot. The image describes everything except the contents of the chunks. `copied`
    /// counts the bytes that only the snapshot needs.
    pub(crate) fn freeze(&mut self, copied: &Arc<AtomicU64>) -> (FilterImage, Vec<FrozenTable>) {
        let frozen = self
            .tables
            .iter_mut()
            .map(|table| table.freeze(copied))
            .collect();
        (self.image(), frozen)
    }

    /// Describes everything except the contents of the tables.
    pub(crate) fn image(&self) -> FilterImage {
        let tables = self.tables.iter().map(|table| TableImage {
            id: table.id,
            plan: *table.plan(),
            items: table.items(),
            changes: table.changes,
        });
        let newest = self.newest();
        FilterImage {
            first: self.first,
            growth: self.growth,
            next_table: self.next_table,
            tables: tables.collect(),
            copy: newest
                .copy()
                .map(|(plan, done)| (plan.doublings - newest.plan().doublings, done)),
            steps: self.steps.as_ref().map(|steps| steps.image()),
            sweep: self.sweep.map(|(table, bucket)| (table as u64, bucket)),
            available_tag: newest.table.available_tag(),
        }
    }

    /// Builds the tables of an image, with contents if they can be loaded. Items are yet to be counted.
    ///
    /// # Errors
    /// When a chunk is missing, damaged or misplaced, or the image contradicts itself.
    pub(crate) fn restore<E>(
        mode: Mode,
        image: &FilterImage,
        mut load: Option<&mut Load<'_, E>>,
    ) -> Result<Self, RestoreError<E>> {
        image.check(mode).map_err(RestoreError::Image)?;
        let &FilterImage {
            first,
            growth,
            next_table,
            available_tag,
            ..
        } = image;
        let mut tables = Vec::with_capacity(image.tables.len());
        for of in &image.tables {
            let table = match &mut load {
                Some(load) => restore_table(of, load)?,
                None => Table::try_new(of.plan)?,
            };
            table.set_available_tag(available_tag);
            let mut writer = TableWriter::new(of.id, table, first.max_search);
            writer.changes = if load.is_some() { of.changes } else { 0 };
            tables.push(writer);
        }
        if let (Some(plan), Some((_, done)), Some(newest)) =
            (image.copy_plan(), image.copy, tables.last_mut())
        {
            newest.start_copy(Table::try_new(plan)?, done);
        }
        let restored = |steps| {
            let steps = Steps::restore(steps, first.step_bits).map(Box::new);
            steps.ok_or(RestoreError::Image("its steps contradict each other"))
        };
        let steps = image.steps.as_ref().map(restored).transpose()?;
        let rule = GrowthRule::default();
        let shared = SharedFilter::new(mode, published(&tables, steps.as_deref(), rule));
        let sweep = image.sweep.map(|(table, bucket)| (table as usize, bucket));
        Ok(Self {
            mode,
            first,
            growth,
            rule,
            next_table,
            tables,
            dropped: None,
            steps,
            sweep,
            shared,
        })
    }
}

fn published(tables: &[TableWriter], steps: Option<&Steps>, rule: GrowthRule) -> Published {
    let copy = tables
        .last()
        .and_then(TableWriter::copy)
        .map(|(plan, _)| plan);
    let all = tables.iter().map(|table| table.table.clone()).collect();
    Published::new(all, copy, steps.map(|steps| Box::new(steps.known())), rule)
}

/// Large tables that filters have dropped. To release one takes long, so it is done incrementally.
#[derive(Default)]
pub struct Dropped {
    /// Readers may still look at them.
    tables: VecDeque<Arc<Table>>,
    /// No reader uses them.
    remains: Vec<Remains>,
}

impl Dropped {
    /// Adds a table. A small one is released immediately, unless a snapshot needs it.
    fn push(&mut self, is_frozen: bool, table: Arc<Table>) {
        if table.words.is_mapped() || is_frozen {
            self.tables.push_back(table);
        }
    }

    /// Adds the contents of another, which is empty then.
    pub fn append(&mut self, other: &mut Self) {
        self.tables.append(&mut other.tables);
        self.remains.append(&mut other.remains);
    }

    /// Returns whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.tables.is_empty() && self.remains.is_empty()
    }

    /// Bytes that were not released yet.
    pub fn memory_bytes(&self) -> u64 {
        let tables: u64 = self.tables.iter().map(|table| table.memory_bytes()).sum();
        tables + self.remains.iter().map(Remains::bytes).sum::<u64>()
    }

    /// Releases about this many bytes, and returns their number. It is zero only if readers still look at all that is left.
    pub fn release(&mut self, bytes_max: u64) -> u64 {
        if bytes_max == 0 {
            return 0;
        }
        for _ in 0..self.tables.len() {
            match self.tables.pop_front().map(Arc::try_unwrap) {
                Some(Ok(table)) => self.remains.extend(table.words.into_remains()),
                Some(Err(table)) => self.tables.push_back(table),
                None => break,
            }
        }
        let mut released = 0;
        while let Some(last) = self.remains.last_mut().filter(|_| released < bytes_max) {
            released += last.release(bytes_max - released);
            if last.bytes() == 0 {
                self.remains.pop();
            }
        }
        released
    }
}
