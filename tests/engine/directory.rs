//! Whose directory it is, of which format, and in what state an earlier process left it.

use crate::engines::defaults;
use cuckood::clock::{Clock, ClockLimits};
use cuckood::engine::{Engine, EngineOptions, EngineStatus};
use cuckood_log::journal::Durability;
use cuckood_log::store::{RestoreTarget, Store, StoreCopy, StoreError, is_unused};
use cuckood_log::testing::stores::{
    append, copy_dir, entries, open, open_journal, options, proposal,
};
use cuckood_state::domain::{Seq, Timestamp};
use std::fs;
use std::path::Path;
use std::sync::Arc;

fn refusal(dir: &Path) -> StoreError {
    let opened = Store::open(dir, &options(Durability::Fsync));
    opened
        .and_then(|store| open_journal(&Arc::new(store)))
        .map(drop)
        .unwrap_err()
}

fn with_entries(dir: &Path) {
    let mut journal = open_journal(&open(dir)).unwrap();
    for number in 0..10 {
        append(&mut journal, vec![proposal(number, 100)]).unwrap();
    }
}

#[test]
fn second_process_is_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let error = refusal(dir.path());
    assert!(matches!(error, StoreError::Locked { .. }));
    assert!(error.to_string().contains(dir.path().to_str().unwrap()));
    drop(store);
    open(dir.path());
}

#[test]
fn foreign_directory_is_rejected_unchanged() {
    for (name, content) in [
        ("letters.txt", ""),
        ("format", "something else"),
        ("sled", ""),
    ] {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(name), content).unwrap();
        let error = refusal(dir.path());
        assert!(matches!(error, StoreError::NotOurs { .. }), "{error}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}

#[test]
fn absent_or_empty_directory_is_initialized() {
    let dir = tempfile::tempdir().unwrap();
    open(&dir.path().join("deep/down"));
    let volume = dir.path().join("volume");
    fs::create_dir_all(volume.join("lost+found")).unwrap();
    open(&volume);
    open(&volume);
}

#[test]
fn directory_of_format_0_is_rejected() {
    let dir = tempfile::tempdir().unwrap();
    with_entries(dir.path());
    let format = dir.path().join("format");
    let text = fs::read_to_string(&format).unwrap();
    fs::write(&format, text.replace("format 1", "format 0")).unwrap();
    let error = refusal(dir.path());
    assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
    assert!(error.to_string().contains("format 0"), "{error}");
}

#[test]
fn unfinished_restore_blocks_startup() {
    let dir = tempfile::tempdir().unwrap();
    let options = options(Durability::Fsync);
    RestoreTarget::begin(dir.path()).unwrap().abandon().unwrap();
    let begun = RestoreTarget::begin(dir.path()).unwrap();
    assert!(matches!(refusal(dir.path()), StoreError::Locked { .. }));
    drop(begun);
    for error in [
        refusal(dir.path()),
        RestoreTarget::begin(dir.path()).map(drop).unwrap_err(),
    ] {
        assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
        assert!(error.to_string().contains("cuckood restore"), "{error}");
    }
    fs::remove_file(dir.path().join("restoring")).unwrap();
    let store = RestoreTarget::begin(dir.path())
        .unwrap()
        .open(&options)
        .unwrap();
    drop(store);
    assert!(matches!(refusal(dir.path()), StoreError::Damaged { .. }));
}

#[test]
fn newer_format_is_rejected_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    with_entries(dir.path());
    let format = dir.path().join("format");
    let text = fs::read_to_string(&format).unwrap();
    fs::write(&format, text.replace("format 1", "format 2")).unwrap();
    let before = fs::read(dir.path().join("sled/db")).unwrap();
    let error = refusal(dir.path());
    assert!(
        matches!(
            error,
            StoreError::Newer {
                found: 2,
                known: 1,
                ..
            }
        ),
        "{error}"
    );
    assert!(fs::read(dir.path().join("sled/db")).unwrap() == before);
}

#[test]
fn diverged_directory_can_only_be_verified() {
    let dir = tempfile::tempdir().unwrap();
    with_entries(dir.path());
    fs::write(
        dir.path().join("diverged"),
        "it differs from b at position 65536\n",
    )
    .unwrap();
    let error = refusal(dir.path());
    assert!(matches!(error, StoreError::Diverged { .. }), "{error}");
    assert!(
        error
            .to_string()
            .contains("it differs from b at position 65536; replace it with an empty"),
        "{error}"
    );
    StoreCopy::of(dir.path(), None)
        .unwrap()
        .open(&options(Durability::Fsync))
        .unwrap();
}

#[test]
fn interrupted_first_startup_is_repeated() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("initialising"), "").unwrap();
    fs::create_dir(dir.path().join("sled")).unwrap();
    fs::write(dir.path().join("sled/db"), "half").unwrap();
    drop(open_journal(&open(dir.path())).unwrap());
    assert!(!dir.path().join("initialising").exists());
    // At its last step: the content is not discarded.
    with_entries(dir.path());
    fs::write(dir.path().join("initialising"), "").unwrap();
    assert_eq!(open_journal(&open(dir.path())).unwrap().last(), Seq(10));
}

#[test]
fn interrupted_restore_is_rejected() {
    let dir = tempfile::tempdir().unwrap();
    with_entries(dir.path());
    fs::write(dir.path().join("restoring"), "").unwrap();
    assert!(refusal(dir.path()).to_string().contains("cuckood restore"));
}

