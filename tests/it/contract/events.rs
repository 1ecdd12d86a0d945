//! `GET /v1/events`: everything that has happened has its event, with the key that asked for it; and how events are read.

use super::service::{Answer, NOON, Service, key, request, with_keys};
use axum::body::Body;
use cuckood::http::options::{HttpOptions, Scope};
use http::Method;
use serde_json::{Value, json};

/// The events of an answer.
#[track_caller]
fn events(answer: &Answer) -> Vec<Value> {
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.header("content-type"), "application/x-ndjson");
    answer.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

async fn read(service: &Service, query: &str) -> Vec<Value> {
    events(&service.get(&format!("/v1/events{query}")).await)
}

/// An event without its number and its time.
fn content(mut event: Value) -> Value {
    let fields = event.as_object_mut().unwrap();
    assert!(fields.remove("seq").unwrap().is_u64() && fields.remove("at").unwrap().is_string());
    event
}

/// Everything since an event, without numbers and times.
async fn since(service: &Service, seq: &mut u64) -> Vec<Value> {
    let events = read(service, &format!("?after={seq}")).await;
    for event in &events {
        assert_eq!(event["seq"], *seq + 1);
        *seq += 1;
    }
    events.into_iter().map(content).collect()
}

#[tokio::test]
async fn campaign_changes_produce_events() {
    let (service, mut seq) = (Service::start().await, 0);
    let spec = json!({"capacity": 10, "mode": "strict"});
    service.put("/v1/campaigns/c", spec.clone()).await.json(201);
    assert_eq!(read(&service, "").await[0]["at"], "2026-11-21T12:00:00Z");
    service.put("/v1/campaigns/c", spec.clone()).await.json(200);
    service.patch("/v1/campaigns/c", json!({"ends_at": "2027-01-01T00:00:00Z"})).await.json(200);
    service.patch("/v1/campaigns/c", json!({"ends_at": "2027-01-01T00:00:00Z"})).await.json(200);
    service.post("/v1/campaigns/c/users", json!({"users": ["u1", "u2", "u3"]})).await.json(200);
    service.post("/v1/campaigns/c/users", json!({"users": ["u1"], "if_absent": true})).await.json(200);
    service.post("/v1/campaigns/c/users/remove", json!({"users": ["u1"]})).await.json(200);
    service.post("/v1/campaigns/c/users/remove", json!({"users": ["u1"]})).await.json(200);
    let pairs = json!({"replacements": [{"from": "u2", "to": "u4"}, {"from": "none", "to": "u5"}]});
    service.post("/v1/campaigns/c/users/replace", pairs).await.json(200);
    service.command("/v1/campaigns/c/clear").await.json(200);
    assert_eq!(service.delete("/v1/campaigns/c").await.status, 204);
    service.delete("/v1/campaigns/c").await.problem(404, "campaign-not-found");
    let expected = json!([
        {"event": "campaign.created", "campaign": "c"},
        {"event": "campaign.changed", "campaign": "c", "capacity": 10, "ends_at": "2027-01-01T00:00:00Z"},
        {"event": "users.added", "campaign": "c", "added": 3},
        {"event": "users.removed", "campaign": "c", "removed": 1},
        {"event": "users.replaced", "campaign": "c", "replaced": 1},
        {"event": "campaign.cleared", "campaign": "c", "removed": 2},
        {"event": "campaign.deleted", "campaign": "c"},
    ]);
    assert_eq!(json!(since(&service, &mut seq).await), expected);
}

