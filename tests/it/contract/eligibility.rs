//! Which campaigns a user may still see.

use super::service::Service;
use serde_json::json;

async fn service() -> Service {
    let service = Service::start().await;
    for (name, window) in [
        ("spring", json!({"capacity": 10})),
        ("summer", json!({"capacity": 10})),
        ("over", json!({"capacity": 10, "ends_at": "2026-11-21T12:00:00Z"})),
        ("later", json!({"capacity": 10, "starts_at": "2026-11-21T13:00:00Z"})),
        ("winter", json!({"capacity": 10})),
    ] {
        service.put(&format!("/v1/campaigns/{name}"), window).await.json(201);
    }
    for name in ["summer", "over", "later", "winter"] {
        service.post(&format!("/v1/campaigns/{name}/users"), json!({"users": ["u1"]})).await.json(200);
    }
    service
}

#[tokio::test]
async fn the_first_ones_in_order_of_preference() {
    let service = service().await;
    let all = ["over", "spring", "nowhere", "later", "summer", "winter"];
    let first = service.post("/v1/eligibility", json!({"user": "u1", "campaigns": all})).await.json(200);
    assert_eq!(
        first,
        json!({"eligible": ["summer"], "evaluated": 5, "unknown": ["nowhere"], "inactive": ["over", "later"]})
    );
    let request = json!({"user": "u1", "campaigns": ["winter", "nowhere", "summer"], "limit": 5});
    let more = service.post("/v1/eligibility", request).await.json(200);
    assert_eq!(
        more,
        json!({"eligible": ["winter", "summer"], "evaluated": 3, "unknown": ["nowhere"], "inactive": []})
    );
    service.pass(3_600);
    let later =
        service.post("/v1/eligibility", json!({"user": "u1", "campaigns": ["later"]})).await.json(200);
    assert_eq!(later["eligible"], json!(["later"]));
}

#[tokio::test]
async fn batches_answer_in_order() {
    let service = service().await;
    let requests = json!({"requests": [
        {"user": "u1", "campaigns": ["summer"]},
        {"user": "nobody", "campaigns": ["summer", "winter"]},
    ]});
    let answer = service.post("/v1/eligibility/batch", requests).await.json(200);
    assert_eq!(
        answer,
        json!({"results": [
            {"eligible": ["summer"], "evaluated": 1, "unknown": [], "inactive": []},
            {"eligible": [], "evaluated": 2, "unknown": [], "inactive": []},
        ]})
    );
    let request = json!({"user": "u1", "campaigns": ["summer"]});
    service.post("/v1/eligibility/batch", json!({"requests": vec![request.clone(); 1_000]})).await.json(200);
    let too_many = service.post("/v1/eligibility/batch", json!({"requests": vec![request; 1_001]})).await;
    assert_eq!(too_many.pointers(), ["/requests"]);
}

#[tokio::test]
async fn what_is_not_valid_is_pointed_at() {
    let service = Service::start().await;
    for (bad, pointer) in [
        (json!({"campaigns": ["a"]}), "/user"),
        (json!({"user": 7, "campaigns": ["a"]}), "/user"),
        (json!({"user": "", "campaigns": ["a"]}), "/user"),
        (json!({"user": "u1", "campaigns": []}), "/campaigns"),
        (json!({"user": "u1", "campaigns": vec!["a"; 257]}), "/campaigns"),
        (json!({"user": "u1", "campaigns": ["a"], "limit": 0}), "/limit"),
        (json!({"user": "u1", "campaigns": ["a"], "colour": "red"}), "/colour"),
    ] {
        let answer = service.post("/v1/eligibility", bad.clone()).await;
        assert_eq!(answer.pointers(), [pointer], "{bad}");
    }
    let nested = json!({"requests": [{"user": "u1", "campaigns": ["a"]}, {"user": 7, "campaigns": ["a"]}]});
    assert_eq!(service.post("/v1/eligibility/batch", nested).await.pointers(), ["/requests/1/user"]);
    let list = json!({"requests": [{"user": "u", "campaigns": ["a"]}, ["u", ["a"], 1]]});
    assert_eq!(service.post("/v1/eligibility/batch", list).await.pointers(), ["/requests/1"]);
    assert_eq!(service.post("/v1/eligibility", json!(["u", ["a"], 1])).await.pointers(), [""]);
}
