//! The same over three nodes and three servers of their log. In each round, the log's leader is killed or partitioned from the other
//! servers, and recovers: one order explains the responses of all nodes, and an open pool with holds that expire never exceeds its stock.
//!
//! `LINEARIZABLE_ROUNDS` is the number of rounds (4 if it is unset: each way once).

use crate::checker::{Operation, check};
use crate::client::{CODES, Door, Shop, code_name, now, work};
use crate::cluster::{Cluster, NODES, settled};
use crate::routes::{Partition, Routes};
use crate::timeouts::wait_until;
use crate::{
    CLIENTS, LIFE_SECONDS, REDIS, assert_everything_happened, assert_one_changed_answer_is_noticed,
    number, stock,
};
use cuckood_state::domain::FORMAT_VERSION;
use cuckood_state::testing::random::Random;
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

/// A cluster, and the routes between its servers.
pub struct World {
    pub cluster: Cluster,
    routes: Routes,
}

impl World {
    pub fn start() -> World {
        let (routes, servers) = Routes::start_servers(NODES);
        let cluster = Cluster::start_as(servers, |_| None, &[REDIS]);
        // Before that, a code that is removed while it is redeemed comes back when the redemption is cancelled.
        wait_until("that what this build understands is enabled", || {
            let known = cluster.client(0).get("/v1/cluster");
            known.is_ok_and(|known| known.body["enabled"] == FORMAT_VERSION)
        });
        World { cluster, routes }
    }

    /// Lets a load last a while, makes the leader fail in this round's way, waits until `continues`, and lets the leader recover.
    pub fn disturb(&mut self, round: u64, continues: impl FnMut() -> bool) {
        std::thread::sleep(Duration::from_secs(LIFE_SECONDS));
        let servers = &mut self.cluster.servers;
        let leader = servers.leader_of("cuckood");
        // A deaf leader would hold up the others until it hears them again.
        let ways = [
            None,
            Some(Partition::Silent),
            Some(Partition::Broken),
            Some(Partition::Mute),
        ];
        match ways[round as usize % ways.len()] {
            None => servers.kill(leader),
            Some(how) => self.routes.part(leader, how),
        }
        eprintln!("round {round}: n{leader} fails");
        wait_until("that the nodes continue", continues);
        match servers.is_running(leader) {
            true => self.routes.heal(),
            false => servers.restart(leader),
        }
    }
}

/// Waits until all servers have the log, and writes through every node. A node's writes take effect in order, so all earlier ones are decided
/// then.
pub fn settle(cluster: &Cluster, round: u64) {
    // Three servers survive one fault: two that have lost their route would be a second one in the next round.
    wait_until("that all servers are connected", || {
        (0..NODES).all(|server| cluster.servers.routes_of(server).len() == NODES - 1)
    });
    (0..NODES).for_each(|server| cluster.servers.wait_until_current("cuckood", server));
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
    let mut world = World::start();
    stock(&world.cluster.client(0));
    settle(&world.cluster, u64::MAX);
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
                    let door = Door::of(at, world.cluster.nodes[at % NODES].as_ref().unwrap());
                    let shop = &shop;
                    scope.spawn(move || work(shop, door, random))
                })
                .collect();
            let closing = Closing(&shop.closed);
            let mut failed_at = None;
            world.disturb(round, || {
                let answered = shop.answered.load(Ordering::Relaxed);
                answered >= *failed_at.get_or_insert(answered) + ANSWERED_AFTER
            });
            drop(closing);
            clients
                .into_iter()
                .flat_map(|client| client.join().unwrap())
                .collect()
        });
        assert_eq!(
            shop.broken.load(Ordering::SeqCst),
            0,
            "a node broke a connection"
        );
        settle(&world.cluster, round);
        let end = now();
        for (code, mut operation) in operations {
            if operation.answer.is_none() {
                operation.returned = end;
            }
            histories[code].push(operation);
        }
    }
    eprintln!("{:>8} rejected", shop.rejected.load(Ordering::Relaxed));
    for (code, history) in histories.iter().enumerate() {
        check(history, 0).unwrap_or_else(|why| panic!("{}: {why}", code_name(code)));
    }
    assert_everything_happened(&histories, rounds() + 1);
    assert_one_changed_answer_is_noticed(&histories[0], 0);
}
