//! How slots of any width are stored in words, packed without gaps, and how many of them are compared at a time (SWAR).
//!
//! A bucket of four 14-bit slots may reach into a second word, so a lookup takes 86 instructions; with 16-bit slots it takes 63, and 0.7 of
//! the time. Padding each bucket to a word would save those, but take 14% more memory, so buckets are packed: in the service, a lookup is 2%
//! of a request.
//!
//! The low bits of a slot may be a tag: the step in which its copy was added. Which tags are live depends on the step of the observer.

/// Slots of a bucket of a strict table.
pub(crate) const STRICT_SLOTS: u32 = 4;

/// Bits of a slot of a strict table: 62 of digest and 2 of state.
pub(crate) const STRICT_SLOT_BITS: u32 = 64;

/// Bits of a slot of a strict table that hold the state; the digest is stored above them.
pub(crate) const STATE_BITS: u32 = 2;

/// The bits of a strict slot that hold the state.
pub(crate) const STATE_MASK: u64 = (1 << STATE_BITS) - 1;

/// The tags that are not forgotten: `len` of them, from the oldest step's on, around the ring.
///
/// Aligned, so that one load and one register pass it to each lookup.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(align(4))]
pub(crate) struct LiveTags {
    pub(crate) first: u8,
    pub(crate) len: u8,
    /// No item has another tag.
    pub(crate) all: bool,
}

impl LiveTags {
    /// The live tags of a filter without tags.
    pub(crate) const NONE: Self = Self {
        first: 0,
        len: 0,
        all: true,
    };

    /// One tag.
    pub(crate) const fn only(tag: u64) -> Self {
        Self {
            first: tag as u8,
            len: 1,
            all: false,
        }
    }
}

/// The geometry of a table's buckets. A bucket is read in parts: runs of slots that fit into one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lanes {
    /// Bits of a slot.
    pub(crate) bits: u32,
    /// Slots of a bucket.
    pub(crate) slots: u32,
    /// Slots of a part.
    pub(crate) part_slots: u32,
    /// Bits of a part.
    pub(crate) part_bits: u32,
    /// The lowest bit of every slot of a part. Multiplied by a value, it gives the value in every slot.
    pub(crate) ones: u64,
    /// The highest bit of every slot of a part.
    pub(crate) tops: u64,
    /// All the bits of a part.
    pub(crate) mask: u64,
}

impl Lanes {
    /// Buckets of `slots` slots of `bits` bits.
    pub(crate) const fn new(bits: u32, slots: u32) -> Self {
        let mut part_slots = slots;
        while part_slots * bits > 64 {
            part_slots /= 2;
        }
        let mut ones = 0_u64;
        let mut lane = 0;
        while lane < part_slots {
            ones |= 1 << (lane * bits);
            lane += 1;
        }
        let part_bits = part_slots * bits;
        let mask = u64::MAX >> (64 - part_bits);
        Self {
            bits,
            slots,
            part_slots,
            part_bits,
            ones,
            tops: ones << (bits - 1),
            mask,
        }
    }

    /// Parts of a bucket.
    #[inline(always)]
    pub(crate) const fn parts(&self) -> u32 {
        self.slots / self.part_slots
    }

    /// All the bits of one slot.
    #[inline(always)]
    pub(crate) const fn slot_mask(&self) -> u64 {
        u64::MAX >> (64 - self.bits)
    }

    /// Words of this many buckets. If parts may reach into a second word, one word follows the last.
    pub(crate) const fn words(&self, buckets: u64) -> u64 {
        (buckets * (self.slots * self.bits) as u64).div_ceil(64) + self.straddles() as u64
    }

    /// Whether a part can start in one word and end in the next.
    #[inline(always)]
    pub(crate) const fn straddles(&self) -> bool {
        !64_u32.is_multiple_of(self.part_bits)
    }

