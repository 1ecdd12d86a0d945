//! A slab: numbered slots in pages, of which a snapshot can be taken page by page while changes go on.
//!
//! The redemptions of a coupon lie in a slab. An insert takes the lowest free slot, so a replay of the same operations fills the same
//! slots. A page takes memory for the values that it has, and hardly more: what is removed leaves nothing behind.

use super::bits::Bits;
use super::piece::Piece;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::{BTreeMap, BTreeSet};
use thiserror::Error;

/// Slots in a page, which is the unit of a snapshot.
const PAGE_SLOTS: usize = Taken::LEN_MAX;

/// A page has room for a multiple of so many values.
const ROOM_STEP: usize = 16;

/// Memory of a page beside its values, in bytes. Rounded up.
const PAGE_BYTES: u64 = 256;

/// Memory of a slot in the undo log beside its value, in bytes: what the value points to, and the log's own. Rounded up.
const UNDONE_BYTES: usize = 256;

/// The most bytes of a snapshot's chunk: about as many as in a chunk of a table.
pub const CHUNK_BYTES_MAX: usize = 8_000;

/// The slots of a page that have a value.
type Taken = Bits<4>;

/// The snapshot of a slab is damaged, and in which way.
#[derive(Debug, Error)]
#[error("a slab's snapshot is damaged: {0}")]
pub struct DamagedSlab(pub(super) &'static str);

/// Numbered slots, each with a value or free.
#[derive(Debug)]
pub struct Slab<T> {
    /// The last one has a value.
    pages: Vec<Page<T>>,
    /// Pages that have a free slot.
    vacant: BTreeSet<u32>,
    len: usize,
    /// Values that all pages have room for.
    room: usize,
    /// Changes so far. A snapshot need not write a slab again whose count is unchanged.
    changes: u64,
    snapshot: Option<Snapshot<T>>,
}

#[derive(Debug)]
struct Page<T> {
    taken: Taken,
    /// The values, in the order of their slots.
    values: Vec<T>,
}

/// A snapshot in progress, which copies on write.
#[derive(Debug)]
struct Snapshot<T> {
    /// The next page to be taken.
    page: usize,
    /// How many pages there were when it began.
    pages: usize,
    /// The undo log: slots that have changed since, with their old values.
    before: BTreeMap<u32, Option<T>>,
    /// Bytes that are encoded, but not given out yet.
    pending: Vec<u8>,
}

/// The page of a slot, and the slot's place there.
fn place(slot: u32) -> (usize, usize) {
    (slot as usize / PAGE_SLOTS, slot as usize % PAGE_SLOTS)
}

impl<T> Page<T> {
    fn new() -> Self {
        Self { taken: Taken::default(), values: Vec::new() }
    }

    /// Values that it has room for. It follows from how many it has.
    fn room(&self) -> usize {
        self.values.len().next_multiple_of(ROOM_STEP)
    }

    fn is_full(&self) -> bool {
        self.values.len() == PAGE_SLOTS
    }

    fn get(&self, slot: usize) -> Option<&T> {
        self.taken.contains(slot).then(|| &self.values[self.taken.len_below(slot)])
    }

    fn get_mut(&mut self, slot: usize) -> Option<&mut T> {
        self.taken.contains(slot).then(|| &mut self.values[self.taken.len_below(slot)])
    }

    /// Puts a value into a free slot.
    fn insert(&mut self, slot: usize, value: T) {
        if self.values.len() == self.values.capacity() {
            self.values.reserve_exact(ROOM_STEP);
        }
        self.values.insert(self.taken.len_below(slot), value);
        self.taken.insert(slot);
    }

    fn remove(&mut self, slot: usize) -> Option<T> {
        if !self.taken.contains(slot) {
            return None;
        }
        self.taken.remove(slot);
        let value = self.values.remove(self.taken.len_below(slot));
        self.values.shrink_to(self.room());
        Some(value)
    }
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { pages: Vec::new(), vacant: BTreeSet::new(), len: 0, room: 0, changes: 0, snapshot: None }
    }
}

impl<T: Clone + Serialize + DeserializeOwned> Slab<T> {
    /// How many values there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// A number that differs whenever the contents may.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Memory of the slots, in bytes.
    pub(super) fn memory_bytes(&self) -> u64 {
        (self.room * size_of::<T>()) as u64 + self.pages.len() as u64 * PAGE_BYTES
    }

