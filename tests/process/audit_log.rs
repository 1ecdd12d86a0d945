//! The log at `info`: each administrative act with its key and result, rejected keys, and no line for regular requests.

use crate::api_keys::new_key;
use crate::redis_client::Connection;
use crate::service::{Client, Service};
use crate::{TIMEOUT, program, until};
use serde_json::{Value, json};
use std::io::Write;
use std::net::TcpStream;
use std::process::Command;

/// The fields of the lines with a message so far.
fn logged(service: &Service, message: &str) -> Vec<Value> {
    let lines = service.output().so_far();
    let entries = lines
        .iter()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    entries
        .map(|entry| entry["fields"].clone())
        .filter(|fields| fields["message"] == message)
        .collect()
}

fn send(client: &Client, key: &str, method: &str, path: &str, media_type: &str, body: &str) -> u16 {
    let bearer = format!("Bearer {key}");
    let headers = [
        ("Authorization", bearer.as_str()),
        ("Content-Type", media_type),
    ];
    client
        .send(method, path, &headers, body.as_bytes())
        .unwrap()
        .status
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn only_admin_acts_and_rejected_keys_are_logged() {
    let directory = tempfile::tempdir().unwrap();
    let (root, root_entry) = new_key("root", "admin");
    let (shop, shop_entry) = new_key("shop", "read,redeem");
    let keys = format!("[{root_entry}, {shop_entry}]");
    let settings = [("CUCKOOD__AUTH__KEYS", keys.as_str())];
    let service = Service::start_ready(program(), &directory.path().join("data"), &settings);
    let client = service.client();
    let json_type = "application/json";
    let spring = "/v1/campaigns/spring";
    assert_eq!(
        send(
            &client,
            &root,
            "PUT",
            spring,
            json_type,
            r#"{"capacity": 100}"#
        ),
        201
    );
    assert_eq!(
        send(
            &client,
            &root,
            "PUT",
            spring,
            json_type,
            r#"{"capacity": 101}"#
        ),
        409
    );
    assert_eq!(
        send(
            &client,
            &root,
            "POST",
            &format!("{spring}/users"),
            json_type,
            r#"{"users":["u"]}"#
        ),
        200
    );
    assert_eq!(
        send(
            &client,
            &shop,
            "POST",
            &format!("{spring}/users/check"),
            json_type,
            r#"{"users":["u"]}"#
        ),
        200
    );
    assert_eq!(
        send(
            &client,
            &root,
            "POST",
            &format!("{spring}/imports"),
            "text/plain",
            "u1\n"
        ),
        200
    );
    assert_eq!(
        send(&client, &root, "POST", "/v1/snapshots", json_type, ""),
        200
    );
    let welcome = "/v1/coupons/welcome";
    assert_eq!(
        send(
            &client,
            &root,
            "PUT",
            welcome,
            json_type,
            r#"{"capacity": 100}"#
        ),
        201
    );
    let codes = format!("{welcome}/codes");
    assert_eq!(
        send(
            &client,
            &root,
            "POST",
            &codes,
            json_type,
            r#"{"codes": ["c1"]}"#
        ),
        200
    );
    assert_eq!(
        send(
            &client,
            &root,
            "POST",
            &codes,
            json_type,
            r#"{"codes": ["c1"], "revive": true}"#
        ),
        200
    );
    let file = directory.path().join("all.cuckood");
    let url = format!("http://{}", client.address());
    let mut backup = Command::new(program());
    let backup = backup
        .arg("backup")
        .arg(file)
        .args(["--url", &url, "--key", &root])
        .status()
        .unwrap();
    assert!(backup.success());
    assert_eq!(send(&client, &shop, "DELETE", spring, json_type, ""), 403);
    assert_eq!(send(&client, &root, "DELETE", spring, json_type, ""), 204);

    let imports = format!("{spring}/imports");
    let wanted = [
        json!(["put_campaign", "root", spring, "done"]),
        json!(["put_campaign", "root", spring, "already-exists"]),
        json!(["import_users", "root", imports, "done"]),
        json!(["take_snapshot", "root", "/v1/snapshots", "done"]),
        json!(["put_coupon", "root", welcome, "done"]),
        json!(["revive_codes", "root", "welcome", "done"]),
        json!(["backup", "root", "/v1/backup", "done"]),
        json!(["delete_campaign", "root", spring, "done"]),
    ];
    until("all acts are logged", || {
        logged(&service, "administrative act").len() >= wanted.len()
    });
    let acts = logged(&service, "administrative act");
    let short: Vec<_> = acts
        .iter()
        .map(|act| json!([act["act"], act["key"], act["target"], act["outcome"]]))
        .collect();
    assert_eq!(short, wanted);
    let revived = acts
        .iter()
        .find(|act| act["act"] == "revive_codes")
        .unwrap();
    assert_eq!(revived["codes"], 1);

    // Rejected keys are logged, by name where they have one, and at a limited rate.
    until("a refusal is logged", || {
        !logged(&service, "a key was refused").is_empty()
    });
    let refused = logged(&service, "a key was refused");
    let short = json!([refused[0]["key"], refused[0]["method"], refused[0]["route"]]);
    let wanted = json!(["shop", "DELETE", "/v1/campaigns/{campaign}"]);
    assert_eq!((refused.len(), short), (1, wanted), "{refused:?}");
    let stray = "/v1/coupons/welcome/codes/K7Q2-9FXM";
    assert_eq!(send(&client, "ck_wrong", "GET", stray, json_type, ""), 401);
    for _ in 0..500 {
        assert_eq!(
            send(&client, "ck_wrong", "GET", "/v1/info", json_type, ""),
            401
        );
    }
    until("more refusals are logged", || {
        logged(&service, "a key was refused").len() > 1
    });
    let refused = logged(&service, "a key was refused");
    assert!((2..100).contains(&refused.len()), "{}", refused.len());
    assert_eq!(
        (&refused[1]["denied"], &refused[1]["route"]),
        (&json!("the key is not known"), &json!("none"))
    );
    assert!(
        refused
            .iter()
            .all(|line| !line.to_string().contains("K7Q2")),
        "{refused:?}"
    );
    assert_eq!(refused[1]["peer"], "127.0.0.1");
    assert_eq!(
        logged(&service, "a request was slow"),
        [Value::Null; 0],
        "it is off by default"
    );
    assert_eq!(service.terminate().code(), Some(0));
}

/// The first of the lines with a message that `is_wanted` accepts, once it is there.
fn first(service: &Service, message: &str, is_wanted: impl Fn(&Value) -> bool) -> Value {
    let mut found = None;
    until(message, || {
        found = logged(service, message).into_iter().find(&is_wanted);
        found.is_some()
    });
    found.unwrap()
}

#[test]
fn acts_and_slow_requests_name_trace_and_peer() {
    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const PARENT: &str = "00f067aa0ba902b7";
    let directory = tempfile::tempdir().unwrap();
    let (root, entry) = new_key("root", "admin");
    let keys = format!("[{entry}]");
    let settings = [
        ("CUCKOOD__AUTH__KEYS", keys.as_str()),
        ("CUCKOOD__TELEMETRY__SLOW_REQUEST", "1us"),
        ("CUCKOOD__RESP__LISTEN", "127.0.0.1:0"),
    ];
    let service = Service::start_ready(program(), &directory.path().join("data"), &settings);
    let client = service.client();
    let bearer = format!("Bearer {root}");
    let traceparent = format!("00-{TRACE}-{PARENT}-01");
    let send = |method, path, body: &str| {
        let headers = [
            ("Authorization", bearer.as_str()),
            ("Content-Type", "application/json"),
            ("traceparent", &traceparent),
            ("X-Request-Id", "checkout-9"),
        ];
        client
            .send(method, path, &headers, body.as_bytes())
            .unwrap()
            .status
    };
    let welcome = "/v1/coupons/welcome";
    assert_eq!(send("PUT", welcome, r#"{"capacity": 100}"#), 201);
    let codes = format!("{welcome}/codes");
    assert_eq!(send("POST", &codes, r#"{"codes": ["K7Q2-9FXM"]}"#), 200);
    assert_eq!(
        send(
            "POST",
            &codes,
            r#"{"codes": ["K7Q2-9FXM"], "revive": true}"#
        ),
        200
    );
    assert_eq!(send("GET", "/v1/nowhere/K7Q2-9FXM", ""), 404);
    let source = |line: &Value| json!([line["trace"], line["parent"], line["peer"]]);
    let wanted = json!([TRACE, PARENT, "127.0.0.1"]);
    for act in ["put_coupon", "revive_codes"] {
        let line = first(&service, "administrative act", |line| line["act"] == act);
        assert_eq!(source(&line), wanted, "{line}");
    }
    let route = "/v1/coupons/{coupon}/codes";
    let slow = first(&service, "a request was slow", |line| {
        line["route"] == route
    });
    assert_eq!(source(&slow), wanted, "{slow}");
    let about = json!([
        slow["method"],
        slow["status"],
        slow["key"],
        slow["request_id"]
    ]);
    assert_eq!(about, json!(["POST", 200, "root", "checkout-9"]));
    assert!(slow["seconds"].as_f64().unwrap() > 0.0, "{slow}");
    let unknown = first(&service, "a request was slow", |line| line["status"] == 404);
    assert_eq!(
        unknown.get("route"),
        None,
        "the path may contain a code: {unknown}"
    );

    let mut redis = Connection::to(service.redis_address());
    redis.call(&format!("AUTH {root}"));
    redis.pipeline([
        "CF.ADD spring K7Q2-9FXM",
        "CF.ADD spring u2",
        "CF.EXISTS spring K7Q2-9FXM",
    ]);
    let is_of = |name| {
        move |line: &Value| {
            line["commands"]
                .as_str()
                .is_some_and(|names| names.contains(name))
        }
    };
    let slow = first(&service, "a batch of commands was slow", is_of("cf.exists"));
    let about = json!([slow["commands"], slow["count"], slow["key"], slow["peer"]]);
    assert_eq!(
        about,
        json!(["cf.add cf.exists", 3, "root", "127.0.0.1"]),
        "{slow}"
    );
    redis.call("DEL spring");
    let line = first(&service, "administrative act", |line| line["act"] == "del");
    assert_eq!(line["peer"], "127.0.0.1");
    let lines = service.output().clone();
    assert_eq!(service.terminate().code(), Some(0));
    let leaks: Vec<_> = lines
        .whole()
        .into_iter()
        .filter(|line| line.contains("K7Q2") || line.contains(&root))
        .collect();
    assert_eq!(leaks, [""; 0]);
}

#[test]
fn aborted_import_is_logged() {
    let directory = tempfile::tempdir().unwrap();
    let service = Service::start_ready(program(), &directory.path().join("data"), &[]);
    let client = service.client();
    assert_eq!(
        client
            .put("/v1/campaigns/spring", &json!({ "capacity": 100 }))
            .unwrap()
            .status,
        201
    );
    let mut upload = TcpStream::connect(client.address()).unwrap();
    let head = "POST /v1/campaigns/spring/imports?id=lost HTTP/1.1\r\nHost: localhost\r\n\
                Content-Type: text/plain\r\nContent-Length: 100\r\n\r\nu1\n";
    upload.write_all(head.as_bytes()).unwrap();
    until("the import runs", || {
        client.get("/v1/imports/lost").unwrap().body["state"] == "running"
    });
    drop(upload);
    let end = service.output().wait_for(TIMEOUT, |line| {
        let fields = serde_json::from_str::<Value>(line).ok()?["fields"].clone();
        (fields["act"] == "import_users").then_some(fields)
    });
    let end = end.expect("it is logged");
    assert!(end["outcome"] != "done" && end["key"].is_null(), "{end}");
    assert_eq!(service.terminate().code(), Some(0));
}
