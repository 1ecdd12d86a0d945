//! A ledger in snapshots and images. Its redemptions, ordinals, tallies and membership are sections of their own; the rest is derived from
//! them when it is restored or loaded.
//!
//! A snapshot is [restored](Ledger::restore): it was written by this program, so its indexes are made at once. An image is
//! [loaded](Ledger::load) chunk by chunk, and may say anything.

use super::block::{Block, Blocks};
use super::order::{ChangeOrder, OrderSlot};
use super::tally::Tallies;
use super::{EntryKeys, KeyedUses, Ledger, indexes_growth_bytes, keyed_hash, packed_in, slots};
use crate::domain::{Redemption, STOCK_MAX, SectionId};
use crate::index::{BoundedIndex, EQUAL_MAX, INDEX_BYTES, INDEX_ENTRY_BYTES, Index, IndexEntry};
use crate::paged::{Copied, Numbers, SlabPage};
use crate::section::{CUSTOMERS, Epoch, MEMBERSHIP, ORDINALS, REDEMPTIONS, Section, USES, freeze};
use cuckood_filter::Digest;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// The metadata of a ledger in a snapshot, without the content of its sections.
#[derive(Serialize, Deserialize)]
pub(crate) struct StoredLedger {
    pub(crate) epoch: Epoch,
    pub(crate) redemptions: u64,
    pub(crate) changes: u64,
    /// Memory that it takes in version 0.1.0, which reads it. See [`StoredSize`].
    pub(crate) memory_bytes: u64,
    /// For an open pool: the number of changes of its ordinals.
    pub(crate) ordinals_changes: Option<u64>,
}

/// The numbers that the memory of a ledger follows from in version 0.1.0. Snapshots contain that memory.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StoredSize {
    /// Places for redemptions: a multiple of 16 in each block.
    pub(super) places: u64,
    pub(super) references_bytes: u64,
}

impl StoredSize {
    const BLOCK_BYTES: u64 = 128;
    const PLACE_BYTES: u64 = 120;
    const INDEXES_BYTES: u64 = 328;

    /// Places of a block with this many redemptions.
    pub(super) fn places(redemptions: usize) -> u64 {
        redemptions.next_multiple_of(16) as u64
    }

    pub(super) fn memory_bytes(self, blocks: &Blocks) -> u64 {
        blocks.pages.end() * Self::BLOCK_BYTES
            + self.places * Self::PLACE_BYTES
            + blocks.len() * Self::INDEXES_BYTES
            + self.references_bytes
    }
}

impl StoredLedger {
    /// An upper bound of the memory for restoring it, in bytes: even if all redemptions have long references and are holds.
    pub(crate) fn restoring_bytes(&self) -> u64 {
        const NOW_MAX: u64 = 222;
        const SAVED: u64 = StoredSize::PLACE_BYTES + StoredSize::INDEXES_BYTES - NOW_MAX;
        let saved = self.redemptions.saturating_mul(SAVED);
        self.memory_bytes.saturating_sub(saved)
    }
}

/// The metadata of a ledger that version 1 of entries does not have.
#[derive(Clone, Default, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct StoredUses {
    /// Unless all used codes have always been members: whether the membership is cleared, and the number of changes of its exceptions.
    pub(crate) membership: Option<(bool, u64)>,
    /// The number of tallies of codes, and of their changes.
    pub(crate) uses: Option<(u64, u64)>,
    /// Those of customers.
    pub(crate) customers: Option<(u64, u64)>,
}

impl StoredUses {
    /// An upper bound of the memory for restoring them with this many redemptions, in bytes.
    pub(crate) fn restoring_bytes(&self, redemptions: u64) -> u64 {
        let tallies = [self.uses, self.customers].into_iter().flatten();
        let tallies = tallies.map(|(tallies, _)| KeyedUses::growth_bytes(tallies));
        let indexes = 2 * (INDEX_BYTES + redemptions.saturating_mul(INDEX_ENTRY_BYTES));
        let members = self.membership.map_or(0, |_| {
            Numbers::growth_bytes(redemptions + u64::from(Block::COUNT))
        });
        tallies.sum::<u64>().saturating_add(indexes + members)
    }
}

