//! The filter as a crate of its own; see its `Cargo.toml`. Its tests come along.

#![allow(missing_docs, unreachable_pub, dead_code, unused_imports)]

#[path = "../../../src/filter/mod.rs"]
pub mod filter;
