//! `load curve PROGRAM`: latency over load. Each server is loaded without a pause first, and then at constant parts of that rate.

use crate::compare::print;
use crate::drive::{NEVER, Outcome, Plan, run};
use crate::request::{ITEM, Items, Numbers, Request};
use crate::server::{Client, Processors, Result, Server, redis_files};
use crate::{CHECKED, Options, prepare};
use std::time::Duration;

/// Percentages of the rate without a pause.
const LOADS: [f64; 9] = [10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0];

pub fn curve(options: &Options) -> Result<()> {
    let processors = Processors::split()?;
    let cuckood = Server::cuckood(&options.program, &processors)?;
    let redis = Server::redis(&redis_files()?, &processors)?;
    for port in [cuckood.resp, redis.resp] {
        prepare(&mut Client::connect(port)?, CHECKED)?;
    }
    let path = "/v1/campaigns/bench/users/check";
    let http = Request::http("POST", path, &format!(r#"{{"users":["{ITEM}"]}}"#), 200);
    let resp = Request::resp(&["CF.EXISTS", "bench", ITEM]);
    print(&format!(
        "{:16} {:>6} {:>10} {:>26}",
        "", "load", "checks/s", "p50/p99/p99.9, ms"
    ))?;
    for (title, port, check) in [
        ("check, HTTP", cuckood.http, &http),
        ("CF.EXISTS", cuckood.resp, &resp),
        ("CF.EXISTS, Redis", redis.resp, &resp),
    ] {
        let mut check = check.clone();
        let mut numbers = Numbers::new();
        check.items = Items::Random(CHECKED);
        let mut load = |rate| {
            let connections = options.connections;
            let duration = Duration::from_secs_f64(options.seconds);
            let plan = Plan {
                connections,
                pipeline: 1,
                duration,
                requests_max: usize::MAX,
                rate,
                is_over: &NEVER,
            };
            run(port, &mut check, &mut numbers, &plan)
        };
        let full = load(None)?;
        show(title, 100.0, &full)?;
        for percent in LOADS {
            show(title, percent, &load(Some(rate(&full) * percent / 100.0))?)?;
        }
    }
    Ok(())
}

fn rate(outcome: &Outcome) -> f64 {
    outcome.latencies.len() as f64 / outcome.elapsed.as_secs_f64()
}

fn show(title: &str, percent: f64, outcome: &Outcome) -> Result<()> {
    let times = [0.5, 0.99, 0.999]
        .map(|part| format!("{:.2}", outcome.quantile(part)))
        .join("/");
    print(&format!(
        "{title:16} {percent:>5}% {:>10.0} {times:>26}",
        rate(outcome)
    ))
}
