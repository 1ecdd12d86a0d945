//! Buyers who compete for the same codes through every node, and readers of every node, during faults. In the end their responses are
//! checked: no code was sold twice, nothing acknowledged is missing, all nodes are equal, and every read was answered.

use crate::cluster::{Cluster, NODES, settled, strong};
use crate::service::{Answer, Client};
use crate::timeouts::wait_until;
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

const CODES: usize = 40_000;

/// Codes in one request.
const BATCH: usize = 10_000;

const REDEMPTIONS: &str = "/v1/coupons/sale/redemptions";

/// Pause between two operations of a buyer or reader, so that servers and nodes get some of the processors.
const PAUSE: Duration = Duration::from_millis(5);

/// What buyers and readers have done.
pub struct Load {
    clients: Vec<Client>,
    is_over: AtomicBool,
    /// Codes that each node's buyer has been answered about.
    bought: [AtomicUsize; NODES],
    /// Reads that each node has answered.
    read: [AtomicUsize; NODES],
    /// Ids of the redemptions that were acknowledged, by code and reference.
    sold: Mutex<BTreeMap<(String, String), String>>,
}

fn code(number: usize) -> String {
    format!("code-{number}")
}

impl Load {
    /// Waits until every node has answered this many more buyers, and a read.
    pub fn go_on(&self, more: usize) {
        self.go_on_at(&std::array::from_fn::<usize, NODES, _>(|node| node), more);
        self.be_read(1);
    }

    /// Waits until these nodes have answered this many more buyers.
    pub fn go_on_at(&self, nodes: &[usize], more: usize) {
        let before = nodes.iter().map(|&node| (node, self.bought(node)));
        let before: Vec<(usize, usize)> = before.collect();
        wait_until("the sale's going on", || {
            before
                .iter()
                .all(|&(node, before)| self.bought(node) >= before + more)
        });
    }

    /// Waits until every node has answered this many more reads.
    pub fn be_read(&self, more: usize) {
        let count = || {
            self.read
                .each_ref()
                .map(|read| read.load(Ordering::Relaxed))
        };
        let before = count();
        wait_until("reading's going on", || {
            count()
                .iter()
                .zip(before)
                .all(|(now, before)| *now >= before + more)
        });
    }

    /// Codes that a node's buyer has been answered about.
    pub fn bought(&self, node: usize) -> usize {
        self.bought[node].load(Ordering::Relaxed)
    }

    fn buy(&self, node: usize) {
        for number in 0..CODES {
            if self.is_over.load(Ordering::Relaxed) {
                break;
            }
            let reference = format!("order-{node}-{number}");
            let body = json!({"code": code(number), "reference": reference});
            let answer = settled(|| self.clients[node].post(REDEMPTIONS, &body));
            match answer.status {
                200 | 201 => {
                    let id = answer.body["id"].as_str().unwrap().to_owned();
                    self.sold.lock().insert((code(number), reference), id);
                }
                409 => assert_eq!(answer.body["code"], "code-redeemed", "{answer:?}"),
                _ => panic!("{answer:?}"),
            }
            self.bought[node].fetch_add(1, Ordering::Relaxed);
            thread::sleep(PAUSE);
        }
    }

    fn read(&self, node: usize) {
        while !self.is_over.load(Ordering::Relaxed) {
            let body = json!({"codes": [code(0)]});
            let answer = self.clients[node]
                .post("/v1/coupons/sale/codes/check", &body)
                .unwrap();
            assert_eq!(answer.status, 200, "{answer:?}");
            self.read[node].fetch_add(1, Ordering::Relaxed);
            thread::sleep(PAUSE);
        }
    }

    /// Checks the responses, and returns how many codes were sold.
    fn verify(&self) -> usize {
        let sold = self.sold.lock();
        let codes: Vec<&String> = sold.keys().map(|(code, _)| code).collect();
        assert!(
            codes.windows(2).all(|two| two[0] != two[1]),
            "a code was sold twice: {sold:?}"
        );
        let lists: Vec<Vec<Value>> = self.clients.iter().map(list).collect();
        assert!(
            lists.windows(2).all(|two| two[0] == two[1]),
            "the nodes have different redemptions"
        );
        let kept: BTreeMap<&str, &str> = lists[0]
            .iter()
            .map(|one| {
                (
                    one["reference"].as_str().unwrap(),
                    one["id"].as_str().unwrap(),
                )
            })
            .collect();
        for ((code, reference), id) in &*sold {
            assert_eq!(
                kept.get(reference.as_str()),
                Some(&id.as_str()),
                "{code} was acknowledged"
            );
        }
        let stats = self
            .clients
            .iter()
            .map(|client| settled(|| strong(client, "/v1/coupons/sale")).body["stats"].clone());
        let stats: Vec<Value> = stats.collect();
        assert!(stats.windows(2).all(|two| two[0] == two[1]), "{stats:?}");
        assert_eq!(stats[0]["redeemed"], lists[0].len());
        sold.len()
    }
}

/// All redemptions; no later reader finds fewer.
fn list(client: &Client) -> Vec<Value> {
    let mut all = Vec::new();
    let mut cursor = String::new();
    loop {
        let page = settled(|| strong(client, &format!("{REDEMPTIONS}?limit=1000{cursor}"))).body;
        all.extend(page["redemptions"].as_array().unwrap().iter().cloned());
        let Some(next) = page["next_cursor"].as_str() else {
            return all;
        };
        cursor = format!("&cursor={next}");
    }
}

fn created(answer: &Answer) {
    assert!([200, 201].contains(&answer.status), "{answer:?}");
}

/// Has buyers and readers at every node while `faults` happen.
pub fn under_load(cluster: &mut Cluster, faults: impl FnOnce(&mut Cluster, &Load)) {
    let clients: Vec<Client> = (0..NODES).map(|node| cluster.client(node)).collect();
    created(&settled(|| {
        clients[0].put("/v1/coupons/sale", &json!({"capacity": CODES}))
    }));
    for first in (0..CODES).step_by(BATCH) {
        let codes: Vec<String> = (first..first + BATCH).map(code).collect();
        created(&settled(|| {
            clients[0].post_once(
                "/v1/coupons/sale/codes",
                &json!({"codes": codes}),
                &code(first),
            )
        }));
    }
    for client in &clients {
        assert_eq!(
            settled(|| strong(client, "/v1/coupons/sale")).body["stats"]["available"],
            CODES
        );
    }
    let load = Load {
        clients,
        is_over: AtomicBool::new(false),
        bought: Default::default(),
        read: Default::default(),
        sold: Mutex::default(),
    };
    thread::scope(|scope| {
        for node in 0..NODES {
            let load = &load;
            scope.spawn(move || load.buy(node));
            scope.spawn(move || load.read(node));
        }
        let end = Ending(&load.is_over);
        load.go_on(5);
        faults(cluster, &load);
        load.go_on(5);
        drop(end);
    });
    println!("{} codes were sold", load.verify());
}

/// Ends the load, also when a fault has failed: else its threads would go on for ever.
pub struct Ending<'a>(pub &'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
