//! The queue of changes that an import with `mode=replace` has to repeat on the tables it builds aside.

use super::epoch::Epoch;
use crate::filter::Digest;
use crate::paged::{Queue, stored_bytes};

/// Bytes of a change: its kind and the item's digest.
const CHANGE_BYTES: usize = 9;

/// Memory of a kept change, in bytes.
pub(super) const KEPT_CHANGE_BYTES: u64 = stored_bytes(CHANGE_BYTES) as u64;

/// What a change did to an item.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum ChangeKind {
    /// A copy was added.
    Add = 0,
    /// A copy was added if there was none.
    AddIfAbsent = 1,
    /// A copy was removed.
    Remove = 2,
    /// All copies were removed.
    RemoveAll = 3,
    /// A code was held, redeemed or given back.
    State = 4,
}

/// A change of one item.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct KeptChange {
    pub(super) kind: ChangeKind,
    pub(super) digest: Digest,
}

impl KeptChange {
    fn decode(bytes: &[u8]) -> Option<Self> {
        let ([kind], digest) = bytes.split_first_chunk()?;
        let kinds = [
            ChangeKind::Add,
            ChangeKind::AddIfAbsent,
            ChangeKind::Remove,
            ChangeKind::RemoveAll,
            ChangeKind::State,
        ];
        let kind = *kinds.get(usize::from(*kind))?;
        Some(Self { kind, digest: Digest(u64::from_le_bytes(digest.try_into().ok()?)) })
    }
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
            KeptChange::decode(change)?;
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

    pub(super) fn push(&mut self, KeptChange { kind, digest }: KeptChange) {
        self.queue.push(&[kind as u8], &digest.0.to_le_bytes());
        self.len += 1;
    }

    /// Removes and returns the oldest changes, at most `changes_max`: only those of one kind in a row.
    pub(super) fn pop_run(&mut self, changes_max: u64) -> Vec<KeptChange> {
        let mut run: Vec<KeptChange> = Vec::new();
        while (run.len() as u64) < changes_max
            && let Some(change) = self.queue.front().and_then(KeptChange::decode)
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
