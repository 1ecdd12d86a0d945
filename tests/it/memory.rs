//! The memory limit with concurrent requests.

use cuckood::clock::{Clock, ClockLimits};
use cuckood::domain::{
    Command, Digests, Kind, Name, Outcome, RedemptionId, Reference, Sizing, Spec, Target, Window,
};
use cuckood::engine::{Engine, EngineOptions, RedemptionQuery, Status, SubmitError};
use cuckood::filter::{Digest, Growth, Layout, Mode};
use futures_util::future::join_all;

async fn engine(limit: u64) -> (Engine, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let mut options = EngineOptions::new(directory.path());
    options.store.free_space_min_bytes = 0;
    options.store.ballast_bytes = 0;
    options.memory_max_bytes = limit;
    let engine = Engine::start(options, Clock::system(ClockLimits::default()));
    assert_eq!(engine.recovered().await, Status::Ready);
    (engine, directory)
}

async fn create(engine: &Engine, name: &str, capacity: u64) -> Target {
    let spec = Spec {
        capacity,
        mode: Mode::Strict,
        growth: Growth::Auto,
        sizing: Sizing::Exact,
        ignore_case: false,
        stock: None,
        forget: None,
    };
    let name = Name::new(name).unwrap();
    let creation =
        cuckood::engine::creation(Kind::Coupon, name, spec, Window::default(), Default::default()).unwrap();
    let Command::Create { id, .. } = creation else { unreachable!() };
    assert!(matches!(engine.submit(creation, None).await.unwrap().outcome, Outcome::Created(_)));
    Target(id)
}

fn insert(target: Target, batch: u64, items: u64) -> Command {
    let digests = (0..items).map(|item| Digest((batch * items + item).wrapping_mul(0x9e37_79b9_7f4a_7c15)));
    Command::Insert { target, digests: Digests(digests.collect()), if_absent: false, revive: false }
}

fn taken(engine: &Engine) -> u64 {
    let info = engine.info();
    info.tables_bytes + info.records_bytes
}

/// A capacity is promised only if its memory can be had.
#[tokio::test]
async fn capacity_beyond_limit_is_rejected() {
    let (engine, _directory) = engine(1_000_000).await;
    let target = create(&engine, "shop", 20_000).await;
    assert!(matches!(
        engine.submit(insert(target, 0, 10), None).await.unwrap().outcome,
        Outcome::Inserted(_)
    ));
    let before = taken(&engine);
    let raise = |capacity| {
        let shop = engine.view().find(Kind::Coupon, &Name::new("shop").unwrap()).unwrap();
        cuckood::engine::update(&shop, None, None, Some(capacity), None, Default::default()).unwrap()
    };
    assert_eq!(engine.submit(raise(200_000), None).await.err(), Some(SubmitError::MemoryLimit));
    assert_eq!(taken(&engine), before);
    let raised = engine.submit(raise(40_000), None).await.unwrap().outcome;
    assert!(matches!(raised, Outcome::Updated(raised) if raised.spec.capacity == 40_000));
    // The smaller table may be empty and gone by now.
    assert!(taken(&engine) >= Layout::strict(40_000).unwrap().memory_bytes());
}

