//! Ports for servers that bind them later. A process that asks the system for any port gets another one.

use std::net::TcpListener;
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

/// Below the ports that Linux chooses itself, and those of the other tests.
const FIRST: u32 = 10_000;
const COUNT: u32 = 6_000;

/// How far apart two processes begin that were started one after the other.
const DISTANCE: u32 = 401;

/// Ports without a listener. Each is returned once.
pub fn free(count: usize) -> Vec<u16> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let first = process::id().wrapping_mul(DISTANCE);
    let all = std::iter::from_fn(|| {
        let at = NEXT.fetch_add(1, Ordering::Relaxed);
        (at < COUNT)
            .then(|| u16::try_from(FIRST + first.wrapping_add(at) % COUNT).expect("it is a port"))
    });
    let ports: Vec<_> = all
        .filter(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok())
        .take(count)
        .collect();
    assert_eq!(ports.len(), count, "all ports were handed out");
    ports
}
