//! The order of the last changes of a ledger's redemptions: their slots in pages, by the position of the last change.
//!
//! New changes are appended. A page is split when it is full, and merged with a neighbor when both are short. So an operation moves at most
//! two pages, and memory follows from the number of redemptions.

use crate::domain::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::Bound;

/// Bits of a [`ChangeNumber`] that number the changes within one millisecond.
const CHANGE_BITS: u32 = 20;

/// Maximum number of slots in a page.
const PAGE_SLOTS: usize = 512;

/// Two neighbors that have at most this many slots are merged.
const SHORT_SLOTS: usize = PAGE_SLOTS / 2;

/// A page whose number of slots falls to a multiple of this is compared with its neighbors.
const CHECKED_SLOTS: usize = 16;

/// Maximum number of slots that a page has capacity for in addition to its own.
const SPARE_SLOTS: usize = 32;

/// An upper bound of the memory of a slot in the order, in bytes: four, spare capacity, and a share of the page.
pub(super) const ORDER_SLOT_BYTES: u64 = 8;

/// Memory of the order in addition to its slots, in bytes: a node of the tree, and parts of two pages.
pub(super) const ORDER_BYTES: u64 = 1_024;

/// The position of a redemption in the order of last changes, over all redemptions of a coupon.
///
/// It is the time of the change in milliseconds, with a count below it. No two are equal, and a new one is always greater than all that a
/// reader has seen.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ChangeNumber(pub u64);

impl ChangeNumber {
    /// The least position that a change at this time can have.
    pub(super) fn first(at: Timestamp) -> Self {
        Self(at.0.min((1 << (64 - CHANGE_BITS)) - 1) << CHANGE_BITS)
    }

    /// The greatest one.
    pub(super) fn at_last(at: Timestamp) -> Self {
        Self(Self::first(at).0 | ((1 << CHANGE_BITS) - 1))
    }

    pub(super) fn next(self, now: Timestamp) -> Self {
        Self(Self::first(now).0.max(self.0.saturating_add(1)))
    }

    /// The time in it, in milliseconds.
    pub(super) fn time(self) -> u64 {
        self.0 >> CHANGE_BITS
    }
}

/// What the order reads of the entries in slots.
pub(super) trait OrderedEntries {
    /// The position of the last change of a slot's entry.
    fn change(&self, slot: u32) -> ChangeNumber;

    /// Whether a slot's entry has ended at the time of its position. Such entries are forgotten in the order of their positions.
    fn waits(&self, slot: u32) -> bool;
}

/// A slot, and the position of the last change of its entry.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct OrderSlot {
    pub(super) change: ChangeNumber,
    pub(super) slot: u32,
}

/// Slots in the order of their changes.
#[derive(Debug, Default)]
struct OrderPage {
    slots: Vec<u32>,
    /// Number of those whose entries [wait](OrderedEntries::waits).
    waiting: u16,
}

/// The slots of all redemptions, in the order of their last changes.
#[derive(Debug, Default)]
pub(super) struct ChangeOrder {
    /// By a position that no slot of the page precedes, and all slots of the page before do.
    pages: BTreeMap<ChangeNumber, OrderPage>,
    len: u64,
}

impl OrderPage {
    fn of(slots: Vec<u32>, entries: &impl OrderedEntries) -> Self {
        let waiting = slots.iter().filter(|slot| entries.waits(**slot)).count() as u16;
        Self { slots, waiting }
    }

    fn insert(&mut self, at: usize, slot: u32, waits: bool) {
        if self.slots.len() == self.slots.capacity() {
            self.slots.reserve_exact(SPARE_SLOTS);
        }
        self.slots.insert(at, slot);
        self.waiting += u16::from(waits);
    }

    fn trim(&mut self) {
        if self.slots.capacity() > self.slots.len() + 2 * SPARE_SLOTS {
            self.slots.shrink_to(self.slots.len() + SPARE_SLOTS);
        }
    }
}

impl ChangeOrder {
    /// An upper bound of its memory, in bytes.
    pub(super) fn memory_bytes(&self) -> u64 {
        if self.len == 0 {
            return 0;
        }
        ORDER_BYTES + self.len * ORDER_SLOT_BYTES
    }

