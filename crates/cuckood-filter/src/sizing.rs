//! Sizing: from a capacity and an error rate to the layout of a filter.
//!
//! This determines the load at which an item finds no free slot, and the necessary length of fingerprints. A table almost certainly holds
//! its capacity: if it is filled a hundred million times with different items, each of three causes makes at most one filling fail.
//!
//! - *A crowded pair of buckets.* Two buckets of `b` slots hold `2b` items. If one more item has the same two buckets, no move helps. The
//!   `n` items choose among the `(m/2)²` pairs of `m` buckets (one even and one odd number). The probability that any pair is chosen by
//!   `2b + 1` items is at most `C(n, 2b+1) · (m²/4) · (4/m²)^(2b+1) ≤ (n − b)^(2b+1) · (2/m)^(4b) / (2b+1)!`. This is the first term of the
//!   union bound over all sets of buckets (Dietzfelbinger and Weidling, "Balanced allocation and dictionaries with tightly packed constant
//!   size bins", 2007). Where it is what limits, the other terms add up to less.
//! - *A crowded table.* With buckets of 2, 4 or 8 slots, items with random pairs fill at most 89.7, 98.0 or 99.8 % of a table. (Fernholz
//!   and Ramachandran, "The k-orientability thresholds for G(n, p)", 2007.) How many items a table of `s` slots really takes varies by
//!   0.44·√s, 0.20·√s or 0.08·√s (standard deviation, measured); seven standard deviations are kept free. In a small table another effect
//!   weighs more: some buckets are chosen by fewer items than they have slots. For that, two buckets and two slots are kept free. With
//!   both, [`fill_limit`] is exceeded by all but one of a hundred million fillings. For small tables the union bound shows it; for larger
//!   ones, where the bound is too weak, measured quantiles of 10⁵ fillings do, extrapolated. Close to these limits few searches succeed. So
//!   tables are filled to 80, 95 and 98 %: there the share of searches that fail is halved with every 7, 21 and 10 more buckets that they
//!   look at (measured at a million items).
//! - *Short fingerprints.* `f` bits make `2^f − 1` fingerprints, and items with equal ones choose among few pairs: see
//!   [`crowded_pairs`].

use crate::layout::{
    CAPACITY_MAX, ERROR_RATE_MAX, ERROR_RATE_MIN, FINGERPRINT_BITS_MAX, FIXED_SEARCH_MIN, Growth,
    Layout, LayoutError, MAX_SEARCH_DEFAULT, Mode, STEPS_MAX, STEPS_MIN, STRICT_FINGERPRINT_BITS,
};
use crate::place::sum_of_pair;
use crate::slots::STRICT_SLOTS;

/// Fillings of which one may fail for each cause.
const FILLINGS: u128 = 100_000_000;

/// The most bits of a fingerprint that counts as short. Longer ones are as good as random pairs: with 13 bits and buckets of two
/// slots, less than one in a million fillings with four thousand million items fails because of them.
const SHORT_BITS_MAX: u8 = 12;

impl Layout {
    /// The smallest compact layout that holds `capacity` items and keeps `error_rate` even when every slot is taken.
    ///
    /// The first segment of a filter that grows gets half of `error_rate`. Each further segment has at most half the rate of the one
    /// before, and 1/2 + 1/4 + … stays below 1.
    pub fn compact(capacity: u64, error_rate: f64, growth: Growth) -> Result<Self, LayoutError> {
        check_capacity(capacity)?;
        let share = share(error_rate, growth)?;
        // Of layouts with the same memory the first wins: four slots are the best compromise of load and lookup speed.
        [4, 2, 8]
            .into_iter()
            .filter_map(|bucket_size| Self::smallest(capacity, share, growth, bucket_size))
            .min_by_key(Self::memory_bytes)
            .ok_or(LayoutError::ErrorRate(error_rate))
    }

