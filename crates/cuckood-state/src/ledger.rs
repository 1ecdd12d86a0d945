//! The ledger of a coupon: its redemptions, found by id, by code, by reference, by their last change, or by when they are due.
//!
//! At most one redemption of a code is held or redeemed: the code's **current** one. An ended redemption is retained for the retention
//! time, so that a repeated confirm or cancel is still answered.
//!
//! The ledger of an open pool also has the ordinals that are taken. The ordinal of a redemption that is forgotten stays taken, because its
//! code stays redeemed.

use super::section::{Epoch, ORDINALS, REDEMPTIONS, Section, freeze};
use crate::domain::{
    Redemption, RedemptionId, RedemptionStatus, Reference, STOCK_MAX, SectionId, Timestamp,
};
use crate::paged::{Copied, Numbers, Slab};
use cuckood_filter::Digest;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::Bound;
use xxhash_rust::xxh3::xxh3_64;

/// Memory of a redemption in the indexes, in bytes. Measured, and rounded up. Its slot in the slab and its reference are counted as they
/// are.
pub const REDEMPTION_BYTES: u64 = 328;

/// Maximum number of holds that one redemption ends because they have run out and it needs the space. Its entry has ended others before, of
/// whatever filter.
pub(super) const ENDED_MAX: usize = 1_024;

/// Bits of a [`ChangeNumber`] that number the changes within one millisecond.
const CHANGE_BITS: u32 = 20;

/// The position of a redemption in the order of last changes, over all redemptions of a coupon.
///
/// It is the time of the change in milliseconds, with a count below it. No two are equal, and a new one is always greater than all that a
/// reader has seen.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ChangeNumber(pub u64);

impl ChangeNumber {
    /// The least position that a change at this time can have.
    fn first(at: Timestamp) -> u64 {
        at.0.min((1 << (64 - CHANGE_BITS)) - 1) << CHANGE_BITS
    }

    /// The greatest one.
    fn at_last(at: Timestamp) -> Self {
        Self(Self::first(at) | ((1 << CHANGE_BITS) - 1))
    }

    fn next(self, now: Timestamp) -> Self {
        Self(Self::first(now).max(self.0.saturating_add(1)))
    }
}

/// A query: which redemptions a reader wants.
#[derive(Clone, Debug, Default)]
pub struct RedemptionQuery {
    /// Only redemptions with this reference.
    pub reference: Option<Reference>,
    /// Only redemptions with this status as the reader sees it.
    pub status: Option<RedemptionStatus>,
    /// Only redemptions that changed after this time.
    pub changed_after: Option<Timestamp>,
}

/// A page of the redemptions that a reader wants, in the order of their last change.
#[derive(Debug)]
pub struct RedemptionPage {
    /// The redemptions that were found.
    pub redemptions: Vec<Redemption>,
    /// The start of the next page; `None` if this is the last one.
    pub next: Option<ChangeNumber>,
}

/// A redemption, as a slab of the ledger stores it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LedgerEntry {
    redemption: Redemption,
    /// The position of its last change.
    change: ChangeNumber,
}

/// The keys of a redemption in the indexes.
struct IndexKeys {
    id: RedemptionId,
    change: ChangeNumber,
    reference: (u64, ChangeNumber),
    reference_bytes: u64,
    /// Its code, while it is held or redeemed.
    current: Option<Digest>,
    /// When it expires, if it is a hold.
    hold: Option<(Timestamp, RedemptionId)>,
    /// When it changed last, if it is none.
    ended: Option<(Timestamp, RedemptionId)>,
}

impl LedgerEntry {
    fn keys(&self) -> IndexKeys {
        let Self { redemption, change } = self;
        let hold = redemption.held_until().map(|until| (until, redemption.id));
        IndexKeys {
            id: redemption.id,
            change: *change,
            reference: (reference_hash(&redemption.reference), *change),
            reference_bytes: redemption.reference.as_str().len() as u64,
            current: redemption.stands().then_some(redemption.digest),
            hold,
            ended: hold
                .is_none()
                .then_some((redemption.changed_at, redemption.id)),
        }
    }
}

