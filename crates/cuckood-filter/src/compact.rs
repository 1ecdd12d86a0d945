//! Compact filters: a multiset of fingerprints, in segments that are added as it grows.
//!
//! A fingerprint can't be hashed again, so a full filter can't just be copied to a larger table. It gets a further segment, whose
//! fingerprints are longer by at least one bit. So that segment's error rate is at most half as high as the one before, and the sum over
//! all segments stays below twice the first one's.
//!
//! A segment begins with a few bits more in each slot, which are the lowest bits of a bucket number ([`super::place::Nested`]). With
//! them it can be doubled: its items move to a table of twice as many buckets, and one bit of each slot becomes a bit of the bucket
//! ([`super::compact_move`]). So a filter that has grown a thousandfold has two or three segments, not ten. (In logs of version 1,
//! a filter grows by segments alone, each twice the one before: [`Expansion`].)
//!
//! Segments nest: items that look alike in one segment look alike in every older one. So a remove
//! takes the copy in the newest segment: it may have been stored for another item that looks alike there, but then the copy that is
//! left serves that item as well. And a newer segment's copies can be folded into an older one.
//!
//! A filter whose capacity is raised gets one further table that is large enough.

use super::codec::{FilterImage, Load, RestoreError};
use super::compact_view::{CompactReader, Tables};
use super::copies::Copies;
use super::dropped::Dropped;
use super::hash::Digest;
use super::insert::{Full, Insert};
use super::layout::{Expansion, Growth, Layout, Mode};
use super::memory::MemoryNeed;
use super::plan::TablePlan;
use super::segments::{self, Raise};
use super::shown::Shown;
use super::slot_state::SlotState;
use super::table::Table;
use super::table_set::TableSet;
use super::writer::NoPath;
use std::ops::Range;
use std::sync::Arc;

/// The writer's side of a compact filter.
pub struct CompactFilter {
    /// The segments.
    pub(super) set: TableSet,
    shown: Arc<Shown<Tables>>,
}

impl CompactFilter {
    /// An empty filter.
    pub fn new(layout: Layout, growth: Growth, expansion: Expansion) -> Self {
        Self::over(TableSet::new(layout, growth, segments::first(&layout, expansion)))
    }

    fn over(set: TableSet) -> Self {
        let filter = Self { set, shown: Arc::default() };
        filter.publish();
        filter
    }

    /// How it takes more memory.
    pub fn expansion(&self) -> Expansion {
        self.set.expansion()
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
        CompactReader { shown: self.shown.clone() }
    }

    pub(super) fn publish(&self) {
        self.shown.replace(Tables { tables: self.set.shared(), is_doubling: self.is_doubling() });
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
        if !self.insert_into_tables(digest) {
            self.grow()?;
            self.set.newest().insert(digest, 0).map_err(|NoPath| Full)?;
        }
        self.note_insert();
        Ok(Insert::Added)
    }

    /// Adds a copy of an item to the oldest table that has room. Returns whether one has.
    fn insert_into_tables(&mut self, digest: Digest) -> bool {
        let newest = self.set.tables.len() - 1;
        for index in 0..=newest {
            let takes_items = segments::takes_items(&self.set.tables, index);
            let table = &mut self.set.tables[index];
            let has_room = self.set.growth == Growth::Fixed || table.room() > 0;
            if takes_items && has_room && table.insert(digest, 0).is_ok() {
                if index == newest {
                    self.keep_newest();
                }
                return true;
            }
        }
        false
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
            self.note_remove();
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
        let begin = segments::first(&first, self.expansion());
        (self.set.layout, self.set.first) = (first, first);
        let begin = self.set.make(begin);
        self.set.replace_all(begin);
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
            Raise::Table(plan) => {
                self.set.put_newest(plan);
                self.publish();
            }
        }
        self.set.first = first;
        // Another table may be the one that is drained now, and a segment that was being folded may be needed.
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

    /// The most memory that [`Self::raise`] may ask for if what is being folded is gone by then.
    pub fn raising_at_most(&self, first: &Layout) -> MemoryNeed {
        if self.set.drained_buckets > 0 {
            segments::raising_at_most(&self.set, first)
        } else {
            self.raising(first).unwrap_or_default()
        }
    }

