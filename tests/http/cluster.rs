//! What clients of one of several nodes see: positions of the log, and uploads that run on another node.

use crate::imports::endless;
use crate::service::{Service, json as json_request, request};
use axum::body::Body;
use bytes::Bytes;
use cuckood::http::options::HttpOptions;
use cuckood_log::testing::memory_log::MemoryLog;
use http::Method;
use serde_json::json;
use tokio::sync::oneshot;

async fn node(log: &MemoryLog) -> Service {
    Service::on(
        Some(crate::engines::on_log(log)),
        HttpOptions::default(),
        |_| (),
    )
    .await
}

#[tokio::test]
async fn only_api_reads_accept_min_position() {
    let node = node(&MemoryLog::new()).await;
    node.put("/v1/coupons/p", json!({"capacity": 10}))
        .await
        .json(201);
    for strange in [
        ("x-cuckood-consistency", "weak"),
        ("x-cuckood-min-position", "soon"),
    ] {
        for path in ["/livez", "/readyz", "/metrics", "/openapi.json"] {
            let answer = node
                .send(request(Method::GET, path, &[strange], Body::empty()))
                .await;
            assert_eq!(
                answer.status, 200,
                "{path} needs no key, so it may cost nothing"
            );
        }
        let spec = json!({"capacity": 10});
        node.send(json_request(
            Method::PUT,
            "/v1/coupons/p",
            &[strange],
            &spec,
        ))
        .await
        .json(200);
        for path in ["/v1/coupons/p", "/v1/info", "/v1/backup"] {
            let answer = node
                .send(request(Method::GET, path, &[strange], Body::empty()))
                .await;
            answer.problem(400, "malformed-request");
        }
        for operation in ["check", "count", "lookup"] {
            let path = format!("/v1/coupons/p/codes/{operation}");
            let body = json!({"codes": ["A"]});
            let answer = node
                .send(json_request(Method::POST, &path, &[strange], &body))
                .await;
            answer.problem(400, "malformed-request");
        }
    }
    let strong = [("x-cuckood-consistency", "strong")];
    node.send(request(
        Method::GET,
        "/v1/coupons/p",
        &strong,
        Body::empty(),
    ))
    .await
    .json(200);
    let head = node
        .send(request(
            Method::HEAD,
            "/v1/coupons/p",
            &strong,
            Body::empty(),
        ))
        .await;
    assert_eq!(
        (head.status, head.header("x-cuckood-position").is_empty()),
        (200, false)
    );
}

/// Its response may reflect writes during the upload of its body, but need not.
#[tokio::test]
async fn read_position_never_exceeds_its_state() {
    let node = node(&MemoryLog::new()).await;
    node.put("/v1/coupons/p", json!({"capacity": 10}))
        .await
        .json(201);
    let position = |answer: &crate::service::Answer| -> u64 {
        answer.header("x-cuckood-position").parse().unwrap()
    };
    for operation in ["check", "count", "lookup"] {
        let before = position(&node.get("/v1/coupons/p").await);
        let (arrives, arrived) = oneshot::channel::<Bytes>();
        let body = Body::from_stream(futures_util::stream::once(arrived));
        let path = format!("/v1/coupons/p/codes/{operation}");
        let read = node.send(request(
            Method::POST,
            &path,
            &[("content-type", "application/json")],
            body,
        ));
        let write = async {
            let added = node
                .post("/v1/coupons/p/codes", json!({"codes": [operation]}))
                .await;
            arrives
                .send(json!({"codes": ["A"]}).to_string().into())
                .unwrap();
            position(&added)
        };
        let (read, added) = tokio::join!(read, write);
        read.json(200);
        assert_eq!(position(&read), before, "{operation}");
        assert!(added > before);
    }
}

#[tokio::test]
async fn upload_is_stopped_only_on_its_node() {
    let log = MemoryLog::new();
    let here = node(&log).await;
    let there = node(&log).await;
    here.put("/v1/campaigns/spring", json!({"capacity": 100}))
        .await
        .json(201);
    let upload = there.import(
        "/v1/campaigns/spring/imports?id=a",
        "text/plain",
        endless("u1\n"),
    );
    let others = async {
        let path = "/v1/imports/a";
        while here.get(path).await.status == 404 {
            tokio::task::yield_now().await;
        }
        here.delete(path).await.problem(409, "import-running");
        assert_eq!(here.get(path).await.json(200)["state"], "running");
        assert_eq!(there.delete(path).await.status, 204);
        while here.get(path).await.json(200)["state"] == "running" {
            tokio::task::yield_now().await;
        }
        assert_eq!(here.delete(path).await.status, 204);
    };
    // The campaign is created on this node, and may not have reached the other one.
    while there.get("/v1/campaigns/spring").await.status == 404 {
        tokio::task::yield_now().await;
    }
    let (answer, ()) = tokio::join!(upload, others);
    answer.problem(409, "import-stopped");
}
