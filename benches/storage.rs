//! The cost of snapshots and restarts with a table of a gigabyte: `cargo bench --bench storage [-- DIR]`. Every phase is a separate process
//! with its own peak of memory. All but the last are killed where that is stated.

// A benchmark prints its results and stops at the first error.
#![allow(missing_docs, clippy::unwrap_used, clippy::print_stdout)]

// As the service has it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

use cuckood::clock::{Clock, ClockLimits};
use cuckood::config::Config;
use cuckood::engine::{Engine, EngineStatus};
use cuckood_filter::{Digest, Growth, Mode};
use cuckood_log::store::{Store, StoreOptions};
use cuckood_state::FilterView;
use cuckood_state::domain::{
    Command, Digests, Kind, Name, Normalization, Sizing, Spec, Target, Window,
};
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// 16-bit fingerprints: a table of 1.05 GB.
const CAPACITY: u64 = 500_000_000;
/// Too little for a snapshot to become due, so that one is taken only when this program asks for it.
const ITEMS: u64 = 20_000_000;
const BATCH: u64 = 10_000;
/// Bytes that a client sends per item.
const ITEM_BYTES: u64 = 16;
const PHASE: Duration = Duration::from_secs(8);
const SETTLE: Duration = Duration::from_secs(4);

fn main() {
    let arguments: Vec<String> = std::env::args()
        .skip(1)
        .filter(|a| !a.starts_with("--"))
        .collect();
    if let [phase, dir] = &arguments[..] {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(run(phase, Path::new(dir)));
        std::process::exit(0);
    }
    let parent = arguments
        .first()
        .map_or_else(std::env::temp_dir, PathBuf::from);
    let dir = tempfile::tempdir_in(parent).unwrap();
    for phase in ["fill", "replay", "storage", "load", "hold", "amplify"] {
        let status = std::process::Command::new(std::env::current_exe().unwrap())
            .args([phase, dir.path().to_str().unwrap()])
            .status()
            .unwrap();
        assert!(status.success(), "{phase}");
    }
}

async fn run(phase: &str, dir: &Path) {
    if phase == "storage" {
        return read_all(&dir.join("data"));
    }
    let config = Config::load(None, [("CUCKOOD__STORAGE__PATH", dir.join("data"))]).unwrap();
    let mut options = config.engine_options();
    options.memory_max_bytes = 8 << 30;
    if phase == "amplify" {
        options.path = dir.join("amplify");
    }
    let since = Instant::now();
    let engine = Engine::start(options, Clock::system(ClockLimits::default()));
    assert_eq!(engine.recovered().await, EngineStatus::Ready);
    let opened = since.elapsed().as_secs_f64();
    match phase {
        "fill" => fill(&engine, CAPACITY, ITEMS).await,
        "replay" => {
            let rate = ITEMS as f64 / opened / 1e6;
            println!(
                "replay          {opened:6.2} s  {rate:.1} M items/s, {}",
                peak()
            );
            engine.shutdown().await;
        }
        "load" => {
            let bytes = engine.info().tables_bytes as f64;
            println!(
                "start-up        {opened:6.2} s  {:.2} GB/s of tables, {}",
                bytes / opened / 1e9,
                peak()
            );
        }
        "hold" => hold(&engine, 1).await,
        _ => amplify(&engine).await,
    }
}

/// Reads the data of a startup without building anything: the storage engine's part of the memory.
fn read_all(data: &Path) {
    let since = Instant::now();
    let store = Store::open(data, &StoreOptions::default()).unwrap();
    let newest = store.manifests().unwrap().swap_remove(0);
    let mut bytes = 0;
    let mut chunk = Vec::new();
    for section in &newest.sections {
        for index in 0..section.chunks {
            store.read_chunk(section, index, &mut chunk).unwrap();
            bytes += chunk.len();
        }
    }
    let seconds = since.elapsed().as_secs_f64();
    println!(
        "storage alone   {seconds:6.2} s  {:.2} GB/s read, {}",
        bytes as f64 / seconds / 1e9,
        peak()
    );
}

