//! Tables whose slots say in which step their item was added. Slots of forgotten steps are passed over by look-ups, and may be written
//! to as if they were free.

use super::hash::Digest;
use super::kind::TableKind;
use super::live::{Live, LiveTags, Tagged};
use super::place::{Place, Probe, Stepped, SteppedFirst};
use super::plan::TablePlan;
use super::slots::{Fixed, Lanes, OwnShape, Shape};
use super::table::{GROUP, Table};
use super::writer::{NoPath, TableWriter};
use std::ops::{ControlFlow, Range};

/// Binds a type name to the shape of a planned table whose slots have tags, and evaluates an expression with it. The usual widths
/// have shapes of their own, the others one for all.
macro_rules! with_stepped_shape {
    ($plan:expr, $shape:ident => $body:expr) => {{
        let bits = $plan.fingerprint_bits() + $plan.step_bits();
        match $plan.bucket_size() {
            8 => with_stepped_shape!(@widths bits, $shape => $body, 8: 16 17 18 19 20 21 22 23),
            _ => {
                type $shape = Lanes;
                $body
            }
        }
    }};
    (@widths $width:ident, $shape:ident => $body:expr, $slots:literal: $($bits:literal)+) => {
        match $width {
            $($bits => {
                type $shape = Fixed<$bits, $slots>;
                $body
            })+
            _ => {
                type $shape = Lanes;
                $body
            }
        }
    };
}

impl Table {
    /// The table's kind, seen in a step.
    #[inline(always)]
    fn live_kind<S: OwnShape, P: Place>(&self, live: LiveTags) -> TableKind<Live<S>, P> {
        let TableKind { place, .. } = self.kind::<S, P>();
        TableKind { shape: Live::new(&self.lanes, live), place }
    }

    /// The table's kind, seen by somebody to whom no item in it is forgotten.
    #[inline(always)]
    fn tagged_kind<S: OwnShape, P: Place>(&self, live: LiveTags) -> TableKind<Tagged<S>, P> {
        let TableKind { place, .. } = self.kind::<S, P>();
        TableKind { shape: Tagged::new(&self.lanes, live), place }
    }

    /// Whether the usual code will do: for the first segment while nothing in it is forgotten.
    fn is_usual(&self, live: LiveTags) -> bool {
        live.all && matches!(self.plan, TablePlan::Segment { k: 0, .. })
    }

    /// Whether the table holds an item, or one that looks alike, of a live step.
    pub(super) fn contains_live(&self, digest: Digest, live: LiveTags) -> bool {
        if self.is_usual(live) {
            with_stepped_shape!(self.plan, S => {
                self.contains_of(self.tagged_kind::<S, SteppedFirst>(live), digest)
            })
        } else {
            with_stepped_shape!(self.plan, S => self.contains_of(self.live_kind::<S, Stepped>(live), digest))
        }
    }

    #[inline(never)]
    fn contains_of<S: Shape, P: Place>(&self, kind: TableKind<S, P>, digest: Digest) -> bool {
        let (probe, before) = (kind.place.probe(digest), self.version());
        let hit = self.holds_either(kind, &probe, || ());
        hit || (!self.is_sure(before) && self.holds_moving(kind, &probe))
    }

    /// Whether the table holds an item that may be moving, or may be getting another tag.
    ///
    /// As in [`Table::look`], the second look under one odd version finds what was moved. If a tag is changed in two words, both looks
    /// may have seen half of the change. Then the slot is still on record, or the third look sees it whole.
    #[cold]
    #[inline(never)]
    fn holds_moving<S: Shape, P: Place>(&self, kind: TableKind<S, P>, probe: &Probe) -> bool {
        let holds = || self.holds_either(kind, probe, || ());
        loop {
            let before = self.version();
            if holds() {
                return true;
            }
            if self.is_sure(before) {
                return false;
            }
            if holds() || self.is_tagging(kind, probe) || holds() {
                return true;
            }
            if before == self.version() {
                return false;
            }
        }
    }

    /// Whether a copy of this item is getting another tag. Only live copies do, and only live tags.
    fn is_tagging<S: Shape, P: Place>(&self, kind: TableKind<S, P>, probe: &Probe) -> bool {
        self.tagging().is_some_and(|number| {
            let slots = u64::from(kind.shape.lanes().slots);
            let (bucket, slot) = (number / slots, (number % slots) as u32);
            let step_bits = self.plan.step_bits();
            let item = probe.buckets.into_iter().zip(probe.values);
            let mut here = item.filter(|(of, _)| *of == bucket);
            here.any(|(_, value)| self.slot(kind, bucket, slot) >> step_bits == value >> step_bits)
        })
    }

    /// Sets `found` to true for the items that [`Self::contains_live`] finds, and leaves it as it is for the others.
    pub(super) fn contains_many_live(&self, digests: &[Digest], live: LiveTags, found: &mut [bool]) {
        if self.is_usual(live) {
            with_stepped_shape!(self.plan, S => {
                self.contains_many_of(self.tagged_kind::<S, SteppedFirst>(live), digests, found)
            });
        } else {
            with_stepped_shape!(self.plan, S => self.contains_many_live_in::<S>(digests, live, found));
        }
    }

