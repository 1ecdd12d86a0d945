//! `cuckood bench`: how fast the filters are on this machine.

use anyhow::ensure;
use cuckood_filter::{Digest, Filter, Growth, Layout, MAX_SEARCH_DEFAULT, Mode, Secret};
use cuckood_state::domain::counted;
use serde_json::{Value, json};
use std::hint::black_box;
use std::io::{self, Write};
use std::time::Instant;

/// Misses over which the error rate is measured, at least.
const MISSES_MIN: u64 = 10_000_000;

/// Items per batch.
const BATCH: usize = 1_024;

/// Measure how fast the filters are on this machine.
#[derive(clap::Subcommand, Debug)]
pub enum Args {
    /// Measure a filter that one thread fills to 95%, with precomputed digests.
    Filter(FilterArgs),
}

/// Which filter.
#[derive(clap::Args, Debug)]
pub struct FilterArgs {
    /// Items.
    #[arg(long, default_value_t = 1_000_000)]
    pub items: u64,
    /// `compact` or `strict`.
    #[arg(long, value_parser = ["compact", "strict"], default_value = "compact")]
    pub mode: String,
    /// Bits of a fingerprint, compact only.
    #[arg(long, default_value_t = 16)]
    pub fingerprint_bits: u8,
    /// Print one JSON object on one line, with the error rate over at least 10^7 misses.
    #[arg(long)]
    pub json: bool,
}

/// Measures and prints the results.
///
/// # Errors
/// If no such filter can exist, or the items did not fit.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let Args::Filter(args) = args;
    let report = measure(args)?;
    let lines = report.as_object().into_iter().flatten();
    let text = match args.json {
        true => format!("{report}\n"),
        false => lines
            .map(|(name, figure)| format!("{name:26}{figure}\n"))
            .collect(),
    };
    Ok(io::stdout().write_all(text.as_bytes())?)
}

/// Returns the digests of 16-byte ASCII keys with these numbers.
fn digests(numbers: impl Iterator<Item = u64>) -> impl Iterator<Item = Digest> {
    let secret = Secret::new(std::array::from_fn(|byte| {
        (byte as u8).wrapping_mul(167).wrapping_add(29)
    }));
    numbers.map(move |number| secret.digest(format!("u{number:015}").as_bytes()))
}

/// Returns the result of some work, and how many nanoseconds it took for each of `items`.
fn timed<T>(items: usize, work: impl FnOnce() -> T) -> (T, f64) {
    let start = Instant::now();
    let result = black_box(work());
    (
        result,
        start.elapsed().as_nanos() as f64 / items.max(1) as f64,
    )
}

fn full(filter: &Filter) -> String {
    format!(
        "the filter is full after {}; measure with more --fingerprint-bits",
        counted(filter.items(), "item")
    )
}

/// Returns the measurements; times are in nanoseconds per item whose digest is known.
fn measure(args: &FilterArgs) -> anyhow::Result<Value> {
    let items = args.items;
    let bits = args.fingerprint_bits;
    let (mode, layout) = match args.mode.as_str() {
        "strict" => (Mode::Strict, Layout::strict(items)?),
        _ => (
            Mode::Compact,
            Layout::compact_with(items, bits, 4, MAX_SEARCH_DEFAULT, Growth::Fixed)?,
        ),
    };
    let members: Vec<Digest> = digests(0..items).collect();
    let strangers: Vec<Digest> = digests(items..2 * items).collect();
    let mut filter = Filter::new(mode, layout, Growth::Fixed, None);
    let insert = || {
        members
            .iter()
            .all(|digest| filter.insert(*digest, false).is_ok())
    };
    let (all_in, insert_ns) = timed(members.len(), insert);
    ensure!(all_in, full(&filter));

    let reader = filter.reader();
    let view = reader.view(0);
    let count = |digests: &[Digest]| {
        digests
            .iter()
            .filter(|digest| view.contains(**digest))
            .count()
    };
    let (hits, hit_ns) = timed(members.len(), || count(&members));
    ensure!(
        hits == members.len(),
        "the filter does not find every item that it holds"
    );
    let (_, miss_ns) = timed(strangers.len(), || count(&strangers));
    let mut found = Vec::new();
    let check = |digests: &[Digest]| {
        view.contains_many(digests, &mut found);
        black_box(&found);
    };
    let ((), check_batch_ns) = timed(members.len(), || members.chunks(BATCH).for_each(check));
    let misses = if args.json {
        MISSES_MIN.max(items)
    } else {
        items
    };
    let wrong = digests(items..items + misses)
        .filter(|digest| view.contains(*digest))
        .count();
    drop(view);
    let remove = |digests: &[Digest]| drop(black_box(filter.remove_many(digests, false)));
    let ((), remove_ns) = timed(members.len(), || members.chunks(BATCH).for_each(remove));

    let mut filter = Filter::new(mode, layout, Growth::Fixed, None);
    let mut insert = |digests: &[Digest]| filter.insert_many(digests, false).is_ok();
    let (all_in, insert_batch_ns) = timed(members.len(), || members.chunks(BATCH).all(&mut insert));
    ensure!(all_in, full(&filter));
    Ok(json!({
        "items": items,
        "mode": mode,
        "fingerprint_bits": layout.fingerprint_bits,
        "bits_per_item": layout.bits_per_item(items),
        "load": items as f64 / layout.slots() as f64,
        "insert_ns": insert_ns,
        "insert_batch_ns": insert_batch_ns,
        "hit_ns": hit_ns,
        "miss_ns": miss_ns,
        "check_batch_ns": check_batch_ns,
        "remove_ns": remove_ns,
        "error_rate": wrong as f64 / misses as f64,
    }))
}
