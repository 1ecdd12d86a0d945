//! The words that a table lies in: zeroed, aligned to cache lines, on huge pages where that pays.
//!
//! The one place with `unsafe`: what is not a plain safe slice of atomics stays behind these few functions.

#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::Deref;
use std::ptr::{NonNull, null_mut};
use std::slice;
use std::sync::atomic::AtomicU64;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// Bytes of a huge page: memory of this size and more is mapped and advised to lie on huge pages.
const HUGE_PAGE_BYTES: usize = 2 << 20;
const CACHE_LINE_BYTES: usize = 64;

/// A fixed number of atomic words, all zero at first.
pub(super) struct Words {
    first: NonNull<AtomicU64>,
    len: usize,
    source: Source,
}

/// Where the words came from, and so how they are given back.
enum Source {
    Heap(Layout),
    Mapping { start: NonNull<u8>, bytes: usize },
}

// SAFETY: `Words` owns its memory alone, and all access to it is through shared references to atomics.
unsafe impl Send for Words {}
// SAFETY: as above; atomics may be used from any thread.
unsafe impl Sync for Words {}

impl Words {
    /// So many words, all zero. As with `Vec`, the process ends when the system has no memory left.
    pub(super) fn zeroed(len: usize) -> Self {
        let layout = Layout::array::<AtomicU64>(len.max(1))
            .and_then(|layout| layout.align_to(CACHE_LINE_BYTES))
            .expect("a table is far smaller than the address space");
        if layout.size() < HUGE_PAGE_BYTES {
            // SAFETY: the layout's size is not zero.
            let start = unsafe { alloc_zeroed(layout) };
            let Some(first) = NonNull::new(start.cast::<AtomicU64>()) else { handle_alloc_error(layout) };
            Self { first, len, source: Source::Heap(layout) }
        } else {
            Self::mapped(len, layout)
        }
    }

    fn mapped(len: usize, layout: Layout) -> Self {
        // A mapping is aligned to small pages only: one huge page more leaves room to align it.
        let used = layout.size().next_multiple_of(HUGE_PAGE_BYTES);
        let bytes = used + HUGE_PAGE_BYTES;
        // SAFETY: a new private mapping at an address of the system's choice touches no memory of ours.
        let mapping = unsafe {
            mmap_anonymous(null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
        };
        let Some(start) = mapping.ok().and_then(|start| NonNull::new(start.cast::<u8>())) else {
            handle_alloc_error(layout)
        };
        let skipped = start.as_ptr().align_offset(HUGE_PAGE_BYTES);
        // SAFETY: `skipped` is less than a huge page, and the mapping is one huge page longer than `used`.
        let first = unsafe { start.add(skipped) };
        #[cfg(target_os = "linux")]
        {
            // SAFETY: the range lies in the mapping. The advice changes no content; refused, small pages serve as well.
            let _ = unsafe {
                rustix::mm::madvise(first.as_ptr().cast(), used, rustix::mm::Advice::LinuxHugepage)
            };
        }
        Self { first: first.cast(), len, source: Source::Mapping { start, bytes } }
    }

    /// Asks for the cache line of a word, without waiting for it. Any index will do.
    #[inline(always)]
    pub(super) fn prefetch(&self, index: usize) {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            let word = self.first.as_ptr().wrapping_add(index);
            // SAFETY: a prefetch is a hint that never faults, whatever the address.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(word.cast()) };
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = index;
    }
}

impl Deref for Words {
    type Target = [AtomicU64];

    #[inline(always)]
    fn deref(&self) -> &[AtomicU64] {
        // SAFETY: `first` starts `len` words that were zeroed, live as long as `self`, and are shared as atomics only.
        unsafe { slice::from_raw_parts(self.first.as_ptr(), self.len) }
    }
}

impl Drop for Words {
    fn drop(&mut self) {
        match self.source {
            // SAFETY: allocated in `zeroed` with this layout, and given back once.
            Source::Heap(layout) => unsafe { dealloc(self.first.as_ptr().cast(), layout) },
            Source::Mapping { start, bytes } => {
                // SAFETY: mapped in `mapped` with this start and length, and given back once.
                let unmapped = unsafe { munmap(start.as_ptr().cast(), bytes) };
                debug_assert!(unmapped.is_ok(), "a mapping of our own can be given back");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn words_are_zero_aligned_and_all_there() {
        for len in
            [1, 100, HUGE_PAGE_BYTES / 8 - 1, HUGE_PAGE_BYTES / 8, HUGE_PAGE_BYTES / 8 + 1, HUGE_PAGE_BYTES]
        {
            let words = Words::zeroed(len);
            assert_eq!(words.len(), len);
            assert_eq!(words.as_ptr().align_offset(CACHE_LINE_BYTES), 0);
            assert!(words.iter().all(|word| word.load(Relaxed) == 0));
            words[len - 1].store(7, Relaxed);
            words.prefetch(len + 1_000_000);
            assert_eq!(words[len - 1].load(Relaxed), 7);
        }
    }
}
