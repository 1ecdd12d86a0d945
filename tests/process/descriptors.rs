//! However few files the process may open, and however many connections there are: once it has started, no write, snapshot
//! or backup fails for want of a descriptor.

use crate::service::Service;
use crate::{TIMEOUT, program, until};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;

/// Runs the program with this limit on files, which it may raise to `hard`.
fn start(data: &Path, soft: usize, hard: usize) -> Result<Service, String> {
    let mut command = Command::new("sh");
    command
        .args([
            "-c",
            r#"ulimit -S -n "$1" && ulimit -H -n "$2" && exec "$0" serve"#,
        ])
        .arg(program());
    command
        .args([soft.to_string(), hard.to_string()])
        .env("CUCKOOD__STORAGE__PATH", data);
    Service::try_spawn(&mut command).map_err(|(status, output)| {
        assert_eq!(status.code(), Some(1), "{output}");
        output
    })
}

/// How many connections it serves at once, if that is fewer than configured.
fn connections_max(service: &Service) -> Option<usize> {
    let is_told = |line: &str| {
        let fields = &serde_json::from_str::<Value>(line).ok()?["fields"];
        if fields["message"] == "listening" {
            return Some(None);
        }
        Some(Some(fields["connections_max"].as_u64()? as usize))
    };
    service.output().wait_for(TIMEOUT, is_told).flatten()
}

fn idle(service: &Service, count: usize) -> Vec<TcpStream> {
    (0..count)
        .map(|_| TcpStream::connect(service.client().address()).unwrap())
        .collect()
}

#[test]
fn idle_connections_never_stop_storage() {
    let mut started = Vec::new();
    for files in [256, 160, 96, 80, 64, 48, 40, 24] {
        let directory = tempfile::tempdir().unwrap();
        let data = directory.path().join("data");
        let service = match start(&data, files, files) {
            Ok(service) => service,
            Err(output) => {
                assert!(
                    output.contains("files may be open") || output.contains("open files"),
                    "{files}: {output}"
                );
                continue;
            }
        };
        started.push(files);
        let client = service.client();
        until("ready", || client.get("/readyz").unwrap().status == 200);
        assert_eq!(
            client
                .put("/v1/campaigns/spring", &json!({ "capacity": 1_000 }))
                .unwrap()
                .status,
            201
        );
        let places = connections_max(&service);
        let connections = idle(&service, files + 20);
        let before = service.open_files();
        until("no more are accepted", || match places {
            // One of them waits for its place.
            Some(places) => service.open_files() >= (before + 1).min(files).min(places),
            None => service.open_files() >= files,
        });
        for round in 0..3 {
            let users = json!({ "users": [format!("u{round}")] });
            let added = client.post("/v1/campaigns/spring/users", &users).unwrap();
            assert_eq!(added.status, 200, "{files} files: {added:?}");
            let snapshot = client.post("/v1/snapshots", &json!({})).unwrap();
            assert_eq!(snapshot.status, 200, "{files} files: {snapshot:?}");
            let backup = directory.path().join(format!("backup-{round}"));
            let url = format!("http://{}", client.address());
            let made = Command::new(program())
                .arg("backup")
                .arg(&backup)
                .args(["--url", &url])
                .output()
                .unwrap();
            assert!(made.status.success(), "{files} files: {made:?}");
        }
        let users = json!({ "users": ["u0", "u1", "u2"] });
        let present = client
            .another()
            .post("/v1/campaigns/spring/users/check", &users)
            .unwrap()
            .body;
        assert_eq!(present, json!({ "present": [true, true, true] }));
        drop(connections);
        assert_eq!(service.terminate().code(), Some(0));
    }
    assert!(
        started.contains(&160) && started.contains(&256),
        "{started:?}"
    );
}

#[test]
fn file_limit_is_raised_to_maximum() {
    let directory = tempfile::tempdir().unwrap();
    let service =
        start(&directory.path().join("data"), 80, 400).unwrap_or_else(|output| panic!("{output}"));
    let mut connections = idle(&service, 200);
    // All at once, and each is answered.
    for connection in &mut connections {
        connection.set_read_timeout(Some(TIMEOUT)).unwrap();
        connection
            .write_all(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
            .unwrap();
    }
    for connection in &mut connections {
        let mut status = [0; 15];
        connection.read_exact(&mut status).unwrap();
        assert_eq!(&status, b"HTTP/1.1 200 OK");
    }
    assert!(service.open_files() > 200);
}
