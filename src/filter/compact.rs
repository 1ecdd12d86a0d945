//! Compact filters: a multiset of fingerprints, in segments that are added as it grows.
//!
//! Each segment has twice as many buckets as the one before and one more bit of fingerprint. So its error rate is at most half
//! as high, and the sum over all segments stays below twice the first one's.
//!
//! Segments nest (see [`super::place::Nested`]): items that look alike in one segment look alike in every older one. So a remove
//! takes the copy in the newest segment: it may have been stored for another item that looks alike there, but then the copy that is
//! left serves that item as well. And a newer segment's copies can be folded into an older one.
//!
//! A filter whose capacity is raised gets one further segment that is large enough. The segments in between are left out: the rates
//! of the others don't depend on them, and those that are there nest as before.

use super::codec::{FilterImage, Load, RestoreError};
use super::copies::Copies;
use super::dropped::Dropped;
use super::hash::Digest;
use super::insert::{Full, Insert};
use super::layout::{Growth, Layout, Mode};
use super::memory::MemoryNeed;
use super::segments::{self, Raise, plan};
use super::slot_state::SlotState;
use super::table::{SegmentStats, Table};
use super::table_set::TableSet;
use super::writer::{NoPath, TableWriter};
use arc_swap::{ArcSwap, Guard};
use std::ops::Range;
use std::sync::Arc;

/// Buckets of a segment that is being folded which one remove empties.
const BUCKETS_FOLDED: u64 = 32;

/// The newest segment is folded into older ones once fewer than one in so many of its slots is taken, if they have room.
const FOLD_BELOW: u64 = 64;

/// After folding, one in so many slots of the older segments must be free.
const SPARE_SLOTS: u64 = 16;

/// The writer's side of a compact filter.
pub struct CompactFilter {
    /// The segments.
    set: TableSet,
    shared: Arc<ArcSwap<Vec<Arc<Table>>>>,
}

/// A reader's side of a compact filter. Takes no lock; clones are cheap.
#[derive(Clone)]
pub struct CompactReader {
    shared: Arc<ArcSwap<Vec<Arc<Table>>>>,
}

/// Whether the newest segment is nearly empty and can be spared. The older ones must have ample room for what is left in it. They must
/// also be large enough for the capacity that the filter was asked for.
fn is_worth_folding(older: &[TableWriter], newest: &TableWriter, first: &Layout) -> bool {
    newest.items() * FOLD_BELOW <= newest.table.slots()
        && older.iter().map(TableWriter::room).sum::<u64>() >= 2 * newest.items() + spare(older)
        && older.iter().map(TableWriter::capacity).sum::<u64>() >= first.capacity()
}

/// Room that must be left in older segments after a newer one is folded into them. Without it, the next few items would bring
/// the segment back, and folding would cost more than the removes that pay for it.
fn spare(older: &[TableWriter]) -> u64 {
    older.iter().map(|segment| segment.table.slots()).sum::<u64>() / SPARE_SLOTS + 1
}

/// The memory of those segments that may be folded and added again while so many copies are removed, if so many buckets are emptied
/// already. In between it is given back.
fn made_again(
    layout: &Layout,
    segments: impl Iterator<Item = u32>,
    drained_buckets: u64,
    removes: u64,
) -> MemoryNeed {
    let emptied = removes.saturating_mul(BUCKETS_FOLDED).saturating_add(drained_buckets);
    let mut need = MemoryNeed::default();
    for plan in segments.map(|k| plan(layout, k)) {
        if plan.memory().mapped_bytes() > 0 {
            (0..emptied / plan.buckets()).for_each(|_| need += plan.memory().passing());
        }
    }
    need
}

impl CompactFilter {
    /// An empty filter.
    pub fn new(layout: Layout, growth: Growth) -> Self {
        Self::over(TableSet::new(layout, growth, plan(&layout, 0)))
    }

    fn over(set: TableSet) -> Self {
        let shared = Arc::new(ArcSwap::from_pointee(set.shared()));
        Self { set, shared }
    }

    /// Its tables, for snapshots and figures.
    pub fn tables(&self) -> &TableSet {
        &self.set
    }

    /// All its tables, as dropped.
    pub fn into_dropped(self) -> Dropped {
        self.set.into_dropped()
    }

