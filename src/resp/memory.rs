//! The memory that all connections share, for requests that are being received and answers that are being sent.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use std::sync::atomic::{AtomicU64, Ordering};

/// A connection may have so many bytes for itself. Beyond that it takes a share of the memory that all connections have.
pub const OWN_BYTES: usize = 1 << 10;

/// The memory that connections may take together.
#[derive(Debug, Default)]
pub struct Memory {
    limit_bytes: u64,
    /// Bytes in use. This is the metric itself, so the two can't differ.
    pub taken_bytes: Gauge<u64, AtomicU64>,
    /// Connections closed because there was no memory left.
    pub refused: Counter,
}

impl Memory {
    /// A memory of this size.
    pub fn new(limit_bytes: u64) -> Self {
        Self { limit_bytes, ..Self::default() }
    }
}

/// What one connection takes of it; returned when it is dropped.
#[derive(Debug)]
pub struct Share<'a> {
    memory: &'a Memory,
    bytes: u64,
}

impl<'a> Share<'a> {
    /// No share yet.
    pub fn of(memory: &'a Memory) -> Self {
        Self { memory, bytes: 0 }
    }

    /// Has what a connection needs that takes so many bytes. Returns whether there is as much.
    #[must_use]
    pub fn hold(&mut self, bytes: usize) -> bool {
        let needed = if bytes > OWN_BYTES { bytes as u64 } else { 0 };
        let taken = self.memory.taken_bytes.inner();
        if needed <= self.bytes {
            taken.fetch_sub(self.bytes - needed, Ordering::Relaxed);
        } else {
            let limit = self.memory.limit_bytes;
            let more = |taken: u64| taken.checked_add(needed - self.bytes).filter(|&taken| taken <= limit);
            if taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_err() {
                self.memory.refused.inc();
                return false;
            }
        }
        self.bytes = needed;
        true
    }
}

impl Drop for Share<'_> {
    fn drop(&mut self) {
        self.memory.taken_bytes.inner().fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up_and_are_returned() {
        let memory = Memory::new(10_000);
        let (mut one, mut other) = (Share::of(&memory), Share::of(&memory));
        assert!(one.hold(OWN_BYTES) && one.bytes == 0);
        assert!(one.hold(6_000) && other.hold(4_000));
        assert!(!other.hold(4_001) && other.bytes == 4_000);
        assert_eq!((memory.taken_bytes.get(), memory.refused.get()), (10_000, 1));
        assert!(one.hold(2_000) && other.hold(8_000));
        drop(one);
        assert_eq!(memory.taken_bytes.get(), 8_000);
        assert!(other.hold(0));
        assert_eq!(memory.taken_bytes.get(), 0);
    }
}
