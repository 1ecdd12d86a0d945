//! API keys with the real program: made by it, named in its configuration file, asked for beyond loopback.

use crate::program;
use crate::service::{Client, Service};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::process::Command;

/// A key and its entry, as `cuckood key new` prints them.
pub(crate) fn new_key(name: &str, scopes: &str) -> (String, String) {
    let made = Command::new(program())
        .args(["key", "new", "--name", name, "--scopes", scopes])
        .output();
    let printed = String::from_utf8(made.unwrap().stdout).unwrap();
    let value = |label: &str| {
        let line = printed.lines().find_map(|line| line.strip_prefix(label));
        line.unwrap_or_else(|| panic!("no {label} in {printed}"))
            .trim()
            .to_string()
    };
    (value("key:"), value("entry:"))
}

fn ask(client: &Client, key: &str, method: &str, path: &str, body: &Value) -> (u16, String) {
    let bearer = format!("Bearer {key}");
    let headers = [
        ("Content-Type", "application/json"),
        ("Authorization", bearer.as_str()),
    ];
    let headers = if key.is_empty() {
        &headers[..1]
    } else {
        &headers[..]
    };
    let body = if body.is_null() {
        String::new()
    } else {
        body.to_string()
    };
    let answer = client.send(method, path, headers, body.as_bytes()).unwrap();
    (
        answer.status,
        answer.body["code"].as_str().unwrap_or_default().to_string(),
    )
}

#[test]
fn configured_keys_control_access() {
    let directory = tempfile::tempdir().unwrap();
    let (reader, reader_entry) = new_key("reader", "read");
    let (writer, writer_entry) = new_key("writer", "write,read");
    let (root, root_entry) = new_key("root", "admin");
    assert!(reader != writer && writer != root);
    let file = directory.path().join("cuckood.toml");
    fs::write(
        &file,
        format!("[auth]\nkeys = [\n{reader_entry},\n{writer_entry},\n{root_entry},\n]\n"),
    )
    .unwrap();
    let mut command = Command::new(program());
    command.arg("serve").arg("--config").arg(&file);
    let service =
        Service::spawn(command.env("CUCKOOD__STORAGE__PATH", directory.path().join("data")));
    let client = service.client();
    crate::until("ready", || client.get("/readyz").unwrap().status == 200);

    let campaign = "/v1/campaigns/spring";
    let spec = json!({ "capacity": 100 });
    let ok = (200, String::new());
    let made = (201, String::new());
    let unknown = (401, "unauthenticated".to_string());
    let forbidden = (403, "forbidden".to_string());
    assert_eq!(ask(&client, "", "PUT", campaign, &spec), unknown);
    assert_eq!(ask(&client, "ck_wrong", "PUT", campaign, &spec), unknown);
    assert_eq!(
        ask(
            &client,
            &reader[..reader.len() - 1],
            "GET",
            campaign,
            &Value::Null
        ),
        unknown
    );
    assert_eq!(ask(&client, &reader, "PUT", campaign, &spec), forbidden);
    assert_eq!(ask(&client, &writer, "PUT", campaign, &spec), made);
    assert_eq!(ask(&client, &reader, "GET", campaign, &Value::Null), ok);
    assert_eq!(
        ask(&client, &writer, "DELETE", campaign, &Value::Null),
        forbidden
    );
    assert_eq!(
        ask(&client, &writer, "POST", "/v1/snapshots", &json!({})),
        forbidden
    );
    assert_eq!(
        ask(&client, &root, "DELETE", campaign, &Value::Null),
        (204, String::new())
    );
    assert_eq!(ask(&client, "", "GET", "/livez", &Value::Null), ok);
    assert_eq!(service.terminate().code(), Some(0));
}

/// How a rejected start ends, and its message.
fn refused(data: &Path, settings: &[(&str, &str)]) -> (Option<i32>, String) {
    let mut command = Command::new(program());
    command
        .arg("serve")
        .env("CUCKOOD__STORAGE__PATH", data)
        .envs(settings.iter().copied());
    match Service::try_spawn(&mut command) {
        Ok(_) => panic!("it serves with {settings:?}"),
        Err((status, output)) => (status.code(), output),
    }
}

#[test]
fn public_address_requires_keys_or_opt_out() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let everywhere = ("CUCKOOD__SERVER__LISTEN", "0.0.0.0:0");
    for listen in [everywhere, ("CUCKOOD__RESP__LISTEN", "0.0.0.0:0")] {
        let (status, message) = refused(&data, &[listen]);
        assert_eq!(status, Some(1), "{message}");
        assert!(
            message.contains("auth.keys") && message.contains("auth.allow_anonymous"),
            "{message}"
        );
        assert!(!data.exists(), "it was begun all the same");
    }

    // The key itself instead of its digest: rejected, and not printed.
    let (key, entry) = new_key("shop", "read");
    let keys = format!(r#"[{{name = "shop", sha256 = "{key}", scopes = ["read"]}}]"#);
    let (status, message) = refused(&data, &[everywhere, ("CUCKOOD__AUTH__KEYS", &keys)]);
    assert_eq!(status, Some(1), "{message}");
    assert!(
        message.contains("`shop`") && !message.contains(&key),
        "{message}"
    );

    for (name, value, alone) in [
        ("CUCKOOD__AUTH__ALLOW_ANONYMOUS", "true".to_string(), 200),
        ("CUCKOOD__AUTH__KEYS", format!("[{entry}]"), 401),
    ] {
        let service = Service::start(program(), &data, &[everywhere, (name, &value)]);
        crate::until("ready", || {
            service.client().get("/readyz").unwrap().status == 200
        });
        assert_eq!(
            ask(&service.client(), "", "GET", "/v1/info", &Value::Null).0,
            alone,
            "{name}"
        );
        assert_eq!(
            ask(&service.client(), &key, "GET", "/v1/info", &Value::Null).0,
            200,
            "{name}"
        );
        assert_eq!(service.terminate().code(), Some(0));
    }
}
