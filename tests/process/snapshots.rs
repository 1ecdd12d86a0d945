//! The disk cost of a snapshot is its content: commits wait for all other writes.

use crate::service::Service;
use crate::{program, until};
use serde_json::json;

#[test]
fn snapshot_is_written_once() {
    let directory = tempfile::tempdir().unwrap();
    let service = Service::start_ready(program(), &directory.path().join("data"), &[]);
    let client = service.client();
    let created = client
        .put("/v1/campaigns/launch", &json!({ "capacity": 8_000_000 }))
        .unwrap();
    assert_eq!(created.status, 201);
    // Of a table only chunks that hold anything are written.
    let users: String = (0..100_000).map(|user| format!("{user}\n")).collect();
    let imported = client
        .import("/v1/campaigns/launch/imports", std::io::Cursor::new(users))
        .unwrap();
    assert_eq!(imported.status, 200);
    let before = service.bytes_written();
    let answer = client.post("/v1/snapshots", &json!({})).unwrap();
    let written = service.bytes_written() - before;
    let held = answer.body["bytes_written"].as_u64().unwrap();
    assert!(held > 8_000_000, "{held}");
    // Headers, checksums and keys are added. sled alone, left to fill its leaves, writes chunks four times over.
    assert!(
        written < held * 5 / 4,
        "{written} bytes were written for {held}"
    );
}

/// After a start there is a good deal of free space in sled's file. Its flusher would move things about in it for ever.
#[test]
fn idle_service_writes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let launch = json!({ "capacity": 50_000_000 });
    for start in 0..4 {
        let service = Service::start_ready(program(), &data, &[]);
        let client = service.client();
        assert!(
            comes_to_rest(&service),
            "it never stops to write after start {start}"
        );
        assert!(client.put("/v1/campaigns/launch", &launch).unwrap().status < 300);
        for user in [2 * start, 2 * start + 1] {
            let users = json!({ "users": [user.to_string()] });
            assert_eq!(
                client
                    .post("/v1/campaigns/launch/users", &users)
                    .unwrap()
                    .status,
                200
            );
            assert_eq!(
                client.post("/v1/snapshots", &json!({})).unwrap().status,
                200
            );
        }
        assert!(comes_to_rest(&service));
        service.kill();
    }
}

/// Whether it stops writing without requests.
fn comes_to_rest(service: &Service) -> bool {
    let client = service.client();
    (0..20).any(|_| {
        let before = service.bytes_written();
        (0..5_000).for_each(|_| assert_eq!(client.get("/livez").unwrap().status, 200));
        service.bytes_written() - before < 2 << 20
    })
}

/// At `relaxed` a write is acknowledged at once, but does not wait for the next one to be flushed.
#[test]
fn unsynced_acknowledged_write_is_flushed_soon() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let settings = [("CUCKOOD__STORAGE__DURABILITY", "relaxed")];
    let service = Service::start_ready(program(), &data, &settings);
    let client = service.client();
    let user = json!({ "users": ["the-only-one"] });
    let written_at = || {
        std::fs::metadata(data.join("sled/db"))
            .unwrap()
            .modified()
            .unwrap()
    };
    let strong = [("X-Cuckood-Consistency", "strong")];
    let wait_for_flush = |what: &str, before| {
        until(what, || written_at() > before);
        // A request with a flush is answered after it.
        until(what, || {
            client
                .send("GET", "/v1/campaigns/launch", &strong, b"")
                .unwrap()
                .status
                == 200
        });
    };
    let before = written_at();
    assert_eq!(
        client
            .put("/v1/campaigns/launch", &json!({ "capacity": 1_000 }))
            .unwrap()
            .status,
        201
    );
    wait_for_flush("the campaign is written", before);
    // The first flush after a write may have begun before it. The second one, after another write, has the first user in any case.
    for user in [&user, &json!({ "users": ["another"] })] {
        let before = written_at();
        assert_eq!(
            client
                .post("/v1/campaigns/launch/users", user)
                .unwrap()
                .status,
            200
        );
        wait_for_flush("a user is written", before);
    }
    service.kill();

    let service = Service::start_ready(program(), &data, &settings);
    let answer = service
        .client()
        .post("/v1/campaigns/launch/users/check", &user)
        .unwrap();
    assert_eq!(answer.body, json!({ "present": [true] }));
    assert_eq!(service.terminate().code(), Some(0));
}
