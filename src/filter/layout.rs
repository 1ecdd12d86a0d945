//! Capacity and error rate → fingerprint bits, bucket size, buckets: the sizing formula.
//!
//! Floats are for planning only: a resolved [`Layout`] is all that a filter ever computes with.

use serde::{Deserialize, Serialize};
use thiserror::Error;

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
            .filter_map(|bucket_size| Self::smallest(capacity, share, bucket_size))
            .min_by_key(Self::memory_bytes)
            .ok_or(LayoutError::ErrorRate(error_rate))
    }

    fn smallest(capacity: u64, error_rate: f64, bucket_size: u8) -> Option<Self> {
        (planned_bits_min(bucket_size)..=FINGERPRINT_BITS_MAX)
            .map(|fingerprint_bits| Self {
                fingerprint_bits,
                bucket_size,
                buckets: buckets_for(capacity, bucket_size),
                max_search: MAX_SEARCH_DEFAULT,
            })
            .find(|layout| layout.error_rate_at(1.0) <= error_rate)
    }

    /// A compact layout for `capacity` items with the rest as given.
    pub fn compact_with(
        capacity: u64,
        fingerprint_bits: u8,
        bucket_size: u8,
        max_search: u32,
    ) -> Result<Self, LayoutError> {
        check_capacity(capacity)?;
        if !matches!(bucket_size, 2 | 4 | 8) {
            return Err(LayoutError::BucketSize(bucket_size));
        }
        let layout =
            Self { fingerprint_bits, bucket_size, buckets: buckets_for(capacity, bucket_size), max_search };
        layout.check(Mode::Compact)?;
        Ok(layout)
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

    /// Items that the first table takes before a filter that grows does so; one that doesn't fills on to the last free slot
    /// that a search finds.
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

/// Items that a table of so many buckets is meant for: what a breadth-first search reaches with ease.
pub(super) fn fill_limit(buckets: u64, bucket_size: u8) -> u64 {
    let percent = load_percent(bucket_size);
    let slots = buckets * u64::from(bucket_size);
    let spare = spare_slots(slots);
    (slots * percent / 100).saturating_sub(spare).max(1)
}

const fn load_percent(bucket_size: u8) -> u64 {
    match bucket_size {
        2 => 80,
        4 => 95,
        _ => 98,
    }
}

/// Bits of the shortest fingerprint that is planned with. A shorter one leads to so few other buckets that a large table is
/// full before its share of slots is taken (Fan et al., section 4 and figure 2): it takes an explicit layout to have one.
const fn planned_bits_min(bucket_size: u8) -> u8 {
    match bucket_size {
        2 => 8,
        4 => 6,
        _ => 5,
    }
}

/// Slots that a small table keeps free beyond its share, where chance weighs more.
const fn spare_slots(slots: u64) -> u64 {
    if slots < 1 << 10 { 1 } else { 0 }
}

fn buckets_for(capacity: u64, bucket_size: u8) -> u64 {
    let slots = (capacity * 100).div_ceil(load_percent(bucket_size));
    let mut buckets = slots.div_ceil(u64::from(bucket_size)).next_multiple_of(2);
    while fill_limit(buckets, bucket_size) < capacity {
        buckets += 2;
    }
    buckets
}

fn check_capacity(capacity: u64) -> Result<(), LayoutError> {
    if (1..=CAPACITY_MAX).contains(&capacity) { Ok(()) } else { Err(LayoutError::Capacity(capacity)) }
}
