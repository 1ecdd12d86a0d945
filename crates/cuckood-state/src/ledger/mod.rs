//! The ledger of a coupon: its redemptions, found by id, by code, by reference, by their last change, or by when they are due.
//!
//! At most one redemption of a code is held or redeemed, or one under each reference if codes have several uses: a **current** one. An ended redemption is retained for the retention
//! time, so that a repeated confirm or cancel is still answered.
//!
//! Redemptions are packed in [blocks](block), which alone are part of a snapshot. All else is derived from them: indexes, which find slots
//! in blocks by hashes, the [order] of changes, and the order of [retention]. No operation on one redemption moves more than a few
//! kilobytes, however many there are.
//!
//! The ledger of an open pool also has the ordinals that are taken. The ordinal of a redemption that is forgotten stays taken, because its
//! code stays redeemed. Where codes have several uses, or customers a limit, [tallies](tally) count them. The [membership] says which used
//! codes come back when their use ends.

mod block;
mod membership;
mod order;
mod retention;
mod stored;
mod tally;

pub use block::RedemptionView;
pub(super) use membership::Membership;
pub use order::ChangeNumber;
use stored::StoredSize;
pub(super) use stored::{StoredLedger, StoredUses};
pub(super) use tally::{KeyedUses, Tally, UseStep};

use super::agenda::Due;
use super::index::{BoundedIndex, INDEX_BYTES, INDEX_ENTRY_BYTES, Index};
use super::section::Epoch;
use crate::domain::{Redemption, RedemptionId, RedemptionStatus, Reference, Supply, Timestamp};
use crate::paged::{Numbers, SlabPage};
use block::{Block, Blocks, LedgerEntry, packed_in};
use cuckood_filter::{Digest, Secret};
use order::{ChangeOrder, ORDER_BYTES, ORDER_SLOT_BYTES};
use retention::{RetentionOrder, SORTED_BYTES};
use serde::Deserialize;
use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::ops::Range;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Upper bound of a redemption's memory in the indexes and in the order of changes, in bytes. Its packed form is counted in its block, and
/// holds are counted besides.
const REDEMPTION_BYTES: u64 = 3 * INDEX_ENTRY_BYTES + ORDER_SLOT_BYTES;

/// Memory of a ledger with redemptions in addition to theirs, in bytes: the first nodes of trees.
const LEDGER_BYTES: u64 = 1_024;

/// Maximum number of holds that one redemption ends because they have run out and it needs the space. Its entry has ended others before, of
/// whatever filter.
pub(super) const ENDED_MAX: usize = 1_024;

/// The order of a list of redemptions, by their last change.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum RedemptionOrder {
    /// A redemption that changes moves to the end of the list.
    #[default]
    Oldest,
    /// A redemption that changes moves to the start of the list.
    Newest,
}

/// A query: which redemptions a reader wants, and in which order.
#[derive(Clone, Debug, Default)]
pub struct RedemptionQuery {
    /// Only redemptions with this reference.
    pub reference: Option<Reference>,
    /// Only redemptions with this status as the reader sees it.
    pub status: Option<RedemptionStatus>,
    /// Only redemptions that changed after this time.
    pub changed_after: Option<Timestamp>,
    /// The order of the redemptions.
    pub order: RedemptionOrder,
}

/// A page of the redemptions that a reader wants, in the order of the query.
#[derive(Debug)]
pub struct RedemptionPage {
    /// The redemptions that were found.
    pub redemptions: Vec<Redemption>,
    /// The last change that this page has looked at, where the next page starts; `None` if this is the last one.
    pub next: Option<ChangeNumber>,
}

/// The keys of a redemption in the indexes and orders.
struct EntryKeys {
    change: ChangeNumber,
    /// The hash of its ID.
    id: u32,
    /// The hash of its reference.
    reference: u32,
    reference_bytes: u64,
    /// The hash of its code's digest.
    code: u32,
    /// The hash of its customer's digest.
    customer: Option<u32>,
    /// The hash under which it is current, while it is held or redeemed.
    current: Option<u32>,
    /// When it expires, if it is a hold.
    hold: Option<Due>,
    /// When it changed last, if it is none.
    ended: Option<Due>,
    /// It is forgotten in the order of changes.
    waits: bool,
}

