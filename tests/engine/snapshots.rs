//! Snapshots and backups: written data is restored, and unreferenced data is removed.

use cuckood::engine::{RecoveryError, archive};
use cuckood_log::journal::{Durability, Journal};
use cuckood_log::store::{Manifest, Store, StoreError};
use cuckood_log::testing::stores::{CLOCK, append, entries, open, open_journal, options, proposal};
use cuckood_state::domain::{SectionId, Seq, Timestamp};
use std::path::Path;

fn key(filter: u64) -> SectionId {
    SectionId {
        owner: filter,
        part: filter % 3,
    }
}

fn chunk(filter: u64, round: u64, index: u32) -> Vec<u8> {
    let length = 60_000 - 7 * index as usize;
    (0..length)
        .map(|at| (at as u64 * (filter + 1) + round * 31 + u64::from(index)) as u8)
        .collect()
}

/// Writes `fresh` sections of `round`, carries the others over.
fn snapshot(store: &Store, seq: u64, round: u64, fresh: &[u64]) -> Manifest {
    let before = store.manifests().unwrap().into_iter().next();
    let mut writer = store.begin_snapshot(Seq(seq)).unwrap();
    for &filter in fresh {
        for index in 0..5 {
            writer
                .put_chunk(store, key(filter), &chunk(filter, round, index))
                .unwrap();
        }
        writer.end_section(key(filter), round);
    }
    for section in before.iter().flat_map(|manifest| &manifest.sections) {
        if !fresh.contains(&section.key.owner) {
            writer.carry_over(section);
        }
    }
    let meta = vec![round as u8; 200_000];
    writer.finish(store, Timestamp(round), meta).unwrap()
}

fn sweep(store: &Store, budget: u64) {
    let mut sweep = store.sweep().unwrap();
    while sweep.step(store, budget).unwrap() {}
}

fn check(store: &Store, manifest: &Manifest) {
    let mut out = Vec::new();
    for section in &manifest.sections {
        for index in 0..section.chunks {
            store.read_chunk(section, index, &mut out).unwrap();
            assert_eq!(out, chunk(section.key.owner, section.changes, index));
        }
    }
}

#[test]
fn two_generations_are_retained_completely() {
    let dir = tempfile::tempdir().unwrap();
    let mut last = Vec::new();
    for round in 0..8u64 {
        let store = open(dir.path());
        assert_eq!(store.manifests().unwrap(), last);
        let fresh: Vec<u64> = (0..6)
            .filter(|filter| round == 0 || filter % 4 == round % 4)
            .collect();
        let manifest = snapshot(&store, round, round, &fresh);
        assert_eq!(manifest.sections.len(), 6);
        last.insert(0, manifest);
        last.truncate(2);
        sweep(&store, 12 << 10);
        assert_eq!(store.manifests().unwrap(), last);
        for manifest in &last {
            check(&store, manifest);
        }
        assert_eq!(
            store.sweep().unwrap().log_through,
            Seq(round.saturating_sub(1))
        );
    }
}

#[test]
fn unfinished_snapshot_has_no_effect() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let first = snapshot(&store, 1, 1, &[1, 2]);
    let mut writer = store.begin_snapshot(Seq(2)).unwrap();
    writer.put_chunk(&store, key(1), &chunk(1, 9, 0)).unwrap();
    sweep(&store, 1);
    drop((writer, store));
    let store = open(dir.path());
    assert_eq!(store.manifests().unwrap(), std::slice::from_ref(&first));
    let second = snapshot(&store, 2, 2, &[2]);
    assert_eq!(store.manifests().unwrap(), [second.clone(), first.clone()]);
    check(&store, &first);
    check(&store, &second);
}

/// As with filters of many chunks: in several trees, which are added and removed.
#[test]
fn many_small_chunks_round_trip() {
    const CHUNKS: u32 = 700;
    let dir = tempfile::tempdir().unwrap();
    let small =
        |round: u64, filter: u64, index: u32| format!("{round} {filter} {index}").into_bytes();
    for round in 0..5u64 {
        let store = open(dir.path());
        let before = store.manifests().unwrap().into_iter().next();
        let mut writer = store.begin_snapshot(Seq(round)).unwrap();
        for filter in (0..3).filter(|filter| round == 0 || filter % 3 == round % 3) {
            for index in 0..CHUNKS {
                writer
                    .put_chunk(&store, key(filter), &small(round, filter, index))
                    .unwrap();
            }
            writer.end_section(key(filter), round);
        }
        for section in before.iter().flat_map(|manifest| &manifest.sections) {
            if section.key.owner % 3 != round % 3 {
                writer.carry_over(section);
            }
        }
        writer.finish(&store, Timestamp(round), Vec::new()).unwrap();
        sweep(&store, 200 << 10);
        let mut out = Vec::new();
        for manifest in store.manifests().unwrap() {
            assert_eq!(manifest.sections.len(), 3);
            for section in &manifest.sections {
                for index in 0..section.chunks {
                    store.read_chunk(section, index, &mut out).unwrap();
                    assert_eq!(out, small(section.changes, section.key.owner, index));
                }
            }
        }
    }
}

