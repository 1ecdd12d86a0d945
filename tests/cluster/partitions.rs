//! One server is cut off from the two others during a sale through every node ([`crate::load`]), and reconnected. It needs no rights:
//! servers reach each other over [`Routes`] alone. `make test-long WHAT=cluster` repeats it, `CLUSTER_ROUNDS` times.

use crate::cluster::{Cluster, NODES, strong};
use crate::faults::{LATE_SECONDS, assert_equal_hashes, log_of, rounds};
use crate::load::{Load, under_load};
use crate::nats::Servers;
use crate::routes::{Partition, Routes};
use crate::timeouts::wait_until;
use std::collections::BTreeSet;

const STREAM: &str = "cuckood";

/// A cluster, and the routes between its servers.
struct World {
    cluster: Cluster,
    routes: Routes,
}

impl World {
    /// Starts nodes that know all servers, or one each: node and server have the same number then.
    fn start(know_all: bool) -> World {
        let (routes, servers) = Routes::start_servers(NODES);
        let urls = servers.urls();
        let cluster = Cluster::start_over(servers, |node| (!know_all).then(|| urls[node].clone()));
        World { cluster, routes }
    }
}

fn others(server: usize) -> Vec<usize> {
    (0..NODES).filter(|other| *other != server).collect()
}

/// Waits until the two others follow one of them.
fn wait_for_another_leader(servers: &Servers, cut_off: usize) {
    wait_until("a leader among the others", || {
        let told = others(cut_off)
            .into_iter()
            .map(|server| servers.leader_told_by(server, STREAM));
        let told: BTreeSet<Option<usize>> = told.collect();
        told.len() == 1 && !told.contains(&None) && !told.contains(&Some(cut_off))
    });
}

/// Lets all servers reach each other again, and waits until they do.
fn heal(cluster: &Cluster, routes: &Routes, load: &Load) {
    println!("it is no longer cut off");
    routes.heal();
    load.go_on(20);
    println!("everything goes on");
    for server in 0..NODES {
        wait_until("routes", || {
            cluster
                .servers
                .routes_of(server)
                .into_iter()
                .eq(others(server))
        });
        cluster.servers.wait_until_current(STREAM, server);
    }
}

/// The stream's leader is cut off with the node that knows no other server. That node answers reads and acknowledges nothing; the
/// others go on.
fn part_leader(cluster: &Cluster, routes: &Routes, load: &Load, how: Partition) {
    let leader = cluster.servers.leader_of(STREAM);
    println!("the leader, n{leader}, is cut off: {how:?}");
    routes.part(leader, how);
    wait_until("a loss of touch", || {
        log_of(cluster, leader)["no_quorum_seconds"].as_f64() >= Some(LATE_SECONDS)
    });
    // A leader that receives nothing blocks the others until it steps down, and again when it campaigns.
    if how != Partition::Deaf {
        wait_for_another_leader(&cluster.servers, leader);
    }
    if how == Partition::Broken {
        assert_eq!(cluster.servers.routes_of(leader), BTreeSet::new());
    }
    let bought = load.bought(leader);
    if how != Partition::Deaf {
        load.go_on_at(&others(leader), 20);
    }
    load.be_read(20);
    assert_eq!(
        strong(&cluster.client(leader), "/v1/coupons/sale")
            .unwrap()
            .body["code"],
        "no-quorum"
    );
    assert_eq!(
        load.bought(leader),
        bought,
        "a node without most of the servers has acknowledged something"
    );
    heal(cluster, routes, load);
}

#[test]
#[ignore = "takes minutes: make test-long WHAT=cluster"]
fn entries_survive_isolated_leader() {
    for round in 1..=rounds() {
        println!("round {round} of {}", rounds());
        let World {
            mut cluster,
            routes,
        } = World::start(false);
        under_load(&mut cluster, |cluster, load| {
            for how in [
                Partition::Broken,
                Partition::Silent,
                Partition::Mute,
                Partition::Deaf,
            ] {
                part_leader(cluster, &routes, load, how);
            }
        });
        assert_equal_hashes(&cluster);
    }
}

/// Nodes that know all servers leave the isolated one automatically: all of them continue.
#[test]
#[ignore = "takes minutes: make test-long WHAT=cluster"]
fn nodes_leave_isolated_server() {
    for round in 1..=rounds() {
        println!("round {round} of {}", rounds());
        let World {
            mut cluster,
            routes,
        } = World::start(true);
        under_load(&mut cluster, |cluster, load| {
            for (node, how) in [Partition::Silent, Partition::Broken, Partition::Mute]
                .into_iter()
                .enumerate()
            {
                load.go_on(20);
                let server = cluster.servers.server_of(&format!("cuckood node-{node}"));
                println!("the server of node-{node}, n{server}, is cut off: {how:?}");
                routes.part(server, how);
                wait_for_another_leader(&cluster.servers, server);
                load.go_on(20);
                assert_ne!(
                    log_of(cluster, node)["server"],
                    format!("n{server}"),
                    "it has another server"
                );
                heal(cluster, &routes, load);
            }
        });
        assert_equal_hashes(&cluster);
    }
}
