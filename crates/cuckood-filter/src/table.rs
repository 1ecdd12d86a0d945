//! A table: buckets of slots, packed into atomic words. Readers look items up without a lock while one writer moves them.
//!
//! The writer ([`super::writer`]) moves an item in two steps: it writes the new slot, then frees the old one. So an item is
//! always in one of its two buckets, and a hit is always right. But a reader that looks at one bucket and then at the other may
//! miss an item that moves the opposite way in between. A sequence lock tells: the version is odd while items move along a path,
//! and even otherwise. A reader that found nothing compares the version with the one from before. If it was even and is still
//! the same, no item moved, and the item is not there. Otherwise the reader looks again.

use std::hint::select_unpredictable;
use std::ops::{ControlFlow, Range};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use super::hash::Digest;
use super::kind::{TableKind, with_any_kind, with_kind};
use super::memory::OutOfMemory;
use super::place::{Dimensions, Place, Probe, Whole};
use super::plan::TablePlan;
use super::slots::{Lanes, OwnShape, Shape, StrictShape};
use super::words::{AtomicU64, Remains, Words};

/// One table of a filter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SegmentStats {
    /// Items in it.
    pub items: u64,
    /// Items that it takes before the filter grows (`auto`) or may refuse more (`fixed`).
    pub capacity: u64,
    /// Bits of a fingerprint; 62 in strict filters.
    pub fingerprint_bits: u8,
    /// Slots a bucket.
    pub bucket_size: u8,
    /// Buckets.
    pub buckets: u64,
}

/// Items whose cache lines are prefetched before the first one is looked at: enough to keep the memory system busy.
pub(super) const GROUP: usize = 32;

/// What the writer changes beside the slots. It has a cache line of its own, so that the rest stays in every reader's cache.
#[derive(Default)]
#[repr(align(64))]
struct Header {
    version: AtomicU64,
    items: AtomicU64,
    /// One more than the number of the slot whose tag is being changed; 0 while none is. See [`super::live`].
    tagging: AtomicU64,
}

/// A table that one writer changes and any number of readers look at.
pub(super) struct Table {
    pub(super) words: Words,
    pub(super) lanes: Lanes,
    pub(super) dimensions: Dimensions,
    pub(super) plan: TablePlan,
    /// [`Table::contains_in`] compiled for this kind of table. To choose it for each look-up would take a fifth of its instructions.
    contains: fn(&Table, Digest) -> bool,
    header: Header,
}

fn words(plan: TablePlan) -> usize {
    usize::try_from(plan.words()).expect("a table fits the address space")
}

impl Table {
    /// An empty table. The process ends if the system has no memory left for it.
    pub(super) fn new(plan: TablePlan) -> Self {
        Self::over(Words::zeroed(words(plan)), plan)
    }

    /// An empty table.
    ///
    /// # Errors
    /// [`OutOfMemory`] if the system has no memory left for it.
    pub(super) fn try_new(plan: TablePlan) -> Result<Self, OutOfMemory> {
        Ok(Self::over(Words::try_zeroed(words(plan))?, plan))
    }

    fn over(words: Words, plan: TablePlan) -> Self {
        Self {
            words,
            lanes: plan.lanes(),
            dimensions: Dimensions::of(plan),
            plan,
            contains: with_kind!(plan, S, P => Self::contains_in::<S, P>),
            header: Header::default(),
        }
    }

    /// The bucket and the slot value in another table of the filter: see [`Dimensions::carry`].
    pub(super) fn carry(&self, to: &Self, bucket: u64, value: u64) -> (u64, u64) {
        self.dimensions.carry(&to.dimensions, bucket, value)
    }

    /// The table's kind, named by its two types.
    #[inline(always)]
    pub(super) fn kind<S: OwnShape, P: Place>(&self) -> TableKind<S, P> {
        TableKind::of(&self.lanes, &self.dimensions)
    }

    /// The kind of a strict table.
    #[inline(always)]
    pub(super) fn strict_kind(&self) -> TableKind<StrictShape, Whole> {
        debug_assert!(matches!(self.plan, TablePlan::Strict { .. }));
        self.kind()
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        self.words.len() as u64 * 8
    }

    /// Whether its memory is mapped: that of large tables is.
    pub(super) fn is_mapped(&self) -> bool {
        self.words.is_mapped()
    }

