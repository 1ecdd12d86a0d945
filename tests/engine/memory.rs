//! The memory limit with concurrent requests.

use crate::engines;
use cuckood::engine::{Engine, EngineOptions, SubmitError};
use cuckood_filter::Layout;
use cuckood_state::domain::{
    Applied, Command, IdempotencyKey, Kind, LineUp, Outcome, PutLineUp, Redemption,
    RedemptionStatus, Refusal, Target, Update,
};
use cuckood_state::testing::commands::{
    NewFilter, insert, name, name_of, redeem, redemption, remove, target,
};
use cuckood_state::{FilterView, RedemptionQuery};
use futures_util::future::join_all;
use std::sync::Arc;

const SHOP: Target = target(1);

async fn engine(limit: u64) -> (Engine, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let options = EngineOptions {
        memory_max_bytes: limit,
        ..engines::options(directory.path())
    };
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
    Command::Delete {
        kind: Kind::Coupon,
        name: name_of(target),
    }
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
        let capacity = Some(find(&engine, SHOP).raise(capacity).unwrap());
        let starts_at = None;
        let ends_at = None;
        let stock = None;
        let annotations = Default::default();
        Command::Update(Update {
            target: SHOP,
            starts_at,
            ends_at,
            capacity,
            stock,
            annotations,
        })
    };
    assert_eq!(
        engine.submit(None, raise(200_000), None).await.err(),
        Some(SubmitError::MemoryLimit)
    );
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
    let batches = (0..48_000)
        .step_by(3_000)
        .map(|from| insert(SHOP, from..from + 3_000));
    let inserts = batches.map(|insert| engine.submit(None, insert, None));
    let answers = join_all(inserts).await;
    assert!(taken(&engine) <= LIMIT, "{} bytes", taken(&engine));
    let admitted = answers.iter().filter(|answer| answer.is_ok()).count();
    assert!(admitted >= 6, "{admitted} found room");
    assert!(
        answers.contains(&Err(SubmitError::MemoryLimit)),
        "{answers:?}"
    );
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
            assert!(
                taken(&engine) <= 2 * before,
                "{} bytes, {before} before",
                taken(&engine)
            );
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
    let redeemed = (0..2_000)
        .map(|number| engine.submit(None, redeem(SHOP, number, number, "order", 0), None));
    assert!(join_all(redeemed).await.iter().all(|answer| answer.is_ok()));
    let shop = find(&engine, SHOP);
    submit(&engine, delete(SHOP)).await;
    assert!(engine.view().find(Kind::Coupon, &shop.name).is_none());
    let stats = shop.describe(engine.now()).stats;
    assert_eq!(
        (stats.items, stats.codes.states.unwrap().redeemed),
        (3_000, 2_000)
    );
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
    assert_eq!(
        (
            stats.items,
            stats.codes.states.unwrap().redeemed,
            stats.segments.len()
        ),
        (1, 1, 1)
    );
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
        match engine
            .submit(None, Command::Clear { target: SHOP }, None)
            .await
        {
            Ok(_) | Err(SubmitError::Overloaded) => {}
            Err(other) => panic!("{other}"),
        }
        let tables = shop.describe(engine.now()).stats.segments.len();
        assert_eq!(tables, 1);
    }
    while engine
        .submit(None, Command::Clear { target: SHOP }, None)
        .await
        .is_err()
    {
        tokio::task::yield_now().await;
    }
    engine.shutdown().await;
}

const OTHER: Target = target(2);

fn key(scope: u128) -> IdempotencyKey {
    IdempotencyKey { scope, request: 7 }
}

async fn submit_once(
    engine: &Engine,
    command: Command,
    scope: u128,
) -> Result<Applied, SubmitError> {
    engine.submit(None, command, Some(key(scope))).await
}

/// A coupon with codes 0 to 999 of which 1 is redeemed, and 2 to 5 are held, another one, and a line-up: each with a key, and the redeemed code
/// under the reference `order`. The engine has been started again with a limit that has long been exceeded.
async fn engine_beyond_limit() -> (Engine, tempfile::TempDir) {
    let (engine, directory) = engine(100 << 20).await;
    create(&engine, SHOP, 20_000).await;
    create(&engine, OTHER, 100).await;
    let line_up = LineUp {
        campaigns: vec![name("spring")],
        unless: Vec::new(),
        limit: 1,
    };
    let put = PutLineUp {
        name: name("home"),
        line_up,
        annotations: Default::default(),
    };
    submit(&engine, Command::PutLineUp(put)).await;
    submit_once(&engine, insert(SHOP, 0..1_000), 1)
        .await
        .unwrap();
    submit_once(&engine, redeem(SHOP, 1, 1, "order", 0), 2)
        .await
        .unwrap();
    for code in 2..6 {
        submit(&engine, redeem(SHOP, code, code, "order", 600)).await;
    }
    engine.shutdown().await;
    drop(engine);
    let options = EngineOptions {
        memory_max_bytes: 100_000,
        ..engines::options(directory.path())
    };
    let engine = engines::start(options).await;
    assert!(taken(&engine) > 200_000);
    (engine, directory)
}

