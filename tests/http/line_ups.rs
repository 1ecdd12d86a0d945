//! Line-ups: named eligibility queries.

use crate::service::Service;
use cuckood::http::options::HttpOptions;
use serde_json::{Value, json};

const HOME: &str = "/v1/line-ups/home";

#[tokio::test]
async fn invalid_line_up_is_rejected() {
    let service = Service::start().await;
    let many = |count: usize| vec!["a"; count];
    let lists = |count: usize| vec![json!({"campaign": "b"}); count];
    for (bad, pointer) in [
        (json!({}), "/campaigns"),
        (json!({"campaigns": []}), "/campaigns"),
        (json!({"campaigns": many(257)}), "/campaigns"),
        (json!({"campaigns": ["a", "A"]}), "/campaigns/1"),
        (json!({"campaigns": ["a"], "limit": 0}), "/limit"),
        (json!({"campaigns": ["a"], "limit": 257}), "/limit"),
        (json!({"campaigns": ["a"], "unless": lists(33)}), "/unless"),
        (
            json!({"campaigns": ["a"], "unless": [{"campaign": "b", "at_least": 0}]}),
            "/unless/0/at_least",
        ),
        (
            json!({"campaigns": ["a"], "unless": [{"campaign": "b", "for": ""}]}),
            "/unless/0/for",
        ),
        (json!({"campaigns": ["a"], "user": "u1"}), "/user"),
    ] {
        assert_eq!(
            service.put(HOME, bad.clone()).await.pointers(),
            [pointer],
            "{bad}"
        );
    }
    assert_eq!(
        service
            .put("/v1/line-ups/Home", json!({"campaigns": ["a"]}))
            .await
            .pointers(),
        ["/line_up"]
    );
    service.get(HOME).await.problem(404, "line-up-not-found");
    let largest = json!({"campaigns": many(256), "unless": lists(32), "limit": 256});
    service.put(HOME, largest).await.json(201);
}

/// Creates a campaign that holds `u1`.
async fn campaign(service: &Service, name: &str) {
    service
        .put(&format!("/v1/campaigns/{name}"), json!({"capacity": 10}))
        .await
        .json(201);
    service
        .post(
            &format!("/v1/campaigns/{name}/users"),
            json!({"users": ["u1"]}),
        )
        .await
        .json(200);
}

async fn ask(service: &Service, request: Value) -> Value {
    service.post("/v1/eligibility", request).await.json(200)
}

#[tokio::test]
async fn named_query_equals_inline_query() {
    let service = Service::start().await;
    campaign(&service, "spring").await;
    campaign(&service, "winter").await;
    let spec = json!({"campaigns": ["summer", "spring", "winter"], "unless": [{"campaign": "opted-out", "for": "spring"}]});
    service.put(HOME, spec.clone()).await.json(201);
    for step in ["", "summer", "opted-out"] {
        if !step.is_empty() {
            campaign(&service, step).await;
        }
        for limit in [None, Some(1), Some(3)] {
            for explain in [false, true] {
                let mut by_name = json!({"user": "u1", "line_up": "home", "explain": explain});
                let mut all = spec.clone();
                (all["user"], all["explain"]) = (json!("u1"), json!(explain));
                if let Some(limit) = limit {
                    (by_name["limit"], all["limit"]) = (json!(limit), json!(limit));
                }
                let expected = ask(&service, all).await;
                assert_eq!(ask(&service, by_name.clone()).await, expected);
                let batch = service
                    .post("/v1/eligibility/batch", json!({"requests": [by_name]}))
                    .await;
                assert_eq!(batch.json(200), json!({"results": [expected]}));
            }
        }
    }
    // Its own limit holds unless a request has one.
    service
        .put(HOME, json!({"campaigns": ["spring", "winter"], "limit": 2}))
        .await
        .json(200);
    assert_eq!(
        ask(&service, json!({"user": "u1", "line_up": "home"})).await["evaluated"],
        2
    );
    assert_eq!(
        ask(
            &service,
            json!({"user": "u1", "line_up": "home", "limit": 1})
        )
        .await["evaluated"],
        1
    );
}

#[tokio::test]
async fn line_up_number_and_size_are_limited() {
    let service = Service::on(None, HttpOptions::default(), |options| {
        options.settings.line_ups_max = 2
    })
    .await;
    let put = async |name: &str| {
        service
            .put(
                &format!("/v1/line-ups/{name}"),
                json!({"campaigns": ["spring"]}),
            )
            .await
    };
    put("a").await.json(201);
    put("b").await.json(201);
    put("c").await.problem(507, "too-many-line-ups");
    put("b").await.json(200);
    assert_eq!(service.delete("/v1/line-ups/a").await.status, 204);
    put("c").await.json(201);
    assert_eq!(service.get("/v1/info").await.json(200)["line_ups"], 2);
}
