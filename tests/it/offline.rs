//! Data directories that no service has open, as backups.

use crate::store_support::{CLOCK, append, open, open_journal, options, proposal};
use cuckood::domain::{Seq, Timestamp};
use cuckood::engine::event_log::EventLog;
use cuckood::engine::recovery::{load, recover};
use cuckood::engine::{RunningSnapshot, archive_directory, positions, restore};
use cuckood::journal::Durability;
use cuckood::state::State;
use std::path::Path;

/// A directory whose log has ten entries before its snapshot, and ten after it.
fn prepare(dir: &Path) {
    let store = open(dir);
    let mut journal = open_journal(&store).unwrap();
    let (mut state, mut events) = (State::new(), EventLog::open(&store, &State::new()).unwrap());
    for committed in append(&mut journal, (0..10).map(|number| proposal(number, 1)).collect()).unwrap() {
        state.apply(committed.entry);
        events.take(&store, &mut state).unwrap();
    }
    RunningSnapshot::take(&store, &mut state, &mut events, None, Timestamp(1)).unwrap();
    append(&mut journal, (10..20).map(|number| proposal(number, 1)).collect()).unwrap();
}

/// A damaged snapshot would count as one of the two that are kept, in the place of the last good one.
#[test]
fn backup_of_directory_covers_log_and_removes_damaged_snapshot() {
    let directory = tempfile::tempdir().unwrap();
    let (data, file) = (directory.path().join("data"), directory.path().join("backup"));
    prepare(&data);
    let store = open(&data);
    let damaged = store.begin_snapshot(Seq(15)).unwrap();
    let damaged = damaged.finish(&store, Timestamp(2), b"no head of a state".to_vec()).unwrap();
    drop(store);

    let mut archive = Vec::new();
    archive_directory(&data, &mut archive).unwrap();
    let store = open(&data);
    let manifests = store.manifests().unwrap();
    assert_eq!(manifests.iter().map(|manifest| manifest.seq.0).collect::<Vec<_>>(), [20, 10]);
    assert!(manifests.iter().all(|manifest| manifest.meta != damaged.meta));
    let kept = load(&store, &manifests[0], &mut |_| ()).unwrap();
    drop(store);
    // Nothing has changed since, so no other snapshot is taken.
    archive_directory(&data, &mut Vec::new()).unwrap();
    assert_eq!(open(&data).manifests().unwrap(), manifests);

    std::fs::write(&file, archive).unwrap();
    let restored = directory.path().join("restored");
    let last = restore(&file, &restored, &options(Durability::Fsync), CLOCK, |archive| archive).unwrap();
    assert_eq!(last, Seq(21));
    let store = open(&restored);
    let copy = load(&store, &store.manifests().unwrap()[0], &mut |_| ()).unwrap();
    assert_eq!(copy.hash(), kept.hash());
    let recovered = recover(&store, &mut open_journal(&store).unwrap(), &mut |_| ()).unwrap();
    assert_eq!(recovered.state.applied(), last);
}

/// Each has a log of its own.
#[test]
fn local_directories_are_not_compared() {
    let directory = tempfile::tempdir().unwrap();
    let [one, other, file] = ["one", "other", "backup"].map(|name| directory.path().join(name));
    for dir in [&one, &other] {
        prepare(dir);
    }
    assert_eq!(positions(std::slice::from_ref(&one)).unwrap(), [(one.clone(), Seq(20))]);
    assert_eq!(positions(std::slice::from_ref(&file)).unwrap(), []);
    let rejected = positions(&[one, other]).unwrap_err().to_string();
    assert!(rejected.contains("another log"), "{rejected}");
    let missing = positions(std::slice::from_ref(&directory.path().to_owned())).unwrap_err().to_string();
    assert!(missing.contains("not a data directory"), "{missing}");
}