    /// Its tables, for snapshots.
    pub fn tables_mut(&mut self) -> &mut TableSet {
        &mut self.set
    }

    /// A reader's side.
    pub fn reader(&self) -> CompactReader {
        CompactReader { shared: self.shared.clone() }
    }

    fn publish(&self) {
        self.shared.store(Arc::new(self.set.shared()));
    }

    /// The most copies that items which look alike can have together: the slots of their two buckets.
    pub fn copies_max(&self) -> u32 {
        2 * u32::from(self.set.layout.bucket_size)
    }

    /// Adds a copy of an item.
    ///
    /// # Errors
    /// [`Full`] if there is no room and the filter can't grow (any further). Then nothing has changed.
    pub fn insert(&mut self, digest: Digest, if_absent: bool) -> Result<Insert, Full> {
        if let [only] = &mut self.set.tables[..]
            && !if_absent
            && (self.set.growth == Growth::Fixed || only.room() > 0)
            && let Ok(added) = only.insert_unless_saturated(digest)
        {
            // The usual case. Copies need not be counted first: only when there is no free slot can both buckets be full of them.
            return Ok(if added { Insert::Added } else { Insert::Saturated });
        }
        let copies: u32 = self.set.tables.iter().map(|segment| segment.table.count(digest)).sum();
        if if_absent && copies > 0 {
            return Ok(Insert::Present(SlotState::Available));
        }
        if copies >= self.copies_max() {
            return Ok(Insert::Saturated);
        }
        let newest = self.set.tables.len() - 1;
        for (k, segment) in self.set.tables.iter_mut().enumerate() {
            let has_room = self.set.growth == Growth::Fixed || segment.room() > 0;
            if has_room && segment.insert(digest, 0).is_ok() {
                if k == newest {
                    // The new copy may lie in a bucket that was emptied already, so folding starts over.
                    self.set.drained_buckets = 0;
                }
                return Ok(Insert::Added);
            }
        }
        self.grow()?;
        self.set.newest().insert(digest, 0).map_err(|NoPath| Full)?;
        Ok(Insert::Added)
    }

    /// Adds a copy of each of many items, all or none. If all fit, the result is the same as one by one.
    ///
    /// # Errors
    /// [`Full`] as for [`Self::insert`].
    pub fn insert_many(&mut self, digests: &[Digest], if_absent: bool) -> Result<Vec<Insert>, Full> {
        let mut outcomes = Vec::with_capacity(digests.len());
        if let [only] = &mut self.set.tables[..]
            && !if_absent
        {
            let room = if self.set.growth == Growth::Fixed { usize::MAX } else { only.room() as usize };
            only.insert_many(&digests[..digests.len().min(room)], |added| {
                outcomes.push(if added { Insert::Added } else { Insert::Saturated });
            });
        }
        self.add_rest(digests, if_absent, outcomes)
    }

    /// Removes one copy of an item, from the newest segment that has one. Returns whether there was one.
    pub fn remove(&mut self, digest: Digest) -> bool {
        let removed = self.set.tables.iter_mut().rev().any(|segment| segment.remove(digest).is_some());
        if removed && self.set.tables.len() > 1 {
            self.fold_on();
        }
        removed
    }

    /// Removes one copy of each item, in order. Returns for each whether there was one.
    pub fn remove_many(&mut self, digests: &[Digest]) -> Vec<bool> {
        if let [only] = &mut self.set.tables[..] {
            let mut removed = Vec::with_capacity(digests.len());
            only.remove_many(digests, |was_there| removed.push(was_there));
            return removed;
        }
        self.take_each(digests)
    }

    /// Removes every copy of an item. Returns how many there were.
    pub fn remove_all(&mut self, digest: Digest) -> u32 {
        self.take_all(digest)
    }

    /// Removes everything and shrinks to the first segment. Returns how many items there were.
    pub fn clear(&mut self) -> u64 {
        let items = self.set.items();
        if items > 0 || self.set.tables.len() > 1 {
            self.begin_anew(self.set.first);
        }
        items
    }

    fn begin_anew(&mut self, first: Layout) {
        (self.set.layout, self.set.first) = (first, first);
        let first = self.set.make(plan(&first, 0));
        self.set.replace_all(first);
        self.publish();
    }