/// The redemptions of one coupon.
///
/// Invariant: [`Ledger::put`], [`Ledger::replace`], [`Ledger::free_slot`] and the functions that load alone change the blocks, and so the
/// indexes.
#[derive(Debug, Default)]
pub struct Ledger {
    epoch: Epoch,
    /// The key of the indexes' hashes. Clients choose references, and must not choose their hashes.
    key: u64,
    blocks: Blocks,
    by_id: Index,
    current: Index,
    by_reference: BoundedIndex,
    order: ChangeOrder,
    /// Held redemptions, by the time at which they expire.
    holds: BTreeSet<Due>,
    /// All others.
    retention: RetentionOrder,
    last_change: ChangeNumber,
    stored: StoredSize,
    /// The ordinals that are taken; `None` unless it is an open pool's.
    ordinals: Option<Box<Numbers>>,
    /// During an image upload: the ordinals of its current redemptions, which are distinct.
    loaded: Option<Box<Numbers>>,
    /// The uses of codes; `None` if each has one.
    uses: Option<Box<KeyedUses>>,
    /// The uses of customers, if any redemption has one or there is a limit.
    customers: Option<Box<KeyedUses>>,
    /// Which used codes are in the pool.
    pub(super) membership: Membership,
}

impl Ledger {
    /// An empty ledger of a filter with this secret. `last_change` is the position of the last change of a redemption that it will be
    /// loaded with.
    pub(super) fn new(
        epoch: Epoch,
        secret: &Secret,
        supply: &Supply,
        last_change: ChangeNumber,
    ) -> Self {
        let &Supply {
            uses, per_customer, ..
        } = supply;
        let limited = |max: u32| Box::new(KeyedUses::new(Some(max)));
        Self {
            epoch,
            key: xxh3_64(secret.as_bytes()),
            last_change,
            ordinals: supply.is_open_pool().then(Box::default),
            uses: supply.has_several_uses().then(|| limited(uses)),
            customers: per_customer.map(limited),
            ..Self::default()
        }
    }

    fn hash(&self, key: &[u8]) -> u32 {
        (xxh3_64_with_seed(key, self.key) >> 32) as u32
    }

    fn id_hash(&self, id: RedemptionId) -> u32 {
        self.hash(&id.0)
    }

    /// The hash of a code, as the tables store it.
    fn code_hash(&self, digest: Digest) -> u32 {
        keyed_hash(self.key, digest.stored())
    }

    fn customer_hash(&self, customer: Digest) -> u32 {
        keyed_hash(self.key, customer)
    }

    /// The hash under which a redemption is current.
    fn current_hash(&self, digest: Digest, reference: &[u8]) -> u32 {
        if self.uses.is_none() {
            return self.code_hash(digest);
        }
        let under_code = self.key ^ digest.stored().0;
        (xxh3_64_with_seed(reference, under_code) >> 32) as u32
    }

    fn keys(&self, packed: RedemptionView<'_>) -> EntryKeys {
        let id = packed.id();
        let reference = packed.reference_bytes();
        let hold = packed.held_until().map(|until| (until, id));
        let ended = hold.is_none().then(|| (packed.changed_at(), id));
        EntryKeys {
            change: packed.change(),
            id: self.id_hash(id),
            reference: self.hash(reference),
            reference_bytes: reference.len() as u64,
            code: self.code_hash(packed.digest()),
            customer: packed
                .customer()
                .map(|customer| self.customer_hash(customer)),
            current: packed
                .stands()
                .then(|| self.current_hash(packed.digest(), reference)),
            hold,
            ended,
            waits: packed.waits(),
        }
    }

    fn keys_in(&self, slot: u32) -> Option<EntryKeys> {
        Some(self.keys(self.in_slot(slot)?))
    }

    /// Puts a redemption into a new slot. All indexes follow.
    fn put(&mut self, entry: &LedgerEntry) {
        let slot = self
            .blocks
            .take_lowest_free(|block, place| block.put(place, entry));
        let taken = self.taken_with(slot);
        self.stored.places += StoredSize::places(taken);
        self.stored.places -= StoredSize::places(taken - 1);
        let Some(keys) = self.keys_in(slot) else {
            return;
        };
        debug_assert!(self.is_distinct(slot, &keys), "no other has its keys");
        let has_position = self.enter(slot, &keys);
        debug_assert!(has_position, "positions of changes differ");
        self.draw();
    }