    /// Where a slot of a bucket starts: the word, and the bit in it.
    #[inline(always)]
    pub(crate) const fn position(&self, bucket: u64, slot: u32) -> (usize, u32) {
        let bucket_bits = self.slots * self.bits;
        let slot_bit = slot * self.bits;
        if bucket_bits.is_multiple_of(64) {
            let words = (bucket_bits / 64) as usize;
            return (
                bucket as usize * words + (slot_bit / 64) as usize,
                slot_bit % 64,
            );
        }
        let bit = bucket * bucket_bits as u64 + slot_bit as u64;
        ((bit / 64) as usize, (bit % 64) as u32)
    }

    /// A part's bits, cut from the word where it starts and the one after.
    #[inline(always)]
    pub(crate) const fn cut(&self, low: u64, high: u64, shift: u32) -> u64 {
        ((low >> shift) | ((high << 1) << (63 - shift))) & self.mask
    }

    /// A part's bits, cut from the word that contains all of it.
    #[inline(always)]
    pub(crate) const fn cut_aligned(&self, word: u64, shift: u32) -> u64 {
        (word >> shift) & self.mask
    }

    /// Marks the slots of `part` that hold `value`: the top bit of each.
    #[inline(always)]
    pub(crate) const fn equal(&self, part: u64, value: u64) -> u64 {
        self.zero(part ^ value.wrapping_mul(self.ones))
    }

    /// Marks the lowest slot of `part` that holds `value`: the lowest mark is exact, others are not. Cheaper than [`Lanes::equal`].
    #[inline(always)]
    pub(crate) const fn lowest_equal(&self, part: u64, value: u64) -> u64 {
        self.lowest_zero(part ^ value.wrapping_mul(self.ones))
    }

    /// Marks the lowest slot of `part` that is zero. A borrow may mark a slot by mistake, but only above one that is really zero.
    #[inline(always)]
    pub(crate) const fn lowest_zero(&self, part: u64) -> u64 {
        part.wrapping_sub(self.ones) & !part & self.tops
    }

    /// Marks the slots of `part` that are zero: the top bit of each. It is exact, since no carry passes from one slot to the next.
    #[inline(always)]
    pub(crate) const fn zero(&self, part: u64) -> u64 {
        let low = self.mask & !self.tops;
        !(((part & low) + low) | part) & self.tops
    }

    /// The number, within its part, of the lowest marked slot.
    #[inline(always)]
    pub(crate) const fn lowest(&self, marks: u64) -> u32 {
        marks.trailing_zeros() / self.bits
    }

    /// The position of a part's lowest mark in its bucket. Those of one bucket compare like their slots, without a division.
    #[inline(always)]
    pub(crate) const fn first_mark(&self, part: u32, marks: u64) -> u32 {
        part * 64 + marks.trailing_zeros()
    }

    /// The position that no mark has.
    #[inline(always)]
    pub(crate) const fn no_mark(&self) -> u32 {
        self.parts() * 64
    }

    /// The slot with the mark at this position.
    #[inline(always)]
    pub(crate) const fn marked_slot(&self, mark: u32) -> Option<u32> {
        if mark < self.no_mark() {
            Some(mark / 64 * self.part_slots + mark % 64 / self.bits)
        } else {
            None
        }
    }
}

/// How slots are compared: with a geometry that is known at compile time or only at run time, with or without tags. The same code serves
/// all, and the usual ones at full speed.
pub(crate) trait Shape: Copy {
    /// Whether a vacant slot may hold a forgotten item.
    const REUSES: bool = false;

    fn of(lanes: &Lanes, tag_bits: u8, live: LiveTags) -> Self;

    fn lanes(&self) -> Lanes;

    /// Marks the slots of `part` that may be written to. Without tags, only the lowest mark is exact.
    #[inline(always)]
    fn vacant(&self, part: u64) -> u64 {
        self.lanes().lowest_zero(part)
    }

    /// Marks the slots of `part` that hold `value`, whatever their tags.
    #[inline(always)]
    fn held(&self, part: u64, value: u64) -> u64 {
        self.lanes().equal(part, value)
    }