    /// Makes room for as many items as a filter of this layout begins with; its error rate must be this one's.
    ///
    /// # Errors
    /// [`Full`] if no segment can be so large. Then nothing has changed.
    pub fn raise(&mut self, first: Layout) -> Result<(), Full> {
        match segments::plan_raise(&self.set, &first)? {
            Raise::Nothing => {}
            Raise::Anew => self.begin_anew(first),
            Raise::Segment(k) => {
                self.set.put_newest(plan(&self.set.layout, k));
                self.publish();
            }
        }
        self.set.first = first;
        // A segment that was being folded may be needed now.
        self.set.drained_buckets = 0;
        Ok(())
    }

    /// The memory that [`Self::raise`] asks for.
    ///
    /// # Errors
    /// [`Full`] as for [`Self::raise`].
    pub fn raising(&self, first: &Layout) -> Result<MemoryNeed, Full> {
        segments::raising(&self.set, first)
    }

    /// The most memory that so many more items can make the filter ask for, if so many copies may be removed meanwhile.
    pub fn growth(&self, items: u64, removes: u64) -> MemoryNeed {
        if self.set.growth == Growth::Fixed || items == 0 {
            return MemoryNeed::default();
        }
        let layout = &self.set.layout;
        let left = self.set.tables.iter().fold(items, |items, segment| {
            layout.most_left(segments::number(segment), segment.items(), items)
        });
        let next = segments::next(&self.set);
        let (mut need, end, is_enough) = segments::needed(layout, next, left);
        // If there is no room in the end, the items that were added before are removed again.
        let removes = if is_enough { removes } else { removes + items };
        let foldable = self.set.tables.iter().skip(1).map(segments::number).chain(next..end);
        need += made_again(layout, foldable, self.set.drained_buckets, removes);
        need
    }

    /// As [`Self::growth`], of a filter that is empty and has only its first segment.
    pub fn growth_from_empty(&self, items: u64, removes: u64) -> MemoryNeed {
        if self.set.growth == Growth::Fixed || items == 0 {
            return MemoryNeed::default();
        }
        let first = &self.set.first;
        let (mut need, end, _) = segments::needed(first, 1, first.most_left(0, 0, items));
        need += made_again(first, 1..end, 0, removes);
        need
    }

    /// The memory of the segment that it begins with once it is empty.
    pub fn beginning(&self) -> MemoryNeed {
        plan(&self.set.first, 0).memory()
    }

    /// The memory that [`Self::clear`] asks for before it drops the old segments. It does not count towards the limit.
    pub fn clearing(&self) -> MemoryNeed {
        self.beginning().passing()
    }

    fn grow(&mut self) -> Result<(), Full> {
        let k = segments::next(&self.set);
        if self.set.growth == Growth::Fixed || !segments::can_be(&self.set.layout, k) {
            return Err(Full);
        }
        self.set.add(plan(&self.set.layout, k));
        self.set.drained_buckets = 0;
        self.publish();
        Ok(())
    }

    /// Folds the newest segment into older ones, once it is nearly empty and they have ample room. Each remove does a few buckets, so
    /// that no single one pays for all. While a copy moves it is in both segments for a moment, and always in at least one.
    #[inline(never)]
    fn fold_on(&mut self) {
        let [older @ .., newest] = &mut self.set.tables[..] else { return };
        if self.set.drained_buckets == 0 && !is_worth_folding(older, newest, &self.set.first) {
            return;
        }
        let buckets = newest.table.plan.buckets();
        let last = buckets.min(self.set.drained_buckets + BUCKETS_FOLDED);
        let mut moving = Vec::new();
        newest.table.for_each_in(self.set.drained_buckets..last, |bucket, slot, value| {
            moving.push((bucket, slot, value));
        });
        for (bucket, slot, value) in moving {
            let moved = older.iter_mut().rev().any(|segment| {
                let bits = segments::number(newest) - segments::number(segment);
                let (bucket, value) = (bucket >> bits, value >> bits);
                segment.room() > 0 && segment.insert_value(bucket, value).is_ok()
            });
            if !moved {
                self.set.drained_buckets = 0;
                return;
            }
            newest.free_slot(bucket, slot);
        }
        self.set.drained_buckets = last;
        if last == buckets {
            let newest = older.len();
            self.set.drop_drained(newest);
            self.publish();
        }
    }

