//! Due work happens without commands, and is reported.

use crate::memory_log::MemoryLog;
use cuckood::clock::{Clock, ClockLimits};
use cuckood::domain::{
    Command, Digests, FilterId, Happened, Kind, Name, Outcome, Redemption, RedemptionStep, Reference, Sizing,
    Spec, Target, Window,
};
use cuckood::engine::{Engine, EngineOptions, Status};
use cuckood::filter::{Digest, Growth, Mode};
use futures_util::FutureExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tempfile::TempDir;
use tokio::task::JoinSet;

async fn start(log: Option<&MemoryLog>) -> (Engine, TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let mut options = EngineOptions::new(directory.path());
    options.store.free_space_min_bytes = 0;
    options.store.ballast_bytes = 0;
    options.store.cache_bytes = 8 << 20;
    if let Some(log) = log {
        options.journal = log.options();
    }
    let engine = Engine::start(options, Clock::system(ClockLimits::default()));
    assert_eq!(engine.recovered().await, Status::Ready);
    (engine, directory)
}

/// Makes a coupon, and holds its only code for a second.
async fn hold(engine: &Engine) -> Redemption {
    let spec = Spec {
        capacity: 10,
        mode: Mode::Strict,
        growth: Growth::Auto,
        sizing: Sizing::Exact,
        ignore_case: false,
        stock: None,
        forget: None,
    };
    let name = Name::new("shop").unwrap();
    let creation =
        cuckood::engine::creation(Kind::Coupon, name, spec, Window::default(), Default::default()).unwrap();
    let Command::Create { id, .. } = creation else { unreachable!() };
    let (target, digest) = (Target(id), Digest(7));
    let insert = Command::Insert { target, digests: Digests(vec![digest]), if_absent: false, revive: false };
    let (redemption, reference) =
        (cuckood::domain::RedemptionId(cuckood::engine::random()), Reference::new("order").unwrap());
    engine.submit(creation, None).await.unwrap();
    engine.submit(insert, None).await.unwrap();
    let hold = Command::Redeem { target, digest, redemption, reference, hold_seconds: 1 };
    match engine.submit(hold, None).await.unwrap().outcome {
        Outcome::Redeemed(held) => held,
        other => panic!("{other:?}"),
    }
}

/// Waits until the end of a hold is reported.
async fn until_expired(engine: &Engine, held: &Redemption) {
    let mut events = engine.events_after(None);
    loop {
        events.wait().await.unwrap();
        for event in events.read().await.unwrap() {
            if let Happened::Redemption { id, step: RedemptionStep::Expired, .. } = event.event.what {
                assert_eq!(id, held.id);
                return;
            }
        }
    }
}

#[tokio::test]
async fn hold_expiry_is_reported_without_commands() {
    let (engine, _directory) = start(None).await;
    let held = hold(&engine).await;
    until_expired(&engine, &held).await;
    engine.shutdown().await;
}

/// Creates a coupon with a table that a snapshot writes in many steps.
async fn create_large(engine: &Engine, capacity: u64) -> FilterId {
    let spec = Spec {
        capacity,
        mode: Mode::Strict,
        growth: Growth::Fixed,
        sizing: Sizing::Exact,
        ignore_case: false,
        stock: None,
        forget: None,
    };
    let name = Name::new("large").unwrap();
    let creation =
        cuckood::engine::creation(Kind::Coupon, name, spec, Window::default(), Default::default()).unwrap();
    let Command::Create { id, .. } = creation else { unreachable!() };
    engine.submit(creation, None).await.unwrap();
    id
}

/// Clients that abort and repeat their request after every write, for a snapshot or an image, never keep it from completing: a running one
/// continues.
#[tokio::test]
async fn snapshot_completes_despite_aborted_requests() {
    /// A snapshot of the filter takes some hundred steps, and a commit pays for one at least.
    const COMMITS_MAX: u64 = 10_000;
    let (engine, _directory) = start(None).await;
    let id = create_large(&engine, 1_000_000).await;
    let before = engine.info().snapshot.map(|snapshot| snapshot.seq);
    for number in 0..COMMITS_MAX {
        let digests = Digests(vec![Digest(number << 40)]);
        let insert = Command::Insert { target: Target(id), digests, if_absent: false, revive: false };
        engine.submit(insert, None).await.unwrap();
        // Both are dropped once they have been sent.
        assert!(engine.snapshot().now_or_never().is_none());
        assert!(engine.image(id).now_or_never().is_none());
        if engine.info().snapshot.map(|snapshot| snapshot.seq) > before {
            // One that waits for its end is served.
            let report = engine.snapshot().await.unwrap();
            assert!(Some(report.seq) > before && report.seq.0 >= number);
            engine.shutdown().await;
            return;
        }
    }
    panic!("no snapshot was completed within {COMMITS_MAX} commits");
}

fn spread(number: u64) -> Digest {
    Digest((number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// Clients that ask for the next parts as soon as they have some keep no command waiting.
#[tokio::test(flavor = "multi_thread")]
async fn commits_continue_during_concurrent_backups() {
    let (engine, _directory) = start(None).await;
    let id = create_large(&engine, 2_000_000).await;
    let digests = |numbers: std::ops::Range<u64>| Digests(numbers.map(spread).collect());
    let insert = |digests| Command::Insert { target: Target(id), digests, if_absent: false, revive: false };
    // In every part of the table.
    engine.submit(insert(digests(1..10_001)), None).await.unwrap();
    let read = Arc::new(AtomicU64::new(0));
    let mut backups = Vec::new();
    for _ in 0..4 {
        backups.push(engine.backup().await.unwrap());
    }
    let mut clients = JoinSet::new();
    for mut backup in backups {
        let read = read.clone();
        clients.spawn(async move {
            while !backup.next().await.unwrap().is_empty() {
                read.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    while read.load(Ordering::Relaxed) < 4 {
        tokio::task::yield_now().await;
    }
    engine.submit(insert(digests(0..1)), None).await.unwrap();
    let before = read.load(Ordering::Relaxed);
    clients.join_all().await;
    let all = read.load(Ordering::Relaxed);
    assert!(before < all / 2, "the command waited for {before} of {all} requests");
    engine.shutdown().await;
}

/// Each node reports it, whichever has logged it.
#[tokio::test]
async fn every_node_reports_hold_expiry() {
    let log = MemoryLog::new();
    let ((first, _first), (second, _second)) = (start(Some(&log)).await, start(Some(&log)).await);
    let held = hold(&first).await;
    tokio::join!(until_expired(&first, &held), until_expired(&second, &held));
    first.shutdown().await;
    second.shutdown().await;
}
