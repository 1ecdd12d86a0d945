//! The attacker: one thread on the processor of the honest clients, at the lowest priority, so that the results show the server's delays, not
//! its own. The number of its connections and of its requests in flight is bounded.

use crate::server::Result;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddrV4, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

/// Maximum number of connections that [`Stranger::open_at_rate`] holds: beyond it, the oldest is closed.
const HELD_MAX: usize = 12_000;

/// Time without progress after which a connection is opened again, and the longest wait of a pipelining one.
const PATIENCE: Duration = Duration::from_secs(2);

/// Pause between two looks at all held connections.
const TICK: Duration = Duration::from_millis(20);

/// Requests that a pipelining connection sends together.
const PIPELINED: usize = 64;

/// Receive buffer of a client that does not read, so that the response stays with the server.
const UNREAD_BUFFER_BYTES: usize = 4 << 10;

/// The addresses that the attacker connects from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Addresses {
    One,
    Many,
}

impl Addresses {
    pub fn name(self) -> &'static str {
        match self {
            Addresses::One => "one",
            Addresses::Many => "many",
        }
    }

    /// Returns the address of a connection; never that of the honest clients.
    fn address(self, number: u64) -> Ipv4Addr {
        match self {
            Addresses::One => Ipv4Addr::new(127, 0, 0, 2),
            // One of a million.
            Addresses::Many => {
                let [.., b, c, d] =
                    (number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 44).to_be_bytes();
                Ipv4Addr::new(127, 1 + b, c, d)
            }
        }
    }
}

/// The behavior of a held connection after its request is sent.
#[derive(Clone, Copy)]
pub enum Then {
    /// Reads responses, and sends the request again and again.
    Repeat(Duration),
    /// Waits with an unfinished request. A connection that gets a response is opened again.
    Wait,
    /// Reads nothing.
    Ignore,
}

/// Requests on a pipelining connection.
pub struct Pipeline<'a> {
    /// Sent first, once.
    pub greeting: &'a [u8],
    pub request: &'a [u8],
    /// Bytes that each response has once.
    pub marker: &'a [u8],
}

/// An attacker of one port.
pub struct Stranger<'a> {
    pub port: u16,
    pub addresses: Addresses,
    /// Work done: connections or responses.
    pub done: &'a AtomicU64,
    pub is_over: &'a AtomicBool,
}

