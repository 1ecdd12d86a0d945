//! Capacity and error rate → fingerprint bits, bucket size, buckets: the sizing formula.
//!
//! Floats are for planning only: a resolved [`Layout`] is all that a filter ever computes with.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::sizing::{buckets_for, buckets_for_search, fill_limit, fingerprints_suffice, planned_bits_min};
use super::slots::{Lanes, STRICT_SLOTS};

/// Items that a filter can be planned for.
pub const CAPACITY_MAX: u64 = 1 << 32;
/// Buckets of a compact table at most: bucket and fingerprint then take no digest bit in common.
pub(super) const BUCKETS_MAX: u64 = 1 << 32;

/// Buckets of the largest segment of a compact filter.
pub(super) const SEGMENT_BUCKETS_MAX: u64 = 1 << 32;
/// Bits of the shortest compact fingerprint.
pub const FINGERPRINT_BITS_MIN: u8 = 4;
/// Bits of the longest compact fingerprint.
pub const FINGERPRINT_BITS_MAX: u8 = 32;
/// Digest bits in a strict slot, beside 2 bits of state.
pub const STRICT_FINGERPRINT_BITS: u8 = 62;
/// The least error rate that a compact filter can be asked for.
pub const ERROR_RATE_MIN: f64 = 1e-8;
/// The greatest error rate that a compact filter can be asked for.
pub const ERROR_RATE_MAX: f64 = 0.5;
/// Buckets looked at for a path to a free slot, unless the layout says otherwise.
pub const MAX_SEARCH_DEFAULT: u32 = 2_000;
/// Buckets looked at for a path to a free slot, at most.
pub const MAX_SEARCH_LIMIT: u32 = 16_384;

/// Buckets looked at for a path to a free slot, at least, in a filter of fixed size: it promises its capacity.
pub const FIXED_SEARCH_MIN: u32 = 250;

/// What a filter's slots hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// A fingerprint, as short as the error rate allows.
    Compact,
    /// 62 bits of the digest and 2 bits of state.
    Strict,
}

/// What a filter does when it is full.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Growth {
    /// It takes more memory.
    Auto,
    /// It refuses.
    Fixed,
}

/// The resolved geometry of a filter's first table. Equal layouts behave alike, on any machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Layout {
    /// Bits of digest in a slot; 62 in a strict table.
    pub fingerprint_bits: u8,
    /// Slots of a bucket: 2, 4 or 8.
    pub bucket_size: u8,
    /// Buckets of the first table, an even number.
    pub buckets: u64,
    /// Buckets looked at for a path to a free slot, before an insert gives up.
    pub max_search: u32,
}

/// A layout that can't be: which field, and what it may be.
#[derive(Clone, Copy, PartialEq, Debug, Error)]
pub enum LayoutError {
    /// The capacity is out of range.
    #[error("capacity must be between 1 and {CAPACITY_MAX}, not {0}")]
    Capacity(u64),
    /// The error rate is out of range, or no number.
    #[error("error_rate must be between {ERROR_RATE_MIN} and {ERROR_RATE_MAX}, not {0}")]
    ErrorRate(f64),
    /// The fingerprint is too short or too long.
    #[error(
        "layout.fingerprint_bits must be between {FINGERPRINT_BITS_MIN} and {FINGERPRINT_BITS_MAX}, not {0}"
    )]
    FingerprintBits(u8),
    /// There is no such bucket size.
    #[error("layout.bucket_size must be 2, 4 or 8, not {0}")]
    BucketSize(u8),
    /// The search limit is out of range.
    #[error("layout.max_search must be between 1 and {MAX_SEARCH_LIMIT}, not {0}")]
    MaxSearch(u32),
    /// The search is too short for a filter that may not grow.
    #[error("layout.max_search must be at least {FIXED_SEARCH_MIN} where growth is fixed, not {0}")]
    FixedSearch(u32),
    /// The fingerprints are too short for a filter that may not grow.
    #[error(
        "layout.fingerprint_bits must be at least {least} for {capacity} items in buckets of {bucket_size} where growth is fixed, not {bits}: \
         fewer lead to too few buckets"
    )]
    FixedFingerprintBits {
        /// Bits asked for.
        bits: u8,
        /// Bits that would do.
        least: u8,
        /// Items.
        capacity: u64,
        /// Slots of a bucket.
        bucket_size: u8,
    },
    /// The number of buckets does not fit the rest. Only a damaged or foreign layout gets here.
    #[error("a table of {0} buckets can't be")]
    Buckets(u64),
}

