//! Capacity → buckets: how full a table gets before an item finds no place, and how long its fingerprints must be for that.
//!
//! A table takes its capacity with all but certainty: of a hundred million fillings with different items one may fail, by
//! each of three causes.
//!
//! - *A crowded pair.* Two buckets of `b` slots hold `2b` items, and no move helps a further one that has both. `n` items
//!   choose among `(m/2)²` pairs of `m` buckets (one has an even number, the other an odd one), so a pair is wanted by
//!   `2b + 1` with a probability of at most `C(n, 2b+1) · (m²/4) · (4/m²)^(2b+1) ≤ (n − b)^(2b+1) · (2/m)^(4b) / (2b+1)!`.
//!   This is the first term of the union bound over all sets of buckets (Dietzfelbinger and Weidling, "Balanced allocation
//!   and dictionaries with tightly packed constant size bins", 2007); the others together are smaller wherever it limits.
//! - *A crowded table.* Random pairs fill at most 89.7, 98.0 or 99.8 % of buckets of 2, 4 or 8 slots (Fernholz and
//!   Ramachandran, "The k-orientability thresholds for G(n, p)", 2007). Where a table of `s` slots is full varies
//!   by 0.44·√s, 0.20·√s or 0.08·√s (standard deviation, measured); seven of them are kept free. And some bucket is wanted by
//!   fewer items than it has slots: in a small table that weighs more than the spread, so two buckets and two slots are kept
//!   free besides. With both, [`fill_limit`] lies below what one of a hundred million fillings needs, by the union bound
//!   where that is sharp (small tables), by measured quantiles of 10⁵ fillings carried on where it isn't.
//!   A search finds its way with ease only somewhat below: at 80, 95 and 98 % the share of those that find none falls by half
//!   with every 7, 21 and 10 further buckets that are looked at (measured at a million items).
//! - *Short fingerprints.* `f` bits are `2^f − 1` values, and all items alike in one share their pairs' sum: see
//!   [`crowded_pairs`].

use super::place::sum_of_pair;

/// Fillings of which one may fail, by each cause.
const FILLINGS: u128 = 100_000_000;

/// Longer fingerprints than this crowd no pair that chance doesn't: with 13 bits, and buckets of two slots, less than one of a
/// million fillings with four thousand million items fails.
const SHORT_BITS_MAX: u8 = 12;

/// Bits of the shortest fingerprint with which a large table is filled to its share, measured: a shorter one leads to so few
/// other buckets that it is full before (Fan et al., section 4 and figure 2). It takes an explicit layout to have one.
pub(super) const fn planned_bits_min(bucket_size: u8) -> u8 {
    match bucket_size {
        2 => 8,
        4 => 6,
        _ => 5,
    }
}

/// Percent of a large table's slots that a search finds its way to.
const fn load_percent(bucket_size: u8) -> u64 {
    match bucket_size {
        2 => 80,
        4 => 95,
        _ => 98,
    }
}

/// Percent of the slots that stay free besides where a search looks at so few buckets: as few searches then fail as with
/// [`super::layout::MAX_SEARCH_DEFAULT`] in a fuller table, measured.
const fn spare_percent(max_search: u32) -> u64 {
    match max_search {
        1_000.. => 0,
        500..1_000 => 2,
        _ => 6,
    }
}

/// Items that a table of so many buckets takes, whatever they are.
pub(super) fn fill_limit(buckets: u64, bucket_size: u8) -> u64 {
    let slots = buckets * u64::from(bucket_size);
    // In thousandths of the slots, and in tenths of the slots' root.
    let (full, spread) = match bucket_size {
        2 => (880, 30),
        4 => (980, 15),
        _ => (995, 6),
    };
    let free = slots.isqrt() * spread / 10 + 2 * u64::from(bucket_size) + 2;
    let whole = (slots * full / 1_000).saturating_sub(free);
    let searched = slots * load_percent(bucket_size) / 100;
    // A pair of buckets holds as many as it has slots.
    whole.min(searched).min(pairs_limit(buckets, bucket_size)).max(2 * u64::from(bucket_size))
}

