//! Nodes compare the hashes of their states: a node that differs from most stops, and reports it.

use crate::engines::{config, nats_options, start_with};
use crate::journal::Node;
use crate::nats::Servers;
use crate::service::Service;
use crate::timeouts::{TIMEOUT, wait_until};
use cuckood::clock::{Clock, ClockLimits};
use cuckood::engine::{ClusterOptions, EngineStatus};
use cuckood_log::journal::{Delivery, Journal, JournalError, OtherNode, Ticket};
use cuckood_log::testing::stores::{append, proposal};
use cuckood_nats::NatsOptions;
use cuckood_state::domain::{
    Command, FORMAT_VERSION, Proposal, STATE_HASH_EVERY, Seq, StateHash, Timestamp,
};
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::Path;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::runtime::Runtime;

pub const AT: Seq = Seq(STATE_HASH_EVERY);

impl Node {
    pub fn report_hash(&mut self, hash: u128) {
        self.journal().replication().unwrap().lock().hash = Some(StateHash { at: AT, hash });
        // The next poll reports it.
        let _ = self.poll_once();
    }

    /// Returns the next delivery, if there is one.
    pub fn poll_once(&mut self) -> Poll<Result<Delivery, JournalError>> {
        let last = self.journal().last();
        self.journal().poll(
            last,
            Instant::now(),
            &mut Context::from_waker(Waker::noop()),
        )
    }

    fn is_diverged(&mut self) -> bool {
        matches!(
            self.poll_once(),
            Poll::Ready(Err(JournalError::Diverged { at: AT, .. }))
        )
    }

    fn peer(&mut self, name: &str) -> Option<OtherNode> {
        let peers = self.journal().replication().unwrap().lock().peers.clone();
        peers.into_iter().find(|peer| peer.node == name)
    }
}

/// Longer than any test takes.
pub const EVER: Duration = Duration::from_secs(3_600);

/// Makes the log long enough that nodes compare their states.
pub fn fill(by: &mut Node) {
    let advance = Proposal::new(Timestamp(1), Command::Advance { buckets_max: 1 });
    for batch in 0..STATE_HASH_EVERY / 4_096 {
        by.journal()
            .propose(Ticket(1_000 + batch * 4_096), vec![advance.clone(); 4_096])
            .unwrap();
    }
}

/// Nodes of one log that is long enough. They have begun, and know of each other.
fn nodes<const COUNT: usize>(
    servers: &Servers,
    stream: &str,
    open_time: Duration,
) -> [Node; COUNT] {
    let mut nodes: [Node; COUNT] = std::array::from_fn(|at| {
        let options = nats_options(servers.urls(), stream, &format!("n{at}"));
        Node::join_with(NatsOptions {
            open_time,
            ..options
        })
    });
    for (at, node) in nodes.iter_mut().enumerate() {
        append(node.journal(), vec![proposal(at as u64, 1)]).unwrap();
    }
    fill(&mut nodes[0]);
    for node in &mut nodes {
        wait_until("word of the others, and the log", || {
            let _ = node.poll_once();
            let heard = node.journal().replication().unwrap().lock().peers.len();
            heard == COUNT - 1 && node.journal().last() > AT
        });
    }
    nodes
}

/// Long enough for all hashes to be reported.
const SOON: Duration = Duration::from_secs(3);

#[test]
fn minority_stops_and_majority_continues() {
    let servers = Servers::start(1);
    let [mut first, mut second, mut odd] = nodes(&servers, "odd", SOON);
    odd.report_hash(666);
    first.report_hash(1);
    second.report_hash(1);
    wait_until("the end of the odd one", || {
        assert!(!first.is_diverged() && !second.is_diverged());
        odd.is_diverged()
    });
    wait_until("both comparisons", || {
        assert!(!first.is_diverged() && !second.is_diverged());
        first.peer("n1").and_then(|peer| peer.differs) == Some(false)
            && second.peer("n2").and_then(|peer| peer.differs) == Some(true)
    });
    let build = first.peer("n1").unwrap();
    let own = (Some(env!("CARGO_PKG_VERSION")), Some(FORMAT_VERSION));
    assert_eq!((build.build.as_deref(), build.understands), own);
    append(first.journal(), vec![proposal(9, 1)]).unwrap();
    assert!(!first.is_diverged());
}

