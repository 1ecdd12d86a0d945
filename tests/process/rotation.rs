//! Keys and certificates are exchanged under load without a failed request; and expiry is logged in advance.

use crate::api_keys::new_key;
use crate::certificates::{pair, was_logged};
use crate::program;
use crate::service::{Client, Service};
use serde_json::json;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tempfile::TempDir;

/// A directory with the service's files.
struct Files(TempDir);

impl Files {
    fn new() -> Files {
        Files(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn put_keys(&self, entries: &[&str]) {
        fs::write(
            self.path("cuckood.toml"),
            format!("[auth]\nkeys = [{}]\n", entries.join(", ")),
        )
        .unwrap();
    }

    fn start(&self) -> Service {
        let path = |name: &str| self.path(name).display().to_string();
        let mut command = Command::new(program());
        command
            .arg("serve")
            .arg("--config")
            .arg(self.path("cuckood.toml"));
        command.env("CUCKOOD__STORAGE__PATH", path("data"));
        if Path::new(&path("cert.pem")).exists() {
            command.env("CUCKOOD__SERVER__TLS_CERT", path("cert.pem"));
            command.env("CUCKOOD__SERVER__TLS_KEY", path("key.pem"));
        }
        Service::spawn(&mut command)
    }
}

fn status(client: &Client, key: &str) -> u16 {
    let authorization = format!("Bearer {key}");
    client
        .send(
            "GET",
            "/v1/campaigns",
            &[("Authorization", &authorization)],
            b"",
        )
        .unwrap()
        .status
}

/// Sends requests with a key until `stop` is set, a third of them over new connections, and counts successful ones. A failed request ends
/// it.
fn load(client: &Client, key: &str, stop: &AtomicBool, served: &AtomicU64) -> Result<(), String> {
    let authorization = format!("Bearer {key}");
    let headers = [
        ("Authorization", authorization.as_str()),
        ("Content-Type", "application/json"),
    ];
    for round in 0u64.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let client = if round.is_multiple_of(3) {
            client.another()
        } else {
            client.clone()
        };
        let body = json!({ "users": [format!("user-{round}")] }).to_string();
        let answer = client.send(
            "POST",
            "/v1/campaigns/spring/users/check",
            &headers,
            body.as_bytes(),
        );
        match answer {
            Ok(answer) if answer.status == 200 => served.fetch_add(1, Ordering::Relaxed),
            other => return Err(format!("{other:?}")),
        };
    }
    Ok(())
}

#[test]
fn rotation_under_load_fails_no_request() {
    let files = Files::new();
    let first = pair();
    let second = pair();
    let put = |pair: &crate::certificates::Pair| {
        fs::write(files.path("cert.pem"), pair.certificate.pem()).unwrap();
        fs::write(files.path("key.pem"), &pair.key).unwrap();
    };
    put(&first);
    let (lasting, lasting_entry) = new_key("lasting", "read,write");
    let (old, old_entry) = new_key("shop-old", "read");
    let (new, new_entry) = new_key("shop-new", "read");
    files.put_keys(&[&lasting_entry, &old_entry]);
    let service = files.start();
    let client = service.client_trusting_all(&[first.certificate.der(), second.certificate.der()]);
    crate::until("ready", || client.get("/readyz").unwrap().status == 200);
    let spec = br#"{"capacity": 100}"#;
    let headers = [
        ("Authorization", &*format!("Bearer {lasting}")),
        ("Content-Type", "application/json"),
    ];
    assert_eq!(
        client
            .send("PUT", "/v1/campaigns/spring", &headers, spec)
            .unwrap()
            .status,
        201
    );

    let stop = AtomicBool::new(false);
    let served = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let loads: Vec<_> = (0..3)
            .map(|_| scope.spawn(|| load(&client.another(), &lasting, &stop, &served)))
            .collect();
        let go_on = || {
            let before = served.load(Ordering::Relaxed);
            let is_over = || loads.iter().any(|load| load.is_finished());
            crate::until("requests go on", || {
                served.load(Ordering::Relaxed) > before + 50 || is_over()
            });
        };
        let hang_up = |keys_read, certificates_read| {
            service.hang_up();
            assert!(was_logged(&service, "INFO", "reloaded API keys", keys_read));
            assert!(was_logged(
                &service,
                "INFO",
                "reloaded certificate",
                certificates_read
            ));
            go_on();
        };
        go_on();
        assert_eq!((status(&client, &old), status(&client, &new)), (200, 401));
        files.put_keys(&[&new_entry, &lasting_entry, &old_entry]);
        hang_up(1, 1);
        assert_eq!((status(&client, &old), status(&client, &new)), (200, 200));
        put(&second);
        files.put_keys(&[&new_entry, &lasting_entry]);
        hang_up(2, 2);
        assert_eq!((status(&client, &old), status(&client, &new)), (401, 200));

        // Whatever is wrong with the file, the keys stay, and a certificate that is right is taken all the same.
        put(&first);
        for (times, wrong) in (1..).zip([
            "[auth",
            "[auth]\nkeys = []",
            "[auth]\nkyes = []",
            "keys = [{}]",
        ]) {
            fs::write(files.path("cuckood.toml"), wrong).unwrap();
            service.hang_up();
            assert!(
                was_logged(
                    &service,
                    "ERROR",
                    "failed to reload API keys; keeping current keys",
                    times
                ),
                "{wrong}"
            );
            assert_eq!(
                (status(&client, &old), status(&client, &new)),
                (401, 200),
                "{wrong}"
            );
        }
        assert!(was_logged(&service, "INFO", "reloaded certificate", 6));
        go_on();
        stop.store(true, Ordering::Relaxed);
        for load in loads {
            assert_eq!(load.join().unwrap(), Ok(()));
        }
    });
    assert_eq!(service.terminate().code(), Some(0));
}

