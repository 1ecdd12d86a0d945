//! The hash of the state at a position of the log, by which nodes that share the log find out whether they have come to the same.

use super::Seq;
use serde::{Deserialize, Serialize};

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
