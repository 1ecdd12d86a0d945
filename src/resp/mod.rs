//! The second protocol: Redis' `CF.*` commands on the same filters, so that Redis clients can use them unchanged. docs/REDIS.md says what
//! differs from Redis, and why.
//!
//! `connection.rs` reads bytes, `parser.rs` finds the commands in them, `execute.rs` admits each, and `session.rs` has the context of a
//! handler. `batch.rs` joins commands on one filter, and replies in order. `failure.rs` is the one map from refusals to errors. Nothing
//! here depends on HTTP.

mod batch;
mod command;
mod connection;
mod connection_commands;
mod dumps;
mod execute;
mod failure;
mod filters;
mod help;
mod images;
mod key;
mod keyspace;
mod parser;
mod replies;
mod session;
mod shared;

pub use key::KeyRule;
pub use parser::{Parser, RequestLimits};
pub use shared::{RespOptions, Service};
