//! Compact filters: multisets of fingerprints, which may forget each copy in its time.
//!
//! Tables nest: items that collide in one table collide in every older one ([`super::place::Nested`]). So a remove takes the copy in the
//! newest table: it may have been stored for another item that collides there, but then the copy that is left serves that item as well.
//!
//! An appended table has fingerprints that are one bit longer. So its error rate is at most half as high as that of the one before, and the
//! sum over all tables stays below twice the first one's.
//!
//! In a filter that forgets, the low bits of a slot are the tag of the step in which its copy was added ([`super::tags`]). So a lookup
//! compares as many slots as in another filter, however many steps there are. Copies are added to the newest table only. When a step is
//! forgotten, its items are no longer found, and inserts may take their slots. The other slots are freed incrementally
//! ([`Multiset::retire`]), before their tag is given to another step; an older table is dropped once it is empty.

use crate::chunk::FrozenTable;
use crate::hash::Digest;
use crate::image::FilterImage;
use crate::layout::{Growth, Layout, Mode};
use crate::reader::{Reader, Shared, Shown};
use crate::slots::LiveTags;
use crate::table::GROUP;
use crate::tables::{BUCKETS_COPIED, Full, Tables};
use crate::tags::{Insert, NoTag, SlotState, Steps};
use crate::writer::{NoPath, Stored, TableWriter};
use arc_swap::ArcSwap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// Words that an insert frees of forgotten items at a time, if it finds no room.
const WORDS_AT_ONCE: u64 = 1 << 16;

/// How often it does so before the filter grows.
const TRIES: usize = 4;

/// The writer's side of a compact filter.
pub(crate) struct Multiset {
    pub(crate) tables: Tables,
    pub(crate) steps: Option<Box<Steps>>,
    /// If it forgets: the table and the bucket at which freeing the slots of forgotten items continues.
    sweep: (usize, u64),
    shared: Arc<Shared>,
}

impl Multiset {
    /// An empty filter. If it forgets, it keeps items for this many steps after the one in which they were added; items that are added
    /// before the first [`Self::advance`] count as added in its step.
    pub(crate) fn new(layout: Layout, growth: Growth, kept: Option<u32>) -> Self {
        let steps = kept.map(|kept| Box::new(Steps::new(kept, layout.step_bits)));
        Self::over(Tables::new(Mode::Compact, layout, growth), steps, (0, 0))
    }

    fn over(tables: Tables, steps: Option<Box<Steps>>, sweep: (usize, u64)) -> Self {
        let shown = shown(&tables, steps.as_deref());
        let shared = Arc::new(Shared { shown: ArcSwap::from_pointee(shown), counts: Box::default() });
        Self { tables, steps, sweep, shared }
    }

