//! Where an item may lie: a digest determines the value of its slot and its two buckets.

use super::hash::Digest;
use super::mixing::{mix, multiply_high, sum_of_mixed};
use super::plan::TablePlan;
use super::slot_state::{STATE_BITS, STATE_MASK};

/// The slot value of an item, and the two buckets in which it may lie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Probe {
    pub(super) value: u64,
    pub(super) buckets: [u64; 2],
}

/// The numbers from which a table's placement is computed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dimensions {
    /// Buckets of a strict table, or of a compact filter's first segment.
    base_buckets: u64,
    /// The segment's number.
    k: u32,
    /// Bits of a slot that say in which step its item was added.
    step_bits: u32,
    /// Distinct fingerprints, `(2^base_bits − 1) · 2^k`.
    fingerprints: u64,
}

impl Dimensions {
    pub(super) fn of(plan: TablePlan) -> Self {
        debug_assert!(plan.buckets().is_multiple_of(2));
        match plan {
            TablePlan::Segment { base_bits, step_bits, base_buckets, k, .. } => {
                debug_assert!(u32::from(base_bits) + k <= 32 && base_buckets << k <= 1 << 32);
                let fingerprints = ((1 << base_bits) - 1) << k;
                Self { base_buckets, k, step_bits: u32::from(step_bits), fingerprints }
            }
            TablePlan::Strict { buckets } => {
                Self { base_buckets: buckets, k: 0, step_bits: 0, fingerprints: 0 }
            }
        }
    }
}

/// A way to place items in buckets (partial-key cuckoo hashing, Fan et al., CoNEXT 2014).
pub(super) trait Place: Copy {
    fn of(dimensions: &Dimensions) -> Self;

    /// An item's slot value and its buckets. A fingerprint is never zero, so that its slot differs from a free one.
    fn probe(&self, digest: Digest) -> Probe;

    /// The second bucket of a slot value, given one of the two. It is its own inverse.
    fn other(&self, bucket: u64, value: u64) -> u64;
}

/// Placement in segment `k` of a compact filter: `base_buckets · 2^k` buckets, and fingerprints of `base_bits + k` bits.
///
/// Segments nest: an item's buckets and fingerprint, each shifted right by one bit, are those in the segment before. So items that
/// look alike in one segment look alike in every older one, and a copy can move to an older segment without its digest.
#[derive(Clone, Copy, Debug)]
pub(super) struct Nested(Dimensions);

impl Place for Nested {
    #[inline(always)]
    fn of(dimensions: &Dimensions) -> Self {
        Self(*dimensions)
    }

    #[inline(always)]
    fn probe(&self, digest: Digest) -> Probe {
        // The high bits of the digest choose the bucket, the low ones the fingerprint, both by multiply-high. The factors double
        // with each segment, which appends one bit to each product. The first 2^k fingerprints are left out: shifted right by k,
        // they would be zero.
        let bucket = multiply_high(digest.0, self.0.base_buckets << self.0.k);
        let value = (((digest.0 & 0xffff_ffff) * self.0.fingerprints) >> 32) + (1 << self.0.k);
        Probe { value, buckets: [bucket, self.other(bucket, value)] }
    }

    #[inline(always)]
    fn other(&self, bucket: u64, value: u64) -> u64 {
        let mixed = mix(value >> self.0.k);
        let sum = sum_of_mixed(mixed, self.0.base_buckets);
        let base = bucket >> self.0.k;
        let other = if sum >= base { sum - base } else { sum + self.0.base_buckets - base };
        // The top k of 32 bits: each segment adds one bit, and the others stay the same.
        let flips = (mixed & 0xffff_ffff) >> (32 - self.0.k);
        let low = (1 << self.0.k) - 1;
        (other << self.0.k) | ((bucket & low) ^ flips)
    }
}

/// [`Nested`] for the first segment, `k` = 0. Most filters have no other, and the compiler drops a third of the work.
#[derive(Clone, Copy, Debug)]
pub(super) struct First(Nested);

impl Place for First {
    #[inline(always)]
    fn of(dimensions: &Dimensions) -> Self {
        Self(Nested(Dimensions { k: 0, ..*dimensions }))
    }

    #[inline(always)]
    fn probe(&self, digest: Digest) -> Probe {
        self.0.probe(digest)
    }

    #[inline(always)]
    fn other(&self, bucket: u64, value: u64) -> u64 {
        self.0.other(bucket, value)
    }
}

/// [`Nested`] where the low bits of a slot say in which step its item was added. The fingerprint lies above them, and it alone
/// determines the buckets: an item that is added again has the same ones.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stepped(Nested);

impl Place for Stepped {
    #[inline(always)]
    fn of(dimensions: &Dimensions) -> Self {
        Self(Nested(*dimensions))
    }

    #[inline(always)]
    fn probe(&self, digest: Digest) -> Probe {
        let Probe { value, buckets } = self.0.probe(digest);
        Probe { value: value << self.0.0.step_bits, buckets }
    }

    #[inline(always)]
    fn other(&self, bucket: u64, value: u64) -> u64 {
        self.0.other(bucket, value >> self.0.0.step_bits)
    }
}

/// [`Stepped`] for the first segment, as [`First`] is for [`Nested`].
#[derive(Clone, Copy, Debug)]
pub(super) struct SteppedFirst(Stepped);

impl Place for SteppedFirst {
    #[inline(always)]
    fn of(dimensions: &Dimensions) -> Self {
        Self(Stepped(Nested(Dimensions { k: 0, ..*dimensions })))
    }

