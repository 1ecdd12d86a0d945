//! Pages in an `Arc`, copied on their first change: snapshots share them with slabs, queues and sets of numbers.
//!
//! A snapshot *freezes* a container. That takes a reference to each page and copies none. A page that a snapshot still refers to is copied
//! before it changes, so snapshots don't affect the content.

mod queue;
mod slab;

pub use queue::{ALIGNMENT, Extent, PAGE_BYTES, Queue, stored_bytes};
pub use slab::{Numbers, Slab, SlabPage, Slots};

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bytes after which a chunk gets no more pages: about the size of a table's chunk.
const CHUNK_BYTES: usize = 8_000;

/// Maximum size of a chunk, in bytes. Larger pages are split.
const CHUNK_BYTES_MAX: usize = 32 << 10;

/// Bytes that only snapshots still need: pages and records of changes.
pub type Copied = Arc<AtomicU64>;

/// A page: the unit that is copied and encoded.
pub trait Page: Clone {
    /// Appends its encoding.
    fn encode(&self, out: &mut Vec<u8>);
    /// Decodes the page at the beginning of `bytes`, and removes it from them.
    fn decode(bytes: &mut &[u8]) -> Option<Self>;
    /// Its memory, in bytes. It must follow from the contents.
    fn bytes(&self) -> u64;
}

/// Numbered pages. No number is used twice, except for those at the end.
#[derive(Debug)]
pub struct Paged<P> {
    /// The number of the first page.
    first: u64,
    pages: VecDeque<Arc<P>>,
    /// Memory of all pages.
    pub bytes: u64,
    /// Number of changes so far. While it stays the same, so do the contents.
    pub changes: u64,
    /// The count of the latest snapshot, if there has been one.
    copied: Option<Copied>,
}

impl<P> Default for Paged<P> {
    fn default() -> Self {
        Self {
            first: 0,
            pages: VecDeque::new(),
            bytes: 0,
            changes: 0,
            copied: None,
        }
    }
}

impl<P: Page> Paged<P> {
    /// The number of the page that is pushed next.
    pub fn end(&self) -> u64 {
        self.first + self.pages.len() as u64
    }

    fn index(&self, number: u64) -> Option<usize> {
        usize::try_from(number.checked_sub(self.first)?).ok()
    }

    /// The page of a number.
    pub fn get(&self, number: u64) -> Option<&P> {
        self.pages.get(self.index(number)?).map(Arc::as_ref)
    }

    fn front(&self) -> Option<&P> {
        self.pages.front().map(Arc::as_ref)
    }

    fn back(&self) -> Option<&P> {
        self.pages.back().map(Arc::as_ref)
    }

