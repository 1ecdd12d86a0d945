//! The memory of responses that clients do not read: bounded, returned, and counted for every operation of the document.

use crate::document::OPERATIONS;
use crate::service::{Service, json as json_request, read, request};
use axum::body::Body;
use cuckood::http::options::HttpOptions;
use http::{Method, Request, Response};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// Operations whose responses are short, whatever the service stores. Their memory is part of their connections'.
const SHORT: &[&str] = &[
    "cancel_redemption",
    "clear_campaign",
    "clear_coupon",
    "cluster",
    "confirm_redemption",
    "delete_campaign",
    "delete_coupon",
    "delete_line_up",
    "get_campaign",
    "get_coupon",
    "get_import",
    "get_redemption",
    "import_codes",
    "import_users",
    "info",
    "livez",
    "patch_campaign",
    "patch_coupon",
    "plan",
    "put_campaign",
    "put_campaign_image",
    "put_coupon",
    "put_coupon_image",
    "readyz",
    "redeem",
    "stop_import",
    "take_snapshot",
];

/// Operations whose responses all clients share.
const SHARED: &[&str] = &["openapi"];

/// Operations with a long response to requests without a key, which share a memory of their own.
const WITHOUT_KEY: &[&str] = &["metrics"];

/// Operations with a response of at most 100 KB, which counts as soon as it is longer than 16 KiB.
const BOUNDED: &[&str] = &[
    "check_eligibility",
    "get_campaign_statistics",
    "get_coupon_statistics",
    "get_line_up",
    "put_line_up",
];

/// Names of this many items.
fn items(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("item-{number}")).collect()
}

/// A service with enough of everything for long responses.
async fn full(options: HttpOptions) -> Service {
    let service = Service::with(options).await;
    let title = "T".repeat(200);
    for number in 0..60 {
        let spec = json!({"capacity": 100, "title": title});
        service
            .put(&format!("/v1/campaigns/c{number:02}"), spec)
            .await
            .json(201);
        let spec = json!({"capacity": 100, "mode": "strict", "title": title});
        service
            .put(&format!("/v1/coupons/p{number:02}"), spec)
            .await
            .json(201);
        let campaigns: Vec<String> = (0..10)
            .map(|at| format!("{at}{}", "n".repeat(100)))
            .collect();
        let line_up = json!({"campaigns": campaigns});
        service
            .put(&format!("/v1/line-ups/l{number:02}"), line_up)
            .await
            .json(201);
    }
    service
        .put("/v1/campaigns/users", json!({"capacity": 100_000}))
        .await
        .json(201);
    service
        .put("/v1/coupons/codes", json!({"capacity": 200_000}))
        .await
        .json(201);
    service
        .post("/v1/coupons/codes/codes", json!({"codes": items(500)}))
        .await
        .json(200);
    for (number, code) in items(150).into_iter().enumerate() {
        let redeem = json!({"code": code, "reference": format!("order-{number}")});
        service
            .post("/v1/coupons/codes/redemptions", redeem)
            .await
            .json(201);
    }
    let too_long = format!("{}\n", "x".repeat(600));
    for number in 0..8 {
        let path = format!("/v1/campaigns/users/imports?id=import-{number}");
        service
            .import(&path, "text/plain", too_long.repeat(100))
            .await
            .json(200);
    }
    service
}

fn get(path: &str, accept: &str) -> Request<Body> {
    request(Method::GET, path, &[("accept", accept)], Body::empty())
}

fn post(path: &str, body: &Value) -> Request<Body> {
    json_request(Method::POST, path, &[], body)
}

/// Long requests, with the operation's ID.
fn long_requests() -> Vec<(&'static str, Request<Body>)> {
    let all = items(10_000);
    let pairs: Vec<Value> = all
        .iter()
        .map(|item| json!({"from": item, "to": item}))
        .collect();
    let asked = json!({"user": "u1", "campaigns": ["c00", "c01"], "limit": 2, "explain": true});
    let json = "application/json";
    vec![
        ("list_campaigns", get("/v1/campaigns?limit=1000", json)),
        ("list_coupons", get("/v1/coupons?limit=1000", json)),
        ("list_line_ups", get("/v1/line-ups?limit=1000", json)),
        ("list_imports", get("/v1/imports", json)),
        (
            "list_redemptions",
            get("/v1/coupons/codes/redemptions?limit=1000", json),
        ),
        (
            "list_redemptions",
            get("/v1/coupons/codes/redemptions", "text/csv"),
        ),
        (
            "list_redemptions",
            get("/v1/coupons/codes/redemptions", "application/x-ndjson"),
        ),
        ("list_events", get("/v1/events?limit=10000", json)),
        ("list_events", get("/v1/events?limit=10000", "text/csv")),
        ("backup", get("/v1/backup", "*/*")),
        (
            "get_campaign_image",
            get("/v1/campaigns/users/image", "*/*"),
        ),
        ("get_coupon_image", get("/v1/coupons/codes/image", "*/*")),
        (
            "check_eligibility_batch",
            post(
                "/v1/eligibility/batch",
                &json!({"requests": vec![asked; 1_000]}),
            ),
        ),
        (
            "add_users",
            post("/v1/campaigns/users/users", &json!({"users": all})),
        ),
        (
            "check_users",
            post("/v1/campaigns/users/users/check", &json!({"users": all})),
        ),
        (
            "count_users",
            post("/v1/campaigns/users/users/count", &json!({"users": all})),
        ),
        (
            "replace_users",
            post(
                "/v1/campaigns/users/users/replace",
                &json!({"replacements": pairs}),
            ),
        ),
        (
            "remove_users",
            post("/v1/campaigns/users/users/remove", &json!({"users": all})),
        ),
        (
            "add_codes",
            post("/v1/coupons/codes/codes", &json!({"codes": all})),
        ),
        (
            "check_codes",
            post("/v1/coupons/codes/codes/check", &json!({"codes": all})),
        ),
        (
            "count_codes",
            post("/v1/coupons/codes/codes/count", &json!({"codes": all})),
        ),
        (
            "look_up_codes",
            post("/v1/coupons/codes/codes/lookup", &json!({"codes": all})),
        ),
        (
            "look_up_customers",
            post(
                "/v1/coupons/codes/customers/lookup",
                &json!({"customers": items(1_000)}),
            ),
        ),
        (
            "replace_codes",
            post(
                "/v1/coupons/codes/codes/replace",
                &json!({"replacements": pairs}),
            ),
        ),
        (
            "remove_codes",
            post("/v1/coupons/codes/codes/remove", &json!({"codes": all})),
        ),
        (
            "generate_codes",
            post(
                "/v1/coupons/codes/codes/generate",
                &json!({"count": 20_000, "pattern": "S-############"}),
            ),
        ),
    ]
}

