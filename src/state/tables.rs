//! The tables of one filter in the state: with an epoch, and with the domain's outcomes. An import with `mode=replace` builds staged tables
//! next to the live ones, and a dry run fills others that are dropped at its end.
//!
//! During the upload, every change of the filter's items is applied to the live tables and queued. Once the upload is complete, the staged
//! tables *catch up*: held and redeemed codes are copied from the live ones, and the queued changes are repeated. Each command does a
//! bounded part of that work. Later changes are queued too, now including those of a code's state. When nothing is left to do, the tables
//! are swapped.
//!
//! So a used code stays in the pool, in the upload or not, if it was held or redeemed at any time after the upload was complete: even if it
//! is cancelled before the swap, at any progress of the staged tables. One that was cancelled earlier is removed unless the upload contains
//! it.
//!
//! A refused command leaves no change in the queue. One that changed nothing, because the item was already present or absent, does: on the
//! staged tables it may make a difference.

use super::image::Epoch;
use super::machine::Subject;
use super::view::FilterView;
use crate::domain::{
    Import, ImportId, ImportMode, ImportState, ItemOutcome, RedemptionStatus, Refusal, Spec, Timestamp,
};
use crate::filter::{Digest, Filter, Full, Growth, GrowthRule, InsertOutcome, Layout, SlotState, Walk};
use crate::frame::decode;
use crate::paged::{Queue, stored_bytes};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

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
pub(super) fn outcome(insert: InsertOutcome) -> ItemOutcome {
    match insert {
        InsertOutcome::Added => ItemOutcome::Added,
        InsertOutcome::Present(SlotState::Redeemed) => ItemOutcome::AlreadyRedeemed,
        InsertOutcome::Present(SlotState::Available | SlotState::Held) => ItemOutcome::AlreadyPresent,
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

/// Maximum number of changes in the queue of one import: 32 MiB. If there are more, the import fails. No other request waits for it, or is
/// rejected because of it.
const QUEUED_CHANGES_MAX: u64 = 2 << 20;

/// Number of queued changes that are repeated for each new one while an import catches up. With more than one, the queue shrinks under any
/// load.
pub(super) const REPEATED_FOR_EACH: u64 = 2;

/// Buckets that can be walked in the time that it takes to copy one code.
const BUCKETS_A_CODE: u64 = 8;

/// Buckets that are walked in one go.
const BUCKETS_AT_ONCE: u64 = 16;

/// Slots of a bucket of a strict table.
const BUCKET_SLOTS: u64 = 4;

/// The most codes that are copied beyond the number that was asked for: those of the last buckets.
pub(super) const COPIED_BESIDES_MAX: u64 = BUCKETS_AT_ONCE * BUCKET_SLOTS;

/// Maximum size of an encoded change, in bytes: its kind and the item's digest.
const CHANGE_BYTES: usize = 11;

/// Memory of a queued change, in bytes.
pub(super) const QUEUED_CHANGE_BYTES: u64 = stored_bytes(CHANGE_BYTES) as u64;

/// A change of an item.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum ChangeKind {
    /// A copy was added.
    Add,
    /// A copy was added if there was none.
    AddIfAbsent,
    /// A copy was removed.
    Remove,
    /// All copies were removed.
    RemoveAll,
    /// A code was held, redeemed or cancelled.
    State,
}

/// A change of one item.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct QueuedChange {
    pub(super) kind: ChangeKind,
    pub(super) digest: Digest,
}

/// The tables staged by an import.
pub(super) struct Staging {
    pub(super) import: ImportId,
    pub(super) tables: EpochFilter,
    /// The changes to repeat, and the epoch of their queue.
    pub(super) changes: Queue,
    pub(super) epoch: Epoch,
    /// The filter was cleared during the upload. So the staged tables are emptied when they start to catch up.
    pub(super) cleared: bool,
    /// Once the upload is complete: the progress of copying held and redeemed codes.
    pub(super) walk: Option<Walk>,
}

/// Whether a code is held or redeemed.
fn is_used(state: Option<SlotState>) -> bool {
    matches!(state, Some(SlotState::Held | SlotState::Redeemed))
}

impl Subject<'_> {
    /// Queues changes of items for the staged import, if there is one. While it catches up, `repeated` older ones are repeated for each.
    pub(super) fn queue_changes(
        &mut self,
        kind: ChangeKind,
        digests: impl IntoIterator<Item = Digest>,
        repeated: u64,
    ) {
        let Some(staging) = self.staging else { return };
        let before = staging.changes.len();
        for digest in digests {
            let mut buffer = [0; CHANGE_BYTES];
            let encoded = postcard::to_slice(&QueuedChange { kind, digest }, &mut buffer);
            staging.changes.push(encoded.expect("a change has a maximum size"), &[]);
        }
        let repeated = (staging.changes.len() - before) * repeated;
        if staging.changes.len() > QUEUED_CHANGES_MAX {
            self.abort_staging(ImportState::Overtaken);
        } else if staging.is_catching_up() && staging.repeat(self.tables, repeated).is_err() {
            self.abort_staging(ImportState::Failed);
        }
    }
}

impl Staging {
    /// Whether all changes of a snapshot can be read.
    pub(super) fn is_readable(&self) -> bool {
        self.changes.iter().all(|(_, change)| decode::<QueuedChange>(change).is_some())
    }

