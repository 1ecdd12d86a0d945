//! The steps of a filter that forgets: which there are, which of them are forgotten, and how many items were added in each.
//!
//! Time is cut into steps, which are numbered; what a step is in time is for others to say. An item that is added in a step is kept
//! for so many steps after it. A slot has only a few bits for its step: the *tag*. A step gets the next tag, around a ring, when its
//! first item comes. A tag is free again once no slot has it any more.

use super::layout::{STEP_BITS_MAX, STEPS_MAX};
use super::live::LiveTags;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// The most tags that there are.
pub(super) const TAGS_MAX: usize = 1 << STEP_BITS_MAX;

/// What a snapshot says of the steps, but for the number of items in each, which the tables tell.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct StepsImage {
    kept: u32,
    now: Option<u64>,
    first: u32,
    numbers: Vec<u64>,
}

/// A step, and what was added in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StepStats {
    /// Its number.
    pub step: u64,
    /// Items that were added in it and are still there.
    pub items: u64,
}

impl StepsImage {
    pub(super) fn kept(&self) -> u32 {
        self.kept
    }
}

type Items = Arc<[AtomicU64; TAGS_MAX]>;

/// The steps of one filter, as its writer sees them.
pub(super) struct Steps {
    /// The present step; none until the writer names the first one. What is added before that counts as added in it.
    now: Option<u64>,
    known: Known,
    /// The tags of the steps that are not forgotten now.
    live: LiveTags,
    /// Items of forgotten steps that are still in the tables.
    forgotten: u64,
}

/// The steps whose items may be in the tables.
#[derive(Clone)]
pub(super) struct Known {
    /// For so many steps after its own an item is kept.
    kept: u32,
    /// Bits of a tag.
    bits: u32,
    /// The tag of the oldest step. The others follow around the ring.
    first: u32,
    /// The steps' numbers, oldest first. They never decrease.
    numbers: Vec<u64>,
    /// Items in the tables by their tags.
    items: Items,
}

/// No tag is free.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct NoTag;

fn no_items() -> Items {
    Arc::new(std::array::from_fn(|_| AtomicU64::new(0)))
}

impl Known {
    fn tag(&self, index: usize) -> u32 {
        (self.first + index as u32) & ((1 << self.bits) - 1)
    }

    fn items_at(&self, index: usize) -> u64 {
        self.items[self.tag(index) as usize].load(Relaxed)
    }

    /// How many of the steps, the oldest ones, are forgotten in step `now`.
    fn forgotten(&self, now: u64) -> usize {
        (0..self.numbers.len()).take_while(|&index| self.is_forgotten(index, now)).count()
    }

    fn is_forgotten(&self, index: usize, now: u64) -> bool {
        self.numbers.get(index).is_some_and(|step| step.saturating_add(u64::from(self.kept)) < now)
    }

    /// The tags of the steps that are not forgotten in step `now`.
    #[inline]
    pub(super) fn live(&self, now: u64) -> LiveTags {
        let forgotten = if self.is_forgotten(0, now) { self.forgotten(now) } else { 0 };
        let is_all = (0..forgotten).all(|index| self.items_at(index) == 0);
        LiveTags::new(self.bits, self.tag(forgotten), (self.numbers.len() - forgotten) as u32, is_all)
    }

    /// The steps that have items and are not forgotten in step `now`, oldest first.
    pub(super) fn stats(&self, now: u64) -> Vec<StepStats> {
        let mut stats: Vec<StepStats> = Vec::new();
        for index in self.forgotten(now)..self.numbers.len() {
            let (step, items) = (self.numbers[index], self.items_at(index));
            match stats.last_mut() {
                _ if items == 0 => {}
                // After the time was turned back, two tags can be of one step.
                Some(last) if last.step == step => last.items += items,
                _ => stats.push(StepStats { step, items }),
            }
        }
        stats
    }
}

impl Steps {
    /// No steps yet. Items are kept for so many steps after their own; a tag has so many bits.
    pub(super) fn new(kept: u32, bits: u32) -> Self {
        let known = Known { kept, bits, first: 0, numbers: Vec::new(), items: no_items() };
        Self::over(None, known)
    }

    fn over(now: Option<u64>, known: Known) -> Self {
        let live = known.live(0);
        let mut steps = Self { now, known, live, forgotten: 0 };
        steps.judge();
        steps
    }

    /// Restores the steps. The items in the tables are yet to be counted, and then [judged](Self::judge). None if there can't be such
    /// steps.
    pub(super) fn restore(image: &StepsImage, bits: u32) -> Option<Self> {
        let StepsImage { kept, now, first, ref numbers } = *image;
        let tags = 1 << bits;
        let is_possible = kept <= STEPS_MAX
            && kept + 3 <= tags
            && first < tags
            && numbers.len() <= tags as usize
            && numbers.is_sorted()
            && numbers.last().is_none_or(|newest| *newest <= now.unwrap_or_default());
        if !is_possible {
            return None;
        }
        let known = Known { kept, bits, first, numbers: numbers.clone(), items: no_items() };
        Some(Self::over(now, known))
    }

