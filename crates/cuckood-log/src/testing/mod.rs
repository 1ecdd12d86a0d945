//! What tests share: small stores, a store that fails, a log in memory, and one suite for every adapter of the journal. Only the feature
//! `testing` has it. A failed `unwrap` fails the test.

#![allow(missing_docs, clippy::unwrap_used)]

pub mod conformance;
pub mod faulty;
pub mod memory_log;
pub mod stores;
