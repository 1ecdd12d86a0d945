//! Where an item may be stored: its digest determines two buckets, and one slot value that is the same in both.

use crate::hash::Digest;
use crate::slots::STATE_BITS;

/// The two buckets in which an item may be stored, and the value of its slot there, with a tag of zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Probe {
    pub(crate) value: u64,
    pub(crate) buckets: [u64; 2],
}

/// The numbers from which a table's placement is computed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dimensions {
    /// Buckets of a filter's first table; for a strict table, its initial buckets.
    pub(crate) base_buckets: u64,
    /// Distinct fingerprints.
    pub(crate) fingerprints: u64,
    /// How often the buckets were doubled.
    pub(crate) doublings: u8,
    /// Bits of bucket numbers that are stored in the slots, below the fingerprint.
    pub(crate) spare_bits: u8,
    /// Bits by which a fingerprint is longer than one in the first table.
    pub(crate) extra_bits: u8,
    /// Bits of a slot below all others that hold a tag.
    pub(crate) tag_bits: u8,
}

impl Dimensions {
    /// Returns whether an item can have this slot value: its fingerprint is not zero, in the first table either.
    pub(crate) fn is_of_item(&self, value: u64) -> bool {
        value >> (self.tag_bits + self.spare_bits + self.extra_bits) > 0
    }
}

/// A way to place items in buckets (partial-key cuckoo hashing, Fan et al., CoNEXT 2014).
pub(crate) trait Placement: Copy {
    /// Whether slots have tags that age: a remove picks the newest copy.
    const AGES: bool = false;
    /// Whether slots have states.
    const HAS_STATES: bool = false;

    fn of(dimensions: &Dimensions) -> Self;

    /// Returns an item's buckets and slot value. A slot value is never zero, so it differs from a free slot.
    fn probe(&self, digest: Digest) -> Probe;

    /// Returns the other bucket of an item, given one of them and the slot value. It is its own inverse.
    fn other(&self, bucket: u64, value: u64) -> u64;

    /// Splits a bucket: returns in which of the `2^times` buckets that replace it an item is stored, and the slot value there.
    fn split(&self, bucket: u64, value: u64, times: u8) -> (u64, u64);
}

/// Placement in a compact table: `base_buckets · 2^level` bucket numbers, and fingerprints that are `extra_bits` longer than those of the
/// first table.
///
/// Tables nest: an item's bucket numbers and fingerprint, shifted right, are those in an older table. So items that collide in one
/// table collide in every older one.
///
/// The lowest `spare_bits` of a bucket number are not bits of the table's buckets, but of the slot, below the fingerprint (quotienting:
/// Knuth, The Art of Computer Programming, volume 3, 6.4, exercise 13). So a bucket can be split without the digests of its items: one
/// bit of each slot becomes a bit of its bucket. These low bits are those of the item's bucket whose base number is even; the other
/// bucket's differ by bits of the fingerprint's hash. So the slot value is the same in both.
///
/// `FIRST` is for the first table: the compiler drops a third of the work. `TAGGED` is for slots with tags that age.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Nested<const FIRST: bool, const TAGGED: bool>(Dimensions);

impl<const FIRST: bool, const TAGGED: bool> Nested<FIRST, TAGGED> {
    /// The number of the other bucket of a pair without the doublings, the sum of both being odd and determined by the fingerprint.
    #[inline(always)]
    fn other_base(&self, base: u64, mixed: u64) -> u64 {
        let sum = sum_of_mixed(mixed, self.0.base_buckets);
        if sum >= base {
            sum - base
        } else {
            sum + self.0.base_buckets - base
        }
    }

    #[inline(always)]
    fn mixed(&self, value: u64) -> u64 {
        mix(value >> (self.0.tag_bits + self.0.spare_bits + self.0.extra_bits))
    }
}

/// The highest `bits` of the low half of a mixed fingerprint: the bits in which the low bits of the two bucket numbers differ.
#[inline(always)]
fn flips(mixed: u64, bits: u8) -> u64 {
    (mixed & 0xffff_ffff) >> (32 - bits)
}

impl<const FIRST: bool, const TAGGED: bool> Placement for Nested<FIRST, TAGGED> {
    const AGES: bool = TAGGED;

