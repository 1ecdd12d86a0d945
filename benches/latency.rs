//! How long requests wait at a constant rate, and the cost of the layers around a handler: `cargo bench --bench latency`. With `-- caps`,
//! only the cost of caps and exclusion lists for eligibility, in alternating rounds. With `-- batches`, only how long single checks wait
//! while batches of ten thousand are answered; `PROGRAM` names another build of the service for it.
//!
//! Requests are due at fixed moments, whether or not earlier ones have been answered, and latency counts from the time a request was due.
//! So a stall delays all requests during it (no "coordinated omission"). Server and load share the machine.

// A benchmark prints its results and stops at the first error.
#![allow(missing_docs, clippy::unwrap_used, clippy::print_stdout)]

// As the service has it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

use axum::Json;
use axum::extract::State;
use cuckood::clock::{Clock, ClockLimits};
use cuckood::config::Config;
use cuckood::engine::{Engine, EngineStatus};
use cuckood_filter::{Growth, Mode};
use cuckood_state::domain::{
    Command as Change, Digests, Kind, Name, Normalization, Sizing, Spec, Target, Window,
};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::ops::Range;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

const CONNECTIONS: usize = 50;
const SECONDS: u64 = 6;
const ROUNDS: usize = 5;
/// Requests per second that every question is asked at.
const RATE: f64 = 10_000.0;
const CAMPAIGNS: usize = 20;
/// The users in the campaigns. `USER` is one of them.
const USERS: Range<u32> = 0..100_000;
const USER: &str = "u000000000000042";
const ELIGIBILITY: &str = "/v1/eligibility";
/// Items of a batch, of which one connection sends one after the other.
const BATCH: u32 = 10_000;
/// Single checks per second alongside batches, which take most of the processors.
const RATE_BESIDE_BATCHES: f64 = 2_000.0;

fn main() {
    if let Some(data) = std::env::args()
        .skip_while(|argument| argument != "bare")
        .nth(1)
    {
        return tokio::runtime::Runtime::new().unwrap().block_on(bare(data));
    }
    let directory = tempfile::tempdir().unwrap();
    if std::env::args().any(|argument| argument == "caps") {
        let requests = Requests::new();
        return caps(&requests.serve(&directory.path().join("caps")), &requests);
    }
    if std::env::args().any(|argument| argument == "batches") {
        return beside_batches(&directory.path().join("batches"));
    }
    waits(&directory.path().join("open"));
    layers(directory.path());
}

/// A request: a name, and its path.
struct Asked {
    what: &'static str,
    path: &'static str,
    body: Value,
}

/// The requests, and the names that they speak of.
struct Requests {
    campaigns: Vec<String>,
    /// Caps and exclusion lists.
    conditions: Vec<String>,
    check: Asked,
    eligibility: Asked,
    limited: Asked,
    by_name: Asked,
    line_up: Value,
}

impl Requests {
    fn new() -> Requests {
        let names: Vec<String> = (0..CAMPAIGNS).map(|number| format!("c{number}")).collect();
        // A cap for each campaign, and two exclusion lists; none of them leaves the user out.
        let caps = names
            .iter()
            .map(|name| json!({ "campaign": format!("{name}.seen"), "at_least": 3, "for": name }));
        let lists = ["opted-out", "registered"].map(|name| json!({ "campaign": name }));
        let unless: Vec<Value> = caps.chain(lists).collect();
        let conditions = unless
            .iter()
            .map(|unless| unless["campaign"].as_str().unwrap().to_owned())
            .collect();
        let asked = |what, path, body| Asked { what, path, body };
        let line_up = json!({ "campaigns": names, "limit": CAMPAIGNS, "unless": unless });
        let mut limited = line_up.clone();
        limited["user"] = USER.into();
        let all = json!({ "user": USER, "campaigns": names, "limit": CAMPAIGNS });
        Requests {
            check: asked(
                "check of one",
                "/v1/campaigns/c0/users/check",
                json!({ "users": [USER] }),
            ),
            eligibility: asked("eligibility over 20", ELIGIBILITY, all),
            limited: asked("with 20 caps, 2 lists", ELIGIBILITY, limited),
            by_name: asked(
                "the same, as a line-up",
                ELIGIBILITY,
                json!({ "user": USER, "line_up": "home" }),
            ),
            campaigns: names,
            conditions,
            line_up,
        }
    }

