//! The listener for Redis clients: commands over a real socket, on a real engine.

#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::print_stdout,
    unreachable_pub
)] // A failed `unwrap` fails the test; nothing here is public outside.

mod access;
mod commands;
mod images;
mod keys;
mod limits;
mod pipelines;
mod scripts;
mod service;
#[path = "../support/mod.rs"]
mod support;

use support::{engines, manual_time, redis_client};