#[tokio::test]
async fn coupon_changes_produce_events() {
    let (service, mut seq) = (Service::start().await, 0);
    service.put("/v1/coupons/p", json!({"capacity": 10})).await.json(201);
    service
        .post("/v1/coupons/p/codes", json!({"codes": ["CODE-A", "CODE-B", "CODE-C", "CODE-D"]}))
        .await
        .json(200);
    let redemptions = "/v1/coupons/p/redemptions";
    let redeem = async |code: &str, reference: &str, hold: u64| {
        let body = json!({"code": code, "reference": reference, "hold_seconds": hold});
        service.post(redemptions, body).await
    };
    let id = |answer: Answer| answer.json(201)["id"].as_str().unwrap().to_owned();
    let a = id(redeem("CODE-A", "order-a", 0).await);
    redeem("CODE-A", "order-a", 0).await.json(200);
    redeem("CODE-A", "other", 0).await.problem(409, "code-redeemed");
    let b = id(redeem("CODE-B", "order-b", 60).await);
    redeem("CODE-B", "order-b", 30).await.json(200);
    redeem("CODE-B", "order-b", 90).await.json(200);
    service.command(&format!("{redemptions}/{b}/confirm")).await.json(200);
    service.command(&format!("{redemptions}/{b}/confirm")).await.json(200);
    service.command(&format!("{redemptions}/{b}/cancel")).await.json(200);
    let c = id(redeem("CODE-C", "order-c", 60).await);
    service.post("/v1/coupons/p/codes/remove", json!({"codes": ["CODE-C", "CODE-A"]})).await.json(200);
    let d = id(redeem("CODE-D", "order-d", 60).await);
    service.pass(60);
    redeem("none", "order-e", 0).await.problem(404, "code-unknown");
    service.post("/v1/coupons/p/codes", json!({"codes": ["CODE-A"], "revive": true})).await.json(200);
    service.command("/v1/coupons/p/clear").await.json(200);
    let redemption = |event: &str, id: &str, reference: &str, status: &str| {
        let event = format!("redemption.{event}");
        json!({"event": event, "coupon": "p", "id": id, "reference": reference, "status": status})
    };
    let held = |event: &str, id: &str, reference: &str, until: &str| {
        let mut event = redemption(event, id, reference, "held");
        event["expires_at"] = format!("2026-11-21T12:{until}Z").into();
        event
    };
    let expected = json!([
        {"event": "coupon.created", "coupon": "p"},
        {"event": "codes.added", "coupon": "p", "added": 4},
        redemption("created", &a, "order-a", "redeemed"),
        held("created", &b, "order-b", "01:00"),
        held("extended", &b, "order-b", "01:30"),
        redemption("confirmed", &b, "order-b", "redeemed"),
        redemption("cancelled", &b, "order-b", "cancelled"),
        held("created", &c, "order-c", "01:00"),
        redemption("cancelled", &c, "order-c", "cancelled"),
        {"event": "codes.withdrawn", "coupon": "p", "removed": 1},
        held("created", &d, "order-d", "01:00"),
        redemption("expired", &d, "order-d", "expired"),
        redemption("cancelled", &a, "order-a", "cancelled"),
        {"event": "codes.added", "coupon": "p", "added": 1},
        {"event": "coupon.cleared", "coupon": "p", "removed": 3},
    ]);
    let answer = service.get("/v1/events").await;
    assert_eq!(json!(since(&service, &mut seq).await), expected);
    assert!(!answer.text().contains("CODE-"), "{}", answer.text());
}

#[tokio::test]
async fn open_pool_changes_produce_events() {
    let (service, mut seq) = (Service::start().await, 0);
    service.put("/v1/coupons/p", json!({"capacity": 10, "stock": 2})).await.json(201);
    let redemptions = "/v1/coupons/p/redemptions";
    let redeem = async |user: &str, reference: &str, hold: u64| {
        let body = json!({"code": user, "reference": reference, "hold_seconds": hold});
        service.post(redemptions, body).await
    };
    let id = |answer: Answer| answer.json(201)["id"].as_str().unwrap().to_owned();
    let a = id(redeem("USER-A", "order-a", 60).await);
    let b = id(redeem("USER-B", "order-b", 0).await);
    redeem("USER-C", "order-c", 0).await.problem(409, "sold-out");
    service.patch("/v1/coupons/p", json!({"stock": 3})).await.json(200);
    service.patch("/v1/coupons/p", json!({"stock": 3})).await.json(200);
    service.command(&format!("{redemptions}/{b}/cancel")).await.json(200);
    service.pass(60);
    let c = id(redeem("USER-C", "order-c", 0).await);
    service.patch("/v1/coupons/p", json!({"stock": 1, "capacity": 20})).await.json(200);
    let redemption = |event: &str, id: &str, reference: &str, status: &str, ordinal: u64| {
        let event = format!("redemption.{event}");
        json!({
            "event": event, "coupon": "p", "id": id, "reference": reference, "status": status, "ordinal": ordinal
        })
    };
    let mut held = redemption("created", &a, "order-a", "held", 1);
    held["expires_at"] = "2026-11-21T12:01:00Z".into();
    let expected = json!([
        {"event": "coupon.created", "coupon": "p"},
        held,
        redemption("created", &b, "order-b", "redeemed", 2),
        {"event": "coupon.changed", "coupon": "p", "capacity": 10, "stock": 3},
        redemption("cancelled", &b, "order-b", "cancelled", 2),
        redemption("expired", &a, "order-a", "expired", 1),
        redemption("created", &c, "order-c", "redeemed", 1),
        {"event": "coupon.changed", "coupon": "p", "capacity": 20, "stock": 1},
    ]);
    let answer = service.get("/v1/events").await;
    assert_eq!(json!(since(&service, &mut seq).await), expected);
    assert!(!answer.text().contains("USER-"), "{}", answer.text());
}

