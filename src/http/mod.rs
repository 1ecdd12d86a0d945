//! The HTTP contract: extract, convert, one call to the engine, map the answer. Decides nothing itself.

mod auth;
mod body;
mod error;
mod idempotency;
mod item_list;
pub mod options;
pub mod problem;
mod rates;
mod time;