    /// As [`Self::compact`], for a filter that forgets after `steps` steps.
    ///
    /// Its buckets have eight slots. Items are added repeatedly, and all copies of one share two buckets: with three copies each, buckets
    /// of four slots can be filled to 62 %, those of eight to 90 % (measured at a hundred thousand items).
    pub fn forgetting(
        capacity: u64,
        error_rate: f64,
        growth: Growth,
        steps: u32,
    ) -> Result<Self, LayoutError> {
        check_capacity(capacity)?;
        let layout = Self::smallest(capacity, share(error_rate, growth)?, growth, 8);
        layout
            .ok_or(LayoutError::ErrorRate(error_rate))?
            .with_steps(steps)
    }

    /// Returns the same layout for a filter that forgets after `steps` steps.
    pub fn with_steps(self, steps: u32) -> Result<Self, LayoutError> {
        if !(STEPS_MIN..=STEPS_MAX).contains(&steps) {
            return Err(LayoutError::Steps(steps));
        }
        // The current step, the retained ones, and four whose items are being removed.
        let tags = steps + 5;
        Ok(Self {
            step_bits: tags.next_power_of_two().trailing_zeros() as u8,
            ..self
        })
    }

    fn smallest(capacity: u64, error_rate: f64, growth: Growth, bucket_size: u8) -> Option<Self> {
        let buckets = buckets_for(capacity, bucket_size);
        (planned_bits_min(bucket_size)..=FINGERPRINT_BITS_MAX)
            .map(|fingerprint_bits| Self {
                fingerprint_bits,
                step_bits: 0,
                bucket_size,
                buckets,
                max_search: MAX_SEARCH_DEFAULT,
            })
            .find(|layout| {
                let bits = layout.fingerprint_bits;
                layout.error_rate_at(1.0) <= error_rate
                    && (growth == Growth::Auto
                        || fingerprints_suffice(capacity, bits, bucket_size, buckets))
            })
    }

    /// The compact layout for `capacity` items, with the rest chosen by the caller.
    ///
    /// # Errors
    /// When a value is out of range, or a filter of fixed size can't guarantee space for `capacity` items.
    pub fn compact_with(
        capacity: u64,
        fingerprint_bits: u8,
        bucket_size: u8,
        max_search: u32,
        growth: Growth,
    ) -> Result<Self, LayoutError> {
        check_capacity(capacity)?;
        if !matches!(bucket_size, 2 | 4 | 8) {
            return Err(LayoutError::BucketSize(bucket_size));
        }
        let buckets = buckets_for(capacity, bucket_size);
        let mut layout = Self {
            fingerprint_bits,
            step_bits: 0,
            bucket_size,
            buckets,
            max_search,
        };
        layout.check(Mode::Compact)?;
        if growth == Growth::Fixed {
            layout.buckets = layout.fixed_buckets(capacity)?;
        }
        Ok(layout)
    }

    /// Buckets that hold `capacity` items almost certainly.
    fn fixed_buckets(&self, capacity: u64) -> Result<u64, LayoutError> {
        let Self {
            fingerprint_bits: bits,
            bucket_size,
            max_search,
            ..
        } = *self;
        if max_search < FIXED_SEARCH_MIN {
            return Err(LayoutError::FixedSearch(max_search));
        }
        let fewest = buckets_for_search(capacity, bucket_size, max_search);
        // Short fingerprints need a table that is emptier. But one that is half empty for their sake saves nothing.
        let fitting = |bits| {
            (0..=8)
                .map(|eighths| (fewest + fewest * eighths / 8).next_multiple_of(2))
                .find(|&buckets| fingerprints_suffice(capacity, bits, bucket_size, buckets))
        };
        fitting(bits).ok_or_else(|| {
            let least = (bits..FINGERPRINT_BITS_MAX).find(|&bits| fitting(bits).is_some());
            let least = least.unwrap_or(FINGERPRINT_BITS_MAX);
            LayoutError::FixedFingerprintBits {
                bits,
                least,
                capacity,
                bucket_size,
            }
        })
    }

