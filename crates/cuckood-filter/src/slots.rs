//! How slots of any width lie in words: packed without gaps, and compared many at a time (SWAR).

use super::slot_state::STATE_MASK;

/// The geometry of a table's buckets. A bucket is read in parts: runs of slots that fit into one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lanes {
    /// Bits of a slot.
    pub(super) bits: u32,
    /// Slots of a bucket.
    pub(super) slots: u32,
    /// Slots of a part.
    pub(super) part_slots: u32,
    /// Bits of a part.
    pub(super) part_bits: u32,
    /// The lowest bit of every slot of a part. Multiplied by a value, it gives the value in every slot.
    pub(super) ones: u64,
    /// The highest bit of every slot of a part.
    pub(super) tops: u64,
    /// All the bits of a part.
    pub(super) mask: u64,
    /// The bits of a part that tell items apart: all but those of the state.
    identity: u64,
}

impl Lanes {
    /// Buckets of `slots` slots of `bits` bits. In each slot, the bits in `state` hold a state, and the others tell items apart.
    pub(super) const fn new(bits: u32, slots: u32, state: u64) -> Self {
        let mut part_slots = slots;
        while part_slots * bits > 64 {
            part_slots /= 2;
        }
        let (mut ones, mut lane) = (0_u64, 0);
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
            identity: mask & !(ones * state),
        }
    }

    /// Parts of a bucket.
    #[inline(always)]
    pub(super) const fn parts(&self) -> u32 {
        self.slots / self.part_slots
    }

    /// All the bits of one slot.
    #[inline(always)]
    pub(super) const fn slot_mask(&self) -> u64 {
        u64::MAX >> (64 - self.bits)
    }

    /// Words that so many buckets take. Where parts may reach into a second word there is one more, so that the last one can.
    pub(super) const fn words(&self, buckets: u64) -> u64 {
        (buckets * (self.slots * self.bits) as u64).div_ceil(64) + self.straddles() as u64
    }

    /// Whether a part can begin in one word and end in the next.
    #[inline(always)]
    pub(super) const fn straddles(&self) -> bool {
        !64_u32.is_multiple_of(self.part_bits)
    }

    /// Where a slot of a bucket begins: the word, and the bit in it.
    #[inline(always)]
    pub(super) const fn position(&self, bucket: u64, slot: u32) -> (usize, u32) {
        let (bucket_bits, slot_bit) = (self.slots * self.bits, slot * self.bits);
        if bucket_bits.is_multiple_of(64) {
            let words = (bucket_bits / 64) as usize;
            return (bucket as usize * words + (slot_bit / 64) as usize, slot_bit % 64);
        }
        let bit = bucket * bucket_bits as u64 + slot_bit as u64;
        ((bit / 64) as usize, (bit % 64) as u32)
    }

    /// A part's bits, cut from the word where it begins and the one after.
    #[inline(always)]
    pub(super) const fn cut(&self, low: u64, high: u64, shift: u32) -> u64 {
        ((low >> shift) | ((high << 1) << (63 - shift))) & self.mask
    }

    /// A part's bits, cut from the word that holds all of it.
    #[inline(always)]
    pub(super) const fn cut_whole(&self, word: u64, shift: u32) -> u64 {
        (word >> shift) & self.mask
    }

    /// Marks the slots of `part` that hold `value`, whatever their states: the top bit of each.
    #[inline(always)]
    pub(super) const fn equal(&self, part: u64, value: u64) -> u64 {
        self.zero((part ^ value.wrapping_mul(self.ones)) & self.identity)
    }

    /// Whether any slot of `part` holds `value`. Cheaper than to find out which: a borrow may mark a slot by mistake, but only above
    /// one that is really equal.
    #[inline(always)]
    pub(super) const fn any_equal(&self, part: u64, value: u64) -> bool {
        let differences = (part ^ value.wrapping_mul(self.ones)) & self.identity;
        differences.wrapping_sub(self.ones) & !differences & self.tops != 0
    }

    /// As [`Lanes::equal`], but never marks a free slot. Where slots hold a state, a free slot looks like the digest zero.
    #[inline(always)]
    pub(super) const fn held(&self, part: u64, value: u64) -> u64 {
        let marks = self.equal(part, value);
        if self.identity == self.mask { marks } else { marks & !self.zero(part) }
    }

    /// Marks the slots of `part` that are zero: the top bit of each. It is exact, since no carry passes from one slot to the next.
    #[inline(always)]
    pub(super) const fn zero(&self, part: u64) -> u64 {
        let low = self.mask & !self.tops;
        !(((part & low) + low) | part) & self.tops
    }

    /// The number, within its part, of the lowest slot that [`Lanes::equal`] or [`Lanes::zero`] has marked. If none is marked, it is
    /// past the last slot.
    #[inline(always)]
    pub(super) const fn lowest(&self, marks: u64) -> u32 {
        marks.trailing_zeros() / self.bits
    }
}