/// However busy a node is, it does not continue for long where no other node shows whose state is right.
#[test]
fn busy_node_stops_without_other_reports() {
    let servers = Servers::start(1);
    let [mut busy, mut other, _silent] = nodes(&servers, "busy", Duration::from_secs(1));
    busy.report_hash(1);
    other.report_hash(2);
    let began = Instant::now();
    for number in 0.. {
        let proposed = busy
            .journal()
            .propose(Ticket(1_000_000 + number), vec![proposal(number, 1)]);
        if busy.is_diverged() {
            break;
        }
        proposed.unwrap();
        let _ = other.poll_once();
        assert!(began.elapsed() < TIMEOUT, "it continues");
    }
}

/// A node that never reaches the log's end decides, too.
#[test]
fn saturated_node_stops_in_time() {
    let servers = Servers::start(1);
    let [mut saturated, mut other, mut writer] =
        nodes(&servers, "saturated", Duration::from_secs(1));
    saturated.report_hash(1);
    other.report_hash(2);
    let began = Instant::now();
    for number in 0.. {
        append(writer.journal(), vec![proposal(number, 1)]).unwrap();
        let known = saturated.journal().replication().unwrap();
        if known.lock().behind_messages() >= 2 && saturated.is_diverged() {
            break;
        }
        assert!(began.elapsed() < TIMEOUT, "it continues");
    }
}

#[test]
fn both_nodes_stop_when_two_differ() {
    let servers = Servers::start(1);
    let [mut first, mut second] = nodes(&servers, "two", SOON);
    first.report_hash(1);
    second.report_hash(2);
    let mut ended = [false; 2];
    wait_until("the end of both", || {
        ended = [
            ended[0] || first.is_diverged(),
            ended[1] || second.is_diverged(),
        ];
        ended == [true; 2]
    });
}

fn clock() -> Clock {
    Clock::system(ClockLimits::default())
}

/// A node that starts from a snapshot continues with its state, so a node shares none while its own may be wrong.
#[test]
fn node_in_doubt_shares_nothing() {
    let servers = Servers::start(1);
    let dir = tempfile::tempdir().unwrap();
    let [mut liar, mut third] = nodes(&servers, "doubt", EVER);
    // Longer than the liar takes to write the rest.
    let open_time = Duration::from_secs(20);
    let nats = NatsOptions {
        open_time,
        ..nats_options(servers.urls(), "doubt", "engine")
    };
    let share_every = Some(Duration::from_millis(200));
    let cluster = ClusterOptions {
        share_every,
        ..config().cluster.options()
    };
    let runtime = Runtime::new().unwrap();
    let engine = runtime.block_on(start_with(dir.path(), nats, cluster, clock()));
    wait_until("a shared snapshot", || engine.info().sharing.shared > 0);
    wait_until("its hash", || engine.replication().unwrap().hash.is_some());
    let right = engine.replication().unwrap().hash.unwrap();
    let began = Instant::now();
    third.report_hash(right.hash);
    liar.report_hash(666);
    let differs = || {
        engine
            .replication()
            .unwrap()
            .peers
            .iter()
            .any(|peer| peer.differs == Some(true))
    };
    wait_until("word of a difference", || {
        let _ = third.poll_once();
        liar.poll_once().is_pending() && differs()
    });
    let shared = engine.info().sharing.shared;
    for number in 0..1_500 {
        // It would be due.
        append(liar.journal(), vec![proposal(number, 1)]).unwrap();
        let now_shared = engine.info().sharing.shared;
        if began.elapsed() >= open_time {
            break; // It may be decided.
        }
        assert!(now_shared <= shared + 1, "at most one upload was running");
    }
    let shared = engine.info().sharing.shared;
    wait_until("another one, once it is decided", || {
        let _ = third.poll_once();
        engine.info().sharing.shared > shared
    });
}

#[test]
fn backup_of_stopping_node_is_aborted() {
    let servers = Servers::start(1);
    let dir = tempfile::tempdir().unwrap();
    let [mut first, mut second] = nodes(&servers, "backup", EVER);
    let nats = NatsOptions {
        open_time: SOON,
        ..nats_options(servers.urls(), "backup", "engine")
    };
    let runtime = Runtime::new().unwrap();
    let engine = runtime.block_on(start_with(
        dir.path(),
        nats,
        config().cluster.options(),
        clock(),
    ));
    wait_until("its hash", || engine.replication().unwrap().hash.is_some());
    let mut backup = runtime.block_on(engine.backup()).unwrap();
    runtime.block_on(backup.next()).unwrap();
    first.report_hash(666);
    second.report_hash(666);
    wait_until("its end", || {
        let _ = (first.poll_once(), second.poll_once());
        matches!(engine.status(), EngineStatus::Diverged(_))
    });
    runtime.block_on(backup.next()).unwrap_err();
}