/// Each alone has room in the table that is there. All of them together make it grow beyond the limit.
#[tokio::test]
async fn concurrent_inserts_stay_within_limit() {
    const LIMIT: u64 = 300_000;
    let (engine, _directory) = engine(LIMIT).await;
    let target = create(&engine, "shop", 20_000).await;
    let inserts = (0..16).map(|batch| engine.submit(insert(target, batch, 3_000), None));
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
    let target = create(&engine, "shop", 400_000).await;
    engine.submit(insert(target, 0, 10_000), None).await.unwrap();
    let before = taken(&engine);
    let snapshot = engine.snapshot();
    let clears = async {
        for _ in 0..50 {
            engine.submit(Command::Clear { target }, None).await.unwrap();
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

fn redeem(target: Target, number: u64) -> Command {
    Command::Redeem {
        target,
        digest: Digest(number.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
        redemption: RedemptionId(u128::from(number).to_be_bytes()),
        reference: Reference::new("order").unwrap(),
        hold_seconds: 0,
    }
}

fn delete(name: &str) -> Command {
    Command::Delete { kind: Kind::Coupon, name: Name::new(name).unwrap() }
}

/// A deleted filter is freed incrementally; but no request is rejected because of memory that only has to be freed.
#[tokio::test]
async fn delete_frees_memory_immediately() {
    let (engine, _directory) = engine(100 << 20).await;
    let empty = taken(&engine);
    for _ in 0..3 {
        create(&engine, "large", 5_000_000).await;
        assert!(taken(&engine) > 40 << 20);
        engine.submit(delete("large"), None).await.unwrap();
    }
    until_taken(&engine, empty).await;
    engine.shutdown().await;
}

/// A reader that has looked a coupon up still sees all of it after the coupon is deleted. The memory is freed once no reader does.
#[tokio::test]
async fn deleted_filter_stays_until_readers_finish() {
    let (engine, _directory) = engine(100 << 20).await;
    let empty = taken(&engine);
    let target = create(&engine, "shop", 400_000).await;
    engine.submit(insert(target, 0, 3_000), None).await.unwrap();
    let redeemed = (0..2_000).map(|number| engine.submit(redeem(target, number), None));
    assert!(join_all(redeemed).await.iter().all(|answer| answer.is_ok()));
    let shop = engine.view().find(Kind::Coupon, &Name::new("shop").unwrap()).unwrap();
    engine.submit(delete("shop"), None).await.unwrap();
    assert!(engine.view().find(Kind::Coupon, &shop.name).is_none());
    let stats = shop.describe(engine.now()).stats;
    assert_eq!((stats.items, stats.codes.unwrap().redeemed), (3_000, 2_000));
    let page = shop.redemptions(&RedemptionQuery::default(), None, 5_000, engine.now());
    assert_eq!(page.redemptions.len(), 1_000);
    assert!(taken(&engine) > empty + stats.memory_bytes);
    drop(shop);
    // Any next command frees it, at the latest a minute later.
    create(&engine, "other", 1).await;
    engine.submit(delete("other"), None).await.unwrap();
    until_taken(&engine, empty).await;
    engine.shutdown().await;
}

/// A cleared pool keeps its table and its redeemed codes.
#[tokio::test]
async fn cleared_pool_keeps_its_tables() {
    let (engine, _directory) = engine(100 << 20).await;
    let target = create(&engine, "shop", 100_000).await;
    engine.submit(insert(target, 0, 5_000), None).await.unwrap();
    engine.submit(redeem(target, 7), None).await.unwrap();
    let shop = engine.view().find(Kind::Coupon, &Name::new("shop").unwrap()).unwrap();
    let before = shop.describe(engine.now()).stats;
    let cleared = engine.submit(Command::Clear { target }, None).await.unwrap().outcome;
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
    let target = create(&engine, "shop", 1_000_000).await;
    engine.submit(insert(target, 0, 10), None).await.unwrap();
    engine.submit(redeem(target, 7), None).await.unwrap();
    let shop = engine.view().find(Kind::Coupon, &Name::new("shop").unwrap()).unwrap();
    for batch in 1..40 {
        engine.submit(insert(target, batch, 10), None).await.unwrap();
        match engine.submit(Command::Clear { target }, None).await {
            Ok(_) | Err(SubmitError::Overloaded) => {}
            Err(other) => panic!("{other}"),
        }
        let tables = shop.describe(engine.now()).stats.segments.len();
        assert_eq!(tables, 1);
    }
    while engine.submit(Command::Clear { target }, None).await.is_err() {
        tokio::task::yield_now().await;
    }
    engine.shutdown().await;
}
