//! The order in which a ledger's redemptions are forgotten: by the time of their last change, then by ID. Holds are not among them.
//!
//! Nearly all *wait* in the order of changes: their time is that of their position. They are drawn from there a few at a time, because those
//! of one millisecond have to be sorted by ID. Others are *late*: their position runs ahead of their time, since a clock was turned back, or
//! an image contradicts itself. They are few, or temporary, and sorted in a set.

use super::order::{ChangeNumber, ChangeOrder};
use crate::agenda::Due;
use crate::domain::Timestamp;
use std::collections::BTreeSet;

/// Number of redemptions that are drawn from the order at once, with the rest of their millisecond.
const DRAWN_MIN: usize = if cfg!(test) { 8 } else { 128 };

/// Maximum number of them. While a clock that was set back catches up, one millisecond may have many, which are read for each draw.
const DRAWN_MAX: usize = if cfg!(test) { 64 } else { 1_024 };

/// An upper bound of the memory of a redemption in a sorted set, in bytes: at least five of eleven places in a tree's node are used.
pub(super) const SORTED_BYTES: u64 = 72;

/// The redemptions that are no holds, in the order in which they are forgotten.
#[derive(Debug, Default)]
pub(super) struct RetentionOrder {
    /// The first ones of those that wait in the order.
    drawn: BTreeSet<Due>,
    /// All that wait in the order without being drawn come after this one; those that don't are drawn.
    drawn_to: Option<Due>,
    /// Those that don't wait in the order.
    late: BTreeSet<Due>,
    /// Number of those that wait in the order without being drawn.
    waiting: u64,
}

impl RetentionOrder {
    /// The redemption that is forgotten first, and when it ended.
    pub(super) fn first(&self) -> Option<Due> {
        let first = [self.drawn.first(), self.late.first()];
        first.into_iter().flatten().min().copied()
    }

    /// An upper bound of its memory in a ledger with this many redemptions, in bytes. Drawing some does not change it.
    pub(super) fn memory_bytes(&self, redemptions: u64) -> u64 {
        let drawn = redemptions.min(DRAWN_MAX as u64);
        (drawn + self.late.len() as u64) * SORTED_BYTES
    }

    /// Adds a redemption. If it waits in the order, it is there already.
    pub(super) fn insert(&mut self, key: Due, waits_in_order: bool) {
        if !waits_in_order {
            self.late.insert(key);
        } else if Some(key) > self.drawn_to {
            self.waiting += 1;
        } else {
            self.drawn.insert(key);
            if self.drawn.len() > DRAWN_MAX {
                self.drawn.pop_last();
                self.drawn_to = self.drawn.last().copied();
                self.waiting += 1;
            }
        }
    }

    /// Removes a redemption.
    pub(super) fn remove(&mut self, key: Due) {
        if !self.late.remove(&key) && !self.drawn.remove(&key) {
            self.waiting -= 1;
        }
    }

    /// Draws redemptions from the order if none is left of those drawn before. Call it after each change. `key_of` returns the time and the
    /// ID of an entry that waits in a slot.
    pub(super) fn draw(&mut self, order: &ChangeOrder, key_of: impl Fn(u32) -> Option<Due>) {
        if self.waiting == 0 || !self.drawn.is_empty() {
            return;
        }
        let from = self.drawn_to.map_or(Timestamp(0), |(at, _)| at);
        for slot in order.waiting_from(ChangeNumber::first(from)) {
            let Some(key) = key_of(slot).filter(|key| Some(*key) > self.drawn_to) else {
                continue;
            };
            let last = self.drawn.last().copied();
            let is_later = last.is_some_and(|(at, _)| at < key.0);
            if is_later && self.drawn.len() >= DRAWN_MIN {
                break;
            }
            // The rest of a millisecond may have lower IDs.
            if self.drawn.len() == DRAWN_MAX {
                if last < Some(key) {
                    continue;
                }
                self.drawn.pop_last();
            }
            self.drawn.insert(key);
        }
        self.waiting -= self.drawn.len() as u64;
        self.drawn_to = self.drawn.last().copied().max(self.drawn_to);
    }

    /// Number of redemptions in sets.
    #[cfg(test)]
    pub(super) fn sorted_len(&self) -> usize {
        self.drawn.len() + self.late.len()
    }

    /// Frees a redemption. Returns whether there was one.
    pub(super) fn free_one(&mut self) -> bool {
        self.late
            .pop_first()
            .or_else(|| self.drawn.pop_first())
            .is_some()
    }
}
