//! Filters that forget: compact filters in which every copy ages by itself.
//!
//! Time is cut into steps ([`super::steps`]). A slot holds, beside the fingerprint, the tag of the step in which its item was added
//! ([`super::live`]). So a look-up compares as many slots as in a compact filter, however many steps there are, and the error rate
//! is the same.
//!
//! When a step is forgotten, its items are no longer found, and inserts may take their slots. The other slots are freed little by
//! little ([`ForgettingFilter::retire`]), before their tag is given to another step.
//!
//! Segments nest as in [`super::compact`], for the same reason. They are not folded: a newer segment empties as its items are
//! forgotten, and is then dropped.

use super::codec::{FilterImage, ForgettingImage, Load, RestoreError};
use super::copies::Copies;
use super::dropped::Dropped;
use super::forgetting_view::{ForgettingReader, Shared};
use super::frozen::FrozenTable;
use super::hash::Digest;
use super::insert::{Full, Insert};
use super::layout::{Expansion, Growth, Layout, Mode};
use super::memory::MemoryNeed;
use super::plan::TablePlan;
use super::segments::{self, Raise};
use super::slot_state::SlotState;
use super::slots::Lanes;
use super::stepped::{LiveCopy, Stored};
use super::steps::{NoTag, Steps};
use super::table_set::TableSet;
use super::writer::{NoPath, TableWriter};
use arc_swap::ArcSwap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// Words that an insert frees of forgotten items at a time, if it finds no room.
const WORDS_AT_ONCE: u64 = 1 << 16;

/// How often it does so before the filter grows.
const TRIES: usize = 4;

/// The writer's side of a filter that forgets.
pub struct ForgettingFilter {
    /// The segments.
    set: TableSet,
    steps: Steps,
    /// The table and the bucket at which the removing of forgotten items goes on.
    next: (usize, u64),
    shared: Arc<ArcSwap<Shared>>,
}

impl ForgettingFilter {
    /// An empty filter. It keeps items for so many steps after the one in which they were added. Items that are added before the first
    /// [`Self::advance`] count as added in its step.
    ///
    /// # Panics
    /// If the layout has no bits for so many steps: [`Layout::with_steps`] gives it them.
    pub fn new(layout: Layout, growth: Growth, kept: u32) -> Self {
        let fitting = layout.with_steps(kept).map(|layout| layout.step_bits);
        assert_eq!(fitting, Ok(layout.step_bits), "the layout is made for so many steps");
        let steps = Steps::new(kept, u32::from(layout.step_bits));
        Self::over(TableSet::new(layout, growth, begin(&layout)), steps, (0, 0))
    }