#[tokio::test]
async fn line_up_changes_produce_events() {
    let (service, mut seq) = (Service::start().await, 0);
    let line_up = |campaign: &str| json!({"campaigns": [campaign]});
    service.put("/v1/line-ups/home", line_up("c1")).await.json(201);
    service.put("/v1/line-ups/home", line_up("c1")).await.json(200);
    service.put("/v1/line-ups/home", line_up("c2")).await.json(200);
    assert_eq!(service.delete("/v1/line-ups/home").await.status, 204);
    let expected = ["created", "changed", "deleted"]
        .map(|change| json!({"event": format!("line_up.{change}"), "line_up": "home"}));
    assert_eq!(since(&service, &mut seq).await, expected);
}

#[tokio::test]
async fn import_end_produces_event() {
    let (service, mut seq) = (Service::start().await, 1);
    service.put("/v1/campaigns/c", json!({"capacity": 10})).await.json(201);
    let import = async |query: &str, body: &'static str| {
        service.import(&format!("/v1/campaigns/c/imports?{query}"), "text/plain", body).await
    };
    import("id=one", "u1\nu2\n\n").await.json(200);
    import("id=one", "u1\nu2\n\n").await.json(200);
    import("id=two&mode=replace", "").await.problem(409, "import-guarded");
    import("id=three&mode=replace", "u3\n").await.json(200);
    import("dry_run=true", "u4\n").await.json(200);
    let event = |import: &str, mode: &str, state: &str, lines: u64, added: u64| {
        json!({
            "event": "import.ended", "campaign": "c", "import": import, "mode": mode, "state": state, "lines": lines,
            "added": added, "already_present": 0, "already_redeemed": 0, "rejected": 0,
        })
    };
    let mut guarded = event("two", "replace", "failed", 0, 0);
    guarded["failure"] = "import-guarded".into();
    let expected = [event("one", "append", "done", 3, 2), guarded, event("three", "replace", "done", 1, 1)];
    assert_eq!(since(&service, &mut seq).await, expected);
}

fn keys() -> HttpOptions {
    with_keys([
        key("office", &[Scope::Write], ""),
        key("shop", &[Scope::Redeem], ""),
        key("root", &[Scope::Admin], ""),
        key("tenant", &[Scope::Admin], "eu-"),
    ])
}

