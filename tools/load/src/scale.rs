//! `load scale PROGRAM`: the largest filter that fits on one machine. Imports `--items` users into a compact filter at 1%, checks,
//! takes a snapshot, restarts, and replaces all users.

use crate::Options;
use crate::compare::print;
use crate::drive::{NEVER, Plan, run};
use crate::request::{ITEM, Items, Numbers, Request, item};
use crate::server::{Client, Processors, Result, Server};
use std::time::{Duration, Instant};

/// Users that are looked up to measure the error rate. Each has a number above those of the members.
const STRANGERS: u32 = 1_000_000;

/// Users per request of these lookups.
const LISTED: u32 = 1_000;

pub fn scale(options: &Options) -> Result<()> {
    let processors = Processors::split()?;
    let items = options.items;
    let mut cuckood = Server::cuckood(&options.program, &processors)?;
    let created = format!(r#"{{"capacity":{items},"error_rate":0.01}}"#);
    Client::connect(cuckood.http)?.put("/v1/campaigns/large", &created)?;
    step(&cuckood, "import", || {
        Client::connect(cuckood.http)?.import("large", "append", items)
    })?;
    look_up(&cuckood, options)?;
    step(&cuckood, "snapshot", || {
        Client::connect(cuckood.http)?
            .call(&Request::http("POST", "/v1/snapshots", "", 200))
            .map(drop)
    })?;
    let start = Instant::now();
    cuckood.restart(&processors)?;
    step(
        &cuckood,
        &format!("startup of {:.1} s", start.elapsed().as_secs_f64()),
        || Ok(()),
    )?;
    look_up(&cuckood, options)?;
    step(&cuckood, "replacement", || {
        Client::connect(cuckood.http)?.import("large", "replace", items)
    })?;
    look_up(&cuckood, options)
}

/// Does a step, and prints its duration, the server's processor time in it, and its memory.
fn step(server: &Server, title: &str, work: impl FnOnce() -> Result<()>) -> Result<()> {
    let start = Instant::now();
    let before = server.processor_time()?;
    work()?;
    let seconds = start.elapsed().as_secs_f64();
    let used = server
        .processor_time()?
        .saturating_sub(before)
        .as_secs_f64();
    let [now, most] = server.memory()?.map(|bytes| bytes as f64 / 1e9);
    print(&format!(
        "{title:24} {seconds:>8.1} s, {used:.1} s of processor; {now:.2} GB resident, {most:.2} GB at most"
    ))
}

/// Checks single users without a pause, members that must be present, and strangers, of which some are.
fn look_up(server: &Server, options: &Options) -> Result<()> {
    let path = "/v1/campaigns/large/users/check";
    let mut check = Request::http("POST", path, &format!(r#"{{"users":["{ITEM}"]}}"#), 200);
    check.items = Items::Random(options.items);
    let connections = options.connections;
    let duration = Duration::from_secs_f64(options.seconds);
    let plan = Plan {
        connections,
        pipeline: 1,
        duration,
        requests_max: usize::MAX,
        rate: None,
        is_over: &NEVER,
    };
    let outcome = run(server.http, &mut check, &mut Numbers::new(), &plan)?;
    let rate = outcome.latencies.len() as f64 / outcome.elapsed.as_secs_f64();
    let mut client = Client::connect(server.http)?;
    let mut present = |from: u32| -> Result<usize> {
        let mut found = 0;
        for first in (from..from + STRANGERS).step_by(LISTED as usize) {
            let users: Vec<_> = (first..first + LISTED)
                .map(|number| format!("\"{}\"", item(number)))
                .collect();
            let body = format!(r#"{{"users":[{}]}}"#, users.join(","));
            found += client
                .call(&Request::http("POST", path, &body, 200))?
                .matches("true")
                .count();
        }
        Ok(found)
    };
    let members = present(options.items - STRANGERS)?;
    let strangers = present(options.items)?;
    let error = 100.0 * strangers as f64 / f64::from(STRANGERS);
    let missing = STRANGERS as usize - members;
    print(&format!(
        "checks: {rate:.0}/s, p99 {:.2} ms; {missing} members missing, {error:.2}% of strangers present",
        outcome.quantile(0.99)
    ))
}
