//! Web pages: without keys a service on a loopback address is out of their reach.

use crate::service::{Answer, Service, key, request, with_keys};
use axum::body::Body;
use cuckood::access::Scope;
use http::Method;
use serde_json::json;

const CAMPAIGN: &str = "/v1/campaigns/spring";

async fn send(service: &Service, method: Method, path: &str, headers: &[(&str, &str)]) -> Answer {
    let headers = [&[("content-type", "text/plain")], headers].concat();
    let body = if path.contains("/imports") {
        "u1\n"
    } else {
        ""
    };
    service
        .send(request(method, path, &headers, Body::from(body)))
        .await
}

#[tokio::test]
async fn foreign_host_name_is_rejected() {
    let service = Service::start().await;
    service
        .put(CAMPAIGN, json!({"capacity": 10}))
        .await
        .json(201);
    let rebound = [("host", "evil.example:8080")];
    for (method, path) in [
        (Method::GET, CAMPAIGN),
        (Method::GET, "/v1/backup"),
        (Method::GET, "/openapi.json"),
        (Method::GET, "/metrics"),
        (Method::GET, "/nothing"),
        (Method::POST, "/v1/campaigns/spring/clear"),
        (Method::DELETE, CAMPAIGN),
    ] {
        let answer = send(&service, method.clone(), path, &rebound).await;
        assert_eq!(answer.status, 403, "{method} {path}: {}", answer.text());
        answer.problem(403, "foreign-origin");
    }
    for path in ["/livez", "/readyz"] {
        assert_eq!(
            send(&service, Method::GET, path, &rebound).await.status,
            200,
            "{path}"
        );
    }
    for own in ["localhost:8080", "127.0.0.1:8080", "[::1]:8080"] {
        send(&service, Method::GET, CAMPAIGN, &[("host", own)])
            .await
            .json(200);
    }
}

#[tokio::test]
async fn foreign_site_cannot_write() {
    let service = Service::start().await;
    service
        .put(CAMPAIGN, json!({"capacity": 10}))
        .await
        .json(201);
    service
        .post("/v1/campaigns/spring/users", json!({"users": ["u1"]}))
        .await
        .json(200);
    for origin in ["https://evil.example", "http://localhost:3000", "null"] {
        let foreign = [("host", "localhost:8080"), ("origin", origin)];
        for path in [
            "/v1/campaigns/spring/clear",
            "/v1/campaigns/spring/imports?mode=replace",
        ] {
            send(&service, Method::POST, path, &foreign)
                .await
                .problem(403, "foreign-origin");
        }
        send(&service, Method::DELETE, CAMPAIGN, &foreign)
            .await
            .problem(403, "foreign-origin");
    }
    assert_eq!(service.get(CAMPAIGN).await.json(200)["stats"]["items"], 1);
    // The service's own page may.
    let own = [
        ("host", "localhost:8080"),
        ("origin", "http://localhost:8080"),
    ];
    send(&service, Method::POST, "/v1/campaigns/spring/clear", &own)
        .await
        .json(200);
}

#[tokio::test]
async fn api_keys_lift_host_and_origin_checks() {
    let service = Service::with(with_keys([key("root", &[Scope::Admin], "")])).await;
    // A page has no key, unless it was given one.
    let headers = [
        ("host", "cuckood.example"),
        ("origin", "https://shop.example"),
    ];
    send(&service, Method::POST, "/v1/snapshots", &headers)
        .await
        .problem(401, "unauthenticated");
    let with_key = [&headers[..], &[("authorization", "Bearer secret-root")]].concat();
    send(&service, Method::POST, "/v1/snapshots", &with_key)
        .await
        .json(200);
}