    #[inline(never)]
    fn contains_many_live_in<S: OwnShape>(&self, digests: &[Digest], live: LiveTags, found: &mut [bool]) {
        let (tagged, kind) = (self.tagged_kind::<S, Stepped>(live), self.live_kind::<S, Stepped>(live));
        let mut found = found.chunks_mut(GROUP);
        self.for_each_group(tagged, digests, |probes| {
            let found = found.next().unwrap_or_default();
            let before = self.version();
            for (found, probe) in found.iter_mut().zip(probes) {
                // Most items that are not there have nothing alike in any step.
                if self.holds_either(tagged, probe, || ()) {
                    *found |= self.holds_either(kind, probe, || ());
                }
            }
            if !self.is_sure(before) {
                for (found, probe) in found.iter_mut().zip(probes) {
                    *found = *found || self.holds_moving(kind, probe);
                }
            }
            ControlFlow::Continue(())
        });
    }

    /// Copies of the item, and of items that look alike, of live steps. Never too low.
    pub(super) fn count_live(&self, digest: Digest, live: LiveTags) -> u32 {
        with_stepped_shape!(self.plan, S => self.count_of(self.live_kind::<S, Stepped>(live), digest))
    }
}

/// What became of an item that was to be stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stored {
    /// It took a free slot.
    Free,
    /// It took the place of an item of a forgotten step, which had this tag.
    Over(u32),
    /// Both its buckets are full of live copies that look alike.
    Saturated,
}

/// A live copy of an item in a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct LiveCopy {
    bucket: u64,
    slot: u32,
    value: u64,
    /// The tag of its step.
    pub(super) tag: u32,
    /// The place of its step in the order of steps.
    pub(super) order: u32,
}

impl TableWriter {
    /// Inserts an item with this tag.
    pub(super) fn insert_live(&mut self, digest: Digest, tag: u32, live: LiveTags) -> Result<Stored, NoPath> {
        let mut stored = None;
        self.insert_many_live(&[digest], tag, live, |what| stored = Some(what));
        stored.ok_or(NoPath)
    }

    /// [`Self::insert_live`] for many. It stops at the first item that finds no path, and reports the outcomes before it.
    pub(super) fn insert_many_live(
        &mut self,
        digests: &[Digest],
        tag: u32,
        live: LiveTags,
        report: impl FnMut(Stored),
    ) {
        let table = self.table.clone();
        if table.is_usual(live) {
            with_stepped_shape!(table.plan, S => {
                self.insert_many_of(table.tagged_kind::<S, SteppedFirst>(live), digests, tag, live, report)
            });
        } else {
            with_stepped_shape!(table.plan, S => {
                self.insert_many_of(table.live_kind::<S, Stepped>(live), digests, tag, live, report)
            });
        }
    }

    #[inline(never)]
    fn insert_many_of<S: Shape, P: Place>(
        &mut self,
        kind: TableKind<S, P>,
        digests: &[Digest],
        tag: u32,
        live: LiveTags,
        mut report: impl FnMut(Stored),
    ) {
        let table = self.table.clone();
        table.for_each_group(kind, digests, |probes| {
            for probe in probes {
                match self.store(kind, probe.with_state(u64::from(tag))) {
                    Ok(stored) => report(stored.map_or(Stored::Saturated, |replaced| match replaced {
                        0 => Stored::Free,
                        replaced => Stored::Over(live.tag(replaced)),
                    })),
                    Err(NoPath) => return ControlFlow::Break(()),
                }
            }
            ControlFlow::Continue(())
        });
    }

    /// Stores an item unless both its buckets are full of copies, and returns what its slot held before.
    #[inline(always)]
    fn store<S: Shape, P: Place>(
        &mut self,
        kind: TableKind<S, P>,
        probe: Probe,
    ) -> Result<Option<u64>, NoPath> {
        let replaced = match self.table.vacant_of_pair(kind, &probe) {
            Some((bucket, slot, value)) => {
                let replaced = self.table.slot(kind, bucket, slot);
                self.change_slot(kind, bucket, slot, replaced, value);
                replaced
            }
            None if self.table.copies(kind, &probe) == 2 * kind.shape.lanes().slots => return Ok(None),
            None => self.relocate(kind, probe)?,
        };
        self.table.set_items(self.items() + u64::from(replaced == 0));
        Ok(Some(replaced))
    }

