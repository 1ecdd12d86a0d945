//! What a node keeps on its disk: the data directory, and the write-ahead log as a port with its local adapter.
//!
//! It stores bytes, entries and positions. What they mean is up to the state and to the engine.
//!
//! - [`store`]: the data directory: sled, snapshots, events, archives, the format of the directory.
//! - [`journal`]: the log as a port (propose, poll, prune), and the journal in the node's own store.

pub mod journal;
pub mod store;
#[cfg(feature = "testing")]
pub mod testing;
