//! Due work happens without commands, and is reported.

use crate::engines;
use cuckood::engine::Engine;
use cuckood_filter::Growth;
use cuckood_log::testing::memory_log::MemoryLog;
use cuckood_state::domain::{Happened, Outcome, Redemption, RedemptionStep, Target};
use cuckood_state::testing::commands::{NewFilter, insert, redeem, target};
use futures_util::FutureExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tempfile::TempDir;
use tokio::task::JoinSet;

const COUPON: Target = target(1);

async fn start(log: Option<&MemoryLog>) -> (Engine, TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let mut options = engines::options(directory.path());
    if let Some(log) = log {
        options.journal = crate::engines::on_log(log);
    }
    (engines::start(options).await, directory)
}

/// Makes a coupon, and holds its only code for a second.
async fn hold(engine: &Engine) -> Redemption {
    engines::create(engine, COUPON, &NewFilter::coupon(10)).await;
    engine
        .submit(None, insert(COUPON, [7]), None)
        .await
        .unwrap();
    match engine
        .submit(None, redeem(COUPON, 7, 1, "order", 1), None)
        .await
        .unwrap()
        .outcome
    {
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
            if let Happened::Redemption {
                id,
                step: RedemptionStep::Expired,
                ..
            } = event.event.what
            {
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
async fn create_large(engine: &Engine, capacity: u64) {
    let large = NewFilter {
        growth: Growth::Fixed,
        ..NewFilter::coupon(capacity)
    };
    engines::create(engine, COUPON, &large).await;
}

/// Clients that abort and repeat their request after every write, for a snapshot or an image, never keep it from completing: a running one
/// continues.
#[tokio::test]
async fn snapshot_completes_despite_aborted_requests() {
    /// A snapshot of the filter takes some hundred steps, and a commit pays for one at least.
    const COMMITS_MAX: u64 = 10_000;
    let (engine, _directory) = start(None).await;
    create_large(&engine, 1_000_000).await;
    let before = engine.info().snapshot.map(|snapshot| snapshot.seq);
    for number in 0..COMMITS_MAX {
        engine
            .submit(None, insert(COUPON, [number]), None)
            .await
            .unwrap();
        // Both are dropped once they have been sent.
        let _ = engine.snapshot().now_or_never();
        drop(engine.image(COUPON.0).now_or_never());
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

/// Clients that ask for the next parts as soon as they have some keep no command waiting.
#[tokio::test(flavor = "multi_thread")]
async fn commits_continue_during_concurrent_backups() {
    // The command waits for no disk, only for the requests before it.
    let (engine, _directory) = start(Some(&MemoryLog::new())).await;
    create_large(&engine, 2_000_000).await;
    // In every part of the table.
    engine
        .submit(None, insert(COUPON, 1..10_001), None)
        .await
        .unwrap();
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
    engine
        .submit(None, insert(COUPON, 0..1), None)
        .await
        .unwrap();
    let before = read.load(Ordering::Relaxed);
    clients.join_all().await;
    let all = read.load(Ordering::Relaxed);
    assert!(
        before < all / 2,
        "the command waited for {before} of {all} requests"
    );
    engine.shutdown().await;
}

/// Each node reports it, whichever has logged it.
#[tokio::test]
async fn every_node_reports_hold_expiry() {
    let log = MemoryLog::new();
    let (first, _first) = start(Some(&log)).await;
    let (second, _second) = start(Some(&log)).await;
    let held = hold(&first).await;
    tokio::join!(until_expired(&first, &held), until_expired(&second, &held));
    first.shutdown().await;
    second.shutdown().await;
}