    /// Whether a step has this tag.
    pub(super) fn has(&self, tag: u32) -> bool {
        let Known { first, bits, numbers, .. } = &self.known;
        (tag.wrapping_sub(*first) & ((1 << bits) - 1)) < numbers.len() as u32
    }

    /// What a snapshot says of them. The numbers of items are in the tables.
    pub(super) fn image(&self) -> StepsImage {
        let Known { kept, first, numbers, .. } = &self.known;
        StepsImage { kept: *kept, now: self.now, first: *first, numbers: numbers.clone() }
    }

    /// The steps as readers share them. They change only with the next call of [`Self::begin`], [`Self::advance`] or
    /// [`Self::turn_back`] that returns true.
    pub(super) fn known(&self) -> Known {
        self.known.clone()
    }

    pub(super) fn now(&self) -> Option<u64> {
        self.now
    }

    pub(super) fn kept(&self) -> u32 {
        self.known.kept
    }

    /// The tags of the steps that are not forgotten now.
    pub(super) fn live(&self) -> LiveTags {
        self.live
    }

    /// Items of forgotten steps that are still in the tables.
    pub(super) fn forgotten_items(&self) -> u64 {
        self.forgotten
    }

    /// Items that are not forgotten now.
    pub(super) fn live_items(&self) -> u64 {
        let first = self.known.numbers.len() - self.live.len() as usize;
        (first..self.known.numbers.len()).map(|index| self.known.items_at(index)).sum()
    }

    /// The oldest step that has items which are not forgotten.
    pub(super) fn oldest(&self) -> Option<u64> {
        let first = self.known.numbers.len() - self.live.len() as usize;
        let oldest = (first..self.known.numbers.len()).find(|&index| self.known.items_at(index) > 0);
        oldest.map(|index| self.known.numbers[index])
    }

    /// Goes on to a step, unless a later one has come already. Returns whether readers must be shown.
    pub(super) fn advance(&mut self, step: u64) -> bool {
        if self.now.is_some_and(|now| now >= step) {
            return false;
        }
        let is_first = self.now.is_none();
        self.now = Some(step);
        if is_first {
            self.known.numbers.iter_mut().for_each(|number| *number = step);
        }
        self.judge();
        is_first
    }

    /// Goes back to a step. What was added in later ones counts as added in this one.
    pub(super) fn turn_back(&mut self, step: u64) {
        if self.now.is_some() {
            self.now = Some(step);
            self.known.numbers.iter_mut().for_each(|number| *number = step.min(*number));
            self.judge();
        }
    }

    /// The tag of items that are added now; none if [`Self::begin`] must be called first.
    pub(super) fn tag(&self) -> Option<u32> {
        let newest = self.known.numbers.last()?;
        (self.now.is_none() || self.now == Some(*newest))
            .then(|| self.known.tag(self.known.numbers.len() - 1))
    }

    /// Gives the present step a tag. Readers must be shown before an item gets it.
    pub(super) fn begin(&mut self) -> Result<u32, NoTag> {
        while !self.known.numbers.is_empty() && self.known.items_at(0) == 0 {
            self.known.numbers.remove(0);
            self.known.first = self.known.tag(1);
        }
        if self.known.numbers.len() == 1 << self.known.bits {
            if self.forgotten > 0 {
                return Err(NoTag);
            }
            // Only turning the time back again and again leads here. Then what was added last is kept for longer.
            self.known.numbers.pop();
        }
        self.known.numbers.push(self.now.unwrap_or_default());
        self.judge();
        Ok(self.known.tag(self.known.numbers.len() - 1))
    }

    /// Counts an item that was added.
    pub(super) fn count(&self, tag: u32) {
        let items = &self.known.items[tag as usize];
        items.store(items.load(Relaxed) + 1, Relaxed);
    }

    /// Counts an item that is gone.
    pub(super) fn discount(&mut self, tag: u32) {
        let items = &self.known.items[tag as usize];
        items.store(items.load(Relaxed) - 1, Relaxed);
        if !self.live.contains(tag) {
            self.forgotten -= 1;
        }
    }

    /// Drops all steps, because the tables are empty.
    pub(super) fn clear(&mut self) {
        self.known = Known { first: 0, numbers: Vec::new(), items: no_items(), ..self.known };
        self.judge();
    }

    /// Judges which steps are forgotten now.
    pub(super) fn judge(&mut self) {
        let now = self.now.unwrap_or_default();
        self.live = self.known.live(now);
        self.forgotten = (0..self.known.forgotten(now)).map(|index| self.known.items_at(index)).sum();
    }
}
