//! Campaigns that forget: each copy of a user expires after its time, whatever operations and queries happen.

use crate::service::{NOON, Service};
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
    let added = service
        .post("/v1/campaigns/seen/users", json!({"users": users}))
        .await
        .json(200);
    assert_eq!(added["added"], users.len());
}

async fn count(service: &Service, user: &str) -> u64 {
    let counts = service
        .post("/v1/campaigns/seen/users/count", json!({"users": [user]}))
        .await
        .json(200);
    let present = service
        .post("/v1/campaigns/seen/users/check", json!({"users": [user]}))
        .await
        .json(200);
    let count = counts["counts"][0].as_u64().unwrap();
    assert_eq!(present, json!({"present": [count > 0]}));
    count
}

async fn stats(service: &Service) -> Value {
    service.get("/v1/campaigns/seen").await.json(200)["stats"].take()
}

#[tokio::test]
async fn plan_matches_created_campaign() {
    let service = Service::start().await;
    let plan = service
        .get("/v1/plan?capacity=100000&error_rate=0.01&forget_after=7d&forget_steps=32")
        .await
        .json(200);
    let spec =
        json!({"capacity": 100_000, "error_rate": 0.01, "forget_after": "7d", "forget_steps": 32});
    let made = service.put("/v1/campaigns/seen", spec).await.json(201);
    assert_eq!(
        made["stats"]["segments"][0]["fingerprint_bits"],
        plan["fingerprint_bits"]
    );
    assert_eq!(made["stats"]["memory_bytes"], plan["memory_bytes"]);
    assert!(plan["error_rate_at_capacity"].as_f64() <= Some(0.01));
}

/// A user who has seen an ad three times in the last days does not see it for a while.
#[tokio::test]
async fn cap_ignores_forgotten_copies() {
    let service = service().await;
    service
        .put("/v1/campaigns/summer", json!({"capacity": 10}))
        .await
        .json(201);
    service
        .post("/v1/campaigns/summer/users", json!({"users": ["u1"]}))
        .await
        .json(200);
    let unless = json!([{"campaign": "seen", "at_least": 3, "for": "summer"}]);
    let line_up = json!({"campaigns": ["summer"], "unless": unless});
    service.put("/v1/line-ups/home", line_up).await.json(201);
    let ask = async || {
        let request =
            json!({"user": "u1", "campaigns": ["summer"], "unless": unless, "explain": true});
        let response = service.post("/v1/eligibility", request).await.json(200);
        let by_line_up = json!({"user": "u1", "line_up": "home", "explain": true});
        assert_eq!(
            service.post("/v1/eligibility", by_line_up).await.json(200),
            response
        );
        response
    };
    for day in 0..3 {
        let response = ask().await;
        assert_eq!(
            (
                &response["eligible"],
                &response["explanations"][0]["eligible"]
            ),
            (&json!(["summer"]), &json!(true)),
            "{day}"
        );
        add(&service, &["u1"]).await;
        service.pass(DAY);
    }
    let response = ask().await;
    assert_eq!(
        (&response["eligible"], &response["excluded"]),
        (&json!([]), &json!(["summer"]))
    );
    let explanation = &response["explanations"][0];
    assert_eq!(
        (&explanation["excluded_by"], &explanation["eligible"]),
        (&json!("seen"), &json!(false))
    );
    service.pass(5 * DAY + 12 * HOUR - 1);
    assert_eq!(ask().await["excluded"], json!(["summer"]));
    service.pass(1);
    assert_eq!(
        (ask().await["eligible"].clone(), count(&service, "u1").await),
        (json!(["summer"]), 2)
    );
    let seen = json!([{"campaign": "seen", "at_least": 17}]);
    let request = json!({"user": "u1", "campaigns": ["summer"], "unless": seen});
    assert_eq!(
        service.post("/v1/eligibility", request).await.pointers(),
        ["/unless/0/at_least"]
    );
}

/// A clock that is a year ahead for a while writes nothing, and forgets no user permanently.
#[tokio::test]
async fn wrong_clock_forgets_no_user() {
    let service = service().await;
    add(&service, &["u1"]).await;
    service.set_clock(NOON.plus_seconds(365 * DAY));
    let refused = service
        .post("/v1/campaigns/seen/users", json!({"users": ["u2"]}))
        .await;
    refused.problem(503, "clock-unsure");
    let service = service.restart().await;
    service.set_clock(NOON.plus_seconds(60));
    assert_eq!(count(&service, "u1").await, 1);
    add(&service, &["u2"]).await;
    assert_eq!(stats(&service).await["items"], 2);
}
