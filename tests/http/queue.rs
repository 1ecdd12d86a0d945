//! More writes than the queue holds: the excess is rejected immediately, the others wait for the journal.

use crate::service::Service;
use cuckood::http::options::{HttpOptions, RequestTimeouts};
use cuckood_log::testing::memory_log::MemoryLog;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use serde_json::json;
use std::time::Duration;

/// Capacity of the queue in small commands: each counts as 256 bytes.
const ROOM: u64 = 4;

#[tokio::test]
async fn full_queue_rejects_only_excess_writes() {
    let log = MemoryLog::new();
    let journal = Some(crate::engines::on_log(&log));
    let service = Service::on(journal, HttpOptions::default(), |setup| {
        setup.queue_bytes_max = ROOM * 256
    })
    .await;
    service
        .put("/v1/campaigns/c", json!({ "capacity": 1_000 }))
        .await
        .json(201);
    for round in 0..3 {
        log.hold();
        let add = |number: u64| {
            let body = json!({ "users": [format!("u{round}-{number}")] });
            service.post("/v1/campaigns/c/users", body)
        };
        let mut writes: FuturesUnordered<_> = (0..ROOM + 3).map(add).collect();
        // While nothing is committed, only rejections arrive.
        for _ in 0..3 {
            let refused = writes.next().await.unwrap();
            refused.problem(503, "overloaded");
            assert_eq!(refused.header("retry-after"), "1");
        }
        // Reads go on.
        let users = json!({ "users": ["nobody"] });
        service
            .post("/v1/campaigns/c/users/check", users)
            .await
            .json(200);
        log.go_on();
        while let Some(answer) = writes.next().await {
            answer.json(200);
        }
    }
    let campaign = service.get("/v1/campaigns/c").await.json(200);
    assert_eq!(campaign["stats"]["items"], 3 * ROOM);
    let metrics = service.get("/metrics").await.text();
    assert!(metrics.contains("overloaded_total 9"), "{metrics}");
}

#[tokio::test]
async fn overdue_write_reports_unknown_outcome() {
    let log = MemoryLog::new();
    let journal = Some(crate::engines::on_log(&log));
    let timeouts = RequestTimeouts {
        request: Duration::from_millis(1),
        ..RequestTimeouts::default()
    };
    let service = Service::on(
        journal,
        HttpOptions {
            timeouts,
            ..HttpOptions::default()
        },
        |_| (),
    )
    .await;
    log.hold();
    let unknown = service
        .put("/v1/campaigns/c", json!({ "capacity": 1_000 }))
        .await;
    // "Try again later" would say that nothing was done.
    unknown.problem(503, "storage-failed");
    assert!(!unknown.headers.contains_key("retry-after"));
    log.go_on();
    while service.get("/v1/campaigns/c").await.status != 200 {
        tokio::task::yield_now().await;
    }
}
