//! A table: buckets of slots, packed into atomic words. Readers look items up without a lock while one writer moves them.
//!
//! The writer ([`super::writer`]) moves an item in two steps: it writes the new slot, then frees the old one. So an item is always in one
//! of its two buckets, and a hit is always right. But a reader that reads one bucket and then the other may miss an item that moves the
//! opposite way in between. A sequence lock reveals this: the version is odd while items move along a path, and even otherwise. A reader
//! that found nothing compares the version with the one from before. If it was even and is still the same, no item moved, and the item is
//! absent. Otherwise the reader looks again.

use std::hint::select_unpredictable;
use std::ops::{ControlFlow, Range};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::hash::Digest;
use crate::layout::{self, Mode};
use crate::memory::OutOfMemory;
use crate::place::{Dimensions, Nested, Placement, Probe, Whole, stored_digest};
use crate::plan::TablePlan;
use crate::slots::{
    Fixed, Lanes, Live, LiveTags, STATE_MASK, STRICT_SLOTS, Shape, StrictShape, Tagged,
};
use crate::tags::SlotState;
use crate::{AtomicU64, Words};

/// One table of a filter.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct SegmentStats {
    /// Items in it.
    pub items: u64,
    /// Items that it holds before the filter grows (`auto`) or may reject more (`fixed`). While it is doubled, those of its successor.
    pub capacity: u64,
    /// Bits of a slot that distinguish the items of a bucket; 62 in strict filters.
    pub fingerprint_bits: u8,
    /// Slots of a bucket.
    pub bucket_size: u8,
    /// Buckets.
    pub buckets: u64,
}

impl SegmentStats {
    /// Number of slots.
    pub fn slots(&self) -> u64 {
        self.buckets * u64::from(self.bucket_size)
    }
}

/// Items whose cache lines are prefetched before the first one is compared: enough to keep the memory system busy.
pub(crate) const GROUP: usize = 32;

/// The writer's data besides the slots. It has a separate cache line, so that the rest stays in every reader's cache.
#[derive(Default)]
#[repr(align(64))]
struct Header {
    version: AtomicU64,
    items: AtomicU64,
    /// Of a strict table: the tag of available items. The other possible tag is that of cleared ones.
    available: AtomicU64,
}

#[cfg(test)]
thread_local! {
    /// How long a lookup pauses between its two loads: that makes races likely.
    pub(crate) static PAUSE: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

/// A table that one writer changes and any number of readers look at.
pub(crate) struct Table {
    pub(crate) words: Words,
    pub(crate) lanes: Lanes,
    dimensions: Dimensions,
    pub(crate) plan: TablePlan,
    /// While all items are live, and while some are forgotten. To choose the code for each lookup would take a fifth of its
    /// instructions.
    kernels: [&'static ReadKernel; 2],
    header: Header,
}

/// Functions that are compiled for each kind of table. Steps that a kind doesn't need compile to nothing.
pub(crate) trait Kernel: 'static {
    fn of<K: TableKind>() -> &'static Self;

    /// Returns the functions for tables of this plan: while all items are live, and while some are forgotten.
    fn both(plan: &TablePlan) -> [&'static Self; 2] {
        [false, true].map(|some_are_forgotten| Self::choose(plan, some_are_forgotten))
    }

    /// Buckets of four slots are the usual ones, and a filter that grows passes through many widths, so there is a kind for each usual
    /// width. Other buckets have kinds for some widths. One kind serves the rest.
    fn choose(plan: &TablePlan, some_are_forgotten: bool) -> &'static Self {
        macro_rules! with_widths {
            ($place:ty, $width:expr, $wrap:ident, $($slots:literal: $($bits:literal)+),+) => {
                match (u32::from(plan.bucket_size), u32::from($width)) {
                    $($(($slots, $bits) => Self::of::<KindOf<$wrap<Fixed<$bits, $slots>>, $place>>(),)+)+
                    _ => Self::of::<KindOf<$wrap<Lanes>, $place>>(),
                }
            };
        }
        type Plain<S> = S;
        let untagged_bits = plan.bits + plan.spare_bits;
        let slot_bits = untagged_bits + plan.tag_bits;
        match (plan.mode, plan.tag_bits, plan.is_first()) {
            (Mode::Strict, ..) => Self::of::<StrictKind>(),
            (Mode::Compact, 0, true) => with_widths!(
                Nested<true, false>, untagged_bits, Plain,
                4: 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 32, 2: 8 12 16 32, 8: 8 12 16 32
            ),
            (Mode::Compact, 0, false) => with_widths!(
                Nested<false, false>, untagged_bits, Plain,
                4: 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28, 2: 8 12 16 32, 8: 8 12 16 32
            ),
            (Mode::Compact, _, true) if !some_are_forgotten => {
                with_widths!(Nested<true, true>, slot_bits, Tagged, 8: 16 17 18 19 20 21 22 23)
            }
            (Mode::Compact, ..) => {
                with_widths!(Nested<false, true>, slot_bits, Live, 8: 16 17 18 19 20 21 22 23)
            }
        }
    }
}