    #[inline(always)]
    fn of(dimensions: &Dimensions) -> Self {
        let mut dimensions = *dimensions;
        if FIRST {
            dimensions = Dimensions {
                doublings: 0,
                spare_bits: 0,
                extra_bits: 0,
                ..dimensions
            };
        }
        if !TAGGED {
            dimensions.tag_bits = 0;
        }
        Self(dimensions)
    }

    #[inline(always)]
    fn probe(&self, digest: Digest) -> Probe {
        // The high bits of the digest select the bucket, the low ones the fingerprint, both by multiply-high. The factors are powers of two
        // times those of the first table, which appends bits to each product. The first 2^extra_bits fingerprints are unused: shifted right
        // by `extra_bits`, they would be zero.
        let Dimensions {
            base_buckets,
            fingerprints,
            doublings,
            spare_bits,
            extra_bits,
            tag_bits,
        } = self.0;
        let level = doublings + spare_bits;
        let fingerprint = (((digest.0 & 0xffff_ffff) * fingerprints) >> 32) + (1 << extra_bits);
        let mixed = mix(fingerprint >> extra_bits);
        let virtual_bucket = multiply_high(digest.0, base_buckets << level);
        let first = virtual_bucket >> level;
        let second = self.other_base(first, mixed);
        let low = virtual_bucket & ((1 << level) - 1);
        let is_odd = (first & 1).wrapping_neg();
        let flips = flips(mixed, level);
        let bucket = |base: u64, flips: u64| ((base << level) | (low ^ flips)) >> spare_bits;
        let spare = low & ((1 << spare_bits) - 1);
        Probe {
            value: ((fingerprint << spare_bits) | spare) << tag_bits,
            buckets: [
                bucket(first, flips & is_odd),
                bucket(second, flips & !is_odd),
            ],
        }
    }

    #[inline(always)]
    fn other(&self, bucket: u64, value: u64) -> u64 {
        let doublings = self.0.doublings;
        let mixed = self.mixed(value);
        let low = bucket & ((1 << doublings) - 1);
        (self.other_base(bucket >> doublings, mixed) << doublings) | (low ^ flips(mixed, doublings))
    }

    #[inline(always)]
    fn split(&self, bucket: u64, value: u64, times: u8) -> (u64, u64) {
        let Dimensions {
            doublings,
            spare_bits,
            tag_bits,
            ..
        } = self.0;
        let mask = (1 << times) - 1;
        let is_odd = ((bucket >> doublings) & 1).wrapping_neg();
        let tag = value & ((1 << tag_bits) - 1);
        let untagged = value >> tag_bits;
        let kept_bits = spare_bits - times;
        let moved = ((untagged >> kept_bits)
            ^ (flips(self.mixed(value), doublings + times) & is_odd))
            & mask;
        let kept = ((untagged >> spare_bits) << kept_bits) | (untagged & ((1 << kept_bits) - 1));
        (moved, (kept << tag_bits) | tag)
    }
}

/// Placement in a strict table, whose slots hold 62 bits of digest above 2 of state: the first bucket of an item is in the first half
/// of the table, the second one in the other half.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Whole {
    half: u64,
}

/// The value of a strict slot with this digest, without a state. The digest zero is stored as one: a free slot is zero.
#[inline(always)]
pub(crate) fn strict_value(digest: Digest) -> u64 {
    (digest.0 << STATE_BITS).max(1 << STATE_BITS)
}

/// Returns the digest that a strict slot stores, without the two highest bits. It finds the same item as the complete digest.
pub(crate) fn stored_digest(value: u64) -> Digest {
    Digest(value >> STATE_BITS)
}

impl Placement for Whole {
    const HAS_STATES: bool = true;

    #[inline(always)]
    fn of(dimensions: &Dimensions) -> Self {
        Self {
            half: dimensions.base_buckets << dimensions.doublings >> 1,
        }
    }

    #[inline(always)]
    fn probe(&self, digest: Digest) -> Probe {
        let value = strict_value(digest);
        let buckets = [
            multiply_high(value, self.half),
            self.half + multiply_high(mix(value), self.half),
        ];
        Probe { value, buckets }
    }

