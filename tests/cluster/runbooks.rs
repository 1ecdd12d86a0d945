//! The runbooks of docs/CLUSTER.md, from the failure to nodes that have everything again.

use crate::cluster::{Cluster, NODES, settled, strong};
use crate::patience::wait_until;
use serde_json::json;
use std::path::Path;
use std::process::Command;

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
