//! The C library's own heap. Our memory comes from another one, but each thread has a few bytes of the C library's, and glibc
//! reserves 64 MiB of address space per thread for them. Where address space is limited, that is what tables need.

#![allow(unsafe_code)]

/// Has all threads that start from here on share one heap of the C library.
pub fn share_c_heap() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        // SAFETY: changes a setting of the allocator, which takes its own lock. Refused, nothing has changed.
        let _ = unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
    }
}
