//! A slab: numbered slots. A value gets the lowest free slot, so replays of the same operations fill the same slots.

use super::{Page, Placed, Places};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Slots of a page.
const PAGE_SLOTS: u32 = 64;

/// A page has capacity for a multiple of this many values.
const CAPACITY_STEP: usize = 16;

/// Memory of a page besides its values, in bytes. Rounded up.
const PAGE_BYTES: u64 = 128;

/// The slots of a page.
#[derive(Clone, Debug)]
pub struct Slots<T> {
    /// A bit for each slot that has a value.
    taken: u64,
    /// The values, in the order of their slots.
    pub values: Vec<T>,
}

impl<T> Slots<T> {
    /// The index of a slot's value, if it has one.
    fn index(&self, slot: u32) -> Option<usize> {
        (self.taken >> slot & 1 > 0).then(|| self.rank(slot))
    }

    /// The number of values before a slot.
    fn rank(&self, slot: u32) -> usize {
        (self.taken & ((1 << slot) - 1)).count_ones() as usize
    }

    fn insert(&mut self, slot: u32, value: T) {
        let (len, index) = (self.values.len(), self.rank(slot));
        if len == self.values.capacity() {
            self.values.reserve_exact((len + 1).next_multiple_of(CAPACITY_STEP) - len);
        }
        self.values.insert(index, value);
        self.taken |= 1 << slot;
    }

    fn remove(&mut self, slot: u32) -> Option<T> {
        let value = self.values.remove(self.index(slot)?);
        self.taken &= !(1 << slot);
        self.values.shrink_to(self.values.len().next_multiple_of(CAPACITY_STEP));
        Some(value)
    }
}

impl<T: Clone + Serialize + DeserializeOwned> Page for Slots<T> {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.taken.to_le_bytes());
        *out = postcard::to_extend(&self.values, std::mem::take(out)).expect("plain data always encodes");
    }

    fn decode(bytes: &mut &[u8]) -> Option<Self> {
        let (taken, rest) = bytes.split_first_chunk()?;
        let taken = u64::from_le_bytes(*taken);
        let (mut values, rest) = postcard::take_from_bytes::<Vec<T>>(rest).ok()?;
        *bytes = rest;
        values.shrink_to(values.len().next_multiple_of(CAPACITY_STEP));
        (values.len() == taken.count_ones() as usize).then_some(Self { taken, values })
    }

    fn bytes(&self) -> u64 {
        PAGE_BYTES + (self.values.len().next_multiple_of(CAPACITY_STEP) * size_of::<T>()) as u64
    }
}

impl<T: Clone + Serialize + DeserializeOwned> Places for Slots<T> {
    fn empty() -> Self {
        Self { taken: 0, values: Vec::new() }
    }

    fn taken(&self) -> u64 {
        self.values.len() as u64
    }

    fn is_full(&self) -> bool {
        self.taken == u64::MAX
    }
}

/// Numbered slots, each with a value or free.
pub type Slab<T> = Placed<Slots<T>>;

/// The page of a slot, and the slot's place there.
fn place(slot: u32) -> (u64, u32) {
    (u64::from(slot / PAGE_SLOTS), slot % PAGE_SLOTS)
}

impl<T: Clone + Serialize + DeserializeOwned> Slab<T> {
    /// Maximum memory that this many inserts need, in bytes, whatever is removed between them: they fill a page before they start another.
    pub fn growth_bytes(inserts: u64) -> u64 {
        if inserts == 0 {
            return 0;
        }
        let values = inserts.saturating_add(CAPACITY_STEP as u64 - 1);
        let pages = inserts.div_ceil(u64::from(PAGE_SLOTS));
        values.saturating_mul(size_of::<T>() as u64).saturating_add(pages.saturating_mul(PAGE_BYTES))
    }

    /// Puts a value into the lowest free slot. Returns the slot's number.
    pub fn insert(&mut self, value: T) -> u32 {
        let page = self.vacant_page();
        let slot = self.place(page, |slots| {
            let slot = slots.taken.trailing_ones();
            slots.insert(slot, value);
            slot
        });
        let slot = slot.expect("it was made if there was none");
        u32::try_from(page * u64::from(PAGE_SLOTS)).expect("memory ends before slot numbers do") + slot
    }