    /// See [`Words::into_remains`].
    pub(super) fn into_remains(self) -> Result<Remains, u64> {
        self.words.into_remains()
    }

    pub(super) fn slots(&self) -> u64 {
        self.plan.buckets() * u64::from(self.plan.bucket_size())
    }

    pub(super) fn items(&self) -> u64 {
        self.header.items.load(Relaxed)
    }

    pub(super) fn set_items(&self, items: u64) {
        self.header.items.store(items, Relaxed);
    }

    /// The number of the slot whose tag is being changed in two words, if there is one.
    pub(super) fn tagging(&self) -> Option<u64> {
        self.header.tagging.load(Acquire).checked_sub(1)
    }

    pub(super) fn set_tagging(&self, slot: Option<u64>) {
        self.header.tagging.store(slot.map_or(0, |slot| slot + 1), Release);
    }

    pub(super) fn stats(&self) -> SegmentStats {
        SegmentStats {
            items: self.items(),
            capacity: self.plan.fill_limit(),
            fingerprint_bits: self.plan.fingerprint_bits(),
            bucket_size: self.plan.bucket_size(),
            buckets: self.plan.buckets(),
        }
    }

    /// The version of the sequence lock: odd while items move. A reader loads it before a look-up and after a miss.
    #[inline(always)]
    pub(super) fn version(&self) -> u64 {
        self.header.version.load(Acquire)
    }

    /// Whether a look-up that began at this version and found nothing can be believed: the version was even and is unchanged.
    ///
    /// One comparison does for both: an odd version loses its lowest bit here, and so equals no version from now on.
    #[inline(always)]
    pub(super) fn is_sure(&self, before: u64) -> bool {
        self.version() == before & !1
    }

    /// Steps the version: the writer calls this before the first and after the last store of a path. Those stores are `Release`, so
    /// a reader that sees one of them sees the step too.
    pub(super) fn step_version(&self) {
        self.header.version.store(self.header.version.load(Relaxed) + 1, Release);
    }

    /// Whether the table holds the item, or one with the same fingerprint and buckets.
    #[inline(always)]
    pub(super) fn contains(&self, digest: Digest) -> bool {
        (self.contains)(self, digest)
    }

    fn contains_in<S: OwnShape, P: Place>(&self, digest: Digest) -> bool {
        self.contains_with::<S, P>(digest, || ())
    }

    /// As [`Table::contains`], with a pause between the two loads: a test needs it to make the race likely.
    #[cfg(test)]
    pub(super) fn contains_slowly(&self, digest: Digest, pause: impl Fn() + Copy) -> bool {
        with_kind!(self.plan, S, P => self.contains_with::<S, P>(digest, pause))
    }

    #[inline(always)]
    fn contains_with<S: OwnShape, P: Place>(&self, digest: Digest, pause: impl Fn() + Copy) -> bool {
        let kind = self.kind::<S, P>();
        let before = self.version();
        let hit = self.holds_either(kind, &kind.place.probe(digest), pause);
        hit || (!self.is_sure(before) && self.contains_moving::<S, P>(digest, pause))
    }

    /// [`Table::contains`] while items move. It is a function of its own so that the usual case needs no stack.
    #[cold]
    #[inline(never)]
    fn contains_moving<S: OwnShape, P: Place>(&self, digest: Digest, pause: impl Fn() + Copy) -> bool {
        let kind = self.kind::<S, P>();
        let probe = kind.place.probe(digest);
        self.look(|| self.holds_either(kind, &probe, pause).then_some(())).is_some()
    }

    /// Copies of the item, and of items that look alike. Never too low: the copies are counted again if items moved meanwhile.
    pub(super) fn count(&self, digest: Digest) -> u32 {
        with_kind!(self.plan, S, P => self.count_of(self.kind::<S, P>(), digest))
    }

    /// [`Table::count`], if one looks at the table in this way.
    #[inline(never)]
    pub(super) fn count_of<S: Shape, P: Place>(&self, kind: TableKind<S, P>, digest: Digest) -> u32 {
        let probe = kind.place.probe(digest);
        let mut most = 0;
        loop {
            let before = self.version();
            let count = self.copies(kind, &probe);
            most = most.max(count);
            if before == self.version() {
                // Within one odd version a copy moves at most once. So the first count may have missed one copy or
                // counted it twice, but the greater of two counts is not too low.
                return if before & 1 == 0 { count } else { most.max(self.copies(kind, &probe)) };
            }
        }
    }

