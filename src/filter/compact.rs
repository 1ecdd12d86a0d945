//! Compact filters: segments of fingerprints that nest, a multiset whose error stays within its bound as it grows.
//!
//! Segment k has twice the buckets of segment k − 1 and one more bit of fingerprint, so its error is at most half;
//! the sum over all stays below twice the first's. Segments nest (see [`super::place::Nested`]): two items alike in
//! one are alike in every older one. So a remove that takes the newest copy alike never takes the last one that
//! stands for another item, and a newer segment's copies can be folded into an older one.

use super::codec::{FilterImage, Load, RestoreError, TableId, TableImage, restore_table};
use super::layout::{
    FINGERPRINT_BITS_MAX, FIXED_SEARCH_MIN, Growth, Layout, MAX_SEARCH_DEFAULT, SEGMENT_BUCKETS_MAX,
};
use super::memory::MemoryNeed;
use super::plan::Plan;
use super::sizing;
use super::table::{GROUP, Table};
use super::writer::TableWriter;
use super::{Digest, Full, SegmentStats};
use arc_swap::{ArcSwap, Guard};
use std::sync::Arc;

/// Buckets that one remove empties of a segment that is being folded.
const BUCKETS_FOLDED: u64 = 32;

/// A segment with fewer items than its slots through this is folded into older ones, if they have room.
const FOLD_BELOW: u64 = 64;

/// Smaller segments fill up too unevenly to say how far.
const SURE_WORDS_MIN: u64 = 8 << 10;

/// Filled to this part of its slots, a segment has a place in one of an item's two buckets for all but one of
/// [`UNSEARCHED_LEFT`] items, without any search.
const UNSEARCHED_FILL: u64 = 8;
/// See [`UNSEARCHED_FILL`]; and so many items more, by chance.
const UNSEARCHED_LEFT: u64 = 64;

/// What became of an item.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Insert {
    /// A copy was stored.
    Added,
    /// With `if_absent`: it, or one alike, was there.
    AlreadyPresent,
    /// There are as many copies alike as two buckets hold: nothing was stored.
    Saturated,
}

/// The writer's side of a compact filter.
pub struct CompactFilter {
    layout: Layout,
    growth: Growth,
    next_table: u64,
    /// Oldest first; never empty.
    segments: Vec<TableWriter>,
    /// Buckets of the newest segment whose items were moved to older ones; 0 when it isn't being folded.
    folded_buckets: u64,
    /// Segments that are no more, but belong to the running snapshot.
    retired: Vec<TableWriter>,
    in_snapshot: bool,
    shared: Arc<ArcSwap<Vec<Arc<Table>>>>,
}

/// A reader's side of a compact filter. Takes no lock; clones are cheap.
#[derive(Clone)]
pub struct CompactReader {
    shared: Arc<ArcSwap<Vec<Arc<Table>>>>,
}

/// Room that older segments keep when a newer one is folded into them, so that the next few items don't make it
/// anew: the work of folding is paid by as many removes.
fn spare(older: &[TableWriter]) -> u64 {
    older.iter().map(|segment| segment.table.slots()).sum::<u64>() / 16 + 1
}

fn plan(layout: &Layout, k: u32) -> Plan {
    Plan::Segment {
        base_bits: layout.fingerprint_bits,
        bucket_size: layout.bucket_size,
        base_buckets: layout.buckets,
        k,
    }
}

impl CompactFilter {
    /// An empty filter.
    pub fn new(layout: Layout, growth: Growth) -> Self {
        let first = TableWriter::new(TableId(0), plan(&layout, 0), layout.max_search);
        Self::of(layout, growth, 1, vec![first], 0)
    }

    fn of(
        layout: Layout,
        growth: Growth,
        next_table: u64,
        segments: Vec<TableWriter>,
        folded_buckets: u64,
    ) -> Self {
        let filter = Self {
            layout,
            growth,
            next_table,
            segments,
            folded_buckets,
            retired: Vec::new(),
            in_snapshot: false,
            shared: Arc::new(ArcSwap::from_pointee(Vec::new())),
        };
        filter.publish();
        filter
    }

