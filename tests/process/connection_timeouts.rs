//! No connection stays open forever: neither one whose client never reads, nor an idle one.

use crate::service::Service;
use crate::{TIMEOUT, program, until};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

/// Requests of a client that never reads the responses: more than any socket buffers hold.
const GREED: usize = 300;

fn start(settings: &[(&str, &str)]) -> (tempfile::TempDir, Service) {
    let directory = tempfile::tempdir().unwrap();
    let service = Service::start_ready(program(), &directory.path().join("data"), settings);
    (directory, service)
}

fn connect(service: &Service) -> TcpStream {
    let stream = TcpStream::connect(service.client().address()).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream
}

fn ask(stream: &mut TcpStream, path: &str, times: usize) {
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    stream.write_all(request.repeat(times).as_bytes()).unwrap();
}

/// Asks and reads no more than the beginning of the answer.
fn is_answered(stream: &mut TcpStream) -> bool {
    ask(stream, "/livez", 1);
    let mut status = [0; 15];
    stream.read_exact(&mut status).is_ok() && &status == b"HTTP/1.1 200 OK"
}

/// A client that asks for much and reads nothing.
fn greedy(service: &Service) -> TcpStream {
    let mut stream = connect(service);
    // At once: a service that has begun to answer may soon end the connection.
    ask(&mut stream, "/openapi.json", GREED);
    stream
}

/// Waits until the other side has closed the connection; reads the data before.
fn assert_closed(stream: &mut TcpStream) {
    match stream.read_to_end(&mut Vec::new()) {
        Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
        read => drop(read.expect("closed in time")),
    }
}

/// The same without reading, which would give the client its place back.
fn assert_cut_off(stream: &mut TcpStream) {
    stream.set_nonblocking(true).unwrap();
    until("cut off", || {
        stream
            .write(b"GET /")
            .is_err_and(|error| error.kind() != ErrorKind::WouldBlock)
    });
}

#[test]
fn clients_that_never_read_are_disconnected() {
    let settings = [
        ("CUCKOOD__SERVER__CONNECTIONS_MAX", "24"),
        ("CUCKOOD__SERVER__WRITE_TIMEOUT", "200ms"),
    ];
    let (_directory, service) = start(&settings);
    let mut clients: Vec<TcpStream> = (0..24).map(|_| greedy(&service)).collect();
    assert!(
        is_answered(&mut connect(&service)),
        "another client gets no response"
    );
    clients.iter_mut().for_each(assert_cut_off);
}

#[test]
fn longest_idle_connection_is_closed() {
    let (_directory, service) = start(&[("CUCKOOD__SERVER__CONNECTIONS_MAX", "4")]);
    let mut clients: Vec<TcpStream> = (0..4).map(|_| connect(&service)).collect();
    // One has sent nothing yet.
    assert!(clients[1..].iter_mut().all(is_answered));
    assert!(
        is_answered(&mut connect(&service)),
        "another client gets no response"
    );
    let closed: Vec<bool> = clients.iter_mut().map(|client| !is_open(client)).collect();
    // The clients of the readiness check may still be connected, and have to be closed, too; and idle ones are checked once a second.
    assert!(closed.contains(&true) && !closed[3], "{closed:?}");
}

/// Whether it still answers.
fn is_open(stream: &mut TcpStream) -> bool {
    let asked =
        stream.write_all(b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    let mut answers = String::new();
    let read = stream.read_to_string(&mut answers);
    asked.is_ok()
        && read.is_ok()
        && answers.ends_with(r#"{"status":"ok"}"#)
        && answers.contains("connection: close")
}

#[test]
fn idle_connections_are_closed() {
    let settings = [
        ("CUCKOOD__SERVER__IDLE_TIMEOUT", "100ms"),
        ("CUCKOOD__SERVER__HEADER_TIMEOUT", "10m"),
    ];
    let (_directory, service) = start(&settings);
    let mut client = connect(&service);
    assert!(is_answered(&mut client));
    assert_closed(&mut client);
}

#[test]
fn unfinished_head_times_out() {
    let settings = [
        ("CUCKOOD__SERVER__IDLE_TIMEOUT", "10m"),
        ("CUCKOOD__SERVER__HEADER_TIMEOUT", "100ms"),
    ];
    let (_directory, service) = start(&settings);
    for begun in [
        "",
        "GET /livez HT",
        "GET /livez HTTP/1.1\r\nHost: localhost\r\n",
    ] {
        let mut client = connect(&service);
        client.write_all(begun.as_bytes()).unwrap();
        assert_closed(&mut client);
    }
}

#[test]
fn unfinished_heads_yield_to_new_connections() {
    let settings = [
        ("CUCKOOD__SERVER__CONNECTIONS_MAX", "4"),
        ("CUCKOOD__SERVER__HEADER_TIMEOUT", "10m"),
    ];
    let (_directory, service) = start(&settings);
    let mut known = connect(&service);
    assert!(is_answered(&mut known));
    let mut half: Vec<TcpStream> = (0..8).map(|_| connect(&service)).collect();
    for stream in &mut half {
        // The service may have closed it for the next one.
        let _ = stream.write_all(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n");
    }
    for _ in 0..3 {
        assert!(
            is_answered(&mut connect(&service)),
            "half heads hold all places"
        );
    }
    half.iter_mut().take(4).for_each(assert_closed);
}

#[test]
fn heads_share_budget() {
    let settings = [("CUCKOOD__SERVER__HEADER_TIMEOUT", "10m")];
    let (_directory, service) = start(&settings);
    let head = format!(
        "GET /livez HTTP/1.1\r\nHost: localhost\r\nX-Long: {}",
        "x".repeat(15 << 10)
    );
    let mut clients: Vec<TcpStream> = Vec::new();
    until("the budget is used up", || {
        let mut client = connect(&service);
        client.write_all(head.as_bytes()).unwrap();
        clients.push(client);
        let [bytes, refused] =
            service.metrics(["cuckood_head_bytes ", "cuckood_heads_refused_total "]);
        assert!(bytes <= 16 << 20);
        clients.len() > 1_300 && refused > 0
    });
    let mut honest = connect(&service);
    let ask = format!("{head}\r\n\r\n");
    until("an honest client has its share", || {
        honest.write_all(ask.as_bytes()).is_ok() && honest.read_exact(&mut [0; 15]).is_ok() || {
            honest = connect(&service);
            false
        }
    });
}

#[test]
fn sigterm_ignores_clients_that_never_read() {
    let settings = [
        ("CUCKOOD__SERVER__WRITE_TIMEOUT", "10m"),
        ("CUCKOOD__SERVER__IDLE_TIMEOUT", "10m"),
        ("CUCKOOD__SERVER__HEADER_TIMEOUT", "10m"),
        ("CUCKOOD__SERVER__DRAIN_TIMEOUT", "10m"),
    ];
    let (_directory, service) = start(&settings);
    let mut new = connect(&service);
    let mut idle = connect(&service);
    assert!(is_answered(&mut idle));
    let mut greedy: Vec<TcpStream> = (0..4).map(|_| greedy(&service)).collect();
    service.begin_termination();
    until("new connections are refused", || {
        TcpStream::connect(service.client().address()).is_err()
    });
    assert_closed(&mut new);
    assert_closed(&mut idle);
    assert_eq!(service.wait().code(), Some(0));
    greedy.iter_mut().for_each(assert_cut_off);
}
