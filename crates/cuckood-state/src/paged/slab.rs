//! A slab: numbered slots. A value gets the lowest free slot, so replays of the same operations fill the same slots. A set of numbers from
//! 1 on is a slab without values: a number that was taken and released leaves no trace, so a restore gives the same.

use super::{Page, Paged};
use crate::frame::{append, take};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeSet;
use std::ops::Range;

/// A page has capacity for a multiple of this many values.
const CAPACITY_STEP: usize = 16;

/// A page of a [`Slab`]: slots, each with a value or free.
pub trait SlabPage: Page + Default {
    /// Slots of a page.
    const COUNT: u32;
    /// Number of slots that have a value.
    fn taken(&self) -> usize;
    /// The lowest free slot; [`Self::COUNT`] if there is none.
    fn lowest_free(&self) -> u32;
}

/// A page of slots whose values are stored as they are.
#[derive(Clone, Debug)]
pub struct Slots<T, const WORDS: usize = 1> {
    /// A bit for each slot that has a value.
    taken: [u64; WORDS],
    /// The values, in the order of their slots.
    pub values: Vec<T>,
}

impl<T, const WORDS: usize> Slots<T, WORDS> {
    /// Memory of a page besides its values, in bytes. Rounded up.
    const BYTES: u64 = 120 + 8 * WORDS as u64;

    fn is_taken(&self, slot: u32) -> bool {
        self.taken[(slot / u64::BITS) as usize] >> (slot % u64::BITS) & 1 > 0
    }

    /// The index of a slot's value, if it has one.
    fn index(&self, slot: u32) -> Option<usize> {
        self.is_taken(slot).then(|| self.rank(slot))
    }

    /// The number of values before a slot.
    fn rank(&self, slot: u32) -> usize {
        let word = (slot / u64::BITS) as usize;
        let bit = slot % u64::BITS;
        let before: u32 = self.taken[..word]
            .iter()
            .map(|word| word.count_ones())
            .sum();
        (before + (self.taken[word] & ((1 << bit) - 1)).count_ones()) as usize
    }

    fn insert(&mut self, slot: u32, value: T) {
        let len = self.values.len();
        let index = self.rank(slot);
        if len == self.values.capacity() {
            self.values
                .reserve_exact((len + 1).next_multiple_of(CAPACITY_STEP) - len);
        }
        self.values.insert(index, value);
        self.taken[(slot / u64::BITS) as usize] |= 1 << (slot % u64::BITS);
    }

    fn remove(&mut self, slot: u32) -> Option<T> {
        let value = self.values.remove(self.index(slot)?);
        self.taken[(slot / u64::BITS) as usize] &= !(1 << (slot % u64::BITS));
        self.values
            .shrink_to(self.values.len().next_multiple_of(CAPACITY_STEP));
        Some(value)
    }
}

impl<T: Clone + Serialize + DeserializeOwned, const WORDS: usize> Page for Slots<T, WORDS> {
    fn encode(&self, out: &mut Vec<u8>) {
        self.taken
            .iter()
            .for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
        self.values.iter().for_each(|value| append(value, out));
    }

    fn decode(bytes: &mut &[u8]) -> Option<Self> {
        let mut taken = [0; WORDS];
        for word in &mut taken {
            *word = u64::from_le_bytes(*bytes.split_off(..size_of::<u64>())?.first_chunk()?);
        }
        let count = taken
            .iter()
            .map(|word| word.count_ones() as usize)
            .sum::<usize>();
        let mut values = Vec::with_capacity(count.next_multiple_of(CAPACITY_STEP));
        for _ in 0..count {
            values.push(take(bytes)?);
        }
        Some(Self { taken, values })
    }

    fn bytes(&self) -> u64 {
        Self::BYTES + (self.values.len().next_multiple_of(CAPACITY_STEP) * size_of::<T>()) as u64
    }
}

impl<T, const WORDS: usize> Default for Slots<T, WORDS> {
    fn default() -> Self {
        Self {
            taken: [0; WORDS],
            values: Vec::new(),
        }
    }
}

impl<T: Clone + Serialize + DeserializeOwned, const WORDS: usize> SlabPage for Slots<T, WORDS> {
    const COUNT: u32 = u64::BITS * WORDS as u32;

    fn taken(&self) -> usize {
        self.values.len()
    }

