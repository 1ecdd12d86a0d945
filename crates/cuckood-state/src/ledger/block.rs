//! Blocks: the redemptions of a ledger as it stores them, packed, 64 in a page that snapshots share.
//!
//! A snapshot has each redemption as postcard encodes a [`LedgerEntry`]; in memory it takes half of that type's size:
//!
//! ```text
//! flags u8  ID [16]  digest u64  change u64  reference: length u8, bytes  times (varints)  ordinal (varint)  customer u64
//! ```
//!
//! Integers are little-endian. Times are relative to the last change, which usually is the time in its position.

use super::order::{ChangeNumber, OrderedEntries};
use crate::domain::{
    Redemption, RedemptionDetails, RedemptionId, RedemptionStatus, Reference, Timestamp,
};
use crate::frame::{append, take};
use crate::paged::{Page, Slab, SlabPage};
use cuckood_filter::Digest;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use std::ops::Range;

/// Slots of a block.
const SLOTS: usize = 64;

/// Where the fields of a packed redemption start.
const ID: usize = 1;
const DIGEST: usize = ID + size_of::<RedemptionId>();
const CHANGE: usize = DIGEST + size_of::<u64>();
const REFERENCE: usize = CHANGE + size_of::<u64>();

/// Bytes of a packed redemption before its reference.
const HEAD_BYTES: usize = REFERENCE + 1;

/// Bytes of times that are counted for each redemption, even if it has shorter ones: no later change takes more memory. Times further apart
/// than 200 days and turned-back clocks may.
const TIMES_BYTES: usize = 12;

/// Maximum size of a varint, in bytes.
const VARINT_BYTES: usize = 10;

/// Bytes of the end of a slot in a block, and of all.
const END_BYTES: usize = size_of::<u16>();
const ENDS_BYTES: usize = END_BYTES * SLOTS;

/// Memory of a block in addition to its bytes, in bytes. Rounded up.
const BLOCK_BYTES: u64 = 168;

/// Flags of a packed redemption: two bits of its status, and which fields follow.
const STATUS_FLAGS: u8 = 0b11;
const HAS_EXPIRY: u8 = 1 << 2;
const HAS_ORDINAL: u8 = 1 << 3;
const IS_REDEEMED: u8 = 1 << 4;
/// Its code was redeemed at another time than that of its last change, which follows.
const HAS_REDEEMED_AT: u8 = 1 << 5;
const HAS_CUSTOMER: u8 = 1 << 6;
const IS_UNRELEASED: u8 = 1 << 7;

/// Bytes of the digest of a customer.
const CUSTOMER_BYTES: usize = size_of::<u64>();

/// A redemption, as a snapshot stores it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct LedgerEntry {
    pub(super) redemption: Redemption,
    /// The position of its last change.
    pub(super) change: ChangeNumber,
}

/// A redemption, as a ledger stores it.
#[derive(Clone, Copy)]
pub struct RedemptionView<'a>(&'a [u8]);

/// The fields of a packed redemption that have no fixed place.
struct PackedRest {
    changed_at: Timestamp,
    created_at: Timestamp,
    expires_at: Option<Timestamp>,
    redeemed_at: Option<Timestamp>,
    details: RedemptionDetails,
}

/// 64 slots, each with a packed redemption or free. It is small without its bytes: a snapshot starts with a visit to each.
#[derive(Clone, Debug, Default)]
pub(super) struct Block {
    /// A bit for each slot that has a redemption.
    taken: u64,
    /// For each slot, where its redemption ends, in two bytes; a free slot's is that of the slot before. Then the redemptions, in the order
    /// of their slots. Nothing if all slots are free.
    bytes: Vec<u8>,
    /// Bytes by which times are shorter than [`TIMES_BYTES`].
    times_left: u16,
}

/// The blocks of a ledger.
pub(super) type Blocks = Slab<Block>;

type PackedBuffer = SmallVec<[u8; 256]>;

fn put_varint(mut value: u64, out: &mut PackedBuffer) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn take_varint(bytes: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..).step_by(7) {
        let byte = bytes.split_off_first().copied().unwrap_or_default();
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            break;
        }
    }
    value
}

/// Appends the distance between two times, which takes few bytes if they are close. It may be negative.
fn put_distance(from: u64, to: u64, out: &mut PackedBuffer) {
    let distance = to.wrapping_sub(from) as i64;
    put_varint((distance << 1 ^ distance >> 63) as u64, out);
}

