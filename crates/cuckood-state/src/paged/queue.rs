//! A queue of byte strings, which never change. Pages are append-only: a page's number and length identify its content. So a full page is
//! written to a snapshot once.

use super::{Copied, Frozen, Page, Paged};
use serde::{Deserialize, Serialize};

/// Maximum size of a page, in bytes, in memory and as a section of a snapshot.
pub const PAGE_BYTES: usize = 256 << 10;

/// Each string starts at a multiple of this, so that its position takes fewer bits.
pub const ALIGNMENT: usize = 8;

/// Bytes of the length before each string.
const LENGTH_BYTES: usize = 2;

/// The strings of a page, each after its length.
#[derive(Clone, Debug)]
pub struct Strings(Vec<u8>);

impl Page for Strings {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.0);
    }

    fn decode(bytes: &mut &[u8]) -> Option<Self> {
        let mut end = 0;
        while let Some(string) = read(bytes, end) {
            end += stored_bytes(string.len());
        }
        let page = std::mem::take(bytes);
        (end == page.len() && end <= PAGE_BYTES).then(|| Self(page.to_vec()))
    }

    fn bytes(&self) -> u64 {
        self.0.len() as u64
    }
}

/// The metadata of a queue in a snapshot, without the content of its pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Extent {
    /// The number of the first page.
    pub first: u64,
    /// Number of pages.
    pub pages: u64,
    /// Where in the first page the oldest string starts.
    pub head: u64,
}

/// A queue of byte strings.
#[derive(Debug, Default)]
pub struct Queue {
    /// The last one is appended to.
    pages: Paged<Strings>,
    /// Where in the first page the oldest string starts.
    head: usize,
    len: u64,
}

impl Drop for Queue {
    /// Counts the pages that a snapshot still needs.
    fn drop(&mut self) {
        while self.pages.back().is_some() {
            self.pages.pop_first();
        }
    }
}

/// Bytes that a string takes in a page, with its length and padding.
pub const fn stored_bytes(length: usize) -> usize {
    (LENGTH_BYTES + length).next_multiple_of(ALIGNMENT)
}

/// The string at an offset in a page.
fn read(page: &[u8], offset: usize) -> Option<&[u8]> {
    let (length, rest) = page.get(offset..)?.split_first_chunk::<LENGTH_BYTES>()?;
    rest.get(..usize::from(u16::from_le_bytes(*length)))
}

impl Queue {
    /// Appends a string, given in two pieces. Returns its position, a multiple of [`ALIGNMENT`].
    ///
    /// # Panics
    /// When the string is longer than 65,535 bytes.
    pub fn push(&mut self, start: &[u8], end: &[u8]) -> u64 {
        let length = u16::try_from(start.len() + end.len()).expect("the strings are short");
        let bytes = stored_bytes(usize::from(length));
        if self
            .pages
            .back()
            .is_none_or(|page| page.0.len() + bytes > PAGE_BYTES)
        {
            self.pages.push(Strings(Vec::new()));
            self.drop_spent_page();
        }
        let number = self.pages.end() - 1;
        let offset = self.pages.change(number, |Strings(page)| {
            let offset = page.len();
            if page.capacity() - offset < bytes {
                page.reserve_exact((offset / 4).max(bytes).min(PAGE_BYTES - offset));
            }
            page.extend_from_slice(&length.to_le_bytes());
            page.extend_from_slice(start);
            page.extend_from_slice(end);
            page.resize(offset + bytes, 0);
            offset
        });
        self.len += 1;
        number * PAGE_BYTES as u64 + offset.unwrap_or_default() as u64
    }

    /// The string at a position.
    pub fn get(&self, position: u64) -> Option<&[u8]> {
        let number = position / PAGE_BYTES as u64;
        let offset = position % PAGE_BYTES as u64;
        read(&self.pages.get(number)?.0, offset as usize)
    }

    /// The position of the oldest string; of the next one, if there is none.
    pub fn head(&self) -> u64 {
        self.pages.first * PAGE_BYTES as u64 + self.head as u64
    }

    /// The oldest string.
    pub fn front(&self) -> Option<&[u8]> {
        read(&self.pages.front()?.0, self.head)
    }

    /// Removes the oldest string.
    pub fn pop(&mut self) {
        if let Some(length) = self.front().map(<[u8]>::len) {
            self.head += stored_bytes(length);
            self.len -= 1;
            self.drop_spent_page();
        }
    }

    /// Removes all strings.
    pub fn clear(&mut self) {
        while self.pages.end() - self.pages.first > 1 {
            self.pages.pop_first();
        }
        self.head = self.pages.back().map_or(0, |page| page.0.len());
        self.len = 0;
    }