/// [`Table::contains`] for one kind of table.
pub(crate) type ContainsFn = fn(&Table, Digest, LiveTags) -> bool;

/// How items are looked up.
struct ReadKernel {
    contains: ContainsFn,
    contains_many: fn(&Table, &[Digest], LiveTags, &mut [bool]),
    count: fn(&Table, Digest, LiveTags) -> u32,
    prefetch: fn(&Table, Digest),
}

impl Kernel for ReadKernel {
    fn of<K: TableKind>() -> &'static Self {
        const {
            &Self {
                contains: Table::contains_in::<K>,
                contains_many: Table::contains_many_in::<K>,
                count: Table::count_in::<K>,
                prefetch: Table::prefetch_in::<K>,
            }
        }
    }
}

/// A kind of table: how it compares slots and places items. Code that depends on it is compiled for each kind.
pub(crate) trait TableKind: Copy {
    type Shape: Shape;
    type Place: Placement;

    fn of(table: &Table, live: LiveTags) -> Self;

    fn shape(&self) -> &Self::Shape;

    fn place(&self) -> &Self::Place;

    #[inline(always)]
    fn lanes(&self) -> Lanes {
        self.shape().lanes()
    }

    /// Prefetches the cache lines of an item's buckets.
    #[inline(always)]
    fn prefetch(&self, words: &Words, probe: &Probe) {
        probe
            .buckets
            .into_iter()
            .for_each(|bucket| self.prefetch_bucket(words, bucket));
    }

    /// Prefetches a bucket's cache line.
    #[inline(always)]
    fn prefetch_bucket(&self, words: &Words, bucket: u64) {
        let lanes = self.lanes();
        words.prefetch(lanes.position(bucket, 0).0);
        if lanes.slots * lanes.bits > 64 {
            words.prefetch(lanes.position(bucket, lanes.slots - 1).0);
        }
    }

    /// One part of a bucket.
    #[inline(always)]
    fn part(&self, words: &[AtomicU64], bucket: u64, part: u32) -> u64 {
        part_of(words, self.lanes(), bucket, part)
    }

    /// Copies of a value in a bucket pair.
    #[inline(always)]
    fn copies(&self, words: &[AtomicU64], probe: &Probe) -> u32 {
        let lanes = self.lanes();
        let mut copies = 0;
        for bucket in probe.buckets {
            for part in 0..lanes.parts() {
                copies += self
                    .shape()
                    .held(self.part(words, bucket, part), probe.value)
                    .count_ones();
            }
        }
        copies
    }

    /// Returns the bucket and slot of an item without a tag, and the slot's value, which is the probe's. The bucket can't be predicted, so it
    /// is selected without a branch.
    #[inline(always)]
    fn locate(&self, words: &[AtomicU64], probe: &Probe) -> Option<(u64, u32, u64)> {
        let lanes = self.lanes();
        let mut marks = 0;
        let mut bucket = 0;
        let mut part = 0;
        for this_bucket in probe.buckets.into_iter().rev() {
            for this_part in (0..lanes.parts()).rev() {
                let bits = self.part(words, this_bucket, this_part);
                let these_marks = self.shape().lowest_held(bits, probe.value);
                let here = these_marks != 0;
                marks = select_unpredictable(here, these_marks, marks);
                bucket = select_unpredictable(here, this_bucket, bucket);
                part = select_unpredictable(here, this_part, part);
            }
        }
        let slot = part * lanes.part_slots + lanes.lowest(marks);
        (marks != 0).then_some((bucket, slot, probe.value))
    }

