//! A set of small numbers, as bits of words.

/// Numbers below 64 times `WORDS`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Bits<const WORDS: usize>([u64; WORDS]);

impl<const WORDS: usize> Default for Bits<WORDS> {
    fn default() -> Self {
        Self([0; WORDS])
    }
}

impl<const WORDS: usize> Bits<WORDS> {
    /// How many numbers there can be.
    pub(super) const LEN_MAX: usize = 64 * WORDS;

    /// Bytes of an encoded set.
    pub(super) const BYTES: usize = 8 * WORDS;

    pub(super) fn contains(&self, number: usize) -> bool {
        self.0[number / 64] >> (number % 64) & 1 > 0
    }

    /// Adds a number.
    pub(super) fn insert(&mut self, number: usize) {
        self.0[number / 64] |= 1 << (number % 64);
    }

    /// Removes a number.
    pub(super) fn remove(&mut self, number: usize) {
        self.0[number / 64] &= !(1 << (number % 64));
    }

    /// How many numbers there are.
    pub(super) fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// How many numbers there are below this one.
    pub(super) fn len_below(&self, number: usize) -> usize {
        let whole: usize = self.0[..number / 64].iter().map(|word| word.count_ones() as usize).sum();
        let last = self.0[number / 64] & ((1 << (number % 64)) - 1);
        whole + last.count_ones() as usize
    }

    /// The lowest number that is missing, if any is.
    pub(super) fn first_missing(&self) -> Option<usize> {
        let word = self.0.iter().position(|word| *word != u64::MAX)?;
        Some(word * 64 + self.0[word].trailing_ones() as usize)
    }

    /// The encoded set.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        self.0.iter().for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
    }

    /// The set that so many bytes encode, and what follows them; none if there are too few.
    pub(super) fn decode(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (own, rest) = bytes.split_at_checked(Self::BYTES)?;
        let mut bits = Self::default();
        for (word, bytes) in bits.0.iter_mut().zip(own.chunks_exact(8)) {
            *word = bytes.try_into().map_or(0, u64::from_le_bytes);
        }
        Some((bits, rest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn it_is_a_set(changes in proptest::collection::vec((any::<bool>(), 0..192_usize), 0..400)) {
            let (mut bits, mut set) = (Bits::<3>::default(), BTreeSet::new());
            for (stays, number) in changes {
                if stays {
                    bits.insert(number);
                    set.insert(number);
                } else {
                    bits.remove(number);
                    set.remove(&number);
                }
                prop_assert_eq!(bits.contains(number), set.contains(&number));
                prop_assert_eq!(bits.len_below(number), set.range(..number).count());
            }
            prop_assert_eq!(bits.len(), set.len());
            prop_assert_eq!(bits.first_missing(), (0..192).find(|number| !set.contains(number)));
            let mut bytes = Vec::new();
            bits.encode(&mut bytes);
            prop_assert_eq!(bytes.len(), Bits::<3>::BYTES);
            prop_assert!(Bits::<3>::decode(&bytes[1..]).is_none());
            bytes.push(7);
            prop_assert_eq!(Bits::decode(&bytes), Some((bits, &[7][..])));
        }
    }
}