    /// The pages with their numbers, in order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &P)> {
        (self.first..).zip(self.pages.iter().map(Arc::as_ref))
    }

    /// Changes a page, if there is one of this number. A page that a snapshot refers to is copied first.
    pub fn change<R>(&mut self, number: u64, change: impl FnOnce(&mut P) -> R) -> Option<R> {
        let index = self.index(number)?;
        let page = self.pages.get_mut(index)?;
        let before = page.bytes();
        count_if_shared(page, &self.copied);
        let page = Arc::make_mut(page);
        let changed = change(page);
        self.bytes = self.bytes + page.bytes() - before;
        self.changes += 1;
        Some(changed)
    }

    /// Appends a page.
    pub fn push(&mut self, page: P) {
        self.bytes += page.bytes();
        self.pages.push_back(Arc::new(page));
    }

    /// Drops the first page. A snapshot may still refer to it.
    fn pop_first(&mut self) {
        if let Some(page) = self.pages.pop_front() {
            self.first += 1;
            self.release(&page);
        }
    }

    /// Drops the last page.
    pub fn pop_last(&mut self) {
        if let Some(page) = self.pages.pop_back() {
            self.release(&page);
        }
        if self.pages.len() <= self.pages.capacity() / 4 {
            self.pages.shrink_to(2 * self.pages.len());
        }
    }

    fn release(&mut self, page: &Arc<P>) {
        self.bytes -= page.bytes();
        count_if_shared(page, &self.copied);
    }

    /// Takes the first page out, unless a snapshot refers to it.
    fn free_first(&mut self) -> Option<P> {
        Arc::get_mut(self.pages.front_mut()?)?;
        let page = Arc::into_inner(self.pages.pop_front()?)?;
        self.bytes -= page.bytes();
        Some(page)
    }

    /// Appends the pages of a chunk, and returns the number of the first one. `None` if the chunk is damaged: then none is appended.
    pub fn load(&mut self, mut chunk: &[u8]) -> Option<u64> {
        let first = self.end();
        let mut pages = Vec::new();
        while !chunk.is_empty() {
            pages.push(P::decode(&mut chunk)?);
        }
        self.changes += pages.len() as u64;
        pages.into_iter().for_each(|page| self.push(page));
        Some(first)
    }

    /// The contents as they are now, for a snapshot. `copied` counts the bytes that only the snapshot needs from then on.
    pub fn freeze(&mut self, copied: &Copied) -> Frozen<P> {
        self.copied = Some(copied.clone());
        Frozen::new(self.pages.clone(), copied)
    }

    /// [`Self::freeze`] for each page, with its number and its memory.
    fn freeze_each(
        &mut self,
        copied: &Copied,
    ) -> impl Iterator<Item = (u64, u64, Frozen<P>)> + use<P> {
        self.copied = Some(copied.clone());
        let pages = self.pages.clone();
        let copied = copied.clone();
        let freeze = move |(number, page): (u64, Arc<P>)| {
            (number, page.bytes(), Frozen::new([page].into(), &copied))
        };
        (self.first..).zip(pages).map(freeze)
    }
}

/// Counts a page that is replaced or dropped, if a snapshot refers to it.
fn count_if_shared<P: Page>(page: &Arc<P>, copied: &Option<Copied>) {
    if let Some(copied) = copied
        && Arc::strong_count(page) > 1
    {
        copied.fetch_add(page.bytes(), Relaxed);
    }
}

/// The content as of the start of a snapshot.
#[derive(Debug)]
pub struct Frozen<P: Page> {
    pages: VecDeque<Arc<P>>,
    /// Encoded pages, and the number of bytes already taken.
    encoded: Vec<u8>,
    taken: usize,
    copied: Copied,
}

impl<P: Page> Frozen<P> {
    fn new(pages: VecDeque<Arc<P>>, copied: &Copied) -> Self {
        Self {
            pages,
            encoded: Vec::new(),
            taken: 0,
            copied: copied.clone(),
        }
    }

    /// Replaces `out` with the next chunk; `false` after the last one. Pages that are small enough are not split.
    pub fn next_chunk(&mut self, out: &mut Vec<u8>) -> bool {
        if self.taken == self.encoded.len() {
            self.encoded.clear();
            self.taken = 0;
            while self.encoded.len() < CHUNK_BYTES
                && let Some(page) = self.pop()
            {
                page.encode(&mut self.encoded);
            }
        }
        let left = &self.encoded[self.taken..];
        let chunk = if left.len() > CHUNK_BYTES_MAX {
            &left[..CHUNK_BYTES]
        } else {
            left
        };
        out.clear();
        out.extend_from_slice(chunk);
        self.taken += chunk.len();
        !out.is_empty()
    }

    fn pop(&mut self) -> Option<Arc<P>> {
        let page = self.pages.pop_front()?;
        if Arc::strong_count(&page) == 1 {
            self.copied.fetch_sub(page.bytes(), Relaxed);
        }
        Some(page)
    }
}

impl<P: Page> Drop for Frozen<P> {
    fn drop(&mut self) {
        while self.pop().is_some() {}
    }
}
