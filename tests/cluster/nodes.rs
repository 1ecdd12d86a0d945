//! Three real nodes over three real servers, which are killed.

use crate::cluster::{Cluster, NODES, settled, strong};
use crate::timeouts::wait_until;
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

fn code(number: usize) -> String {
    format!("code-{number}")
}

/// Each code is contested through every node, while the stream's leader and a node are killed and restarted.
#[test]
fn code_has_one_winner_despite_kills() {
    const CODES: usize = 240;
    let mut cluster = Cluster::start();
    let clients = cluster.clients.clone();
    let client = |node: usize| clients.lock()[node].clone();
    let made = settled(|| client(0).put("/v1/coupons/sale", &json!({"capacity": 10_000})));
    assert!(made.status < 300, "{made:?}");
    let position = made.position.unwrap().to_string();
    let read = [("X-Cuckood-Min-Position", position.as_str())];
    assert_eq!(
        settled(|| client(1).send("GET", "/v1/coupons/sale", &read, b"")).status,
        200
    );
    let codes = json!({"codes": (0..CODES).map(code).collect::<Vec<_>>()});
    let added = settled(|| client(1).post_once("/v1/coupons/sale/codes", &codes, "all"));
    assert_eq!(added.body["added"], CODES);
    assert_eq!(
        settled(|| strong(&client(2), "/v1/coupons/sale")).body["stats"]["available"],
        CODES
    );

    // Buyers wait for each kill at a separate code, so that there is always a code left to contest.
    let done = AtomicUsize::new(0);
    let deaths = AtomicUsize::new(0);
    let wins: Mutex<Vec<usize>> = Mutex::new(vec![0; CODES]);
    let leader = cluster.servers.leader_of("cuckood");
    thread::scope(|scope| {
        for node in 0..NODES {
            let client = &client;
            let done = &done;
            let deaths = &deaths;
            let wins = &wins;
            scope.spawn(move || {
                for number in 0..CODES {
                    wait_until("a death", || deaths.load(Ordering::Relaxed) >= number * 3 / CODES);
                    let body = json!({"code": code(number), "reference": format!("order-{node}-{number}")});
                    let answer = settled(|| client(node).post("/v1/coupons/sale/redemptions", &body));
                    match answer.status {
                        200 | 201 => wins.lock()[number] += 1,
                        409 => assert_eq!(answer.body["code"], "code-redeemed"),
                        _ => panic!("{answer:?}"),
                    }
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let reach = |count| wait_until("redemptions", || done.load(Ordering::Relaxed) >= count);
        reach(CODES / 2);
        cluster.servers.kill(leader);
        deaths.store(1, Ordering::Relaxed);
        reach(CODES * 3 / 2);
        cluster.servers.restart(leader);
        cluster.kill_node(2);
        deaths.store(2, Ordering::Relaxed);
        cluster.restart_node(2);
    });
    assert_eq!(*wins.lock(), vec![1; CODES]);

    let all = |node| {
        let client = client(node);
        let stats = settled(|| strong(&client, "/v1/coupons/sale")).body["stats"].clone();
        let list = settled(|| strong(&client, "/v1/coupons/sale/redemptions?limit=1000")).body;
        (stats, list)
    };
    let first: (Value, Value) = all(0);
    assert_eq!(first.0["redeemed"], CODES);
    assert_eq!([&first, &first], [&all(1), &all(2)]);
}

/// Without a majority of the servers nothing is acknowledged. Every node stays ready, so that a load balancer sends it reads.
#[test]
fn nodes_stay_ready_for_reads_without_quorum() {
    let mut cluster = Cluster::start();
    let client = cluster.client(0);
    assert!(
        settled(|| client.put("/v1/campaigns/spring", &json!({"capacity": 1_000}))).status < 300
    );
    let added = settled(|| {
        client.post_once(
            "/v1/campaigns/spring/users",
            &json!({"users": ["u1"]}),
            "first",
        )
    });
    assert_eq!(added.status, 200);
    wait_until("word of the other nodes and of the log", || {
        let cluster = client.get("/v1/cluster").unwrap().body;
        cluster["nodes"].as_array().unwrap().len() == NODES - 1 && cluster["log"]["quorum"] == true
    });

    cluster.servers.kill(0);
    cluster.servers.kill(1);
    let check = json!({"users": ["u1", "u2"]});
    let reads_go_on = || {
        let answer = client
            .post("/v1/campaigns/spring/users/check", &check)
            .unwrap();
        assert_eq!(answer.body["present"], json!([true, false]), "{answer:?}");
    };
    let unknown = client
        .post_once(
            "/v1/campaigns/spring/users",
            &json!({"users": ["u2"]}),
            "once",
        )
        .unwrap();
    assert!(
        ["storage-failed", "no-quorum"].contains(&unknown.body["code"].as_str().unwrap()),
        "{unknown:?}"
    );
    for node in 0..NODES {
        let client = cluster.client(node);
        wait_until("a report that the log has no quorum", || {
            reads_go_on();
            let ready = client.get("/readyz").unwrap();
            assert_eq!(ready.status, 200, "{ready:?}");
            ready.body["writes"] == "no-quorum"
        });
        let log = client.get("/v1/cluster").unwrap().body["log"].clone();
        assert_eq!(log["quorum"], false);
        assert!(
            log["no_quorum_seconds"].as_f64() > Some(2.0) && log["lag_seconds"] == 0.0,
            "{log}"
        );
        assert_eq!(
            strong(&client, "/v1/campaigns/spring").unwrap().body["code"],
            "no-quorum"
        );
        let rejected = client
            .post("/v1/campaigns/spring/users", &json!({"users": ["u3"]}))
            .unwrap();
        assert_eq!(
            (rejected.status, &rejected.body["code"]),
            (503, &json!("no-quorum")),
            "{rejected:?}"
        );
    }
    reads_go_on();

    cluster.servers.restart(0);
    cluster.servers.restart(1);
    for node in 0..NODES {
        let client = cluster.client(node);
        wait_until("a quorum", || {
            client.get("/readyz").unwrap().body["writes"].is_null()
        });
    }
    let client = cluster.client(1);
    let added = settled(|| {
        client.post_once(
            "/v1/campaigns/spring/users",
            &json!({"users": ["u2"]}),
            "once",
        )
    });
    assert_eq!(added.status, 200);
    let count = || strong(&cluster.client(2), "/v1/campaigns/spring");
    assert_eq!(
        settled(count).body["stats"]["items"],
        2,
        "a write of unknown outcome has effect once, and a rejected one never"
    );
}

/// A client of a load balancer asks another node than the one that has just acknowledged its redemption.
#[test]
fn redemption_is_found_on_any_node_once_acknowledged() {
    const CODES: usize = 100;
    let cluster = Cluster::start();
    let made = settled(|| {
        cluster
            .client(0)
            .put("/v1/coupons/sale", &json!({"capacity": 1_000}))
    });
    assert!(made.status < 300, "{made:?}");
    let codes = json!({"codes": (0..CODES).map(code).collect::<Vec<_>>()});
    settled(|| {
        cluster
            .client(0)
            .post_once("/v1/coupons/sale/codes", &codes, "all")
    });
    for node in 0..NODES {
        assert_eq!(
            settled(|| strong(&cluster.client(node), "/v1/coupons/sale")).status,
            200
        );
    }
    for number in 0..CODES {
        let seller = cluster.client(number % NODES);
        let asked = cluster.client((number + 1) % NODES);
        let body = json!({"code": code(number), "reference": format!("order-{number}"), "hold_seconds": 600});
        let held = settled(|| seller.post("/v1/coupons/sale/redemptions", &body));
        assert!([200, 201].contains(&held.status), "{held:?}");
        let path = format!(
            "/v1/coupons/sale/redemptions/{}",
            held.body["id"].as_str().unwrap()
        );
        let found = asked.get(&path).unwrap();
        assert_eq!(found.status, 200, "{number}: {found:?}");
        assert_eq!(
            settled(|| asked.post(&format!("{path}/confirm"), &json!({}))).status,
            200
        );
    }
    let unknown = format!("/v1/coupons/sale/redemptions/{}", "0".repeat(32));
    assert_eq!(cluster.client(0).get(&unknown).unwrap().status, 404);
    assert_eq!(
        cluster
            .client(1)
            .get(&unknown.replace("sale", "none"))
            .unwrap()
            .body["code"],
        "coupon-not-found"
    );
}
