//! Compact filters: multisets of fingerprints, which may forget each copy in its time.
//!
//! Tables nest: items that collide in one table collide in every older one ([`super::place::Nested`]). So a remove takes the copy in the
//! newest table: it may have been stored for another item that collides there, but then the copy that is left serves that item as well.
//!
//! An appended table has fingerprints that are one bit longer. So its error rate is at most half as high as that of the one before, and the
//! sum over all tables stays below twice the first one's.
//!
//! In a filter that forgets, the low bits of a slot are the tag of the step in which its copy was added ([`super::tags`]). So the cost of a
//! lookup doesn't depend on the number of steps. Copies are added to the newest table, unless their buckets there are crowded. When a step is forgotten, its items are no
//! longer found, and inserts may take their slots. The other slots are freed incrementally ([`Multiset::retire`]), before their tag is
//! given to another step; an older table is dropped once it is empty.

use crate::hash::Digest;
use crate::layout::{Growth, GrowthRule};
use crate::slots::LiveTags;
use crate::tables::{BUCKETS_COPIED, Full, Tables};
use crate::tags::{InsertOutcome, SlotState};
use crate::writer::{NoPath, Stored, TableWriter};
use std::ops::Range;

/// Words of forgotten items that an insert frees at a time, if it finds no free slot.
const WORDS_AT_ONCE: u64 = 1 << 16;

/// How often it does so before the filter grows.
const TRIES: usize = 4;

/// The writer's side of a compact filter.
pub(crate) struct Multiset {
    pub(crate) tables: Tables,
}

impl Multiset {
    /// Counts the items in some buckets of a table, by their steps if it forgets. Returns how many there are; none if one is of no step.
    pub(crate) fn count_in(&self, table: usize, buckets: Range<u64>) -> Option<u64> {
        let mut taken = 0;
        let mut have_steps = true;
        let table = &self.tables.tables[table].table;
        let tags = (1 << table.plan.tag_bits) - 1;
        table.for_each_in(buckets, |_, _, value| {
            taken += 1;
            if let Some(steps) = &self.tables.steps {
                have_steps &= steps.has(value & tags);
                steps.count(value & tags);
            }
        });
        have_steps.then_some(taken)
    }

    /// Items that are not forgotten, every copy counted.
    pub(crate) fn items(&self) -> u64 {
        self.tables
            .steps
            .as_ref()
            .map_or_else(|| self.tables.items(), |steps| steps.live_items())
    }

    #[inline(always)]
    fn live(&self) -> LiveTags {
        self.tables
            .steps
            .as_ref()
            .map_or(LiveTags::NONE, |steps| steps.live())
    }

    /// Copies of an item that are not forgotten. Never too low; copies of colliding items count too.
    pub(crate) fn count(&self, digest: Digest) -> u32 {
        let live = self.live();
        self.tables
            .tables
            .iter()
            .map(|table| table.table.count(digest, live))
            .sum()
    }

    /// Adds a copy of an item. With `if_absent`, an existing copy keeps its age.
    ///
    /// # Errors
    /// [`Full`] if no slot is free and the filter can't grow (any further). The filter is unchanged then.
    #[inline]
    pub(crate) fn insert(
        &mut self,
        digest: Digest,
        if_absent: bool,
    ) -> Result<InsertOutcome, Full> {
        if (if_absent || self.tables.tables.len() > 1)
            && let Some(rejected) = self.reject(digest, if_absent)
        {
            return Ok(rejected);
        }
        match self.try_insert(digest) {
            Ok(outcome) => Ok(outcome),
            Err(NoPath) => self.insert_growing(digest),
        }
    }

    /// Returns the outcome if a copy is not to be added because of those that exist.
    #[inline(never)]
    fn reject(&self, digest: Digest, if_absent: bool) -> Option<InsertOutcome> {
        let copies = self.count(digest);
        if if_absent && copies > 0 {
            Some(InsertOutcome::Present(SlotState::Available))
        } else {
            (copies >= self.tables.newest().plan().copies_max()).then_some(InsertOutcome::Saturated)
        }
    }

    #[inline(always)]
    fn try_insert(&mut self, digest: Digest) -> Result<InsertOutcome, NoPath> {
        let tag = self.tag();
        let stored = self.store(digest, tag)?;
        self.tables.copy_on(BUCKETS_COPIED);
        Ok(self.note(tag, stored))
    }

    /// Adds a copy of an item that found no place. It is a separate function, so that the usual case needs little stack.
    #[cold]
    #[inline(never)]
    fn insert_growing(&mut self, digest: Digest) -> Result<InsertOutcome, Full> {
        loop {
            // A table that counts as full is not searched, so it has not reported that its buckets are full of copies.
            if self.count(digest) >= self.tables.newest().plan().copies_max() {
                return Ok(InsertOutcome::Saturated);
            }
            self.make_room()?;
            // Freeing slots may empty the filter, which drops its tags.
            if let Ok(outcome) = self.try_insert(digest) {
                return Ok(outcome);
            }
        }
    }

