//! A set of numbers from 1 on. A number that was added and removed leaves no trace, so a restore gives the same.

use super::{Page, Placed, Places};

/// Words of a page.
const WORDS: usize = 64;

/// Numbers of a page.
const PAGE_NUMBERS: u64 = 64 * WORDS as u64;

/// Memory of a page, in bytes. Rounded up.
const PAGE_BYTES: u64 = 640;

/// The numbers of a page, a bit each.
#[derive(Clone, Debug)]
pub struct Bits([u64; WORDS]);

impl Page for Bits {
    fn encode(&self, out: &mut Vec<u8>) {
        self.0.iter().for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
    }

    fn decode(bytes: &mut &[u8]) -> Option<Self> {
        let (own, rest) = bytes.split_first_chunk::<{ 8 * WORDS }>()?;
        *bytes = rest;
        let mut bits = Self::empty();
        for (word, bytes) in bits.0.iter_mut().zip(own.as_chunks().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        Some(bits)
    }

    fn bytes(&self) -> u64 {
        PAGE_BYTES
    }
}

impl Places for Bits {
    fn empty() -> Self {
        Self([0; WORDS])
    }

    fn taken(&self) -> u64 {
        self.0.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    fn is_full(&self) -> bool {
        self.first_missing().is_none()
    }
}

impl Bits {
    /// The place of the lowest number that is missing.
    fn first_missing(&self) -> Option<u64> {
        let word = self.0.iter().position(|word| *word != u64::MAX)?;
        Some(64 * word as u64 + u64::from(self.0[word].trailing_ones()))
    }
}

/// The page of a number, the word in it, and the bit.
fn place(number: u64) -> (u64, usize, u64) {
    let index = number.saturating_sub(1);
    (index / PAGE_NUMBERS, (index % PAGE_NUMBERS / 64) as usize, 1 << (index % 64))
}

/// A set of numbers.
pub type Numbers = Placed<Bits>;

impl Numbers {
    /// Whether a number is in the set.
    pub fn contains(&self, number: u64) -> bool {
        let (page, word, bit) = place(number);
        self.pages.get(page).is_some_and(|bits| bits.0[word] & bit > 0)
    }

    /// Adds the lowest number that is missing, and returns it.
    pub fn insert_lowest(&mut self) -> u64 {
        let page = self.vacant_page();
        let missing = self.pages.get(page).and_then(Bits::first_missing).unwrap_or_default();
        let number = page * PAGE_NUMBERS + missing + 1;
        self.insert(number);
        number
    }

    /// Adds a number. Returns whether it was missing. Memory grows with the number.
    pub fn insert(&mut self, number: u64) -> bool {
        if self.contains(number) {
            return false;
        }
        let (page, word, bit) = place(number);
        while self.pages.end() <= page {
            self.add_page();
        }
        self.place(page, |bits| bits.0[word] |= bit);
        true
    }

    /// Removes a number.
    pub fn remove(&mut self, number: u64) {
        if self.contains(number) {
            let (page, word, bit) = place(number);
            self.place(page, |bits| bits.0[word] &= !bit);
        }
    }

    /// Maximum memory that `numbers` more numbers need, in bytes, if each is the lowest that is missing.
    pub fn growth_bytes(numbers: u64) -> u64 {
        numbers.div_ceil(PAGE_NUMBERS).saturating_mul(PAGE_BYTES)
    }

