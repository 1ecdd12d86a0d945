//! A dry run of an import: it fills tables that are dropped at its end.

use super::section::Epoch;
use super::staging::is_used;
use super::tables::EpochFilter;
use super::view::FilterView;
use crate::domain::{Import, ImportMode, ItemOutcome, Refusal, Timestamp};
use cuckood_filter::{Digest, Filter, Full, Growth, SlotState, Walk};
use std::sync::Arc;

/// The tables of a trial: a copy of the live ones, or empty ones that would take their place.
pub struct ImportTrial {
    view: Arc<FilterView>,
    tables: EpochFilter,
    mode: ImportMode,
    if_absent: bool,
    now: Timestamp,
}

impl ImportTrial {
    /// Begins a trial of adding items to a copy of the live tables of `view`; without one, of replacing all items.
    pub fn new(
        view: Arc<FilterView>,
        live: Option<Filter>,
        if_absent: bool,
        now: Timestamp,
    ) -> Self {
        let epoch = Epoch::default();
        let (mode, mut tables) = match live {
            Some(filter) => (ImportMode::Append, EpochFilter { epoch, filter }),
            None => {
                let rule = view.reader.growth_rule();
                (
                    ImportMode::Replace,
                    EpochFilter::new(epoch, &view.spec, view.layout, rule),
                )
            }
        };
        tables.advance(&view.spec, now);
        Self {
            view,
            tables,
            mode,
            if_absent,
            now,
        }
    }

    /// Bytes of its tables.
    pub fn memory_bytes(&self) -> u64 {
        self.tables.memory_bytes()
    }

    /// The outcomes that the import would have for its next items.
    ///
    /// # Errors
    /// [`Refusal::FilterFull`].
    pub fn insert(&mut self, digests: &[Digest]) -> Result<Vec<ItemOutcome>, Refusal> {
        let inserted = self.tables.insert_many(digests, self.if_absent);
        let mut outcomes = inserted.map_err(|Full| Refusal::FilterFull)?;
        if self.mode == ImportMode::Replace {
            let states = self.view.reader.view(0).states(digests);
            for ((outcome, live), digest) in outcomes.iter_mut().zip(states).zip(digests) {
                if let Some(state) = live.filter(|state| is_used(Some(*state))) {
                    self.tables.filter.set_state(*digest, state);
                }
                // A code that is redeemed in the live tables would be so in the new ones.
                if live == Some(SlotState::Redeemed) {
                    *outcome = ItemOutcome::AlreadyRedeemed;
                }
            }
        }
        Ok(outcomes)
    }

    /// Whether the held and redeemed codes, which a replacement copies, may not fit.
    pub fn needs_used(&self) -> bool {
        let is_bounded = self.mode == ImportMode::Replace && self.view.spec.growth == Growth::Fixed;
        is_bounded
            && self
                .view
                .describe(self.now)
                .stats
                .codes
                .states
                .is_some_and(|codes| codes.held + codes.redeemed > 0)
    }

    /// Ends an import that has been read completely: copies the held and redeemed codes of the live tables, if they are given, and checks
    /// the guards.
    ///
    /// # Errors
    /// [`Refusal::FilterFull`], or the guard that it would violate.
    pub fn end(&mut self, import: &Import, live: Option<&Filter>) -> Result<(), Refusal> {
        import
            .guards
            .allow_items(import.items())
            .map_err(Refusal::ImportGuarded)?;
        if self.mode == ImportMode::Append {
            return Ok(());
        }
        let mut copied = Ok(());
        let copy = |digest, state| {
            if copied.is_ok() && is_used(Some(state)) {
                copied = self.tables.filter.put(digest, state);
            }
        };
        let mut walk = Walk::START;
        live.map(|live| live.walk(&mut walk, u64::MAX, copy));
        copied.map_err(|Full| Refusal::FilterFull)?;
        let stats = self.view.describe(self.now).stats;
        let before = stats.codes.states;
        let before = before.map_or(stats.items, |codes| codes.available);
        import
            .guards
            .allow_swap(before, self.tables.available())
            .map_err(Refusal::ImportGuarded)
    }
}