    /// The mark of the first vacant slot of a bucket, or [`Lanes::no_mark`] if none is vacant.
    #[inline(always)]
    fn first_vacant(&self, words: &[AtomicU64], bucket: u64) -> u32 {
        let lanes = self.lanes();
        let mut first = lanes.no_mark();
        for part in (0..lanes.parts()).rev() {
            let marks = self.shape().vacant(self.part(words, bucket, part));
            first = select_unpredictable(marks != 0, lanes.first_mark(part, marks), first);
        }
        first
    }

    /// The first vacant slot of a bucket, if there is one.
    #[inline(always)]
    fn vacant(&self, words: &[AtomicU64], bucket: u64) -> Option<u32> {
        self.lanes().marked_slot(self.first_vacant(words, bucket))
    }

    /// A vacant slot in one of an item's two buckets: the lower of the two first vacant ones. That is mostly in the emptier bucket, so
    /// buckets fill evenly, and it takes long until an insert has to move items (Azar et al., "Balanced Allocations", 1999).
    #[inline(always)]
    fn vacant_of_pair(&self, words: &[AtomicU64], probe: &Probe) -> Option<(u64, u32)> {
        // `probe.buckets.map` would be a function call.
        let first = self.first_vacant(words, probe.buckets[0]);
        let second = self.first_vacant(words, probe.buckets[1]);
        let in_second = second < first;
        let bucket = select_unpredictable(in_second, probe.buckets[1], probe.buckets[0]);
        let slot = self.lanes().marked_slot(first.min(second))?;
        Some((bucket, slot))
    }

    /// The value of a slot; zero if it is free.
    #[inline(always)]
    fn slot(&self, words: &[AtomicU64], bucket: u64, slot: u32) -> u64 {
        slot_of(words, self.lanes(), bucket, slot)
    }

    /// Returns whether a bucket holds `value`.
    #[inline(always)]
    fn holds(&self, words: &[AtomicU64], bucket: u64, value: u64) -> bool {
        (0..self.lanes().parts()).fold(false, |found, part| {
            found | self.shape().any_held(self.part(words, bucket, part), value)
        })
    }

    /// Returns whether a bucket pair holds a value. No branch: which of the two buckets has it can't be predicted.
    #[inline(always)]
    fn holds_either(&self, words: &[AtomicU64], probe: &Probe) -> bool {
        let first = self.holds(words, probe.buckets[0], probe.value);
        #[cfg(test)]
        (0..PAUSE.get()).for_each(|_| std::hint::spin_loop());
        first | self.holds(words, probe.buckets[1], probe.value)
    }
}

/// A kind, with the numbers of one table.
#[derive(Clone, Copy)]
pub(crate) struct KindOf<S, P> {
    shape: S,
    place: P,
}

/// The kind of every strict table.
pub(crate) type StrictKind = KindOf<StrictShape, Whole>;

impl<S: Shape, P: Placement> TableKind for KindOf<S, P> {
    type Shape = S;
    type Place = P;

    #[inline(always)]
    fn of(table: &Table, live: LiveTags) -> Self {
        Self {
            shape: S::of(&table.lanes, table.plan.tag_bits, live),
            place: P::of(&table.dimensions),
        }
    }

    #[inline(always)]
    fn shape(&self) -> &S {
        &self.shape
    }

    #[inline(always)]
    fn place(&self) -> &P {
        &self.place
    }
}

impl Table {
    /// An empty table. The process ends if the system has no memory left for it.
    pub(crate) fn new(plan: TablePlan) -> Self {
        Self::try_new(plan).unwrap_or_else(|refused| refused.end_process())
    }

