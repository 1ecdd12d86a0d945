//! Cuckoo filters: pure and synchronous. Knows nothing of HTTP, time or storage.

pub mod hash;

pub use hash::{Digest, Secret};
