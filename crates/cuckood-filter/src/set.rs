//! Strict filters: sets of 62 bits of each item's digest, with a state. With `n` items in one, about `n` in 2^62 strangers are taken for
//! one of them.
//!
//! A filter has one table. A clear gives the tag of available items to new ones ([`super::tags`]): the available items disappear
//! immediately, and later changes free their slots incrementally. Held and redeemed items stay where they are.

use crate::chunk::TableId;
use crate::hash::Digest;
use crate::layout::Growth;
use crate::place::stored_digest;
use crate::slots::STATE_MASK;
use crate::tables::{BUCKETS_COPIED, Full, Tables};
use crate::tags::{AVAILABLE_TAGS, InsertOutcome, SlotState, StateCounts};
use crate::writer::NoPath;
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

/// Buckets whose cleared items every change frees.
const BUCKETS_SWEPT: u64 = 16;

/// Buckets that an insert sweeps at a time if it finds no free slot.
const BUCKETS_AT_ONCE: u64 = 1 << 12;

/// Maximum number of cleared items that another clear frees immediately.
const SWEPT_AT_ONCE_MAX: u64 = 1 << 14;

/// The position of a walk over the items of a strict filter.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Walk {
    /// The next table. If it was replaced, the walk continues at the start of the newer one.
    table: TableId,
    bucket: u64,
}

impl Walk {
    /// The start of a walk.
    pub const START: Self = Self {
        table: TableId(0),
        bucket: 0,
    };
}

/// The writer's side of a strict filter.
pub(crate) struct Set {
    pub(crate) tables: Tables,
}

impl Set {
    /// Counts the items in some buckets by their states. Returns how many slots are taken there.
    pub(crate) fn count_in(&self, buckets: Range<u64>) -> u64 {
        let mut taken = 0;
        self.tables
            .newest()
            .table
            .for_each_in(buckets, |_, _, value| {
                taken += 1;
                self.count(value & STATE_MASK, 1);
            });
        taken
    }

    /// All items are counted: it is known whether cleared ones are among them.
    pub(crate) fn finish_counting(&mut self) {
        self.sweep_from(self.tables.sweep.unwrap_or_default().1);
    }

    /// Continues to sweep at this bucket, if there are cleared items.
    fn sweep_from(&mut self, bucket: u64) {
        self.tables.sweep = (self.cleared() > 0).then_some((0, bucket));
    }

    /// The tag of available items.
    fn available(&self) -> u64 {
        self.tables.newest().table.available_tag()
    }

    /// Items by state.
    pub(crate) fn counts(&self) -> StateCounts {
        self.tables.shared.state_counts(self.available())
    }

    fn count(&self, tag: u64, change: i64) {
        let count = &self.tables.shared.counts[tag as usize];
        count.store(count.load(Relaxed).wrapping_add_signed(change), Relaxed);
    }

    /// The state of an item, if it is present.
    pub(crate) fn get(&self, digest: Digest) -> Option<SlotState> {
        let table = &self.tables.newest().table;
        table.state(table.get(digest))
    }

    /// Adds an item, in the state available. If it is present, it keeps its state.
    ///
    /// # Errors
    /// [`Full`] if no slot is free and the filter can't grow (any further). Then no item has changed.
    pub(crate) fn insert(&mut self, digest: Digest) -> Result<InsertOutcome, Full> {
        let available = self.available();
        loop {
            let has_room = self.tables.growth == Growth::Fixed || self.tables.newest().room() > 0;
            let held = match self.tables.newest_mut() {
                newest if has_room => newest.insert_strict(digest, available),
                newest => newest.table.get(digest).map(Some).ok_or(NoPath),
            };
            match held {
                Ok(None) => break self.count(available, 1),
                Ok(Some(held)) => match SlotState::of(held & STATE_MASK, available) {
                    Some(state) => return Ok(InsertOutcome::Present(state)),
                    None => break self.retag(digest, held & STATE_MASK, available),
                },
                Err(NoPath) => self.make_room()?,
            }
        }
        self.go_on();
        Ok(InsertOutcome::Added)
    }

    /// Frees slots of cleared items, or replaces the table.
    fn make_room(&mut self) -> Result<(), Full> {
        if self.is_sweeping() {
            self.sweep(BUCKETS_AT_ONCE);
            return Ok(());
        }
        self.tables.grow(1)
    }

    /// Copies more of the table and frees more slots of cleared items, because of a change.
    #[inline]
    fn go_on(&mut self) {
        if self.is_moving() {
            self.move_items(BUCKETS_COPIED.max(BUCKETS_SWEPT));
        }
    }

