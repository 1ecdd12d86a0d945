//! How slots look whose low bits are the tag of the step in which their item was added: which of them are of live steps, many at a
//! time.

use super::slots::{Lanes, OwnShape, Shape};

/// The tags of the steps that are not forgotten: so many, from the oldest step's on, around the ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct LiveTags {
    bits: u32,
    first: u32,
    len: u32,
    /// No item has another tag.
    pub(super) all: bool,
}

impl LiveTags {
    pub(super) fn new(bits: u32, first: u32, len: u32, all: bool) -> Self {
        Self { bits, first, len, all }
    }

    pub(super) fn len(&self) -> u32 {
        self.len
    }

    fn mask(&self) -> u32 {
        (1 << self.bits) - 1
    }

    /// The tag in a slot's value.
    pub(super) fn tag(&self, value: u64) -> u32 {
        value as u32 & self.mask()
    }

    /// The place of a tag in the order of steps, oldest first.
    pub(super) fn order(&self, tag: u32) -> u32 {
        tag.wrapping_sub(self.first) & self.mask()
    }

    pub(super) fn contains(&self, tag: u32) -> bool {
        self.order(tag) < self.len
    }
}

/// The shape of slots with tags, seen by somebody to whom no item in the table is forgotten: the tags make no difference.
///
/// Where the tags are masked out, all that is not zero in a slot lies above its lowest bits. So a subtraction of one in each slot
/// borrows from slots that are zero only, and marks no other by mistake.
#[derive(Clone, Copy)]
pub(super) struct Tagged<S> {
    own: S,
    /// Every slot but for its tag.
    fingerprints: u64,
}

impl<S: OwnShape> Tagged<S> {
    #[inline(always)]
    pub(super) fn new(own: &Lanes, live: LiveTags) -> Self {
        let own = S::of(own);
        let lanes = own.lanes();
        Self { own, fingerprints: lanes.mask & !((lanes.ones << live.bits) - lanes.ones) }
    }

    /// Marks the slots of `part` that are zero, whatever their tags.
    #[inline(always)]
    fn zero(&self, part: u64) -> u64 {
        let (fingerprints, lanes) = (part & self.fingerprints, self.own.lanes());
        fingerprints.wrapping_sub(lanes.ones) & !fingerprints & lanes.tops
    }
}

impl<S: OwnShape> Shape for Tagged<S> {
    #[inline(always)]
    fn lanes(&self) -> Lanes {
        self.own.lanes()
    }

    #[inline(always)]
    fn vacant(&self, part: u64) -> u64 {
        self.zero(part)
    }

    #[inline(always)]
    fn held(&self, part: u64, value: u64) -> u64 {
        // No fingerprint is zero, so no free slot is marked.
        self.zero(part ^ value.wrapping_mul(self.own.lanes().ones))
    }

    #[inline(always)]
    fn any_held(&self, part: u64, value: u64) -> bool {
        self.held(part, value) != 0
    }
}

/// The shape of slots with tags, seen in a step: it tells slots with a live tag from others, many at a time.
#[derive(Clone, Copy)]
pub(super) struct Live<S> {
    tagged: Tagged<S>,
    /// The bit above every slot's tag.
    carries: u64,
    /// The first live tag in every slot.
    firsts: u64,
    /// The number of live tags less one, and the bit above, in every slot.
    lasts: u64,
    /// All slots' top bits if any tag is live, otherwise none.
    tops: u64,
    /// From the bit above a tag to the slot's top bit.
    shift: u32,
}

impl<S: OwnShape> Live<S> {
    #[inline(always)]
    pub(super) fn new(own: &Lanes, live: LiveTags) -> Self {
        let tagged = Tagged::<S>::new(own, live);
        let lanes = tagged.lanes();
        let carries = lanes.ones << live.bits;
        Self {
            tagged,
            carries,
            firsts: lanes.ones * u64::from(live.first),
            lasts: (lanes.ones * u64::from(live.len.saturating_sub(1))) | carries,
            tops: if live.len > 0 { lanes.tops } else { 0 },
            shift: lanes.bits - 1 - live.bits,
        }
    }

