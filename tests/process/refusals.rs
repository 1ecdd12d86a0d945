//! Requests that can't be parsed are answered by problems, like all others.

use crate::service::Service;
use crate::{PATIENCE, program};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::TcpStream;

/// Sends bytes, and reads all that is answered until the connection is closed.
fn exchange(service: &Service, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(service.client().address()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(request).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn assert_problem(answer: &str, status: u16) {
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {answer:?}"));
    let head = head.to_ascii_lowercase();
    let body: Value = serde_json::from_str(body).unwrap_or_else(|_| panic!("no JSON: {answer:?}"));
    assert!(head.starts_with(&format!("http/1.1 {status} ")), "{head}");
    assert!(head.contains("\r\ncontent-type: application/problem+json"), "{head}");
    assert!(head.contains("\r\nconnection: close") && head.contains("\r\ndate: "), "{head}");
    assert_eq!((&body["status"], &body["code"]), (&status.into(), &"malformed-request".into()), "{body}");
    assert_eq!(body["type"], "urn:cuckood:problem:malformed-request");
    let id = body["request_id"].as_str().unwrap();
    assert!(head.contains(&format!("\r\nx-request-id: {id}")), "{head}");
}

/// A request with a header that makes its head so long.
fn with_head(bytes: usize) -> Vec<u8> {
    let (start, end) =
        ("GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nX-Long: ", "\r\n\r\n");
    format!("{start}{}{end}", "x".repeat(bytes - start.len() - end.len())).into_bytes()
}

#[test]
fn what_cant_be_parsed_is_a_problem() {
    let directory = tempfile::tempdir().unwrap();
    let settings = [("CUCKOOD__SERVER__HEADER_BYTES_MAX", "8KiB")];
    let service = Service::start_ready(program(), &directory.path().join("data"), &settings);
    for malformed in [
        "nonsense\r\n\r\n",
        "GET /livez HTTP/3.0\r\n\r\n",
        "GET /liv ez HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "GET /livez HTTP/1.1\r\nHo st: cuckood\r\n\r\n",
        "POST /v1/campaigns/a/users HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        // Behind a request that is well.
        "GET nonsense\r\n\r\n",
    ] {
        assert_problem(&exchange(&service, malformed.as_bytes()), 400);
        let pipelined = format!("GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n{malformed}");
        let answers = exchange(&service, pipelined.as_bytes());
        let refusal = answers.rfind("HTTP/1.1 400 ").unwrap_or_else(|| panic!("{answers}"));
        assert!(answers.starts_with("HTTP/1.1 200 "), "{answers}");
        assert_problem(&answers[refusal..], 400);
    }
}

#[test]
fn a_head_is_as_long_as_it_may_be_and_no_longer() {
    let directory = tempfile::tempdir().unwrap();
    for limit in [2 << 10, 8 << 10, 64 << 10, 200 << 10] {
        let data = directory.path().join(limit.to_string());
        let setting = limit.to_string();
        let service =
            Service::start_ready(program(), &data, &[("CUCKOOD__SERVER__HEADER_BYTES_MAX", &setting)]);
        let longest = exchange(&service, &with_head(limit));
        assert!(longest.starts_with("HTTP/1.1 200 "), "{limit}: {longest}");
        for longer in [limit + 1, limit + 100, limit + 9_000, 3 * limit] {
            assert_problem(&exchange(&service, &with_head(longer)), 431);
        }
        // Too long already before its first line has ended.
        let line = format!("GET /{} HTTP/1.1\r\nHost: localhost\r\n\r\n", "x".repeat(limit));
        assert_problem(&exchange(&service, line.as_bytes()), 414);
    }
    // Within the limit, but longer than any address can be.
    let service = Service::start_ready(
        program(),
        &directory.path().join("uri"),
        &[("CUCKOOD__SERVER__HEADER_BYTES_MAX", "200KiB")],
    );
    let line = format!("GET /{} HTTP/1.1\r\nHost: localhost\r\n\r\n", "x".repeat(66_000));
    assert_problem(&exchange(&service, line.as_bytes()), 414);
    let many: String = (0..120).map(|number| format!("X-{number}: 1\r\n")).collect();
    assert_problem(&exchange(&service, format!("GET /livez HTTP/1.1\r\n{many}\r\n").as_bytes()), 431);
}
