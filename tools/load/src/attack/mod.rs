//! `load attack PROGRAM`: what honest clients notice of strangers and tenants who attack, each attack against a fresh process, as a Markdown
//! table.
//!
//! Honest clients have a key: they check an item 2,000 times a second over connections that they keep, and send 20 other requests a second,
//! each on a new connection. Everything is on loopback; `--seconds` bounds the time, and each attack its connections.

mod honest;
mod stage;
mod stranger;

use crate::Options;
use crate::compare::print;
use crate::request::{ITEM, Request};
use crate::server::{Processors, Result, Server};
use honest::{Clients, Seen};
use stage::Stage;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};
use stranger::{Addresses, Pipeline, Stranger, Then};

/// Duration of an attack per second of `--seconds`.
const LONGER: f64 = 5.0;

/// Checks per second, and the connections for them.
const CHECKS_PER_SECOND: u32 = 2_000;
const KEPT: u32 = 32;

/// Requests per second on new connections, and the threads that open them.
const OPENED_PER_SECOND: u32 = 20;
const OPENING: u32 = 4;

/// Time for the honest clients to connect before the attack starts.
const HEAD_START: Duration = Duration::from_millis(200);

/// Pause between two looks at the server's memory.
const LOOK: Duration = Duration::from_millis(20);

/// Limits that the attacks on memory are measured against.
const SMALL: &[(&str, &str)] = &[
    ("CUCKOOD__LIMITS__MEMORY", "256MiB"),
    ("CUCKOOD__LIMITS__BODIES", "64MiB"),
];

const PLACES_61: &[(&str, &str)] = &[("CUCKOOD__SERVER__CONNECTIONS_MAX", "61")];
const PLACES_300: &[(&str, &str)] = &[("CUCKOOD__SERVER__CONNECTIONS_MAX", "300")];
const PLACES_1000: &[(&str, &str)] = &[("CUCKOOD__SERVER__CONNECTIONS_MAX", "1000")];

/// An attack, and the service that it meets.
struct Attack {
    title: &'static str,
    settings: &'static [(&'static str, &'static str)],
    stage: Stage,
    /// What honest clients request on new connections.
    fresh: Fresh,
    /// The scopes of the attacker's key, as an entry's list.
    scopes: &'static str,
    kind: Kind,
}

#[derive(Clone, Copy)]
enum Fresh {
    /// A check.
    Check,
    /// `GET /livez`, without a key.
    Livez,
    /// An import.
    Import,
}

