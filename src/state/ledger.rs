//! The ledger of a coupon: its redemptions, found by id, by code, by reference or by their last change.
//!
//! At most one redemption of a code stands, which is to say, is held or redeemed: the code's **current** one. A redemption that has
//! ended is kept for the retention time, so that a repeated confirm or cancel still gets its answer.

use super::epoch::Epoch;
use super::ordinals::Ordinals;
use super::piece::Piece;
use super::pool::Pool;
use super::slab::Slab;
use crate::domain::{PlacedRedemption, Redemption, RedemptionId, Reference, Status, Timestamp};
use crate::filter::Digest;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use xxhash_rust::xxh3::xxh3_64;

/// Memory of a redemption's entries in the indexes and in a queue, in bytes. Measured, and rounded up. Its slot in the slab and its
/// reference are counted as they are.
pub const REDEMPTION_BYTES: u64 = 328;

/// The share of [`REDEMPTION_BYTES`] that the four indexes take.
const INDEXES_BYTES: u64 = 192;

/// Bits of a [`Change`] that tell changes within one millisecond apart.
const CHANGE_BITS: u32 = 20;

/// The position of a redemption in the order of last changes, over all redemptions of a coupon.
///
/// It is the time of the change in milliseconds, with a count below it. No two are equal, and a new one is always greater than all that a
/// reader has seen.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Change(pub u64);

impl Change {
    /// The greatest position that a change at this time can have.
    fn at_last(at: Timestamp) -> Self {
        Self(at.0.min((1 << (64 - CHANGE_BITS)) - 1) << CHANGE_BITS | ((1 << CHANGE_BITS) - 1))
    }

    fn next(self, now: Timestamp) -> Self {
        let first = now.0.min((1 << (64 - CHANGE_BITS)) - 1) << CHANGE_BITS;
        Self(first.max(self.0.saturating_add(1)))
    }
}

/// A query: which redemptions a reader wants.
#[derive(Clone, Debug, Default)]
pub struct RedemptionQuery {
    /// Only those with this reference.
    pub reference: Option<Reference>,
    /// Only those that the reader sees in this status.
    pub status: Option<Status>,
    /// Only those that changed after this time.
    pub changed_after: Option<Timestamp>,
}

/// A page of the redemptions that a reader wants, in the order of their last change.
#[derive(Debug)]
pub struct RedemptionPage {
    /// The redemptions that were found.
    pub redemptions: Vec<Redemption>,
    /// Where the next page begins; none if this is the last one.
    pub next: Option<Change>,
}

/// A redemption, as a slab of the ledger stores it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Kept {
    redemption: Redemption,
    /// The position of its last change.
    change: Change,
}

impl From<PlacedRedemption> for Kept {
    fn from(PlacedRedemption { redemption, change }: PlacedRedemption) -> Self {
        Self { redemption, change: Change(change) }
    }
}

impl From<Kept> for PlacedRedemption {
    fn from(Kept { redemption, change }: Kept) -> Self {
        Self { redemption, change: change.0 }
    }
}

/// The redemptions of one coupon.
#[derive(Debug)]
pub struct Ledger {
    epoch: Epoch,
    redemptions: Slab<Kept>,
    by_id: BTreeMap<RedemptionId, u32>,
    current: BTreeMap<Digest, u32>,
    by_change: BTreeMap<Change, u32>,
    by_reference: BTreeSet<(u64, Change)>,
    last_change: Change,
    /// None unless it is an open pool's.
    pool: Option<Pool>,
    references_bytes: u64,
}

fn reference_hash(reference: &Reference) -> u64 {
    xxh3_64(reference.as_str().as_bytes())
}

impl Ledger {
    /// An empty ledger.
    pub(super) fn new(epoch: Epoch, is_open_pool: bool) -> Self {
        let pool = is_open_pool.then(Pool::default);
        Self { pool, ..Self::over(epoch, Slab::default(), Change::default()) }
    }

