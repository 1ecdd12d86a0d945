//! `cuckood bench`: how fast the filters are on this machine.

use crate::filter::{
    Digest, Filter, Full, Growth, Layout, LayoutError, MAX_SEARCH_DEFAULT, Mode, Secret, View,
};
use serde::Serialize;
use std::hint::black_box;
use std::io::{self, Write};
use std::time::Instant;
use thiserror::Error;

/// Misses over which the error rate is measured, at least.
const MISSES_MIN: u64 = 10_000_000;

/// Items per batch.
const BATCH: usize = 1_024;

/// Measure how fast the filters are on this machine.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// What to measure.
    #[command(subcommand)]
    pub what: What,
}

/// What can be measured.
#[derive(clap::Subcommand, Debug)]
pub enum What {
    /// A filter filled to 95 % by one thread.
    Filter(FilterArgs),
}

/// Which filter.
#[derive(clap::Args, Debug)]
pub struct FilterArgs {
    /// Items.
    #[arg(long, default_value_t = 1_000_000)]
    pub items: u64,
    /// `compact` or `strict`.
    #[arg(long, value_enum, default_value = "compact")]
    pub mode: ModeArg,
    /// Bits of a fingerprint, compact only.
    #[arg(long, default_value_t = 16)]
    pub fingerprint_bits: u8,
    /// Print one JSON object on one line, with the error rate over at least 10^7 misses.
    #[arg(long)]
    pub json: bool,
}

/// A mode as an argument.
#[derive(clap::ValueEnum, Clone, Copy, Debug)]
pub enum ModeArg {
    /// Fingerprints.
    Compact,
    /// Whole digests.
    Strict,
}

