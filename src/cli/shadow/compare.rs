//! Asks Redis and the service about the same items, and counts where they disagree.

use super::commands::open;
use super::mirror::{ITEMS_MAX, Target, item};
use super::redis::Redis;
use anyhow::{Context, bail};
use serde::Serialize;
use std::io::BufRead;
use std::path::Path;
use std::time::Instant;

/// Maximum number of disagreements that are listed.
const LISTED_MAX: usize = 100;

/// The comparison, as it is printed. It lists lines, not items, for those may be secrets.
#[derive(Serialize, Default)]
pub struct Comparison {
    compared: u64,
    both: u64,
    neither: u64,
    only_redis: u64,
    only_cuckood: u64,
    /// The first of them.
    disagreements: Vec<Disagreement>,
    seconds: f64,
}

/// An item that only one has.
#[derive(Serialize)]
struct Disagreement {
    line: u64,
    redis: bool,
    cuckood: bool,
}

impl Comparison {
    /// How many items only one of the two has.
    pub fn disagreements(&self) -> u64 {
        self.only_redis + self.only_cuckood
    }

    fn count(&mut self, line: u64, redis: bool, cuckood: bool) {
        let of = match (redis, cuckood) {
            (true, true) => &mut self.both,
            (false, false) => &mut self.neither,
            (true, false) => &mut self.only_redis,
            (false, true) => &mut self.only_cuckood,
        };
        *of += 1;
        self.compared += 1;
        if redis != cuckood && self.disagreements.len() < LISTED_MAX {
            self.disagreements.push(Disagreement { line, redis, cuckood });
        }
    }
}

/// Asks both about each item of a file, or of standard input for `-`.
///
/// # Errors
/// If one of them can't be asked, or the file holds what is no item.
pub fn run(redis: &mut Redis, key: &str, target: &Target, path: &Path) -> anyhow::Result<Comparison> {
    let question = match redis.type_of(key)?.as_str() {
        "set" => "SMISMEMBER",
        "MBbloomCF" => "CF.MEXISTS",
        kind => bail!("the key `{key}` in Redis is of the type {kind}, neither a set nor a cuckoo filter"),
    };
    let name = path.display().to_string();
    let mut lines = (1..).zip(open(path)?.split(b'\n'));
    let (start, mut comparison) = (Instant::now(), Comparison::default());
    loop {
        let (mut numbers, mut items) = (Vec::new(), Vec::new());
        for (number, line) in lines.by_ref() {
            let line = line.with_context(|| name.clone())?;
            let line = line.strip_suffix(b"\r").unwrap_or(&line);
            if !line.is_empty() {
                let fault = || format!("{name}, line {number}: an item is UTF-8 of at most 512 bytes");
                items.push(item(line.to_vec()).with_context(fault)?);
                numbers.push(number);
            }
            if items.len() == ITEMS_MAX {
                break;
            }
        }
        if items.is_empty() {
            return Ok(Comparison { seconds: start.elapsed().as_secs_f64(), ..comparison });
        }
        let in_redis: Vec<bool> = redis.query(redis::cmd(question).arg(key).arg(&items))?;
        let in_cuckood = target.check(&items)?;
        if in_redis.len() != items.len() || in_cuckood.len() != items.len() {
            bail!("a response has not as many parts as the question");
        }
        for ((line, redis), cuckood) in numbers.into_iter().zip(in_redis).zip(in_cuckood) {
            comparison.count(line, redis, cuckood);
        }
    }
}
