//! An index: it finds the places of all values whose key has some hash. The values themselves are stored elsewhere, and the caller compares
//! their keys.
//!
//! The low bits of a hash choose a list. Each list is sorted, and short: by linear hashing, an insert splits one list in two when lists get
//! too long on average, and a remove merges two. So no operation moves more than a few lists, however many entries there are, and results
//! don't depend on the order in which entries were inserted.
//!
//! Callers hash with a key that clients don't know: equal hashes are searched one by one.

/// Maximum number of entries of a list on average.
const LIST_MAX: usize = 128;

/// Minimum number of entries of a list on average, if there are several lists.
const LIST_MIN: usize = LIST_MAX / 2;

/// Maximum number of entries with one hash in a [`BoundedIndex`].
pub(super) const EQUAL_MAX: usize = 64;

/// An upper bound of an index's memory per entry, in bytes, as the allocator rounds it: eight, spare capacity, and a share of the list.
pub(super) const INDEX_ENTRY_BYTES: u64 = 12;

/// Memory of an index in addition to its entries, in bytes: the first lists.
pub(super) const INDEX_BYTES: u64 = 256;

/// The hash of a value's key, and the place of the value.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct IndexEntry(u64);

impl IndexEntry {
    pub(super) fn new(hash: u32, place: u32) -> Self {
        Self(u64::from(hash) << 32 | u64::from(place))
    }

    pub(super) fn hash(self) -> u32 {
        (self.0 >> 32) as u32
    }

    pub(super) fn place(self) -> u32 {
        self.0 as u32
    }
}

/// An index.
#[derive(Debug, Default)]
pub(super) struct Index {
    lists: Vec<Vec<IndexEntry>>,
    len: usize,
}

/// The bit of a hash that distinguishes the last one of this many lists from the one that it was split from.
fn last_split_bit(lists: usize) -> usize {
    let last = lists.saturating_sub(1).max(1);
    1 << last.ilog2()
}

/// The capacity for this many entries: an eighth may be spare.
fn capacity_for(entries: usize) -> usize {
    let step = 1 << (entries / 8).max(1).ilog2();
    entries.next_multiple_of(step)
}

/// The first entry of a sorted list whose hash is not lower. Hashes are uniform, so a guess is close.
fn lower_bound(list: &[IndexEntry], hash: u32) -> usize {
    let mut at = ((u64::from(hash) * list.len() as u64) >> 32) as usize;
    while at > 0 && list[at - 1].hash() >= hash {
        at -= 1;
    }
    while at < list.len() && list[at].hash() < hash {
        at += 1;
    }
    at
}

impl Index {
    /// An index of all these entries. Takes less time than inserting them one by one.
    pub(super) fn from_entries(entries: &[IndexEntry]) -> Self {
        let mut index = Self::default();
        let count = entries.len().div_ceil(LIST_MAX);
        index.lists.resize_with(count, Vec::new);
        index.len = entries.len();
        let mut lens = vec![0; count];
        for entry in entries {
            lens[index.list_of(entry.hash())] += 1;
        }
        for (list, len) in index.lists.iter_mut().zip(lens) {
            list.reserve_exact(capacity_for(len));
        }
        for entry in entries {
            let list = index.list_of(entry.hash());
            index.lists[list].push(*entry);
        }
        for list in &mut index.lists {
            list.sort_unstable();
        }
        index
    }

    /// Number of entries.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// An upper bound of its memory, in bytes.
    pub(super) fn memory_bytes(&self) -> u64 {
        if self.len == 0 {
            return 0;
        }
        INDEX_BYTES + self.len as u64 * INDEX_ENTRY_BYTES
    }

    /// Returns the places of all values whose key has this hash.
    pub(super) fn find(&self, hash: u32) -> impl Iterator<Item = u32> {
        self.equal(hash).iter().map(|entry| entry.place())
    }

    fn equal(&self, hash: u32) -> &[IndexEntry] {
        let Some(list) = self.lists.get(self.list_of(hash)) else {
            return &[];
        };
        let from = &list[lower_bound(list, hash)..];
        let count = from.iter().take_while(|entry| entry.hash() == hash).count();
        &from[..count]
    }

    /// Adds an entry.
    pub(super) fn insert(&mut self, hash: u32, place: u32) {
        if self.len >= self.lists.len() * LIST_MAX {
            self.split();
        }
        let entry = IndexEntry::new(hash, place);
        let number = self.list_of(hash);
        let list = &mut self.lists[number];
        if list.len() == list.capacity() {
            list.reserve_exact(capacity_for(list.len() + 1) - list.len());
        }
        let mut at = lower_bound(list, hash);
        while list.get(at).is_some_and(|other| *other < entry) {
            at += 1;
        }
        list.insert(at, entry);
        self.len += 1;
    }

