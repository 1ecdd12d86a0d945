//! The layout of a filter: its mode, and the shape of its first table. [`crate::sizing`] computes it from a capacity and an error rate.
//!
//! A filter computes with the layout alone, which has no floats in it: so it behaves the same on any machine.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::slots::{Lanes, STRICT_SLOT_BITS, STRICT_SLOTS};

/// The greatest capacity that a filter can be created with.
pub const CAPACITY_MAX: u64 = 1 << 32;
/// The most buckets of a table. Up to here, the bucket and the fingerprint of a compact filter have no digest bit in common.
pub(crate) const BUCKETS_MAX: u64 = 1 << 32;

/// Maximum number of slots of a bucket.
pub(crate) const BUCKET_SIZE_MAX: usize = 8;
/// The fewest bits of a compact filter's fingerprint.
pub const FINGERPRINT_BITS_MIN: u8 = 4;
/// The most bits of a compact filter's fingerprint.
pub const FINGERPRINT_BITS_MAX: u8 = 32;
/// The most bits of a slot that say in which step its item was added.
pub(crate) const STEP_BITS_MAX: u8 = 6;
/// The fewest steps in which a filter forgets.
pub const STEPS_MIN: u32 = 2;
/// The most steps in which a filter forgets.
pub const STEPS_MAX: u32 = 32;
/// Bits of digest in a slot of a strict filter, which also has 2 bits of state.
pub const STRICT_FINGERPRINT_BITS: u8 = 62;
/// The lowest error rate that a compact filter can be created with.
pub const ERROR_RATE_MIN: f64 = 1e-8;
/// The highest error rate that a compact filter can be created with.
pub const ERROR_RATE_MAX: f64 = 0.5;
/// How many buckets an insert searches for a path to a free slot, unless the layout says otherwise.
pub const MAX_SEARCH_DEFAULT: u32 = 2_000;
/// The most buckets that a layout can let an insert search.
pub const MAX_SEARCH_LIMIT: u32 = 16_384;

/// The fewest buckets that an insert searches. A filter of fixed size promises its capacity, so its layout can't have fewer. A filter that
/// grows may have such a layout, but searches this many: otherwise it would grow before its tables are full.
pub const FIXED_SEARCH_MIN: u32 = 250;

/// The content of a slot: a fingerprint, or a digest and a state.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// A fingerprint: a few bytes per item, and some false positives.
    Compact,
    /// 62 bits of digest and a state: 8.5 bytes per item, and practically no false positives.
    Strict,
}

/// Whether a filter grows beyond its capacity.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Growth {
    /// It grows.
    Auto,
    /// It rejects more items when it is full.
    Fixed,
}

/// How a filter that grows makes room for an item that finds none. Filters that must stay equal follow the same rule.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum GrowthRule {
    /// A table is copied at once if the item needs the larger one. A table crowded with copies of a few items is doubled until it has half
    /// of all buckets.
    #[default]
    Immediate,
    /// No insert copies more than a small table. If a larger table has no place for an item before it is full, another one is appended, and
    /// a copy in progress is dropped. If the filter forgets, the item takes a free slot of an older table first.
    Paced,
}

/// The shape of a filter's first table. Filters of equal layouts behave the same, on any machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Layout {
    /// Bits of digest in a slot; 62 in a strict table.
    pub fingerprint_bits: u8,
    /// Bits of a slot that say in which step its item was added; 0 in filters that forget nothing.
    pub step_bits: u8,
    /// Slots of a bucket: 2, 4 or 8.
    pub bucket_size: u8,
    /// Buckets of the first table, an even number.
    pub buckets: u64,
    /// Maximum number of buckets that an insert searches for a path to a free slot. Fewer than [`FIXED_SEARCH_MIN`] count as that.
    pub max_search: u32,
}

/// An invalid layout: the wrong field, and its permitted values.
#[derive(Clone, Copy, PartialEq, Debug, Error)]
pub enum LayoutError {
    /// The capacity is out of range.
    #[error("capacity must be between 1 and {CAPACITY_MAX}, not {0}")]
    Capacity(u64),
    /// The error rate is out of range, or not a number.
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
    /// The number of steps is out of range.
    #[error("forget_steps must be between {STEPS_MIN} and {STEPS_MAX}, not {0}")]
    Steps(u32),
    /// Only a layout that is damaged, or was made elsewhere, has such a number.
    #[error("a slot can't have {0} bits that say in which step its item was added")]
    StepBits(u8),
    /// No table has this number of buckets. Only a damaged or foreign layout has it.
    #[error("a table of {0} buckets can't be")]
    Buckets(u64),
}

impl Layout {
    /// Validates a layout from any source for a filter of this mode.
    pub fn check(&self, mode: Mode) -> Result<(), LayoutError> {
        let (bits, size_fits) = match mode {
            Mode::Compact => (
                FINGERPRINT_BITS_MIN..=FINGERPRINT_BITS_MAX,
                matches!(self.bucket_size, 2 | 4 | 8),
            ),
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
        if self.step_bits
            > if mode == Mode::Compact {
                STEP_BITS_MAX
            } else {
                0
            }
        {
            return Err(LayoutError::StepBits(self.step_bits));
        }
        if !(1..=MAX_SEARCH_LIMIT).contains(&self.max_search) {
            return Err(LayoutError::MaxSearch(self.max_search));
        }
        if !(2..=BUCKETS_MAX).contains(&self.buckets) || !self.buckets.is_multiple_of(2) {
            return Err(LayoutError::Buckets(self.buckets));
        }
        Ok(())
    }

    /// Slots of the first table.
    pub fn slots(&self) -> u64 {
        self.buckets * u64::from(self.bucket_size)
    }

    /// Memory of the first table, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        let is_strict = self.fingerprint_bits == STRICT_FINGERPRINT_BITS;
        let compact_bits = u32::from(self.fingerprint_bits) + u32::from(self.step_bits);
        let slot_bits = if is_strict {
            STRICT_SLOT_BITS
        } else {
            compact_bits
        };
        Lanes::new(slot_bits, u32::from(self.bucket_size)).words(self.buckets) * 8
    }

    /// Bits of memory per item once the first table holds `items`.
    pub fn bits_per_item(&self, items: u64) -> f64 {
        (self.memory_bytes() * 8) as f64 / items as f64
    }

    /// The first table's error rate when `load` (0 to 1) of its slots are taken.
    ///
    /// A lookup compares `2·b·load` fingerprints. A stranger's fingerprint equals any of them with `p = 1 / (2^f − 1)`, since no
    /// fingerprint is zero. So the rate is `1 − (1 − p)^(2·b·load)`.
    pub fn error_rate_at(&self, load: f64) -> f64 {
        let fingerprints = f64::from(self.fingerprint_bits).exp2() - 1.0;
        -f64::exp_m1(2.0 * f64::from(self.bucket_size) * load * f64::ln_1p(-1.0 / fingerprints))
    }
}
