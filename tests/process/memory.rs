//! A machine that gives no more memory: what would need it is refused before it is logged, so nothing ends the service, and
//! it starts again. Where it gets less than its data needs, it says so instead of dying.

use crate::service::{Client, Service};
use crate::{TIMEOUT, program};
use serde_json::json;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

/// Address space, in KiB, as `ulimit -v` has it.
const LIMIT_KIB: u64 = 2 << 20;

/// Codes of a coupon whose table takes some 100 MB, which is mapped but hardly touched.
const CAPACITY: u64 = 12_000_000;

/// The program under a limit of its address space.
fn limited(data: &Path, limit_kib: u64) -> Command {
    let mut command = Command::new("sh");
    command
        .args([
            "-c",
            r#"ulimit -v "$0" && exec "$@""#,
            &limit_kib.to_string(),
        ])
        .arg(program())
        .arg("serve");
    command
        .env("CUCKOOD__STORAGE__PATH", data)
        .env("CUCKOOD__LIMITS__MEMORY", "1TiB");
    command
}

fn until_ready(service: &Service) -> Client {
    let client = service.client();
    let began = Instant::now();
    while client.get("/readyz").map(|answer| answer.status).ok() != Some(200) {
        assert!(began.elapsed() < TIMEOUT, "not ready in time");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    client
}

/// Makes coupons until no more can be had; how many there are.
fn fill(client: &Client, first: u64) -> u64 {
    for number in first.. {
        assert!(number < 1_000, "the limit is not felt");
        let answer = client
            .put(
                &format!("/v1/coupons/c{number}"),
                &json!({ "capacity": CAPACITY }),
            )
            .unwrap();
        if answer.status != 201 {
            assert_eq!(
                (answer.status, &answer.body["code"]),
                (507, &json!("memory-limit")),
                "{answer:?}"
            );
            return number;
        }
    }
    unreachable!()
}

fn assert_at_work(client: &Client, coupons: u64) {
    let code = json!({ "codes": ["K7Q2"] });
    for path in ["codes", "codes/check"] {
        assert_eq!(
            client
                .post(&format!("/v1/coupons/c0/{path}"), &code)
                .unwrap()
                .status,
            200
        );
    }
    let redemption = json!({ "code": "K7Q2", "reference": "order-1" });
    let answer = client
        .post("/v1/coupons/c0/redemptions", &redemption)
        .unwrap();
    assert!(matches!(answer.status, 200 | 201), "{answer:?}");
    assert_eq!(client.get("/v1/info").unwrap().body["filters"], coupons);
    assert_eq!(client.get("/readyz").unwrap().status, 200);
}

#[test]
fn failed_allocation_rejects_and_restart_recovers() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let service = Service::spawn(&mut limited(&data, LIMIT_KIB));
    let small = json!({ "capacity": CAPACITY / 12 });
    assert_eq!(
        until_ready(&service)
            .put("/v1/coupons/c0", &small)
            .unwrap()
            .status,
        201
    );
    // The starts that follow load its last snapshot: a large one would take long to write.
    assert_eq!(service.terminate().code(), Some(0));
    let service = Service::spawn(&mut limited(&data, LIMIT_KIB));
    let client = until_ready(&service);
    let coupons = fill(&client, 1);
    assert!(coupons > 5, "only {coupons} coupons");
    assert_at_work(&client, coupons);
    service.kill();

    // From the snapshot and the log, under the same limit.
    let service = Service::spawn(&mut limited(&data, LIMIT_KIB));
    let client = until_ready(&service);
    assert_at_work(&client, coupons);
    let coupons = fill(&client, coupons);
    assert_at_work(&client, coupons);
    service.kill();

    // Under a lower limit it reports its requirement.
    let service = Service::spawn(&mut limited(&data, LIMIT_KIB - (coupons / 2) * 100_000));
    let output = service.output().clone();
    assert_eq!(service.wait().code(), Some(1));
    let output = output.whole().join("\n");
    for words in [
        &*data.display().to_string(),
        "bytes of memory",
        "the data, which is intact",
        "ulimit -v",
    ] {
        assert!(output.contains(words), "{words} is missing in\n{output}");
    }

    let service = Service::spawn(&mut limited(&data, LIMIT_KIB));
    assert_at_work(&until_ready(&service), coupons);
    service.kill();
}