    /// The key of the page in which a position is, or would be.
    fn page_key(&self, change: ChangeNumber) -> Option<ChangeNumber> {
        let (key, _) = self.pages.range(..=change).next_back()?;
        Some(*key)
    }

    /// Adds a slot, which has its entry already. Returns whether no other has this position.
    pub(super) fn insert(
        &mut self,
        change: ChangeNumber,
        slot: u32,
        entries: &impl OrderedEntries,
    ) -> bool {
        let key = match self.page_key(change) {
            Some(key) => key,
            None => self.start_first_page_at(change),
        };
        let is_last = self.pages.last_key_value().map(|(last, _)| *last) == Some(key);
        let Some(page) = self.pages.get_mut(&key) else {
            return false;
        };
        let precedes = |other: &u32| entries.change(*other) < change;
        let at = if page.slots.last().is_none_or(precedes) {
            page.slots.len()
        } else {
            page.slots.partition_point(precedes)
        };
        let next = page.slots.get(at).map(|other| entries.change(*other));
        if next == Some(change) {
            return false;
        }
        self.len += 1;
        let waits = entries.waits(slot);
        if is_last && at == PAGE_SLOTS {
            page.slots.shrink_to_fit();
            let mut appended = OrderPage::default();
            appended.insert(0, slot, waits);
            self.pages.insert(change, appended);
            return true;
        }
        page.insert(at, slot, waits);
        if page.slots.len() > PAGE_SLOTS {
            let upper = page.slots.split_off(PAGE_SLOTS / 2);
            let upper = OrderPage::of(upper, entries);
            page.waiting -= upper.waiting;
            page.trim();
            if let Some(first) = upper.slots.first() {
                self.pages.insert(entries.change(*first), upper);
            }
        }
        true
    }

    /// Makes the first page start at a position before all others; makes one if there is none. Returns its key.
    fn start_first_page_at(&mut self, change: ChangeNumber) -> ChangeNumber {
        let first = self.pages.pop_first().map(|(_, page)| page);
        self.pages.insert(change, first.unwrap_or_default());
        change
    }

    /// Removes a slot, which may have another entry by now. `waited` says that its entry waited.
    pub(super) fn remove(&mut self, change: ChangeNumber, slot: u32, waited: bool) {
        let Some(key) = self.page_key(change) else {
            return;
        };
        let Some(page) = self.pages.get_mut(&key) else {
            return;
        };
        let Some(at) = page.slots.iter().position(|other| *other == slot) else {
            return;
        };
        page.slots.remove(at);
        page.waiting -= u16::from(waited);
        page.trim();
        let len = page.slots.len();
        self.len -= 1;
        if len == 0 {
            self.pages.remove(&key);
        } else if len < SHORT_SLOTS && len.is_multiple_of(CHECKED_SLOTS) {
            self.merge_after(key);
            let before = self.pages.range(..key).next_back().map(|(key, _)| *key);
            before
                .into_iter()
                .for_each(|before| self.merge_after(before));
        }
        if self.len == 0 {
            self.pages = BTreeMap::new();
        }
    }

    /// Merges a page with the next one if both are short together.
    fn merge_after(&mut self, key: ChangeNumber) {
        let after = (Bound::Excluded(key), Bound::Unbounded);
        let len = self.pages.get(&key).map_or(0, |page| page.slots.len());
        let Some((next, page)) = self.pages.range(after).next() else {
            return;
        };
        if len + page.slots.len() > SHORT_SLOTS {
            return;
        }
        let next = *next;
        let merged = self.pages.remove(&next).unwrap_or_default();
        if let Some(page) = self.pages.get_mut(&key) {
            page.slots.reserve_exact(merged.slots.len());
            page.slots.extend_from_slice(&merged.slots);
            page.waiting += merged.waiting;
            page.trim();
        }
    }

    /// Notes that the entry in a slot waits from now on, or no longer.
    pub(super) fn set_waiting(&mut self, change: ChangeNumber, waits: bool) {
        let key = self.page_key(change);
        let Some(page) = key.and_then(|key| self.pages.get_mut(&key)) else {
            return;
        };
        if waits {
            page.waiting += 1;
        } else {
            page.waiting -= 1;
        }
    }