    /// Restores a filter from its snapshot. It goes on exactly as the one that the snapshot was taken of.
    ///
    /// # Errors
    /// When a chunk is missing, damaged or belongs elsewhere, or the image contradicts itself.
    pub fn restore<E>(image: &FilterImage, load: &mut Load<'_, E>) -> Result<Self, RestoreError<E>> {
        Self::uncounted(image, |mode, image| TableSet::restore(mode, image, load))
    }

    /// A filter with tables that are made as an image says.
    pub(super) fn uncounted<E>(
        image: &FilterImage,
        make: impl FnOnce(Mode, &FilterImage) -> Result<TableSet, RestoreError<E>>,
    ) -> Result<Self, RestoreError<E>> {
        let plans = image.tables.iter().map(|table| table.plan);
        if image.layout.step_bits > 0 || !segments::are_in_place(&image.layout, plans) {
            return Err(RestoreError::Image("a segment is out of place"));
        }
        if image.cleared_tables > 0 {
            return Err(RestoreError::Image("a compact filter has no cleared tables"));
        }
        let mut set = make(Mode::Compact, image)?;
        if set.drained_buckets >= set.newest().table.plan.buckets() {
            return Err(RestoreError::Image("more buckets were drained than there are"));
        }
        Ok(Self::over(set))
    }

    /// How many slots are taken in some buckets of a table.
    pub(super) fn count_in(&self, table: usize, buckets: Range<u64>) -> u64 {
        let mut taken = 0;
        self.set.tables[table].table.for_each_in(buckets, |_, _, _| taken += 1);
        taken
    }
}

impl Copies for CompactFilter {
    fn prefetch(&self, digest: Digest) {
        self.set.prefetch(digest);
    }

    fn add(&mut self, digest: Digest, if_absent: bool) -> Result<Insert, Full> {
        self.insert(digest, if_absent)
    }

    fn take(&mut self, digest: Digest) -> bool {
        self.remove(digest)
    }
}

/// A view of a compact filter, for one request: it shows what the filter's segments hold at any moment, but not segments that are
/// added later.
///
/// Look-ups go from the newest segment to the oldest. A copy that is being folded moves the same way, so no look-up misses it.
pub struct CompactView {
    segments: Guard<Arc<Vec<Arc<Table>>>>,
}

impl CompactReader {
    /// A view of the filter as it is now. It finds everything that was added before.
    #[inline]
    pub fn view(&self) -> CompactView {
        CompactView { segments: self.shared.load() }
    }
}

impl CompactView {
    /// Whether the filter holds an item, or one that looks alike. Never false for an item that it holds.
    #[inline]
    pub fn contains(&self, digest: Digest) -> bool {
        match &self.segments[..] {
            [only] => only.contains(digest),
            segments => segments.iter().rev().any(|segment| segment.contains(digest)),
        }
    }

    /// [`Self::contains`] for many, faster; `found` is cleared first.
    pub fn contains_many(&self, digests: &[Digest], found: &mut Vec<bool>) {
        found.clear();
        found.resize(digests.len(), false);
        self.segments.iter().rev().for_each(|segment| segment.contains_many(digests, found));
    }

    /// Copies of an item in all segments. Never too low; copies of items that look alike count too.
    pub fn count(&self, digest: Digest) -> u32 {
        self.segments.iter().rev().map(|segment| segment.count(digest)).sum()
    }

    /// The most copies that [`Self::count`] can tell of items that look alike, as in [`CompactFilter::copies_max`].
    pub fn copies_max(&self) -> u32 {
        self.segments.first().map_or(0, |first| 2 * u32::from(first.plan.bucket_size()))
    }

    /// Prefetches the cache lines in which an item may lie.
    #[inline]
    pub fn prefetch(&self, digest: Digest) {
        self.segments.iter().for_each(|segment| segment.prefetch_item(digest));
    }

    /// Copies of all items.
    pub fn items(&self) -> u64 {
        self.segments.iter().map(|segment| segment.items()).sum()
    }

    /// Bytes of all tables.
    pub fn memory_bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.memory_bytes()).sum()
    }

    /// The figures of each segment, oldest first.
    pub fn segments(&self) -> Vec<SegmentStats> {
        self.segments.iter().map(|segment| segment.stats()).collect()
    }
}
