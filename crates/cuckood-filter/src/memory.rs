//! The memory of tables: zeroed atomic words, aligned to cache lines, on huge pages where that pays.
//!
//! A thread that must not run out of memory later reserves it first ([`Reservation`]); the tables that it creates then take their
//! memory from the reservation.
//!
//! This is the only file of the filter with `unsafe`.

// Mappings are made by system calls, and handed out as slices.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::RefCell;
use std::marker::PhantomData;
use std::mem;
use std::ops::{AddAssign, Deref};
use std::ptr::{NonNull, null_mut};
use std::slice;
use std::sync::atomic::AtomicU64;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// Bytes of a huge page. Tables of this size and more are mapped, and the system is advised to put them on huge pages.
///
/// Smaller in tests, so that small tables are mapped too. Under Miri nothing is mapped: it can't unmap a part of a mapping.
const HUGE_PAGE_BYTES: usize = match (cfg!(miri), cfg!(test)) {
    (true, _) => 1 << 40,
    (_, true) => 64 << 10,
    _ => 2 << 20,
};
const CACHE_LINE_BYTES: usize = 64;

/// The system has no more memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("can't allocate {bytes} bytes of memory")]
pub struct OutOfMemory {
    /// Bytes that were requested.
    pub bytes: u64,
}

impl OutOfMemory {
    /// Ends the process, as a `Vec` does that finds no memory. A caller that must not fail creates a [`Reservation`] first.
    pub(crate) fn end_process(self) -> ! {
        handle_alloc_error(layout(self.bytes as usize / 8))
    }
}

/// The most memory that an operation can need.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MemoryNeed {
    /// Bytes that count towards a memory limit.
    pub bytes: u64,
    /// Bytes of address space of each table that is mapped, in the order of their creation.
    tables: Vec<u64>,
}

impl MemoryNeed {
    /// The need of a table of this size.
    pub fn table(bytes: u64) -> Self {
        let mapped =
            is_mapped(bytes as usize).then(|| bytes.next_multiple_of(HUGE_PAGE_BYTES as u64));
        Self {
            bytes,
            tables: mapped.into_iter().collect(),
        }
    }

    /// The need of bytes that are not a table's.
    pub fn other(bytes: u64) -> Self {
        Self {
            bytes,
            tables: Vec::new(),
        }
    }

    /// The same need, for memory that is released before the operation ends: it does not count towards a limit.
    pub fn temporary(self) -> Self {
        Self { bytes: 0, ..self }
    }

    /// Returns the need without another one, in any order of the tables.
    pub fn beyond(mut self, other: &Self) -> Self {
        for bytes in &other.tables {
            if let Some(at) = self.tables.iter().position(|own| own == bytes) {
                self.tables.remove(at);
            }
        }
        Self {
            bytes: self.bytes.saturating_sub(other.bytes),
            ..self
        }
    }

    /// Returns whether there is no need at all.
    pub fn is_none(&self) -> bool {
        self.bytes == 0 && self.tables.is_empty()
    }

    /// Bytes of address space that its tables map.
    pub fn mapped_bytes(&self) -> u64 {
        self.tables.iter().sum()
    }
}

impl AddAssign for MemoryNeed {
    fn add_assign(&mut self, other: Self) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.tables.extend(other.tables);
    }
}

thread_local! {
    /// The memory that [`Reservation`] has mapped for this thread's tables.
    static RESERVED: RefCell<Vec<Mapping>> = const { RefCell::new(Vec::new()) };
}

/// Memory that is mapped in advance for the tables that this thread creates. Dropping it releases what no table took.
pub struct Reservation {
    /// Not `Send`: it belongs to its thread.
    _thread: PhantomData<*const ()>,
}

impl Reservation {
    /// An empty reservation.
    #[allow(clippy::new_without_default)] // It must be dropped by the thread that created it.
    pub fn new() -> Self {
        Self {
            _thread: PhantomData,
        }
    }

