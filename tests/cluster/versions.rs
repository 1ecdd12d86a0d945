//! The release next to a build that understands the next version of entries, under load: upgrade, downgrade, enable, and the downgrade that
//! is rejected. `make test-long WHAT=cluster` runs it with the release build; otherwise both are this build.

use crate::cluster::{settled, strong};
use crate::load::Ending;
use crate::nats::Servers;
use crate::service::{Client, Service};
use crate::timeouts::{TIMEOUT, wait_until};
use cuckood_state::domain::FORMAT_VERSION;
use parking_lot::Mutex;
use serde_json::json;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use tempfile::TempDir;

const NODES: usize = 3;
const CODES: usize = 200_000;

/// The version that a later build understands. `CUCKOOD_RELEASE` names the program of the release; by default it is this build, and the later
/// one understands the next version, which exists for tests only.
const LATER: &str = "CUCKOOD_TEST_VERSION";

/// The setting with which a node enables what it understands.
const CONFIGURE: (&str, &str) = ("CUCKOOD__CLUSTER__CONFIGURE", "true");

struct Cluster {
    servers: Servers,
    dirs: [TempDir; NODES],
    nodes: [Option<Service>; NODES],
    /// The threads that use them see it when a node restarts at another address.
    clients: Arc<Mutex<Vec<Client>>>,
}

impl Cluster {
    fn service(&self, node: usize, settings: &[(&str, &str)]) -> Service {
        let servers = self.servers.urls().join(",");
        let name = format!("node-{node}");
        let mut all = vec![
            ("CUCKOOD__JOURNAL__KIND", "nats"),
            ("CUCKOOD__NATS__SERVERS", servers.as_str()),
            ("CUCKOOD__NATS__REPLICAS", "1"),
            ("CUCKOOD__CLUSTER__NODE", name.as_str()),
            ("CUCKOOD__STORAGE__BALLAST", "0"),
            ("CUCKOOD__STORAGE__FREE_SPACE_MIN", "0"),
        ];
        all.extend(settings);
        let release = std::env::var_os("CUCKOOD_RELEASE")
            .filter(|_| !settings.iter().any(|(name, _)| *name == LATER));
        let program = release.map_or(env!("CARGO_BIN_EXE_cuckood").into(), PathBuf::from);
        Service::start(&program, &self.dirs[node].path().join("data"), &all)
    }

    /// Replaces the build of a node, and waits until it is ready.
    fn replace(&mut self, node: usize, settings: &[(&str, &str)]) {
        self.stop(node);
        let service = self.service(node, settings);
        wait_until("a node is ready", || {
            service
                .client()
                .get("/readyz")
                .is_ok_and(|ready| ready.status == 200)
        });
        let mut clients = self.clients.lock();
        clients.resize(NODES, service.client());
        clients[node] = service.client();
        self.nodes[node] = Some(service);
    }

    fn stop(&mut self, node: usize) {
        if let Some(stopped) = self.nodes[node].take() {
            assert_eq!(stopped.terminate().code(), Some(0));
        }
    }

    /// The version of entries that the release understands, which is enabled in a new log.
    fn understood_by_release(&self) -> u16 {
        let node = self.nodes[0]
            .as_ref()
            .unwrap()
            .client()
            .get("/v1/cluster")
            .unwrap();
        serde_json::from_value(node.body["understands"].clone()).unwrap()
    }

    /// Waits until all nodes that run report this version.
    fn wait_for_enabled(&self, version: u16) {
        for service in self.nodes.iter().flatten() {
            wait_until("the enabled version", || {
                service
                    .client()
                    .get("/v1/cluster")
                    .is_ok_and(|cluster| cluster.body["enabled"] == version)
            });
        }
    }
}

