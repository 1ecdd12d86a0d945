//! A stream in memory, whose servers and network a seed decides, and a node's connection to it. Only the feature `testing` has it.

#![allow(missing_docs, clippy::unwrap_used)]

mod port;
mod servers;

pub use port::SimulatedNode;
pub use servers::{SimulatedStream, StreamCounts, StreamFaults};
