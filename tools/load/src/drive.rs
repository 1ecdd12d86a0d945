//! The load: one thread keeps connections busy, and measures each request.

use crate::reply::frame;
use crate::request::{Numbers, Request};
use crate::server::Result;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// The longest wait for a response.
const PATIENCE: Timespec = Timespec {
    tv_sec: 10,
    tv_nsec: 0,
};

const INPUT_BYTES: usize = 64 << 10;

/// How much load, and for how long.
pub struct Plan<'a> {
    pub connections: usize,
    /// Requests that a connection sends together; it waits for all of their responses.
    pub pipeline: usize,
    pub duration: Duration,
    pub requests_max: usize,
    /// Requests per second over all connections; `None` for the maximum.
    pub rate: Option<f64>,
    /// Set to end it early.
    pub is_over: &'a AtomicBool,
}

/// A flag that is never set.
pub static NEVER: AtomicBool = AtomicBool::new(false);

/// The duration of a run, and its response times in order.
#[derive(Default)]
pub struct Outcome {
    pub elapsed: Duration,
    pub latencies: Vec<Duration>,
}

impl Outcome {
    /// Returns the response time that this part of the requests did not exceed, in milliseconds.
    pub fn quantile(&self, part: f64) -> f64 {
        let at = (self.latencies.len() as f64 * part) as usize;
        let latency = self.latencies.get(at).or(self.latencies.last());
        latency.map_or(f64::NAN, |latency| latency.as_secs_f64() * 1e3)
    }
}

/// Sends requests to `port` until the plan is complete. The first failure ends it.
pub fn run(
    port: u16,
    request: &mut Request,
    numbers: &mut Numbers,
    plan: &Plan<'_>,
) -> Result<Outcome> {
    let poll = epoll::create(CreateFlags::CLOEXEC)?;
    let mut connections = Vec::new();
    for index in 0..plan.connections {
        let connection = Connection::open(port)?;
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::ET;
        epoll::add(
            &poll,
            &connection.stream,
            EventData::new_u64(index as u64),
            flags,
        )?;
        connections.push(connection);
    }
    let mut idle: VecDeque<usize> = (0..plan.connections).collect();
    let mut events = [Event {
        flags: EventFlags::empty(),
        data: EventData::new_u64(0),
    }; 64];
    let mut sent = 0;
    let mut latencies = Vec::new();
    let start = Instant::now();
    loop {
        let now = Instant::now();
        let is_over =
            now - start >= plan.duration || sent >= plan.requests_max || plan.is_over.load(Relaxed);
        while !is_over
            && sent < plan.requests_max
            && let Some(&next) = idle.front()
        {
            // Paced requests wait from the time when they are due, also while all connections are busy.
            let due = plan.rate.map_or(now, |rate| {
                start + Duration::from_secs_f64(sent as f64 / rate)
            });
            if due > now {
                break;
            }
            idle.pop_front();
            connections[next].send(request, numbers, plan.pipeline, due)?;
            sent += plan.pipeline;
        }
        if is_over && idle.len() == plan.connections {
            break;
        }
        // A paced load polls: a sleep would wake up late.
        let polls = plan.rate.is_some() && !is_over;
        let timeout = if polls {
            Timespec {
                tv_sec: 0,
                tv_nsec: 0,
            }
        } else {
            PATIENCE
        };
        let count = match epoll::wait(&poll, &mut events, Some(&timeout)) {
            Err(rustix::io::Errno::INTR) => continue,
            other => other?,
        };
        if count == 0 && !polls {
            return Err(format!("no response within {} s", PATIENCE.tv_sec).into());
        }
        for event in &events[..count] {
            let index = event.data.u64() as usize;
            if connections[index].receive(request.status, &mut latencies)? {
                idle.push_back(index);
            }
        }
    }
    let elapsed = start.elapsed();
    latencies.sort_unstable();
    Ok(Outcome { elapsed, latencies })
}

