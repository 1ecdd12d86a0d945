//! Data directories that no service has open, as backups.

use crate::life::take_snapshot;
use cuckood::engine::event_log::EventLog;
use cuckood::engine::recovery::{RecoveryError, load, recover};
use cuckood::engine::{archive_directory, positions, restore, verify};
use cuckood_log::journal::{Durability, JournalError};
use cuckood_log::store::Store;
use cuckood_log::testing::stores::{CLOCK, append, open, open_journal, options, proposal};
use cuckood_state::State;
use cuckood_state::domain::{Command, FORMAT_VERSION, Proposal, Seq, Timestamp};
use std::fs::{File, rename};
use std::path::Path;

/// A head of a known version, and nothing else.
const NO_HEAD: &[u8] = &[1];

/// A directory whose log has ten entries before its snapshot, and ten after it.
fn prepare(dir: &Path) {
    let store = open(dir);
    let mut journal = open_journal(&store).unwrap();
    let mut state = State::default();
    let mut events = EventLog::open(&store, &State::default()).unwrap();
    for committed in append(
        &mut journal,
        (0..10).map(|number| proposal(number, 1)).collect(),
    )
    .unwrap()
    {
        state.apply(committed.entry);
        events.take(&store, &mut state).unwrap();
    }
    take_snapshot(&store, &mut state, &mut events, Timestamp(1));
    append(
        &mut journal,
        (10..20).map(|number| proposal(number, 1)).collect(),
    )
    .unwrap();
}

/// A damaged snapshot would count as one of the two that are kept, in the place of the last good one.
#[test]
fn directory_backup_covers_log_without_damaged_snapshot() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let file = directory.path().join("backup");
    prepare(&data);
    let store = open(&data);
    let damaged = store.begin_snapshot(Seq(15)).unwrap();
    let damaged = damaged
        .finish(&store, Timestamp(2), NO_HEAD.to_vec())
        .unwrap();
    drop(store);

    let mut archive = Vec::new();
    archive_directory(&data, &mut archive).unwrap();
    let store = open(&data);
    let manifests = store.manifests().unwrap();
    assert_eq!(
        manifests
            .iter()
            .map(|manifest| manifest.seq.0)
            .collect::<Vec<_>>(),
        [20, 10]
    );
    assert!(
        manifests
            .iter()
            .all(|manifest| manifest.meta != damaged.meta)
    );
    let kept = load(&store, &manifests[0], &mut |_| ()).unwrap();
    drop(store);
    // Nothing has changed since, so no other snapshot is taken.
    archive_directory(&data, &mut Vec::new()).unwrap();
    assert_eq!(open(&data).manifests().unwrap(), manifests);

    std::fs::write(&file, archive).unwrap();
    let restored = directory.path().join("restored");
    let last = restore(
        &file,
        &restored,
        &options(Durability::Fsync),
        CLOCK,
        |archive| archive,
    )
    .unwrap();
    assert_eq!(last, Seq(21));
    let store = open(&restored);
    let copy = load(&store, &store.manifests().unwrap()[0], &mut |_| ()).unwrap();
    assert_eq!(copy.hash(), kept.hash());
    let recovered = recover(&store, &mut open_journal(&store).unwrap(), &mut |_| ()).unwrap();
    assert_eq!(recovered.state.applied(), last);
}

/// The log makes up for it, until the snapshot before it goes.
#[test]
fn verify_finds_snapshot_that_cannot_be_loaded() {
    let directory = tempfile::tempdir().unwrap();
    prepare(directory.path());
    let store = open(directory.path());
    let damaged = store.begin_snapshot(Seq(15)).unwrap();
    let damaged = damaged
        .finish(&store, Timestamp(2), NO_HEAD.to_vec())
        .unwrap();
    let fault = format!("snapshot {}: it can't be loaded", damaged.generation);
    assert_eq!(verify(&store).unwrap().faults, [fault]);
}

/// After a newer program has run there: nothing is damaged, and no older snapshot takes its place.
#[test]
fn newer_snapshot_version_is_not_damage() {
    let directory = tempfile::tempdir().unwrap();
    prepare(directory.path());
    let store = open(directory.path());
    store
        .begin_snapshot(Seq(20))
        .unwrap()
        .finish(&store, Timestamp(2), vec![77])
        .unwrap();
    let before = store.manifests().unwrap();
    let recovered = recover(&store, &mut open_journal(&store).unwrap(), &mut |_| ());
    for refused in [recovered.err(), verify(&store).err()] {
        let Some(RecoveryError::Journal(JournalError::Newer(why))) = refused else {
            panic!("{refused:?}")
        };
        assert!(
            why.contains("version 77") && why.contains("update this node"),
            "{why}"
        );
    }
    assert_eq!(store.manifests().unwrap(), before);
}

/// The same before the newer program has taken a snapshot.
#[test]
fn newer_log_version_is_not_damage() {
    let directory = tempfile::tempdir().unwrap();
    prepare(directory.path());
    let store = open(directory.path());
    let version = FORMAT_VERSION + 1;
    let enable = Proposal::new(Timestamp(3), Command::Enable { version });
    append(&mut open_journal(&store).unwrap(), vec![enable]).unwrap();
    let refused = verify(&store).err();
    let Some(RecoveryError::Journal(JournalError::Newer(why))) = refused else {
        panic!("{refused:?}")
    };
    assert!(
        why.contains(&format!("version {version}")) && why.contains("update this node"),
        "{why}"
    );
}

#[test]
fn archive_replaced_during_restore_is_rejected() {
    let directory = tempfile::tempdir().unwrap();
    let [data, file, next, restored] =
        ["data", "backup", "next", "restored"].map(|name| directory.path().join(name));
    prepare(&data);
    archive_directory(&data, &mut File::create(&file).unwrap()).unwrap();
    {
        let mut journal = open_journal(&open(&data)).unwrap();
        append(&mut journal, vec![proposal(20, 1)]).unwrap();
    }
    archive_directory(&data, &mut File::create(&next).unwrap()).unwrap();
    let replace = |archive| {
        // The first pass has opened it already.
        let _ = rename(&next, &file);
        archive
    };
    let refused = restore(
        &file,
        &restored,
        &options(Durability::Fsync),
        CLOCK,
        replace,
    )
    .unwrap_err();
    assert!(refused.to_string().contains("restore again"), "{refused}");
    let unserved = Store::open(&restored, &options(Durability::Fsync))
        .err()
        .unwrap();
    assert!(
        unserved
            .to_string()
            .contains("a restore into it was interrupted"),
        "{unserved}"
    );
}

/// Each directory has its own log.
#[test]
fn local_directories_are_not_compared() {
    let directory = tempfile::tempdir().unwrap();
    let [one, other, file] = ["one", "other", "backup"].map(|name| directory.path().join(name));
    for dir in [&one, &other] {
        prepare(dir);
    }
    assert_eq!(
        positions(std::slice::from_ref(&one)).unwrap(),
        [(one.clone(), Seq(20))]
    );
    assert_eq!(positions(std::slice::from_ref(&file)).unwrap(), []);
    let rejected = positions(&[one, other]).unwrap_err().to_string();
    assert!(rejected.contains("another log"), "{rejected}");
    let missing = positions(std::slice::from_ref(&directory.path().to_owned()))
        .unwrap_err()
        .to_string();
    assert!(
        missing.contains("is not a cuckood data directory"),
        "{missing}"
    );
}
