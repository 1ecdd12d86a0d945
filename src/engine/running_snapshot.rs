//! A snapshot under way: which sections are taken over from the one before, which are still to be written, and how far that
//! has come. How much is written when is for the snapshotter to say.

use super::snapshotter::SnapshotReport;
use crate::domain::Timestamp;
use crate::state::{Section, SectionId, State};
use crate::store::{Manifest, SectionKey, SectionRef, SnapshotWriter, Store, StoreError};
use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

/// A section that so many snapshots have taken over is written anew. sled frees space by segments of its file, all of whose
/// pages must be gone: one chunk that stays keeps eight megabytes, until sled comes to move it.
pub(super) const TAKEN_OVER_MAX: u64 = 16;

/// A snapshot under way.
pub struct RunningSnapshot {
    writer: SnapshotWriter,
    head: Vec<u8>,
    taken_at: Timestamp,
    /// All of them, until it is known which are taken over.
    sections: Vec<Section>,
    /// What the snapshot before has; an equal section is taken over.
    stored: BTreeMap<SectionKey, SectionRef>,
    /// Those that are to be written.
    fresh: VecDeque<Section>,
    /// The section that is being written, and how many of its chunks are.
    current: Option<(Section, u32)>,
    bytes_written: u64,
    began: Instant,
}

fn key(id: SectionId) -> SectionKey {
    SectionKey { owner: id.epoch.0, part: id.table }
}

impl RunningSnapshot {
    /// Begins a snapshot of the state as it is, after the latest one.
    ///
    /// # Errors
    /// As for [`Store::begin_snapshot`].
    pub fn begin(
        store: &Store,
        state: &mut State,
        latest: Option<&Manifest>,
        now: Timestamp,
    ) -> Result<Self, StoreError> {
        let writer = store.begin_snapshot(state.applied())?;
        let image = state.begin_snapshot();
        let stored = latest.iter().flat_map(|latest| &latest.sections);
        Ok(Self {
            writer,
            head: image.head,
            taken_at: now,
            sections: image.sections,
            stored: stored.map(|section| (section.key, *section)).collect(),
            fresh: VecDeque::new(),
            current: None,
            bytes_written: 0,
            began: Instant::now(),
        })
    }

    /// Whether all is written but the manifest.
    pub fn is_whole(&self) -> bool {
        self.sections.is_empty() && self.fresh.is_empty() && self.current.is_none()
    }

    /// Bytes of chunks written so far.
    pub fn bytes_written(&self) -> u64 {
        self.bytes_written
    }

    /// Writes chunks, one at least, until `budget` bytes or the time are spent, or the snapshot is whole.
    ///
    /// # Errors
    /// As for [`SnapshotWriter::put_chunk`].
    pub fn write(
        &mut self,
        store: &Store,
        state: &mut State,
        budget: u64,
        until: Instant,
    ) -> Result<(), StoreError> {
        self.take_over(state);
        let mut chunk = Vec::new();
        let end = self.bytes_written + budget;
        while self.bytes_written < end {
            let Some((section, number)) = &mut self.current else {
                let Some(section) = self.fresh.pop_front() else { return Ok(()) };
                self.current = Some((section, 0));
                continue;
            };
            if state.take_chunk(section.id, *number, &mut chunk) {
                self.writer.put_chunk(store, key(section.id), *number, &chunk)?;
                self.bytes_written += chunk.len() as u64;
                *number += 1;
                if Instant::now() >= until {
                    return Ok(());
                }
            } else {
                self.writer.end_section(key(section.id), section.changes, *number)?;
                self.current = None;
            }
        }
        Ok(())
    }

    /// Takes over what has not changed and is not too old; the rest is fresh. What was written together and is written
    /// together again leaves no holes: those that change often come first.
    fn take_over(&mut self, state: &mut State) {
        let young = self.writer.generation().saturating_sub(TAKEN_OVER_MAX);
        let mut fresh = Vec::new();
        for section in std::mem::take(&mut self.sections) {
            match self.stored.get(&key(section.id)) {
                Some(stored) if stored.changes == section.changes && stored.generation >= young => {
                    state.skip_section(section.id);
                    self.writer.carry_over(stored);
                }
                stored => fresh.push((stored.map(|stored| Reverse(stored.generation)), section)),
            }
        }
        fresh.sort_by_key(|(age, _)| *age);
        self.fresh.extend(fresh.into_iter().map(|(_, section)| section));
    }

    /// Ends it with its manifest, which makes it a snapshot.
    ///
    /// # Errors
    /// As for [`SnapshotWriter::finish`].
    pub fn finish(self, store: &Store, state: &mut State) -> Result<(Manifest, SnapshotReport), StoreError> {
        state.end_snapshot();
        let report = SnapshotReport {
            seq: self.writer.seq(),
            bytes_written: self.bytes_written,
            duration: self.began.elapsed(),
        };
        Ok((self.writer.finish(store, self.taken_at, self.head)?, report))
    }
}