/// A node's directory is replaced by a shared snapshot; a partial one is never opened, and is filled again.
#[test]
fn partially_filled_directory_is_filled_again() {
    let dir = tempfile::tempdir().unwrap();
    assert!(is_unused(dir.path()) && is_unused(&dir.path().join("absent")));
    with_entries(dir.path());
    assert!(!is_unused(dir.path()));
    for _ in 0..2 {
        drop(Store::open_to_fill(dir.path(), &options(Durability::Fsync)).unwrap());
        assert!(is_unused(dir.path()));
        assert!(
            refusal(dir.path())
                .to_string()
                .contains("a shared snapshot")
        );
    }
    let store = Store::open_to_fill(dir.path(), &options(Durability::Fsync)).unwrap();
    store
        .begin_snapshot(Seq(7))
        .unwrap()
        .finish(&store, Timestamp(1), Vec::new())
        .unwrap();
    store.seal().unwrap();
    drop(store);
    assert!(!is_unused(dir.path()));
    assert_eq!(open(dir.path()).manifests().unwrap()[0].seq, Seq(7));
    // It crashes while deleting the old content.
    fs::write(dir.path().join("filling"), "").unwrap();
    fs::remove_file(dir.path().join("format")).unwrap();
    assert!(is_unused(dir.path()));
    let store = Store::open_to_fill(dir.path(), &options(Durability::Fsync)).unwrap();
    assert!(store.manifests().unwrap().is_empty());
    // A foreign folder is left unchanged.
    let foreign = tempfile::tempdir().unwrap();
    fs::write(foreign.path().join("photo"), "").unwrap();
    assert!(matches!(
        Store::open_to_fill(foreign.path(), &options(Durability::Fsync)),
        Err(StoreError::NotOurs { .. })
    ));
}

#[test]
fn unfinished_sled_snapshot_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    with_entries(dir.path());
    let planted = dir.path().join("sled/snap.00000000FFFFFFFF.generating");
    fs::write(&planted, [7; 4096]).unwrap();
    let mut journal = open_journal(&open(dir.path())).unwrap();
    assert!(!planted.exists());
    assert_eq!(entries(&mut journal, 0).unwrap().len(), 10);
}

#[test]
fn missing_or_swapped_parts_are_detected() {
    type Spoil = fn(&Path, &Path);
    let spoils: [(&str, Spoil); 7] = [
        ("format is missing", |dir, _| {
            fs::remove_file(dir.join("format")).unwrap()
        }),
        ("format can't be read", |dir, _| {
            fs::write(dir.join("format"), "cuckood data directory\n").unwrap()
        }),
        ("acknowledged is missing", |dir, _| {
            fs::remove_file(dir.join("acknowledged")).unwrap()
        }),
        ("no intact record", |dir, _| {
            fs::write(dir.join("acknowledged"), [0; 8192]).unwrap()
        }),
        ("no intact record", |dir, other| {
            fs::copy(other.join("acknowledged"), dir.join("acknowledged"))
                .map(drop)
                .unwrap()
        }),
        ("sled/db is missing", |dir, _| {
            fs::remove_file(dir.join("sled/db")).unwrap()
        }),
        ("another directory", |dir, other| {
            fs::remove_dir_all(dir.join("sled")).unwrap();
            fs::rename(other.join("sled"), dir.join("sled")).unwrap();
        }),
    ];
    for (expected, spoil) in spoils {
        let dir = tempfile::tempdir().unwrap();
        let ours = dir.path().join("ours");
        let other = dir.path().join("other");
        with_entries(&ours);
        with_entries(&other);
        spoil(&ours, &other);
        let error = refusal(&ours);
        assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
        let text = error.to_string();
        assert!(
            text.contains(expected) && text.contains("cuckood verify"),
            "{text}"
        );
    }
}

#[test]
fn older_log_copy_is_detected() {
    let dir = tempfile::tempdir().unwrap();
    with_entries(dir.path());
    let copy = dir.path().join("copy");
    copy_dir(&dir.path().join("sled"), &copy);
    append(
        &mut open_journal(&open(dir.path())).unwrap(),
        vec![proposal(10, 1)],
    )
    .unwrap();
    fs::remove_dir_all(dir.path().join("sled")).unwrap();
    fs::rename(&copy, dir.path().join("sled")).unwrap();
    let error = open_journal(&open(dir.path()))
        .map(drop)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("11 was acknowledged") && error.contains("cuckood verify"),
        "{error}"
    );
}

/// Otherwise the alert about old backups stays silent after a restart, and if there was never a backup.
#[tokio::test]
async fn backup_time_survives_restarts() {
    let dir = tempfile::tempdir().unwrap();
    let start = async || {
        let options = EngineOptions {
            store: options(Durability::Flush),
            ..defaults(dir.path())
        };
        let engine = Engine::start(options, Clock::system(ClockLimits::default()));
        assert_eq!(engine.recovered().await, EngineStatus::Ready);
        let at = engine.info().backup_at.unwrap();
        (engine, at)
    };
    let (engine, served_at) = start().await;
    engine.shutdown().await;

    let (engine, at) = start().await;
    assert_eq!(at, served_at);
    let mut backup = engine.backup().await.unwrap();
    while !backup.next().await.unwrap().is_empty() {}
    let backup_at = engine.info().backup_at.unwrap();
    assert!(backup_at > served_at);
    engine.shutdown().await;

    let (engine, at) = start().await;
    assert_eq!(at, backup_at);
    engine.shutdown().await;
}
