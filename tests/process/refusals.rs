//! Requests that hyper can't parse are rejected before any route, and the response is not lost.

use crate::service::Service;
use crate::{TIMEOUT, program};
use std::io::{Read, Write};
use std::net::TcpStream;

/// Sends bytes, and reads the complete response until the connection is closed.
fn exchange(service: &Service, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(service.client().address()).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.write_all(request).unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    response
}

fn assert_rejected(response: &str, statuses: &[u16]) {
    let is_status = |status: &u16| response.starts_with(&format!("HTTP/1.1 {status} "));
    assert!(
        statuses.iter().any(is_status),
        "{response:?} is none of {statuses:?}"
    );
    assert!(
        response
            .to_ascii_lowercase()
            .contains("\r\nconnection: close"),
        "{response}"
    );
}

/// A request with a header that makes its head this long.
fn with_head(bytes: usize) -> Vec<u8> {
    let start = "GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nX-Long: ";
    let end = "\r\n\r\n";
    format!(
        "{start}{}{end}",
        "x".repeat(bytes - start.len() - end.len())
    )
    .into_bytes()
}

#[test]
fn malformed_requests_return_400() {
    let directory = tempfile::tempdir().unwrap();
    let service = Service::start_ready(program(), &directory.path().join("data"), &[]);
    for malformed in [
        "nonsense\r\n\r\n",
        "GET /livez HTTP/3.0\r\n\r\n",
        "GET /liv ez HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "GET /livez HTTP/1.1\r\nHo st: cuckood\r\n\r\n",
        "POST /v1/campaigns/a/users HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        "GET nonsense\r\n\r\n",
    ] {
        assert_rejected(&exchange(&service, malformed.as_bytes()), &[400]);
        let pipelined = format!("GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n{malformed}");
        let responses = exchange(&service, pipelined.as_bytes());
        let rejection = responses
            .rfind("HTTP/1.1 400 ")
            .unwrap_or_else(|| panic!("{responses}"));
        assert!(responses.starts_with("HTTP/1.1 200 "), "{responses}");
        assert_rejected(&responses[rejection..], &[400]);
    }
}

#[test]
fn heads_are_limited_exactly() {
    let directory = tempfile::tempdir().unwrap();
    for limit in [2 << 10, 8 << 10, 64 << 10, 200 << 10] {
        let data = directory.path().join(limit.to_string());
        let setting = limit.to_string();
        let service = Service::start_ready(
            program(),
            &data,
            &[("CUCKOOD__SERVER__HEADER_BYTES_MAX", &setting)],
        );
        let longest = exchange(&service, &with_head(limit));
        assert!(longest.starts_with("HTTP/1.1 200 "), "{limit}: {longest}");
        for longer in [limit + 1, limit + 100, limit + 9_000, 3 * limit] {
            assert_rejected(&exchange(&service, &with_head(longer)), &[431]);
        }
        // Too long already before its first line has ended.
        let line = format!(
            "GET /{} HTTP/1.1\r\nHost: localhost\r\n\r\n",
            "x".repeat(limit)
        );
        assert_rejected(&exchange(&service, line.as_bytes()), &[414, 431]);
    }
    let service = Service::start_ready(program(), &directory.path().join("default"), &[]);
    assert!(exchange(&service, &with_head(16 << 10)).starts_with("HTTP/1.1 200 "));
    assert_rejected(&exchange(&service, &with_head((16 << 10) + 1)), &[431]);
    let many: String = (0..120)
        .map(|number| format!("X-{number}: 1\r\n"))
        .collect();
    assert_rejected(
        &exchange(
            &service,
            format!("GET /livez HTTP/1.1\r\n{many}\r\n").as_bytes(),
        ),
        &[431],
    );
}