/// The redemptions of one coupon.
///
/// Invariant: [`Ledger::put`] and [`Ledger::load`] alone change the slab, and so the indexes.
#[derive(Debug, Default)]
pub struct Ledger {
    epoch: Epoch,
    redemptions: Slab<LedgerEntry>,
    by_id: BTreeMap<RedemptionId, u32>,
    current: BTreeMap<Digest, u32>,
    by_change: BTreeMap<ChangeNumber, u32>,
    by_reference: BTreeMap<(u64, ChangeNumber), ()>,
    /// Held redemptions, by the time at which they expire.
    holds: BTreeMap<(Timestamp, RedemptionId), ()>,
    /// All others, by the time of their last change.
    ended: BTreeMap<(Timestamp, RedemptionId), ()>,
    last_change: ChangeNumber,
    references_bytes: u64,
    /// The ordinals that are taken; `None` unless it is an open pool's.
    ordinals: Option<Box<Numbers>>,
    /// During an image upload: the ordinals of its current redemptions, which are distinct.
    loaded: Option<Box<Numbers>>,
}

/// The metadata of a ledger in a snapshot, without the content of its sections.
#[derive(Serialize, Deserialize)]
pub(super) struct StoredLedger {
    pub(super) epoch: Epoch,
    pub(super) redemptions: u64,
    pub(super) changes: u64,
    /// Memory that it takes. It doesn't follow from the chunks, which have no free slots.
    pub(super) memory_bytes: u64,
    /// For an open pool: the number of changes of its ordinals.
    pub(super) ordinals_changes: Option<u64>,
}

fn reference_hash(reference: &Reference) -> u64 {
    xxh3_64(reference.as_str().as_bytes())
}

/// Replaces a key of an index by another. Returns whether that one was free.
fn rekey<K: Ord, V>(
    index: &mut BTreeMap<K, V>,
    before: Option<K>,
    after: Option<K>,
    value: V,
) -> bool {
    if before == after {
        return true;
    }
    if let Some(before) = before {
        index.remove(&before);
    }
    after.is_none_or(|after| index.insert(after, value).is_none())
}

impl Ledger {
    /// An empty ledger. `last_change` is the position of the last change of a redemption that it will be loaded with.
    pub(super) fn new(epoch: Epoch, is_open_pool: bool, last_change: ChangeNumber) -> Self {
        let ordinals = is_open_pool.then(Box::default);
        Self {
            epoch,
            last_change,
            ordinals,
            ..Self::default()
        }
    }

    /// Puts a redemption into a slot, or into a new one; without a redemption, frees the slot. All indexes follow.
    fn put(&mut self, slot: Option<u32>, after: Option<LedgerEntry>) {
        let before = slot
            .and_then(|slot| self.redemptions.get(slot))
            .map(LedgerEntry::keys);
        let keys = after.as_ref().map(LedgerEntry::keys);
        let slot = match (slot, after) {
            (None, None) => return,
            (None, Some(entry)) => self.redemptions.insert(entry),
            (Some(slot), Some(entry)) => {
                self.redemptions.update(slot, |held| *held = entry);
                slot
            }
            (Some(slot), None) => {
                self.redemptions.remove(slot);
                slot
            }
        };
        let is_free = self.index(slot, before.as_ref(), keys.as_ref());
        debug_assert!(is_free, "the indexes distinguish redemptions");
    }

    /// Brings the indexes up to date with a slot. Returns whether no other redemption has one of the keys.
    fn index(&mut self, slot: u32, before: Option<&IndexKeys>, after: Option<&IndexKeys>) -> bool {
        self.references_bytes += after.map_or(0, |keys| keys.reference_bytes);
        self.references_bytes -= before.map_or(0, |keys| keys.reference_bytes);
        rekey(
            &mut self.by_reference,
            before.map(|k| k.reference),
            after.map(|k| k.reference),
            (),
        );
        rekey(
            &mut self.holds,
            before.and_then(|k| k.hold),
            after.and_then(|k| k.hold),
            (),
        );
        rekey(
            &mut self.ended,
            before.and_then(|k| k.ended),
            after.and_then(|k| k.ended),
            (),
        );
        rekey(
            &mut self.by_id,
            before.map(|k| k.id),
            after.map(|k| k.id),
            slot,
        ) & rekey(
            &mut self.by_change,
            before.map(|k| k.change),
            after.map(|k| k.change),
            slot,
        ) & rekey(
            &mut self.current,
            before.and_then(|k| k.current),
            after.and_then(|k| k.current),
            slot,
        )
    }