    /// Removes an entry. Returns whether it was there.
    pub(super) fn remove(&mut self, hash: u32, place: u32) -> bool {
        let number = self.list_of(hash);
        let Some(list) = self.lists.get_mut(number) else {
            return false;
        };
        let entry = IndexEntry::new(hash, place);
        let mut at = lower_bound(list, hash);
        while list.get(at).is_some_and(|other| *other < entry) {
            at += 1;
        }
        if list.get(at) != Some(&entry) {
            return false;
        }
        list.remove(at);
        // Less would make an insert after each remove grow it again.
        if list.capacity() > capacity_for(list.len() + list.len() / 8 + 2) {
            list.shrink_to(capacity_for(list.len()));
        }
        self.len -= 1;
        self.merge_short_lists();
        true
    }

    /// The list of a hash. The last lists are numbered by one more bit than the others.
    fn list_of(&self, hash: u32) -> usize {
        let bit = last_split_bit(self.lists.len());
        let with_bit = hash as usize & (2 * bit - 1);
        if with_bit < self.lists.len() {
            with_bit
        } else {
            with_bit & (bit - 1)
        }
    }

    /// Splits one list, whichever is next: half of its entries go to a new one.
    fn split(&mut self) {
        if self.lists.len() == self.lists.capacity() {
            self.lists.reserve_exact(self.lists.len() / 8 + 1);
        }
        self.lists.push(Vec::new());
        if self.lists.len() == 1 {
            return;
        }
        let last = self.lists.len() - 1;
        let bit = last_split_bit(self.lists.len());
        let old = std::mem::take(&mut self.lists[last - bit]);
        let moves = |entry: &&IndexEntry| entry.hash() as usize & bit != 0;
        let moving = old.iter().filter(moves).count();
        let mut upper = Vec::with_capacity(capacity_for(moving));
        let mut lower = Vec::with_capacity(capacity_for(old.len() - moving));
        for entry in &old {
            if moves(&entry) {
                upper.push(*entry);
            } else {
                lower.push(*entry);
            }
        }
        self.lists[last] = upper;
        self.lists[last - bit] = lower;
    }

    /// Merges the last lists into those that they were split from, while lists are too short.
    fn merge_short_lists(&mut self) {
        if self.len == 0 {
            self.lists = Vec::new();
        }
        while self.lists.len() > 1 && self.len < self.lists.len() * LIST_MIN {
            let bit = last_split_bit(self.lists.len());
            let Some(last) = self.lists.pop() else { return };
            let into = self.lists.len() - bit;
            let list = &mut self.lists[into];
            list.reserve_exact(capacity_for(list.len() + last.len()) - list.len());
            list.extend_from_slice(&last);
            list.sort_unstable();
        }
        if self.lists.capacity() > self.lists.len() + self.lists.len() / 4 + 1 {
            self.lists
                .shrink_to(self.lists.len() + self.lists.len() / 8);
        }
    }

    /// Returns the entries of all hashes that several have, by hash.
    pub(super) fn repeated(&self) -> impl Iterator<Item = &[IndexEntry]> {
        self.lists
            .iter()
            .flat_map(|list| list.chunk_by(|one, next| one.hash() == next.hash()))
            .filter(|equal| equal.len() > 1)
    }

    /// Its memory, counted list by list, in bytes.
    #[cfg(test)]
    pub(super) fn real_bytes(&self) -> u64 {
        let lists = self
            .lists
            .iter()
            .map(|list| size_of::<IndexEntry>() * list.capacity());
        (lists.sum::<usize>() + self.lists.capacity() * size_of::<Vec<IndexEntry>>()) as u64
    }

    /// Frees a list, and returns how many entries it had; `None` after the last. No other operation may follow.
    pub(super) fn free_list(&mut self) -> Option<usize> {
        let list = self.lists.pop()?;
        self.len -= list.len();
        if self.lists.is_empty() {
            self.lists = Vec::new();
        }
        Some(list.len())
    }
}

/// A hash of more than [`EQUAL_MAX`] values.
#[derive(Clone, Copy, Debug)]
struct CrowdedHash {
    hash: u32,
    /// Number of values.
    count: u32,
}

