//! A node that has lost its disk begins with a shared snapshot of ten million codes while others are redeemed, and has what the others have.

use crate::cluster::{Cluster, NODES, settled, strong};
use crate::faults::assert_equal_hashes;
use crate::load::Ending;
use crate::nats::Servers;
use crate::service::{Client, Service};
use crate::timeouts::wait_longer;
use serde_json::{Value, json};
use std::io::{Cursor, Read};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const CODES: u64 = 10_000_000;

/// Lines that are made at a time.
const LINES: u64 = 10_000;

/// How long ten million codes may take to be in a shared snapshot.
const TIMEOUT: Duration = Duration::from_secs(900);

/// A file with all codes, which is made while it is read.
struct Codes {
    next: u64,
    lines: Cursor<String>,
}

impl Read for Codes {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        match self.lines.read(buffer)? {
            0 if self.next < CODES => {
                self.lines = Cursor::new(
                    (self.next..self.next + LINES)
                        .map(|code| format!("code-{code}\n"))
                        .collect(),
                );
                self.next += LINES;
                self.lines.read(buffer)
            }
            count => Ok(count),
        }
    }
}

fn stats(cluster: &Cluster, node: usize) -> Value {
    settled(|| strong(&cluster.client(node), "/v1/coupons/launch")).body["stats"].clone()
}

/// Waits until a snapshot of everything up to a position is shared.
fn wait_until_shared(node: &Service, position: u64) {
    wait_longer("a shared snapshot", TIMEOUT, || {
        let figures = node.client().text("/metrics").unwrap().1;
        let shared = figures
            .lines()
            .find_map(|line| line.strip_prefix("cuckood_cluster_snapshot_position "));
        shared.is_some_and(|shared| shared.parse::<u64>().unwrap() >= position)
    });
}

fn seconds(service: &Service) -> f64 {
    let figures = service.client().text("/metrics").unwrap().1;
    let figure = figures
        .lines()
        .find_map(|line| line.strip_prefix("cuckood_cluster_bootstrap_seconds "));
    figure
        .expect("it began with a shared snapshot")
        .parse()
        .unwrap()
}

/// Redeems every second code, from this one on, until it is over. Returns how many.
fn redeem(client: &Client, first: u64, is_over: &AtomicBool) -> u64 {
    let mut count = 0;
    while !is_over.load(Ordering::Relaxed) {
        let code = format!("code-{}", first + 2 * count);
        let body = json!({"code": code, "reference": code});
        let redeemed = settled(|| client.post("/v1/coupons/launch/redemptions", &body));
        assert!([200, 201].contains(&redeemed.status), "{redeemed:?}");
        count += 1;
    }
    assert!(count > 0, "no code was redeemed");
    count
}

#[test]
#[ignore = "takes minutes: make test-long WHAT=cluster"]
fn diskless_node_starts_with_ten_million_codes() {
    let settings = [
        ("CUCKOOD__CLUSTER__SNAPSHOT_INTERVAL", "15s"),
        // At the end another node reads the log from its first message on.
        ("CUCKOOD__CLUSTER__LOG_MARGIN", "1 GiB"),
        ("CUCKOOD__SERVER__REQUEST_TIMEOUT", "30m"),
    ];
    let mut cluster = Cluster::start_as(Servers::start(NODES), |_| None, &settings);
    let made = settled(|| {
        cluster
            .client(0)
            .put("/v1/coupons/launch", &json!({"capacity": CODES}))
    });
    assert_eq!(made.status, 201, "{made:?}");
    let began = Instant::now();
    let codes = Codes {
        next: 0,
        lines: Cursor::default(),
    };
    let imported = cluster
        .client(0)
        .import("/v1/coupons/launch/imports", codes)
        .unwrap();
    assert_eq!(imported.status, 200, "{imported:?}");
    println!(
        "{CODES} codes were imported within {:.1} s",
        began.elapsed().as_secs_f64()
    );
    assert_eq!(stats(&cluster, 0)["available"], CODES);

    let position = cluster.client(0).get("/v1/cluster").unwrap().body["position"]
        .as_u64()
        .unwrap();
    wait_until_shared(cluster.nodes[0].as_ref().unwrap(), position);
    println!(
        "they were in a shared snapshot after {:.1} s",
        began.elapsed().as_secs_f64()
    );
    cluster.kill_node(2);
    cluster.wipe_node(2);
    let began = Instant::now();
    let is_over = AtomicBool::new(false);
    let clients: Vec<Client> = (0..2).map(|node| cluster.client(node)).collect();
    let redeemed: u64 = thread::scope(|scope| {
        let end = Ending(&is_over);
        let is_over = &is_over;
        let buyers = (0..)
            .zip(&clients)
            .map(|(first, client)| scope.spawn(move || redeem(client, first, is_over)));
        let buyers: Vec<_> = buyers.collect();
        cluster.restart_node(2);
        drop(end);
        buyers.into_iter().map(|buyer| buyer.join().unwrap()).sum()
    });
    let node = cluster.nodes[2].as_ref().unwrap();
    println!(
        "a node without a disk was ready after {:.1} s; it loaded the snapshot within {:.1} s, while {redeemed} codes were redeemed",
        began.elapsed().as_secs_f64(),
        seconds(node)
    );
    assert_eq!(stats(&cluster, 2)["redeemed"], redeemed);
    assert_eq!(
        [stats(&cluster, 1), stats(&cluster, 2)],
        [stats(&cluster, 0), stats(&cluster, 0)]
    );
    for first in (CODES / 20..CODES).step_by(CODES as usize / 10) {
        let codes = json!({"codes": [format!("code-{first}"), format!("code-{}", first + 1)]});
        let found = cluster
            .client(2)
            .post("/v1/coupons/launch/codes/check", &codes)
            .unwrap();
        assert_eq!(found.body["valid"], json!([true, true]), "{found:?}");
    }
    assert_equal_hashes(&cluster);
}
