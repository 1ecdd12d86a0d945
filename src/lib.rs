//! cuckood: durable cuckoo filters for campaigns and coupons over HTTP.
//!
//! `docs/ARCHITECTURE.md` has the overview. A module imports only from those below it in this list:
//!
//! - [`cli`]: the subcommands; `cuckood serve` runs the server.
//! - [`server`]: the composition root, with [`config`], [`tls`] and [`telemetry`].
//! - [`http`]: the HTTP contract: parses requests, calls the engine, maps the outcome.
//! - [`resp`]: Redis' commands on the same filters; neither of the two protocols imports the other.
//! - [`socket`]: the socket of one connection: its record, and the memory of unfinished heads.
//! - [`turn`]: a task's turn on its worker, bounded by time.
//! - [`access`]: access control, independent of any protocol.
//! - [`budget`]: the memory that clients take together.
//! - [`tally`]: metrics that every request changes.
//! - [`engine`]: one writer, many readers, recovery and snapshots.
//! - [`clock`]: time that can be trusted.
//! - The packages: [`cuckood_nats`], the replicated log; [`cuckood_log`], the data directory and the log as a port; [`cuckood_state`], the
//!   deterministic machine that the log drives; [`cuckood_filter`], its filters.

pub mod access;
pub mod budget;
pub mod cli;
pub mod clock;
pub mod config;
pub mod engine;
pub mod http;
pub mod resp;
pub mod server;
pub mod socket;
pub mod tally;
pub mod telemetry;
pub mod tls;
pub mod turn;
