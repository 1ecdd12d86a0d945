//! The shape of a filter's first table.

use serde::{Deserialize, Serialize};

/// What a slot holds.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// A fingerprint.
    Compact,
    /// 62 bits of digest and two of state.
    Strict,
}

/// Whether a filter grows beyond its capacity.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Growth {
    /// It does.
    Auto,
    /// It refuses.
    Fixed,
}

/// The shape of a filter's first table.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Layout {
    /// Bits of a fingerprint.
    pub fingerprint_bits: u8,
    /// Slots a bucket.
    pub bucket_size: u8,
    /// Buckets, an even number.
    pub buckets: u64,
    /// Nodes of the breadth-first search before an insert gives up.
    pub max_search: u32,
}
