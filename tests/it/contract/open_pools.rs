//! Open pools: codes that were never added, each for one use, until the stock is used up.

use super::service::{Answer, Service, json as json_request};
use cuckood::http::options::{GuessingOptions, HttpOptions};
use http::Method;
use serde_json::{Value, json};

const SALE: &str = "/v1/coupons/sale";

async fn open(service: &Service, stock: u64) -> Value {
    service.put(SALE, json!({"capacity": 10, "stock": stock})).await.json(201)
}

async fn redeem(service: &Service, code: &str, hold_seconds: u64) -> Answer {
    let body = json!({"code": code, "reference": format!("order-{code}"), "hold_seconds": hold_seconds});
    service.post(&format!("{SALE}/redemptions"), body).await
}

async fn ordinal(service: &Service, code: &str, hold_seconds: u64) -> u64 {
    redeem(service, code, hold_seconds).await.json(201)["ordinal"].as_u64().unwrap()
}

async fn valid(service: &Service, codes: &[&str]) -> Value {
    service.post(&format!("{SALE}/codes/check"), json!({"codes": codes})).await.json(200)["valid"].clone()
}

#[tokio::test]
async fn code_is_redeemed_once_until_sold_out() {
    let service = Service::start().await;
    let coupon = open(&service, 3).await;
    assert_eq!((&coupon["stock"], &coupon["mode"]), (&json!(3), &json!("strict")));
    assert_eq!(coupon["stats"]["available"], 3);
    assert_eq!(valid(&service, &["u1", "u2"]).await, json!([true, true]));

    let first = redeem(&service, "u1", 0).await;
    assert!(first.header("location").starts_with("/v1/coupons/sale/redemptions/"));
    let first = first.json(201);
    assert_eq!((&first["ordinal"], &first["status"]), (&json!(1), &json!("redeemed")));
    // The same again, and another reference.
    assert_eq!(redeem(&service, "u1", 0).await.json(200), first);
    let other = json!({"code": "u1", "reference": "another"});
    service.post(&format!("{SALE}/redemptions"), other).await.problem(409, "code-redeemed");
    assert_eq!(valid(&service, &["u1", "u2"]).await, json!([false, true]));

    assert_eq!(ordinal(&service, "u2", 60).await, 2);
    assert_eq!(ordinal(&service, "u3", 0).await, 3);
    redeem(&service, "u4", 0).await.problem(409, "sold-out");
    redeem(&service, "u4", 60).await.problem(409, "sold-out");
    // An admitted redemption stays.
    assert_eq!(redeem(&service, "u3", 0).await.json(200)["ordinal"], 3);
    assert_eq!(valid(&service, &["u1", "u2", "u4"]).await, json!([false, false, false]));
    let stats = &service.get(SALE).await.json(200)["stats"];
    let figures = ["items", "available", "held", "redeemed"].map(|name| stats[name].as_u64());
    assert_eq!(figures, [Some(3), Some(0), Some(1), Some(2)]);
}

#[tokio::test]
async fn cancelled_redemption_returns_to_stock() {
    let service = Service::start().await;
    open(&service, 3).await;
    let path = format!("{SALE}/redemptions");
    let first = redeem(&service, "u1", 0).await.json(201);
    assert_eq!(ordinal(&service, "u2", 60).await, 2);
    assert_eq!(ordinal(&service, "u3", 0).await, 3);
    let id = first["id"].as_str().unwrap();
    let cancelled = service.command(&format!("{path}/{id}/cancel")).await.json(200);
    assert_eq!((&cancelled["status"], cancelled.get("ordinal")), (&json!("cancelled"), None));
    assert_eq!(valid(&service, &["u1", "u2", "u4"]).await, json!([true, false, true]));
    // The lowest number is next.
    assert_eq!(ordinal(&service, "u4", 60).await, 1);
    redeem(&service, "u1", 0).await.problem(409, "sold-out");

    service.pass(60);
    // Both holds have run out, which a reader knows before anything is written.
    assert_eq!(valid(&service, &["u1", "u2", "u3", "u4"]).await, json!([true, true, false, true]));
    let list = service.get(&format!("{path}?status=expired")).await.json(200);
    let expired = list["redemptions"].as_array().unwrap();
    assert_eq!(expired.len(), 2);
    assert!(expired.iter().all(|expired| expired.get("ordinal").is_none()), "{list}");
    assert_eq!(ordinal(&service, "u1", 0).await, 1);
    assert_eq!(ordinal(&service, "u4", 0).await, 2);
    redeem(&service, "u2", 0).await.problem(409, "sold-out");
    let export = service.get(&format!("{path}?status=redeemed")).await.json(200);
    let ordinals = export["redemptions"].as_array().unwrap().iter().map(|redeemed| &redeemed["ordinal"]);
    assert_eq!(ordinals.collect::<Vec<_>>(), [3, 1, 2]);
}

