//! Every write, flush and sync fails once in its turn, before or after it took effect. From then on nothing is
//! written, reads go on, and the next start finds everything that was acknowledged.

use cuckood_log::journal::{Durability, Journal, JournalError, LocalJournal};
use cuckood_log::store::backing::Backing;
use cuckood_log::store::{Store, StoreError};
use cuckood_log::testing::faulty::Faulty;
use cuckood_log::testing::stores::{append, entries, open, open_journal, options, proposal};
use cuckood_state::domain::{Command, Entry, Kind, Name, Proposal, SectionId, Seq, Timestamp};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

const KEY: SectionId = SectionId { owner: 1, part: 2 };

fn snapshot(store: &Store, seq: Seq) -> Result<(), StoreError> {
    let mut writer = store.begin_snapshot(seq)?;
    for _ in 0..3 {
        writer.put_chunk(store, KEY, &seq.0.to_le_bytes())?;
    }
    writer.end_section(KEY, seq.0);
    writer.finish(store, Timestamp(seq.0), vec![seq.0 as u8])?;
    let mut sweep = store.sweep()?;
    assert!(sweep.log_through <= seq);
    while sweep.step(store, 8 << 10)? {}
    Ok(())
}

/// Works until something fails; returns whether anything did.
fn work(journal: &mut LocalJournal, store: &Store, acknowledged: &mut Vec<Entry>) -> bool {
    for round in 0..6u64 {
        let batch = vec![proposal(round * 2, 5_000), proposal(round * 2 + 1, 1)];
        match append(journal, batch) {
            Ok(committed) => {
                acknowledged.extend(committed.into_iter().map(|committed| committed.entry))
            }
            Err(error) => {
                assert!(matches!(error, JournalError::Failed(_)), "{error}");
                return true;
            }
        }
        if round % 2 == 1 {
            let sweep = snapshot(store, journal.last()).and_then(|()| store.sweep());
            let pruned = match sweep {
                Ok(sweep) => journal.prune(sweep.log_through, u64::MAX),
                Err(error) => Err(error.into()),
            };
            if let Err(error) = pruned {
                assert!(matches!(error, JournalError::Failed(_)), "{error}");
                return true;
            }
        }
    }
    journal.settle().is_err()
}

/// Everything acknowledged is recovered, from any snapshot and the log after it.
fn check(dir: &Path, acknowledged: &[Entry]) {
    let store = Arc::new(Store::open(dir, &options(Durability::Fsync)).unwrap());
    let mut journal = open_journal(&store).unwrap();
    let manifests = store.manifests().unwrap();
    let mut chunk = Vec::new();
    for manifest in &manifests {
        for index in 0..3 {
            store
                .read_chunk(&manifest.sections[0], index, &mut chunk)
                .unwrap();
            assert_eq!(chunk, manifest.seq.0.to_le_bytes());
        }
    }
    let last = acknowledged.len() as u64;
    assert!(
        journal.last().0 == last || journal.last().0 == last + 2,
        "half a batch came back"
    );
    // The older snapshot must do as well as the newer.
    for after in manifests
        .iter()
        .map(|manifest| manifest.seq.0)
        .chain(manifests.is_empty().then_some(0))
    {
        let found = entries(&mut journal, after).unwrap();
        assert!(found.starts_with(&acknowledged[(after as usize).min(acknowledged.len())..]));
    }
    append(&mut journal, vec![proposal(99, 1)]).unwrap();
    snapshot(&store, journal.last()).unwrap();
}

fn fail_each(takes_effect: bool) {
    for at in 0.. {
        let dir = tempfile::tempdir().unwrap();
        let left = Arc::new(AtomicI64::new(at));
        let under = |under| -> Box<dyn Backing> {
            Box::new(Faulty {
                under,
                left: left.clone(),
                takes_effect,
            })
        };
        let mut acknowledged = Vec::new();
        let opened = Store::open_over(dir.path(), &options(Durability::Fsync), under)
            .map(Arc::new)
            .and_then(|store| Ok((open_journal(&store)?, store)));
        let failed = match opened {
            Err(error) => {
                assert!(matches!(error, StoreError::Failed { .. }), "{error}");
                true
            }
            Ok((mut journal, store)) => {
                let failed = work(&mut journal, &store, &mut acknowledged);
                assert_eq!(store.poisoned().is_some(), failed);
                if failed {
                    assert!(matches!(
                        append(&mut journal, vec![proposal(77, 1)]),
                        Err(JournalError::Failed(_))
                    ));
                    assert!(snapshot(&store, journal.last()).is_err());
                    let after = journal.first_available().0 - 1;
                    let read = entries_until(&mut journal, after, acknowledged.len());
                    assert_eq!(read, acknowledged[after as usize..]);
                }
                failed
            }
        };
        check(dir.path(), &acknowledged);
        if !failed {
            assert!(at > 40, "only {at} operations were tried");
            return;
        }
    }
}

