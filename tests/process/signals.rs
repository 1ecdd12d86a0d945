//! How it ends: not by SIGHUP; by SIGTERM, once what is under way is done; and never well after storage has failed.

use crate::service::Service;
use crate::{PATIENCE, program, until};
use serde_json::json;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;

#[test]
fn sighup_without_a_certificate_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let service = Service::start_ready(program(), &directory.path().join("data"), &[]);
    service.hang_up();
    let told = service.output().wait_for(PATIENCE, |line| line.contains("SIGHUP").then_some(()));
    assert!(told.is_some(), "the signal went unheard");
    assert_eq!(service.client().get("/readyz").unwrap().status, 200);
    assert_eq!(service.terminate().code(), Some(0));
}

#[test]
fn sigterm_lets_what_is_under_way_end() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let service = Service::start_ready(program(), &data, &[]);
    let client = service.client();
    assert_eq!(client.put("/v1/campaigns/spring", &json!({ "capacity": 100 })).unwrap().status, 201);

    let mut upload = TcpStream::connect(client.address()).unwrap();
    upload.set_read_timeout(Some(PATIENCE)).unwrap();
    let head = "POST /v1/campaigns/spring/imports?id=slow HTTP/1.1\r\nHost: localhost\r\n\
                Content-Type: text/plain\r\nContent-Length: 6\r\n\r\nu1\n";
    upload.write_all(head.as_bytes()).unwrap();
    until("the import runs", || client.get("/v1/imports/slow").unwrap().body["state"] == "running");
    service.begin_termination();
    until("nobody new is let in", || TcpStream::connect(client.address()).is_err());
    upload.write_all(b"u2\n").unwrap();
    let mut answer = String::new();
    upload.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(answer.contains(r#""state":"done""#) && answer.contains(r#""added":2"#), "{answer}");
    assert_eq!(service.wait().code(), Some(0));

    let service = Service::start_ready(program(), &data, &[]);
    let users = json!({ "users": ["u1", "u2"] });
    let present = service.client().post("/v1/campaigns/spring/users/check", &users).unwrap().body;
    assert_eq!(present, json!({ "present": [true, true] }));
}

#[test]
fn the_end_after_a_storage_failure_is_a_failure() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    // Deaf to SIGXFSZ, it gets an error from a write that goes beyond its limit.
    let mut command = Command::new("sh");
    command.args(["-c", r#"trap "" XFSZ; exec "$0" serve"#]).arg(program());
    let service = Service::spawn(command.env("CUCKOOD__STORAGE__PATH", &data));
    let client = service.client();
    until("ready", || client.get("/readyz").unwrap().status == 200);
    assert_eq!(client.put("/v1/campaigns/spring", &json!({ "capacity": 100 })).unwrap().status, 201);
    let add = |user: &str| client.post("/v1/campaigns/spring/users", &json!({ "users": [user] })).unwrap();
    let present = |service: &Service| {
        let users = json!({ "users": ["u1"] });
        service.client().post("/v1/campaigns/spring/users/check", &users).unwrap().body
    };
    assert_eq!(add("u1").status, 200);

    // From now on no file may be written.
    service.limit_files(0);
    let refused = add("u2");
    assert_eq!((refused.status, &refused.body["code"]), (503, &json!("storage-failed")), "{refused:?}");
    assert_eq!(add("u3").body["code"], "storage-failed");
    assert_eq!(client.get("/readyz").unwrap().status, 503);
    assert_eq!(present(&service), json!({ "present": [true] }), "reads go on");
    assert_eq!(service.terminate().code(), Some(1));

    let service = Service::start_ready(program(), &data, &[]);
    assert_eq!(present(&service), json!({ "present": [true] }), "what was acknowledged is there");
    assert_eq!(service.terminate().code(), Some(0));
}
