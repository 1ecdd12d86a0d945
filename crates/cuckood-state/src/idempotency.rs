//! Idempotency: the outcomes stored for repeated requests. They are part of the state, so they survive a crash, and a replica has the same
//! ones.
//!
//! A record is a byte string in a queue, with an entry in an index. Time never runs backwards in the log, so the record at the head of
//! the queue is the oldest, and the next to be forgotten.
//!
//! API keys share the space, and none can take it from the others: half is divided among them equally, and each may always use its part;
//! the other half is used first come, first served.

use super::index::{Index, IndexEntry};
use crate::domain::{
    ANNOTATIONS_BYTES_MAX, Command, Digests, FilterId, IDEMPOTENCY_ROOM_MAX_BYTES, IdempotencyKey,
    Inserted, ItemOutcome, KeyName, Outcome, Redemption, RedemptionDetails, RedemptionId,
    RedemptionStatus, Reference, Removed, Settings, Timestamp,
};
use crate::frame::{decode, encode};
use crate::paged::{ALIGNMENT, PAGE_BYTES, Queue, stored_bytes};
use cuckood_filter::Digest;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::iter::repeat_n;
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

/// Maximum size of a record before its outcome, in bytes: the time, the owner, the hash of the request, and the key.
const HEAD_BYTES: usize = 7 + 3 + 7 + size_of::<u128>();

/// The latest time in a record, in the year 19809: its encoding has seven bytes.
const TIME_MAX: Timestamp = Timestamp((1 << 49) - 1);

/// Bits of a request's hash in a record: its encoding has seven bytes. It distinguishes a repeat from a client's mistake, so they are
/// enough.
const REQUEST_BITS: u32 = 48;

/// The parts of the space that the shares add up to, in sixteenths: the rest is lost at the ends of pages.
const SHARED_SIXTEENTHS: u64 = 14;

/// Memory of a record's entry in the index, in bytes: eight, and a share of lists and their spare capacity.
const PLACE_BYTES: u64 = 10;

/// Memory that the first record takes in advance, in bytes: parts of pages that no string fills, and 128 KiB for the index. Like
/// [`PLACE_BYTES`], it decides which records are deleted, so it can't change.
pub const FIXED_BYTES: u64 = 2 * PAGE_BYTES as u64 + (128 << 10);

/// The result of looking up an idempotency key.
#[derive(Debug, PartialEq)]
pub enum Lookup {
    /// The key is new.
    New,
    /// The same request was executed under it, with this outcome.
    Answered(Outcome),
    /// Another request was executed under it. Its outcome was stored at this time.
    Reused(Timestamp),
}

/// How long outcomes are stored, and their maximum memory, as of one moment.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Outcomes stored at this time or earlier are deleted. `None` if no outcome can be that old.
    pub forgotten: Option<Timestamp>,
    /// Outcomes stored at this time or earlier may be deleted for others.
    pub expendable: Option<Timestamp>,
    /// Bytes that all records may take.
    pub room_bytes: u64,
    /// Number of API keys that share them.
    pub keys: u64,
}

/// The API key that a record counts for, by a hash of its name. Keys whose hashes are equal share a share.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct RecordOwner(u16);

impl RecordOwner {
    /// Returns the owner of an API key's records; requests without a key have an owner, too.
    pub fn of(by: Option<&KeyName>) -> Self {
        Self(by.map_or(0, |name| xxh3_64(name.as_str().as_bytes()) as u16))
    }
}

/// The outcomes stored for repeated requests.
#[derive(Debug, Default)]
pub struct Records {
    pub(super) queue: Queue,
    index: Index,
    /// Bytes of each owner's records.
    bytes_of: BTreeMap<RecordOwner, u64>,
}

/// The head of a record. Its outcome follows.
#[derive(Clone, Copy, Serialize, Deserialize)]
struct RecordHead {
    stored_at: Timestamp,
    owner: RecordOwner,
    request: u64,
    key: [u8; 16],
}

/// The key under which a record is found. It has the filter's id in it: a filter that was deleted and created again is another one.
fn record_key(filter: FilterId, key: &IdempotencyKey) -> [u8; 16] {
    let mut bytes = [0; 24];
    bytes[..8].copy_from_slice(&filter.0.to_le_bytes());
    bytes[8..].copy_from_slice(&key.scope.to_le_bytes());
    xxh3_128(&bytes).to_le_bytes()
}