impl Ledger {
    /// Takes the next chunk of the ordinals of an image or a snapshot. Returns whether it is sound.
    pub(crate) fn load_ordinals(&mut self, chunk: &[u8]) -> bool {
        self.ordinals
            .as_mut()
            .is_some_and(|ordinals| ordinals.load(chunk).is_some())
    }

    /// Takes the next chunk of the redemptions of an image, after the ordinals. `is_right` judges each. Returns whether they contradict
    /// nothing.
    pub(crate) fn load(&mut self, chunk: &[u8], is_right: impl Fn(&Redemption) -> bool) -> bool {
        let Some(blocks) = self.load_blocks(chunk) else {
            return false;
        };
        for slot in slots(blocks) {
            let Some(packed) = self.in_slot(slot) else {
                continue;
            };
            let keys = self.keys(packed);
            let is_sound = is_right(&packed.unpack())
                && keys.change <= self.last_change
                && self.is_distinct(slot, &keys)
                && self.is_sparse(&keys);
            if !is_sound || !self.enter(slot, &keys) || !self.load_ordinal_of(slot) {
                return false;
            }
        }
        self.draw();
        true
    }

    /// Takes the next blocks. Returns their numbers; `None` if they are damaged.
    fn load_blocks(&mut self, chunk: &[u8]) -> Option<Range<u64>> {
        let numbers = self.blocks.load(chunk)?;
        for number in numbers.clone() {
            let block = self.blocks.pages.get(number)?;
            self.stored.places += StoredSize::places(block.taken());
        }
        Some(numbers)
    }

    /// Whether few IDs and codes have the hashes of these. Only those of an image that was made up have the same hash as many others.
    pub(super) fn is_sparse(&self, keys: &EntryKeys) -> bool {
        let current = keys
            .current
            .map_or(0, |hash| self.current.find(hash).count());
        self.by_id.find(keys.id).count().max(current) < EQUAL_MAX
    }

    /// Whether a redemption has an ordinal that its pool can have assigned, and that no other current redemption has.
    fn load_ordinal_of(&mut self, slot: u32) -> bool {
        let Some(packed) = packed_in(&self.blocks, slot) else {
            return false;
        };
        match (&self.ordinals, packed.ordinal()) {
            (None, ordinal) => ordinal.is_none(),
            (Some(ordinals), Some(ordinal)) => {
                (1..=STOCK_MAX).contains(&ordinal)
                    && (!packed.stands()
                        || ordinals.contains(ordinal)
                            && self.loaded.get_or_insert_default().take(ordinal))
            }
            (Some(_), None) => false,
        }
    }

    /// Takes the next chunk of the tallies of codes of an image. Returns whether they contradict nothing.
    pub(crate) fn load_uses(&mut self, chunk: &[u8]) -> bool {
        load_tallies(self.key, self.uses.as_deref_mut(), chunk)
    }

    /// Takes the next chunk of the tallies of customers of an image. Returns whether they contradict nothing.
    pub(crate) fn load_customers(&mut self, chunk: &[u8]) -> bool {
        load_tallies(self.key, self.customers.as_deref_mut(), chunk)
    }

    /// Ends the loading. Returns whether it can be complete.
    pub(crate) fn finish_loading(&mut self) -> bool {
        self.loaded = None;
        let mut tallied = self.uses.iter().chain(&self.customers);
        self.blocks.is_trimmed()
            && self.ordinals.as_deref().is_none_or(Numbers::is_trimmed)
            && self.membership.is_trimmed()
            && tallied.all(|uses| uses.tallies.is_trimmed())
    }

    /// Memory that a chunk of ordinals needs in any ledger, in bytes; none if it is damaged.
    pub(crate) fn loading_ordinals_bytes(chunk: &[u8]) -> u64 {
        let mut ordinals = Numbers::default();
        match ordinals.load(chunk) {
            Some(_) => ordinals.memory_bytes(),
            None => 0,
        }
    }

