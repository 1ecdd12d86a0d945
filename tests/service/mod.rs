//! The real program as a child process on a port of its own, and a client for it.

use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use ureq::{Agent, SendBody};

/// How long a start may take before it counts as failed.
const START_TIMEOUT: Duration = Duration::from_secs(120);

/// A running service. Dropped, it is killed.
pub struct Service {
    child: Child,
    client: Client,
}

/// A connection to a service; clones share it.
#[derive(Clone)]
pub struct Client {
    url: String,
    agent: Agent,
}

/// An answer: the status and the JSON body, null if there is none.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub body: Value,
}

impl Service {
    /// Starts the program over a data directory; comes back as soon as it listens, which is before it is ready.
    pub fn start(program: &Path, data: &Path, settings: &[(&str, &str)]) -> Service {
        let mut child = Command::new(program)
            .arg("serve")
            .env("CUCKOOD__SERVER__LISTEN", "127.0.0.1:0")
            .env("CUCKOOD__STORAGE__PATH", data)
            .env("CUCKOOD__LOG__FORMAT", "json")
            .envs(settings.iter().copied())
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{}: {error}", program.display()));
        let log = BufReader::new(child.stderr.take().expect("standard error is piped"));
        let (tell_address, address) = mpsc::channel();
        std::thread::spawn(move || {
            for line in log.lines().map_while(Result::ok) {
                let entry: Value = serde_json::from_str(&line).unwrap_or_default();
                let fields = &entry["fields"];
                if fields["message"] == "listening" {
                    // Nobody waits for it any more if the start took too long.
                    let _ = tell_address.send(fields["address"].as_str().unwrap_or_default().to_string());
                }
                if entry["level"] != "INFO" {
                    eprintln!("{line}");
                }
            }
        });
        let address = address.recv_timeout(START_TIMEOUT).expect("the service says where it listens");
        let client = Client::new(format!("http://{address}"));
        Service { child, client }
    }

    /// The same, and waits until it is ready.
    pub fn start_ready(program: &Path, data: &Path, settings: &[(&str, &str)]) -> Service {
        let service = Service::start(program, data, settings);
        let began = Instant::now();
        while service.client.get("/readyz").map(|answer| answer.status).ok() != Some(200) {
            assert!(began.elapsed() < START_TIMEOUT, "not ready in time");
            std::thread::sleep(Duration::from_millis(2));
        }
        service
    }

    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// SIGKILL: no chance to tidy up.
    pub fn kill(mut self) {
        self.child.kill().expect("the child is ours");
        self.child.wait().expect("the child is ours");
    }

    /// SIGTERM, and how it ended.
    pub fn terminate(mut self) -> ExitStatus {
        let process = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(process, rustix::process::Signal::TERM).expect("the child is ours");
        self.child.wait().expect("the child is ours")
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Client {
    pub fn new(url: String) -> Client {
        let agent =
            Agent::config_builder().http_status_as_error(false).max_idle_connections_per_host(64).build();
        Client { url, agent: agent.into() }
    }

    /// A client of the same service over connections of its own.
    pub fn another(&self) -> Client {
        Client::new(self.url.clone())
    }

    pub fn get(&self, path: &str) -> Result<Answer, ureq::Error> {
        read(self.agent.get(format!("{}{path}", self.url)).call()?)
    }

    pub fn put(&self, path: &str, body: &Value) -> Result<Answer, ureq::Error> {
        read(self.agent.put(format!("{}{path}", self.url)).send_json(body)?)
    }

    pub fn post(&self, path: &str, body: &Value) -> Result<Answer, ureq::Error> {
        read(self.agent.post(format!("{}{path}", self.url)).send_json(body)?)
    }

    /// A POST that may be sent again without being done twice.
    pub fn post_once(&self, path: &str, body: &Value, key: &str) -> Result<Answer, ureq::Error> {
        let request = self.agent.post(format!("{}{path}", self.url)).header("Idempotency-Key", key);
        read(request.send_json(body)?)
    }

    /// Streams lines into an import.
    pub fn import(
        &self,
        path: &str,
        lines: impl std::io::Read + Send + 'static,
    ) -> Result<Answer, ureq::Error> {
        let request = self.agent.post(format!("{}{path}", self.url)).header("Content-Type", "text/plain");
        read(request.send(SendBody::from_owned_reader(lines))?)
    }
}

fn read(mut response: ureq::http::Response<ureq::Body>) -> Result<Answer, ureq::Error> {
    let status = response.status().as_u16();
    let text = response.body_mut().with_config().limit(64 << 20).read_to_string()?;
    Ok(Answer { status, body: serde_json::from_str(&text).unwrap_or_default() })
}
