//! `POST …/codes/generate`: new, valid, hard to guess, and the same ones for a repeated request.

use super::service::{Answer, Service, json as json_request, request};
use axum::body::Body;
use http::Method;
use serde_json::{Value, json};
use std::collections::BTreeSet;

const GENERATE: &str = "/v1/coupons/p/codes/generate";

async fn generate(service: &Service, headers: &[(&str, &str)], count: u64, pattern: &str) -> Answer {
    let body = json!({"count": count, "pattern": pattern});
    service.send(json_request(Method::POST, GENERATE, headers, &body)).await
}

/// The codes of a response in CSV.
#[track_caller]
fn codes(answer: &Answer) -> Vec<String> {
    assert_eq!((answer.status, answer.header("content-type")), (200, "text/csv"), "{}", answer.text());
    let text = answer.text();
    let mut rows = text.split_terminator("\r\n").map(str::to_owned);
    assert_eq!(rows.next().as_deref(), Some("code"));
    rows.collect()
}

async fn pool(spec: Value) -> Service {
    let service = Service::start().await;
    service.put("/v1/coupons/p", spec).await.json(201);
    service
}

#[tokio::test]
async fn generated_codes_are_distinct_and_valid() {
    let service = pool(json!({"capacity": 100})).await;
    let generated = codes(&generate(&service, &[], 9_000, "SUMMER-####-####").await);
    let distinct: BTreeSet<&str> = generated.iter().map(String::as_str).collect();
    assert_eq!(distinct.len(), 9_000);
    let is_of_pattern = |code: &&str| {
        let places: Vec<char> = code.chars().collect();
        code.starts_with("SUMMER-") && places.len() == 16 && places[11] == '-' && !code.contains('#')
    };
    assert!(distinct.iter().all(is_of_pattern));
    let check = service.post("/v1/coupons/p/codes/check", json!({"codes": generated})).await.json(200);
    assert!(check["valid"].as_array().unwrap().iter().all(|valid| valid == true));
    let stats = &service.get("/v1/coupons/p").await.json(200)["stats"];
    assert_eq!(stats["available"], 9_000);
    // Without a key, each request is another one.
    let other = codes(&generate(&service, &[], 10, "SUMMER-####-####").await);
    assert!(other.iter().all(|code| !distinct.contains(code.as_str())));
}

#[tokio::test]
async fn repeated_key_returns_same_codes() {
    for mode in ["strict", "compact"] {
        let service = pool(json!({"capacity": 25_000, "mode": mode, "growth": "fixed"})).await;
        let key = [("idempotency-key", "spring")];
        let first = generate(&service, &key, 12_000, "########").await;
        assert!(first.headers.get("idempotency-replayed").is_none());
        let again = generate(&service, &key, 12_000, "########").await;
        assert_eq!(again.header("idempotency-replayed"), "true");
        assert!(codes(&first) == codes(&again));
        generate(&service, &key, 12_001, "########").await.problem(422, "idempotency-key-reused");
        generate(&service, &[("idempotency-key", "other")], 14_000, "########")
            .await
            .problem(409, "filter-full");
        if mode == "compact" {
            continue;
        }
        // The codes derive from the secret and the request, so they survive the records of repeated requests.
        service.pass(25 * 3_600);
        assert!(codes(&first) == codes(&generate(&service, &key, 12_000, "########").await));
        let stats = &service.get("/v1/coupons/p").await.json(200)["stats"];
        assert_eq!(stats["items"], 12_000);
        let service = service.restart().await;
        assert!(codes(&first) == codes(&generate(&service, &key, 12_000, "########").await));
    }
}

#[tokio::test]
async fn guessable_pattern_is_rejected_with_required_length() {
    let service = pool(json!({"capacity": 100})).await;
    let problem = generate(&service, &[], 1_000, "A-#####").await.problem(422, "invalid-request");
    assert_eq!(problem["errors"][0]["pointer"], "/pattern");
    let detail = problem["errors"][0]["detail"].as_str().unwrap();
    assert!(detail.starts_with("expected 6 to 32 '#' for 1000 codes"), "{detail}");
    codes(&generate(&service, &[], 1_000, "A-######").await);
    for (count, pattern) in
        [(0, "########"), (1_000_001, "########"), (1, ""), (1, "####\n"), (1, &"#".repeat(33))]
    {
        generate(&service, &[], count, pattern).await.problem(422, "invalid-request");
    }
}

#[tokio::test]
async fn generated_codes_are_ndjson_on_request() {
    let service = pool(json!({"capacity": 100})).await;
    let answer = generate(&service, &[("accept", "application/x-ndjson")], 2, "########").await;
    assert_eq!((answer.status, answer.header("content-type")), (200, "application/x-ndjson"));
    let text = answer.text();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 2);
    assert!(lines.iter().all(|line| line["code"].as_str().unwrap().len() == 8));
}

#[tokio::test]
async fn open_pools_and_campaigns_reject_generate() {
    let service = pool(json!({"capacity": 100, "stock": 10})).await;
    generate(&service, &[], 1, "########").await.problem(409, "requires-added-codes");
    service.put("/v1/campaigns/p", json!({"capacity": 100})).await.json(201);
    let path = "/v1/campaigns/p/codes/generate";
    service.send(request(Method::POST, path, &[], Body::empty())).await.problem(404, "route-not-found");
}