    /// Stores a copy in an older table if its place there is free, otherwise in the newest one. Only that one is searched: copies that crowd
    /// their buckets in an older one would make each of them search in vain.
    ///
    /// A filter that forgets stores it in the newest table, so that older ones empty. Only if copies crowd its buckets there, it takes a
    /// free slot of an older one ([`GrowthRule::Paced`]): without that, each table would be appended after a few items.
    #[inline(always)]
    fn store(&mut self, digest: Digest, tag: u64) -> Result<Stored, NoPath> {
        let live = self.live();
        let forgets = self.tables.steps.is_some();
        if !forgets
            && self.tables.tables.len() > 1
            && let Ok(stored) = self.store_in_older(digest, tag)
        {
            return Ok(stored);
        }
        let is_fixed = self.tables.growth == Growth::Fixed;
        let newest = self.tables.newest_mut();
        if !is_fixed && newest.room() == 0 {
            return Err(NoPath);
        }
        match newest.insert(digest, tag, live) {
            Err(NoPath) if forgets && self.tables.rule() == GrowthRule::Paced => {
                self.store_in_older(digest, tag)
            }
            stored => stored,
        }
    }

    /// Stores a copy in an older table if its place there is free.
    #[inline(never)]
    fn store_in_older(&mut self, digest: Digest, tag: u64) -> Result<Stored, NoPath> {
        let live = self.live();
        let Some((_, older)) = self.tables.tables.split_last_mut() else {
            return Err(NoPath);
        };
        let mut with_room = older.iter_mut().filter(|table| table.room() > 0);
        with_room
            .find_map(|table| table.insert_free(digest, tag, live))
            .ok_or(NoPath)
    }

    /// Frees slots in the newest table, or replaces it, or appends another.
    fn make_room(&mut self) -> Result<(), Full> {
        // Slots of forgotten items count as free already, but a filter that grows may count as full because of them.
        let is_full = self.tables.growth == Growth::Auto && self.tables.newest().room() == 0;
        if is_full
            && (0..TRIES).any(|_| self.retire(WORDS_AT_ONCE) > 0 && self.tables.newest().room() > 0)
        {
            return Ok(());
        }
        self.tables.grow(self.tables.appended_items_min())
    }

    /// Adds a copy of each of the first of many items, as long as the only table takes them. Reports the effects.
    pub(crate) fn insert_first(&mut self, digests: &[Digest], outcomes: &mut Vec<InsertOutcome>) {
        if self.tables.tables.len() > 1
            || digests.is_empty()
            || self.tables.newest().copy().is_some()
        {
            return;
        }
        let tag = self.tag();
        let live = self.live();
        let is_fixed = self.tables.growth == Growth::Fixed;
        let only = self.tables.newest_mut();
        let room = if is_fixed {
            usize::MAX
        } else {
            only.room() as usize
        };
        let mut stored = Vec::with_capacity(digests.len().min(room));
        only.insert_many(&digests[..digests.len().min(room)], tag, live, &mut stored);
        outcomes.extend(stored.into_iter().map(|stored| self.note(tag, stored)));
    }

    /// The tag of items that are added now.
    #[inline(always)]
    fn tag(&mut self) -> u64 {
        match &self.tables.steps {
            None => 0,
            Some(steps) => steps.tag().unwrap_or_else(|| self.begin_step()),
        }
    }

    /// Returns the tag of a step that has none yet.
    #[cold]
    #[inline(never)]
    fn begin_step(&mut self) -> u64 {
        let Some(steps) = &mut self.tables.steps else {
            return 0;
        };
        let tag = steps.begin().or_else(|| {
            // Few commands arrived, so a step whose tag is needed still has items.
            self.retire(u64::MAX);
            self.tables
                .steps
                .as_mut()
                .map_or(Some(0), |steps| steps.begin())
        });
        self.tables.publish();
        tag.expect("no item of a forgotten step is left")
    }

    /// Counts a stored item.
    #[inline(always)]
    fn note(&mut self, tag: u64, stored: Stored) -> InsertOutcome {
        if stored == Stored::Saturated {
            return InsertOutcome::Saturated;
        }
        if let Some(steps) = &mut self.tables.steps {
            if let Stored::Over(forgotten) = stored {
                steps.discount(forgotten);
            }
            steps.count(tag);
        }
        InsertOutcome::Added
    }

    /// Removes a copy of an item: the one that was added last to the newest table that has any. Returns whether there was one.
    #[inline]
    pub(crate) fn remove(&mut self, digest: Digest) -> bool {
        self.remove_live(digest, self.live())
    }

