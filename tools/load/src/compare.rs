//! Rows of a table: the same work on cuckood and on Redis, in alternating rounds.

use crate::Options;
use crate::drive::{NEVER, Plan, run};
use crate::request::{Numbers, Request};
use crate::server::{Processors, Result, Server, redis_files};
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

/// The two servers, and the load's state.
pub struct Comparison {
    pub options: Options,
    pub processors: Processors,
    pub redis_files: PathBuf,
    /// cuckood, unless a row compares another server.
    pub ours: Server,
    pub redis: Server,
    numbers: Numbers,
}

/// Work for both servers.
pub struct Row<'a> {
    pub title: &'a str,
    /// The ports of both.
    pub ports: [u16; 2],
    pub ours: Request,
    pub theirs: Request,
    pub pipeline: usize,
    pub requests_max: usize,
}

/// Requests per second, p50 and p99 in milliseconds, microseconds of processor time per request.
type Figures = [f64; 4];

impl Comparison {
    /// Starts both servers.
    pub fn start(options: Options) -> Result<Self> {
        let processors = match options.shared {
            false => Processors::split()?,
            true => Processors::shared()?,
        };
        let redis_files = redis_files()?;
        let ours = Server::cuckood(&options.program, &processors)?;
        let redis = Server::redis(&redis_files, &processors)?;
        Ok(Self {
            options,
            processors,
            redis_files,
            ours,
            redis,
            numbers: Numbers::new(),
        })
    }

    /// Puts webdis before Redis.
    pub fn behind_webdis(self) -> Result<Self> {
        let redis = Server::webdis(self.redis, &self.processors)?;
        Ok(Self { redis, ..self })
    }

    pub fn print_head(&self) -> Result<()> {
        let Options {
            connections,
            rounds,
            seconds,
            ..
        } = self.options;
        print(&format!(
            "{connections} connections, {rounds} rounds of {seconds} s; medians of cuckood and Redis"
        ))?;
        let [rates, times, processor] = ["requests/s", "p50/p99, ms", "processor, us/request"];
        print(&format!(
            "{:30} {rates:>20}  {:20} {times:>25}  {processor}",
            "", "ratio"
        ))
    }

    pub fn compare(&mut self, row: Row<'_>) -> Result<()> {
        let Row {
            title,
            ports: [our_port, their_port],
            mut ours,
            mut theirs,
            pipeline,
            requests_max,
        } = row;
        if !title.contains(&self.options.row) {
            return Ok(());
        }
        let Options {
            connections,
            seconds,
            rate,
            ..
        } = self.options;
        let duration = Duration::from_secs_f64(seconds);
        let is_over = &NEVER;
        let plan = Plan {
            connections,
            pipeline,
            duration,
            requests_max,
            rate,
            is_over,
        };
        let mut our_rounds = Vec::new();
        let mut their_rounds = Vec::new();
        for _ in 0..self.options.rounds {
            our_rounds.push(round(
                &self.ours,
                our_port,
                &mut ours,
                &mut self.numbers,
                &plan,
            )?);
            their_rounds.push(round(
                &self.redis,
                their_port,
                &mut theirs,
                &mut self.numbers,
                &plan,
            )?);
        }
        let (least, ratio, most) = spread(
            our_rounds
                .iter()
                .zip(&their_rounds)
                .map(|(ours, theirs)| ours[0] / theirs[0]),
        );
        let medians = |rounds: &[Figures]| {
            [0, 1, 2, 3].map(|figure| spread(rounds.iter().map(|round| round[figure])).1)
        };
        let [
            [our_rate, our_p50, our_p99, our_processor],
            [rate, p50, p99, processor],
        ] = [medians(&our_rounds), medians(&their_rounds)];
        let ratio = format!("{ratio:.2} ({least:.2} to {most:.2})");
        let [our_times, times] = [
            format!("{our_p50:.2}/{our_p99:.2}"),
            format!("{p50:.2}/{p99:.2}"),
        ];
        print(&format!(
            "{title:30} {our_rate:>9.0} {rate:>10.0}  {ratio:20} {our_times:>12} {times:>12}  {our_processor:>6.1} {processor:>6.1}"
        ))
    }
}

fn round(
    server: &Server,
    port: u16,
    request: &mut Request,
    numbers: &mut Numbers,
    plan: &Plan<'_>,
) -> Result<Figures> {
    let before = server.processor_time()?;
    let outcome = run(port, request, numbers, plan)?;
    let used = server.processor_time()?.saturating_sub(before);
    let count = outcome.latencies.len();
    if count == 0 {
        return Err("a round sent no request: raise --seconds".into());
    }
    let requests = count as f64;
    let rate = requests / outcome.elapsed.as_secs_f64();
    Ok([
        rate,
        outcome.quantile(0.5),
        outcome.quantile(0.99),
        used.as_secs_f64() * 1e6 / requests,
    ])
}

/// Returns the minimum, the median and the maximum.
fn spread(figures: impl Iterator<Item = f64>) -> (f64, f64, f64) {
    let mut figures: Vec<f64> = figures.collect();
    figures.sort_by(f64::total_cmp);
    (
        figures[0],
        figures[figures.len() / 2],
        figures[figures.len() - 1],
    )
}

pub fn print(line: &str) -> Result<()> {
    Ok(writeln!(std::io::stdout(), "{line}")?)
}
