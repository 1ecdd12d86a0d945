//! How long the writer is held while a coupon with millions of redemptions is cleared, replaced and deleted: `cargo bench --bench holds [--
//! REDEMPTIONS [DIR]]`, five million by default. Each operation is measured twice: while another client writes continuously, and without
//! other clients. The result is the metric, which reports the longest hold to a power of two.

// A benchmark prints its results and stops at the first error.
#![allow(missing_docs, clippy::unwrap_used, clippy::print_stdout)]

// As the service has it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

use cuckood::clock::{Clock, ClockLimits};
use cuckood::config::Config;
use cuckood::engine::{Engine, EngineStatus};
use cuckood_filter::{Digest, Growth, Mode};
use cuckood_state::FilterView;
use cuckood_state::domain::{
    Command, Digests, Ending, Guards, ImportBegin, ImportEnd, ImportId, ImportLines, ImportMode,
    ImportState, KeyName, Kind, Name, Normalization, Outcome, Redeem, RedemptionId, Reference,
    Sizing, Spec, Target, UploadDigest, Window,
};
use futures_util::future::join_all;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Items per command, and commands in flight.
const BATCH: u64 = 10_000;

/// Entries of a command that lets a replacement catch up, as uploads send them.
const CATCH_UP_ENTRIES: u32 = 2_500;

/// Each step of the writer with a separate metric: no commit happens during one.
const STEPS: [&str; 3] = [
    "apply_seconds",
    "free_step_seconds",
    "snapshot_step_seconds",
];

#[tokio::main]
async fn main() {
    let mut arguments = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with("--"));
    let redemptions = arguments
        .next()
        .map_or(5_000_000, |number| number.parse().unwrap());
    let parent = arguments
        .next()
        .map_or_else(std::env::temp_dir, PathBuf::from);
    let dir = tempfile::tempdir_in(parent).unwrap();
    let config = Config::load(None, [("CUCKOOD__STORAGE__PATH", dir.path().join("data"))]).unwrap();
    let mut options = config.engine_options();
    options.memory_max_bytes = 16 << 30;
    let engine = Engine::start(options, Clock::system(ClockLimits::default()));
    assert_eq!(engine.recovered().await, EngineStatus::Ready);
    let bench = Bench {
        other: create(&engine, "other", BATCH).await,
        engine,
        redemptions,
    };
    bench.run().await;
    bench.engine.shutdown().await;
}

struct Bench {
    engine: Engine,
    redemptions: u64,
    /// Another coupon, which a client writes to concurrently.
    other: Arc<FilterView>,
}

/// For each step of the writer, the number of runs up to the duration of each bucket's label.
type Steps = BTreeMap<&'static str, Vec<(String, u64)>>;

impl Bench {
    async fn run(&self) {
        let large = create(&self.engine, "large", self.redemptions).await;
        let before = self.steps();
        let since = Instant::now();
        self.fill(&large).await;
        self.tell("fill", since.elapsed(), &before);
        self.measure(
            "clear",
            &large,
            Command::Clear {
                target: Target(large.id),
            },
        )
        .await;
        let before = self.steps();
        let since = Instant::now();
        let whole = self.upload(&large).await;
        self.tell("upload", since.elapsed(), &before);
        self.measure("swap", &large, whole).await;
        let delete = Command::Delete {
            kind: Kind::Coupon,
            name: large.name.clone(),
        };
        drop(large);
        self.measure("delete", &self.other, delete).await;
    }

    /// Adds a fifth more codes than are redeemed afterwards.
    async fn fill(&self, large: &FilterView) {
        for from in (0..self.redemptions + self.redemptions / 5).step_by(BATCH as usize) {
            submit(&self.engine, insertion(large, from..from + BATCH)).await;
        }
        for from in (0..self.redemptions).step_by(BATCH as usize) {
            let numbers = from..self.redemptions.min(from + BATCH);
            let redeemed =
                join_all(numbers.map(|number| submit(&self.engine, redemption(large, number))));
            assert!(
                redeemed
                    .await
                    .iter()
                    .all(|outcome| matches!(outcome, Outcome::Redeemed(_)))
            );
        }
    }

    /// Sends other codes to replace those that are not redeemed. Returns the command that ends the upload.
    async fn upload(&self, large: &FilterView) -> Command {
        let target = Target(large.id);
        let import = ImportId::new("nightly").unwrap();
        let mode = ImportMode::Replace;
        let guards = Guards::default();
        let owner = KeyName::default();
        let begin = Command::ImportBegin(ImportBegin {
            target,
            import: import.clone(),
            mode,
            if_absent: false,
            guards,
            owner,
            is_named: true,
        });
        submit(&self.engine, begin).await;
        for from in (0..self.redemptions).step_by(BATCH as usize) {
            let numbers = from + 2 * self.redemptions..from + 2 * self.redemptions + BATCH;
            let lines = Command::ImportLines(ImportLines {
                target,
                import: import.clone(),
                digests: digests(numbers),
                lines: BATCH,
                rejected: 0,
                errors: Vec::new(),
                chain: from,
            });
            submit(&self.engine, lines).await;
        }
        let ending = Ending::Whole {
            upload: UploadDigest { bytes: 1, hash: 1 },
            warnings: Vec::new(),
        };
        Command::ImportEnd(ImportEnd {
            target,
            import,
            ending,
            entries_max: CATCH_UP_ENTRIES,
        })
    }