    /// Returns the slots after a position, in order.
    pub(super) fn after(
        &self,
        change: ChangeNumber,
        entries: &impl OrderedEntries,
    ) -> impl Iterator<Item = u32> {
        let first = self.page_key(change).unwrap_or_default();
        let not_before = move |slot: &u32| entries.change(*slot) <= change;
        let slots = self.pages.range(first..).flat_map(move |(_, page)| {
            // Only the first page has some that are not after it.
            let from = match page.slots.first() {
                Some(slot) if not_before(slot) => page.slots.partition_point(not_before),
                _ => 0,
            };
            &page.slots[from..]
        });
        slots.copied()
    }

    /// Returns the slots before a position, the latest first.
    pub(super) fn before(
        &self,
        change: ChangeNumber,
        entries: &impl OrderedEntries,
    ) -> impl Iterator<Item = u32> {
        let pages = self.pages.range(..change).rev().map(|(_, page)| page);
        // Only the first page has some that are not before it.
        let slots = pages.flat_map(|page| page.slots.iter().rev().copied());
        slots.skip_while(move |slot| entries.change(*slot) >= change)
    }

    /// Returns the slots of all pages with waiting entries from the page of a position on, in order.
    pub(super) fn waiting_from(&self, change: ChangeNumber) -> impl Iterator<Item = u32> {
        let first = self.page_key(change).unwrap_or_default();
        let pages = self.pages.range(first..).map(|(_, page)| page);
        pages
            .filter(|page| page.waiting > 0)
            .flat_map(|page| page.slots.iter().copied())
    }

    /// Makes the order of all slots, given with their positions. Returns `None` if two have the same position.
    pub(super) fn from_slots(
        mut slots: Vec<OrderSlot>,
        entries: &impl OrderedEntries,
    ) -> Option<Self> {
        slots.sort_unstable();
        if slots
            .windows(2)
            .any(|pair| pair[0].change == pair[1].change)
        {
            return None;
        }
        let mut order = Self {
            pages: BTreeMap::new(),
            len: slots.len() as u64,
        };
        for page in slots.chunks(PAGE_SLOTS) {
            let of_page = page.iter().map(|ordered| ordered.slot).collect();
            order
                .pages
                .insert(page[0].change, OrderPage::of(of_page, entries));
        }
        Some(order)
    }

    /// Checks that pages are in order, that few of them have few slots, and that the numbers of waiting entries are right.
    #[cfg(test)]
    pub(super) fn check(&self, entries: &impl OrderedEntries) {
        let slots = self.pages.values().flat_map(|page| &page.slots);
        let changes: Vec<_> = slots.map(|slot| entries.change(*slot)).collect();
        assert!(changes.is_sorted_by(|one, next| one < next));
        assert_eq!(self.len, changes.len() as u64);
        let pages = self.pages.len();
        let pair_min = SHORT_SLOTS - 2 * CHECKED_SLOTS;
        assert!(pages <= 2 + 2 * changes.len() / pair_min, "{pages} pages");
        for page in self.pages.values() {
            let waiting = page.slots.iter().filter(|slot| entries.waits(**slot));
            assert_eq!(usize::from(page.waiting), waiting.count());
        }
        assert!(self.real_bytes() <= self.memory_bytes());
    }

    /// Its memory, counted page by page, in bytes. Half of the tree's places are used.
    #[cfg(test)]
    pub(super) fn real_bytes(&self) -> u64 {
        let pages = self
            .pages
            .values()
            .map(|page| size_of::<u32>() * page.slots.capacity());
        let place_bytes = 2 * size_of::<(ChangeNumber, OrderPage)>();
        (pages.sum::<usize>() + self.pages.len() * place_bytes) as u64
    }

