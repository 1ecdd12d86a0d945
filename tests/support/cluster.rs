//! Three real nodes over real servers.

use super::nats::Servers;
use super::service::{Answer, Client, Service};
use super::timeouts::TIMEOUT;
use parking_lot::Mutex;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

pub const NODES: usize = 3;

/// An environment variable of a node.
pub type Setting = (&'static str, &'static str);

pub struct Cluster {
    pub servers: Servers,
    pub nodes: Vec<Option<Service>>,
    /// A client of each node; threads that use them see it when a node restarts at another address.
    pub clients: Arc<Mutex<Vec<Client>>>,
    dirs: Vec<TempDir>,
    /// Where each node finds the servers.
    addresses: Vec<String>,
    /// Where each node listens.
    listen: Vec<String>,
    /// Further settings of every node.
    settings: Vec<Setting>,
}

impl Cluster {
    pub fn start() -> Cluster {
        Cluster::start_over(Servers::start(NODES), |_| None)
    }

    /// Starts nodes over these servers. Each gets the addresses that `network` has for it, or those of the servers.
    pub fn start_over(servers: Servers, network: impl Fn(usize) -> Option<String>) -> Cluster {
        Cluster::start_as(servers, network, &[])
    }

    /// The same, with further settings of every node.
    pub fn start_as(
        servers: Servers,
        network: impl Fn(usize) -> Option<String>,
        settings: &[Setting],
    ) -> Cluster {
        Cluster::new(servers, network, settings, &[0; NODES])
    }

    /// Starts nodes that listen at these ports, whenever they are restarted.
    pub fn start_at(servers: Servers, ports: &[u16], settings: &[Setting]) -> Cluster {
        Cluster::new(servers, |_| None, settings, ports)
    }

    fn new(
        servers: Servers,
        network: impl Fn(usize) -> Option<String>,
        settings: &[Setting],
        ports: &[u16],
    ) -> Cluster {
        let addresses = (0..NODES)
            .map(|node| network(node).unwrap_or_else(|| servers.urls().join(",")))
            .collect();
        let mut cluster = Cluster {
            addresses,
            listen: ports
                .iter()
                .map(|port| format!("127.0.0.1:{port}"))
                .collect(),
            settings: settings.to_vec(),
            servers,
            nodes: Vec::new(),
            clients: Arc::default(),
            dirs: (0..NODES).map(|_| tempfile::tempdir().unwrap()).collect(),
        };
        for node in 0..NODES {
            let service = cluster.service(node);
            cluster.clients.lock().push(service.client());
            cluster.nodes.push(Some(service));
        }
        cluster
    }

    fn service(&self, node: usize) -> Service {
        let servers = self.addresses[node].clone();
        let name = format!("node-{node}");
        let mut settings = vec![
            ("CUCKOOD__SERVER__LISTEN", self.listen[node].as_str()),
            ("CUCKOOD__JOURNAL__KIND", "nats"),
            ("CUCKOOD__NATS__SERVERS", servers.as_str()),
            ("CUCKOOD__NATS__CONNECT_TIMEOUT", "120s"),
            ("CUCKOOD__CLUSTER__NODE", name.as_str()),
            ("CUCKOOD__CLUSTER__LAG_MAX", "3s"),
            ("CUCKOOD__STORAGE__BALLAST", "0"),
            ("CUCKOOD__STORAGE__FREE_SPACE_MIN", "0"),
        ];
        settings.extend(&self.settings);
        let program = Path::new(env!("CARGO_BIN_EXE_cuckood"));
        Service::start_ready(program, &self.dir(node), &settings)
    }

    /// The data directory of a node.
    pub fn dir(&self, node: usize) -> PathBuf {
        self.dirs[node].path().join("data")
    }

    pub fn client(&self, node: usize) -> Client {
        self.clients.lock()[node].clone()
    }

    pub fn kill_node(&mut self, node: usize) {
        self.nodes[node].take().unwrap().kill();
    }

    /// Takes a node that does not run everything that it has on its disk.
    pub fn wipe_node(&mut self, node: usize) {
        assert!(self.nodes[node].is_none(), "it runs");
        self.dirs[node] = tempfile::tempdir().unwrap();
    }

    /// Corrects the clock of a node, which `tests/cluster/clock.c` advances.
    pub fn correct_clock(&self, node: usize) {
        let marks = self
            .settings
            .iter()
            .find(|(name, _)| *name == "WRONG_CLOCK")
            .unwrap()
            .1;
        std::fs::remove_file(Path::new(marks).join(format!("node-{node}"))).unwrap();
    }

    pub fn restart_node(&mut self, node: usize) {
        let service = self.service(node);
        self.clients.lock()[node] = service.client();
        self.nodes[node] = Some(service);
    }
}

/// Sends until there is an answer that says what happened.
pub fn settled(mut send: impl FnMut() -> Result<Answer, ureq::Error>) -> Answer {
    let began = Instant::now();
    loop {
        match send() {
            Ok(answer) if answer.status < 500 => return answer,
            _ => assert!(began.elapsed() < TIMEOUT, "no answer comes"),
        }
        thread::sleep(Duration::from_millis(20));
    }
}

pub fn strong(client: &Client, path: &str) -> Result<Answer, ureq::Error> {
    client.send("GET", path, &[("X-Cuckood-Consistency", "strong")], b"")
}
