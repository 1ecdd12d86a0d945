//! 64 clients concurrently add, remove, redeem, hold, extend, confirm and cancel the same 100 codes over HTTP and RESP while the service is
//! killed and restarted, and holds expire: one order of the operations on a code must explain all its responses. An open pool is judged by
//! what no order could explain ([`pool`]).
//!
//! `LINEARIZABLE_SECONDS` says how long (6 if it is unset), `LINEARIZABLE_SEED` repeats a run's choices.

#![allow(missing_docs, clippy::unwrap_used, unreachable_pub)] // A failed `unwrap` fails the test; nothing here is public outside.

mod checker;
mod client;
mod model;
mod pool;
#[path = "../support/mod.rs"]
mod support;
mod three_nodes;
mod verdicts;

use checker::{Operation, check};
use client::{CODES, Door, Shop, code_name, now, work};
use cuckood_state::testing::random::Random;
use model::{Answer, Request, Status};
use serde_json::json;
use service::{Client, Service};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;
use support::{cluster, redis_client, routes, service, timeouts};
use timeouts::wait_until;

const CLIENTS: usize = 64;

/// How long the service lives between two kills.
const LIFE_SECONDS: u64 = 2;

/// Operations that are answered in each life, however slow the machine is.
const ANSWERED_MIN: u64 = 2_000;

/// Small enough that snapshots are taken, and log segments dropped, all the time.
const SETTINGS: &[(&str, &str)] = &[
    ("CUCKOOD__SNAPSHOTS__LOG_MIN", "256KiB"),
    ("CUCKOOD__SNAPSHOTS__LOG_MAX", "1MiB"),
    REDIS,
];

/// Redis clients are served as well.
const REDIS: (&str, &str) = ("CUCKOOD__RESP__LISTEN", "127.0.0.1:0");

#[test]
fn single_node_history_is_linearizable() {
    let seconds = number("LINEARIZABLE_SECONDS").unwrap_or(6);
    let seed = number("LINEARIZABLE_SEED").unwrap_or_else(|| u64::from(std::process::id()));
    eprintln!("LINEARIZABLE_SECONDS={seconds} LINEARIZABLE_SEED={seed}");
    let lives = (seconds / LIFE_SECONDS).max(2);
    let histories = histories(lives, seed);
    let longest = longest_write(&histories);
    eprintln!("{longest:>8} µs took the longest write");
    for (code, history) in histories.iter().enumerate() {
        check(history, longest).unwrap_or_else(|why| panic!("{}: {why}", code_name(code)));
    }
    assert!(
        histories
            .iter()
            .flatten()
            .any(|operation| operation.answer.is_none()),
        "no answer was lost"
    );
    assert_everything_happened(&histories, lives);
    assert_one_changed_answer_is_noticed(&histories[0], longest);
}

fn number(variable: &str) -> Option<u64> {
    Some(std::env::var(variable).ok()?.parse().unwrap())
}

/// The clients' operations on each code in this many lives of the service, all but the last ended by SIGKILL.
fn histories(lives: u64, seed: u64) -> Vec<Vec<Operation>> {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let program = Path::new(env!("CARGO_BIN_EXE_cuckood"));
    let shop = Shop::new();
    let mut randoms: Vec<Random> = {
        let mut seeds = Random::new(seed);
        (0..CLIENTS).map(|_| Random::new(seeds.next())).collect()
    };
    let mut histories = vec![Vec::new(); CODES];
    for life in 1..=lives {
        let service = Service::start_ready(program, &data, SETTINGS);
        if life == 1 {
            stock(&service.client());
        }
        let mut operations = live(service, &shop, &mut randoms, life == lives);
        // Nobody is left who could still do what was lost.
        let end = now();
        for (code, operation) in operations.iter_mut() {
            if operation.answer.is_none() {
                operation.returned = end;
            }
            histories[*code].push(operation.clone());
        }
    }
    histories
}

/// The time of readers stops while an entry is being logged, at most this many microseconds.
fn longest_write(histories: &[Vec<Operation>]) -> u64 {
    let is_write = |request| !matches!(request, Request::LookUp(_) | Request::Check);
    let writes = histories
        .iter()
        .flatten()
        .filter(|one| one.answer.is_some() && is_write(one.request));
    writes
        .map(|write| write.returned - write.called)
        .max()
        .unwrap_or_default()
}

fn stock(client: &Client) {
    let made = client
        .put("/v1/coupons/shop", &json!({ "capacity": CODES }))
        .unwrap();
    assert_eq!(made.status, 201, "{made:?}");
    let codes: Vec<String> = (0..CODES).map(code_name).collect();
    let added = client
        .post("/v1/coupons/shop/codes", &json!({ "codes": codes }))
        .unwrap();
    assert_eq!(added.body["added"], CODES, "{added:?}");
}