/// Each event names the key of its request, also when a restart makes it again. What time does has none.
#[tokio::test]
async fn event_names_api_key() {
    let mut service = Service::with(keys()).await;
    let spec = json!({"capacity": 10});
    service.by("office").put("/v1/coupons/p", &spec).await.json(201);
    service.by("office").post("/v1/coupons/p/codes", json!({"codes": ["A", "B"]})).await.json(200);
    let hold = json!({"code": "A", "reference": "r", "hold_seconds": 60});
    service.by("shop").post("/v1/coupons/p/redemptions", &hold).await.json(201);
    service.pass(61);
    service.by("root").delete("/v1/coupons/p").await;
    service.by("office").put("/v1/coupons/q", &spec).await.json(201);
    service.by("office").import("/v1/coupons/q/imports", "C\n").await.json(200);
    let expected = json!([
        ["coupon.created", "office"],
        ["codes.added", "office"],
        ["redemption.created", "shop"],
        ["redemption.expired", null],
        ["coupon.deleted", "root"],
        ["coupon.created", "office"],
        ["import.ended", "office"],
    ]);
    let answer = service.by("root").get("/v1/events").await;
    let names = |answer: &Answer| -> Vec<Value> {
        events(answer).into_iter().map(|event| json!([event["event"], event["key"]])).collect()
    };
    assert_eq!(json!(names(&answer)), expected);
    for key in ["office", "shop", "tenant"] {
        service.by(key).get("/v1/events").await.problem(403, "forbidden");
    }
    // Keys are gone after this restart.
    service = service.restart().await;
    assert_eq!(service.get("/v1/events").await.text(), answer.text());
}

#[tokio::test]
async fn events_are_read_in_pages() {
    let service = Service::start().await;
    for number in 1..=25 {
        service.put(&format!("/v1/campaigns/c{number}"), json!({"capacity": 10})).await.json(201);
    }
    let seqs = async |query: &str| -> Vec<u64> {
        read(&service, query).await.iter().map(|event| event["seq"].as_u64().unwrap()).collect()
    };
    let all: Vec<u64> = (1..=25).collect();
    assert_eq!(seqs("").await, all);
    assert_eq!(seqs("?after=0").await, all);
    assert_eq!(seqs("?after=24").await, [25]);
    assert_eq!(seqs("?after=25").await, [0; 0]);
    assert_eq!(seqs("?after=9223372036854775807").await, [0; 0]);
    assert_eq!(seqs("?after=3&limit=2").await, [4, 5]);
    assert_eq!(seqs("?limit=10000&wait=30").await, all);
    assert_eq!(seqs("?after=25&wait=1").await, [0; 0]);
    for (query, pointer) in [
        ("?limit=0", "/limit"),
        ("?limit=10001", "/limit"),
        ("?wait=31", "/wait"),
        ("?after=9223372036854775808", "/after"),
        ("?after=-1", "/after"),
        ("?after=x", "/after"),
        ("?before=1", "/before"),
    ] {
        assert_eq!(service.get(&format!("/v1/events{query}")).await.pointers(), [pointer], "{query}");
    }
}

#[tokio::test]
async fn waiting_client_gets_next_event_immediately() {
    let service = Service::start().await;
    let waiting = async { read(&service, "?wait=30").await };
    let acting = async {
        tokio::task::yield_now().await;
        service.put("/v1/campaigns/c", json!({"capacity": 10})).await.json(201);
    };
    let (events, ()) = tokio::join!(waiting, acting);
    assert_eq!((events.len(), &events[0]["seq"]), (1, &json!(1)));
}

/// A limited number of clients may wait, and they stay; the next one is rejected.
#[tokio::test]
async fn waiting_clients_are_limited() {
    let service = Service::start().await;
    let many = futures_util::future::join_all((0..80).map(|_| service.get("/v1/events?wait=30")));
    let acting = async {
        // The rejected ones are answered before any event.
        for _ in 0..200 {
            service.get("/v1/events").await;
        }
        service.put("/v1/campaigns/c", json!({"capacity": 10})).await.json(201);
    };
    let (answers, ()) = tokio::join!(many, acting);
    let (refused, served): (Vec<&Answer>, Vec<&Answer>) =
        answers.iter().partition(|answer| answer.status == 503);
    assert_eq!((refused.len(), served.len()), (16, 64));
    for answer in refused {
        answer.problem(503, "overloaded");
    }
    assert!(served.iter().all(|answer| events(answer).len() == 1));
}

