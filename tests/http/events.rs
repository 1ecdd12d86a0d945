//! `GET /v1/events`: keys, pages, waiting and retention. The script `events` has the event of each change.

use crate::service::{Answer, NOON, Service, key, request, with_keys};
use axum::body::Body;
use cuckood::access::Scope;
use cuckood::http::options::HttpOptions;
use http::Method;
use serde_json::{Value, json};

/// The events of an answer.
#[track_caller]
fn events(answer: &Answer) -> Vec<Value> {
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.header("content-type"), "application/x-ndjson");
    answer
        .text()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

async fn read(service: &Service, query: &str) -> Vec<Value> {
    events(&service.get(&format!("/v1/events{query}")).await)
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
    service
        .by("office")
        .put("/v1/coupons/p", &spec)
        .await
        .json(201);
    service
        .by("office")
        .post("/v1/coupons/p/codes", json!({"codes": ["A", "B"]}))
        .await
        .json(200);
    let hold = json!({"code": "A", "reference": "r", "hold_seconds": 60});
    service
        .by("shop")
        .post("/v1/coupons/p/redemptions", &hold)
        .await
        .json(201);
    service.pass(61);
    service.by("root").delete("/v1/coupons/p").await;
    service
        .by("office")
        .put("/v1/coupons/q", &spec)
        .await
        .json(201);
    service
        .by("office")
        .import("/v1/coupons/q/imports", "C\n")
        .await
        .json(200);
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
        events(answer)
            .into_iter()
            .map(|event| json!([event["event"], event["key"]]))
            .collect()
    };
    assert_eq!(json!(names(&answer)), expected);
    for key in ["office", "shop", "tenant"] {
        service
            .by(key)
            .get("/v1/events")
            .await
            .problem(403, "forbidden");
    }
    // Keys are gone after this restart.
    service = service.restart().await;
    assert_eq!(service.get("/v1/events").await.text(), answer.text());
}

#[tokio::test]
async fn events_are_read_in_pages() {
    let service = Service::start().await;
    for number in 1..=25 {
        service
            .put(&format!("/v1/campaigns/c{number}"), json!({"capacity": 10}))
            .await
            .json(201);
    }
    let seqs = async |query: &str| -> Vec<u64> {
        read(&service, query)
            .await
            .iter()
            .map(|event| event["seq"].as_u64().unwrap())
            .collect()
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
        assert_eq!(
            service.get(&format!("/v1/events{query}")).await.pointers(),
            [pointer],
            "{query}"
        );
    }
}

#[tokio::test]
async fn waiting_client_gets_next_event_immediately() {
    let service = Service::start().await;
    let waiting = async { read(&service, "?wait=30").await };
    let acting = async {
        tokio::task::yield_now().await;
        service
            .put("/v1/campaigns/c", json!({"capacity": 10}))
            .await
            .json(201);
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
        service
            .put("/v1/campaigns/c", json!({"capacity": 10}))
            .await
            .json(201);
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
    service
        .put("/v1/campaigns/c1", json!({"capacity": 10}))
        .await
        .json(201);
    service.pass(3_000);
    service
        .put("/v1/campaigns/c2", json!({"capacity": 10}))
        .await
        .json(201);
    service.pass(599);
    assert_eq!(read(&service, "?after=0").await.len(), 2);
    service.pass(1);
    service
        .get("/v1/events?after=0")
        .await
        .problem(410, "events-gone");
    assert_eq!(read(&service, "?after=1").await[0]["campaign"], "c2");
    assert_eq!(read(&service, "").await.len(), 1);
    service.pass(3_000);
    service
        .get("/v1/events?after=1")
        .await
        .problem(410, "events-gone");
    assert_eq!(read(&service, "").await.len(), 0);
    service
        .put("/v1/campaigns/c3", json!({"capacity": 10}))
        .await
        .json(201);
    assert_eq!(read(&service, "?after=2").await[0]["seq"], 3);
    let service = service.restart().await;
    assert_eq!(read(&service, "").await[0]["seq"], 3);
    service
        .get("/v1/events?after=1")
        .await
        .problem(410, "events-gone");
}

/// Without a retention no event is made, and those from before go. With one, numbers go on.
#[tokio::test]
async fn events_can_be_switched_off() {
    let mut service = Service::start().await;
    // On a log that others share, its settings hold unless a node is to change them.
    service.setup().cluster.configure = true;
    service
        .put("/v1/campaigns/c1", json!({"capacity": 10}))
        .await
        .json(201);
    service.setup().settings.events_retention_seconds = 0;
    service = service.restart().await;
    service
        .put("/v1/campaigns/c2", json!({"capacity": 10}))
        .await
        .json(201);
    for query in ["", "?after=0", "?after=1&wait=30"] {
        service
            .get(&format!("/v1/events{query}"))
            .await
            .problem(410, "events-gone");
    }
    service.setup().settings.events_retention_seconds = 60;
    service = service.restart().await;
    service
        .put("/v1/campaigns/c3", json!({"capacity": 10}))
        .await
        .json(201);
    let events = read(&service, "").await;
    let last = events.last().unwrap();
    assert_eq!((&last["seq"], &last["campaign"]), (&json!(2), &json!("c3")));
}

#[tokio::test]
async fn event_count_is_metric() {
    let service = Service::start().await;
    let none = service.get("/metrics").await.text();
    assert!(
        none.contains("cuckood_events_kept 0\n") && !none.contains("events_oldest"),
        "{none}"
    );
    service
        .put("/v1/campaigns/c1", json!({"capacity": 10}))
        .await
        .json(201);
    service.pass(5);
    service
        .put("/v1/campaigns/c2", json!({"capacity": 10}))
        .await
        .json(201);
    service.command("/v1/snapshots").await.json(200);
    let text = service.get("/metrics").await.text();
    let oldest = format!("cuckood_events_oldest_timestamp_seconds {}", NOON.0 / 1_000);
    assert!(
        text.contains("cuckood_events_kept 2\n") && text.contains(&oldest),
        "{text}"
    );
    let bytes = text
        .lines()
        .find_map(|line| line.strip_prefix("cuckood_events_bytes "))
        .unwrap();
    assert!(bytes.parse::<u64>().unwrap() > 50, "{bytes}");
}

/// Each field of an event has a column.
#[tokio::test]
async fn csv_events_have_column_per_field() {
    let service = Service::start().await;
    service
        .put("/v1/coupons/p", json!({"capacity": 10}))
        .await
        .json(201);
    let csv = async |path: &str| {
        let wanted = request(Method::GET, path, &[("accept", "text/csv")], Body::empty());
        service.send(wanted).await
    };
    let answer = csv("/v1/events").await;
    assert_eq!(
        (answer.status, answer.header("content-type")),
        (200, "text/csv")
    );
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
    assert!(
        rows[1].starts_with("1,2026-11-21T12:00:00.000Z,,coupon.created,,p,,"),
        "{text}"
    );
    let none = csv("/v1/events?after=1").await;
    assert_eq!(none.text().split_terminator("\r\n").count(), 1);
}
