//! `load http|resp|flash-sale|webdis PROGRAM`: compares cuckood with Redis and RedisBloom. Both servers are fresh processes on the first
//! processor; this program loads both, in one thread on the other processors. A failed request ends it. `load beside PROGRAM` measures
//! checks during an import, `load curve` latency over load, `load start` the startup with many campaigns, `load scale` a large filter, and
//! `load attack` honest clients during an attack.

mod attack;
mod beside;
mod compare;
mod curve;
mod drive;
mod reply;
mod request;
mod scale;
mod server;
mod start;

use clap::{Parser, ValueEnum};
use compare::{Comparison, Row, print};
use request::{ITEM, Items, Request};
use server::{Client, Result, Server};
use std::path::PathBuf;
use std::time::Instant;

/// Items in the filters that are checked; items of the checks. Half of the checks find theirs.
const FILLED: u32 = 1_000_000;
const CHECKED: u32 = 2_000_000;

const IMPORTED: u32 = 10_000_000;

/// Items that a round of writes adds at most, so that filters don't outgrow their capacity.
const ADDED_MAX: u32 = 2_000_000;

#[derive(Parser)]
#[command(about = "Compares cuckood with Redis and RedisBloom, with one load generator for both")]
struct Options {
    benchmark: Benchmark,
    /// The cuckood program to measure
    program: PathBuf,
    /// Rounds per row
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Maximum duration of a round
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    #[arg(long, default_value_t = 50)]
    connections: usize,
    /// Requests that a connection sends together, in the pipelined rows
    #[arg(long, default_value_t = 16)]
    pipeline: usize,
    /// Requests per second; response times then count from the time when a request was due
    #[arg(long)]
    rate: Option<f64>,
    /// Servers and load share all processors
    #[arg(long)]
    shared: bool,
    /// Only the rows whose title contains this
    #[arg(long, default_value = "")]
    row: String,
    /// Users of `scale`
    #[arg(long, default_value_t = 1_000_000_000, value_parser = clap::value_parser!(u32).range(2_000_000..=4_000_000_000))]
    items: u32,
}

#[derive(Clone, Copy, ValueEnum)]
enum Benchmark {
    Http,
    Resp,
    FlashSale,
    Webdis,
    Beside,
    Curve,
    Start,
    Scale,
    Attack,
}

fn main() -> Result<()> {
    let options = Options::parse();
    match options.benchmark {
        Benchmark::Http => http(options),
        Benchmark::Resp => resp(options),
        Benchmark::FlashSale => flash_sale(options),
        Benchmark::Webdis => webdis(options),
        Benchmark::Beside => beside::beside(&options),
        Benchmark::Curve => curve::curve(&options),
        Benchmark::Start => start::start(&options),
        Benchmark::Scale => scale::scale(&options),
        Benchmark::Attack => attack::attack(&options),
    }
}

/// Checks, durable adds and an import over HTTP.
fn http(options: Options) -> Result<()> {
    let mut comparison = Comparison::start(options)?;
    let ports = [comparison.ours.http, comparison.redis.resp];
    fill(&comparison)?;
    Client::connect(comparison.redis.resp)?.fill(&["SADD", "set"], FILLED)?;
    comparison.print_head()?;
    let rows: [(_, _, _, &[&str]); 7] = [
        (
            "check 1, CF.EXISTS",
            "bench/users/check",
            1,
            &["CF.EXISTS", "bench"],
        ),
        (
            "check 1, SISMEMBER",
            "bench/users/check",
            1,
            &["SISMEMBER", "set"],
        ),
        (
            "check 1,000, CF.MEXISTS",
            "bench/users/check",
            1_000,
            &["CF.MEXISTS", "bench"],
        ),
        (
            "check 1,000, SMISMEMBER",
            "bench/users/check",
            1_000,
            &["SMISMEMBER", "set"],
        ),
        (
            "durable add 1, CF.ADD",
            "added/users",
            1,
            &["CF.ADD", "added"],
        ),
        (
            "durable add 1, SADD",
            "added/users",
            1,
            &["SADD", "added-set"],
        ),
        (
            "durable add 1,000, CF.INSERT",
            "added/users",
            1_000,
            &["CF.INSERT", "added", "ITEMS"],
        ),
    ];
    for (title, path, count, command) in rows {
        let mut ours = users(path, count);
        let (theirs, requests_max) = with_items(command, count);
        ours.items = theirs.items;
        comparison.compare(Row {
            title,
            ports,
            ours,
            theirs,
            pipeline: 1,
            requests_max,
        })?;
    }
    floor(&mut comparison)?;
    if "import".contains(&comparison.options.row) {
        import(&comparison)
    } else {
        Ok(())
    }
}

