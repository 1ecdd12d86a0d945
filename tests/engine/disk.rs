//! Disk space: its use is bounded whatever clients do, and operations that free space succeed while space is short.

use crate::engines::{self, start};
use cuckood::engine::journal::JournalOptions;
use cuckood::engine::{Engine, EngineOptions, SubmitError};
use cuckood_filter::Growth;
use cuckood_log::journal::Durability;
use cuckood_log::journal::LocalOptions;
use cuckood_state::domain::{Applied, Command, IdempotencyKey, Kind, Outcome, Target};
use cuckood_state::testing::commands::{NewFilter, insert, name_of, remove, target};
use futures_util::FutureExt;
use std::path::Path;

const CODES: u64 = 1_000_000;

fn options(dir: &Path) -> EngineOptions {
    let journal = LocalOptions {
        durability: Durability::Flush,
        segment_bytes: 1 << 20,
    };
    let journal = JournalOptions::Local(journal);
    let mut options = EngineOptions {
        journal,
        ..engines::defaults(dir)
    };
    options.store.sync_snapshots = false;
    (options.store.preallocate_bytes, options.store.ballast_bytes) = (1 << 20, 0);
    (
        options.snapshots.log_bytes_min,
        options.snapshots.log_bytes_max,
    ) = (LOG_BYTES, LOG_BYTES);
    options
}

/// Bytes of log after which a snapshot is due.
const LOG_BYTES: u64 = 4 << 20;

async fn create(engine: &Engine, target: Target) {
    let coupon = NewFilter {
        growth: Growth::Fixed,
        ..NewFilter::coupon(CODES)
    };
    engines::create(engine, target, &coupon).await;
}

/// docs/OPERATIONS.md: three snapshots, and the log of two intervals between them. Clients that abort requests for snapshots and images
/// don't change that.
#[tokio::test(flavor = "multi_thread")]
async fn disk_use_is_bounded_despite_aborted_requests() {
    const BATCH: u64 = 5_000;
    let directory = tempfile::tempdir().unwrap();
    let engine = start(options(directory.path())).await;
    let target = target(1);
    create(&engine, target).await;
    let mut most = 0;
    let mut logged = 0;
    let mut snapshots = 0;
    let mut latest = None;
    for batch in 0.. {
        let from = batch % 100 * BATCH;
        let command = match batch / 100 % 2 {
            0 => insert(target, from..from + BATCH),
            _ => remove(target, from..from + BATCH),
        };
        logged += command.weight_bytes();
        engine.submit(None, command, None).await.unwrap();
        assert!(engine.snapshot().now_or_never().is_none());
        assert!(engine.image(target.0).now_or_never().is_none());
        let info = engine.info();
        most = most.max(info.storage.disk_bytes);
        let seq = info.snapshot.map(|snapshot| snapshot.seq);
        snapshots += u64::from(std::mem::replace(&mut latest, seq) != seq);
        if logged > 24 * LOG_BYTES {
            break;
        }
    }
    let info = engine.info();
    let state = info.tables_bytes + info.records_bytes;
    let written = info.storage.wal_bytes_written + info.storage.snapshot_bytes_written;
    let bound = 3 * state + 2 * LOG_BYTES;
    // sled reuses a segment of 8 MB once half of it is free, but for the last ones.
    let bound = bound * 2 + 4 * (8 << 20);
    assert!(most <= bound, "{most} bytes on the disk, of {bound}");
    assert!(written > 2 * bound, "only {written} bytes were written");
    assert!(snapshots >= 5, "{snapshots} snapshots");
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn operations_that_free_space_succeed_below_watermark() {
    let directory = tempfile::tempdir().unwrap();
    let engine = start(options(directory.path())).await;
    let old = target(1);
    let codes = target(2);
    for target in [old, codes] {
        create(&engine, target).await;
        engine
            .submit(None, insert(target, 0..1_000), None)
            .await
            .unwrap();
    }
    engine.shutdown().await;
    drop(engine);

    // More space than any disk has.
    let mut options = options(directory.path());
    options.store.free_space_min_bytes = u64::MAX / 2;
    let engine = start(options).await;
    let full = engine.submit(None, insert(codes, 0..1), None).await;
    assert_eq!(full, Err(SubmitError::DiskFull));
    // A write that is rejected does not take deletions of the same batch along.
    let name = name_of(old);
    let (rejected, deleted, cleared) = tokio::join!(
        engine.submit(None, insert(codes, 0..1), None),
        engine.submit(
            None,
            Command::Delete {
                kind: Kind::Coupon,
                name
            },
            None
        ),
        engine.submit(None, Command::Clear { target: codes }, None),
    );
    assert_eq!(rejected, Err(SubmitError::DiskFull));
    assert_eq!(deleted.unwrap().outcome, Outcome::Deleted);
    assert_eq!(cleared.unwrap().outcome, Outcome::Cleared(1_000));
    let report = engine.snapshot().await.unwrap();
    assert_eq!(report.seq, engine.info().last_seq);
    assert_eq!(engine.writes_refused(), Some(SubmitError::DiskFull));
    engine.shutdown().await;
}

/// A repeated request changes nothing, so it needs no space.
#[tokio::test]
async fn stored_outcome_is_replayed_on_full_disk() {
    let directory = tempfile::tempdir().unwrap();
    let engine = start(engines::options(directory.path())).await;
    engines::create(&engine, target(1), &NewFilter::coupon(100)).await;
    let key = |scope| Some(IdempotencyKey { scope, request: 7 });
    let first = engine
        .submit(None, insert(target(1), 0..9), key(1))
        .await
        .unwrap();
    engine.shutdown().await;
    drop(engine);
    let mut options = engines::options(directory.path());
    options.store.free_space_min_bytes = u64::MAX;
    let engine = start(options).await;
    let rejected = engine.submit(None, insert(target(1), 10..20), key(2)).await;
    assert_eq!(rejected, Err(SubmitError::DiskFull));
    let again = engine
        .submit(None, insert(target(1), 0..9), key(1))
        .await
        .unwrap();
    assert_eq!(
        again,
        Applied {
            replayed: true,
            ..first
        }
    );
    // What frees space is accepted with a key.
    let delete = Command::Delete {
        kind: Kind::Coupon,
        name: name_of(target(1)),
    };
    for replayed in [false, true] {
        let deleted = engine.submit(None, delete.clone(), key(3)).await.unwrap();
        assert_eq!(
            deleted,
            Applied {
                outcome: Outcome::Deleted,
                replayed
            }
        );
    }
    engine.shutdown().await;
}
