//! Several nodes over real NATS servers. `tests/cluster/server.sh` installs those.

#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::print_stdout,
    unreachable_pub
)] // A failed `unwrap` fails the test; nothing here is public outside.

mod balancer;
mod clocks;
mod engines;
mod fast_clock;
mod faults;
mod hashes;
mod journal;
mod large;
mod load;
mod nodes;
mod operator;
mod partitions;
mod raw;
mod replicas;
mod runbooks;
mod snapshots;
#[path = "../support/mod.rs"]
mod support;
mod upgrades;
mod versions;

use support::{cluster, nats, ports, proxy, routes, service, timeouts};
