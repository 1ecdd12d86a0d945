//! The shipped configuration of haproxy in front of three nodes: no failure of a node or server fails a read. It needs Debian's haproxy, so
//! `make test-long WHAT=cluster` runs it.

use crate::cluster::{Cluster, NODES, settled};
use crate::nats::Servers;
use crate::ports;
use crate::service::Client;
use crate::timeouts::wait_until;
use parking_lot::Mutex;
use serde_json::json;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread;

const READERS: usize = 4;

/// Reads that must succeed after each fault, and once it is over.
const READS: usize = 200;

/// A running haproxy. Dropped, it is killed.
struct Balancer {
    child: Child,
    client: Client,
}

impl Balancer {
    /// Starts haproxy with the shipped configuration, but for the addresses and the number of connections, for which a test may lack files.
    fn start(folder: &Path, nodes: &[u16]) -> Balancer {
        let port = ports::free(1)[0];
        let mut config = include_str!("../../deploy/cluster/haproxy.cfg").to_owned();
        let mut replace = |shipped: &str, own: String| {
            assert!(config.contains(shipped), "{shipped}");
            config = config.replace(shipped, &own);
        };
        replace("maxconn 20000", "maxconn 100".to_owned());
        replace("bind :8080", format!("bind 127.0.0.1:{port}"));
        for (number, node) in (1..).zip(nodes) {
            replace(
                &format!(" node-{number}:8080"),
                format!(" 127.0.0.1:{node}"),
            );
        }
        let path = folder.join("haproxy.cfg");
        std::fs::write(&path, config).unwrap();
        let mut haproxy = Command::new("haproxy");
        haproxy.args(["-db", "-f"]).arg(path).stdout(Stdio::null());
        let child = haproxy
            .spawn()
            .expect("haproxy is missing: apt-get install haproxy");
        let client = Client::new(format!("http://127.0.0.1:{port}"));
        Balancer { child, client }
    }
}

impl Drop for Balancer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads through the balancer without a pause. A failed one is reported with the preceding fault.
struct Reads {
    done: AtomicUsize,
    is_over: AtomicBool,
    fault: Mutex<&'static str>,
    failures: Mutex<Vec<String>>,
}

impl Reads {
    fn run(&self, client: &Client) {
        while !self.is_over.load(Relaxed) {
            let check = json!({"users": ["u1", "u2"]});
            let check = || client.post("/v1/campaigns/spring/users/check", &check);
            let show = || client.get("/v1/campaigns/spring");
            // A client must expect a reused connection to be closed: haproxy forwards the reset by a killed node.
            let answers = [check().or_else(|_| check()), show().or_else(|_| show())];
            for answer in answers {
                let failed = match &answer {
                    Ok(answer) if answer.status == 200 => None,
                    Ok(answer) => Some(format!("{answer:?}")),
                    Err(error) => Some(error.to_string()),
                };
                if let Some(failed) = failed {
                    self.failures
                        .lock()
                        .push(format!("{}: {failed}", self.fault.lock()));
                }
                self.done.fetch_add(1, Relaxed);
            }
        }
    }

    /// Waits until many reads are done after this fault.
    fn go_on(&self, fault: &'static str) {
        *self.fault.lock() = fault;
        let before = self.done.load(Relaxed);
        wait_until("reads", || self.done.load(Relaxed) >= before + READS);
        let failures = self.failures.lock();
        assert!(
            failures.is_empty(),
            "{} reads failed, the first one: {}",
            failures.len(),
            failures[0]
        );
    }
}

#[test]
#[ignore = "needs haproxy: make test-long WHAT=cluster"]
fn reads_never_fail_through_shipped_balancer() {
    let ports = ports::free(NODES);
    let folder = tempfile::tempdir().unwrap();
    let mut cluster = Cluster::start_at(Servers::start(NODES), &ports, &[]);
    let client = cluster.client(0);
    assert!(
        settled(|| client.put("/v1/campaigns/spring", &json!({"capacity": 1_000}))).status < 300
    );
    let added = settled(|| client.post("/v1/campaigns/spring/users", &json!({"users": ["u1"]})));
    assert_eq!(added.status, 200);
    for number in 0..NODES {
        let client = cluster.client(number);
        wait_until("the campaign on each node", || {
            client
                .get("/v1/campaigns/spring")
                .is_ok_and(|answer| answer.status == 200)
        });
    }
    let balancer = Balancer::start(folder.path(), &ports);
    wait_until("the balancer", || {
        balancer
            .client
            .get("/v1/campaigns/spring")
            .is_ok_and(|answer| answer.status == 200)
    });
    let reads = Reads {
        done: AtomicUsize::new(0),
        is_over: AtomicBool::new(false),
        fault: Mutex::new("no fault"),
        failures: Mutex::default(),
    };
    thread::scope(|scope| {
        for _ in 0..READERS {
            let client = balancer.client.another();
            scope.spawn(|| {
                let client = client;
                reads.run(&client);
            });
        }
        let _over = Over(&reads.is_over);
        reads.go_on("no fault");
        fail_servers(&mut cluster, &reads);
        fail_nodes(&mut cluster, &reads);
    });
}

/// Ends the reads however the test ends.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

fn fail_servers(cluster: &mut Cluster, reads: &Reads) {
    let leader = cluster.servers.leader_of("cuckood");
    cluster.servers.kill(leader);
    reads.go_on("the leader was killed");
    cluster.servers.restart(leader);
    reads.go_on("the leader is back");

    let leader = cluster.servers.leader_of("cuckood");
    cluster.servers.freeze(leader);
    reads.go_on("the leader is frozen");
    cluster.servers.thaw(leader);
    reads.go_on("the leader was thawed");

    cluster.servers.kill(0);
    cluster.servers.kill(1);
    for number in 0..NODES {
        let client = cluster.client(number);
        wait_until("a report that the log has no quorum", || {
            client
                .get("/readyz")
                .is_ok_and(|ready| ready.body["writes"] == "no-quorum")
        });
    }
    reads.go_on("two of three servers are down");
    cluster.servers.kill(2);
    reads.go_on("all servers are down");
    (0..NODES).for_each(|server| cluster.servers.restart(server));
    for number in 0..NODES {
        let client = cluster.client(number);
        wait_until("a quorum", || {
            client
                .get("/readyz")
                .is_ok_and(|ready| ready.body["writes"].is_null())
        });
    }
    reads.go_on("all servers are back");
}

fn fail_nodes(cluster: &mut Cluster, reads: &Reads) {
    cluster.kill_node(0);
    reads.go_on("a node was killed");
    cluster.restart_node(0);
    reads.go_on("it is back");
    cluster.nodes[1].take().unwrap().terminate();
    reads.go_on("a node was stopped");
    cluster.restart_node(1);
    reads.go_on("it is back");
    cluster.kill_node(2);
    cluster.wipe_node(2);
    cluster.restart_node(2);
    reads.go_on("a node began with an empty directory");
}
