//! An index: it finds the places of all values whose key has some hash. The values themselves are stored elsewhere, and the caller compares
//! their keys.
//!
//! The low bits of a hash choose a list. Each list is sorted, and short: by linear hashing, an insert splits one list in two when lists get
//! too long on average, and a remove merges two. So no operation moves more than a few lists, however many entries there are, and results
//! don't depend on the order in which entries were inserted.
//!
//! Callers hash with a key that clients don't know: equal hashes are searched one by one.

use std::collections::BTreeMap;

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

/// An index of keys that clients choose, so that any number of values may have the same one. A key with more than [`EQUAL_MAX`] values is
/// *crowded*: the index only counts them.
#[derive(Debug, Default)]
pub(super) struct BoundedIndex {
    index: Index,
    /// Number of values with each crowded hash. It stays until none is left.
    crowded: BTreeMap<u32, u64>,
}

/// An upper bound of the memory of a crowded hash, in bytes.
const CROWDED_BYTES: u64 = 64;

impl BoundedIndex {
    /// An index of all these entries.
    pub(super) fn from_entries(entries: &[IndexEntry]) -> Self {
        let mut index = Index::from_entries(entries);
        let mut crowded = BTreeMap::new();
        let too_many = index.repeated().filter(|equal| equal.len() > EQUAL_MAX);
        crowded.extend(too_many.map(|equal| (equal[0].hash(), equal.len() as u64)));
        for list in &mut index.lists {
            list.retain(|entry| !crowded.contains_key(&entry.hash()));
            list.shrink_to(capacity_for(list.len()));
        }
        index.len = index.lists.iter().map(Vec::len).sum();
        index.merge_short_lists();
        Self { index, crowded }
    }

    /// An upper bound of its memory, in bytes.
    pub(super) fn memory_bytes(&self) -> u64 {
        self.index.memory_bytes() + self.crowded.len() as u64 * CROWDED_BYTES
    }

    /// Returns the places of all values whose key has this hash; `None` if it is crowded.
    pub(super) fn find(&self, hash: u32) -> Option<impl Iterator<Item = u32>> {
        let is_crowded = self.crowded.contains_key(&hash);
        (!is_crowded).then(|| self.index.find(hash))
    }

    /// Adds an entry.
    pub(super) fn insert(&mut self, hash: u32, place: u32) {
        if let Some(count) = self.crowded.get_mut(&hash) {
            *count += 1;
            return;
        }
        if self.index.equal(hash).len() < EQUAL_MAX {
            self.index.insert(hash, place);
            return;
        }
        let equal = self.index.equal(hash).to_vec();
        for entry in &equal {
            self.index.remove(hash, entry.place());
        }
        self.crowded.insert(hash, equal.len() as u64 + 1);
    }

    /// Removes an entry that is there.
    pub(super) fn remove(&mut self, hash: u32, place: u32) {
        let Some(count) = self.crowded.get_mut(&hash) else {
            self.index.remove(hash, place);
            return;
        };
        *count -= 1;
        if *count == 0 {
            self.crowded.remove(&hash);
        }
    }

    /// Frees a list, or a crowded hash. Returns how many entries it had; `None` after the last. No other operation may follow.
    pub(super) fn free_list(&mut self) -> Option<usize> {
        let crowded = self.crowded.pop_first().map(|_| 1);
        crowded.or_else(|| self.index.free_list())
    }
}
