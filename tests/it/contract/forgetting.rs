//! Campaigns that forget: each copy of a user expires after its time, whatever operations and queries happen.

use super::service::{NOON, Service};
use serde_json::{Value, json};

const HOUR: u64 = 3_600;
const DAY: u64 = 24 * HOUR;

/// A service with the campaign `seen`, which forgets after eight days in eight steps: a day each, from midnight to midnight.
async fn service() -> Service {
    let service = Service::start().await;
    let spec = json!({"capacity": 1_000, "error_rate": 0.000_001, "forget_after": "8d"});
    service.put("/v1/campaigns/seen", spec).await.json(201);
    service
}

async fn add(service: &Service, users: &[&str]) {
    let added = service.post("/v1/campaigns/seen/users", json!({"users": users})).await.json(200);
    assert_eq!(added["added"], users.len());
}

async fn count(service: &Service, user: &str) -> u64 {
    let counts = service.post("/v1/campaigns/seen/users/count", json!({"users": [user]})).await.json(200);
    let present = service.post("/v1/campaigns/seen/users/check", json!({"users": [user]})).await.json(200);
    let count = counts["counts"][0].as_u64().unwrap();
    assert_eq!(present, json!({"present": [count > 0]}));
    count
}

async fn stats(service: &Service) -> Value {
    service.get("/v1/campaigns/seen").await.json(200)["stats"].take()
}

#[tokio::test]
async fn forget_settings_are_part_of_spec() {
    let service = Service::start().await;
    let path = "/v1/campaigns/seen";
    let created = service.put(path, json!({"capacity": 1_000, "forget_after": "168h"})).await.json(201);
    assert_eq!((&created["forget_after"], &created["forget_steps"]), (&json!("7d"), &json!(8)));
    assert_eq!((&created["mode"], &created["stats"]["steps"]), (&json!("compact"), &json!([])));
    assert_eq!(service.get(path).await.json(200), created);
    let same = json!({"capacity": 1_000, "forget_after": "604800s", "forget_steps": 8});
    assert_eq!(service.put(path, same).await.json(200), created);
    for (other, differs) in [
        (json!({"capacity": 1_000, "forget_after": "6d"}), "forget_after"),
        (json!({"capacity": 1_000}), "forget_after"),
        (json!({"capacity": 1_000, "forget_after": "7d", "forget_steps": 16}), "forget_steps"),
    ] {
        let problem = service.put(path, other).await.problem(409, "already-exists");
        assert!(problem["detail"].as_str().unwrap().contains(differs), "{problem}");
    }
    let plain = service.put("/v1/campaigns/plain", json!({"capacity": 1_000})).await.json(201);
    for absent in ["forget_after", "forget_steps"] {
        assert!(plain.get(absent).is_none(), "{plain}");
    }
    assert!(plain["stats"].get("steps").is_none());
    for (after, steps) in [("1m", 2), ("400d", 32)] {
        let spec = json!({"capacity": 10, "forget_after": after, "forget_steps": steps, "growth": "fixed"});
        let made = service.put(&format!("/v1/campaigns/a{steps}"), spec).await.json(201);
        assert_eq!((&made["forget_after"], &made["forget_steps"]), (&json!(after), &json!(steps)));
    }
    let listed = service.get("/v1/campaigns?prefix=seen").await.json(200);
    assert_eq!(listed["campaigns"], json!([created]));
}

#[tokio::test]
async fn invalid_forget_settings_are_rejected_with_location() {
    let service = Service::start().await;
    for (fields, pointer) in [
        (json!({"forget_after": 604_800}), "/forget_after"),
        (json!({"forget_after": ""}), "/forget_after"),
        (json!({"forget_after": "7"}), "/forget_after"),
        (json!({"forget_after": "7w"}), "/forget_after"),
        (json!({"forget_after": "-7d"}), "/forget_after"),
        (json!({"forget_after": "59s"}), "/forget_after"),
        (json!({"forget_after": "401d"}), "/forget_after"),
        (json!({"forget_after": null}), "/forget_after"),
        (json!({"forget_after": "7d", "forget_steps": 1}), "/forget_steps"),
        (json!({"forget_after": "7d", "forget_steps": 33}), "/forget_steps"),
        (json!({"forget_after": "7d", "forget_steps": 1.5}), "/forget_steps"),
        (json!({"forget_after": "7d", "forget_steps": null}), "/forget_steps"),
        (json!({"forget_steps": 8}), "/forget_steps"),
        (json!({"mode": "strict", "forget_after": "7d"}), "/forget_after"),
    ] {
        let mut spec = fields.clone();
        spec["capacity"] = json!(100);
        let answer = service.put("/v1/campaigns/seen", spec).await;
        assert_eq!(answer.pointers(), [pointer], "{fields}");
    }
    for bad in [json!({"forget_after": "8d"}), json!({"forget_steps": 4})] {
        service.put("/v1/campaigns/seen", json!({"capacity": 100, "forget_after": "7d"})).await;
        assert_eq!(service.patch("/v1/campaigns/seen", bad.clone()).await.pointers().len(), 1, "{bad}");
    }
    for mode in ["strict", "compact"] {
        let coupon = json!({"capacity": 100, "mode": mode, "forget_after": "7d"});
        assert_eq!(service.put("/v1/coupons/shop", coupon).await.pointers(), ["/forget_after"]);
    }
    for (query, pointer) in [
        ("forget_after=7w", "/forget_after"),
        ("forget_steps=4", "/forget_steps"),
        ("forget_after=7d&forget_steps=33", "/forget_steps"),
        ("forget_after=7d&mode=strict", "/forget_after"),
    ] {
        let answer = service.get(&format!("/v1/plan?capacity=100&{query}")).await;
        assert_eq!(answer.pointers(), [pointer], "{query}");
    }
}

