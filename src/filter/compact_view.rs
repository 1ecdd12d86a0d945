//! The reader's side of compact filters, whose items may be moving to another table.

use super::hash::Digest;
use super::nested;
use super::table::{SegmentStats, Table};
use arc_swap::{ArcSwap, Guard};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Acquire;

/// The tables of a compact filter as readers see them.
#[derive(Default)]
pub(super) struct Shown {
    /// From the oldest to the newest.
    pub(super) tables: Vec<Arc<Table>>,
    /// Whether a segment is being doubled.
    pub(super) is_doubling: bool,
}

/// What the readers of a compact filter share with its writer.
#[derive(Default)]
pub(super) struct Shared {
    pub(super) tables: ArcSwap<Shown>,
    /// How often `tables` has been replaced. The writer counts after it has stored them, and before it moves an item.
    pub(super) published: AtomicU64,
}

impl Shown {
    /// The tables in the order in which a look-up must go through them, so that it misses no item on its way: the one that items leave
    /// comes before the one that they go to. While a segment is doubled, items go from an older table to a newer one. Otherwise only
    /// folding moves any, and the other way round.
    #[inline]
    fn in_order(&self) -> impl Iterator<Item = &Arc<Table>> {
        let last = self.tables.len() - 1;
        (0..=last).map(move |at| &self.tables[if self.is_doubling { at } else { last - at }])
    }

    fn contains(&self, digest: Digest) -> bool {
        self.in_order().any(|table| table.contains(digest))
    }
}

/// A reader's side of a compact filter. Takes no lock; clones are cheap.
#[derive(Clone)]
pub struct CompactReader {
    pub(super) shared: Arc<Shared>,
}

/// A view of a compact filter, for one request. It has the tables from when it was taken, and gets newer ones if an item may have moved
/// there.
pub struct CompactView<'a> {
    shared: &'a Shared,
    shown: Guard<Arc<Shown>>,
    published: u64,
}

impl CompactReader {
    /// A view of the filter as it is now. It finds everything that was added before.
    #[inline]
    pub fn view(&self) -> CompactView<'_> {
        // The count must be loaded first. If the tables are newer than the count, that costs a second look; if they were older,
        // an item could be missed.
        let published = self.shared.published.load(Acquire);
        CompactView { shared: &self.shared, shown: self.shared.tables.load(), published }
    }
}

impl CompactView<'_> {
    /// Whether the filter holds an item, or one that looks alike. Never false for an item that it holds.
    #[inline]
    pub fn contains(&self, digest: Digest) -> bool {
        match &self.shown.tables[..] {
            // Nothing ever moves out of the first table.
            [only] => only.contains(digest),
            _ => self.shown.contains(digest) || (!self.is_current() && self.contains_anew(digest)),
        }
    }

    /// [`Self::contains`] for many, faster; `found` is cleared first.
    pub fn contains_many(&self, digests: &[Digest], found: &mut Vec<bool>) {
        found.clear();
        found.resize(digests.len(), false);
        if let [only] = &self.shown.tables[..] {
            only.contains_many(digests, found);
            return;
        }
        let tables: Vec<&Table> = self.shown.in_order().map(|table| &**table).collect();
        nested::contains_many(&tables, digests, found);
        if !self.is_current() {
            for (found, &digest) in found.iter_mut().zip(digests).filter(|(found, _)| !**found) {
                *found = self.contains_anew(digest);
            }
        }
    }

    /// Whether the tables are still the same. Then an item that was not found in them is not there.
    #[inline]
    fn is_current(&self) -> bool {
        self.shared.published.load(Acquire) == self.published
    }

    /// Calls `look` with the tables as they are now, until they are the same before and after it or it says that it is sure.
    fn look_anew<T>(&self, look: impl Fn(&Shown) -> T, is_sure: impl Fn(&T) -> bool) -> T {
        loop {
            let published = self.shared.published.load(Acquire);
            let seen = look(&self.shared.tables.load());
            if is_sure(&seen) || self.shared.published.load(Acquire) == published {
                return seen;
            }
        }
    }

    #[cold]
    fn contains_anew(&self, digest: Digest) -> bool {
        self.look_anew(|shown| shown.contains(digest), |found| *found)
    }

    /// Copies of an item in all segments. Never too low; copies of items that look alike count too.
    pub fn count(&self, digest: Digest) -> u32 {
        let count = |shown: &Shown| shown.in_order().map(|table| table.count(digest)).sum();
        let seen = count(&self.shown);
        if self.shown.tables.len() == 1 || self.is_current() {
            seen
        } else {
            self.look_anew(count, |_| false)
        }
    }

    /// The most copies that [`Self::count`] can tell of items that look alike: see [`super::CompactFilter::copies_max`].
    pub fn copies_max(&self) -> u32 {
        self.shown.tables.first().map_or(0, |first| 2 * u32::from(first.plan.bucket_size()))
    }

    /// Prefetches the cache lines in which an item may lie.
    #[inline]
    pub fn prefetch(&self, digest: Digest) {
        self.shown.tables.iter().for_each(|table| table.prefetch_item(digest));
    }

    /// Copies of all items.
    pub fn items(&self) -> u64 {
        self.shown.tables.iter().map(|table| table.items()).sum()
    }

    /// Bytes of all tables.
    pub fn memory_bytes(&self) -> u64 {
        self.shown.tables.iter().map(|table| table.memory_bytes()).sum()
    }

    /// The figures of each segment, oldest first. One that is being doubled has two tables; only the newer one has a capacity, for the
    /// other takes nothing more.
    pub fn segments(&self) -> Vec<SegmentStats> {
        let tables = &self.shown.tables;
        let number = |at: usize| tables.get(at).map(|table: &Arc<Table>| table.plan.segment());
        let stats = |(at, table): (usize, &Arc<Table>)| match table.stats() {
            stats if number(at) == number(at + 1) => SegmentStats { capacity: 0, ..stats },
            stats => stats,
        };
        tables.iter().enumerate().map(stats).collect()
    }
}