/// Fills the filters of both for checks over HTTP, and creates those for adds.
fn fill(comparison: &Comparison) -> Result<()> {
    let added = added(comparison);
    let mut ours = Client::connect(comparison.ours.http)?;
    let checked = format!(r#"{{"capacity":{CHECKED}}}"#);
    ours.put("/v1/campaigns/bench", &checked)?;
    ours.put("/v1/campaigns/added", &format!(r#"{{"capacity":{added}}}"#))?;
    ours.import("bench", "append", FILLED)?;
    prepare(&mut Client::connect(comparison.redis.resp)?, added)
}

/// A request about this many users of a campaign.
fn users(path: &str, count: usize) -> Request {
    let users = vec![format!("\"{ITEM}\""); count].join(",");
    let body = format!(r#"{{"users":[{users}]}}"#);
    Request::http("POST", &format!("/v1/campaigns/{path}"), &body, 200)
}

/// HTTP on both sides: webdis turns requests into commands of Redis.
fn webdis(options: Options) -> Result<()> {
    let comparison = Comparison::start(options)?;
    fill(&comparison)?;
    let mut comparison = comparison.behind_webdis()?;
    let ports = [comparison.ours.http, comparison.redis.http];
    comparison.print_head()?;
    for (title, path, count, command) in [
        ("check 1, webdis", "bench/users/check", 1, "CF.EXISTS/bench"),
        (
            "check 1,000, webdis",
            "bench/users/check",
            1_000,
            "CF.MEXISTS/bench",
        ),
        ("durable add 1, webdis", "added/users", 1, "CF.ADD/added"),
    ] {
        let mut ours = users(path, count);
        let command = format!("{command}{}", format!("/{ITEM}").repeat(count));
        let mut theirs = Request::http("POST", "/", &command, 200);
        let (Request { items, .. }, requests_max) = with_items(&["", path], count);
        ours.items = items;
        theirs.items = items;
        comparison.compare(Row {
            title,
            ports,
            ours,
            theirs,
            pipeline: 1,
            requests_max,
        })?;
    }
    Ok(())
}

/// The check of one user, served by hyper without a service.
fn floor(comparison: &mut Comparison) -> Result<()> {
    comparison.ours = Server::bare(&comparison.processors)?;
    let (theirs, requests_max) = with_items(&["CF.EXISTS", "bench"], 1);
    let mut ours = Request::http("POST", "/", &format!(r#"{{"users":["{ITEM}"]}}"#), 200);
    ours.items = theirs.items;
    let title = "bare hyper, CF.EXISTS";
    let ports = [comparison.ours.http, comparison.redis.resp];
    comparison.compare(Row {
        title,
        ports,
        ours,
        theirs,
        pipeline: 1,
        requests_max,
    })
}

/// CF.* commands on both sides.
fn resp(options: Options) -> Result<()> {
    let mut comparison = Comparison::start(options)?;
    let ports = [comparison.ours.resp, comparison.redis.resp];
    let added = added(&comparison);
    for port in ports {
        prepare(&mut Client::connect(port)?, added)?;
    }
    comparison.print_head()?;
    let many = comparison.options.pipeline;
    let rows: [(_, _, _, &[&str]); 5] = [
        ("CF.EXISTS", 1, 1, &["CF.EXISTS", "bench"]),
        ("CF.EXISTS", many, 1, &["CF.EXISTS", "bench"]),
        ("CF.MEXISTS of 1,000", 1, 1_000, &["CF.MEXISTS", "bench"]),
        ("CF.ADD fsync, always", 1, 1, &["CF.ADD", "added"]),
        ("CF.ADD fsync, always", many, 1, &["CF.ADD", "added"]),
    ];
    for (title, pipeline, count, command) in rows {
        let title = &format!("{title}, -P {pipeline}");
        let (theirs, requests_max) = with_items(command, count);
        comparison.compare(Row {
            title,
            ports,
            ours: theirs.clone(),
            theirs,
            pipeline,
            requests_max,
        })?;
    }
    Ok(())
}

/// Redemptions in an open pool over HTTP, and a Lua script in Redis, each by a new user.
fn flash_sale(options: Options) -> Result<()> {
    let mut comparison = Comparison::start(options)?;
    let ports = [comparison.ours.http, comparison.redis.resp];
    let [mut ours, mut theirs] = [Client::connect(ports[0])?, Client::connect(ports[1])?];
    let loaded = theirs.command(&[
        "SCRIPT",
        "LOAD",
        include_str!("../../../benches/flash-sale/stock.lua"),
    ])?;
    let script = loaded
        .lines()
        .nth(1)
        .ok_or("SCRIPT LOAD returned no hash")?;
    comparison.print_head()?;
    for (title, stock, status) in [
        ("while stocks last, Lua", 100_000_000, 201),
        ("sold out, Lua", 1, 409),
    ] {
        let coupon = format!("/v1/coupons/stock-{stock}");
        ours.put(
            &coupon,
            &format!(r#"{{"capacity":1000000,"stock":{stock}}}"#),
        )?;
        let redeem = |user: &str, status| {
            let body = format!(r#"{{"code":"{user}","reference":"order-{user}"}}"#);
            Request::http("POST", &format!("{coupon}/redemptions"), &body, status)
        };
        ours.call(&redeem("first", 201))?;
        let left = format!("{stock}:left");
        let users = format!("{stock}:users");
        theirs.command(&["SET", &left, &(stock - 1).to_string()])?;
        let ours = redeem(ITEM, status);
        let theirs = Request::resp(&["EVALSHA", script, "2", &left, &users, ITEM]);
        let requests_max = ADDED_MAX as usize;
        comparison.compare(Row {
            title,
            ports,
            ours,
            theirs,
            pipeline: 1,
            requests_max,
        })?;
    }
    Ok(())
}

/// Returns the capacity for the adds of two rows, and half a row more.
fn added(comparison: &Comparison) -> u32 {
    ADDED_MAX * comparison.options.rounds * 5 / 2
}

/// Creates the filter for checks, with items, and an empty one for `added` items.
fn prepare(client: &mut Client, added: u32) -> Result<()> {
    client.command(&["CF.RESERVE", "bench", &CHECKED.to_string()])?;
    client.command(&["CF.RESERVE", "added", &added.to_string()])?;
    client.fill(&["CF.INSERT", "bench", "ITEMS"], FILLED)
}

/// Returns a request with `count` items, and how many of them a round sends at most.
fn with_items(command: &[&str], count: usize) -> (Request, usize) {
    let words: Vec<&str> = command
        .iter()
        .copied()
        .chain(std::iter::repeat_n(ITEM, count))
        .collect();
    let mut request = Request::resp(&words);
    if command[1].starts_with("added") {
        return (request, ADDED_MAX as usize / count);
    }
    request.items = Items::Random(CHECKED);
    (request, usize::MAX)
}

/// Measures the memory that ten million items take in fresh processes.
fn import(comparison: &Comparison) -> Result<()> {
    let Comparison {
        options,
        processors,
        redis_files,
        ..
    } = comparison;
    let cuckood = Server::cuckood(&options.program, processors)?;
    let mut client = Client::connect(cuckood.http)?;
    let before = cuckood.resident()?;
    client.put(
        "/v1/campaigns/large",
        &format!(r#"{{"capacity":{IMPORTED}}}"#),
    )?;
    let start = Instant::now();
    client.import("large", "append", IMPORTED)?;
    let rate = f64::from(IMPORTED) / start.elapsed().as_secs_f64() / 1e6;
    let more = cuckood.resident()?.saturating_sub(before) / 1_000_000;
    let campaign = client.call(&Request::http("GET", "/v1/campaigns/large", "", 200))?;
    let table = campaign
        .split_once("\"memory_bytes\":")
        .ok_or("no memory_bytes")?
        .1;
    let table = table
        .split(|c: char| !c.is_ascii_digit())
        .next()
        .unwrap_or_default()
        .parse::<u64>()?
        / 1_000_000;
    print(&format!(
        "cuckood, import of 10 M: {rate:.1} M lines/s; {more} MB more resident, the table is {table} MB"
    ))?;
    drop(cuckood);
    let redis = Server::redis(redis_files, processors)?;
    let mut client = Client::connect(redis.resp)?;
    let before = redis.resident()?;
    client.command(&["CF.RESERVE", "large", &IMPORTED.to_string()])?;
    client.fill(&["CF.INSERT", "large", "ITEMS"], IMPORTED)?;
    let more = redis.resident()?.saturating_sub(before) / 1_000_000;
    print(&format!(
        "Redis, CF.INSERT of 10 M: {more} MB more resident"
    ))
}
