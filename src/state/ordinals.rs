//! Ordinals: the redemptions of an open pool are numbered from 1, and no two that stand have the same number.
//!
//! Whether a number is taken is a bit, in pages. A snapshot shares the pages, and copies none: a page that changes meanwhile is copied
//! first. So it costs little to begin one, however many numbers there are.

use super::bits::Bits;
use super::piece::Piece;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

/// Numbers in a page.
const PAGE_NUMBERS: u64 = Page::LEN_MAX as u64;

/// Memory of a page, in bytes. Rounded up.
const PAGE_BYTES: u64 = 640;

/// Pages in a chunk of a snapshot, which so has about as many bytes as one of a table.
const CHUNK_PAGES: usize = 15;

type Page = Bits<64>;

/// Which numbers are taken. What was taken and given back leaves no trace, so a restore gives the same.
#[derive(Debug, Default)]
pub struct Ordinals {
    /// The last one has a number that is taken.
    pages: Vec<Arc<Page>>,
    /// Pages that have a number which is free.
    vacant: BTreeSet<u32>,
    taken: u64,
    /// Changes so far. A snapshot need not write the ordinals again if their count is unchanged.
    changes: u64,
    snapshot: Option<Snapshot>,
}

/// A snapshot in progress.
#[derive(Debug)]
struct Snapshot {
    /// The pages that were not given out yet.
    pages: VecDeque<Arc<Page>>,
    /// Pages that were copied since it began.
    copied: usize,
}

/// The page of a number, and the number's place there.
fn place(number: u64) -> (usize, usize) {
    let index = number.saturating_sub(1);
    ((index / PAGE_NUMBERS) as usize, (index % PAGE_NUMBERS) as usize)
}

impl Ordinals {
    /// How many numbers are taken.
    pub(super) fn taken(&self) -> u64 {
        self.taken
    }

    /// Whether a number is taken.
    pub(super) fn is_taken(&self, number: u64) -> bool {
        let (page, place) = place(number);
        self.pages.get(page).is_some_and(|page| page.contains(place))
    }

    /// Takes the lowest free number.
    pub(super) fn take(&mut self) -> u64 {
        let vacant = self.vacant.first().map_or(self.pages.len(), |page| *page as usize);
        let free = self.pages.get(vacant).and_then(|page| page.first_missing()).unwrap_or(0);
        let number = vacant as u64 * PAGE_NUMBERS + free as u64 + 1;
        self.set(number);
        number
    }

    /// Takes this number. Returns whether it was free.
    pub(super) fn take_this(&mut self, number: u64) -> bool {
        let is_free = !self.is_taken(number);
        if is_free {
            self.set(number);
        }
        is_free
    }

    fn set(&mut self, number: u64) {
        let (page, place) = place(number);
        while self.pages.len() <= page {
            self.vacant.insert(self.pages.len() as u32);
            self.pages.push(Arc::default());
        }
        self.change(page, |bits| bits.insert(place));
        self.taken += 1;
        if self.pages[page].first_missing().is_none() {
            self.vacant.remove(&(page as u32));
        }
    }

    /// Gives a number back that is taken.
    pub(super) fn give_back(&mut self, number: u64) {
        if !self.is_taken(number) {
            return;
        }
        let (page, place) = place(number);
        self.change(page, |bits| bits.remove(place));
        self.taken -= 1;
        self.vacant.insert(page as u32);
        while self.pages.last().is_some_and(|last| last.len() == 0) {
            self.pages.pop();
            self.vacant.remove(&(self.pages.len() as u32));
        }
        if self.pages.len() < self.pages.capacity() / 4 {
            self.pages.shrink_to(2 * self.pages.len());
        }
    }

    fn change(&mut self, page: usize, change: impl FnOnce(&mut Page)) {
        self.changes += 1;
        let page = &mut self.pages[page];
        if let Some(snapshot) = &mut self.snapshot {
            snapshot.copied += usize::from(Arc::strong_count(page) > 1);
        }
        change(Arc::make_mut(page));
    }

    /// Its parts, to be freed a little at a time.
    pub(super) fn into_pieces(self) -> Vec<Piece> {
        vec![Piece::new(self.pages, 1, PAGE_BYTES), Piece::new(self.vacant, 1, 0)]
    }

    /// Memory that they take, in bytes, approximately.
    pub(super) fn memory_bytes(&self) -> u64 {
        self.pages.len() as u64 * PAGE_BYTES
    }

    /// The most memory that so many more numbers can ask for, in bytes. A page is filled before the next one begins.
    pub(super) fn growth_bytes(numbers: u64) -> u64 {
        numbers.div_ceil(PAGE_NUMBERS).saturating_mul(PAGE_BYTES)
    }

    /// A number that differs whenever the contents may.
    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    /// Begins a snapshot: [`Self::take_chunk`] gives out what is taken now.
    pub(super) fn begin_snapshot(&mut self) {
        self.snapshot = Some(Snapshot { pages: self.pages.iter().cloned().collect(), copied: 0 });
    }

    /// Replaces `out` with the next chunk of the running snapshot; false, and nothing, after the last. The chunks together are the pages,
    /// one after the other.
    pub(super) fn take_chunk(&mut self, out: &mut Vec<u8>) -> bool {
        out.clear();
        let Some(snapshot) = &mut self.snapshot else { return false };
        let pages = snapshot.pages.len().min(CHUNK_PAGES);
        snapshot.pages.drain(..pages).for_each(|page| page.encode(out));
        pages > 0
    }

    /// Ends the running snapshot, whether all of it was taken or not.
    pub(super) fn end_snapshot(&mut self) {
        self.snapshot = None;
    }

    /// Bytes that are kept for the running snapshot.
    pub(super) fn snapshot_bytes(&self) -> usize {
        self.snapshot.as_ref().map_or(0, |snapshot| snapshot.copied * Page::BYTES)
    }

