//! A snapshot costs the disk what it holds: commits wait for whatever else is written beside it.

use crate::program;
use crate::service::Service;
use serde_json::json;

#[test]
fn a_snapshot_is_written_once() {
    let directory = tempfile::tempdir().unwrap();
    let service = Service::start_ready(program(), &directory.path().join("data"), &[]);
    let client = service.client();
    let created = client.put("/v1/campaigns/launch", &json!({ "capacity": 8_000_000 })).unwrap();
    assert_eq!(created.status, 201);
    let before = service.bytes_written();
    let answer = client.post("/v1/snapshots", &json!({})).unwrap();
    let written = service.bytes_written() - before;
    let held = answer.body["bytes_written"].as_u64().unwrap();
    assert!(held > 8_000_000, "{held}");
    // Headers, checksums and keys come on top. sled alone, left to fill its leaves, writes chunks four times over.
    assert!(written < held * 5 / 4, "{written} bytes were written for {held}");
}
