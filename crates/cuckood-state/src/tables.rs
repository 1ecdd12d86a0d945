//! The tables of one filter in the state: with an epoch, and with the domain's outcomes.

use super::section::Epoch;
use crate::domain::{ItemOutcome, RedemptionStatus, Spec, Timestamp};
use cuckood_filter::{Digest, Filter, Full, GrowthRule, InsertOutcome, Layout, SlotState};

/// Words that a filter which forgets looks through for forgotten items with each item that is added. Its tables have a few words for an item,
/// so before long all is free, however many other filters wait for their turn.
const WORDS_AN_INSERT: u64 = 32;

/// A filter and the epoch of its tables: with a table's own number it identifies each table permanently.
pub(super) struct EpochFilter {
    pub(super) epoch: Epoch,
    pub(super) filter: Filter,
}

impl EpochFilter {
    /// Empty tables for a filter of this spec, which grows by this rule. One that forgets has no step yet: see [`Self::advance`].
    pub(super) fn new(epoch: Epoch, spec: &Spec, layout: Layout, rule: GrowthRule) -> Self {
        let steps = spec.forget.map(|forget| forget.steps());
        let mut filter = Filter::new(spec.mode, layout, spec.growth, steps);
        filter.set_growth_rule(rule);
        Self { epoch, filter }
    }

    /// Lets a filter that forgets go on to the step of this time. Returns how many items are forgotten by that.
    pub(super) fn advance(&mut self, spec: &Spec, now: Timestamp) -> u64 {
        spec.forget
            .map_or(0, |forget| self.filter.advance(forget.step_at(now)))
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
pub(super) fn outcome(insert: InsertOutcome) -> ItemOutcome {
    match insert {
        InsertOutcome::Added => ItemOutcome::Added,
        InsertOutcome::Present(SlotState::Redeemed) => ItemOutcome::AlreadyRedeemed,
        InsertOutcome::Present(SlotState::Available | SlotState::Held) => {
            ItemOutcome::AlreadyPresent
        }
        InsertOutcome::Saturated => ItemOutcome::Saturated,
    }
}

/// The state of a code whose redemption has this status.
pub(super) fn slot_state(status: RedemptionStatus) -> SlotState {
    match status {
        RedemptionStatus::Held => SlotState::Held,
        RedemptionStatus::Redeemed => SlotState::Redeemed,
        RedemptionStatus::Cancelled | RedemptionStatus::Expired => SlotState::Available,
    }
}
