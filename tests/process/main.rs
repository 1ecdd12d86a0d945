//! The real program as its operator and its clients meet it.

#![allow(missing_docs, clippy::unwrap_used, unreachable_pub)]

mod acts;
mod api_keys;
mod backup;
mod bodies;
mod certificates;
mod client_tls;
mod clock;
mod connections;
mod descriptors;
mod events;
mod full_disk;
mod importing;
mod memory;
mod patience;
mod permissions;
mod recovery;
mod redis;
#[path = "../redis_client/mod.rs"]
#[allow(dead_code)]
mod redis_client;
mod refusals;
mod rotation;
mod secrecy;
#[path = "../service/mod.rs"]
#[allow(dead_code)]
mod service;
mod signals;
mod snapshots;
mod twice;
mod verify;

use std::path::Path;
use std::time::{Duration, Instant};

/// How long anything may take before it counts as never.
const PATIENCE: Duration = Duration::from_secs(60);

fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_cuckood"))
}

/// Waits until something is so.
#[track_caller]
fn until(what: &str, mut is: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