fn service(servers: &Servers, dir: &TempDir, name: &str) -> Service {
    let servers = servers.urls().join(",");
    Service::start_ready(
        Path::new(env!("CARGO_BIN_EXE_cuckood")),
        dir.path(),
        &settings(&servers, name),
    )
}

fn settings<'a>(servers: &'a str, name: &'a str) -> [(&'static str, &'a str); 8] {
    [
        ("CUCKOOD__JOURNAL__KIND", "nats"),
        ("CUCKOOD__NATS__SERVERS", servers),
        ("CUCKOOD__NATS__REPLICAS", "1"),
        ("CUCKOOD__CLUSTER__NODE", name),
        ("CUCKOOD__CLUSTER__LAG_MAX", "2m"),
        ("CUCKOOD__RESP__LISTEN", "127.0.0.1:0"),
        ("CUCKOOD__STORAGE__BALLAST", "0"),
        ("CUCKOOD__STORAGE__FREE_SPACE_MIN", "0"),
    ]
}

/// The service's reply to a Redis client's PING.
fn pong(service: &Service) -> String {
    let mut stream = TcpStream::connect(service.redis_address()).unwrap();
    stream.write_all(b"PING\r\n").unwrap();
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).unwrap();
    answer
}

fn cluster_report(service: &Service) -> Value {
    service.client().get("/v1/cluster").unwrap().body
}

/// Real nodes compute the same hash, also after a restart. If most of the others have another one, they stop answering.
#[test]
fn minority_nodes_stop_serving() {
    let servers = Servers::start(1);
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let first = service(&servers, &dirs[0], "first");
    let mut second = service(&servers, &dirs[1], "second");
    let mut liars: [Node; 3] =
        std::array::from_fn(|at| Node::join(&servers, "cuckood", &format!("liar-{at}")));
    fill(&mut liars[0]);
    let hash = |service: &Service| cluster_report(service)["log"]["hash"].clone();
    wait_until("a hash of each", || {
        let _ = liars[0].poll_once();
        !hash(&first).is_null() && !hash(&second).is_null()
    });
    let right = hash(&first);
    assert_eq!(
        (right["position"].as_u64(), &hash(&second)),
        (Some(AT.0), &right)
    );
    let differs = |service: &Service, name: &str| {
        let nodes = cluster_report(service)["nodes"].as_array().unwrap().clone();
        nodes
            .iter()
            .find(|node| node["node"] == name)
            .and_then(|node| node["differs"].as_bool())
    };
    wait_until("the comparison", || {
        differs(&first, "second") == Some(false)
    });

    assert!(second.terminate().success());
    second = service(&servers, &dirs[1], "second");
    wait_until("its hash after a restart", || !hash(&second).is_null());
    assert_eq!(hash(&second), right);

    for liar in &mut liars {
        // It reads the log before it may speak.
        wait_until("the log's end", || {
            let _ = liar.poll_once();
            liar.journal().last() > AT
        });
    }
    liars[0].report_hash(666);
    for service in [&first, &second] {
        wait_until("word of a difference", || {
            let _ = liars[0].poll_once();
            differs(service, "liar-0") == Some(true)
        });
        assert_eq!(service.client().get("/readyz").unwrap().status, 200);
        assert_eq!(pong(service), "+PONG\r\n");
        assert_eq!(service.metric("cuckood_cluster_divergence "), 1);
    }
    liars[1].report_hash(666);
    liars[2].report_hash(666);
    for service in [&first, &second] {
        let client = service.client();
        wait_until("its end", || {
            liars.iter_mut().for_each(|liar| drop(liar.poll_once()));
            client.get("/readyz").unwrap().body["code"] == "diverged"
        });
        let answer = client.get("/v1/campaigns").unwrap();
        assert_eq!(
            (answer.status, &answer.body["code"]),
            (503, &Value::from("diverged"))
        );
        let detail = answer.body["detail"].as_str().unwrap();
        assert!(
            detail.contains("65536") && detail.contains("liar-2"),
            "{detail}"
        );
        // Metrics may be a second old.
        wait_until("its metric", || {
            service.metric("cuckood_state{state=\"diverged\"} ") == 1
        });
        assert!(pong(service).starts_with("-MISCONF"));
    }
    // Nor after a restart, until they get another directory.
    second.terminate();
    let servers = servers.urls().join(",");
    let again = Service::start(
        Path::new(env!("CARGO_BIN_EXE_cuckood")),
        dirs[1].path(),
        &settings(&servers, "second"),
    );
    let output = again.output().clone();
    assert!(!again.wait().success());
    let said = output.whole().join("\n");
    assert!(
        said.contains("can't be served again") && said.contains("liar-2"),
        "{said}"
    );
}