    /// Marks the lowest slot of `part` that holds `value`: the lowest mark is exact, others may not be.
    #[inline(always)]
    fn lowest_held(&self, part: u64, value: u64) -> u64 {
        self.lanes().lowest_equal(part, value)
    }

    /// Returns whether any slot of `part` holds `value`.
    #[inline(always)]
    fn any_held(&self, part: u64, value: u64) -> bool {
        self.lowest_held(part, value) != 0
    }
}

/// A geometry that is known at compile time.
#[derive(Clone, Copy)]
pub(crate) struct Fixed<const BITS: u32, const SLOTS: u32>;

/// The geometry of every strict table.
pub(crate) type StrictShape = Fixed<STRICT_SLOT_BITS, STRICT_SLOTS>;

impl<const BITS: u32, const SLOTS: u32> Shape for Fixed<BITS, SLOTS> {
    #[inline(always)]
    fn of(_: &Lanes, _: u8, _: LiveTags) -> Self {
        Self
    }

    #[inline(always)]
    fn lanes(&self) -> Lanes {
        const { Lanes::new(BITS, SLOTS) }
    }
}

impl Shape for Lanes {
    #[inline(always)]
    fn of(lanes: &Lanes, _: u8, _: LiveTags) -> Self {
        *lanes
    }

    #[inline(always)]
    fn lanes(&self) -> Lanes {
        *self
    }
}

/// The shape of slots with tags while no item in the table is forgotten: the tags make no difference.
///
/// Where the tags are masked out, all that is not zero in a slot is above its lowest bits. So a subtraction of one in each slot
/// borrows from slots that are zero only, and marks no other by mistake.
#[derive(Clone, Copy)]
pub(crate) struct Tagged<S> {
    own: S,
    /// Every slot but for its tag.
    fingerprints: u64,
}

impl<S: Shape> Tagged<S> {
    /// Marks the slots of `part` that are zero, whatever their tags.
    #[inline(always)]
    fn zero(&self, part: u64) -> u64 {
        let fingerprints = part & self.fingerprints;
        let lanes = self.own.lanes();
        fingerprints.wrapping_sub(lanes.ones) & !fingerprints & lanes.tops
    }
}

impl<S: Shape> Shape for Tagged<S> {
    #[inline(always)]
    fn of(lanes: &Lanes, tag_bits: u8, live: LiveTags) -> Self {
        let own = S::of(lanes, tag_bits, live);
        let lanes = own.lanes();
        Self {
            own,
            fingerprints: lanes.mask & !((lanes.ones << tag_bits) - lanes.ones),
        }
    }

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
    fn lowest_held(&self, part: u64, value: u64) -> u64 {
        self.held(part, value)
    }
}

/// The shape of slots with tags in a step: it distinguishes slots with a live tag from others, many at a time.
#[derive(Clone, Copy)]
pub(crate) struct Live<S> {
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

impl<S: Shape> Live<S> {
    /// Marks the slots of `part` whose tags are live, free ones among them.
    #[inline(always)]
    fn live(&self, part: u64) -> u64 {
        // The bit above a tag takes the borrow: no subtraction reaches into the next slot.
        let tags = part & !self.tagged.fingerprints;
        let orders = (tags | self.carries).wrapping_sub(self.firsts) & !self.tagged.fingerprints;
        (self.lasts.wrapping_sub(orders) << self.shift) & self.tops
    }
}

impl<S: Shape> Shape for Live<S> {
    const REUSES: bool = true;

    #[inline(always)]
    fn of(lanes: &Lanes, tag_bits: u8, live: LiveTags) -> Self {
        let tagged = Tagged::<S>::of(lanes, tag_bits, live);
        let lanes = tagged.lanes();
        let carries = lanes.ones << tag_bits;
        Self {
            tagged,
            carries,
            firsts: lanes.ones * u64::from(live.first),
            lasts: (lanes.ones * u64::from(live.len.saturating_sub(1))) | carries,
            tops: if live.len > 0 { lanes.tops } else { 0 },
            shift: lanes.bits - 1 - u32::from(tag_bits),
        }
    }

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
    fn lowest_held(&self, part: u64, value: u64) -> u64 {
        self.held(part, value)
    }