impl Stranger<'_> {
    fn is_over(&self) -> bool {
        self.is_over.load(Relaxed)
    }

    /// Opens connections at a rate, and sends the start of a request over each.
    pub fn open_at_rate(&self, per_second: u32, start_of_request: &[u8]) {
        let mut opening = Vec::new();
        let mut held = VecDeque::new();
        let start = Instant::now();
        let mut opened = 0;
        while !self.is_over() {
            let due = (start.elapsed().as_secs_f64() * f64::from(per_second)) as u64;
            while opened < due {
                opened += 1;
                if opening.len() + held.len() >= HELD_MAX && held.pop_front().is_none() {
                    continue;
                }
                opening.extend(
                    open(self.addresses.address(opened), self.port, None)
                        .ok()
                        .map(Some),
                );
            }
            for slot in &mut opening {
                let Some(socket) = slot.take() else { continue };
                match send(&socket, start_of_request) {
                    Ok(_) => {
                        self.done.fetch_add(1, Relaxed);
                        held.push_back(socket);
                    }
                    // It is tried again in the next millisecond.
                    Err(Errno::AGAIN | Errno::NOTCONN) => *slot = Some(socket),
                    Err(_) => {}
                }
            }
            opening.retain(|socket: &Option<OwnedFd>| socket.is_some());
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Holds a connection for each request.
    pub fn hold(&self, requests: &[Vec<u8>], then: Then) {
        let mut connections: Vec<Held> = requests.iter().map(|_| Held::default()).collect();
        let start = Instant::now();
        if let Then::Repeat(pause) = then {
            for (number, connection) in connections.iter_mut().enumerate() {
                connection.next =
                    Some(start + pause.mul_f64(number as f64 / requests.len() as f64));
            }
        }
        let mut opened = 0;
        while !self.is_over() {
            for (connection, request) in connections.iter_mut().zip(requests) {
                if connection.socket.is_none() {
                    opened += 1;
                    connection.open(self.addresses.address(opened), self.port, then);
                }
                let answers = connection.step(request, then);
                self.done.fetch_add(answers, Relaxed);
            }
            thread::sleep(TICK);
        }
    }

    /// Sends requests over one connection as fast as they are answered. One that breaks is opened again.
    pub fn pipeline(&self, number: u64, pipeline: &Pipeline<'_>) {
        while !self.is_over() {
            if self.pipeline_once(number, pipeline).is_err() {
                thread::sleep(TICK);
            }
        }
    }

    fn pipeline_once(&self, number: u64, pipeline: &Pipeline<'_>) -> Result<()> {
        let mut stream = connect(self.addresses.address(number), self.port)?;
        stream.write_all(pipeline.greeting)?;
        let mut reading = stream.try_clone()?;
        let requests = pipeline.request.repeat(PIPELINED);
        let mut buffer = vec![0; 256 << 10];
        thread::scope(|scope| {
            let sending = scope.spawn(|| {
                let mut at = 0;
                while !self.is_over() {
                    match stream.write(&requests[at..]) {
                        Ok(count) => at = (at + count) % requests.len(),
                        // The server takes no more for now.
                        Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                        Err(_) => break,
                    }
                }
                // Whether it is open any more does not matter.
                let _ = stream.shutdown(Shutdown::Both);
            });
            while !sending.is_finished() {
                match reading.read(&mut buffer) {
                    Ok(0) => break,
                    Ok(count) => {
                        self.done
                            .fetch_add(occurrences(&buffer[..count], pipeline.marker), Relaxed);
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Err(_) => break,
                }
            }
            let _ = reading.shutdown(Shutdown::Both);
        });
        Ok(())
    }
}

/// A connection that [`Stranger::hold`] holds.
#[derive(Default)]
struct Held {
    socket: Option<OwnedFd>,
    opened_at: Option<Instant>,
    sent: usize,
    /// When the request is sent again.
    next: Option<Instant>,
}

impl Held {
    fn open(&mut self, from: Ipv4Addr, port: u16, then: Then) {
        let buffer = matches!(then, Then::Ignore).then_some(UNREAD_BUFFER_BYTES);
        (self.socket, self.opened_at) = (open(from, port, buffer).ok(), Some(Instant::now()));
        self.sent = 0;
    }

    /// Sends and reads as much as possible. Returns the number of responses to repeated requests, and 1 for a request that was sent and
    /// stays.
    fn step(&mut self, request: &[u8], then: Then) -> u64 {
        let Some(socket) = &self.socket else { return 0 };
        let mut done = 0;
        let is_due = self.next.is_none_or(|next| Instant::now() >= next);
        if self.sent < request.len() && is_due {
            match send(socket, &request[self.sent..]) {
                Ok(count) => self.sent += count,
                Err(Errno::AGAIN | Errno::NOTCONN) if !self.is_stuck() => return 0,
                Err(_) => {
                    self.socket = None;
                    return 0;
                }
            }
            if self.sent == request.len() && !matches!(then, Then::Repeat(_)) {
                done = 1;
            }
        }
        if matches!(then, Then::Ignore) {
            return done;
        }
        let mut space = [0; 4 << 10];
        loop {
            match (
                net::recv(socket, &mut space[..], RecvFlags::DONTWAIT).map(|(_, count)| count),
                then,
            ) {
                (Err(Errno::AGAIN | Errno::NOTCONN), _) => return done,
                (Ok(0) | Err(_), _) | (Ok(_), Then::Wait) => {
                    self.socket = None;
                    return done;
                }
                (Ok(count), Then::Repeat(pause)) => {
                    done += occurrences(&space[..count], b"HTTP/1.1 ");
                    (self.sent, self.next) =
                        (0, self.next.map(|next| (next + pause).max(Instant::now())));
                }
                (Ok(_), Then::Ignore) => {}
            }
        }
    }

    /// Whether it has waited too long to connect.
    fn is_stuck(&self) -> bool {
        self.sent == 0 && self.opened_at.is_some_and(|at| at.elapsed() > PATIENCE)
    }
}

/// Sends without waiting. Without bytes, it only finds out whether the socket is connected.
fn send(socket: &OwnedFd, bytes: &[u8]) -> std::result::Result<usize, Errno> {
    if bytes.is_empty() {
        return net::getpeername(socket).map(|_| 0);
    }
    net::send(socket, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
}

fn socket(from: Ipv4Addr, flags: SocketFlags) -> Result<OwnedFd> {
    let socket = net::socket_with(
        AddressFamily::INET,
        SocketType::STREAM,
        flags | SocketFlags::CLOEXEC,
        None,
    )?;
    // When the socket is closed, the connection is reset, so that its port is free again.
    sockopt::set_socket_linger(&socket, Some(Duration::ZERO))?;
    net::bind(&socket, &SocketAddrV4::new(from, 0))?;
    Ok(socket)
}

/// Starts to connect.
fn open(from: Ipv4Addr, port: u16, receive_buffer: Option<usize>) -> Result<OwnedFd> {
    let socket = socket(from, SocketFlags::NONBLOCK)?;
    if let Some(bytes) = receive_buffer {
        sockopt::set_socket_recv_buffer_size(&socket, bytes)?;
    }
    match net::connect(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, port)) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
        Err(error) => Err(error.into()),
    }
}

fn connect(from: Ipv4Addr, port: u16) -> Result<TcpStream> {
    let socket = socket(from, SocketFlags::empty())?;
    net::connect(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, port))?;
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// Counts a short text. One that is split between two reads is missed.
fn occurrences(bytes: &[u8], marker: &[u8]) -> u64 {
    bytes
        .windows(marker.len())
        .filter(|window| *window == marker)
        .count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::net::TcpListener;

    /// Runs an attack until `accept` is done.
    fn attacked<T>(
        attack: impl FnOnce(&Stranger<'_>) + Send,
        accept: impl FnOnce(TcpListener) -> T,
    ) -> (T, u64) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let done = AtomicU64::new(0);
        let is_over = AtomicBool::new(false);
        let stranger = Stranger {
            port,
            addresses: Addresses::Many,
            done: &done,
            is_over: &is_over,
        };
        let accepted = thread::scope(|scope| {
            scope.spawn(|| attack(&stranger));
            let accepted = accept(listener);
            is_over.store(true, Relaxed);
            accepted
        });
        (accepted, done.load(Relaxed))
    }

    #[test]
    fn addresses_differ() {
        let many: BTreeSet<_> = (0..10_000)
            .map(|number| Addresses::Many.address(number))
            .collect();
        assert!(
            many.len() > 9_900 && !many.contains(&Ipv4Addr::LOCALHOST),
            "{}",
            many.len()
        );
        assert_eq!(Addresses::One.address(1), Addresses::One.address(2));
    }

    #[test]
    fn silent_connections_stay_open() {
        let (peers, _) = attacked(
            |stranger| stranger.open_at_rate(1_000, b""),
            |listener| {
                (0..20)
                    .map(|_| listener.accept().unwrap().1.ip())
                    .collect::<BTreeSet<_>>()
            },
        );
        assert_eq!(peers.len(), 20);
    }

    #[test]
    fn answered_connection_is_opened_again() {
        let requests = [b"unfinished".to_vec()];
        let (heads, done) = attacked(
            |stranger| stranger.hold(&requests, Then::Wait),
            |listener| {
                let serve = |_| {
                    let (mut stream, _) = listener.accept().unwrap();
                    let mut space = [0; 100];
                    let count = stream.read(&mut space).unwrap();
                    let _ = stream.write_all(b"HTTP/1.1 503 No\r\n\r\n");
                    String::from_utf8_lossy(&space[..count]).into_owned()
                };
                (0..3).map(serve).collect::<Vec<_>>()
            },
        );
        assert_eq!(heads, ["unfinished"; 3]);
        assert!(done >= 3, "{done}");
    }

    #[test]
    fn request_is_repeated_on_one_connection() {
        let requests = [b"request".to_vec()];
        let ((), done) = attacked(
            |stranger| stranger.hold(&requests, Then::Repeat(Duration::from_millis(1))),
            |listener| {
                let (mut stream, _) = listener.accept().unwrap();
                for _ in 0..3 {
                    stream.read_exact(&mut [0; 7]).unwrap();
                    stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").unwrap();
                }
                // The next request follows the response that was read before it.
                stream.read_exact(&mut [0; 7]).unwrap();
            },
        );
        assert_eq!(done, 3);
    }
}