    /// The value in a slot, if it has one.
    pub fn get(&self, slot: u32) -> Option<&T> {
        let (page, slot) = place(slot);
        let slots = self.pages.get(page)?;
        slots.index(slot).map(|index| &slots.values[index])
    }

    /// Changes the value in a slot, if it has one.
    pub fn update<R>(&mut self, slot: u32, change: impl FnOnce(&mut T) -> R) -> Option<R> {
        let (page, slot) = place(slot);
        self.pages.change(page, |slots| slots.index(slot).map(|index| change(&mut slots.values[index])))?
    }

    /// Frees a slot and returns its value.
    pub fn remove(&mut self, slot: u32) -> Option<T> {
        self.get(slot)?;
        let (page, slot) = place(slot);
        self.place(page, |slots| slots.remove(slot))?
    }

    /// Every value with the number of its slot, in order.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.pages.iter().flat_map(|(page, slots)| values(page, slots))
    }

    /// Adds the values of a chunk, which follows those that were loaded before. Returns them with their slots; `None` if the chunk is
    /// damaged.
    pub fn load_values(&mut self, chunk: &[u8]) -> Option<impl Iterator<Item = (u32, &T)>> {
        let pages = self.load(chunk)?;
        u32::try_from(pages.end.saturating_mul(u64::from(PAGE_SLOTS))).ok()?;
        let pages = pages.filter_map(|page| Some((page, self.pages.get(page)?)));
        Some(pages.flat_map(|(page, slots)| values(page, slots)))
    }
}

fn values<T>(page: u64, slots: &Slots<T>) -> impl Iterator<Item = (u32, &T)> {
    let taken = (0..PAGE_SLOTS).filter(|slot| slots.taken >> slot & 1 > 0);
    taken.zip(&slots.values).map(move |(slot, value)| (page as u32 * PAGE_SLOTS + slot, value))
}

#[cfg(test)]
mod tests {
    use super::super::Copied;
    use super::*;
    use proptest::prelude::*;
    use std::sync::atomic::Ordering::Relaxed;

    fn contents(slab: &Slab<String>) -> Vec<(u32, String)> {
        slab.iter().map(|(slot, value)| (slot, value.clone())).collect()
    }

    fn slots(slab: &Slab<String>) -> u32 {
        slab.pages.end() as u32 * PAGE_SLOTS
    }

    /// What the slab takes, counted page by page.
    fn census(slab: &Slab<String>) -> usize {
        let values = slab.pages.iter().map(|(_, page)| page.values.capacity() * size_of::<String>());
        let page_bytes = size_of::<Slots<String>>() + 2 * size_of::<usize>();
        // Of a B-tree's nodes at least a third is used.
        values.map(|bytes| bytes + page_bytes).sum::<usize>()
            + slab.pages.pages.capacity() * size_of::<usize>()
            + 3 * slab.vacant.len() * size_of::<u64>()
    }

    fn change(slab: &mut Slab<String>, operation: u16) {
        let slot = u32::from(operation) % (slots(slab) + 1);
        match operation % 5 {
            0 | 1 if slab.get(slot).is_some() => drop(slab.remove(slot)),
            2 if slab.get(slot).is_some() => drop(slab.update(slot, |value| value.push('!'))),
            _ => {
                let free = (0..).find(|slot| slab.get(*slot).is_none());
                let slot = slab.insert(format!("{operation}").repeat(usize::from(operation % 40)));
                assert_eq!(Some(slot), free);
            }
        }
    }

    fn restored(chunks: &[Vec<u8>], changes: u64) -> Option<Slab<String>> {
        let mut slab = Slab::default();
        for chunk in chunks {
            let _loaded = slab.load_values(chunk)?;
        }
        slab.resume(changes);
        slab.is_trimmed().then_some(slab)
    }

