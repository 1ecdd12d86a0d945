//! How much each of any number of clients has used of an allowance that time gives back: a count-min sketch.
//!
//! A cell holds the moment at which the use of all clients that fall on it will have been forgotten. A client falls on
//! a cell in each row, and has used what the least of them says: its own use and, rarely, some of others', never less.
//! So the memory is the same for any number of clients, every step takes the same time, and none is ever pushed out by
//! others. Where very many clients use much at once, some are taken to have used more than they did.

use parking_lot::Mutex;

/// Rows, of which the least cell counts.
const ROWS: usize = 4;

/// Cells of a row: the bits of a hash that choose one.
const COLUMN_BITS: usize = 12;

/// Parts with a lock each: the bits of a hash that choose one.
const SHARD_BITS: usize = 6;

/// Moments and times are nanoseconds.
pub(super) struct Sketch(Box<[Mutex<Shard>]>);

/// Its rows, one behind the other.
struct Shard(Box<[u64]>);

impl Sketch {
    /// One of which nothing has been used; 8 MiB.
    pub(super) fn new() -> Self {
        let shard = |_| Mutex::new(Shard(vec![0; ROWS << COLUMN_BITS].into_boxed_slice()));
        Self((0..1 << SHARD_BITS).map(shard).collect())
    }

    /// Uses `cost`, unless more than `most` would have been used then.
    ///
    /// # Errors
    /// How long to wait until it may be used.
    pub(super) fn take(&self, hash: u64, cost: u64, most: u64, now: u64) -> Result<(), u64> {
        let mut shard = self.shard(hash).lock();
        shard.fits(hash, cost, most, now)?;
        for cell in cells(hash) {
            shard.0[cell] = shard.0[cell].max(now).saturating_add(cost);
        }
        Ok(())
    }

    /// What [`Self::take`] would say.
    pub(super) fn fits(&self, hash: u64, cost: u64, most: u64, now: u64) -> Result<(), u64> {
        self.shard(hash).lock().fits(hash, cost, most, now)
    }

    /// Takes back a use of `cost`, as far as time has not forgotten it.
    pub(super) fn give_back(&self, hash: u64, cost: u64, taken: u64, now: u64) {
        // A cell may have stood at nothing since then, so that less is left of the use than its own share of the time.
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
        match until.saturating_sub(now).saturating_add(cost).checked_sub(most) {
            None | Some(0) => Ok(()),
            Some(wait) => Err(wait),
        }
    }
}

/// The cells that a client falls on, one in each row.
fn cells(hash: u64) -> impl Iterator<Item = usize> {
    (0..ROWS).map(move |row| {
        let column = (hash >> (row * COLUMN_BITS)) as usize & ((1 << COLUMN_BITS) - 1);
        row << COLUMN_BITS | column
    })
}
