//! The same over three nodes and three servers of their log, whose leader is killed again and again: one order explains what all
//! nodes have answered, and an open pool with holds that run out never has more than its stock.
//!
//! `LINEARIZABLE_ROUNDS` says how many leaders are killed (4 if it is unset).

use crate::checker::{Operation, check};
use crate::client::{CODES, Shop, code_name, work};
use crate::cluster::{Cluster, NODES, settled};
use crate::random::Random;
use crate::timeouts::wait_until;
use crate::{
    CLIENTS, LIFE_SECONDS, assert_everything_happened, assert_one_changed_answer_is_noticed, number, stock,
};
use serde_json::json;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Operations that are answered after a leader's death before the next round begins.
const ANSWERED_AFTER: u64 = 500;

/// Ends a load when it is dropped, also by a failure: its threads would go on for ever.
pub struct Closing<'a>(pub &'a AtomicBool);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

pub fn rounds() -> u64 {
    number("LINEARIZABLE_ROUNDS").unwrap_or(4)
}

/// Lets a load last a while, kills the stream's leader, waits until `goes_on` and starts the leader again.
pub fn kill_leader(cluster: &mut Cluster, goes_on: impl FnMut() -> bool) {
    std::thread::sleep(Duration::from_secs(LIFE_SECONDS));
    let leader = cluster.servers.leader_of("cuckood");
    cluster.servers.kill(leader);
    wait_until("that the nodes go on", goes_on);
    cluster.servers.restart(leader);
}

/// Writes through every node. The outcome of its earlier requests is decided then: a node's writes take effect in order.
pub fn settle(cluster: &Cluster, round: u64) {
    for node in 0..NODES {
        let path = format!("/v1/campaigns/round-{round}-{node}");
        let made = settled(|| cluster.client(node).put(&path, &json!({ "capacity": 10 })));
        assert!([200, 201].contains(&made.status), "{made:?}");
    }
}

#[test]
#[ignore = "takes a minute: make test-long WHAT=cluster"]
fn three_node_history_is_linearizable() {
    let seed = number("LINEARIZABLE_SEED").unwrap_or_else(|| u64::from(std::process::id()));
    eprintln!("LINEARIZABLE_ROUNDS={} LINEARIZABLE_SEED={seed}", rounds());
    let mut cluster = Cluster::start();
    stock(&cluster.client(0));
    let shop = Shop::of_several_nodes();
    let mut seeds = Random::new(seed);
    let mut randoms: Vec<Random> = (0..CLIENTS).map(|_| Random::new(seeds.next())).collect();
    let mut histories: Vec<Vec<Operation>> = vec![Vec::new(); CODES];
    for round in 0..rounds() {
        shop.closed.store(false, Ordering::Relaxed);
        let operations: Vec<(usize, Operation)> = std::thread::scope(|scope| {
            let clients: Vec<_> = randoms
                .iter_mut()
                .enumerate()
                .map(|(at, random)| {
                    let (client, shop) = (cluster.client(at % NODES).another(), &shop);
                    scope.spawn(move || work(shop, &client, random))
                })
                .collect();
            let closing = Closing(&shop.closed);
            let mut killed_at = None;
            kill_leader(&mut cluster, || {
                let answered = shop.answered.load(Ordering::Relaxed);
                answered >= *killed_at.get_or_insert(answered) + ANSWERED_AFTER
            });
            drop(closing);
            clients.into_iter().flat_map(|client| client.join().unwrap()).collect()
        });
        assert_eq!(shop.broken.load(Ordering::SeqCst), 0, "a node broke a connection");
        settle(&cluster, round);
        let end = shop.now();
        for (code, mut operation) in operations {
            if operation.answer.is_none() {
                operation.returned = end;
            }
            histories[code].push(operation);
        }
    }
    for (code, history) in histories.iter().enumerate() {
        check(history).unwrap_or_else(|why| panic!("{}: {why}", code_name(code)));
    }
    assert_everything_happened(&histories, rounds() + 1);
    assert_one_changed_answer_is_noticed(&histories[0]);
}
