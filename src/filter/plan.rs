//! The plan of a table: its mode, and its number of buckets and slots. All else about a table follows from it.

use super::layout::{self, FINGERPRINT_BITS_MAX, STRICT_FINGERPRINT_BITS};
use super::memory::MemoryNeed;
use super::sizing;
use super::slots::{Lanes, STRICT_SLOTS};
use serde::{Deserialize, Serialize};

/// The plan of a table. A snapshot stores it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum TablePlan {
    /// Segment `k` of a compact filter. Where items are forgotten, `step_bits` of each slot say in which step its item was added.
    Segment { base_bits: u8, step_bits: u8, bucket_size: u8, base_buckets: u64, k: u32 },
    /// A strict table.
    Strict { buckets: u64 },
}

impl TablePlan {
    pub(super) fn buckets(&self) -> u64 {
        match *self {
            Self::Segment { base_buckets, k, .. } => base_buckets << k,
            Self::Strict { buckets } => buckets,
        }
    }

    /// The number of a segment of a compact filter; 0 for a strict table.
    pub(super) fn segment(&self) -> u32 {
        match *self {
            Self::Segment { k, .. } => k,
            Self::Strict { .. } => 0,
        }
    }

    pub(super) fn bucket_size(&self) -> u8 {
        match *self {
            Self::Segment { bucket_size, .. } => bucket_size,
            Self::Strict { .. } => STRICT_SLOTS as u8,
        }
    }

    pub(super) fn fingerprint_bits(&self) -> u8 {
        match *self {
            Self::Segment { base_bits, k, .. } => base_bits + k as u8,
            Self::Strict { .. } => STRICT_FINGERPRINT_BITS,
        }
    }

    pub(super) fn lanes(&self) -> Lanes {
        self.layout().lanes()
    }

    pub(super) fn words(&self) -> u64 {
        self.lanes().words(self.buckets())
    }

    /// The memory of its table.
    pub(super) fn memory(&self) -> MemoryNeed {
        MemoryNeed::table(self.words() * 8)
    }

    /// Items that the table takes before it counts as full, whatever they are.
    pub(super) fn fill_limit(&self) -> u64 {
        sizing::fill_limit(self.buckets(), self.bucket_size())
    }

    /// Whether a table can have this plan. One that was read from a disk may be damaged.
    pub(super) fn is_sane(&self) -> bool {
        let shape_fits = match *self {
            Self::Segment { base_bits, step_bits, bucket_size, base_buckets, k } => {
                k < 32
                    && step_bits <= layout::STEP_BITS_MAX
                    && base_buckets <= layout::SEGMENT_BUCKETS_MAX >> k
                    && layout::FINGERPRINT_BITS_MIN <= base_bits
                    && u32::from(base_bits) + k <= u32::from(FINGERPRINT_BITS_MAX)
                    && matches!(bucket_size, 2 | 4 | 8)
            }
            Self::Strict { buckets } => buckets <= layout::BUCKETS_MAX,
        };
        shape_fits && self.buckets() >= 2 && self.buckets().is_multiple_of(2)
    }

    /// Bits of a slot that say in which step its item was added.
    pub(super) fn step_bits(&self) -> u8 {
        match *self {
            Self::Segment { step_bits, .. } => step_bits,
            Self::Strict { .. } => 0,
        }
    }

    fn layout(&self) -> layout::Layout {
        layout::Layout {
            fingerprint_bits: self.fingerprint_bits(),
            step_bits: self.step_bits(),
            bucket_size: self.bucket_size(),
            buckets: self.buckets(),
            max_search: 1,
        }
    }
}