/// One life of the service, and its operations.
fn live(
    service: Service,
    shop: &Shop,
    randoms: &mut [Random],
    last: bool,
) -> Vec<(usize, Operation)> {
    shop.broken.store(0, Ordering::SeqCst);
    let answered = || shop.answered.load(Ordering::Relaxed);
    let broken = || shop.broken.load(Ordering::SeqCst);
    let before = answered();
    std::thread::scope(|scope| {
        let clients: Vec<_> = randoms
            .iter_mut()
            .enumerate()
            .map(|(number, random)| {
                let door = Door::of(number, &service);
                scope.spawn(move || work(shop, door, random))
            })
            .collect();
        // Not for anything to happen, but for the load to last.
        std::thread::sleep(Duration::from_secs(LIFE_SECONDS));
        wait_until("a load", || {
            answered() >= before + ANSWERED_MIN || broken() > 0
        });
        assert_eq!(
            broken(),
            0,
            "connections broke before the service was killed"
        );
        let survivor = if last {
            shop.closed.store(true, Ordering::Relaxed);
            assert_refused_unlogged(&service);
            Some(service)
        } else {
            service.kill();
            None
        };
        let operations: Vec<_> = clients
            .into_iter()
            .flat_map(|client| client.join().unwrap())
            .collect();
        if let Some(service) = survivor {
            assert_eq!(broken(), 0, "connections broke, but no node was killed");
            assert!(service.terminate().success(), "SIGTERM ends it well");
        }
        operations
    })
}

/// Some of the redemptions that were refused had no entry in the log.
fn assert_refused_unlogged(service: &Service) {
    let unlogged = service.metric("cuckood_refused_unlogged_total");
    let entries = service.metric("cuckood_entries_total");
    eprintln!("{unlogged:>8} refused without an entry, beside {entries} entries");
    assert!(unlogged > 0, "all had to be logged");
}

/// A run in which something never happened has shown nothing about it.
fn assert_everything_happened(histories: &[Vec<Operation>], lives: u64) {
    let count = |what: &str, is: &dyn Fn(&Operation) -> bool| {
        let count = histories
            .iter()
            .flatten()
            .filter(|operation| is(operation))
            .count();
        eprintln!("{count:>8} {what}");
        assert!(count > 0, "no {what}");
    };
    let lost = histories
        .iter()
        .flatten()
        .filter(|operation| operation.answer.is_none())
        .count();
    eprintln!("{:>8} kills, {lost} lost answers", lives - 1);
    count("operations", &|_| true);
    let found = |operation: &Operation, request: fn(Request) -> bool, status: Status| {
        request(operation.request)
            && matches!(operation.answer, Some(Answer::Found(seen)) if seen.status == status)
    };
    let is_redeem = |request| matches!(request, Request::Redeem { .. });
    let is_hold = |request| matches!(request, Request::Redeem { hold: Some(_), .. });
    count("won", &|operation| {
        matches!(operation.answer, Some(Answer::Created(_)))
    });
    count("repeated", &|operation| {
        found(operation, is_redeem, Status::Redeemed)
    });
    count("extended", &|operation| {
        found(operation, is_hold, Status::Held)
    });
    count("confirmed", &|operation| {
        found(
            operation,
            |request| matches!(request, Request::Confirm(_)),
            Status::Redeemed,
        )
    });
    count("cancelled", &|operation| {
        found(
            operation,
            |request| matches!(request, Request::Cancel(_)),
            Status::Cancelled,
        )
    });
    count("expired", &|operation| match operation.answer {
        Some(Answer::Found(seen)) => seen.status == Status::Expired,
        answer => answer == Some(Answer::HoldExpired),
    });
    for change in [Request::Add, Request::Remove] {
        let is_it = |operation: &Operation| {
            operation.request == change && operation.answer == Some(Answer::Changed(true))
        };
        count(&format!("over RESP: {change:?}"), &is_it);
    }
    for refusal in [
        Answer::CodeHeld,
        Answer::CodeRedeemed,
        Answer::CodeUnknown,
        Answer::RedemptionCancelled,
        Answer::Changed(false),
    ] {
        count(&format!("refused: {refusal:?}"), &|operation| {
            operation.answer == Some(refusal)
        });
    }
    count("looked up", &|operation| {
        matches!(operation.request, Request::LookUp(_))
    });
    count("checked", &|operation| operation.request == Request::Check);
}

/// The checker finds an error in this very history: a loser is made a second winner.
fn assert_one_changed_answer_is_noticed(history: &[Operation], late: u64) {
    let mut corrupted = history.to_vec();
    let loser = corrupted
        .iter_mut()
        .filter(|operation| operation.answer == Some(Answer::CodeRedeemed))
        .nth(10)
        .expect("the code is in demand");
    let Request::Redeem { reference, .. } = loser.request else {
        unreachable!("only redeeming is refused so")
    };
    let winner = model::Seen {
        id: 1,
        reference,
        status: Status::Redeemed,
        expires_at: None,
    };
    loser.request = Request::Redeem {
        reference,
        hold: None,
    };
    loser.answer = Some(Answer::Created(winner));
    assert!(
        check(&corrupted, late).is_err(),
        "a second winner was not noticed"
    );
}
