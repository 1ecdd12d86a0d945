//! The plan of a table: all else about a table follows from it.

use crate::layout::{
    self, FINGERPRINT_BITS_MAX, GrowthRule, Layout, Mode, STRICT_FINGERPRINT_BITS,
};
use crate::place::Dimensions;
use crate::sizing;
use crate::slots::{Lanes, STATE_BITS, STRICT_SLOTS};
use serde::{Deserialize, Serialize};

/// Spare bits of an appended table: the number of times that it can be doubled. With more, a filter that grows tenfold would be larger;
/// with fewer, one that grows 100 times would have a third table.
const SPARE_BITS: u8 = 7;

/// An appended table has at least one in this many of all slots.
const APPENDED_SHARE: u64 = 16;

/// A table that is appended for crowded copies has at least one in this many of all buckets.
const OVERFLOW_SHARE: u64 = 16;

/// The same after a table that is nearly empty.
const OVERFLOW_SHARE_SMALL: u64 = 64;

/// A table counts as nearly empty if less than one in this many of its slots is taken.
const OVERFLOW_NEARLY_EMPTY: u64 = 8;

/// If fewer bits are left, a table for crowded copies has as many buckets as all others.
const OVERFLOW_BITS_LAST: u8 = 6;

/// Spare bits of a table for crowded copies.
const OVERFLOW_SPARE_BITS: u8 = 2;

/// Tables of fewer words may fill so unevenly that half of their limit is all that can be counted on.
const CERTAIN_WORDS_MIN: u64 = 8 << 10;

/// The plan of a table. A snapshot stores it.
///
/// A filter that is full doubles its newest table, which needs a spare bit (a strict one needs none: its slots hold complete digests), or
/// appends a table. The first table has no spare bits, so a filter of the right size does not pay for growth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TablePlan {
    /// The content of a slot.
    pub(crate) mode: Mode,
    /// Slots of a bucket.
    pub(crate) bucket_size: u8,
    /// Bits of a slot that hold a tag: the step in which a copy was added, or the state of a code.
    pub(crate) tag_bits: u8,
    /// Bits of a fingerprint.
    pub(crate) bits: u8,
    /// Number of older tables. It is also the number of bits by which fingerprints are longer than in the first table.
    pub(crate) number: u8,
    /// Bits of a slot that are bits of a bucket number.
    pub(crate) spare_bits: u8,
    /// How often the buckets were doubled.
    pub(crate) doublings: u8,
    /// Buckets of the filter's first table.
    pub(crate) base_buckets: u64,
}

impl Layout {
    /// Different items that a filter of this layout takes, however it grows.
    pub fn capacity_max(&self, mode: Mode) -> u64 {
        TablePlan::first(mode, self).capacity_max(self)
    }
}

impl TablePlan {
    /// The plan of a filter's first table.
    pub(crate) fn first(mode: Mode, layout: &Layout) -> Self {
        let (tag_bits, bits) = match mode {
            Mode::Compact => (layout.step_bits, layout.fingerprint_bits),
            Mode::Strict => (STATE_BITS as u8, STRICT_FINGERPRINT_BITS),
        };
        Self {
            mode,
            bucket_size: layout.bucket_size,
            tag_bits,
            bits,
            number: 0,
            spare_bits: 0,
            doublings: 0,
            base_buckets: layout.buckets,
        }
    }

    /// Returns whether it is that of a first table which was not doubled.
    pub(crate) fn is_first(&self) -> bool {
        self.number == 0 && self.doublings == 0
    }

    pub(crate) fn buckets(&self) -> u64 {
        self.base_buckets << self.doublings
    }

    /// How often the buckets of the first table were doubled for it, counting the doublings whose bits are still in the slots.
    fn level(&self) -> u8 {
        self.doublings + self.spare_bits
    }

    pub(crate) fn lanes(&self) -> Lanes {
        Lanes::new(
            u32::from(self.bits + self.spare_bits + self.tag_bits),
            u32::from(self.bucket_size),
        )
    }