    /// Maximum memory that a chunk of tallies needs in any ledger, in bytes; none if it is damaged.
    pub(crate) fn loading_tallies_bytes(chunk: &[u8]) -> u64 {
        let mut tallies = Tallies::default();
        if tallies.restore(chunk) {
            KeyedUses::growth_bytes(tallies.len())
        } else {
            0
        }
    }

    /// Maximum memory that a chunk of redemptions needs in any ledger, in bytes; none if it is damaged.
    pub(crate) fn loading_bytes(chunk: &[u8]) -> u64 {
        let mut blocks = Blocks::default();
        match blocks.load(chunk) {
            Some(_) => blocks.memory_bytes() + indexes_growth_bytes(blocks.len()),
            None => 0,
        }
    }

    /// Takes the next chunk of the redemptions of a snapshot, after the ordinals. Returns whether it is sound.
    /// [`Self::finish_restoring`] follows the last one.
    pub(crate) fn restore(&mut self, chunk: &[u8]) -> bool {
        self.load_blocks(chunk).is_some()
    }

    /// Takes the next chunk of the tallies of codes of a snapshot. Returns whether it is sound.
    pub(crate) fn restore_uses(&mut self, chunk: &[u8]) -> bool {
        let uses = self.uses.as_deref_mut();
        uses.is_some_and(|uses| uses.tallies.restore(chunk))
    }

    /// Takes the next chunk of the tallies of customers of a snapshot. Returns whether it is sound.
    pub(crate) fn restore_customers(&mut self, chunk: &[u8]) -> bool {
        let customers = self.customers.as_deref_mut();
        customers.is_some_and(|customers| customers.tallies.restore(chunk))
    }

    /// Makes the indexes of all restored redemptions, in a fraction of the time of adding them one by one. Returns whether the redemptions
    /// contradict nothing.
    pub(crate) fn finish_restoring(&mut self) -> bool {
        let mut ids = Vec::with_capacity(self.len());
        let mut codes = Vec::with_capacity(self.len());
        let mut references = Vec::with_capacity(self.len());
        let mut uses = Vec::new();
        let mut customers = Vec::new();
        let mut changes = Vec::with_capacity(self.len());
        for slot in slots(0..self.blocks.pages.end()) {
            let Some(keys) = self.keys_in(slot) else {
                continue;
            };
            if keys.change > self.last_change || !self.load_ordinal_of(slot) {
                return false;
            }
            ids.push(IndexEntry::new(keys.id, slot));
            codes.extend(keys.current.map(|hash| IndexEntry::new(hash, slot)));
            references.push(IndexEntry::new(keys.reference, slot));
            if self.uses.is_some() {
                uses.push(IndexEntry::new(keys.code, slot));
            }
            customers.extend(keys.customer.map(|hash| IndexEntry::new(hash, slot)));
            changes.push(OrderSlot {
                change: keys.change,
                slot,
            });
            self.stored.references_bytes += keys.reference_bytes;
            self.enter_times(&keys);
        }
        let Some(order) = ChangeOrder::from_slots(changes, &self.blocks) else {
            return false;
        };
        self.order = order;
        self.by_id = Index::from_entries(&ids);
        self.current = Index::from_entries(&codes);
        self.by_reference = BoundedIndex::from_entries(&references);
        if let Some(by_code) = &mut self.uses {
            by_code.redemptions = BoundedIndex::from_entries(&uses);
        }
        if !customers.is_empty() {
            let by_customer = self.customers.get_or_insert_default();
            by_customer.redemptions = BoundedIndex::from_entries(&customers);
        }
        let key = self.key;
        let hash = |digest: Digest| keyed_hash(key, digest);
        let tallied = self.uses.iter_mut().chain(&mut self.customers);
        tallied.for_each(|uses| uses.tallies.finish_restoring(hash));
        self.draw();
        let has_several_uses = self.uses.is_some();
        are_distinct(&self.by_id, |slot| Some(self.in_slot(slot)?.id()))
            && are_distinct(&self.current, |slot| {
                let current = self.in_slot(slot)?;
                let reference = has_several_uses.then(|| current.reference_bytes());
                Some((current.digest(), reference))
            })
    }

