//! An operator who follows the runbooks of docs/CLUSTER.md: their commands run as they are. `systemctl`, `nats` and `chronyc` are scripts that
//! ask the test to act on its processes.

use crate::cluster::{Cluster, NODES, Setting};
use crate::nats::Servers;
use crate::ports;
use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;
use tempfile::TempDir;

/// Asks the test to run a command of this name, and waits until that is done.
const SCRIPT: &str = r#"#!/usr/bin/env bash
exec 3<>/dev/tcp/127.0.0.1/$OPERATOR_PORT
echo "$(basename "$0") $*" >&3
read -r -u 3 answer && [ "$answer" = done ]
"#;

pub struct Operator {
    /// Scripts, and the configuration of a node.
    dir: TempDir,
    listener: TcpListener,
    urls: Vec<String>,
}

impl Operator {
    /// A cluster whose nodes and servers have the same addresses whenever they are started, and its operator.
    pub fn of_new_cluster(settings: &[Setting]) -> (Operator, Cluster) {
        let dir = tempfile::tempdir().unwrap();
        let ports = ports::free(NODES);
        let cluster = Cluster::start_at(Servers::start(NODES), &ports, settings);
        for name in ["systemctl", "nats", "chronyc"] {
            let path = dir.path().join(name);
            fs::write(&path, SCRIPT).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        let program = Path::new(env!("CARGO_BIN_EXE_cuckood"));
        std::os::unix::fs::symlink(program, dir.path().join("cuckood")).unwrap();
        let config = format!(
            "[journal]\nkind = \"nats\"\n[nats]\nservers = {:?}\n",
            cluster.servers.urls()
        );
        fs::write(dir.path().join("config.toml"), config).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let urls = ports
            .iter()
            .map(|port| format!("http://127.0.0.1:{port}"))
            .collect();
        (
            Operator {
                dir,
                listener,
                urls,
            },
            cluster,
        )
    }

    /// Follows a runbook on the machine of this number, which has a node and a server.
    pub fn follow(&self, runbook: &str, machine: usize, cluster: &mut Cluster) {
        let commands = commands(runbook);
        println!("{runbook} on machine {machine}:\n{commands}");
        let mut bash = Command::new("bash");
        bash.args(["-euo", "pipefail", "-c", &commands]);
        let path = format!(
            "{}:{}",
            self.dir.path().display(),
            std::env::var("PATH").unwrap()
        );
        bash.env("PATH", path).env(
            "OPERATOR_PORT",
            self.listener.local_addr().unwrap().port().to_string(),
        );
        bash.env("NODE", &self.urls[machine])
            .env("DATA", cluster.dir(machine));
        bash.env("CONFIG", self.dir.path().join("config.toml"));
        bash.env("MONITOR", cluster.servers.monitor(machine))
            .env("STORE", cluster.servers.folder(machine));
        bash.envs((0..NODES).map(|node| (format!("DATA{}", node + 1), cluster.dir(node))));
        let mut child = bash.spawn().unwrap();
        let status = loop {
            match self.listener.accept() {
                Ok((stream, _)) => self.act(stream, machine, cluster),
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            thread::sleep(Duration::from_millis(10));
        };
        assert!(status.success(), "{runbook}: {status}");
    }

    fn act(&self, stream: TcpStream, machine: usize, cluster: &mut Cluster) {
        stream.set_nonblocking(false).unwrap();
        let mut stream = BufReader::new(stream);
        let mut command = String::new();
        stream.read_line(&mut command).unwrap();
        let is_running = (
            cluster.nodes[machine].is_some(),
            cluster.servers.is_running(machine),
        );
        match (command.trim(), is_running) {
            ("systemctl stop cuckood", (true, _)) => {
                // It may have failed before, so its exit code says nothing.
                cluster.nodes[machine].take().unwrap().terminate();
            }
            ("systemctl start cuckood", (false, _)) => cluster.restart_node(machine),
            ("systemctl stop nats", (_, true)) => cluster.servers.kill(machine),
            ("systemctl start nats", (_, false)) => cluster.servers.restart(machine),
            ("systemctl stop cuckood" | "systemctl stop nats", _) => {}
            ("nats stream edit cuckood --max-bytes=-1 --force", _) => {
                cluster.servers.limit_log("cuckood", -1)
            }
            ("chronyc makestep", _) => cluster.correct_clock(machine),
            (other, _) => panic!("{other}"),
        }
        stream.get_mut().write_all(b"done\n").unwrap();
    }
}

/// The commands of a runbook.
fn commands(runbook: &str) -> String {
    let text =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/CLUSTER.md")).unwrap();
    let mark = format!("<!-- runbook: {runbook} -->");
    let mut lines = text
        .lines()
        .map(str::trim)
        .skip_while(|line| *line != mark)
        .skip(1);
    assert_eq!(lines.next(), Some("```sh"), "{mark} is above its commands");
    lines
        .take_while(|line| *line != "```")
        .collect::<Vec<_>>()
        .join("\n")
}
