//! Several nodes over real NATS servers. `tests/cluster/server.sh` installs those.

#![allow(missing_docs, clippy::unwrap_used, clippy::print_stdout, unreachable_pub)] // A failed `unwrap` fails the test; nothing here is public outside.

mod balancer;
mod clocks;
mod cluster;
mod engines;
mod fast_clock;
mod faults;
mod hashes;
mod journal;
mod large;
mod load;
mod nats;
mod nodes;
mod operator;
mod partitions;
mod ports;
mod proxy;
mod raw;
mod replicas;
mod routes;
mod runbooks;
#[path = "../service/mod.rs"]
#[allow(dead_code)]
mod service;
mod snapshots;
#[path = "../it/store_support.rs"]
#[allow(dead_code)]
mod store_support;
mod timeouts;
mod upgrades;
