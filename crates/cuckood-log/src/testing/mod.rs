//! What tests share: small stores, a store that fails, a disk and a log in memory, a simulation's clock, and one suite for every adapter of the journal. Only the feature
//! `testing` has it. A failed `unwrap` fails the test.

#![allow(missing_docs, clippy::unwrap_used, clippy::new_without_default)]

pub mod conformance;
pub mod faulty;
pub mod fuse;
pub mod memory_disk;
pub mod memory_log;
pub mod simulated_time;
pub mod stores;