impl Layout {
    /// The smallest compact layout that holds `capacity` items and keeps `error_rate`, even filled to the last slot.
    ///
    /// The first segment of a filter that grows gets half of `error_rate`: each further one has a fingerprint one bit longer, and
    /// 1/2 + 1/4 + … stays below 1.
    pub fn compact(capacity: u64, error_rate: f64, growth: Growth) -> Result<Self, LayoutError> {
        check_capacity(capacity)?;
        if !(ERROR_RATE_MIN..=ERROR_RATE_MAX).contains(&error_rate) {
            return Err(LayoutError::ErrorRate(error_rate));
        }
        let share = match growth {
            Growth::Auto => error_rate / 2.0,
            Growth::Fixed => error_rate,
        };
        // Of layouts of one size the first wins: four slots fill best for what a look-up reads.
        [4, 2, 8]
            .into_iter()
            .filter_map(|bucket_size| Self::smallest(capacity, share, growth, bucket_size))
            .min_by_key(Self::memory_bytes)
            .ok_or(LayoutError::ErrorRate(error_rate))
    }

    fn smallest(capacity: u64, error_rate: f64, growth: Growth, bucket_size: u8) -> Option<Self> {
        let buckets = buckets_for(capacity, bucket_size);
        (planned_bits_min(bucket_size)..=FINGERPRINT_BITS_MAX)
            .map(|fingerprint_bits| Self {
                fingerprint_bits,
                bucket_size,
                buckets,
                max_search: MAX_SEARCH_DEFAULT,
            })
            .find(|layout| {
                let bits = layout.fingerprint_bits;
                layout.error_rate_at(1.0) <= error_rate
                    && (growth == Growth::Auto || fingerprints_suffice(capacity, bits, bucket_size, buckets))
            })
    }

