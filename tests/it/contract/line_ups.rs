//! Line-ups: named eligibility queries.

use super::service::{Service, json as json_request, request};
use axum::body::Body;
use cuckood::http::options::HttpOptions;
use http::Method;
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
        (json!({"campaigns": ["a"], "unless": [{"campaign": "b", "at_least": 0}]}), "/unless/0/at_least"),
        (json!({"campaigns": ["a"], "unless": [{"campaign": "b", "for": ""}]}), "/unless/0/for"),
        (json!({"campaigns": ["a"], "user": "u1"}), "/user"),
    ] {
        assert_eq!(service.put(HOME, bad.clone()).await.pointers(), [pointer], "{bad}");
    }
    assert_eq!(service.put("/v1/line-ups/Home", json!({"campaigns": ["a"]})).await.pointers(), ["/line_up"]);
    service.get(HOME).await.problem(404, "line-up-not-found");
    let largest = json!({"campaigns": many(256), "unless": lists(32), "limit": 256});
    service.put(HOME, largest).await.json(201);
}

/// Creates a campaign that holds `u1`.
async fn campaign(service: &Service, name: &str) {
    service.put(&format!("/v1/campaigns/{name}"), json!({"capacity": 10})).await.json(201);
    service.post(&format!("/v1/campaigns/{name}/users"), json!({"users": ["u1"]})).await.json(200);
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
                let batch = service.post("/v1/eligibility/batch", json!({"requests": [by_name]})).await;
                assert_eq!(batch.json(200), json!({"results": [expected]}));
            }
        }
    }
    // Its own limit holds unless a request has one.
    service.put(HOME, json!({"campaigns": ["spring", "winter"], "limit": 2})).await.json(200);
    assert_eq!(ask(&service, json!({"user": "u1", "line_up": "home"})).await["evaluated"], 2);
    assert_eq!(ask(&service, json!({"user": "u1", "line_up": "home", "limit": 1})).await["evaluated"], 1);
}

#[tokio::test]
async fn line_up_query_rejects_overlapping_fields() {
    let service = Service::start().await;
    campaign(&service, "spring").await;
    service.put(HOME, json!({"campaigns": ["spring"]})).await.json(201);
    for bad in [
        json!({"user": "u1", "line_up": "home", "campaigns": ["spring"]}),
        json!({"user": "u1", "line_up": "home", "unless": [{"campaign": "spring"}]}),
        json!({"user": "u1", "line_up": "Home"}),
        json!({"user": "u1", "line_up": null}),
    ] {
        assert_eq!(service.post("/v1/eligibility", bad.clone()).await.pointers(), ["/line_up"], "{bad}");
    }
    let unknown = json!({"user": "u1", "line_up": "none"});
    service.post("/v1/eligibility", unknown.clone()).await.problem(404, "line-up-not-found");
    let requests = json!({"requests": [{"user": "u1", "line_up": "home"}, unknown]});
    let problem = service.post("/v1/eligibility/batch", requests).await.problem(404, "line-up-not-found");
    assert_eq!(problem["errors"][0]["pointer"], "/requests/1/line_up");
    // More copies than a campaign counts: rejected when the line-up is stored, or later if the campaign didn't exist.
    let too_many =
        |campaign| json!({"campaigns": ["spring"], "unless": [{"campaign": campaign, "at_least": 17}]});
    assert_eq!(service.put(HOME, too_many("spring")).await.pointers(), ["/unless/0/at_least"]);
    service.put(HOME, too_many("later")).await.json(200);
    let asked = json!({"user": "u1", "line_up": "home"});
    assert_eq!(ask(&service, asked.clone()).await["eligible"], json!(["spring"]));
    campaign(&service, "later").await;
    assert_eq!(service.post("/v1/eligibility", asked).await.pointers(), ["/line_up"]);
}

