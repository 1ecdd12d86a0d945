//! The subcommands. Each is a struct of arguments and a `run`.

pub mod backup;
pub mod bench;
pub mod client;
pub mod cluster;
pub mod completions;
pub mod healthcheck;
pub mod import;
pub mod key;
pub mod man;
pub mod move_filter;
pub mod openapi;
pub mod plan;
pub mod repair;
pub mod restore;
pub mod serve;
pub mod shadow;
mod source;
mod upload;
pub mod verify;

/// Takes the faults that a test of the real program asks for from its environment.
#[cfg(debug_assertions)]
pub fn take_faults() {
    let entries = std::env::var("CUCKOOD_TEST_PANIC_AT").unwrap_or_default();
    crate::engine::applying::fault::panic_at(entries.split(',').filter_map(|entry| entry.parse().ok()));
}
