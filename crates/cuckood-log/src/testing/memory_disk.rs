//! A disk in memory, for a simulation: the port below the store, with the promises that sled makes.
//!
//! sled appends all changes to one file, in the order in which they are made, and reads that file up to the first damage when it opens. So
//! a crash leaves a prefix of the changes. A crash of the process leaves at least those before the last flush, and power loss at least
//! those before the last sync. A batch is one change. The record is a separate file: each slot survives a crash of the process as soon as
//! it is written. After power loss it has one of its last two synced values, or is torn.

use super::fuse::Fuse;
use crate::store::backing::{Backing, BackingFault, KeyChange, VisitEntry};
use crate::store::{MANIFEST_TREES, RECORD_BYTES_MAX, RECORD_SLOTS};
use cuckood_state::testing::random::Random;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

type Tree = BTreeMap<Vec<u8>, Vec<u8>>;
type RecordSlots = [Vec<u8>; RECORD_SLOTS as usize];

/// A change of a tree, applied or pending.
#[derive(Clone, Debug)]
enum Change {
    Write(String, Vec<KeyChange>),
    Drop(String),
}

/// What the disk has of the trees.
#[derive(Clone, Debug, Default)]
struct Trees(BTreeMap<String, Tree>);

impl Trees {
    fn apply(&mut self, change: Change) {
        match change {
            Change::Drop(tree) => drop(self.0.remove(&tree)),
            Change::Write(tree, changes) => {
                let tree = self.0.entry(tree).or_default();
                for change in changes {
                    match change {
                        KeyChange::Put(key, value) => drop(tree.insert(key, value)),
                        KeyChange::Remove(key) => drop(tree.remove(&key)),
                    }
                }
            }
        }
    }
}

#[derive(Debug, Default)]
struct Content {
    /// What the process reads.
    live: Trees,
    /// What survives power loss.
    synced: Trees,
    /// The changes that make the second the first.
    unsynced: Vec<Change>,
    /// How many of them are flushed.
    flushed: usize,
    record: RecordSlots,
    /// The record at the last sync, and at the one before.
    synced_records: [RecordSlots; 2],
    /// Counts crashes: a process that was killed no longer changes anything.
    crashes: u64,
    /// Operations until one fails; negative if none does.
    fails_after: i64,
}

/// The kind of a crash.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Crash {
    /// The operating system keeps what was passed to it.
    Process,
    /// Only what was synced is certain.
    Power,
}

/// A disk; clones share it.
#[derive(Clone, Debug)]
pub struct MemoryDisk(Arc<Mutex<Content>>);

impl MemoryDisk {
    /// An empty disk.
    pub fn new() -> MemoryDisk {
        MemoryDisk(Arc::new(Mutex::new(Content {
            fails_after: -1,
            ..Content::default()
        })))
    }

    /// Opens it for a process. A new directory finds it empty.
    pub fn open(&self, fuse: &Fuse, is_new: bool) -> Box<dyn Backing> {
        let mut content = self.0.lock();
        let crashes = content.crashes;
        if is_new {
            *content = Content {
                crashes,
                fails_after: content.fails_after,
                ..Content::default()
            };
        }
        Box::new(OpenDisk {
            disk: self.clone(),
            fuse: fuse.clone(),
            crashes,
        })
    }

    /// Lets a number of changes, flushes and syncs pass; the next one fails.
    pub fn fail_after(&self, operations: u32) {
        self.0.lock().fails_after = operations.into();
    }

    /// Damages the newest manifest of a snapshot, if there is one before it. Returns whether there is.
    pub fn damage_newest_snapshot(&self) -> bool {
        let mut content = self.0.lock();
        let is_manifest = |tree: &&String| tree.starts_with(MANIFEST_TREES);
        let trees: Vec<String> = content.live.0.keys().filter(is_manifest).cloned().collect();
        let [.., _, newest] = &trees[..] else {
            return false;
        };
        let values = content.live.0.get_mut(newest);
        if let Some(value) = values.and_then(|tree| tree.values_mut().next_back()) {
            let middle = value.len() / 2;
            value[middle] ^= 1;
            // It is damaged whatever a later crash takes back.
            content.synced = content.live.clone();
            content.unsynced.clear();
            content.flushed = 0;
        }
        true
    }

    /// Ends the process that has it open. `random` chooses how much of what is uncertain survives.
    pub fn crash(&self, kind: Crash, random: &mut Random) {
        let mut content = self.0.lock();
        content.crashes += 1;
        content.fails_after = -1;
        let certain = match kind {
            Crash::Process => content.flushed,
            Crash::Power => 0,
        };
        let uncertain = content.unsynced.len() - certain;
        // Nothing and everything are likelier than something in between.
        let survives = match random.below(3) {
            0 => 0,
            1 => uncertain,
            _ => random.below(uncertain as u64 + 1) as usize,
        };
        let mut changes = std::mem::take(&mut content.unsynced);
        changes.truncate(certain + survives);
        let mut left = content.synced.clone();
        changes
            .iter()
            .cloned()
            .for_each(|change| left.apply(change));
        content.live = left;
        // The operating system has what was flushed, and all that is left after a loss of power is on the disk.
        content.flushed = changes.len();
        content.unsynced = changes;
        if kind == Crash::Power {
            content.synced = content.live.clone();
            content.unsynced.clear();
            content.flushed = 0;
            for slot in 0..RECORD_SLOTS as usize {
                let versions = [
                    &content.record,
                    &content.synced_records[0],
                    &content.synced_records[1],
                ];
                let is_synced = content.record[slot] == content.synced_records[0][slot];
                let left = match random.below(4) {
                    _ if is_synced => content.record[slot].clone(),
                    3 => content.record[slot].iter().map(|byte| !byte).collect(),
                    version => versions[version as usize][slot].clone(),
                };
                content.record[slot] = left;
            }
            content.synced_records = [content.record.clone(), content.record.clone()];
        }
    }
}

