//! The queue of changes that an import with `mode=replace` has to repeat on the tables it builds aside.
//!
//! A snapshot of it is taken page by page while changes come and go. What is in the queue never changes, so the snapshot shares its
//! pages, and copies none.

use super::epoch::Epoch;
use super::slab::DamagedSlab;
use crate::filter::Digest;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::sync::Arc;

/// Memory of a kept change, in bytes.
pub(super) const KEPT_CHANGE_BYTES: u64 = size_of::<KeptChange>() as u64;

/// Changes in a page. A page is a chunk of a snapshot, and so has 8 KB there.
const PAGE_CHANGES: usize = 880;

/// Bytes of a change in a chunk: its kind and the item's digest.
const ENCODED_BYTES: usize = 9;

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

impl ChangeKind {
    fn of(byte: u8) -> Option<Self> {
        [Self::Add, Self::AddIfAbsent, Self::Remove, Self::RemoveAll, Self::State]
            .get(usize::from(byte))
            .copied()
    }
}

/// A change of one item.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct KeptChange {
    pub(super) kind: ChangeKind,
    pub(super) digest: Digest,
}

type Page = Arc<Vec<KeptChange>>;

/// A queue of changes: the oldest leaves first.
#[derive(Debug)]
pub(super) struct KeptChanges {
    epoch: Epoch,
    /// How many changes have left. Changes are numbered as they come, and a change's number says which page has it.
    gone: u64,
    /// How many changes have come.
    come: u64,
    /// The pages from the oldest change to the newest.
    pages: VecDeque<Page>,
    snapshot: Option<Snapshot>,
}

/// A snapshot in progress.
#[derive(Debug)]
struct Snapshot {
    /// The number of the next change to be taken, and of the first that does not belong to the snapshot.
    next: u64,
    end: u64,
    /// The pages from the next change on.
    pages: VecDeque<Page>,
}

/// What a snapshot says of the queue, except for its changes, which lie in chunks.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(super) struct KeptImage {
    pub(super) epoch: Epoch,
    gone: u64,
    come: u64,
}

impl KeptImage {
    /// A number that differs whenever the contents do.
    pub(super) fn changes(&self) -> u64 {
        self.gone + self.come
    }
}

fn page(number: u64) -> u64 {
    number / PAGE_CHANGES as u64
}

fn place(number: u64) -> usize {
    (number % PAGE_CHANGES as u64) as usize
}

impl KeptChanges {
    pub(super) fn new(epoch: Epoch) -> Self {
        Self { epoch, gone: 0, come: 0, pages: VecDeque::new(), snapshot: None }
    }

    pub(super) fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// How many changes are in the queue.
    pub(super) fn len(&self) -> u64 {
        self.come - self.gone
    }

    pub(super) fn push(&mut self, change: KeptChange) {
        if self.pages.is_empty() || place(self.come) == 0 {
            // After a restore the changes that had left are missing at the beginning of a page. Others stand in for them.
            let page = vec![change; place(self.come)];
            self.pages.push_back(Arc::new(page));
        }
        if let Some(page) = self.pages.back_mut() {
            Arc::make_mut(page).push(change);
        }
        self.come += 1;
    }

    /// The oldest changes, at most so many: only those of one kind in a row, and on one page.
    pub(super) fn first(&self, changes_max: u64) -> &[KeptChange] {
        let Some(page) = self.pages.front() else { return &[] };
        let waiting = &page[place(self.gone)..];
        let same = waiting.iter().take_while(|change| change.kind == waiting[0].kind).count();
        &waiting[..same.min(usize::try_from(changes_max).unwrap_or(usize::MAX))]
    }

    /// Drops so many of the oldest changes, which must lie on one page.
    pub(super) fn drop_first(&mut self, changes: usize) {
        let before = page(self.gone);
        self.gone += changes as u64;
        debug_assert!(self.gone <= self.come);
        if self.gone == self.come || page(self.gone) > before {
            self.pages.pop_front();
        }
    }

    /// Drops all changes.
    pub(super) fn clear(&mut self) {
        self.gone = self.come;
        self.pages.clear();
    }

    /// Begins a snapshot: [`Self::take_chunk`] gives out what is in the queue now.
    pub(super) fn begin_snapshot(&mut self) -> KeptImage {
        self.snapshot = Some(Snapshot { next: self.gone, end: self.come, pages: self.pages.clone() });
        KeptImage { epoch: self.epoch, gone: self.gone, come: self.come }
    }

    /// Replaces `out` with the next chunk of the running snapshot; false, and nothing, after the last.
    pub(super) fn take_chunk(&mut self, out: &mut Vec<u8>) -> bool {
        out.clear();
        let Some(Snapshot { next, end, pages }) = &mut self.snapshot else { return false };
        let Some(taken) = pages.pop_front() else { return false };
        let last = (*end).min((page(*next) + 1) * PAGE_CHANGES as u64);
        for change in &taken[place(*next)..][..(last - *next) as usize] {
            out.push(change.kind as u8);
            out.extend_from_slice(&change.digest.0.to_le_bytes());
        }
        *next = last;
        true
    }

    pub(super) fn end_snapshot(&mut self) {
        self.snapshot = None;
    }