    /// An empty table.
    ///
    /// # Errors
    /// [`OutOfMemory`] if the system has no memory left for it.
    pub(crate) fn try_new(plan: TablePlan) -> Result<Self, OutOfMemory> {
        let words = usize::try_from(plan.words()).expect("a table fits the address space");
        let lanes = plan.lanes();
        let dimensions = plan.dimensions();
        let kernels = Kernel::both(&plan);
        Ok(Self {
            words: Words::zeroed(words)?,
            lanes,
            dimensions,
            plan,
            kernels,
            header: Header::default(),
        })
    }

    /// The kind of a strict table.
    #[inline(always)]
    pub(crate) fn strict_kind(&self) -> StrictKind {
        debug_assert!(self.plan.mode == Mode::Strict);
        TableKind::of(self, LiveTags::NONE)
    }

    #[inline(always)]
    fn kernel(&self, live: LiveTags) -> &'static ReadKernel {
        self.kernels[usize::from(!live.all)]
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        self.words.len() as u64 * 8
    }

    pub(crate) fn items(&self) -> u64 {
        self.header.items.load(Relaxed)
    }

    #[inline(always)]
    pub(crate) fn set_items(&self, items: u64) {
        self.header.items.store(items, Relaxed);
    }

    /// The tag of available items. A reader loads it after their slots.
    #[inline(always)]
    pub(crate) fn available_tag(&self) -> u64 {
        self.header.available.load(Acquire)
    }

    /// Sets the tag of available items. The writer calls this before it writes a slot with that tag.
    pub(crate) fn set_available_tag(&self, tag: u64) {
        self.header.available.store(tag, Release);
    }

    pub(crate) fn stats(&self) -> SegmentStats {
        SegmentStats {
            items: self.items(),
            capacity: self.plan.capacity(),
            fingerprint_bits: self.plan.bits + self.plan.spare_bits,
            bucket_size: self.plan.bucket_size,
            buckets: self.plan.buckets(),
        }
    }

    /// Returns whether the taken slots of these buckets hold what items have there. A strict table holds no item twice, in these buckets and
    /// those before.
    pub(crate) fn are_items(&self, buckets: Range<u64>) -> bool {
        let mut are_items = true;
        self.for_each_in(buckets, |bucket, slot, value| {
            are_items &= match self.plan.mode {
                Mode::Compact => self.dimensions.is_of_item(value),
                Mode::Strict => self.is_only_one(bucket, slot, value),
            };
        });
        are_items
    }

    /// Returns whether a slot of a strict table holds an item that belongs there, and no earlier slot holds the same item.
    fn is_only_one(&self, bucket: u64, slot: u32, value: u64) -> bool {
        let digest = value & !STATE_MASK;
        let probe = self.strict_kind().place.probe(stored_digest(value));
        let holds = |bucket: u64, slots: u32| {
            (0..slots)
                .any(|slot| slot_of(&self.words, self.lanes, bucket, slot) & !STATE_MASK == digest)
        };
        // An item's first bucket precedes the second in the table.
        let [first, second] = probe.buckets;
        let is_first = if bucket == second {
            !holds(first, self.lanes.slots)
        } else {
            bucket == first
        };
        probe.value == digest && is_first && !holds(bucket, slot)
    }

    /// The version of the sequence lock: odd while items move. A reader loads it before a lookup and after a miss.
    #[inline(always)]
    fn version(&self) -> u64 {
        self.header.version.load(Acquire)
    }

    /// Returns whether a lookup that started at this version and found nothing is right: the version was even and is unchanged.
    ///
    /// One comparison does for both: an odd version loses its lowest bit here, and so equals no version from now on.
    #[inline(always)]
    fn is_sure(&self, before: u64) -> bool {
        self.version() == before & !1
    }

    /// Steps the version: the writer calls this before the first and after the last store of a path. Those stores are `Release`, so
    /// a reader that sees one of them sees the step too.
    pub(crate) fn step_version(&self) {
        self.header
            .version
            .store(self.header.version.load(Relaxed) + 1, Release);
    }

    /// Returns whether the table holds the item, or a colliding one. A strict table doesn't hold what was cleared.
    #[inline(always)]
    pub(crate) fn contains(&self, digest: Digest, live: LiveTags) -> bool {
        self.contains_fn(live)(self, digest, live)
    }

    /// [`Self::contains`], for a caller that looks up many items with the same tags.
    #[inline(always)]
    pub(crate) fn contains_fn(&self, live: LiveTags) -> ContainsFn {
        self.kernel(live).contains
    }

    fn contains_in<K: TableKind>(&self, digest: Digest, live: LiveTags) -> bool {
        if K::Place::HAS_STATES {
            return self.state(self.get(digest)).is_some();
        }
        let kind = K::of(self, live);
        let before = self.version();
        let hit = kind.holds_either(&self.words, &kind.place().probe(digest));
        hit || (!self.is_sure(before) && self.contains_moving::<K>(digest, live))
    }

    /// [`Table::contains`] while items move. It is a separate function so that the usual case needs no stack.
    #[cold]
    #[inline(never)]
    fn contains_moving<K: TableKind>(&self, digest: Digest, live: LiveTags) -> bool {
        let kind = K::of(self, live);
        let probe = kind.place().probe(digest);
        self.read_consistently(|| kind.holds_either(&self.words, &probe).then_some(()))
            .is_some()
    }

    /// Copies of the item, and of colliding ones. Never too low: the copies are counted again if items moved during the count.
    pub(crate) fn count(&self, digest: Digest, live: LiveTags) -> u32 {
        (self.kernel(live).count)(self, digest, live)
    }

    fn count_in<K: TableKind>(&self, digest: Digest, live: LiveTags) -> u32 {
        let kind = K::of(self, live);
        let probe = kind.place().probe(digest);
        let mut most = 0;
        loop {
            let before = self.version();
            let count = kind.copies(&self.words, &probe);
            most = most.max(count);
            if before == self.version() {
                // Within one odd version a copy moves at most once. So the first count may have missed one copy or
                // counted it twice, but the greater of two counts is not too low.
                return if before & 1 == 0 {
                    count
                } else {
                    most.max(kind.copies(&self.words, &probe))
                };
            }
        }
    }

    /// Sets `found` to true for the items that the table holds, and leaves the others unchanged.
    #[inline]
    pub(crate) fn contains_many(&self, digests: &[Digest], live: LiveTags, found: &mut [bool]) {
        (self.kernel(live).contains_many)(self, digests, live, found);
    }

    fn contains_many_in<K: TableKind>(
        &self,
        digests: &[Digest],
        live: LiveTags,
        found: &mut [bool],
    ) {
        let kind = K::of(self, live);
        let mut found = found.chunks_mut(GROUP);
        self.for_each_group(kind, digests, |probes| {
            let found = found.next().unwrap_or_default();
            let before = self.version();
            let words = &*self.words;
            for (found, probe) in found.iter_mut().zip(probes) {
                *found |= kind.holds_either(words, probe);
            }
            if !self.is_sure(before) {
                for (found, probe) in found.iter_mut().zip(probes) {
                    let holds = || kind.holds_either(words, probe).then_some(());
                    *found = *found || self.read_consistently(holds).is_some();
                }
            }
            ControlFlow::Continue(())
        });
    }

    /// Calls `work` with the probes of many items, group by group, until it breaks. The next group's cache lines are prefetched while one is worked on,
    /// so that the memory is never idle.
    #[inline(always)]
    pub(crate) fn for_each_group<K: TableKind>(
        &self,
        kind: K,
        digests: &[Digest],
        mut work: impl FnMut(&[Probe]) -> ControlFlow<()>,
    ) {
        let [now, next] = &mut [[Probe::default(); GROUP]; 2];
        let mut now = now;
        let mut next = next;
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
    fn probe_group<K: TableKind>(
        &self,
        kind: K,
        digests: &[Digest],
        probes: &mut [Probe; GROUP],
    ) -> usize {
        for (probe, &digest) in probes.iter_mut().zip(digests) {
            *probe = kind.place().probe(digest);
            kind.prefetch(&self.words, probe);
        }
        digests.len()
    }

    /// Looks for an item until it is found, or until a miss is certain.
    ///
    /// Readers never wait for the writer. Within one odd version an item moves at most once. A first look may just miss that
    /// move; a second one under the same version starts after it, so it finds the item at its new place. Only if the version has
    /// changed does the reader have to start over.
    #[inline(always)]
    fn read_consistently<T>(&self, once: impl Fn() -> Option<T>) -> Option<T> {
        loop {
            let before = self.version();
            let found = once().or_else(|| if self.is_sure(before) { None } else { once() });
            if found.is_some() || self.version() == before {
                return found;
            }
        }
    }

    /// Prefetches the cache lines of an item's buckets.
    #[inline]
    pub(crate) fn prefetch(&self, digest: Digest) {
        (self.kernels[0].prefetch)(self, digest);
    }

    fn prefetch_in<K: TableKind>(&self, digest: Digest) {
        let kind = K::of(self, LiveTags::NONE);
        kind.prefetch(&self.words, &kind.place().probe(digest));
    }

    /// Calls `visit` with the bucket, number and value of every taken slot in these buckets, in order.
    pub(crate) fn for_each_in(&self, buckets: Range<u64>, mut visit: impl FnMut(u64, u32, u64)) {
        for bucket in buckets {
            for slot in 0..self.lanes.slots {
                let value = slot_of(&self.words, self.lanes, bucket, slot);
                if value != 0 {
                    visit(bucket, slot, value);
                }
            }
        }
    }

    /// Writes what some of this table's buckets split into to an empty part of a table that no reader sees yet.
    pub(crate) fn split_into(&self, to: &Self, buckets: Range<u64>) {
        buckets.for_each(|bucket| {
            let parts = self.split(to, bucket);
            for (slot, &(part, value)) in parts
                .iter()
                .enumerate()
                .filter(|(_, (_, value))| *value != 0)
            {
                let before = parts[..slot]
                    .iter()
                    .filter(|(other, value)| *other == part && *value != 0);
                to.write_slot(self.target(to, bucket, part), before.count() as u32, value);
            }
        });
    }

    /// Writes to such a table again what of a bucket has the same target as this slot value.
    pub(crate) fn split_again(&self, to: &Self, bucket: u64, value: u64) {
        let (changed, _) = self.split_value(to, bucket, value);
        let parts = self.split(to, bucket);
        let of_target = parts
            .iter()
            .filter(|(part, value)| *part == changed && *value != 0);
        let values = of_target
            .map(|(_, value)| *value)
            .chain(std::iter::repeat(0));
        for (slot, value) in (0..to.lanes.slots).zip(values) {
            to.write_slot(self.target(to, bucket, changed), slot, value);
        }
    }

    /// Returns the bucket of `to` that gets this part of the split bucket.
    fn target(&self, to: &Self, bucket: u64, part: u64) -> u64 {
        (bucket << (to.plan.doublings - self.plan.doublings)) | part
    }

    /// For each slot of a bucket, in which part of its split it is stored, and the value there; zero if the slot is free.
    fn split(&self, to: &Self, bucket: u64) -> [(u64, u64); layout::BUCKET_SIZE_MAX] {
        let mut parts = [(0, 0); layout::BUCKET_SIZE_MAX];
        for (slot, part) in (0..self.lanes.slots).zip(&mut parts) {
            let value = slot_of(&self.words, self.lanes, bucket, slot);
            if value != 0 {
                *part = self.split_value(to, bucket, value);
            }
        }
        parts
    }

    #[inline(always)]
    fn split_value(&self, to: &Self, bucket: u64, value: u64) -> (u64, u64) {
        let times = to.plan.doublings - self.plan.doublings;
        match self.plan.mode {
            Mode::Strict => Whole::of(&self.dimensions).split(bucket, value, times),
            Mode::Compact => {
                Nested::<false, true>::of(&self.dimensions).split(bucket, value, times)
            }
        }
    }

    /// Writes a slot of a table that no reader sees yet.
    fn write_slot(&self, bucket: u64, slot: u32, value: u64) {
        let (word, shift) = self.lanes.position(bucket, slot);
        let mask = self.lanes.slot_mask();
        let write = |word: usize, mask: u64, value: u64| {
            let before = self.words[word].load(Relaxed);
            self.words[word].store((before & !mask) | value, Relaxed);
        };
        write(word, mask << shift, value << shift);
        if shift + self.lanes.bits > 64 {
            write(word + 1, mask >> (64 - shift), value >> (64 - shift));
        }
    }

    /// The slot value of an item of a strict table, whatever its state: its digest and its tag.
    #[inline(never)]
    pub(crate) fn get(&self, digest: Digest) -> Option<u64> {
        let before = self.version();
        let held = self.get_once(&self.strict_kind().place.probe(digest));
        if held.is_some() || self.is_sure(before) {
            held
        } else {
            self.get_moving(digest)
        }
    }

    /// The state of an item of which this strict table holds a slot value; none if it was cleared.
    #[inline]
    pub(crate) fn state(&self, held: Option<u64>) -> Option<SlotState> {
        // The tag is loaded after the slot: a reader that sees an item added since a clear sees the clear too.
        held.and_then(|held| SlotState::of(held & STATE_MASK, self.available_tag()))
    }

    /// [`Table::get`] while items move. It is a separate function so that the usual case needs no stack.
    #[cold]
    #[inline(never)]
    fn get_moving(&self, digest: Digest) -> Option<u64> {
        let probe = self.strict_kind().place.probe(digest);
        self.read_consistently(|| self.get_once(&probe))
    }

    /// [`Table::get`] for many; reports the slot values in order.
    pub(crate) fn get_many(&self, digests: &[Digest], mut report: impl FnMut(Option<u64>)) {
        self.for_each_group(self.strict_kind(), digests, |probes| {
            probes
                .iter()
                .for_each(|probe| report(self.read_consistently(|| self.get_once(probe))));
            ControlFlow::Continue(())
        });
    }

    #[inline(always)]
    fn get_once(&self, probe: &Probe) -> Option<u64> {
        let mut above = u64::MAX;
        for bucket in self.strict_pair(probe) {
            bucket
                .iter()
                .for_each(|slot| see(slot.load(Acquire), probe, &mut above));
        }
        (above <= STATE_MASK).then(|| probe.value + above)
    }

    /// For the writer, in one pass: the slot value of an item, whatever its state, and the result of [`Table::vacant_of_pair`].
    #[inline(always)]
    pub(crate) fn get_and_vacant(&self, probe: &Probe) -> (Option<u64>, Option<(u64, u32)>) {
        const NONE: usize = 2 * STRICT_SLOTS as usize;
        let pair = self.strict_pair(probe);
        let mut above = u64::MAX;
        let mut vacant = NONE;
        // The lowest vacant slot is checked last; of two with the same index, the one in the first bucket.
        for at in (0..NONE).rev() {
            let slot = pair[at % 2][at / 2].load(Acquire);
            see(slot, probe, &mut above);
            vacant = select_unpredictable(slot == 0, at, vacant);
        }
        let bucket =
            select_unpredictable(vacant.is_multiple_of(2), probe.buckets[0], probe.buckets[1]);
        let held = (above <= STATE_MASK).then(|| probe.value + above);
        (held, (vacant < NONE).then_some((bucket, vacant as u32 / 2)))
    }

    /// The two buckets of an item of a strict table.
    #[inline(always)]
    fn strict_pair(&self, probe: &Probe) -> [&[AtomicU64; STRICT_SLOTS as usize]; 2] {
        let (buckets, _) = self.words.as_chunks();
        probe.buckets.map(|bucket| &buckets[bucket as usize])
    }
}