/// A request's hash as a record can store it.
fn stored_request(key: &IdempotencyKey) -> u64 {
    key.request & ((1 << REQUEST_BITS) - 1)
}

/// The hash by which the index finds a record. Its key is one of the filter's random ID, so clients can't choose it.
fn index_hash(key: &[u8; 16]) -> u32 {
    u128::from_le_bytes(*key) as u32
}

/// The place of a record in the index: 32 bits of its position.
fn place(position: u64) -> u32 {
    (position / ALIGNMENT as u64) as u32
}

/// The position of a record that has this place. The oldest record is at `head`.
fn position(place: u32, head: u64) -> u64 {
    let head = head / ALIGNMENT as u64;
    let after_head = place.wrapping_sub(head as u32);
    (head + u64::from(after_head)) * ALIGNMENT as u64
}

/// Reads a record: its head, and the outcome. `None` if it can't be stored again.
fn read(bytes: &[u8]) -> Option<(RecordHead, &[u8])> {
    let (head, answer) = postcard::take_from_bytes::<RecordHead>(bytes).ok()?;
    (bytes.len() - answer.len() <= HEAD_BYTES).then_some((head, answer))
}

/// Bytes that a record counts for its owner.
fn counted_bytes(record: &[u8]) -> u64 {
    stored_bytes(record.len()) as u64 + PLACE_BYTES
}

impl Records {
    /// Restores the records of a snapshot. `None` if one of them can't be read.
    pub fn restore(queue: Queue) -> Option<Self> {
        let mut entries = Vec::with_capacity(queue.len() as usize);
        let mut bytes_of = BTreeMap::new();
        for (position, bytes) in queue.iter() {
            let (head, _) = read(bytes)?;
            entries.push(IndexEntry::new(index_hash(&head.key), place(position)));
            *bytes_of.entry(head.owner).or_default() += counted_bytes(bytes);
        }
        Some(Self {
            queue,
            index: Index::from_entries(&entries),
            bytes_of,
        })
    }

    /// Stored outcomes.
    pub fn len(&self) -> u64 {
        self.queue.len()
    }

    /// The memory of all records, in bytes; an upper bound.
    pub fn memory_bytes(&self) -> u64 {
        let fixed = if self.queue.has_pages() {
            FIXED_BYTES
        } else {
            0
        };
        fixed + self.queue.span_bytes() + self.len() * PLACE_BYTES
    }

    /// The most memory that the record of a command can take, in bytes.
    pub fn bytes_max(command: &Command) -> u64 {
        stored_bytes(HEAD_BYTES + outcome_bytes_max(command)) as u64 + PLACE_BYTES
    }

    /// The most memory that storing the record of a command can make the queue and the index ask for, in bytes, whatever is stored
    /// before it; `begun` says that some record is.
    pub fn growth_bytes(&self, command: &Command, begun: bool) -> u64 {
        let first = if begun || self.queue.has_pages() {
            0
        } else {
            FIXED_BYTES
        };
        // If the string does not fit into the last page, less than its own size is wasted there.
        first + 2 * Self::bytes_max(command)
    }

    /// Looks a key up among the records that are younger than `forgotten`.
    pub fn look_up(
        &self,
        filter: FilterId,
        key: &IdempotencyKey,
        command: &Command,
        forgotten: Option<Timestamp>,
    ) -> Lookup {
        let wanted = record_key(filter, key);
        let found = self.index.find(index_hash(&wanted)).filter_map(|place| {
            let position = position(place, self.queue.head());
            let (head, answer) = read(self.queue.get(position)?)?;
            (head.key == wanted).then_some((position, head, answer))
        });
        // An older record with the same key may be waiting to be forgotten.
        let newest = found.max_by_key(|(position, ..)| *position);
        match newest.filter(|(_, head, _)| Some(head.stored_at) > forgotten) {
            None => Lookup::New,
            Some((_, head, answer)) if head.request == stored_request(key) => {
                let outcome = unpack(answer, command, head.stored_at);
                outcome.map_or(Lookup::Reused(head.stored_at), Lookup::Answered)
            }
            Some((_, head, _)) => Lookup::Reused(head.stored_at),
        }
    }

    /// Stores the outcome of a request with a new key. The caller has freed space for it.
    pub fn store(
        &mut self,
        owner: RecordOwner,
        filter: FilterId,
        key: &IdempotencyKey,
        command: &Command,
        outcome: &Outcome,
        now: Timestamp,
    ) {
        let stored_at = now.min(TIME_MAX);
        let answer = pack(command, outcome, stored_at);
        let request = stored_request(key);
        let key = record_key(filter, key);
        self.push(
            &RecordHead {
                stored_at,
                owner,
                request,
                key,
            },
            &answer,
        );
    }