    /// Takes the next chunk of the ordinals of an image or a snapshot. Returns whether it is sound.
    pub(super) fn load_ordinals(&mut self, chunk: &[u8]) -> bool {
        self.ordinals
            .as_mut()
            .is_some_and(|ordinals| ordinals.load(chunk).is_some())
    }

    /// Takes the next chunk of the redemptions of an image or a snapshot, after the ordinals. `is_right` judges each. Returns whether they
    /// contradict nothing.
    pub(super) fn load(&mut self, chunk: &[u8], is_right: impl Fn(&Redemption) -> bool) -> bool {
        let Some(loaded) = self.redemptions.load(chunk) else {
            return false;
        };
        let loaded: Vec<(u32, IndexKeys, bool)> = loaded
            .map(|(slot, entry)| {
                (
                    slot,
                    entry.keys(),
                    is_right(&entry.redemption) && entry.change <= self.last_change,
                )
            })
            .collect();
        loaded.iter().all(|(slot, keys, is_right)| {
            *is_right && self.index(*slot, None, Some(keys)) && self.load_ordinal_of(*slot)
        })
    }

    /// Whether a redemption has an ordinal that its pool can have assigned, and that no other current redemption has.
    fn load_ordinal_of(&mut self, slot: u32) -> bool {
        let found = self
            .in_slot(slot)
            .map(|redemption| (redemption.ordinal, redemption.stands()));
        let Some((ordinal, stands)) = found else {
            return false;
        };
        match (&self.ordinals, ordinal) {
            (None, ordinal) => ordinal.is_none(),
            (Some(ordinals), Some(ordinal)) => {
                (1..=STOCK_MAX).contains(&ordinal)
                    && (!stands
                        || ordinals.contains(ordinal)
                            && self.loaded.get_or_insert_default().take(ordinal))
            }
            (Some(_), None) => false,
        }
    }

    /// Goes on from a snapshot, with its counts of changes.
    pub(super) fn resume(&mut self, changes: u64, ordinals_changes: Option<u64>) {
        self.redemptions.pages.changes = changes;
        if let (Some(ordinals), Some(changes)) = (&mut self.ordinals, ordinals_changes) {
            ordinals.pages.changes = changes;
        }
    }

    /// Ends the loading. Returns whether it can be complete.
    pub(super) fn finish_loading(&mut self) -> bool {
        self.loaded = None;
        self.redemptions.is_trimmed() && self.ordinals.as_deref().is_none_or(Numbers::is_trimmed)
    }

    /// Memory that a chunk of ordinals needs in any ledger, in bytes; none if it is damaged.
    pub(super) fn loading_ordinals_bytes(chunk: &[u8]) -> u64 {
        let mut ordinals = Numbers::default();
        drop(ordinals.load(chunk));
        ordinals.memory_bytes()
    }

    /// Memory that a chunk of redemptions needs in any ledger, in bytes; none if it is damaged.
    pub(super) fn loading_bytes(chunk: &[u8]) -> u64 {
        let mut slab = Slab::<LedgerEntry>::default();
        let Some(loaded) = slab.load(chunk) else {
            return 0;
        };
        let references: u64 = loaded
            .map(|(_, entry)| REDEMPTION_BYTES + entry.keys().reference_bytes)
            .sum();
        slab.memory_bytes() + references
    }

    /// Number of redemptions.
    pub fn len(&self) -> usize {
        self.redemptions.len() as usize
    }

    /// Number of holds.
    pub(super) fn holds_len(&self) -> usize {
        self.holds.len()
    }

    /// The position of the last change of any redemption, even if that is forgotten by now.
    pub fn last_change(&self) -> ChangeNumber {
        self.last_change
    }

    /// Memory that it takes, in bytes, estimated.
    pub(super) fn memory_bytes(&self) -> u64 {
        let ordinals: u64 = self
            .ordinals
            .iter()
            .chain(&self.loaded)
            .map(|numbers| numbers.memory_bytes())
            .sum();
        let indexes = self.by_id.len() as u64 * REDEMPTION_BYTES;
        self.redemptions.memory_bytes() + indexes + self.references_bytes + ordinals
    }