#[test]
fn later_version_is_enabled_under_load() {
    let mut cluster = Cluster {
        servers: Servers::start(1),
        dirs: std::array::from_fn(|_| tempfile::tempdir().unwrap()),
        nodes: [None, None, None],
        clients: Arc::default(),
    };
    (0..NODES).for_each(|node| cluster.replace(node, &[]));
    let released = cluster.understood_by_release();
    let later = FORMAT_VERSION.max(released + 1);
    let understood = later.to_string();
    let newer = (LATER, understood.as_str());
    let clients = cluster.clients.clone();
    let first = cluster.clients.lock()[0].clone();
    assert!(settled(|| first.put("/v1/coupons/sale", &json!({"capacity": CODES}))).status < 300);
    let codes: Vec<String> = (0..CODES).map(|number| format!("code-{number}")).collect();
    for (part, codes) in codes.chunks(10_000).enumerate() {
        settled(|| {
            first.post_once(
                "/v1/coupons/sale/codes",
                &json!({"codes": codes}),
                &format!("{part}"),
            )
        });
    }
    let sold = AtomicUsize::new(0);
    let is_over = AtomicBool::new(false);
    let more = |count: usize| {
        let target = sold.load(Ordering::Relaxed) + count;
        wait_until("redemptions", || sold.load(Ordering::Relaxed) >= target);
    };
    thread::scope(|scope| {
        let end = Ending(&is_over);
        scope.spawn(|| {
            let mut turn = 0;
            for number in (0..CODES).take_while(|_| !is_over.load(Ordering::Relaxed)) {
                let body = json!({"code": format!("code-{number}"), "reference": format!("order-{number}")});
                let answer = settled(|| {
                    turn += 1;
                    let client = clients.lock()[turn % NODES].clone();
                    client.post("/v1/coupons/sale/redemptions", &body)
                });
                assert!([200, 201].contains(&answer.status), "{answer:?}");
                sold.fetch_add(1, Ordering::Relaxed);
            }
        });
        let replace = |cluster: &mut Cluster, node: usize, settings: &[(&str, &str)]| {
            cluster.replace(node, settings);
            more(10);
        };
        replace(&mut cluster, 0, &[newer]);
        replace(&mut cluster, 1, &[newer]);
        // Nothing that the release does not understand is in the log yet.
        replace(&mut cluster, 1, &[]);
        cluster.wait_for_enabled(released);
        replace(&mut cluster, 1, &[newer]);
        // Nothing is enabled that would stop the last node.
        replace(&mut cluster, 0, &[newer, CONFIGURE]);
        let waits = |line: &str| line.contains("update these nodes").then(|| line.to_owned());
        let waiting = cluster.nodes[0]
            .as_ref()
            .unwrap()
            .output()
            .wait_for(TIMEOUT, waits)
            .unwrap();
        assert!(
            waiting.contains("node-2") && !waiting.contains("node-1"),
            "{waiting}"
        );
        cluster.wait_for_enabled(released);
        more(10);
        replace(&mut cluster, 2, &[newer]);
        cluster.wait_for_enabled(later);

        // The downgrade of a node is rejected, whether it has read the log up to there or starts empty. The others continue.
        for is_wiped in [false, true] {
            cluster.stop(2);
            if is_wiped {
                cluster.dirs[2] = tempfile::tempdir().unwrap();
            }
            let downgraded = cluster.service(2, &[]);
            let says = |line: &str| line.contains("update this node").then(|| line.to_owned());
            let said = downgraded.output().wait_for(TIMEOUT, says);
            let said = said.unwrap_or_else(|| panic!("{:#?}", downgraded.output().so_far()));
            assert!(
                said.contains(&format!("entries of version {later}")),
                "{said}"
            );
            assert_ne!(
                downgraded
                    .client()
                    .get("/readyz")
                    .map(|ready| ready.status)
                    .ok(),
                Some(200)
            );
            downgraded.kill();
            more(10);
            replace(&mut cluster, 2, &[newer]);
        }
        cluster.wait_for_enabled(later);
        drop(end);
    });
    let sold = sold.load(Ordering::Relaxed);
    for service in cluster.nodes.iter().flatten() {
        let stats = settled(|| strong(&service.client(), "/v1/coupons/sale")).body["stats"].clone();
        assert_eq!(stats["redeemed"], sold);
    }
}