    /// The filter of an image, over its tables. What they hold is yet to be counted.
    ///
    /// # Errors
    /// When the image contradicts itself.
    pub(crate) fn restore(image: &FilterImage, tables: Tables) -> Result<Self, &'static str> {
        let restore = |steps| Steps::restore(steps, image.first.step_bits).map(Box::new);
        let steps = image.steps.as_ref().map(|steps| restore(steps).ok_or("its steps contradict each other"));
        let (table, bucket) = image.sweep.unwrap_or_default();
        Ok(Self::over(tables, steps.transpose()?, (table as usize, bucket)))
    }

    /// Counts the items in some buckets of a table, by their steps if it forgets. Returns how many there are; none if a slot holds what no
    /// item has, or an item is of no step.
    pub(crate) fn count_in(&self, table: usize, buckets: Range<u64>) -> Option<u64> {
        let (mut taken, mut are_items) = (0, true);
        let table = &self.tables.tables[table].table;
        let tags = (1 << table.plan.tag_bits) - 1;
        table.for_each_in(buckets, |_, _, value| {
            taken += 1;
            are_items &= table.is_of_item(value);
            if let Some(steps) = &self.steps {
                are_items &= steps.has(value & tags);
                steps.count(value & tags);
            }
        });
        are_items.then_some(taken)
    }

    /// All items are counted: it is known which of them are forgotten.
    pub(crate) fn finish_counting(&mut self) {
        self.steps.iter_mut().for_each(|steps| steps.judge());
        self.publish();
    }

    pub(crate) fn reader(&self) -> Reader {
        Reader(self.shared.clone())
    }

    fn publish(&self) {
        self.shared.shown.store(Arc::new(shown(&self.tables, self.steps.as_deref())));
    }

    pub(crate) fn freeze(&mut self, copied: &Arc<AtomicU64>) -> (FilterImage, Vec<FrozenTable>) {
        let (mut image, frozen) = self.tables.freeze(copied);
        if let Some(steps) = &self.steps {
            (image.steps, image.sweep) = (Some(steps.image()), Some((self.sweep.0 as u64, self.sweep.1)));
        }
        (image, frozen)
    }

    /// Items that are not forgotten, every copy counted.
    pub(crate) fn items(&self) -> u64 {
        self.steps.as_ref().map_or_else(|| self.tables.items(), |steps| steps.live_items())
    }

    fn live(&self) -> LiveTags {
        self.steps.as_ref().map_or(LiveTags::NONE, |steps| steps.live())
    }

    /// Copies of an item that are not forgotten. Never too low; copies of colliding items count too.
    pub(crate) fn count(&self, digest: Digest) -> u32 {
        let live = self.live();
        self.tables.tables.iter().map(|table| table.table.count(digest, live)).sum()
    }

    /// The most copies that colliding items can have together: the slots of their two buckets.
    pub(crate) fn copies_max(&self) -> u32 {
        2 * u32::from(self.tables.newest().plan().bucket_size)
    }

    /// Adds a copy of an item. With `if_absent`, a copy that is present stays as old as it is.
    ///
    /// # Errors
    /// [`Full`] if there is no room and the filter can't grow (any further). Then it holds what it held before.
    pub(crate) fn insert(&mut self, digest: Digest, if_absent: bool) -> Result<Insert, Full> {
        if if_absent || self.tables.tables.len() > 1 {
            let copies = self.count(digest);
            if if_absent && copies > 0 {
                return Ok(Insert::Present(SlotState::Available));
            }
            if copies >= self.copies_max() {
                return Ok(Insert::Saturated);
            }
        }
        loop {
            // To make room may empty the filter, which drops its tags.
            let tag = self.tag();
            match self.store(digest, tag) {
                Ok(stored) => {
                    self.copy_on(BUCKETS_COPIED);
                    return Ok(self.note(tag, stored));
                }
                // A table that counts as full is not searched, so it has not reported that its buckets are full of copies.
                Err(NoPath) if self.count(digest) >= self.copies_max() => return Ok(Insert::Saturated),
                Err(NoPath) => self.make_room()?,
            }
        }
    }

    /// Stores a copy in an older table if its place there is free, otherwise in the newest one. Only that one is searched: copies that crowd
    /// their buckets in an older one would make each of them search in vain.
    fn store(&mut self, digest: Digest, tag: u64) -> Result<Stored, NoPath> {
        let live = self.live();
        let is_fixed = self.tables.growth == Growth::Fixed;
        let Some((newest, older)) = self.tables.tables.split_last_mut() else { return Err(NoPath) };
        if self.steps.is_none() && older.iter_mut().any(|table| table.room() > 0 && table.insert_free(digest))
        {
            return Ok(Stored::Free);
        }
        if is_fixed || newest.room() > 0 { newest.insert(digest, tag, live) } else { Err(NoPath) }
    }

    /// Makes room in the newest table, or replaces it, or appends another.
    fn make_room(&mut self) -> Result<(), Full> {
        // Slots of forgotten items count as free already, but a filter that grows may count as full because of them.
        let is_full = self.tables.growth == Growth::Auto && self.tables.newest().room() == 0;
        if is_full && (0..TRIES).any(|_| self.retire(WORDS_AT_ONCE) > 0 && self.tables.newest().room() > 0) {
            return Ok(());
        }
        let before = self.tables.newest().plan().doublings;
        self.tables.grow(self.tables.appended_items_min())?;
        self.after_growth(before);
        Ok(())
    }

    /// Copies more of the newest table, if it is being copied.
    #[inline]
    pub(crate) fn copy_on(&mut self, buckets: u64) {
        if self.tables.newest().is_copying() {
            let before = self.tables.newest().plan().doublings;
            if self.tables.copy_on(buckets) {
                self.after_growth(before);
            }
        }
    }

    fn after_growth(&mut self, doublings_before: u8) {
        let newest = self.tables.tables.len() - 1;
        if self.sweep.0 == newest && self.sweep.1 > 0 {
            self.sweep.1 <<= self.tables.newest().plan().doublings.saturating_sub(doublings_before);
        }
        self.publish();
    }

    /// Adds a copy of each of many items, all or none. If all fit, the result is the same as one by one.
    ///
    /// # Errors
    /// [`Full`] as for [`Self::insert`].
    pub(crate) fn insert_many(&mut self, digests: &[Digest], if_absent: bool) -> Result<Vec<Insert>, Full> {
        let mut outcomes = Vec::with_capacity(digests.len());
        if !if_absent
            && self.tables.tables.len() == 1
            && !digests.is_empty()
            && !self.tables.newest().is_copying()
        {
            let (tag, live) = (self.tag(), self.live());
            let is_fixed = self.tables.growth == Growth::Fixed;
            let only = self.tables.newest_mut();
            let room = if is_fixed { usize::MAX } else { only.room() as usize };
            let mut stored = Vec::with_capacity(digests.len().min(room));
            only.insert_many(&digests[..digests.len().min(room)], tag, live, &mut stored);
            outcomes.extend(stored.into_iter().map(|stored| self.note(tag, stored)));
        }
        for group in digests[outcomes.len()..].chunks(GROUP) {
            group.iter().for_each(|&digest| self.tables.prefetch(digest));
            for &digest in group {
                match self.insert(digest, if_absent) {
                    Ok(outcome) => outcomes.push(outcome),
                    Err(full) => {
                        let of = digests.iter().zip(&outcomes).rev();
                        let added = of.filter(|(_, outcome)| **outcome == Insert::Added);
                        added.for_each(|(&digest, _)| _ = self.remove(digest));
                        return Err(full);
                    }
                }
            }
        }
        Ok(outcomes)
    }

    /// The tag of items that are added now.
    fn tag(&mut self) -> u64 {
        let Some(steps) = &mut self.steps else { return 0 };
        if let Some(tag) = steps.tag() {
            return tag;
        }
        let tag = steps.begin().or_else(|NoTag| {
            // Few commands arrived, so a step whose tag is needed still has items.
            self.retire(u64::MAX);
            self.steps.as_mut().map_or(Ok(0), |steps| steps.begin())
        });
        self.publish();
        tag.expect("no item of a forgotten step is left")
    }

    /// Counts a stored item.
    #[inline(always)]
    fn note(&mut self, tag: u64, stored: Stored) -> Insert {
        if stored == Stored::Saturated {
            return Insert::Saturated;
        }
        if let Some(steps) = &mut self.steps {
            if let Stored::Over(forgotten) = stored {
                steps.discount(forgotten);
            }
            steps.count(tag);
        }
        Insert::Added
    }

    /// Removes a copy of an item: the one that was added last if copies differ. Returns whether there was one.
    pub(crate) fn remove(&mut self, digest: Digest) -> bool {
        let live = self.live();
        let Some(tag) = self.tables.tables.iter_mut().rev().find_map(|table| table.remove(digest, live))
        else {
            return false;
        };
        self.steps.iter_mut().for_each(|steps| steps.discount(tag));
        self.after_remove();
        true
    }

    fn after_remove(&mut self) {
        self.copy_on(BUCKETS_COPIED);
        if self.tables.items() == 0 && !self.tables.is_as_created() {
            self.start_over(self.tables.first);
        }
    }

    /// Removes one copy of each item, in order. Returns for each whether there was one.
    pub(crate) fn remove_many(&mut self, digests: &[Digest]) -> Vec<bool> {
        let mut removed = Vec::with_capacity(digests.len());
        if let [only] = &mut self.tables.tables[..]
            && self.steps.is_none()
            && only.plan().is_first()
        {
            only.remove_many(digests, &mut removed);
            self.after_remove();
            return removed;
        }
        for group in digests.chunks(GROUP) {
            group.iter().for_each(|&digest| self.tables.prefetch(digest));
            removed.extend(group.iter().map(|&digest| self.remove(digest)));
        }
        removed
    }

    /// Removes every copy of an item. Returns how many there were.
    pub(crate) fn remove_all(&mut self, digest: Digest) -> u32 {
        (0..).take_while(|_| self.remove(digest)).count() as u32
    }

    /// Removes everything and shrinks to the first table. Returns how many items there were that are not forgotten.
    pub(crate) fn clear(&mut self) -> u64 {
        let items = self.items();
        if self.tables.items() > 0 || !self.tables.is_as_created() {
            self.start_over(self.tables.first);
        }
        items
    }

    fn start_over(&mut self, first: Layout) {
        self.tables.start_over(first);
        self.note_start_over();
    }

    fn note_start_over(&mut self) {
        self.steps.iter_mut().for_each(|steps| steps.clear());
        self.sweep = (0, 0);
        self.publish();
    }

    /// Makes room for as many items as a filter of this layout starts with; its error rate and its steps must be this one's.
    ///
    /// # Errors
    /// [`Full`] if no table can be that large. Then nothing has changed.
    pub(crate) fn raise(&mut self, to: Layout) -> Result<(), Full> {
        let before = self.tables.newest().plan().doublings;
        if self.tables.raise(to)? {
            self.note_start_over();
        } else {
            self.after_growth(before);
        }
        Ok(())
    }

    /// Advances to a step, unless a later one has come already. Cheap, however many items are forgotten. Returns how many.
    pub(crate) fn advance(&mut self, step: u64) -> u64 {
        let Some(steps) = &mut self.steps else { return 0 };
        let before = steps.forgotten_items();
        let is_shown = steps.advance(step);
        let forgotten = steps.forgotten_items() - before;
        if is_shown {
            self.publish();
        }
        forgotten
    }

    /// Returns to an earlier step. Items that were added in later ones count as added in this one; forgotten ones stay forgotten.
    pub(crate) fn turn_back(&mut self, step: u64) {
        self.retire(u64::MAX);
        self.steps.iter_mut().for_each(|steps| steps.turn_back(step));
        self.publish();
    }

    fn forgotten_items(&self) -> u64 {
        self.steps.as_ref().map_or(0, |steps| steps.forgotten_items())
    }

    fn empty_older_table(&self) -> Option<usize> {
        let older = &self.tables.tables[..self.tables.tables.len() - 1];
        older.iter().position(|table| table.items() == 0).filter(|_| self.steps.is_some())
    }

    /// Returns whether [`Self::retire`] has something to do.
    pub(crate) fn is_retiring(&self) -> bool {
        self.forgotten_items() > 0 || self.empty_older_table().is_some()
    }

    /// Frees the slots of forgotten items, in this many more words or a few more. Returns how many words that were; none if
    /// nothing is left to do.
    pub(crate) fn retire(&mut self, words: u64) -> u64 {
        // Once around the tables, nothing that is forgotten is left. Twice is enough, however the words are rounded.
        let all: u64 = self.tables.tables.iter().map(|table| table.plan().words()).sum();
        let words = words.min(2 * all);
        let mut done = 0;
        while done < words && self.forgotten_items() > 0 {
            done += self.retire_some(words - done);
        }
        if done > 0 && self.tables.items() == 0 && !self.tables.is_as_created() {
            self.start_over(self.tables.first);
        }
        while let Some(empty) = self.empty_older_table() {
            self.tables.drop_empty(empty);
            self.sweep = (0, 0);
            done = done.max(1);
            self.publish();
        }
        done
    }

    fn retire_some(&mut self, words: u64) -> u64 {
        let (index, bucket) = self.sweep;
        let live = self.live();
        let Some(steps) = &mut self.steps else { return words };
        let table: &mut TableWriter = &mut self.tables.tables[index];
        let (buckets, lanes) = (table.plan().buckets(), table.table.lanes);
        let bits = u64::from(lanes.slots * lanes.bits);
        let last = buckets.min(bucket + (words.saturating_mul(64) / bits).max(1));
        table.free_forgotten(bucket..last, live, &mut |tag| steps.discount(tag));
        self.sweep =
            if last == buckets { ((index + 1) % self.tables.tables.len(), 0) } else { (index, last) };
        ((last - bucket) * bits).div_ceil(64)
    }
}

fn shown(tables: &Tables, steps: Option<&Steps>) -> Shown {
    let all = tables.tables.iter().map(|table| table.table.clone()).collect();
    Shown::new(all, tables.copy_plan(), steps.map(|steps| Box::new(steps.known())))
}
