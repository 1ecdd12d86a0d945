//! A slab: numbered slots in pages, of which a snapshot can be taken page by page while changes go on.
//!
//! The redemptions of a coupon lie in a slab. An insert takes the lowest free slot, so a replay of the same operations fills the same
//! slots.

use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::{BTreeMap, BTreeSet};
use thiserror::Error;

/// Slots in a page, which is the unit of a snapshot.
const PAGE_SLOTS: usize = 256;

/// The most bytes of a snapshot's chunk: about as many as in a chunk of a table.
pub const CHUNK_BYTES_MAX: usize = 8_000;

/// The snapshot of a slab is damaged, and in which way.
#[derive(Debug, Error)]
#[error("a slab's snapshot is damaged: {0}")]
pub struct DamagedSlab(pub(super) &'static str);

/// Numbered slots, each with a value or free.
#[derive(Debug)]
pub struct Slab<T> {
    /// Each page is allocated by itself, so that growth never copies values.
    pages: Vec<Vec<Option<T>>>,
    free: BTreeSet<u32>,
    /// Changes so far. A snapshot need not write a slab again whose count is unchanged.
    changes: u64,
    snapshot: Option<Snapshot<T>>,
}

/// A snapshot in progress, which copies on write.
#[derive(Debug)]
struct Snapshot<T> {
    /// The next page to be taken.
    page: usize,
    /// How many slots there were when it began.
    slots: usize,
    /// The undo log: slots that have changed since, with their old values.
    before: BTreeMap<u32, Option<T>>,
    /// Bytes that are encoded, but not given out yet.
    pending: Vec<u8>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { pages: Vec::new(), free: BTreeSet::new(), changes: 0, snapshot: None }
    }
}

impl<T: Clone + Serialize + DeserializeOwned> Slab<T> {
    /// How many slots there are, free ones included.
    fn slots(&self) -> usize {
        self.pages.last().map_or(0, |last| (self.pages.len() - 1) * PAGE_SLOTS + last.len())
    }

    /// How many values there are.
    pub fn len(&self) -> usize {
        self.slots() - self.free.len()
    }

    /// A number that differs whenever the contents may.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Puts a value into the lowest free slot. Returns the slot's number.
    pub fn insert(&mut self, value: T) -> u32 {
        let slot = match self.free.pop_first() {
            Some(slot) => slot,
            None => {
                let slot = self.slots();
                if slot.is_multiple_of(PAGE_SLOTS) {
                    self.pages.push(Vec::with_capacity(PAGE_SLOTS));
                }
                self.pages[slot / PAGE_SLOTS].push(None);
                u32::try_from(slot).expect("memory ends before slot numbers do")
            }
        };
        *self.slot_mut(slot) = Some(value);
        slot
    }

    /// The value in a slot, if it has one.
    pub fn get(&self, slot: u32) -> Option<&T> {
        self.pages.get(slot as usize / PAGE_SLOTS)?.get(slot as usize % PAGE_SLOTS)?.as_ref()
    }

    /// Changes the value in a slot, if it has one.
    pub fn update(&mut self, slot: u32, change: impl FnOnce(&mut T)) {
        if let Some(value) = self.slot_mut(slot) {
            change(value);
        }
    }

    /// Frees a slot and returns its value.
    pub fn remove(&mut self, slot: u32) -> Option<T> {
        let value = self.slot_mut(slot).take();
        if value.is_some() {
            self.free.insert(slot);
        }
        value
    }