    #[inline(always)]
    fn probe(&self, digest: Digest) -> Probe {
        self.0.probe(digest)
    }

    #[inline(always)]
    fn other(&self, bucket: u64, value: u64) -> u64 {
        self.0.other(bucket, value)
    }
}

/// Placement in a strict table, which has any even number of buckets and slots of 62 bits of digest above 2 of state.
#[derive(Clone, Copy, Debug)]
pub(super) struct Whole {
    buckets: u64,
}

/// The digest of an item, as far as its strict slot keeps it: the two highest bits are lost. It finds the item like the whole one.
pub(super) fn stored_digest(value: u64) -> Digest {
    Digest(value >> STATE_BITS)
}

impl Whole {
    #[inline(always)]
    fn pair(&self, value: u64) -> [u64; 2] {
        let value = value & !STATE_MASK;
        let first = multiply_high(value, self.buckets);
        let second = multiply_high(mix(value), self.buckets);
        [first, if second == first { first ^ 1 } else { second }]
    }
}

impl Place for Whole {
    #[inline(always)]
    fn of(dimensions: &Dimensions) -> Self {
        Self { buckets: dimensions.base_buckets }
    }

    #[inline(always)]
    fn probe(&self, digest: Digest) -> Probe {
        let value = digest.0 << STATE_BITS;
        Probe { value, buckets: self.pair(value) }
    }

    #[inline(always)]
    fn other(&self, bucket: u64, value: u64) -> u64 {
        let [first, second] = self.pair(value);
        if bucket == first { second } else { first }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn segment<P: Place>(base_bits: u32, base_buckets: u64, k: u32) -> P {
        let plan =
            TablePlan::Segment { base_bits: base_bits as u8, step_bits: 0, bucket_size: 4, base_buckets, k };
        P::of(&Dimensions::of(plan))
    }

    fn check_pair(place: impl Place, buckets: u64, digest: u64) -> Result<Probe, TestCaseError> {
        let probe = place.probe(Digest(digest));
        let [first, second] = probe.buckets;
        prop_assert!(first < buckets && second < buckets && first != second);
        prop_assert_eq!(place.other(first, probe.value), second);
        prop_assert_eq!(place.other(second, probe.value), first);
        Ok(probe)
    }

    /// Where errors are too rare to be counted: every bit of a fingerprint is set half of the time, in either half of
    /// the buckets, and the other bucket is as likely to be in the one as in the other.
    #[test]
    #[cfg_attr(miri, ignore = "it counts for too long")]
    fn the_bits_of_fingerprints_are_uniform() {
        const ITEMS: u64 = 100_000;
        for base_bits in 12..=32_u32 {
            for k in [0, (32 - base_bits).min(5)] {
                let buckets = 1_000 << k;
                let place = segment::<Nested>(base_bits, 1_000, k);
                let mut set = [[0_u64; 33]; 2];
                let mut of = [0_u64; 2];
                for number in 0..ITEMS {
                    let digest = Digest(xxhash_rust::xxh3::xxh3_64(&number.to_le_bytes()));
                    let probe = place.probe(digest);
                    let half = usize::from(probe.buckets[0] >= buckets / 2);
                    of[half] += 1;
                    set[half][32] += u64::from(probe.buckets[1] >= buckets / 2);
                    // Counted from the first fingerprint there is: none is zero.
                    let fingerprint = probe.value - (1 << k);
                    (0..base_bits + k).for_each(|bit| set[half][bit as usize] += fingerprint >> bit & 1);
                }
                for half in 0..2 {
                    for bit in (0..base_bits + k).chain([32]) {
                        // Of 2^f − 1 fingerprints one is missing from the half whose bits are set.
                        let fingerprints = ((1_u64 << base_bits) - 1) as f64;
                        let expected = if bit == 32 || bit < k { 0.5 } else { 0.5 - 0.5 / fingerprints };
                        let share = set[half][bit as usize] as f64 / of[half] as f64;
                        let spread = 0.5 / (of[half] as f64).sqrt();
                        assert!(
                            (share - expected).abs() < 5.0 * spread,
                            "bit {bit} of {base_bits} + {k}: {share}"
                        );
                    }
                }
            }
        }
    }

    proptest! {
        #[test]
        fn segments_nest(digest: u64, base_bits in 4_u32..=32, half in 1_u64..=1 << 20) {
            let base = half * 2;
            let mut older: Option<Probe> = None;
            for k in 0..=(32 - base_bits).min(11) {
                let probe = check_pair(segment::<Nested>(base_bits, base, k), base << k, digest)?;
                if k == 0 {
                    prop_assert_eq!(probe, check_pair(segment::<First>(base_bits, base, 0), base, digest)?);
                }
                prop_assert!(probe.value >> k != 0 && probe.value >> (base_bits + k) == 0);
                if let Some(older) = older {
                    prop_assert_eq!(older.value, probe.value >> 1);
                    prop_assert_eq!(older.buckets, probe.buckets.map(|bucket| bucket >> 1));
                }
                older = Some(probe);
            }
        }

        #[test]
        fn strict_pairs_differ_and_ignore_the_state(digest: u64, half in 1_u64..=1 << 33) {
            let place = Whole::of(&Dimensions::of(TablePlan::Strict { buckets: half * 2 }));
            let probe = check_pair(place, half * 2, digest)?;
            prop_assert_eq!(place.other(probe.buckets[0], probe.value | STATE_MASK), probe.buckets[1]);
            prop_assert_eq!(place.probe(Digest(digest ^ (1 << 63))), probe);
        }
    }
}