/// Takes a distance. Returns the time at it.
fn take_distance(from: u64, bytes: &mut &[u8]) -> u64 {
    let zigzag = take_varint(bytes);
    let distance = (zigzag >> 1) ^ (zigzag & 1).wrapping_neg();
    from.wrapping_add(distance)
}

impl LedgerEntry {
    fn flags(&self) -> u8 {
        let redemption = &self.redemption;
        let status = match redemption.status {
            RedemptionStatus::Held => 0,
            RedemptionStatus::Redeemed => 1,
            RedemptionStatus::Cancelled => 2,
            RedemptionStatus::Expired => 3,
        };
        let mut flags = status;
        if redemption.expires_at.is_some() {
            flags |= HAS_EXPIRY;
        }
        if redemption.details.ordinal.is_some() {
            flags |= HAS_ORDINAL;
        }
        if redemption.details.customer.is_some() {
            flags |= HAS_CUSTOMER;
        }
        if redemption.details.is_unreleased {
            flags |= IS_UNRELEASED;
        }
        if let Some(at) = redemption.redeemed_at {
            flags |= IS_REDEEMED;
            if at != redemption.changed_at {
                flags |= HAS_REDEEMED_AT;
            }
        }
        flags
    }

    fn pack(&self) -> PackedBuffer {
        let redemption = &self.redemption;
        let changed_at = redemption.changed_at.0;
        let reference = redemption.reference.as_str().as_bytes();
        let flags = self.flags();
        let mut out = PackedBuffer::new();
        out.push(flags);
        out.extend_from_slice(&redemption.id.0);
        out.extend_from_slice(&redemption.digest.0.to_le_bytes());
        out.extend_from_slice(&self.change.0.to_le_bytes());
        out.push(reference.len() as u8);
        out.extend_from_slice(reference);
        put_distance(self.change.time(), changed_at, &mut out);
        put_distance(changed_at, redemption.created_at.0, &mut out);
        if let Some(at) = redemption.expires_at {
            put_distance(changed_at, at.0, &mut out);
        }
        if flags & HAS_REDEEMED_AT > 0
            && let Some(at) = redemption.redeemed_at
        {
            put_distance(changed_at, at.0, &mut out);
        }
        if let Some(ordinal) = redemption.details.ordinal {
            put_varint(ordinal, &mut out);
        }
        if let Some(customer) = redemption.details.customer {
            out.extend_from_slice(&customer.0.to_le_bytes());
        }
        out
    }
}

impl<'a> RedemptionView<'a> {
    fn has(self, flag: u8) -> bool {
        self.0[0] & flag > 0
    }

    fn word(self, at: usize) -> u64 {
        let word = self.0[at..].first_chunk().copied();
        u64::from_le_bytes(word.unwrap_or_default())
    }

    /// Its status.
    pub fn status(self) -> RedemptionStatus {
        match self.0[0] & STATUS_FLAGS {
            0 => RedemptionStatus::Held,
            1 => RedemptionStatus::Redeemed,
            2 => RedemptionStatus::Cancelled,
            _ => RedemptionStatus::Expired,
        }
    }

    /// Its identity.
    pub fn id(self) -> RedemptionId {
        let id = self.0[ID..].first_chunk().copied();
        RedemptionId(id.unwrap_or_default())
    }

    /// The digest of its code.
    pub fn digest(self) -> Digest {
        Digest(self.word(DIGEST))
    }

    /// The position of its last change.
    pub fn change(self) -> ChangeNumber {
        ChangeNumber(self.word(CHANGE))
    }

    fn times_start(self) -> usize {
        HEAD_BYTES + usize::from(self.0[REFERENCE])
    }

