//! Codes, user ids, API keys, idempotency keys and names of end users never leave the process: not in its output at the
//! most talkative level, not in its answers, not in its files.

use crate::program;
use crate::service::{Client, Service};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;

/// The prefix of every secret value.
const MARK: &str = "Zw7sEcReT";

/// Must be logged, and is: the search for it would find the others.
const TOLD: &str = "TellMe";

/// The logs of all crates.
const LEVEL: &str = "trace,axum=trace,hyper=trace,hyper_util=trace,mio=trace,rustls=trace,sled=trace,tokio=trace,tower_http=trace";

/// Sends everything with keys, and looks at every answer.
struct Caller<'a> {
    client: Client,
    key: String,
    sent: &'a mut u64,
}

impl Caller<'_> {
    fn send(&mut self, method: &str, path: &str, media_type: &str, body: &[u8]) -> Value {
        *self.sent += 1;
        let bearer = format!("Bearer {}", self.key);
        let idempotency = format!("{MARK}-key-{}", self.sent);
        let request = format!("{TOLD}-{}", self.sent);
        let headers = [
            ("Authorization", bearer.as_str()),
            ("Idempotency-Key", &idempotency),
            ("X-Client-Id", &format!("{MARK}-end-user")),
            ("X-Request-Id", &request),
            ("Content-Type", media_type),
        ];
        let answer = self.client.send(method, path, &headers, body).unwrap();
        let text = answer.body.to_string();
        assert!(!text.contains(MARK), "{method} {path} answered {text}");
        answer.body
    }

    fn json(&mut self, method: &str, path: &str, body: &Value) -> Value {
        self.send(
            method,
            path,
            "application/json",
            body.to_string().as_bytes(),
        )
    }

    fn post(&mut self, path: &str, body: Value) -> Value {
        self.json("POST", path, &body)
    }
}

fn item(name: &str) -> String {
    format!("{MARK}-{name}")
}

/// Requests that succeed, or are rejected by their content.
fn well_formed(caller: &mut Caller<'_>) {
    for path in [
        "/v1/campaigns/spring",
        "/v1/campaigns/small",
        "/v1/coupons/welcome",
    ] {
        let spec = json!({ "capacity": 1_000, "mode": "strict", "growth": "fixed" });
        assert_eq!(caller.json("PUT", path, &spec)["mode"], "strict");
    }
    let users = json!([item("u1"), item("u2")]);
    for operation in ["", "/check", "/count", "/remove"] {
        caller.post(
            &format!("/v1/campaigns/spring/users{operation}"),
            json!({ "users": users }),
        );
        caller.post(
            &format!("/v1/coupons/welcome/codes{operation}"),
            json!({ "codes": users }),
        );
    }
    let pairs = json!({ "replacements": [{ "from": item("u1"), "to": item("u3") }] });
    caller.post("/v1/campaigns/spring/users/replace", pairs.clone());
    caller.post("/v1/coupons/welcome/codes/replace", pairs);
    let many: Vec<String> = (0..5_000).map(|n| item(&format!("many-{n}"))).collect();
    assert_eq!(
        caller.post("/v1/campaigns/small/users", json!({ "users": many }))["code"],
        "filter-full"
    );
    let asked = json!({ "user": item("u1"), "campaigns": ["spring"] });
    caller.post("/v1/eligibility", asked.clone());
    caller.post("/v1/eligibility/batch", json!({ "requests": [asked] }));

    caller.post(
        "/v1/coupons/welcome/codes",
        json!({ "codes": [item("A"), item("B")] }),
    );
    let redemptions = "/v1/coupons/welcome/redemptions";
    let redeem = |code: &str, hold: u64| {
        let reference = format!("{TOLD}-order");
        json!({ "code": item(code), "reference": reference, "hold_seconds": hold })
    };
    let held = caller.post(redemptions, redeem("A", 60));
    let id = held["id"].as_str().unwrap();
    caller.post(&format!("{redemptions}/{id}/confirm"), json!({}));
    caller.post(&format!("{redemptions}/{id}/cancel"), json!({}));
    assert_eq!(
        caller.post(redemptions, redeem("B", 0))["status"],
        "redeemed"
    );
    assert_eq!(
        caller.post(redemptions, redeem("NEVER", 0))["code"],
        "code-unknown"
    );
    caller.post(
        "/v1/coupons/welcome/codes",
        json!({ "codes": [item("B")], "revive": true }),
    );
    caller.post("/v1/campaigns/small/clear", json!({}));
    caller.send("DELETE", "/v1/campaigns/small", "application/json", b"");
    // It fails, and the log contains it: the memory doesn't exist.
    let huge = json!({ "capacity": 4_000_000_000_u64, "mode": "strict" });
    assert_eq!(
        caller.json("PUT", "/v1/campaigns/huge", &huge)["code"],
        "memory-limit"
    );
    caller.send("GET", "/v1/info", "application/json", b"");
    caller.post("/v1/snapshots", json!({}));
}