/// An index of keys that clients choose, so that any number of values may have the same one. A key with more than [`EQUAL_MAX`] values is
/// *crowded*: the index only counts them.
#[derive(Debug, Default)]
pub(super) struct BoundedIndex {
    index: Index,
    /// The crowded hashes, sorted. One stays until no value with it is left.
    crowded: Vec<CrowdedHash>,
    /// Number of values, in the index and counted.
    len: usize,
}

impl BoundedIndex {
    /// An index of all these entries.
    pub(super) fn from_entries(entries: &[IndexEntry]) -> Self {
        let mut bounded = Self {
            index: Index::from_entries(entries),
            crowded: Vec::new(),
            len: entries.len(),
        };
        let too_many = bounded.index.repeated();
        let too_many = too_many.filter(|equal| equal.len() > EQUAL_MAX);
        let mut crowded: Vec<_> = too_many
            .map(|equal| CrowdedHash {
                hash: equal[0].hash(),
                count: equal.len() as u32,
            })
            .collect();
        if crowded.is_empty() {
            return bounded;
        }
        crowded.sort_unstable_by_key(|crowded| crowded.hash);
        bounded.crowded = crowded;
        let mut index = std::mem::take(&mut bounded.index);
        for list in &mut index.lists {
            list.retain(|entry| bounded.crowded_at(entry.hash()).is_err());
            list.shrink_to(capacity_for(list.len()));
        }
        index.len = index.lists.iter().map(Vec::len).sum();
        index.merge_short_lists();
        Self { index, ..bounded }
    }

    /// An upper bound of its memory, in bytes. It follows from the number of values: a crowded hash takes less than they would.
    pub(super) fn memory_bytes(&self) -> u64 {
        if self.len == 0 {
            return 0;
        }
        INDEX_BYTES + self.len as u64 * INDEX_ENTRY_BYTES
    }

    /// Where a crowded hash is, or would be.
    fn crowded_at(&self, hash: u32) -> Result<usize, usize> {
        self.crowded
            .binary_search_by_key(&hash, |crowded| crowded.hash)
    }

    /// Returns the places of all values whose key has this hash; `None` if it is crowded.
    pub(super) fn find(&self, hash: u32) -> Option<impl Iterator<Item = u32>> {
        let is_crowded = self.crowded_at(hash).is_ok();
        (!is_crowded).then(|| self.index.find(hash))
    }

    /// Adds an entry.
    pub(super) fn insert(&mut self, hash: u32, place: u32) {
        self.len += 1;
        let at = match self.crowded_at(hash) {
            Ok(at) => {
                self.crowded[at].count += 1;
                return;
            }
            Err(at) => at,
        };
        if self.index.equal(hash).len() < EQUAL_MAX {
            self.index.insert(hash, place);
            return;
        }
        let equal = self.index.equal(hash).to_vec();
        for entry in &equal {
            self.index.remove(hash, entry.place());
        }
        if self.crowded.len() == self.crowded.capacity() {
            self.crowded.reserve_exact(self.crowded.len() / 8 + 1);
        }
        let count = equal.len() as u32 + 1;
        self.crowded.insert(at, CrowdedHash { hash, count });
    }

    /// Removes an entry that is there.
    pub(super) fn remove(&mut self, hash: u32, place: u32) {
        self.len -= 1;
        let Ok(at) = self.crowded_at(hash) else {
            self.index.remove(hash, place);
            return;
        };
        self.crowded[at].count -= 1;
        if self.crowded[at].count == 0 {
            self.crowded.remove(at);
            self.crowded.shrink_to(self.crowded.len() * 9 / 8);
        }
    }

    /// Its memory, counted list by list, in bytes.
    #[cfg(test)]
    pub(super) fn real_bytes(&self) -> u64 {
        let crowded = self.crowded.capacity() * size_of::<CrowdedHash>();
        self.index.real_bytes() + crowded as u64
    }

