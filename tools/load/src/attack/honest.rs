//! Honest clients during an attack: checks at a constant rate over connections that they keep, and requests on new connections.

use crate::drive::Outcome;
use crate::request::Request;
use crate::server::{Client, Result};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

/// The longest wait for a response, from the time when its request was due.
const PATIENCE: Duration = Duration::from_secs(2);

/// Requests at a constant rate, whatever the server does.
pub struct Clients<'a> {
    pub port: u16,
    pub request: &'a Request,
    pub per_second: u32,
    /// Threads with one connection each.
    pub count: u32,
    /// Whether connections are kept; otherwise each request has a new one.
    pub is_kept: bool,
}

/// The expected responses, and the number of requests without one.
#[derive(Default)]
pub struct Seen {
    pub outcome: Outcome,
    pub failed: usize,
}

impl Seen {
    /// Requests without the expected response, and all.
    pub fn failures(&self) -> String {
        format!(
            "{} of {}",
            self.failed,
            self.outcome.latencies.len() + self.failed
        )
    }
}

impl Clients<'_> {
    /// Sends requests until `is_over`.
    pub fn run(&self, is_over: &AtomicBool) -> Seen {
        let start = Instant::now();
        let mut all = Seen::default();
        thread::scope(|scope| {
            let clients: Vec<_> = (0..self.count)
                .map(|number| scope.spawn(move || self.client(number, start, is_over)))
                .collect();
            for seen in clients.into_iter().filter_map(|client| client.join().ok()) {
                all.outcome.latencies.extend(seen.outcome.latencies);
                all.failed += seen.failed;
            }
        });
        all.outcome.latencies.sort_unstable();
        all.outcome.elapsed = start.elapsed();
        all
    }

    /// Sends every `count`th request. A connection that fails is opened again.
    fn client(&self, number: u32, start: Instant, is_over: &AtomicBool) -> Seen {
        let mut seen = Seen::default();
        let mut connection = None;
        for turn in 0u32.. {
            let place = f64::from(turn) * f64::from(self.count) + f64::from(number);
            let due = start + Duration::from_secs_f64(place / f64::from(self.per_second));
            thread::sleep(due.saturating_duration_since(Instant::now()));
            if is_over.load(Relaxed) {
                break;
            }
            // A client that has waited for so long for its turn has given up.
            let answered = due.elapsed() < PATIENCE && self.exchange(&mut connection).is_ok();
            if !self.is_kept || !answered {
                connection = None;
            }
            match answered {
                true => seen.outcome.latencies.push(due.elapsed()),
                false if is_over.load(Relaxed) => {}
                false => seen.failed += 1,
            }
        }
        seen
    }

    fn exchange(&self, connection: &mut Option<Client>) -> Result<()> {
        let client = match connection {
            Some(client) => client,
            None => connection.insert(Client::connect_within(self.port, PATIENCE)?),
        };
        client.call(self.request).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpListener;

    #[test]
    fn wrong_status_and_closed_connection_count_as_failed() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let is_over = AtomicBool::new(false);
        let request = Request::http("GET", "/livez", "", 200);
        let clients = Clients {
            port,
            request: &request,
            per_second: 1_000,
            count: 1,
            is_kept: true,
        };
        let seen = thread::scope(|scope| {
            let seen = scope.spawn(|| clients.run(&is_over));
            for reply in [
                "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
                "HTTP/1.1 503 No\r\ncontent-length: 0\r\n\r\n",
                "",
            ] {
                let (mut stream, _) = listener.accept().unwrap();
                // One request, and the next one on the same connection meets its end.
                let _ = stream.read(&mut [0; 1_024]);
                let _ = stream.write_all(reply.as_bytes());
            }
            is_over.store(true, Relaxed);
            // The last one is closed unanswered.
            drop(listener);
            seen.join().unwrap()
        });
        assert_eq!(seen.outcome.latencies.len(), 1);
        assert!(seen.failed >= 2, "{}", seen.failures());
    }
}
