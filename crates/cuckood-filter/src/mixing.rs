//! The arithmetic that spreads fingerprints over bucket pairs.

/// The sum of the two bucket numbers of a fingerprint, modulo the number of buckets, in a first segment.
pub(super) fn sum_of_pair(value: u64, buckets: u64) -> u64 {
    sum_of_mixed(mix(value), buckets)
}

/// [`sum_of_pair`] of a fingerprint that is mixed already.
///
/// The sum is odd and the number of buckets even. So one bucket of a pair is even and the other odd: they always differ.
#[inline(always)]
pub(super) fn sum_of_mixed(mixed: u64, buckets: u64) -> u64 {
    multiply_high(mixed, buckets) | 1
}

/// The upper half of a 128-bit product: it scales `value` from 64 bits down to a number below `factor`.
#[inline(always)]
pub(super) fn multiply_high(value: u64, factor: u64) -> u64 {
    ((u128::from(value) * u128::from(factor)) >> 64) as u64
}

/// Scatters the bits of a value.
///
/// One multiplication would turn neighbouring values into an arithmetic progression: the difference of two sums would depend
/// on the difference of the fingerprints alone, and relocations would reach few buckets. Hence two.
#[inline(always)]
pub(super) fn mix(value: u64) -> u64 {
    let value = value.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (value ^ (value >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93)
}
