//! The C library's heap. Our memory uses another allocator, but every thread allocates a few bytes from the C library, and glibc reserves
//! 64 MiB of address space per thread for them. If address space is limited, tables would lack it.

#![allow(unsafe_code)] // `mallopt` can only be called as a foreign function.

/// Makes all threads that start from here on share one heap of the C library.
pub fn share_c_heap() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        // SAFETY: changes a setting of the allocator, which takes its own lock. Refused, nothing has changed.
        let _ = unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
    }
}
