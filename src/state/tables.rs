//! The tables of one filter as the state keeps them: under an epoch, and with outcomes in the domain's words.

use super::section::Epoch;
use crate::domain::{ItemOutcome, Spec, Status, Timestamp};
use crate::filter::{
    Digest, Expansion, Filter, ForgettingFilter, Full, Insert, Layout, MemoryNeed, SlotState,
};

/// Words that a filter which forgets looks through for forgotten items with each item that is added. Its tables have a few words for an item,
/// so before long all is free, however many other filters wait for their turn.
const WORDS_AN_INSERT: u64 = 32;

/// A filter and the epoch of its tables: with a table's own number it names each table for good.
pub(super) struct Tables {
    pub(super) epoch: Epoch,
    pub(super) filter: Filter,
}

impl Tables {
    /// Empty tables for a filter of this spec. One that forgets has not begun to: see [`Self::advance`].
    pub(super) fn new(epoch: Epoch, spec: &Spec, layout: Layout, expansion: Expansion) -> Self {
        let steps = spec.forget.map(|forget| forget.steps());
        Self { epoch, filter: Filter::new(spec.mode, layout, spec.growth, expansion, steps) }
    }

    /// Lets a filter that forgets go on to the step of this time. Returns how many items are forgotten by that.
    pub(super) fn advance(&mut self, spec: &Spec, now: Timestamp) -> u64 {
        let (Some(forget), Some(filter)) = (spec.forget, self.filter.forgetting_mut()) else { return 0 };
        let before = filter.forgotten_items();
        filter.advance(forget.step_at(now));
        filter.forgotten_items() - before
    }

    /// When the next items are forgotten, if any are going to be.
    pub(super) fn due(&self, spec: &Spec) -> Option<Timestamp> {
        let oldest = self.filter.forgetting()?.oldest_step()?;
        Some(spec.forget?.end_of(oldest))
    }

    /// Whether [`Self::retire`] has something to do.
    pub(super) fn is_retiring(&self) -> bool {
        self.filter.forgetting().is_some_and(ForgettingFilter::is_retiring)
    }

    /// Goes on freeing the slots of forgotten items, in so many more words. Returns how many that were.
    pub(super) fn retire(&mut self, words: u64) -> u64 {
        self.filter.forgetting_mut().map_or(0, |filter| filter.retire(words))
    }

    /// Bytes of the tables.
    pub(super) fn memory_bytes(&self) -> u64 {
        self.filter.tables().memory_bytes()
    }

    /// The most memory that so many items can make the filter ask for that begins anew, its first table included.
    pub(super) fn growth_from_empty(&self, items: u64, removes: u64) -> MemoryNeed {
        let mut need = self.filter.beginning();
        need += self.filter.growth_from_empty(items, removes);
        need
    }

    /// Adds items, all or none. A redeemed code stays redeemed.
    pub(super) fn insert_many(
        &mut self,
        digests: &[Digest],
        if_absent: bool,
    ) -> Result<Vec<ItemOutcome>, Full> {
        let inserted = self.filter.insert_many(digests, if_absent)?;
        if self.is_retiring() {
            self.retire(WORDS_AN_INSERT * digests.len() as u64);
        }
        Ok(inserted.into_iter().map(outcome).collect())
    }

    /// How many codes are held, and how many redeemed.
    pub(super) fn used(&self) -> (u64, u64) {
        let counts = self.filter.state_counts();
        (counts.held, counts.redeemed)
    }

    /// How many items it holds, but for held and redeemed codes.
    pub(super) fn available(&self) -> u64 {
        let (held, redeemed) = self.used();
        self.filter.items() - held - redeemed
    }
}

/// The outcome of an insert in the domain's words.
pub(super) fn outcome(insert: Insert) -> ItemOutcome {
    match insert {
        Insert::Added => ItemOutcome::Added,
        Insert::Present(SlotState::Redeemed) => ItemOutcome::AlreadyRedeemed,
        Insert::Present(SlotState::Available | SlotState::Held) => ItemOutcome::AlreadyPresent,
        Insert::Saturated => ItemOutcome::Saturated,
    }
}

/// The state of a code whose redemption has this status.
pub(super) fn slot_state(status: Status) -> SlotState {
    match status {
        Status::Held => SlotState::Held,
        Status::Redeemed => SlotState::Redeemed,
        Status::Cancelled | Status::Expired => SlotState::Available,
    }
}
