//! The memory limit with concurrent requests.

use crate::commands::{NewFilter, insert, name_of, redeem, target};
use crate::engines;
use cuckood::domain::{Command, Kind, Outcome, Target, Update};
use cuckood::engine::{Engine, EngineOptions, FilterView, RedemptionQuery, SubmitError};
use cuckood::filter::Layout;
use futures_util::future::join_all;
use std::sync::Arc;

const SHOP: Target = target(1);

async fn engine(limit: u64) -> (Engine, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let options = EngineOptions { memory_max_bytes: limit, ..engines::options(directory.path()) };
    (engines::start(options).await, directory)
}

async fn create(engine: &Engine, target: Target, capacity: u64) {
    engines::create(engine, target, &NewFilter::coupon(capacity)).await;
}

async fn submit(engine: &Engine, command: Command) -> Outcome {
    engine.submit(None, command, None).await.unwrap().outcome
}

fn find(engine: &Engine, target: Target) -> Arc<FilterView> {
    engine.view().find(Kind::Coupon, &name_of(target)).unwrap()
}

fn delete(target: Target) -> Command {
    Command::Delete { kind: Kind::Coupon, name: name_of(target) }
}

fn taken(engine: &Engine) -> u64 {
    let info = engine.info();
    info.tables_bytes + info.records_bytes
}

/// A capacity is promised only if its memory can be had.
#[tokio::test]
async fn capacity_beyond_limit_is_rejected() {
    let (engine, _directory) = engine(1_000_000).await;
    create(&engine, SHOP, 20_000).await;
    submit(&engine, insert(SHOP, 0..10)).await;
    let before = taken(&engine);
    let raise = |capacity| {
        let capacity = Some(cuckood::engine::raise(&find(&engine, SHOP), capacity).unwrap());
        let (starts_at, ends_at, stock, annotations) = (None, None, None, Default::default());
        Command::Update(Update { target: SHOP, starts_at, ends_at, capacity, stock, annotations })
    };
    assert_eq!(engine.submit(None, raise(200_000), None).await.err(), Some(SubmitError::MemoryLimit));
    assert_eq!(taken(&engine), before);
    let raised = submit(&engine, raise(40_000)).await;
    assert!(matches!(raised, Outcome::Updated(raised) if raised.spec.capacity == 40_000));
    // The smaller table may be empty and gone by now.
    assert!(taken(&engine) >= Layout::strict(40_000).unwrap().memory_bytes());
}

/// Each alone has room in the table that is there. All of them together make it grow beyond the limit.
#[tokio::test]
async fn concurrent_inserts_stay_within_limit() {
    const LIMIT: u64 = 300_000;
    let (engine, _directory) = engine(LIMIT).await;
    create(&engine, SHOP, 20_000).await;
    let batches = (0..48_000).step_by(3_000).map(|from| insert(SHOP, from..from + 3_000));
    let inserts = batches.map(|insert| engine.submit(None, insert, None));
    let answers = join_all(inserts).await;
    assert!(taken(&engine) <= LIMIT, "{} bytes", taken(&engine));
    let admitted = answers.iter().filter(|answer| answer.is_ok()).count();
    assert!(admitted >= 6, "{admitted} found room");
    assert!(answers.contains(&Err(SubmitError::MemoryLimit)), "{answers:?}");
    engine.shutdown().await;
}

/// The memory pinned by a snapshot is bounded by its initial content, however often a filter is cleared.
#[tokio::test]
async fn clear_during_snapshot_accumulates_no_tables() {
    let (engine, _directory) = engine(100 << 20).await;
    create(&engine, SHOP, 400_000).await;
    submit(&engine, insert(SHOP, 0..10_000)).await;
    let before = taken(&engine);
    let snapshot = engine.snapshot();
    let clears = async {
        for _ in 0..50 {
            submit(&engine, Command::Clear { target: SHOP }).await;
            assert!(taken(&engine) <= 2 * before, "{} bytes, {before} before", taken(&engine));
        }
    };
    let (snapshot, ()) = tokio::join!(snapshot, clears);
    snapshot.unwrap();
    until_taken(&engine, before).await;
    engine.shutdown().await;
}