    /// Replaces the redemption in a slot by another state of it. All indexes follow.
    fn replace(&mut self, slot: u32, entry: &LedgerEntry) {
        let before = self.keys_in(slot);
        self.blocks
            .change_slot(slot, |block, place| block.put(place, entry));
        let (Some(before), Some(after)) = (before, self.keys_in(slot)) else {
            return;
        };
        debug_assert!(self.is_distinct(slot, &after), "no other has its keys");
        debug_assert_eq!(before.reference, after.reference, "it has no other");
        self.leave_times(&before);
        if before.current != after.current {
            if let Some(code) = before.current {
                self.current.remove(code, slot);
            }
            if let Some(code) = after.current {
                self.current.insert(code, slot);
            }
        }
        if before.change != after.change {
            self.order.remove(before.change, slot, before.waits);
            self.order.insert(after.change, slot, &self.blocks);
        } else if before.waits != after.waits {
            self.order.set_waiting(after.change, after.waits);
        }
        self.enter_times(&after);
        self.draw();
    }

    /// Frees a slot. All indexes follow.
    fn free_slot(&mut self, slot: u32) {
        let Some(keys) = self.keys_in(slot) else {
            return;
        };
        let taken = self.taken_with(slot);
        self.stored.places += StoredSize::places(taken - 1);
        self.stored.places -= StoredSize::places(taken);
        self.stored.references_bytes -= keys.reference_bytes;
        self.blocks.change_slot(slot, Block::free);
        self.by_id.remove(keys.id, slot);
        self.by_reference.remove(keys.reference, slot);
        if let Some(uses) = &mut self.uses {
            uses.redemptions.remove(keys.code, slot);
        }
        if let (Some(customers), Some(customer)) = (&mut self.customers, keys.customer) {
            customers.redemptions.remove(customer, slot);
        }
        if let Some(code) = keys.current {
            self.current.remove(code, slot);
        }
        self.order.remove(keys.change, slot, keys.waits);
        self.leave_times(&keys);
        self.draw();
        if self.blocks.is_empty() {
            // The trees' last nodes.
            self.holds = BTreeSet::new();
            self.retention = RetentionOrder::default();
        }
    }

    /// Number of redemptions in the block of a slot.
    fn taken_with(&self, slot: u32) -> usize {
        self.blocks
            .page_of(slot)
            .map_or(0, |(block, _)| block.taken())
    }

