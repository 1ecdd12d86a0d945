//! Clients that take connections and memory: strangers without a key, and keys that take more than their share. Others are served.

use crate::api_keys::new_key;
use crate::service::Service;
use crate::{TIMEOUT, program, until};
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// A service with these places for the keys of a shop and of a stranger to the shop.
struct Shop {
    service: Service,
    shop: String,
    hog: String,
    _directory: tempfile::TempDir,
}

fn start(places: usize, settings: &[(&str, &str)]) -> Shop {
    let directory = tempfile::tempdir().unwrap();
    let (shop, shop_entry) = new_key("shop", "admin");
    let (hog, hog_entry) = new_key("hog", "read");
    let places = places.to_string();
    let keys = format!("[{shop_entry}, {hog_entry}]");
    let mut all = vec![
        ("CUCKOOD__SERVER__CONNECTIONS_MAX", places.as_str()),
        ("CUCKOOD__AUTH__KEYS", &keys),
    ];
    all.extend(settings);
    let service = Service::start_ready(program(), &directory.path().join("data"), &all);
    Shop {
        service,
        shop,
        hog,
        _directory: directory,
    }
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream
}

impl Shop {
    fn connect(&self) -> TcpStream {
        connect(self.service.client().address().parse().unwrap())
    }

    /// The bytes of resident memory.
    fn resident(&self) -> u64 {
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", self.service.process())).unwrap();
        let kilobytes = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:"))
            .unwrap();
        kilobytes
            .trim()
            .trim_end_matches(" kB")
            .trim()
            .parse::<u64>()
            .unwrap()
            << 10
    }
}

/// Sends a request, and returns the first line of the response.
fn ask(stream: &mut TcpStream, key: &str, path: &str) -> std::io::Result<String> {
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n\r\n"
    )?;
    let mut reader = BufReader::new(stream);
    let mut status = String::new();
    reader.read_line(&mut status)?;
    let mut length = 0;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? <= 2 {
            break;
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
    }
    reader.read_exact(&mut vec![0; length])?;
    Ok(status.trim().to_owned())
}

const OK: &str = "HTTP/1.1 200 OK";

#[test]
fn silent_strangers_leave_places_for_clients() {
    let shop = start(61, &[]);
    let mut silent = Vec::new();
    for _ in 0..8 {
        silent.extend((0..100).map(|_| shop.connect()));
        let mut honest = shop.connect();
        assert_eq!(
            ask(&mut honest, "", "/livez").unwrap(),
            OK,
            "after {} strangers",
            silent.len()
        );
    }
}

#[test]
fn probing_strangers_leave_places_for_keys() {
    let shop = start(40, &[]);
    let mut known = shop.connect();
    assert_eq!(ask(&mut known, &shop.shop, "/v1/info").unwrap(), OK);
    let mut probing: Vec<TcpStream> = Vec::new();
    for path in ["/livez", "/nothing", "/metrics", "/v1/info"] {
        probing.extend((0..40).map(|_| shop.connect()));
        for stream in &mut probing {
            // The service may have closed it for another one.
            let _ = write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        }
        let mut honest = shop.connect();
        assert_eq!(ask(&mut honest, &shop.shop, "/v1/info").unwrap(), OK);
        assert_eq!(
            ask(&mut known, &shop.shop, "/v1/info").unwrap(),
            OK,
            "a known client gave way to {path}"
        );
    }
}

#[test]
fn probes_have_their_own_listener() {
    let shop = start(8, &[("CUCKOOD__SERVER__PROBE_LISTEN", "127.0.0.1:0")]);
    let address = shop.service.probe_address();
    let mut probe = connect(address);
    for (path, status) in [
        ("/livez", OK),
        ("/readyz", OK),
        ("/metrics", OK),
        ("/v1/info", "HTTP/1.1 404 Not Found"),
        ("/openapi.json", "HTTP/1.1 404 Not Found"),
    ] {
        assert_eq!(ask(&mut probe, &shop.shop, path).unwrap(), status, "{path}");
    }
    // All places of the API are busy.
    let mut busy: Vec<TcpStream> = (0..8).map(|_| shop.connect()).collect();
    for stream in &mut busy {
        begin_body(stream, &shop.shop);
    }
    let mut probes: Vec<TcpStream> = (0..40).map(|_| connect(address)).collect();
    assert_eq!(ask(probes.last_mut().unwrap(), "", "/livez").unwrap(), OK);
}