    /// Bytes of changes that have left the queue, but not been taken by the running snapshot yet.
    pub(super) fn snapshot_bytes(&self) -> u64 {
        let Some(snapshot) = &self.snapshot else { return 0 };
        self.gone.min(snapshot.end).saturating_sub(snapshot.next) * KEPT_CHANGE_BYTES
    }

    /// Bytes of all changes that the running snapshot has not taken yet.
    pub(super) fn untaken_bytes(&self) -> u64 {
        self.snapshot.as_ref().map_or(0, |snapshot| snapshot.end - snapshot.next) * KEPT_CHANGE_BYTES
    }

    /// Restores a queue from the chunks of its snapshot, joined in order.
    pub(super) fn restore(image: KeptImage, bytes: &[u8]) -> Result<Self, DamagedSlab> {
        let KeptImage { epoch, gone, come } = image;
        let mut kept = Self { gone, come: gone, ..Self::new(epoch) };
        let (changes, rest) = bytes.as_chunks::<ENCODED_BYTES>();
        for [kind, digest @ ..] in changes {
            let kind = ChangeKind::of(*kind).ok_or(DamagedSlab("a kept change is of no kind"))?;
            kept.push(KeptChange { kind, digest: Digest(u64::from_le_bytes(*digest)) });
        }
        let whole = rest.is_empty() && kept.come == come;
        whole.then_some(kept).ok_or(DamagedSlab("kept changes are missing"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn contents(kept: &KeptChanges) -> Vec<KeptChange> {
        let mut all: Vec<KeptChange> = kept.pages.iter().flat_map(|page| page.iter().copied()).collect();
        all.drain(..all.len() - kept.len() as usize);
        all
    }

    fn change(kept: &mut KeptChanges, operation: u16) {
        match operation % 4 {
            0 => {
                let changes = kept.first(u64::from(operation / 4)).len();
                kept.drop_first(changes);
            }
            1 if operation > 65_500 => kept.clear(),
            _ => (0..operation % 1_000).for_each(|number| {
                let kind = ChangeKind::of((operation / 7 % 5) as u8).unwrap();
                kept.push(KeptChange {
                    kind,
                    digest: Digest(u64::from(operation) << 32 | u64::from(number)),
                });
            }),
        }
    }

    fn taken(kept: &mut KeptChanges, mut meanwhile: impl FnMut(&mut KeptChanges)) -> Vec<Vec<u8>> {
        let mut chunks = Vec::new();
        loop {
            let mut chunk = Vec::new();
            meanwhile(kept);
            if !kept.take_chunk(&mut chunk) {
                return chunks;
            }
            chunks.push(chunk);
        }
    }

    proptest! {
        #[test]
        fn a_snapshot_is_what_was_there_when_it_began(
            before in proptest::collection::vec(any::<u16>(), 0..60),
            meanwhile in proptest::collection::vec(any::<u16>(), 0..60),
        ) {
            let mut kept = KeptChanges::new(Epoch(1));
            before.iter().for_each(|&operation| change(&mut kept, operation));
            let expected = contents(&kept);
            prop_assert_eq!(expected.len() as u64, kept.len());
            let image = kept.begin_snapshot();
            let mut operations = meanwhile.iter();
            let chunks = taken(&mut kept, |kept| {
                operations.by_ref().take(3).for_each(|&operation| change(kept, operation));
            });
            prop_assert!(chunks.iter().all(|chunk| chunk.len() <= PAGE_CHANGES * ENCODED_BYTES));
            let bytes = chunks.concat();
            let mut restored = KeptChanges::restore(image, &bytes).unwrap();
            prop_assert_eq!(contents(&restored), expected);
            if !bytes.is_empty() {
                prop_assert!(KeptChanges::restore(image, &bytes[..bytes.len() - 1]).is_err());
                prop_assert!(KeptChanges::restore(image, &bytes[..bytes.len() - ENCODED_BYTES]).is_err());
            }
            // The restored queue goes on as the first one does, and its snapshot has the same chunks.
            let (mut one, mut two) = (KeptChanges::restore(image, &bytes).unwrap(), restored.begin_snapshot());
            prop_assert_eq!(two.changes(), image.changes());
            prop_assert_eq!(taken(&mut restored, |_| ()), chunks);
            kept.end_snapshot();
            for &operation in before.iter().chain(&meanwhile) {
                change(&mut one, operation);
                change(&mut restored, operation);
            }
            (two, _) = (one.begin_snapshot(), restored.begin_snapshot());
            prop_assert_eq!(taken(&mut one, |_| ()), taken(&mut restored, |_| ()));
            prop_assert_eq!(two.epoch, Epoch(1));
        }

        #[test]
        fn changes_go_in_the_order_in_which_they_came(operations in proptest::collection::vec(any::<u16>(), 0..60)) {
            let mut kept = KeptChanges::new(Epoch(1));
            operations.iter().for_each(|&operation| change(&mut kept, operation));
            let mut left: VecDeque<KeptChange> = contents(&kept).into();
            while kept.len() > 0 {
                let run = kept.first(100).to_vec();
                prop_assert!(!run.is_empty() && run.len() <= 100);
                kept.drop_first(run.len());
                prop_assert_eq!(left.drain(..run.len()).collect::<Vec<_>>(), run);
            }
            prop_assert!(left.is_empty() && kept.pages.is_empty());
        }
    }
}