    #[inline(always)]
    fn other(&self, bucket: u64, value: u64) -> u64 {
        let [first, second] = self.probe(stored_digest(value)).buckets;
        if bucket < self.half { second } else { first }
    }

    #[inline(always)]
    fn split(&self, bucket: u64, value: u64, times: u8) -> (u64, u64) {
        let [first, second] = Self {
            half: self.half << times,
        }
        .probe(stored_digest(value))
        .buckets;
        let target = if bucket < self.half { first } else { second };
        (target & ((1 << times) - 1), value)
    }
}

/// The sum of the two bucket numbers of a fingerprint, modulo the number of buckets, in a first table.
pub(crate) fn sum_of_pair(value: u64, buckets: u64) -> u64 {
    sum_of_mixed(mix(value), buckets)
}

/// [`sum_of_pair`] of a fingerprint that is mixed already.
///
/// The sum is odd and the number of buckets even. So one bucket of a pair is even and the other odd: they always differ.
#[inline(always)]
fn sum_of_mixed(mixed: u64, buckets: u64) -> u64 {
    multiply_high(mixed, buckets) | 1
}

/// The upper half of a 128-bit product: it scales `value` from 64 bits down to a number below `factor`.
#[inline(always)]
fn multiply_high(value: u64, factor: u64) -> u64 {
    ((u128::from(value) * u128::from(factor)) >> 64) as u64
}

