//! Buckets of slots in atomic words, as readers see them: look-ups without a lock, sure even while items move.
//!
//! One writer changes a table ([`super::writer`]). It moves an item by writing the new slot before it frees the old one, and makes
//! the version odd while it moves items along one path. So a hit is always true to the bits, and a miss is sure when the
//! version was even and has not changed.

use std::hint::select_unpredictable;
use std::ops::{ControlFlow, Range};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use super::kind::{Kind, with_kind};
use super::memory::OutOfMemory;
use super::place::{Dimensions, Place, Probe, Whole};
use super::plan::Plan;
use super::slots::{Lanes, Shape, StrictShape};
use super::words::{AtomicU64, Words};
use super::{Digest, SegmentStats};

/// Items whose cache lines are asked for before the first is looked at: enough to keep the memory system busy.
pub(super) const GROUP: usize = 32;

/// What the writer changes beside the slots, on a cache line of its own: the rest stays in every reader's cache.
#[derive(Default)]
#[repr(align(64))]
struct Progress {
    version: AtomicU64,
    items: AtomicU64,
}

/// A table that one writer changes and any number of readers look at.
pub(super) struct Table {
    pub(super) words: Words,
    lanes: Lanes,
    dimensions: Dimensions,
    pub(super) plan: Plan,
    /// [`Table::contains_in`] for the table's kind: to choose it anew would take a fifth of a look-up's instructions.
    contains: fn(&Table, Digest) -> bool,
    progress: Progress,
}

fn words(plan: Plan) -> usize {
    usize::try_from(plan.words()).expect("a table fits the address space")
}

impl Table {
    /// An empty table. The process ends if the system has no memory left for it.
    pub(super) fn new(plan: Plan) -> Self {
        Self::over(Words::zeroed(words(plan)), plan)
    }

    /// An empty table.
    ///
    /// # Errors
    /// [`OutOfMemory`] if the system has no memory left for it.
    pub(super) fn try_new(plan: Plan) -> Result<Self, OutOfMemory> {
        Ok(Self::over(Words::try_zeroed(words(plan))?, plan))
    }

    fn over(words: Words, plan: Plan) -> Self {
        Self {
            words,
            lanes: plan.lanes(),
            dimensions: Dimensions::of(plan),
            plan,
            contains: with_kind!(plan, S, P => Self::contains_in::<S, P>),
            progress: Progress::default(),
        }
    }

    /// The table's kind, named by its two types.
    #[inline(always)]
    pub(super) fn kind<S: Shape, P: Place>(&self) -> Kind<S, P> {
        Kind::of(&self.lanes, &self.dimensions)
    }

    /// The kind of a strict table.
    #[inline(always)]
    pub(super) fn strict_kind(&self) -> Kind<StrictShape, Whole> {
        debug_assert!(matches!(self.plan, Plan::Strict { .. }));
        self.kind()
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        self.words.len() as u64 * 8
    }

    pub(super) fn slots(&self) -> u64 {
        self.plan.buckets() * u64::from(self.plan.bucket_size())
    }

    pub(super) fn items(&self) -> u64 {
        self.progress.items.load(Relaxed)
    }

