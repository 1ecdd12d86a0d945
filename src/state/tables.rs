//! The tables of one filter as the state keeps them: under an epoch, and with outcomes in the domain's words.

use super::epoch::Epoch;
use crate::domain::ItemOutcome;
use crate::filter::codec::Load;
use crate::filter::{
    Digest, Filter, FilterImage, Full, Growth, Insert, Layout, MemoryNeed, Mode, RestoreError, SlotState,
};
use serde::{Deserialize, Serialize};

/// A filter and the epoch of its tables: with a table's own number it names each table for good.
pub(super) struct Tables {
    pub(super) epoch: Epoch,
    pub(super) filter: Filter,
}

/// What a snapshot says of the tables beside their chunks.
#[derive(Serialize, Deserialize)]
pub(super) struct TablesImage {
    pub(super) epoch: Epoch,
    pub(super) mode: Mode,
    pub(super) filter: FilterImage,
}

impl Tables {
    pub(super) fn new(epoch: Epoch, mode: Mode, layout: Layout, growth: Growth) -> Self {
        Self { epoch, filter: Filter::new(mode, layout, growth) }
    }

    /// Bytes of the tables, including those that only the running snapshot still needs.
    pub(super) fn memory_bytes(&self) -> u64 {
        self.filter.tables().memory_bytes()
    }

    /// The most memory that so many items can make the filter ask for once it is cleared, the clearing included.
    pub(super) fn growth_from_empty(&self, items: u64, removes: u64) -> MemoryNeed {
        let mut need = self.filter.clearing();
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

    pub(super) fn begin_snapshot(&mut self) -> TablesImage {
        let (epoch, mode) = (self.epoch, self.filter.mode());
        TablesImage { epoch, mode, filter: self.filter.tables_mut().begin_snapshot() }
    }

    pub(super) fn restore<E>(image: &TablesImage, load: &mut Load<'_, E>) -> Result<Self, RestoreError<E>> {
        let filter = Filter::restore(image.mode, &image.filter, load)?;
        Ok(Self { epoch: image.epoch, filter })
    }
}

fn outcome(insert: Insert) -> ItemOutcome {
    match insert {
        Insert::Added => ItemOutcome::Added,
        Insert::Present(SlotState::Redeemed) => ItemOutcome::AlreadyRedeemed,
        Insert::Present(SlotState::Available | SlotState::Held) => ItemOutcome::AlreadyPresent,
        Insert::Saturated => ItemOutcome::Saturated,
    }
}