    /// Frees a page, and returns how many slots it had; `None` after the last. No other operation may follow.
    pub(super) fn free_page(&mut self) -> Option<usize> {
        let (_, page) = self.pages.pop_first()?;
        self.len -= page.slots.len() as u64;
        Some(page.slots.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    /// The positions of slots, and which of them wait: those with odd numbers.
    #[derive(Default)]
    struct Entries(BTreeMap<u32, ChangeNumber>);

    impl OrderedEntries for Entries {
        fn change(&self, slot: u32) -> ChangeNumber {
            self.0[&slot]
        }

        fn waits(&self, slot: u32) -> bool {
            slot % 2 == 1
        }
    }

    fn check(order: &ChangeOrder, entries: &Entries) {
        let mut sorted: Vec<_> = entries.0.iter().map(|(slot, at)| (*at, *slot)).collect();
        sorted.sort_unstable();
        let slots = order.pages.values().flat_map(|page| page.slots.iter());
        assert!(slots.eq(sorted.iter().map(|(_, slot)| slot)));
        order.check(entries);
        for from in [0, sorted.len() / 3, sorted.len()] {
            let begin = sorted
                .get(from)
                .map_or(ChangeNumber(u64::MAX), |(at, _)| *at);
            let expected = sorted
                .iter()
                .filter(|(at, _)| *at > begin)
                .map(|(_, slot)| *slot);
            assert!(order.after(begin, entries).eq(expected));
            let waiting = sorted
                .iter()
                .filter(|(at, slot)| *at >= begin && slot % 2 == 1);
            let found: Vec<u32> = order.waiting_from(begin).collect();
            for (_, slot) in waiting {
                assert!(found.contains(slot));
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        /// Slots stay in the order of their positions, wherever they are added and removed, and few pages have few of them.
        #[test]
        fn order_equals_sorted_map(
            steps in proptest::collection::vec((0..4_u8, 0..8_000_u32, 1..2_500_u32, 1..9_u32), 1..10),
        ) {
            let mut order = ChangeOrder::default();
            let mut entries = Entries::default();
            let mut taken = BTreeSet::new();
            let mut last = ChangeNumber(1 << 20);
            for (step, first, count, stride) in steps {
                for slot in (first..first + count * stride).step_by(stride as usize) {
                    let before = entries.0.get(&slot).copied();
                    if let Some(before) = before {
                        order.remove(before, slot, entries.waits(slot));
                        entries.0.remove(&slot);
                        taken.remove(&before);
                    }
                    // Appended, or anywhere else.
                    let change = match step {
                        0 | 1 => last.next(Timestamp(1)),
                        2 => ChangeNumber(u64::from(slot.reverse_bits()) << 8),
                        _ => continue,
                    };
                    let is_free = taken.insert(change);
                    entries.0.insert(slot, change);
                    if !is_free {
                        prop_assert!(!order.insert(change, slot, &entries));
                        entries.0.remove(&slot);
                        continue;
                    }
                    prop_assert!(order.insert(change, slot, &entries));
                    last = last.max(change);
                }
                check(&order, &entries);
                let slots = entries.0.iter();
                let slots = slots.map(|(&slot, &change)| OrderSlot { change, slot }).collect();
                check(&ChangeOrder::from_slots(slots, &entries).unwrap(), &entries);
            }
        }
    }

    #[test]
    fn sparse_pages_are_merged() {
        let positions = (0..20_000).map(|slot| (slot, ChangeNumber(u64::from(slot) + 1)));
        let mut entries = Entries(positions.collect());
        let mut order = ChangeOrder::default();
        for (slot, change) in entries.0.clone() {
            order.insert(change, slot, &entries);
        }
        for slot in (0..20_000).filter(|slot| slot % 40 != 0) {
            order.remove(entries.change(slot), slot, entries.waits(slot));
            entries.0.remove(&slot);
        }
        check(&order, &entries);
    }

    #[test]
    fn same_position_is_rejected() {
        let entries = Entries(BTreeMap::from([(1, ChangeNumber(7)), (2, ChangeNumber(7))]));
        let mut order = ChangeOrder::default();
        assert!(order.insert(ChangeNumber(7), 1, &entries));
        assert!(!order.insert(ChangeNumber(7), 2, &entries));
        let slots = [1, 2].map(|slot| OrderSlot {
            change: ChangeNumber(7),
            slot,
        });
        assert!(ChangeOrder::from_slots(slots.to_vec(), &entries).is_none());
    }
}