    proptest! {
        #[test]
        fn snapshot_is_what_was_there_when_it_began(
            before in proptest::collection::vec(any::<u16>(), 0..2000),
            emptied in 0..700_u32,
            during in proptest::collection::vec(any::<u16>(), 0..2000),
            taken in 0..40_usize,
        ) {
            let (mut slab, copied) = (Slab::default(), Copied::default());
            before.iter().for_each(|&operation| change(&mut slab, operation));
            (0..emptied).for_each(|slot| drop(slab.remove(slot)));
            let (expected, vacant, changes) = (contents(&slab), slab.vacant.clone(), slab.changes());
            let memory_bytes = slab.memory_bytes();
            let mut frozen = slab.freeze(&copied);
            let (mut chunks, mut chunk) = (Vec::new(), Vec::new());
            let mut during = during.chunks(300);
            while chunks.len() < taken {
                during.next().into_iter().flatten().for_each(|&operation| change(&mut slab, operation));
                if !frozen.next_chunk(&mut chunk) { break }
                prop_assert!(chunk.len() <= super::super::CHUNK_BYTES_MAX);
                chunks.push(chunk.clone());
            }
            let is_complete = !frozen.next_chunk(&mut chunk);
            drop(frozen);
            prop_assert_eq!(copied.load(Relaxed), 0, "no page is kept once the snapshot is gone");
            prop_assert_eq!(slab.iter().count() as u64, slab.len());
            if is_complete {
                let whole = restored(&chunks, changes).unwrap();
                prop_assert_eq!(&whole.vacant, &vacant);
                prop_assert_eq!((whole.len(), whole.changes()), (expected.len() as u64, changes));
                prop_assert_eq!(contents(&whole), expected);
                prop_assert_eq!(whole.memory_bytes(), memory_bytes);
                prop_assert!(census(&whole) as u64 <= memory_bytes);
                if let Some(last) = chunks.last_mut() {
                    last.pop();
                    prop_assert!(restored(&chunks, changes).is_none());
                }
            }
        }

        /// Whatever comes and goes, the account is right, and inserts need no more than they were expected to.
        #[test]
        fn removed_values_take_no_memory(
            batches in proptest::collection::vec(
                (0..600_u64, proptest::collection::vec(any::<u32>(), 0..600)), 1..12,
            ),
        ) {
            let mut slab = Slab::default();
            for (inserts, removes) in batches {
                let most = slab.memory_bytes() + Slab::<String>::growth_bytes(inserts);
                let mut removes = removes.into_iter();
                for number in 0..inserts {
                    slab.insert(String::new());
                    if number % 3 == 0 && let Some(slot) = removes.next() {
                        slab.remove(slot % slots(&slab));
                    }
                    prop_assert!(slab.memory_bytes() <= most);
                }
                for slot in removes.collect::<Vec<_>>() {
                    slab.remove(slot % slots(&slab).max(1));
                }
                prop_assert_eq!(slab.iter().count() as u64, slab.len());
                prop_assert!(census(&slab) as u64 <= slab.memory_bytes());
            }
            (0..slots(&slab)).for_each(|slot| drop(slab.remove(slot)));
            prop_assert_eq!((slab.len(), slab.memory_bytes(), census(&slab)), (0, 0, 0));
        }
    }

    #[test]
    fn page_with_other_slots_than_values_is_damaged() {
        let page =
            |taken: u64, values: &[&str]| postcard::to_extend(values, taken.to_le_bytes().to_vec()).unwrap();
        assert_eq!(
            contents(&restored(&[page(0b101, &["a", "b"])], 0).unwrap()),
            [(0, "a".into()), (2, "b".into())]
        );
        for (taken, values) in [(0b1, &["a", "b"][..]), (0b111, &["a", "b"]), (0b0, &[]), (u64::MAX, &["a"])]
        {
            assert!(restored(&[page(taken, values)], 0).is_none(), "{taken}");
        }
    }

    /// A page that a snapshot refers to is copied once, and counted until the snapshot lets go of it.
    #[test]
    fn changed_page_is_copied_once() {
        let (mut slab, copied) = (Slab::default(), Copied::default());
        (0..3 * PAGE_SLOTS).for_each(|number| assert_eq!(slab.insert(number.to_string()), number));
        let mut frozen = slab.freeze(&copied);
        slab.update(0, |value| value.push('!'));
        let page_bytes = copied.load(Relaxed);
        assert!(page_bytes > 0);
        (0..PAGE_SLOTS).for_each(|slot| drop(slab.remove(slot)));
        assert_eq!(copied.load(Relaxed), page_bytes);
        assert!(slab.free_page().is_some(), "it is the slab's own copy");
        assert!(slab.free_page().is_none(), "the snapshot refers to it");
        while frozen.next_chunk(&mut Vec::new()) {}
        assert_eq!(copied.load(Relaxed), 0);
        assert!(slab.free_page().is_some());
    }
}
