//! `load beside PROGRAM`: the latency of paced checks on one processor: alone, during an import, and during a replacement. Each round has
//! fresh processes.

use crate::compare::print;
use crate::drive::{Plan, run};
use crate::request::{ITEM, Items, Numbers, Request, append_line, http_head};
use crate::server::{Client, Processors, Result, Server, redis_files};
use crate::{CHECKED, FILLED, IMPORTED, Options};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

/// Checks per second, unless `--rate` sets another rate.
const RATE: f64 = 20_000.0;

const REPLACED: u32 = 5_000_000;

/// Work during the checks.
type Work<'a> = dyn Fn() -> Result<()> + Sync + 'a;

pub fn beside(options: &Options) -> Result<()> {
    let processors = Processors::split()?;
    print(&format!(
        "{:24} {:>10} {:>10} {:>30}",
        "checks during", "seconds", "checks/s", "p50/p99/p99.9/max, ms"
    ))?;
    let path = "/v1/campaigns/bench/users/check";
    let check = Request::http("POST", path, &format!(r#"{{"users":["{ITEM}"]}}"#), 200);
    for _ in 0..options.rounds {
        let cuckood = Server::cuckood(&options.program, &processors)?;
        let port = cuckood.http;
        let mut client = Client::connect(cuckood.http)?;
        client.put(
            "/v1/campaigns/bench",
            &format!(r#"{{"capacity":{CHECKED}}}"#),
        )?;
        client.put(
            "/v1/campaigns/large",
            &format!(r#"{{"capacity":{IMPORTED}}}"#),
        )?;
        client.import("bench", "append", FILLED)?;
        let pause = || {
            thread::sleep(Duration::from_secs_f64(options.seconds));
            Ok(())
        };
        measure("nothing, cuckood", port, &check, options, &pause)?;
        measure(
            "import, cuckood",
            port,
            &check,
            options,
            &upload(port, "append", IMPORTED),
        )?;
        measure(
            "replacement, cuckood",
            port,
            &check,
            options,
            &upload(port, "replace", REPLACED),
        )?;
        drop(cuckood);
        let redis = Server::redis(&redis_files()?, &processors)?;
        let port = redis.resp;
        let mut client = Client::connect(redis.resp)?;
        client.command(&["CF.RESERVE", "bench", &CHECKED.to_string()])?;
        client.command(&["CF.RESERVE", "large", &IMPORTED.to_string()])?;
        client.fill(&["CF.INSERT", "bench", "ITEMS"], FILLED)?;
        let check = Request::resp(&["CF.EXISTS", "bench", ITEM]);
        measure("nothing, Redis", port, &check, options, &pause)?;
        let fill = || Client::connect(port)?.fill(&["CF.INSERT", "large", "ITEMS"], IMPORTED);
        measure("import, Redis", port, &check, options, &fill)?;
    }
    Ok(())
}

/// Returns an upload of `count` lines, which are prepared: the load shares a processor with the checks' generator.
fn upload(port: u16, mode: &str, count: u32) -> impl Fn() -> Result<()> + Sync + use<> {
    let path = format!("/v1/campaigns/large/imports?mode={mode}");
    let mut lines = Vec::new();
    (0..count).for_each(|number| append_line(number, &mut lines));
    let head = http_head("POST", &path, "text/plain", lines.len());
    move || {
        Client::connect(port)?
            .send(head.as_bytes(), &lines)
            .map(drop)
    }
}

/// Checks at a constant rate until the work is done, and prints the response times from when each check was due.
fn measure(
    title: &str,
    port: u16,
    check: &Request,
    options: &Options,
    work: &Work<'_>,
) -> Result<()> {
    let is_over = AtomicBool::new(false);
    let mut check = check.clone();
    let mut numbers = Numbers::new();
    check.items = Items::Random(CHECKED);
    let plan = Plan {
        connections: options.connections,
        pipeline: 1,
        duration: Duration::MAX,
        requests_max: usize::MAX,
        rate: Some(options.rate.unwrap_or(RATE)),
        is_over: &is_over,
    };
    let (outcome, took) = thread::scope(|scope| {
        let working = scope.spawn(|| {
            let start = Instant::now();
            let worked = work().map_err(|error| error.to_string());
            is_over.store(true, Relaxed);
            worked.map(|()| start.elapsed())
        });
        let outcome = run(port, &mut check, &mut numbers, &plan);
        (
            outcome,
            working
                .join()
                .unwrap_or_else(|_| Err("the work panicked".to_owned())),
        )
    });
    let outcome = outcome?;
    let took = took?.as_secs_f64();
    let rate = outcome.latencies.len() as f64 / outcome.elapsed.as_secs_f64();
    let times = [0.5, 0.99, 0.999, 1.0]
        .map(|part| format!("{:.2}", outcome.quantile(part)))
        .join("/");
    print(&format!("{title:24} {took:>10.1} {rate:>10.0} {times:>30}"))
}
