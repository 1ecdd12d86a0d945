//! Tags: the lowest bits of a slot, next to its fingerprint or digest.
//!
//! In a filter that forgets, a tag denotes the step in which a copy was added. Time is divided into numbered steps, and a copy is retained
//! for a number of steps after its own. A step gets the next tag of the ring with its first item. A tag is free again once no slot has it.
//!
//! In a strict filter, a tag is the state of an item.

use crate::layout::STEPS_MAX;
use crate::slots::LiveTags;
use derive_more::{AddAssign, SubAssign};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// The steps in a snapshot, without the number of items in each, which follows from the tables.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct StepsImage {
    pub(crate) retained: u32,
    now: Option<u64>,
    first: u32,
    numbers: Vec<u64>,
}

/// A step, and the items that were added in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StepStats {
    /// Its number.
    pub step: u64,
    /// Items that were added in it and are still there.
    pub items: u64,
}

type TagWords = Arc<[AtomicU64]>;

/// The steps of one filter, as its writer sees them.
pub(crate) struct Steps {
    /// The current step; none until the writer names the first one. Items that are added before count as added in it.
    now: Option<u64>,
    known: Known,
    /// The tags of the steps that are not forgotten now.
    live: LiveTags,
    /// Items of forgotten steps that are still in the tables.
    forgotten: u64,
}

/// The steps whose items may be in the tables.
#[derive(Clone)]
pub(crate) struct Known {
    /// Number of steps after its own for which an item is retained.
    retained: u32,
    /// Bits of a tag.
    bits: u8,
    /// The tag of the oldest step. The others follow around the ring.
    first: u32,
    /// The steps' numbers, oldest first. They never decrease.
    numbers: Vec<u64>,
    /// Items in the tables by their tags.
    items: TagWords,
}

fn no_items(bits: u8) -> TagWords {
    (0..1 << bits).map(|_| AtomicU64::new(0)).collect()
}

impl Known {
    fn tag(&self, index: usize) -> u64 {
        (u64::from(self.first) + index as u64) & ((1 << self.bits) - 1)
    }

    fn items_at(&self, index: usize) -> u64 {
        self.items[self.tag(index) as usize].load(Relaxed)
    }

    /// How many of the steps, the oldest ones, are forgotten in step `now`.
    fn forgotten(&self, now: u64) -> usize {
        (0..self.numbers.len())
            .take_while(|&index| self.is_forgotten(index, now))
            .count()
    }

    fn is_forgotten(&self, index: usize, now: u64) -> bool {
        self.numbers
            .get(index)
            .is_some_and(|step| step.saturating_add(u64::from(self.retained)) < now)
    }

    /// The tags of the steps that are not forgotten in step `now`.
    #[inline]
    pub(crate) fn live(&self, now: u64) -> LiveTags {
        let forgotten = if self.is_forgotten(0, now) {
            self.forgotten(now)
        } else {
            0
        };
        let is_all = (0..forgotten).all(|index| self.items_at(index) == 0);
        LiveTags {
            first: self.tag(forgotten) as u8,
            len: (self.numbers.len() - forgotten) as u8,
            all: is_all,
        }
    }