    /// Restores a ledger from its redemptions, the position of its last change and, for an open pool, the ordinals that are taken. None if
    /// they contradict each other.
    pub(super) fn restore(
        epoch: Epoch,
        redemptions: Slab<Kept>,
        last_change: Change,
        ordinals: Option<Ordinals>,
        is_loading: bool,
    ) -> Option<Self> {
        let mut ledger = Self::over(epoch, redemptions, last_change);
        if let Some(ordinals) = ordinals {
            let redemptions = ledger.redemptions.iter().map(|(_, kept)| &kept.redemption);
            ledger.pool = Some(Pool::restore(ordinals, redemptions, is_loading)?);
        }
        Some(ledger)
    }

    fn over(epoch: Epoch, redemptions: Slab<Kept>, last_change: Change) -> Self {
        let mut ledger = Self {
            epoch,
            redemptions,
            by_id: BTreeMap::new(),
            current: BTreeMap::new(),
            by_change: BTreeMap::new(),
            by_reference: BTreeSet::new(),
            last_change,
            pool: None,
            references_bytes: 0,
        };
        for (slot, Kept { redemption, change }) in ledger.redemptions.iter() {
            ledger.references_bytes += redemption.reference.as_str().len() as u64;
            ledger.by_id.insert(redemption.id, slot);
            ledger.by_change.insert(*change, slot);
            ledger.by_reference.insert((reference_hash(&redemption.reference), *change));
            if redemption.stands() {
                ledger.current.insert(redemption.digest, slot);
            }
        }
        ledger
    }

    /// An empty ledger that an image fills. The position of its last change is known already.
    pub(super) fn hollow(epoch: Epoch, last_change: Change, is_open_pool: bool) -> Self {
        Self { last_change, ..Self::new(epoch, is_open_pool) }
    }

    /// Takes the next ordinals of an image. Returns whether that can be.
    pub(super) fn load_ordinals(&mut self, bytes: &[u8]) -> bool {
        self.pool.as_mut().is_some_and(|pool| pool.ordinals.load(bytes))
    }

    /// Adds a redemption with the place that it has in an image. Returns whether that can be.
    pub(super) fn load(&mut self, kept: Kept) -> bool {
        let Kept { redemption, change } = &kept;
        let (change, hash) = (*change, reference_hash(&redemption.reference));
        let (id, digest, stands) = (redemption.id, redemption.digest, redemption.stands());
        if self.by_id.contains_key(&id)
            || self.by_change.contains_key(&change)
            || self.last_change < change
            || (stands && self.current.contains_key(&digest))
            || !self.pool.as_mut().map_or(redemption.ordinal.is_none(), |pool| pool.load(redemption))
        {
            return false;
        }
        self.references_bytes += redemption.reference.as_str().len() as u64;
        let slot = self.redemptions.insert(kept);
        self.by_id.insert(id, slot);
        self.by_change.insert(change, slot);
        self.by_reference.insert((hash, change));
        if stands {
            self.current.insert(digest, slot);
        }
        true
    }

    /// Forgets what only the image needed that has come.
    pub(super) fn finish_loading(&mut self) {
        if let Some(pool) = &mut self.pool {
            pool.finish_loading();
        }
    }

    /// Whether the ordinals that an image has brought can be all.
    pub(super) fn is_loaded(&self) -> bool {
        self.pool.as_ref().is_none_or(|pool| pool.ordinals.is_trimmed())
    }

    /// The most memory that so many redemptions of an image can ask for in any ledger, in bytes, without their references.
    pub(super) fn loading_bytes(redemptions: u64) -> u64 {
        let beside = redemptions.saturating_mul(REDEMPTION_BYTES);
        Slab::<Kept>::growth_bytes(redemptions)
            .saturating_add(beside)
            .saturating_add(Pool::growth_bytes(redemptions))
    }

    pub(super) fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// How many redemptions there are.
    pub fn len(&self) -> usize {
        self.redemptions.len()
    }

    /// The position of the last change of any redemption, even if that is forgotten by now.
    pub fn last_change(&self) -> Change {
        self.last_change
    }