    /// Whether this import is the staged one.
    pub(super) fn is_of(staging: &Option<Box<Self>>, import: &ImportId) -> bool {
        staging.as_ref().is_some_and(|staging| staging.import == *import)
    }

    /// Whether the upload is complete, and the staged tables are catching up.
    pub(super) fn is_catching_up(&self) -> bool {
        self.walk.is_some()
    }

    /// Copies held and redeemed codes from the live tables, then repeats changes, at most `entries_max` of each. Returns whether the staged
    /// tables have caught up.
    pub(super) fn catch_up(&mut self, live: &EpochFilter, entries_max: u64) -> Result<bool, Full> {
        let entries_max = entries_max.max(1);
        let walked = self.copy_used(live, entries_max)?;
        self.repeat(live, entries_max)?;
        if !walked || !self.changes.is_empty() {
            return Ok(false);
        }
        // The walk may have missed a code that moved in the live tables. Then it starts over.
        let caught_up = self.tables.used() == live.used();
        if !caught_up {
            self.walk = Some(Walk::START);
        }
        Ok(caught_up)
    }

    /// Copies more held and redeemed codes. Returns whether the walk is complete.
    fn copy_used(&mut self, live: &EpochFilter, entries_max: u64) -> Result<bool, Full> {
        let Some(walk) = &mut self.walk else { return Ok(false) };
        let (mut buckets, mut found, mut at_end) = (0, Vec::new(), false);
        while !at_end && buckets + found.len() as u64 * BUCKETS_A_CODE < entries_max * BUCKETS_A_CODE {
            let walked = live.filter.walk(walk, BUCKETS_AT_ONCE, |digest, state| {
                if is_used(Some(state)) {
                    found.push((digest, state));
                }
            });
            buckets += walked;
            at_end = walked == 0;
        }
        found.into_iter().try_for_each(|(digest, state)| self.tables.filter.put(digest, state))?;
        Ok(at_end)
    }

    /// Repeats the oldest changes of the queue, at most `changes_max`.
    fn repeat(&mut self, live: &EpochFilter, changes_max: u64) -> Result<(), Full> {
        let mut left = changes_max;
        while left > 0 && !self.changes.is_empty() {
            // Those of one kind in a row are repeated together.
            let mut run: Vec<QueuedChange> = Vec::new();
            while left > 0
                && let Some(change) = self.changes.front().and_then(decode::<QueuedChange>)
                && run.first().is_none_or(|first| first.kind == change.kind)
            {
                run.push(change);
                self.changes.pop();
                left -= 1;
            }
            repeat_all(&mut self.tables, live, &run)?;
        }
        Ok(())
    }
}

/// Repeats changes, all of one kind.
fn repeat_all(tables: &mut EpochFilter, live: &EpochFilter, changes: &[QueuedChange]) -> Result<(), Full> {
    let Some(QueuedChange { kind, .. }) = changes.first() else { return Ok(()) };
    match kind {
        ChangeKind::Add | ChangeKind::AddIfAbsent => {
            let digests: Vec<Digest> = changes.iter().map(|change| change.digest).collect();
            tables.insert_many(&digests, *kind == ChangeKind::AddIfAbsent)?;
        }
        ChangeKind::Remove | ChangeKind::RemoveAll => {
            for &QueuedChange { digest, .. } in changes {
                // If the code has been added again since, and is held or redeemed by now, it stays as in the live tables.
                if !is_used(live.filter.state(digest)) {
                    while tables.filter.remove(digest) && *kind == ChangeKind::RemoveAll {}
                }
            }
        }
        ChangeKind::State => {
            for &QueuedChange { digest, .. } in changes {
                match live.filter.state(digest) {
                    // Or it was used while the staged tables caught up. Whether they had copied it by then makes no difference.
                    Some(state) if is_used(Some(state)) || tables.filter.state(digest).is_none() => {
                        tables.filter.put(digest, state)?
                    }
                    _ if is_used(tables.filter.state(digest)) => {
                        tables.filter.set_state(digest, SlotState::Available);
                    }
                    _ => {}
                }
            }
        }
    }
    Ok(())
}

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
    pub fn new(view: Arc<FilterView>, live: Option<Filter>, if_absent: bool, now: Timestamp) -> Self {
        let epoch = Epoch::default();
        let (mode, mut tables) = match live {
            Some(filter) => (ImportMode::Append, EpochFilter { epoch, filter }),
            None => {
                let rule = view.reader.growth_rule();
                (ImportMode::Replace, EpochFilter::new(epoch, &view.spec, view.layout, rule))
            }
        };
        tables.advance(&view.spec, now);
        Self { view, tables, mode, if_absent, now }
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
            && self.view.describe(self.now).stats.codes.is_some_and(|codes| codes.held + codes.redeemed > 0)
    }

    /// Ends an import that has been read completely: copies the held and redeemed codes of the live tables, if they are given, and checks
    /// the guards.
    ///
    /// # Errors
    /// [`Refusal::FilterFull`], or the guard that it would violate.
    pub fn end(&mut self, import: &Import, live: Option<&Filter>) -> Result<(), Refusal> {
        import.guards.allow_items(import.items()).map_err(Refusal::ImportGuarded)?;
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
        let before = stats.codes.map_or(stats.items, |codes| codes.available);
        import.guards.allow_swap(before, self.tables.available()).map_err(Refusal::ImportGuarded)
    }
}
