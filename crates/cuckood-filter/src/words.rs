//! The words of tables. A build for Loom (`make test-long WHAT=loom`) replaces this file by one that tries every order of loads and stores.

pub(super) use super::memory::{Remains, Words};
pub(super) use std::sync::atomic::AtomicU64;