/// Starts a request whose body never arrives.
fn begin_body(stream: &mut TcpStream, key: &str) {
    let head = "POST /v1/eligibility HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json";
    write!(
        stream,
        "{head}\r\nAuthorization: Bearer {key}\r\nContent-Length: 1000\r\n\r\n{{"
    )
    .unwrap();
}

#[test]
fn unfinished_bodies_leave_places_for_others() {
    let shop = start(24, &[("CUCKOOD__SERVER__BODY_TIMEOUT", "10m")]);
    let mut hogs: Vec<TcpStream> = (0..24).map(|_| shop.connect()).collect();
    for stream in &mut hogs {
        begin_body(stream, &shop.hog);
    }
    let mut honest: Vec<TcpStream> = (0..6).map(|_| shop.connect()).collect();
    for stream in &mut honest {
        assert_eq!(ask(stream, &shop.shop, "/v1/info").unwrap(), OK);
    }
}

#[test]
fn clients_that_do_not_read_hold_bounded_memory() {
    const LIMIT: u64 = 8 << 20;
    let shop = start(
        1_000,
        &[
            ("CUCKOOD__LIMITS__RESPONSES", "8MiB"),
            ("CUCKOOD__SERVER__WRITE_TIMEOUT", "10m"),
        ],
    );
    let client = shop.service.client();
    let bearer = format!("Bearer {}", shop.shop);
    let headers = [
        ("Content-Type", "application/json"),
        ("Authorization", bearer.as_str()),
    ];
    let names: Vec<String> = (0..250)
        .map(|number| format!("{number}{}", "n".repeat(100)))
        .collect();
    for number in 0..200 {
        let body = serde_json::json!({ "campaigns": names }).to_string();
        let path = format!("/v1/line-ups/l{number}");
        assert_eq!(
            client
                .send("PUT", &path, &headers, body.as_bytes())
                .unwrap()
                .status,
            201
        );
    }
    let before = shop.resident();
    let mut unread: Vec<TcpStream> = Vec::new();
    for encoding in ["identity", "gzip", "zstd"] {
        for _ in 0..150 {
            let mut stream = shop.connect();
            // More than the system's buffers hold.
            let head = format!(
                "GET /v1/line-ups?limit=1000 HTTP/1.1\r\nHost: localhost\r\nAccept-Encoding: {encoding}"
            );
            write!(stream, "{head}\r\nAuthorization: {bearer}\r\n\r\n").unwrap();
            unread.push(stream);
        }
        assert!(shop.service.metric("cuckood_response_bytes ") <= LIMIT);
    }
    until("the limit is reached", || {
        let [bytes, refused] = shop.service.metrics([
            "cuckood_response_bytes ",
            "cuckood_responses_refused_total ",
        ]);
        assert!(bytes <= LIMIT);
        refused > 0
    });
    let grown = shop.resident().saturating_sub(before);
    // A connection has its own memory as well: parser, buffers and a short response.
    let allowed = LIMIT + unread.len() as u64 * (48 << 10);
    assert!(
        grown <= allowed,
        "{grown} bytes are held, {allowed} allowed"
    );
    let mut honest = shop.connect();
    assert_eq!(ask(&mut honest, &shop.shop, "/v1/info").unwrap(), OK);
}

