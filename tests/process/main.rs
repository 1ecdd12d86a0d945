//! The real program as its operator and its clients meet it.

#![allow(missing_docs, clippy::unwrap_used, unreachable_pub)] // A failed `unwrap` fails the test; nothing here is public outside.

mod api_keys;
mod audit_log;
mod backup;
mod bodies;
mod certificates;
mod client_tls;
mod clock;
mod command_line;
mod connection_timeouts;
mod connections;
mod descriptors;
mod events;
mod full_disk;
mod images;
mod importing;
mod memory;
mod panics;
mod permissions;
mod recovery;
mod redis;
mod refusals;
mod repeated_requests;
mod rotation;
mod secrecy;
mod shadow;
mod signals;
mod snapshots;
mod strangers;
#[path = "../support/mod.rs"]
mod support;
mod verify;

use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::{Duration, Instant};
use support::{manual_time, redis_client, service};

/// How long anything may take before it counts as never.
const TIMEOUT: Duration = Duration::from_secs(120);

/// The program under test: `CUCKOOD_PROGRAM` names another one than that of this build.
fn program() -> &'static Path {
    static PROGRAM: LazyLock<PathBuf> = LazyLock::new(|| {
        std::env::var_os("CUCKOOD_PROGRAM")
            .map_or_else(|| env!("CARGO_BIN_EXE_cuckood").into(), PathBuf::from)
    });
    &PROGRAM
}

/// Waits until something is so.
#[track_caller]
fn until(what: &str, mut is: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !is() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
