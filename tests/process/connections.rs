//! A connection stays of use after an answer that did not wait for the request's body.

use crate::service::Service;
use crate::{TIMEOUT, program};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

/// A connection to the service, spoken to by hand.
struct Connection(BufReader<TcpStream>);

impl Connection {
    fn to(service: &Service) -> Connection {
        let stream = TcpStream::connect(service.client().address()).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream.set_nodelay(true).unwrap();
        Connection(BufReader::new(stream))
    }

    fn write(&mut self, text: &str) {
        self.0.get_mut().write_all(text.as_bytes()).unwrap();
    }

    /// The status of the next answer; none if the connection is closed instead.
    fn status(&mut self) -> Option<u16> {
        let mut status = None;
        let mut length = 0;
        loop {
            let mut line = String::new();
            if self.0.read_line(&mut line).ok()? == 0 {
                return None;
            }
            let line = line.trim_end().to_ascii_lowercase();
            if let Some(rest) = line.strip_prefix("http/1.1 ") {
                status = rest.split(' ').next()?.parse().ok();
            } else if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            } else if line.is_empty() {
                break;
            }
        }
        self.0.read_exact(&mut vec![0; length]).ok()?;
        status
    }
}

fn post(path: &str, headers: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{headers}\r\n"
    )
}

const NEXT: &str = "GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n";

#[test]
fn late_body_keeps_connection_open() {
    let directory = tempfile::tempdir().unwrap();
    let service = Service::start_ready(program(), &directory.path().join("data"), &[]);
    let confirm = format!("/v1/coupons/p/redemptions/{}/confirm", "0".repeat(32));
    let mut connection = Connection::to(&service);
    // The answer is read before the body is sent: to a route that wants none, to one that is refused before it is
    // read, and in chunks.
    for (path, headers, body) in [
        (confirm.as_str(), "Content-Length: 2\r\n", "{}"),
        (
            "/v1/campaigns/none/users",
            "Content-Length: 16\r\n",
            r#"{"users":["u1"]}"#,
        ),
        (
            &confirm,
            "Transfer-Encoding: chunked\r\n",
            "2\r\n{}\r\n0\r\n\r\n",
        ),
    ] {
        connection.write(&post(path, headers));
        assert_eq!(connection.status(), Some(404), "{path}");
        connection.write(body);
        connection.write(NEXT);
        assert_eq!(
            connection.status(),
            Some(200),
            "after {path} with {headers}"
        );
    }
}

#[test]
fn long_unread_body_closes_connection() {
    let directory = tempfile::tempdir().unwrap();
    let service = Service::start_ready(program(), &directory.path().join("data"), &[]);
    for headers in [
        "Content-Length: 1000000000\r\n",
        "Content-Length: 2\r\nExpect: 100-continue\r\n",
    ] {
        let mut connection = Connection::to(&service);
        connection.write(&post("/v1/campaigns/none/users", headers));
        assert_eq!(connection.status(), Some(404));
        assert_eq!(connection.status(), None, "{headers}");
    }
}