    fn over(set: TableSet, steps: Steps, next: (usize, u64)) -> Self {
        let shared = Shared { tables: set.shared(), steps: steps.known() };
        Self { set, steps, next, shared: Arc::new(ArcSwap::from_pointee(shared)) }
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
    pub fn reader(&self) -> ForgettingReader {
        ForgettingReader { shared: self.shared.clone() }
    }

    fn publish(&self) {
        self.shared.store(Arc::new(Shared { tables: self.set.shared(), steps: self.steps.known() }));
    }

    /// For how many steps after their own it keeps items.
    pub fn kept(&self) -> u32 {
        self.steps.kept()
    }

    /// The step that it is in; none before the first [`Self::advance`].
    pub fn step(&self) -> Option<u64> {
        self.steps.now()
    }

    /// Goes on to a step, unless a later one has come already. Cheap, however much is forgotten by that.
    pub fn advance(&mut self, step: u64) {
        if self.steps.advance(step) {
            self.publish();
        }
    }

    /// Goes back to a step. What was added in later ones counts as added in this one; what is forgotten stays so.
    pub fn turn_back(&mut self, step: u64) {
        self.retire(u64::MAX);
        self.steps.turn_back(step);
        self.publish();
    }

    /// Items that are not forgotten.
    pub fn items(&self) -> u64 {
        self.steps.live_items()
    }

    /// The oldest step that has items which are not forgotten.
    pub fn oldest_step(&self) -> Option<u64> {
        self.steps.oldest()
    }

    /// Copies of an item that are not forgotten. Never too low; copies of items that look alike count too.
    pub fn count(&self, digest: Digest) -> u32 {
        let live = self.steps.live();
        self.set.tables.iter().map(|segment| segment.table.count_live(digest, live)).sum()
    }

    /// The most copies that items which look alike can have together: the slots of their two buckets.
    pub fn copies_max(&self) -> u32 {
        2 * u32::from(self.set.layout.bucket_size)
    }

    /// Adds a copy of an item. With `if_absent` a copy that is there stays as old as it is.
    ///
    /// # Errors
    /// [`Full`] if there is no room and the filter can't grow (any further). Then it holds what it held before.
    pub fn insert(&mut self, digest: Digest, if_absent: bool) -> Result<Insert, Full> {
        if if_absent || self.set.tables.len() > 1 {
            let copies = self.count(digest);
            if if_absent && copies > 0 {
                return Ok(Insert::Present(SlotState::Available));
            }
            if copies >= self.copies_max() {
                return Ok(Insert::Saturated);
            }
        }
        let tag = self.tag();
        for _ in 0..=TRIES {
            let live = self.steps.live();
            for segment in &mut self.set.tables {
                let has_room = self.set.growth == Growth::Fixed || segment.room() > 0;
                if has_room && let Ok(stored) = segment.insert_live(digest, tag, live) {
                    return Ok(note(&mut self.steps, tag, stored));
                }
            }
            // Slots of forgotten items count as free already, but a filter that grows may count as full because of them.
            if self.set.growth == Growth::Fixed || self.retire(WORDS_AT_ONCE) == 0 {
                break;
            }
        }
        self.grow()?;
        let stored = self.set.newest().insert_live(digest, tag, self.steps.live());
        Ok(note(&mut self.steps, tag, stored.map_err(|NoPath| Full)?))
    }

    /// Adds a copy of each of many items, all or none.
    ///
    /// # Errors
    /// [`Full`] as for [`Self::insert`].
    pub fn insert_many(&mut self, digests: &[Digest], if_absent: bool) -> Result<Vec<Insert>, Full> {
        let mut outcomes = Vec::with_capacity(digests.len());
        if !if_absent && self.set.tables.len() == 1 && !digests.is_empty() {
            let (tag, live) = (self.tag(), self.steps.live());
            let only = &mut self.set.tables[0];
            let room = if self.set.growth == Growth::Fixed { usize::MAX } else { only.room() as usize };
            let fitting = &digests[..digests.len().min(room)];
            only.insert_many_live(fitting, tag, live, |stored| {
                outcomes.push(note(&mut self.steps, tag, stored));
            });
        }
        self.add_rest(digests, if_absent, outcomes)
    }

    /// The tag of items that are added now.
    fn tag(&mut self) -> u32 {
        if let Some(tag) = self.steps.tag() {
            return tag;
        }
        let tag = self.steps.begin().unwrap_or_else(|NoTag| {
            // So few commands came since that a step whose tag is needed still has items.
            self.retire(u64::MAX);
            self.steps.begin().expect("no tag is in use any more for what is forgotten")
        });
        self.publish();
        tag
    }

    /// Removes the copy of an item that was added last. Returns whether there was one.
    ///
    /// A slot is freed only in the newest segment that has a copy, as in a compact filter: in an older one it may be another item's.
    /// If a copy in an older segment was added later, it gets the age of the one that goes.
    pub fn remove(&mut self, digest: Digest) -> bool {
        let live = self.steps.live();
        let segments = self.set.tables.iter().enumerate().rev();
        let mut copies =
            segments.filter_map(|(index, segment)| Some((index, segment.newest_live(digest, live)?)));
        let Some((from, leaving)) = copies.next() else { return false };
        let newer = |newest: (usize, LiveCopy), copy: (usize, LiveCopy)| {
            if copy.1.order > newest.1.order { copy } else { newest }
        };
        let (index, newest) = copies.fold((from, leaving), newer);
        if newest.order > leaving.order {
            self.set.tables[index].set_tag(&newest, leaving.tag);
        }
        self.set.tables[from].free_copy(&leaving);
        self.steps.discount(newest.tag);
        true
    }

    /// Removes one copy of each item, in order. Returns for each whether there was one.
    pub fn remove_many(&mut self, digests: &[Digest]) -> Vec<bool> {
        self.take_each(digests)
    }

    /// Removes every copy of an item. Returns how many there were.
    pub fn remove_all(&mut self, digest: Digest) -> u32 {
        self.take_all(digest)
    }

    /// Removes everything and shrinks to the first segment. Returns how many items there were that are not forgotten.
    pub fn clear(&mut self) -> u64 {
        let items = self.items();
        if self.set.items() > 0 || self.set.tables.len() > 1 {
            self.begin_anew(self.set.first);
        }
        items
    }

    fn begin_anew(&mut self, first: Layout) {
        (self.set.layout, self.set.first) = (first, first);
        let begin = self.set.make(begin(&first));
        self.set.replace_all(begin);
        self.steps.clear();
        self.next = (0, 0);
        self.publish();
    }

    /// Makes room for as many items as a filter of this layout begins with; its error rate and its steps must be this one's.
    ///
    /// # Errors
    /// [`Full`] if no segment can be so large. Then nothing has changed.
    pub fn raise(&mut self, first: Layout) -> Result<(), Full> {
        match segments::plan_raise(&self.set, &first)? {
            Raise::Nothing => {}
            Raise::Anew => self.begin_anew(first),
            Raise::Table(plan) => {
                self.set.put_newest(plan);
                self.next = (0, 0);
                self.publish();
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
        segments::raising(&self.set, first)
    }

    /// The most memory that [`Self::raise`] may ask for if slots of forgotten items are freed before, and segments dropped. Then it may also
    /// succeed where it would fail now.
    pub fn raising_at_most(&self, first: &Layout) -> MemoryNeed {
        segments::raising_at_most(&self.set, first)
    }

    /// Forgotten items whose slots are not free yet.
    pub fn forgotten_items(&self) -> u64 {
        self.steps.forgotten_items()
    }

    /// Whether [`Self::retire`] has something to do.
    pub fn is_retiring(&self) -> bool {
        self.steps.forgotten_items() > 0 || self.has_spare_segment()
    }

    /// Goes on freeing the slots of forgotten items, in so many more words or a few more. Returns how many words that were; none if
    /// nothing is left to do.
    pub fn retire(&mut self, words: u64) -> u64 {
        // Once around the tables, nothing that is forgotten is left. Twice is enough, however the words are rounded.
        let all: u64 = self.set.tables.iter().map(|segment| segment.table.plan.words()).sum();
        let words = words.min(2 * all);
        let mut done = 0;
        while done < words && self.steps.forgotten_items() > 0 {
            done += self.retire_some(words - done);
        }
        let before = self.set.tables.len();
        while self.has_spare_segment() {
            self.set.drop_drained(self.set.tables.len() - 1);
            done = done.max(1);
        }
        if self.set.tables.len() < before {
            if self.next.0 >= self.set.tables.len() {
                self.next = (0, 0);
            }
            self.publish();
        }
        done
    }

    fn retire_some(&mut self, words: u64) -> u64 {
        let live = self.steps.live();
        let (index, bucket) = self.next;
        let segment = &mut self.set.tables[index];
        let buckets = segment.table.plan.buckets();
        let bits = bucket_bits(&segment.table.lanes);
        let last = buckets.min(bucket + (words.saturating_mul(64) / bits).max(1));
        segment.free_forgotten(bucket..last, live, |tag| self.steps.discount(tag));
        self.next = if last == buckets { ((index + 1) % self.set.tables.len(), 0) } else { (index, last) };
        ((last - bucket) * bits).div_ceil(64)
    }

    /// Whether the newest segment is empty and can be spared. The older ones must be so empty that it will not be needed again soon. They
    /// must also be large enough for the capacity that the filter was asked for.
    fn has_spare_segment(&self) -> bool {
        let Some(idle) = self.set.idle() else { return false };
        let older = &self.set.tables[..idle];
        let sure: u64 =
            older.iter().map(|segment| self.set.layout.sure_items(&segment.table.plan.layout())).sum();
        2 * older.iter().map(TableWriter::items).sum::<u64>() < sure
            && older.iter().map(TableWriter::capacity).sum::<u64>() >= self.set.first.capacity()
    }

    /// The most memory that so many more items can make the filter ask for.
    pub fn growth(&self, items: u64) -> MemoryNeed {
        self.growth_of(&self.set.layout, &segments::filled(&self.set), items)
    }

    /// As [`Self::growth`], of a filter that is empty and has only its first segment.
    pub fn growth_from_empty(&self, items: u64) -> MemoryNeed {
        let first = &self.set.first;
        self.growth_of(first, &[(begin(first), 0)], items)
    }

    fn growth_of(&self, layout: &Layout, tables: &[(TablePlan, u64)], items: u64) -> MemoryNeed {
        if self.set.growth == Growth::Fixed || items == 0 {
            return MemoryNeed::default();
        }
        let outlook = segments::outlook(layout, tables, items);
        let mut need = outlook.need;
        // A segment that is dropped while these items come may be added again, once the older ones have taken half of what they can.
        let first = begin(layout);
        let sure = layout.sure_items(&first.layout());
        let again = items / (sure / 2).max(1);
        let last = outlook.plans.last().or(tables.last().map(|(plan, _)| plan)).map_or(0, TablePlan::segment);
        for plan in segments::after_first(first, last) {
            let memory = plan.memory();
            if memory.mapped_bytes() > 0 && sure > 0 {
                (0..again).for_each(|_| need += memory.clone().passing());
            }
        }
        need
    }

    /// The memory of the segment that it begins with once it is empty.
    pub fn beginning(&self) -> MemoryNeed {
        begin(&self.set.first).memory()
    }

    /// The memory that [`Self::clear`] asks for before it drops the old segments. It does not count towards the limit.
    pub fn clearing(&self) -> MemoryNeed {
        self.beginning().passing()
    }

    /// All its tables, as dropped.
    pub fn into_dropped(self) -> Dropped {
        self.set.into_dropped()
    }

    fn grow(&mut self) -> Result<(), Full> {
        let plan =
            if self.set.growth == Growth::Fixed { None } else { segments::next(self.set.newest_plan()) };
        self.set.add(plan.ok_or(Full)?);
        self.publish();
        Ok(())
    }

    /// Freezes the filter as it is now, for a snapshot: see [`TableSet::freeze`].
    pub fn freeze(&mut self, copied: &Arc<AtomicU64>) -> (FilterImage, Vec<FrozenTable>) {
        let next = (self.next.0 as u64, self.next.1);
        let forgetting = Some(ForgettingImage { steps: self.steps.image(), next });
        let (image, frozen) = self.set.freeze(copied);
        (FilterImage { forgetting, ..image }, frozen)
    }

    /// Restores a filter from its snapshot. It goes on exactly as the one that the snapshot was taken of.
    ///
    /// # Errors
    /// When a chunk is missing, damaged or belongs elsewhere, or the image contradicts itself.
    pub fn restore<E>(image: &FilterImage, load: &mut Load<'_, E>) -> Result<Self, RestoreError<E>> {
        let mut filter = Self::uncounted(image, |mode, image| TableSet::restore(mode, image, load))?;
        for table in 0..filter.set.tables.len() {
            let buckets = 0..filter.set.tables[table].table.plan.buckets();
            if filter.count_in(table, buckets).is_none() {
                return Err(RestoreError::Image("the steps of a filter contradict its items"));
            }
        }
        filter.finish_counting();
        Ok(filter)
    }

    /// A filter with tables that are made as an image says. What is in them is yet to be counted.
    pub(super) fn uncounted<E>(
        image: &FilterImage,
        make: impl FnOnce(Mode, &FilterImage) -> Result<TableSet, RestoreError<E>>,
    ) -> Result<Self, RestoreError<E>> {
        let Some(ForgettingImage { steps, next }) = &image.forgetting else {
            return Err(RestoreError::Image("a filter that forgets has no steps"));
        };
        let (layout, first) = (&image.layout, &image.first);
        if layout.check(Mode::Compact).is_err()
            || layout.step_bits == 0
            || first.step_bits != layout.step_bits
        {
            return Err(RestoreError::Image("a filter that forgets has an impossible layout"));
        }
        if !segments::are_in_place(&image.layout, image.tables.iter().map(|table| table.plan)) {
            return Err(RestoreError::Image("a segment is out of place"));
        }
        if image.cleared_tables > 0 {
            return Err(RestoreError::Image("a filter that forgets has no cleared tables"));
        }
        let set = make(Mode::Compact, image)?;
        let steps = Steps::restore(steps, u32::from(image.layout.step_bits));
        let steps = steps.ok_or(RestoreError::Image("the steps of a filter contradict each other"))?;
        let next = (usize::try_from(next.0).unwrap_or(usize::MAX), next.1);
        if set.tables.get(next.0).is_none_or(|segment| next.1 >= segment.table.plan.buckets()) {
            return Err(RestoreError::Image("the steps of a filter contradict its tables"));
        }
        Ok(Self::over(set, steps, next))
    }

    /// Counts the items in some buckets of a table by their steps. Returns how many slots are taken there; none if an item is of no step.
    pub(super) fn count_in(&mut self, table: usize, buckets: Range<u64>) -> Option<u64> {
        let (mut taken, mut are_known) = (0, true);
        let tags = (1 << self.set.layout.step_bits) - 1;
        let steps = &self.steps;
        self.set.tables[table].table.for_each_in(buckets, |_, _, value| {
            let tag = (value & tags) as u32;
            are_known &= steps.has(tag);
            steps.count(tag);
            taken += 1;
        });
        are_known.then_some(taken)
    }

    /// All items are counted: it is known which of them are forgotten.
    pub(super) fn finish_counting(&mut self) {
        self.steps.judge();
        self.publish();
    }
}

impl Copies for ForgettingFilter {
    fn prefetch(&self, digest: Digest) {
        self.set.prefetch(digest);
    }

    fn add(&mut self, digest: Digest, if_absent: bool) -> Result<Insert, Full> {
        self.insert(digest, if_absent)
    }

    fn take(&mut self, digest: Digest) -> bool {
        self.remove(digest)
    }
}

/// The plan of the first table.
fn begin(first: &Layout) -> TablePlan {
    segments::first(first, Expansion::Segments)
}

/// Bits of a bucket.
fn bucket_bits(lanes: &Lanes) -> u64 {
    u64::from(lanes.slots * lanes.bits)
}

/// Counts what was stored.
fn note(steps: &mut Steps, tag: u32, stored: Stored) -> Insert {
    match stored {
        Stored::Saturated => return Insert::Saturated,
        Stored::Free => {}
        Stored::Over(forgotten) => steps.discount(forgotten),
    }
    steps.count(tag);
    Insert::Added
}