    /// Maximum memory that this many new redemptions need, in bytes, without their references.
    pub(super) fn growth_bytes(redemptions: u64) -> u64 {
        let indexes = redemptions.saturating_mul(REDEMPTION_BYTES);
        let ordinals = Numbers::growth_bytes(redemptions);
        Slab::<LedgerEntry>::growth_bytes(redemptions)
            .saturating_add(indexes)
            .saturating_add(ordinals)
    }

    /// Every redemption.
    pub fn iter(&self) -> impl Iterator<Item = &Redemption> {
        self.redemptions.iter().map(|(_, entry)| &entry.redemption)
    }

    /// The redemption of this id.
    pub fn get(&self, id: &RedemptionId) -> Option<&Redemption> {
        self.in_slot(*self.by_id.get(id)?)
    }

    /// Returns the current redemption of this code.
    pub fn current(&self, digest: Digest) -> Option<&Redemption> {
        self.in_slot(*self.current.get(&digest)?)
    }

    fn in_slot(&self, slot: u32) -> Option<&Redemption> {
        self.redemptions.get(slot).map(|entry| &entry.redemption)
    }

    /// The hold that expires first, and when.
    pub(super) fn first_hold(&self) -> Option<(Timestamp, RedemptionId)> {
        self.holds.keys().next().copied()
    }

    /// The redemption that ended first, and when.
    pub(super) fn first_ended(&self) -> Option<(Timestamp, RedemptionId)> {
        self.ended.keys().next().copied()
    }

    /// A page of redemptions after `after`, in the order of their last change: the first `limit` that `wanted` accepts, out of the first
    /// `looked_at_max`.
    pub fn page(
        &self,
        query: &RedemptionQuery,
        after: Option<ChangeNumber>,
        limit: usize,
        looked_at_max: usize,
        mut wanted: impl FnMut(&Redemption) -> Option<Redemption>,
    ) -> RedemptionPage {
        let begin = after
            .max(query.changed_after.map(ChangeNumber::at_last))
            .unwrap_or_default();
        let mut page = RedemptionPage {
            redemptions: Vec::new(),
            next: None,
        };
        let mut looked_at = None;
        for (count, change) in self.changes_after(query, begin).enumerate() {
            if count == looked_at_max || page.redemptions.len() == limit {
                page.next = looked_at;
                break;
            }
            let redemption = self
                .by_change
                .get(&change)
                .and_then(|slot| self.in_slot(*slot));
            page.redemptions.extend(
                redemption
                    .filter(|redemption| query.asks_for(redemption))
                    .and_then(&mut wanted),
            );
            looked_at = Some(change);
        }
        page
    }

