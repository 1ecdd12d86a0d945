//! An allocator that counts what each thread allocates.

#![allow(dead_code)] // Each program uses a part.
#![allow(unsafe_code)] // An allocator is unsafe by its nature; this one only counts.

use std::alloc::{GlobalAlloc, System};
use std::cell::Cell;

#[global_allocator]
static COUNTING: Counting = Counting;

struct Counting;

thread_local! {
    /// Bytes that this thread has allocated and not freed.
    static ALLOCATED: Cell<i64> = const { Cell::new(0) };
    /// Number of allocations of this thread.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

fn count(bytes: i64) {
    // While a thread ends there is nothing left to count.
    let _ = ALLOCATED.try_with(|allocated| allocated.set(allocated.get() + bytes));
    if bytes > 0 {
        let _ = ALLOCATIONS.try_with(|allocations| allocations.set(allocations.get() + 1));
    }
}

// SAFETY: every call is forwarded unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: std::alloc::Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the caller keeps to the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: std::alloc::Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the caller keeps to the contract.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, start: *mut u8, layout: std::alloc::Layout, size: usize) -> *mut u8 {
        count(size as i64 - layout.size() as i64);
        // SAFETY: the caller keeps to the contract.
        unsafe { System.realloc(start, layout, size) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: std::alloc::Layout) {
        count(-(layout.size() as i64));
        // SAFETY: the caller keeps to the contract.
        unsafe { System.dealloc(start, layout) }
    }
}

/// Returns the bytes that this thread has allocated and not freed.
pub fn allocated() -> i64 {
    ALLOCATED.get()
}

/// Returns the number of allocations of this thread.
pub fn allocations() -> u64 {
    ALLOCATIONS.get()
}
