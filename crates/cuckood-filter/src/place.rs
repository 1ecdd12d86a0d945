//! Where an item may lie: a digest determines its two buckets, and the value of its slot in each.

use super::hash::Digest;
use super::mixing::{mix, multiply_high, sum_of_mixed};
use super::plan::TablePlan;
use super::slot_state::{STATE_BITS, STATE_MASK};

/// The two buckets in which an item may lie, and the value of its slot in each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Probe {
    pub(super) values: [u64; 2],
    pub(super) buckets: [u64; 2],
}

impl Probe {
    /// The same item with these bits of state.
    #[inline(always)]
    pub(super) fn with_state(self, state: u64) -> Self {
        Self { values: self.values.map(|value| value | state), ..self }
    }
}

/// Where an item may lie in any segment of a compact filter that is no newer than a certain one: the numbers of its buckets with all their
/// bits, and its fingerprint. One serves all segments, since they nest.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Nesting {
    virtual_buckets: [u64; 2],
    fingerprint: u64,
}

/// The numbers from which a table's placement is computed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dimensions {
    /// Buckets of a strict table, or of a compact filter's first segment.
    base_buckets: u64,
    /// How often these were doubled, counting the doublings whose bits are still in the slots.
    level: u32,
    /// Bits by which a fingerprint is longer than one in the first segment.
    extra_bits: u32,
    /// Bits of bucket numbers that lie in the slots, below the fingerprint.
    spare_bits: u32,
    /// Bits of a slot that say in which step its item was added.
    step_bits: u32,
    /// Distinct fingerprints, `(2^base_bits − 1) · 2^extra_bits`.
    fingerprints: u64,
}

impl Dimensions {
    pub(super) fn of(plan: TablePlan) -> Self {
        debug_assert!(plan.buckets().is_multiple_of(2));
        let (base_bits, base_buckets) = match plan {
            TablePlan::Segment { base_bits, base_buckets, .. }
            | TablePlan::Doubling { base_bits, base_buckets, .. } => (base_bits, base_buckets),
            TablePlan::Strict { buckets } => (0, buckets),
        };
        Self {
            base_buckets,
            level: plan.level(),
            extra_bits: plan.segment(),
            spare_bits: plan.spare_bits(),
            step_bits: u32::from(plan.step_bits()),
            fingerprints: ((1 << base_bits) - 1) << plan.segment(),
        }
    }

    /// The same in the first segment, whatever the table's segment is: the compiler sees the zeros.
    #[inline(always)]
    fn of_first_segment(&self) -> Self {
        Self { level: 0, extra_bits: 0, spare_bits: 0, ..*self }
    }

    /// The bucket and the slot value in another table of the filter for those of an item in this one. The other table must not be finer:
    /// its segment is this one's or an older one.
    pub(super) fn carry(&self, to: &Self, bucket: u64, value: u64) -> (u64, u64) {
        let (virtual_bucket, fingerprint) = self.unpack(bucket, value);
        let virtual_bucket = virtual_bucket >> (self.level - to.level);
        to.pack(virtual_bucket, fingerprint >> (self.extra_bits - to.extra_bits))
    }

    /// Where an item may lie in this table's segment and all older ones.
    #[inline(always)]
    pub(super) fn nesting(&self, digest: Digest) -> Nesting {
        Nested(*self).nesting(digest)
    }

    /// An item's buckets and slot values in a table that is not finer than this one.
    #[inline(always)]
    pub(super) fn probe_in(&self, table: &Self, nesting: &Nesting) -> Probe {
        let fingerprint = nesting.fingerprint >> (self.extra_bits - table.extra_bits);
        let [first, second] = nesting
            .virtual_buckets
            .map(|bucket| table.pack(bucket >> (self.level - table.level), fingerprint));
        Probe { values: [first.1, second.1], buckets: [first.0, second.0] }
    }

    /// Whether an item can have this slot value: in the first segment, too, its fingerprint is not zero.
    pub(super) fn is_of_item(&self, value: u64) -> bool {
        value >> (self.step_bits + self.spare_bits + self.extra_bits) > 0
    }

    /// The bucket number with all its bits, and the fingerprint.
    #[inline(always)]
    fn unpack(&self, bucket: u64, value: u64) -> (u64, u64) {
        let low = value & ((1 << self.spare_bits) - 1);
        ((bucket << self.spare_bits) | low, value >> self.spare_bits)
    }