    /// Maps memory for the tables of `need`, and checks that the system has `spare` more bytes, for all that is not mapped.
    ///
    /// # Errors
    /// [`OutOfMemory`] if the system has too little; then nothing has changed.
    pub fn extend(&mut self, need: &MemoryNeed, spare: u64) -> Result<(), OutOfMemory> {
        let map = |bytes: &u64| Mapping::new(usize::try_from(*bytes).ok()?);
        let spare = spare.next_multiple_of(HUGE_PAGE_BYTES as u64);
        let pieces: Option<Vec<_>> = need.tables.iter().chain([&spare]).map(map).collect();
        let bytes = need.mapped_bytes().saturating_add(spare);
        let mut pieces = pieces.ok_or(OutOfMemory { bytes })?;
        pieces.truncate(need.tables.len());
        RESERVED.with_borrow_mut(|reserved| reserved.append(&mut pieces));
        Ok(())
    }

    /// Releases the memory that no table has taken.
    pub fn release(&mut self) {
        // While the thread ends, its reserved memory may already be gone.
        let _ = RESERVED.try_with(|reserved| reserved.take());
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.release();
    }
}

/// Takes a mapping of this size from the smallest of those reserved for this thread that has it, and releases the rest of that.
fn take_reserved(bytes: usize) -> Option<Mapping> {
    let mapping = RESERVED.with_borrow_mut(|reserved| {
        let fitting = reserved
            .iter()
            .enumerate()
            .filter(|(_, piece)| piece.bytes >= bytes);
        let (at, _) = fitting.min_by_key(|(_, piece)| piece.bytes)?;
        Some(reserved.swap_remove(at))
    });
    mapping.map(|mapping| mapping.shortened(bytes))
}

