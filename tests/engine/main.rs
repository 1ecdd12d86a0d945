//! The engine by itself, on a real disk: recovery, snapshots, events, memory, and nodes that share a log in memory.

#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::print_stdout,
    unreachable_pub
)] // A failed `unwrap` fails the test; nothing here is public outside.

mod clock;
mod directory;
mod disk;
mod downloads;
mod events;
mod format;
mod idle;
mod life;
mod memory;
mod offline;
mod restores;
mod shared_log;
mod skipped_entries;
mod snapshots;
mod staged_imports;
mod statistics;
mod storage_faults;
#[path = "../support/mod.rs"]
mod support;

use support::{engines, manual_time};