    /// The bucket and the slot value of an item.
    #[inline(always)]
    fn pack(&self, virtual_bucket: u64, fingerprint: u64) -> (u64, u64) {
        let low = virtual_bucket & ((1 << self.spare_bits) - 1);
        (virtual_bucket >> self.spare_bits, (fingerprint << self.spare_bits) | low)
    }
}

/// A way to place items in buckets (partial-key cuckoo hashing, Fan et al., CoNEXT 2014).
pub(super) trait Place: Copy {
    fn of(dimensions: &Dimensions) -> Self;

    /// An item's buckets and slot values. A fingerprint is never zero, so that its slot differs from a free one.
    fn probe(&self, digest: Digest) -> Probe;

    /// The second bucket of an item and its slot value there, given its first ones. It is its own inverse.
    fn other(&self, bucket: u64, value: u64) -> (u64, u64);

    /// The probe of an item of which one bucket and the slot value there are known.
    #[inline(always)]
    fn probe_from(&self, bucket: u64, value: u64) -> Probe {
        let (other_bucket, other_value) = self.other(bucket, value);
        Probe { values: [value, other_value], buckets: [bucket, other_bucket] }
    }
}

/// Placement in a segment of a compact filter: `base_buckets · 2^level` numbers of buckets, and fingerprints that are by `extra_bits`
/// longer than in the first segment.
///
/// Segments nest: an item's bucket numbers and fingerprint, shifted right, are those in an older segment. So items that look alike in
/// one segment look alike in every older one, and a copy can move to an older segment without its digest.
///
/// The lowest `spare_bits` of a bucket number need not be bits of the table's buckets: they may lie in the slot instead, below the
/// fingerprint (quotienting: Knuth, The Art of Computer Programming, volume 3, 6.4, exercise 13). So a table can be doubled without the
/// digests of its items: one bit of each slot becomes a bit of its bucket.
#[derive(Clone, Copy, Debug)]
pub(super) struct Nested(Dimensions);

impl Place for Nested {
    #[inline(always)]
    fn of(dimensions: &Dimensions) -> Self {
        Self(*dimensions)
    }

    #[inline(always)]
    fn probe(&self, digest: Digest) -> Probe {
        self.0.probe_in(&self.0, &self.nesting(digest))
    }

    #[inline(always)]
    fn other(&self, bucket: u64, value: u64) -> (u64, u64) {
        let (virtual_bucket, fingerprint) = self.0.unpack(bucket, value);
        self.0.pack(self.partner(virtual_bucket, fingerprint), fingerprint)
    }
}

impl Nested {
    #[inline(always)]
    fn nesting(&self, digest: Digest) -> Nesting {
        // The high bits of the digest choose the bucket, the low ones the fingerprint, both by multiply-high. The factors are powers of
        // two times those of the first segment, which appends bits to each product. The first 2^extra_bits fingerprints are left out:
        // shifted right by so many bits, they would be zero.
        let of = &self.0;
        let bucket = multiply_high(digest.0, of.base_buckets << of.level);
        let fingerprint = (((digest.0 & 0xffff_ffff) * of.fingerprints) >> 32) + (1 << of.extra_bits);
        Nesting { virtual_buckets: [bucket, self.partner(bucket, fingerprint)], fingerprint }
    }

    /// The second number of a bucket, all bits counted.
    #[inline(always)]
    fn partner(&self, virtual_bucket: u64, fingerprint: u64) -> u64 {
        let Dimensions { base_buckets, level, extra_bits, .. } = self.0;
        let mixed = mix(fingerprint >> extra_bits);
        let sum = sum_of_mixed(mixed, base_buckets);
        let base = virtual_bucket >> level;
        let other = if sum >= base { sum - base } else { sum + base_buckets - base };
        // The top bits of 32: each level adds one bit, and the others stay the same.
        let flips = (mixed & 0xffff_ffff) >> (32 - level);
        let low = (1 << level) - 1;
        (other << level) | ((virtual_bucket & low) ^ flips)
    }
}

/// [`Nested`] for the first segment. Most filters have no other, and the compiler drops a third of the work.
#[derive(Clone, Copy, Debug)]
pub(super) struct First(Nested);

impl Place for First {
    #[inline(always)]
    fn of(dimensions: &Dimensions) -> Self {
        Self(Nested(dimensions.of_first_segment()))
    }

    #[inline(always)]
    fn probe(&self, digest: Digest) -> Probe {
        self.0.probe(digest)
    }

