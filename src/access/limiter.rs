//! The generic cell rate algorithm: each use takes its share of an allowance, and passing time returns it. One number records the use: the
//! time at which all of it will have been returned. Times are in nanoseconds.
//!
//! The sketch (count-min) records the use of each client in fixed memory. A cell holds the time at which the use of all its clients will
//! have been returned. Each client has one cell per row, and its use is the smallest of them: its own use plus, rarely, that of others, but
//! never less. Every step takes the same time, and no client can evict another. When very many clients are busy, some seem to have used
//! more than they did.

use parking_lot::Mutex;
use std::num::NonZeroU32;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Maximum number of log lines of one kind per minute. Further lines are only counted.
const LINES_PER_MINUTE: u32 = 10;

/// The same for the slow requests of one protocol.
const SLOW_LINES_PER_MINUTE: u32 = 600;

/// Returns the time since the process first asked.
pub(super) fn now() -> u64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    // Enough for five centuries.
    START.elapsed().as_nanos() as u64
}

/// Returns the time at which all use will have been returned, after another one.
///
/// # Errors
/// The time to wait, if more than `most` would be used.
pub(super) fn used_until(until: u64, cost: u64, most: u64, now: u64) -> Result<u64, u64> {
    let next = until.max(now).saturating_add(cost);
    match (next - now).saturating_sub(most) {
        0 => Ok(next),
        wait => Err(wait),
    }
}

/// Limits how often something may happen.
pub struct Limiter {
    cost: u64,
    most: u64,
    until: AtomicU64,
}

impl Limiter {
    /// Allows `count` uses in any `time`; all of them immediately if it has been unused before.
    pub fn new(count: u32, time: Duration) -> Self {
        let most = time.as_nanos() as u64;
        Self {
            cost: most / u64::from(count.max(1)),
            most,
            until: AtomicU64::new(0),
        }
    }

    /// Uses it once.
    ///
    /// # Errors
    /// The time to wait until it can be used.
    pub fn take(&self) -> Result<(), Duration> {
        self.take_at(now()).map_err(Duration::from_nanos)
    }

    fn take_at(&self, now: u64) -> Result<(), u64> {
        let used = |until| used_until(until, self.cost, self.most, now);
        let taken = self
            .until
            .fetch_update(Relaxed, Relaxed, |until| used(until).ok());
        taken.or_else(used).map(drop)
    }
}

/// Limits how many lines of one kind are logged, so that strangers can't fill the log.
pub struct LogLimiter {
    lines: Limiter,
    suppressed: AtomicU64,
}

impl Default for LogLimiter {
    fn default() -> Self {
        Self::new(LINES_PER_MINUTE)
    }
}

impl LogLimiter {
    fn new(lines_per_minute: u32) -> Self {
        // Half of the lines in a burst, and the other half spread over the minute.
        let lines = Limiter::new(lines_per_minute / 2, Duration::from_secs(60));
        Self {
            lines,
            suppressed: AtomicU64::new(0),
        }
    }

    /// Limits the lines about slow requests.
    pub fn for_slow_requests() -> Self {
        Self::new(SLOW_LINES_PER_MINUTE)
    }

    /// Returns how many lines were suppressed since the last one logged, or `None` to suppress this one.
    pub fn next_line(&self) -> Option<u64> {
        if self.lines.take().is_ok() {
            return Some(self.suppressed.swap(0, Relaxed));
        }
        self.suppressed.fetch_add(1, Relaxed);
        None
    }
}

/// Number of rows; the smallest cell counts.
const ROWS: usize = 4;

/// Bits of a hash that choose a cell in a row.
const COLUMN_BITS: usize = 12;

/// Bits of a hash that choose a shard, which has its own lock.
const SHARD_BITS: usize = 6;

/// The time over which uses are counted, in nanoseconds.
pub(super) const MINUTE: u64 = 60_000_000_000;

/// The sketch: limits the uses of each client in a minute. All times are in nanoseconds.
pub(super) struct Sketch {
    /// Uses allowed per minute.
    pub(super) most: NonZeroU32,
    /// Each has its rows one after the other.
    shards: Box<[Mutex<Box<[u64]>>]>,
}

impl Sketch {
    /// An empty sketch; 8 MiB.
    pub(super) fn new(most: NonZeroU32) -> Self {
        let shard = |_| Mutex::new(vec![0; ROWS << COLUMN_BITS].into_boxed_slice());
        Self {
            most,
            shards: (0..1 << SHARD_BITS).map(shard).collect(),
        }
    }

    fn cost(&self, uses: u32) -> u64 {
        MINUTE / u64::from(self.most.get()) * u64::from(uses)
    }

    /// Records this number of uses, unless that would exceed the limit; 0 asks whether one use is possible.
    ///
    /// # Errors
    /// How long to wait until it would be allowed.
    pub(super) fn take(&self, hash: u64, uses: u32, now: u64) -> Result<(), u64> {
        let mut shard = self.shard(hash).lock();
        let until = cells(hash).map(|cell| shard[cell]).min().unwrap_or(0);
        used_until(until, self.cost(uses.max(1)), MINUTE, now)?;
        for cell in cells(hash).take_while(|_| uses > 0) {
            shard[cell] = shard[cell].max(now).saturating_add(self.cost(uses));
        }
        Ok(())
    }

    /// Returns uses, unless passing time has already returned them.
    pub(super) fn return_unused(&self, hash: u64, uses: u32, taken: u64, now: u64) {
        // A cell may have been empty for a while since then, so less of the use is left than its share of the time.
        let left = self.cost(uses).saturating_sub(now.saturating_sub(taken));
        let mut shard = self.shard(hash).lock();
        for cell in cells(hash) {
            shard[cell] = shard[cell].saturating_sub(left);
        }
    }

    fn shard(&self, hash: u64) -> &Mutex<Box<[u64]>> {
        &self.shards[(hash >> (ROWS * COLUMN_BITS)) as usize % self.shards.len()]
    }
}

/// A client's cells, one in each row.
fn cells(hash: u64) -> impl Iterator<Item = usize> {
    (0..ROWS).map(move |row| {
        let column = (hash >> (row * COLUMN_BITS)) as usize & ((1 << COLUMN_BITS) - 1);
        row << COLUMN_BITS | column
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn limiter_allows_count_uses_in_time() {
        let limiter = Limiter::new(4, Duration::from_secs(1));
        let uses = |now| (0..10).filter(|_| limiter.take_at(now).is_ok()).count();
        assert_eq!(uses(5 * SECOND), 4);
        assert_eq!(limiter.take_at(5 * SECOND), Err(SECOND / 4));
        assert_eq!(uses(5 * SECOND + SECOND / 2), 2);
        assert_eq!(uses(100 * SECOND), 4);
    }

    #[test]
    fn log_limiter_allows_ten_lines_in_any_minute() {
        let log = LogLimiter::default();
        let lines = (0..=60).map(|second| {
            (0..10)
                .filter(|_| log.lines.take_at((1_000 + second) * SECOND).is_ok())
                .count() as u64
        });
        assert_eq!(lines.sum::<u64>(), u64::from(LINES_PER_MINUTE));
    }

    #[test]
    fn suppressed_lines_are_counted() {
        let log = LogLimiter::default();
        let logged = (0..1_000).filter(|_| log.next_line().is_some()).count();
        assert!((5..1_000).contains(&logged), "{logged}");
        assert_eq!(log.suppressed.load(Relaxed), 1_000 - logged as u64);
    }
}