/// Scatters the bits of a value.
///
/// One multiplication would turn neighboring values into an arithmetic progression: the difference of two sums would depend
/// on the difference of the fingerprints alone, and relocations would reach few buckets. Hence two.
#[inline(always)]
fn mix(value: u64) -> u64 {
    let value = value.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (value ^ (value >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Mode;
    use crate::plan::TablePlan;
    use proptest::prelude::*;

    fn check_pair(
        place: impl Placement,
        buckets: u64,
        digest: u64,
    ) -> Result<Probe, TestCaseError> {
        let probe = place.probe(Digest(digest));
        let [first, second] = probe.buckets;
        prop_assert!(first < buckets && second < buckets && first != second && probe.value != 0);
        prop_assert_eq!(place.other(first, probe.value), second);
        prop_assert_eq!(place.other(second, probe.value), first);
        Ok(probe)
    }

    fn compact(
        bits: u8,
        number: u8,
        base_buckets: u64,
        doublings: u8,
        spare_bits: u8,
        tag_bits: u8,
    ) -> TablePlan {
        TablePlan {
            mode: Mode::Compact,
            bucket_size: 4,
            tag_bits,
            bits: bits + number,
            number,
            spare_bits,
            doublings,
            base_buckets,
        }
    }

    /// Where errors are too rare to be counted: every bit of a fingerprint is set half of the time, in either half of
    /// the buckets, and the other bucket is as likely to be in the one as in the other.
    #[test]
    #[cfg_attr(miri, ignore = "it counts for too long")]
    fn fingerprint_bits_are_uniform() {
        const ITEMS: u64 = 100_000;
        for bits in 12..=32_u8 {
            for extra in [0, (32 - bits).min(5)] {
                let plan = compact(bits, extra, 1_000, extra, 0, 0);
                let place = Nested::<false, false>::of(&plan.dimensions());
                let mut set = [[0_u64; 33]; 2];
                let mut of = [0_u64; 2];
                for number in 0..ITEMS {
                    let digest = Digest(xxhash_rust::xxh3::xxh3_64(&number.to_le_bytes()));
                    let probe = place.probe(digest);
                    let half = usize::from(probe.buckets[0] >= plan.buckets() / 2);
                    of[half] += 1;
                    set[half][32] += u64::from(probe.buckets[1] >= plan.buckets() / 2);
                    // Counted from the first fingerprint there is: none is zero.
                    let fingerprint = probe.value - (1 << extra);
                    (0..bits + extra)
                        .for_each(|bit| set[half][usize::from(bit)] += fingerprint >> bit & 1);
                }
                for half in 0..2 {
                    for bit in (0..bits + extra).chain([32]) {
                        // The half of the 2^f − 1 fingerprints whose bits are set has one less.
                        let fingerprints = f64::from(bits).exp2() - 1.0;
                        let expected = if bit == 32 || bit < extra {
                            0.5
                        } else {
                            0.5 - 0.5 / fingerprints
                        };
                        let share = set[half][usize::from(bit)] as f64 / of[half] as f64;
                        let spread = 0.5 / (of[half] as f64).sqrt();
                        assert!(
                            (share - expected).abs() < 5.0 * spread,
                            "bit {bit} of {bits} + {extra}: {share}"
                        );
                    }
                }
            }
        }
    }

    proptest! {
        /// In a finer table, an item's virtual buckets and fingerprint start with those in a coarser one, whatever the slots contain.
        #[test]
        fn tables_nest(
            digest: u64,
            bits in 4_u8..=20,
            half in 1_u64..=1 << 12,
            levels in proptest::collection::vec((0_u8..=4, 0_u8..=4), 1..5),
        ) {
            let base = 2 * half;
            let mut older: Option<([u64; 2], u64, u8)> = None;
            let mut level = 0;
            for (number, (doublings, spare)) in (0..).zip(levels) {
                let (doublings, spare) = if number == 0 { (0, 0) } else { (doublings, spare.max(level - doublings.min(level))) };
                level = doublings + spare;
                let plan = compact(bits, number, base, doublings, spare, 0);
                let probe = check_pair(Nested::<false, false>::of(&plan.dimensions()), plan.buckets(), digest)?;
                if number == 0 {
                    let first = Nested::<true, false>::of(&plan.dimensions());
                    prop_assert_eq!(probe, check_pair(first, plan.buckets(), digest)?);
                }
                // The bits of the even bucket, those in the slot included.
                let even = probe.buckets.map(|bucket| bucket >> doublings).map(|base| base.is_multiple_of(2));
                let low = probe.value & ((1 << spare) - 1);
                let even_bucket = (probe.buckets[usize::from(!even[0])] << spare) | low;
                let bases = probe.buckets.map(|bucket| bucket >> doublings);
                if let Some((older_bases, older_even, older_level)) = older {
                    prop_assert_eq!(older_bases, bases);
                    prop_assert_eq!(older_even, even_bucket >> (level - older_level));
                }
                prop_assert!(probe.value >> spare >> number != 0);
                older = Some((bases, even_bucket, level));
            }
        }

        /// A split puts an item where its digest would have put it, whichever of its buckets it was in, and retains its tag.
        #[test]
        fn splits_agree_with_digests(
            digest: u64,
            bits in 4_u8..=20,
            half in 1_u64..=1 << 12,
            number in 1_u8..=4,
            doublings in 0_u8..=8,
            spare in 0_u8..=8,
            times in 0_u8..=8,
            tag_bits in 0_u8..=6,
            tag: u64,
        ) {
            let times = times.min(spare);
            let from = compact(bits, number, 2 * half, doublings, spare, tag_bits);
            let to = from.doubled(times).unwrap();
            let place = Nested::<false, true>::of(&from.dimensions());
            let here = check_pair(place, from.buckets(), digest)?;
            let there = check_pair(Nested::<false, true>::of(&to.dimensions()), to.buckets(), digest)?;
            let tag = tag & ((1 << tag_bits) - 1);
            for (bucket, target) in here.buckets.into_iter().zip(there.buckets) {
                let (part, value) = place.split(bucket, here.value | tag, times);
                prop_assert_eq!(((bucket << times) | part, value), (target, there.value | tag));
            }
        }

        #[test]
        fn strict_pairs_differ_split_and_ignore_states(digest: u64, half in 1_u64..=1 << 30, times in 0_u8..3, state in 0..4_u64) {
            let place = Whole { half };
            let probe = check_pair(place, half * 2, digest)?;
            prop_assert_eq!(place.other(probe.buckets[0], probe.value | state), probe.buckets[1]);
            prop_assert_eq!(place.probe(Digest(digest ^ (1 << 63))), probe);
            let there = Whole { half: half << times }.probe(Digest(digest));
            for (bucket, target) in probe.buckets.into_iter().zip(there.buckets) {
                let (part, value) = place.split(bucket, probe.value | state, times);
                prop_assert_eq!(((bucket << times) | part, value), (target, probe.value | state));
            }
        }
    }
}
