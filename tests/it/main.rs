//! The integration tests, in one binary.

#![allow(missing_docs, clippy::unwrap_used, unreachable_pub)]

mod filter;
mod journal;
mod snapshots;
mod store_support;