/// Midnight of the day this many days from now: its date, and the seconds since the epoch.
fn day_in(days: i64) -> (jiff::civil::Date, i64) {
    let now = jiff::Timestamp::now() + jiff::SignedDuration::from_hours(24 * days);
    let date = jiff::tz::Offset::UTC.to_datetime(now).date();
    let seconds = date
        .at(0, 0, 0, 0)
        .duration_since(jiff::civil::date(1970, 1, 1).at(0, 0, 0, 0))
        .as_secs();
    (date, seconds)
}

#[test]
fn expiry_is_warned_and_enforced() {
    let files = Files::new();
    let (soon, soon_seconds) = day_in(5);
    let signing_key = rcgen::KeyPair::generate().unwrap();
    let mut parameters = rcgen::CertificateParams::new(["127.0.0.1".to_string()]).unwrap();
    parameters.not_after =
        rcgen::date_time_ymd(soon.year().into(), soon.month() as u8, soon.day() as u8);
    let certificate = parameters.self_signed(&signing_key).unwrap();
    fs::write(files.path("cert.pem"), certificate.pem()).unwrap();
    fs::write(files.path("key.pem"), signing_key.serialize_pem()).unwrap();
    let (near_day, near_seconds) = day_in(3);
    let until = |entry: &str, day: jiff::civil::Date| {
        let time = format!("expires_at = {day}T00:00:00Z");
        format!("{}, {time} }}", entry.trim_end_matches([' ', '}']))
    };
    let (_, lasting) = new_key("lasting", "read");
    let made = Command::new(program())
        .args([
            "key",
            "new",
            "--name",
            "dated",
            "--expires-at",
            "2099-01-31T00:00:00Z",
        ])
        .output()
        .unwrap();
    let made = String::from_utf8(made.stdout).unwrap();
    let dated = made
        .lines()
        .find_map(|line| line.strip_prefix("entry:"))
        .unwrap();
    assert!(dated.contains("2099-01-31"), "{made}");
    let [(later_key, later), (_, near), (gone_key, gone)] =
        ["later", "near", "gone"].map(|name| new_key(name, "read"));
    let later = until(&later, day_in(100).0);
    let near = until(&near, near_day);
    let gone = until(&gone, day_in(-2).0);
    files.put_keys(&[&lasting, dated, &later, &near, &gone]);
    let service = files.start();
    let client = service.client_trusting(certificate.der());
    crate::until("ready", || client.get("/readyz").unwrap().status == 200);
    assert!(was_logged(&service, "WARN", "certificate expires soon", 1));
    assert!(was_logged(&service, "WARN", "key expires soon", 1));
    assert!(was_logged(&service, "WARN", "key has expired", 1));
    assert_eq!(
        (status(&client, &later_key), status(&client, &gone_key)),
        (200, 401)
    );
    let certificate = service.metric_of(&client, "cuckood_certificate_expiry_timestamp_seconds ");
    assert_eq!(certificate, soon_seconds as u64);
    let key = service.metric_of(
        &client,
        "cuckood_key_expiry_timestamp_seconds{key=\"near\"} ",
    );
    assert_eq!(key, near_seconds as u64);
    let warnings = |message: &str| {
        let lines = service.output().so_far();
        lines
            .iter()
            .filter(|line| line.contains(&format!("\"message\":\"{message}\"")))
            .count()
    };
    assert_eq!(
        (warnings("key expires soon"), warnings("key has expired")),
        (1, 1)
    );
    assert_eq!(service.terminate().code(), Some(0));
}
