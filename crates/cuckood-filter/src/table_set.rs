//! The tables of one filter: how they are numbered, replaced and snapshotted, which is the same in both modes.

use super::codec::{FilterImage, Load, RestoreError, TableId, TableImage, restore_table};
use super::dropped::Dropped;
use super::frozen::FrozenTable;
use super::hash::Digest;
use super::layout::{Expansion, Growth, Layout, Mode};
use super::plan::TablePlan;
use super::table::Table;
use super::writer::TableWriter;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// The tables of one filter, as its writer sees them.
///
/// A snapshot owns the tables that it [freezes](FrozenTable). A dropped table lives on until the snapshot lets go of it.
pub struct TableSet {
    /// The layout that the tables follow from.
    pub(super) layout: Layout,
    /// The layout that the filter begins with once it is empty: another one if its capacity was raised.
    pub(super) first: Layout,
    pub(super) growth: Growth,
    /// The number of the next table; none is given twice.
    next_table: u64,
    /// Oldest first; never empty.
    pub(super) tables: Vec<TableWriter>,
    /// So many of the oldest tables of a strict filter were cleared: what is available there is gone.
    pub(super) cleared: usize,
    /// Buckets that are empty already of the table that is being drained: of a compact filter, the older table of a segment that is being
    /// doubled, or else the newest segment, which is folded into older ones; the oldest of a strict one, whose items move to the newest.
    pub(super) drained_buckets: u64,
    /// Tables that the filter has dropped.
    dropped: Dropped,
}

/// No filter makes so many tables; only a forged image says so.
const TABLES_EVER_MAX: u64 = 1 << 48;

fn bytes(tables: &[TableWriter]) -> u64 {
    tables.iter().map(|table| table.table.memory_bytes()).sum()
}

impl TableSet {
    /// One empty table.
    pub(super) fn new(layout: Layout, growth: Growth, first: TablePlan) -> Self {
        let mut set = Self {
            layout,
            first: layout,
            growth,
            next_table: 0,
            tables: Vec::new(),
            cleared: 0,
            drained_buckets: 0,
            dropped: Dropped::default(),
        };
        set.add(first);
        set
    }

    /// The tables as readers share them.
    pub(super) fn shared(&self) -> Vec<Arc<Table>> {
        self.tables.iter().map(|table| table.table.clone()).collect()
    }

    /// The layout that the tables follow from.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// The table that was made last.
    pub(super) fn newest(&mut self) -> &mut TableWriter {
        self.tables.last_mut().expect("there is always a table")
    }

    /// The plan of the table that was made last.
    pub(super) fn newest_plan(&self) -> &TablePlan {
        &self.tables.last().expect("there is always a table").table.plan
    }

    /// How the filter takes more memory.
    pub(super) fn expansion(&self) -> Expansion {
        self.tables.first().map_or(Expansion::Segments, |first| first.table.plan.expansion())
    }

    /// Makes an empty table, which does not belong to the set yet.
    pub(super) fn make(&mut self, plan: TablePlan) -> TableWriter {
        let id = TableId(self.next_table);
        self.next_table += 1;
        TableWriter::new(id, plan, self.layout.max_search)
    }

    /// Adds an empty table.
    pub(super) fn add(&mut self, plan: TablePlan) {
        let table = self.make(plan);
        self.tables.push(table);
    }

    /// Adds an empty table, in the place of the newest one if that is empty too.
    pub(super) fn put_newest(&mut self, plan: TablePlan) {
        if let Some(idle) = self.idle() {
            let idle = self.tables.remove(idle);
            self.retire(idle);
        }
        self.add(plan);
    }

    /// The newest table, if it is empty and not the only one.
    pub(super) fn idle(&self) -> Option<usize> {
        let newest = self.tables.len() - 1;
        (newest > 0 && self.tables[newest].items() == 0).then_some(newest)
    }

    /// Puts one table in the place of all.
    pub(super) fn replace_all(&mut self, table: TableWriter) {
        self.replace_from(0, table);
    }

    /// Puts one table in the place of all from this one on. If the oldest is not among them, it goes on being drained.
    pub(super) fn replace_from(&mut self, from: usize, table: TableWriter) {
        let replaced: Vec<_> = self.tables.drain(from..).collect();
        self.tables.push(table);
        if from == 0 {
            (self.cleared, self.drained_buckets) = (0, 0);
        }
        replaced.into_iter().for_each(|table| self.retire(table));
    }

    /// Drops a table whose items have all gone elsewhere.
    pub(super) fn drop_drained(&mut self, index: usize) {
        let drained = self.tables.remove(index);
        debug_assert_eq!(drained.items(), 0, "every bucket was emptied, and nothing was put in since");
        self.cleared = self.cleared.saturating_sub(1);
        self.drained_buckets = 0;
        self.retire(drained);
    }

    /// Counts all tables but the newest as cleared.
    pub(super) fn clear_all_but_newest(&mut self) {
        self.cleared = self.tables.len() - 1;
    }

