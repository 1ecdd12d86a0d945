//! Tallies: how many uses of a code are taken, or how many uses a customer has. They outlive the redemptions, which are forgotten after
//! their retention: a use never comes back by age.

use crate::index::{BoundedIndex, EQUAL_MAX, INDEX_BYTES, INDEX_ENTRY_BYTES, Index, IndexEntry};
use crate::paged::{Slab, SlabPage, Slots};
use cuckood_filter::Digest;
use serde::{Deserialize, Serialize};

/// The uses of one code, or of one customer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Tally {
    /// Of the code or the customer.
    digest: Digest,
    /// Uses that are held or redeemed, or whose redemption was cancelled without them.
    pub(crate) taken: u32,
    /// Those of them that are held.
    pub(crate) held: u32,
}

/// How a redemption changes the uses of its code and of its customer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum UseStep {
    /// A new hold, or one that is active again.
    Hold,
    /// A new redemption.
    Redeem,
    /// A hold becomes final, or is cancelled without its use.
    Settle,
    /// A hold ends, and its use with it.
    EndHold,
    /// A redemption is cancelled, and its use with it.
    EndRedemption,
}

/// The tallies of all codes that are used, or of all customers with a use.
#[derive(Debug, Default)]
pub(crate) struct Tallies {
    records: Slab<Slots<Tally>>,
    index: Index,
    /// The sums of all tallies.
    taken: u64,
    held: u64,
}

impl Tally {
    /// Whether it can be of a coupon.
    fn is_possible(&self) -> bool {
        self.taken > 0 && self.held <= self.taken
    }

    fn change(&mut self, step: UseStep) {
        match step {
            UseStep::Hold => {
                self.taken = self.taken.saturating_add(1);
                self.held = self.held.saturating_add(1);
            }
            UseStep::Redeem => self.taken = self.taken.saturating_add(1),
            UseStep::Settle => self.held = self.held.saturating_sub(1),
            UseStep::EndHold => {
                self.taken = self.taken.saturating_sub(1);
                self.held = self.held.saturating_sub(1);
            }
            UseStep::EndRedemption => self.taken = self.taken.saturating_sub(1),
        }
        // Those of an image that was made up may say anything.
        self.held = self.held.min(self.taken);
    }
}

impl Tallies {
    /// Number of tallies.
    pub(crate) fn len(&self) -> u64 {
        self.records.len()
    }

    /// A number that is greater than all slots.
    pub(crate) fn end(&self) -> u64 {
        self.records.pages.end() * u64::from(Self::PAGE_SLOTS)
    }

    const PAGE_SLOTS: u32 = <Slots<Tally> as SlabPage>::COUNT;

    /// Uses that are taken, of all.
    pub(crate) fn taken(&self) -> u64 {
        self.taken
    }

    /// Those of them that are held.
    pub(crate) fn held(&self) -> u64 {
        self.held
    }

    /// The slot of a tally. `hash` is that of the digest.
    pub(crate) fn slot_of(&self, digest: Digest, hash: u32) -> Option<u32> {
        let mut slots = self.index.find(hash);
        slots.find(|slot| {
            self.records
                .get(*slot)
                .is_some_and(|tally| tally.digest == digest)
        })
    }

    /// A tally, if any use is taken.
    pub(crate) fn get(&self, digest: Digest, hash: u32) -> Option<Tally> {
        self.records.get(self.slot_of(digest, hash)?).copied()
    }

    /// Counts a step of a redemption.
    pub(crate) fn count(&mut self, digest: Digest, hash: u32, step: UseStep) {
        let Some(slot) = self.slot_of(digest, hash) else {
            let mut tally = Tally {
                digest,
                taken: 0,
                held: 0,
            };
            tally.change(step);
            if tally.taken > 0 {
                let slot = self.records.insert(tally);
                self.index.insert(hash, slot);
                self.add(&tally);
            }
            return;
        };
        let changed = self.records.update(slot, |tally| {
            let before = *tally;
            tally.change(step);
            (before, *tally)
        });
        let Some((before, after)) = changed else {
            return;
        };
        self.subtract(&before);
        self.add(&after);
        if after.taken == 0 {
            self.records.remove(slot);
            self.index.remove(hash, slot);
        }
    }

    fn add(&mut self, tally: &Tally) {
        self.taken += u64::from(tally.taken);
        self.held += u64::from(tally.held);
    }

    fn subtract(&mut self, tally: &Tally) {
        self.taken -= u64::from(tally.taken);
        self.held -= u64::from(tally.held);
    }