    #[inline(always)]
    fn other(&self, bucket: u64, value: u64) -> (u64, u64) {
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
        let Probe { values, buckets } = self.0.probe(digest);
        Probe { values: values.map(|value| value << self.0.0.step_bits), buckets }
    }

    #[inline(always)]
    fn other(&self, bucket: u64, value: u64) -> (u64, u64) {
        // The slots of such tables have no bits of a bucket number: the value is the same in both.
        debug_assert_eq!(self.0.0.spare_bits, 0);
        (self.0.other(bucket, value >> self.0.0.step_bits).0, value)
    }
}

/// [`Stepped`] for the first segment, as [`First`] is for [`Nested`].
#[derive(Clone, Copy, Debug)]
pub(super) struct SteppedFirst(Stepped);

impl Place for SteppedFirst {
    #[inline(always)]
    fn of(dimensions: &Dimensions) -> Self {
        Self(Stepped(Nested(dimensions.of_first_segment())))
    }

    #[inline(always)]
    fn probe(&self, digest: Digest) -> Probe {
        self.0.probe(digest)
    }

    #[inline(always)]
    fn other(&self, bucket: u64, value: u64) -> (u64, u64) {
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
        Probe { values: [value; 2], buckets: self.pair(value) }
    }

    #[inline(always)]
    fn other(&self, bucket: u64, value: u64) -> (u64, u64) {
        let [first, second] = self.pair(value);
        (if bucket == first { second } else { first }, value)
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
        prop_assert_eq!(place.other(first, probe.values[0]), (second, probe.values[1]));
        prop_assert_eq!(place.other(second, probe.values[1]), (first, probe.values[0]));
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
                    let fingerprint = probe.values[0] - (1 << k);
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
                let [value, same] = probe.values;
                prop_assert_eq!(value, same);
                prop_assert!(value >> k != 0 && value >> (base_bits + k) == 0);
                if let Some(older) = older {
                    prop_assert_eq!(older.values[0], value >> 1);
                    prop_assert_eq!(older.buckets, probe.buckets.map(|bucket| bucket >> 1));
                }
                older = Some(probe);
            }
        }

        /// An item that is carried from table to table comes to where its digest would have put it, whichever of its buckets it was in: to
        /// a larger table of its segment, and to older segments.
        #[test]
        fn items_are_carried_to_where_their_digests_lead(
            digest: u64,
            base_bits in 4_u8..=20,
            half in 1_u64..=1 << 12,
            segment in 1_u8..=4,
            doublings in 0_u8..=8,
            spare_bits in 0_u8..=8,
            times in 0_u8..=8,
            older_level in 0_u8..=16,
            older_spare in 0_u8..=4,
        ) {
            let base_buckets = 2 * half;
            let plan = |segment, doublings, spare_bits| {
                TablePlan::Doubling { base_bits, bucket_size: 4, base_buckets, segment, doublings, spare_bits }
            };
            let from = plan(segment, doublings, spare_bits);
            let times = times.min(spare_bits);
            let older_level = older_level.min(doublings + spare_bits);
            let older_spare = older_spare.min(older_level);
            let tables = [
                from.doubled(times).unwrap(),
                plan(segment, older_level - older_spare, older_spare),
                plan(segment - 1, 0, 0),
            ];
            let here = check_pair(Nested::of(&Dimensions::of(from)), from.buckets(), digest)?;
            for to in tables.into_iter().filter(TablePlan::is_sane) {
                let place = Nested::of(&Dimensions::of(to));
                let there = check_pair(place, to.buckets(), digest)?;
                for (at, (bucket, value)) in here.buckets.into_iter().zip(here.values).enumerate() {
                    let carried = Dimensions::of(from).carry(&Dimensions::of(to), bucket, value);
                    prop_assert_eq!(carried, (there.buckets[at], there.values[at]));
                    prop_assert_eq!(place.probe_from(carried.0, carried.1).buckets[1], there.buckets[1 - at]);
                }
            }
        }

        #[test]
        fn strict_pairs_differ_and_ignore_the_state(digest: u64, half in 1_u64..=1 << 33) {
            let place = Whole::of(&Dimensions::of(TablePlan::Strict { buckets: half * 2 }));
            let probe = check_pair(place, half * 2, digest)?;
            let [value, _] = probe.with_state(STATE_MASK).values;
            prop_assert_eq!(place.other(probe.buckets[0], value), (probe.buckets[1], value));
            prop_assert_eq!(place.probe(Digest(digest ^ (1 << 63))), probe);
        }
    }
}
