//! Nodes that start from other nodes' snapshots: wiped, older than a trimmed log, with damage and crashes, and with a backup of a
//! standalone service.

use crate::nats::Servers;
use crate::proxy::Network;
use crate::service::{Client, Service};
use async_nats::jetstream::Context;
use async_nats::jetstream::object_store::ObjectInfo;
use futures_util::TryStreamExt;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Timeout of the cluster's operations.
const TIMEOUT: Duration = Duration::from_secs(120);

const STREAM: &str = "cuckood";

/// More messages than a server has sent to a node before it takes them.
const SENT_AHEAD: u64 = 300;

/// Users that one step adds.
const USERS: usize = 1_000;

fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_cuckood"))
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < TIMEOUT, "{what} does not come");
        thread::sleep(Duration::from_millis(20));
    }
}

/// Nodes over one server, each with a separate folder.
struct Nodes {
    servers: Servers,
    dir: TempDir,
}

impl Nodes {
    fn new() -> Nodes {
        Nodes {
            servers: Servers::start(1),
            dir: tempfile::tempdir().unwrap(),
        }
    }

    fn folder(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn settings(&self, name: &str) -> Vec<(&'static str, String)> {
        vec![
            ("CUCKOOD__JOURNAL__KIND", "nats".to_owned()),
            ("CUCKOOD__NATS__SERVERS", self.servers.urls().join(",")),
            ("CUCKOOD__NATS__REPLICAS", "1".to_owned()),
            ("CUCKOOD__CLUSTER__NODE", name.to_owned()),
            ("CUCKOOD__CLUSTER__LOG_MARGIN", "0".to_owned()),
            ("CUCKOOD__STORAGE__BALLAST", "0".to_owned()),
            ("CUCKOOD__STORAGE__FREE_SPACE_MIN", "0".to_owned()),
        ]
    }

    /// Starts a node that shares snapshots soon whenever there is news.
    fn sharing(&self, name: &str) -> Service {
        self.start(name, &[("CUCKOOD__CLUSTER__SNAPSHOT_INTERVAL", "500ms")])
    }

    /// Starts a node that shares none.
    fn silent(&self, name: &str) -> Service {
        self.start(name, &[("CUCKOOD__CLUSTER__SHARE_SNAPSHOTS", "false")])
    }

    fn start(&self, name: &str, more: &[(&str, &str)]) -> Service {
        let service = self.launch(name, more);
        service.wait_until_ready();
        service
    }

    /// Starts a node, which may never be ready.
    fn launch(&self, name: &str, more: &[(&str, &str)]) -> Service {
        let settings = self.settings(name);
        let settings = settings.iter().map(|(name, value)| (*name, value.as_str()));
        let settings: Vec<(&str, &str)> = settings.chain(more.iter().copied()).collect();
        Service::start(program(), &self.folder(name), &settings)
    }

    /// Starts a node that can't start, and returns its error.
    fn refused(&self, name: &str) -> String {
        let service = self.launch(name, &[("CUCKOOD__NATS__CONNECT_TIMEOUT", "2s")]);
        let output = service.output().clone();
        assert!(!service.wait().success());
        output.whole().join("\n")
    }

    fn wipe(&self, name: &str) {
        fs::remove_dir_all(self.folder(name)).unwrap();
    }

    /// Puts another chunk in the place of the last one of a shared snapshot: the newest is number 0.
    fn damage(&self, number: usize) {
        self.servers.speak(async |context| {
            let nuid = listed(&context).await.swap_remove(number).nuid;
            let chunks = format!("$O.{STREAM}-snapshots.C.{nuid}");
            let stream = context
                .get_stream(format!("OBJ_{STREAM}-snapshots"))
                .await
                .unwrap();
            let last = stream
                .get_last_raw_message_by_subject(&chunks)
                .await
                .unwrap();
            assert!(stream.delete_message(last.sequence).await.unwrap());
            context
                .publish(chunks, "something else".into())
                .await
                .unwrap()
                .await
                .unwrap();
        });
    }

    /// Whether some node has begun to upload an archive.
    fn is_uploading(&self) -> bool {
        self.servers.speak(async |context| {
            let archives = context.get_stream(format!("OBJ_{STREAM}-snapshots")).await;
            archives.is_ok_and(|archives| archives.cached_info().state.messages > 0)
        })
    }

    /// Writes until the log was trimmed, and returns how much.
    fn write_until_trimmed(&self, service: &Service, mut step: usize) -> usize {
        let before = self.servers.first_message(STREAM);
        wait_until("a trimmed log", || {
            write(&service.client(), step);
            step += 1;
            self.servers.first_message(STREAM) > before
        });
        step
    }
}

/// The archives of shared snapshots, newest first.
async fn listed(context: &Context) -> Vec<ObjectInfo> {
    let archives = context
        .get_object_store(format!("{STREAM}-snapshots"))
        .await
        .unwrap();
    let mut archives: Vec<_> = archives.list().await.unwrap().try_collect().await.unwrap();
    archives.retain(|info| info.metadata.contains_key("cuckood-snapshot"));
    archives.sort_by(|one, other| other.name.cmp(&one.name));
    archives
}

fn create(client: &Client) {
    assert_eq!(
        client
            .put("/v1/campaigns/spring", &json!({"capacity": 50_000}))
            .unwrap()
            .status,
        201
    );
    // Large enough that nothing moves to a larger table while two nodes are compared.
    assert_eq!(
        client
            .put("/v1/coupons/sale", &json!({"capacity": 1_000_000}))
            .unwrap()
            .status,
        201
    );
}

/// Users, codes, and a redemption of one code.
fn write(client: &Client, step: usize) {
    let names: Vec<String> = (0..USERS)
        .map(|number| format!("u{step}-{number}"))
        .collect();
    assert_eq!(
        client
            .post("/v1/campaigns/spring/users", &json!({"users": names}))
            .unwrap()
            .status,
        200
    );
    assert_eq!(
        client
            .post("/v1/coupons/sale/codes", &json!({"codes": names}))
            .unwrap()
            .status,
        200
    );
    let redemption = json!({"code": names[step % USERS], "reference": format!("order-{step}")});
    assert!(
        client
            .post("/v1/coupons/sale/redemptions", &redemption)
            .unwrap()
            .status
            < 300
    );
}

/// A node's complete content as of now.
fn seen(client: &Client, steps: usize) -> Vec<Value> {
    let strong = [("X-Cuckood-Consistency", "strong")];
    let paths = [
        "/v1/campaigns/spring",
        "/v1/coupons/sale",
        "/v1/coupons/sale/redemptions?limit=1000",
        "/v1/events",
    ];
    let mut seen: Vec<Value> = paths
        .iter()
        .map(|path| client.send("GET", path, &strong, b"").unwrap().body)
        .collect();
    for step in 0..=steps {
        let names: Vec<String> = (0..USERS)
            .map(|number| format!("u{step}-{number}"))
            .collect();
        let answer = client
            .post("/v1/campaigns/spring/users/check", &json!({"users": names}))
            .unwrap();
        seen.push(answer.body["present"].clone());
    }
    seen
}

const FILLED: &str = "began with a shared snapshot";

/// Waits until a node says something.
fn says(service: &Service, what: &str) -> bool {
    service
        .output()
        .wait_for(TIMEOUT, |line| line.contains(what).then_some(()))
        .is_some()
}

#[test]
fn wiped_node_rejoins_with_equal_state() {
    let nodes = Nodes::new();
    let first = nodes.sharing("first");
    let second = nodes.sharing("second");
    create(&first.client());
    let steps = nodes.write_until_trimmed(&first, 0);
    second.kill();
    nodes.wipe("second");
    write(&first.client(), steps);
    let second = nodes.sharing("second");
    assert!(says(&second, FILLED));
    let figures = || second.client().text("/metrics").unwrap().1;
    assert!(figures().contains("cuckood_cluster_bootstrap_seconds"));
    wait_until("word of a shared snapshot", || {
        figures().contains("cuckood_cluster_snapshot_position")
    });
    write(&second.client(), steps + 1);
    assert_eq!(
        seen(&first.client(), steps + 2),
        seen(&second.client(), steps + 2)
    );
    // From now on it restarts from its own snapshot.
    assert_eq!(
        second
            .client()
            .post("/v1/snapshots", &json!({}))
            .unwrap()
            .status,
        200
    );
    second.kill();
    let second = nodes.silent("second");
    assert!(
        !second
            .output()
            .so_far()
            .iter()
            .any(|line| line.contains(FILLED))
    );
    assert_eq!(
        seen(&first.client(), steps + 2),
        seen(&second.client(), steps + 2)
    );
}

#[test]
fn node_older_than_trimmed_log_loads_snapshot() {
    let nodes = Nodes::new();
    let first = nodes.sharing("first");
    let second = nodes.silent("second");
    create(&second.client());
    write(&second.client(), 0);
    second.kill();
    let mut steps = nodes.write_until_trimmed(&first, 1);
    steps = nodes.write_until_trimmed(&first, steps);
    let second = nodes.silent("second");
    assert!(says(&second, FILLED));
    assert_eq!(seen(&first.client(), steps), seen(&second.client(), steps));
    // A download that breaks off leaves nothing that can be opened, and is done again.
    second.kill();
    fs::write(nodes.folder("second").join("filling"), "").unwrap();
    let second = nodes.silent("second");
    assert!(says(&second, FILLED));
    assert_eq!(seen(&first.client(), steps), seen(&second.client(), steps));
}

/// Its process ends, so that a supervisor starts it again; it must not stay up without ever being ready.
#[test]
fn paused_node_recovers_from_trimmed_log() {
    let nodes = Nodes::new();
    let first = nodes.sharing("first");
    let second = nodes.silent("second");
    create(&second.client());
    write(&second.client(), 0);
    second.freeze();
    for number in 0..SENT_AHEAD {
        let users = json!({"users": [format!("late-{number}")]});
        assert_eq!(
            first
                .client()
                .post("/v1/campaigns/spring/users", &users)
                .unwrap()
                .status,
            200
        );
    }
    let mut steps = 1;
    while nodes.servers.first_message(STREAM) < SENT_AHEAD {
        steps = nodes.write_until_trimmed(&first, steps);
    }
    second.thaw();
    let output = second.output().clone();
    assert!(!second.wait().success());
    assert!(output.whole().join("\n").contains("the log was trimmed"));
    let second = nodes.silent("second");
    assert!(says(&second, FILLED));
    assert_eq!(seen(&first.client(), steps), seen(&second.client(), steps));
}

#[test]
fn older_snapshot_is_used_if_newest_damaged() {
    let nodes = Nodes::new();
    let first = nodes.sharing("first");
    create(&first.client());
    let steps = nodes.write_until_trimmed(&first, 0);
    // Ended, so that it shares no other one.
    assert!(first.terminate().success());
    let first = nodes.silent("first");
    nodes.damage(0);
    let second = nodes.silent("second");
    assert!(says(&second, FILLED));
    assert!(says(&second, "can't use a shared snapshot"));
    assert_eq!(seen(&first.client(), steps), seen(&second.client(), steps));
    nodes.damage(1);
    let refused = nodes.refused("third");
    assert!(
        refused.contains("no shared snapshot can be used"),
        "{refused}"
    );
    assert!(
        !nodes.folder("third").join("format").exists(),
        "there is nothing that could be opened"
    );
}

/// Nodes crash while they have the turn to share, during the upload or not: another one shares, and their leftovers are removed.
#[test]
fn crashed_uploader_is_replaced() {
    let nodes = Nodes::new();
    let first = nodes.sharing("first");
    create(&first.client());
    let mut step = 0;
    wait_until("a node that shares", || {
        write(&first.client(), step);
        step += 1;
        nodes.is_uploading()
    });
    first.kill();
    let second = nodes.sharing("second");
    write(&second.client(), step);
    wait_until("a shared snapshot", || {
        second.metric("cuckood_cluster_snapshots_shared_total") > 0
    });
    let step = nodes.write_until_trimmed(&second, step + 1);
    let first = nodes.silent("first");
    assert_eq!(seen(&first.client(), step), seen(&second.client(), step));
    wait_until("two archives", || {
        write(&second.client(), step);
        let (listed, stored) = nodes.servers.speak(async |context| {
            let listed = listed(&context).await;
            let stream = context
                .get_stream(format!("OBJ_{STREAM}-snapshots"))
                .await
                .unwrap();
            let stored: Vec<(String, usize)> = stream
                .info_with_subjects("$O.*.C.>")
                .await
                .unwrap()
                .try_collect()
                .await
                .unwrap();
            (listed.len(), stored.len())
        });
        (listed, stored) == (2, 2)
    });
}

/// A node that needs one retries, and finds the next one.
#[test]
fn lost_archive_is_shared_again_for_waiting_node() {
    let nodes = Nodes::new();
    let first = nodes.sharing("first");
    create(&first.client());
    let steps = nodes.write_until_trimmed(&first, 0);
    assert!(first.terminate().success());
    nodes.servers.speak(async |context| {
        let archives = context
            .get_object_store(format!("{STREAM}-snapshots"))
            .await
            .unwrap();
        for snapshot in listed(&context).await {
            archives.delete(snapshot.name).await.unwrap();
        }
    });
    let second = nodes.launch("second", &[("CUCKOOD__NATS__CONNECT_TIMEOUT", "120s")]);
    assert!(says(&second, "waiting for a shared snapshot"));
    // Its interval is half an hour.
    let first = nodes.start("first", &[]);
    assert!(says(&second, FILLED));
    wait_until("readiness", || {
        second
            .client()
            .get("/readyz")
            .is_ok_and(|ready| ready.status == 200)
    });
    assert_eq!(seen(&first.client(), steps), seen(&second.client(), steps));
}

/// The servers respond, and their object store does not: neither about the archives, nor with one. The node waits for it, past
/// `nats.connect_timeout`, reports the reason, and can be stopped.
#[test]
fn wiped_node_waits_for_silent_object_store() {
    let nodes = Nodes::new();
    let first = nodes.sharing("first");
    create(&first.client());
    let steps = nodes.write_until_trimmed(&first, 0);
    let network = Network::to(&nodes.servers.ports());
    for (name, silent) in [("second", &b"OBJ_"[..]), ("third", b"CONSUMER.CREATE.OBJ_")] {
        network.silence(silent);
        let urls = network.urls();
        let settings = [
            ("CUCKOOD__NATS__SERVERS", urls.as_str()),
            ("CUCKOOD__NATS__CONNECT_TIMEOUT", "2s"),
            ("CUCKOOD__CLUSTER__SHARE_SNAPSHOTS", "false"),
        ];
        let start = || nodes.launch(name, &settings);
        let waits = |service: &Service| {
            assert!(says(service, "retrying until stopped"), "{name}");
            wait_until("a node that waits", || {
                let ready = service.client().get("/readyz").unwrap();
                assert_eq!(
                    (ready.status, &ready.body["code"]),
                    (503, &json!("recovering")),
                    "{name}"
                );
                let detail = ready.body["detail"].as_str().unwrap().to_owned();
                detail.starts_with("waiting for a shared snapshot: ")
                    && detail.contains("shared snapshots: ")
            });
        };
        let stopped = start();
        waits(&stopped);
        assert_eq!(stopped.terminate().code(), Some(0), "{name}");
        let waiting = start();
        waits(&waiting);
        network.release();
        assert!(says(&waiting, FILLED), "{name}");
        wait_until("readiness", || {
            waiting.client().get("/readyz").unwrap().status == 200
        });
        assert_eq!(seen(&first.client(), steps), seen(&waiting.client(), steps));
    }
}

/// The object store is silent, and the log is complete: the node reads the log instead.
#[test]
fn wiped_node_reads_complete_log_without_object_store() {
    let nodes = Nodes::new();
    let first = nodes.silent("first");
    create(&first.client());
    write(&first.client(), 0);
    let network = Network::to(&nodes.servers.ports());
    network.silence(b"OBJ_");
    let urls = network.urls();
    let settings = [
        ("CUCKOOD__NATS__SERVERS", urls.as_str()),
        ("CUCKOOD__NATS__CONNECT_TIMEOUT", "2s"),
    ];
    let second = nodes.start("second", &settings);
    assert!(says(&second, "continuing without it"));
    assert_eq!(seen(&first.client(), 0), seen(&second.client(), 0));
}

/// A node was killed while it filled its directory, and the snapshot is damaged by now: it retries, then reads the log from its first entry.
#[test]
fn interrupted_fill_yields_to_complete_log() {
    let nodes = Nodes::new();
    let first = nodes.start("first", &[]);
    create(&first.client());
    wait_until("a shared snapshot", || {
        first.metric("cuckood_cluster_snapshots_shared_total") == 1
    });
    nodes.damage(0);
    fs::create_dir(nodes.folder("second")).unwrap();
    fs::write(nodes.folder("second").join("filling"), "").unwrap();
    let second = nodes.start("second", &[("CUCKOOD__NATS__CONNECT_TIMEOUT", "2s")]);
    for said in [
        "POST /v1/snapshots",
        "waiting for a shared snapshot",
        "reading the log from its first entry",
    ] {
        assert!(says(&second, said), "{said}");
    }
    assert_eq!(seen(&first.client(), 0), seen(&second.client(), 0));
}

/// An operator asks for a snapshot: it is shared, however young the last one is.
#[test]
fn requested_snapshot_is_shared() {
    let nodes = Nodes::new();
    let first = nodes.start("first", &[]);
    create(&first.client());
    wait_until("the first one", || {
        first.metric("cuckood_cluster_snapshots_shared_total") == 1
    });
    write(&first.client(), 0);
    assert_eq!(
        first
            .client()
            .post("/v1/snapshots", &json!({}))
            .unwrap()
            .status,
        200
    );
    wait_until("the requested one", || {
        first.metric("cuckood_cluster_snapshots_shared_total") == 2
    });
}

fn run(command: &mut Command) -> Output {
    command.output().unwrap()
}

/// From one machine to three, by a backup.
#[test]
fn backup_starts_shared_log() {
    let nodes = Nodes::new();
    let alone = Service::start_ready(
        program(),
        &nodes.folder("alone"),
        &[("CUCKOOD__STORAGE__BALLAST", "0")],
    );
    create(&alone.client());
    for step in 0..3 {
        write(&alone.client(), step);
    }
    let file = nodes.folder("backup");
    let url = format!("http://{}", alone.client().address());
    let made = run(Command::new(program())
        .arg("backup")
        .arg(&file)
        .args(["--url", &url]));
    assert!(made.status.success(), "{made:?}");
    let restore = || {
        let mut command = Command::new(program());
        run(command
            .arg("restore")
            .arg(&file)
            .arg("--into-cluster")
            .envs(nodes.settings("restore")))
    };
    let restored = restore();
    assert!(restored.status.success(), "{restored:?}");
    let services = ["one", "two", "three"].map(|name| nodes.silent(name));
    let [one, two, three] = services.each_ref().map(Service::client);
    let before = seen(&alone.client(), 3);
    // Events get other numbers after a restore, and settings may be logged.
    assert_eq!(seen(&one, 3)[..3], before[..3]);
    assert_eq!(seen(&one, 3)[4..], before[4..]);
    write(&two, 3);
    assert_eq!(seen(&one, 4), seen(&three, 4));
    assert_eq!(seen(&one, 4), seen(&two, 4));
    let refused = restore();
    assert!(!refused.status.success());
    assert!(
        String::from_utf8_lossy(&refused.stderr).contains("exists"),
        "{refused:?}"
    );
    // Without the log there is no such thing.
    let local = run(Command::new(program())
        .arg("restore")
        .arg(&file)
        .arg("--into-cluster"));
    assert!(
        String::from_utf8_lossy(&local.stderr).contains("journal.kind"),
        "{local:?}"
    );
}
