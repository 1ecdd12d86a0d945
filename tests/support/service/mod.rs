//! The real program as a child process on a free port, and a client for it.

mod output;

pub use output::Output;
use serde_json::Value;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use ureq::tls::{Certificate, RootCerts, TlsConfig};
use ureq::{Agent, SendBody};

/// How long a start may take before it counts as failed.
const START_TIMEOUT: Duration = Duration::from_secs(120);

/// Maximum time of a shutdown: several writes to a disk that stalls for a minute.
const END_TIMEOUT: Duration = Duration::from_secs(600);

/// Settings of every service, unless a test has others: a free port, and timeouts for a disk that stalls for a minute because other
/// programs use it.
const SETTINGS: [(&str, &str); 3] = [
    ("CUCKOOD__SERVER__LISTEN", "127.0.0.1:0"),
    ("CUCKOOD__SERVER__REQUEST_TIMEOUT", "10m"),
    ("CUCKOOD__STORAGE__OPEN_TIMEOUT", "10m"),
];

/// A running service. Dropped, it is killed.
pub struct Service {
    child: Child,
    client: Client,
    output: Output,
}

/// A connection to a service; clones share it.
#[derive(Clone)]
pub struct Client {
    url: String,
    tls: TlsConfig,
    agent: Agent,
}

/// An answer: the status and the JSON body, null if there is none.
#[derive(Clone, Debug)]
pub struct Answer {
    pub status: u16,
    /// The JSON of the body, or its text as a string; null if it is empty.
    pub body: Value,
    /// Whether it is an earlier request's answer.
    pub replayed: bool,
    /// The position of the log that it reflects, if it says so.
    pub position: Option<u64>,
}

impl Service {
    /// Starts the program over a data directory; returns once it listens, which is before it is ready.
    pub fn start(program: &Path, data: &Path, settings: &[(&str, &str)]) -> Service {
        let mut command = Command::new(program);
        command
            .arg("serve")
            .env("CUCKOOD__STORAGE__PATH", data)
            .envs(settings.iter().copied());
        Service::spawn(&mut command)
    }

    /// Starts a command that ends in the program serving, on a free port by default; returns once it listens.
    pub fn spawn(command: &mut Command) -> Service {
        Service::try_spawn(command).unwrap_or_else(|(status, output)| panic!("{status}\n{output}"))
    }

    /// The same; if it doesn't listen, returns its exit status and output.
    pub fn try_spawn(command: &mut Command) -> Result<Service, (ExitStatus, String)> {
        for (name, value) in SETTINGS {
            if !command.get_envs().any(|(known, _)| known == name) {
                command.env(name, value);
            }
        }
        let mut child = command
            .env("CUCKOOD__LOG__FORMAT", "json")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let output = Output::default();
        output.collect(child.stdout.take().expect("standard output is piped"));
        output.collect(child.stderr.take().expect("standard error is piped"));
        let url = output.wait_for(START_TIMEOUT, |line| {
            let entry: Value = serde_json::from_str(line).ok()?;
            let fields = &entry["fields"];
            let scheme = if fields["tls"] == true {
                "https"
            } else {
                "http"
            };
            (fields["message"] == "listening")
                .then(|| format!("{scheme}://{}", text(&fields["address"])))
        });
        let client = Client::new(url.clone().unwrap_or_default());
        let service = Service {
            child,
            client,
            output: output.clone(),
        };
        match url {
            Some(_) => Ok(service),
            None => Err((service.wait(), output.whole().join("\n"))),
        }
    }

    /// The same, and waits until it is ready.
    pub fn start_ready(program: &Path, data: &Path, settings: &[(&str, &str)]) -> Service {
        let service = Service::start(program, data, settings);
        service.wait_until_ready();
        service
    }

