//! The memory that all bodies share: one limit for all that are being read.
//!
//! The reader of a body holds a [`Share`]. It grows the share before it stores more, and returns it by dropping it, even if the
//! client disconnects or a handler panics.

use crate::http::answer::problem::{Code, Problem, retry};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A share of up to this many bytes may use the reserve that large shares may not, so that a few large, slow bodies don't keep
/// out many small ones.
const SMALL_BYTES: u64 = 64 << 10;

/// The largest reserve.
const KEPT_BYTES_MAX: u64 = 4 << 20;

/// The memory that bodies may take together.
pub(crate) struct BodyMemory {
    limit_bytes: u64,
    /// Bytes in use. This is the metric itself, so the two can't differ.
    taken_bytes: Gauge<u64, AtomicU64>,
    refused: Counter,
}

impl BodyMemory {
    /// Creates a memory of this size. Bytes in use and refusals are counted in these metrics.
    pub(crate) fn new(limit_bytes: u64, taken_bytes: Gauge<u64, AtomicU64>, refused: Counter) -> Self {
        Self { limit_bytes, taken_bytes, refused }
    }

    /// The longest body that fits alone: a [`Buffer`] needs half as much again while it is moved.
    pub(crate) fn body_bytes_max(&self) -> u64 {
        self.limit_bytes_of(u64::MAX) / 3 * 2
    }

    fn limit_bytes_of(&self, share_bytes: u64) -> u64 {
        match share_bytes <= SMALL_BYTES {
            true => self.limit_bytes,
            false => self.limit_bytes - (self.limit_bytes / 8).min(KEPT_BYTES_MAX),
        }
    }
}

/// What one body takes of the memory; returned when it is dropped.
pub(crate) struct Share {
    memory: Arc<BodyMemory>,
    bytes: u64,
}

impl Share {
    /// Takes a share of this many bytes.
    ///
    /// # Errors
    /// 503 `overloaded`.
    pub(crate) fn of(memory: &Arc<BodyMemory>, bytes: u64) -> Result<Self, Problem> {
        let mut share = Self { memory: memory.clone(), bytes: 0 };
        share.grow(bytes)?;
        Ok(share)
    }

    /// Grows the share.
    ///
    /// # Errors
    /// 503 `overloaded`; the share is unchanged.
    pub(crate) fn grow(&mut self, bytes: u64) -> Result<(), Problem> {
        let limit = self.memory.limit_bytes_of(self.bytes.saturating_add(bytes));
        let more = |taken: u64| taken.checked_add(bytes).filter(|&taken| taken <= limit);
        let taken = self.memory.taken_bytes.inner();
        if taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_err() {
            self.memory.refused.inc();
            let detail = "as many bytes of bodies are being read as limits.bodies allows";
            return Err(Problem::new(Code::Overloaded, detail).retry_after(retry::MOMENT));
        }
        self.bytes += bytes;
        Ok(())
    }

    /// Grows the share to at least this many bytes.
    ///
    /// # Errors
    /// 503 `overloaded`; the share is unchanged.
    pub(crate) fn hold(&mut self, bytes: u64) -> Result<(), Problem> {
        self.grow(bytes.saturating_sub(self.bytes))
    }

    /// Returns a part of the share.
    pub(crate) fn shrink(&mut self, bytes: u64) {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        self.memory.taken_bytes.inner().fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.shrink(self.bytes);
    }
}

/// A buffer that accounts for its memory.
pub(crate) struct Buffer {
    /// Dropped before the share.
    bytes: Vec<u8>,
    share: Share,
}

impl Buffer {
    /// Creates an empty buffer.
    ///
    /// # Errors
    /// 503 `overloaded`.
    pub(crate) fn new(memory: &Arc<BodyMemory>) -> Result<Self, Problem> {
        Ok(Self { bytes: Vec::new(), share: Share::of(memory, 0)? })
    }