    fn push(&mut self, head: &RecordHead, answer: &[u8]) {
        let mut buffer = [0; HEAD_BYTES];
        let encoded = postcard::to_slice(head, &mut buffer).expect("it has a maximum size");
        let bytes = stored_bytes(encoded.len() + answer.len()) as u64 + PLACE_BYTES;
        let position = self.queue.push(encoded, answer);
        self.index.insert(index_hash(&head.key), place(position));
        *self.bytes_of.entry(head.owner).or_default() += bytes;
    }

    /// Turns the time back: records from after `now` are stored again as of `now`, in the same order. The times inside an outcome are
    /// relative to its storage, so they move with it.
    pub fn turn_back(&mut self, now: Timestamp) {
        for _ in 0..self.len() {
            let Some((head, answer)) = self.queue.front().and_then(read) else {
                break;
            };
            let head = RecordHead {
                stored_at: head.stored_at.min(now),
                ..head
            };
            let answer = answer.to_vec();
            self.forget_oldest();
            self.push(&head, &answer);
        }
    }

    /// Deletes records that are too old, and those that may be deleted while all records exceed the limit: the oldest first, and at most
    /// `records_max`.
    pub fn forget(&mut self, bounds: &Bounds, records_max: usize) {
        for _ in 0..records_max {
            let oldest = self.oldest();
            let is_beyond = self.memory_bytes() > bounds.room_bytes;
            let is_due = oldest <= bounds.forgotten || is_beyond && oldest <= bounds.expendable;
            if oldest.is_none() || !is_due {
                break;
            }
            self.forget_oldest();
        }
    }

    /// Frees space for an owner's record of up to `bytes`, by deleting at most `records_max` others. If the limit has just been lowered,
    /// that may not reach it, but always frees more than the record takes.
    ///
    /// # Errors
    /// When the oldest record was stored, if a new one must wait: there is no space, or the owner has used its share, and it may not be
    /// deleted yet.
    pub fn make_room(
        &mut self,
        owner: RecordOwner,
        bytes: u64,
        bounds: &Bounds,
        records_max: usize,
    ) -> Result<(), Option<Timestamp>> {
        for _ in 0..records_max {
            let needed = self.queue.growth_bytes(bytes as usize) + FIXED_BYTES;
            let is_room =
                self.queue.span_bytes() + self.len() * PLACE_BYTES + needed <= bounds.room_bytes;
            if is_room && self.is_within_share(owner, bytes, bounds) {
                return Ok(());
            }
            let oldest = self.oldest();
            if oldest.is_none() || oldest > bounds.expendable {
                return Err(oldest);
            }
            self.forget_oldest();
        }
        Ok(())
    }

    /// Whether this many more bytes fit into an owner's part of the one half, or into the other half together with the excess of all owners
    /// over their parts.
    fn is_within_share(&self, owner: RecordOwner, bytes: u64, bounds: &Bounds) -> bool {
        if bounds.keys <= 1 {
            return true;
        }
        let half = bounds.room_bytes.saturating_sub(FIXED_BYTES) / 32 * SHARED_SIXTEENTHS;
        let part = half / bounds.keys;
        let beyond = |used: u64| used.saturating_sub(part);
        let before = self.bytes_of.get(&owner).copied().unwrap_or_default();
        let all: u64 = self.bytes_of.values().map(|used| beyond(*used)).sum();
        before + bytes <= part || all - beyond(before) + beyond(before + bytes) <= half
    }

    /// When the oldest record was stored.
    pub(super) fn oldest(&self) -> Option<Timestamp> {
        self.queue
            .front()
            .and_then(read)
            .map(|(head, _)| head.stored_at)
    }

    fn forget_oldest(&mut self) {
        let Some(record) = self.queue.front() else {
            return;
        };
        let bytes = counted_bytes(record);
        if let Some((RecordHead { key, owner, .. }, _)) = read(record) {
            self.index
                .remove(index_hash(&key), place(self.queue.head()));
            if let Some(used) = self.bytes_of.get_mut(&owner) {
                *used -= bytes;
                if *used == 0 {
                    self.bytes_of.remove(&owner);
                }
            }
        }
        self.queue.pop();
    }
}

