//! Staging: an import with `mode=replace` builds new tables aside, which then replace the live ones.
//!
//! While the upload goes on, every change of the filter's items is applied to the live tables and kept in a queue. Once the upload is
//! whole, the staged tables *catch up*: held and redeemed codes are copied from the live ones, and the changes in the queue are
//! repeated. Each command does a bounded part of that work. Changes that come meanwhile are queued too, now including those of a
//! code's state. When nothing is left to do, the tables are swapped.
//!
//! So a used code stays in the pool, in the upload or not, if it was held or redeemed at any time after the upload was whole: also if it
//! is cancelled before the swap, however far the staged tables have come. One that is cancelled earlier goes unless the upload has it.
//!
//! A command that was refused leaves no change in the queue. One that changed nothing, because the item was there or gone already,
//! does: on the staged tables it may make a difference.

use super::section::Epoch;
use super::tables::Tables;
use crate::domain::{ImportId, ImportState};
use crate::filter::{Digest, Full, SlotState, Walk};
use crate::frame::decode;
use crate::paged::{Queue, stored_bytes};
use serde::{Deserialize, Serialize};

/// The most changes in the queue of one import: 32 MiB. If there are more, the import fails. Nobody else has to wait for it, or is
/// refused because of it.
const KEPT_CHANGES_MAX: u64 = 2 << 20;

/// How many waiting changes are repeated for each one that comes while an import catches up. With more than one, the queue gets
/// shorter, however many come.
pub(super) const REPEATED_FOR_EACH: u64 = 2;

/// Buckets that can be walked in the time that it takes to copy one code.
const BUCKETS_A_CODE: u64 = 8;

/// Buckets that are walked in one go.
const BUCKETS_AT_ONCE: u64 = 16;

/// Slots of a bucket of a strict table.
const BUCKET_SLOTS: u64 = 4;

/// The most codes that are copied beyond the number that was asked for: those of the last buckets.
pub(super) const TAKEN_OVER_BESIDE: u64 = BUCKETS_AT_ONCE * BUCKET_SLOTS;

/// Maximum size of an encoded change, in bytes: its kind and the item's digest.
const CHANGE_BYTES: usize = 11;

/// Memory of a kept change, in bytes.
pub(super) const KEPT_CHANGE_BYTES: u64 = stored_bytes(CHANGE_BYTES) as u64;

/// What a change did to an item.
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
    /// A code was held, redeemed or given back.
    State,
}

/// A change of one item.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct KeptChange {
    pub(super) kind: ChangeKind,
    pub(super) digest: Digest,
}

/// A queue of changes: the oldest leaves first.
#[derive(Debug)]
pub(super) struct KeptChanges {
    pub(super) epoch: Epoch,
    pub(super) queue: Queue,
    len: u64,
}

impl KeptChanges {
    pub(super) fn new(epoch: Epoch) -> Self {
        Self { epoch, queue: Queue::default(), len: 0 }
    }

    /// Restores the changes of a snapshot. `None` if one of them can't be read.
    pub(super) fn restore(epoch: Epoch, queue: Queue) -> Option<Self> {
        let mut len = 0;
        for (_, change) in queue.iter() {
            decode::<KeptChange>(change)?;
            len += 1;
        }
        Some(Self { epoch, queue, len })
    }

    /// Number of changes in the queue.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Their memory, in bytes.
    pub(super) fn memory_bytes(&self) -> u64 {
        self.len * KEPT_CHANGE_BYTES
    }

    pub(super) fn push(&mut self, change: KeptChange) {
        let mut buffer = [0; CHANGE_BYTES];
        let encoded = postcard::to_slice(&change, &mut buffer).expect("a change has a maximum size");
        self.queue.push(encoded, &[]);
        self.len += 1;
    }

    /// Removes and returns the oldest changes, at most `changes_max`: only those of one kind in a row.
    pub(super) fn pop_run(&mut self, changes_max: u64) -> Vec<KeptChange> {
        let mut run: Vec<KeptChange> = Vec::new();
        while (run.len() as u64) < changes_max
            && let Some(change) = self.queue.front().and_then(decode::<KeptChange>)
            && run.first().is_none_or(|first| first.kind == change.kind)
        {
            run.push(change);
            self.queue.pop();
            self.len -= 1;
        }
        run
    }

    /// Drops all changes.
    pub(super) fn clear(&mut self) {
        self.queue.clear();
        self.len = 0;
    }
}

