//! Limits how many lines of one kind are logged, so that strangers can't fill the log.

use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};

/// How many are logged per minute; the others are only counted.
const LINES_PER_MINUTE: NonZeroU32 = NonZeroU32::new(10).expect("ten is not zero");

/// Lets a few through per minute, and counts the others.
pub struct Seldom {
    limiter: DefaultDirectRateLimiter,
    untold: AtomicU64,
}

impl Default for Seldom {
    fn default() -> Self {
        Self { limiter: RateLimiter::direct(Quota::per_minute(LINES_PER_MINUTE)), untold: AtomicU64::new(0) }
    }
}

impl Seldom {
    /// Whether this one is logged; if so, how many were not since the last one.
    pub fn ask(&self) -> Option<u64> {
        if self.limiter.check().is_ok() {
            return Some(self.untold.swap(0, Ordering::Relaxed));
        }
        self.untold.fetch_add(1, Ordering::Relaxed);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_told_is_counted() {
        let seldom = Seldom::default();
        let told = (0..1_000).filter(|_| seldom.ask().is_some()).count();
        assert!((10..1_000).contains(&told), "{told}");
        assert_eq!(seldom.untold.load(Ordering::Relaxed), 1_000 - told as u64);
    }
}
