//! `load attack PROGRAM`: what honest clients notice of strangers who attack, each attack against a fresh process.
//!
//! The honest clients have a key. Eight keep their connections and check an item every 20 ms; one opens a connection for each check. The
//! attacker is one thread on the same processor, at the lowest priority, so that the results show the server's delays, not its own.

use crate::Options;
use crate::compare::print;
use crate::reply::frame;
use crate::request::{ITEM, Request};
use crate::server::{Client, Processors, Result, Server};
use rustix::fd::OwnedFd;
use rustix::net::{self, AddressFamily, SendFlags, SocketFlags, SocketType, sockopt};
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddrV4, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

/// Connections that an attacker opens in a second, and the most that it holds: beyond it, the oldest is closed.
const OPENED_PER_SECOND: u32 = 10_000;
const HELD_MAX: usize = 12_000;

/// Honest clients with a kept connection, the pause between two requests, and how long they wait for a response.
const KEPT: usize = 8;
const PAUSE: Duration = Duration::from_millis(20);
const PATIENCE: Duration = Duration::from_secs(2);

/// Duration of an attack per second of `--seconds`.
const LONGER: f64 = 5.0;

/// Commands that a RESP attacker sends together.
const PIPELINED: usize = 64;

#[derive(Clone, Copy)]
enum Attack {
    None,
    /// Heads of requests of this length that never end, from one address or from many.
    HalfHeads {
        bytes: usize,
        is_from_many: bool,
    },
    /// Two connections of a key without scopes that send INFO without a pause.
    Info,
}

const ATTACKS: [(&str, Attack); 5] = [
    ("no attack", Attack::None),
    ("half heads, one address", Attack::HalfHeads { bytes: 100, is_from_many: false }),
    ("half heads, many addresses", Attack::HalfHeads { bytes: 100, is_from_many: true }),
    ("half heads of 15 KB", Attack::HalfHeads { bytes: 15_000, is_from_many: true }),
    ("pipelined INFO, two connections", Attack::Info),
];

/// What honest clients have seen, and how often the attacker has done its work.
#[derive(Default)]
struct Seen {
    kept: Mutex<Checks>,
    new: Mutex<Checks>,
    attacks: AtomicU64,
    is_over: AtomicBool,
}

#[derive(Default)]
struct Checks {
    latencies: Vec<Duration>,
    failed: usize,
}

/// A key and its entry for `auth.keys`.
struct Key {
    key: String,
    entry: String,
}

impl Key {
    /// Makes a key with these scopes, as an entry's list.
    fn new(program: &Path, name: &str, scopes: &str) -> Result<Self> {
        let output = Command::new(program).args(["key", "new", "--name", name]).output()?;
        let text = String::from_utf8(output.stdout)?;
        let field = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            line.map(|line| line.trim().to_owned()).ok_or("unexpected output of `key new`")
        };
        let entry = field("entry:")?.replace(r#"["read"]"#, scopes);
        Ok(Self { key: field("key:")?, entry })
    }
}

/// Prints a row per attack.
pub fn attack(options: &Options) -> Result<()> {
    let duration = Duration::from_secs_f64(options.seconds * LONGER);
    print(&format!("{:?} per attack; p99 in ms, checks, failures in per cent", duration))?;
    print(&format!(
        "{:32} {:>28} {:>28} {:>12} {:>10}",
        "", "kept connections", "new connections", "resident, MB", "attacks/s"
    ))?;
    for (title, attack) in ATTACKS {
        let row = measure(&options.program, attack, duration).unwrap_or_else(|error| error.to_string());
        print(&format!("{title:32} {row}"))?;
    }
    Ok(())
}