    /// Drops the tables that were cleared: nothing is left in them that counts.
    pub(super) fn drop_cleared(&mut self) {
        let cleared: Vec<_> = self.tables.drain(..self.cleared).collect();
        cleared.into_iter().for_each(|table| self.retire(table));
        (self.cleared, self.drained_buckets) = (0, 0);
    }

    fn retire(&mut self, table: TableWriter) {
        self.dropped.push(table.is_frozen(), table.table);
    }

    /// The tables that were dropped since the last call. Whoever takes them gives their memory back; until then it is held.
    pub fn take_dropped(&mut self) -> Dropped {
        std::mem::take(&mut self.dropped)
    }

    /// All tables, as dropped.
    pub(super) fn into_dropped(mut self) -> Dropped {
        let tables: Vec<_> = self.tables.drain(..).collect();
        tables.into_iter().for_each(|table| self.retire(table));
        self.dropped
    }

    /// Items in all tables.
    pub(super) fn items(&self) -> u64 {
        self.tables.iter().map(TableWriter::items).sum()
    }

    /// Asks for the cache lines that an item may lie in.
    #[inline]
    pub(super) fn prefetch(&self, digest: Digest) {
        self.tables.iter().for_each(|table| table.prefetch(digest));
    }

    /// Bytes of all tables. Tables that were cleared count only as far as they are larger than the others: a filter may be cleared though memory is short. Until it is done, only those are refused for that
    /// who ask for tables.
    pub fn memory_bytes(&self) -> u64 {
        let (cleared, live) = self.tables.split_at(self.cleared);
        bytes(cleared).max(bytes(live))
    }

    /// Bytes of tables that [`Self::memory_bytes`] leaves out.
    pub fn uncounted_bytes(&self) -> u64 {
        let (cleared, live) = self.tables.split_at(self.cleared);
        bytes(cleared).min(bytes(live))
    }

    /// How many bytes more that will be once all tables are cleared, and there is another one.
    pub(super) fn growth_when_cleared(&self, newest: TablePlan) -> u64 {
        let cleared = bytes(&self.tables).max(newest.memory().bytes);
        cleared.saturating_sub(self.memory_bytes())
    }

    /// Freezes the tables as they are now, for a snapshot. The image says everything but what lies in the chunks. `copied` counts the bytes
    /// that only the snapshot needs.
    pub fn freeze(&mut self, copied: &Arc<AtomicU64>) -> (FilterImage, Vec<FrozenTable>) {
        let frozen = self.tables.iter_mut().map(|table| table.freeze(copied)).collect();
        let tables = self.tables.iter().map(|table| TableImage {
            id: table.id,
            plan: table.table.plan,
            items: table.items(),
            changes: table.changes(),
        });
        let image = FilterImage {
            layout: self.layout,
            first: self.first,
            growth: self.growth,
            tables: tables.collect(),
            cleared_tables: self.cleared,
            next_table: self.next_table,
            drained_buckets: self.drained_buckets,
            forgetting: None,
        };
        (image, frozen)
    }

    /// Builds tables as those of an image, but empty. The caller has judged what its mode asks of the image, and that there is memory.
    ///
    /// # Errors
    /// When the image contradicts itself.
    pub(super) fn hollow<E>(mode: Mode, image: &FilterImage) -> Result<Self, RestoreError<E>> {
        Self::build(mode, image, |table| {
            if !table.plan.is_sane() {
                return Err(RestoreError::Image("a table has an impossible shape"));
            }
            Ok(TableWriter::new(table.id, table.plan, image.layout.max_search))
        })
    }

    /// Builds the tables of a snapshot. The caller has judged what its mode asks of the image.
    ///
    /// # Errors
    /// When a chunk is missing, damaged or belongs elsewhere, or the image contradicts itself.
    pub(super) fn restore<E>(
        mode: Mode,
        image: &FilterImage,
        load: &mut Load<'_, E>,
    ) -> Result<Self, RestoreError<E>> {
        Self::build(mode, image, |table| {
            let restored = restore_table(table, load)?;
            Ok(TableWriter::resume(table.id, restored, table.changes, image.layout.max_search))
        })
    }

    fn build<E>(
        mode: Mode,
        image: &FilterImage,
        mut make: impl FnMut(&TableImage) -> Result<TableWriter, RestoreError<E>>,
    ) -> Result<Self, RestoreError<E>> {
        if image.first.check(mode).is_err() || image.layout.check(mode).is_err() {
            return Err(RestoreError::Image("a filter can't begin with this layout"));
        }
        if image.next_table > TABLES_EVER_MAX {
            return Err(RestoreError::Image("no filter can have made so many tables"));
        }
        let FilterImage { layout, first, growth, next_table, drained_buckets, .. } = *image;
        let mut tables = Vec::with_capacity(image.tables.len());
        for table in &image.tables {
            if table.id.0 >= next_table {
                return Err(RestoreError::Image("a table has a number that was never given"));
            }
            tables.push(make(table)?);
        }
        if tables.is_empty() {
            return Err(RestoreError::Image("a filter has no table"));
        }
        Ok(Self {
            layout,
            first,
            growth,
            next_table,
            tables,
            cleared: image.cleared_tables,
            drained_buckets,
            dropped: Dropped::default(),
        })
    }
}
