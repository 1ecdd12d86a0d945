//! How it ends: not by SIGHUP; by SIGTERM, announced and after running requests; and with an error after storage has failed.

use crate::service::Service;
use crate::{TIMEOUT, program, until};
use serde_json::json;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;

#[test]
fn sighup_without_certificate_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let service = Service::start_ready(program(), &directory.path().join("data"), &[]);
    service.hang_up();
    let told = service
        .output()
        .wait_for(TIMEOUT, |line| line.contains("SIGHUP").then_some(()));
    assert!(told.is_some(), "the signal went unheard");
    assert_eq!(service.client().get("/readyz").unwrap().status, 200);
    assert_eq!(service.terminate().code(), Some(0));
}

#[test]
fn sigterm_completes_requests_in_flight() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let service = Service::start_ready(program(), &data, &[]);
    let client = service.client();
    assert_eq!(
        client
            .put("/v1/campaigns/spring", &json!({ "capacity": 100 }))
            .unwrap()
            .status,
        201
    );

    let mut upload = TcpStream::connect(client.address()).unwrap();
    upload.set_read_timeout(Some(TIMEOUT)).unwrap();
    let head = "POST /v1/campaigns/spring/imports?id=slow HTTP/1.1\r\nHost: localhost\r\n\
                Content-Type: text/plain\r\nContent-Length: 6\r\n\r\nu1\n";
    upload.write_all(head.as_bytes()).unwrap();
    until("the import runs", || {
        client.get("/v1/imports/slow").unwrap().body["state"] == "running"
    });
    service.begin_termination();
    until("new connections are refused", || {
        TcpStream::connect(client.address()).is_err()
    });
    upload.write_all(b"u2\n").unwrap();
    let mut answer = String::new();
    upload.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(
        answer.contains(r#""state":"done""#) && answer.contains(r#""added":2"#),
        "{answer}"
    );
    assert_eq!(service.wait().code(), Some(0));

    let service = Service::start_ready(program(), &data, &[]);
    let users = json!({ "users": ["u1", "u2"] });
    let present = service
        .client()
        .post("/v1/campaigns/spring/users/check", &users)
        .unwrap()
        .body;
    assert_eq!(present, json!({ "present": [true, true] }));
}

#[test]
fn readiness_fails_before_listener_closes() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    // All that is asked for within the delay waits for no disk.
    let settings = [
        ("CUCKOOD__SERVER__DRAIN_DELAY", "5s"),
        ("CUCKOOD__STORAGE__DURABILITY", "relaxed"),
    ];
    let service = Service::start_ready(program(), &data, &settings);
    let client = service.client();
    service.begin_termination();
    until("the stop is announced", || {
        client.another().get("/readyz").unwrap().body["code"] == "draining"
    });
    // A client that has not seen it yet is served as before, also over new connections.
    let newcomer = client.another();
    assert_eq!(
        newcomer
            .put("/v1/campaigns/spring", &json!({ "capacity": 100 }))
            .unwrap()
            .status,
        201
    );
    assert_eq!(client.get("/v1/campaigns/spring").unwrap().status, 200);
    assert_eq!(client.get("/livez").unwrap().status, 200);
    assert_eq!(newcomer.get("/readyz").unwrap().status, 503);
    until("new connections are refused", || {
        TcpStream::connect(client.address()).is_err()
    });
    assert_eq!(service.wait().code(), Some(0));
}

/// Lines of an import, in chunks as HTTP sends them.
fn chunks(lines: std::ops::Range<u64>) -> Vec<u8> {
    let text: String = lines.map(|line| format!("user-{line}\n")).collect();
    format!("{:x}\r\n{text}\r\n", text.len()).into_bytes()
}

