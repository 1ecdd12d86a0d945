//! Concurrent bodies: any number with any expansion takes no more memory than allowed.

use crate::service::Service;
use crate::{TIMEOUT, program};
use flate2::Compression;
use flate2::write::GzEncoder;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;

const LIMIT_BYTES: u64 = 64 << 20;

/// Allocator, connections and other memory outside the limit: much less than the bodies' expansion.
const OTHER_BYTES: u64 = 128 << 20;

const BODIES: usize = 40;

/// Sends a body but for its last byte.
fn begin(service: &Service, body: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(service.client().address()).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    let head = format!(
        "POST /v1/campaigns/spring/users HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Encoding: gzip\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(&body[..body.len() - 1]).unwrap();
    stream
}

/// Sends the last byte.
fn end(mut stream: &TcpStream, body: &[u8]) {
    stream.write_all(&body[body.len() - 1..]).unwrap();
}

fn status(stream: TcpStream) -> u16 {
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    line.split(' ').nth(1).unwrap().parse().unwrap()
}

#[test]
fn concurrent_decompression_bombs_stay_within_limit() {
    let directory = tempfile::tempdir().unwrap();
    let settings = [("CUCKOOD__LIMITS__BODIES", "64MiB")];
    let service = Service::start_ready(program(), &directory.path().join("data"), &settings);
    service
        .client()
        .put(
            "/v1/campaigns/spring",
            &serde_json::json!({"capacity": 1000}),
        )
        .unwrap();
    let text = [b"{\"users\":[\"".as_slice(), &vec![b'x'; 31 << 20], b"\"]}"].concat();
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(&text).unwrap();
    let bomb = encoder.finish().unwrap();
    assert!(bomb.len() < 64 << 10);

    let before = service.peak_memory_bytes();
    let streams: Vec<TcpStream> = (0..BODIES).map(|_| begin(&service, &bomb)).collect();
    streams.iter().for_each(|stream| end(stream, &bomb));
    let statuses: Vec<u16> = streams.into_iter().map(status).collect();
    // Bodies that fit are validated; the others must be retried.
    assert!(
        statuses.iter().all(|status| [422, 503].contains(status)),
        "{statuses:?}"
    );
    let grown = service.peak_memory_bytes() - before;
    assert!(
        grown < LIMIT_BYTES + OTHER_BYTES,
        "{grown} bytes for {BODIES} bodies of {}",
        bomb.len()
    );
    let alone = begin(&service, &bomb);
    end(&alone, &bomb);
    assert_eq!(status(alone), 422);
}