    fn lowest_free(&self) -> u32 {
        let word = self
            .taken
            .iter()
            .take_while(|word| **word == u64::MAX)
            .count();
        u64::BITS * word as u32 + self.taken.get(word).map_or(0, |word| word.trailing_ones())
    }
}

/// Numbered slots, each with a value or free, in pages.
#[derive(Debug)]
pub struct Slab<P> {
    /// The last one has a value.
    pub pages: Paged<P>,
    /// Pages that have a free slot.
    pub(super) vacant: BTreeSet<u64>,
    pub(super) len: u64,
}

impl<P> Default for Slab<P> {
    fn default() -> Self {
        Self {
            pages: Paged::default(),
            vacant: BTreeSet::new(),
            len: 0,
        }
    }
}

impl<P: SlabPage> Slab<P> {
    /// Number of values.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether all slots are free.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Memory of the pages, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        self.pages.bytes
    }

    /// The page of a slot, and the slot's place there; `None` if there is no such page.
    pub fn page_of(&self, slot: u32) -> Option<(&P, u32)> {
        let (number, place) = Self::place(slot);
        Some((self.pages.get(number)?, place))
    }

    /// Lets `put` take the lowest free slot, whose place in the page it gets. Returns the slot's number.
    ///
    /// # Panics
    /// When slot numbers are used up; memory ends before they do.
    pub fn take_lowest_free(&mut self, put: impl FnOnce(&mut P, u32)) -> u32 {
        if self.vacant.is_empty() {
            self.add_page();
        }
        let page = self.vacant.first().copied().unwrap_or_default();
        let place = self.change(page, |slots| {
            let place = slots.lowest_free();
            put(slots, place);
            place
        });
        let place = u64::from(place.expect("it was made if there was none"));
        u32::try_from(page * u64::from(P::COUNT) + place)
            .expect("memory ends before slot numbers do")
    }

    /// Lets `change` take, change or free a slot, whose place in the page it gets; `None` if there is no such page.
    pub fn change_slot<R>(
        &mut self,
        slot: u32,
        change: impl FnOnce(&mut P, u32) -> R,
    ) -> Option<R> {
        let (number, place) = Self::place(slot);
        self.change(number, |page| change(page, place))
    }

    /// Adds the pages of a chunk after those already loaded. Returns their numbers; `None` if the chunk is damaged.
    pub fn load(&mut self, chunk: &[u8]) -> Option<Range<u64>> {
        let loaded = self.pages.load(chunk)?..self.pages.end();
        for number in loaded.clone() {
            let taken = self.pages.get(number)?.taken();
            self.len += taken as u64;
            if taken < P::COUNT as usize {
                self.vacant.insert(number);
            }
        }
        let slots = loaded.end.saturating_mul(P::COUNT.into());
        u32::try_from(slots.saturating_sub(1)).ok()?;
        Some(loaded)
    }

    /// Whether the last page has a value: only a damaged or incomplete one has none.
    pub fn is_trimmed(&self) -> bool {
        self.pages.back().is_none_or(|last| last.taken() > 0)
    }

    /// Frees a page and returns it, unless a snapshot refers to it.
    pub fn free_page(&mut self) -> Option<P> {
        let page = self.pages.free_first()?;
        self.len -= page.taken() as u64;
        Some(page)
    }

    /// The page of a slot, and the slot's place there.
    fn place(slot: u32) -> (u64, u32) {
        (u64::from(slot / P::COUNT), slot % P::COUNT)
    }

    fn add_page(&mut self) {
        self.vacant.insert(self.pages.end());
        self.pages.push(P::default());
    }

    /// Takes, changes or frees slots of a page. Drops pages at the end that have no value.
    fn change<R>(&mut self, number: u64, change: impl FnOnce(&mut P) -> R) -> Option<R> {
        let (changed, before, after) = self.pages.change(number, |page| {
            let before = page.taken();
            (change(page), before, page.taken())
        })?;
        self.len = self.len + after as u64 - before as u64;
        if after == P::COUNT as usize {
            self.vacant.remove(&number);
        } else if after < before {
            self.vacant.insert(number);
        }
        while !self.is_trimmed() {
            self.pages.pop_last();
            self.vacant.remove(&self.pages.end());
        }
        Some(changed)
    }
}

