//! The runbooks of docs/CLUSTER.md, from the failure to nodes that have every acknowledged redemption again.

use crate::cluster::{Cluster, NODES, settled, strong};
use crate::engines::{create, insert, nats_options, start, until};
use crate::hashes::{AT, EVER, fill};
use crate::journal::Node;
use crate::load::under_load;
use crate::nats::Servers;
use crate::operator::Operator;
use crate::timeouts::wait_until;
use cuckood::clock::{Clock, ClockLimits};
use cuckood::engine::EngineStatus;
use cuckood_log::journal::Journal;
use cuckood_nats::NatsOptions;
use serde_json::json;
use std::fs;
use std::path::Path;
use std::process::Command;
use tokio::runtime::Runtime;

const CODES: usize = 60;

const REDEMPTIONS: &str = "/v1/coupons/sale/redemptions";

fn code(number: usize) -> String {
    format!("code-{number}")
}

/// Codes, of which some are sold through all nodes.
struct Sale {
    /// Redemptions, by the number of their code.
    ids: Vec<String>,
}

impl Sale {
    fn new(cluster: &Cluster) -> Sale {
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
        Sale { ids: Vec::new() }
    }

    /// Sells more codes through these nodes, in turn.
    fn sell(&mut self, cluster: &Cluster, through: &[usize], count: usize) {
        for _ in 0..count {
            let number = self.ids.len();
            let client = cluster.client(through[number % through.len()]);
            assert_eq!(settled(|| strong(&client, "/v1/coupons/sale")).status, 200);
            let body = json!({"code": code(number), "reference": format!("order-{number}")});
            let sold = settled(|| client.post(REDEMPTIONS, &body));
            assert!([200, 201].contains(&sold.status), "{sold:?}");
            self.ids.push(sold.body["id"].as_str().unwrap().to_owned());
        }
    }

    /// Every node has all redemptions, and sells no code again.
    fn check(&self, cluster: &Cluster) {
        for node in 0..NODES {
            let client = cluster.client(node);
            let stats = settled(|| strong(&client, "/v1/coupons/sale")).body["stats"].clone();
            assert_eq!(stats["redeemed"], self.ids.len());
            for (number, id) in self.ids.iter().enumerate() {
                let found = client.get(&format!("{REDEMPTIONS}/{id}")).unwrap();
                assert_eq!(
                    (found.status, &found.body["status"]),
                    (200, &json!("redeemed")),
                    "{number}"
                );
                let body = json!({"code": code(number), "reference": "another order"});
                let again = settled(|| client.post(REDEMPTIONS, &body));
                assert_eq!(again.body["code"], "code-redeemed", "{again:?}");
            }
        }
    }
}

/// Waits until a node says a word about its readiness.
fn wait_for(cluster: &Cluster, node: usize, word: &str) {
    let client = cluster.client(node);
    wait_until(word, || {
        client
            .get("/readyz")
            .is_ok_and(|ready| ready.body.to_string().contains(word))
    });
}

/// The nodes stop, and the directory that is furthest ahead begins a new log.
#[test]
fn deleted_stream_is_restored_from_node_directories() {
    let (operator, mut cluster) = Operator::of_new_cluster(&[]);
    let mut sale = Sale::new(&cluster);
    settled(|| cluster.client(1).post("/v1/snapshots", &json!({})));
    sale.sell(&cluster, &[0, 1, 2], CODES / 2);
    cluster.servers.speak(async |context| {
        context.delete_stream("cuckood").await.unwrap();
    });
    (0..NODES).for_each(|node| wait_for(&cluster, node, "was deleted"));
    begin_new_log(&operator, &mut cluster);
    sale.check(&cluster);
    sale.sell(&cluster, &[0, 1, 2], CODES / 2);
    sale.check(&cluster);
}

fn begin_new_log(operator: &Operator, cluster: &mut Cluster) {
    (0..NODES).for_each(|machine| operator.follow("stop-node", machine, cluster));
    operator.follow("new-log", 0, cluster);
    (0..NODES).for_each(|machine| operator.follow("replace-node", machine, cluster));
}

