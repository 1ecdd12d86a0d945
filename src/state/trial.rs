//! A trial of an import: its items go into separate tables, so that a dry run counts what the import would.

use super::tables::outcome;
use super::view::FilterView;
use crate::domain::{Import, ImportMode, ItemOutcome, Refusal, Timestamp, Tripped};
use crate::filter::{Digest, Filter, Full, Growth, Layout, Mode, SlotState};
use std::sync::Arc;

/// Maximum number of buckets that the tables of a trial `append` start with; they grow with its items.
const APPEND_BUCKETS: u64 = 1 << 12;

/// The tables of a trial, empty at its beginning.
pub struct ImportTrial {
    view: Arc<FilterView>,
    filter: Filter,
    mode: ImportMode,
    if_absent: bool,
    now: Timestamp,
    /// Items in the tables that are held or redeemed in the live ones.
    used: u64,
}

impl ImportTrial {
    /// Begins a trial of an import into the filter of `view`.
    pub fn new(view: Arc<FilterView>, mode: ImportMode, if_absent: bool, now: Timestamp) -> Self {
        let spec = &view.spec;
        let steps = spec.forget.map(|forget| forget.steps());
        let growth = match mode {
            ImportMode::Append => Growth::Auto,
            ImportMode::Replace => spec.growth,
        };
        let layout = Self::layout(&view, mode);
        let mut filter = Filter::new(spec.mode, layout, growth, steps);
        if let Some(forget) = spec.forget {
            filter.advance(forget.step_at(now));
        }
        Self { view, filter, mode, if_absent, now, used: 0 }
    }

    /// The layout that its tables start with: that of the filter if they would take its place.
    pub fn layout(view: &FilterView, mode: ImportMode) -> Layout {
        match mode {
            ImportMode::Append => Layout { buckets: view.layout.buckets.min(APPEND_BUCKETS), ..view.layout },
            ImportMode::Replace => view.layout,
        }
    }

    /// Bytes of its tables.
    pub fn memory_bytes(&self) -> u64 {
        self.filter.tables().memory_bytes()
    }

    /// The outcomes that the import would have for its next items.
    ///
    /// # Errors
    /// [`Refusal::FilterFull`].
    pub fn insert(&mut self, digests: &[Digest]) -> Result<Vec<ItemOutcome>, Refusal> {
        let outcomes = match self.mode {
            ImportMode::Append => digests.iter().map(|&digest| self.append(digest)).collect(),
            ImportMode::Replace => self.replace(digests),
        };
        outcomes.map_err(|Full| Refusal::FilterFull)
    }

    /// Adds an item to those in the live tables.
    fn append(&mut self, digest: Digest) -> Result<ItemOutcome, Full> {
        let view = &self.view;
        let live = match view.spec.mode {
            Mode::Strict => match view.reader.view(0).states(&[digest])[..] {
                [Some(SlotState::Redeemed)] => return Ok(ItemOutcome::AlreadyRedeemed),
                [Some(_)] => return Ok(ItemOutcome::AlreadyPresent),
                _ => 0,
            },
            Mode::Compact => view.count(digest, self.now),
        };
        if live > 0 && self.if_absent {
            return Ok(ItemOutcome::AlreadyPresent);
        }
        if live > 0 && live + self.filter.count(digest) >= view.copies_max() {
            return Ok(ItemOutcome::Saturated);
        }
        let inserted = self.filter.insert_many(&[digest], self.if_absent)?;
        Ok(inserted.into_iter().next().map_or(ItemOutcome::Saturated, outcome))
    }

    /// Adds items to those in place of the live ones.
    fn replace(&mut self, digests: &[Digest]) -> Result<Vec<ItemOutcome>, Full> {
        let inserted = self.filter.insert_many(digests, self.if_absent)?;
        let states = self.view.reader.view(0).states(digests);
        let outcomes = inserted.into_iter().map(outcome).zip(states).map(|(outcome, live)| {
            let is_used = matches!(live, Some(SlotState::Held | SlotState::Redeemed));
            self.used += u64::from(is_used && outcome == ItemOutcome::Added);
            // A code that is redeemed in the live tables would be so in the new ones.
            if live == Some(SlotState::Redeemed) { ItemOutcome::AlreadyRedeemed } else { outcome }
        });
        Ok(outcomes.collect())
    }

    /// Checks the guards of an import that has been read as a whole.
    ///
    /// # Errors
    /// The guard that it would violate.
    pub fn check(&self, import: &Import) -> Result<(), Tripped> {
        import.guards.allow_items(import.items())?;
        if self.mode == ImportMode::Append {
            return Ok(());
        }
        let stats = self.view.describe(self.now).stats;
        let before = stats.codes.map_or(stats.items, |codes| codes.available);
        import.guards.allow_swap(before, self.filter.items() - self.used)
    }
}