    /// Number of strings.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has no strings.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Every string with its position, the oldest first.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.pages.iter().flat_map(|(number, page)| {
            let mut offset = if number == self.pages.first {
                self.head
            } else {
                0
            };
            std::iter::from_fn(move || {
                let at = offset;
                let string = read(&page.0, at)?;
                offset += stored_bytes(string.len());
                Some((number * PAGE_BYTES as u64 + at as u64, string))
            })
        })
    }

    /// Bytes from the oldest string to the end of the newest. The memory is larger by up to two pages.
    pub fn span_bytes(&self) -> u64 {
        let last = self.pages.back().map_or(0, |page| page.0.len());
        (self.pages.end() - self.pages.first).saturating_sub(1) * PAGE_BYTES as u64 + last as u64
            - self.head as u64
    }

    /// Bytes that a string which takes `bytes` would add to [`Self::span_bytes`]. It may have to start a new page.
    pub fn growth_bytes(&self, bytes: usize) -> u64 {
        let left = self
            .pages
            .back()
            .map_or(0, |page| PAGE_BYTES - page.0.len());
        (if bytes <= left { bytes } else { left + bytes }) as u64
    }

    /// Whether it has pages. Once it has one it always does.
    pub fn has_pages(&self) -> bool {
        self.pages.back().is_some()
    }

    /// Drops the first page once all its strings have left, unless strings are appended to it.
    fn drop_spent_page(&mut self) {
        let is_spent = self
            .pages
            .front()
            .is_some_and(|page| page.0.len() <= self.head);
        if is_spent && self.pages.end() - self.pages.first > 1 {
            self.pages.pop_first();
            self.head = 0;
        }
    }

    /// Returns the metadata of the queue for a snapshot.
    pub fn extent(&self) -> Extent {
        let first = self.pages.first;
        Extent {
            first,
            pages: self.pages.end() - first,
            head: self.head as u64,
        }
    }

    /// Freezes the pages for a snapshot. Returns each with its number and length.
    pub fn freeze(
        &mut self,
        copied: &Copied,
    ) -> impl Iterator<Item = (u64, u64, Frozen<Strings>)> + use<> {
        self.pages.freeze_each(copied)
    }

    /// Restores a queue from its pages. `None` if they don't hold complete strings, or none of them starts where the oldest one should.
    pub fn restore(extent: Extent, pages: Vec<Vec<u8>>) -> Option<Self> {
        let mut queue = Self {
            pages: Paged {
                first: extent.first,
                ..Paged::default()
            },
            head: 0,
            len: 0,
        };
        for page in pages {
            let mut rest = page.as_slice();
            queue.pages.push(Strings::decode(&mut rest)?);
        }
        let head = usize::try_from(extent.head).ok()?;
        while queue.head < head {
            queue.head += stored_bytes(read(&queue.pages.front()?.0, queue.head)?.len());
        }
        queue.len = queue.iter().count() as u64;
        (queue.head == head).then_some(queue)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;
    use std::sync::atomic::Ordering::Relaxed;

    fn strings(queue: &Queue) -> Vec<Vec<u8>> {
        queue.iter().map(|(_, string)| string.to_vec()).collect()
    }

    /// Pops, pushes or clears. Strings are long, so that pages are added and removed.
    fn change(queue: &mut Queue, model: &mut VecDeque<Vec<u8>>, operation: u16) {
        if operation > 65_400 {
            queue.clear();
            model.clear();
        } else if operation.is_multiple_of(3) {
            queue.pop();
            model.pop_front();
        } else {
            let string = operation
                .to_le_bytes()
                .repeat(usize::from(operation % 20_000));
            let (start, end) = string.split_at(string.len().min(32));
            let position = queue.push(start, end);
            assert_eq!(queue.get(position), Some(string.as_slice()));
            model.push_back(string);
        }
    }

    proptest! {
        #[test]
        fn queue_and_snapshot_match_model(
            before in proptest::collection::vec(any::<u16>(), 0..200),
            during in proptest::collection::vec(any::<u16>(), 0..200),
        ) {
            let mut queue = Queue::default();
            let mut model = VecDeque::new();
            for &operation in &before {
                change(&mut queue, &mut model, operation);
                let memory: usize = queue.pages.iter().map(|(_, page)| page.0.capacity()).sum();
                prop_assert!(memory <= queue.span_bytes() as usize + 2 * PAGE_BYTES);
            }
            prop_assert_eq!(&strings(&queue), &Vec::from(model.clone()));
            prop_assert_eq!(queue.front(), model.front().map(Vec::as_slice));
            let expected = strings(&queue);
            let extent = queue.extent();
            let copied = Copied::default();
            let mut during = during.chunks(10);
            let mut pages = Vec::new();
            let mut chunk = Vec::new();
            let frozen: Vec<_> = queue.freeze(&copied).collect();
            for (number, length, mut frozen) in frozen {
                prop_assert_eq!(number, extent.first + pages.len() as u64);
                let mut page = Vec::new();
                loop {
                    for &operation in during.next().unwrap_or_default() {
                        change(&mut queue, &mut model, operation);
                    }
                    if !frozen.next_chunk(&mut chunk) { break }
                    prop_assert!(chunk.len() <= super::super::CHUNK_BYTES_MAX);
                    page.extend_from_slice(&chunk);
                }
                prop_assert_eq!(page.len() as u64, length);
                pages.push(page);
            }
            prop_assert_eq!(copied.load(Relaxed), 0, "no page is kept once it is taken");
            prop_assert_eq!(&strings(&queue), &Vec::from(model));
            let restored = Queue::restore(extent, pages.clone()).unwrap();
            prop_assert_eq!(strings(&restored), expected);
            prop_assert_eq!(restored.extent(), extent);
            if let Some(last) = pages.last_mut().filter(|last| !last.is_empty()) {
                last.pop();
                prop_assert!(Queue::restore(extent, pages).is_none());
            }
        }
    }
}