    /// Marks the slots of `part` whose tags are live, free ones among them.
    #[inline(always)]
    fn live(&self, part: u64) -> u64 {
        // The bit above a tag takes the borrow: no subtraction reaches into the next slot.
        let tags = part & !self.tagged.fingerprints;
        let orders = (tags | self.carries).wrapping_sub(self.firsts) & !self.tagged.fingerprints;
        (self.lasts.wrapping_sub(orders) << self.shift) & self.tops
    }

    /// Marks the slots of `part` that hold items of forgotten steps.
    #[inline(always)]
    pub(super) fn forgotten(&self, part: u64) -> u64 {
        self.lanes().tops & !self.live(part) & !self.tagged.zero(part)
    }
}

impl<S: OwnShape> Shape for Live<S> {
    #[inline(always)]
    fn lanes(&self) -> Lanes {
        self.tagged.lanes()
    }

    #[inline(always)]
    fn vacant(&self, part: u64) -> u64 {
        self.tagged.zero(part) | (self.lanes().tops & !self.live(part))
    }

    #[inline(always)]
    fn held(&self, part: u64, value: u64) -> u64 {
        self.tagged.held(part, value) & self.live(part)
    }

    #[inline(always)]
    fn any_held(&self, part: u64, value: u64) -> bool {
        self.held(part, value) != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Marks tell exactly what a look at each slot tells, whatever the widths and wherever in the ring the live tags are.
        #[test]
        fn marks_are_exact(
            fingerprint_bits in 4_u32..=32,
            step_bits in 3_u32..=6,
            log_slots in 1_u32..=3,
            slots in proptest::collection::vec((0_u64..5, any::<u64>()), 8),
            wanted in 1_u64..5,
            first in any::<u32>(),
            len in any::<u32>(),
        ) {
            let bits = fingerprint_bits + step_bits;
            let lanes = Lanes::new(bits, 1 << log_slots, (1 << step_bits) - 1);
            let tags = (1_u64 << step_bits) - 1;
            let live = LiveTags::new(step_bits, first & tags as u32, len % (tags as u32 + 2), false);
            // Small fingerprints, great ones, and free slots.
            let top = (1_u64 << fingerprint_bits) - 1;
            let fingerprint = |number: u64| if number < 3 { number } else { top - number };
            let slots: Vec<u64> = slots[..lanes.part_slots as usize].iter()
                .map(|(number, tag)| match number { 0 => 0, _ => (fingerprint(*number) << step_bits) | (tag & tags) })
                .collect();
            let part = (0..).zip(&slots).fold(0, |part, (lane, slot)| part | (slot << (lane * bits)));
            let wanted = fingerprint(wanted) << step_bits;
            let marks = |is_marked: &dyn Fn(u64) -> bool| (0..).zip(&slots)
                .filter(|(_, slot)| is_marked(**slot))
                .fold(0_u64, |marks, (lane, _)| marks | (1 << (lane * bits + bits - 1)));
            let is_live = |slot: u64| live.contains((slot & tags) as u32);
            let (tagged, shape) = (Tagged::<Lanes>::new(&lanes, live), Live::<Lanes>::new(&lanes, live));
            prop_assert_eq!(tagged.held(part, wanted), marks(&|slot| slot & !tags == wanted));
            prop_assert_eq!(tagged.vacant(part), marks(&|slot| slot == 0));
            prop_assert_eq!(shape.held(part, wanted), marks(&|slot| slot & !tags == wanted && is_live(slot)));
            prop_assert_eq!(shape.vacant(part), marks(&|slot| slot == 0 || !is_live(slot)));
            prop_assert_eq!(shape.forgotten(part), marks(&|slot| slot != 0 && !is_live(slot)));
        }
    }
}
