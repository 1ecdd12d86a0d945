//! The plan of a table: its mode, and its number of buckets and slots. All else about a table follows from it.

use super::layout::{self, Expansion, FINGERPRINT_BITS_MAX, STRICT_FINGERPRINT_BITS};
use super::memory::MemoryNeed;
use super::sizing;
use super::slots::{Lanes, STRICT_SLOTS};
use serde::{Deserialize, Serialize};

/// The plan of a table. A snapshot stores it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum TablePlan {
    /// Segment `k` of a compact filter of which each segment is larger than the one before. Where items are forgotten, `step_bits` of each
    /// slot say in which step its item was added.
    Segment { base_bits: u8, step_bits: u8, bucket_size: u8, base_buckets: u64, k: u32 },
    /// A strict table.
    Strict { buckets: u64 },
    /// A table of a compact filter whose segments double. Its buckets are `base_buckets`, doubled so often. `spare_bits` of each slot are
    /// bits of a bucket number: the table can be doubled so many times more.
    Doubling { base_bits: u8, bucket_size: u8, base_buckets: u64, segment: u8, doublings: u8, spare_bits: u8 },
}

impl TablePlan {
    pub(super) fn buckets(&self) -> u64 {
        match *self {
            Self::Segment { base_buckets, k, .. } => base_buckets << k,
            Self::Strict { buckets } => buckets,
            Self::Doubling { base_buckets, doublings, .. } => base_buckets << doublings,
        }
    }

    /// The number of a segment of a compact filter; 0 for a strict table.
    pub(super) fn segment(&self) -> u32 {
        match *self {
            Self::Segment { k, .. } => k,
            Self::Strict { .. } => 0,
            Self::Doubling { segment, .. } => u32::from(segment),
        }
    }

    /// How often the buckets of the first segment were doubled for it, counting the doublings whose bits are still in the slots.
    pub(super) fn level(&self) -> u32 {
        match *self {
            Self::Segment { k, .. } => k,
            Self::Strict { .. } => 0,
            Self::Doubling { doublings, spare_bits, .. } => u32::from(doublings) + u32::from(spare_bits),
        }
    }

    /// How a filter with this first table takes more memory.
    pub(super) fn expansion(&self) -> Expansion {
        match self {
            Self::Doubling { .. } => Expansion::Doubling,
            Self::Segment { .. } | Self::Strict { .. } => Expansion::Segments,
        }
    }

    /// Bits of a slot that are bits of a bucket number.
    pub(super) fn spare_bits(&self) -> u32 {
        match *self {
            Self::Segment { .. } | Self::Strict { .. } => 0,
            Self::Doubling { spare_bits, .. } => u32::from(spare_bits),
        }
    }

    /// The same segment with another number.
    pub(super) fn with_number(self, number: u32) -> Self {
        match self {
            Self::Segment { base_bits, step_bits, bucket_size, base_buckets, .. } => {
                Self::Segment { base_bits, step_bits, bucket_size, base_buckets, k: number }
            }
            Self::Strict { .. } | Self::Doubling { .. } => self,
        }
    }

    /// A table of the same segment with twice as many buckets, or so many times twice; none if it has not so many bits to spare.
    pub(super) fn doubled(self, times: u8) -> Option<Self> {
        let Self::Doubling { base_bits, bucket_size, base_buckets, segment, doublings, spare_bits } = self
        else {
            return None;
        };
        let (doublings, spare_bits) = (doublings + times, spare_bits.checked_sub(times)?);
        Some(Self::Doubling { base_bits, bucket_size, base_buckets, segment, doublings, spare_bits })
    }

    pub(super) fn bucket_size(&self) -> u8 {
        match *self {
            Self::Segment { bucket_size, .. } | Self::Doubling { bucket_size, .. } => bucket_size,
            Self::Strict { .. } => STRICT_SLOTS as u8,
        }
    }

    /// Bits of a slot that tell items apart within a bucket.
    pub(super) fn fingerprint_bits(&self) -> u8 {
        match *self {
            Self::Segment { base_bits, k, .. } => base_bits + k as u8,
            Self::Strict { .. } => STRICT_FINGERPRINT_BITS,
            Self::Doubling { base_bits, segment, spare_bits, .. } => base_bits + segment + spare_bits,
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
            Self::Doubling { base_bits, bucket_size, base_buckets, segment, doublings, spare_bits } => {
                let bits = [base_bits, segment, spare_bits].map(u32::from).iter().sum::<u32>();
                let level = u32::from(doublings) + u32::from(spare_bits);
                level < 32
                    && (segment > 0 || level == 0)
                    && base_buckets <= layout::SEGMENT_BUCKETS_MAX >> level
                    && layout::FINGERPRINT_BITS_MIN <= base_bits
                    && bits <= u32::from(FINGERPRINT_BITS_MAX)
                    && matches!(bucket_size, 2 | 4 | 8)
            }
        };
        shape_fits && self.buckets() >= 2 && self.buckets().is_multiple_of(2)
    }

    /// Bits of a slot that say in which step its item was added.
    pub(super) fn step_bits(&self) -> u8 {
        match *self {
            Self::Segment { step_bits, .. } => step_bits,
            Self::Strict { .. } | Self::Doubling { .. } => 0,
        }
    }

    /// The layout of its table alone.
    pub(super) fn layout(&self) -> layout::Layout {
        layout::Layout {
            fingerprint_bits: self.fingerprint_bits(),
            step_bits: self.step_bits(),
            bucket_size: self.bucket_size(),
            buckets: self.buckets(),
            max_search: 1,
        }
    }
}