    pub fn wait_until_ready(&self) {
        let began = Instant::now();
        while self.client.get("/readyz").map(|answer| answer.status).ok() != Some(200) {
            assert!(began.elapsed() < START_TIMEOUT, "not ready in time");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// A client that trusts this certificate alone, over separate connections.
    pub fn client_trusting(&self, certificate: &[u8]) -> Client {
        self.client_trusting_all(&[certificate])
    }

    /// A client that trusts these certificates alone, over separate connections.
    pub fn client_trusting_all(&self, certificates: &[&[u8]]) -> Client {
        let certificates: Vec<_> = certificates
            .iter()
            .map(|certificate| Certificate::from_der(certificate).to_owned())
            .collect();
        let roots = RootCerts::new_with_certs(&certificates);
        Client::over(
            self.client.url.clone(),
            TlsConfig::builder().root_certs(roots).build(),
        )
    }

    /// Where it listens for Redis clients.
    pub fn redis_address(&self) -> SocketAddr {
        self.address_of("listening for Redis clients")
    }

    /// Where it listens for probes.
    pub fn probe_address(&self) -> SocketAddr {
        self.address_of("listening for probes")
    }

    /// The address in a log line.
    fn address_of(&self, message: &str) -> SocketAddr {
        let address = self.output.wait_for(START_TIMEOUT, |line| {
            let fields = &serde_json::from_str::<Value>(line).ok()?["fields"];
            (fields["message"] == message)
                .then(|| fields["address"].as_str()?.parse().ok())
                .flatten()
        });
        address.unwrap_or_else(|| panic!("it isn't {message}"))
    }

    /// What it has written.
    pub fn output(&self) -> &Output {
        &self.output
    }

    /// SIGKILL: no chance to tidy up.
    pub fn kill(mut self) {
        self.child.kill().expect("the child is ours");
        self.child.wait().expect("the child is ours");
    }

    /// SIGHUP.
    pub fn hang_up(&self) {
        self.signal(rustix::process::Signal::HUP);
    }

    /// SIGSTOP: it is there, and does nothing.
    pub fn freeze(&self) {
        self.signal(rustix::process::Signal::STOP);
    }

    /// SIGCONT.
    pub fn thaw(&self) {
        self.signal(rustix::process::Signal::CONT);
    }

    /// Its process id.
    pub fn process(&self) -> u32 {
        self.child.id()
    }

    /// One of its metrics.
    pub fn metric(&self, name: &str) -> u64 {
        self.metric_of(&self.client, name)
    }

    /// Several of its metrics, from one response. Two readings may differ, as the service renders them once a second.
    pub fn metrics<const COUNT: usize>(&self, names: [&str; COUNT]) -> [u64; COUNT] {
        let text = self.client.metrics_text();
        names.map(|name| metric_in(&text, name))
    }

    /// One of its metrics, read by this client.
    pub fn metric_of(&self, client: &Client, name: &str) -> u64 {
        metric_in(&client.metrics_text(), name)
    }

    /// Bytes that it has written so far, to files and wherever else.
    pub fn bytes_written(&self) -> u64 {
        let io =
            std::fs::read_to_string(format!("/proc/{}/io", self.child.id())).expect("Linux tells");
        let written = io
            .lines()
            .find_map(|line| line.strip_prefix("wchar: "))
            .expect("Linux tells");
        written.parse().expect("a number")
    }

    /// The most memory that it has taken at a time, in bytes.
    pub fn peak_memory_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))
            .expect("Linux tells");
        let peak = status
            .lines()
            .find_map(|line| line.strip_prefix("VmHWM:"))
            .expect("Linux tells");
        peak.trim()
            .trim_end_matches(" kB")
            .parse::<u64>()
            .expect("a number")
            << 10
    }

    /// Files and sockets that it has open.
    pub fn open_files(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.child.id()))
            .expect("Linux tells")
            .count()
    }

    /// From now on, every write fails that extends a file beyond this length, or writes after it.
    pub fn limit_files(&self, bytes: u64) {
        let limit = rustix::process::Rlimit {
            current: Some(bytes),
            maximum: Some(bytes),
        };
        let process = rustix::process::Pid::from_child(&self.child);
        rustix::process::prlimit(Some(process), rustix::process::Resource::Fsize, limit)
            .expect("the child is ours");
    }

    /// SIGTERM.
    pub fn begin_termination(&self) {
        self.signal(rustix::process::Signal::TERM);
    }

    /// SIGTERM, and how it ended.
    pub fn terminate(self) -> ExitStatus {
        self.begin_termination();
        self.wait()
    }

    /// Waits for its end.
    pub fn wait(mut self) -> ExitStatus {
        let began = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("the child is ours") {
                return status;
            }
            assert!(began.elapsed() < END_TIMEOUT, "it does not end");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let process = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(process, signal).expect("the child is ours");
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("{}", self.output.whole().join("\n"));
        }
    }
}

impl Client {
    pub fn new(url: String) -> Client {
        Client::over(url, TlsConfig::default())
    }

    fn over(url: String, tls: TlsConfig) -> Client {
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            .max_idle_connections_per_host(64)
            .tls_config(tls.clone())
            .proxy(None)
            .build();
        Client {
            url,
            tls,
            agent: agent.into(),
        }
    }

    /// A client of the same service over separate connections.
    pub fn another(&self) -> Client {
        Client::over(self.url.clone(), self.tls.clone())
    }

