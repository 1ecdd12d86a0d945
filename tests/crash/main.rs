//! The real program is killed under load, again and again: nothing acknowledged is lost, nothing is half-done, and
//! every code has one winner.
//!
//! `CRASH_KILLS` says how often (200 if it is unset), `CRASH_SEED` repeats a run's choices.

#![allow(missing_docs, clippy::unwrap_used, unreachable_pub)]

mod contest;
mod operation;
mod random;
#[path = "../service/mod.rs"]
#[allow(dead_code)]
mod service;
mod worker;

use contest::Contest;
use random::Random;
use serde_json::json;
use service::{Client, Service};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;
use worker::Worker;

/// Connections that write at once.
const WORKERS: u64 = 8;

/// Kills before a new data directory is begun: what must be checked grows with each.
const KILLS_PER_DIRECTORY: u64 = 20;

/// Acknowledgements before a kill, at most.
const ACKNOWLEDGED_MAX: u64 = 600;

/// Codes that the clients compete for.
const CONTEST_CODES: u64 = 2_000;

/// Small enough that growth, snapshots and the dropping of log segments happen all the time.
const SETTINGS: &[(&str, &str)] = &[
    ("CUCKOOD__SNAPSHOTS__LOG_MIN", "256KiB"),
    ("CUCKOOD__SNAPSHOTS__LOG_MAX", "1MiB"),
    ("CUCKOOD__STORAGE__WAL_SEGMENT", "128KiB"),
    ("CUCKOOD__LOG__LEVEL", "info"),
];

/// Both survive the death of the process, by different ways through the storage.
const DURABILITIES: &[&str] = &["fsync", "flush"];

#[test]
fn whatever_was_acknowledged_survives_sigkill() {
    let kills = number("CRASH_KILLS").unwrap_or(200);
    let seed = number("CRASH_SEED").unwrap_or_else(|| u64::from(std::process::id()));
    eprintln!("CRASH_KILLS={kills} CRASH_SEED={seed}");
    let mut random = Random::new(seed);
    let mut left = kills;
    while left > 0 {
        let now = left.min(KILLS_PER_DIRECTORY);
        let durability = DURABILITIES[random.below(DURABILITIES.len() as u64) as usize];
        kill_repeatedly(now, &mut random, durability);
        left -= now;
        eprintln!("{} kills survived, the last {now} at {durability}", kills - left);
    }
}

fn number(variable: &str) -> Option<u64> {
    Some(std::env::var(variable).ok()?.parse().unwrap())
}

fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_cuckood"))
}

fn kill_repeatedly(kills: u64, random: &mut Random, durability: &'static str) {
    let settings: Vec<_> =
        SETTINGS.iter().copied().chain([("CUCKOOD__STORAGE__DURABILITY", durability)]).collect();
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let contest = Arc::new(Mutex::new(Contest::new()));
    let mut workers: Vec<Worker> =
        (0..WORKERS).map(|n| Worker::new(format!("w{n}"), random.next(), contest.clone())).collect();
    let service = Service::start_ready(program(), &data, &settings);
    create_filters(&service.client());
    let mut service = Some(service);
    for _ in 0..kills {
        let running = service.take().unwrap_or_else(|| Service::start_ready(program(), &data, &settings));
        check(&running.client(), &mut workers, &contest);
        load_until_killed(running, &mut workers, random);
        if random.below(4) == 0 {
            // Killed again before it has recovered: recovery itself must be repeatable.
            let starting = Service::start(program(), &data, &settings);
            std::thread::sleep(Duration::from_millis(random.below(50)));
            starting.kill();
        }
    }
    let last = Service::start_ready(program(), &data, &settings);
    check(&last.client(), &mut workers, &contest);
    assert!(last.terminate().success(), "SIGTERM ends it well");
    let last = Service::start_ready(program(), &data, &settings);
    check(&last.client(), &mut workers, &contest);
    last.kill();
    let verified = Command::new(program()).arg("verify").arg(&data).output().unwrap();
    assert!(verified.status.success(), "{verified:?}");
}

fn create_filters(client: &Client) {
    let strict = json!({ "capacity": 500, "mode": "strict" });
    let compact = json!({ "capacity": 500, "error_rate": 0.0001 });
    for (path, spec) in [
        ("/v1/campaigns/strict", &strict),
        ("/v1/campaigns/compact", &compact),
        ("/v1/coupons/codes", &strict),
    ] {
        let answer = client.put(path, spec).unwrap();
        assert_eq!(answer.status, 201, "{path}: {answer:?}");
    }
    let codes = json!({ "codes": Contest::codes(CONTEST_CODES) });
    let answer = client.post("/v1/coupons/codes/codes", &codes).unwrap();
    assert_eq!(answer.status, 200, "{answer:?}");
}

fn load_until_killed(service: Service, workers: &mut [Worker], random: &mut Random) {
    let (acknowledged, acknowledgements) = mpsc::channel();
    let enough = random.below(ACKNOWLEDGED_MAX);
    let moment = Duration::from_micros(random.below(3_000));
    std::thread::scope(|scope| {
        for worker in workers {
            let (client, acknowledged) = (service.client().another(), acknowledged.clone());
            scope.spawn(move || worker.work(&client, &acknowledged));
        }
        // Only the workers hold it now: should they all give up, waiting ends in a failure, not never.
        drop(acknowledged);
        for _ in 0..enough {
            acknowledgements.recv().expect("a worker still gets answers");
        }
        // Anywhere between one acknowledgement and the next.
        std::thread::sleep(moment);
        service.kill();
    });
}

fn check(client: &Client, workers: &mut [Worker], contest: &Mutex<Contest>) {
    // First what the restart brought back by itself, then with what was under way sent again.
    workers.iter().for_each(|worker| worker.verify(client));
    contest.lock().unwrap().verify_lost(client);
    for worker in workers.iter_mut() {
        worker.settle(client);
    }
    for worker in workers.iter() {
        worker.verify(client);
    }
    let contest = contest.lock().unwrap();
    contest.verify(client);
    let sum = |part: fn(&Worker) -> usize| workers.iter().map(part).sum::<usize>();
    let stats = |path: &str| client.get(path).unwrap().body["stats"].clone();
    assert_eq!(stats("/v1/campaigns/strict")["items"], sum(|worker| worker.strict_users.len()));
    assert_eq!(stats("/v1/campaigns/compact")["items"], sum(|worker| worker.compact_users.len()));
    let codes = stats("/v1/coupons/codes");
    assert_eq!(codes["redeemed"], sum(|worker| worker.redeemed.len()) + contest.count());
    let available = sum(|worker| worker.codes.len()) + CONTEST_CODES as usize - contest.count();
    assert_eq!(codes["available"], available);
}
