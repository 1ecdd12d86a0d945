//! The staged tables of an import with `mode=replace`, next to the live ones.
//!
//! During the upload, every change of the filter's items is applied to the live tables and queued. Once the upload is complete, the staged
//! tables *catch up*: held and redeemed codes are copied from the live ones, and the queued changes are repeated. Each command does a
//! bounded part of that work. Later changes are queued too, now including those of a code's state. When nothing is left to do, the tables
//! are swapped.
//!
//! A used code stays used after the swap. When its use ends, it is in the pool if the upload or a later add has it. The staged tables have a
//! [`Membership`] for that, and follow every change of a use at once: only adds and removes are queued.
//!
//! Before version 2 of entries, the staged tables have no membership. A code that was used at any time after the upload was complete stays
//! in the pool, even if it is cancelled before the swap. One that was cancelled earlier is removed unless the upload contains it.
//!
//! A refused command leaves no change in the queue. One that changed nothing, because the item was already present or absent, does: on the
//! staged tables it may make a difference.

use super::ledger::{Ledger, Membership};
use super::section::Epoch;
use super::tables::EpochFilter;
use crate::domain::ImportId;
use crate::frame::decode;
use crate::paged::{Queue, stored_bytes};
use cuckood_filter::{Digest, Full, SlotState, Walk};
use serde::{Deserialize, Serialize};

/// Maximum number of changes in the queue of one import: 32 MiB. If there are more, the import fails. No other request waits for it, or is
/// rejected because of it.
pub(super) const QUEUED_CHANGES_MAX: u64 = 2 << 20;

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
pub(super) const CHANGE_BYTES: usize = 11;

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
    /// A code was held, redeemed or cancelled; only without a membership.
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
    /// From then on: which used codes are in the staged pool.
    pub(super) membership: Option<Membership>,
}

/// Whether a code is held or redeemed.
pub(super) fn is_used(state: Option<SlotState>) -> bool {
    matches!(state, Some(SlotState::Held | SlotState::Redeemed))
}

impl Staging {
    /// Whether all changes of a snapshot can be read.
    pub(super) fn is_readable(&self) -> bool {
        self.changes
            .iter()
            .all(|(_, change)| decode::<QueuedChange>(change).is_some())
    }

    /// Whether this import is the staged one.
    pub(super) fn is_of(staging: &Option<Box<Self>>, import: &ImportId) -> bool {
        staging
            .as_ref()
            .is_some_and(|staging| staging.import == *import)
    }

    /// Whether the upload is complete, and the staged tables are catching up.
    pub(super) fn is_catching_up(&self) -> bool {
        self.walk.is_some()
    }