    /// Whether no other redemption has the ID of the one in a slot, and no other is current in its place.
    fn is_distinct(&self, slot: u32, keys: &EntryKeys) -> bool {
        let Some(packed) = self.in_slot(slot) else {
            return false;
        };
        for other in self.by_id.find(keys.id) {
            let id = self.in_slot(other).map(RedemptionView::id);
            if other != slot && id == Some(packed.id()) {
                return false;
            }
        }
        let Some(code) = keys.current else {
            return true;
        };
        for other in self.current.find(code) {
            let competes = |other: RedemptionView<'_>| {
                other.digest() == packed.digest()
                    && (self.uses.is_none() || other.reference_bytes() == packed.reference_bytes())
            };
            if other != slot && self.in_slot(other).is_some_and(competes) {
                return false;
            }
        }
        true
    }

    /// Adds the redemption in a slot to the indexes. Returns whether no other has the position of its change.
    fn enter(&mut self, slot: u32, keys: &EntryKeys) -> bool {
        self.stored.references_bytes += keys.reference_bytes;
        self.by_id.insert(keys.id, slot);
        self.by_reference.insert(keys.reference, slot);
        if let Some(uses) = &mut self.uses {
            uses.redemptions.insert(keys.code, slot);
        }
        if let Some(customer) = keys.customer {
            let customers = self.customers.get_or_insert_default();
            customers.redemptions.insert(customer, slot);
        }
        if let Some(code) = keys.current {
            self.current.insert(code, slot);
        }
        let has_position = self.order.insert(keys.change, slot, &self.blocks);
        self.enter_times(keys);
        has_position
    }

    /// Adds a redemption to the holds or to the others.
    fn enter_times(&mut self, keys: &EntryKeys) {
        if let Some(hold) = keys.hold {
            self.holds.insert(hold);
        }
        if let Some(ended) = keys.ended {
            self.retention.insert(ended, keys.waits);
        }
    }

    /// Removes a redemption from the holds or from the others.
    fn leave_times(&mut self, keys: &EntryKeys) {
        if let Some(hold) = keys.hold {
            self.holds.remove(&hold);
        }
        if let Some(ended) = keys.ended {
            self.retention.remove(ended);
        }
    }

    fn draw(&mut self) {
        let blocks = &self.blocks;
        self.retention.draw(&self.order, |slot| {
            let packed = packed_in(blocks, slot).filter(|packed| packed.waits())?;
            Some((packed.changed_at(), packed.id()))
        });
    }

    /// Number of redemptions.
    pub fn len(&self) -> usize {
        self.blocks.len() as usize
    }

    /// Number of holds.
    pub(super) fn holds_len(&self) -> usize {
        self.holds.len()
    }

    /// The position of the last change of any redemption, even if that is forgotten by now.
    pub fn last_change(&self) -> ChangeNumber {
        self.last_change
    }

    /// Memory that it takes, in bytes; an upper bound.
    pub(super) fn memory_bytes(&self) -> u64 {
        let redemptions = self.by_id.len() as u64;
        let mut bytes = self.blocks.memory_bytes() + self.ordinals_bytes();
        if redemptions > 0 {
            bytes += LEDGER_BYTES;
        }
        bytes += self.by_id.memory_bytes();
        bytes += self.current.memory_bytes();
        bytes += self.by_reference.memory_bytes();
        bytes += self.order.memory_bytes();
        let keyed = self.uses.iter().chain(&self.customers);
        bytes += keyed.map(|uses| uses.memory_bytes()).sum::<u64>();
        bytes += self.membership.memory_bytes();
        bytes += self.holds.len() as u64 * SORTED_BYTES;
        bytes + self.retention.memory_bytes(redemptions)
    }

    fn ordinals_bytes(&self) -> u64 {
        let ordinals = self.ordinals.iter().chain(&self.loaded);
        ordinals.map(|numbers| numbers.memory_bytes()).sum()
    }

    /// Maximum memory that this many new redemptions need, in bytes, without their references.
    pub(super) fn growth_bytes(redemptions: u64) -> u64 {
        Block::growth_bytes(redemptions)
            .saturating_add(indexes_growth_bytes(redemptions))
            .saturating_add(Numbers::growth_bytes(redemptions))
    }

    /// Maximum memory for changing the times of all redemptions, in bytes: those that wait in the order of changes become late. And for the
    /// uses of holds that are active again.
    pub(super) fn turning_back_bytes(&self) -> u64 {
        let redemptions = self.blocks.len();
        let times = redemptions * (SORTED_BYTES + Block::TIMES_GROWTH_BYTES);
        let keyed = self.uses.iter().chain(&self.customers).count() as u64;
        let uses = keyed * KeyedUses::growth_bytes(redemptions);
        if self.membership.is_whole() {
            return times + uses;
        }
        times + uses + self.membership.growth_bytes(self.members_end(redemptions))
    }

    /// Memory of the reference of a new redemption, in bytes.
    pub(super) fn reference_bytes(reference: &Reference) -> u64 {
        Block::reference_bytes(reference)
    }

    /// Every redemption.
    pub fn iter(&self) -> impl Iterator<Item = RedemptionView<'_>> {
        slots(0..self.blocks.pages.end()).filter_map(|slot| self.in_slot(slot))
    }

    /// The redemption of this id.
    pub fn get(&self, id: &RedemptionId) -> Option<RedemptionView<'_>> {
        self.in_slot(self.slot_of(id)?)
    }

    fn slot_of(&self, id: &RedemptionId) -> Option<u32> {
        let mut slots = self.by_id.find(self.id_hash(*id));
        slots.find(|slot| self.in_slot(*slot).is_some_and(|found| found.id() == *id))
    }

    /// Returns the current redemption of this code; `None` if codes have several uses.
    pub fn current(&self, digest: Digest) -> Option<RedemptionView<'_>> {
        if self.uses.is_some() {
            return None;
        }
        let slots = self.current.find(self.code_hash(digest));
        slots
            .filter_map(|slot| self.in_slot(slot))
            .find(|found| found.digest() == digest)
    }

    /// Returns the redemption that a request for this code under this reference competes with: the code's current one, or the one under the
    /// reference if codes have several uses.
    pub fn current_for(&self, digest: Digest, reference: &Reference) -> Option<RedemptionView<'_>> {
        if self.uses.is_none() {
            return self.current(digest);
        }
        let hash = self.current_hash(digest, reference.as_str().as_bytes());
        let found = self
            .current
            .find(hash)
            .filter_map(|slot| self.in_slot(slot));
        let mut found = found.filter(|found| found.digest() == digest);
        found.find(|found| found.is_under(reference))
    }

    /// The uses of a code; `None` if none is taken, or if codes have one use.
    pub fn tally(&self, digest: Digest) -> Option<Tally> {
        let uses = self.uses.as_deref()?;
        uses.tallies.get(digest.stored(), self.code_hash(digest))
    }

    /// The uses of a customer; `None` if it has none, or if they are not limited.
    pub fn customer_tally(&self, customer: Digest) -> Option<Tally> {
        let customers = self.customers.as_deref()?;
        customers
            .tallies
            .get(customer, self.customer_hash(customer))
    }

    /// Whether a customer has as many uses as one can have.
    pub(super) fn is_at_limit(&self, customer: Digest) -> bool {
        let hash = self.customer_hash(customer);
        let customers = self.customers.as_deref();
        customers.is_some_and(|customers| customers.is_used_up(customer, hash))
    }

    /// Whether all of several uses of a code are taken.
    pub(super) fn is_used_up(&self, digest: Digest) -> bool {
        let hash = self.code_hash(digest);
        let uses = self.uses.as_deref();
        uses.is_some_and(|uses| uses.is_used_up(digest.stored(), hash))
    }

    /// Uses of all codes that are taken, and those of them that are held, if codes have several.
    pub(super) fn use_sums(&self) -> Option<(u64, u64)> {
        let uses = self.uses.as_deref()?;
        Some((uses.tallies.taken(), uses.tallies.held()))
    }

    /// Counts a step of a redemption of this code, for this customer.
    pub(super) fn count_use(&mut self, digest: Digest, customer: Option<Digest>, step: UseStep) {
        let code_hash = self.code_hash(digest);
        if let Some(uses) = &mut self.uses {
            uses.count(digest.stored(), code_hash, step);
        }
        let Some(customer) = customer else { return };
        let customer_hash = self.customer_hash(customer);
        if let Some(customers) = &mut self.customers {
            customers.count(customer, customer_hash, step);
        }
    }

    /// The number of a used code in the membership; `None` if nothing tells when its use ends.
    pub(super) fn member_number(&self, digest: Digest) -> Option<u32> {
        let hash = self.code_hash(digest);
        let stored = digest.stored();
        match &self.uses {
            None => {
                let is_of = |found: RedemptionView<'_>| found.digest().stored() == stored;
                let mut slots = self.current.find(hash);
                slots.find(|slot| self.in_slot(*slot).is_some_and(is_of))
            }
            Some(uses) => uses.tallies.slot_of(stored, hash),
        }
    }

    /// A number that is greater than all numbers in the membership will be after this many new redemptions.
    pub(super) fn members_end(&self, redemptions: u64) -> u64 {
        let end = match &self.uses {
            None => self.blocks.pages.end() * u64::from(Block::COUNT),
            Some(uses) => uses.tallies.end(),
        };
        end.saturating_add(redemptions)
            .saturating_add(Block::COUNT.into())
    }

    /// The held or redeemed redemptions of a code or a customer, the latest first; `None` if so many redemptions name it that only
    /// [`Self::latest`] finds them.
    fn standing(
        &self,
        keyed: Option<&KeyedUses>,
        hash: u32,
        is_of: impl Fn(RedemptionView<'_>) -> bool,
    ) -> Option<Vec<Redemption>> {
        let Some(keyed) = keyed else {
            return Some(Vec::new());
        };
        let slots = keyed.redemptions.find(hash)?;
        let found = slots.filter_map(|slot| self.in_slot(slot));
        let mut found: Vec<_> = found
            .filter(|found| found.stands() && is_of(*found))
            .collect();
        found.sort_unstable_by_key(|found| Reverse(found.change()));
        Some(found.into_iter().map(RedemptionView::unpack).collect())
    }

    /// The held or redeemed redemptions of a code with several uses, the latest first; `None` if it has too many for the index.
    pub(super) fn standing_of_code(&self, digest: Digest) -> Option<Vec<Redemption>> {
        let is_of = |found: RedemptionView<'_>| found.digest() == digest;
        self.standing(self.uses.as_deref(), self.code_hash(digest), is_of)
    }

    /// The held or redeemed redemptions of a customer, the latest first; `None` if it has too many for the index.
    pub(super) fn standing_of_customer(&self, customer: Digest) -> Option<Vec<Redemption>> {
        let is_of = |found: RedemptionView<'_>| found.customer() == Some(customer);
        self.standing(
            self.customers.as_deref(),
            self.customer_hash(customer),
            is_of,
        )
    }

    /// The redemptions that changed before a position, the latest first.
    pub(super) fn latest(&self, before: ChangeNumber) -> impl Iterator<Item = RedemptionView<'_>> {
        let slots = self.order.before(before, &self.blocks);
        slots.filter_map(|slot| self.in_slot(slot))
    }

    fn in_slot(&self, slot: u32) -> Option<RedemptionView<'_>> {
        packed_in(&self.blocks, slot)
    }

    /// The hold that expires first, and when.
    pub(super) fn first_hold(&self) -> Option<Due> {
        self.holds.first().copied()
    }

    /// The holds that have not run out at `now`, the first to expire first.
    pub(super) fn first_holds(&self, now: Timestamp) -> impl Iterator<Item = RedemptionView<'_>> {
        let later = self
            .holds
            .iter()
            .skip_while(move |(until, _)| *until <= now);
        later.filter_map(|(_, id)| self.get(id))
    }

    /// The redemption that ended first, and when.
    pub(super) fn first_ended(&self) -> Option<Due> {
        self.retention.first()
    }

    /// A page of redemptions after `after`, in the order of the query: the first `limit` that `wanted` accepts, out of the first
    /// `looked_at_max`.
    pub fn page(
        &self,
        query: &RedemptionQuery,
        after: Option<ChangeNumber>,
        limit: usize,
        looked_at_max: usize,
        mut wanted: impl FnMut(&Redemption) -> Option<Redemption>,
    ) -> RedemptionPage {
        let mut page = RedemptionPage {
            redemptions: Vec::new(),
            next: None,
        };
        let mut looked_at = None;
        for (count, packed) in self.changes_after(query, after).enumerate() {
            if count == looked_at_max || page.redemptions.len() == limit {
                page.next = looked_at;
                break;
            }
            if query.asks_for(packed) {
                page.redemptions.extend(wanted(&packed.unpack()));
            }
            looked_at = Some(packed.change());
        }
        page
    }

    /// All redemptions after `after` that a query has to check, in its order. For a reference that many have, these are all that changed.
    fn changes_after(
        &self,
        query: &RedemptionQuery,
        after: Option<ChangeNumber>,
    ) -> Box<dyn Iterator<Item = RedemptionView<'_>> + '_> {
        let first = query.changed_after.map(ChangeNumber::at_last);
        let (begin, end) = match query.order {
            RedemptionOrder::Oldest => (after.max(first), None),
            RedemptionOrder::Newest => (first, after),
        };
        let begin = begin.unwrap_or_default();
        let end = end.unwrap_or(ChangeNumber(u64::MAX));
        let reference = query.reference.as_ref();
        let few = reference.and_then(|reference| {
            self.by_reference
                .find(self.hash(reference.as_str().as_bytes()))
        });
        let Some(few) = few else {
            return match query.order {
                RedemptionOrder::Oldest => {
                    let slots = self.order.after(begin, &self.blocks);
                    Box::new(slots.filter_map(|slot| self.in_slot(slot)))
                }
                RedemptionOrder::Newest => {
                    let latest = self.latest(end);
                    Box::new(latest.take_while(move |packed| packed.change() > begin))
                }
            };
        };
        let found = few.filter_map(|slot| self.in_slot(slot));
        let mut found: Vec<_> = found
            .filter(|packed| packed.change() > begin && packed.change() < end)
            .collect();
        match query.order {
            RedemptionOrder::Oldest => found.sort_unstable_by_key(|packed| packed.change()),
            RedemptionOrder::Newest => {
                found.sort_unstable_by_key(|packed| Reverse(packed.change()))
            }
        }
        Box::new(found.into_iter())
    }

    /// Adds a redemption, which becomes current.
    pub fn insert(&mut self, redemption: Redemption) {
        let digest = redemption.digest;
        let change = self.next_change(redemption.changed_at);
        self.put(&LedgerEntry { redemption, change });
        self.note_member(digest);
    }

    /// Notes that a code of which a use is taken is in the pool: no other can be redeemed. Its number may have been another code's.
    fn note_member(&mut self, digest: Digest) {
        if !self.membership.is_whole()
            && let Some(number) = self.member_number(digest)
        {
            self.membership.join(number);
        }
    }

    fn next_change(&mut self, now: Timestamp) -> ChangeNumber {
        self.last_change = self.last_change.next(now);
        self.last_change
    }

    /// Replaces a changed redemption. If it is no longer current, its ordinal is free, unless it keeps its use.
    pub fn settle(&mut self, redemption: Redemption, keeps_use: bool) {
        let Some(slot) = self.slot_of(&redemption.id) else {
            return;
        };
        let stood = self.in_slot(slot).is_some_and(RedemptionView::stands);
        if let (Some(ordinals), Some(ordinal)) = (&mut self.ordinals, redemption.details.ordinal)
            && stood
            && !keeps_use
            && !redemption.stands()
        {
            ordinals.release(ordinal);
        }
        let change = self.next_change(redemption.changed_at);
        self.replace(slot, &LedgerEntry { redemption, change });
    }

    /// Removes a redemption, if it is there.
    pub fn remove(&mut self, id: &RedemptionId) {
        if let Some(slot) = self.slot_of(id) {
            self.free_slot(slot);
        }
    }

    /// Frees about this many entries, or none while a snapshot needs the redemptions. Returns how many those were.
    pub(super) fn free(&mut self, entries_max: u64) -> u64 {
        let mut freed = 0;
        while freed < entries_max
            && let Some(block) = self.blocks.free_page()
        {
            freed += block.taken().max(1) as u64;
        }
        if self.blocks.memory_bytes() > 0 {
            return freed;
        }
        while freed < entries_max {
            let mut ordinals = self.ordinals.iter_mut().chain(&mut self.loaded);
            let lists = [
                self.by_id.free_list(),
                self.current.free_list(),
                self.by_reference.free_list(),
                self.order.free_page(),
            ];
            let keyed = self.uses.iter_mut().chain(&mut self.customers);
            let tallies: u64 = keyed
                .filter_map(|uses| uses.free())
                .map(|entries| entries.max(1) as u64)
                .sum();
            let removed = [
                self.membership.free_page(),
                ordinals.any(|numbers| numbers.free_page().is_some()),
                self.holds.pop_first().is_some(),
                self.retention.free_one(),
            ];
            let lists = lists.into_iter().flatten();
            let lists: u64 = lists.map(|entries| entries.max(1) as u64).sum();
            let removed = removed.into_iter().filter(|is_removed| *is_removed);
            match lists + tallies + removed.count() as u64 {
                0 => break,
                removed => freed += removed,
            }
        }
        freed
    }

    /// Changes the times of those redemptions for which `amended` returns others. The order of their changes stays as it is. Returns how
    /// many changed.
    pub fn amend(&mut self, amended: impl Fn(&Redemption) -> Option<Redemption>) -> u64 {
        let mut count = 0;
        for slot in slots(0..self.blocks.pages.end()) {
            let Some(packed) = self.in_slot(slot) else {
                continue;
            };
            let change = packed.change();
            if let Some(redemption) = amended(&packed.unpack()) {
                self.replace(slot, &LedgerEntry { redemption, change });
                count += 1;
            }
        }
        count
    }

    /// Whether an ended hold can be revived: its code has no other current redemption, and its customer has a use left.
    pub(super) fn may_hold_again(&self, ended: &Redemption) -> bool {
        let is_at_limit = |customer| self.is_at_limit(customer);
        self.current_for(ended.digest, &ended.reference).is_none()
            && !self.is_used_up(ended.digest)
            && !ended.details.customer.is_some_and(is_at_limit)
    }

    /// Revives an ended hold, unless its code has another current redemption. It keeps its ordinal, unless that is taken, or too high for a
    /// pool with this many redemptions. Returns whether it was revived.
    pub fn hold_again(&mut self, id: &RedemptionId) -> bool {
        let Some(slot) = self.slot_of(id) else {
            return false;
        };
        let Some(packed) = self.in_slot(slot) else {
            return false;
        };
        let mut redemption = packed.unpack();
        if !self.may_hold_again(&redemption) {
            return false;
        }
        let digest = redemption.digest;
        let change = packed.change();
        let customer = redemption.details.customer;
        redemption.status = RedemptionStatus::Held;
        redemption.details.is_unreleased = false;
        if let Some(ordinals) = &mut self.ordinals {
            let highest = ordinals.len().saturating_add(self.blocks.len());
            let own = redemption
                .details
                .ordinal
                .filter(|own| *own <= highest && ordinals.take(*own));
            redemption.details.ordinal = own.or_else(|| Some(ordinals.take_lowest()));
        }
        self.count_use(digest, customer, UseStep::Hold);
        self.replace(slot, &LedgerEntry { redemption, change });
        self.note_member(digest);
        true
    }

    /// Takes an ordinal for a redemption that is about to be inserted; `None` unless it is an open pool's.
    pub(super) fn take_ordinal(&mut self) -> Option<u64> {
        self.ordinals.as_deref_mut().map(Numbers::take_lowest)
    }

    /// Number of uses of an open pool that are taken, even if the redemption is forgotten by now or the hold has run out.
    pub(super) fn taken(&self) -> u64 {
        self.ordinals.as_deref().map_or(0, Numbers::len)
    }

    /// The hold that ran out first, at `now` or earlier.
    pub(super) fn overdue(&self, now: Timestamp) -> Option<RedemptionId> {
        self.first_hold()
            .filter(|(until, _)| *until <= now)
            .map(|(_, id)| id)
    }

    /// Counts the holds that have not run out at `now`, up to `max`.
    pub(super) fn holds_after(&self, now: Timestamp, max: usize) -> usize {
        let latest = self.holds.iter().rev();
        latest
            .take_while(|(until, _)| *until > now)
            .take(max)
            .count()
    }

    /// Whether a redemption at `now` would find fewer codes of an open pool held or redeemed than `stock`. It ends at most [`ENDED_MAX`] holds
    /// that have run out.
    pub(super) fn has_room(&self, stock: u64, now: Timestamp) -> bool {
        let surplus = (self.taken() + 1).saturating_sub(stock);
        let overdue = self.holds.iter().take_while(|(until, _)| *until <= now);
        overdue.take(surplus.min(ENDED_MAX as u64) as usize).count() as u64 == surplus
    }
}

