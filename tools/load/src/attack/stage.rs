//! The state that an attack meets, and the requests that refer to it.

use crate::drive::{NEVER, Plan, run};
use crate::request::{ITEM, Numbers, Request, http_head, item};
use crate::server::{Client, Result, Server};
use std::time::Duration;

/// Filters and line-ups of [`Stage::Lists`], and codes of [`Stage::Codes`].
const FILTERS: usize = 9_000;
const LINE_UPS: usize = 1_000;
const CODES: u32 = 10_000;

/// Campaigns of a line-up, with names of the maximum length: the list of line-ups then has 10.9 MB.
const CAMPAIGNS_OF_LINE_UP: usize = 83;

/// Length that an unfinished body claims to have.
const CLAIMED_BYTES: usize = 16 << 20;

/// Bytes that an unfinished long body has.
const PLAIN_BYTES: usize = 4 << 20;

/// The start of a zstd frame: the magic number, a window of 8 MiB, and a raw block of 3 bytes that is not the last one.
const ZSTD: &[u8] = b"\x28\xb5\x2f\xfd\x00\x68\x18\x00\x00{\"u";

/// The start of a gzip member: its head, and a stored block of 3 bytes that is not the last one.
const GZIP: &[u8] = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\x00\x03\x00\xfc\xff{\"u";

/// The state of a server.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// One campaign.
    Empty,
    /// 9,000 campaigns with titles and labels, and 1,000 long line-ups.
    Lists,
    /// 10,000 redeemed codes.
    Codes,
}

impl Stage {
    /// Sends everything.
    pub fn prepare(self, server: &Server, key: &str) -> Result<()> {
        let mut client = Client::connect(server.http)?;
        let bench = Request::http("PUT", "/v1/campaigns/bench", r#"{"capacity":1000000}"#, 201);
        client.call(&bench.with_key(key))?;
        match self {
            Stage::Empty => Ok(()),
            Stage::Lists => lists(server, key),
            Stage::Codes => codes(server, key),
        }
    }
}

fn lists(server: &Server, key: &str) -> Result<()> {
    let labels: Vec<_> = (0..16)
        .map(|number| format!(r#""label-{number:02}":"{}""#, "v".repeat(64)))
        .collect();
    let campaign = format!(
        r#"{{"capacity":100,"title":"{}","labels":{{{}}}}}"#,
        "A title of a campaign. ".repeat(8),
        labels.join(",")
    );
    let put = Request::http("PUT", &format!("/v1/campaigns/{ITEM}"), &campaign, 201);
    repeat(server, put.with_key(key), FILTERS)?;
    let campaigns: Vec<_> = (0..CAMPAIGNS_OF_LINE_UP)
        .map(|number| format!(r#""{number:0128}""#))
        .collect();
    let line_up = format!(r#"{{"campaigns":[{}],"limit":1}}"#, campaigns.join(","));
    let put = Request::http("PUT", &format!("/v1/line-ups/{ITEM}"), &line_up, 201);
    repeat(server, put.with_key(key), LINE_UPS)
}

fn codes(server: &Server, key: &str) -> Result<()> {
    let mut client = Client::connect(server.http)?;
    let coupon = format!(r#"{{"capacity":{CODES},"mode":"strict"}}"#);
    client.call(&Request::http("PUT", "/v1/coupons/bench", &coupon, 201).with_key(key))?;
    client.call(
        &Request::http("POST", "/v1/coupons/bench/codes", &codes_body(), 200).with_key(key),
    )?;
    let redeem = format!(
        r#"{{"code":"{ITEM}","reference":"{}"}}"#,
        "order-".repeat(21)
    );
    let redeem = Request::http("POST", "/v1/coupons/bench/redemptions", &redeem, 201);
    repeat(server, redeem.with_key(key), CODES as usize)
}

/// A list of the codes that requests with unique items use.
fn codes_body() -> String {
    let codes = (1..=CODES).map(|number| format!("\"{}\"", item(Numbers::unique(number))));
    format!(r#"{{"codes":[{}]}}"#, codes.collect::<Vec<_>>().join(","))
}

/// Sends a request with other items `count` times.
fn repeat(server: &Server, mut request: Request, count: usize) -> Result<()> {
    let duration = Duration::from_secs(120);
    let is_over = &NEVER;
    let plan = Plan {
        connections: 50,
        pipeline: 1,
        duration,
        requests_max: count,
        rate: None,
        is_over,
    };
    let outcome = run(server.http, &mut request, &mut Numbers::new(), &plan)?;
    match outcome.latencies.len() >= count {
        true => Ok(()),
        false => Err("the server was prepared too slowly".into()),
    }
}

/// A lookup of all codes.
pub fn look_up() -> Request {
    Request::http("POST", "/v1/coupons/bench/codes/lookup", &codes_body(), 200)
}

/// A short import.
pub fn import() -> Request {
    let lines: String = (0..100)
        .map(|number| format!("{}\n", item(number)))
        .collect();
    let head = http_head(
        "POST",
        "/v1/campaigns/bench/imports",
        "text/plain",
        lines.len(),
    );
    Request::new(format!("{head}{lines}").into_bytes(), Some(200))
}

/// The first bytes of a request's head; none of a silent connection.
pub fn head_start(bytes: usize) -> Vec<u8> {
    let mut head = b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX: ".to_vec();
    head.resize(bytes, b'x');
    head
}

/// A check whose body starts and does not end.
pub fn unfinished_check(key: &str, coding: Option<&str>, start: &[u8]) -> Vec<u8> {
    let head = http_head(
        "POST",
        "/v1/campaigns/bench/users/check",
        "application/json",
        CLAIMED_BYTES,
    );
    let mut request = Request::new(head.into_bytes(), Some(200)).with_key(key);
    if let Some(coding) = coding {
        request = request.with_header(&format!("Content-Encoding: {coding}"));
    }
    request.bytes.extend_from_slice(start);
    request.bytes
}

/// The bodies of 57 connections of a key that may only read.
pub fn unfinished_bodies(key: &str) -> Vec<Vec<u8>> {
    let mut plain = br#"{"users":[""#.to_vec();
    plain.resize(PLAIN_BYTES, b'u');
    let zstd = (0..27).map(|_| unfinished_check(key, Some("zstd"), ZSTD));
    let gzip = (0..22).map(|_| unfinished_check(key, Some("gzip"), GZIP));
    let plain = (0..8).map(|_| unfinished_check(key, None, &plain));
    zstd.chain(gzip).chain(plain).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Items;

    #[test]
    fn codes_are_those_of_unique_requests() {
        let mut request = Request::resp(&[ITEM]);
        let mut numbers = Numbers::new();
        request.items = Items::Unique;
        let body = codes_body();
        for _ in 0..100 {
            let mut out = Vec::new();
            request.append(&mut numbers, &mut out);
            let text = String::from_utf8(out).unwrap();
            let code = text.lines().last().unwrap();
            assert!(body.contains(&format!("\"{code}\"")), "{code}");
        }
    }

    #[test]
    fn unfinished_body_is_shorter_than_claimed() {
        for body in unfinished_bodies("key") {
            let head = body
                .windows(4)
                .position(|four| four == b"\r\n\r\n")
                .unwrap();
            assert!(body.len() - head < CLAIMED_BYTES);
            assert!(String::from_utf8_lossy(&body[..head]).contains("Authorization: Bearer key"));
        }
    }
}