    /// The live copy of an item that was added last.
    pub(super) fn newest_live(&self, digest: Digest, live: LiveTags) -> Option<LiveCopy> {
        let kind = self.table.live_kind::<Lanes, Stepped>(live);
        let (probe, lanes) = (kind.place.probe(digest), kind.shape.lanes());
        let mut newest: Option<LiveCopy> = None;
        for (bucket, wanted) in probe.buckets.into_iter().zip(probe.values) {
            for part in 0..lanes.parts() {
                let bits = self.table.part(kind, bucket, part);
                let mut marks = kind.shape.held(bits, wanted);
                while marks != 0 {
                    let lane = lanes.lowest(marks);
                    let value = (bits >> (lane * lanes.bits)) & lanes.slot_mask();
                    let tag = live.tag(value);
                    let (slot, order) = (part * lanes.part_slots + lane, live.order(tag));
                    if newest.is_none_or(|newest| order > newest.order) {
                        newest = Some(LiveCopy { bucket, slot, value, tag, order });
                    }
                    marks &= marks - 1;
                }
            }
        }
        newest
    }

    /// Frees the slot of a copy.
    pub(super) fn free_copy(&mut self, copy: &LiveCopy) {
        self.free_slot(copy.bucket, copy.slot);
    }

    /// Gives a copy another tag, which is live too.
    pub(super) fn set_tag(&mut self, copy: &LiveCopy, tag: u32) {
        let kind = self.table.kind::<Lanes, Stepped>();
        let lanes = kind.shape.lanes();
        let value = copy.value - u64::from(copy.tag) + u64::from(tag);
        let (_, shift) = lanes.position(copy.bucket, copy.slot);
        if shift + u32::from(self.table.plan.step_bits()) <= 64 {
            self.change_slot(kind, copy.bucket, copy.slot, copy.value, value);
        } else {
            // The tag begins in one word and ends in the next: half of the change may look like a tag that is not live.
            self.table.step_version();
            self.table.set_tagging(Some(copy.bucket * u64::from(lanes.slots) + u64::from(copy.slot)));
            self.change_slot(kind, copy.bucket, copy.slot, copy.value, value);
            self.table.set_tagging(None);
            self.table.step_version();
        }
    }

    /// Frees the slots in these buckets that hold items of forgotten steps, and reports the tag of each.
    pub(super) fn free_forgotten(&mut self, buckets: Range<u64>, live: LiveTags, report: impl FnMut(u32)) {
        with_stepped_shape!(self.table.plan, S => self.free_forgotten_in::<S>(buckets, live, report));
    }

    #[inline(never)]
    fn free_forgotten_in<S: OwnShape>(
        &mut self,
        buckets: Range<u64>,
        live: LiveTags,
        mut report: impl FnMut(u32),
    ) {
        let kind = self.table.live_kind::<S, Stepped>(live);
        let lanes = kind.shape.lanes();
        for bucket in buckets {
            for part in 0..lanes.parts() {
                let bits = self.table.part(kind, bucket, part);
                let mut marks = kind.shape.forgotten(bits);
                while marks != 0 {
                    let lane = lanes.lowest(marks);
                    let value = (bits >> (lane * lanes.bits)) & lanes.slot_mask();
                    self.change_slot(kind, bucket, part * lanes.part_slots + lane, value, 0);
                    self.table.set_items(self.items() - 1);
                    report(live.tag(value));
                    marks &= marks - 1;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::TableId;
    use std::sync::atomic::Ordering::{Relaxed, Release};

    /// A tag that lies in two words is changed in two stores. A reader that comes in between does not miss the item.
    #[test]
    fn an_item_is_found_while_its_tag_changes() {
        let plan =
            TablePlan::Segment { base_bits: 19, step_bits: 4, bucket_size: 4, base_buckets: 100, k: 0 };
        // The tags 7 and 8 have no bit in common.
        let live = LiveTags::new(4, 7, 2, true);
        let mut writer = TableWriter::new(TableId(0), plan, 100);
        let digests: Vec<Digest> =
            (0..300_u64).map(|number| Digest(xxhash_rust::xxh3::xxh3_64(&number.to_le_bytes()))).collect();
        writer.insert_many_live(&digests, 8, live, |_| ());
        let live = LiveTags::new(4, 7, 2, false);
        let table = writer.table.clone();
        let lanes = table.lanes;
        let mut torn = 0;
        for &digest in &digests {
            let copy = writer.newest_live(digest, live).unwrap();
            let (word, shift) = lanes.position(copy.bucket, copy.slot);
            if shift + 4 <= 64 {
                continue;
            }
            let number = copy.bucket * u64::from(lanes.slots) + u64::from(copy.slot);
            let before = table.words[word].load(Relaxed);
            table.step_version();
            table.set_tagging(Some(number));
            table.words[word].store(before ^ (15 << shift), Release);
            torn += u32::from(writer.newest_live(digest, live).is_none());
            let mut found = [false];
            table.contains_many_live(&[digest], live, &mut found);
            assert!(table.contains_live(digest, live) && found[0]);
            table.words[word].store(before, Release);
            table.set_tagging(None);
            table.step_version();
            writer.set_tag(&copy, 7);
            assert_eq!(writer.newest_live(digest, live).unwrap().tag, 7);
        }
        assert!(torn > 3);
    }
}
