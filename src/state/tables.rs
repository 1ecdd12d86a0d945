//! The tables of one filter as the state keeps them: under an epoch, and with outcomes in the domain's words.

use super::section::Epoch;
use crate::domain::{ItemOutcome, Spec, Status, Timestamp};
use crate::filter::{Digest, Filter, Full, Insert, Layout, SlotState};

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
    pub(super) fn new(epoch: Epoch, spec: &Spec, layout: Layout) -> Self {
        let steps = spec.forget.map(|forget| forget.steps());
        Self { epoch, filter: Filter::new(spec.mode, layout, spec.growth, steps) }
    }

    /// Lets a filter that forgets go on to the step of this time. Returns how many items are forgotten by that.
    pub(super) fn advance(&mut self, spec: &Spec, now: Timestamp) -> u64 {
        spec.forget.map_or(0, |forget| self.filter.advance(forget.step_at(now)))
    }

    /// When the next items are forgotten, if any are going to be.
    pub(super) fn due(&self, spec: &Spec) -> Option<Timestamp> {
        Some(spec.forget?.end_of(self.filter.oldest_step()?))
    }

    /// Bytes of the tables.
    pub(super) fn memory_bytes(&self) -> u64 {
        self.filter.tables().memory_bytes()
    }

    /// Adds items, all or none. A redeemed code stays redeemed.
    pub(super) fn insert_many(
        &mut self,
        digests: &[Digest],
        if_absent: bool,
    ) -> Result<Vec<ItemOutcome>, Full> {
        let inserted = self.filter.insert_many(digests, if_absent)?;
        if self.filter.is_retiring() {
            self.filter.retire(WORDS_AN_INSERT * digests.len() as u64);
        }
        Ok(inserted.into_iter().map(outcome).collect())
    }

    /// How many codes are held, and how many redeemed.
    pub(super) fn used(&self) -> (u64, u64) {
        let counts = self.filter.counts().unwrap_or_default();
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
