//! The longest step of an import that adds each user eight times, and the memory that the copies take: `cargo bench -p cuckood-filter
//! --bench copies [-- USERS]`.

// A benchmark prints its results and stops at the first error.
#![allow(missing_docs, clippy::unwrap_used, clippy::print_stdout)]

use cuckood_filter::{Digest, Filter, Growth, GrowthRule, Layout, Mode};
use std::time::Instant;

const COPIES: u64 = 8;

/// Items of a step: the lines that an import logs at a time.
const STEP: u64 = 1_000;

fn main() {
    let users = std::env::args()
        .filter_map(|argument| argument.parse().ok())
        .next()
        .unwrap_or(8_000_000);
    for rule in [GrowthRule::Immediate, GrowthRule::Paced] {
        for is_in_rounds in [false, true] {
            import(users, rule, is_in_rounds);
        }
    }
}

fn digest(number: u64) -> Digest {
    Digest(xxhash_rust::xxh3::xxh3_64(&number.to_le_bytes()))
}

fn import(users: u64, rule: GrowthRule, is_in_rounds: bool) {
    let mut filter = Filter::new(
        Mode::Compact,
        Layout::compact(users, 0.001, Growth::Auto).unwrap(),
        Growth::Auto,
        None,
    );
    filter.set_growth_rule(rule);
    let mut longest = 0.0;
    let start = Instant::now();
    for first in (0..users * COPIES).step_by(STEP as usize) {
        let lines = first..(first + STEP).min(users * COPIES);
        let user = |line| {
            if is_in_rounds {
                line % users
            } else {
                line / COPIES
            }
        };
        let digests: Vec<Digest> = lines.map(|line| digest(user(line))).collect();
        let since = Instant::now();
        filter.insert_many(&digests, false).unwrap();
        longest = f64::max(longest, since.elapsed().as_secs_f64());
    }
    let stats = filter.reader().view(0).stats();
    println!(
        "{rule:?}, {}: longest step {:.1} ms of {:.1} s, {:.2} bytes per copy in {} tables",
        if is_in_rounds {
            "in rounds"
        } else {
            "in a row"
        },
        1e3 * longest,
        start.elapsed().as_secs_f64(),
        stats.memory_bytes as f64 / stats.items as f64,
        stats.segments.len()
    );
}