    /// Sets `found` to true for the items that the table holds, and leaves it as it is for the others.
    #[inline]
    pub(super) fn contains_many(&self, digests: &[Digest], found: &mut [bool]) {
        with_kind!(self.plan, S, P => self.contains_many_of(self.kind::<S, P>(), digests, found));
    }

    /// [`Table::contains_many`], if one looks at the table in this way.
    #[inline(never)]
    pub(super) fn contains_many_of<S: Shape, P: Place>(
        &self,
        kind: TableKind<S, P>,
        digests: &[Digest],
        found: &mut [bool],
    ) {
        let mut found = found.chunks_mut(GROUP);
        self.for_each_group(kind, digests, |probes| {
            let found = found.next().unwrap_or_default();
            let before = self.version();
            let words = &*self.words;
            for (found, probe) in found.iter_mut().zip(probes) {
                *found |= holds(words, kind, probe.buckets[0], probe.values[0])
                    | holds(words, kind, probe.buckets[1], probe.values[1]);
            }
            if !self.is_sure(before) {
                for (found, probe) in found.iter_mut().zip(probes) {
                    *found =
                        *found || self.look(|| self.holds_either(kind, probe, || ()).then_some(())).is_some();
                }
            }
            ControlFlow::Continue(())
        });
    }

    /// Calls `work` with the probes of many items, group by group, until it says to stop. The next group's cache lines are prefetched
    /// while this one is worked on, so that the memory is never idle.
    #[inline(always)]
    pub(super) fn for_each_group<S: Shape, P: Place>(
        &self,
        kind: TableKind<S, P>,
        digests: &[Digest],
        mut work: impl FnMut(&[Probe]) -> ControlFlow<()>,
    ) {
        let [now, next] = &mut [[Probe::default(); GROUP]; 2];
        let (mut now, mut next) = (now, next);
        let mut groups = digests.chunks(GROUP);
        let mut here = self.probe_group(kind, groups.next().unwrap_or_default(), now);
        while here > 0 {
            let ahead = self.probe_group(kind, groups.next().unwrap_or_default(), next);
            if work(&now[..here]).is_break() {
                return;
            }
            (now, next, here) = (next, now, ahead);
        }
    }

    /// Computes the probes of a group and prefetches their cache lines. Returns how many there are.
    #[inline(always)]
    fn probe_group<S: Shape, P: Place>(
        &self,
        kind: TableKind<S, P>,
        digests: &[Digest],
        probes: &mut [Probe; GROUP],
    ) -> usize {
        for (probe, &digest) in probes.iter_mut().zip(digests) {
            *probe = kind.place.probe(digest);
            self.prefetch(kind, probe);
        }
        digests.len()
    }

    /// Looks for an item until it is found, or until a miss can be believed.
    ///
    /// Readers never wait for the writer. Within one odd version an item moves at most once. A first look may just miss that
    /// move; a second one under the same version begins after it, so it finds the item where it went. Only if the version has
    /// changed does the reader have to start over.
    #[inline(always)]
    pub(super) fn look<T>(&self, once: impl Fn() -> Option<T>) -> Option<T> {
        loop {
            let before = self.version();
            if let Some(hit) = once() {
                return Some(hit);
            }
            if self.is_sure(before) {
                return None;
            }
            if let Some(hit) = once() {
                return Some(hit);
            }
            if before == self.version() {
                return None;
            }
        }
    }

    #[inline(always)]
    pub(super) fn holds_either<S: Shape, P: Place>(
        &self,
        kind: TableKind<S, P>,
        probe: &Probe,
        pause: impl Fn(),
    ) -> bool {
        // No branch: which of the two buckets has the item can't be predicted.
        let words = &*self.words;
        let first = holds(words, kind, probe.buckets[0], probe.values[0]);
        pause();
        first | holds(words, kind, probe.buckets[1], probe.values[1])
    }

    /// Prefetches the cache lines of an item's buckets.
    #[inline]
    pub(super) fn prefetch_item(&self, digest: Digest) {
        with_kind!(self.plan, S, P => self.prefetch_item_in::<S, P>(digest));
    }