    /// A reader's side.
    pub fn reader(&self) -> CompactReader {
        CompactReader { shared: self.shared.clone() }
    }

    fn publish(&self) {
        self.shared.store(Arc::new(self.segments.iter().map(|segment| segment.table.clone()).collect()));
    }

    /// Copies that an item, with those alike, can have: the slots of its two buckets.
    pub fn copies_max(&self) -> u32 {
        2 * u32::from(self.layout.bucket_size)
    }

    /// Adds a copy of an item.
    ///
    /// # Errors
    /// [`Full`] if there is no room and the filter can't grow (further); nothing has changed.
    pub fn insert(&mut self, digest: Digest, if_absent: bool) -> Result<Insert, Full> {
        if let [only] = &mut self.segments[..]
            && !if_absent
            && (self.growth == Growth::Fixed || only.room() > 0)
            && let Ok(added) = only.insert_unless_saturated(digest)
        {
            // The usual case, without counting copies first: two buckets full of them show when there is no slot.
            return Ok(if added { Insert::Added } else { Insert::Saturated });
        }
        let copies: u32 = self.segments.iter().map(|segment| segment.table.count(digest)).sum();
        if if_absent && copies > 0 {
            return Ok(Insert::AlreadyPresent);
        }
        if copies >= self.copies_max() {
            return Ok(Insert::Saturated);
        }
        let newest = self.segments.len() - 1;
        for (k, segment) in self.segments.iter_mut().enumerate() {
            let has_room = self.growth == Growth::Fixed || segment.room() > 0;
            if has_room && segment.insert(digest, 0).is_ok() {
                if k == newest {
                    // What is put in may lie in buckets that were emptied already: folding begins anew.
                    self.folded_buckets = 0;
                }
                return Ok(Insert::Added);
            }
        }
        self.grow()?;
        let newest = self.segments.last_mut().expect("there is always a segment");
        newest.insert(digest, 0).map_err(|_| Full)?;
        Ok(Insert::Added)
    }

    /// Adds copies of many items, all or none: the same as one by one, but that a failure takes back what went before.
    ///
    /// # Errors
    /// [`Full`] as for [`Self::insert`].
    pub fn insert_many(&mut self, digests: &[Digest], if_absent: bool) -> Result<Vec<Insert>, Full> {
        let mut outcomes = Vec::with_capacity(digests.len());
        if let [only] = &mut self.segments[..]
            && !if_absent
        {
            let room = if self.growth == Growth::Fixed { usize::MAX } else { only.room() as usize };
            only.insert_many(&digests[..digests.len().min(room)], |added| {
                outcomes.push(if added { Insert::Added } else { Insert::Saturated });
            });
        }
        let rest = &digests[outcomes.len()..];
        for group in rest.chunks(GROUP) {
            group.iter().for_each(|&digest| self.prefetch(digest));
            for &digest in group {
                match self.insert(digest, if_absent) {
                    Ok(outcome) => outcomes.push(outcome),
                    Err(full) => {
                        let added = outcomes.iter().zip(digests).filter(|(o, _)| **o == Insert::Added);
                        let added: Vec<Digest> = added.map(|(_, &digest)| digest).collect();
                        for &digest in added.iter().rev() {
                            self.remove(digest);
                        }
                        return Err(full);
                    }
                }
            }
        }
        Ok(outcomes)
    }

    /// Takes one copy out, from the newest segment that has one.
    pub fn remove(&mut self, digest: Digest) -> bool {
        let removed = self.segments.iter_mut().rev().any(|segment| segment.remove(digest).is_some());
        if removed {
            self.fold_on();
        }
        removed
    }

    /// Takes a copy of each out, in order.
    pub fn remove_many(&mut self, digests: &[Digest]) -> Vec<bool> {
        let mut removed = Vec::with_capacity(digests.len());
        if let [only] = &mut self.segments[..] {
            only.remove_many(digests, |was_there| removed.push(was_there));
            return removed;
        }
        for group in digests.chunks(GROUP) {
            group.iter().for_each(|&digest| self.prefetch(digest));
            removed.extend(group.iter().map(|&digest| self.remove(digest)));
        }
        removed
    }