#[tokio::test]
async fn plan_matches_created_campaign() {
    let service = Service::start().await;
    let plan = service
        .get("/v1/plan?capacity=100000&error_rate=0.01&forget_after=7d&forget_steps=32")
        .await
        .json(200);
    let spec = json!({"capacity": 100_000, "error_rate": 0.01, "forget_after": "7d", "forget_steps": 32});
    let made = service.put("/v1/campaigns/seen", spec).await.json(201);
    assert_eq!(made["stats"]["segments"][0]["fingerprint_bits"], plan["fingerprint_bits"]);
    assert_eq!(made["stats"]["memory_bytes"], plan["memory_bytes"]);
    assert!(plan["error_rate_at_capacity"].as_f64() <= Some(0.01));
}

/// A user who has seen an ad three times in the last days does not see it for a while.
#[tokio::test]
async fn cap_ignores_forgotten_copies() {
    let service = service().await;
    service.put("/v1/campaigns/summer", json!({"capacity": 10})).await.json(201);
    service.post("/v1/campaigns/summer/users", json!({"users": ["u1"]})).await.json(200);
    let unless = json!([{"campaign": "seen", "at_least": 3, "for": "summer"}]);
    let line_up = json!({"campaigns": ["summer"], "unless": unless});
    service.put("/v1/line-ups/home", line_up).await.json(201);
    let ask = async || {
        let request = json!({"user": "u1", "campaigns": ["summer"], "unless": unless, "explain": true});
        let response = service.post("/v1/eligibility", request).await.json(200);
        let by_line_up = json!({"user": "u1", "line_up": "home", "explain": true});
        assert_eq!(service.post("/v1/eligibility", by_line_up).await.json(200), response);
        response
    };
    for day in 0..3 {
        let response = ask().await;
        assert_eq!(
            (&response["eligible"], &response["explanations"][0]["eligible"]),
            (&json!(["summer"]), &json!(true)),
            "{day}"
        );
        add(&service, &["u1"]).await;
        service.pass(DAY);
    }
    let response = ask().await;
    assert_eq!((&response["eligible"], &response["excluded"]), (&json!([]), &json!(["summer"])));
    let explanation = &response["explanations"][0];
    assert_eq!((&explanation["excluded_by"], &explanation["eligible"]), (&json!("seen"), &json!(false)));
    service.pass(5 * DAY + 12 * HOUR - 1);
    assert_eq!(ask().await["excluded"], json!(["summer"]));
    service.pass(1);
    assert_eq!((ask().await["eligible"].clone(), count(&service, "u1").await), (json!(["summer"]), 2));
    let seen = json!([{"campaign": "seen", "at_least": 17}]);
    let request = json!({"user": "u1", "campaigns": ["summer"], "unless": seen});
    assert_eq!(service.post("/v1/eligibility", request).await.pointers(), ["/unless/0/at_least"]);
}

/// A clock that is a year ahead for a while writes nothing, and forgets no user permanently.
#[tokio::test]
async fn wrong_clock_forgets_no_user() {
    let service = service().await;
    add(&service, &["u1"]).await;
    service.set_clock(NOON.plus_seconds(365 * DAY));
    let refused = service.post("/v1/campaigns/seen/users", json!({"users": ["u2"]})).await;
    refused.problem(503, "clock-unsure");
    let service = service.restart().await;
    service.set_clock(NOON.plus_seconds(60));
    assert_eq!(count(&service, "u1").await, 1);
    add(&service, &["u2"]).await;
    assert_eq!(stats(&service).await["items"], 2);
}