    /// A service with all that they speak of.
    fn serve(&self, data: &Path) -> Service {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cuckood"));
        let service = Service::start(command.env("CUCKOOD__STORAGE__PATH", data), "");
        service.prepare(&self.campaigns, USERS);
        service.prepare(&self.conditions, USERS.end..2 * USERS.end);
        service.store("/v1/line-ups/home", &self.line_up);
        service
    }
}

/// Measures waits at rates up to nearly the maximum.
fn waits(data: &Path) {
    let requests = Requests::new();
    let service = requests.serve(data);
    for asked in [
        &requests.check,
        &requests.eligibility,
        &requests.limited,
        &requests.by_name,
    ] {
        let request = service.request(asked);
        let highest = service.throughput(&request);
        for rate in [
            RATE / 10.0,
            RATE,
            0.5 * highest,
            0.75 * highest,
            0.9 * highest,
        ] {
            let (reached, waits) = service.at_rate(&request, rate);
            println!(
                "{:22} {rate:>8.0}/s  reached {reached:>7.0}/s  {}",
                asked.what,
                shape(waits)
            );
        }
        println!("{:22} as fast as answers come: {highest:.0}/s", asked.what);
    }
}

/// Single checks alone, alongside batch checks, and alongside durable batch adds, in alternating rounds.
fn beside_batches(data: &Path) {
    let program =
        std::env::var("PROGRAM").unwrap_or_else(|_| env!("CARGO_BIN_EXE_cuckood").to_owned());
    let service = Service::start(
        Command::new(program).env("CUCKOOD__STORAGE__PATH", data),
        "",
    );
    let requests = Requests::new();
    service.prepare(&requests.campaigns[..1], USERS);
    let single = service.request(&requests.check);
    let users: Vec<String> = (0..BATCH).map(|number| format!("u{number:015}")).collect();
    let batch = |path, body| {
        service.request(&Asked {
            what: "",
            path,
            body,
        })
    };
    let check = batch("/v1/campaigns/c0/users/check", json!({ "users": users }));
    let add = batch(
        "/v1/campaigns/c0/users",
        json!({ "users": users, "if_absent": true }),
    );
    let contestants = [
        ("alone", None),
        ("beside checks", Some(&check)),
        ("beside adds", Some(&add)),
    ];
    let mut rounds = vec![Vec::new(); contestants.len()];
    for _ in 0..ROUNDS {
        for ((_, batch), rounds) in contestants.iter().zip(&mut rounds) {
            let is_over = AtomicBool::new(false);
            rounds.push(std::thread::scope(|scope| {
                let batches = scope.spawn(|| service.repeat(batch.map(String::as_str), &is_over));
                let (_, mut waits) = service.at_rate(&single, RATE_BESIDE_BATCHES);
                is_over.store(true, Relaxed);
                waits.sort_unstable();
                let [p50, p99, p999] = [0.5, 0.99, 0.999].map(|share| millisecond(&waits, share));
                [p50, p99, p999, batches.join().unwrap()]
            }));
        }
    }
    for ((what, _), rounds) in contestants.iter().zip(&rounds) {
        let [p50, p99, p999, batches] = [0, 1, 2, 3].map(|of| median(rounds, of));
        println!(
            "check of one {what:13} at {RATE_BESIDE_BATCHES:.0}/s, medians of {ROUNDS} rounds: p50 {:.2} ({:.2} to {:.2}), \
             p99 {:.2} ({:.2} to {:.2}), p99.9 {:.2} ({:.2} to {:.2}) ms; {:.0} batches/s",
            p50.0, p50.1, p50.2, p99.0, p99.1, p99.2, p999.0, p999.1, p999.2, batches.0
        );
    }
}