/// Bodies with an item where none should be, or cut off in the middle of it.
fn malformed(caller: &mut Caller<'_>) {
    let item = item("lost");
    let bodies = [
        format!(r#"{{"users":["{item}"#),
        format!(r#"{{"users":["{item}",]}}"#),
        format!(r#"{{"users":["{item}"],"if_absent":"{item}"}}"#),
        format!(r#"{{"users":"{item}"}}"#),
        format!(r#"{{"users":{{"x":"{item}"}}}}"#),
        format!(r#"{{"users":[["{item}"]]}}"#),
        format!(r#"{{"users":["{item}{}"]}}"#, "x".repeat(600)),
        format!(r#"{{"codes":["{item}"],"revive":"{item}"}}"#),
        format!(r#"{{"code":["{item}"],"reference":"r","hold_seconds":"{item}"}}"#),
        format!(r#"{{"code":"{item}","reference":"{}"}}"#, "r".repeat(200)),
        format!(r#"{{"replacements":[{{"from":"{item}","to":7}},"{item}"]}}"#),
        format!(r#"{{"user":["{item}"],"campaigns":"{item}"}}"#),
        format!(r#"{{"capacity":"{item}"}}"#),
        format!(r#"{{"capacity":1,"mode":"{item}"}}"#),
        format!(r#"{{"ends_at":"{item}"}}"#),
        format!(r#""{item}""#),
        item.clone(),
    ];
    let routes = [
        ("POST", "/v1/campaigns/spring/users"),
        ("POST", "/v1/campaigns/spring/users/replace"),
        ("POST", "/v1/coupons/welcome/codes"),
        ("POST", "/v1/coupons/welcome/codes/check"),
        ("POST", "/v1/coupons/welcome/redemptions"),
        ("POST", "/v1/eligibility"),
        ("POST", "/v1/eligibility/batch"),
        ("PUT", "/v1/campaigns/other"),
        ("PATCH", "/v1/campaigns/spring"),
        ("POST", "/v1/campaigns/none/users"),
        ("POST", "/v1/nothing"),
        ("TRACE", "/v1/campaigns/spring/users"),
    ];
    for (method, path) in routes {
        for body in &bodies {
            caller.send(method, path, "application/json", body.as_bytes());
        }
        caller.send(method, path, "text/plain", item.as_bytes());
    }
}

fn imports(caller: &mut Caller<'_>) {
    let item = item("line");
    let long = "x".repeat(600);
    let text = format!("{item}\n\n{item}{long}\n\u{feff}{item}\n");
    let lines = format!(
        "\"{item}\"\n{{\"item\":\"{item}\"}}\n{{\"item\":[\"{item}\"]}}\n{item}\n\"{item}\n"
    );
    let table = format!("name,code\nx,{item}\n{item}\n\"{item}\"x,\"{item}\n");
    for target in [
        "/v1/campaigns/spring/imports",
        "/v1/coupons/welcome/imports",
    ] {
        for mode in ["append", "replace"] {
            let path = format!("{target}?mode={mode}");
            let done = caller.send("POST", &path, "text/plain", text.as_bytes());
            assert_eq!(
                (&done["state"], &done["rejected"]),
                (&json!("done"), &json!(1)),
                "{done}"
            );
            caller.send("POST", &path, "application/x-ndjson", lines.as_bytes());
            caller.send(
                "POST",
                &format!("{path}&column=code"),
                "text/csv",
                table.as_bytes(),
            );
            caller.send(
                "POST",
                &format!("{path}&column=none"),
                "text/csv",
                table.as_bytes(),
            );
            caller.send(
                "POST",
                &path,
                "text/plain",
                format!("\u{feff}{item}\n").as_bytes(),
            );
        }
    }
}

/// Keys that are not known, and requests that are hardly HTTP.
fn strangers(caller: &mut Caller<'_>) {
    let known = std::mem::replace(&mut caller.key, item("unknown-key"));
    assert_eq!(
        caller.send("GET", "/v1/info", "application/json", b"")["code"],
        "unauthenticated"
    );
    caller.key = known;
    let item = item("broken");
    let key = &caller.key;
    let whole = format!(
        "Authorization: Bearer {key}\r\nIdempotency-Key: {item}\r\nContent-Length: 100\r\n"
    );
    let requests = [
        // Broken off within its body,
        format!(
            "POST /v1/campaigns/spring/users HTTP/1.1\r\nHost: c\r\nContent-Type: application/json\r\n{whole}\r\n\
             {{\"users\":[\"{item}\""
        ),
        format!(
            "POST /v1/campaigns/spring/imports HTTP/1.1\r\nHost: c\r\nContent-Type: text/plain\r\n{whole}\r\n{item}\n"
        ),
        // not compressed though it says so,
        format!(
            "POST /v1/campaigns/spring/users HTTP/1.1\r\nHost: c\r\nContent-Type: application/json\r\n\
             Content-Encoding: gzip\r\n{whole}\r\n{item}"
        ),
        // keys that are invalid, and input that is not HTTP.
        format!("GET /v1/info HTTP/1.1\r\nHost: c\r\nAuthorization: {item} {key}\r\n\r\n"),
        format!(
            "DELETE /v1/campaigns/none HTTP/1.1\r\nHost: c\r\nIdempotency-Key: {item} {item}\r\n\r\n"
        ),
        format!("GET /v1/info HTTP/1.1\r\nHost: c\r\n{item}\r\n\r\n"),
        format!("{item}\r\n\r\n"),
    ];
    for request in requests {
        let mut stream = TcpStream::connect(caller.client.address()).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        // Input that is not HTTP may find the connection reset.
        let _ = stream.read_to_end(&mut answer);
        assert!(
            !String::from_utf8_lossy(&answer).contains(MARK),
            "{request} was answered with it"
        );
    }
}

fn contains(bytes: &[u8], text: &str) -> bool {
    bytes
        .windows(text.len())
        .any(|window| window == text.as_bytes())
}

/// Every file under a folder, with its content.
fn files(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(files(&path)),
            false => found.push((path.display().to_string(), fs::read(&path).unwrap())),
        }
    }
    found
}

#[test]
fn items_and_keys_are_never_leaked() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let key = item("api-key");
    let sha256: String = Sha256::digest(&key)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let keys = format!(r#"[{{name="root", sha256="{sha256}", scopes=["admin"]}}]"#);
    let settings = [
        ("CUCKOOD__LOG__LEVEL", LEVEL),
        ("CUCKOOD__TELEMETRY__SLOW_REQUEST", "1us"),
        ("CUCKOOD__AUTH__KEYS", keys.as_str()),
        ("CUCKOOD__GUESSING__TRUSTED_KEYS", r#"["root"]"#),
        ("CUCKOOD__GUESSING__INVALID_CODES_PER_MINUTE", "100000"),
        ("CUCKOOD__LIMITS__MEMORY", "64MiB"),
        ("CUCKOOD__STORAGE__BALLAST", "0"),
        ("RUST_LOG", "trace"),
        ("RUST_BACKTRACE", "1"),
    ];
    let mut sent = 0;
    let mut output = Vec::new();
    for life in 0..2 {
        let service = Service::start_ready(program(), &data, &settings);
        let mut caller = Caller {
            client: service.client(),
            key: key.clone(),
            sent: &mut sent,
        };
        if life == 0 {
            well_formed(&mut caller);
            malformed(&mut caller);
        }
        imports(&mut caller);
        strangers(&mut caller);
        let lines = service.output().clone();
        if life == 0 {
            service.kill();
        } else {
            assert_eq!(service.terminate().code(), Some(0));
        }
        output.extend(lines.whole());
    }
    let leaks: Vec<&String> = output.iter().filter(|line| line.contains(MARK)).collect();
    assert!(
        leaks.is_empty(),
        "{} of {} lines tell: {leaks:#?}",
        leaks.len(),
        output.len()
    );
    for level in ["TRACE", "DEBUG", "INFO", "WARN"] {
        assert!(
            output
                .iter()
                .any(|line| line.contains(&format!(r#""level":"{level}""#))),
            "no {level}"
        );
    }
    assert!(
        output.iter().any(|line| line.contains(TOLD)),
        "no request was told of"
    );
    assert!(
        output
            .iter()
            .any(|line| line.contains("a request was slow")),
        "no slow request was told of"
    );
    // At its end a thread may log while its thread-local storage is destroyed, in which tracing has its buffer.
    let is_panic = |pair: &&[String]| {
        pair[0].contains("panicked") && !pair[1].contains("during or after destruction")
    };
    let panic = output.windows(2).find(is_panic);
    assert!(panic.is_none(), "{panic:?}");

    let files = files(&data);
    for (path, bytes) in &files {
        assert!(!contains(bytes, MARK), "{path} holds what it must not");
    }
    assert!(
        files.iter().any(|(_, bytes)| contains(bytes, TOLD)),
        "references are stored as given"
    );
}