/// Notes how far a strict slot is above an item's value if it holds the item: by its tag. No other slot is so little above.
///
/// No branch: which slot has the item can't be predicted.
#[inline(always)]
fn see(slot: u64, probe: &Probe, above: &mut u64) {
    let this = slot.wrapping_sub(probe.value);
    *above = select_unpredictable(this <= STATE_MASK, this, *above);
}

/// One part of a bucket. It takes the words as a slice: a caller that loads many parts looks the slice up once.
#[inline(always)]
fn part_of(words: &[AtomicU64], lanes: Lanes, bucket: u64, part: u32) -> u64 {
    let (word, shift) = lanes.position(bucket, part * lanes.part_slots);
    let low = words[word].load(Acquire);
    if lanes.straddles() {
        lanes.cut(low, words[word + 1].load(Acquire), shift)
    } else {
        lanes.cut_aligned(low, shift)
    }
}

#[inline(always)]
fn slot_of(words: &[AtomicU64], lanes: Lanes, bucket: u64, slot: u32) -> u64 {
    let part = part_of(words, lanes, bucket, slot / lanes.part_slots);
    (part >> (slot % lanes.part_slots * lanes.bits)) & lanes.slot_mask()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::cell::Cell;

    fn first(mode: Mode, bits: u8, buckets: u64) -> TablePlan {
        let layout = crate::Layout {
            fingerprint_bits: bits,
            step_bits: 0,
            bucket_size: 4,
            buckets,
            max_search: 1,
        };
        TablePlan::first(mode, &layout)
    }

    /// A miss is certain immediately only if no item moved. While one moves, one more look is enough. If the version changes, the look
    /// starts over.
    #[test]
    fn misses_are_certain_only_without_moves() {
        let table = Table::new(first(Mode::Compact, 8, 2));
        let looks = Cell::new(0);
        let read_consistently = |moves_at: Option<u32>, found_at: Option<u32>| {
            looks.set(0);
            let found = table.read_consistently(|| {
                looks.set(looks.get() + 1);
                if moves_at == Some(looks.get()) {
                    table.step_version();
                }
                (found_at == Some(looks.get())).then_some(())
            });
            (found.is_some(), looks.get())
        };
        assert_eq!(read_consistently(None, None), (false, 1));
        assert_eq!(read_consistently(None, Some(1)), (true, 1));
        // The version becomes odd during the first look.
        assert_eq!(read_consistently(Some(1), None), (false, 4));
        assert_eq!(read_consistently(None, None), (false, 2));
        assert_eq!(read_consistently(None, Some(2)), (true, 2));
        // And even again.
        assert_eq!(read_consistently(Some(1), Some(3)), (true, 3));
        assert_eq!(read_consistently(None, None), (false, 1));
    }

    const LAST: u64 = (1 << 62) - 1;

    fn slots() -> impl Strategy<Value = Vec<Option<(u64, u64)>>> {
        let digests = Just(vec![
            1,
            2,
            3,
            LAST / 2,
            LAST / 2 + 1,
            LAST / 3,
            LAST - 1,
            LAST,
        ])
        .prop_shuffle();
        (
            digests,
            prop::collection::vec(prop::option::of(0..=STATE_MASK), 8),
        )
            .prop_map(|(digests, tags)| {
                digests
                    .into_iter()
                    .zip(tags)
                    .map(|(digest, tag)| Some((digest, tag?)))
                    .collect()
            })
    }

    proptest! {
        /// A pass over both buckets agrees with a comparison of each slot, also for similar digests.
        #[test]
        fn vectorized_lookup_agrees_with_each_slot(slots in slots(), stranger: u64) {
            let table = Table::new(first(Mode::Strict, 62, 2));
            let value = |slot: &Option<(u64, u64)>| slot.map_or(0, |(digest, tag)| digest << 2 | tag);
            for (word, slot) in table.words.iter().zip(&slots) {
                word.store(value(slot), Relaxed);
            }
            let kind = table.strict_kind();
            let digests = slots.iter().flatten().map(|slot| slot.0);
            for digest in digests.chain([4, LAST / 2 - 1, LAST / 2 + 2, LAST - 2, stranger, 0]) {
                let probe = kind.place().probe(Digest(digest));
                let held = slots.iter().map(value).find(|held| held >> 2 == (digest & LAST).max(1));
                prop_assert_eq!(table.get(Digest(digest)), held);
                prop_assert_eq!(table.get_and_vacant(&probe), (held, kind.vacant_of_pair(&table.words, &probe)));
            }
        }
    }
}