    /// A compact layout for `capacity` items with the rest as given.
    ///
    /// # Errors
    /// When a value is out of range, or with `growth` fixed promises no room for `capacity` items.
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
        let mut layout = Self { fingerprint_bits, bucket_size, buckets, max_search };
        layout.check(Mode::Compact)?;
        if growth == Growth::Fixed {
            layout.buckets = layout.fixed_buckets(capacity)?;
        }
        Ok(layout)
    }

    /// Buckets that hold `capacity` items for certain.
    fn fixed_buckets(&self, capacity: u64) -> Result<u64, LayoutError> {
        let Self { fingerprint_bits: bits, bucket_size, max_search, .. } = *self;
        if max_search < FIXED_SEARCH_MIN {
            return Err(LayoutError::FixedSearch(max_search));
        }
        let fewest = buckets_for_search(capacity, bucket_size, max_search);
        // Short fingerprints fit a table that is emptier; but one that is half empty for their sake saves nothing.
        let fitting = |bits| {
            (0..=8)
                .map(|eighths| (fewest + fewest * eighths / 8).next_multiple_of(2))
                .find(|&buckets| fingerprints_suffice(capacity, bits, bucket_size, buckets))
        };
        fitting(bits).ok_or_else(|| {
            let least = (bits..FINGERPRINT_BITS_MAX).find(|&bits| fitting(bits).is_some());
            let least = least.unwrap_or(FINGERPRINT_BITS_MAX);
            LayoutError::FixedFingerprintBits { bits, least, capacity, bucket_size }
        })
    }

    /// The strict layout for `capacity` items.
    pub fn strict(capacity: u64) -> Result<Self, LayoutError> {
        check_capacity(capacity)?;
        let bucket_size = STRICT_SLOTS as u8;
        Ok(Self {
            fingerprint_bits: STRICT_FINGERPRINT_BITS,
            bucket_size,
            buckets: buckets_for(capacity, bucket_size),
            max_search: MAX_SEARCH_DEFAULT,
        })
    }

    /// Whether a filter of this mode can be built on this layout, which may come from anywhere.
    pub fn check(&self, mode: Mode) -> Result<(), LayoutError> {
        let (bits, size_fits) = match mode {
            Mode::Compact => {
                (FINGERPRINT_BITS_MIN..=FINGERPRINT_BITS_MAX, matches!(self.bucket_size, 2 | 4 | 8))
            }
            Mode::Strict => (
                STRICT_FINGERPRINT_BITS..=STRICT_FINGERPRINT_BITS,
                u32::from(self.bucket_size) == STRICT_SLOTS,
            ),
        };
        if !bits.contains(&self.fingerprint_bits) {
            return Err(LayoutError::FingerprintBits(self.fingerprint_bits));
        }
        if !size_fits {
            return Err(LayoutError::BucketSize(self.bucket_size));
        }
        if !(1..=MAX_SEARCH_LIMIT).contains(&self.max_search) {
            return Err(LayoutError::MaxSearch(self.max_search));
        }
        if !(2..=BUCKETS_MAX).contains(&self.buckets) || !self.buckets.is_multiple_of(2) {
            return Err(LayoutError::Buckets(self.buckets));
        }
        Ok(())
    }

    /// The first table's slots.
    pub fn slots(&self) -> u64 {
        self.buckets * u64::from(self.bucket_size)
    }

    /// Items that the first table takes, whatever they are: then a filter that grows does so; one that doesn't fills on to the
    /// last free slot that a search finds.
    pub fn capacity(&self) -> u64 {
        fill_limit(self.buckets, self.bucket_size)
    }

    /// Memory of the first table, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        self.lanes().words(self.buckets) * 8
    }

    /// Memory an item, in bits, once the first table holds `items`.
    pub fn bits_per_item(&self, items: u64) -> f64 {
        (self.memory_bytes() * 8) as f64 / items as f64
    }

    /// The first table's error rate when `load` (0 to 1) of its slots are taken: `1 − (1 − p)^(2·b·load)`, where a stranger's
    /// fingerprint equals another's with `p = 1 / (2^f − 1)`, zero being none.
    pub fn error_rate_at(&self, load: f64) -> f64 {
        error_rate(fingerprints(self.fingerprint_bits, 0), self.bucket_size, load)
    }

    pub(super) fn lanes(&self) -> Lanes {
        if self.fingerprint_bits == STRICT_FINGERPRINT_BITS {
            Lanes::new(64, STRICT_SLOTS, super::place::STATE_MASK)
        } else {
            Lanes::new(u32::from(self.fingerprint_bits), u32::from(self.bucket_size), 0)
        }
    }
}

/// Distinct fingerprints in segment `k` of a filter that starts at `base_bits`.
pub(super) fn fingerprints(base_bits: u8, k: u32) -> f64 {
    (f64::from(base_bits).exp2() - 1.0) * f64::from(k).exp2()
}

/// The error rate of a table with so many distinct fingerprints; see [`Layout::error_rate_at`].
pub(super) fn error_rate(fingerprints: f64, bucket_size: u8, load: f64) -> f64 {
    -f64::exp_m1(2.0 * f64::from(bucket_size) * load * f64::ln_1p(-1.0 / fingerprints))
}

fn check_capacity(capacity: u64) -> Result<(), LayoutError> {
    if (1..=CAPACITY_MAX).contains(&capacity) { Ok(()) } else { Err(LayoutError::Capacity(capacity)) }
}
