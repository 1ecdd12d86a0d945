//! A coupon's redemptions, and the ways to find one: by its id, by its code, by its reference.
//!
//! A code has at most one redemption that stands (held or redeemed): its **current** one. Ended ones stay
//! for the retention time, so that a repeated confirm or cancel still gets its answer.

use super::Epoch;
use super::slab::{DamagedSlab, Slab};
use crate::domain::{Redemption, RedemptionId, Reference, Status, Timestamp};
use crate::filter::Digest;
use std::collections::{BTreeMap, BTreeSet};
use xxhash_rust::xxh3::xxh3_64;

/// Memory of one redemption with its places in the indexes, in bytes, without its reference: measured, and
/// rounded up.
pub const REDEMPTION_BYTES: u64 = 400;

/// The redemptions of one coupon.
#[derive(Debug)]
pub struct Ledger {
    epoch: Epoch,
    redemptions: Slab<Redemption>,
    by_id: BTreeMap<RedemptionId, u32>,
    current: BTreeMap<Digest, u32>,
    by_reference: BTreeSet<(u64, u32)>,
}

fn reference_hash(reference: &Reference) -> u64 {
    xxh3_64(reference.as_str().as_bytes())
}

fn stands(redemption: &Redemption) -> bool {
    matches!(redemption.status, Status::Held | Status::Redeemed)
}

impl Ledger {
    /// An empty ledger.
    pub(super) fn new(epoch: Epoch) -> Self {
        Self::of(epoch, Slab::default())
    }

    /// The ledger whose snapshot these bytes are.
    ///
    /// # Errors
    /// When the bytes can't be read.
    pub(super) fn restore(epoch: Epoch, bytes: &[u8], changes: u64) -> Result<Self, DamagedSlab> {
        Ok(Self::of(epoch, Slab::restore(bytes, changes)?))
    }

    fn of(epoch: Epoch, redemptions: Slab<Redemption>) -> Self {
        let mut ledger = Self {
            epoch,
            redemptions,
            by_id: BTreeMap::new(),
            current: BTreeMap::new(),
            by_reference: BTreeSet::new(),
        };
        for (slot, redemption) in ledger.redemptions.iter() {
            ledger.by_id.insert(redemption.id, slot);
            ledger.by_reference.insert((reference_hash(&redemption.reference), slot));
            if stands(redemption) {
                ledger.current.insert(redemption.digest, slot);
            }
        }
        ledger
    }

    pub(super) fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Redemptions in it.
    pub fn len(&self) -> usize {
        self.redemptions.len()
    }

    /// Every redemption.
    pub fn iter(&self) -> impl Iterator<Item = &Redemption> {
        self.redemptions.iter().map(|(_, redemption)| redemption)
    }

    /// The redemption of this id.
    pub fn get(&self, id: &RedemptionId) -> Option<&Redemption> {
        self.redemptions.get(*self.by_id.get(id)?)
    }

    /// The redemption that stands for this code.
    pub fn current(&self, digest: Digest) -> Option<&Redemption> {
        self.redemptions.get(*self.current.get(&digest)?)
    }

    /// Every redemption under this reference, oldest first.
    pub fn of_reference(&self, reference: &Reference) -> Vec<&Redemption> {
        let hash = reference_hash(reference);
        let mut found: Vec<_> = self
            .by_reference
            .range((hash, 0)..=(hash, u32::MAX))
            .filter_map(|&(_, slot)| self.redemptions.get(slot))
            .filter(|redemption| redemption.reference == *reference)
            .collect();
        found.sort_by_key(|redemption| (redemption.created_at, redemption.id));
        found
    }

    /// Enters a redemption that stands from now on.
    pub fn insert(&mut self, redemption: Redemption) {
        let (id, digest, hash) = (redemption.id, redemption.digest, reference_hash(&redemption.reference));
        debug_assert!(stands(&redemption) && !self.current.contains_key(&digest));
        let slot = self.redemptions.insert(redemption);
        self.by_id.insert(id, slot);
        self.by_reference.insert((hash, slot));
        self.current.insert(digest, slot);
    }

    /// Gives a redemption another status (and end of hold), and answers it as it is then. One that no longer
    /// stands makes way for the next of its code.
    pub fn settle(
        &mut self,
        id: &RedemptionId,
        status: Status,
        expires_at: Option<Timestamp>,
        now: Timestamp,
    ) -> Option<Redemption> {
        let slot = *self.by_id.get(id)?;
        self.redemptions.update(slot, |redemption| {
            redemption.status = status;
            redemption.expires_at = expires_at;
            redemption.changed_at = now;
        });
        let redemption = self.redemptions.get(slot)?.clone();
        if !stands(&redemption) {
            self.detach(redemption.digest, slot);
        }
        Some(redemption)
    }

    /// Forgets a redemption.
    pub fn remove(&mut self, id: &RedemptionId) -> Option<Redemption> {
        let slot = self.by_id.remove(id)?;
        let redemption = self.redemptions.remove(slot)?;
        self.by_reference.remove(&(reference_hash(&redemption.reference), slot));
        self.detach(redemption.digest, slot);
        Some(redemption)
    }

    fn detach(&mut self, digest: Digest, slot: u32) {
        if self.current.get(&digest) == Some(&slot) {
            self.current.remove(&digest);
        }
    }

    /// Its slab, for the snapshot.
    pub fn slab(&self) -> &Slab<Redemption> {
        &self.redemptions
    }

    /// Its slab, for the snapshot.
    pub fn slab_mut(&mut self) -> &mut Slab<Redemption> {
        &mut self.redemptions
    }
}