    /// Goes on from a snapshot, with its counts of changes.
    pub(crate) fn resume(&mut self, changes: u64, ordinals_changes: Option<u64>) {
        self.blocks.pages.changes = changes;
        if let (Some(ordinals), Some(changes)) = (&mut self.ordinals, ordinals_changes) {
            ordinals.pages.changes = changes;
        }
    }

    /// Goes on from a snapshot, with its counts of changes.
    pub(crate) fn resume_uses(&mut self, stored: &StoredUses) {
        if let Some((_, changes)) = stored.membership {
            self.membership.exceptions().pages.changes = changes;
        }
        for (uses, stored) in [
            (&mut self.uses, stored.uses),
            (&mut self.customers, stored.customers),
        ] {
            if let (Some(uses), Some((_, changes))) = (uses, stored) {
                uses.tallies.records().pages.changes = changes;
            }
        }
    }

    /// Adds sections for the redemptions and the ordinals.
    pub(crate) fn freeze(&mut self, copied: &Copied, sections: &mut Vec<Section>) -> StoredLedger {
        let epoch = self.epoch;
        let redemptions = self.blocks.len();
        let memory_bytes = self.stored.memory_bytes(&self.blocks) + self.ordinals_bytes();
        let changes = freeze(
            SectionId::new(epoch, REDEMPTIONS),
            &mut self.blocks.pages,
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

    /// Adds sections for the tallies and the membership.
    pub(crate) fn freeze_uses(
        &mut self,
        copied: &Copied,
        sections: &mut Vec<Section>,
    ) -> StoredUses {
        let epoch = self.epoch;
        let is_cleared = self.membership.is_cleared();
        let mut stored = StoredUses::default();
        // Also if it was cleared earlier: its number of changes goes on.
        if !self.membership.is_untouched() {
            let exceptions = &mut self.membership.exceptions().pages;
            let id = SectionId::new(epoch, MEMBERSHIP);
            stored.membership = Some((is_cleared, freeze(id, exceptions, copied, sections)));
        }
        let mut freeze_tallies = |uses: &mut KeyedUses, part| {
            let tallies = uses.tallies.len();
            let id = SectionId::new(epoch, part);
            let pages = &mut uses.tallies.records().pages;
            (tallies, freeze(id, pages, copied, sections))
        };
        let uses = self.uses.as_deref_mut();
        stored.uses = uses.map(|uses| freeze_tallies(uses, USES));
        let customers = self.customers.as_deref_mut();
        let limited = customers.filter(|customers| customers.max.is_some());
        stored.customers = limited.map(|customers| freeze_tallies(customers, CUSTOMERS));
        stored
    }
}

/// Takes the next chunk of tallies of an image. Returns whether they contradict nothing.
fn load_tallies(key: u64, uses: Option<&mut KeyedUses>, chunk: &[u8]) -> bool {
    let limited = uses.filter(|uses| uses.max.is_some());
    limited.is_some_and(|uses| uses.tallies.load(chunk, |digest| keyed_hash(key, digest)))
}

/// Whether few entries of an index have the same hash, and no two of them the same key.
pub(super) fn are_distinct<K: PartialEq>(index: &Index, key_in: impl Fn(u32) -> Option<K>) -> bool {
    index.repeated().all(|equal| {
        if equal.len() > EQUAL_MAX {
            return false;
        }
        let keys: Vec<_> = equal.iter().map(|entry| key_in(entry.place())).collect();
        let mut rest = keys.as_slice();
        while let Some((key, others)) = rest.split_first() {
            if others.contains(key) {
                return false;
            }
            rest = others;
        }
        true
    })
}
