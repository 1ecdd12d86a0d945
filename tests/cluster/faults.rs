//! Faults of servers, disks, clocks and the network under a sale through every node ([`crate::load`]). All of it takes minutes:
//! `make test-long WHAT=cluster` runs the short form once, then `CLUSTER_ROUNDS` rounds with frozen servers.

use crate::cluster::{Cluster, NODES};
use crate::journal::Node;
use crate::load::{Load, under_load};
use crate::nats::{Disk, Plan, Servers, may_delay_syncs, may_have_own_disk};
use crate::proxy::{Direction, Network};
use crate::timeouts::wait_until;
use cuckood_log::journal::{Journal, Ticket};
use cuckood_state::domain::{Command, Proposal, STATE_HASH_EVERY, Timestamp};
use serde_json::Value;
use std::thread;
use std::time::Duration;

/// The node whose network is disturbed.
const AFAR: usize = 2;

/// Longer than a node waits for an acknowledgement.
pub const LATE_SECONDS: f64 = 3.0;

/// Messages of the log that are published a second time.
const REPEATED: u64 = 400;

/// A cluster, and the network of one of its nodes.
struct World {
    cluster: Cluster,
    network: Network,
}

impl World {
    fn start() -> World {
        let servers = Servers::start(NODES);
        let network = Network::to(&servers.ports());
        let cluster = Cluster::start_over(servers, |node| (node == AFAR).then(|| network.urls()));
        World { cluster, network }
    }
}

/// A node's report about the log.
pub fn log_of(cluster: &Cluster, node: usize) -> Value {
    cluster.client(node).get("/v1/cluster").unwrap().body["log"].clone()
}

/// Disturbs the network of a node until it has lost touch, and mends it.
fn lose_touch(cluster: &Cluster, load: &Load, network: &Network, disturb: impl FnOnce()) {
    disturb();
    wait_until("a loss of touch", || {
        log_of(cluster, AFAR)["no_quorum_seconds"].as_f64() >= Some(LATE_SECONDS)
    });
    network.release();
    load.go_on(10);
}

/// Publishes the last messages of the log once more, as they are.
fn repeat(servers: &Servers) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let client = async_nats::connect(&servers.urls()[0]).await.unwrap();
        let context = async_nats::jetstream::new(client);
        let stream = context.get_stream("cuckood").await.unwrap();
        let last = stream.cached_info().state.last_sequence;
        for number in last.saturating_sub(REPEATED).max(1)..=last {
            let message = stream.get_raw_message(number).await.unwrap();
            context
                .publish(message.subject, message.payload)
                .await
                .unwrap()
                .await
                .unwrap();
        }
    });
}

/// All servers together: only synced data survives.
fn kill_all(cluster: &mut Cluster, load: &Load) {
    (0..NODES).for_each(|server| cluster.servers.kill(server));
    (0..NODES).for_each(|server| cluster.servers.restart(server));
    load.go_on(10);
}

fn freeze_leader(cluster: &Cluster, load: &Load, seconds: u64) {
    let leader = cluster.servers.leader_of("cuckood");
    cluster.servers.freeze(leader);
    thread::sleep(Duration::from_secs(seconds));
    cluster.servers.thaw(leader);
    load.go_on(10);
}

fn kill_one(cluster: &mut Cluster, load: &Load, server: usize) {
    cluster.servers.kill(server);
    load.go_on(10);
    cluster.servers.restart(server);
    load.go_on(10);
}

/// Brings the log to the next position at which the nodes compare their states, and compares them.
pub fn assert_equal_hashes(cluster: &Cluster) {
    let mut filler = Node::join(&cluster.servers, "cuckood", "filler");
    let advance = Proposal::new(Timestamp(1), Command::Advance { buckets_max: 1 });
    let position = cluster.client(0).get("/v1/cluster").unwrap().body["position"]
        .as_u64()
        .unwrap();
    let at = (position / STATE_HASH_EVERY + 1) * STATE_HASH_EVERY;
    for batch in 0..=STATE_HASH_EVERY / 4_096 {
        filler
            .journal()
            .propose(Ticket(batch * 4_096), vec![advance.clone(); 4_096])
            .unwrap();
    }
    let hash = |node| log_of(cluster, node)["hash"].clone();
    wait_until("the position at which hashes are compared", || {
        filler.take_all();
        (0..NODES).all(|node| hash(node)["position"] == at)
    });
    assert_eq!([hash(1), hash(2)], [hash(0), hash(0)]);
    for node in 0..NODES {
        assert_eq!(cluster.client(node).get("/readyz").unwrap().status, 200);
    }
}