/// The tables that an import builds aside.
pub(super) struct Staging {
    pub(super) import: ImportId,
    pub(super) tables: Tables,
    /// The changes that are to be repeated.
    pub(super) changes: KeptChanges,
    /// The filter was cleared during the upload. So the staged tables are emptied when they begin to catch up.
    pub(super) cleared: bool,
    /// Once the upload is whole: how far the copying of held and redeemed codes has come.
    pub(super) walk: Option<Walk>,
}

/// Whether a code is held or redeemed.
fn is_used(state: Option<SlotState>) -> bool {
    matches!(state, Some(SlotState::Held | SlotState::Redeemed))
}

impl Staging {
    pub(super) fn new(import: ImportId, tables: Tables, changes: Epoch) -> Self {
        Self { import, tables, changes: KeptChanges::new(changes), cleared: false, walk: None }
    }

    /// Whether this import is the one that builds tables aside.
    pub(super) fn is_of(staging: &Option<Box<Self>>, import: &ImportId) -> bool {
        staging.as_ref().is_some_and(|staging| staging.import == *import)
    }

    /// Whether the upload is whole, and the staged tables are catching up.
    pub(super) fn is_catching_up(&self) -> bool {
        self.walk.is_some()
    }

    /// Adds changes of the filter's items to the queue. While the staged tables catch up, so many older ones are repeated for each.
    ///
    /// # Errors
    /// What becomes of the import: too many changes wait, or the staged tables are full.
    pub(super) fn keep(
        &mut self,
        live: &Tables,
        kind: ChangeKind,
        digests: impl IntoIterator<Item = Digest>,
        repeated_for_each: u64,
    ) -> Result<(), ImportState> {
        let before = self.changes.len();
        digests.into_iter().for_each(|digest| self.changes.push(KeptChange { kind, digest }));
        let come = self.changes.len() - before;
        if self.changes.len() > KEPT_CHANGES_MAX {
            return Err(ImportState::Overtaken);
        }
        if self.is_catching_up() {
            self.repeat(live, come * repeated_for_each).map_err(|Full| ImportState::Failed)?;
        }
        Ok(())
    }

    /// Copies held and redeemed codes from the live tables, then repeats changes, at most so many entries of each. Returns whether the
    /// staged tables have caught up.
    pub(super) fn catch_up(&mut self, live: &Tables, entries_max: u64) -> Result<bool, Full> {
        let entries_max = entries_max.max(1);
        let walked = self.take_over(live, entries_max)?;
        self.repeat(live, entries_max)?;
        if !walked || self.changes.len() > 0 {
            return Ok(false);
        }
        // The walk may have missed a code that moved in the live tables. Then it starts over.
        let caught_up = self.tables.used() == live.used();
        if !caught_up {
            self.walk = Some(Walk::START);
        }
        Ok(caught_up)
    }

    /// Copies more held and redeemed codes. Returns whether the walk has come to its end.
    fn take_over(&mut self, live: &Tables, entries_max: u64) -> Result<bool, Full> {
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

    /// Repeats the oldest changes of the queue, at most so many.
    fn repeat(&mut self, live: &Tables, changes_max: u64) -> Result<(), Full> {
        let mut left = changes_max;
        while left > 0 && self.changes.len() > 0 {
            let run = self.changes.pop_run(left);
            repeat_all(&mut self.tables, live, &run)?;
            left -= run.len() as u64;
        }
        Ok(())
    }
}

/// Repeats changes, all of one kind.
fn repeat_all(tables: &mut Tables, live: &Tables, changes: &[KeptChange]) -> Result<(), Full> {
    let Some(KeptChange { kind, .. }) = changes.first() else { return Ok(()) };
    match kind {
        ChangeKind::Add | ChangeKind::AddIfAbsent => {
            let digests: Vec<Digest> = changes.iter().map(|change| change.digest).collect();
            tables.insert_many(&digests, *kind == ChangeKind::AddIfAbsent)?;
        }
        ChangeKind::Remove | ChangeKind::RemoveAll => {
            for &KeptChange { digest, .. } in changes {
                // If the code has been added again since, and is held or redeemed by now, it stays as in the live tables.
                if !is_used(live.filter.state(digest)) {
                    while tables.filter.remove(digest) && *kind == ChangeKind::RemoveAll {}
                }
            }
        }
        ChangeKind::State => {
            for &KeptChange { digest, .. } in changes {
                match live.filter.state(digest) {
                    Some(state) if is_used(Some(state)) => tables.filter.put(digest, state)?,
                    // It was used while the staged tables caught up. Whether they had copied it by then makes no difference.
                    Some(state) if tables.filter.state(digest).is_none() => {
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