/// Minimum retention of outcomes, in seconds; never longer than the maximum.
pub(super) fn retention_min_seconds(settings: &Settings) -> u64 {
    settings
        .idempotency_retention_min_seconds
        .min(settings.idempotency_retention_seconds)
}

impl Bounds {
    /// The bounds that these settings set now.
    pub(super) fn of(settings: &Settings, now: Timestamp) -> Self {
        let before = |seconds: u64| {
            now.0
                .checked_sub(seconds.saturating_mul(1_000))
                .map(Timestamp)
        };
        Self {
            forgotten: before(settings.idempotency_retention_seconds),
            expendable: before(retention_min_seconds(settings)),
            // With more, the index could not distinguish positions.
            room_bytes: settings
                .idempotency_room_bytes
                .min(IDEMPOTENCY_ROOM_MAX_BYTES),
            keys: settings.idempotency_keys,
        }
    }
}

/// Maximum number of items of an outcome.
const COUNT_MAX: u32 = 1 << 20;

/// Maximum bytes of an outcome with items, except for the items' outcomes.
const ITEMS_HEAD_BYTES: usize = 64;

/// Maximum bytes of an outcome with a redemption.
const REDEMPTION_OUTCOME_BYTES: usize = 256;

/// Maximum bytes of an outcome with a number or nothing.
const SHORT_BYTES: usize = 32;

/// Maximum bytes of an outcome with a description of a filter, except for its title and labels, or of an import.
const DESCRIPTION_BYTES: usize = 4_096;

/// Maximum bytes of the packed outcome of a command.
fn outcome_bytes_max(command: &Command) -> usize {
    let items = |digests: &Digests| ITEMS_HEAD_BYTES + digests.0.len().div_ceil(2);
    match command {
        Command::Insert { digests, .. } | Command::Remove { digests, .. } => items(digests),
        Command::Replace { from, .. } => items(from),
        Command::Redeem(_)
        | Command::RedeemFor { .. }
        | Command::Confirm { .. }
        | Command::Cancel { .. }
        | Command::Forfeit { .. } => REDEMPTION_OUTCOME_BYTES,
        Command::Delete { .. } | Command::Clear { .. } | Command::Advance { .. } => SHORT_BYTES,
        Command::DeleteLineUp { .. } => SHORT_BYTES,
        Command::PutLineUp(_) => SHORT_BYTES + ANNOTATIONS_BYTES_MAX,
        Command::TurnBack | Command::Restored { .. } | Command::Enable { .. } => SHORT_BYTES,
        Command::Create { .. } | Command::Update(_) => DESCRIPTION_BYTES + ANNOTATIONS_BYTES_MAX,
        Command::ImageBegin(_) | Command::ImageRecord { .. } => {
            DESCRIPTION_BYTES + ANNOTATIONS_BYTES_MAX
        }
        Command::Configure(_) => DESCRIPTION_BYTES,
        Command::ImageAbandon { .. } | Command::ImportBegin(_) => DESCRIPTION_BYTES,
        Command::ImportLines(_) | Command::ImportEnd(_) => DESCRIPTION_BYTES,
    }
}

/// The redemption, or the code and the reference, that a command names, so that its outcome need not. A repeated redemption request names
/// no redemption: it draws another ID.
fn named(command: &Command) -> (Option<RedemptionId>, Option<(Digest, &Reference)>) {
    match command {
        Command::Confirm { redemption, .. }
        | Command::Cancel { redemption, .. }
        | Command::Forfeit { redemption, .. } => (Some(*redemption), None),
        Command::Redeem(redeem) | Command::RedeemFor { redeem, .. } => {
            (None, Some((redeem.digest, &redeem.reference)))
        }
        Command::Configure(_)
        | Command::Create { .. }
        | Command::Update(_)
        | Command::Delete { .. }
        | Command::Insert { .. }
        | Command::Remove { .. }
        | Command::Replace { .. }
        | Command::Clear { .. }
        | Command::ImportBegin(_)
        | Command::ImportLines(_)
        | Command::ImportEnd(_)
        | Command::Advance { .. }
        | Command::TurnBack
        | Command::PutLineUp(_)
        | Command::DeleteLineUp { .. }
        | Command::Restored { .. }
        | Command::ImageBegin(_)
        | Command::ImageRecord { .. }
        | Command::ImageAbandon { .. }
        | Command::Enable { .. } => (None, None),
    }
}

