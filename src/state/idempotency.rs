//! The answers that are kept for repeated requests. They are state like everything else, so they survive a
//! crash, and a replica would give the same.

use super::slab::{DamagedSlab, Slab};
use crate::domain::{FilterId, IdempotencyKey, Outcome, Timestamp};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Memory of one record with its places in the indexes, in bytes, without the answer: rounded up.
pub const RECORD_BYTES: u64 = 200;

/// An answer and the request that it was given to.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Record {
    /// Whose filter; a filter that was deleted and made again is another.
    filter: FilterId,
    key: IdempotencyKey,
    stored_at: Timestamp,
    outcome: Outcome,
}

/// What is known of a key.
pub enum Lookup<'a> {
    /// It is new.
    New,
    /// The same request was answered before.
    Answered(&'a Outcome),
    /// Another request came under it.
    Reused,
}

/// The answers that are kept.
#[derive(Debug, Default)]
pub struct Records {
    records: Slab<Record>,
    by_scope: BTreeMap<(FilterId, u128), u32>,
    by_age: BTreeSet<(Timestamp, u32)>,
    bytes: u64,
}

fn bytes_of(record: &Record) -> u64 {
    let items = match &record.outcome {
        Outcome::Inserted(inserted) => inserted.outcomes.len(),
        Outcome::Removed(removed) => removed.outcomes.len(),
        Outcome::Replaced(outcomes) => outcomes.len(),
        Outcome::Created(_) | Outcome::Exists(_) | Outcome::Rescheduled(_) => 512,
        _ => 0,
    };
    RECORD_BYTES + items as u64
}

impl Records {
    /// The records whose snapshot these bytes are.
    ///
    /// # Errors
    /// When the bytes can't be read.
    pub fn restore(bytes: &[u8], changes: u64) -> Result<Self, DamagedSlab> {
        let records: Slab<Record> = Slab::restore(bytes, changes)?;
        let (mut by_scope, mut by_age, mut bytes) = (BTreeMap::new(), BTreeSet::new(), 0);
        for (slot, record) in records.iter() {
            by_scope.insert((record.filter, record.key.scope), slot);
            by_age.insert((record.stored_at, slot));
            bytes += bytes_of(record);
        }
        Ok(Self { records, by_scope, by_age, bytes })
    }

    /// Answers kept.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Their memory, about.
    pub fn memory_bytes(&self) -> u64 {
        self.bytes
    }

    /// What is known of a key.
    pub fn look_up(&self, filter: FilterId, key: &IdempotencyKey) -> Lookup<'_> {
        let slot = self.by_scope.get(&(filter, key.scope));
        match slot.and_then(|&slot| self.records.get(slot)) {
            None => Lookup::New,
            Some(record) if record.key.request == key.request => Lookup::Answered(&record.outcome),
            Some(_) => Lookup::Reused,
        }
    }

    /// Keeps the answer to a new key.
    pub fn store(&mut self, filter: FilterId, key: IdempotencyKey, outcome: Outcome, now: Timestamp) {
        let record = Record { filter, key, stored_at: now, outcome };
        self.bytes += bytes_of(&record);
        let slot = self.records.insert(record);
        self.by_scope.insert((filter, key.scope), slot);
        self.by_age.insert((now, slot));
    }

    /// Forgets the oldest answers that were stored at or before `before`, at most so many.
    pub fn forget(&mut self, before: Timestamp, records_max: usize) {
        for _ in 0..records_max {
            match self.by_age.first() {
                Some(&(stored_at, slot)) if stored_at <= before => {
                    self.by_age.pop_first();
                    if let Some(record) = self.records.remove(slot) {
                        self.bytes -= bytes_of(&record);
                        self.by_scope.remove(&(record.filter, record.key.scope));
                    }
                }
                _ => break,
            }
        }
    }

    /// Their slab's snapshot and its number of changes.
    pub(super) fn changes(&self) -> u64 {
        self.records.changes()
    }

    pub(super) fn begin_snapshot(&mut self) {
        self.records.begin_snapshot();
    }

    pub(super) fn take_chunk(&mut self, out: &mut Vec<u8>) -> bool {
        self.records.take_chunk(out)
    }

    pub(super) fn end_snapshot(&mut self) {
        self.records.end_snapshot();
    }

    pub(super) fn snapshot_slots(&self) -> usize {
        self.records.snapshot_slots()
    }
}