    #[inline(never)]
    fn prefetch_item_in<S: OwnShape, P: Place>(&self, digest: Digest) {
        let kind = self.kind::<S, P>();
        self.prefetch(kind, &kind.place.probe(digest));
    }

    #[inline(always)]
    pub(super) fn prefetch<S: Shape, P: Copy>(&self, kind: TableKind<S, P>, probe: &Probe) {
        probe.buckets.into_iter().for_each(|bucket| self.prefetch_bucket(kind, bucket));
    }

    /// Prefetches a bucket's cache line.
    #[inline(always)]
    pub(super) fn prefetch_bucket<S: Shape, P: Copy>(&self, kind: TableKind<S, P>, bucket: u64) {
        let lanes = kind.shape.lanes();
        self.words.prefetch(lanes.position(bucket, 0).0);
        if lanes.slots * lanes.bits > 64 {
            self.words.prefetch(lanes.position(bucket, lanes.slots - 1).0);
        }
    }

    /// One part of a bucket.
    #[inline(always)]
    pub(super) fn part<S: Shape, P: Copy>(&self, kind: TableKind<S, P>, bucket: u64, part: u32) -> u64 {
        part_of(&self.words, kind, bucket, part)
    }

    /// Copies of a value in a bucket pair.
    #[inline(always)]
    pub(super) fn copies<S: Shape, P: Copy>(&self, kind: TableKind<S, P>, probe: &Probe) -> u32 {
        let lanes = kind.shape.lanes();
        let mut copies = 0;
        for (bucket, value) in probe.buckets.into_iter().zip(probe.values) {
            for part in 0..lanes.parts() {
                copies += kind.shape.held(self.part(kind, bucket, part), value).count_ones();
            }
        }
        copies
    }

    /// The bucket and the slot where an item lies, and the slot's whole value. Which of the two buckets it is can't be predicted,
    /// so they are told apart without a branch.
    #[inline(always)]
    pub(super) fn locate<S: Shape, P: Copy>(
        &self,
        kind: TableKind<S, P>,
        probe: &Probe,
    ) -> Option<(u64, u32, u64)> {
        let lanes = kind.shape.lanes();
        let (mut marks, mut bits, mut bucket, mut part) = (0, 0, 0, 0);
        for (this_bucket, value) in probe.buckets.into_iter().zip(probe.values).rev() {
            for this_part in (0..lanes.parts()).rev() {
                let these_bits = self.part(kind, this_bucket, this_part);
                let these_marks = kind.shape.held(these_bits, value);
                let here = these_marks != 0;
                marks = select_unpredictable(here, these_marks, marks);
                bits = select_unpredictable(here, these_bits, bits);
                bucket = select_unpredictable(here, this_bucket, bucket);
                part = select_unpredictable(here, this_part, part);
            }
        }
        if marks == 0 {
            return None;
        }
        let lane = lanes.lowest(marks);
        let held = (bits >> (lane * lanes.bits)) & lanes.slot_mask();
        Some((bucket, part * lanes.part_slots + lane, held))
    }

    /// The first vacant slot of a bucket, or the number of its slots if none is vacant.
    #[inline(always)]
    fn first_vacant<S: Shape, P: Copy>(&self, kind: TableKind<S, P>, bucket: u64) -> u32 {
        let lanes = kind.shape.lanes();
        let mut slot = lanes.slots;
        for part in (0..lanes.parts()).rev() {
            let marks = kind.shape.vacant(self.part(kind, bucket, part));
            slot = select_unpredictable(marks != 0, part * lanes.part_slots + lanes.lowest(marks), slot);
        }
        slot
    }

    /// The first vacant slot of a bucket, if there is one.
    #[inline(always)]
    pub(super) fn vacant<S: Shape, P: Copy>(&self, kind: TableKind<S, P>, bucket: u64) -> Option<u32> {
        let slot = self.first_vacant(kind, bucket);
        (slot < kind.shape.lanes().slots).then_some(slot)
    }

