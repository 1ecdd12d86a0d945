//! How slots of any width lie in words: packed without a gap, compared many at a time (SWAR).

/// The geometry of buckets. A bucket is read in parts, runs of slots that together fit a word.
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
    /// The lowest bit of every slot of a part: times a value, the value in every slot.
    ones: u64,
    /// The highest bit of every slot of a part.
    tops: u64,
    /// All the bits of a part.
    mask: u64,
    /// The bits of a part that tell items apart.
    identity: u64,
}

impl Lanes {
    /// Slots of `bits` bits, `slots` a bucket, of which all bits but those in `state` tell items apart.
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

    /// Words that so many buckets take, and one more when a part may end in the word after its first.
    pub(super) const fn words(&self, buckets: u64) -> u64 {
        (buckets * (self.slots * self.bits) as u64).div_ceil(64) + self.straddles() as u64
    }

    /// Whether a part may begin in one word and end in the next.
    #[inline(always)]
    pub(super) const fn straddles(&self) -> bool {
        !64_u32.is_multiple_of(self.part_bits)
    }

    /// Where a slot of a bucket begins: the word, and the bit of it.
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

    /// A part's bits, out of the word where it begins and the one after.
    #[inline(always)]
    pub(super) const fn cut(&self, low: u64, high: u64, shift: u32) -> u64 {
        ((low >> shift) | ((high << 1) << (63 - shift))) & self.mask
    }

    /// A part's bits, out of the word that holds it whole.
    #[inline(always)]
    pub(super) const fn cut_whole(&self, word: u64, shift: u32) -> u64 {
        (word >> shift) & self.mask
    }

    /// The top bit of every slot of `part` that holds `value`, by the bits that tell items apart.
    #[inline(always)]
    pub(super) const fn equal(&self, part: u64, value: u64) -> u64 {
        self.zero((part ^ value.wrapping_mul(self.ones)) & self.identity)
    }

    /// Whether a slot of `part` holds `value`: one step less than asking which. A borrow can mark further slots, but only above one
    /// that is truly equal.
    #[inline(always)]
    pub(super) const fn any_equal(&self, part: u64, value: u64) -> bool {
        let differences = (part ^ value.wrapping_mul(self.ones)) & self.identity;
        differences.wrapping_sub(self.ones) & !differences & self.tops != 0
    }

    /// As [`Lanes::equal`], without free slots: where slots hold a state, a free one looks like the digest zero.
    #[inline(always)]
    pub(super) const fn held(&self, part: u64, value: u64) -> u64 {
        let marks = self.equal(part, value);
        if self.identity == self.mask { marks } else { marks & !self.zero(part) }
    }

    /// The top bit of every slot of `part` that is zero. Exact: no carry passes from one slot to the next.
    #[inline(always)]
    pub(super) const fn zero(&self, part: u64) -> u64 {
        let low = self.mask & !self.tops;
        !(((part & low) + low) | part) & self.tops
    }

    /// The slot, counted within its part, that the lowest mark of [`Lanes::equal`] or [`Lanes::zero`] stands for;
    /// past the last one when there is no mark.
    #[inline(always)]
    pub(super) const fn lowest(&self, marks: u64) -> u32 {
        marks.trailing_zeros() / self.bits
    }
}

/// Lanes known when compiling or only when running: the same code serves both, at full speed for the first.
pub(super) trait Shape: Copy {
    fn of(lanes: &Lanes) -> Self;

    fn lanes(&self) -> Lanes;
}

/// A compact shape known when compiling.
#[derive(Clone, Copy)]
pub(super) struct Fixed<const BITS: u32, const SLOTS: u32>;

impl<const BITS: u32, const SLOTS: u32> Shape for Fixed<BITS, SLOTS> {
    #[inline(always)]
    fn of(_: &Lanes) -> Self {
        Self
    }

    #[inline(always)]
    fn lanes(&self) -> Lanes {
        const { Lanes::new(BITS, SLOTS, 0) }
    }
}

/// The one strict shape.
#[derive(Clone, Copy)]
pub(super) struct StrictShape;

/// Slots of a bucket of a strict table.
pub(super) const STRICT_SLOTS: u32 = 4;

impl Shape for StrictShape {
    #[inline(always)]
    fn of(_: &Lanes) -> Self {
        Self
    }

    #[inline(always)]
    fn lanes(&self) -> Lanes {
        const { Lanes::new(64, STRICT_SLOTS, super::place::STATE_MASK) }
    }
}

impl Shape for Lanes {
    #[inline(always)]
    fn of(lanes: &Lanes) -> Self {
        *lanes
    }

    #[inline(always)]
    fn lanes(&self) -> Lanes {
        *self
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