#[cfg(feature = "testing")]
thread_local! {
    static UNRESERVED: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// Returns how many tables this thread has mapped without a [`Reservation`].
#[cfg(feature = "testing")]
pub fn unreserved_tables() -> u64 {
    UNRESERVED.get()
}

/// A private anonymous mapping, aligned to huge pages and a multiple of their size.
struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

impl Mapping {
    fn new(bytes: usize) -> Option<Self> {
        // The system aligns to small pages only. So map one huge page more, align inside, and unmap both ends.
        let with_slack = bytes.checked_add(HUGE_PAGE_BYTES)?;
        // SAFETY: a new private mapping at an address of the system's choice touches no memory of ours.
        let start = unsafe {
            mmap_anonymous(
                null_mut(),
                with_slack,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        };
        let start = NonNull::new(start.ok()?.cast::<u8>())?;
        let skipped = start.as_ptr().align_offset(HUGE_PAGE_BYTES);
        // SAFETY: less than a huge page is skipped, and the mapping is one huge page longer than `bytes`.
        let (first, end) = unsafe { (start.add(skipped), start.add(skipped + bytes)) };
        drop((
            Self {
                start,
                bytes: skipped,
            },
            Self {
                start: end,
                bytes: HUGE_PAGE_BYTES - skipped,
            },
        ));
        Some(Self {
            start: first,
            bytes,
        })
    }

    /// Releases all of it but the first `bytes`.
    fn shortened(mut self, bytes: usize) -> Self {
        let rest = self.bytes - bytes;
        self.bytes = bytes;
        // SAFETY: the rest is the end of the mapping, which no longer owns it.
        let start = unsafe { self.start.add(bytes) };
        drop(Self { start, bytes: rest });
        self
    }

    fn advise_huge_pages(&self) {
        #[cfg(target_os = "linux")]
        {
            // SAFETY: the range is the mapping's. The advice changes no content; if it fails, small pages work as well.
            let _ = unsafe {
                rustix::mm::madvise(
                    self.start.as_ptr().cast(),
                    self.bytes,
                    rustix::mm::Advice::LinuxHugepage,
                )
            };
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.bytes == 0 {
            return;
        }
        // SAFETY: the range was mapped by us, belongs to this value alone, and is unmapped once.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok(), "our mapping can be unmapped");
    }
}

/// The memory of words that were dropped, still to be released.
pub(crate) struct Remains(Mapping);

impl Remains {
    /// Bytes that are left.
    pub(crate) fn bytes(&self) -> u64 {
        self.0.bytes as u64
    }

    /// Releases this many bytes, rounded up, or all if there are fewer. Returns the number of bytes.
    pub(crate) fn release(&mut self, bytes: u64) -> u64 {
        let piece = usize::try_from(bytes)
            .unwrap_or(usize::MAX)
            .div_ceil(HUGE_PAGE_BYTES);
        let piece = piece.saturating_mul(HUGE_PAGE_BYTES).min(self.0.bytes);
        self.0.bytes -= piece;
        // SAFETY: the piece is the end of the mapping, which no longer owns it.
        let start = unsafe { self.0.start.add(self.0.bytes) };
        drop(Mapping {
            start,
            bytes: piece,
        });
        piece as u64
    }
}

/// A fixed number of atomic words, all zero at first: mapped if there are many, otherwise on the heap.
pub(crate) struct Words {
    first: NonNull<AtomicU64>,
    len: usize,
}

// SAFETY: a mapping owns its memory alone, and any thread may give it back.
unsafe impl Send for Mapping {}
// SAFETY: `Words` owns its memory alone, and all access to it is through shared references to atomics.
unsafe impl Send for Words {}
// SAFETY: as above; atomics may be used from any thread.
unsafe impl Sync for Words {}

fn layout(len: usize) -> Layout {
    Layout::array::<AtomicU64>(len.max(1))
        .and_then(|layout| layout.align_to(CACHE_LINE_BYTES))
        .expect("a table is far smaller than the address space")
}

/// Whether a table of this size is mapped.
fn is_mapped(bytes: usize) -> bool {
    bytes >= HUGE_PAGE_BYTES
}

impl Words {
    /// Zeroed words.
    ///
    /// # Errors
    /// [`OutOfMemory`] if the system has no memory left.
    pub(crate) fn zeroed(len: usize) -> Result<Self, OutOfMemory> {
        let layout = layout(len);
        let refused = OutOfMemory {
            bytes: layout.size() as u64,
        };
        if !is_mapped(layout.size()) {
            // SAFETY: the layout's size is not zero.
            let start = unsafe { alloc_zeroed(layout) };
            let first = NonNull::new(start.cast::<AtomicU64>()).ok_or(refused)?;
            return Ok(Self { first, len });
        }
        let bytes = layout.size().next_multiple_of(HUGE_PAGE_BYTES);
        let reserved = take_reserved(bytes);
        #[cfg(feature = "testing")]
        UNRESERVED.set(UNRESERVED.get() + u64::from(reserved.is_none()));
        let mapping = reserved.or_else(|| Mapping::new(bytes)).ok_or(refused)?;
        mapping.advise_huge_pages();
        Ok(Self {
            first: mem::ManuallyDrop::new(mapping).start.cast(),
            len,
        })
    }

    /// Whether its memory is mapped.
    pub(crate) fn is_mapped(&self) -> bool {
        is_mapped(layout(self.len).size())
    }

    /// Its memory, to be released incrementally; none if it is on the heap, and thereby released.
    pub(crate) fn into_remains(self) -> Option<Remains> {
        self.is_mapped()
            .then(|| Remains(mem::ManuallyDrop::new(self).mapping()))
    }

    /// The mapping of words that are mapped. It and the words must have the same lifetime.
    fn mapping(&self) -> Mapping {
        Mapping {
            start: self.first.cast(),
            bytes: layout(self.len).size().next_multiple_of(HUGE_PAGE_BYTES),
        }
    }

    /// Prefetches the cache line of a word. Any index will do, even one past the end.
    #[inline(always)]
    pub(crate) fn prefetch(&self, index: usize) {
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
        if self.is_mapped() {
            drop(self.mapping());
        } else {
            // SAFETY: allocated in `zeroed` with this layout, and released once.
            unsafe { dealloc(self.first.as_ptr().cast(), layout(self.len)) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::Relaxed;

    fn reserved() -> Vec<usize> {
        RESERVED.with_borrow(|reserved| reserved.iter().map(|piece| piece.bytes).collect())
    }

    #[test]
    fn words_are_zero_and_aligned() {
        for len in [
            1,
            100,
            HUGE_PAGE_BYTES / 8 - 1,
            HUGE_PAGE_BYTES / 8,
            HUGE_PAGE_BYTES / 8 + 1,
            HUGE_PAGE_BYTES,
        ] {
            let words = Words::zeroed(len).unwrap();
            assert_eq!(words.len(), len);
            assert_eq!(words.as_ptr().align_offset(CACHE_LINE_BYTES), 0);
            assert!(words.iter().all(|word| word.load(Relaxed) == 0));
            words[len - 1].store(7, Relaxed);
            words.prefetch(len + 1_000_000);
            assert_eq!(words[len - 1].load(Relaxed), 7);
        }
    }

    #[test]
    fn tables_use_reservation_and_release_rest() {
        let small = HUGE_PAGE_BYTES;
        let large = 5 * HUGE_PAGE_BYTES;
        let mut need = MemoryNeed::table(large as u64);
        need += MemoryNeed::table(small as u64);
        let mut reservation = Reservation::new();
        reservation.extend(&need, 1 << 20).unwrap();
        assert_eq!(reserved(), [large, small]);
        let before = unreserved_tables();
        let words = [small / 8, large / 8 - 100].map(|len| Words::zeroed(len).unwrap());
        assert_eq!(unreserved_tables(), before);
        assert!(reserved().is_empty());
        for words in &words {
            assert_eq!(words.as_ptr().align_offset(HUGE_PAGE_BYTES), 0);
            assert!(words.iter().all(|word| word.load(Relaxed) == 0));
            words[words.len() - 1].store(7, Relaxed);
        }
        reservation.extend(&need, 0).unwrap();
        let taken = Words::zeroed(small / 8).unwrap();
        assert_eq!(reserved(), [large]);
        // A table that is smaller than expected.
        let smaller = Words::zeroed(3 * small / 8).unwrap();
        assert_eq!(
            (unreserved_tables(), smaller.into_remains().unwrap().bytes()),
            (before, 3 * small as u64)
        );
        assert!(reserved().is_empty());
        reservation.extend(&need, 0).unwrap();
        drop(reservation);
        assert!(reserved().is_empty());
        taken[0].store(7, Relaxed);
    }

    #[test]
    fn tables_are_released_incrementally() {
        let words = Words::zeroed(5 * HUGE_PAGE_BYTES / 8).unwrap();
        words[0].store(7, Relaxed);
        words[words.len() - 1].store(7, Relaxed);
        let mut remains = words.into_remains().unwrap();
        let page = HUGE_PAGE_BYTES as u64;
        assert_eq!(
            (remains.bytes(), remains.release(1), remains.bytes()),
            (5 * page, page, 4 * page)
        );
        assert_eq!(
            (remains.release(2 * page), remains.bytes()),
            (2 * page, 2 * page)
        );
        assert_eq!((remains.release(u64::MAX), remains.bytes()), (2 * page, 0));
        assert_eq!(remains.release(u64::MAX), 0);
        assert!(Words::zeroed(100).unwrap().into_remains().is_none());
    }

    #[test]
    fn failed_allocation_returns_error() {
        let mut reservation = Reservation::new();
        let mut need = MemoryNeed::table(1 << 20);
        need += MemoryNeed::table(1 << 60);
        let mapped = (1 << 20) + (1 << 60);
        assert_eq!(
            reservation.extend(&need, 0),
            Err(OutOfMemory { bytes: mapped })
        );
        assert!(reserved().is_empty());
        assert_eq!(
            Words::zeroed(1 << 57).err(),
            Some(OutOfMemory { bytes: 1 << 60 })
        );
    }

    #[test]
    fn needs_are_compared() {
        let small = MemoryNeed::table(1 << 20);
        let large = MemoryNeed::table(3 << 20);
        let mut both = small.clone();
        both += large.clone();
        both += MemoryNeed::other(5);
        let mut rest = large;
        rest += MemoryNeed::other(5);
        assert_eq!(both.clone().beyond(&small), rest);
        assert_eq!(both.clone().beyond(&rest), small);
        assert!(both.clone().beyond(&both).is_none());
        assert_eq!((both.bytes, both.mapped_bytes()), ((4 << 20) + 5, 4 << 20));
        assert!(!both.temporary().is_none());
    }
}