    /// The bytes of its reference.
    pub fn reference_bytes(self) -> &'a [u8] {
        &self.0[HEAD_BYTES..self.times_start()]
    }

    /// Whether it has this reference.
    pub fn is_under(self, reference: &Reference) -> bool {
        self.reference_bytes() == reference.as_str().as_bytes()
    }

    /// Whether it is held or redeemed.
    pub fn stands(self) -> bool {
        match self.status() {
            RedemptionStatus::Held | RedemptionStatus::Redeemed => true,
            RedemptionStatus::Cancelled | RedemptionStatus::Expired => false,
        }
    }

    fn rest(self) -> PackedRest {
        let mut rest = &self.0[self.times_start()..];
        let changed_at = take_distance(self.change().time(), &mut rest);
        let created_at = take_distance(changed_at, &mut rest);
        let mut distant = |flag| {
            self.has(flag)
                .then(|| Timestamp(take_distance(changed_at, &mut rest)))
        };
        let expires_at = distant(HAS_EXPIRY);
        let redeemed_at = distant(HAS_REDEEMED_AT);
        let ordinal = self.has(HAS_ORDINAL).then(|| take_varint(&mut rest));
        let details = RedemptionDetails {
            ordinal,
            customer: self.customer(),
            is_unreleased: self.has(IS_UNRELEASED),
        };
        PackedRest {
            changed_at: Timestamp(changed_at),
            created_at: Timestamp(created_at),
            expires_at,
            redeemed_at: redeemed_at.or(self.has(IS_REDEEMED).then_some(Timestamp(changed_at))),
            details,
        }
    }

    /// The digest of its customer.
    pub fn customer(self) -> Option<Digest> {
        let bytes = self.0.last_chunk().filter(|_| self.has(HAS_CUSTOMER))?;
        Some(Digest(u64::from_le_bytes(*bytes)))
    }

    /// When it expires; `None` unless it is a hold.
    pub(super) fn held_until(self) -> Option<Timestamp> {
        match self.status() {
            RedemptionStatus::Held => self.rest().expires_at,
            RedemptionStatus::Redeemed
            | RedemptionStatus::Cancelled
            | RedemptionStatus::Expired => None,
        }
    }

    /// Whether it is a hold that has expired at `now`.
    pub fn has_run_out(self, now: Timestamp) -> bool {
        self.held_until().is_some_and(|until| until <= now)
    }

    /// When its status last changed.
    pub(super) fn changed_at(self) -> Timestamp {
        let mut rest = &self.0[self.times_start()..];
        Timestamp(take_distance(self.change().time(), &mut rest))
    }

    /// In an open pool: its number.
    pub(super) fn ordinal(self) -> Option<u64> {
        self.rest().details.ordinal
    }

    /// Whether it is no hold, and changed last at the time of its position.
    pub(super) fn waits(self) -> bool {
        self.changed_at().0 == self.change().time() && self.held_until().is_none()
    }

    /// Returns the redemption.
    pub fn unpack(self) -> Redemption {
        let rest = self.rest();
        let reference = str::from_utf8(self.reference_bytes()).map(Reference::new);
        Redemption {
            id: self.id(),
            digest: self.digest(),
            reference: reference
                .expect("it was packed as UTF-8")
                .expect("it was packed as a reference"),
            status: self.status(),
            created_at: rest.created_at,
            changed_at: rest.changed_at,
            expires_at: rest.expires_at,
            redeemed_at: rest.redeemed_at,
            details: rest.details,
        }
    }

    fn times_bytes(self) -> usize {
        let mut rest = &self.0[self.times_start()..];
        let distances =
            2 + usize::from(self.has(HAS_EXPIRY)) + usize::from(self.has(HAS_REDEEMED_AT));
        let all = rest.len();
        for _ in 0..distances {
            take_varint(&mut rest);
        }
        all - rest.len()
    }
}

/// The capacity for this many bytes, as allocators round it: a fifth may be spare.
fn capacity_for(bytes: usize) -> usize {
    let step = 1 << (bytes / 4).max(64).ilog2();
    bytes.next_multiple_of(step)
}

/// Upper bound of a block's memory for redemptions of this size in total, in bytes.
fn packed_bytes(bytes: u64) -> u64 {
    bytes.saturating_mul(5) / 4
}

impl Block {
    /// Maximum memory by which changed times make a redemption grow, in bytes.
    pub(super) const TIMES_GROWTH_BYTES: u64 = (4 * VARINT_BYTES - TIMES_BYTES) as u64 * 5 / 4;

    /// Where the redemption of a slot ends.
    fn end(&self, place: usize) -> usize {
        let end = self.bytes[END_BYTES * place..].first_chunk().copied();
        usize::from(u16::from_le_bytes(end.unwrap_or_default()))
    }

    fn range(&self, place: usize) -> Range<usize> {
        let start = place
            .checked_sub(1)
            .map_or(ENDS_BYTES, |before| self.end(before));
        start..self.end(place)
    }