#[derive(Serialize, Deserialize)]
enum Packed {
    Inserted(PackedOutcomes, u64),
    Removed(PackedOutcomes, u64),
    Replaced(PackedOutcomes),
    Redeemed(PackedRedemption),
    Settled(PackedRedemption),
    Other(Outcome),
}

/// The outcomes of items: at most half a byte for each. Few outcomes differ from the one before.
#[derive(Serialize, Deserialize)]
enum PackedOutcomes {
    /// Outcomes, and how many items in a row have each.
    Runs(Vec<(ItemOutcome, u32)>),
    /// Two outcomes in each byte, the first in the low bits. [`NO_OUTCOME`] follows the last one if their number is odd.
    Pairs(#[serde(with = "serde_bytes")] Vec<u8>),
}

/// Half a byte that is no outcome.
const NO_OUTCOME: u8 = 15;

#[derive(Serialize, Deserialize)]
struct PackedRedemption {
    /// None if the command says it.
    id: Option<RedemptionId>,
    /// None if the command says it.
    code: Option<(Digest, Reference)>,
    status: RedemptionStatus,
    /// Milliseconds from that time until the outcome was stored.
    created: u64,
    changed: u64,
    /// Milliseconds from when the outcome was stored until that time.
    expires: Option<i64>,
    /// Relative like `created`.
    redeemed: Option<u64>,
    details: RedemptionDetails,
}

/// Packs the outcome of a command; `stored_at` is the time of storing it.
fn pack(command: &Command, outcome: &Outcome, stored_at: Timestamp) -> Vec<u8> {
    let pack_redemption = |redemption| PackedRedemption::new(command, redemption, stored_at);
    let packed = match outcome {
        Outcome::Inserted(inserted) => {
            Packed::Inserted(PackedOutcomes::pack(&inserted.outcomes), inserted.added)
        }
        Outcome::Removed(removed) => {
            Packed::Removed(PackedOutcomes::pack(&removed.outcomes), removed.removed)
        }
        Outcome::Replaced(outcomes) => Packed::Replaced(PackedOutcomes::pack(outcomes)),
        Outcome::Redeemed(redemption) => Packed::Redeemed(pack_redemption(redemption)),
        Outcome::Settled(redemption) => Packed::Settled(pack_redemption(redemption)),
        other => Packed::Other(other.clone()),
    };
    encode(&packed)
}

/// Unpacks the outcome for a repeated request; `None` if the bytes are not an outcome of it.
fn unpack(bytes: &[u8], command: &Command, stored_at: Timestamp) -> Option<Outcome> {
    Some(match decode(bytes)? {
        Packed::Inserted(items, added) => Outcome::Inserted(Inserted {
            outcomes: items.unpack()?,
            added,
        }),
        Packed::Removed(items, removed) => Outcome::Removed(Removed {
            outcomes: items.unpack()?,
            removed,
        }),
        Packed::Replaced(items) => Outcome::Replaced(items.unpack()?),
        Packed::Redeemed(packed) => Outcome::Redeemed(packed.unpack(command, stored_at)?),
        Packed::Settled(packed) => Outcome::Settled(packed.unpack(command, stored_at)?),
        Packed::Other(outcome) => outcome,
    })
}

impl PackedRedemption {
    fn new(command: &Command, redemption: &Redemption, stored_at: Timestamp) -> Self {
        let since = |at: Timestamp| stored_at.0.wrapping_sub(at.0);
        let (named_id, named_code) = named(command);
        let is_told = named_code == Some((redemption.digest, &redemption.reference));
        Self {
            id: (named_id != Some(redemption.id)).then_some(redemption.id),
            code: (!is_told).then(|| (redemption.digest, redemption.reference.clone())),
            status: redemption.status,
            created: since(redemption.created_at),
            changed: since(redemption.changed_at),
            expires: redemption
                .expires_at
                .map(|at| since(at).wrapping_neg() as i64),
            redeemed: redemption.redeemed_at.map(since),
            details: redemption.details,
        }
    }

