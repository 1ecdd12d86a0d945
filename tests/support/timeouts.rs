//! Timeouts of servers and nodes. Nothing waits forever.

use std::thread;
use std::time::{Duration, Instant};

/// Longer than a busy machine's disk stalls.
pub const TIMEOUT: Duration = Duration::from_secs(120);

pub fn wait_until(what: &str, is_so: impl FnMut() -> bool) {
    wait_longer(what, TIMEOUT, is_so);
}

pub fn wait_longer(what: &str, timeout: Duration, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < timeout, "{what} does not come");
        thread::sleep(Duration::from_millis(20));
    }
}
