//! `load curve PROGRAM`: latency over load. Each server is loaded without a pause first, and then at constant parts of that rate. The rounds
//! of the servers alternate, so a pause of the host meets all of them; the medians of the rounds are printed.

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
    let mut targets = [
        ("check, HTTP", cuckood.http, http),
        ("CF.EXISTS", cuckood.resp, resp.clone()),
        ("CF.EXISTS, Redis", redis.resp, resp),
    ]
    .map(|(title, port, check)| Target::new(title, port, check));
    print(&format!(
        "{:16} {:>6} {:>10} {:>26}",
        "", "load", "checks/s", "p50/p99/p99.9, ms"
    ))?;
    for target in &mut targets {
        target.run(options, 1.0)?;
        target.full = target.show(100.0)?;
    }
    for percent in LOADS {
        for _ in 0..options.rounds {
            for target in &mut targets {
                target.run(options, percent / 100.0)?;
            }
        }
        for target in &mut targets {
            target.show(percent)?;
        }
    }
    Ok(())
}

/// A server under load.
struct Target {
    title: &'static str,
    port: u16,
    check: Request,
    numbers: Numbers,
    /// Its rate without a pause, once that is known.
    full: f64,
    /// The rounds at the present load.
    rounds: Vec<Outcome>,
}

impl Target {
    fn new(title: &'static str, port: u16, mut check: Request) -> Self {
        check.items = Items::Random(CHECKED);
        Self {
            title,
            port,
            check,
            numbers: Numbers::new(),
            full: 0.0,
            rounds: Vec::new(),
        }
    }

    /// Runs a round at a part of the rate without a pause.
    fn run(&mut self, options: &Options, part: f64) -> Result<()> {
        let is_paced = self.full > 0.0;
        let plan = Plan {
            connections: options.connections,
            pipeline: 1,
            duration: Duration::from_secs_f64(options.seconds),
            requests_max: usize::MAX,
            rate: is_paced.then_some(self.full * part),
            is_over: &NEVER,
        };
        let outcome = run(self.port, &mut self.check, &mut self.numbers, &plan)?;
        self.rounds.push(outcome);
        Ok(())
    }

    /// Prints the medians of the rounds, and returns the rate.
    fn show(&mut self, percent: f64) -> Result<f64> {
        let rounds = std::mem::take(&mut self.rounds);
        let median = |figure: &dyn Fn(&Outcome) -> f64| {
            let mut figures: Vec<f64> = rounds.iter().map(figure).collect();
            figures.sort_by(f64::total_cmp);
            figures[figures.len() / 2]
        };
        let times = [0.5, 0.99, 0.999]
            .map(|part| format!("{:.2}", median(&|round| round.quantile(part))))
            .join("/");
        let rate = median(&|round| round.latencies.len() as f64 / round.elapsed.as_secs_f64());
        let title = self.title;
        print(&format!(
            "{title:16} {percent:>5}% {rate:>10.0} {times:>26}"
        ))?;
        Ok(rate)
    }
}