    fn unpack(self, command: &Command, stored_at: Timestamp) -> Option<Redemption> {
        let (named_id, named_code) = named(command);
        let code = self
            .code
            .or_else(|| named_code.map(|(digest, reference)| (digest, reference.clone())));
        let (digest, reference) = code?;
        let before = |since: u64| Timestamp(stored_at.0.wrapping_sub(since));
        Some(Redemption {
            id: self.id.or(named_id)?,
            digest,
            reference,
            status: self.status,
            created_at: before(self.created),
            changed_at: before(self.changed),
            expires_at: self
                .expires
                .map(|after| before((after as u64).wrapping_neg())),
            redeemed_at: self.redeemed.map(before),
            details: self.details,
        })
    }
}

impl PackedOutcomes {
    fn pack(outcomes: &[ItemOutcome]) -> Self {
        let runs: Vec<_> = outcomes
            .chunk_by(PartialEq::eq)
            .map(|run| (run[0], run.len() as u32))
            .collect();
        if encode(&runs).len() <= outcomes.len() / 2 {
            return Self::Runs(runs);
        }
        let half =
            |outcome: Option<&ItemOutcome>| outcome.map_or(NO_OUTCOME, |outcome| *outcome as u8);
        let pairs = outcomes
            .chunks(2)
            .map(|pair| half(pair.first()) | half(pair.get(1)) << 4);
        Self::Pairs(pairs.collect())
    }