#[derive(Clone, Copy)]
enum Kind {
    None,
    /// Connections per second that send the start of a head, of this length.
    Heads {
        per_second: u32,
        bytes: usize,
    },
    /// 300 connections without a key that request this path every 0.8 s.
    Keyless(&'static str),
    /// Two connections that pipeline.
    Pipelines(Target),
    /// This many clients that send one request and read nothing.
    Unread(usize, Target),
    /// This many connections with the start of a plain body.
    Bodies(usize),
    /// 27 zstd bodies, 22 gzip bodies and 8 long plain ones, none of which ends.
    Decoders,
}

/// A request of an attacker.
#[derive(Clone, Copy)]
enum Target {
    Metrics,
    Campaigns,
    LineUps,
    LineUpsPlain,
    NoSuchLabel,
    DbSize,
    Plan,
    LookUp,
    Info,
}

const REPEATED_EVERY: Duration = Duration::from_millis(800);

const NONE: Attack = Attack {
    title: "none",
    settings: &[],
    stage: Stage::Empty,
    fresh: Fresh::Check,
    scopes: "[]",
    kind: Kind::None,
};

const READ: Attack = Attack {
    scopes: r#"["read"]"#,
    ..NONE
};

const LISTS: Attack = Attack {
    stage: Stage::Lists,
    ..READ
};

const ATTACKS: [Attack; 22] = [
    NONE,
    Attack {
        title: "half heads",
        kind: Kind::Heads {
            per_second: 10_000,
            bytes: 100,
        },
        ..NONE
    },
    Attack {
        title: "half heads of 15 KB",
        kind: Kind::Heads {
            per_second: 10_000,
            bytes: 15_000,
        },
        ..NONE
    },
    Attack {
        title: "pipelined INFO",
        kind: Kind::Pipelines(Target::Info),
        ..NONE
    },
    // Strangers
    Attack {
        title: "silent, 100/s on 61 places",
        settings: PLACES_61,
        fresh: Fresh::Livez,
        kind: Kind::Heads {
            per_second: 100,
            bytes: 0,
        },
        ..NONE
    },
    Attack {
        title: "silent, 300/s on 300 places",
        settings: PLACES_300,
        fresh: Fresh::Livez,
        kind: Kind::Heads {
            per_second: 300,
            bytes: 0,
        },
        ..NONE
    },
    Attack {
        title: "silent, 500/s on 1,000 places",
        settings: PLACES_1000,
        fresh: Fresh::Livez,
        kind: Kind::Heads {
            per_second: 500,
            bytes: 0,
        },
        ..NONE
    },
    Attack {
        title: "300 on 300 places: /livez",
        settings: PLACES_300,
        kind: Kind::Keyless("/livez"),
        ..NONE
    },
    Attack {
        title: "300 on 300 places: a 404",
        settings: PLACES_300,
        kind: Kind::Keyless("/nowhere"),
        ..NONE
    },
    Attack {
        title: "pipelined /metrics",
        stage: Stage::Lists,
        kind: Kind::Pipelines(Target::Metrics),
        ..NONE
    },
    // Tenants
    Attack {
        title: "pipelined campaigns list",
        kind: Kind::Pipelines(Target::Campaigns),
        ..LISTS
    },
    Attack {
        title: "pipelined line-ups list, gzip",
        kind: Kind::Pipelines(Target::LineUps),
        ..LISTS
    },
    Attack {
        title: "pipelined list, no such label",
        kind: Kind::Pipelines(Target::NoSuchLabel),
        ..LISTS
    },
    Attack {
        title: "pipelined DBSIZE",
        kind: Kind::Pipelines(Target::DbSize),
        ..LISTS
    },
    Attack {
        title: "pipelined /v1/plan",
        kind: Kind::Pipelines(Target::Plan),
        ..READ
    },
    Attack {
        title: "unread, 640 line-ups lists",
        settings: SMALL,
        kind: Kind::Unread(640, Target::LineUpsPlain),
        ..LISTS
    },
    Attack {
        title: "unread, 400 campaigns lists",
        settings: SMALL,
        kind: Kind::Unread(400, Target::Campaigns),
        ..LISTS
    },
    Attack {
        title: "unread, 400 look-ups of 10,000",
        settings: SMALL,
        stage: Stage::Codes,
        scopes: r#"["read", "redeem"]"#,
        kind: Kind::Unread(400, Target::LookUp),
        ..NONE
    },
    Attack {
        title: "unread, 1,000 /metrics",
        stage: Stage::Lists,
        kind: Kind::Unread(1_000, Target::Metrics),
        ..NONE
    },
    Attack {
        title: "300 bodies on 300 places",
        settings: PLACES_300,
        fresh: Fresh::Livez,
        kind: Kind::Bodies(300),
        ..READ
    },
    Attack {
        title: "27 zstd, 22 gzip, 8 plain bodies",
        fresh: Fresh::Import,
        kind: Kind::Decoders,
        ..READ
    },
    Attack {
        title: "the same, limits.bodies 64 MiB",
        settings: SMALL,
        fresh: Fresh::Import,
        kind: Kind::Decoders,
        ..READ
    },
];

/// A key and its entry for `auth.keys`.
struct Key {
    key: String,
    entry: String,
}

impl Key {
    /// Makes a key with these scopes, as an entry's list.
    fn new(program: &Path, name: &str, scopes: &str) -> Result<Self> {
        let output = Command::new(program)
            .args(["key", "new", "--name", name])
            .output()?;
        let text = String::from_utf8(output.stdout)?;
        let field = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            line.map(|line| line.trim().to_owned())
                .ok_or("unexpected output of `key new`")
        };
        let entry = field("entry:")?.replace(r#"["read"]"#, scopes);
        Ok(Self {
            key: field("key:")?,
            entry,
        })
    }
}

/// Prints a row per attack, from one address and from many.
pub fn attack(options: &Options) -> Result<()> {
    let duration = Duration::from_secs_f64(options.seconds * LONGER);
    print(
        "| attack | addresses | checks: p50, ms | p99, ms | failed | new connections: p50, ms | p99, ms | failed \
         | resident before, MB | most, MB | attacker's, /s |",
    )?;
    print("|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|")?;
    for attack in ATTACKS
        .iter()
        .filter(|attack| attack.title.contains(&options.row))
    {
        let all = match attack.kind {
            Kind::None => &[Addresses::One][..],
            _ => &[Addresses::One, Addresses::Many],
        };
        for addresses in all {
            let row = measure(&options.program, attack, *addresses, duration);
            let row =
                row.unwrap_or_else(|error| format!("{} |", error.to_string().replace('\n', " ")));
            print(&format!(
                "| {} | {} | {row}",
                attack.title,
                addresses.name()
            ))?;
        }
    }
    Ok(())
}

fn measure(
    program: &Path,
    attack: &Attack,
    addresses: Addresses,
    duration: Duration,
) -> Result<String> {
    let processors = Processors::split()?;
    let honest = Key::new(program, "honest", r#"["read", "write", "redeem"]"#)?;
    let other = Key::new(program, "other", attack.scopes)?;
    let keys = format!("[{}, {}]", honest.entry, other.entry);
    let settings = [&[("CUCKOOD__AUTH__KEYS", keys.as_str())], attack.settings].concat();
    let server = Server::cuckood_with(program, &processors, &settings)?;
    attack.stage.prepare(&server, &honest.key)?;
    let check = Request::http(
        "POST",
        "/v1/campaigns/bench/users/check",
        &format!(r#"{{"users":["{ITEM}"]}}"#),
        200,
    );
    let check = check.with_key(&honest.key);
    let fresh = match attack.fresh {
        Fresh::Check => check.clone(),
        Fresh::Livez => Request::http("GET", "/livez", "", 200),
        Fresh::Import => stage::import().with_key(&honest.key),
    };
    let port = server.http;
    let before = server.resident()?;
    let kept = Clients {
        port,
        request: &check,
        per_second: CHECKS_PER_SECOND,
        count: KEPT,
        is_kept: true,
    };
    let new = Clients {
        port,
        request: &fresh,
        per_second: OPENED_PER_SECOND,
        count: OPENING,
        is_kept: false,
    };
    let done = AtomicU64::new(0);
    let is_over = AtomicBool::new(false);
    let (kept, new, most) = thread::scope(|scope| {
        let done = &done;
        let is_over = &is_over;
        let server = &server;
        let other = &other;
        let kept = scope.spawn(|| kept.run(is_over));
        thread::sleep(HEAD_START);
        let new = scope.spawn(|| new.run(is_over));
        scope.spawn(move || strike(attack.kind, addresses, server, &other.key, done, is_over));
        let most = watch(server, duration);
        is_over.store(true, Relaxed);
        let joined =
            |clients: thread::ScopedJoinHandle<'_, Seen>| clients.join().unwrap_or_default();
        (joined(kept), joined(new), most)
    });
    let most = most.map_err(|error| format!("the server has ended: {error}"))?;
    let rate = done.load(Relaxed) as f64 / duration.as_secs_f64();
    let [before, most] = [before, most.max(before)].map(|bytes| bytes / 1_000_000);
    Ok(format!(
        "{} | {} | {before} | {most} | {rate:.1} |",
        figures(&kept),
        figures(&new)
    ))
}

/// Returns the most memory that the server uses in this time.
fn watch(server: &Server, duration: Duration) -> std::result::Result<u64, String> {
    let start = Instant::now();
    let mut most = 0;
    while start.elapsed() < duration {
        thread::sleep(LOOK);
        most = server
            .resident()
            .map_err(|error| error.to_string())?
            .max(most);
    }
    Ok(most)
}

fn figures(seen: &Seen) -> String {
    let [p50, p99] = [0.5, 0.99].map(|part| match seen.outcome.latencies.is_empty() {
        true => "none".to_owned(),
        false => format!("{:.1}", seen.outcome.quantile(part)),
    });
    format!("{p50} | {p99} | {}", seen.failures())
}

/// Attacks until it is over.
fn strike(
    kind: Kind,
    addresses: Addresses,
    server: &Server,
    key: &str,
    done: &AtomicU64,
    is_over: &AtomicBool,
) {
    // Of this thread, and of those that it starts.
    let _ = rustix::process::nice(19);
    let stranger = |port| Stranger {
        port,
        addresses,
        done,
        is_over,
    };
    let http = stranger(server.http);
    match kind {
        Kind::None => {}
        Kind::Heads { per_second, bytes } => {
            http.open_at_rate(per_second, &stage::head_start(bytes))
        }
        Kind::Keyless(path) => {
            let request = Request::http("GET", path, "", 200).bytes;
            http.hold(&vec![request; 300], Then::Repeat(REPEATED_EVERY));
        }
        Kind::Pipelines(target) => {
            let stranger = stranger(if target.is_resp() {
                server.resp
            } else {
                server.http
            });
            let request = target.request(key);
            let greeting = if target.is_resp() {
                Request::resp(&["AUTH", key]).bytes
            } else {
                Vec::new()
            };
            let pipeline = Pipeline {
                greeting: &greeting,
                request: &request,
                marker: target.marker(),
            };
            thread::scope(|scope| {
                for number in 0..2 {
                    let stranger = &stranger;
                    let pipeline = &pipeline;
                    scope.spawn(move || stranger.pipeline(number, pipeline));
                }
            });
        }
        Kind::Unread(count, target) => http.hold(&vec![target.request(key); count], Then::Ignore),
        Kind::Bodies(count) => {
            let body = stage::unfinished_check(key, None, br#"{"users":["u"#);
            http.hold(&vec![body; count], Then::Wait);
        }
        Kind::Decoders => http.hold(&stage::unfinished_bodies(key), Then::Wait),
    }
}

impl Target {
    fn is_resp(self) -> bool {
        matches!(self, Target::DbSize | Target::Info)
    }

    fn request(self, key: &str) -> Vec<u8> {
        let get = |path: &str| Request::http("GET", path, "", 200);
        let request = match self {
            Target::Metrics => return get("/metrics").bytes,
            Target::DbSize => return Request::resp(&["DBSIZE"]).bytes,
            Target::Info => return Request::resp(&["INFO"]).bytes,
            Target::Campaigns => get("/v1/campaigns?limit=1000"),
            Target::LineUps => get("/v1/line-ups").with_header("Accept-Encoding: gzip"),
            Target::LineUpsPlain => get("/v1/line-ups"),
            Target::NoSuchLabel => get("/v1/campaigns?label=team=none"),
            Target::Plan => get("/v1/plan?capacity=1000000"),
            Target::LookUp => stage::look_up(),
        };
        request.with_key(key).bytes
    }

    /// Bytes that each response has once.
    fn marker(self) -> &'static [u8] {
        match self {
            Target::DbSize => b":",
            Target::Info => b"$",
            Target::Metrics
            | Target::Campaigns
            | Target::LineUps
            | Target::LineUpsPlain
            | Target::NoSuchLabel
            | Target::Plan
            | Target::LookUp => b"HTTP/1.1 200",
        }
    }
}