#[test]
fn half_closed_client_gets_response() {
    let shop = start(100, &[]);
    for path in ["/livez", "/v1/info", "/v1/campaigns", "/openapi.json"] {
        let mut stream = shop.connect();
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {}\r\n\r\n",
            shop.shop
        )
        .unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut response = String::new();
        // To the end: the connection is closed afterwards.
        stream.read_to_string(&mut response).unwrap();
        assert!(response.starts_with(OK), "{path}: {response:.100}");
    }
    let body = r#"{"capacity":100}"#;
    let mut stream = shop.connect();
    let head =
        "PUT /v1/campaigns/half HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json";
    let length = body.len();
    let key = &shop.shop;
    write!(
        stream,
        "{head}\r\nAuthorization: Bearer {key}\r\nContent-Length: {length}\r\n\r\n{body}"
    )
    .unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    assert!(response.starts_with("HTTP/1.1 201 Created"), "{response}");
}

#[test]
fn end_of_stream_ends_wait() {
    let shop = start(100, &[]);
    let key = &shop.shop;
    let request = format!(
        "GET /v1/events?after=0&wait=30 HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n\r\n"
    );
    // Every wait would end by itself later than this.
    let deadline = Instant::now() + Duration::from_secs(25);
    let ask_and_close = || {
        let mut stream = shop.connect();
        stream
            .set_read_timeout(Some(deadline - Instant::now()))
            .unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut response = String::new();
        stream
            .read_to_string(&mut response)
            .expect("the end of the stream ends the wait");
        response
    };
    let response = ask_and_close();
    assert!(response.starts_with(OK), "{response}");
    // Clients that have gone leave their places among those that wait.
    for _ in 0..3 {
        let mut waiting: Vec<TcpStream> = (0..64).map(|_| shop.connect()).collect();
        for stream in &mut waiting {
            stream.write_all(request.as_bytes()).unwrap();
        }
        drop(waiting);
    }
    until("a place is free", || ask_and_close().starts_with(OK));
}

#[test]
fn ambiguous_heads_are_rejected() {
    let shop = start(100, &[]);
    for (head, status) in [
        ("GET /livez HTTP/1.1\r\n\r\n", "HTTP/1.1 400 Bad Request"),
        (
            "GET /livez HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
            "HTTP/1.1 400 Bad Request",
        ),
        (
            "GET /livez HTTP/1.1\r\nHost: a/b\r\n\r\n",
            "HTTP/1.1 400 Bad Request",
        ),
        ("GET /livez HTTP/1.0\r\n\r\n", "HTTP/1.0 200 OK"),
        (
            "POST /v1/eligibility HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
            "HTTP/1.1 501 Not Implemented",
        ),
    ] {
        let mut stream = shop.connect();
        stream.write_all(head.as_bytes()).unwrap();
        let mut line = String::new();
        BufReader::new(&stream).read_line(&mut line).unwrap();
        assert_eq!(line.trim(), status, "{head}");
    }
}

#[test]
fn ten_thousand_connections_are_served() {
    let places: usize = 10_000;
    // One file each, here and in the service, and a few more.
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let files = limit.current.unwrap_or(u64::MAX);
    if files < places as u64 + 500 {
        eprintln!("NOT RUN: 10,000 connections: only {files} files may be open");
        return;
    }
    // On a busy machine, the last connection may be made long after the first.
    let timeouts = [
        ("CUCKOOD__SERVER__HEADER_TIMEOUT", "10m"),
        ("CUCKOOD__SERVER__IDLE_TIMEOUT", "10m"),
    ];
    let shop = start(places + 10, &timeouts);
    let mut clients: Vec<TcpStream> = (0..places).map(|_| shop.connect()).collect();
    for stream in &mut clients {
        let key = &shop.shop;
        write!(
            stream,
            "GET /v1/info HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n\r\n"
        )
        .unwrap();
    }
    for stream in &mut clients {
        let mut status = [0; 15];
        stream.read_exact(&mut status).unwrap();
        assert_eq!(&status[..], OK.as_bytes());
    }
    shop.service.begin_termination();
    for stream in &mut clients {
        match stream.read_to_end(&mut Vec::new()) {
            Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
            read => drop(read.expect("closed at the end")),
        }
    }
    assert_eq!(shop.service.wait().code(), Some(0));
}
