//! `load start PROGRAM`: the time until a service with many tiny campaigns is ready again, from a snapshot, and the memory of a campaign.

use crate::Options;
use crate::compare::print;
use crate::drive::{NEVER, Plan, run};
use crate::request::{ITEM, Numbers, Request};
use crate::server::{Client, Processors, Result, Server};
use std::time::{Duration, Instant};

const CAMPAIGNS: usize = 117_000;

pub fn start(options: &Options) -> Result<()> {
    let processors = Processors::split()?;
    let limit = [("CUCKOOD__LIMITS__FILTERS", "200000")];
    let mut cuckood = Server::cuckood_with(&options.program, &processors, &limit)?;
    let empty_bytes = cuckood.resident()?;
    let each = |bytes: u64| bytes.saturating_sub(empty_bytes) / CAMPAIGNS as u64;
    let mut create = Request::http(
        "PUT",
        &format!("/v1/campaigns/{ITEM}"),
        r#"{"capacity":100}"#,
        201,
    );
    let plan = Plan {
        connections: options.connections,
        pipeline: 1,
        duration: Duration::MAX,
        requests_max: CAMPAIGNS,
        rate: None,
        is_over: &NEVER,
    };
    let created = run(cuckood.http, &mut create, &mut Numbers::new(), &plan)?;
    let rate = CAMPAIGNS as f64 / created.elapsed.as_secs_f64();
    print(&format!(
        "{CAMPAIGNS} campaigns: {rate:.0} creations/s, {} bytes resident each",
        each(cuckood.resident()?)
    ))?;
    Client::connect(cuckood.http)?.call(&Request::http("POST", "/v1/snapshots", "", 200))?;
    for _ in 0..options.rounds {
        let start = Instant::now();
        cuckood.restart(&processors)?;
        print(&format!(
            "ready after {:.2} s, {} bytes resident each",
            start.elapsed().as_secs_f64(),
            each(cuckood.resident()?)
        ))?;
    }
    Ok(())
}