    /// Restores the ordinals from the chunks of their snapshot, joined in order, and their count of changes. None if there is something
    /// wrong with them.
    pub(super) fn restore(bytes: &[u8], changes: u64) -> Option<Self> {
        Self::restore_loading(bytes, changes).filter(Self::is_trimmed)
    }

    /// As [`Self::restore`], of ordinals that an image is bringing: the last page so far may have none that is taken.
    pub(super) fn restore_loading(bytes: &[u8], changes: u64) -> Option<Self> {
        let mut ordinals = Self::default();
        ordinals.load(bytes).then_some(Self { changes, ..ordinals })
    }

    /// Adds the next pages of an image, or of a snapshot. Returns whether they could be read.
    pub(super) fn load(&mut self, mut bytes: &[u8]) -> bool {
        while !bytes.is_empty() {
            let Some((page, rest)) = Page::decode(bytes) else { return false };
            self.taken += page.len() as u64;
            if page.first_missing().is_some() {
                self.vacant.insert(self.pages.len() as u32);
            }
            self.pages.push(Arc::new(page));
            self.changes += 1;
            bytes = rest;
        }
        true
    }

    /// Whether the last page has a number that is taken.
    pub(super) fn is_trimmed(&self) -> bool {
        self.pages.last().is_none_or(|last| last.len() > 0)
    }

    /// Memory that so many bytes of an image take, in bytes.
    pub(super) fn loading_bytes(bytes: usize) -> u64 {
        (bytes / Page::BYTES) as u64 * PAGE_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(ordinals: &Ordinals) -> Vec<u64> {
        let end = ordinals.pages.len() as u64 * PAGE_NUMBERS;
        (1..=end).filter(|number| ordinals.is_taken(*number)).collect()
    }

    /// A snapshot, while more changes come between its chunks.
    fn snapshot(ordinals: &mut Ordinals, mut change: impl FnMut(&mut Ordinals)) -> Vec<u8> {
        ordinals.begin_snapshot();
        let (mut bytes, mut chunk) = (Vec::new(), Vec::new());
        change(ordinals);
        while ordinals.take_chunk(&mut chunk) {
            assert!(chunk.len() <= 8_000);
            bytes.extend_from_slice(&chunk);
            change(ordinals);
        }
        ordinals.end_snapshot();
        bytes
    }

    proptest! {
        /// Numbers are taken, given back and taken again, and each time everything is restored.
        #[test]
        fn no_number_is_taken_twice_and_the_lowest_one_is_next(
            steps in proptest::collection::vec((0..8u8, any::<usize>()), 1..200),
        ) {
            let (mut ordinals, mut taken) = (Ordinals::default(), BTreeSet::new());
            for (step, which) in steps {
                let some = taken.iter().nth(which % taken.len().max(1)).copied();
                let lowest = (1..).find(|number| !taken.contains(number)).unwrap();
                match (step, some) {
                    (0..4, _) | (_, None) => {
                        prop_assert_eq!(ordinals.take(), lowest);
                        taken.insert(lowest);
                    }
                    (4..7, Some(number)) => {
                        ordinals.give_back(number);
                        taken.remove(&number);
                    }
                    (_, Some(_)) => {
                        let wanted = which as u64 % 20 + 1;
                        prop_assert_eq!(ordinals.take_this(wanted), taken.insert(wanted));
                    }
                }
                prop_assert_eq!(ordinals.taken(), taken.len() as u64);
                let bytes = snapshot(&mut ordinals, |_| ());
                let restored = Ordinals::restore(&bytes, ordinals.changes()).unwrap();
                prop_assert_eq!(all(&restored), taken.iter().copied().collect::<Vec<_>>());
                prop_assert_eq!((&restored.vacant, restored.taken), (&ordinals.vacant, ordinals.taken));
            }
        }

        /// The same with many pages, of which some become empty or full.
        #[test]
        fn pages_come_and_go(
            steps in proptest::collection::vec((any::<bool>(), 0..40_000u64, 1..9_000u64), 1..12),
        ) {
            let mut ordinals = Ordinals::default();
            for (is_taking, first, count) in steps {
                let most = ordinals.memory_bytes() + Ordinals::growth_bytes(count);
                let (before, changes) = (all(&ordinals), ordinals.changes());
                let mut begun = false;
                let bytes = snapshot(&mut ordinals, |ordinals| {
                    if !std::mem::replace(&mut begun, true) {
                        (0..count).for_each(|number| {
                            if is_taking { ordinals.take(); } else { ordinals.give_back(first + number + 1); }
                        });
                    }
                });
                prop_assert!(ordinals.memory_bytes() <= most);
                prop_assert_eq!(all(&Ordinals::restore(&bytes, changes).unwrap()), before);
                prop_assert!(bytes.is_empty() || Ordinals::restore(&bytes[1..], changes).is_none());
                prop_assert_eq!(all(&ordinals).len() as u64, ordinals.taken());
            }
        }
    }

    /// However the numbers that are taken for good lie between the others, a snapshot has a bit for each.
    #[test]
    fn a_snapshot_has_a_bit_for_each_number() {
        let mut ordinals = Ordinals::default();
        (0..100_000).for_each(|_| {
            ordinals.take();
        });
        (1..100_000).step_by(2).for_each(|number| ordinals.give_back(number));
        let bytes = snapshot(&mut ordinals, |_| ());
        assert_eq!(bytes.len(), 25 * Page::BYTES);
        assert!(Ordinals::restore(&bytes[..24 * Page::BYTES], 0).is_some());
        assert!(Ordinals::restore(&[0; Page::BYTES], 0).is_none(), "it ends with an empty page");
    }
}