    #[inline(always)]
    fn any_held(&self, part: u64, value: u64) -> bool {
        // Most items that are absent collide with no item of any step.
        let marks = self.tagged.held(part, value);
        marks != 0 && marks & self.live(part) != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn lane_marks_are_exact(bits in 4_u32..=32, log_slots in 1_u32..=3, values in prop::collection::vec(0_u64..4, 8), value in 0_u64..4) {
            let lanes = Lanes::new(bits, 1 << log_slots);
            let slots = lanes.part_slots as usize;
            let top = 1_u64 << (bits - 1);
            // Small values and the same with the top bit set, where carries would be visible.
            for top in [0, top] {
                let values: Vec<u64> = values[..slots].iter().map(|v| if v % 2 == 0 { v / 2 } else { (v / 2) | top }).collect();
                let value = if value % 2 == 0 { value / 2 } else { (value / 2) | top };
                let part = values.iter().enumerate().fold(0, |part, (lane, v)| part | v << (lane as u32 * bits));
                let marks = |wanted: u64| (0..slots).filter(|&lane| values[lane] == wanted)
                    .fold(0_u64, |marks, lane| marks | 1 << (lane as u32 * bits + bits - 1));
                prop_assert_eq!(lanes.equal(part, value), marks(value));
                prop_assert_eq!(lanes.zero(part), marks(0));
                prop_assert_eq!(lanes.lowest_equal(part, value).trailing_zeros(), marks(value).trailing_zeros());
                prop_assert_eq!(lanes.lowest_zero(part).trailing_zeros(), marks(0).trailing_zeros());
            }
        }
    }

    #[test]
    fn parts_fit_words() {
        for bits in 4..=32 {
            for slots in [2, 4, 8] {
                let lanes = Lanes::new(bits, slots);
                assert!(lanes.part_bits <= 64 && lanes.parts() * lanes.part_slots == slots);
            }
        }
        assert_eq!(
            Lanes::new(STRICT_SLOT_BITS, STRICT_SLOTS).parts(),
            STRICT_SLOTS
        );
    }

    proptest! {
        /// Marks agree with a look at each slot, whatever the widths and the place of the live tags in the ring.
        #[test]
        fn live_lane_marks_are_exact(
            fingerprint_bits in 4_u32..=32,
            step_bits in 3_u32..=6,
            log_slots in 1_u32..=3,
            slots in proptest::collection::vec((0_u64..5, any::<u64>()), 8),
            wanted in 1_u64..5,
            first in any::<u32>(),
            len in any::<u32>(),
        ) {
            let bits = fingerprint_bits + step_bits;
            let lanes = Lanes::new(bits, 1 << log_slots);
            let tags = (1_u64 << step_bits) - 1;
            let live = LiveTags { first: (u64::from(first) & tags) as u8, len: (u64::from(len) % (tags + 2)) as u8, all: false };
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
            let is_live = |slot: u64| (slot & tags).wrapping_sub(u64::from(live.first)) & tags < u64::from(live.len);
            let tagged = Tagged::<Lanes>::of(&lanes, step_bits as u8, live);
            let shape = Live::<Lanes>::of(&lanes, step_bits as u8, live);
            prop_assert_eq!(tagged.held(part, wanted), marks(&|slot| slot & !tags == wanted));
            prop_assert_eq!(tagged.vacant(part), marks(&|slot| slot == 0));
            prop_assert_eq!(shape.held(part, wanted), marks(&|slot| slot & !tags == wanted && is_live(slot)));
            prop_assert_eq!(shape.vacant(part), marks(&|slot| slot == 0 || !is_live(slot)));
            prop_assert_eq!(shape.vacant(part) & !lanes.zero(part), marks(&|slot| slot != 0 && !is_live(slot)));
        }
    }
}
