//! What tables are made of. Built for Loom (`make loom`) it is something else, which tries every order of loads and stores.

pub(super) use super::memory::Words;
pub(super) use std::sync::atomic::AtomicU64;