/// Reads the acknowledged entries: those in flight when storage failed may or may not follow.
fn entries_until(journal: &mut LocalJournal, after: u64, last: usize) -> Vec<Entry> {
    let mut read = entries(journal, after).unwrap();
    read.retain(|entry| entry.seq.0 as usize <= last);
    read
}

#[test]
fn failed_write_without_effect_is_recovered() {
    fail_each(false);
}

#[test]
fn failed_write_with_effect_is_recovered() {
    fail_each(true);
}

/// So a directory on a full disk can be served to readers.
#[test]
fn synced_log_opens_without_write() {
    let dir = tempfile::tempdir().unwrap();
    {
        let mut journal = open_journal(&open(dir.path())).unwrap();
        append(&mut journal, vec![proposal(1, 1)]).unwrap();
    }
    let left = Arc::new(AtomicI64::new(i64::MAX));
    let under = |under| -> Box<dyn Backing> {
        Box::new(Faulty {
            under,
            left: left.clone(),
            takes_effect: false,
        })
    };
    let store = Arc::new(Store::open_over(dir.path(), &options(Durability::Fsync), under).unwrap());
    left.store(0, Relaxed);
    let mut journal = open_journal(&store).unwrap();
    assert_eq!(
        (entries(&mut journal, 0).unwrap().len(), left.load(Relaxed)),
        (1, 0)
    );
}

#[test]
fn full_disk_rejects_writes_and_recovers() {
    let dir = tempfile::tempdir().unwrap();
    let full = cuckood_log::store::StoreOptions {
        free_space_min_bytes: u64::MAX / 2,
        ..options(Durability::Fsync)
    };
    assert!(matches!(
        Store::open(dir.path(), &full),
        Err(StoreError::DiskFull { .. })
    ));
    drop(Store::open(dir.path(), &options(Durability::Fsync)).unwrap());
    assert!(dir.path().join("ballast").exists());
    // The data can still be opened and read, and the ballast was deleted for it.
    let store = Arc::new(Store::open(dir.path(), &full).unwrap());
    assert!(!dir.path().join("ballast").exists());
    let mut journal = open_journal(&store).unwrap();
    assert!(matches!(
        append(&mut journal, vec![proposal(1, 1)]),
        Err(JournalError::DiskFull(_))
    ));
    // Operations that free space have a reserve below the watermark.
    let delete = Command::Delete {
        kind: Kind::Coupon,
        name: Name::new("old").unwrap(),
    };
    append(&mut journal, vec![Proposal::new(Timestamp(1), delete)]).unwrap();
    snapshot(&store, journal.last()).unwrap();
    assert!(store.poisoned().is_none());
    assert_eq!(journal.last(), Seq(1));
    drop((journal, store));
    let store = Arc::new(Store::open(dir.path(), &options(Durability::Fsync)).unwrap());
    assert!(dir.path().join("ballast").exists());
    append(&mut open_journal(&store).unwrap(), vec![proposal(1, 1)]).unwrap();
}

#[test]
fn unsynced_blob_stops_writes() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = open_journal(&open(dir.path())).unwrap();
    let blob = dir.path().join("sled/blobs/1");
    // Nothing waited for a concurrent one that is complete.
    for number in 1..4 {
        append(&mut journal, vec![proposal(number, 1)]).unwrap();
        std::fs::write(&blob, "").unwrap();
        std::fs::remove_file(&blob).unwrap();
    }
    std::fs::write(&blob, "").unwrap();
    let refused = append(&mut journal, vec![proposal(4, 1)]).unwrap_err();
    assert!(
        matches!(&refused, JournalError::Failed(reason) if reason.contains("blobs")),
        "{refused}"
    );
}
