//! The reader's side of filters that forget. A reader goes by a step of its own: what is forgotten by then is not there for it, even
//! if nothing has told the writer.

use super::hash::Digest;
use super::live::LiveTags;
use super::steps::{Known, StepStats};
use super::table::{SegmentStats, Table};
use arc_swap::{ArcSwap, Guard};
use std::sync::Arc;

/// What the readers of a filter share with its writer.
pub(super) struct Shared {
    /// The segments, oldest first.
    pub(super) tables: Vec<Arc<Table>>,
    pub(super) steps: Known,
}

/// A reader's side of a filter that forgets. Takes no lock; clones are cheap.
#[derive(Clone)]
pub struct ForgettingReader {
    pub(super) shared: Arc<ArcSwap<Shared>>,
}

/// A view of a filter that forgets, in one step and for one request.
pub struct ForgettingView {
    shared: Guard<Arc<Shared>>,
    step: u64,
    live: LiveTags,
}

impl ForgettingReader {
    /// A view of the filter as it is now, in this step. It finds everything that was added before and is not forgotten by then.
    #[inline]
    pub fn view(&self, step: u64) -> ForgettingView {
        let shared = self.shared.load();
        let live = shared.steps.live(step);
        ForgettingView { shared, step, live }
    }

    /// The most copies that [`ForgettingView::count`] can tell of items that look alike.
    pub fn copies_max(&self) -> u32 {
        self.shared.load().tables.first().map_or(0, |first| 2 * u32::from(first.plan.bucket_size()))
    }

    /// Prefetches the cache lines in which an item may lie.
    #[inline]
    pub fn prefetch(&self, digest: Digest) {
        self.shared.load().tables.iter().for_each(|segment| segment.prefetch_item(digest));
    }

    /// Bytes of all tables.
    pub fn memory_bytes(&self) -> u64 {
        self.shared.load().tables.iter().map(|segment| segment.memory_bytes()).sum()
    }
}

impl ForgettingView {
    /// Whether the filter holds an item, or one that looks alike. Never false for an item that it holds.
    #[inline]
    pub fn contains(&self, digest: Digest) -> bool {
        self.shared.tables.iter().rev().any(|segment| segment.contains_live(digest, self.live))
    }

    /// [`Self::contains`] for many, faster; `found` is cleared first.
    pub fn contains_many(&self, digests: &[Digest], found: &mut Vec<bool>) {
        found.clear();
        found.resize(digests.len(), false);
        for segment in self.shared.tables.iter().rev() {
            segment.contains_many_live(digests, self.live, found);
        }
    }

    /// Copies of an item in all segments. Never too low; copies of items that look alike count too.
    pub fn count(&self, digest: Digest) -> u32 {
        self.shared.tables.iter().rev().map(|segment| segment.count_live(digest, self.live)).sum()
    }

    /// Copies of all items.
    pub fn items(&self) -> u64 {
        self.steps().iter().map(|step| step.items).sum()
    }

    /// The steps that have items, oldest first.
    pub fn steps(&self) -> Vec<StepStats> {
        self.shared.steps.stats(self.step)
    }

    /// Bytes of all tables.
    pub fn memory_bytes(&self) -> u64 {
        self.shared.tables.iter().map(|segment| segment.memory_bytes()).sum()
    }

    /// The figures of each segment, oldest first. Forgotten items whose slots are not free yet are counted.
    pub fn segments(&self) -> Vec<SegmentStats> {
        self.shared.tables.iter().map(|segment| segment.stats()).collect()
    }
}