/// How often long tests repeat themselves.
pub fn rounds() -> u32 {
    std::env::var("CLUSTER_ROUNDS").map_or(3, |rounds| rounds.parse().unwrap())
}

/// Everything that takes a few seconds each.
fn short_faults(cluster: &mut Cluster, load: &Load, network: &Network) {
    println!("messages come twice");
    repeat(&cluster.servers);
    load.go_on(10);
    println!("what a node sends comes late");
    lose_touch(cluster, load, network, || {
        network.hold(Direction::ToServers)
    });
    println!("what a node is sent comes late");
    lose_touch(cluster, load, network, || network.hold(Direction::ToNode));
    println!("a node is cut off");
    lose_touch(cluster, load, network, || network.cut());
    println!("all servers die at once");
    kill_all(cluster, load);
}

#[test]
#[ignore = "takes minutes on a busy machine: make test-long WHAT=cluster"]
fn entries_survive_crashes_repeats_and_bad_network() {
    let World {
        mut cluster,
        network,
    } = World::start();
    under_load(&mut cluster, |cluster, load| {
        short_faults(cluster, load, &network)
    });
    assert_equal_hashes(&cluster);
}

#[test]
#[ignore = "takes minutes: make test-long WHAT=cluster"]
fn entries_survive_many_rounds() {
    for round in 1..=rounds() {
        println!("round {round} of {}", rounds());
        let World {
            mut cluster,
            network,
        } = World::start();
        under_load(&mut cluster, |cluster, load| {
            short_faults(cluster, load, &network);
            println!("the stream's leader dies, then a follower");
            let leader = cluster.servers.leader_of("cuckood");
            kill_one(cluster, load, leader);
            kill_one(
                cluster,
                load,
                (cluster.servers.leader_of("cuckood") + 1) % NODES,
            );
            for seconds in [4, 20] {
                println!("the stream's leader stands still for {seconds} s");
                freeze_leader(cluster, load, seconds);
            }
        });
        assert_equal_hashes(&cluster);
    }
}

/// A server without room stops; the other two go on. With room it takes part again.
#[test]
#[ignore = "takes minutes on a busy machine: make test-long WHAT=cluster"]
fn full_disk_of_one_server_stops_no_node() {
    if !may_have_own_disk() {
        println!("NOT TESTED: a process may not mount a disk of its own here");
        return;
    }
    let mut plan = Plan::of(NODES);
    plan.disk = Some(Disk::Small(32));
    let mut cluster = Cluster::start_over(Servers::start_as(plan), |_| None);
    under_load(&mut cluster, |cluster, load| {
        cluster.servers.fill_disk(NODES - 1);
        load.go_on(100);
        // Its disk is lost: it restarts empty.
        cluster.servers.kill(NODES - 1);
        cluster.servers.restart(NODES - 1);
        cluster.servers.wait_until_current("cuckood", NODES - 1);
        load.go_on(20);
    });
}

/// The log continues at the pace of the two other servers, whichever of them leads.
#[test]
#[ignore = "takes minutes on a busy machine: make test-long WHAT=cluster"]
fn slow_disk_of_one_server_stops_no_node() {
    if !may_delay_syncs() {
        println!("NOT TESTED: strace can't delay the calls of a process here");
        return;
    }
    let mut plan = Plan::of(NODES);
    plan.disk = Some(Disk::Slow);
    let mut cluster = Cluster::start_over(Servers::start_as(plan), |_| None);
    cluster.servers.lead("cuckood", 0);
    under_load(&mut cluster, |cluster, load| {
        for leader in [1, 0] {
            cluster.servers.lead("cuckood", leader);
            println!("n{leader} leads");
            load.go_on(50);
            assert!((0..NODES).all(|node| log_of(cluster, node)["quorum"] == true));
        }
    });
    assert_equal_hashes(&cluster);
}
