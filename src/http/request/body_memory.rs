//! The memory that all bodies share: one budget for all that are being read.

use crate::budget::{self, Budget, UsedUp};
use std::sync::Arc;

/// What one body takes of the budget.
pub(crate) type Share = budget::Share<Arc<Budget>>;

/// The longest body that fits alone, in bytes: a [`Buffer`] needs half as much again while it is moved.
pub(crate) fn body_bytes_max(budget: &Budget) -> u64 {
    budget.share_bytes_max() / 3 * 2
}

/// A buffer that accounts for its memory.
pub(crate) struct Buffer {
    /// Dropped before the share.
    bytes: Vec<u8>,
    share: Share,
}

impl Buffer {
    /// Creates an empty buffer.
    pub(crate) fn new(budget: &Arc<Budget>) -> Self {
        Self { bytes: Vec::new(), share: Share::empty(budget.clone()) }
    }

    /// The number of bytes in it.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Appends bytes, up to `bytes_max` in total.
    ///
    /// # Errors
    /// [`UsedUp`].
    pub(crate) fn extend(&mut self, bytes: &[u8], bytes_max: usize) -> Result<(), UsedUp> {
        let (needed, old) = (self.bytes.len() + bytes.len(), self.bytes.capacity());
        if needed > old {
            // The capacity doubles, so the total moved is no more than the final length. But from half of the maximum on it grows
            // to the maximum at once.
            let half = bytes_max / 2;
            let new = if needed > half { bytes_max.max(needed) } else { needed.max((2 * old).min(half)) };
            // Both buffers exist while one is copied to the other.
            self.share.hold((old + new) as u64)?;
            let mut moved = Vec::with_capacity(new);
            moved.extend_from_slice(&self.bytes);
            self.bytes = moved;
            self.share.hold(new as u64)?;
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
    use prometheus_client::metrics::counter::Counter;
    use prometheus_client::metrics::gauge::Gauge;
    use proptest::prelude::*;
    use std::sync::atomic::AtomicU64;

    /// A budget of this size, and the gauge of what is in use.
    fn budget(limit_bytes: u64) -> (Arc<Budget>, Gauge<u64, AtomicU64>) {
        let taken = Gauge::default();
        (Arc::new(Budget::new(limit_bytes, taken.clone(), Counter::default())), taken)
    }

    #[test]
    fn the_longest_body_fits_alone() {
        let (budget, taken) = budget(1 << 20);
        let most = body_bytes_max(&budget) as usize;
        let mut buffer = Buffer::new(&budget);
        for _ in 0..most {
            buffer.extend(b"x", most).unwrap();
        }
        assert_eq!((buffer.len(), taken.get()), (most, most as u64));
    }

    proptest! {
        /// What is in use is always what the buffers hold, and never beyond the limit. A buffer that may not grow is unchanged.
        #[test]
        fn buffers_hold_what_they_take(
            limit in 0u64..300_000,
            steps in prop::collection::vec((0usize..4, 0usize..8, 0usize..100_000), 0..200),
        ) {
            let (budget, taken) = budget(limit);
            let mut buffers: Vec<Buffer> = (0..8).map(|_| Buffer::new(&budget)).collect();
            for (step, which, bytes) in steps {
                let buffer = &mut buffers[which];
                if step == 0 {
                    *buffer = Buffer::new(&budget);
                } else {
                    let (before, held) = (buffer.len(), taken.get());
                    if buffer.extend(&vec![0; bytes], 200_000).is_err() {
                        prop_assert_eq!((buffer.len(), taken.get()), (before, held));
                    }
                }
                prop_assert!(taken.get() <= limit, "{} of {limit}", taken.get());
                let held: u64 = buffers.iter().map(|buffer| buffer.bytes.capacity() as u64).sum();
                prop_assert_eq!(taken.get(), held);
            }
            drop(buffers);
            prop_assert_eq!(taken.get(), 0);
        }
    }
}