    /// The positions of all redemptions that a query has to check.
    fn changes_after(
        &self,
        query: &RedemptionQuery,
        begin: ChangeNumber,
    ) -> Box<dyn Iterator<Item = ChangeNumber> + '_> {
        match &query.reference {
            None => {
                let range = (Bound::Excluded(begin), Bound::Unbounded);
                Box::new(self.by_change.range(range).map(|(change, _)| *change))
            }
            Some(reference) => {
                let hash = reference_hash(reference);
                let range = (
                    Bound::Excluded((hash, begin)),
                    Bound::Included((hash, ChangeNumber(u64::MAX))),
                );
                Box::new(
                    self.by_reference
                        .range(range)
                        .map(|((_, change), ())| *change),
                )
            }
        }
    }

    /// Adds a redemption, which becomes current.
    pub fn insert(&mut self, redemption: Redemption) {
        let change = self.next_change(redemption.changed_at);
        self.put(None, Some(LedgerEntry { redemption, change }));
    }

    fn next_change(&mut self, now: Timestamp) -> ChangeNumber {
        self.last_change = self.last_change.next(now);
        self.last_change
    }

    /// Replaces a changed redemption. If it is no longer current, its code and its ordinal are free.
    pub fn settle(&mut self, redemption: Redemption) {
        let Some(&slot) = self.by_id.get(&redemption.id) else {
            return;
        };
        let stood = self.in_slot(slot).is_some_and(Redemption::stands);
        if let (Some(ordinals), Some(ordinal)) = (&mut self.ordinals, redemption.ordinal)
            && stood
            && !redemption.stands()
        {
            ordinals.release(ordinal);
        }
        let change = self.next_change(redemption.changed_at);
        self.put(Some(slot), Some(LedgerEntry { redemption, change }));
    }

    /// Removes a redemption, if it is there.
    pub fn remove(&mut self, id: &RedemptionId) {
        let slot = self.by_id.get(id).copied();
        self.put(slot, None);
    }

    /// Frees about this many entries, or none while a snapshot needs the redemptions. Returns how many those were.
    pub(super) fn free(&mut self, entries_max: u64) -> u64 {
        let mut freed = 0;
        while freed < entries_max
            && let Some(page) = self.redemptions.free_page()
        {
            freed += page.values.len().max(1) as u64;
        }
        if self.redemptions.memory_bytes() > 0 {
            return freed;
        }
        self.references_bytes = 0;
        while freed < entries_max {
            let mut ordinals = self.ordinals.iter_mut().chain(&mut self.loaded);
            let removed = [
                ordinals.any(|numbers| numbers.free_page().is_some()),
                self.by_id.pop_first().is_some(),
                self.current.pop_first().is_some(),
                self.by_change.pop_first().is_some(),
                self.by_reference.pop_first().is_some(),
                self.holds
                    .pop_first()
                    .or_else(|| self.ended.pop_first())
                    .is_some(),
            ];
            match removed.into_iter().filter(|is_removed| *is_removed).count() as u64 {
                0 => break,
                removed => freed += removed,
            }
        }
        freed
    }

    /// Changes the times of those redemptions for which `amended` returns others. The order of their changes stays as it is. Returns how
    /// many changed.
    pub fn amend(&mut self, amended: impl Fn(&Redemption) -> Option<Redemption>) -> u64 {
        let amended = |(slot, entry): (u32, &LedgerEntry)| {
            Some((slot, amended(&entry.redemption)?, entry.change))
        };
        let changes: Vec<_> = self.redemptions.iter().filter_map(amended).collect();
        let count = changes.len() as u64;
        for (slot, redemption, change) in changes {
            self.put(Some(slot), Some(LedgerEntry { redemption, change }));
        }
        count
    }

    /// Revives an ended hold, unless its code has another current redemption. It keeps its ordinal, unless that is taken, or too high for a
    /// pool with this many redemptions. Returns whether it was revived.
    pub fn hold_again(&mut self, id: &RedemptionId) -> bool {
        let Some(&slot) = self.by_id.get(id) else {
            return false;
        };
        let Some(mut entry) = self.redemptions.get(slot).cloned() else {
            return false;
        };
        if self.current.contains_key(&entry.redemption.digest) {
            return false;
        }
        entry.redemption.status = RedemptionStatus::Held;
        if let Some(ordinals) = &mut self.ordinals {
            let highest = ordinals.len().saturating_add(self.redemptions.len());
            let own = entry
                .redemption
                .ordinal
                .filter(|own| *own <= highest && ordinals.take(*own));
            entry.redemption.ordinal = own.or_else(|| Some(ordinals.take_lowest()));
        }
        self.put(Some(slot), Some(entry));
        true
    }

    /// Takes an ordinal for a redemption that is about to be inserted; `None` unless it is an open pool's.
    pub(super) fn take_ordinal(&mut self) -> Option<u64> {
        self.ordinals.as_deref_mut().map(Numbers::take_lowest)
    }

    /// Number of codes of an open pool that are held or redeemed, even if the redemption is forgotten by now or the hold has run out.
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
        let latest = self.holds.keys().rev();
        latest
            .take_while(|(until, _)| *until > now)
            .take(max)
            .count()
    }

    /// Whether a redemption at `now` would find fewer codes of an open pool held or redeemed than `stock`. It ends at most [`ENDED_MAX`] holds
    /// that have run out.
    pub(super) fn has_room(&self, stock: u64, now: Timestamp) -> bool {
        let surplus = (self.taken() + 1).saturating_sub(stock);
        let overdue = self.holds.keys().take_while(|(until, _)| *until <= now);
        overdue.take(surplus.min(ENDED_MAX as u64) as usize).count() as u64 == surplus
    }

    /// Adds sections for the redemptions and the ordinals.
    pub(super) fn freeze(&mut self, copied: &Copied, sections: &mut Vec<Section>) -> StoredLedger {
        let epoch = self.epoch;
        let redemptions = self.redemptions.len();
        let memory_bytes = self.memory_bytes();
        let changes = freeze(
            SectionId::new(epoch, REDEMPTIONS),
            &mut self.redemptions.pages,
            copied,
            sections,
        );
        let ordinals = self.ordinals.as_deref_mut();
        let ordinals_changes = ordinals.map(|ordinals| {
            freeze(
                SectionId::new(epoch, ORDINALS),
                &mut ordinals.pages,
                copied,
                sections,
            )
        });
        StoredLedger {
            epoch,
            redemptions,
            changes,
            memory_bytes,
            ordinals_changes,
        }
    }
}

