//! Real NATS servers with JetStream, on free ports and over a temporary folder.

use super::ports;
use super::timeouts::{wait_longer, wait_until};
use async_nats::ServerAddr;
use async_nats::jetstream::{self, Context};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// An address without a listener.
const NOWHERE: &str = "127.0.0.1:1";

/// How long a server that was cut off may take to have everything again. One that led may have to wait for the next snapshot of the new
/// leader, which takes one every two minutes.
const CATCHING_UP: Duration = Duration::from_secs(400);

/// How long a server's monitor may take to answer.
const MONITOR_TIMEOUT: Duration = Duration::from_secs(5);

/// The disk of a server that does not share that of the tests.
#[derive(Clone, Copy)]
pub enum Disk {
    /// In memory, of this many megabytes.
    Small(u32),
    /// Each sync takes 50 ms longer.
    Slow,
}

/// Servers that are about to be started.
pub struct Plan {
    /// For clients, the monitor and other servers.
    ports: Vec<[u16; 3]>,
    /// The last server has this disk.
    pub disk: Option<Disk>,
    /// For each server, the addresses of the others; if empty, each uses the others' own addresses. Then that is the only way: addresses
    /// that servers exchange lead nowhere.
    pub routes: Vec<Vec<String>>,
}

impl Plan {
    pub fn of(count: usize) -> Plan {
        let ports = ports::free(count * 3);
        let ports = ports
            .chunks(3)
            .map(|three| [three[0], three[1], three[2]])
            .collect();
        Plan {
            ports,
            disk: None,
            routes: Vec::new(),
        }
    }

    /// The ports at which servers find each other.
    pub fn route_ports(&self) -> Vec<u16> {
        self.ports.iter().map(|[.., route]| *route).collect()
    }

    /// The configuration of a server that keeps its streams in this folder.
    fn config(&self, at: usize, folder: &Path) -> String {
        let [port, monitor, route] = self.ports[at];
        let alone = format!(
            "server_name: n{at}\nlisten: 127.0.0.1:{port}\nhttp: 127.0.0.1:{monitor}\n\
             jetstream {{ store_dir: {folder:?}, max_file_store: 4GB, max_memory_store: 256MB, sync_interval: always }}\n"
        );
        let (routes, advertise) = match self.routes.get(at) {
            Some(routes) => (routes.clone(), format!("advertise: {NOWHERE:?}, ")),
            None => {
                let routes = self
                    .route_ports()
                    .into_iter()
                    .map(|route| format!("nats://127.0.0.1:{route}"));
                (routes.collect(), String::new())
            }
        };
        let routes = routes.join(", ");
        match self.ports.len() {
            1 => alone,
            _ => format!(
                "{alone}cluster {{ name: tests, listen: 127.0.0.1:{route}, {advertise}routes: [{routes}], no_advertise: true }}\n"
            ),
        }
    }
}

/// Servers of one cluster; a single one is none. Dropped, they are killed.
pub struct Servers {
    dir: TempDir,
    servers: Vec<Server>,
}

struct Server {
    config: PathBuf,
    port: u16,
    monitor: u16,
    child: Option<Child>,
    disk: Option<Disk>,
}

/// The server's program.
fn program() -> PathBuf {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cluster/server.sh");
    let output = Command::new(&script)
        .stderr(Stdio::inherit())
        .output()
        .expect("bash is there");
    let server = PathBuf::from(String::from_utf8(output.stdout).expect("a path").trim());
    assert!(
        server.exists(),
        "no NATS server at {}: run tools/setup.sh",
        server.display()
    );
    server
}