    /// The redemption in a slot, if it has one.
    pub(super) fn get(&self, place: u32) -> Option<RedemptionView<'_>> {
        let is_taken = self.taken >> place & 1 > 0;
        is_taken.then(|| RedemptionView(&self.bytes[self.range(place as usize)]))
    }

    fn times_left_of(&self, place: u32) -> u16 {
        let times = self.get(place).map(RedemptionView::times_bytes);
        times.map_or(0, |bytes| TIMES_BYTES.saturating_sub(bytes) as u16)
    }

    /// Puts a redemption into a slot, in place of another if it has one.
    pub(super) fn put(&mut self, place: u32, entry: &LedgerEntry) {
        self.replace(place, &entry.pack());
    }

    /// Frees a slot.
    pub(super) fn free(&mut self, place: u32) {
        self.replace(place, &[]);
    }

    /// Replaces the bytes of a slot. The slot is free if there are none.
    fn replace(&mut self, place: u32, entry: &[u8]) {
        if self.bytes.is_empty() {
            let ends = (ENDS_BYTES as u16).to_le_bytes();
            self.bytes.extend_from_slice(&ends.repeat(SLOTS));
        }
        self.times_left -= self.times_left_of(place);
        let range = self.range(place as usize);
        if range.len() == entry.len() {
            self.bytes[range].copy_from_slice(entry);
        } else {
            for other in place as usize..SLOTS {
                let end = self.end(other) + entry.len() - range.len();
                let at = END_BYTES * other;
                self.bytes[at..at + END_BYTES].copy_from_slice(&(end as u16).to_le_bytes());
            }
            self.resize(range, entry);
        }
        if entry.is_empty() {
            self.taken &= !(1 << place);
        } else {
            self.taken |= 1 << place;
        }
        self.times_left += self.times_left_of(place);
        if self.taken == 0 {
            self.bytes = Vec::new();
        }
    }

    /// Replaces a range of the bytes by another number of bytes.
    fn resize(&mut self, range: Range<usize>, entry: &[u8]) {
        let before = self.bytes.len();
        let after = before + entry.len() - range.len();
        if after > self.bytes.capacity() {
            self.bytes.reserve_exact(capacity_for(after) - before);
        }
        let end = range.start + entry.len();
        if after > before {
            self.bytes.resize(after, 0);
        }
        self.bytes.copy_within(range.end..before, end);
        self.bytes.truncate(after);
        self.bytes[range.start..end].copy_from_slice(entry);
        self.bytes.shrink_to(capacity_for(after));
    }

    /// Its memory as allocators round it, in bytes.
    #[cfg(test)]
    pub(super) fn real_bytes(&self) -> u64 {
        let node = size_of::<Self>() + 2 * size_of::<usize>();
        (capacity_for(self.bytes.capacity()) + capacity_for(node) + size_of::<usize>()) as u64
    }

    /// Maximum memory that this many new redemptions need, in bytes, without their references.
    pub(super) fn growth_bytes(redemptions: u64) -> u64 {
        let each = packed_bytes((HEAD_BYTES + 5 * VARINT_BYTES + CUSTOMER_BYTES) as u64);
        let blocks = redemptions.div_ceil(SLOTS as u64);
        let block_bytes = BLOCK_BYTES + packed_bytes(ENDS_BYTES as u64);
        redemptions
            .saturating_mul(each)
            .saturating_add(blocks.saturating_mul(block_bytes))
    }

    /// Memory of a reference, in bytes.
    pub(super) fn reference_bytes(reference: &Reference) -> u64 {
        packed_bytes(reference.as_str().len() as u64) + 1
    }
}

impl Page for Block {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.taken.to_le_bytes());
        for packed in (0..Self::COUNT).filter_map(|place| self.get(place)) {
            let entry = LedgerEntry {
                redemption: packed.unpack(),
                change: packed.change(),
            };
            append(&entry, out);
        }
    }

    fn decode(bytes: &mut &[u8]) -> Option<Self> {
        let taken = u64::from_le_bytes(*bytes.split_off(..size_of::<u64>())?.first_chunk()?);
        let mut block = Self::default();
        for place in (0..Self::COUNT).filter(|place| taken >> place & 1 > 0) {
            block.put(place, &take(bytes)?);
        }
        Some(block)
    }

    fn bytes(&self) -> u64 {
        BLOCK_BYTES + packed_bytes(self.bytes.len() as u64 + u64::from(self.times_left))
    }
}

impl SlabPage for Block {
    const COUNT: u32 = SLOTS as u32;

    fn taken(&self) -> usize {
        self.taken.count_ones() as usize
    }

    fn lowest_free(&self) -> u32 {
        self.taken.trailing_ones()
    }
}

/// The redemption in a slot, if it has one.
pub(super) fn packed_in(blocks: &Blocks, slot: u32) -> Option<RedemptionView<'_>> {
    let (block, place) = blocks.page_of(slot)?;
    block.get(place)
}

impl OrderedEntries for Blocks {
    fn change(&self, slot: u32) -> ChangeNumber {
        packed_in(self, slot).map_or_else(ChangeNumber::default, RedemptionView::change)
    }

    fn waits(&self, slot: u32) -> bool {
        packed_in(self, slot).is_some_and(RedemptionView::waits)
    }
}