    /// The most memory that so many inserts can ask for, whatever is removed between them, in bytes. They take the lowest free slots, so
    /// they fill the page that they have begun before they go on to another one.
    pub(super) fn growth_bytes(inserts: u64) -> u64 {
        if inserts == 0 {
            return 0;
        }
        let room = inserts.saturating_add(ROOM_STEP as u64 - 1);
        let pages = inserts.div_ceil(PAGE_SLOTS as u64);
        room.saturating_mul(size_of::<T>() as u64).saturating_add(pages.saturating_mul(PAGE_BYTES))
    }

    /// Puts a value into the lowest free slot. Returns the slot's number.
    pub fn insert(&mut self, value: T) -> u32 {
        if self.vacant.is_empty() {
            self.vacant.insert(self.pages.len() as u32);
            self.pages.push(Page::new());
        }
        let page = self.vacant.first().copied().unwrap_or_default() as usize;
        let free = self.pages[page].taken.first_missing().expect("a vacant page has a free slot");
        let slot = u32::try_from(page * PAGE_SLOTS + free).expect("memory ends before slot numbers do");
        self.keep_for_undo(slot);
        self.change(page, |page| page.insert(free, value));
        slot
    }

    /// The value in a slot, if it has one.
    pub fn get(&self, slot: u32) -> Option<&T> {
        let (page, slot) = place(slot);
        self.pages.get(page)?.get(slot)
    }

    /// Changes the value in a slot, if it has one.
    pub fn update(&mut self, slot: u32, change: impl FnOnce(&mut T)) {
        self.keep_for_undo(slot);
        let (page, slot) = place(slot);
        if let Some(value) = self.pages.get_mut(page).and_then(|page| page.get_mut(slot)) {
            change(value);
        }
    }

    /// Frees a slot and returns its value.
    pub fn remove(&mut self, slot: u32) -> Option<T> {
        self.get(slot)?;
        self.keep_for_undo(slot);
        let (page, slot) = place(slot);
        let value = self.change(page, |page| page.remove(slot));
        while self.pages.last().is_some_and(|last| last.values.is_empty()) {
            self.pages.pop();
            self.vacant.remove(&(self.pages.len() as u32));
        }
        if self.pages.len() < self.pages.capacity() / 4 {
            self.pages.shrink_to(2 * self.pages.len());
        }
        value
    }