    /// Takes back the copy of an item that was just added. If that is in an older table, [`Self::remove`] would take one of an earlier step,
    /// and the item would be forgotten too late.
    pub(crate) fn take_back(&mut self, digest: Digest) {
        let present = match (&self.tables.steps, self.tables.rule()) {
            (Some(steps), GrowthRule::Paced) => steps.tag().map(LiveTags::only),
            (Some(_), GrowthRule::Immediate) | (None, _) => None,
        };
        self.remove_live(digest, present.unwrap_or_else(|| self.live()));
    }

    #[inline(always)]
    fn remove_live(&mut self, digest: Digest, live: LiveTags) -> bool {
        for table in self.tables.tables.iter_mut().rev() {
            let Some(tag) = table.remove(digest, live) else {
                continue;
            };
            let is_empty = table.items() == 0;
            if let Some(steps) = &mut self.tables.steps {
                steps.discount(tag);
            }
            self.tables.copy_on(BUCKETS_COPIED);
            if is_empty {
                self.tables.shrink_if_empty();
            }
            return true;
        }
        false
    }

    /// Removes one copy of each item if there is only the first table, without tags. Returns for each whether there was one.
    pub(crate) fn remove_many(&mut self, digests: &[Digest]) -> Option<Vec<bool>> {
        let [only] = &mut self.tables.tables[..] else {
            return None;
        };
        if self.tables.steps.is_some() || !only.plan().is_first() {
            return None;
        }
        let mut removed = Vec::with_capacity(digests.len());
        only.remove_many(digests, &mut removed);
        self.tables.copy_on(BUCKETS_COPIED);
        self.tables.shrink_if_empty();
        Some(removed)
    }

    /// Removes everything and shrinks to the first table. Returns how many items there were that are not forgotten.
    pub(crate) fn clear(&mut self) -> u64 {
        let items = self.items();
        if self.tables.items() > 0 || !self.tables.is_as_created() {
            self.tables.start_over(self.tables.first);
        }
        items
    }

    /// Advances to a step, unless a later one was reached. Cheap, whatever the number of items to forget. Returns that number.
    pub(crate) fn advance(&mut self, step: u64) -> u64 {
        let Some(steps) = &mut self.tables.steps else {
            return 0;
        };
        let before = steps.forgotten_items();
        let is_published = steps.advance(step);
        let forgotten = steps.forgotten_items() - before;
        if is_published {
            self.tables.publish();
        }
        forgotten
    }

    /// Returns to an earlier step. Items that were added in later ones count as added in this one; forgotten ones stay forgotten.
    pub(crate) fn turn_back(&mut self, step: u64) {
        self.retire(u64::MAX);
        self.tables
            .steps
            .iter_mut()
            .for_each(|steps| steps.turn_back(step));
        self.tables.publish();
    }

    fn forgotten_items(&self) -> u64 {
        self.tables
            .steps
            .as_ref()
            .map_or(0, |steps| steps.forgotten_items())
    }

    fn empty_older_table(&self) -> Option<usize> {
        let older = &self.tables.tables[..self.tables.tables.len() - 1];
        older
            .iter()
            .position(|table| table.items() == 0)
            .filter(|_| self.tables.steps.is_some())
    }

    /// Returns whether [`Self::retire`] has something to do.
    pub(crate) fn is_retiring(&self) -> bool {
        self.forgotten_items() > 0 || self.empty_older_table().is_some()
    }

    /// Frees the slots of forgotten items, in this many more words or a few more. Returns how many words that were; none if
    /// nothing is left to do.
    pub(crate) fn retire(&mut self, words: u64) -> u64 {
        // Once around the tables, nothing that is forgotten is left. Twice is enough, however the words are rounded.
        let all: u64 = self
            .tables
            .tables
            .iter()
            .map(|table| table.plan().words())
            .sum();
        let words = words.min(2 * all);
        let mut done = 0;
        while done < words && self.forgotten_items() > 0 {
            done += self.retire_some(words - done);
        }
        if done > 0 {
            self.tables.shrink_if_empty();
        }
        while let Some(empty) = self.empty_older_table() {
            self.tables.drop_empty(empty);
            done = done.max(1);
        }
        done
    }

    fn retire_some(&mut self, words: u64) -> u64 {
        let (index, bucket) = self.tables.sweep.unwrap_or_default();
        let live = self.live();
        let Some(steps) = &mut self.tables.steps else {
            return words;
        };
        let table: &mut TableWriter = &mut self.tables.tables[index];
        let buckets = table.plan().buckets();
        let lanes = table.table.lanes;
        let bits = u64::from(lanes.slots * lanes.bits);
        let last = buckets.min(bucket + (words.saturating_mul(64) / bits).max(1));
        table.free_forgotten(bucket..last, live, &mut |tag| steps.discount(tag));
        let next = if last == buckets {
            ((index + 1) % self.tables.tables.len(), 0)
        } else {
            (index, last)
        };
        self.tables.sweep = Some(next);
        ((last - bucket) * bits).div_ceil(64)
    }
}