struct Connection {
    stream: TcpStream,
    output: Vec<u8>,
    written: usize,
    input: Vec<u8>,
    filled: usize,
    /// Responses that are not yet complete, and when their requests were due.
    pending: usize,
    due: Instant,
}

impl Connection {
    fn open(port: u16) -> Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        let input = vec![0; INPUT_BYTES];
        let due = Instant::now();
        Ok(Self {
            stream,
            output: Vec::new(),
            written: 0,
            input,
            filled: 0,
            pending: 0,
            due,
        })
    }

    fn send(
        &mut self,
        request: &mut Request,
        numbers: &mut Numbers,
        count: usize,
        due: Instant,
    ) -> Result<()> {
        self.output.clear();
        for _ in 0..count {
            request.append(numbers, &mut self.output);
        }
        (self.written, self.pending, self.due) = (0, count, due);
        self.flush()
    }

    fn flush(&mut self) -> Result<()> {
        while self.written < self.output.len() {
            match self.stream.write(&self.output[self.written..]) {
                Ok(count) => self.written += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Reads responses. Returns whether the last pending one is complete now.
    fn receive(&mut self, status: Option<u16>, latencies: &mut Vec<Duration>) -> Result<bool> {
        if self.pending == 0 {
            return Ok(false);
        }
        self.flush()?;
        while self.pending > 0 {
            if self.filled == self.input.len() {
                self.input.resize(2 * self.filled, 0);
            }
            match self.stream.read(&mut self.input[self.filled..]) {
                Ok(0) => return Err("the server closed a connection".into()),
                Ok(count) => self.filled += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error.into()),
            }
            let latency = self.due.elapsed();
            let mut at = 0;
            while self.pending > 0
                && let Some(length) = frame(&self.input[at..self.filled], status)?
            {
                at += length;
                self.pending -= 1;
                latencies.push(latency);
            }
            self.input.copy_within(at..self.filled, 0);
            self.filled -= at;
        }
        if self.filled > 0 {
            return Err(format!("{} bytes after the last response", self.filled).into());
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::ITEM;
    use std::net::TcpListener;

    /// Replies to each read with `reply`, `count` times over.
    fn run_against(reply: &'static [u8], count: usize, plan: &Plan<'_>) -> Result<Outcome> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut buffer = [0; 1024];
            while stream.read(&mut buffer).is_ok_and(|read| read > 0) {
                let _ = stream.write_all(&reply.repeat(count));
            }
        });
        let mut request = Request::resp(&["CF.EXISTS", "bench", ITEM]);
        let outcome = run(port, &mut request, &mut Numbers::new(), plan);
        server.join().unwrap();
        outcome
    }

    fn plan(pipeline: usize, rate: Option<f64>) -> Plan<'static> {
        let duration = Duration::from_secs(60);
        Plan {
            connections: 1,
            pipeline,
            duration,
            requests_max: 4,
            rate,
            is_over: &NEVER,
        }
    }

    #[test]
    fn run_counts_each_reply() {
        assert_eq!(
            run_against(b":1\r\n", 1, &plan(1, None))
                .unwrap()
                .latencies
                .len(),
            4
        );
        assert_eq!(
            run_against(b":1\r\n", 2, &plan(2, None))
                .unwrap()
                .latencies
                .len(),
            4
        );
        assert_eq!(
            run_against(b":1\r\n", 1, &plan(1, Some(1e6)))
                .unwrap()
                .latencies
                .len(),
            4
        );
    }

    #[test]
    fn run_ends_with_error_reply() {
        let error = run_against(b"-ERR filter is full\r\n", 1, &plan(1, None))
            .err()
            .unwrap();
        assert_eq!(error.to_string(), "error reply: -ERR filter is full");
    }

    #[test]
    fn run_rejects_surplus_replies() {
        assert!(run_against(b":1\r\n", 3, &plan(2, None)).is_err());
    }
}