async fn create(engine: &Engine, capacity: u64) -> Arc<FilterView> {
    let sizing = Sizing::Layout {
        fingerprint_bits: 16,
        bucket_size: 4,
        max_search: 2_000,
    };
    let spec = Spec {
        capacity,
        mode: Mode::Compact,
        growth: Growth::Fixed,
        sizing,
        normalization: Normalization::Exact,
        supply: Default::default(),
        forget: None,
    };
    let window = Window {
        starts_at: None,
        ends_at: None,
    };
    let command = cuckood::engine::creation(
        Kind::Campaign,
        Name::new("bench").unwrap(),
        spec,
        window,
        Default::default(),
    )
    .unwrap();
    engine.submit(None, command, None).await.unwrap();
    filter(engine)
}

fn filter(engine: &Engine) -> Arc<FilterView> {
    engine
        .view()
        .find(Kind::Campaign, &Name::new("bench").unwrap())
        .unwrap()
}

fn insertion(filter: &FilterView, items: impl Iterator<Item = u64>) -> Command {
    let digests = items
        .map(|item| Digest(item.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
        .collect();
    Command::Insert {
        target: Target(filter.id),
        digests: Digests(digests),
        if_absent: false,
        revive: false,
    }
}

async fn fill(engine: &Engine, capacity: u64, items: u64) {
    let filter = create(engine, capacity).await;
    let since = Instant::now();
    add(engine, &filter, items).await;
    let seconds = since.elapsed().as_secs_f64();
    let logged = engine.info().storage.wal_bytes_written as f64 / (items * ITEM_BYTES) as f64;
    println!(
        "durable adds    {seconds:6.2} s  {:.1} M items/s by batches of {BATCH}, 8 under way; {logged:.2} bytes of log for each item byte",
        items as f64 / seconds / 1e6
    );
}

async fn add(engine: &Engine, filter: &Arc<FilterView>, items: u64) {
    let clients: Vec<_> = (0..8)
        .map(|client| {
            let engine = engine.clone();
            let filter = filter.clone();
            tokio::spawn(async move {
                for batch in (client..items / BATCH).step_by(8) {
                    let command = insertion(&filter, batch * BATCH..(batch + 1) * BATCH);
                    engine.submit(None, command, None).await.unwrap();
                }
            })
        })
        .collect();
    for client in clients {
        client.await.unwrap();
    }
}

/// One client adds and one checks. Measures how long each waits, with and without a snapshot in turn.
async fn hold(engine: &Engine, rounds: usize) {
    let filter = filter(engine);
    let next = Arc::new(AtomicU64::new(ITEMS));
    let mut ratios = [Vec::new(), Vec::new()];
    for _ in 0..rounds {
        // Leftovers of earlier snapshots are removed first, so that they don't slow the rounds without one.
        tokio::time::sleep(SETTLE).await;
        let without = wait(engine, &filter, &next, false).await;
        let with = wait(engine, &filter, &next, true).await;
        for ((ratios, with), without) in ratios.iter_mut().zip(&with).zip(&without) {
            ratios.push(at(with, 0.99) / at(without, 0.99));
        }
    }
    for (what, mut ratios) in ["adds", "checks"].into_iter().zip(ratios) {
        ratios.sort_by(f64::total_cmp);
        let [least, median, most] = [0, rounds / 2, rounds - 1].map(|round| ratios[round]);
        println!(
            "p99 of {what} with snapshots: {median:.2} x without, median of {rounds} ({least:.2} to {most:.2})"
        );
    }
    println!("{}", held(engine));
    let before = written();
    let idle = engine.snapshot().await.unwrap();
    println!(
        "idle snapshot   {:6.2} s  {:.2} GB/s, {:.2} bytes written for each of its own",
        idle.seconds,
        idle.bytes_written as f64 / idle.seconds / 1e9,
        (written() - before) as f64 / idle.bytes_written as f64
    );
}

/// The waits of all adds and of all checks, sorted.
async fn wait(
    engine: &Engine,
    filter: &Arc<FilterView>,
    next: &Arc<AtomicU64>,
    with_snapshots: bool,
) -> [Vec<Duration>; 2] {
    let done = Arc::new(AtomicBool::new(false));
    let adding = {
        let engine = engine.clone();
        let filter = filter.clone();
        let next = next.clone();
        let done = done.clone();
        tokio::spawn(async move {
            let mut times = Vec::new();
            while !done.load(Ordering::Relaxed) {
                let from = next.fetch_add(100, Ordering::Relaxed);
                let command = insertion(&filter, from..from + 100);
                let since = Instant::now();
                engine.submit(None, command, None).await.unwrap();
                times.push(since.elapsed());
            }
            times
        })
    };
    let checking = {
        let filter = filter.clone();
        let done = done.clone();
        let now = engine.now();
        std::thread::spawn(move || {
            let mut times = Vec::new();
            let mut found = Vec::new();
            let mut from = 0;
            while !done.load(Ordering::Relaxed) {
                let digests: Vec<Digest> = (from..from + 100_u64)
                    .map(|i| Digest(i.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
                    .collect();
                from = (from + 100) % ITEMS;
                let since = Instant::now();
                filter.contains_many(&digests, now, &mut found);
                times.push(since.elapsed());
                assert!(black_box(&found).iter().all(|found| *found));
                std::thread::sleep(Duration::from_micros(200));
            }
            times
        })
    };
    let since = Instant::now();
    let mut snapshots = 0;
    let mut bytes = 0;
    while since.elapsed() < PHASE {
        if with_snapshots {
            bytes += engine.snapshot().await.unwrap().bytes_written;
            snapshots += 1;
        } else {
            tokio::time::sleep(PHASE).await;
        }
    }
    let rate = bytes as f64 / since.elapsed().as_secs_f64() / 1e6;
    done.store(true, Ordering::Relaxed);
    let waits = [adding.await.unwrap(), checking.join().unwrap()].map(|mut times| {
        times.sort_unstable();
        times
    });
    let [adds, checks] = waits.each_ref().map(|times| shape(times));
    println!(
        "{snapshots} snapshots, {rate:3.0} MB/s  adds of 100  {adds}; checks of 100  {checks}"
    );
    waits
}

/// Steady adds with snapshots as they become due: how much is written per byte of an item.
async fn amplify(engine: &Engine) {
    let filter = create(engine, 100_000_000).await;
    add(engine, &filter, 60_000_000).await;
    let storage = engine.info().storage;
    let items = (60_000_000 * ITEM_BYTES) as f64;
    println!(
        "written for each item byte, table of 210 MB: {:.2} log, {:.2} snapshots; {:.0} MB on disk",
        storage.wal_bytes_written as f64 / items,
        storage.snapshot_bytes_written as f64 / items,
        storage.disk_bytes as f64 / 1e6
    );
    hold(engine, 7).await;
    engine.shutdown().await;
}

fn shape(times: &[Duration]) -> String {
    let [p50, p99, p999, most] = [0.5, 0.99, 0.999, 1.0].map(|share| at(times, share));
    format!("p50 {p50:.2}, p99 {p99:.2}, p99.9 {p999:.2}, most {most:.2} ms")
}

/// A percentile of sorted times, in milliseconds.
fn at(times: &[Duration], share: f64) -> f64 {
    times[((times.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e3
}

/// The number of snapshot steps, and how many of them held the writer for long.
fn held(engine: &Engine) -> String {
    let mut registry = Registry::default();
    let mut text = String::new();
    engine.metrics().register(&mut registry);
    encode(&mut text, &registry).unwrap();
    let count = |le: &str| -> u64 {
        let line = format!("snapshot_step_seconds_bucket{{le=\"{le}\"}} ");
        text.lines()
            .find_map(|text| text.strip_prefix(&line)?.parse().ok())
            .unwrap()
    };
    let all = count("+Inf");
    let [over_10, over_20, over_41] = ["0.01024", "0.02048", "0.04096"].map(|le| all - count(le));
    format!(
        "{all} steps of snapshots: {over_10} of more than 10 ms, {over_20} than 20.5, {over_41} than 41"
    )
}

/// Bytes that this process has written, nearly all of them to files.
fn written() -> u64 {
    let io = std::fs::read_to_string("/proc/self/io").unwrap_or_default();
    io.lines()
        .find_map(|line| line.strip_prefix("wchar: ")?.parse().ok())
        .unwrap_or_default()
}

/// The peak memory of this process.
fn peak() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kilobytes = status.lines().find_map(|line| {
        line.strip_prefix("VmHWM:")?
            .split_whitespace()
            .next()?
            .parse::<u64>()
            .ok()
    });
    format!("peak memory {} MB", kilobytes.unwrap_or_default() / 1_000)
}
