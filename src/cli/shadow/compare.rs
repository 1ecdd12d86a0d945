//! Asks Redis and the service about the same items, and counts where they disagree.

use super::error::ShadowError;
use super::link::Link;
use super::target::{self, ITEMS_MAX, Target};
use super::value::Value;
use crate::cli::client::ClientError;
use serde::Serialize;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::time::Instant;

/// The longest line that is read, in bytes.
const LINE_BYTES_MAX: u64 = 4_096;

/// The most disagreements that are told one by one.
const TOLD_MAX: usize = 100;

/// How the answers compare, as it is printed. Items are not repeated, for they may be secrets: their lines are told.
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
        if redis != cuckood && self.disagreements.len() < TOLD_MAX {
            self.disagreements.push(Disagreement { line, redis, cuckood });
        }
    }
}

/// Asks both about each item of a file, or of standard input for `-`.
///
/// # Errors
/// If one of them can't be asked, or the file holds what is no item.
pub fn run(redis: &mut Link, key: &str, target: &Target<'_>, path: &Path) -> Result<Comparison, ShadowError> {
    let question = question(redis, key)?;
    let name = path.display().to_string();
    let file_error = |source| ClientError::File { path: name.clone(), source };
    let from: Box<dyn Read> = match name.as_str() {
        "-" => Box::new(io::stdin()),
        _ => Box::new(File::open(path).map_err(file_error)?),
    };
    let mut from = BufReader::new(from);
    let (began, mut comparison) = (Instant::now(), Comparison::default());
    let mut line = 0;
    loop {
        let (mut lines, mut items) = (Vec::new(), Vec::new());
        while items.len() < ITEMS_MAX
            && let Some(bytes) = next_line(&mut from).map_err(file_error)?
        {
            line += 1;
            if bytes.is_empty() {
                continue;
            }
            let fault =
                || ShadowError::Unfit(format!("{name}, line {line}: an item is UTF-8 of at most 512 bytes"));
            items.push(target::item(bytes).ok_or_else(fault)?);
            lines.push(line);
        }
        if items.is_empty() {
            return Ok(Comparison { seconds: began.elapsed().as_secs_f64(), ..comparison });
        }
        let in_redis = ask(redis, question, key, &items)?;
        let in_cuckood = target.check(&items)?;
        if in_redis.len() != items.len() || in_cuckood.len() != items.len() {
            return Err(ShadowError::Unfit("an answer has not as many parts as the question".into()));
        }
        for ((line, redis), cuckood) in lines.into_iter().zip(in_redis).zip(in_cuckood) {
            comparison.count(line, redis, cuckood);
        }
    }
}

/// The command that asks about several items of the key.
fn question(redis: &mut Link, key: &str) -> Result<&'static str, ShadowError> {
    let unfit = |what: &str| Err(ShadowError::Unfit(format!("the key `{key}` in Redis {what}")));
    match redis.call(&[b"TYPE", key.as_bytes()])? {
        Value::Text(kind) => match kind.as_str() {
            "set" => Ok("SMISMEMBER"),
            "MBbloomCF" => Ok("CF.MEXISTS"),
            "none" => unfit("does not exist"),
            kind => unfit(&format!("is of the type {kind}, neither a set nor a cuckoo filter")),
        },
        _ => unfit("has no type"),
    }
}

fn ask(redis: &mut Link, question: &str, key: &str, items: &[String]) -> Result<Vec<bool>, ShadowError> {
    let arguments: Vec<&[u8]> =
        [question.as_bytes(), key.as_bytes()].into_iter().chain(items.iter().map(String::as_bytes)).collect();
    match redis.call(&arguments)? {
        Value::List(answers) => Ok(answers.iter().map(|answer| *answer == Value::Integer(1)).collect()),
        _ => Err(ShadowError::Unfit(format!("Redis answers {question} with no list"))),
    }
}

/// The next line without its end.
fn next_line(from: &mut impl BufRead) -> io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    from.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line)?;
    if line.is_empty() {
        return Ok(None);
    }
    if line.last() == Some(&b'\n') {
        line.pop();
        line.pop_if(|byte| *byte == b'\r');
    }
    Ok(Some(line))
}