    /// Returns whether the table is being copied, or slots of cleared items are being freed.
    pub(crate) fn is_moving(&self) -> bool {
        self.is_sweeping() || self.tables.newest().copy().is_some()
    }

    fn is_sweeping(&self) -> bool {
        self.tables.sweep.is_some()
    }

    /// Cleared items whose slots are not free yet.
    fn cleared(&self) -> u64 {
        self.tables.shared.counts[other_tag(self.available()) as usize].load(Relaxed)
    }

    pub(crate) fn has_much_to_sweep(&self) -> bool {
        self.cleared() > SWEPT_AT_ONCE_MAX
    }

    /// Continues with that, in this many more buckets.
    #[inline(never)]
    pub(crate) fn move_items(&mut self, buckets: u64) {
        self.sweep(buckets);
        self.tables.copy_on(buckets);
    }

    /// Frees the slots of cleared items in this many more buckets.
    fn sweep(&mut self, buckets: u64) {
        let Some((_, first)) = self.tables.sweep else {
            return;
        };
        let available = self.available();
        let table = &self.tables.newest().table;
        let all = table.plan.buckets();
        let last = all.min(first.saturating_add(buckets));
        let mut cleared = Vec::new();
        table.for_each_in(first..last, |_, _, value| {
            if SlotState::of(value & STATE_MASK, available).is_none() {
                cleared.push(value);
            }
        });
        for value in cleared {
            self.tables.newest_mut().set_tag(stored_digest(value), None);
            self.count(value & STATE_MASK, -1);
        }
        // Searches may have moved cleared items to buckets before this one. Then they are swept again.
        self.sweep_from(if last < all { last } else { 0 });
    }

    fn retag(&mut self, digest: Digest, before: u64, tag: u64) {
        self.tables.newest_mut().set_tag(digest, Some(tag));
        self.count(before, -1);
        self.count(tag, 1);
    }

    /// Changes the state of an item that is present, and returns the state from before.
    pub(crate) fn set(&mut self, digest: Digest, state: SlotState) -> Option<SlotState> {
        let before = self.get(digest)?;
        let available = self.available();
        self.retag(digest, before.tag(available), state.tag(available));
        Some(before)
    }

    /// Removes an item, if it is present, and returns its state.
    pub(crate) fn remove(&mut self, digest: Digest) -> Option<SlotState> {
        let state = self.get(digest)?;
        self.tables.newest_mut().set_tag(digest, None);
        self.count(state.tag(self.available()), -1);
        self.go_on();
        self.tables.shrink_if_empty();
        Some(state)
    }

    /// Removes all available items. Returns how many there were. If none are left, the filter shrinks to its first table.
    ///
    /// A clear before slots of the one before are free frees those first.
    pub(crate) fn clear(&mut self) -> u64 {
        let StateCounts {
            available,
            held,
            redeemed,
        } = self.counts();
        if held + redeemed == 0 {
            if self.tables.items() > 0 || !self.tables.is_as_created() {
                self.tables.start_over(self.tables.first);
            }
        } else if available > 0 {
            while self.is_sweeping() {
                self.sweep(u64::MAX);
            }
            let tag = other_tag(self.available());
            self.tables.newest().table.set_available_tag(tag);
            self.tables.sweep = Some((0, 0));
            if self.tables.newest().plan().buckets() <= BUCKETS_AT_ONCE {
                self.sweep(u64::MAX);
            }
        }
        available
    }

    /// Continues a walk: calls `visit` with 62 bits of digest and the state of the items in up to this many more buckets. Returns how many
    /// buckets that were; none at the end. If the table is replaced between two calls, the walk starts over.
    pub(crate) fn walk(
        &self,
        walk: &mut Walk,
        buckets: u64,
        mut visit: impl FnMut(Digest, SlotState),
    ) -> u64 {
        let newest = self.tables.newest();
        if newest.id < walk.table {
            return 0;
        }
        let first = if newest.id == walk.table {
            walk.bucket
        } else {
            0
        };
        let all = newest.plan().buckets();
        let last = all.min(first.saturating_add(buckets));
        let available = self.available();
        newest.table.for_each_in(first..last, |_, _, value| {
            if let Some(state) = SlotState::of(value & STATE_MASK, available) {
                visit(stored_digest(value), state);
            }
        });
        *walk = if last >= all {
            Walk {
                table: TableId(newest.id.0 + 1),
                bucket: 0,
            }
        } else {
            Walk {
                table: newest.id,
                bucket: last,
            }
        };
        last.saturating_sub(first)
    }
}

/// The tag of cleared items, given that of available ones, and the other way round.
fn other_tag(available: u64) -> u64 {
    AVAILABLE_TAGS[usize::from(available == AVAILABLE_TAGS[0])]
}