/// The median, the minimum and the maximum of one value.
fn median<const N: usize>(rounds: &[[f64; N]], of: usize) -> (f64, f64, f64) {
    let mut figures: Vec<f64> = rounds.iter().map(|round| round[of]).collect();
    figures.sort_by(f64::total_cmp);
    (
        figures[figures.len() / 2],
        figures[0],
        figures[figures.len() - 1],
    )
}

/// Eligibility with and without caps and exclusion lists, at one rate.
fn caps(service: &Service, requests: &Requests) {
    let contestants = [&requests.eligibility, &requests.limited, &requests.by_name];
    let mut rounds = vec![Vec::new(); contestants.len()];
    for _ in 0..ROUNDS {
        for (asked, rounds) in contestants.iter().zip(&mut rounds) {
            let (reached, mut waits) = service.at_rate(&service.request(asked), RATE);
            waits.sort_unstable();
            rounds.push([millisecond(&waits, 0.5), millisecond(&waits, 0.99), reached]);
        }
    }
    for (asked, rounds) in contestants.iter().zip(&rounds) {
        let [p50, p99, reached] = [0, 1, 2].map(|of| median(rounds, of));
        println!(
            "{:22} at {RATE:.0}/s, medians of {ROUNDS} rounds: p50 {:.2} ({:.2} to {:.2}), p99 {:.2} ({:.2} to {:.2}) ms, reached {:.0}/s",
            asked.what, p50.0, p50.1, p50.2, p99.0, p99.1, p99.2, reached.0
        );
    }
}

/// Checks through all layers compared with a bare handler.
fn layers(directory: &Path) {
    let data = |name: &str| directory.join(name);
    let Requests {
        campaigns: names,
        check,
        ..
    } = Requests::new();
    let (key, entry) = key();
    let config = directory.join("keys.toml");
    std::fs::write(&config, format!("[auth]\nkeys = [{entry}]\n")).unwrap();
    let bare = Service::start(
        Command::new(std::env::current_exe().unwrap())
            .arg("bare")
            .arg(data("bare")),
        "",
    );
    let open = Service::start(
        Command::new(env!("CARGO_BIN_EXE_cuckood")).env("CUCKOOD__STORAGE__PATH", data("full")),
        "",
    );
    open.prepare(&names[..1], USERS);
    let mut with_keys = Command::new(env!("CARGO_BIN_EXE_cuckood"));
    let keys = Service::start(
        with_keys
            .arg("--config")
            .arg(&config)
            .env("CUCKOOD__STORAGE__PATH", data("keys")),
        &key,
    );
    keys.prepare(&names[..1], USERS);
    let contestants = [
        ("bare handler", &bare),
        ("all layers, no keys", &open),
        ("all layers and a key", &keys),
    ];
    let mut rounds = vec![Vec::new(); contestants.len()];
    for _ in 0..ROUNDS {
        for ((_, service), rounds) in contestants.iter().zip(&mut rounds) {
            rounds.push(service.throughput(&service.request(&check)));
        }
    }
    let medians: Vec<f64> = rounds
        .iter_mut()
        .map(|rounds| {
            rounds.sort_by(f64::total_cmp);
            rounds[ROUNDS / 2]
        })
        .collect();
    for ((name, _), median) in contestants.iter().zip(&medians) {
        println!(
            "{name:24} {median:>8.0} checks/s  {:.2} x the bare handler",
            median / medians[0]
        );
    }
}

/// A key's text and its entry, in the program's format.
fn key() -> (String, String) {
    let made = Command::new(env!("CARGO_BIN_EXE_cuckood"))
        .args(["key", "new", "--name", "bench", "--scopes", "admin"])
        .output()
        .unwrap();
    let text = String::from_utf8(made.stdout).unwrap() + &String::from_utf8(made.stderr).unwrap();
    let entry = text
        .split_once('{')
        .and_then(|(_, rest)| rest.rsplit_once('}'))
        .map(|(entry, _)| format!("{{{entry}}}"));
    let key = text
        .split_whitespace()
        .find(|word| word.starts_with("ck_"))
        .map(str::to_owned);
    (
        key.unwrap_or_else(|| panic!("no key in {text}")),
        entry.unwrap_or_else(|| panic!("no entry in {text}")),
    )
}