#[test]
fn overlong_upload_continues_after_restart() {
    const LINES: u64 = 5_000;
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let service = Service::start_ready(
        program(),
        &data,
        &[("CUCKOOD__SERVER__DRAIN_TIMEOUT", "8s")],
    );
    let client = service.client();
    assert_eq!(
        client
            .put("/v1/campaigns/spring", &json!({ "capacity": 100_000 }))
            .unwrap()
            .status,
        201
    );
    let mut upload = TcpStream::connect(client.address()).unwrap();
    upload.set_read_timeout(Some(TIMEOUT)).unwrap();
    let head = "POST /v1/campaigns/spring/imports?id=nightly HTTP/1.1\r\nHost: localhost\r\n\
                Content-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n";
    upload.write_all(head.as_bytes()).unwrap();
    // It never pauses, and does not listen while it sends.
    let mut sending = upload.try_clone().unwrap();
    let sender = std::thread::spawn(move || {
        let mut sent = 0;
        while sending.write_all(&chunks(sent..sent + LINES)).is_ok() {
            sent += LINES;
        }
    });
    let lines = || {
        client.get("/v1/imports/nightly").unwrap().body["lines"]
            .as_u64()
            .unwrap_or(0)
    };
    until("lines are durable", || lines() > 10_000);
    service.begin_termination();
    let mut answer = Vec::new();
    let mut bytes = [0; 1_024];
    while !String::from_utf8_lossy(&answer).contains("request_id") {
        let read = upload.read(&mut bytes).unwrap();
        assert!(read > 0, "no answer: {}", String::from_utf8_lossy(&answer));
        answer.extend_from_slice(&bytes[..read]);
    }
    let answer = String::from_utf8(answer).unwrap();
    assert!(
        answer.starts_with("HTTP/1.1 503") && answer.contains(r#""code":"draining""#),
        "{answer}"
    );
    assert!(answer.contains("under the same id"), "{answer}");
    drop(upload);
    assert_eq!(service.wait().code(), Some(0));
    sender.join().unwrap();

    let service = Service::start_ready(program(), &data, &[]);
    let client = service.client();
    let broken = client.get("/v1/imports/nightly").unwrap().body;
    assert_eq!(broken["state"], "interrupted", "{broken}");
    let durable = broken["lines"].as_u64().unwrap();
    assert!(durable > 10_000, "{broken}");
    let whole: String = (0..durable + 10)
        .map(|line| format!("user-{line}\n"))
        .collect();
    let path = "/v1/campaigns/spring/imports?id=nightly";
    let done = client.import(path, std::io::Cursor::new(whole)).unwrap();
    assert_eq!(
        (done.status, &done.body["state"]),
        (200, &json!("done")),
        "{done:?}"
    );
    assert_eq!(
        (&done.body["lines"], &done.body["added"]),
        (&json!(durable + 10), &json!(durable + 10))
    );
    assert_eq!(service.terminate().code(), Some(0));
}

#[test]
fn storage_failure_sets_exit_status() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    // Deaf to SIGXFSZ, it gets an error from a write that goes beyond its limit.
    let mut command = Command::new("sh");
    command
        .args(["-c", r#"trap "" XFSZ; exec "$0" serve"#])
        .arg(program());
    let service = Service::spawn(command.env("CUCKOOD__STORAGE__PATH", &data));
    let client = service.client();
    until("ready", || client.get("/readyz").unwrap().status == 200);
    assert_eq!(
        client
            .put("/v1/campaigns/spring", &json!({ "capacity": 100 }))
            .unwrap()
            .status,
        201
    );
    let add = |user: &str| {
        client
            .post("/v1/campaigns/spring/users", &json!({ "users": [user] }))
            .unwrap()
    };
    let present = |service: &Service| {
        let users = json!({ "users": ["u1"] });
        service
            .client()
            .post("/v1/campaigns/spring/users/check", &users)
            .unwrap()
            .body
    };
    assert_eq!(add("u1").status, 200);

    // From now on no file may be written.
    service.limit_files(0);
    let refused = add("u2");
    assert_eq!(
        (refused.status, &refused.body["code"]),
        (503, &json!("storage-failed")),
        "{refused:?}"
    );
    assert_eq!(add("u3").body["code"], "storage-failed");
    assert_eq!(client.get("/readyz").unwrap().status, 503);
    assert_eq!(
        present(&service),
        json!({ "present": [true] }),
        "reads go on"
    );
    assert_eq!(service.terminate().code(), Some(1));

    let service = Service::start_ready(program(), &data, &[]);
    assert_eq!(
        present(&service),
        json!({ "present": [true] }),
        "what was acknowledged is there"
    );
    assert_eq!(service.terminate().code(), Some(0));
}
