//! The runbooks of docs/CLUSTER.md, from the failure to nodes that have everything again.

use crate::cluster::{Cluster, NODES, settled, strong};
use crate::engines::{create, insert, start, until};
use crate::nats::Servers;
use crate::timeouts::wait_until;
use cuckood::clock::{Clock, ClockLimits};
use cuckood::domain::FORMAT_VERSION;
use cuckood::engine::Status;
use serde_json::json;
use std::path::Path;
use std::process::Command;
use tokio::runtime::Runtime;

const CODES: usize = 60;

const REDEMPTIONS: &str = "/v1/coupons/sale/redemptions";

fn code(number: usize) -> String {
    format!("code-{number}")
}

/// *The stream is gone*: nodes stop, and the directory that is furthest ahead begins a new log. Every acknowledged redemption is known.
#[test]
fn deleted_stream_is_restored_from_node_directories() {
    let mut cluster = Cluster::start();
    let made = settled(|| cluster.client(0).put("/v1/coupons/sale", &json!({"capacity": 1_000})));
    assert!(made.status < 300, "{made:?}");
    let codes = json!({"codes": (0..CODES).map(code).collect::<Vec<_>>()});
    settled(|| cluster.client(0).post_once("/v1/coupons/sale/codes", &codes, "all"));
    settled(|| cluster.client(1).post("/v1/snapshots", &json!({})));
    let mut ids = Vec::new();
    for number in 0..CODES {
        let client = cluster.client(number % NODES);
        assert_eq!(settled(|| strong(&client, "/v1/coupons/sale")).status, 200);
        let body = json!({"code": code(number), "reference": format!("order-{number}")});
        let sold = settled(|| client.post(REDEMPTIONS, &body));
        assert_eq!(sold.status, 201, "{sold:?}");
        ids.push(sold.body["id"].as_str().unwrap().to_owned());
    }

    cluster.servers.speak(async |context| {
        context.delete_stream("cuckood").await.unwrap();
    });
    for node in 0..NODES {
        let client = cluster.client(node);
        wait_until("its end", || {
            let ready = client.get("/readyz").unwrap();
            ready.status == 503 && ready.body["detail"].to_string().contains("was deleted")
        });
    }
    let dirs = cluster.stop_and_take_dirs();
    let mut restore = Command::new(Path::new(env!("CARGO_BIN_EXE_cuckood")));
    restore.arg("restore").args(dirs.iter().map(|dir| dir.path())).arg("--into-cluster");
    restore
        .env("CUCKOOD__JOURNAL__KIND", "nats")
        .env("CUCKOOD__NATS__SERVERS", cluster.servers.urls().join(","));
    let restored = restore.output().unwrap();
    let told = String::from_utf8_lossy(&restored.stdout).into_owned();
    assert!(restored.status.success(), "{restored:?}");
    assert!(told.contains("furthest ahead"), "{told}");

    (0..NODES).for_each(|node| cluster.restart_node(node));
    for node in 0..NODES {
        let client = cluster.client(node);
        assert_eq!(settled(|| strong(&client, "/v1/coupons/sale")).body["stats"]["redeemed"], CODES);
        for (number, id) in ids.iter().enumerate() {
            let found = client.get(&format!("{REDEMPTIONS}/{id}")).unwrap();
            assert_eq!((found.status, &found.body["status"]), (200, &json!("redeemed")), "{number}");
            let body = json!({"code": code(number), "reference": "another order"});
            let again = settled(|| client.post(REDEMPTIONS, &body));
            assert_eq!(again.body["code"], "code-redeemed", "{again:?}");
        }
    }
}

/// An operator who acts on the status finds the state in the directory.
#[test]
fn node_stores_state_before_reporting_failure() {
    let (servers, runtime) = (Servers::start(1), Runtime::new().unwrap());
    let dir = tempfile::tempdir().unwrap();
    let engine = runtime.block_on(async {
        let clock = Clock::system(ClockLimits::default());
        let engine = start(&servers, dir.path(), "node", clock, FORMAT_VERSION).await;
        let target = create(&engine, "sale").await;
        insert(&engine, target, 1).await.unwrap();
        engine
    });
    assert_eq!(engine.info().snapshot, None);
    servers.speak(async |context| {
        context.delete_stream("engines").await.unwrap();
    });
    runtime.block_on(until(|| matches!(engine.status(), Status::Failed(_))));
    let info = engine.info();
    assert_eq!(info.snapshot.map(|snapshot| snapshot.seq), Some(info.last_seq));
    runtime.block_on(engine.shutdown());
}