impl RedemptionQuery {
    /// Whether the query matches a redemption, whatever its status. The indexes alone can't decide: hashes of references collide, and in a
    /// crowded millisecond a position runs ahead of the time.
    fn asks_for(&self, redemption: &Redemption) -> bool {
        self.reference
            .as_ref()
            .is_none_or(|reference| *reference == redemption.reference)
            && self
                .changed_after
                .is_none_or(|after| redemption.changed_at > after)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const STATUSES: [RedemptionStatus; 4] = [
        RedemptionStatus::Held,
        RedemptionStatus::Redeemed,
        RedemptionStatus::Cancelled,
        RedemptionStatus::Expired,
    ];

    fn redemption(number: u64, at: u64) -> Redemption {
        Redemption {
            id: RedemptionId(u128::from(number).to_be_bytes()),
            digest: Digest(number),
            reference: Reference::new(&format!("order-{}", number % 3)).unwrap(),
            status: RedemptionStatus::Held,
            created_at: Timestamp(at),
            changed_at: Timestamp(at),
            expires_at: None,
            redeemed_at: None,
            ordinal: None,
        }
    }

    proptest! {
        /// All pages together equal one complete scan. A reader that continues after its last page misses no change in between.
        #[test]
        fn pages_follow_changes_without_gaps(
            steps in proptest::collection::vec((0..6u8, 0..60u64, 0..3u64), 1..200),
            reference in proptest::option::of(0..3u64),
            status in proptest::option::of(0..STATUSES.len()),
            changed_after in proptest::option::of(0..100u64),
            (limit, looked_at_max) in (1..10usize, 1..20usize),
        ) {
            let query = RedemptionQuery {
                reference: reference.map(|number| redemption(number, 0).reference),
                status: status.map(|status| STATUSES[status]),
                changed_after: changed_after.map(Timestamp),
            };
            let mut ledger = Ledger::new(Epoch(1), false, ChangeNumber::default());
            let mut order = Vec::<Redemption>::new();
            let mut seen = Vec::new();
            let mut cursor = None;
            let mut now = 0;
            let wanted = |r: &Redemption| query.status.is_none_or(|s| s == r.status).then(|| r.clone());
            for (step, number, pause) in steps {
                now += pause;
                let id = redemption(number, 0).id;
                match (step, ledger.get(&id).is_some()) {
                    (0, true) => {
                        ledger.remove(&id);
                        order.retain(|r| r.id != id);
                    }
                    (1..6, true) => {
                        let status = STATUSES[usize::from(step) % 4];
                        let before = ledger.get(&id).unwrap().clone();
                        let settled = Redemption { status, expires_at: None, changed_at: Timestamp(now), ..before };
                        ledger.settle(settled.clone());
                        order.retain(|r| r.id != id);
                        order.push(settled);
                    }
                    (_, false) => {
                        ledger.insert(redemption(number, now));
                        order.push(redemption(number, now));
                    }
                    _ => {}
                }
                let page = ledger.page(&query, cursor, limit, looked_at_max, wanted);
                prop_assert!(page.redemptions.len() <= limit);
                cursor = page.next.or(cursor);
                if page.next.is_some() {
                    seen.extend(page.redemptions);
                }
            }
            let is_asked = |r: &Redemption| query.asks_for(r) && wanted(r).is_some();
            let expected: Vec<Redemption> = order.iter().filter(|r| is_asked(r)).cloned().collect();
            let all = ledger.page(&query, None, usize::MAX, usize::MAX, wanted);
            prop_assert_eq!(&all.redemptions, &expected);
            prop_assert!(all.next.is_none());
            let rest = ledger.page(&query, cursor, usize::MAX, usize::MAX, wanted);
            seen.extend(rest.redemptions);
            for redemption in expected {
                prop_assert!(seen.contains(&redemption), "{redemption:?} was missed");
            }
        }
    }
}
