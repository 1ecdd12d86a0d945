//! The memory limit as those meet it who ask at once.

use cuckood::clock::{Clock, ClockLimits};
use cuckood::domain::{Command, Digests, Kind, Name, Outcome, Sizing, Spec, Target, Window};
use cuckood::engine::{Engine, EngineOptions, Status, SubmitError};
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
    };
    let name = Name::new(name).unwrap();
    let creation = engine.creation(Kind::Coupon, name, spec, Window::default()).unwrap();
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
async fn a_capacity_beyond_the_limit_is_refused() {
    let (engine, _directory) = engine(1_000_000).await;
    let target = create(&engine, "shop", 20_000).await;
    assert!(matches!(
        engine.submit(insert(target, 0, 10), None).await.unwrap().outcome,
        Outcome::Inserted(_)
    ));
    let before = taken(&engine);
    let raise = |capacity| {
        let shop = engine.find(Kind::Coupon, &Name::new("shop").unwrap()).unwrap();
        engine.update(&shop, None, None, Some(capacity)).unwrap()
    };
    assert_eq!(engine.submit(raise(200_000), None).await.err(), Some(SubmitError::MemoryLimit));
    assert_eq!(taken(&engine), before);
    let raised = engine.submit(raise(40_000), None).await.unwrap().outcome;
    assert!(matches!(raised, Outcome::Updated(raised) if raised.spec.capacity == 40_000));
    assert!(taken(&engine) >= before + Layout::strict(40_000).unwrap().memory_bytes());
}

/// Each alone has room in the table that is there. All of them together make it grow beyond the limit.
#[tokio::test]
async fn inserts_that_come_together_stay_within_the_limit() {
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

/// What a snapshot still wants is bounded by what was there when it began, however often a filter is cleared meanwhile.
#[tokio::test]
async fn clearing_during_a_snapshot_piles_nothing_up() {
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
    engine.submit(insert(target, 0, 1), None).await.unwrap();
    assert_eq!(taken(&engine), before);
    engine.shutdown().await;
}