    /// Memory that it takes, in bytes, estimated.
    pub(super) fn memory_bytes(&self) -> u64 {
        let beside = self.len() as u64 * REDEMPTION_BYTES + self.references_bytes;
        self.redemptions.memory_bytes() + beside + self.pool.as_ref().map_or(0, Pool::memory_bytes)
    }

    /// The most memory that so many new redemptions can ask for, in bytes, without their references.
    pub(super) fn growth_bytes(&self, redemptions: u64) -> u64 {
        let beside = redemptions.saturating_mul(REDEMPTION_BYTES);
        let of_pool = self.pool.as_ref().map_or(0, |_| Pool::growth_bytes(redemptions));
        Slab::<Kept>::growth_bytes(redemptions).saturating_add(beside).saturating_add(of_pool)
    }

    /// Every redemption.
    pub fn iter(&self) -> impl Iterator<Item = &Redemption> {
        self.redemptions.iter().map(|(_, kept)| &kept.redemption)
    }

    /// The redemption of this id.
    pub fn get(&self, id: &RedemptionId) -> Option<&Redemption> {
        self.in_slot(*self.by_id.get(id)?)
    }

    /// The redemption that stands for this code.
    pub fn current(&self, digest: Digest) -> Option<&Redemption> {
        self.in_slot(*self.current.get(&digest)?)
    }

    fn in_slot(&self, slot: u32) -> Option<&Redemption> {
        self.redemptions.get(slot).map(|kept| &kept.redemption)
    }

    /// A page of redemptions after `after`, in the order of their last change: the first `limit` that `wanted` accepts, out of the first
    /// `looked_at_max`.
    pub fn page(
        &self,
        query: &RedemptionQuery,
        after: Option<Change>,
        limit: usize,
        looked_at_max: usize,
        mut wanted: impl FnMut(&Redemption) -> Option<Redemption>,
    ) -> RedemptionPage {
        let begin = after.max(query.changed_after.map(Change::at_last)).unwrap_or_default();
        let mut page = RedemptionPage { redemptions: Vec::new(), next: None };
        let mut looked_at = None;
        for (count, change) in self.changes_after(query, begin).enumerate() {
            if count == looked_at_max || page.redemptions.len() == limit {
                page.next = looked_at;
                break;
            }
            let redemption = self.by_change.get(&change).and_then(|slot| self.in_slot(*slot));
            page.redemptions
                .extend(redemption.filter(|redemption| query.asks_for(redemption)).and_then(&mut wanted));
            looked_at = Some(change);
        }
        page
    }