    /// The most memory that so many more items can make the filter ask for, if so many copies may be removed meanwhile.
    pub fn growth(&self, items: u64, removes: u64) -> MemoryNeed {
        // What is being folded may be gone by the next entry, whatever that is about.
        let is_folding = self.set.drained_buckets > 0 && !self.is_doubling();
        let emptied = if is_folding { self.set.newest_plan().buckets() } else { 0 };
        self.growth_of(&self.set.layout, &segments::filled(&self.set), emptied, items, removes)
    }

    /// As [`Self::growth`], of a filter that is empty and has only its first segment.
    pub fn growth_from_empty(&self, items: u64, removes: u64) -> MemoryNeed {
        let begin = segments::first(&self.set.first, self.expansion());
        self.growth_of(&self.set.first, &[(begin, 0)], 0, items, removes)
    }

    fn growth_of(
        &self,
        layout: &Layout,
        tables: &[(TablePlan, u64)],
        emptied_buckets: u64,
        items: u64,
        removes: u64,
    ) -> MemoryNeed {
        if self.set.growth == Growth::Fixed || items == 0 {
            return MemoryNeed::default();
        }
        let outlook = segments::outlook(layout, tables, items);
        // If there is no room in the end, the items that were added before are removed again.
        let removes = if outlook.is_enough { removes } else { removes + items };
        let further = tables.iter().skip(1).map(|(plan, _)| *plan).chain(outlook.plans.iter().copied());
        let mut need = segments::made_again(further, emptied_buckets, removes);
        if removes > 0 || emptied_buckets > 0 {
            // Once the newest segments are folded, they begin as small as they did.
            for count in 1..tables.len() {
                let full: Vec<_> =
                    tables[..count].iter().map(|(plan, _)| (*plan, plan.fill_limit())).collect();
                let anew = segments::outlook(layout, &full, items).plans;
                need += segments::made_again(anew.into_iter(), emptied_buckets, removes);
            }
        }
        need += outlook.need;
        need
    }

    /// The memory of the segment that it begins with once it is empty.
    pub fn beginning(&self) -> MemoryNeed {
        segments::first(&self.set.first, self.expansion()).memory()
    }

    /// The memory that [`Self::clear`] asks for before it drops the old segments. It does not count towards the limit.
    pub fn clearing(&self) -> MemoryNeed {
        self.beginning().passing()
    }

    fn grow(&mut self) -> Result<(), Full> {
        let plan = match self.set.growth {
            Growth::Fixed => None,
            Growth::Auto => segments::next_for_item(&self.set),
        };
        self.set.add(plan.ok_or(Full)?);
        // Another table may be the one that is drained now.
        self.set.drained_buckets = 0;
        self.publish();
        Ok(())
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
        let filter = Self::over(make(Mode::Compact, image)?);
        if !filter.can_be_drained(filter.set.drained_buckets) {
            return Err(RestoreError::Image("more buckets were drained than there are"));
        }
        Ok(filter)
    }

    /// How many slots are taken in some buckets of a table; none if one holds what no item has. If there are items in buckets that were
    /// drained, which is right while a segment is being doubled, all are drained again.
    pub(super) fn count_in(&mut self, table: usize, buckets: Range<u64>) -> Option<u64> {
        let drained = if table == self.draining() { self.set.drained_buckets } else { 0 };
        let (mut taken, mut are_items, mut are_drained) = (0, true, true);
        let Table { dimensions, .. } = &*self.set.tables[table].table;
        self.set.tables[table].table.for_each_in(buckets, |bucket, _, value| {
            taken += 1;
            are_items &= dimensions.is_of_item(value);
            are_drained &= bucket >= drained;
        });
        // Nothing of this was asked of images before there were filters that double.
        if self.expansion() == Expansion::Segments {
            return Some(taken);
        }
        if !are_drained {
            self.set.drained_buckets = 0;
        }
        are_items.then_some(taken)
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
