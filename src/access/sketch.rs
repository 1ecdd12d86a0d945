//! A count-min sketch that records how much each client has used of an allowance. Passing time returns what was used.
//!
//! A cell holds the time at which the use of all its clients will have been returned. Each client has one cell in every row, and
//! its use is what the smallest of them says: its own use and, rarely, some of others', but never less. So the memory is fixed,
//! every step takes the same time, and no client can push another one out. When very many clients use much at once, some seem to
//! have used more than they did.

use super::limiter::used_until;
use parking_lot::Mutex;

/// Number of rows; the smallest cell counts.
const ROWS: usize = 4;

/// Bits of a hash that choose a cell in a row.
const COLUMN_BITS: usize = 12;

/// Bits of a hash that choose a shard, which has its own lock.
const SHARD_BITS: usize = 6;

/// The sketch. All times are in nanoseconds.
pub(super) struct Sketch(Box<[Mutex<Shard>]>);

/// The rows of a shard, one after the other.
struct Shard(Box<[u64]>);

impl Sketch {
    /// An empty sketch; 8 MiB.
    pub(super) fn new() -> Self {
        let shard = |_| Mutex::new(Shard(vec![0; ROWS << COLUMN_BITS].into_boxed_slice()));
        Self((0..1 << SHARD_BITS).map(shard).collect())
    }

    /// Uses `cost`, unless that would exceed `most`.
    ///
    /// # Errors
    /// How long to wait until it would be allowed.
    pub(super) fn take(&self, hash: u64, cost: u64, most: u64, now: u64) -> Result<(), u64> {
        let mut shard = self.shard(hash).lock();
        shard.fits(hash, cost, most, now)?;
        for cell in cells(hash) {
            shard.0[cell] = shard.0[cell].max(now).saturating_add(cost);
        }
        Ok(())
    }

    /// What [`Self::take`] would return; uses nothing.
    pub(super) fn fits(&self, hash: u64, cost: u64, most: u64, now: u64) -> Result<(), u64> {
        self.shard(hash).lock().fits(hash, cost, most, now)
    }

    /// Returns a use of `cost`, as far as passing time has not returned it yet.
    pub(super) fn give_back(&self, hash: u64, cost: u64, taken: u64, now: u64) {
        // A cell may have been empty for a while since then, so less of the use is left than its share of the time.
        let left = cost.saturating_sub(now.saturating_sub(taken));
        let mut shard = self.shard(hash).lock();
        for cell in cells(hash) {
            shard.0[cell] = shard.0[cell].saturating_sub(left);
        }
    }

    fn shard(&self, hash: u64) -> &Mutex<Shard> {
        &self.0[(hash >> (ROWS * COLUMN_BITS)) as usize % self.0.len()]
    }
}

impl Shard {
    fn fits(&self, hash: u64, cost: u64, most: u64, now: u64) -> Result<(), u64> {
        let until = cells(hash).map(|cell| self.0[cell]).min().unwrap_or(0);
        used_until(until, cost, most, now).map(drop)
    }
}

/// A client's cells, one in each row.
fn cells(hash: u64) -> impl Iterator<Item = usize> {
    (0..ROWS).map(move |row| {
        let column = (hash >> (row * COLUMN_BITS)) as usize & ((1 << COLUMN_BITS) - 1);
        row << COLUMN_BITS | column
    })
}