#[tokio::test]
async fn confirmed_hold_keeps_its_ordinal() {
    let service = Service::start().await;
    open(&service, 2).await;
    let held = redeem(&service, "u1", 60).await.json(201);
    let id = held["id"].as_str().unwrap();
    let confirmed = service.command(&format!("{SALE}/redemptions/{id}/confirm")).await.json(200);
    assert_eq!((&confirmed["status"], &confirmed["ordinal"]), (&json!("redeemed"), &json!(1)));
    let codes = json!({"codes": ["u1", "u2"]});
    let found = service.post(&format!("{SALE}/codes/lookup"), codes).await.json(200);
    assert_eq!(found["codes"][0]["redemption"]["ordinal"], 1);
    assert_eq!(found["codes"][1]["status"], "absent");
}

#[tokio::test]
async fn stock_can_be_raised_and_lowered() {
    let service = Service::start().await;
    open(&service, 2).await;
    service.put(SALE, json!({"capacity": 10, "stock": 3})).await.problem(409, "already-exists");
    assert_eq!(ordinal(&service, "u1", 0).await, 1);
    assert_eq!(ordinal(&service, "u2", 0).await, 2);
    redeem(&service, "u3", 0).await.problem(409, "sold-out");
    let more = service.patch(SALE, json!({"stock": 4})).await.json(200);
    assert_eq!((&more["stock"], &more["stats"]["available"]), (&json!(4), &json!(2)));
    let third = redeem(&service, "u3", 0).await.json(201);
    assert_eq!(third["ordinal"], 3);

    assert_eq!(service.patch(SALE, json!({"stock": 2})).await.json(200)["stats"]["available"], 0);
    redeem(&service, "u4", 0).await.problem(409, "sold-out");
    assert_eq!(valid(&service, &["u4"]).await, json!([false]));
    // Not before two are gone there is room for another.
    let cancel = async |id: &Value| {
        let path = format!("{SALE}/redemptions/{}/cancel", id.as_str().unwrap());
        service.command(&path).await.json(200);
    };
    cancel(&third["id"]).await;
    redeem(&service, "u4", 0).await.problem(409, "sold-out");
    let first = redeem(&service, "u1", 0).await.json(200);
    cancel(&first["id"]).await;
    assert_eq!(ordinal(&service, "u4", 0).await, 1);
    for (bad, pointer) in [
        (json!({"stock": 0}), "/stock"),
        (json!({"stock": null}), "/stock"),
        (json!({"stock": 4_294_967_297_u64}), "/stock"),
    ] {
        assert_eq!(service.patch(SALE, bad).await.pointers(), [pointer]);
    }
    // With the rest, or not at all.
    let ends_first =
        json!({"stock": 9, "starts_at": "2027-01-01T00:00:00Z", "ends_at": "2026-01-01T00:00:00Z"});
    assert_eq!(service.patch(SALE, ends_first).await.pointers(), ["/ends_at"]);
    assert_eq!(service.get(SALE).await.json(200)["stock"], 2);
}

#[tokio::test]
async fn stock_requires_open_pool() {
    let service = Service::start().await;
    for bad in [
        json!({"capacity": 10, "stock": 0}),
        json!({"capacity": 10, "stock": -1}),
        json!({"capacity": 10, "stock": 4_294_967_297_u64}),
        json!({"capacity": 10, "stock": 5, "mode": "compact"}),
        json!({"capacity": 10, "stock": 11, "growth": "fixed"}),
    ] {
        assert_eq!(service.put(SALE, bad.clone()).await.pointers(), ["/stock"], "{bad}");
    }
    let answer = service.put("/v1/campaigns/sale", json!({"capacity": 10, "stock": 5})).await;
    assert_eq!(answer.pointers(), ["/stock"]);
    service.put("/v1/campaigns/sale", json!({"capacity": 10})).await.json(201);
    assert_eq!(service.patch("/v1/campaigns/sale", json!({"stock": 5})).await.pointers(), ["/stock"]);
    service.put("/v1/coupons/closed", json!({"capacity": 10})).await.json(201);
    assert_eq!(service.patch("/v1/coupons/closed", json!({"stock": 5})).await.pointers(), ["/stock"]);
    service.put("/v1/coupons/fixed", json!({"capacity": 10, "stock": 10, "growth": "fixed"})).await.json(201);
    assert_eq!(service.patch("/v1/coupons/fixed", json!({"stock": 11})).await.pointers(), ["/stock"]);
    for number in 0..10 {
        let body = json!({"code": format!("u{number}"), "reference": "r"});
        service.post("/v1/coupons/fixed/redemptions", body).await.json(201);
    }
}

