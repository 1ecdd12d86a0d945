//! `cuckood bench`: how fast the filters are on this machine.

use crate::filter::{CompactFilter, CompactReader, CompactView, StrictFilter, StrictReader, StrictView};
use crate::filter::{Digest, Growth, Layout, LayoutError, Mode, Secret};
use serde::Serialize;
use std::hint::black_box;
use std::io::{self, Write};
use std::time::Instant;
use thiserror::Error;

/// Misses that the error rate is measured over, at least.
const MISSES_MIN: u64 = 10_000_000;

/// Items of a batch.
const BATCH: usize = 1_024;

/// Measure.
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
    /// One JSON object on one line, with the error rate over at least 10^7 misses.
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

/// Why nothing was measured.
#[derive(Debug, Error)]
pub enum BenchError {
    /// There is no such filter.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The items did not fit.
    #[error("the filter was full after {0} items")]
    Full(usize),
    /// The terminal is gone.
    #[error(transparent)]
    Output(#[from] io::Error),
}

/// What was measured; times in nanoseconds an item.
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

/// Measures and prints.
///
/// # Errors
/// [`BenchError`].
pub fn run(args: &Args) -> Result<(), BenchError> {
    let What::Filter(args) = &args.what;
    let report = match args.mode {
        ModeArg::Compact => measure::<CompactFilter>(args)?,
        ModeArg::Strict => measure::<StrictFilter>(args)?,
    };
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

/// What the two modes have in common here.
trait Subject: Sized {
    const MODE: Mode;
    type Reader: Look;

    fn layout(args: &FilterArgs) -> Result<Layout, LayoutError>;
    fn new(layout: Layout) -> Self;
    fn reader(&self) -> Self::Reader;
    fn insert(&mut self, digest: Digest) -> bool;
    fn insert_many(&mut self, digests: &[Digest]) -> bool;
    fn remove_many(&mut self, digests: &[Digest]);
}

/// A reader's side; a view of it is taken once for all checks, as a request takes one.
trait Look {
    fn view(&self) -> impl Check;
}

/// What is looked at.
trait Check {
    fn contains(&self, digest: Digest) -> bool;
    fn contains_many(&self, digests: &[Digest], found: &mut Vec<bool>);
}

impl Subject for CompactFilter {
    const MODE: Mode = Mode::Compact;
    type Reader = CompactReader;

    fn layout(args: &FilterArgs) -> Result<Layout, LayoutError> {
        let search = crate::filter::layout::MAX_SEARCH_DEFAULT;
        Layout::compact_with(args.items, args.fingerprint_bits, 4, search, Growth::Fixed)
    }

    fn new(layout: Layout) -> Self {
        Self::new(layout, Growth::Fixed)
    }

    fn reader(&self) -> CompactReader {
        self.reader()
    }

    fn insert(&mut self, digest: Digest) -> bool {
        self.insert(digest, false).is_ok()
    }

    fn insert_many(&mut self, digests: &[Digest]) -> bool {
        self.insert_many(digests, false).is_ok()
    }

    fn remove_many(&mut self, digests: &[Digest]) {
        black_box(self.remove_many(digests));
    }
}

impl Subject for StrictFilter {
    const MODE: Mode = Mode::Strict;
    type Reader = StrictReader;

    fn layout(args: &FilterArgs) -> Result<Layout, LayoutError> {
        Layout::strict(args.items)
    }

    fn new(layout: Layout) -> Self {
        Self::new(layout, Growth::Fixed)
    }

    fn reader(&self) -> StrictReader {
        self.reader()
    }

    fn insert(&mut self, digest: Digest) -> bool {
        self.insert(digest).is_ok()
    }

    fn insert_many(&mut self, digests: &[Digest]) -> bool {
        self.insert_many(digests).is_ok()
    }

    fn remove_many(&mut self, digests: &[Digest]) {
        black_box(self.remove_many(digests));
    }
}

impl Look for CompactReader {
    fn view(&self) -> impl Check {
        self.view()
    }
}

impl Look for StrictReader {
    fn view(&self) -> impl Check {
        self.view()
    }
}

impl Check for CompactView {
    fn contains(&self, digest: Digest) -> bool {
        self.contains(digest)
    }

    fn contains_many(&self, digests: &[Digest], found: &mut Vec<bool>) {
        self.contains_many(digests, found);
    }
}

impl Check for StrictView<'_> {
    fn contains(&self, digest: Digest) -> bool {
        self.get(digest).is_some()
    }

    fn contains_many(&self, digests: &[Digest], found: &mut Vec<bool>) {
        self.contains_many(digests, found);
    }
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

fn measure<S: Subject>(args: &FilterArgs) -> Result<Report, BenchError> {
    let layout = S::layout(args)?;
    let secret = Secret::new(std::array::from_fn(|byte| (byte as u8).wrapping_mul(167).wrapping_add(29)));
    let count = args.items as usize;
    let keys: Vec<[u8; 16]> = (0..args.items).map(key).collect();
    let strangers: Vec<[u8; 16]> = (args.items..2 * args.items).map(key).collect();
    let digests: Vec<Digest> = keys.iter().map(|key| secret.digest(key)).collect();

    let mut filter = S::new(layout);
    let (early, late) = keys.split_at(count - count / 10);
    let since = Instant::now();
    let early_in = early.iter().filter(|key| filter.insert(secret.digest(*key))).count();
    let early_ns = ns(since, 1);
    let since = Instant::now();
    let late_in = late.iter().filter(|key| filter.insert(secret.digest(*key))).count();
    let late_ns = ns(since, 1);
    if early_in + late_in < count {
        return Err(BenchError::Full(early_in + late_in));
    }
    let reader = filter.reader();
    let view = reader.view();
    let since = Instant::now();
    let hits = keys.iter().filter(|key| view.contains(secret.digest(*key))).count();
    let hit_ns = ns(since, count);
    let since = Instant::now();
    black_box(strangers.iter().filter(|key| view.contains(secret.digest(*key))).count());
    let miss_ns = ns(since, count);
    let since = Instant::now();
    black_box(digests.iter().filter(|digest| view.contains(**digest)).count());
    let check_ns_prehashed = ns(since, count);
    let (mut found, mut hashed) = (Vec::new(), Vec::with_capacity(BATCH));
    let since = Instant::now();
    for keys in keys.chunks(BATCH) {
        hashed.clear();
        hashed.extend(keys.iter().map(|key| secret.digest(key)));
        view.contains_many(&hashed, &mut found);
        black_box(&found);
    }
    let check_batch_ns = ns(since, count);
    let since = Instant::now();
    for digests in digests.chunks(BATCH) {
        view.contains_many(digests, &mut found);
        black_box(&found);
    }
    let check_batch_ns_prehashed = ns(since, count);
    assert_eq!(hits, count, "a filter must not lose what it holds");

    let misses = if args.json { MISSES_MIN.max(args.items) } else { args.items };
    let wrong = (0..misses).filter(|number| view.contains(secret.digest(&key(args.items + number)))).count();
    drop(view);
    let since = Instant::now();
    for digests in digests.chunks(BATCH) {
        filter.remove_many(digests);
    }
    let remove_ns = ns(since, count);
    drop(filter);

    let mut filter = S::new(layout);
    let since = Instant::now();
    for keys in keys.chunks(BATCH) {
        hashed.clear();
        hashed.extend(keys.iter().map(|key| secret.digest(key)));
        filter.insert_many(&hashed);
    }
    let insert_batch_ns = ns(since, count);

    Ok(Report {
        items: args.items,
        mode: S::MODE,
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
        error_rate: wrong as f64 / misses as f64,
    })
}