    /// Frees a list, and returns how many entries it had; `None` after the last. No other operation may follow.
    pub(super) fn free_list(&mut self) -> Option<usize> {
        let freed = self.index.free_list();
        self.len -= freed.unwrap_or(self.len);
        freed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    /// A hash like that of a key; few different ones if `kinds` is small.
    fn hash(number: u32, kinds: u32) -> u32 {
        let number = u64::from(number % kinds);
        (xxhash_rust::xxh3::xxh3_64(&number.to_le_bytes()) >> 32) as u32
    }

    fn found(index: &Index, hash: u32) -> BTreeSet<u32> {
        index.find(hash).collect()
    }

    fn expected(model: &BTreeSet<IndexEntry>, hash: u32) -> BTreeSet<u32> {
        let all = IndexEntry::new(hash, 0)..=IndexEntry::new(hash, u32::MAX);
        model.range(all).map(|entry| entry.place()).collect()
    }

    /// Lists are sorted, each entry is in the list of its hash, and none is much longer than others.
    fn check(index: &Index, model: &BTreeSet<IndexEntry>) {
        assert_eq!(index.len(), model.len());
        assert_eq!(index.lists.iter().map(Vec::len).sum::<usize>(), model.len());
        for (number, list) in index.lists.iter().enumerate() {
            assert!(list.is_sorted());
            for entry in list {
                assert!(model.contains(entry));
                assert_eq!(index.list_of(entry.hash()), number);
            }
        }
        let lists = index.lists.len();
        assert!(index.len() <= lists * LIST_MAX, "{lists} lists are too few");
        assert!(
            lists <= 1 || index.len() >= (lists - 1) * LIST_MIN,
            "{lists} lists are too many"
        );
        assert!(index.real_bytes() <= index.memory_bytes());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// An index has the same entries as a set, whatever was added and removed, however many have the same hash.
        #[test]
        fn index_equals_sorted_set(
            steps in proptest::collection::vec((any::<bool>(), 0..6_000_u32, 1..3_000_u32), 1..12),
            kinds in prop_oneof![Just(3), Just(500), Just(u32::MAX)],
        ) {
            let mut index = Index::default();
            let mut model = BTreeSet::new();
            for (is_adding, first, count) in steps {
                for number in first..first + count {
                    let entry = IndexEntry::new(hash(number, kinds), number);
                    if is_adding && model.insert(entry) {
                        index.insert(entry.hash(), number);
                    }
                    if !is_adding {
                        prop_assert_eq!(index.remove(entry.hash(), number), model.remove(&entry));
                    }
                }
                check(&index, &model);
                for number in (first..first + count).step_by(97) {
                    let hash = hash(number, kinds);
                    prop_assert_eq!(found(&index, hash), expected(&model, hash));
                }
                let entries: Vec<_> = model.iter().copied().collect();
                check(&Index::from_entries(&entries), &model);
            }
            let repeated: Vec<IndexEntry> = index.repeated().flatten().copied().collect();
            let is_repeated = |entry: &&IndexEntry| expected(&model, entry.hash()).len() > 1;
            let wanted: BTreeSet<_> = model.iter().filter(is_repeated).copied().collect();
            prop_assert_eq!(repeated.len(), wanted.len());
            prop_assert_eq!(repeated.into_iter().collect::<BTreeSet<_>>(), wanted);
            while index.free_list().is_some() {}
            prop_assert_eq!((index.len(), index.real_bytes()), (0, 0));
        }

        /// A hash that more than the limit ever had at once is crowded until none is left; all others are found.
        #[test]
        fn bounded_index_finds_all_or_none(
            steps in proptest::collection::vec((0..4_u8, 0..600_u32), 1..1_500),
        ) {
            let mut index = BoundedIndex::default();
            let mut model = BTreeSet::new();
            let mut crowded = BTreeSet::new();
            for (step, number) in steps {
                let entry = IndexEntry::new(hash(number, 7), number);
                if step > 0 && model.insert(entry) {
                    index.insert(entry.hash(), number);
                }
                if step == 0 && model.remove(&entry) {
                    index.remove(entry.hash(), number);
                }
                prop_assert_eq!(index.len, model.len());
                prop_assert!(index.real_bytes() <= index.memory_bytes());
                let places = expected(&model, entry.hash());
                if places.len() > EQUAL_MAX {
                    crowded.insert(entry.hash());
                }
                if places.is_empty() {
                    crowded.remove(&entry.hash());
                }
                let found = index.find(entry.hash()).map(Iterator::collect);
                let is_crowded = crowded.contains(&entry.hash());
                prop_assert_eq!(found, (!is_crowded).then_some(places));
            }
            let entries: Vec<_> = model.iter().copied().collect();
            let restored = BoundedIndex::from_entries(&entries);
            prop_assert_eq!(restored.memory_bytes(), index.memory_bytes());
            for hash in (0..7).map(|number| hash(number, 7)) {
                let places = expected(&model, hash);
                let found = restored.find(hash).map(Iterator::collect);
                prop_assert_eq!(found, (places.len() <= EQUAL_MAX).then_some(places));
            }
        }
    }
}
