//! How long servers and nodes may take to do what they are expected to. Nothing waits without an end.

use std::thread;
use std::time::{Duration, Instant};

/// Longer than a busy machine's disk stands still.
pub const PATIENCE: Duration = Duration::from_secs(120);

pub fn wait_until(what: &str, is_so: impl FnMut() -> bool) {
    wait_longer(what, PATIENCE, is_so);
}

pub fn wait_longer(what: &str, patience: Duration, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < patience, "{what} does not come");
        thread::sleep(Duration::from_millis(20));
    }
}
