//! A startup reports its progress, without a line for each of many filters, and recovers large tables unchanged.

use crate::program;
use crate::service::Service;
use serde_json::json;

#[test]
fn startup_with_many_filters_logs_little() {
    const CAMPAIGNS: usize = 300;
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let service = Service::start_ready(program(), &data, &[]);
    let client = service.client();
    for number in 0..CAMPAIGNS {
        let path = format!("/v1/campaigns/campaign-{number}");
        assert_eq!(
            client
                .put(&path, &json!({ "capacity": 100 }))
                .unwrap()
                .status,
            201
        );
    }
    assert_eq!(service.terminate().code(), Some(0));

    let service = Service::start_ready(program(), &data, &[]);
    let output = service.output().clone();
    assert_eq!(service.terminate().code(), Some(0));
    let told = output
        .whole()
        .iter()
        .filter(|line| line.contains("recovering"))
        .count();
    assert!(told > 0, "nothing was told");
    assert!(told < CAMPAIGNS / 3, "{told} lines of progress");
}

/// A table of many chunks, which several threads load.
#[test]
fn large_table_is_recovered() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let users = |range: std::ops::Range<u32>| json!({ "users": range.map(|n| format!("user-{n}")).collect::<Vec<_>>() });
    let service = Service::start_ready(program(), &data, &[]);
    let client = service.client();
    assert_eq!(
        client
            .put("/v1/campaigns/large", &json!({ "capacity": 8_000_000 }))
            .unwrap()
            .status,
        201
    );
    assert_eq!(
        client
            .post("/v1/campaigns/large/users", &users(0..5_000))
            .unwrap()
            .status,
        200
    );
    assert!(
        client.post("/v1/snapshots", &json!({})).unwrap().body["bytes_written"].as_u64()
            > Some(8_000_000)
    );
    // Half of them are strangers, of whom a few are said to be there: the same ones after the start.
    let check = |service: &Service| {
        service
            .client()
            .post("/v1/campaigns/large/users/check", &users(0..10_000))
            .unwrap()
            .body
    };
    let before = check(&service);
    assert!(
        before["present"].as_array().unwrap()[..5_000]
            .iter()
            .all(|present| present == true)
    );
    service.kill();

    let service = Service::start_ready(program(), &data, &[]);
    assert_eq!(check(&service), before);
    let output = service.output().clone();
    assert_eq!(service.terminate().code(), Some(0));
    // Were the snapshot refused, the log would give the same answers.
    assert!(!output.whole().iter().any(|line| line.contains("damaged")));
}
