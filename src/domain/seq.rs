//! Positions in the log, and the hash of the state at one, by which nodes that share the log compare their states.

use serde::{Deserialize, Serialize};

/// A position in the log. The first entry has position 1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Seq(pub u64);

impl Seq {
    /// The position after this one.
    pub fn next(self) -> Seq {
        Seq(self.0 + 1)
    }
}

/// Nodes compare their hashes at the positions that are multiples of this.
pub const STATE_HASH_EVERY: u64 = 1 << 16;

/// The highest version of entries that this build understands. What an earlier build does not understand is written only once
/// [`Command::Enable`](super::Command::Enable) with its version is in the log.
///
/// - 1: the first.
/// - 2: filters grow by splitting the buckets of their newest table.
pub const FORMAT_VERSION: u16 = 2;

/// The hash of the state at a position.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct StateHash {
    /// The position.
    pub at: Seq,
    /// The hash of everything that was applied up to there.
    pub hash: u128,
}