#[tokio::test]
async fn open_pool_rejects_added_codes() {
    let service = Service::start().await;
    open(&service, 5).await;
    let codes = json!({"codes": ["u1"]});
    for operation in ["", "/remove"] {
        let answer = service.post(&format!("{SALE}/codes{operation}"), codes.clone()).await;
        answer.problem(409, "requires-added-codes");
    }
    let pairs = json!({"replacements": [{"from": "a", "to": "b"}]});
    service.post(&format!("{SALE}/codes/replace"), pairs).await.problem(409, "requires-added-codes");
    for query in ["", "?mode=replace", "?dry_run=true"] {
        let answer = service.import(&format!("{SALE}/imports{query}"), "text/plain", "u1\n").await;
        answer.problem(409, "requires-added-codes");
    }
    assert_eq!(ordinal(&service, "u1", 0).await, 1);
    assert_eq!(service.command(&format!("{SALE}/clear")).await.json(200), json!({"removed": 0}));
    let counts = service.post(&format!("{SALE}/codes/count"), json!({"codes": ["u1", "u2"]})).await;
    assert_eq!(counts.json(200), json!({"counts": [1, 0]}));
}

#[tokio::test]
async fn window_applies_to_new_redemptions() {
    let service = Service::start().await;
    let spec = json!({"capacity": 10, "stock": 1, "starts_at": "2026-11-21T12:00:10Z", "ends_at": "2026-11-21T12:00:20Z"});
    service.put(SALE, spec).await.json(201);
    assert_eq!(valid(&service, &["u1"]).await, json!([false]));
    redeem(&service, "u1", 0).await.problem(409, "outside-window");
    service.pass(10);
    assert_eq!(valid(&service, &["u1"]).await, json!([true]));
    let held = redeem(&service, "u1", 60).await.json(201);
    service.pass(10);
    redeem(&service, "u2", 0).await.problem(409, "outside-window");
    let id = held["id"].as_str().unwrap();
    service.command(&format!("{SALE}/redemptions/{id}/confirm")).await.json(200);
}

#[tokio::test]
async fn open_pool_uses_no_guesses() {
    let guessing = GuessingOptions { invalid_codes_per_minute: 1, ..GuessingOptions::default() };
    let service = Service::with(HttpOptions { guessing, ..HttpOptions::default() }).await;
    open(&service, 1).await;
    assert_eq!(ordinal(&service, "u1", 0).await, 1);
    for number in 0..5 {
        redeem(&service, &format!("v{number}"), 0).await.problem(409, "sold-out");
        assert_eq!(valid(&service, &["a", "b", "c"]).await, json!([false, false, false]));
    }
}

#[tokio::test]
async fn repeated_request_returns_same_ordinal() {
    let service = Service::start().await;
    open(&service, 2).await;
    let headers = [("idempotency-key", "k")];
    let body = json!({"code": "u1", "reference": "r", "hold_seconds": 60});
    let path = format!("{SALE}/redemptions");
    let first = service.send(json_request(Method::POST, &path, &headers, &body)).await.json(201);
    let again = service.send(json_request(Method::POST, &path, &headers, &body)).await;
    assert_eq!(again.header("idempotency-replayed"), "true");
    assert_eq!(again.json(201), first);
}

#[tokio::test]
async fn pool_survives_restart_and_expired_redemptions() {
    let service = Service::start().await;
    open(&service, 4).await;
    for (number, code) in ["u1", "u2", "u3", "u4"].into_iter().enumerate() {
        assert_eq!(ordinal(&service, code, 0).await, number as u64 + 1);
    }
    let second = redeem(&service, "u2", 0).await.json(200);
    let id = second["id"].as_str().unwrap();
    service.command(&format!("{SALE}/redemptions/{id}/cancel")).await.json(200);
    // The redemptions are forgotten; their codes and numbers are not.
    service.pass(31 * 86_400);
    assert_eq!(service.patch(SALE, json!({"ends_at": null})).await.json(200)["stats"]["redeemed"], 3);
    for _ in 0..2 {
        let list = service.get(&format!("{SALE}/redemptions")).await.json(200);
        assert_eq!(list["redemptions"], json!([]));
    }
    let service = service.restart().await;
    service.command("/v1/snapshots").await.json(200);
    let service = service.restart().await;
    assert_eq!(valid(&service, &["u1", "u2", "u5"]).await, json!([false, true, true]));
    redeem(&service, "u1", 0).await.problem(409, "code-redeemed");
    assert_eq!(ordinal(&service, "u5", 0).await, 2);
    redeem(&service, "u6", 0).await.problem(409, "sold-out");
}