    /// Copies held and redeemed codes from the live tables, then repeats changes, at most `entries_max` of each. Returns whether the staged
    /// tables have caught up.
    pub(super) fn catch_up(
        &mut self,
        live: &EpochFilter,
        ledger: &Ledger,
        entries_max: u64,
    ) -> Result<bool, Full> {
        let entries_max = entries_max.max(1);
        let walked = self.copy_used(live, ledger, entries_max)?;
        self.repeat(live, ledger, entries_max)?;
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
    fn copy_used(
        &mut self,
        live: &EpochFilter,
        ledger: &Ledger,
        entries_max: u64,
    ) -> Result<bool, Full> {
        let Some(walk) = &mut self.walk else {
            return Ok(false);
        };
        let mut buckets = 0;
        let mut found = Vec::new();
        let mut at_end = false;
        while !at_end
            && buckets + found.len() as u64 * BUCKETS_A_CODE < entries_max * BUCKETS_A_CODE
        {
            let walked = live.filter.walk(walk, BUCKETS_AT_ONCE, |digest, state| {
                if is_used(Some(state)) {
                    found.push((digest, state));
                }
            });
            buckets += walked;
            at_end = walked == 0;
        }
        for (digest, state) in found {
            match &mut self.membership {
                None => self.tables.filter.put(digest, state)?,
                Some(_) => self.follow(digest, ledger.member_number(digest), Some(state))?,
            }
        }
        Ok(at_end)
    }

    /// Follows the use of a code in the live tables: `used` is its state there if it is used, and `number` its number in the membership.
    /// Without a membership, nothing happens.
    pub(super) fn follow(
        &mut self,
        digest: Digest,
        number: Option<u32>,
        used: Option<SlotState>,
    ) -> Result<(), Full> {
        let Some(membership) = &mut self.membership else {
            return Ok(());
        };
        let filter = &mut self.tables.filter;
        match (used, filter.state(digest)) {
            (Some(state), Some(SlotState::Available)) => {
                filter.set_state(digest, state);
                number
                    .into_iter()
                    .for_each(|number| membership.join(number));
            }
            (Some(state), Some(SlotState::Held | SlotState::Redeemed)) => {
                filter.set_state(digest, state);
            }
            // Neither the upload nor a later add has it.
            (Some(state), None) => {
                filter.put(digest, state)?;
                number
                    .into_iter()
                    .for_each(|number| membership.leave(number));
            }
            (None, Some(SlotState::Held | SlotState::Redeemed)) => {
                if number.is_some_and(|number| membership.contains(number)) {
                    filter.set_state(digest, SlotState::Available);
                } else {
                    filter.remove(digest);
                }
            }
            (None, Some(SlotState::Available) | None) => {}
        }
        Ok(())
    }

    /// Adds or removes those of these codes that are used in the staged tables, and returns the others. Without a membership, returns all.
    fn take_used(&mut self, changes: Vec<QueuedChange>, ledger: &Ledger) -> Vec<QueuedChange> {
        let Some(membership) = &mut self.membership else {
            return changes;
        };
        let mut others = Vec::with_capacity(changes.len());
        for change in changes {
            if !is_used(self.tables.filter.state(change.digest)) {
                others.push(change);
                continue;
            }
            let Some(number) = ledger.member_number(change.digest) else {
                continue;
            };
            match change.kind {
                ChangeKind::Add | ChangeKind::AddIfAbsent => membership.join(number),
                ChangeKind::Remove | ChangeKind::RemoveAll => membership.leave(number),
                ChangeKind::State => {}
            }
        }
        others
    }

    /// Repeats the oldest changes of the queue, at most `changes_max`.
    pub(super) fn repeat(
        &mut self,
        live: &EpochFilter,
        ledger: &Ledger,
        changes_max: u64,
    ) -> Result<(), Full> {
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
            let run = self.take_used(run, ledger);
            let live = self.membership.is_none().then_some(live);
            repeat_all(&mut self.tables, live, &run)?;
        }
        Ok(())
    }
}

/// Repeats changes, all of one kind. `live` are the live tables if uses are queued, too.
fn repeat_all(
    tables: &mut EpochFilter,
    live: Option<&EpochFilter>,
    changes: &[QueuedChange],
) -> Result<(), Full> {
    let Some(QueuedChange { kind, .. }) = changes.first() else {
        return Ok(());
    };
    match kind {
        ChangeKind::Add | ChangeKind::AddIfAbsent => {
            let digests: Vec<Digest> = changes.iter().map(|change| change.digest).collect();
            tables.insert_many(&digests, *kind == ChangeKind::AddIfAbsent)?;
        }
        ChangeKind::Remove | ChangeKind::RemoveAll => {
            for &QueuedChange { digest, .. } in changes {
                // If the code has been added again since, and is held or redeemed by now, it stays as in the live tables.
                if !live.is_some_and(|live| is_used(live.filter.state(digest))) {
                    while tables.filter.remove(digest) && *kind == ChangeKind::RemoveAll {}
                }
            }
        }
        ChangeKind::State => {
            for &QueuedChange { digest, .. } in changes {
                match live.and_then(|live| live.filter.state(digest)) {
                    // Or it was used while the staged tables caught up. Whether they had copied it by then makes no difference.
                    Some(state)
                        if is_used(Some(state)) || tables.filter.state(digest).is_none() =>
                    {
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
