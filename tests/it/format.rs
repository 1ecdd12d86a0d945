//! A data directory and an archive of each released format, kept in `tests/fixtures`, must open for good.
//!
//! Format 1 is not frozen yet. Until it is, the fixture is regenerated when the format changes: `cargo test --test it format::make_fixtures
//! -- --ignored`.

use crate::directory::copy_dir;
use crate::store_support::{CLOCK, append, entries, open_journal, options, proposal};
use cuckood::domain::{Command, Event, Happened, Proposal, SectionId, Seq, Timestamp};
use cuckood::engine::{RecoveryError, archive, restore};
use cuckood::journal::{Durability, Journal};
use cuckood::store::{EventPack, EventSize, EventTree, Store, StoreError, StoreOptions};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const KEY: SectionId = SectionId { owner: 5, part: 6 };

const EVENTS: EventTree = EventTree {
    first: 1,
    since: Timestamp(9),
    until: Timestamp(11),
    before: EventSize { events: 0, bytes: 0 },
};

fn pack() -> EventPack {
    let mut pack = EventPack::empty(1, 0);
    for (at, what) in [(9, Happened::TurnedBack { redemptions: 1, holds: 2 }), (10, Happened::Restored)] {
        let mut bytes = Vec::new();
        Event { at: Timestamp(at), by: Some("shop".into()), what }.encode(&mut bytes);
        pack.push(Timestamp(at), &bytes);
    }
    pack
}

fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/format-1")
}

fn small() -> StoreOptions {
    StoreOptions { ballast_bytes: 0, preallocate_bytes: 0, ..options(Durability::Fsync) }
}

/// `after`: the entries after the snapshot.
fn check(store: Store, after: &[Proposal]) {
    let store = Arc::new(store);
    let manifest = &store.manifests().unwrap()[0];
    assert_eq!(
        (manifest.seq, manifest.taken_at, manifest.meta.as_slice()),
        (Seq(4), Timestamp(44), &b"image"[..])
    );
    assert_eq!((manifest.sections.len(), manifest.sections[0].key), (1, KEY));
    assert_eq!(manifest.events_last, 2);
    assert_eq!(store.events().find_from(&store.events().trees(), 1).unwrap(), Some(pack()));
    let mut chunk = Vec::new();
    for (index, expected) in [(0, &b"first"[..]), (1, b"second")] {
        store.read_chunk(&manifest.sections[0], index, &mut chunk).unwrap();
        assert_eq!(chunk, expected);
    }
    let mut journal = open_journal(&store).unwrap();
    let found = entries(&mut journal, 4).unwrap();
    let found: Vec<_> = found.iter().map(|entry| (entry.seq.0, &entry.proposal)).collect();
    assert_eq!(found, (5..).zip(after).collect::<Vec<_>>());
    let next = Seq(5 + after.len() as u64);
    assert_eq!(append(&mut journal, vec![proposal(8, 8)]).unwrap()[0].entry.seq, next);
}

#[test]
#[ignore = "writes into the source tree"]
fn make_fixtures() {
    let target = fixture();
    let _ = fs::remove_dir_all(&target);
    fs::create_dir_all(&target).unwrap();
    let data = target.join("data");
    let store = Arc::new(Store::open(&data, &small()).unwrap());
    let mut journal = open_journal(&store).unwrap();
    for number in 0..8 {
        if number == 4 {
            let mut writer = store.begin_snapshot(journal.last()).unwrap();
            writer.put_chunk(&store, KEY, b"first").unwrap();
            writer.put_chunk(&store, KEY, b"second").unwrap();
            writer.end_section(KEY, 3);
            store.events().put(EVENTS, &pack()).unwrap();
            writer.events_last = 2;
            writer.finish(&store, Timestamp(44), b"image".to_vec()).unwrap();
        }
        append(&mut journal, vec![proposal(number, number)]).unwrap();
    }
    journal.settle().unwrap();
    let mut parts = archive(store.pin_newest().unwrap().unwrap());
    let parts = std::iter::from_fn(|| parts(&store).unwrap());
    fs::write(target.join("archive"), parts.collect::<Vec<_>>().concat()).unwrap();
    drop((journal, store));
    // As a checkout has it.
    fs::remove_file(data.join("lock")).unwrap();
    fs::remove_dir(data.join("sled/blobs")).unwrap();
}

#[test]
fn directory_of_format_1_opens() {
    let dir = tempfile::tempdir().unwrap();
    copy_dir(&fixture().join("data"), &dir.path().join("data"));
    let after: Vec<_> = (4..8).map(|number| proposal(number, number)).collect();
    check(Store::open(&dir.path().join("data"), &small()).unwrap(), &after);
}

#[test]
fn archive_of_version_1_is_restored() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    assert_eq!(
        restore(&fixture().join("archive"), &data, &small(), CLOCK, |archive| archive).unwrap(),
        Seq(5)
    );
    let restored = Proposal::new(Timestamp(0), Command::Restored { clock: CLOCK.wall });
    check(Store::open(&data, &small()).unwrap(), &[restored]);
}

#[test]
fn archive_of_newer_version_is_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let mut archive = fs::read(fixture().join("archive")).unwrap();
    archive[4] += 1;
    let file = dir.path().join("newer");
    fs::write(&file, archive).unwrap();
    let error = restore(&file, &dir.path().join("data"), &small(), CLOCK, |archive| archive).unwrap_err();
    let RecoveryError::Store(StoreError::Newer { found: 2, known: 1, .. }) = error else { panic!("{error}") };
}
