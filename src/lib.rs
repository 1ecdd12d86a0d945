//! cuckood: durable cuckoo filters for campaigns and coupons over HTTP.
//!
//! `docs/ARCHITECTURE.md` is the map; this is its legend. Arrows of import point down the list only.
//!
//! - `server`: the composition root; [`config`] and [`telemetry`] are what it is told and what it tells.
//! - [`cli`]: the other subcommands.
//! - [`http`]: the contract; extracts, asks the engine, maps the answer.
//! - [`access`]: who may do what; knows no protocol.
//! - [`engine`]: one writer, many readers, recovery and snapshots.
//! - [`state`]: the deterministic machine that the log drives.
//! - [`journal`], [`store`]: the log as a port, and the data directory under it.
//! - [`domain`], [`clock`]: the words, and time that may be trusted.
//! - [`filter`]: cuckoo filters, pure.

pub mod access;
pub mod cli;
pub mod clock;
pub mod config;
pub mod domain;
pub mod engine;
pub mod filter;
pub mod http;
pub mod journal;
pub mod server;
pub mod state;
pub mod store;
pub mod telemetry;
pub mod tls;