    /// A vacant slot in one of an item's two buckets, and the item's value there: the lower of the two first vacant ones. That is mostly
    /// in the emptier bucket, so buckets fill evenly, and it takes long until an insert has to move items (Azar et al., "Balanced Allocations", 1999).
    #[inline(always)]
    pub(super) fn vacant_of_pair<S: Shape, P: Copy>(
        &self,
        kind: TableKind<S, P>,
        probe: &Probe,
    ) -> Option<(u64, u32, u64)> {
        let [first, second] =
            [self.first_vacant(kind, probe.buckets[0]), self.first_vacant(kind, probe.buckets[1])];
        let in_second = second < first;
        let slot = select_unpredictable(in_second, second, first);
        let bucket = select_unpredictable(in_second, probe.buckets[1], probe.buckets[0]);
        let value = select_unpredictable(in_second, probe.values[1], probe.values[0]);
        (slot < kind.shape.lanes().slots).then_some((bucket, slot, value))
    }

    /// The value of a slot; zero if it is free.
    #[inline(always)]
    pub(super) fn slot<S: Shape, P: Copy>(&self, kind: TableKind<S, P>, bucket: u64, slot: u32) -> u64 {
        let lanes = kind.shape.lanes();
        let part = self.part(kind, bucket, slot / lanes.part_slots);
        (part >> (slot % lanes.part_slots * lanes.bits)) & lanes.slot_mask()
    }

    /// Calls `visit` with the bucket, number and value of every taken slot in these buckets, in order.
    pub(super) fn for_each_in(&self, buckets: Range<u64>, visit: impl FnMut(u64, u32, u64)) {
        with_any_kind!(self.plan, S, P => self.for_each_of::<S, P>(buckets, visit));
    }

    #[inline(never)]
    fn for_each_of<S: OwnShape, P: Place>(&self, buckets: Range<u64>, mut visit: impl FnMut(u64, u32, u64)) {
        let kind = self.kind::<S, P>();
        let lanes = kind.shape.lanes();
        for bucket in buckets {
            for part in 0..lanes.parts() {
                let mut rest = self.part(kind, bucket, part);
                let mut slot = part * lanes.part_slots;
                while rest != 0 {
                    let value = rest & lanes.slot_mask();
                    if value != 0 {
                        visit(bucket, slot, value);
                    }
                    rest = rest.checked_shr(lanes.bits).unwrap_or(0);
                    slot += 1;
                }
            }
        }
    }
}

/// One part of a bucket. It takes the words as a slice: a caller that loads many parts looks the slice up once.
#[inline(always)]
fn part_of<S: Shape, P: Copy>(words: &[AtomicU64], kind: TableKind<S, P>, bucket: u64, part: u32) -> u64 {
    let lanes = kind.shape.lanes();
    let (word, shift) = lanes.position(bucket, part * lanes.part_slots);
    let low = words[word].load(Acquire);
    if lanes.straddles() {
        lanes.cut(low, words[word + 1].load(Acquire), shift)
    } else {
        lanes.cut_whole(low, shift)
    }
}

/// Whether a bucket holds `value`.
#[inline(always)]
fn holds<S: Shape, P: Copy>(words: &[AtomicU64], kind: TableKind<S, P>, bucket: u64, value: u64) -> bool {
    let lanes = kind.shape.lanes();
    (0..lanes.parts())
        .fold(false, |found, part| found | kind.shape.any_held(part_of(words, kind, bucket, part), value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// A miss is believed at once only if no item moved. While one moves, one more look is enough. If the version changes, the look
    /// starts over.
    #[test]
    fn a_miss_is_believed_only_if_nothing_moved_meanwhile() {
        let table = Table::new(TablePlan::Segment {
            base_bits: 8,
            step_bits: 0,
            bucket_size: 4,
            base_buckets: 2,
            k: 0,
        });
        let looks = Cell::new(0);
        let look = |moves_at: Option<u32>, found_at: Option<u32>| {
            looks.set(0);
            let found = table.look(|| {
                looks.set(looks.get() + 1);
                if moves_at == Some(looks.get()) {
                    table.step_version();
                }
                (found_at == Some(looks.get())).then_some(())
            });
            (found.is_some(), looks.get())
        };
        assert_eq!(look(None, None), (false, 1));
        assert_eq!(look(None, Some(1)), (true, 1));
        // The version becomes odd during the first look.
        assert_eq!(look(Some(1), None), (false, 4));
        assert_eq!(look(None, None), (false, 2));
        assert_eq!(look(None, Some(2)), (true, 2));
        // And even again.
        assert_eq!(look(Some(1), Some(3)), (true, 3));
        assert_eq!(look(None, None), (false, 1));
    }
}