    fn prefetch(&self, digest: Digest) {
        self.segments.iter().for_each(|segment| segment.prefetch(digest));
    }

    /// Takes every copy out; tells how many there were.
    pub fn remove_all(&mut self, digest: Digest) -> u32 {
        let mut removed = 0;
        while self.remove(digest) {
            removed += 1;
        }
        removed
    }

    /// Takes everything out and shrinks to the first table; tells how many items went.
    pub fn clear(&mut self) -> u64 {
        let items = self.segments.iter().map(TableWriter::items).sum();
        let first = self.new_segment(0);
        let old = std::mem::replace(&mut self.segments, vec![first]);
        self.folded_buckets = 0;
        self.publish();
        old.into_iter().for_each(|segment| self.retire(segment));
        items
    }

    /// The most memory that so many more items can make it ask for, where so many copies may go meanwhile.
    pub fn growth(&self, items: u64, removes: u64) -> MemoryNeed {
        if self.growth == Growth::Fixed || items == 0 {
            return MemoryNeed::default();
        }
        let left = (0..)
            .zip(&self.segments)
            .fold(items, |items, (k, segment)| self.most_left(k, segment.items(), items));
        let segments = self.segments.len() as u32;
        let (mut need, end, is_enough) = self.segments_for(segments, left);
        // Where there is no room in the end, what went in before is taken out again.
        let removes = if is_enough { removes } else { removes + items };
        need += self.made_again(end, removes);
        need
    }

    /// The most memory that so many items can make it ask for beside the first segment, which is empty.
    pub fn growth_from_empty(&self, items: u64, removes: u64) -> MemoryNeed {
        if self.growth == Growth::Fixed || items == 0 {
            return MemoryNeed::default();
        }
        let (mut need, end, _) = self.segments_for(1, self.most_left(0, 0, items));
        need += self.made_again(end, removes);
        need
    }

    /// The memory of the segments from `first` on that so many items may be put into; where they end, and whether all items
    /// have a place then.
    fn segments_for(&self, first: u32, mut items: u64) -> (MemoryNeed, u32, bool) {
        let mut need = MemoryNeed::default();
        for k in first.. {
            if items == 0 || !self.can_have_segment(k) {
                return (need, k, items == 0);
            }
            need += plan(&self.layout, k).memory();
            items = self.most_left(k, 0, items);
        }
        unreachable!("fingerprints end")
    }

    /// Segments that may be folded and made again while so many copies are removed. What they take is given back in between.
    fn made_again(&self, end: u32, removes: u64) -> MemoryNeed {
        let emptied = removes.saturating_mul(BUCKETS_FOLDED).saturating_add(self.folded_buckets);
        let mut need = MemoryNeed::default();
        for k in 1..end {
            let plan = plan(&self.layout, k);
            if plan.memory().mapped_bytes() > 0 {
                (0..emptied / plan.buckets()).for_each(|_| need += plan.memory().passing());
            }
        }
        need
    }

    /// The most of so many items that find no place in segment `k`, which holds `held`; as good as never more.
    fn most_left(&self, k: u32, held: u64, items: u64) -> u64 {
        let plan = plan(&self.layout, k);
        let limit = plan.fill_limit();
        let all = held.saturating_add(items);
        if self.is_searched_well() {
            let sure = match plan.words() {
                // Smaller segments fill up too unevenly to say how far.
                ..SURE_WORDS_MIN => limit / 2,
                _ if self.layout.max_search < MAX_SEARCH_DEFAULT => limit - limit / 8,
                _ => limit - limit / 16,
            };
            return items.min(all.saturating_sub(sure));
        }
        // A few buckets are full long before, and later segments get the items of just these.
        let spread = if k == 0 { plan.buckets() } else { plan.buckets() / 16 };
        if all <= sizing::unsearched_limit(spread, plan.bucket_size()) {
            return 0;
        }
        let most = plan.buckets() * u64::from(plan.bucket_size()) / UNSEARCHED_FILL;
        items.min(all.saturating_sub(most) + all.min(most) / UNSEARCHED_LEFT + UNSEARCHED_LEFT)
    }