    /// Every value with the number of its slot, in order.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.pages.iter().zip(0..).flat_map(|(page, number)| {
            let slots = (0..PAGE_SLOTS).filter(|slot| page.taken.contains(*slot));
            let first = number * PAGE_SLOTS as u32;
            slots.zip(&page.values).map(move |(slot, value)| (first + slot as u32, value))
        })
    }

    /// Changes which slots of a page have values.
    fn change<R>(&mut self, number: usize, change: impl FnOnce(&mut Page<T>) -> R) -> R {
        let page = &mut self.pages[number];
        let (len, room) = (page.values.len(), page.room());
        let changed = change(page);
        self.len = self.len + page.values.len() - len;
        self.room = self.room + page.room() - room;
        if page.is_full() {
            self.vacant.remove(&(number as u32));
        } else if len == PAGE_SLOTS {
            self.vacant.insert(number as u32);
        }
        changed
    }

    /// A slot is about to change. Its old value goes to the undo log if the running snapshot still needs it.
    fn keep_for_undo(&mut self, slot: u32) {
        self.changes += 1;
        let (page, place) = place(slot);
        if let Some(snapshot) = &mut self.snapshot
            && (snapshot.page..snapshot.pages).contains(&page)
        {
            let value = || self.pages.get(page).and_then(|page| page.get(place)).cloned();
            snapshot.before.entry(slot).or_insert_with(value);
        }
    }

    /// Its parts, to be freed a little at a time. A value takes so many bytes besides its slot.
    pub(super) fn into_pieces(self, beside_bytes: u64) -> Vec<Piece>
    where
        T: Send + 'static,
    {
        let bytes = self.memory_bytes() + self.len as u64 * beside_bytes;
        let a_page = bytes.div_ceil(self.pages.len().max(1) as u64);
        vec![Piece::new(self.pages, PAGE_SLOTS as u64, a_page), Piece::new(self.vacant, 1, 0)]
    }

    /// Begins a snapshot: [`Self::take_chunk`] gives out what the slab holds now.
    pub fn begin_snapshot(&mut self) {
        let pages = self.pages.len();
        self.snapshot = Some(Snapshot { page: 0, pages, before: BTreeMap::new(), pending: Vec::new() });
    }

    /// Replaces `out` with the next chunk of the running snapshot; false, and nothing, after the last.
    ///
    /// The chunks together are the pages, one after the other: the length of each, which of its slots have values, and the values. An
    /// empty page has the length 0, and nothing else.
    pub fn take_chunk(&mut self, out: &mut Vec<u8>) -> bool {
        out.clear();
        let Some(snapshot) = &mut self.snapshot else { return false };
        while snapshot.pending.len() < CHUNK_BYTES_MAX && snapshot.page < snapshot.pages {
            let first = snapshot.page * PAGE_SLOTS;
            let (mut taken, mut values) = (Taken::default(), Vec::new());
            for place in 0..PAGE_SLOTS {
                let now = || self.pages.get(snapshot.page).and_then(|page| page.get(place));
                let before = snapshot.before.get(&((first + place) as u32));
                if let Some(value) = before.map_or_else(now, Option::as_ref) {
                    taken.insert(place);
                    values.push(value);
                }
            }
            let mut page = Vec::new();
            if !values.is_empty() {
                taken.encode(&mut page);
                page = postcard::to_extend(&values, page).expect("plain data always encodes");
            }
            snapshot.pending.extend_from_slice(&(page.len() as u32).to_le_bytes());
            snapshot.pending.extend_from_slice(&page);
            snapshot.page += 1;
            snapshot.before = snapshot.before.split_off(&((snapshot.page * PAGE_SLOTS) as u32));
        }
        let length = snapshot.pending.len().min(CHUNK_BYTES_MAX);
        out.extend(snapshot.pending.drain(..length));
        length > 0
    }

    /// Ends the running snapshot, whether all of it was taken or not.
    pub fn end_snapshot(&mut self) {
        self.snapshot = None;
    }

    /// Bytes of the undo log, about.
    pub fn snapshot_bytes(&self) -> usize {
        let slots = self.snapshot.as_ref().map_or(0, |snapshot| snapshot.before.len());
        slots * (UNDONE_BYTES + size_of::<T>())
    }

    /// Restores a slab from the chunks of its snapshot, joined in order, and its count of changes.
    pub fn restore(mut bytes: &[u8], changes: u64) -> Result<Self, DamagedSlab> {
        let mut slab = Self { changes, ..Self::default() };
        while let Some((page, rest)) = next_page(bytes)? {
            slab.push(page);
            bytes = rest;
        }
        if slab.pages.last().is_some_and(|last| last.values.is_empty()) {
            return Err(DamagedSlab("the last page is empty"));
        }
        if bytes.is_empty() { Ok(slab) } else { Err(DamagedSlab("it ends within a page")) }
    }

    fn push(&mut self, page: Page<T>) {
        self.len += page.values.len();
        self.room += page.room();
        if !page.is_full() {
            self.vacant.insert(self.pages.len() as u32);
        }
        self.pages.push(page);
    }
}

/// A page, and what follows it in a snapshot.
type Read<'a, T> = (Page<T>, &'a [u8]);

/// The first page of a snapshot; none if it is not there as a whole.
fn next_page<T: DeserializeOwned>(bytes: &[u8]) -> Result<Option<Read<'_, T>>, DamagedSlab> {
    let Some((length, rest)) = bytes.split_first_chunk::<4>() else { return Ok(None) };
    let length = u32::from_le_bytes(*length) as usize;
    let Some((page, rest)) = rest.split_at_checked(length) else { return Ok(None) };
    Ok(Some((if page.is_empty() { Page::new() } else { decode(page)? }, rest)))
}

/// Reads a snapshot page by page as its chunks come.
#[derive(Default)]
pub(super) struct PageReader {
    pending: Vec<u8>,
}

impl PageReader {
    /// Takes the next chunk.
    pub(super) fn push(&mut self, chunk: &[u8]) {
        self.pending.extend_from_slice(chunk);
    }

    /// The values of the next page, if all of it has come.
    pub(super) fn next_values<T: DeserializeOwned>(&mut self) -> Result<Option<Vec<T>>, DamagedSlab> {
        let Some((page, rest)) = next_page(&self.pending)? else { return Ok(None) };
        let taken = self.pending.len() - rest.len();
        self.pending.drain(..taken);
        Ok(Some(page.values))
    }