    /// Memory that they take, in bytes; an upper bound.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.records.memory_bytes() + self.index.memory_bytes()
    }

    /// Maximum memory that this many new ones need, in bytes.
    pub(crate) fn growth_bytes(tallies: u64) -> u64 {
        if tallies == 0 {
            return 0;
        }
        Slab::<Slots<Tally>>::growth_bytes(tallies)
            .saturating_add(tallies.saturating_mul(INDEX_ENTRY_BYTES))
            .saturating_add(INDEX_BYTES)
    }

    /// The pages that a snapshot stores.
    pub(crate) fn records(&mut self) -> &mut Slab<Slots<Tally>> {
        &mut self.records
    }

    /// Takes the next chunk of an image or a snapshot. `hash_of` is that of a digest. Returns whether the tallies contradict nothing.
    pub(crate) fn load(&mut self, chunk: &[u8], hash_of: impl Fn(Digest) -> u32) -> bool {
        let Some(pages) = self.records.load(chunk) else {
            return false;
        };
        let first = pages.start * u64::from(Self::PAGE_SLOTS);
        let end = pages.end * u64::from(Self::PAGE_SLOTS);
        for slot in first..end {
            let slot = slot as u32;
            let Some(tally) = self.records.get(slot).copied() else {
                continue;
            };
            let hash = hash_of(tally.digest);
            let is_sound = tally.is_possible()
                && self.slot_of(tally.digest, hash).is_none()
                && self.index.find(hash).count() < EQUAL_MAX;
            if !is_sound {
                return false;
            }
            self.index.insert(hash, slot);
            self.add(&tally);
        }
        true
    }

    /// Takes the next chunk of a snapshot. Returns whether it is sound. [`Self::finish_restoring`] follows the last one.
    pub(crate) fn restore(&mut self, chunk: &[u8]) -> bool {
        self.records.load(chunk).is_some()
    }

    /// Makes the index of all restored tallies, in less time than one by one.
    pub(crate) fn finish_restoring(&mut self, hash_of: impl Fn(Digest) -> u32) {
        let mut entries = Vec::with_capacity(self.len() as usize);
        for slot in 0..self.end() {
            let slot = slot as u32;
            if let Some(tally) = self.records.get(slot).copied() {
                entries.push(IndexEntry::new(hash_of(tally.digest), slot));
                self.add(&tally);
            }
        }
        self.index = Index::from_entries(&entries);
    }

    /// Whether all chunks can have been loaded.
    pub(crate) fn is_trimmed(&self) -> bool {
        self.records.is_trimmed()
    }

    /// Frees a page or a list, and returns how many entries it had; `None` after the last. No other operation may follow.
    pub(crate) fn free(&mut self) -> Option<usize> {
        let page = self.records.free_page().map(|page| page.taken());
        page.or_else(|| self.index.free_list())
    }
}

/// The uses of all codes of a coupon, or of all customers.
#[derive(Debug, Default)]
pub(crate) struct KeyedUses {
    /// How many each may have. Without a maximum there are no tallies.
    pub(crate) max: Option<u32>,
    pub(crate) tallies: Tallies,
    /// Their redemptions.
    pub(crate) redemptions: BoundedIndex,
}

impl KeyedUses {
    pub(crate) fn new(max: Option<u32>) -> Self {
        Self {
            max,
            ..Self::default()
        }
    }

    /// Counts a step of a redemption. `hash` is that of the digest.
    pub(crate) fn count(&mut self, digest: Digest, hash: u32, step: UseStep) {
        if self.max.is_some() {
            self.tallies.count(digest, hash, step);
        }
    }

    /// Whether no further use can be taken. `hash` is that of the digest.
    pub(crate) fn is_used_up(&self, digest: Digest, hash: u32) -> bool {
        let taken = || {
            self.tallies
                .get(digest, hash)
                .map_or(0, |tally| tally.taken)
        };
        self.max.is_some_and(|max| taken() >= max)
    }

    /// Memory that they take, in bytes; an upper bound.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.tallies.memory_bytes() + self.redemptions.memory_bytes()
    }

    /// Maximum memory that this many new redemptions need, in bytes.
    pub(crate) fn growth_bytes(redemptions: u64) -> u64 {
        if redemptions == 0 {
            return 0;
        }
        Tallies::growth_bytes(redemptions)
            .saturating_add(redemptions.saturating_mul(INDEX_ENTRY_BYTES))
            .saturating_add(INDEX_BYTES + size_of::<Self>() as u64)
    }

    /// Frees a page or a list, and returns how many entries it had; `None` after the last. No other operation may follow.
    pub(crate) fn free(&mut self) -> Option<usize> {
        self.tallies.free().or_else(|| self.redemptions.free_list())
    }
}