    /// Whether a segment is filled to its limit: where a search is short or fingerprints are, which only growing filters may have,
    /// an item may find no place long before.
    fn is_searched_well(&self) -> bool {
        let Layout { max_search, fingerprint_bits, bucket_size, .. } = self.layout;
        max_search >= FIXED_SEARCH_MIN && fingerprint_bits >= sizing::planned_bits_min(bucket_size)
    }

    /// The memory that [`Self::clear`] asks for: the tables that it has go only afterwards.
    pub fn clearing(&self) -> MemoryNeed {
        plan(&self.layout, 0).memory()
    }

    /// Bytes of its tables, those that only the running snapshot wants with them.
    pub fn memory_bytes(&self) -> u64 {
        self.segments.iter().chain(&self.retired).map(|segment| segment.table.memory_bytes()).sum()
    }

    fn can_have_segment(&self, k: u32) -> bool {
        let bits = u32::from(self.layout.fingerprint_bits) + k;
        bits <= u32::from(FINGERPRINT_BITS_MAX) && self.layout.buckets <= SEGMENT_BUCKETS_MAX >> k
    }

    fn grow(&mut self) -> Result<(), Full> {
        let k = self.segments.len() as u32;
        if self.growth == Growth::Fixed || !self.can_have_segment(k) {
            return Err(Full);
        }
        let segment = self.new_segment(k);
        self.segments.push(segment);
        self.publish();
        Ok(())
    }

    fn new_segment(&mut self, k: u32) -> TableWriter {
        let id = TableId(self.next_table);
        self.next_table += 1;
        TableWriter::new(id, plan(&self.layout, k), self.layout.max_search)
    }

    /// Folds the newest segment into older ones once it is nearly empty and they have ample room: a few buckets with
    /// each remove, so that no single one pays for it. A copy is for a moment in both, never in neither.
    fn fold_on(&mut self) {
        let [older @ .., newest] = &mut self.segments[..] else { return };
        let Some(newest_k) = (!older.is_empty()).then_some(older.len()) else { return };
        let is_worth_it = || {
            newest.items() * FOLD_BELOW <= newest.table.slots()
                && older.iter().map(TableWriter::room).sum::<u64>() >= 2 * newest.items() + spare(older)
        };
        if self.folded_buckets == 0 && !is_worth_it() {
            return;
        }
        let buckets = newest.table.plan.buckets();
        let last = buckets.min(self.folded_buckets + BUCKETS_FOLDED);
        let mut moving = Vec::new();
        newest.table.for_each_in(self.folded_buckets..last, |bucket, slot, value| {
            moving.push((bucket, slot, value));
        });
        for (bucket, slot, value) in moving {
            let moved = older.iter_mut().enumerate().rev().any(|(k, segment)| {
                let (bucket, value) = (bucket >> (newest_k - k), value >> (newest_k - k));
                segment.room() > 0 && segment.insert_value(bucket, value).is_ok()
            });
            if !moved {
                self.folded_buckets = 0;
                return;
            }
            newest.free_slot(bucket, slot);
        }
        self.folded_buckets = last;
        if last == buckets {
            debug_assert_eq!(newest.items(), 0, "every bucket was emptied, and nothing was put in since");
            self.folded_buckets = 0;
            let newest = self.segments.pop().expect("the newest was looked at");
            self.publish();
            self.retire(newest);
        }
    }

    fn retire(&mut self, segment: TableWriter) {
        // One that was made since is not part of it, and would only pile up.
        if self.in_snapshot && segment.is_in_snapshot() {
            self.retired.push(segment);
        }
    }

    /// Begins a snapshot of the filter as it is; tells what belongs to it beside the tables' chunks.
    pub fn begin_snapshot(&mut self) -> FilterImage {
        self.end_snapshot();
        self.in_snapshot = true;
        let tables = self.segments.iter_mut().map(|segment| {
            segment.begin_snapshot();
            TableImage {
                id: segment.id,
                plan: segment.table.plan,
                items: segment.items(),
                changes: segment.changes(),
            }
        });
        FilterImage {
            layout: self.layout,
            growth: self.growth,
            next_table: self.next_table,
            tables: tables.collect(),
            moved_buckets: self.folded_buckets,
        }
    }