    /// The numbers from which placement is computed.
    pub(crate) fn dimensions(&self) -> Dimensions {
        let base_bits = self.bits - self.number;
        Dimensions {
            base_buckets: self.base_buckets,
            fingerprints: if self.mode == Mode::Strict {
                0
            } else {
                ((1 << base_bits) - 1) << self.number
            },
            doublings: self.doublings,
            spare_bits: self.spare_bits,
            extra_bits: self.number,
            tag_bits: self.tag_bits,
        }
    }

    pub(crate) fn words(&self) -> u64 {
        self.lanes().words(self.buckets())
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        self.words() * 8
    }

    /// Items that the table takes almost certainly, whatever they are.
    pub(crate) fn capacity(&self) -> u64 {
        sizing::fill_limit(self.buckets(), self.bucket_size)
    }

    /// The most copies of an item, together with colliding ones: the slots of its two buckets. A strict table holds no item twice.
    pub(crate) fn copies_max(&self) -> u32 {
        match self.mode {
            Mode::Compact => 2 * u32::from(self.bucket_size),
            Mode::Strict => 1,
        }
    }

    /// Items with which the table of a filter that grows counts as full. An item that finds no place in a larger table before makes the
    /// filter append one ([`GrowthRule::Paced`]), so there a table in which searches fail early counts as full earlier.
    pub(crate) fn limit(&self, rule: GrowthRule, max_search: u32) -> u64 {
        let planned = self
            .capacity()
            .max(sizing::planned_load(self.buckets(), self.bucket_size));
        match rule {
            GrowthRule::Paced if self.mode == Mode::Compact => {
                let searched = sizing::searched_items(planned, self.bucket_size, max_search);
                let placed = if self.is_hard_to_fill() { 0 } else { searched };
                placed.max(self.certain_items())
            }
            GrowthRule::Paced | GrowthRule::Immediate => planned,
        }
    }

    /// Returns whether fingerprints are so short that a search may fail long before the table is full. Only a caller's own layout of a
    /// filter that grows has such ones.
    pub(crate) fn is_hard_to_fill(&self) -> bool {
        self.bits - self.number < sizing::planned_bits_min(self.bucket_size)
    }

    /// Different items that the table takes for certain before it is replaced or another one is appended.
    pub(crate) fn certain_items(&self) -> u64 {
        // Half of the lowest limit measured in some thousand fillings of up to two million items.
        let sixteenths = match (self.bucket_size, self.bits - self.number) {
            (2, ..=4) => 1,
            (2, 5..=7) => 4,
            _ if self.is_hard_to_fill() || self.words() < CERTAIN_WORDS_MIN => 8,
            _ => 15,
        };
        self.capacity() * sixteenths / 16
    }

    /// The table that replaces it by splitting each bucket into `2^times`; none if it has too few spare bits or would be too large.
    pub(crate) fn doubled(self, times: u8) -> Option<Self> {
        let spare_bits = match self.mode {
            Mode::Compact => self.spare_bits.checked_sub(times)?,
            Mode::Strict => 0,
        };
        let plan = Self {
            doublings: self.doublings.checked_add(times)?,
            spare_bits,
            ..self
        };
        plan.is_sane().then_some(plan)
    }

    /// Returns the table to append after this one in a filter of this many buckets, for at least `items_min` items; `None` if fingerprints
    /// have their maximum length.
    ///
    /// It nests: its bucket numbers have at least the bits of every older table. If it has hardly any spare bits, it starts with twice the
    /// buckets.
    pub(crate) fn appended(self, all_buckets: u64, items_min: u64) -> Option<Self> {
        let bits_left = FINGERPRINT_BITS_MAX.checked_sub(self.bits + 1)?;
        let times = u8::from(bits_left < 2);
        self.after(
            (all_buckets / APPENDED_SHARE) << times,
            items_min,
            SPARE_BITS,
        )
    }