/// The bytes of responses that clients have not read yet.
async fn unread(service: &Service) -> u64 {
    gauge(service, "cuckood_response_bytes ").await
}

async fn gauge(service: &Service, name: &str) -> u64 {
    let text = service.get("/metrics").await.text();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap().parse().unwrap()
}

#[test]
fn every_operation_has_a_response_size() {
    let long: BTreeSet<&str> = long_requests().iter().map(|(id, _)| *id).collect();
    let mut named: BTreeSet<&str> = SHORT
        .iter()
        .chain(SHARED)
        .chain(WITHOUT_KEY)
        .chain(BOUNDED)
        .copied()
        .collect();
    named.extend(&long);
    let documented: BTreeSet<&str> = OPERATIONS
        .iter()
        .map(|operation| operation.id.as_str())
        .collect();
    assert_eq!(
        documented, named,
        "add the operation to one of the lists, and its request if it can be long"
    );
}

#[tokio::test]
async fn unread_response_counts_until_dropped() {
    let service = full(HttpOptions::default()).await;
    for (id, request) in long_requests() {
        let response = service.begin(request).await;
        assert_eq!(response.status(), 200, "{id}");
        assert!(unread(&service).await > 16 << 10, "{id} is not counted");
        drop(response);
        assert_eq!(unread(&service).await, 0, "{id} is counted after its end");
    }
    for (id, request) in long_requests() {
        let response = service.begin(request).await;
        assert!(!read(response.into_body()).await.is_empty(), "{id}");
        assert_eq!(
            unread(&service).await,
            0,
            "{id} is counted after it was read"
        );
    }
}

#[tokio::test]
async fn response_without_key_counts_apart() {
    let service = full(HttpOptions::default()).await;
    let scraped = service.begin(get("/metrics", "text/plain")).await;
    assert_eq!(scraped.status(), 200);
    assert!(gauge(&service, "cuckood_response_bytes_without_key ").await > 16 << 10);
    assert_eq!(unread(&service).await, 0);
    drop(scraped);
    assert_eq!(
        gauge(&service, "cuckood_response_bytes_without_key ").await,
        0
    );
}

#[tokio::test]
async fn unread_responses_stay_within_limit() {
    let limit = 2 << 20;
    let mut options = HttpOptions::default();
    options.limits.responses_bytes_max = limit;
    let service = full(options).await;
    let mut waiting: Vec<Response<Body>> = Vec::new();
    let mut overloaded = BTreeSet::new();
    for encoding in ["identity", "gzip", "zstd"] {
        for (id, mut request) in long_requests() {
            request
                .headers_mut()
                .insert("accept-encoding", encoding.parse().unwrap());
            let response = service.begin(request).await;
            assert!(unread(&service).await <= limit, "{id}");
            match response.status().as_u16() {
                200 => waiting.push(response),
                503 => drop(overloaded.insert(id)),
                status => panic!("{id}: {status}"),
            }
        }
    }
    assert!(!overloaded.is_empty() && !waiting.is_empty());
    // Small requests work, and one that is read after the others have gone.
    service
        .post("/v1/campaigns/users/users/check", json!({"users": ["u1"]}))
        .await
        .json(200);
    drop(waiting);
    assert_eq!(unread(&service).await, 0);
    for (id, request) in long_requests() {
        assert_eq!(service.begin(request).await.status(), 200, "{id}");
    }
}

#[tokio::test]
async fn write_without_room_for_response_changes_nothing() {
    let mut options = HttpOptions::default();
    options.limits.responses_bytes_max = 100 << 10;
    let service = Service::with(options).await;
    service
        .put("/v1/campaigns/users", json!({"capacity": 100_000}))
        .await
        .json(201);
    let body = json!({"users": items(10_000)});
    service
        .post("/v1/campaigns/users/users", body)
        .await
        .problem(503, "overloaded");
    let found = service.get("/v1/campaigns/users").await.json(200);
    assert_eq!(found["stats"]["items"], 0);
}