/// A process' access to a disk.
struct OpenDisk {
    disk: MemoryDisk,
    fuse: Fuse,
    crashes: u64,
}

impl OpenDisk {
    /// Changes the disk, unless the process was killed before: then its stack is being unwound.
    fn change(
        &self,
        operation: &'static str,
        change: impl FnOnce(&mut Content),
    ) -> Result<(), BackingFault> {
        if self.disk.0.lock().crashes == self.crashes {
            self.fuse.step();
        }
        let mut content = self.disk.0.lock();
        let is_failing = content.fails_after == 0;
        content.fails_after = (content.fails_after - 1).max(-1);
        if content.crashes != self.crashes || is_failing {
            let detail = "injected".to_owned();
            return Err(BackingFault { operation, detail });
        }
        change(&mut content);
        Ok(())
    }

    fn make(&self, operation: &'static str, change: Change) -> Result<(), BackingFault> {
        self.change(operation, |content| {
            content.live.apply(change.clone());
            content.unsynced.push(change);
        })
    }
}

impl Backing for OpenDisk {
    fn tree_names(&self) -> Vec<String> {
        self.disk.0.lock().live.0.keys().cloned().collect()
    }

    fn drop_tree(&self, tree: &str) -> Result<(), BackingFault> {
        self.make("dropping a tree", Change::Drop(tree.to_owned()))
    }

    fn write(&self, tree: &str, changes: Vec<KeyChange>) -> Result<(), BackingFault> {
        self.make("writing", Change::Write(tree.to_owned(), changes))
    }

    fn read(&self, tree: &str, key: &[u8], value: &mut Vec<u8>) -> Result<bool, BackingFault> {
        let content = self.disk.0.lock();
        let found = content.live.0.get(tree).and_then(|tree| tree.get(key));
        value.extend(found.into_iter().flatten());
        Ok(found.is_some())
    }

    fn scan(
        &self,
        tree: &str,
        from: &[u8],
        visit: &mut VisitEntry<'_>,
    ) -> Result<(), BackingFault> {
        // The visitor may read other keys.
        let found: Vec<_> = match self.disk.0.lock().live.0.get(tree) {
            None => return Ok(()),
            Some(tree) => tree
                .range::<[u8], _>((Bound::Included(from), Bound::Unbounded))
                .map(|(key, value)| (key.clone(), value.clone()))
                .collect(),
        };
        for (key, value) in found {
            if visit(&key, &value) == ControlFlow::Break(()) {
                break;
            }
        }
        Ok(())
    }

    fn last_key(&self, tree: &str, to: Option<&[u8]>) -> Result<Option<Vec<u8>>, BackingFault> {
        let content = self.disk.0.lock();
        let upper = to.map_or(Bound::Unbounded, Bound::Included);
        let tree = content.live.0.get(tree);
        let last =
            tree.and_then(|tree| tree.range::<[u8], _>((Bound::Unbounded, upper)).next_back());
        Ok(last.map(|(key, _)| key.clone()))
    }

    fn flush(&self) -> Result<(), BackingFault> {
        self.change("flushing", |content| {
            content.flushed = content.unsynced.len()
        })
    }

    fn sync(&self) -> Result<(), BackingFault> {
        self.change("syncing", |content| {
            let flushed = content
                .unsynced
                .drain(..content.flushed)
                .collect::<Vec<_>>();
            content.flushed = 0;
            flushed
                .into_iter()
                .for_each(|change| content.synced.apply(change));
            // The record is synced by a thread, alongside the next commit.
            content.synced_records = [content.record.clone(), content.synced_records[0].clone()];
        })
    }

    fn read_record(&self, slot: u64, record: &mut [u8]) -> Result<(), BackingFault> {
        let content = self.disk.0.lock();
        let found = &content.record[slot as usize];
        record.fill(0);
        record[..found.len()].copy_from_slice(found);
        Ok(())
    }

    fn write_record(&self, slot: u64, record: &[u8]) -> Result<(), BackingFault> {
        assert!(record.len() <= RECORD_BYTES_MAX);
        self.change("writing the record", |content| {
            content.record[slot as usize] = record.to_vec();
        })
    }

    fn sync_record(&self) -> Result<(), BackingFault> {
        self.change("syncing the record", |content| {
            content.synced_records = [content.record.clone(), content.record.clone()];
        })
    }
}