    /// The strict layout for `capacity` items.
    pub fn strict(capacity: u64) -> Result<Self, LayoutError> {
        check_capacity(capacity)?;
        let bucket_size = STRICT_SLOTS as u8;
        Ok(Self {
            fingerprint_bits: STRICT_FINGERPRINT_BITS,
            step_bits: 0,
            bucket_size,
            buckets: buckets_for(capacity, bucket_size),
            max_search: MAX_SEARCH_DEFAULT,
        })
    }

    /// Items that the first table takes, whatever they are. Beyond that, a filter that may grow does so, and a filter of fixed size
    /// takes more as long as searches find free slots.
    pub fn capacity(&self) -> u64 {
        fill_limit(self.buckets, self.bucket_size)
    }

    /// The error rate that a compact filter of this layout keeps at any size.
    pub fn error_rate_max(&self, growth: Growth) -> f64 {
        let first = self.error_rate_at(1.0);
        match growth {
            // Each further segment has at most half the rate of the one before.
            Growth::Auto => f64::min(2.0 * first, 1.0),
            Growth::Fixed => first,
        }
    }

    /// Minimum number of items of an appended table: where the older ones empty, the requested capacity.
    pub(crate) fn appended_items_min(&self) -> u64 {
        if self.step_bits > 0 {
            self.capacity()
        } else {
            1
        }
    }
}

/// The first segment's share of an error rate.
fn share(error_rate: f64, growth: Growth) -> Result<f64, LayoutError> {
    if !(ERROR_RATE_MIN..=ERROR_RATE_MAX).contains(&error_rate) {
        return Err(LayoutError::ErrorRate(error_rate));
    }
    Ok(match growth {
        Growth::Auto => error_rate / 2.0,
        Growth::Fixed => error_rate,
    })
}

fn check_capacity(capacity: u64) -> Result<(), LayoutError> {
    if (1..=CAPACITY_MAX).contains(&capacity) {
        Ok(())
    } else {
        Err(LayoutError::Capacity(capacity))
    }
}

/// The fewest fingerprint bits with which a large table can be filled to [`load_percent`], measured. A shorter fingerprint leads to too few
/// alternate buckets, so searches fail earlier (Fan et al., section 4). Only custom layouts have one.
pub(crate) const fn planned_bits_min(bucket_size: u8) -> u8 {
    match bucket_size {
        2 => 8,
        4 => 6,
        _ => 5,
    }
}

/// Percent of a large table's slots that are filled: up to here, searches for a free slot succeed.
const fn load_percent(bucket_size: u8) -> u64 {
    match bucket_size {
        2 => 80,
        4 => 95,
        _ => 98,
    }
}

/// Percentage of additional free slots for a search of few buckets. With them, searches fail as rarely as with [`MAX_SEARCH_DEFAULT`]
/// (measured).
const fn spare_percent(max_search: u32) -> u64 {
    match max_search {
        1_000.. => 0,
        500..1_000 => 2,
        _ => 6,
    }
}

/// Items up to which searches in a table of this many buckets mostly find a free slot.
pub(crate) fn planned_load(buckets: u64, bucket_size: u8) -> u64 {
    buckets * u64::from(bucket_size) * load_percent(bucket_size) / 100
}

/// The part of these items for which searches of this many buckets find a free slot as often as those of [`MAX_SEARCH_DEFAULT`] for all.
pub(crate) fn searched_items(items: u64, bucket_size: u8, max_search: u32) -> u64 {
    let load = load_percent(bucket_size);
    items * (load - spare_percent(max_search)) / load
}

/// Number of items, whatever their digests, that a table of this size almost certainly holds.
pub(crate) fn fill_limit(buckets: u64, bucket_size: u8) -> u64 {
    let slots = buckets * u64::from(bucket_size);
    // `full` is in thousandths of the slots, `spread` in tenths of their square root.
    let (full, spread) = match bucket_size {
        2 => (880, 30),
        4 => (980, 15),
        _ => (995, 6),
    };
    let free = slots.isqrt() * spread / 10 + 2 * u64::from(bucket_size) + 2;
    let whole = (slots * full / 1_000).saturating_sub(free);
    let searched = planned_load(buckets, bucket_size);
    // A pair of buckets holds any items up to its number of slots.
    whole
        .min(searched)
        .min(pairs_limit(buckets, bucket_size))
        .max(2 * u64::from(bucket_size))
}