/// How slots are looked at: a geometry that is known at compile time or only at run time. The same code serves both, and the first at
/// full speed.
pub(super) trait Shape: Copy {
    fn lanes(&self) -> Lanes;

    /// Marks the slots of `part` that may be written to.
    #[inline(always)]
    fn vacant(&self, part: u64) -> u64 {
        self.lanes().zero(part)
    }

    /// Marks the slots of `part` that hold `value`, whatever their states.
    #[inline(always)]
    fn held(&self, part: u64, value: u64) -> u64 {
        self.lanes().held(part, value)
    }

    /// Whether any slot of `part` holds `value`.
    #[inline(always)]
    fn any_held(&self, part: u64, value: u64) -> bool {
        self.lanes().any_equal(part, value)
    }
}

/// A shape that a table has by itself, whoever looks at it.
pub(super) trait OwnShape: Shape {
    fn of(lanes: &Lanes) -> Self;
}

/// The geometry of a compact table, known at compile time.
#[derive(Clone, Copy)]
pub(super) struct Fixed<const BITS: u32, const SLOTS: u32>;

impl<const BITS: u32, const SLOTS: u32> Shape for Fixed<BITS, SLOTS> {
    #[inline(always)]
    fn lanes(&self) -> Lanes {
        const { Lanes::new(BITS, SLOTS, 0) }
    }
}

impl<const BITS: u32, const SLOTS: u32> OwnShape for Fixed<BITS, SLOTS> {
    #[inline(always)]
    fn of(_: &Lanes) -> Self {
        Self
    }
}

/// The geometry of every strict table.
#[derive(Clone, Copy)]
pub(super) struct StrictShape;

/// Slots of a bucket of a strict table.
pub(super) const STRICT_SLOTS: u32 = 4;

/// Bits of a slot of a strict table: 62 of digest and 2 of state.
pub(super) const STRICT_SLOT_BITS: u32 = 64;

impl Shape for StrictShape {
    #[inline(always)]
    fn lanes(&self) -> Lanes {
        const { Lanes::new(STRICT_SLOT_BITS, STRICT_SLOTS, STATE_MASK) }
    }
}

impl OwnShape for StrictShape {
    #[inline(always)]
    fn of(_: &Lanes) -> Self {
        Self
    }
}

impl Shape for Lanes {
    #[inline(always)]
    fn lanes(&self) -> Lanes {
        *self
    }
}

impl OwnShape for Lanes {
    #[inline(always)]
    fn of(lanes: &Lanes) -> Self {
        *lanes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn marks_are_exact(bits in 4_u32..=32, log_slots in 1_u32..=3, values in prop::collection::vec(0_u64..4, 8), value in 0_u64..4) {
            let lanes = Lanes::new(bits, 1 << log_slots, 0);
            let slots = lanes.part_slots as usize;
            let top = 1_u64 << (bits - 1);
            // Small values and the same with the top bit set: where carries would show.
            for top in [0, top] {
                let values: Vec<u64> = values[..slots].iter().map(|v| if v % 2 == 0 { v / 2 } else { (v / 2) | top }).collect();
                let value = if value % 2 == 0 { value / 2 } else { (value / 2) | top };
                let part = values.iter().enumerate().fold(0, |part, (lane, v)| part | v << (lane as u32 * bits));
                let marks = |wanted: u64| (0..slots).filter(|&lane| values[lane] == wanted)
                    .fold(0_u64, |marks, lane| marks | 1 << (lane as u32 * bits + bits - 1));
                prop_assert_eq!(lanes.equal(part, value), marks(value));
                prop_assert_eq!(lanes.any_equal(part, value), marks(value) != 0);
                prop_assert_eq!(lanes.zero(part), marks(0));
            }
        }
    }

    #[test]
    fn parts_fit_words() {
        for bits in 4..=32 {
            for slots in [2, 4, 8] {
                let lanes = Lanes::new(bits, slots, 0);
                assert!(lanes.part_bits <= 64 && lanes.parts() * lanes.part_slots == slots);
            }
        }
        assert_eq!(StrictShape.lanes().parts(), STRICT_SLOTS);
        assert_eq!(StrictShape.lanes().equal(4 << 2 | 3, 4 << 2), 1 << 63);
    }
}