    fn unpack(self) -> Option<Vec<ItemOutcome>> {
        match self {
            Self::Runs(runs) => {
                let count: u64 = runs.iter().map(|(_, count)| u64::from(*count)).sum();
                let all = runs
                    .into_iter()
                    .flat_map(|(outcome, count)| repeat_n(outcome, count as usize));
                (count <= u64::from(COUNT_MAX)).then(|| all.collect())
            }
            Self::Pairs(bytes) => {
                let halves = bytes.iter().flat_map(|byte| [byte & 15, byte >> 4]);
                halves
                    .filter(|half| *half != NO_OUTCOME)
                    .map(|half| decode(&[half]))
                    .collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::command::IDEMPOTENCY_ROOM_MIN_BYTES;
    use crate::domain::{Redeem, Refusal, Target};
    use crate::paged::{Copied, Extent};
    use proptest::prelude::*;

    static CLEAR: Command = Command::Clear {
        target: Target(FilterId(1)),
    };

    fn key(number: u64) -> IdempotencyKey {
        IdempotencyKey {
            scope: xxh3_128(&number.to_le_bytes()),
            request: number,
        }
    }

    fn bounds(expendable: u64, room_bytes: u64) -> Bounds {
        Bounds {
            forgotten: None,
            expendable: Some(Timestamp(expendable)),
            room_bytes,
            keys: 1,
        }
    }

    fn store(records: &mut Records, number: u64) {
        records.store(
            RecordOwner(0),
            FilterId(1),
            &key(number),
            &CLEAR,
            &Outcome::Cleared(number),
            Timestamp(number),
        );
    }

    fn look_up(records: &Records, number: u64) -> Lookup {
        records.look_up(FilterId(1), &key(number), &CLEAR, None)
    }

    fn real_bytes(records: &Records) -> u64 {
        records.queue.extent().pages * PAGE_BYTES as u64 + records.index.real_bytes()
    }

    /// This holds while records are added, kept and deleted, and after a restart.
    #[test]
    fn memory_never_exceeds_account() {
        let mut records = Records::default();
        let room = 8 << 20;
        for number in 0..400_000 {
            let clear = Command::Clear {
                target: Target(FilterId(1)),
            };
            records
                .make_room(
                    RecordOwner(0),
                    Records::bytes_max(&clear),
                    &bounds(number, room),
                    16,
                )
                .unwrap();
            store(&mut records, number);
            assert!(records.memory_bytes() <= room, "at {number}");
            if number % 997 == 0 {
                assert!(
                    real_bytes(&records) <= records.memory_bytes(),
                    "at {number}"
                );
            }
        }
        assert!(
            records.len() > 140_000,
            "{} records in 8 MiB",
            records.len()
        );
        assert_eq!(
            look_up(&records, 399_999),
            Lookup::Answered(Outcome::Cleared(399_999))
        );
        let pages = records
            .queue
            .freeze(&Copied::default())
            .map(|(_, _, mut page)| {
                let mut bytes = Vec::new();
                let mut chunk = Vec::new();
                while page.next_chunk(&mut chunk) {
                    bytes.extend_from_slice(&chunk);
                }
                bytes
            });
        let pages = pages.collect();
        let restored =
            Records::restore(Queue::restore(records.queue.extent(), pages).unwrap()).unwrap();
        assert_eq!(
            (restored.len(), restored.memory_bytes()),
            (records.len(), records.memory_bytes())
        );
        assert!(real_bytes(&restored) <= restored.memory_bytes());
        for number in 0..400_000 {
            assert_eq!(
                look_up(&restored, number),
                look_up(&records, number),
                "{number}"
            );
        }
        records.forget(&bounds(400_000, 0), usize::MAX);
        assert_eq!((records.len(), records.index.len()), (0, 0));
        assert!(real_bytes(&records) <= records.memory_bytes());
    }

    /// The index's positions wrap around after 32 GiB. Records on both sides are found.
    #[test]
    fn positions_wrap_around() {
        let extent = Extent {
            first: (1 << 35) / PAGE_BYTES as u64 - 1,
            pages: 1,
            head: 0,
        };
        let mut records =
            Records::restore(Queue::restore(extent, vec![Vec::new()]).unwrap()).unwrap();
        (0..10_000).for_each(|number| store(&mut records, number));
        for number in 0..10_000 {
            assert_eq!(
                look_up(&records, number),
                Lookup::Answered(Outcome::Cleared(number))
            );
        }
        records.forget(&bounds(10_000, 0), 9_000);
        assert_eq!(look_up(&records, 8_999), Lookup::New);
        assert_eq!(
            look_up(&records, 9_000),
            Lookup::Answered(Outcome::Cleared(9_000))
        );
    }

    #[test]
    fn newest_record_of_key_wins() {
        let mut records = Records::default();
        let digests = Digests(Vec::new());
        let insert = Command::Insert {
            target: Target(FilterId(1)),
            digests,
            if_absent: false,
            revive: false,
        };
        for at in 0..3 {
            let outcome = Outcome::Cleared(at);
            records.store(
                RecordOwner(0),
                FilterId(1),
                &key(7),
                &insert,
                &outcome,
                Timestamp(at),
            );
        }
        assert_eq!(look_up(&records, 7), Lookup::Answered(Outcome::Cleared(2)));
        let late =
            |forgotten| records.look_up(FilterId(1), &key(7), &CLEAR, Some(Timestamp(forgotten)));
        assert_eq!(
            (late(1), late(2)),
            (Lookup::Answered(Outcome::Cleared(2)), Lookup::New)
        );
        assert_eq!(
            records.look_up(FilterId(2), &key(7), &CLEAR, None),
            Lookup::New
        );
        let other = IdempotencyKey {
            request: 8,
            ..key(7)
        };
        let reused = records.look_up(FilterId(1), &other, &CLEAR, None);
        assert!(matches!(reused, Lookup::Reused(_)), "{reused:?}");
    }

    /// Turning the time back would store it again, for which there is no space.
    #[test]
    fn record_with_long_head_is_rejected() {
        for (request, is_readable) in [((1 << REQUEST_BITS) - 1, true), (u64::MAX, false)] {
            let head = RecordHead {
                stored_at: TIME_MAX,
                owner: RecordOwner(u16::MAX),
                request,
                key: [7; 16],
            };
            let mut queue = Queue::default();
            queue.push(
                &encode(&head),
                &pack(&CLEAR, &Outcome::Cleared(1), TIME_MAX),
            );
            let records = Records::restore(queue);
            assert_eq!(records.is_some(), is_readable, "{request:x}");
            records
                .into_iter()
                .for_each(|mut records| records.turn_back(Timestamp(5)));
        }
    }

    proptest! {
        /// Whatever the other keys store, a key gets its part of the space, and all together stay within it.
        #[test]
        fn key_space_is_shared_fairly(
            floods in proptest::collection::vec((1..8_u16, 1..6_000_u64), 1..12),
        ) {
            const KEYS: u64 = 8;
            let mut records = Records::default();
            let clear = CLEAR.clone();
            let bounds = Bounds { keys: KEYS, ..bounds(0, IDEMPOTENCY_ROOM_MIN_BYTES) };
            let bytes = Records::bytes_max(&clear);
            let mut number = 1;
            let mut try_store = |records: &mut Records, owner: u16| {
                records.make_room(RecordOwner(owner), bytes, &bounds, 16)?;
                let key = key(number);
                let outcome = Outcome::Cleared(number);
                records.store(RecordOwner(owner), FilterId(1), &key, &CLEAR, &outcome, Timestamp(number));
                number += 1;
                Ok::<(), Option<Timestamp>>(())
            };
            for (owner, count) in floods {
                for _ in 0..count {
                    if try_store(&mut records, owner).is_err() {
                        break;
                    }
                }
                prop_assert!(records.memory_bytes() <= bounds.room_bytes);
            }
            let part = (bounds.room_bytes - FIXED_BYTES) / 32 * SHARED_SIXTEENTHS / KEYS;
            for _ in 0..part / bytes {
                prop_assert_eq!(try_store(&mut records, 0), Ok(()));
            }
            let all: u64 = records.bytes_of.values().sum();
            records.forget(&Bounds { expendable: Some(Timestamp(u64::MAX)), room_bytes: 0, ..bounds }, usize::MAX);
            prop_assert!(all > 0 && records.bytes_of.is_empty());
        }
    }

    const KINDS: [ItemOutcome; 5] = [
        ItemOutcome::Added,
        ItemOutcome::AlreadyPresent,
        ItemOutcome::Saturated,
        ItemOutcome::AlreadyRedeemed,
        ItemOutcome::Revived,
    ];

    fn insert(count: usize) -> Command {
        let digests = Digests(vec![Digest(0); count]);
        Command::Insert {
            target: Target(FilterId(1)),
            digests,
            if_absent: false,
            revive: false,
        }
    }

    fn there_and_back(command: &Command, outcome: &Outcome) -> usize {
        let bytes = pack(command, outcome, Timestamp(1_000));
        assert_eq!(
            unpack(&bytes, command, Timestamp(1_000)).as_ref(),
            Some(outcome)
        );
        assert!(
            bytes.len() <= outcome_bytes_max(command),
            "{} bytes",
            bytes.len()
        );
        bytes.len()
    }

    fn inserted(outcomes: Vec<ItemOutcome>) -> Outcome {
        let added = outcomes
            .iter()
            .filter(|outcome| **outcome == ItemOutcome::Added)
            .count() as u64;
        Outcome::Inserted(Inserted { outcomes, added })
    }

    proptest! {
        #[test]
        fn outcomes_round_trip(
            kinds in 1..=KINDS.len(),
            runs in proptest::collection::vec((0..KINDS.len(), 1..600usize), 0..200),
        ) {
            let outcomes: Vec<_> =
                runs.iter().flat_map(|&(kind, length)| vec![KINDS[kind % kinds]; length]).collect();
            let bytes = there_and_back(&insert(outcomes.len()), &inserted(outcomes.clone()));
            prop_assert!(bytes <= 24 + outcomes.len().div_ceil(2).min(3 * runs.len()));
        }

        #[test]
        fn redemptions_round_trip(times in any::<[u64; 4]>(), id: [u8; 16], held: bool, length in 1..=128usize) {
            let [created_at, changed_at, expires_at, redeemed_at] = times.map(Timestamp);
            let redemption = Redemption {
                id: RedemptionId(id),
                digest: Digest(7),
                reference: Reference::new(&"r".repeat(length)).unwrap(),
                status: RedemptionStatus::Held,
                created_at,
                changed_at,
                expires_at: held.then_some(expires_at),
                redeemed_at: (!held).then_some(redeemed_at),
                details: RedemptionDetails {
                    ordinal: held.then_some(length as u64),
                    customer: (length > 60).then_some(Digest(u64::MAX)),
                    is_unreleased: length > 120,
                },
            };
            let target = Target(FilterId(1));
            let confirm = Command::Confirm { target, redemption: redemption.id };
            there_and_back(&confirm, &Outcome::Settled(redemption.clone()));
            let redeem = Command::Redeem(Redeem {
                target,
                digest: redemption.digest,
                redemption: RedemptionId([0; 16]),
                reference: redemption.reference.clone(),
                hold_seconds: 0,
            });
            there_and_back(&redeem, &Outcome::Redeemed(redemption));
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = unpack(&bytes, &insert(1), Timestamp(0));
        }
    }

    #[test]
    fn outcomes_are_small() {
        let alike = there_and_back(&insert(10_000), &inserted(vec![ItemOutcome::Added; 10_000]));
        assert!(alike <= 8, "{alike} bytes");
        let mut few = vec![ItemOutcome::Added; 10_000];
        (0..5).for_each(|at| few[at * 1_999 + 3] = ItemOutcome::AlreadyPresent);
        let few = there_and_back(&insert(10_000), &inserted(few));
        assert!(few <= 36, "{few} bytes");
        let mixed = (0..10_001).map(|at| KINDS[at * at % KINDS.len()]).collect();
        let mixed = there_and_back(&insert(10_001), &inserted(mixed));
        assert!(mixed <= 5_001 + 12, "{mixed} bytes");
        there_and_back(&insert(1), &Outcome::Refused(Refusal::FilterFull));
    }
}
