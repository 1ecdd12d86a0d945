//! The reader's side of compact filters, whose items may be moving to another table.

use super::hash::Digest;
use super::nested;
use super::shown::{Look, Shown};
use super::table::{SegmentStats, Table};
use std::sync::Arc;

/// The tables of a compact filter as readers see them.
#[derive(Default)]
pub(super) struct Tables {
    /// From the oldest to the newest.
    pub(super) tables: Vec<Arc<Table>>,
    /// Whether a segment is being doubled.
    pub(super) is_doubling: bool,
}

impl Tables {
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

    fn count(&self, digest: Digest) -> u32 {
        self.in_order().map(|table| table.count(digest)).sum()
    }
}

/// A reader's side of a compact filter. Takes no lock; clones are cheap.
#[derive(Clone)]
pub struct CompactReader {
    pub(super) shown: Arc<Shown<Tables>>,
}

/// A view of a compact filter, for one request. It has the tables from when it was taken, and gets newer ones if an item may have moved
/// there.
pub struct CompactView<'a> {
    shown: Look<'a, Tables>,
}

impl CompactReader {
    /// A view of the filter as it is now. It finds everything that was added before.
    #[inline]
    pub fn view(&self) -> CompactView<'_> {
        CompactView { shown: self.shown.look() }
    }
}

impl CompactView<'_> {
    /// Whether the filter holds an item, or one that looks alike. Never false for an item that it holds.
    #[inline]
    pub fn contains(&self, digest: Digest) -> bool {
        match &self.shown.tables[..] {
            // Nothing ever moves out of the first table.
            [only] => only.contains(digest),
            _ => self.shown.contains(digest) || (!self.shown.is_current() && self.contains_anew(digest)),
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
        if !self.shown.is_current() {
            for (found, &digest) in found.iter_mut().zip(digests).filter(|(found, _)| !**found) {
                *found = self.contains_anew(digest);
            }
        }
    }

    #[cold]
    fn contains_anew(&self, digest: Digest) -> bool {
        self.shown.again(|tables| tables.contains(digest), |found| *found)
    }

    /// Copies of an item in all segments. Never too low; copies of items that look alike count too.
    pub fn count(&self, digest: Digest) -> u32 {
        let seen = self.shown.count(digest);
        if self.shown.tables.len() == 1 || self.shown.is_current() {
            return seen;
        }
        self.shown.again(|tables| tables.count(digest), |_| false)
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