#[test]
#[ignore = "takes a minute: make test-long WHAT=cluster"]
fn two_lost_servers_are_replaced_from_node_directories() {
    let (operator, mut cluster) = Operator::of_new_cluster(&[]);
    let mut sale = Sale::new(&cluster);
    sale.sell(&cluster, &[0, 1, 2], CODES / 2);
    for server in [0, 1] {
        cluster.servers.kill(server);
        fs::remove_dir_all(cluster.servers.folder(server)).unwrap();
    }
    (0..NODES).for_each(|node| wait_for(&cluster, node, "no-quorum"));
    for step in ["stop-node", "empty-server", "start-server", "await-server"] {
        (0..NODES).for_each(|machine| operator.follow(step, machine, &mut cluster));
    }
    begin_new_log(&operator, &mut cluster);
    sale.check(&cluster);
}

/// A sale continues through all nodes.
#[test]
#[ignore = "takes minutes: make test-long WHAT=cluster"]
fn lost_server_is_replaced_during_sale() {
    let (operator, mut cluster) = Operator::of_new_cluster(&[]);
    under_load(&mut cluster, |cluster, load| {
        let leader = cluster.servers.leader_of("cuckood");
        cluster.servers.kill(leader);
        fs::remove_dir_all(cluster.servers.folder(leader)).unwrap();
        load.go_on(100);
        operator.follow("replace-server", leader, cluster);
        load.go_on(20);
        // The new one replaces another.
        let other = (leader + 1) % NODES;
        cluster.servers.kill(other);
        load.go_on(20);
        cluster.servers.restart(other);
        load.go_on(20);
    });
}

#[test]
#[ignore = "takes a minute: make test-long WHAT=cluster"]
fn lost_nodes_are_replaced_from_log() {
    let (operator, mut cluster) = Operator::of_new_cluster(&[]);
    let mut sale = Sale::new(&cluster);
    sale.sell(&cluster, &[0, 1, 2], CODES / 3);
    let lose = |cluster: &mut Cluster, node| {
        cluster.kill_node(node);
        fs::remove_dir_all(cluster.dir(node)).unwrap();
    };
    lose(&mut cluster, 1);
    sale.sell(&cluster, &[0, 2], CODES / 3);
    operator.follow("replace-node", 1, &mut cluster);
    sale.check(&cluster);
    settled(|| cluster.client(1).post("/v1/snapshots", &json!({})));
    sale.sell(&cluster, &[0, 1, 2], CODES / 3);
    (0..NODES).for_each(|node| lose(&mut cluster, node));
    (0..NODES).for_each(|node| operator.follow("replace-node", node, &mut cluster));
    sale.check(&cluster);
}

#[test]
#[ignore = "takes a minute: make test-long WHAT=cluster"]
fn full_log_takes_writes_once_it_has_room() {
    let (operator, mut cluster) = Operator::of_new_cluster(&[]);
    let mut sale = Sale::new(&cluster);
    sale.sell(&cluster, &[0, 1, 2], CODES / 2);
    cluster.servers.limit_log("cuckood", 1);
    let client = cluster.client(0);
    wait_until("a full log", || {
        let refused = client
            .put("/v1/campaigns/more", &json!({"capacity": 1_000}))
            .unwrap();
        refused.status == 507 && refused.body["code"] == "log-full"
    });
    wait_for(&cluster, 0, "log-full");
    assert_eq!(
        client.get("/v1/coupons/sale").unwrap().body["stats"]["redeemed"],
        sale.ids.len()
    );
    for machine in 0..NODES {
        operator.follow("make-room", machine, &mut cluster);
    }
    sale.sell(&cluster, &[0, 1, 2], CODES / 2);
    sale.check(&cluster);
}

/// A library over the system's clock, which the test can set.
fn library(dir: &Path) -> String {
    let path = dir.join("clock.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cluster/clock.c");
    let mut cc = Command::new("cc");
    assert!(
        cc.args(["-shared", "-fPIC", "-o"])
            .arg(&path)
            .arg(source)
            .arg("-ldl")
            .status()
            .unwrap()
            .success()
    );
    path.to_str().unwrap().to_owned()
}

