//! Cuckoo filters (Fan et al., CoNEXT 2014): pure and synchronous. Knows nothing of HTTP, time or storage.
//!
//! [`compact`] filters keep fingerprints, and [`forgetting`] ones also the step in which each was added; [`strict`] ones keep 62 bits
//! of each item's digest and a state. [`modes`] puts all behind one type. A filter has a writer's side, which one thread owns, and a
//! reader's side, which takes no lock.
//!
//! All keep their items in a few tables ([`table_set`]). A table ([`table`], changed by [`writer`]) is made of buckets of
//! slots, packed into atomic words ([`slots`], [`memory`]). Its [`plan`] says how large it is, and [`place`] in which two
//! buckets an item may lie. [`strict_table`] finds an item in a strict table. How many buckets a capacity needs is for [`sizing`]
//! to say.

pub mod codec;
pub mod compact;
mod compact_move;
mod compact_view;
mod copies;
mod dropped;
mod filling;
pub mod forgetting;
mod forgetting_view;
mod frozen;
pub mod hash;
mod insert;
mod kind;
pub mod layout;
mod live;
mod memory;
mod mixing;
mod modes;
mod nested;
mod place;
mod plan;
#[cfg(test)]
mod race;
mod segments;
mod shown;
mod sizing;
mod slot_state;
mod slots;
mod stepped;
mod steps;
pub mod strict;
mod strict_move;
mod strict_table;
mod strict_view;
mod table;
mod table_set;
#[cfg(test)]
mod table_tests;
#[cfg_attr(loom, path = "loom_words.rs")]
mod words;
mod writer;

pub use codec::{FilterImage, RestoreError, Restoring, TableId};
pub use compact::CompactFilter;
pub use compact_view::{CompactReader, CompactView};
pub use dropped::Dropped;
pub use filling::{FillError, Filled};
pub use forgetting::ForgettingFilter;
pub use forgetting_view::{ForgettingReader, ForgettingView};
pub use frozen::FrozenTable;
pub use hash::{Digest, Secret};
pub use insert::{Full, Insert};
pub use layout::{Expansion, FIXED_SEARCH_MIN, Growth, Layout, LayoutError, MAX_SEARCH_DEFAULT, Mode};
pub use memory::{MemoryNeed, OutOfMemory, Reservation, unreserved_tables};
pub use modes::{Filter, FilterStats, Reader};
pub use slot_state::{SlotState, StateCounts};
pub use steps::StepStats;
pub use strict::{StrictFilter, Walk};
pub use strict_view::{StrictReader, StrictView};
pub use table::SegmentStats;
pub use table_set::TableSet;