/// The most items of which `2b + 1` almost never choose the same pair: the greatest `n` with
/// `(n − b)^(2b+1) ≤ (m/2)^(4b) · (2b+1)! / FILLINGS`.
fn pairs_limit(buckets: u64, bucket_size: u8) -> u64 {
    let slots = u32::from(bucket_size);
    let crowd = 2 * slots + 1;
    // If the numbers need more than 128 bits, there are enough pairs that none gets crowded.
    let Some(pairs) = u128::from(buckets / 2).checked_pow(4 * slots) else {
        return u64::MAX;
    };
    let factorial: u128 = (1..=u128::from(crowd)).product();
    let Some(crowds) = (pairs / FILLINGS).checked_mul(factorial) else {
        return u64::MAX;
    };
    let mut least = 0;
    let mut most = buckets * u64::from(slots);
    while least < most {
        let middle = least + (most - least).div_ceil(2);
        match u128::from(middle).checked_pow(crowd) {
            Some(power) if power <= crowds => least = middle,
            _ => most = middle - 1,
        }
    }
    least + u64::from(slots)
}

/// The fewest buckets that almost certainly hold this many items.
fn buckets_for(capacity: u64, bucket_size: u8) -> u64 {
    let slots = (capacity * 100).div_ceil(load_percent(bucket_size));
    let mut buckets = slots.div_ceil(u64::from(bucket_size)).next_multiple_of(2);
    while fill_limit(buckets, bucket_size) < capacity {
        buckets += 2;
    }
    buckets
}

/// As [`buckets_for`], with more free slots if searches look at few buckets.
fn buckets_for_search(capacity: u64, bucket_size: u8, max_search: u32) -> u64 {
    let load = load_percent(bucket_size);
    let with_spare = (capacity * load).div_ceil(load - spare_percent(max_search));
    // Two buckets fill all their slots without any search.
    let needs_search = capacity > 2 * u64::from(bucket_size);
    buckets_for(
        if needs_search { with_spare } else { capacity },
        bucket_size,
    )
}

/// Whether fingerprints of this length suffice for the capacity.
fn fingerprints_suffice(capacity: u64, bits: u8, bucket_size: u8, buckets: u64) -> bool {
    // The estimate supposes fingerprints that are spread evenly, which they are not quite: so twice the share may fail.
    capacity <= 2 * u64::from(bucket_size)
        || bits > SHORT_BITS_MAX
        || crowded_pairs(capacity, bits, bucket_size, buckets) <= 2.0 / FILLINGS as f64
}

/// How many pairs, on average, are chosen by more items than their two buckets hold, if fingerprints are short.
///
/// Each of the `2^f − 1` fingerprints leads from a bucket to one other. So there are at most `(2^f − 1) · m/2` pairs. There are
/// fewer, chosen more often, where several fingerprints have the same sum of their pair. The result is
/// `m/2 · C(n, 2b+1) · Σ p^(2b+1)` over all sums; a sum that `c` fingerprints share has `p = c / ((2^f − 1) · m/2)`.
fn crowded_pairs(items: u64, bits: u8, bucket_size: u8, buckets: u64) -> f64 {
    let crowd = 2 * i32::from(bucket_size) + 1;
    let values = (1_u64 << bits) - 1;
    let mut sums: Vec<u64> = (1..=values)
        .map(|value| sum_of_pair(value, buckets))
        .collect();
    sums.sort_unstable();
    let pairs = buckets as f64 / 2.0;
    // The binomial coefficient alone would overflow, and the power alone underflow: so each factor takes its share of both.
    let chances = |alike: usize| {
        let p = alike as f64 / (values as f64 * pairs);
        (0..crowd)
            .map(|taken| (items as f64 - f64::from(taken)) / f64::from(taken + 1) * p)
            .product::<f64>()
    };
    pairs
        * sums
            .chunk_by(|a, b| a == b)
            .map(|alike| chances(alike.len()))
            .sum::<f64>()
}