/// Why nothing could be measured.
#[derive(Debug, Error)]
pub enum BenchError {
    /// No such filter can exist.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The items did not fit.
    #[error("the filter was full after {0} items")]
    Full(usize),
    /// Standard output can't be written to.
    #[error(transparent)]
    Output(#[from] io::Error),
}

/// The measurements; times are in nanoseconds per item.
#[derive(Serialize, Debug)]
struct Report {
    items: u64,
    mode: Mode,
    fingerprint_bits: u8,
    bits_per_item: f64,
    load: f64,
    insert_ns: f64,
    insert_last_tenth_ns: f64,
    insert_batch_ns: f64,
    hit_ns: f64,
    miss_ns: f64,
    check_ns_prehashed: f64,
    check_batch_ns: f64,
    check_batch_ns_prehashed: f64,
    remove_ns: f64,
    error_rate: f64,
}

/// Measures and prints the results.
///
/// # Errors
/// [`BenchError`].
pub fn run(args: &Args) -> Result<(), BenchError> {
    let What::Filter(args) = &args.what;
    let report = measure(args)?;
    let mut out = io::stdout();
    if args.json {
        let line = serde_json::to_string(&report).map_err(io::Error::other)?;
        writeln!(out, "{line}")?;
    } else {
        let value = serde_json::to_value(&report).map_err(io::Error::other)?;
        for (name, figure) in value.as_object().into_iter().flatten() {
            writeln!(out, "{name:26}{figure}")?;
        }
    }
    Ok(())
}

/// A 16-byte ASCII key.
fn key(number: u64) -> [u8; 16] {
    let mut key = *b"u000000000000000";
    let mut rest = number;
    for digit in key.iter_mut().rev() {
        if rest == 0 {
            break;
        }
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    key
}

fn ns(since: Instant, items: usize) -> f64 {
    since.elapsed().as_nanos() as f64 / items as f64
}

/// The keys of a measurement.
struct Items {
    secret: Secret,
    /// Keys that are inserted.
    keys: Vec<[u8; 16]>,
    digests: Vec<Digest>,
    /// As many keys that are not.
    strangers: Vec<[u8; 16]>,
}

impl Items {
    fn new(count: u64) -> Self {
        let secret = Secret::new(std::array::from_fn(|byte| (byte as u8).wrapping_mul(167).wrapping_add(29)));
        let keys: Vec<[u8; 16]> = (0..count).map(key).collect();
        let digests = keys.iter().map(|key| secret.digest(key)).collect();
        Self { digests, keys, strangers: (count..2 * count).map(key).collect(), secret }
    }

    /// Hashes the keys batch by batch, and passes on each batch.
    fn hash_batches(&self, mut batch: impl FnMut(&[Digest])) {
        let mut hashed = Vec::with_capacity(BATCH);
        for keys in self.keys.chunks(BATCH) {
            hashed.clear();
            hashed.extend(keys.iter().map(|key| self.secret.digest(key)));
            batch(&hashed);
        }
    }
}

/// Nanoseconds per item: over all inserts, and over the last tenth of them.
struct InsertTimes {
    all: f64,
    last_tenth: f64,
}

fn insert_singly(filter: &mut Filter, items: &Items) -> Result<InsertTimes, BenchError> {
    let count = items.keys.len();
    let (early, late) = items.keys.split_at(count - count / 10);
    let mut insert = |keys: &[[u8; 16]]| {
        let since = Instant::now();
        let taken = keys.iter().filter(|key| filter.insert(items.secret.digest(*key), false).is_ok()).count();
        (taken, ns(since, 1))
    };
    let ((early_in, early_ns), (late_in, late_ns)) = (insert(early), insert(late));
    if early_in + late_in < count {
        return Err(BenchError::Full(early_in + late_in));
    }
    let last_tenth = late_ns / late.len().max(1) as f64;
    Ok(InsertTimes { all: (early_ns + late_ns) / count as f64, last_tenth })
}

/// Nanoseconds per item for each way to check.
struct CheckTimes {
    hit: f64,
    miss: f64,
    prehashed: f64,
    batch: f64,
    batch_prehashed: f64,
}

fn check(view: &View<'_>, items: &Items) -> CheckTimes {
    let count = items.keys.len();
    let singly = |keys: &[[u8; 16]]| {
        let since = Instant::now();
        let found = keys.iter().filter(|key| view.contains(items.secret.digest(*key))).count();
        (black_box(found), ns(since, count))
    };
    let ((hits, hit), (_, miss)) = (singly(&items.keys), singly(&items.strangers));
    assert_eq!(hits, count, "a filter must find every item that it holds");
    let since = Instant::now();
    black_box(items.digests.iter().filter(|digest| view.contains(**digest)).count());
    let prehashed = ns(since, count);
    let mut found = Vec::new();
    let since = Instant::now();
    items.hash_batches(|hashed| {
        view.contains_many(hashed, &mut found);
        black_box(&found);
    });
    let batch = ns(since, count);
    let since = Instant::now();
    for digests in items.digests.chunks(BATCH) {
        view.contains_many(digests, &mut found);
        black_box(&found);
    }
    CheckTimes { hit, miss, prehashed, batch, batch_prehashed: ns(since, count) }
}

/// The share of false positives among this many items that were never added.
fn error_rate(view: &View<'_>, items: &Items, misses: u64) -> f64 {
    let first = items.keys.len() as u64;
    let is_wrong = |number: &u64| view.contains(items.secret.digest(&key(first + number)));
    (0..misses).filter(is_wrong).count() as f64 / misses as f64
}

fn measure(args: &FilterArgs) -> Result<Report, BenchError> {
    let (mode, layout) = match args.mode {
        ModeArg::Compact => {
            let bits = args.fingerprint_bits;
            let layout = Layout::compact_with(args.items, bits, 4, MAX_SEARCH_DEFAULT, Growth::Fixed)?;
            (Mode::Compact, layout)
        }
        ModeArg::Strict => (Mode::Strict, Layout::strict(args.items)?),
    };
    let items = Items::new(args.items);
    let count = items.keys.len();

    let mut filter = Filter::new(mode, layout, Growth::Fixed, None);
    let inserts = insert_singly(&mut filter, &items)?;
    let reader = filter.reader();
    let view = reader.view(0);
    let checks = check(&view, &items);
    let misses = if args.json { MISSES_MIN.max(args.items) } else { args.items };
    let error_rate = error_rate(&view, &items, misses);
    drop(view);
    let since = Instant::now();
    for digests in items.digests.chunks(BATCH) {
        black_box(filter.remove_many(digests, false));
    }
    let remove_ns = ns(since, count);
    drop(filter);

    let mut filter = Filter::new(mode, layout, Growth::Fixed, None);
    let since = Instant::now();
    let mut inserted = Ok(());
    items.hash_batches(|hashed| {
        if let Err(full) = filter.insert_many(hashed, false) {
            inserted = Err(full);
        }
    });
    inserted.map_err(|Full| BenchError::Full(filter.items() as usize))?;
    let insert_batch_ns = ns(since, count);

    Ok(Report {
        items: args.items,
        mode,
        fingerprint_bits: layout.fingerprint_bits,
        bits_per_item: layout.bits_per_item(args.items),
        load: args.items as f64 / layout.slots() as f64,
        insert_ns: inserts.all,
        insert_last_tenth_ns: inserts.last_tenth,
        insert_batch_ns,
        hit_ns: checks.hit,
        miss_ns: checks.miss,
        check_ns_prehashed: checks.prehashed,
        check_batch_ns: checks.batch,
        check_batch_ns_prehashed: checks.batch_prehashed,
        remove_ns,
        error_rate,
    })
}