/// Clients send a key with every write, and most repeat one that got no response.
#[tokio::test]
async fn stored_outcome_is_replayed_beyond_limit() {
    let (engine, _directory) = engine_beyond_limit().await;
    let rejected = submit_once(&engine, insert(SHOP, 2_000..2_010), 9).await;
    assert_eq!(rejected, Err(SubmitError::MemoryLimit));
    let inserted = submit_once(&engine, insert(SHOP, 0..1_000), 1)
        .await
        .unwrap();
    assert!(
        matches!(
            inserted,
            Applied {
                outcome: Outcome::Inserted(_),
                replayed: true
            }
        ),
        "{inserted:?}"
    );
    let redeemed = submit_once(&engine, redeem(SHOP, 1, 77, "order", 0), 2)
        .await
        .unwrap();
    assert!(
        matches!(
            redeemed,
            Applied {
                outcome: Outcome::Redeemed(_),
                replayed: true
            }
        ),
        "{redeemed:?}"
    );
    let other = IdempotencyKey {
        request: 8,
        ..key(1)
    };
    let reused = engine
        .submit(None, insert(SHOP, 0..9), Some(other))
        .await
        .unwrap();
    assert_eq!(
        reused,
        Applied {
            outcome: Outcome::Refused(Refusal::KeyReused),
            replayed: false
        }
    );
    engine.shutdown().await;
}

/// With or without a key.
#[tokio::test]
async fn redemption_is_repeated_beyond_limit() {
    let (engine, _directory) = engine_beyond_limit().await;
    let status = |outcome| match outcome {
        Outcome::Settled(Redemption { id, status, .. }) => (id, status),
        other => panic!("{other:?}"),
    };
    let again = submit(&engine, redeem(SHOP, 1, 70, "order", 0)).await;
    assert_eq!(status(again), (redemption(1), RedemptionStatus::Redeemed));
    let again = submit_once(&engine, redeem(SHOP, 1, 71, "order", 0), 20)
        .await
        .unwrap();
    assert_eq!(
        status(again.outcome),
        (redemption(1), RedemptionStatus::Redeemed)
    );
    let extended = submit(&engine, redeem(SHOP, 2, 72, "order", 900)).await;
    assert_eq!(status(extended), (redemption(2), RedemptionStatus::Held));
    let confirmed = submit_once(&engine, redeem(SHOP, 2, 73, "order", 0), 21)
        .await
        .unwrap();
    assert_eq!(
        status(confirmed.outcome),
        (redemption(2), RedemptionStatus::Redeemed)
    );
    // A repetition behind a command that ends its hold is a new redemption, which takes memory.
    let cancel = engine.submit(
        None,
        Command::Cancel {
            target: SHOP,
            redemption: redemption(3),
        },
        None,
    );
    let again = engine.submit(None, redeem(SHOP, 3, 74, "order", 0), None);
    let (cancelled, again) = tokio::join!(cancel, again);
    assert_eq!(
        status(cancelled.unwrap().outcome),
        (redemption(3), RedemptionStatus::Cancelled)
    );
    assert_eq!(again, Err(SubmitError::MemoryLimit));
    for new in [
        redeem(SHOP, 8, 75, "order", 0),
        redeem(SHOP, 2, 76, "order-2", 0),
    ] {
        assert_eq!(
            engine.submit(None, new, None).await,
            Err(SubmitError::MemoryLimit)
        );
    }
    engine.shutdown().await;
}

#[tokio::test]
async fn operation_that_frees_memory_takes_key_beyond_limit() {
    let (engine, _directory) = engine_beyond_limit().await;
    let shop = |redemption_number| (SHOP, redemption(redemption_number));
    let (target, held) = shop(3);
    let (_, other) = shop(4);
    let commands = [
        remove(SHOP, 10..20),
        Command::Confirm {
            target,
            redemption: held,
        },
        Command::Cancel {
            target,
            redemption: other,
        },
        Command::Clear { target: SHOP },
        Command::Clear { target: OTHER },
        Command::DeleteLineUp { name: name("home") },
        delete(OTHER),
        delete(SHOP),
    ];
    let mut scope = 30;
    for command in commands {
        scope += 1;
        let word = command.word();
        let first = submit_once(&engine, command.clone(), scope).await;
        let first = first.unwrap_or_else(|error| panic!("{word}: {error}"));
        assert!(
            !matches!(first.outcome, Outcome::Refused(_)) && !first.replayed,
            "{word}: {first:?}"
        );
        // The keys of a filter end with it.
        let again = submit_once(&engine, command, scope).await.unwrap();
        assert_eq!(
            again,
            Applied {
                replayed: true,
                ..first
            },
            "{word}"
        );
    }
    engine.shutdown().await;
}

/// The reserve is bounded. Without a key, nothing is stored.
#[tokio::test]
async fn used_up_reserve_rejects_new_keys() {
    const BATCH: u128 = 1_000;
    let (engine, _directory) = engine_beyond_limit().await;
    let before = engine.info().records_bytes;
    let mut scope = 1_000;
    let retry_after_seconds = loop {
        let removes =
            (scope..scope + BATCH).map(|scope| submit_once(&engine, remove(SHOP, [9]), scope));
        let full = join_all(removes).await.into_iter().find_map(Result::err);
        match full {
            None => {}
            Some(SubmitError::IdempotencyFull {
                retry_after_seconds,
            }) => break retry_after_seconds,
            Some(other) => panic!("{other}"),
        }
        scope += BATCH;
        assert!(scope < 100_000, "it is never used up");
    };
    assert!(
        (86_000..=86_400).contains(&retry_after_seconds),
        "{retry_after_seconds}"
    );
    let grown = engine.info().records_bytes - before;
    assert!((900_000..=1 << 20).contains(&grown), "{grown} bytes");
    assert!(
        submit_once(&engine, remove(SHOP, [9]), 1_000)
            .await
            .unwrap()
            .replayed
    );
    submit(&engine, Command::Clear { target: SHOP }).await;
    engine.shutdown().await;
}