/// Waits until this much memory is taken. Dropped tables are freed incrementally, without commands.
async fn until_taken(engine: &Engine, bytes: u64) {
    while taken(engine) != bytes {
        tokio::task::yield_now().await;
    }
}

/// A deleted filter is freed incrementally; but no request is rejected because of memory that only has to be freed.
#[tokio::test]
async fn delete_frees_memory_immediately() {
    let (engine, _directory) = engine(100 << 20).await;
    let empty = taken(&engine);
    for _ in 0..3 {
        create(&engine, SHOP, 5_000_000).await;
        assert!(taken(&engine) > 40 << 20);
        submit(&engine, delete(SHOP)).await;
    }
    until_taken(&engine, empty).await;
    engine.shutdown().await;
}

/// A reader that has looked a coupon up still sees all of it after the coupon is deleted. The memory is freed once no reader does.
#[tokio::test]
async fn deleted_filter_stays_until_readers_finish() {
    let (engine, _directory) = engine(100 << 20).await;
    let empty = taken(&engine);
    create(&engine, SHOP, 400_000).await;
    submit(&engine, insert(SHOP, 0..3_000)).await;
    let redeemed =
        (0..2_000).map(|number| engine.submit(None, redeem(SHOP, number, number, "order", 0), None));
    assert!(join_all(redeemed).await.iter().all(|answer| answer.is_ok()));
    let shop = find(&engine, SHOP);
    submit(&engine, delete(SHOP)).await;
    assert!(engine.view().find(Kind::Coupon, &shop.name).is_none());
    let stats = shop.describe(engine.now()).stats;
    assert_eq!((stats.items, stats.codes.unwrap().redeemed), (3_000, 2_000));
    let page = shop.redemptions(&RedemptionQuery::default(), None, 5_000, engine.now());
    assert_eq!(page.redemptions.len(), 1_000);
    assert!(taken(&engine) > empty + stats.memory_bytes);
    drop(shop);
    // Any next command frees it, at the latest a minute later.
    create(&engine, target(2), 1).await;
    submit(&engine, delete(target(2))).await;
    until_taken(&engine, empty).await;
    engine.shutdown().await;
}

/// A cleared pool keeps its table and its redeemed codes.
#[tokio::test]
async fn cleared_pool_keeps_its_tables() {
    let (engine, _directory) = engine(100 << 20).await;
    create(&engine, SHOP, 100_000).await;
    submit(&engine, insert(SHOP, 0..5_000)).await;
    submit(&engine, redeem(SHOP, 7, 7, "order", 0)).await;
    let shop = find(&engine, SHOP);
    let before = shop.describe(engine.now()).stats;
    let cleared = submit(&engine, Command::Clear { target: SHOP }).await;
    assert_eq!(cleared, Outcome::Cleared(4_999));
    let stats = shop.describe(engine.now()).stats;
    assert_eq!((stats.items, stats.codes.unwrap().redeemed, stats.segments.len()), (1, 1, 1));
    assert_eq!(stats.memory_bytes, before.memory_bytes);
    engine.shutdown().await;
}

/// A pool that is cleared again and again can be cleared once its slots are free, though no command arrives.
#[tokio::test]
async fn pools_clear_repeatedly_within_limit() {
    let (engine, _directory) = engine(1 << 30).await;
    create(&engine, SHOP, 1_000_000).await;
    submit(&engine, insert(SHOP, 0..10)).await;
    submit(&engine, redeem(SHOP, 7, 7, "order", 0)).await;
    let shop = find(&engine, SHOP);
    for batch in 1..40 {
        submit(&engine, insert(SHOP, batch * 10..batch * 10 + 10)).await;
        match engine.submit(None, Command::Clear { target: SHOP }, None).await {
            Ok(_) | Err(SubmitError::Overloaded) => {}
            Err(other) => panic!("{other}"),
        }
        let tables = shop.describe(engine.now()).stats.segments.len();
        assert_eq!(tables, 1);
    }
    while engine.submit(None, Command::Clear { target: SHOP }, None).await.is_err() {
        tokio::task::yield_now().await;
    }
    engine.shutdown().await;
}