    /// Returns the next table, with at least this many buckets, for at least `items_min` items, and with up to this many spare bits, or more
    /// so that it nests.
    fn after(self, buckets_min: u64, items_min: u64, spare_bits: u8) -> Option<Self> {
        let bits = self.bits + 1;
        let number = self.number + 1;
        FINGERPRINT_BITS_MAX.checked_sub(bits)?;
        let is_large_enough =
            |plan: &Self| plan.buckets() >= buckets_min && plan.capacity() >= items_min;
        let sized = (0..32).map(|doublings| Self {
            bits,
            number,
            doublings,
            spare_bits: 0,
            ..self
        });
        let mut sized = sized.take_while(Self::is_sane).filter(is_large_enough);
        sized.find_map(|plan| {
            let nesting = self.level().saturating_sub(plan.doublings);
            let mut spare = (nesting..=spare_bits.max(nesting)).rev();
            spare.find_map(|spare_bits| Some(Self { spare_bits, ..plan }).filter(Self::is_sane))
        })
    }

    /// Returns the table to append after this one because copies of a few items crowd their buckets in it; `None` if fingerprints have
    /// their maximum length.
    ///
    /// If this table is nearly empty, it takes few items that have no place here, so a small one follows. Each takes a bit of the
    /// fingerprints, so the last ones are large.
    pub(crate) fn overflow(self, all_buckets: u64, held: u64, items_min: u64) -> Option<Self> {
        let bits_left = FINGERPRINT_BITS_MAX.checked_sub(self.bits + 1)?;
        let share = if bits_left < OVERFLOW_BITS_LAST {
            1
        } else if OVERFLOW_NEARLY_EMPTY * held < self.capacity() {
            OVERFLOW_SHARE_SMALL
        } else {
            OVERFLOW_SHARE
        };
        self.after(all_buckets / share, items_min, OVERFLOW_SPARE_BITS)
    }

    /// Different items that it takes before the filter grows, by any rule.
    pub(crate) fn items_max(&self, max_search: u32) -> u64 {
        self.capacity()
            .min(self.limit(GrowthRule::Paced, max_search))
    }

    /// Different items that a filter which starts with this table of the layout `first` holds, once no table can be larger.
    fn capacity_max(mut self, first: &Layout) -> u64 {
        let mut capacity = 0;
        let mut older_buckets = 0;
        loop {
            while let Some(doubled) = self.doubled(1) {
                self = doubled;
            }
            capacity += self.items_max(first.max_search);
            older_buckets += self.buckets();
            match self.appended(older_buckets, first.appended_items_min()) {
                Some(next) => self = next,
                None => return capacity,
            }
        }
    }

    /// Returns whether a table can have this plan. One that was read from a disk may be damaged.
    pub(crate) fn is_sane(&self) -> bool {
        let level = u32::from(self.doublings) + u32::from(self.spare_bits);
        let buckets_fit = level < 32
            && self.base_buckets <= layout::BUCKETS_MAX >> level
            && self.base_buckets >= 2;
        let shape_fits = match self.mode {
            Mode::Compact => {
                let base_bits = self.bits.saturating_sub(self.number);
                matches!(self.bucket_size, 2 | 4 | 8)
                    && self.tag_bits <= layout::STEP_BITS_MAX
                    && base_bits >= layout::FINGERPRINT_BITS_MIN
                    && u32::from(self.bits) + u32::from(self.spare_bits)
                        <= u32::from(FINGERPRINT_BITS_MAX)
                    && (self.number > 0 || level == 0)
            }
            Mode::Strict => {
                u32::from(self.bucket_size) == STRICT_SLOTS
                    && (self.bits, u32::from(self.tag_bits))
                        == (STRICT_FINGERPRINT_BITS, STATE_BITS)
                    && (self.number, self.spare_bits) == (0, 0)
            }
        };
        shape_fits && buckets_fit && self.base_buckets.is_multiple_of(2)
    }

    /// Returns whether a table of this plan can be the next newer one of a filter.
    pub(crate) fn can_follow(&self, older: &Self) -> bool {
        let Self {
            bits,
            number,
            spare_bits,
            doublings,
            ..
        } = *self;
        *self
            == Self {
                bits,
                number,
                spare_bits,
                doublings,
                ..*older
            }
            && self.mode == Mode::Compact
            && number > older.number
            && bits - number == older.bits - older.number
            && self.level() >= older.level()
    }
}