    /// Memory that a chunk needs once it is loaded, in bytes.
    pub fn loading_bytes(chunk: &[u8]) -> u64 {
        (chunk.len() / (8 * WORDS)) as u64 * PAGE_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::super::Copied;
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn all(numbers: &Numbers) -> Vec<u64> {
        let end = numbers.pages.end() * PAGE_NUMBERS;
        (1..=end).filter(|number| numbers.contains(*number)).collect()
    }

    /// A snapshot, while more changes come between its chunks.
    fn snapshot(numbers: &mut Numbers, mut change: impl FnMut(&mut Numbers)) -> Vec<Vec<u8>> {
        let mut frozen = numbers.freeze(&Copied::default());
        let (mut chunks, mut chunk) = (Vec::new(), Vec::new());
        change(numbers);
        while frozen.next_chunk(&mut chunk) {
            chunks.push(chunk.clone());
            change(numbers);
        }
        chunks
    }

    fn restored(chunks: &[Vec<u8>], changes: u64) -> Option<Numbers> {
        let mut numbers = Numbers::default();
        let is_loaded = chunks.iter().all(|chunk| numbers.load(chunk).is_some()) && numbers.is_trimmed();
        numbers.resume(changes);
        is_loaded.then_some(numbers)
    }

    proptest! {
        /// Numbers are inserted, removed and inserted again, and each time everything is restored.
        #[test]
        fn no_number_is_there_twice_and_the_lowest_is_next(
            steps in proptest::collection::vec((0..8u8, any::<usize>()), 1..200),
        ) {
            let (mut numbers, mut model) = (Numbers::default(), BTreeSet::new());
            for (step, which) in steps {
                let some = model.iter().nth(which % model.len().max(1)).copied();
                let lowest = (1..).find(|number| !model.contains(number)).unwrap();
                match (step, some) {
                    (0..4, _) | (_, None) => {
                        prop_assert_eq!(numbers.insert_lowest(), lowest);
                        model.insert(lowest);
                    }
                    (4..7, Some(number)) => {
                        numbers.remove(number);
                        model.remove(&number);
                    }
                    (_, Some(_)) => {
                        let wanted = which as u64 % 20 + 1;
                        prop_assert_eq!(numbers.insert(wanted), model.insert(wanted));
                    }
                }
                prop_assert_eq!(numbers.len(), model.len() as u64);
                let chunks = snapshot(&mut numbers, |_| ());
                let restored = restored(&chunks, numbers.changes()).unwrap();
                prop_assert_eq!(all(&restored), model.iter().copied().collect::<Vec<_>>());
                prop_assert_eq!((&restored.vacant, restored.len), (&numbers.vacant, numbers.len));
                prop_assert_eq!(restored.changes(), numbers.changes());
            }
        }

        /// The same with many pages, of which some become empty or full.
        #[test]
        fn pages_come_and_go(
            steps in proptest::collection::vec((any::<bool>(), 0..40_000u64, 1..9_000u64), 1..12),
        ) {
            let mut numbers = Numbers::default();
            for (is_inserting, first, count) in steps {
                let most = numbers.memory_bytes() + Numbers::growth_bytes(count);
                let (before, changes) = (all(&numbers), numbers.changes());
                let mut begun = false;
                let mut chunks = snapshot(&mut numbers, |numbers| {
                    if !std::mem::replace(&mut begun, true) {
                        (0..count).for_each(|number| match is_inserting {
                            true => assert!(numbers.insert_lowest() > 0),
                            false => numbers.remove(first + number + 1),
                        });
                    }
                });
                prop_assert!(numbers.memory_bytes() <= most);
                prop_assert_eq!(all(&restored(&chunks, changes).unwrap()), before);
                if let Some(last) = chunks.last_mut() {
                    last.pop();
                    prop_assert!(restored(&chunks, changes).is_none());
                }
                prop_assert_eq!(all(&numbers).len() as u64, numbers.len());
            }
        }
    }

    /// However the numbers lie, a snapshot has a bit for each.
    #[test]
    fn snapshot_has_a_bit_for_each_number() {
        let mut numbers = Numbers::default();
        (1..=100_000).for_each(|number| assert_eq!(numbers.insert_lowest(), number));
        (1..100_000).step_by(2).for_each(|number| numbers.remove(number));
        let bytes = snapshot(&mut numbers, |_| ()).concat();
        assert_eq!(bytes.len(), 25 * 8 * WORDS);
        assert!(restored(&[bytes[..24 * 8 * WORDS].to_vec()], 0).is_some());
        assert!(restored(&[vec![0; 8 * WORDS]], 0).is_none(), "it ends with an empty page");
    }
}
