//! The busiest routes have a short way past the router. An escaped name takes the long way, and the answers are the same.

use super::service::{Answer, Service, json as json_request, request};
use axum::body::Body;
use http::Method;
use serde_json::{Value, json};

/// The content of a response, without the values that differ between requests. The router sets the length; else the connection does. Each
/// write has a different position.
fn said(answer: &Answer) -> (u16, Vec<(String, String)>, Value) {
    let mut headers: Vec<(String, String)> = answer
        .headers
        .iter()
        .filter(|(name, _)| {
            !["x-request-id", "x-cuckood-position", "content-length"].contains(&name.as_str())
        })
        .map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned()))
        .collect();
    headers.sort_unstable();
    let mut body: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    if let Some(body) = body.as_object_mut() {
        body.remove("request_id");
    }
    (answer.status, headers, body)
}

#[tokio::test]
async fn shortcut_refusal_equals_logged_refusal() {
    let service = Service::start().await;
    for name in ["/v1/campaigns/ads", "/v1/coupons/codes"] {
        service.put(name, json!({"capacity": 1000})).await.json(201);
    }
    service.post("/v1/campaigns/ads/users", json!({"users": ["u1"]})).await.json(200);
    service.post("/v1/coupons/codes/codes", json!({"codes": ["c1"]})).await.json(200);
    let first = service.post("/v1/coupons/codes/redemptions", json!({"code": "c1", "reference": "r"})).await;
    first.json(201);
    let routes = [
        ("/v1/campaigns/", "ads", "/users/check", json!({"users": ["u1", "u2"]})),
        ("/v1/campaigns/", "ads", "/users", json!({"users": ["u1"], "if_absent": true})),
        ("/v1/coupons/", "codes", "/codes/check", json!({"codes": ["c1", "c2"]})),
        ("/v1/coupons/", "codes", "/redemptions", json!({"code": "c1", "reference": "r"})),
    ];
    for (collection, name, rest, good) in routes {
        let escaped = format!("%{:x}{}", name.as_bytes()[0], &name[1..]);
        let bodies = [good.to_string(), "{".to_owned(), "{}".to_owned(), "x".repeat(2 << 20)];
        for (way, other) in
            [(name, escaped.as_str()), ("unknown", "%75nknown"), ("NOT a name", "%4EOT a name")]
        {
            let paths = [way, other].map(|name| format!("{collection}{}{rest}", name.replace(' ', "%20")));
            for body in &bodies {
                let mut answers = Vec::new();
                for path in &paths {
                    let body = Body::from(body.clone());
                    let kind = [("content-type", "application/json")];
                    answers.push(said(&service.send(request(Method::POST, path, &kind, body)).await));
                }
                assert_eq!(answers[0], answers[1], "{paths:?}");
            }
            for method in [Method::GET, Method::OPTIONS, Method::PUT] {
                let mut answers = Vec::new();
                for path in &paths {
                    answers.push(said(&service.send(json_request(method.clone(), path, &[], &good)).await));
                }
                assert_eq!(answers[0], answers[1], "{method} {paths:?}");
            }
        }
    }
}