    /// Whether nothing is left.
    pub(super) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }
}

fn decode<T: DeserializeOwned>(page: &[u8]) -> Result<Page<T>, DamagedSlab> {
    let (taken, values) = Taken::decode(page).ok_or(DamagedSlab("a page can't be read"))?;
    let mut values: Vec<T> = postcard::from_bytes(values).map_err(|_| DamagedSlab("a page can't be read"))?;
    if values.is_empty() || values.len() != taken.len() {
        return Err(DamagedSlab("a page has the wrong number of slots"));
    }
    values.shrink_to(values.len().next_multiple_of(ROOM_STEP));
    Ok(Page { taken, values })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn contents(slab: &Slab<String>) -> Vec<(u32, String)> {
        slab.iter().map(|(slot, value)| (slot, value.clone())).collect()
    }

    fn slots(slab: &Slab<String>) -> u32 {
        (slab.pages.len() * PAGE_SLOTS) as u32
    }

    /// What the slab takes, counted page by page.
    fn census(slab: &Slab<String>) -> usize {
        let values: usize = slab.pages.iter().map(|page| page.values.capacity() * size_of::<String>()).sum();
        // Of a B-tree's nodes at least a third is used.
        values + slab.pages.capacity() * size_of::<Page<String>>() + 3 * slab.vacant.len() * size_of::<u32>()
    }

    fn change(slab: &mut Slab<String>, operation: u16) {
        let slot = u32::from(operation) % (slots(slab) + 1);
        match operation % 5 {
            0 | 1 if slab.get(slot).is_some() => drop(slab.remove(slot)),
            2 if slab.get(slot).is_some() => slab.update(slot, |value| value.push('!')),
            _ => {
                let free = (0..).find(|slot| slab.get(*slot).is_none());
                let slot = slab.insert(format!("{operation}").repeat(usize::from(operation % 40)));
                assert_eq!(Some(slot), free);
            }
        }
    }

    proptest! {
        #[test]
        fn a_snapshot_is_what_was_there_when_it_began(
            before in proptest::collection::vec(any::<u16>(), 0..2000),
            emptied in 0..700_u32,
            meanwhile in proptest::collection::vec(any::<u16>(), 0..2000),
        ) {
            let mut slab = Slab::default();
            before.iter().for_each(|&operation| change(&mut slab, operation));
            (0..emptied).for_each(|slot| drop(slab.remove(slot)));
            let (expected, vacant, changes) = (contents(&slab), slab.vacant.clone(), slab.changes());
            let (len, memory_bytes) = (slab.len(), slab.memory_bytes());
            slab.begin_snapshot();
            let (mut bytes, mut chunk) = (Vec::new(), Vec::new());
            let mut meanwhile = meanwhile.chunks(300);
            loop {
                meanwhile.next().into_iter().flatten().for_each(|&operation| change(&mut slab, operation));
                if !slab.take_chunk(&mut chunk) { break }
                prop_assert!(chunk.len() <= CHUNK_BYTES_MAX);
                bytes.extend_from_slice(&chunk);
            }
            let restored = Slab::<String>::restore(&bytes, changes).unwrap();
            prop_assert_eq!(contents(&restored), expected);
            prop_assert_eq!(&restored.vacant, &vacant);
            prop_assert_eq!((restored.len(), restored.changes), (len, changes));
            prop_assert_eq!(restored.memory_bytes(), memory_bytes);
            prop_assert!(census(&restored) as u64 <= memory_bytes);
            if bytes.len() > 1 {
                prop_assert!(Slab::<String>::restore(&bytes[..bytes.len() - 1], changes).is_err());
            }
        }

        /// Whatever comes and goes, the account is right, and inserts ask for no more than they were expected to.
        #[test]
        fn what_is_removed_takes_no_memory(
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
                for slot in removes.filter(|_| !slab.pages.is_empty()).collect::<Vec<_>>() {
                    slab.remove(slot % slots(&slab).max(1));
                }
                prop_assert_eq!(slab.iter().count(), slab.len());
                prop_assert!(census(&slab) as u64 <= slab.memory_bytes());
            }
            (0..slots(&slab)).for_each(|slot| drop(slab.remove(slot)));
            prop_assert_eq!((slab.len(), slab.memory_bytes(), census(&slab)), (0, 0, 0));
        }
    }
}
