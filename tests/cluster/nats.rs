//! Real NATS servers with JetStream, on ports of their own and over a folder of their own.

use crate::patience::wait_until;
use crate::ports;
use async_nats::ServerAddr;
use async_nats::jetstream::{self, Context};
use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// How long a server's monitor may take to answer.
const MONITOR_TIMEOUT: Duration = Duration::from_secs(5);

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
    /// It has a disk of this many megabytes for itself.
    disk: Option<u32>,
}

/// The server's program.
fn program() -> PathBuf {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cluster/server.sh");
    let output = Command::new(&script).stderr(Stdio::inherit()).output().expect("bash is there");
    assert!(output.status.success(), "{} failed: it needs python3 with venv, and PyPI", script.display());
    PathBuf::from(String::from_utf8(output.stdout).expect("a path").trim())
}

/// Whether a process may have a disk of its own here, in memory.
pub fn may_have_own_disk() -> bool {
    let mut tried = Command::new("unshare");
    tried.args(["--user", "--map-root-user", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"]);
    tried.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

/// The program over a folder that is a disk in memory.
fn on_own_disk(program: &Path, folder: &Path, megabytes: u32) -> Command {
    fs::create_dir_all(folder).expect("there is room");
    let script = "mount -t tmpfs -o size=$1m tmpfs \"$2\" && shift 2 && exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--mount", "sh", "-c", script, "sh", &megabytes.to_string()]);
    command.arg(folder).arg(program);
    command
}

impl Servers {
    pub fn start(count: usize) -> Servers {
        Servers::start_with_disk(count, None)
    }

    /// The same; the last one with a disk of so many megabytes for itself.
    pub fn start_with_disk(count: usize, megabytes: Option<u32>) -> Servers {
        let dir = tempfile::tempdir().expect("there is room");
        let ports = ports::free(count * 3);
        let routes: Vec<String> =
            (0..count).map(|at| format!("nats://127.0.0.1:{}", ports[at * 3 + 2])).collect();
        let servers = (0..count).map(|at| {
            let [port, monitor, route] = [0, 1, 2].map(|which| ports[at * 3 + which]);
            let folder = dir.path().join(format!("n{at}"));
            let mut text = format!(
                "server_name: n{at}\nlisten: 127.0.0.1:{port}\nhttp: 127.0.0.1:{monitor}\n\
                 jetstream {{ store_dir: {folder:?}, max_file_store: 4GB, max_memory_store: 256MB, sync_interval: always }}\n"
            );
            if count > 1 {
                let routes = routes.join(", ");
                text += &format!("cluster {{ name: tests, listen: 127.0.0.1:{route}, routes: [{routes}], no_advertise: true }}\n");
            }
            let config = dir.path().join(format!("n{at}.conf"));
            fs::write(&config, text).expect("there is room");
            let disk = megabytes.filter(|_| at + 1 == count);
            Server { config, port, monitor, child: None, disk }
        });
        let mut servers = Servers { servers: servers.collect(), dir };
        (0..count).for_each(|at| servers.restart(at));
        if count > 1 {
            wait_until("a leader of the cluster", || servers.meta_leader().is_some());
        }
        servers
    }

    /// Ports of all servers.
    pub fn ports(&self) -> Vec<u16> {
        self.servers.iter().map(|server| server.port).collect()
    }

    /// Addresses of all servers.
    pub fn urls(&self) -> Vec<String> {
        self.servers.iter().map(|server| format!("nats://127.0.0.1:{}", server.port)).collect()
    }

    /// Speaks to the servers, as an operator would.
    pub fn speak<T>(&self, what: impl AsyncFnOnce(Context) -> T) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("there are threads").block_on(async {
            let urls: Vec<ServerAddr> =
                self.urls().iter().map(|url| url.parse().expect("an address")).collect();
            what(jetstream::new(async_nats::connect(urls).await.expect("they are up"))).await
        })
    }

    /// The first message that a stream still has.
    pub fn first_message(&self, stream: &str) -> u64 {
        self.speak(async |context| {
            let stream = context.get_stream(stream).await.expect("it is there");
            stream.cached_info().state.first_sequence
        })
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
            Some(megabytes) => on_own_disk(&program, &folder, megabytes),
        };
        command.arg("-c").arg(&server.config).arg("-l").arg(log).stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        server.child = Some(command.spawn().expect("the server can be started"));
        let port = server.port;
        wait_until("a server that listens", || TcpStream::connect(("127.0.0.1", port)).is_ok());
    }

    /// Fills the disk that a server has for itself.
    pub fn fill_disk(&self, at: usize) {
        let process = self.servers[at].child.as_ref().expect("it runs").id();
        let folder = self.folder(at);
        let folder = folder.strip_prefix("/").expect("it is absolute");
        let mut file =
            fs::File::create(format!("/proc/{process}/root/{}/rest", folder.display())).expect("it is ours");
        while file.write_all(&[0; 4_096]).is_ok() {}
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

    /// The server that leads a stream.
    pub fn leader_of(&self, stream: &str) -> usize {
        let mut found = None;
        wait_until("a leader of the stream", || {
            let told = self.clusters_of(stream);
            found = told.iter().find_map(|cluster| number(cluster["leader"].as_str()?));
            found.is_some()
        });
        found.expect("it was waited for")
    }

    /// Waits until a server has all of a stream.
    pub fn wait_until_current(&self, stream: &str, at: usize) {
        let name = format!("n{at}");
        wait_until("a server's catching up", || {
            let told = self.clusters_of(stream);
            let others = told.iter().flat_map(|cluster| cluster["replicas"].as_array()).flatten();
            let mut replicas = others.filter(|replica| replica["name"] == *name);
            let is_leader = told.iter().any(|cluster| cluster["leader"] == *name);
            is_leader || replicas.any(|replica| replica["current"] == true && replica["offline"] != true)
        });
    }

    /// What the running servers say about those that have a stream.
    fn clusters_of(&self, stream: &str) -> Vec<serde_json::Value> {
        let answers = self.monitored("/jsz?streams=true");
        let accounts = answers.iter().flat_map(|answer| answer["account_details"].as_array()).flatten();
        let streams = accounts.flat_map(|account| account["stream_detail"].as_array()).flatten();
        streams.filter(|found| found["name"] == stream).map(|found| found["cluster"].clone()).collect()
    }

    fn meta_leader(&self) -> Option<usize> {
        let answers = self.monitored("/jsz");
        answers.iter().find_map(|answer| number(answer["meta_cluster"]["leader"].as_str()?))
    }

    /// What the running servers say under a path.
    fn monitored(&self, path: &str) -> Vec<serde_json::Value> {
        let running = self.servers.iter().filter(|server| server.child.is_some());
        let ask = |server: &Server| {
            let url = format!("http://127.0.0.1:{}{path}", server.monitor);
            let request = ureq::get(url).config().timeout_global(Some(MONITOR_TIMEOUT)).build();
            let text = request.call().ok()?.body_mut().read_to_string().ok()?;
            serde_json::from_str(&text).ok()
        };
        running.filter_map(ask).collect()
    }
}

/// The number in a server's name.
fn number(name: &str) -> Option<usize> {
    name.strip_prefix('n')?.parse().ok()
}

impl Drop for Servers {
    fn drop(&mut self) {
        for child in self.servers.iter_mut().filter_map(|server| server.child.as_mut()) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