#[tokio::test]
async fn event_expires_after_retention() {
    let service = Service::on(None, HttpOptions::default(), |setup| {
        setup.settings.events_retention_seconds = 3_600;
    })
    .await;
    service.put("/v1/campaigns/c1", json!({"capacity": 10})).await.json(201);
    service.pass(3_000);
    service.put("/v1/campaigns/c2", json!({"capacity": 10})).await.json(201);
    service.pass(599);
    assert_eq!(read(&service, "?after=0").await.len(), 2);
    service.pass(1);
    service.get("/v1/events?after=0").await.problem(410, "events-gone");
    assert_eq!(read(&service, "?after=1").await[0]["campaign"], "c2");
    assert_eq!(read(&service, "").await.len(), 1);
    service.pass(3_000);
    service.get("/v1/events?after=1").await.problem(410, "events-gone");
    assert_eq!(read(&service, "").await.len(), 0);
    service.put("/v1/campaigns/c3", json!({"capacity": 10})).await.json(201);
    assert_eq!(read(&service, "?after=2").await[0]["seq"], 3);
    let service = service.restart().await;
    assert_eq!(read(&service, "").await[0]["seq"], 3);
    service.get("/v1/events?after=1").await.problem(410, "events-gone");
}

/// Without a retention no event is made, and those from before go. With one, numbers go on.
#[tokio::test]
async fn events_can_be_switched_off() {
    let mut service = Service::start().await;
    // On a log that others share, its settings hold unless a node is to change them.
    service.setup().cluster.configure = true;
    service.put("/v1/campaigns/c1", json!({"capacity": 10})).await.json(201);
    service.setup().settings.events_retention_seconds = 0;
    service = service.restart().await;
    service.put("/v1/campaigns/c2", json!({"capacity": 10})).await.json(201);
    for query in ["", "?after=0", "?after=1&wait=30"] {
        service.get(&format!("/v1/events{query}")).await.problem(410, "events-gone");
    }
    service.setup().settings.events_retention_seconds = 60;
    service = service.restart().await;
    service.put("/v1/campaigns/c3", json!({"capacity": 10})).await.json(201);
    let events = read(&service, "").await;
    let last = events.last().unwrap();
    assert_eq!((&last["seq"], &last["campaign"]), (&json!(2), &json!("c3")));
}

#[tokio::test]
async fn event_count_is_metric() {
    let service = Service::start().await;
    let none = service.get("/metrics").await.text();
    assert!(none.contains("cuckood_events_kept 0\n") && !none.contains("events_oldest"), "{none}");
    service.put("/v1/campaigns/c1", json!({"capacity": 10})).await.json(201);
    service.pass(5);
    service.put("/v1/campaigns/c2", json!({"capacity": 10})).await.json(201);
    service.command("/v1/snapshots").await.json(200);
    let text = service.get("/metrics").await.text();
    let oldest = format!("cuckood_events_oldest_timestamp_seconds {}", NOON.0 / 1_000);
    assert!(text.contains("cuckood_events_kept 2\n") && text.contains(&oldest), "{text}");
    let bytes = text.lines().find_map(|line| line.strip_prefix("cuckood_events_bytes ")).unwrap();
    assert!(bytes.parse::<u64>().unwrap() > 50, "{bytes}");
}

/// Each field of an event has a column.
#[tokio::test]
async fn csv_events_have_column_per_field() {
    let service = Service::start().await;
    service.put("/v1/coupons/p", json!({"capacity": 10})).await.json(201);
    let csv = async |path: &str| {
        let wanted = request(Method::GET, path, &[("accept", "text/csv")], Body::empty());
        service.send(wanted).await
    };
    let answer = csv("/v1/events").await;
    assert_eq!((answer.status, answer.header("content-type")), (200, "text/csv"));
    let text = answer.text();
    let rows: Vec<&str> = text.split_terminator("\r\n").collect();
    assert_eq!(rows.len(), 2, "{text}");
    let document = service.get("/openapi.json").await.json(200);
    let fields: Vec<&str> = document["components"]["schemas"]["EventLine"]["properties"]
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    let mut columns: Vec<&str> = rows[0].split(',').collect();
    columns.sort_unstable();
    let mut sorted = fields.clone();
    sorted.sort_unstable();
    assert_eq!(columns, sorted);
    assert!(rows[1].starts_with("1,2026-11-21T12:00:00Z,,coupon.created,,p,,"), "{text}");
    let none = csv("/v1/events?after=1").await;
    assert_eq!(none.text().split_terminator("\r\n").count(), 1);
}
