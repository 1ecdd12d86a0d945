//! Looks up the same items in Redis and the service, and counts disagreements.

use super::mirror::{ITEMS_MAX, MirrorTarget, item};
use super::redis::Redis;
use crate::cli::open;
use anyhow::{Context, bail};
use serde_json::{Value, json};
use std::io::{BufRead, Read};
use std::path::Path;
use std::time::Instant;

/// Maximum size of a line, in bytes.
const LINE_BYTES_MAX: u64 = 4_096;

/// Maximum number of disagreements that are listed.
const LISTED_MAX: usize = 100;

/// Looks up each item of a file, or of standard input for `-`, in both. Returns the number of disagreements, and the report. The report lists
/// line numbers, because items may be secrets.
///
/// # Errors
/// If one of them can't be reached, or a line is not a valid item.
pub fn run(
    redis: &mut Redis,
    key: &str,
    target: &MirrorTarget,
    path: &Path,
) -> anyhow::Result<(u64, Value)> {
    let question = match redis.type_of(key)?.as_str() {
        "set" => "SMISMEMBER",
        "MBbloomCF" => "CF.MEXISTS",
        kind => bail!(
            "the key `{key}` in Redis is of the type {kind}, neither a set nor a cuckoo filter"
        ),
    };
    let name = path.display().to_string();
    let mut lines = open(path)?;
    let mut number = 0u64;
    // By whether Redis has the item, and whether the service has.
    let start = Instant::now();
    let mut counts = [[0u64; 2]; 2];
    let mut listed = Vec::new();
    loop {
        let mut numbers = Vec::new();
        let mut items = Vec::new();
        while items.len() < ITEMS_MAX {
            let mut line = Vec::new();
            let read = lines
                .by_ref()
                .take(LINE_BYTES_MAX)
                .read_until(b'\n', &mut line);
            if read.with_context(|| name.clone())? == 0 {
                break;
            }
            number += 1;
            let line = line.strip_suffix(b"\n").unwrap_or(&line);
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            if !line.is_empty() {
                let fault =
                    || format!("{name}, line {number}: an item is UTF-8 of at most 512 bytes");
                items.push(item(line.to_vec()).with_context(fault)?);
                numbers.push(number);
            }
        }
        if items.is_empty() {
            break;
        }
        let in_redis: Vec<bool> = redis.query(redis::cmd(question).arg(key).arg(&items))?;
        let in_cuckood = target.check(&items)?;
        if in_redis.len() != items.len() || in_cuckood.len() != items.len() {
            bail!("the response has a different number of results than the request");
        }
        for ((line, redis), cuckood) in numbers.into_iter().zip(in_redis).zip(in_cuckood) {
            counts[usize::from(redis)][usize::from(cuckood)] += 1;
            if redis != cuckood && listed.len() < LISTED_MAX {
                listed.push(json!({ "line": line, "redis": redis, "cuckood": cuckood }));
            }
        }
    }
    let [[neither, only_cuckood], [only_redis, both]] = counts;
    let different = only_redis + only_cuckood;
    let seconds = start.elapsed().as_secs_f64();
    let comparison = json!({
        "compared": both + neither + different,
        "both": both,
        "neither": neither,
        "only_redis": only_redis,
        "only_cuckood": only_cuckood,
        "disagreements": listed,
        "seconds": seconds,
    });
    Ok((different, comparison))
}
