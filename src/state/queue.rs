//! A queue of byte strings, which never change while they are in it. It lies in pages.
//!
//! Pages are append-only: a page's number and length determine its contents for good. So a full page is written to a snapshot once, and
//! a running snapshot need not copy what is appended meanwhile.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use thiserror::Error;

/// Bytes of a page, in memory and as a section of a snapshot.
pub const PAGE_BYTES: usize = 256 << 10;

/// Bytes of a snapshot's chunk, about as many as in a chunk of a table.
const CHUNK_BYTES: usize = 8_000;

/// Every string begins at a multiple of this, so that its position takes fewer bits.
pub const ALIGNMENT: usize = 8;

/// Bytes of the length that stands before each string.
const LENGTH_BYTES: usize = 2;

/// The snapshot of a queue is damaged, and in which way.
#[derive(Debug, Error)]
#[error("the snapshot of stored answers is damaged: {0}")]
pub struct DamagedQueue(pub(super) &'static str);

impl DamagedQueue {
    /// A page is missing.
    pub fn missing() -> Self {
        Self("a page is missing")
    }
}

/// What a snapshot says of a queue, except for the contents of its pages, which lie in sections of their own.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Extent {
    /// The number of the first page. No number is used twice.
    pub first: u64,
    /// How many pages there are.
    pub pages: u64,
    /// Where in the first page the oldest string begins.
    pub head: u64,
}

/// A queue of byte strings: the oldest leaves first.
#[derive(Debug, Default)]
pub struct ByteQueue {
    /// The number of the first page.
    first: u64,
    /// Where in the first page the oldest string begins.
    head: usize,
    /// The pages. Each is as long as it is filled.
    pages: VecDeque<Vec<u8>>,
    snapshot: Option<Snapshot>,
}

/// A snapshot in progress.
#[derive(Debug)]
struct Snapshot {
    /// The pages that are still to be taken, with their lengths when it began.
    wanted: BTreeMap<u64, usize>,
    /// The pages among them that have left the queue since.
    kept: BTreeMap<u64, Vec<u8>>,
}

/// Bytes that a string takes in a page, with its length and padding.
pub fn stored_bytes(length: usize) -> usize {
    (LENGTH_BYTES + length).next_multiple_of(ALIGNMENT)
}

/// The string at an offset in a page.
fn read(page: &[u8], offset: usize) -> Option<&[u8]> {
    let (length, rest) = page.get(offset..)?.split_first_chunk::<LENGTH_BYTES>()?;
    rest.get(..usize::from(u16::from_le_bytes(*length)))
}

impl ByteQueue {
    /// Appends a string, given in two pieces. Returns its position, a multiple of [`ALIGNMENT`].
    ///
    /// # Panics
    /// When the string is longer than 65 535 bytes.
    pub fn push(&mut self, start: &[u8], end: &[u8]) -> u64 {
        let length = u16::try_from(start.len() + end.len()).expect("answers are short");
        let bytes = stored_bytes(usize::from(length));
        if self.pages.back().is_none_or(|page| page.len() + bytes > PAGE_BYTES) {
            self.pages.push_back(Vec::with_capacity(PAGE_BYTES));
            self.drop_spent_page();
        }
        let number = self.first + self.pages.len() as u64 - 1;
        let page = self.pages.back_mut().expect("one has been made if there was none");
        let offset = page.len();
        page.extend_from_slice(&length.to_le_bytes());
        page.extend_from_slice(start);
        page.extend_from_slice(end);
        page.resize(offset + bytes, 0);
        number * PAGE_BYTES as u64 + offset as u64
    }

    /// The string at a position.
    pub fn get(&self, position: u64) -> Option<&[u8]> {
        let (number, offset) = (position / PAGE_BYTES as u64, position % PAGE_BYTES as u64);
        let page = self.pages.get(usize::try_from(number.checked_sub(self.first)?).ok()?)?;
        read(page, offset as usize)
    }

    /// The position of the oldest string; if there is none, of the next one to come.
    pub fn head(&self) -> u64 {
        self.first * PAGE_BYTES as u64 + self.head as u64
    }

    /// The oldest string.
    pub fn front(&self) -> Option<&[u8]> {
        read(self.pages.front()?, self.head)
    }

