//! A node that has lost its disk starts from a shared snapshot of ten million users, and has the same state as the others.

use crate::cluster::{Cluster, NODES, settled, strong};
use crate::faults::assert_equal_hashes;
use crate::nats::Servers;
use crate::service::Service;
use crate::timeouts::wait_longer;
use serde_json::{Value, json};
use std::io::{Cursor, Read};
use std::time::{Duration, Instant};

const USERS: u64 = 10_000_000;

/// Lines that are made at a time.
const LINES: u64 = 10_000;

/// How long ten million users may take to be in a shared snapshot.
const TIMEOUT: Duration = Duration::from_secs(900);

/// A file with all users, which is made while it is read.
struct Users {
    next: u64,
    lines: Cursor<String>,
}

impl Read for Users {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        match self.lines.read(buffer)? {
            0 if self.next < USERS => {
                self.lines = Cursor::new(
                    (self.next..self.next + LINES).map(|user| format!("user-{user}\n")).collect(),
                );
                self.next += LINES;
                self.lines.read(buffer)
            }
            count => Ok(count),
        }
    }
}

fn stats(cluster: &Cluster, node: usize) -> Value {
    settled(|| strong(&cluster.client(node), "/v1/campaigns/launch")).body["stats"].clone()
}

/// Waits until a snapshot of everything up to a position is shared.
fn wait_until_shared(node: &Service, position: u64) {
    wait_longer("a shared snapshot", TIMEOUT, || {
        let figures = node.client().text("/metrics").unwrap().1;
        let shared = figures.lines().find_map(|line| line.strip_prefix("cuckood_cluster_snapshot_position "));
        shared.is_some_and(|shared| shared.parse::<u64>().unwrap() >= position)
    });
}

fn seconds(service: &Service) -> f64 {
    let figures = service.client().text("/metrics").unwrap().1;
    let figure = figures.lines().find_map(|line| line.strip_prefix("cuckood_cluster_bootstrap_seconds "));
    figure.expect("it began with a shared snapshot").parse().unwrap()
}

#[test]
#[ignore = "takes minutes: make test-long WHAT=cluster"]
fn diskless_node_starts_with_ten_million_users() {
    let settings =
        [("CUCKOOD__CLUSTER__SNAPSHOT_INTERVAL", "15s"), ("CUCKOOD__SERVER__REQUEST_TIMEOUT", "30m")];
    let mut cluster = Cluster::start_as(Servers::start(NODES), |_| None, &settings);
    let made = settled(|| cluster.client(0).put("/v1/campaigns/launch", &json!({"capacity": USERS})));
    assert_eq!(made.status, 201, "{made:?}");
    let began = Instant::now();
    let users = Users { next: 0, lines: Cursor::default() };
    let imported = cluster.client(0).import("/v1/campaigns/launch/imports", users).unwrap();
    assert_eq!(imported.status, 200, "{imported:?}");
    println!("{USERS} users were imported within {:.1} s", began.elapsed().as_secs_f64());
    assert_eq!(stats(&cluster, 0)["items"], USERS);

    let position = cluster.client(0).get("/v1/cluster").unwrap().body["position"].as_u64().unwrap();
    wait_until_shared(cluster.nodes[0].as_ref().unwrap(), position);
    println!("they were in a shared snapshot after {:.1} s", began.elapsed().as_secs_f64());
    cluster.kill_node(2);
    cluster.wipe_node(2);
    let began = Instant::now();
    cluster.restart_node(2);
    let node = cluster.nodes[2].as_ref().unwrap();
    println!(
        "a node without a disk was ready after {:.1} s; it loaded the snapshot within {:.1} s",
        began.elapsed().as_secs_f64(),
        seconds(node)
    );
    assert_eq!([stats(&cluster, 1), stats(&cluster, 2)], [stats(&cluster, 0), stats(&cluster, 0)]);
    for first in (0..USERS).step_by(USERS as usize / 10) {
        let users = json!({"users": [format!("user-{first}"), format!("user-{}", first + 1)]});
        let found = cluster.client(2).post("/v1/campaigns/launch/users/check", &users).unwrap();
        assert_eq!(found.body["present"], json!([true, true]), "{found:?}");
    }
    assert_equal_hashes(&cluster);
}