    /// Where the service is: `host:port`.
    pub fn address(&self) -> &str {
        self.url
            .split("//")
            .last()
            .expect("split gives one part at least")
    }

    /// Any request, with its exact body.
    pub fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Result<Answer, ureq::Error> {
        let request = ureq::http::Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.url));
        let request = headers.iter().fold(request, |request, (name, value)| {
            request.header(*name, *value)
        });
        let wrong = "the tests' requests are well-formed";
        read(match body {
            [] => self.agent.run(request.body(()).expect(wrong))?,
            body => self.agent.run(request.body(body).expect(wrong))?,
        })
    }

    pub fn get(&self, path: &str) -> Result<Answer, ureq::Error> {
        read(self.agent.get(format!("{}{path}", self.url)).call()?)
    }

    fn metrics_text(&self) -> String {
        let (status, text) = self.text("/metrics").expect("it is up");
        assert_eq!(status, 200, "{text}");
        text
    }

    /// A response's status and exact body.
    pub fn text(&self, path: &str) -> Result<(u16, String), ureq::Error> {
        let mut response = self.agent.get(format!("{}{path}", self.url)).call()?;
        let text = response
            .body_mut()
            .with_config()
            .limit(64 << 20)
            .read_to_string()?;
        Ok((response.status().as_u16(), text))
    }

    /// An answer's status and its body as bytes; an error if the body breaks off.
    pub fn bytes(&self, path: &str) -> Result<(u16, Vec<u8>), ureq::Error> {
        let mut response = self.agent.get(format!("{}{path}", self.url)).call()?;
        let bytes = response
            .body_mut()
            .with_config()
            .limit(64 << 20)
            .read_to_vec()?;
        Ok((response.status().as_u16(), bytes))
    }

    pub fn put(&self, path: &str, body: &Value) -> Result<Answer, ureq::Error> {
        read(
            self.agent
                .put(format!("{}{path}", self.url))
                .send_json(body)?,
        )
    }

    pub fn post(&self, path: &str, body: &Value) -> Result<Answer, ureq::Error> {
        read(
            self.agent
                .post(format!("{}{path}", self.url))
                .send_json(body)?,
        )
    }

    pub fn delete(&self, path: &str) -> Result<Answer, ureq::Error> {
        read(self.agent.delete(format!("{}{path}", self.url)).call()?)
    }

    /// A POST that may be sent again without being done twice.
    pub fn post_once(&self, path: &str, body: &Value, key: &str) -> Result<Answer, ureq::Error> {
        let request = self
            .agent
            .post(format!("{}{path}", self.url))
            .header("Idempotency-Key", key);
        read(request.send_json(body)?)
    }

    /// A PUT that may be sent again without being done twice.
    pub fn put_once(&self, path: &str, body: &Value, key: &str) -> Result<Answer, ureq::Error> {
        let request = self
            .agent
            .put(format!("{}{path}", self.url))
            .header("Idempotency-Key", key);
        read(request.send_json(body)?)
    }

    /// A DELETE that may be sent again without being done twice.
    pub fn delete_once(&self, path: &str, key: &str) -> Result<Answer, ureq::Error> {
        let request = self
            .agent
            .delete(format!("{}{path}", self.url))
            .header("Idempotency-Key", key);
        read(request.call()?)
    }

    /// Streams lines into an import.
    pub fn import(
        &self,
        path: &str,
        lines: impl std::io::Read + Send + 'static,
    ) -> Result<Answer, ureq::Error> {
        let request = self
            .agent
            .post(format!("{}{path}", self.url))
            .header("Content-Type", "text/plain");
        read(request.send(SendBody::from_owned_reader(lines))?)
    }
}

fn read(mut response: ureq::http::Response<ureq::Body>) -> Result<Answer, ureq::Error> {
    let status = response.status().as_u16();
    let replayed = response.headers().contains_key("idempotency-replayed");
    let position = response.headers().get("x-cuckood-position");
    let position = position.and_then(|position| position.to_str().ok()?.parse().ok());
    let text = response
        .body_mut()
        .with_config()
        .limit(64 << 20)
        .read_to_string()?;
    let body = match serde_json::from_str(&text) {
        Ok(body) => body,
        Err(_) if text.is_empty() => Value::Null,
        Err(_) => Value::String(text),
    };
    Ok(Answer {
        status,
        body,
        replayed,
        position,
    })
}

fn metric_in(text: &str, name: &str) -> u64 {
    let value = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    // An unused counter is omitted.
    let unused = name.contains("_total").then_some(0);
    value
        .or(unused)
        .unwrap_or_else(|| panic!("there is no {name}:\n{text}"))
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