    /// Removes the oldest string.
    pub fn pop(&mut self) {
        if let Some(length) = self.front().map(<[u8]>::len) {
            self.head += stored_bytes(length);
            self.drop_spent_page();
        }
    }

    /// Every string with its position, the oldest first.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &[u8])> {
        (self.first..).zip(&self.pages).flat_map(move |(number, page)| {
            let mut offset = if number == self.first { self.head } else { 0 };
            std::iter::from_fn(move || {
                let at = offset;
                let string = read(page, at)?;
                offset += stored_bytes(string.len());
                Some((number * PAGE_BYTES as u64 + at as u64, string))
            })
        })
    }

    /// Bytes from the oldest string to the end of the newest. The pages take up to twice [`PAGE_BYTES`] more.
    pub fn span_bytes(&self) -> u64 {
        let last = self.pages.back().map_or(0, Vec::len);
        (self.pages.len().saturating_sub(1) * PAGE_BYTES + last - self.head) as u64
    }

    /// Bytes that a string which takes `bytes` would add to [`Self::span_bytes`]. It may have to begin a new page.
    pub fn growth_bytes(&self, bytes: usize) -> u64 {
        let left = self.pages.back().map_or(0, |page| PAGE_BYTES - page.len());
        (if bytes <= left { bytes } else { left + bytes }) as u64
    }

    /// Whether it has pages. Once it has one it always does.
    pub fn has_pages(&self) -> bool {
        !self.pages.is_empty()
    }

    /// Drops the first page once all its strings have left, unless it is the last one, which strings are appended to.
    fn drop_spent_page(&mut self) {
        if self.pages.len() > 1 && self.pages.front().is_some_and(|page| page.len() <= self.head) {
            let page = self.pages.pop_front();
            if let (Some(snapshot), Some(page)) = (&mut self.snapshot, page)
                && snapshot.wanted.contains_key(&self.first)
            {
                snapshot.kept.insert(self.first, page);
            }
            self.first += 1;
            self.head = 0;
        }
    }

    /// What a snapshot says of the queue.
    pub fn extent(&self) -> Extent {
        Extent { first: self.first, pages: self.pages.len() as u64, head: self.head as u64 }
    }

    /// Begins a snapshot: [`Self::take_chunk`] gives out what the pages hold now. Returns their numbers and lengths.
    pub fn begin_snapshot(&mut self) -> impl Iterator<Item = (u64, u64)> + use<> {
        let wanted: BTreeMap<u64, usize> =
            (self.first..).zip(&self.pages).map(|(number, page)| (number, page.len())).collect();
        let pages: Vec<_> = wanted.iter().map(|(&number, &length)| (number, length as u64)).collect();
        self.snapshot = Some(Snapshot { wanted, kept: BTreeMap::new() });
        pages.into_iter()
    }

    /// Replaces `out` with a chunk of a page as it was when the snapshot began; false, and nothing, after the last.
    pub fn take_chunk(&mut self, number: u64, chunk: u32, out: &mut Vec<u8>) -> bool {
        out.clear();
        if let Some(snapshot) = &self.snapshot
            && let Some(&length) = snapshot.wanted.get(&number)
        {
            let page = match snapshot.kept.get(&number) {
                Some(page) => Some(page),
                None => number.checked_sub(self.first).and_then(|index| self.pages.get(index as usize)),
            };
            let begin = (chunk as usize).saturating_mul(CHUNK_BYTES).min(length);
            let end = (begin + CHUNK_BYTES).min(length);
            out.extend_from_slice(page.and_then(|page| page.get(begin..end)).unwrap_or_default());
        }
        if out.is_empty() {
            self.skip_page(number);
        }
        !out.is_empty()
    }

    /// Leaves a page, or the rest of it, out of the running snapshot.
    pub fn skip_page(&mut self, number: u64) {
        if let Some(snapshot) = &mut self.snapshot {
            snapshot.wanted.remove(&number);
            snapshot.kept.remove(&number);
        }
    }

    /// Ends the running snapshot, whether all of it was taken or not.
    pub fn end_snapshot(&mut self) {
        self.snapshot = None;
    }

    /// Bytes of pages that only the running snapshot still needs.
    pub fn snapshot_bytes(&self) -> usize {
        self.snapshot.as_ref().map_or(0, |snapshot| snapshot.kept.len() * PAGE_BYTES)
    }

    /// Restores a queue from its pages.
    ///
    /// # Errors
    /// When the pages are damaged: they don't hold whole strings.
    pub fn restore(extent: Extent, pages: Vec<Vec<u8>>) -> Result<Self, DamagedQueue> {
        let mut pages = VecDeque::from(pages);
        for page in &mut pages {
            if page.len() > PAGE_BYTES {
                return Err(DamagedQueue("a page is too long"));
            }
            page.shrink_to_fit();
        }
        if let Some(last) = pages.back_mut() {
            last.reserve_exact(PAGE_BYTES - last.len());
        }
        let head = usize::try_from(extent.head).map_err(|_| DamagedQueue("its beginning is nowhere"))?;
        let queue = Self { first: extent.first, head, pages, snapshot: None };
        if queue.boundaries() { Ok(queue) } else { Err(DamagedQueue("a page holds no whole strings")) }
    }

    /// Whether every page is a sequence of whole strings, and one of them begins where the oldest one should.
    fn boundaries(&self) -> bool {
        let mut begins = BTreeSet::from([0]);
        self.pages.iter().enumerate().all(|(index, page)| {
            let mut offset = 0;
            while let Some(string) = read(page, offset) {
                offset += stored_bytes(string.len());
                if index == 0 {
                    begins.insert(offset);
                }
            }
            offset == page.len()
        }) && begins.contains(&self.head)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn strings(queue: &ByteQueue) -> Vec<Vec<u8>> {
        queue.iter().map(|(_, string)| string.to_vec()).collect()
    }

    /// Pops or pushes. Strings are long, so that pages come and go.
    fn change(queue: &mut ByteQueue, model: &mut VecDeque<Vec<u8>>, operation: u16) {
        if operation.is_multiple_of(3) {
            queue.pop();
            model.pop_front();
        } else {
            let string = operation.to_le_bytes().repeat(usize::from(operation % 20_000));
            let (start, end) = string.split_at(string.len().min(32));
            let position = queue.push(start, end);
            assert_eq!(queue.get(position), Some(string.as_slice()));
            model.push_back(string);
        }
    }

    proptest! {
        #[test]
        fn a_queue_and_its_snapshot_are_what_a_model_says(
            before in proptest::collection::vec(any::<u16>(), 0..200),
            meanwhile in proptest::collection::vec(any::<u16>(), 0..200),
        ) {
            let (mut queue, mut model) = (ByteQueue::default(), VecDeque::new());
            for &operation in &before {
                change(&mut queue, &mut model, operation);
                prop_assert!(queue.pages.len() * PAGE_BYTES <= queue.span_bytes() as usize + 2 * PAGE_BYTES);
            }
            prop_assert_eq!(&strings(&queue), &Vec::from(model.clone()));
            prop_assert_eq!(queue.front(), model.front().map(Vec::as_slice));
            let (expected, extent) = (strings(&queue), queue.extent());
            let mut meanwhile = meanwhile.chunks(10);
            let mut pages = Vec::new();
            let mut chunk = Vec::new();
            for (number, length) in queue.begin_snapshot() {
                let mut page = Vec::new();
                for index in 0.. {
                    for &operation in meanwhile.next().unwrap_or_default() {
                        change(&mut queue, &mut model, operation);
                    }
                    if !queue.take_chunk(number, index, &mut chunk) { break }
                    page.extend_from_slice(&chunk);
                }
                prop_assert_eq!(page.len() as u64, length);
                pages.push(page);
            }
            prop_assert_eq!(queue.snapshot_bytes(), 0, "what has been taken is not kept");
            let restored = ByteQueue::restore(extent, pages.clone()).unwrap();
            prop_assert_eq!(strings(&restored), expected);
            prop_assert_eq!(restored.extent(), extent);
            if let Some(last) = pages.last_mut().filter(|last| !last.is_empty()) {
                last.pop();
                prop_assert!(ByteQueue::restore(extent, pages).is_err());
            }
        }
    }
}