#[test]
#[ignore = "takes a minute: make test-long WHAT=cluster"]
fn node_takes_writes_once_its_clock_is_right() {
    let dir = tempfile::tempdir().unwrap();
    let marks: &str = dir.path().to_str().unwrap().to_owned().leak();
    let settings = [
        ("LD_PRELOAD", &*library(dir.path()).leak()),
        ("WRONG_CLOCK", marks),
    ];
    let (operator, mut cluster) = Operator::of_new_cluster(&settings);
    let mut sale = Sale::new(&cluster);
    sale.sell(&cluster, &[0, 1, 2], CODES / 3);
    fs::write(dir.path().join("node-1"), "").unwrap();
    wait_for(&cluster, 1, "clock-unsure");
    let body = json!({"code": code(CODES - 1), "reference": "order"});
    let refused = cluster.client(1).post(REDEMPTIONS, &body).unwrap();
    assert_eq!(
        (refused.status, &refused.body["code"]),
        (503, &json!("clock-unsure")),
        "{refused:?}"
    );
    sale.sell(&cluster, &[0, 2], CODES / 3);
    operator.follow("correct-clock", 1, &mut cluster);
    sale.sell(&cluster, &[1], CODES / 3);
    sale.check(&cluster);
}

/// Other nodes of the log report hashes that three real nodes do not have, until they are repaired.
#[test]
#[ignore = "takes minutes: make test-long WHAT=cluster"]
fn diverged_nodes_are_replaced() {
    let (operator, mut cluster) = Operator::of_new_cluster(&[]);
    let mut sale = Sale::new(&cluster);
    sale.sell(&cluster, &[0, 1, 2], CODES / 2);
    let mut liars: [Node; NODES] = std::array::from_fn(|at| {
        let options = nats_options(cluster.servers.urls(), "cuckood", &format!("liar-{at}"));
        Node::join_with(NatsOptions {
            open_time: EVER,
            ..options
        })
    });
    fill(&mut liars[0]);
    for liar in &mut liars {
        wait_until("the log's end", || {
            let _ = liar.poll_once();
            liar.journal().last() > AT
        });
    }
    let hash = cluster.client(0).get("/v1/cluster").unwrap().body["log"]["hash"]["hash"].clone();
    let right = u128::from_str_radix(hash.as_str().unwrap(), 16).unwrap();
    liars.iter_mut().for_each(|liar| liar.report_hash(666));
    for node in 0..NODES {
        let client = cluster.client(node);
        wait_until("its end", || {
            liars.iter_mut().for_each(|liar| drop(liar.poll_once()));
            client.get("/readyz").unwrap().body["code"] == "diverged"
        });
    }
    liars.iter_mut().for_each(|liar| liar.report_hash(right));
    wait_until("their reports", || {
        liars.iter_mut().for_each(|liar| drop(liar.poll_once()));
        let known = liars[0].journal().replication().unwrap();
        let known = known.lock();
        known
            .peers
            .iter()
            .filter(|peer| peer.node.starts_with("liar") && peer.differs == Some(false))
            .count()
            == 2
    });
    (0..NODES).for_each(|machine| operator.follow("replace-node", machine, &mut cluster));
    sale.check(&cluster);
    sale.sell(&cluster, &[0, 1, 2], CODES / 2);
    sale.check(&cluster);
}

/// An operator who acts on the status finds the state in the directory.
#[test]
fn node_stores_state_before_reporting_failure() {
    let servers = Servers::start(1);
    let runtime = Runtime::new().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let engine = runtime.block_on(async {
        let clock = Clock::system(ClockLimits::default());
        let engine = start(&servers, dir.path(), "node", clock).await;
        let target = create(&engine, "sale").await;
        insert(&engine, target, 1).await.unwrap();
        engine
    });
    assert_eq!(engine.info().snapshot, None);
    servers.speak(async |context| {
        context.delete_stream("engines").await.unwrap();
    });
    runtime.block_on(until(|| matches!(engine.status(), EngineStatus::Failed(_))));
    let info = engine.info();
    assert_eq!(
        info.snapshot.map(|snapshot| snapshot.seq),
        Some(info.last_seq)
    );
    runtime.block_on(engine.shutdown());
}