/// The most items of which hardly ever `2b + 1` want the same pair: `n` with `(n − b)^(2b+1) ≤ (m/2)^(4b) · (2b+1)! / FILLINGS`.
fn pairs_limit(buckets: u64, bucket_size: u8) -> u64 {
    let slots = u32::from(bucket_size);
    let crowd = 2 * slots + 1;
    // What passes 128 bits limits no table: there are more such pairs than its slots can crowd.
    let Some(pairs) = u128::from(buckets / 2).checked_pow(4 * slots) else { return u64::MAX };
    let factorial: u128 = (1..=u128::from(crowd)).product();
    let Some(crowds) = (pairs / FILLINGS).checked_mul(factorial) else { return u64::MAX };
    let (mut least, mut most) = (0, buckets * u64::from(slots));
    while least < most {
        let middle = least + (most - least).div_ceil(2);
        match u128::from(middle).checked_pow(crowd) {
            Some(power) if power <= crowds => least = middle,
            _ => most = middle - 1,
        }
    }
    least + u64::from(slots)
}

/// The most items of which hardly ever one finds both its buckets full, though none is moved: `n` with
/// `n · C(n, b)² · (2/m)^(2b) ≤ 1 / FILLINGS`, an item and those that fill each of its buckets.
pub(super) fn unsearched_limit(buckets: u64, bucket_size: u8) -> u64 {
    let slots = i32::from(bucket_size);
    let factorial: f64 = (1..=slots).map(f64::from).product();
    let sets = (buckets as f64 / 2.0).powi(2 * slots) * factorial * factorial / FILLINGS as f64;
    let items = sets.powf(1.0 / f64::from(2 * slots + 1)) as u64;
    // Two buckets hold as many as they have slots.
    items.max(u64::from(bucket_size))
}

/// The fewest buckets that take so many items.
pub(super) fn buckets_for(capacity: u64, bucket_size: u8) -> u64 {
    let slots = (capacity * 100).div_ceil(load_percent(bucket_size));
    let mut buckets = slots.div_ceil(u64::from(bucket_size)).next_multiple_of(2);
    while fill_limit(buckets, bucket_size) < capacity {
        buckets += 2;
    }
    buckets
}

/// As [`buckets_for`], with room to spare for a search that looks at few buckets.
pub(super) fn buckets_for_search(capacity: u64, bucket_size: u8, max_search: u32) -> u64 {
    let load = load_percent(bucket_size);
    let with_spare = (capacity * load).div_ceil(load - spare_percent(max_search));
    // Two buckets hold as many as they have slots without any search.
    let needs_search = capacity > 2 * u64::from(bucket_size);
    buckets_for(if needs_search { with_spare } else { capacity }, bucket_size)
}

/// Whether fingerprints of so many bits are long enough for the capacity.
pub(super) fn fingerprints_suffice(capacity: u64, bits: u8, bucket_size: u8, buckets: u64) -> bool {
    // Not every table is as even as the bound on crowded pairs supposes: twice its share is allowed for.
    capacity <= 2 * u64::from(bucket_size)
        || bits > SHORT_BITS_MAX
        || crowded_pairs(capacity, bits, bucket_size, buckets) <= 2.0 / FILLINGS as f64
}

/// The pairs, on average, that more items want than their two buckets hold, if fingerprints are short. Each of the `2^f − 1` values
/// leads from a bucket to one other, so that `(2^f − 1) · m/2` pairs are all there are; fewer, and wanted more often, where
/// values have the same sum. These are counted: `m/2 · C(n, 2b+1) · Σ p^(2b+1)`, of a sum that `c` values have
/// `p = c / ((2^f − 1) · m/2)`.
fn crowded_pairs(items: u64, bits: u8, bucket_size: u8, buckets: u64) -> f64 {
    let crowd = 2 * i32::from(bucket_size) + 1;
    let values = (1_u64 << bits) - 1;
    let mut sums: Vec<u64> = (1..=values).map(|value| sum_of_pair(value, buckets)).collect();
    sums.sort_unstable();
    let pairs = buckets as f64 / 2.0;
    // Items over pairs, and n/1 · (n−1)/2 · … split among the factors: neither alone would fit.
    let chances = |alike: usize| {
        let p = alike as f64 / (values as f64 * pairs);
        (0..crowd).map(|taken| (items as f64 - f64::from(taken)) / f64::from(taken + 1) * p).product::<f64>()
    };
    pairs * sums.chunk_by(|a, b| a == b).map(|alike| chances(alike.len())).sum::<f64>()
}
