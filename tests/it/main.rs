//! The integration tests, in one binary.

#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::print_stdout,
    unreachable_pub
)] // A failed `unwrap` fails the test; nothing here is public outside.

mod allocations;
mod clock;
mod commands;
mod conformance;
mod contract;
mod damage;
mod deploy;
mod directory;
mod disk;
mod downloads;
mod eligibility;
mod engines;
mod events;
mod fairness;
mod filter_image;
mod forged_commands;
mod forgetting;
mod format;
mod history;
mod idempotency;
mod idle;
mod images;
mod journal;
mod life;
mod machine;
mod memory;
mod memory_log;
mod offline;
mod open_pools;
mod openapi;
mod periodic_work;
mod random_images;
mod random_log;
mod readers;
mod refusals;
mod replacements;
mod resp;
mod restores;
mod schema;
mod shared_log;
mod snapshots;
mod staged_imports;
mod state;
mod statistics;
mod storage_faults;
#[path = "../support/mod.rs"]
mod support;
mod tidy;

use support::{manual_time, random, redis_client, store_support};