impl<T: Clone + Serialize + DeserializeOwned, const WORDS: usize> Slab<Slots<T, WORDS>> {
    /// Maximum memory that this many inserts need, in bytes, whatever is removed between them: they fill a page before they start another.
    pub fn growth_bytes(inserts: u64) -> u64 {
        if inserts == 0 {
            return 0;
        }
        let values = inserts.saturating_add(CAPACITY_STEP as u64 - 1);
        let pages = inserts.div_ceil(Slots::<T, WORDS>::COUNT.into());
        let pages_bytes = pages.saturating_mul(Slots::<T, WORDS>::BYTES);
        values
            .saturating_mul(size_of::<T>() as u64)
            .saturating_add(pages_bytes)
    }

    /// Puts a value into the lowest free slot. Returns the slot's number.
    pub fn insert(&mut self, value: T) -> u32 {
        self.take_lowest_free(|page, place| page.insert(place, value))
    }

    /// Puts a value into a slot if that is free; returns whether it is. Memory grows with the slot's number.
    pub fn insert_at(&mut self, slot: u32, value: T) -> bool {
        let is_free = self.get(slot).is_none();
        if is_free {
            let (number, _) = Self::place(slot);
            while self.pages.end() <= number {
                self.add_page();
            }
            self.change_slot(slot, |page, place| page.insert(place, value));
        }
        is_free
    }

    /// The value in a slot, if it has one.
    pub fn get(&self, slot: u32) -> Option<&T> {
        let (page, place) = self.page_of(slot)?;
        page.index(place).map(|index| &page.values[index])
    }

    /// Changes the value in a slot, if it has one.
    pub fn update<R>(&mut self, slot: u32, change: impl FnOnce(&mut T) -> R) -> Option<R> {
        self.change_slot(slot, |page, place| {
            page.index(place)
                .map(|index| change(&mut page.values[index]))
        })?
    }

    /// Frees a slot and returns its value.
    pub fn remove(&mut self, slot: u32) -> Option<T> {
        self.get(slot)?;
        self.change_slot(slot, |page, place| page.remove(place))?
    }
}

/// Words of a page of numbers.
const NUMBER_WORDS: usize = 64;

/// A set of numbers.
pub type Numbers = Slab<Slots<(), NUMBER_WORDS>>;

/// The slot of a number.
fn slot(number: u64) -> Option<u32> {
    u32::try_from(number.checked_sub(1)?).ok()
}

impl Numbers {
    /// Whether a number is in the set.
    pub fn contains(&self, number: u64) -> bool {
        slot(number).is_some_and(|slot| self.get(slot).is_some())
    }

    /// Adds the lowest number that is missing, and returns it.
    pub fn take_lowest(&mut self) -> u64 {
        u64::from(self.insert(())) + 1
    }

    /// Adds a number. Returns whether it was missing. Memory grows with the number.
    pub fn take(&mut self, number: u64) -> bool {
        slot(number).is_some_and(|slot| self.insert_at(slot, ()))
    }

    /// Removes a number.
    pub fn release(&mut self, number: u64) {
        slot(number).and_then(|slot| self.remove(slot));
    }
}

#[cfg(test)]
mod tests {
    use super::super::Copied;
    use super::*;
    use proptest::prelude::*;
    use std::sync::atomic::Ordering::Relaxed;

    type Strings = Slots<String>;

    fn contents(slab: &Slab<Strings>) -> Vec<(u32, String)> {
        (0..slots(slab))
            .filter_map(|slot| Some((slot, slab.get(slot)?.clone())))
            .collect()
    }

    /// Slots of a page.
    const PAGE_SLOTS: u32 = Strings::COUNT;

    fn slots(slab: &Slab<Strings>) -> u32 {
        slab.pages.end() as u32 * PAGE_SLOTS
    }

    /// Returns the memory of the slab, counted page by page.
    fn census(slab: &Slab<Strings>) -> usize {
        let values = slab
            .pages
            .iter()
            .map(|(_, page)| page.values.capacity() * size_of::<String>());
        let page_bytes = size_of::<Strings>() + 2 * size_of::<usize>();
        // At least a third of a B-tree's nodes is used.
        values.map(|bytes| bytes + page_bytes).sum::<usize>()
            + slab.pages.pages.capacity() * size_of::<usize>()
            + 3 * slab.vacant.len() * size_of::<u64>()
    }