    /// The steps that have items and are not forgotten in step `now`, oldest first.
    pub(crate) fn stats(&self, now: u64) -> Vec<StepStats> {
        let mut stats: Vec<StepStats> = Vec::new();
        for index in self.forgotten(now)..self.numbers.len() {
            let step = self.numbers[index];
            let items = self.items_at(index);
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
    /// No steps yet. Items are retained for `retained` steps after their own; a tag has `bits` bits.
    pub(crate) fn new(retained: u32, bits: u8) -> Self {
        let known = Known {
            retained,
            bits,
            first: 0,
            numbers: Vec::new(),
            items: no_items(bits),
        };
        Self::over(None, known)
    }

    fn over(now: Option<u64>, known: Known) -> Self {
        let live = known.live(0);
        let mut steps = Self {
            now,
            known,
            live,
            forgotten: 0,
        };
        steps.update_forgotten();
        steps
    }

    /// Restores the steps. The items in the tables are yet to be counted, then call [`Self::update_forgotten`]. None if there can't be such steps.
    pub(crate) fn restore(image: &StepsImage, bits: u8) -> Option<Self> {
        let StepsImage {
            retained,
            now,
            first,
            ref numbers,
        } = *image;
        let tags = 1 << bits;
        let is_possible = retained <= STEPS_MAX
            && retained + 3 <= tags
            && first < tags
            && numbers.len() <= tags as usize
            && numbers.is_sorted()
            && numbers
                .last()
                .is_none_or(|newest| *newest <= now.unwrap_or_default());
        if !is_possible {
            return None;
        }
        let known = Known {
            retained,
            bits,
            first,
            numbers: numbers.clone(),
            items: no_items(bits),
        };
        Some(Self::over(now, known))
    }

    /// Returns whether a step has this tag.
    pub(crate) fn has(&self, tag: u64) -> bool {
        let Known {
            first,
            bits,
            numbers,
            ..
        } = &self.known;
        (tag.wrapping_sub(u64::from(*first)) & ((1 << bits) - 1)) < numbers.len() as u64
    }

    /// The steps in a snapshot.
    pub(crate) fn image(&self) -> StepsImage {
        let Known {
            retained,
            first,
            numbers,
            ..
        } = &self.known;
        StepsImage {
            retained: *retained,
            now: self.now,
            first: *first,
            numbers: numbers.clone(),
        }
    }

    /// The steps as readers share them. They change only with the next call of [`Self::begin`], [`Self::advance`] or
    /// [`Self::turn_back`] that returns true.
    pub(crate) fn known(&self) -> Known {
        self.known.clone()
    }

    /// The tags of the steps that are not forgotten now.
    pub(crate) fn live(&self) -> LiveTags {
        self.live
    }

    /// Items of forgotten steps that are still in the tables.
    pub(crate) fn forgotten_items(&self) -> u64 {
        self.forgotten
    }

    /// Items that are not forgotten now.
    pub(crate) fn live_items(&self) -> u64 {
        let first = self.known.numbers.len() - usize::from(self.live.len);
        (first..self.known.numbers.len())
            .map(|index| self.known.items_at(index))
            .sum()
    }

    /// The oldest step that has items which are not forgotten.
    pub(crate) fn oldest(&self) -> Option<u64> {
        let first = self.known.numbers.len() - usize::from(self.live.len);
        let oldest =
            (first..self.known.numbers.len()).find(|&index| self.known.items_at(index) > 0);
        oldest.map(|index| self.known.numbers[index])
    }

    /// Advances to a step, unless a later one was reached. Returns whether the tags must be published to readers.
    pub(crate) fn advance(&mut self, step: u64) -> bool {
        if self.now.is_some_and(|now| now >= step) {
            return false;
        }
        let is_first = self.now.is_none();
        self.now = Some(step);
        if is_first {
            self.known
                .numbers
                .iter_mut()
                .for_each(|number| *number = step);
        }
        self.update_forgotten();
        is_first
    }

    /// Returns to an earlier step. Items that were added in later ones count as added in this one.
    pub(crate) fn turn_back(&mut self, step: u64) {
        if self.now.is_some() {
            self.now = Some(step);
            self.known
                .numbers
                .iter_mut()
                .for_each(|number| *number = step.min(*number));
            self.update_forgotten();
        }
    }

    /// The tag of items that are added now; none if [`Self::begin`] must be called first.
    pub(crate) fn tag(&self) -> Option<u64> {
        let newest = self.known.numbers.last()?;
        (self.now.is_none() || self.now == Some(*newest))
            .then(|| self.known.tag(self.known.numbers.len() - 1))
    }

    /// Assigns a tag to the current step; `None` if none is free. It must be published to readers before an item gets it.
    pub(crate) fn begin(&mut self) -> Option<u64> {
        while !self.known.numbers.is_empty() && self.known.items_at(0) == 0 {
            self.known.numbers.remove(0);
            self.known.first = self.known.tag(1) as u32;
        }
        if self.known.numbers.len() == 1 << self.known.bits {
            if self.forgotten > 0 {
                return None;
            }
            // Only turning the time back again and again leads here. Then the items that were added last are retained for longer.
            self.known.numbers.pop();
        }
        self.known.numbers.push(self.now.unwrap_or_default());
        self.update_forgotten();
        Some(self.known.tag(self.known.numbers.len() - 1))
    }

    /// Counts an item that was added.
    pub(crate) fn count(&self, tag: u64) {
        let items = &self.known.items[tag as usize];
        items.store(items.load(Relaxed) + 1, Relaxed);
    }

    /// Counts an item that was removed.
    pub(crate) fn discount(&mut self, tag: u64) {
        let items = &self.known.items[tag as usize];
        items.store(items.load(Relaxed) - 1, Relaxed);
        let order = tag.wrapping_sub(u64::from(self.live.first)) & ((1 << self.known.bits) - 1);
        if order >= u64::from(self.live.len) {
            self.forgotten -= 1;
        }
    }

    /// Drops all steps, because the tables are empty.
    pub(crate) fn clear(&mut self) {
        self.known = Known {
            first: 0,
            numbers: Vec::new(),
            items: no_items(self.known.bits),
            ..self.known
        };
        self.update_forgotten();
    }

    /// Determines which steps are forgotten now.
    pub(crate) fn update_forgotten(&mut self) {
        let now = self.now.unwrap_or_default();
        self.live = self.known.live(now);
        self.forgotten = (0..self.known.forgotten(now))
            .map(|index| self.known.items_at(index))
            .sum();
    }
}

/// The state of an item in a strict filter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SlotState {
    /// No client has claimed it.
    Available,
    /// A client holds it for a while.
    Held,
    /// It has been used.
    Redeemed,
}

/// The tags that available items can have. A clear makes the other one the tag of available items: those with the former tag disappear
/// immediately, and their slots are freed later.
pub(crate) const AVAILABLE_TAGS: [u64; 2] = [0, 3];

impl SlotState {
    /// The state of an item whose slot has this tag; none if it was cleared.
    #[inline(always)]
    pub(crate) fn of(tag: u64, available: u64) -> Option<Self> {
        match tag {
            1 => Some(Self::Held),
            2 => Some(Self::Redeemed),
            _ => (tag == available).then_some(Self::Available),
        }
    }

    pub(crate) fn tag(self, available: u64) -> u64 {
        match self {
            Self::Available => available,
            Self::Held => 1,
            Self::Redeemed => 2,
        }
    }
}

/// The effect of an insert.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InsertOutcome {
    /// A copy was stored.
    Added,
    /// Nothing was stored: the item was present already, in this state. A compact filter takes a colliding item for it,
    /// and every item in it is available.
    Present(SlotState),
    /// Nothing was stored: two full buckets of a compact filter hold nothing but copies of colliding items.
    Saturated,
}

/// How many items of a strict filter are in each state.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, Default, AddAssign, SubAssign, Serialize, Deserialize,
)]
pub struct StateCounts {
    /// Items that no client has claimed.
    pub available: u64,
    /// Items that are held.
    pub held: u64,
    /// Items that have been used.
    pub redeemed: u64,
}

impl StateCounts {
    /// Items in any state.
    pub fn all(&self) -> u64 {
        self.available + self.held + self.redeemed
    }
}
