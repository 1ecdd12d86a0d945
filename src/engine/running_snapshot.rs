//! A running snapshot: which sections it shares with the one before, which it still has to write, and how far it has come. The
//! snapshotter decides how much is written when.

use super::event_log::EventLog;
use crate::domain::{SectionId, Timestamp};
use crate::state::{Section, State};
use crate::store::{Manifest, SectionRef, SnapshotWriter, Store, StoreError};
use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

/// A section is written again after this many snapshots have shared it. sled frees space in segments of its file, and a segment
/// is free only once all its pages are: one old chunk pins eight megabytes until sled moves it.
pub(super) const TAKEN_OVER_MAX: u64 = 16;

/// A running snapshot.
pub struct RunningSnapshot {
    writer: SnapshotWriter,
    head: Vec<u8>,
    taken_at: Timestamp,
    /// All sections, until it is known which are shared.
    sections: Vec<Section>,
    /// The sections of the snapshot before; an equal one is shared.
    stored: BTreeMap<SectionId, SectionRef>,
    /// The sections that must be written.
    fresh: VecDeque<Section>,
    /// The section that is being written.
    current: Option<Section>,
    bytes_written: u64,
    began: Instant,
}

impl RunningSnapshot {
    /// Begins a snapshot of the state as it is now, after the latest one. Stores the events up to there: whoever begins with the
    /// snapshot does not make them again.
    ///
    /// # Errors
    /// As for [`Store::begin_snapshot`] and [`EventLog::take`].
    pub fn begin(
        store: &Store,
        state: &mut State,
        events: &mut EventLog,
        latest: Option<&Manifest>,
        now: Timestamp,
    ) -> Result<Self, StoreError> {
        let mut writer = store.begin_snapshot(state.applied())?;
        events.take(store, state)?;
        events.save(store)?;
        writer.cover_events(state.events().last());
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

    /// Whether everything but the manifest is written.
    pub fn is_whole(&self) -> bool {
        self.sections.is_empty() && self.fresh.is_empty() && self.current.is_none()
    }

    /// Bytes of chunks written so far.
    pub fn bytes_written(&self) -> u64 {
        self.bytes_written
    }

    /// Writes chunks, at least one, until `budget` bytes or the time are spent or the snapshot is whole.
    ///
    /// # Errors
    /// As for [`SnapshotWriter::put_chunk`].
    pub fn write(&mut self, store: &Store, budget: u64, until: Instant) -> Result<(), StoreError> {
        self.take_over();
        let mut chunk = Vec::new();
        let end = self.bytes_written + budget;
        while self.bytes_written < end {
            let Some(section) = &mut self.current else {
                let Some(section) = self.fresh.pop_front() else { return Ok(()) };
                self.current = Some(section);
                continue;
            };
            if section.next_chunk(&mut chunk) {
                self.writer.put_chunk(store, section.id, &chunk)?;
                self.bytes_written += chunk.len() as u64;
                if Instant::now() >= until {
                    return Ok(());
                }
            } else {
                self.writer.end_section(section.id, section.changes);
                self.current = None;
            }
        }
        Ok(())
    }

    /// Shares the sections that have not changed and are not too old; the others must be written. Sections that change often come
    /// first: what is written together is later replaced together, and leaves no holes in sled's file.
    fn take_over(&mut self) {
        let young = self.writer.generation().saturating_sub(TAKEN_OVER_MAX);
        let mut fresh = Vec::new();
        for section in std::mem::take(&mut self.sections) {
            match self.stored.get(&section.id) {
                Some(stored) if stored.changes == section.changes && stored.generation >= young => {
                    self.writer.carry_over(stored);
                }
                stored => fresh.push((stored.map(|stored| Reverse(stored.generation)), section)),
            }
        }
        fresh.sort_by_key(|(age, _)| *age);
        self.fresh.extend(fresh.into_iter().map(|(_, section)| section));
    }

    /// Time since it began.
    pub fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// Writes the manifest, which completes the snapshot.
    ///
    /// # Errors
    /// As for [`SnapshotWriter::finish`].
    pub fn finish(self, store: &Store) -> Result<Manifest, StoreError> {
        self.writer.finish(store, self.taken_at, self.head)
    }
}