/// Backs up the newest snapshot.
fn back_up(store: &Store, mut between_parts: impl FnMut(usize)) -> Vec<u8> {
    let mut parts = archive(store.pin_newest().unwrap().unwrap());
    let mut bytes = Vec::new();
    let mut number = 0;
    while let Some(part) = parts(store).unwrap() {
        bytes.extend(part);
        between_parts(number);
        number += 1;
    }
    bytes
}

fn restore(archive: &[u8], parent: &Path) -> Result<Seq, RecoveryError> {
    let file = parent.join("backup");
    std::fs::write(&file, archive).unwrap();
    cuckood::engine::restore(
        &file,
        &parent.join("restored"),
        &options(Durability::Fsync),
        CLOCK,
        |archive| archive,
    )
}

#[test]
fn backup_has_state_of_its_start() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("data"));
    let mut journal = open_journal(&store).unwrap();
    for number in 0..50 {
        append(
            &mut journal,
            vec![proposal(number * 2, 2_000), proposal(number * 2 + 1, 10)],
        )
        .unwrap();
    }
    // In the midst of a commit.
    let manifest = snapshot(&store, 41, 7, &[0, 1, 2, 3]);
    // Snapshots and segments are added and removed concurrently.
    let archive = back_up(&store, |part| {
        let seq = append(&mut journal, vec![proposal(1_000, 9_000)]).unwrap()[0]
            .entry
            .seq;
        snapshot(&store, seq.0, 100 + part as u64, &[0, 1, 2]);
        let through = store.sweep().unwrap().log_through;
        while journal.prune(through, 8 << 10).unwrap() {}
        sweep(&store, 8 << 10);
    });
    // The last entry says that it was restored.
    assert_eq!(restore(&archive, dir.path()).unwrap(), Seq(42));
    let store = open(&dir.path().join("restored"));
    let restored = &store.manifests().unwrap()[0];
    assert_eq!(
        (restored.seq, restored.taken_at, &restored.meta),
        (manifest.seq, manifest.taken_at, &manifest.meta)
    );
    check(&store, restored);
    let mut journal = open_journal(&store).unwrap();
    assert_eq!(entries(&mut journal, 41).unwrap().len(), 1);
    assert_eq!(
        append(&mut journal, vec![proposal(0, 0)]).unwrap()[0]
            .entry
            .seq,
        Seq(43)
    );
    // A backup of the restored directory is one, too.
    let again = tempfile::tempdir().unwrap();
    let archive = back_up(&store, |_| {});
    assert_eq!(restore(&archive, again.path()).unwrap(), Seq(42));
}

#[test]
fn nearly_empty_backup_is_valid() {
    for commits in [0, 3] {
        let dir = tempfile::tempdir().unwrap();
        let store = open(&dir.path().join("data"));
        let mut journal = open_journal(&store).unwrap();
        for number in 0..commits {
            append(&mut journal, vec![proposal(number, 1)]).unwrap();
        }
        snapshot(&store, commits, 1, &[]);
        let archive = back_up(&store, |_| {});
        assert_eq!(restore(&archive, dir.path()).unwrap(), Seq(commits + 1));
        let store = open(&dir.path().join("restored"));
        assert_eq!(store.manifests().unwrap().len(), 1);
        let mut journal = open_journal(&store).unwrap();
        assert_eq!(journal.last(), Seq(commits + 1));
        assert_eq!(entries(&mut journal, commits).unwrap().len(), 1);
    }
}

#[test]
fn truncated_or_altered_archive_is_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("data"));
    snapshot(&store, 0, 1, &[1]);
    let archive = back_up(&store, |_| {});
    let refused = |altered: &[u8]| {
        let error = restore(altered, dir.path()).unwrap_err().to_string();
        assert!(error.contains("backup"), "{error}");
        assert!(!dir.path().join("restored").exists(), "{error}");
    };
    let mut offsets: Vec<usize> = (0..200).chain(archive.len() - 200..archive.len()).collect();
    offsets.extend((200..archive.len() - 200).step_by(archive.len() / 150));
    for &offset in &offsets {
        refused(&archive[..offset]);
        let mut altered = archive.clone();
        altered[offset] ^= 1 << (offset % 8);
        refused(&altered);
    }
    refused(&[&archive[..], b"x"].concat());
    restore(&archive, dir.path()).unwrap();
    let again = restore(&archive, dir.path());
    assert!(
        matches!(
            again,
            Err(RecoveryError::Store(StoreError::NotEmpty { .. }))
        ),
        "{again:?}"
    );
}
