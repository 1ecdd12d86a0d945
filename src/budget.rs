//! A memory budget: one limit for all buffers of requests and responses.
//!
//! Each of them holds a [`Share`]. It grows the share before it stores more, and returns it by dropping it, even if the client
//! disconnects or a handler panics.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use std::cmp::Ordering;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use thiserror::Error;

/// A share of up to this many bytes may use the reserve that large shares may not, so that a few large, slow clients don't keep
/// out many small ones.
const SMALL_BYTES: u64 = 64 << 10;

/// The largest reserve.
const RESERVE_BYTES_MAX: u64 = 4 << 20;

/// The memory that many may take together.
#[derive(Debug)]
pub struct Budget {
    limit_bytes: u64,
    /// Bytes in use. This is the metric itself, so the two can't differ.
    pub taken_bytes: Gauge<u64, AtomicU64>,
    /// Shares rejected so far.
    pub refused: Counter,
}

/// The error if the budget has too little space for a larger share.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("the memory budget is used up")]
pub struct UsedUp;

impl Budget {
    /// A budget of this size.
    pub fn new(limit_bytes: u64) -> Self {
        Self { limit_bytes, taken_bytes: Gauge::default(), refused: Counter::default() }
    }

    /// Registers the two metrics by these names and help texts.
    pub fn register(&self, registry: &mut Registry, taken: (&str, &str), refused: (&str, &str)) {
        registry.register(taken.0, taken.1, self.taken_bytes.clone());
        registry.register(refused.0, refused.1, self.refused.clone());
    }

    /// The largest share that there can be, in bytes.
    pub fn share_bytes_max(&self) -> u64 {
        self.limit_bytes_of(u64::MAX)
    }

    fn limit_bytes_of(&self, share_bytes: u64) -> u64 {
        match share_bytes <= SMALL_BYTES {
            true => self.limit_bytes,
            false => self.limit_bytes - (self.limit_bytes / 8).min(RESERVE_BYTES_MAX),
        }
    }
}

/// A share of the budget; returned when it is dropped.
#[derive(Debug)]
pub struct Share<B: Deref<Target = Budget>> {
    budget: B,
    bytes: u64,
}

impl<B: Deref<Target = Budget>> Share<B> {
    /// An empty share.
    pub fn empty(budget: B) -> Self {
        Self { budget, bytes: 0 }
    }

    /// A share of this many bytes.
    ///
    /// # Errors
    /// [`UsedUp`].
    pub fn of(budget: B, bytes: u64) -> Result<Self, UsedUp> {
        let mut share = Self::empty(budget);
        share.hold(bytes)?;
        Ok(share)
    }

    /// Its size in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Grows or shrinks it to this many bytes.
    ///
    /// # Errors
    /// [`UsedUp`] if it would grow; it is unchanged then.
    pub fn hold(&mut self, bytes: u64) -> Result<(), UsedUp> {
        if bytes > self.bytes {
            let (more, limit) = (bytes - self.bytes, self.budget.limit_bytes_of(bytes));
            let grown = |taken: u64| taken.checked_add(more).filter(|&taken| taken <= limit);
            let taken = self.budget.taken_bytes.inner();
            if taken.fetch_update(Relaxed, Relaxed, grown).is_err() {
                self.budget.refused.inc();
                return Err(UsedUp);
            }
            self.bytes = bytes;
        }
        self.hold_anyway(bytes);
        Ok(())
    }

    /// Grows or shrinks the share to this many bytes, even beyond the limit: for data that is already stored and must stay.
    pub fn hold_anyway(&mut self, bytes: u64) {
        let taken = self.budget.taken_bytes.inner();
        match bytes.cmp(&self.bytes) {
            Ordering::Greater => taken.fetch_add(bytes - self.bytes, Relaxed),
            Ordering::Less => taken.fetch_sub(self.bytes - bytes, Relaxed),
            Ordering::Equal => return,
        };
        self.bytes = bytes;
    }
}

impl<B: Deref<Target = Budget>> Drop for Share<B> {
    fn drop(&mut self) {
        self.hold_anyway(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    /// Returns a budget of this size, and the gauge of its use.
    fn budget(limit_bytes: u64) -> (Budget, Gauge<u64, AtomicU64>) {
        let budget = Budget::new(limit_bytes);
        let taken = budget.taken_bytes.clone();
        (budget, taken)
    }

    #[test]
    fn large_shares_leave_space_for_small() {
        let (budget, _) = budget(16 << 20);
        let mut large = Share::of(&budget, 14 << 20).unwrap();
        assert_eq!(large.hold((14 << 20) + 1), Err(UsedUp));
        assert!(Share::of(&budget, SMALL_BYTES + 1).is_err());
        let small: Vec<_> = (0..32).map(|_| Share::of(&budget, SMALL_BYTES).unwrap()).collect();
        assert!(Share::of(&budget, 1).is_err());
        assert_eq!(budget.refused.get(), 3);
        drop(small);
        assert!(Share::of(&budget, SMALL_BYTES).is_ok());
    }

    proptest! {
        /// Shares may do anything in any order, and end in any way. Only data that must stay exceeds the limit, and the bytes in use always
        /// equal the sum of the shares. In the end all are returned.
        #[test]
        fn shares_stay_within_limit_and_return(
            limit in 0u64..300_000,
            steps in prop::collection::vec((0usize..6, 0usize..8, 0u64..100_000), 0..200),
        ) {
            let (budget, taken) = budget(limit);
            let mut shares: Vec<Option<Share<&Budget>>> = (0..8).map(|_| None).collect();
            let mut is_beyond = false;
            for (step, which, bytes) in steps {
                let place = &mut shares[which];
                match (step, &mut *place) {
                    (0..=3, None) => *place = Share::of(&budget, bytes).ok(),
                    (0..=2, Some(share)) => {
                        let (before, held) = (share.bytes(), taken.get());
                        match share.hold(bytes) {
                            Ok(()) => prop_assert_eq!(share.bytes(), bytes),
                            Err(UsedUp) => prop_assert_eq!((share.bytes(), taken.get()), (before, held)),
                        }
                        prop_assert!(share.bytes() <= before || taken.get() <= limit);
                    }
                    (3, Some(share)) => {
                        share.hold_anyway(bytes);
                        is_beyond |= taken.get() > limit;
                    }
                    (4, Some(_)) => *place = None,
                    (5, Some(_)) => {
                        let share = place.take();
                        let panics = catch_unwind(AssertUnwindSafe(move || {
                            let _held = share;
                            std::panic::resume_unwind(Box::new("on purpose"));
                        }));
                        prop_assert!(panics.is_err());
                    }
                    _ => {}
                }
                prop_assert!(is_beyond || taken.get() <= limit, "{} of {limit}", taken.get());
                prop_assert_eq!(taken.get(), shares.iter().flatten().map(Share::bytes).sum::<u64>());
            }
            drop(shares);
            prop_assert_eq!(taken.get(), 0);
        }
    }
}
