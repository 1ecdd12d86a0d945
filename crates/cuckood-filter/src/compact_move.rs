//! How the items of compact filters move from table to table, a few with every change, so that no single one pays for all.
//!
//! A segment that is doubled has two tables: the items of the older one move to the newer one. A newest segment that is nearly empty is
//! folded into older ones that have room. While an item moves it is in both tables for a moment, and always in at least one.

use super::compact::CompactFilter;
use super::layout::{Expansion, Layout};
use super::segments::{self, BUCKETS_FOLDED, takes_items};
use super::writer::TableWriter;

/// Buckets of a segment that is being doubled whose items every change moves. The move is over once the larger table has got a few percent
/// more items.
const BUCKETS_MOVED: u64 = 4;

/// The newest segment is folded into older ones once fewer than one in so many of its slots is taken, if they have room.
const FOLD_BELOW: u64 = 64;

/// After folding, one in so many slots of the older segments must be free.
const SPARE_SLOTS: u64 = 16;

/// Whether the newest segment is nearly empty and can be spared. The older ones must have ample room for what is left in it. They must
/// also be large enough for the capacity that the filter was asked for.
fn is_worth_folding(older: &[TableWriter], newest: &TableWriter, first: &Layout) -> bool {
    newest.items() * FOLD_BELOW <= newest.table.slots()
        && older.iter().map(TableWriter::room).sum::<u64>() >= 2 * newest.items() + spare(older)
        && segments::capacity(older) >= first.capacity()
}

/// Room that must be left in older segments after a newer one is folded into them. Without it, the next few items would bring
/// the segment back, and folding would cost more than the removes that pay for it.
fn spare(older: &[TableWriter]) -> u64 {
    older.iter().map(|segment| segment.table.slots()).sum::<u64>() / SPARE_SLOTS + 1
}

impl CompactFilter {
    /// The older table of a segment that is being doubled, or of the newest of those that are.
    fn leaving(&self) -> Option<usize> {
        (1..self.set.tables.len())
            .map(|newer| newer - 1)
            .rfind(|&index| !takes_items(&self.set.tables, index))
    }

    /// The table that is being emptied, if any is.
    pub(super) fn draining(&self) -> usize {
        self.leaving().unwrap_or(self.set.tables.len() - 1)
    }

    /// Whether a segment is being doubled: it has two tables.
    pub(super) fn is_doubling(&self) -> bool {
        self.leaving().is_some()
    }

    /// Whether items are moving to another table. Then [`Self::move_items`] moves some, and so do removes; if a segment is being doubled,
    /// inserts do, too.
    pub fn is_moving(&self) -> bool {
        match self.leaving() {
            Some(index) => self.set.drained_buckets < self.set.tables[index].table.plan.buckets(),
            // In logs of version 1, only removes fold.
            None => self.set.drained_buckets > 0 && self.expansion() == Expansion::Doubling,
        }
    }

    /// Whether so many buckets can have been drained.
    pub(super) fn can_be_drained(&self, buckets: u64) -> bool {
        match self.leaving() {
            Some(index) => buckets <= self.set.tables[index].table.plan.buckets(),
            None => buckets < self.set.newest_plan().buckets(),
        }
    }

    /// Goes on with a move: empties so many more buckets.
    pub fn move_items(&mut self, buckets: u64) {
        if self.is_doubling() {
            self.double_on(buckets);
        } else if self.is_moving() {
            self.fold_on(buckets);
        }
    }

    /// Goes on with doubling a segment, because of an insert.
    #[inline]
    pub(super) fn note_insert(&mut self) {
        if self.set.tables.len() > 1 {
            self.double_on(BUCKETS_MOVED);
        }
    }

    /// Goes on with what moves, because of a remove; begins to fold the newest segment if it is nearly empty.
    #[inline(never)]
    pub(super) fn note_remove(&mut self) {
        match self.leaving() {
            Some(index) => {
                self.drain_again_at_times(index);
                self.double_on(BUCKETS_MOVED);
            }
            None => self.fold_on(BUCKETS_FOLDED),
        }
    }

    /// Copies that were left in the older table of a segment, because others crowded all their places, may have one now that those are
    /// gone. Nobody knows when: so they are tried again whenever half of all items have gone.
    fn drain_again_at_times(&mut self, index: usize) {
        let is_over = self.set.drained_buckets == self.set.tables[index].table.plan.buckets();
        if is_over && self.set.items().is_power_of_two() {
            self.set.drained_buckets = 0;
        }
    }

    /// Moves the items of so many more buckets from the older table of a segment that is being doubled to the newer one.
    fn double_on(&mut self, buckets: u64) {
        let Some(index) = self.leaving() else { return };
        let [older @ .., from, to] = &mut self.set.tables[..=index + 1] else { return };
        let last = from.table.plan.buckets().min(self.set.drained_buckets.saturating_add(buckets));
        let mut leftovers = Vec::new();
        for (bucket, slot, value) in taken_slots(from, self.set.drained_buckets, last) {
            if put(to, from, bucket, value) {
                from.free_slot(bucket, slot);
            } else if older.iter_mut().rev().any(|older| put(older, from, bucket, value)) {
                // Copies of a few items may crowd two buckets, though the table is half empty.
                leftovers.push((bucket, slot));
            }
            // Hardly ever is there no place at all. Then the item stays where it is found, too.
        }
        self.set.drained_buckets = last;
        if !leftovers.is_empty() {
            // Readers have looked at the older tables before: whoever misses an item from here on begins again.
            self.publish();
            leftovers.into_iter().for_each(|(bucket, slot)| self.set.tables[index].free_slot(bucket, slot));
        }
        if self.set.tables[index].items() == 0 {
            self.set.drop_drained(index);
            self.publish();
        }
    }

    /// The newest segment has got an item, perhaps in a bucket that was emptied already: if it was being folded, that starts over.
    pub(super) fn keep_newest(&mut self) {
        if !self.is_doubling() {
            self.set.drained_buckets = 0;
        }
    }

    /// Folds so many more buckets of the newest segment into older ones, once it is nearly empty and they have ample room.
    fn fold_on(&mut self, buckets_more: u64) {
        let [older @ .., newest] = &mut self.set.tables[..] else { return };
        if self.set.drained_buckets == 0 && !is_worth_folding(older, newest, &self.set.first) {
            return;
        }
        let buckets = newest.table.plan.buckets();
        let last = buckets.min(self.set.drained_buckets.saturating_add(buckets_more));
        for (bucket, slot, value) in taken_slots(newest, self.set.drained_buckets, last) {
            let moved = older
                .iter_mut()
                .rev()
                .any(|segment| segment.room() > 0 && put(segment, newest, bucket, value));
            if !moved {
                self.set.drained_buckets = 0;
                return;
            }
            newest.free_slot(bucket, slot);
        }
        self.set.drained_buckets = last;
        if last == buckets {
            let newest = older.len();
            self.set.drop_drained(newest);
            self.publish();
        }
    }
}

/// Puts an item of one table into another one that is not finer. Returns whether it has found a place.
fn put(to: &mut TableWriter, from: &TableWriter, bucket: u64, value: u64) -> bool {
    let (bucket, value) = from.table.carry(&to.table, bucket, value);
    to.insert_value(bucket, value).is_ok()
}

/// The bucket, the number and the value of each taken slot in some buckets.
fn taken_slots(table: &TableWriter, from: u64, to: u64) -> Vec<(u64, u32, u64)> {
    let mut taken = Vec::new();
    table.table.for_each_in(from..to, |bucket, slot, value| taken.push((bucket, slot, value)));
    taken
}