/// The same check without any layer around it.
async fn bare(data: String) {
    let config = Config::load(None, [("CUCKOOD__STORAGE__PATH", data)]).unwrap();
    let options = config.engine_options();
    let engine = Engine::start(options, Clock::system(ClockLimits::default()));
    assert_eq!(engine.recovered().await, EngineStatus::Ready);
    let sizing = Sizing::ErrorRate(0.001);
    let spec = Spec {
        capacity: 200_000,
        mode: Mode::Compact,
        growth: Growth::Auto,
        sizing,
        normalization: Normalization::Exact,
        supply: Default::default(),
        forget: None,
    };
    let window = Window {
        starts_at: None,
        ends_at: None,
    };
    let name = Name::new("c0").unwrap();
    let change = cuckood::engine::creation(
        Kind::Campaign,
        name.clone(),
        spec,
        window,
        Default::default(),
    )
    .unwrap();
    engine.submit(None, change, None).await.unwrap();
    let filter = engine.view().find(Kind::Campaign, &name).unwrap();
    let digests = Digests(vec![filter.digest(USER).unwrap()]);
    let change = Change::Insert {
        target: Target(filter.id),
        digests,
        if_absent: false,
        revive: false,
    };
    engine.submit(None, change, None).await.unwrap();
    let check = async |State(engine): State<Engine>, Json(body): Json<Value>| {
        let filter = engine
            .view()
            .find(Kind::Campaign, &Name::new("c0").unwrap())
            .unwrap();
        let users = body["users"].as_array().unwrap().iter();
        let present: Vec<bool> = users
            .map(|user| {
                filter.contains(filter.digest(user.as_str().unwrap()).unwrap(), engine.now())
            })
            .collect();
        Json(json!({ "present": present }))
    };
    let router = axum::Router::new()
        .route("/v1/campaigns/c0/users/check", axum::routing::post(check))
        .route("/readyz", axum::routing::get(async || ""))
        .with_state(engine);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    eprintln!(
        r#"{{"fields":{{"message":"listening","address":"{}"}}}}"#,
        listener.local_addr().unwrap()
    );
    axum::serve(listener, router).await.unwrap();
}

struct Service {
    child: Child,
    address: String,
    authorization: String,
}

impl Drop for Service {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Service {
    fn start(command: &mut Command, key: &str) -> Service {
        let mut child = command
            .env("CUCKOOD__SERVER__LISTEN", "127.0.0.1:0")
            .env("CUCKOOD__LOG__FORMAT", "json")
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap())
            .lines()
            .map_while(Result::ok);
        let address = lines.find_map(|line| {
            let entry: Value = serde_json::from_str(&line).ok()?;
            (entry["fields"]["message"] == "listening")
                .then(|| entry["fields"]["address"].as_str().unwrap().to_owned())
        });
        std::thread::spawn(move || lines.for_each(drop));
        let authorization = if key.is_empty() {
            String::new()
        } else {
            format!("Authorization: Bearer {key}\r\n")
        };
        let service = Service {
            child,
            address: address.unwrap(),
            authorization,
        };
        while !exchange(&mut service.connect(), service.get("/readyz").as_bytes())
            .starts_with("HTTP/1.1 200")
        {
            std::thread::sleep(Duration::from_millis(10));
        }
        service
    }

    /// Creates campaigns with these users.
    fn prepare(&self, names: &[String], users: Range<u32>) {
        let users: String = users.map(|number| format!("u{number:015}\n")).collect();
        for name in names {
            self.store(
                &format!("/v1/campaigns/{name}"),
                &json!({ "capacity": 200_000 }),
            );
            let mut connection = self.connect();
            let path = format!("/v1/campaigns/{name}/imports");
            let done = exchange(
                &mut connection,
                self.send("POST", &path, "text/plain", &users).as_bytes(),
            );
            assert!(done.starts_with("HTTP/1.1 200"), "{done}");
        }
    }

    /// Creates the resource at a path.
    fn store(&self, path: &str, body: &Value) {
        let put = self.send("PUT", path, "application/json", &body.to_string());
        let made = exchange(&mut self.connect(), put.as_bytes());
        assert!(made.starts_with("HTTP/1.1 201"), "{made}");
    }