    /// The positions of all redemptions that a query has to look at.
    fn changes_after(&self, query: &RedemptionQuery, begin: Change) -> Box<dyn Iterator<Item = Change> + '_> {
        match &query.reference {
            None => {
                let range = (Bound::Excluded(begin), Bound::Unbounded);
                Box::new(self.by_change.range(range).map(|(change, _)| *change))
            }
            Some(reference) => {
                let hash = reference_hash(reference);
                let range = (Bound::Excluded((hash, begin)), Bound::Included((hash, Change(u64::MAX))));
                Box::new(self.by_reference.range(range).map(|(_, change)| *change))
            }
        }
    }

    /// Adds a redemption, which stands from now on.
    pub fn insert(&mut self, redemption: Redemption) {
        let (id, digest, hash) = (redemption.id, redemption.digest, reference_hash(&redemption.reference));
        debug_assert!(redemption.stands() && !self.current.contains_key(&digest));
        let change = self.next_change(redemption.changed_at);
        if let Some(pool) = &mut self.pool {
            pool.note(None, Some(&redemption));
        }
        self.references_bytes += redemption.reference.as_str().len() as u64;
        let slot = self.redemptions.insert(Kept { redemption, change });
        self.by_id.insert(id, slot);
        self.by_change.insert(change, slot);
        self.by_reference.insert((hash, change));
        self.current.insert(digest, slot);
    }

    fn next_change(&mut self, now: Timestamp) -> Change {
        self.last_change = self.last_change.next(now);
        self.last_change
    }

    /// Stores a redemption after a change, in the place of what it was before. If it no longer stands, its code can have another current
    /// one.
    pub fn settle(&mut self, redemption: &Redemption) {
        let Some(&slot) = self.by_id.get(&redemption.id) else { return };
        let change = self.next_change(redemption.changed_at);
        let mut before = change;
        let pool = &mut self.pool;
        self.redemptions.update(slot, |kept| {
            before = kept.change;
            if let Some(pool) = pool {
                pool.note(Some(&kept.redemption), Some(redemption));
            }
            *kept = Kept { redemption: redemption.clone(), change };
        });
        let hash = reference_hash(&redemption.reference);
        self.by_change.remove(&before);
        self.by_change.insert(change, slot);
        self.by_reference.remove(&(hash, before));
        self.by_reference.insert((hash, change));
        if !redemption.stands() {
            self.detach(redemption.digest, slot);
        }
    }

    /// Removes a redemption.
    pub fn remove(&mut self, id: &RedemptionId) -> Option<Redemption> {
        let slot = self.by_id.remove(id)?;
        let Kept { redemption, change } = self.redemptions.remove(slot)?;
        self.by_change.remove(&change);
        self.by_reference.remove(&(reference_hash(&redemption.reference), change));
        self.detach(redemption.digest, slot);
        if let Some(pool) = &mut self.pool {
            pool.note(Some(&redemption), None);
        }
        self.references_bytes -= redemption.reference.as_str().len() as u64;
        Some(redemption)
    }

    /// Its parts, to be freed a little at a time.
    pub(super) fn into_pieces(self) -> Vec<Piece> {
        let Self { redemptions, by_id, current, by_change, by_reference, references_bytes, pool, .. } = self;
        let reference_bytes = references_bytes / redemptions.len().max(1) as u64;
        let mut pieces = redemptions.into_pieces(reference_bytes);
        pieces.push(Piece::new(by_id, 1, INDEXES_BYTES / 4));
        pieces.push(Piece::new(current, 1, INDEXES_BYTES / 4));
        pieces.push(Piece::new(by_change, 1, INDEXES_BYTES / 4));
        pieces.push(Piece::new(by_reference, 1, INDEXES_BYTES / 4));
        pieces.extend(pool.into_iter().flat_map(Pool::into_pieces));
        pieces
    }

    /// Changes the times of those redemptions for which `amended` returns others. Their order stays as it is. Returns how many changed.
    pub fn amend(&mut self, amended: impl Fn(&Redemption) -> Option<Redemption>) -> u64 {
        let changes: Vec<_> = self
            .redemptions
            .iter()
            .filter_map(|(slot, kept)| Some((slot, amended(&kept.redemption)?)))
            .collect();
        let count = changes.len() as u64;
        for (slot, now) in changes {
            self.redemptions.update(slot, |kept| {
                kept.redemption.created_at = now.created_at;
                kept.redemption.changed_at = now.changed_at;
                kept.redemption.expires_at = now.expires_at;
                kept.redemption.redeemed_at = now.redeemed_at;
            });
        }
        if let Some(pool) = &mut self.pool {
            pool.order_holds(self.redemptions.iter().map(|(_, kept)| &kept.redemption));
        }
        count
    }

    /// Lets a hold that has ended stand again, unless another redemption of its code stands. Returns whether it does.
    pub fn hold_again(&mut self, id: &RedemptionId) -> bool {
        let Some(&slot) = self.by_id.get(id) else { return false };
        let Some(digest) = self.in_slot(slot).map(|redemption| redemption.digest) else { return false };
        if self.current.contains_key(&digest) {
            return false;
        }
        let (pool, redemptions) = (&mut self.pool, self.redemptions.len() as u64);
        self.redemptions.update(slot, |kept| {
            kept.redemption.status = Status::Held;
            if let Some(pool) = pool {
                pool.hold_again(&mut kept.redemption, redemptions);
            }
        });
        self.current.insert(digest, slot);
        true
    }

    /// Takes an ordinal for a redemption that is about to be inserted; none unless it is an open pool's.
    pub(super) fn take_ordinal(&mut self) -> Option<u64> {
        self.pool.as_mut().map(|pool| pool.ordinals.take())
    }

    /// How many codes of an open pool are held or redeemed, even if the redemption is forgotten by now or the hold has run out.
    pub(super) fn taken(&self) -> u64 {
        self.pool.as_ref().map_or(0, |pool| pool.ordinals.taken())
    }

    /// The hold of an open pool that ran out first, at `now` or earlier.
    pub(super) fn overdue(&self, now: Timestamp) -> Option<RedemptionId> {
        self.pool.as_ref()?.overdue(now)
    }

    /// Whether a redemption at `now` would find fewer codes of an open pool held or redeemed than `stock`.
    pub(super) fn has_room(&self, stock: u64, now: Timestamp) -> bool {
        self.pool.as_ref().is_some_and(|pool| pool.has_room(stock, now))
    }

    /// Which ordinals are taken, for a snapshot; none unless it is an open pool's.
    pub(super) fn ordinals_mut(&mut self) -> Option<&mut Ordinals> {
        self.pool.as_mut().map(|pool| &mut pool.ordinals)
    }

    fn detach(&mut self, digest: Digest, slot: u32) {
        if self.current.get(&digest) == Some(&slot) {
            self.current.remove(&digest);
        }
    }

    /// Begins a snapshot of the redemptions and the ordinals. Returns how often each of them has changed so far.
    pub(super) fn begin_snapshot(&mut self) -> (u64, Option<u64>) {
        self.redemptions.begin_snapshot();
        let ordinals = self.ordinals_mut().map(|ordinals| {
            ordinals.begin_snapshot();
            ordinals.changes()
        });
        (self.redemptions.changes(), ordinals)
    }

    /// Bytes that are kept for the running snapshot, about.
    pub(super) fn snapshot_bytes(&self) -> usize {
        let ordinals = self.pool.as_ref().map_or(0, |pool| pool.ordinals.snapshot_bytes());
        self.redemptions.snapshot_bytes() + ordinals
    }

    /// Ends the running snapshot.
    pub(super) fn end_snapshot(&mut self) {
        self.redemptions.end_snapshot();
        if let Some(ordinals) = self.ordinals_mut() {
            ordinals.end_snapshot();
        }
    }

    /// The slab, for a snapshot.
    pub(super) fn slab_mut(&mut self) -> &mut Slab<Kept> {
        &mut self.redemptions
    }
}

