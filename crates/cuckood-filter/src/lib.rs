//! Cuckoo filters (Fan et al., CoNEXT 2014) with one writer and lock-free readers.
//!
//! # Guarantees
//!
//! - A *compact* filter ([`Mode::Compact`]) is a multiset of fingerprints. A lookup never misses an item that was added and not removed, and
//!   takes a stranger for a member at most `error_rate` of the time, at any size.
//! - A compact filter may *forget*: every copy expires a number of steps after its own. The caller chooses the duration of a step.
//! - A *strict* filter ([`Mode::Strict`]) is a set of 62 bits of each item's digest, with a state: available, held or redeemed.
//! - Filters grow incrementally ([`Growth::Auto`]): no insert moves a large table. Memory stays within 2.6 times that of a filter of the
//!   right size while it grows up to a thousandfold, and 3.6 times while a table is copied. Memory shrinks when a filter is cleared or empty.
//! - A failed insert changes nothing, and a rejected batch is undone.
//! - The same calls make the same bytes on every machine: there is no clock, randomness or floating point in a filter.
//! - Readers take no lock and never wait for the writer.
//!
//! Removing an item that was never added may remove a colliding one, with probability `error_rate`. A filter holds at most twice as many
//! copies of an item as a bucket has slots.
//!
//! # Example
//!
//! ```
//! use cuckood_filter::{Filter, Growth, InsertOutcome, Layout, Mode, Secret};
//!
//! // In production, draw the secret at random: with it, outsiders could craft collisions.
//! let secret = Secret::new([7; 192]);
//! let layout = Layout::compact(1_000, 0.001, Growth::Auto)?;
//! let mut filter = Filter::new(Mode::Compact, layout, Growth::Auto, None);
//! let reader = filter.reader();
//!
//! let users = ["ada", "grace"].map(|user| secret.digest(user.as_bytes()));
//! assert_eq!(filter.insert_many(&users, false)?, [InsertOutcome::Added; 2]);
//! std::thread::spawn(move || assert!(reader.view(0).contains(users[0]))).join().unwrap();
//!
//! assert!(filter.remove(users[0]));
//! assert_eq!(filter.items(), 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # How it works
//!
//! A [`table`] is made of buckets of slots, packed into atomic words ([`slots`], [`memory`]). Its [`plan`] determines its size, and
//! [`place`] the two buckets in which an item may be stored. The [`writer`] finds a path to a free slot by breadth-first search. The
//! [`tables`] of a filter grow by splitting buckets and by appending. [`multiset`] and [`set`] add what copies and states mean, by way of
//! [`tags`]; [`filter`] puts both behind one type, and [`reader`] is the read side. [`sizing`] computes how many buckets a capacity needs.
//! [`image`] and [`chunk`] are for snapshots.

#![warn(missing_docs)]

/// The examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

pub mod chunk;
mod filter;
pub mod hash;
mod image;
pub mod layout;
mod memory;
mod multiset;
mod place;
mod plan;
mod reader;
mod set;
mod sizing;
mod slots;
mod table;
mod tables;
mod tags;
#[cfg(test)]
mod tests;
#[cfg(loom)]
#[path = "tests/words.rs"]
mod words;
mod writer;

#[cfg(loom)]
use words::{AtomicU64, Words};
#[cfg(not(loom))]
use {memory::Words, std::sync::atomic::AtomicU64};

pub use chunk::{FrozenTable, TableId};
pub use filter::Filter;
pub use hash::{Digest, Secret};
pub use image::{CopySource, FillError, Filled, FilterImage, Load, RestoreError, Restoring};
pub use layout::{
    FIXED_SEARCH_MIN, Growth, GrowthRule, Layout, LayoutError, MAX_SEARCH_DEFAULT, Mode,
};
#[cfg(feature = "testing")]
pub use memory::unreserved_tables;
pub use memory::{MemoryNeed, OutOfMemory, Reservation};
pub use reader::{FilterStats, Reader, TableView};
pub use set::Walk;
pub use table::SegmentStats;
pub use tables::{Dropped, Full, Tables};
pub use tags::{InsertOutcome, SlotState, StateCounts, StepStats};