    /// Every value with the number of its slot, in order.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        (0..).zip(self.pages.iter().flatten()).filter_map(|(slot, value)| Some((slot, value.as_ref()?)))
    }

    /// A slot that is about to change. Its old value goes to the undo log if the running snapshot still needs it.
    fn slot_mut(&mut self, slot: u32) -> &mut Option<T> {
        self.changes += 1;
        let value = &mut self.pages[slot as usize / PAGE_SLOTS][slot as usize % PAGE_SLOTS];
        if let Some(snapshot) = &mut self.snapshot
            && (snapshot.page * PAGE_SLOTS..snapshot.slots).contains(&(slot as usize))
        {
            snapshot.before.entry(slot).or_insert_with(|| value.clone());
        }
        value
    }

    /// Begins a snapshot: [`Self::take_chunk`] gives out what the slab holds now.
    pub fn begin_snapshot(&mut self) {
        let slots = self.slots();
        self.snapshot = Some(Snapshot { page: 0, slots, before: BTreeMap::new(), pending: Vec::new() });
    }

    /// Replaces `out` with the next chunk of the running snapshot; false, and nothing, after the last.
    pub fn take_chunk(&mut self, out: &mut Vec<u8>) -> bool {
        out.clear();
        let Some(snapshot) = &mut self.snapshot else { return false };
        while snapshot.pending.len() < CHUNK_BYTES_MAX && snapshot.page * PAGE_SLOTS < snapshot.slots {
            let first = snapshot.page * PAGE_SLOTS;
            let page: Vec<Option<&T>> = (first..snapshot.slots.min(first + PAGE_SLOTS))
                .map(|slot| match snapshot.before.get(&(slot as u32)) {
                    Some(before) => before.as_ref(),
                    None => self.pages[snapshot.page][slot - first].as_ref(),
                })
                .collect();
            let bytes = postcard::to_stdvec(&page).expect("plain data always encodes");
            snapshot.pending.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
            snapshot.pending.extend_from_slice(&bytes);
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

    /// How many slots are in the undo log.
    pub fn snapshot_slots(&self) -> usize {
        self.snapshot.as_ref().map_or(0, |snapshot| snapshot.before.len())
    }

    /// Restores a slab from the chunks of its snapshot, joined in order, and its count of changes.
    pub fn restore(mut bytes: &[u8], changes: u64) -> Result<Self, DamagedSlab> {
        let mut slab = Self { changes, ..Self::default() };
        while let Some((length, rest)) = bytes.split_first_chunk::<4>() {
            let length = u32::from_le_bytes(*length) as usize;
            let (page, rest) = rest.split_at_checked(length).ok_or(DamagedSlab("a page is cut short"))?;
            let page: Vec<Option<T>> =
                postcard::from_bytes(page).map_err(|_| DamagedSlab("a page can't be read"))?;
            let full_so_far = slab.slots().is_multiple_of(PAGE_SLOTS);
            if page.is_empty() || page.len() > PAGE_SLOTS || !full_so_far {
                return Err(DamagedSlab("a page has the wrong number of slots"));
            }
            let first = slab.slots() as u32;
            slab.free.extend((first..).zip(&page).filter(|(_, value)| value.is_none()).map(|(slot, _)| slot));
            slab.pages.push(page);
            bytes = rest;
        }
        if bytes.is_empty() { Ok(slab) } else { Err(DamagedSlab("it ends within a length")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn contents(slab: &Slab<String>) -> Vec<(u32, String)> {
        slab.iter().map(|(slot, value)| (slot, value.clone())).collect()
    }

    fn change(slab: &mut Slab<String>, operation: u16) {
        let slot = u32::from(operation) % (slab.slots() as u32 + 1);
        match operation % 5 {
            0 if slab.get(slot).is_some() => drop(slab.remove(slot)),
            1 if slab.get(slot).is_some() => slab.update(slot, |value| value.push('!')),
            _ => drop(slab.insert(format!("{operation}").repeat(usize::from(operation % 40)))),
        }
    }

    proptest! {
        #[test]
        fn a_snapshot_is_what_was_there_when_it_began(
            before in proptest::collection::vec(any::<u16>(), 0..2000),
            meanwhile in proptest::collection::vec(any::<u16>(), 0..2000),
        ) {
            let mut slab = Slab::default();
            before.iter().for_each(|&operation| change(&mut slab, operation));
            let (expected, free, changes) = (contents(&slab), slab.free.clone(), slab.changes());
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
            prop_assert_eq!(restored.free, free);
            prop_assert_eq!(restored.changes, changes);
            if bytes.len() > 1 {
                prop_assert!(Slab::<String>::restore(&bytes[..bytes.len() - 1], changes).is_err());
            }
        }
    }
}