impl RedemptionQuery {
    /// Whether the query asks for a redemption, whatever its status. The indexes alone can't tell: hashes of references collide, and in a
    /// crowded millisecond a position runs ahead of the time.
    fn asks_for(&self, redemption: &Redemption) -> bool {
        self.reference.as_ref().is_none_or(|reference| *reference == redemption.reference)
            && self.changed_after.is_none_or(|after| redemption.changed_at > after)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const STATUSES: [Status; 4] = [Status::Held, Status::Redeemed, Status::Cancelled, Status::Expired];

    fn redemption(number: u64, at: u64) -> Redemption {
        Redemption {
            id: RedemptionId(u128::from(number).to_be_bytes()),
            digest: Digest(number),
            reference: Reference::new(&format!("order-{}", number % 3)).unwrap(),
            status: Status::Held,
            created_at: Timestamp(at),
            changed_at: Timestamp(at),
            expires_at: None,
            redeemed_at: None,
            ordinal: None,
        }
    }

    proptest! {
        /// All pages together have what one look would show. A reader that goes on where its last page ended misses nothing that has
        /// changed meanwhile.
        #[test]
        fn pages_are_in_the_order_of_changes_and_miss_nothing(
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
            let (mut ledger, mut order) = (Ledger::new(Epoch(1), false), Vec::<Redemption>::new());
            let (mut seen, mut cursor, mut now) = (Vec::new(), None, 0);
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
                        ledger.settle(&settled);
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
