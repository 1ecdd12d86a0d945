//! Cuckoo filters (Fan et al., CoNEXT 2014): pure and synchronous. Knows nothing of HTTP, time or storage.
//!
//! [`compact`] filters keep fingerprints, [`strict`] ones 62 bits of digest and a state. Each has a writer's side,
//! owned by one thread, and a reader's side that takes no lock. Both lie in tables ([`table`], written by
//! [`writer`], as a [`plan`] has them): buckets of slots in atomic words ([`slots`], [`memory`]) at the places that
//! [`place`] gives. How many buckets a capacity needs is for [`sizing`] to say.

pub mod codec;
pub mod compact;
pub mod hash;
mod kind;
pub mod layout;
mod memory;
mod place;
mod plan;
#[cfg(test)]
mod race;
mod sizing;
mod slots;
pub mod strict;
mod strict_view;
mod table;
#[cfg_attr(loom, path = "../../tools/filter-alone/src/loom_words.rs")]
mod words;
mod writer;

pub use codec::{FilterImage, RestoreError, Restoring, TableId};
pub use compact::{CompactFilter, CompactReader, CompactView, Insert};
pub use hash::{Digest, Secret};
pub use layout::{FIXED_SEARCH_MIN, Growth, Layout, LayoutError, MAX_SEARCH_DEFAULT, Mode};
#[cfg(test)]
pub(crate) use memory::unreserved_tables;
pub use memory::{MemoryNeed, OutOfMemory, Reservation};
pub use strict::{SlotState, StrictFilter, StrictInsert, Walk};
pub use strict_view::{StateCounts, StrictReader, StrictView};

/// The filter can't take all the items, and has changed nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the filter is full")]
pub struct Full;

/// One table of a filter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SegmentStats {
    /// Items in it.
    pub items: u64,
    /// Items that it is meant for.
    pub capacity: u64,
    /// Bits of a fingerprint; 62 in strict filters.
    pub fingerprint_bits: u8,
    /// Slots a bucket.
    pub bucket_size: u8,
    /// Buckets.
    pub buckets: u64,
}