    fn change(slab: &mut Slab<Strings>, operation: u16) {
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

    fn restored(chunks: &[Vec<u8>], changes: u64) -> Option<Slab<Strings>> {
        let mut slab = Slab::default();
        for chunk in chunks {
            let _loaded = slab.load(chunk)?;
        }
        slab.pages.changes = changes;
        slab.is_trimmed().then_some(slab)
    }

    proptest! {
        #[test]
        fn snapshot_has_values_of_its_start(
            before in proptest::collection::vec(any::<u16>(), 0..2000),
            emptied in 0..700_u32,
            during in proptest::collection::vec(any::<u16>(), 0..2000),
            taken in 0..40_usize,
        ) {
            let mut slab = Slab::default();
            let copied = Copied::default();
            before.iter().for_each(|&operation| change(&mut slab, operation));
            (0..emptied).for_each(|slot| drop(slab.remove(slot)));
            let expected = contents(&slab);
            let vacant = slab.vacant.clone();
            let changes = slab.pages.changes;
            let memory_bytes = slab.memory_bytes();
            let mut frozen = slab.pages.freeze(&copied);
            let mut chunks = Vec::new();
            let mut chunk = Vec::new();
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
            prop_assert_eq!(contents(&slab).len() as u64, slab.len());
            if is_complete {
                let whole = restored(&chunks, changes).unwrap();
                prop_assert_eq!(&whole.vacant, &vacant);
                prop_assert_eq!((whole.len(), whole.pages.changes), (expected.len() as u64, changes));
                prop_assert_eq!(contents(&whole), expected);
                prop_assert_eq!(whole.memory_bytes(), memory_bytes);
                prop_assert!(census(&whole) as u64 <= memory_bytes);
                if let Some(last) = chunks.last_mut() {
                    last.pop();
                    prop_assert!(restored(&chunks, changes).is_none());
                }
            }
        }

        /// Whatever is inserted and removed, the account is right, and inserts need no more memory than predicted.
        #[test]
        fn removed_values_take_no_memory(
            batches in proptest::collection::vec(
                (0..600_u64, proptest::collection::vec(any::<u32>(), 0..600)), 1..12,
            ),
        ) {
            let mut slab = Slab::default();
            for (inserts, removes) in batches {
                let most = slab.memory_bytes() + Slab::<Strings>::growth_bytes(inserts);
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
                prop_assert_eq!(contents(&slab).len() as u64, slab.len());
                prop_assert!(census(&slab) as u64 <= slab.memory_bytes());
            }
            (0..slots(&slab)).for_each(|slot| drop(slab.remove(slot)));
            prop_assert_eq!((slab.len(), slab.memory_bytes(), census(&slab)), (0, 0, 0));
        }
    }

    #[test]
    fn page_without_all_its_values_is_damaged() {
        let page = |taken: u64, values: &[&str]| {
            let encode = |bytes, value| postcard::to_extend(value, bytes).unwrap();
            values.iter().fold(taken.to_le_bytes().to_vec(), encode)
        };
        let whole = page(0b101, &["a", "b"]);
        assert_eq!(
            contents(&restored(&[whole], 0).unwrap()),
            [(0, "a".into()), (2, "b".into())]
        );
        for (taken, values) in [
            (0b1, &["a", "b"][..]),
            (0b111, &["a", "b"]),
            (0b0, &[]),
            (u64::MAX, &["a"]),
        ] {
            assert!(restored(&[page(taken, values)], 0).is_none(), "{taken}");
        }
        let mut slab = Slab::<Strings>::default();
        let with_stray_byte = [page(0b1, &["a"]), vec![7]].concat();
        assert!(slab.load(&with_stray_byte).is_none());
        assert_eq!((slab.len(), slab.memory_bytes()), (0, 0));
        assert!(slab.free_page().is_none());
    }

    /// A page in a snapshot is copied once, and counted until the snapshot releases it.
    #[test]
    fn changed_page_is_copied_once() {
        let mut slab = Slab::<Strings>::default();
        let copied = Copied::default();
        (0..3 * PAGE_SLOTS).for_each(|number| assert_eq!(slab.insert(number.to_string()), number));
        let mut frozen = slab.pages.freeze(&copied);
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

    /// Numbers of a page.
    const PAGE_NUMBERS: u64 = 64 * NUMBER_WORDS as u64;

    fn all(numbers: &Numbers) -> Vec<u64> {
        let end = numbers.pages.end() * PAGE_NUMBERS;
        (1..=end)
            .filter(|number| numbers.contains(*number))
            .collect()
    }

    /// Takes a snapshot, with changes between its chunks.
    fn snapshot(numbers: &mut Numbers, mut change: impl FnMut(&mut Numbers)) -> Vec<Vec<u8>> {
        let mut frozen = numbers.pages.freeze(&Copied::default());
        let mut chunks = Vec::new();
        let mut chunk = Vec::new();
        change(numbers);
        while frozen.next_chunk(&mut chunk) {
            chunks.push(chunk.clone());
            change(numbers);
        }
        chunks
    }

    fn restored_numbers(chunks: &[Vec<u8>], changes: u64) -> Option<Numbers> {
        let mut numbers = Numbers::default();
        let is_loaded =
            chunks.iter().all(|chunk| numbers.load(chunk).is_some()) && numbers.is_trimmed();
        numbers.pages.changes = changes;
        is_loaded.then_some(numbers)
    }

    proptest! {
        /// Numbers are inserted, removed and inserted again, and each time everything is restored.
        #[test]
        fn numbers_are_unique_and_lowest_first(
            steps in proptest::collection::vec((0..8u8, any::<usize>()), 1..200),
        ) {
            let mut numbers = Numbers::default();
            let mut model = BTreeSet::new();
            for (step, which) in steps {
                let some = model.iter().nth(which % model.len().max(1)).copied();
                let lowest = (1..).find(|number| !model.contains(number)).unwrap();
                match (step, some) {
                    (0..4, _) | (_, None) => {
                        prop_assert_eq!(numbers.take_lowest(), lowest);
                        model.insert(lowest);
                    }
                    (4..7, Some(number)) => {
                        numbers.release(number);
                        model.remove(&number);
                    }
                    (_, Some(_)) => {
                        let wanted = which as u64 % 20 + 1;
                        prop_assert_eq!(numbers.take(wanted), model.insert(wanted));
                    }
                }
                prop_assert_eq!(numbers.len(), model.len() as u64);
                let chunks = snapshot(&mut numbers, |_| ());
                let restored = restored_numbers(&chunks, numbers.pages.changes).unwrap();
                prop_assert_eq!(all(&restored), model.iter().copied().collect::<Vec<_>>());
                prop_assert_eq!((&restored.vacant, restored.len), (&numbers.vacant, numbers.len));
                prop_assert_eq!(restored.pages.changes, numbers.pages.changes);
            }
        }

        /// The same with many pages, of which some become empty or full.
        #[test]
        fn pages_are_added_and_dropped(
            steps in proptest::collection::vec((any::<bool>(), 0..40_000u64, 1..9_000u64), 1..12),
        ) {
            let mut numbers = Numbers::default();
            for (is_inserting, first, count) in steps {
                let most = numbers.memory_bytes() + Numbers::growth_bytes(count);
                let before = all(&numbers);
                let changes = numbers.pages.changes;
                let mut begun = false;
                let mut chunks = snapshot(&mut numbers, |numbers| {
                    if !std::mem::replace(&mut begun, true) {
                        (0..count).for_each(|number| match is_inserting {
                            true => assert!(numbers.take_lowest() > 0),
                            false => numbers.release(first + number + 1),
                        });
                    }
                });
                prop_assert!(numbers.memory_bytes() <= most);
                prop_assert_eq!(all(&restored_numbers(&chunks, changes).unwrap()), before);
                if let Some(last) = chunks.last_mut() {
                    last.pop();
                    prop_assert!(restored_numbers(&chunks, changes).is_none());
                }
                prop_assert_eq!(all(&numbers).len() as u64, numbers.len());
            }
        }
    }

    /// Whatever numbers are taken, a snapshot has a bit for each.
    #[test]
    fn snapshot_has_bit_for_each_number() {
        let mut numbers = Numbers::default();
        (1..=100_000).for_each(|number| assert_eq!(numbers.take_lowest(), number));
        (1..100_000)
            .step_by(2)
            .for_each(|number| numbers.release(number));
        let bytes = snapshot(&mut numbers, |_| ()).concat();
        assert_eq!(bytes.len(), 25 * 8 * NUMBER_WORDS);
        assert!(restored_numbers(&[bytes[..24 * 8 * NUMBER_WORDS].to_vec()], 0).is_some());
        assert!(
            restored_numbers(&[vec![0; 8 * NUMBER_WORDS]], 0).is_none(),
            "it ends with an empty page"
        );
    }
}
