//! The HTTP contract: extract, convert, one call to the engine, map the answer. Decides nothing itself.

mod error;
pub mod options;
pub mod problem;
mod time;