    fn segment(&mut self, table: TableId) -> Option<&mut TableWriter> {
        self.segments.iter_mut().chain(&mut self.retired).find(|segment| segment.id == table)
    }

    /// Puts a chunk of the running snapshot, as it was at its beginning, in the place of what `out` held.
    pub fn take_chunk(&mut self, table: TableId, chunk: u32, out: &mut Vec<u8>) {
        out.clear();
        if let Some(segment) = self.segment(table) {
            segment.take_chunk(chunk, out);
        }
    }

    /// Tells that a table need not be taken, because an equal one is stored.
    pub fn skip_table(&mut self, table: TableId) {
        if let Some(segment) = self.segment(table) {
            segment.end_snapshot();
        }
    }

    /// Memory kept for the running snapshot, in bytes.
    pub fn undo_bytes(&self) -> usize {
        self.segments.iter().chain(&self.retired).map(TableWriter::undo_bytes).sum()
    }

    /// Ends the running snapshot, whole or not.
    pub fn end_snapshot(&mut self) {
        self.in_snapshot = false;
        self.retired.clear();
        self.segments.iter_mut().for_each(TableWriter::end_snapshot);
    }

    /// The filter whose snapshot this is. It goes on exactly as the one that it was taken of.
    ///
    /// # Errors
    /// When a chunk is missing, damaged or another's, or the image contradicts itself.
    pub fn restore<E>(image: &FilterImage, load: &mut Load<'_, E>) -> Result<Self, RestoreError<E>> {
        let mut segments = Vec::with_capacity(image.tables.len());
        for (k, table) in (0..).zip(&image.tables) {
            if table.plan != plan(&image.layout, k) || table.id.0 >= image.next_table {
                return Err(RestoreError::Image("a segment is out of place"));
            }
            let restored = restore_table(table, load)?;
            segments.push(TableWriter::resume(table.id, restored, table.changes, image.layout.max_search));
        }
        let Some(newest) = segments.last() else {
            return Err(RestoreError::Image("a filter has no segment"));
        };
        if image.moved_buckets >= newest.table.plan.buckets() {
            return Err(RestoreError::Image("more buckets were folded than there are"));
        }
        Ok(Self::of(image.layout, image.growth, image.next_table, segments, image.moved_buckets))
    }
}

/// What a reader sees of a compact filter: its tables as they are when it is taken, with what is added to them later.
///
/// It is to be kept for a request, not for longer: of a table that the filter gets later it knows nothing. Segments are looked
/// at newest first: a copy that is folded meanwhile goes the same way, so it is met in one or in the other.
pub struct CompactView {
    segments: Guard<Arc<Vec<Arc<Table>>>>,
}

impl CompactReader {
    /// The filter as it is now: all that was added before is in it.
    #[inline]
    pub fn view(&self) -> CompactView {
        CompactView { segments: self.shared.load() }
    }
}

impl CompactView {
    /// Whether an item, or one alike, is in. Never false for an item that is.
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

    /// Copies of an item over all segments. Never too low; too high by those alike.
    pub fn count(&self, digest: Digest) -> u32 {
        self.segments.iter().rev().map(|segment| segment.count(digest)).sum()
    }

    /// Copies of all items.
    pub fn items(&self) -> u64 {
        self.segments.iter().map(|segment| segment.items()).sum()
    }

    /// Bytes of all tables.
    pub fn memory_bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.memory_bytes()).sum()
    }

    /// The segments, oldest first.
    pub fn segments(&self) -> Vec<SegmentStats> {
        self.segments.iter().map(|segment| segment.stats()).collect()
    }

    /// The share of strangers for which [`Self::contains`] answers true now: the sum over the segments, for show.
    pub fn error_rate_now(&self) -> f64 {
        self.segments.iter().map(|segment| segment.error_rate_now()).sum::<f64>().min(1.0)
    }
}
