//! The state by itself: commands in, outcomes out, against models and over snapshots. No engine, no disk.

#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::print_stdout,
    unreachable_pub
)] // A failed `unwrap` fails the test; nothing here is public outside.

mod allocations;
#[path = "../counting.rs"]
mod counting;
mod eligibility;
mod fairness;
mod forged_commands;
mod forgetting;
mod history;
mod idempotency;
mod images;
mod open_pools;
mod periodic_work;
mod readers;
mod refusals;
mod replacements;
mod spellings;
mod staged_imports;
mod state;
mod statistics;
mod uses;
mod version_1;
