//! `cuckood bench`: how fast the filters are on this machine.

use crate::filter::{Digest, Filter, Growth, Layout, MAX_SEARCH_DEFAULT, Mode, Secret, View};
use anyhow::ensure;
use serde::Serialize;
use std::hint::black_box;
use std::io::{self, Write};
use std::time::Instant;

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
/// If no such filter can exist, or the items did not fit.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let What::Filter(args) = &args.what;
    let report = measure(args)?;
    let mut out = io::stdout();
    if args.json {
        writeln!(out, "{}", serde_json::to_string(&report)?)?;
        return Ok(());
    }
    for (name, figure) in serde_json::to_value(&report)?.as_object().into_iter().flatten() {
        writeln!(out, "{name:26}{figure}")?;
    }
    Ok(())
}

/// A 16-byte ASCII key.
fn key(number: u64) -> [u8; 16] {
    let mut key = *b"u000000000000000";
    let mut rest = number;
    for digit in key[1..].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    key
}

/// Returns the result of some work, and how many nanoseconds it took for each of `items`.
fn timed<T>(items: usize, work: impl FnOnce() -> T) -> (T, f64) {
    let start = Instant::now();
    let result = black_box(work());
    (result, start.elapsed().as_nanos() as f64 / items.max(1) as f64)
}

/// The keys of a measurement.
struct Items {
    secret: Secret,
    /// Keys that are inserted.
    keys: Vec<[u8; 16]>,
    digests: Vec<Digest>,
}

impl Items {
    fn new(count: u64) -> Self {
        let secret = Secret::new(std::array::from_fn(|byte| (byte as u8).wrapping_mul(167).wrapping_add(29)));
        let keys: Vec<[u8; 16]> = (0..count).map(key).collect();
        let digests = keys.iter().map(|key| secret.digest(key)).collect();
        Self { secret, keys, digests }
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

    /// Counts which of these keys a filter has.
    fn count(&self, view: &View<'_>, keys: &[[u8; 16]]) -> usize {
        keys.iter().filter(|key| view.contains(self.secret.digest(*key))).count()
    }
}

fn measure(args: &FilterArgs) -> anyhow::Result<Report> {
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
    let (early, late) = items.keys.split_at(count - count / 10);
    let mut insert = |keys: &[[u8; 16]]| {
        timed(1, || keys.iter().filter(|key| filter.insert(items.secret.digest(*key), false).is_ok()).count())
    };
    let ((early_in, early_ns), (late_in, late_ns)) = (insert(early), insert(late));
    ensure!(early_in + late_in == count, "the filter was full after {} items", early_in + late_in);

    let reader = filter.reader();
    let view = reader.view(0);
    let (hits, hit_ns) = timed(count, || items.count(&view, &items.keys));
    assert_eq!(hits, count, "a filter must find every item that it holds");
    let strangers: Vec<_> = (args.items..2 * args.items).map(key).collect();
    let (_, miss_ns) = timed(count, || items.count(&view, &strangers));
    let prehashed = || items.digests.iter().filter(|digest| view.contains(**digest)).count();
    let (_, check_ns_prehashed) = timed(count, prehashed);
    let mut found = Vec::new();
    let mut check = |digests: &[Digest]| {
        view.contains_many(digests, &mut found);
        black_box(&found);
    };
    let ((), check_batch_ns) = timed(count, || items.hash_batches(&mut check));
    let ((), check_batch_ns_prehashed) = timed(count, || items.digests.chunks(BATCH).for_each(&mut check));
    let misses = if args.json { MISSES_MIN.max(args.items) } else { args.items };
    let is_wrong = |number: &u64| view.contains(items.secret.digest(&key(args.items + number)));
    let error_rate = (0..misses).filter(is_wrong).count() as f64 / misses as f64;
    drop(view);
    let remove_all = || {
        for digests in items.digests.chunks(BATCH) {
            black_box(filter.remove_many(digests, false));
        }
    };
    let ((), remove_ns) = timed(count, remove_all);
    drop(filter);

    let mut filter = Filter::new(mode, layout, Growth::Fixed, None);
    let mut inserted = Ok(());
    let insert =
        |hashed: &[Digest]| inserted = inserted.and_then(|()| filter.insert_many(hashed, false).map(drop));
    let ((), insert_batch_ns) = timed(count, || items.hash_batches(insert));
    ensure!(inserted.is_ok(), "the filter was full after {} items", filter.items());
    Ok(Report {
        items: args.items,
        mode,
        fingerprint_bits: layout.fingerprint_bits,
        bits_per_item: layout.bits_per_item(args.items),
        load: args.items as f64 / layout.slots() as f64,
        insert_ns: (early_ns + late_ns) / count as f64,
        insert_last_tenth_ns: late_ns / late.len().max(1) as f64,
        insert_batch_ns,
        hit_ns,
        miss_ns,
        check_ns_prehashed,
        check_batch_ns,
        check_batch_ns_prehashed,
        remove_ns,
        error_rate,
    })
}