/// The hash of a stored code or of a customer under the key of a ledger.
fn keyed_hash(key: u64, digest: Digest) -> u32 {
    (xxh3_64_with_seed(&digest.0.to_le_bytes(), key) >> 32) as u32
}

/// All slots of some blocks.
fn slots(blocks: Range<u64>) -> impl Iterator<Item = u32> {
    blocks.flat_map(|number| {
        let first = number as u32 * Block::COUNT;
        (0..Block::COUNT).map(move |place| first + place)
    })
}

/// Maximum memory that this many new redemptions need outside of blocks, in bytes.
fn indexes_growth_bytes(redemptions: u64) -> u64 {
    if redemptions == 0 {
        return 0;
    }
    // Each may be a hold, or late, and be the first to be drawn.
    let each = REDEMPTION_BYTES + 2 * SORTED_BYTES;
    let first = LEDGER_BYTES + 3 * INDEX_BYTES + ORDER_BYTES;
    redemptions.saturating_mul(each).saturating_add(first)
}

impl RedemptionQuery {
    /// Whether the query matches a redemption, whatever its status. The indexes alone can't decide: hashes of references collide, and in a
    /// crowded millisecond a position runs ahead of the time.
    fn asks_for(&self, redemption: RedemptionView<'_>) -> bool {
        self.reference
            .as_ref()
            .is_none_or(|reference| redemption.is_under(reference))
            && self
                .changed_after
                .is_none_or(|after| redemption.changed_at() > after)
    }
}

#[cfg(test)]
mod tests;
