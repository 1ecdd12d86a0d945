//! Cuckoo filters: pure and synchronous. Knows nothing of HTTP, time or storage.

pub mod hash;
pub mod layout;

pub use hash::{Digest, Secret};
pub use layout::{Growth, Layout, Mode};