fn measure(program: &Path, attack: Attack, duration: Duration) -> Result<String> {
    let processors = Processors::split()?;
    let (honest, other) =
        (Key::new(program, "honest", r#"["read", "write"]"#)?, Key::new(program, "other", "[]")?);
    let keys = format!("[{}, {}]", honest.entry, other.entry);
    let server = Server::cuckood_with(program, &processors, &[("CUCKOOD__AUTH__KEYS", &keys)])?;
    let mut client = Client::connect(server.http)?;
    client.call(&keyed("PUT", "/v1/campaigns/bench", r#"{"capacity":1000}"#, 201, &honest.key))?;
    let check = keyed(
        "POST",
        "/v1/campaigns/bench/users/check",
        &format!(r#"{{"users":["{ITEM}"]}}"#),
        200,
        &honest.key,
    );
    let (seen, before) = (Seen::default(), server.resident()?);
    let resident = thread::scope(|scope| {
        let (seen, check, server, other) = (&seen, &check, &server, &other);
        scope.spawn(move || attacker(attack, server, other, seen));
        for _ in 0..KEPT {
            scope.spawn(move || honest_client(server.http, check, true, &seen.kept, &seen.is_over));
        }
        scope.spawn(move || honest_client(server.http, check, false, &seen.new, &seen.is_over));
        let (start, mut resident) = (Instant::now(), Ok(0));
        while start.elapsed() < duration && resident.is_ok() {
            thread::sleep(PAUSE);
            resident =
                resident.and_then(|most| Ok::<u64, Box<dyn std::error::Error>>(server.resident()?.max(most)));
        }
        seen.is_over.store(true, Relaxed);
        resident.map_err(|error| error.to_string())
    })
    .map_err(|error| format!("the server has ended: {error}"))?;
    let more = resident.saturating_sub(before) / 1_000_000;
    let rate = seen.attacks.load(Relaxed) as f64 / duration.as_secs_f64();
    Ok(format!("{:>28} {:>28} {more:>12} {rate:>10.0}", figures(&seen.kept), figures(&seen.new)))
}

fn keyed(method: &str, path: &str, json: &str, status: u16, key: &str) -> Request {
    let mut request = Request::http(method, path, json, status);
    let text = String::from_utf8_lossy(&request.bytes);
    let with_key = text.replacen("\r\n\r\n", &format!("\r\nAuthorization: Bearer {key}\r\n\r\n"), 1);
    request.bytes = with_key.into_bytes();
    request
}

fn figures(checks: &Mutex<Checks>) -> String {
    let Ok(mut checks) = checks.lock() else { return "?".to_owned() };
    checks.latencies.sort_unstable();
    let (answered, failed) = (checks.latencies.len(), checks.failed);
    let p99 = checks.latencies.get(answered * 99 / 100).map_or(f64::NAN, |at| at.as_secs_f64() * 1e3);
    let share = 100.0 * failed as f64 / (answered + failed).max(1) as f64;
    format!("{p99:.1} / {} / {share:.1}", answered + failed)
}

/// Checks an item again and again, over one connection or over a new one each time. A connection that fails is opened again.
fn honest_client(port: u16, check: &Request, is_kept: bool, checks: &Mutex<Checks>, is_over: &AtomicBool) {
    let mut connection = None;
    while !is_over.load(Relaxed) {
        let began = Instant::now();
        let answered = exchange(port, &mut connection, check);
        if !is_kept || answered.is_err() {
            connection = None;
        }
        if let Ok(mut checks) = checks.lock() {
            match answered {
                Ok(()) => checks.latencies.push(began.elapsed()),
                Err(_) if is_over.load(Relaxed) => {}
                Err(_) => checks.failed += 1,
            }
        }
        thread::sleep(PAUSE.saturating_sub(began.elapsed()));
    }
}

fn exchange(port: u16, connection: &mut Option<TcpStream>, check: &Request) -> Result<()> {
    let stream = match connection {
        Some(stream) => stream,
        None => {
            let to = SocketAddrV4::new(Ipv4Addr::LOCALHOST, port).into();
            let stream = TcpStream::connect_timeout(&to, PATIENCE)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            connection.insert(stream)
        }
    };
    stream.write_all(&check.bytes)?;
    let (mut input, mut buffer) = (Vec::new(), [0; 4_096]);
    while frame(&input, check.status)?.is_none() {
        let count = stream.read(&mut buffer)?;
        if count == 0 {
            return Err("the server closed the connection".into());
        }
        input.extend_from_slice(&buffer[..count]);
    }
    Ok(())
}

fn attacker(attack: Attack, server: &Server, key: &Key, seen: &Seen) {
    // Of this thread alone.
    let _ = rustix::process::nice(19);
    let result = match attack {
        Attack::None => Ok(()),
        Attack::HalfHeads { bytes, is_from_many } => half_heads(server.http, bytes, is_from_many, seen),
        Attack::Info => thread::scope(|scope| {
            let second = scope.spawn(|| info(server.resp, key, seen).map_err(|error| error.to_string()));
            info(server.resp, key, seen).and(second.join().unwrap_or(Ok(())).map_err(Into::into))
        }),
    };
    if let Err(error) = result {
        let _ = print(&format!("the attacker has ended: {error}"));
    }
}

/// Opens connections and sends the beginning of a request's head over each, at [`OPENED_PER_SECOND`].
fn half_heads(port: u16, bytes: usize, is_from_many: bool, seen: &Seen) -> Result<()> {
    let mut head = b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX: ".to_vec();
    head.resize(bytes, b'x');
    let (mut opening, mut held, start) = (Vec::new(), VecDeque::new(), Instant::now());
    let mut opened = 0;
    while !seen.is_over.load(Relaxed) {
        // Sockets without a connection by the next millisecond are tried again.
        opening.retain(|socket: &Option<OwnedFd>| socket.is_some());
        let due = (start.elapsed().as_secs_f64() * f64::from(OPENED_PER_SECOND)) as u64;
        while opened < due {
            opened += 1;
            let from = if is_from_many { address(opened) } else { Ipv4Addr::LOCALHOST };
            opening.extend(open(from, port).ok().map(Some));
        }
        for slot in &mut opening {
            let Some(socket) = slot.take() else { continue };
            match net::send(&socket, &head, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(_) => {
                    seen.attacks.fetch_add(1, Relaxed);
                    held.push_back(socket);
                }
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::NOTCONN) => *slot = Some(socket),
                Err(_) => {}
            }
        }
        while opening.len() + held.len() > HELD_MAX && held.pop_front().is_some() {}
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// One of a million addresses of this machine.
fn address(number: u64) -> Ipv4Addr {
    let [.., b, c, d] = (number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 44).to_be_bytes();
    Ipv4Addr::new(127, 1 + b, c, d)
}

/// Begins to connect. When the socket is closed, the connection is reset, so that its port is free again.
fn open(from: Ipv4Addr, port: u16) -> Result<OwnedFd> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
    sockopt::set_socket_linger(&socket, Some(Duration::ZERO))?;
    net::bind(&socket, &SocketAddrV4::new(from, 0))?;
    match net::connect(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, port)) {
        Ok(()) | Err(rustix::io::Errno::INPROGRESS) => Ok(socket),
        Err(error) => Err(error.into()),
    }
}

/// Sends INFO over one connection as fast as it is answered.
fn info(port: u16, key: &Key, seen: &Seen) -> Result<()> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(&Request::resp(&["AUTH", &key.key]).bytes)?;
    let mut reading = stream.try_clone()?;
    let (commands, mut buffer) = (Request::resp(&["INFO"]).bytes.repeat(PIPELINED), vec![0; 256 << 10]);
    thread::scope(|scope| {
        let sending = scope.spawn(|| {
            let mut at = 0;
            while !seen.is_over.load(Relaxed) {
                match stream.write(&commands[at..]) {
                    Ok(count) => at = (at + count) % commands.len(),
                    // The server takes no more for now.
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Err(error) => return Err(error),
                }
            }
            stream.shutdown(Shutdown::Both)
        });
        while !sending.is_finished() {
            match reading.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => {
                    let replies = buffer[..count].iter().filter(|&&byte| byte == b'$').count();
                    seen.attacks.fetch_add(replies as u64, Relaxed);
                }
                Err(_) => {}
            }
        }
    });
    Ok(())
}
