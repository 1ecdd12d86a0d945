//! Which campaigns a user may still see.

use crate::service::{Service, json as json_request, read};
use http::Method;
use serde_json::{Value, json};

async fn service() -> Service {
    let service = Service::start().await;
    // No stranger looks like a user of these.
    let sure = json!({"capacity": 100, "layout": {"fingerprint_bits": 32, "bucket_size": 8}});
    for (name, window) in [
        ("spring", sure.clone()),
        ("summer", sure.clone()),
        (
            "over",
            json!({"capacity": 10, "ends_at": "2026-11-21T12:00:00Z"}),
        ),
        (
            "later",
            json!({"capacity": 10, "starts_at": "2026-11-21T13:00:00Z"}),
        ),
        ("winter", sure),
    ] {
        service
            .put(&format!("/v1/campaigns/{name}"), window)
            .await
            .json(201);
    }
    for name in ["summer", "over", "later", "winter"] {
        service
            .post(
                &format!("/v1/campaigns/{name}/users"),
                json!({"users": ["u1"]}),
            )
            .await
            .json(200);
    }
    service
}

#[tokio::test]
async fn batch_has_1000_requests_at_most() {
    let service = service().await;
    let batch =
        |count| json!({"requests": vec![json!({"user": "u1", "campaigns": ["summer"]}); count]});
    service
        .post("/v1/eligibility/batch", batch(1_000))
        .await
        .json(200);
    assert_eq!(
        service
            .post("/v1/eligibility/batch", batch(1_001))
            .await
            .pointers(),
        ["/requests"]
    );
}

#[tokio::test]
async fn query_has_256_campaigns_and_32_exclusions_at_most() {
    let service = Service::start().await;
    let query = |campaigns, unless| {
        let unless = vec![json!({"campaign": "b"}); unless];
        json!({"user": "u1", "campaigns": vec!["a"; campaigns], "unless": unless})
    };
    assert_eq!(
        service
            .post("/v1/eligibility", query(257, 1))
            .await
            .pointers(),
        ["/campaigns"]
    );
    assert_eq!(
        service
            .post("/v1/eligibility", query(1, 33))
            .await
            .pointers(),
        ["/unless"]
    );
    service
        .post("/v1/eligibility", query(256, 32))
        .await
        .json(200);
}

async fn ask(service: &Service, campaigns: &[&str], limit: u32, unless: Value) -> Value {
    let request = json!({"user": "u1", "campaigns": campaigns, "limit": limit, "unless": unless});
    service.post("/v1/eligibility", request).await.json(200)
}

/// Adds copies of the user `u1`.
async fn add(service: &Service, campaign: &str, copies: usize) {
    let users = json!({"users": vec!["u1"; copies]});
    service
        .post(&format!("/v1/campaigns/{campaign}/users"), users)
        .await
        .json(200);
}

#[tokio::test]
async fn cap_beyond_copy_limit_is_rejected() {
    let service = service().await;
    let layout = json!({"fingerprint_bits": 16, "bucket_size": 2});
    service
        .put(
            "/v1/campaigns/small",
            json!({"capacity": 10, "layout": layout}),
        )
        .await
        .json(201);
    service
        .put(
            "/v1/campaigns/set",
            json!({"capacity": 10, "mode": "strict"}),
        )
        .await
        .json(201);
    for (campaign, copies_max) in [("small", 4), ("set", 1), ("summer", 16)] {
        let stats = &service
            .get(&format!("/v1/campaigns/{campaign}"))
            .await
            .json(200)["stats"];
        assert_eq!(stats["copies_max"], copies_max, "{campaign}");
        add(&service, campaign, 20).await;
        let unless = |at_least| json!([{"campaign": "lost", "at_least": 99}, {"campaign": campaign, "at_least": at_least}]);
        let answer = ask(&service, &["winter"], 1, unless(copies_max)).await;
        assert_eq!(answer["excluded"], json!(["winter"]), "{campaign}");
        let request =
            json!({"user": "u1", "campaigns": ["winter"], "unless": unless(copies_max + 1)});
        let answer = service.post("/v1/eligibility", request.clone()).await;
        assert_eq!(answer.pointers(), ["/unless/1/at_least"], "{campaign}");
        let requests = json!({"requests": [{"user": "u1", "campaigns": ["winter"]}, request]});
        let answer = service.post("/v1/eligibility/batch", requests).await;
        assert_eq!(
            answer.pointers(),
            ["/requests/1/unless/1/at_least"],
            "{campaign}"
        );
    }
}

#[tokio::test]
async fn explanation_lists_each_campaign() {
    let service = service().await;
    service
        .put("/v1/campaigns/empty", json!({"capacity": 10}))
        .await
        .json(201);
    let request = json!({
        "user": "u1",
        "campaigns": ["over", "nowhere", "spring", "later", "empty", "summer", "winter"],
        "unless": [{"campaign": "winter", "for": "summer"}, {"campaign": "summer", "for": "spring"}],
        "limit": 1,
        "explain": true,
    });
    let mut answer = service
        .post("/v1/eligibility", request.clone())
        .await
        .json(200);
    for explanation in answer["explanations"].as_array_mut().unwrap() {
        let rate = explanation
            .as_object_mut()
            .unwrap()
            .remove("error_rate")
            .unwrap();
        let is_empty = ["spring", "empty"].contains(&explanation["campaign"].as_str().unwrap());
        let rate = rate.as_f64().unwrap();
        assert!(
            rate < 0.001 && (rate == 0.0) == is_empty,
            "{explanation} {rate}"
        );
    }
    let explanations = json!([
        {"campaign": "over", "present": true, "window": "after", "eligible": false},
        {"campaign": "spring", "present": false, "window": "inside", "excluded_by": "summer", "eligible": false},
        {"campaign": "later", "present": true, "window": "before", "eligible": false},
        {"campaign": "empty", "present": false, "window": "inside", "eligible": false},
        {"campaign": "summer", "present": true, "window": "inside", "excluded_by": "winter", "eligible": false},
        {"campaign": "winter", "present": true, "window": "inside", "eligible": true},
    ]);
    assert_eq!(
        answer,
        json!({
            "eligible": ["winter"], "evaluated": 7, "unknown": ["nowhere"], "inactive": ["over", "later"],
            "excluded": ["summer"], "explanations": explanations,
        })
    );
    let batch = json!({"requests": [request]});
    let batch = service.post("/v1/eligibility/batch", batch).await.json(200);
    assert_eq!(
        batch["results"][0]["explanations"]
            .as_array()
            .unwrap()
            .len(),
        6
    );
}

/// A client may accept a long answer slowly. Its bytes count until then.
#[tokio::test]
async fn batch_response_is_budgeted_until_sent() {
    let service = service().await;
    let taken = async || -> u64 {
        let text = service.get("/metrics").await.text();
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("cuckood_response_bytes "))
            .unwrap();
        line.parse().unwrap()
    };
    let request =
        json!({"user": "u1", "campaigns": ["spring", "summer"], "limit": 2, "explain": true});
    let body = json!({"requests": vec![request; 1_000]});
    let answer = service
        .begin(json_request(
            Method::POST,
            "/v1/eligibility/batch",
            &[],
            &body,
        ))
        .await;
    assert_eq!(answer.status(), 200);
    let held = taken().await;
    let length = read(answer.into_body()).await.len() as u64;
    assert!(
        length > 100_000 && held >= length,
        "{held} bytes for an answer of {length}"
    );
    assert_eq!(taken().await, 0);
}
