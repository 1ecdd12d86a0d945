//! A set of numbers from 1 on, as slots without values. A number that was taken and given back leaves no trace, so a restore gives the same.

use super::Slab;

/// Words of a page.
const WORDS: usize = 64;

/// A set of numbers.
pub type Numbers = Slab<(), WORDS>;

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
    pub fn give_back(&mut self, number: u64) {
        slot(number).and_then(|slot| self.remove(slot));
    }
}

#[cfg(test)]
mod tests {
    use super::super::Copied;
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    /// Numbers of a page.
    const PAGE_NUMBERS: u64 = 64 * WORDS as u64;

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
                        prop_assert_eq!(numbers.take_lowest(), lowest);
                        model.insert(lowest);
                    }
                    (4..7, Some(number)) => {
                        numbers.give_back(number);
                        model.remove(&number);
                    }
                    (_, Some(_)) => {
                        let wanted = which as u64 % 20 + 1;
                        prop_assert_eq!(numbers.take(wanted), model.insert(wanted));
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
                            true => assert!(numbers.take_lowest() > 0),
                            false => numbers.give_back(first + number + 1),
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
        (1..=100_000).for_each(|number| assert_eq!(numbers.take_lowest(), number));
        (1..100_000).step_by(2).for_each(|number| numbers.give_back(number));
        let bytes = snapshot(&mut numbers, |_| ()).concat();
        assert_eq!(bytes.len(), 25 * 8 * WORDS);
        assert!(restored(&[bytes[..24 * 8 * WORDS].to_vec()], 0).is_some());
        assert!(restored(&[vec![0; 8 * WORDS]], 0).is_none(), "it ends with an empty page");
    }
}