/// Whether a process may have a separate disk here, in memory.
pub fn may_have_own_disk() -> bool {
    let mut tried = Command::new("unshare");
    tried.args([
        "--user",
        "--map-root-user",
        "--mount",
        "mount",
        "-t",
        "tmpfs",
        "none",
        "/mnt",
    ]);
    tried
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// The program over a folder that is a disk in memory.
fn on_own_disk(program: &Path, folder: &Path, megabytes: u32) -> Command {
    fs::create_dir_all(folder).expect("there is room");
    let script = "mount -t tmpfs -o size=$1m tmpfs \"$2\" && shift 2 && exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args([
        "--user",
        "--map-root-user",
        "--mount",
        "sh",
        "-c",
        script,
        "sh",
        &megabytes.to_string(),
    ]);
    command.arg(folder).arg(program);
    command
}

/// Whether `strace` can delay a process' calls here.
pub fn may_delay_syncs() -> bool {
    let mut tried = with_slow_syncs(Path::new("true"));
    tried
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// The program, with each of its syncs delayed. It is the child, not `strace`.
fn with_slow_syncs(program: &Path) -> Command {
    let mut command = Command::new("strace");
    command.args([
        "-D",
        "-f",
        "--seccomp-bpf",
        "-o",
        "/dev/null",
        "-e",
        "trace=fsync,fdatasync",
    ]);
    command
        .args(["-e", "inject=fsync,fdatasync:delay_exit=50000"])
        .arg(program);
    command
}

/// Where a file system in memory usually is.
const IN_MEMORY: &str = "/dev/shm";

/// Room that servers find enough, in bytes.
const ROOM: u64 = 2 << 30;

/// A folder in memory, if there is space. A stalled disk would fail writes that the tests expect to succeed, and a killed server's writes
/// stay there as well.
fn folder() -> std::io::Result<TempDir> {
    let room = rustix::fs::statvfs(IN_MEMORY).map(|found| found.f_bavail * found.f_frsize);
    match room {
        Ok(ROOM..) => tempfile::tempdir_in(IN_MEMORY),
        _ => tempfile::tempdir(),
    }
}

impl Servers {
    pub fn start(count: usize) -> Servers {
        Servers::start_as(Plan::of(count))
    }

    pub fn start_as(plan: Plan) -> Servers {
        let dir = folder().expect("there is room");
        let count = plan.ports.len();
        let servers = plan
            .ports
            .iter()
            .copied()
            .enumerate()
            .map(|(at, [port, monitor, _])| {
                let config = dir.path().join(format!("n{at}.conf"));
                let text = plan.config(at, &dir.path().join(format!("n{at}")));
                fs::write(&config, text).expect("there is room");
                let disk = plan.disk.filter(|_| at + 1 == count);
                Server {
                    config,
                    port,
                    monitor,
                    child: None,
                    disk,
                }
            });
        let mut servers = Servers {
            servers: servers.collect(),
            dir,
        };
        (0..count).for_each(|at| servers.restart(at));
        if count > 1 {
            wait_until("a leader of the cluster", || {
                servers.meta_leader().is_some()
            });
        }
        servers
    }

    /// Ports of all servers.
    pub fn ports(&self) -> Vec<u16> {
        self.servers.iter().map(|server| server.port).collect()
    }

    /// Addresses of all servers.
    pub fn urls(&self) -> Vec<String> {
        self.servers
            .iter()
            .map(|server| format!("nats://127.0.0.1:{}", server.port))
            .collect()
    }

    /// Where a server's monitor is.
    pub fn monitor(&self, at: usize) -> String {
        format!("http://127.0.0.1:{}", self.servers[at].monitor)
    }

    /// Speaks to the servers, as an operator would.
    pub fn speak<T>(&self, what: impl AsyncFnOnce(Context) -> T) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.expect("there are threads").block_on(async {
            let urls: Vec<ServerAddr> = self
                .urls()
                .iter()
                .map(|url| url.parse().expect("an address"))
                .collect();
            what(jetstream::new(
                async_nats::connect(urls).await.expect("they are up"),
            ))
            .await
        })
    }

    /// The first message that a stream still has.
    pub fn first_message(&self, stream: &str) -> u64 {
        self.speak(async |context| {
            let stream = context.get_stream(stream).await.expect("it is there");
            stream.cached_info().state.first_sequence
        })
    }

    /// Limits the size of a stream.
    pub fn limit_log(&self, stream: &str, max_bytes: i64) {
        self.speak(async |context| {
            let mut config = context
                .get_stream(stream)
                .await
                .unwrap()
                .cached_info()
                .config
                .clone();
            config.max_bytes = max_bytes;
            context.update_stream(config).await.unwrap();
        });
    }

    /// The folder in which a server keeps its streams.
    pub fn folder(&self, at: usize) -> PathBuf {
        self.dir.path().join(format!("n{at}"))
    }

    /// Starts a server that is not running, and waits until it listens.
    pub fn restart(&mut self, at: usize) {
        let program = program();
        let server = &mut self.servers[at];
        assert!(server.child.is_none(), "it runs");
        let log = server.config.with_extension("log");
        let folder = self.dir.path().join(format!("n{at}"));
        let mut command = match server.disk {
            None => Command::new(program),
            Some(Disk::Small(megabytes)) => on_own_disk(&program, &folder, megabytes),
            Some(Disk::Slow) => with_slow_syncs(&program),
        };
        command
            .arg("-c")
            .arg(&server.config)
            .arg("-l")
            .arg(log)
            .stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        server.child = Some(command.spawn().expect("the server can be started"));
        let port = server.port;
        wait_until("a server that listens", || {
            TcpStream::connect(("127.0.0.1", port)).is_ok()
        });
    }

    /// Fills the disk that a server has for itself.
    pub fn fill_disk(&self, at: usize) {
        let process = self.servers[at].child.as_ref().expect("it runs").id();
        let folder = self.folder(at);
        let folder = folder.strip_prefix("/").expect("it is absolute");
        let mut file = fs::File::create(format!("/proc/{process}/root/{}/rest", folder.display()))
            .expect("it is ours");
        while file.write_all(&[0; 4_096]).is_ok() {}
    }

    pub fn is_running(&self, at: usize) -> bool {
        self.servers[at].child.is_some()
    }

    /// SIGKILL.
    pub fn kill(&mut self, at: usize) {
        let mut child = self.servers[at].child.take().expect("it runs");
        child.kill().expect("the child is ours");
        child.wait().expect("the child is ours");
    }

    /// SIGSTOP: it is there, and does nothing.
    pub fn freeze(&self, at: usize) {
        self.signal(at, rustix::process::Signal::STOP);
    }

    /// SIGCONT.
    pub fn thaw(&self, at: usize) {
        self.signal(at, rustix::process::Signal::CONT);
    }

    fn signal(&self, at: usize, signal: rustix::process::Signal) {
        let child = self.servers[at].child.as_ref().expect("it runs");
        let process = rustix::process::Pid::from_child(child);
        rustix::process::kill_process(process, signal).expect("the child is ours");
    }

    /// Makes a server the leader of a stream.
    pub fn lead(&self, stream: &str, at: usize) {
        let request = serde_json::json!({"placement": {"preferred": format!("n{at}")}});
        wait_until("another leader", || {
            let is_leader = self.leader_of(stream) == at;
            if !is_leader {
                let subject = format!("STREAM.LEADER.STEPDOWN.{stream}");
                let _: Result<Value, _> =
                    self.speak(async |context| context.request(subject, &request).await);
                // An election takes a while.
                std::thread::sleep(Duration::from_secs(1));
            }
            is_leader
        });
    }

    /// The server that leads a stream.
    pub fn leader_of(&self, stream: &str) -> usize {
        let mut found = None;
        wait_until("a leader of the stream", || {
            found = (0..self.servers.len()).find_map(|at| self.leader_told_by(at, stream));
            found.is_some()
        });
        found.expect("it was waited for")
    }

    /// The server that leads a stream, as this one sees it.
    pub fn leader_told_by(&self, at: usize, stream: &str) -> Option<usize> {
        let told = clusters(&self.monitored(at, "/jsz?streams=true")?, stream);
        told.iter()
            .find_map(|cluster| number(cluster["leader"].as_str()?))
    }

    /// The server to which a client of this name is connected; the one that it has sent most to, if there are several.
    pub fn server_of(&self, client: &str) -> usize {
        let mut found = None;
        wait_until("a client's connection", || {
            let told = (0..self.servers.len()).map(|at| (at, self.monitored(at, "/connz")));
            let sent = |told: Value| {
                let connections = told["connections"].as_array().cloned().unwrap_or_default();
                let mut sent = connections.iter().filter(|one| one["name"] == client);
                sent.try_fold(0, |sent, one| Some(one["in_msgs"].as_u64()?.max(sent)))
            };
            let all = told.filter_map(|(at, told)| Some((sent(told?)?, at)));
            found = all.max().filter(|(sent, _)| *sent > 0).map(|(_, at)| at);
            found.is_some()
        });
        found.expect("it was waited for")
    }

    /// The servers to which this one has routes.
    pub fn routes_of(&self, at: usize) -> BTreeSet<usize> {
        let told = self.monitored(at, "/routez").expect("it runs");
        let routes = told["routes"].as_array().into_iter().flatten();
        routes
            .filter_map(|route| number(route["remote_name"].as_str()?))
            .collect()
    }

    /// Waits until a server has all of a stream.
    pub fn wait_until_current(&self, stream: &str, at: usize) {
        let name = format!("n{at}");
        wait_longer("a server's catching up", CATCHING_UP, || {
            let told = self.clusters_of(stream);
            let others = told
                .iter()
                .flat_map(|cluster| cluster["replicas"].as_array())
                .flatten();
            let mut replicas = others.filter(|replica| replica["name"] == *name);
            let is_leader = told.iter().any(|cluster| cluster["leader"] == *name);
            is_leader
                || replicas.any(|replica| replica["current"] == true && replica["offline"] != true)
        });
    }

    /// The running servers' reports about the replicas of a stream.
    fn clusters_of(&self, stream: &str) -> Vec<Value> {
        let told = |at| {
            self.monitored(at, "/jsz?streams=true")
                .map(|told| clusters(&told, stream))
        };
        (0..self.servers.len()).filter_map(told).flatten().collect()
    }

    fn meta_leader(&self) -> Option<usize> {
        let told = |at| number(self.monitored(at, "/jsz")?["meta_cluster"]["leader"].as_str()?);
        (0..self.servers.len()).find_map(told)
    }

    /// A server's monitoring data at a path, if it runs.
    fn monitored(&self, at: usize, path: &str) -> Option<Value> {
        self.servers
            .get(at)
            .filter(|server| server.child.is_some())?;
        let url = format!("{}{path}", self.monitor(at));
        let request = ureq::get(url)
            .config()
            .timeout_global(Some(MONITOR_TIMEOUT))
            .build();
        let text = request.call().ok()?.body_mut().read_to_string().ok()?;
        serde_json::from_str(&text).ok()
    }
}

/// The replicas of a stream in a server's report.
fn clusters(told: &Value, stream: &str) -> Vec<Value> {
    let accounts = told["account_details"].as_array().into_iter().flatten();
    let streams = accounts
        .flat_map(|account| account["stream_detail"].as_array())
        .flatten();
    streams
        .filter(|found| found["name"] == stream)
        .map(|found| found["cluster"].clone())
        .collect()
}

/// The number in a server's name.
fn number(name: &str) -> Option<usize> {
    name.strip_prefix('n')?.parse().ok()
}

impl Drop for Servers {
    fn drop(&mut self) {
        for child in self
            .servers
            .iter_mut()
            .filter_map(|server| server.child.as_mut())
        {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