    pub(super) fn set_items(&self, items: u64) {
        self.progress.items.store(items, Relaxed);
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

    pub(super) fn error_rate_now(&self) -> f64 {
        self.plan.error_rate_at(self.items() as f64 / self.slots() as f64)
    }

    /// Odd while items move. Read before a look-up and after a miss.
    #[inline(always)]
    fn version(&self) -> u64 {
        self.progress.version.load(Acquire)
    }

    /// Whether a miss of a look that began at this version is sure: it was even, and is the same. Without its lowest bit an
    /// odd one is none of those that follow.
    #[inline(always)]
    fn is_sure(&self, before: u64) -> bool {
        self.version() == before & !1
    }

    /// The writer's: one step of the version. The stores that follow are `Release`, so that who sees one sees the step.
    pub(super) fn step_version(&self, steps: u64) {
        self.progress.version.store(self.progress.version.load(Relaxed) + steps, Release);
    }

    /// Whether the item, or one alike, is here.
    #[inline(always)]
    pub(super) fn contains(&self, digest: Digest) -> bool {
        (self.contains)(self, digest)
    }

    fn contains_in<S: Shape, P: Place>(&self, digest: Digest) -> bool {
        self.contains_with::<S, P>(digest, || ())
    }

    /// As [`Table::contains`], with something that happens between the two loads: what a test needs to make a race likely.
    #[cfg(test)]
    pub(super) fn contains_slowly(&self, digest: Digest, pause: impl Fn() + Copy) -> bool {
        with_kind!(self.plan, S, P => self.contains_with::<S, P>(digest, pause))
    }

    #[inline(always)]
    fn contains_with<S: Shape, P: Place>(&self, digest: Digest, pause: impl Fn() + Copy) -> bool {
        let kind = self.kind::<S, P>();
        let before = self.version();
        let hit = self.holds_either(kind, &kind.place.probe(digest), pause);
        hit || (!self.is_sure(before) && self.contains_moving::<S, P>(digest, pause))
    }

    /// [`Table::contains`] while items move; apart, so that the usual case needs no stack.
    #[cold]
    #[inline(never)]
    fn contains_moving<S: Shape, P: Place>(&self, digest: Digest, pause: impl Fn() + Copy) -> bool {
        let kind = self.kind::<S, P>();
        let probe = kind.place.probe(digest);
        self.look(|| self.holds_either(kind, &probe, pause).then_some(())).is_some()
    }

    /// What the slot of an item of a strict table holds, its state with it.
    #[inline]
    pub(super) fn get(&self, digest: Digest) -> Option<u64> {
        let kind = self.strict_kind();
        let probe = kind.place.probe(digest);
        self.look(|| self.locate(kind, &probe).map(|(_, _, held)| held))
    }

    /// Copies of the item, and of those alike. Never too low: counted again when items moved meanwhile.
    pub(super) fn count(&self, digest: Digest) -> u32 {
        with_kind!(self.plan, S, P => self.count_in::<S, P>(digest))
    }

    #[inline(never)]
    fn count_in<S: Shape, P: Place>(&self, digest: Digest) -> u32 {
        let kind = self.kind::<S, P>();
        let probe = kind.place.probe(digest);
        let mut most = 0;
        loop {
            let before = self.version();
            let count = self.copies(kind, &probe);
            most = most.max(count);
            if before == self.version() {
                // Within one odd version a copy moves at most once: seen twice it can be, and looked at from the
                // other side it can't be missed.
                return if before & 1 == 0 { count } else { most.max(self.copies(kind, &probe)) };
            }
        }
    }

    /// Sets to true what is found; the others are left as they are.
    #[inline]
    pub(super) fn contains_many(&self, digests: &[Digest], found: &mut [bool]) {
        with_kind!(self.plan, S, P => self.contains_many_in::<S, P>(digests, found));
    }

    #[inline(never)]
    fn contains_many_in<S: Shape, P: Place>(&self, digests: &[Digest], found: &mut [bool]) {
        let kind = self.kind::<S, P>();
        let mut found = found.chunks_mut(GROUP);
        self.for_each_group(kind, digests, |probes| {
            let found = found.next().unwrap_or_default();
            let before = self.version();
            let words = &*self.words;
            for (found, probe) in found.iter_mut().zip(probes) {
                *found |= holds(words, kind, probe.buckets[0], probe.value)
                    | holds(words, kind, probe.buckets[1], probe.value);
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

    /// [`Table::get`] for those of many that were not found yet, each turned into what is wanted of it.
    pub(super) fn get_many<T>(&self, digests: &[Digest], found: &mut [Option<T>], of: impl Fn(u64) -> T) {
        let kind = self.strict_kind();
        let mut found = found.chunks_mut(GROUP);
        self.for_each_group(kind, digests, |probes| {
            let found = found.next().unwrap_or_default().iter_mut();
            for (found, probe) in found.zip(probes).filter(|(found, _)| found.is_none()) {
                *found = self.look(|| self.locate(kind, probe).map(|(_, _, held)| of(held)));
            }
            ControlFlow::Continue(())
        });
    }

    /// Works through the probes of many items in groups, until told to stop. The cache lines of a group are asked for before
    /// the one before it is worked on, so that the memory is never idle.
    #[inline(always)]
    pub(super) fn for_each_group<S: Shape, P: Place>(
        &self,
        kind: Kind<S, P>,
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

    /// The probes of a group, whose cache lines are asked for; tells how many there are.
    #[inline(always)]
    fn probe_group<S: Shape, P: Place>(
        &self,
        kind: Kind<S, P>,
        digests: &[Digest],
        probes: &mut [Probe; GROUP],
    ) -> usize {
        for (probe, &digest) in probes.iter_mut().zip(digests) {
            *probe = kind.place.probe(digest);
            self.prefetch(kind, probe);
        }
        digests.len()
    }

    /// Looks until it has found, or can be sure that there was nothing to find.
    ///
    /// Waits for nobody: within one odd version a copy moves at most once, so the second look, begun after the move, finds it
    /// where it went. Only a version that changes makes it begin anew.
    #[inline(always)]
    fn look<T>(&self, once: impl Fn() -> Option<T>) -> Option<T> {
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
    fn holds_either<S: Shape, P: Place>(&self, kind: Kind<S, P>, probe: &Probe, pause: impl Fn()) -> bool {
        // No branch: in which of the two an item is, if in any, is not to be predicted.
        let words = &*self.words;
        let first = holds(words, kind, probe.buckets[0], probe.value);
        pause();
        first | holds(words, kind, probe.buckets[1], probe.value)
    }

    #[inline(always)]
    pub(super) fn prefetch<S: Shape, P: Copy>(&self, kind: Kind<S, P>, probe: &Probe) {
        probe.buckets.into_iter().for_each(|bucket| self.prefetch_bucket(kind, bucket));
    }

    /// Asks for a bucket's cache line.
    #[inline(always)]
    pub(super) fn prefetch_bucket<S: Shape, P: Copy>(&self, kind: Kind<S, P>, bucket: u64) {
        self.words.prefetch(kind.shape.lanes().position(bucket, 0).0);
    }

    /// One part of a bucket.
    #[inline(always)]
    pub(super) fn part<S: Shape, P: Copy>(&self, kind: Kind<S, P>, bucket: u64, part: u32) -> u64 {
        part_of(&self.words, kind, bucket, part)
    }

    /// Copies of a value in a bucket pair.
    #[inline(always)]
    pub(super) fn copies<S: Shape, P: Copy>(&self, kind: Kind<S, P>, probe: &Probe) -> u32 {
        let lanes = kind.shape.lanes();
        let mut copies = 0;
        for bucket in probe.buckets {
            for part in 0..lanes.parts() {
                copies += lanes.equal(self.part(kind, bucket, part), probe.value).count_ones();
            }
        }
        copies
    }

    /// Where an item's value lies, and all that the slot holds. In which of the two buckets is not to be
    /// predicted, so that is chosen without a branch.
    #[inline(always)]
    pub(super) fn locate<S: Shape, P: Copy>(
        &self,
        kind: Kind<S, P>,
        probe: &Probe,
    ) -> Option<(u64, u32, u64)> {
        let lanes = kind.shape.lanes();
        let (mut marks, mut bits, mut bucket, mut part) = (0, 0, 0, 0);
        for this_bucket in probe.buckets.into_iter().rev() {
            for this_part in (0..lanes.parts()).rev() {
                let these_bits = self.part(kind, this_bucket, this_part);
                let these_marks = lanes.held(these_bits, probe.value);
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

    /// The first free slot of a bucket; as many as it has slots when none is.
    #[inline(always)]
    fn first_free<S: Shape, P: Copy>(&self, kind: Kind<S, P>, bucket: u64) -> u32 {
        let lanes = kind.shape.lanes();
        let mut slot = lanes.slots;
        for part in (0..lanes.parts()).rev() {
            let marks = lanes.zero(self.part(kind, bucket, part));
            slot = select_unpredictable(marks != 0, part * lanes.part_slots + lanes.lowest(marks), slot);
        }
        slot
    }

    /// The first free slot of a bucket.
    #[inline(always)]
    pub(super) fn free<S: Shape, P: Copy>(&self, kind: Kind<S, P>, bucket: u64) -> Option<u32> {
        let slot = self.first_free(kind, bucket);
        (slot < kind.shape.lanes().slots).then_some(slot)
    }

    /// A free slot in one of an item's buckets: the lower one, as a rule in the emptier bucket, so that both fill
    /// evenly and the first items to be moved come late (Azar et al., "Balanced Allocations", 1999).
    #[inline(always)]
    pub(super) fn free_of_pair<S: Shape, P: Copy>(
        &self,
        kind: Kind<S, P>,
        probe: &Probe,
    ) -> Option<(u64, u32)> {
        let [first, second] = probe.buckets.map(|bucket| self.first_free(kind, bucket));
        let in_second = second < first;
        let slot = select_unpredictable(in_second, second, first);
        let bucket = select_unpredictable(in_second, probe.buckets[1], probe.buckets[0]);
        (slot < kind.shape.lanes().slots).then_some((bucket, slot))
    }

    /// What a slot holds; zero when it is free.
    #[inline(always)]
    pub(super) fn slot<S: Shape, P: Copy>(&self, kind: Kind<S, P>, bucket: u64, slot: u32) -> u64 {
        let lanes = kind.shape.lanes();
        let part = self.part(kind, bucket, slot / lanes.part_slots);
        (part >> (slot % lanes.part_slots * lanes.bits)) & lanes.slot_mask()
    }

    /// Calls with every taken slot's bucket, number and value, in order.
    pub(super) fn for_each_in(&self, buckets: Range<u64>, visit: impl FnMut(u64, u32, u64)) {
        with_kind!(self.plan, S, P => self.for_each_of::<S, P>(buckets, visit));
    }

    #[inline(never)]
    fn for_each_of<S: Shape, P: Place>(&self, buckets: Range<u64>, mut visit: impl FnMut(u64, u32, u64)) {
        let kind = self.kind::<S, P>();
        for bucket in buckets {
            for slot in 0..kind.shape.lanes().slots {
                let value = self.slot(kind, bucket, slot);
                if value != 0 {
                    visit(bucket, slot, value);
                }
            }
        }
    }
}

/// One part of a bucket of a table's words. A slice that is at hand is not looked up anew for every load.
#[inline(always)]
fn part_of<S: Shape, P: Copy>(words: &[AtomicU64], kind: Kind<S, P>, bucket: u64, part: u32) -> u64 {
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
fn holds<S: Shape, P: Copy>(words: &[AtomicU64], kind: Kind<S, P>, bucket: u64, value: u64) -> bool {
    let lanes = kind.shape.lanes();
    (0..lanes.parts())
        .fold(false, |found, part| found | lanes.any_equal(part_of(words, kind, bucket, part), value))
}