#[tokio::test]
async fn line_ups_are_listed_by_name_in_pages() {
    let service = Service::start().await;
    for name in ["eu-b", "eu-a", "us-a", "eu-c"] {
        service.put(&format!("/v1/line-ups/{name}"), json!({"campaigns": [name]})).await.json(201);
    }
    let names = |page: &Value| -> Vec<String> {
        let line_ups = page["line_ups"].as_array().unwrap();
        line_ups.iter().map(|line_up| line_up["campaigns"][0].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(&service.get("/v1/line-ups").await.json(200)), ["eu-a", "eu-b", "eu-c", "us-a"]);
    let first = service.get("/v1/line-ups?limit=2&prefix=eu-").await.json(200);
    assert_eq!(names(&first), ["eu-a", "eu-b"]);
    let cursor = first["next_cursor"].as_str().unwrap();
    let last = service.get(&format!("/v1/line-ups?limit=2&prefix=eu-&cursor={cursor}")).await.json(200);
    assert_eq!(names(&last), ["eu-c"]);
    assert!(last.get("next_cursor").is_none());
}

#[tokio::test]
async fn repeated_put_has_one_effect() {
    let service = Service::start().await;
    let headers = [("idempotency-key", "k")];
    let put = async |campaign: &str| {
        let body = json!({"campaigns": [campaign]});
        service.send(json_request(Method::PUT, HOME, &headers, &body)).await
    };
    let delete = async |key: &str| {
        let headers = [("idempotency-key", key)];
        service.send(request(Method::DELETE, HOME, &headers, Body::empty())).await
    };
    let created = put("a").await.json(201);
    service.put(HOME, json!({"campaigns": ["b"]})).await.json(200);
    let again = put("a").await;
    assert_eq!(again.header("idempotency-replayed"), "true");
    assert_eq!(again.json(201), created);
    assert_eq!(service.get(HOME).await.json(200)["campaigns"], json!(["b"]));
    put("c").await.problem(422, "idempotency-key-reused");
    // A campaign of the same name has separate idempotency keys.
    let campaign = json_request(Method::PUT, "/v1/campaigns/home", &headers, &json!({"capacity": 10}));
    service.send(campaign).await.json(201);

    delete("k").await.problem(422, "idempotency-key-reused");
    assert_eq!(delete("d").await.status, 204);
    // The repeated deletion doesn't affect a new line-up of the name, which has separate keys.
    put("c").await.json(201);
    let deleted = delete("d").await;
    assert_eq!((deleted.status, deleted.header("idempotency-replayed")), (204, "true"));
    assert_eq!(service.get(HOME).await.json(200)["campaigns"], json!(["c"]));
}

#[tokio::test]
async fn line_up_number_and_size_are_limited() {
    let service =
        Service::on(None, HttpOptions::default(), |options| options.settings.line_ups_max = 2).await;
    let put = async |name: &str| {
        service.put(&format!("/v1/line-ups/{name}"), json!({"campaigns": ["spring"]})).await
    };
    put("a").await.json(201);
    put("b").await.json(201);
    put("c").await.problem(507, "too-many-line-ups");
    put("b").await.json(200);
    assert_eq!(service.delete("/v1/line-ups/a").await.status, 204);
    put("c").await.json(201);
    assert_eq!(service.get("/v1/info").await.json(200)["line_ups"], 2);
}

#[tokio::test]
async fn line_ups_survive_restart() {
    let service = Service::start().await;
    campaign(&service, "spring").await;
    let unless = json!([{"campaign": "seen", "at_least": 2, "for": "spring"}]);
    let stored = service.put(HOME, json!({"campaigns": ["spring"], "unless": unless})).await.json(201);
    service.put("/v1/line-ups/gone", json!({"campaigns": ["spring"]})).await.json(201);
    assert_eq!(service.delete("/v1/line-ups/gone").await.status, 204);
    // From the log, then from a snapshot.
    let service = service.restart().await;
    assert_eq!(service.get(HOME).await.json(200), stored);
    service.command("/v1/snapshots").await.json(200);
    let service = service.restart().await;
    assert_eq!(service.get(HOME).await.json(200), stored);
    assert_eq!(service.get("/v1/line-ups").await.json(200), json!({"line_ups": [stored]}));
    assert_eq!(ask(&service, json!({"user": "u1", "line_up": "home"})).await["eligible"], json!(["spring"]));
}