    /// Sends a command until it is done, and waits until all of its work is.
    async fn measure(&self, what: &str, pool: &FilterView, command: Command) {
        let before = self.steps();
        let mut waits = Vec::new();
        let began = Instant::now();
        loop {
            let since = Instant::now();
            let outcome = submit(&self.engine, command.clone()).await;
            waits.push(since.elapsed());
            if !matches!(&outcome, Outcome::Import(import) if import.state == ImportState::Running)
            {
                break;
            }
        }
        let longest = waits.iter().max().unwrap().as_secs_f64() * 1e3;
        println!(
            "{what:<8} {} commands, the longest took {longest:.1} ms",
            waits.len()
        );
        let mut others = Vec::new();
        let idle = Instant::now();
        while idle.elapsed() < Duration::from_secs(5) {
            let since = Instant::now();
            submit(&self.engine, insertion(&self.other, 0..1)).await;
            others.push(since.elapsed());
        }
        others.sort_unstable();
        let at =
            |share: f64| others[((others.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e3;
        println!(
            "         another client waited: p50 {:.2}, p99 {:.2}, most {:.2} ms",
            at(0.5),
            at(0.99),
            at(1.0)
        );
        self.tell("busy", began.elapsed(), &before);
        let before = self.steps();
        let began = Instant::now();
        let mut last = (0, Instant::now());
        // The queue of quiet work is empty once nothing has been freed, moved or written for a second.
        while last.1.elapsed() < Duration::from_secs(1) {
            tokio::time::sleep(Duration::from_millis(20)).await;
            let done = self
                .steps()
                .values()
                .flatten()
                .map(|(_, count)| count)
                .sum();
            if done != last.0 {
                last = (done, Instant::now());
            }
        }
        self.tell("quiet", began.elapsed(), &before);
        assert_eq!(
            pool.describe(self.engine.now()).stats.segments.len(),
            1,
            "all items have moved"
        );
    }

    fn steps(&self) -> Steps {
        let mut registry = Registry::default();
        let mut text = String::new();
        self.engine.metrics().register(&mut registry);
        encode(&mut text, &registry).unwrap();
        let buckets = |step: &str| {
            let start = format!("{step}_bucket{{le=\"");
            let lines = text
                .lines()
                .filter_map(|line| line.strip_prefix(&start)?.split_once("\"} "));
            lines
                .map(|(le, count)| (le.to_owned(), count.parse().unwrap()))
                .collect()
        };
        STEPS
            .into_iter()
            .map(|step| (step, buckets(step)))
            .collect()
    }

    /// Prints the longest hold of each kind since then.
    fn tell(&self, what: &str, took: Duration, before: &Steps) {
        print!("{what:<8} {:6.1} s ", took.as_secs_f64());
        for (step, buckets) in self.steps() {
            let counts = buckets
                .iter()
                .zip(&before[step])
                .map(|((le, now), (_, then))| (le, now - then));
            let counts: Vec<_> = counts.collect();
            let all = counts.last().map_or(0, |(_, count)| *count);
            let longest = counts
                .iter()
                .find(|(_, count)| *count == all)
                .map(|(le, _)| le.parse().unwrap());
            let longest = if all == 0 {
                0.0
            } else {
                longest.unwrap_or(f64::INFINITY) * 1e3
            };
            print!(" {step}: {all} steps, none longer than {longest:.2} ms;");
        }
        println!();
    }
}

async fn submit(engine: &Engine, command: Command) -> Outcome {
    engine.submit(None, command, None).await.unwrap().outcome
}

async fn create(engine: &Engine, name: &str, capacity: u64) -> Arc<FilterView> {
    let name = Name::new(name).unwrap();
    let window = Window {
        starts_at: None,
        ends_at: None,
    };
    let mode = Mode::Strict;
    let growth = Growth::Auto;
    let sizing = Sizing::Exact;
    let spec = Spec {
        capacity,
        mode,
        growth,
        sizing,
        normalization: Normalization::Exact,
        supply: Default::default(),
        forget: None,
    };
    let command =
        cuckood::engine::creation(Kind::Coupon, name.clone(), spec, window, Default::default())
            .unwrap();
    submit(engine, command).await;
    engine.view().find(Kind::Coupon, &name).unwrap()
}

fn digest(number: u64) -> Digest {
    Digest(number.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

fn digests(numbers: Range<u64>) -> Digests {
    Digests(numbers.map(digest).collect())
}

fn insertion(filter: &FilterView, numbers: Range<u64>) -> Command {
    let digests = digests(numbers);
    Command::Insert {
        target: Target(filter.id),
        digests,
        if_absent: false,
        revive: false,
    }
}

fn redemption(filter: &FilterView, number: u64) -> Command {
    Command::Redeem(Redeem {
        target: Target(filter.id),
        digest: digest(number),
        redemption: RedemptionId(u128::from(number).to_be_bytes()),
        reference: Reference::new(&format!("order-{number}")).unwrap(),
        hold_seconds: 0,
    })
}