    /// The number of bytes in it.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Appends bytes, up to `bytes_max` in total.
    ///
    /// # Errors
    /// 503 `overloaded`.
    pub(crate) fn extend(&mut self, bytes: &[u8], bytes_max: usize) -> Result<(), Problem> {
        let (needed, old) = (self.bytes.len() + bytes.len(), self.bytes.capacity());
        if needed > old {
            // The capacity doubles, so the total moved is no more than the final length. But from half of the maximum on it grows
            // to the maximum at once.
            let half = bytes_max / 2;
            let new = if needed > half { bytes_max.max(needed) } else { needed.max((2 * old).min(half)) };
            // Both buffers exist while one is copied to the other.
            self.share.grow(new as u64)?;
            let mut moved = Vec::with_capacity(new);
            moved.extend_from_slice(&self.bytes);
            self.bytes = moved;
            self.share.shrink(old as u64);
        }
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    /// Splits it into the bytes and their share.
    pub(crate) fn into_parts(self) -> (Vec<u8>, Share) {
        (self.bytes, self.share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    /// A memory of this size, and the gauge of what is in use.
    fn memory(limit_bytes: u64) -> (Arc<BodyMemory>, Gauge<u64, AtomicU64>) {
        let taken = Gauge::default();
        (Arc::new(BodyMemory::new(limit_bytes, taken.clone(), Counter::default())), taken)
    }

    #[test]
    fn large_shares_leave_room_for_small_ones() {
        let (memory, _) = memory(16 << 20);
        let mut large = Share::of(&memory, 14 << 20).unwrap();
        assert_eq!(large.grow(1).unwrap_err().code, Code::Overloaded);
        assert!(Share::of(&memory, SMALL_BYTES + 1).is_err());
        let small: Vec<Share> = (0..32).map(|_| Share::of(&memory, SMALL_BYTES).unwrap()).collect();
        assert!(Share::of(&memory, 1).is_err());
        drop(small);
        assert!(Share::of(&memory, SMALL_BYTES).is_ok());
    }

    #[test]
    fn the_longest_body_fits_alone() {
        let (memory, taken) = memory(1 << 20);
        let most = memory.body_bytes_max() as usize;
        let mut buffer = Buffer::new(&memory).unwrap();
        for _ in 0..most {
            buffer.extend(b"x", most).unwrap();
        }
        assert_eq!((buffer.len(), taken.get()), (most, most as u64));
    }

    proptest! {
        /// Whatever shares do, in any order and however they end, the limit is never exceeded, the bytes in use are what the
        /// shares hold, and in the end all are returned.
        #[test]
        fn no_byte_is_taken_beyond_the_limit_or_lost(
            limit in 0u64..300_000,
            steps in prop::collection::vec((0usize..6, 0usize..8, 0u64..100_000), 0..200),
        ) {
            let (memory, taken) = memory(limit);
            let mut buffers: Vec<Option<Buffer>> = (0..8).map(|_| None).collect();
            for (step, which, bytes) in steps {
                let place = &mut buffers[which];
                match (step, &mut *place) {
                    (0 | 1, None) => *place = Buffer::new(&memory).ok(),
                    (0..=3, Some(buffer)) => {
                        let (before, held) = (buffer.len(), taken.get());
                        if buffer.extend(&vec![0; bytes as usize], 200_000).is_err() {
                            prop_assert_eq!((buffer.len(), taken.get()), (before, held));
                        }
                    }
                    (4, Some(_)) => *place = None,
                    (5, Some(_)) => {
                        let buffer = place.take();
                        let panics = catch_unwind(AssertUnwindSafe(move || {
                            let _held = buffer;
                            std::panic::resume_unwind(Box::new("on purpose"));
                        }));
                        prop_assert!(panics.is_err());
                    }
                    _ => {}
                }
                let held: u64 = buffers.iter().flatten().map(|buffer| buffer.bytes.capacity() as u64).sum();
                prop_assert!(taken.get() <= limit, "{} of {limit}", taken.get());
                prop_assert_eq!(taken.get(), held);
            }
            drop(buffers);
            prop_assert_eq!(taken.get(), 0);
        }
    }
}