    fn connect(&self) -> BufReader<TcpStream> {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_nodelay(true).unwrap();
        BufReader::new(stream)
    }

    fn get(&self, path: &str) -> String {
        format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n")
    }

    fn send(&self, method: &str, path: &str, kind: &str, body: &str) -> String {
        let length = body.len();
        let authorization = &self.authorization;
        format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\n{authorization}Content-Type: {kind}\r\nContent-Length: {length}\r\n\r\n{body}"
        )
    }

    fn request(&self, Asked { path, body, .. }: &Asked) -> String {
        self.send("POST", path, "application/json", &body.to_string())
    }

    /// Answers per second if every connection sends its next request as soon as it has an answer.
    fn throughput(&self, request: &str) -> f64 {
        let since = Instant::now();
        let until = since + Duration::from_secs(SECONDS / 2);
        let answers: usize = self
            .each_connection(|connection, _| {
                let mut answers = 0;
                while Instant::now() < until {
                    assert!(exchange(connection, request.as_bytes()).starts_with("HTTP/1.1 200"));
                    answers += 1;
                }
                answers
            })
            .into_iter()
            .sum();
        answers as f64 / since.elapsed().as_secs_f64()
    }

    /// Answers per second to one connection that sends a request again and again until it is over.
    fn repeat(&self, request: Option<&str>, is_over: &AtomicBool) -> f64 {
        let Some(request) = request else { return 0.0 };
        let mut connection = self.connect();
        let since = Instant::now();
        let mut answers = 0;
        while !is_over.load(Relaxed) {
            assert!(exchange(&mut connection, request.as_bytes()).starts_with("HTTP/1.1 200"));
            answers += 1;
        }
        f64::from(answers) / since.elapsed().as_secs_f64()
    }

    /// The rate that was reached, and the latency of each request from the time it was due.
    fn at_rate(&self, request: &str, rate: f64) -> (f64, Vec<Duration>) {
        let since = Instant::now() + Duration::from_millis(50);
        let requests = (rate * SECONDS as f64) as usize;
        let waits = self.each_connection(|connection, number| {
            let mut waits = Vec::new();
            for turn in (number..requests).step_by(CONNECTIONS) {
                let due = since + Duration::from_secs_f64(turn as f64 / rate);
                std::thread::sleep(due.saturating_duration_since(Instant::now()));
                assert!(exchange(connection, request.as_bytes()).starts_with("HTTP/1.1 200"));
                waits.push(due.elapsed());
            }
            waits
        });
        let waits = waits.concat();
        (waits.len() as f64 / since.elapsed().as_secs_f64(), waits)
    }

    fn each_connection<T: Send>(
        &self,
        work: impl Fn(&mut BufReader<TcpStream>, usize) -> T + Sync,
    ) -> Vec<T> {
        std::thread::scope(|scope| {
            let work = &work;
            let threads: Vec<_> = (0..CONNECTIONS)
                .map(|number| scope.spawn(move || work(&mut self.connect(), number)))
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .collect()
        })
    }
}

/// Sends a request, reads its answer, and returns the answer's head.
fn exchange(connection: &mut BufReader<TcpStream>, request: &[u8]) -> String {
    connection.get_mut().write_all(request).unwrap();
    let mut head = String::new();
    let mut length = 0_u64;
    loop {
        let start = head.len();
        connection.read_line(&mut head).unwrap();
        let line = head[start..].trim_end();
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        if line.is_empty() {
            break;
        }
    }
    std::io::copy(&mut connection.take(length), &mut std::io::sink()).unwrap();
    head
}

fn shape(mut waits: Vec<Duration>) -> String {
    waits.sort_unstable();
    let at = |share: f64| millisecond(&waits, share);
    format!(
        "p50 {:.2}, p99 {:.2}, p99.9 {:.2} ms",
        at(0.5),
        at(0.99),
        at(0.999)
    )
}

/// Returns the quantile of the sorted waits, in milliseconds.
fn millisecond(waits: &[Duration], share: f64) -> f64 {
    waits[((waits.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e3
}
