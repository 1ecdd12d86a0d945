//! Snapshots: taken in small steps between commits, on the writer's own thread, so that no commit waits long.

use crate::domain::{Seq, Timestamp};
use crate::journal::{Journal, JournalError};
use crate::state::{Section, SectionId, State};
use crate::store::{Manifest, SectionKey, SectionRef, SnapshotWriter, Store, StoreError, Sweep};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// When snapshots are taken, and how fast.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SnapshotOptions {
    /// Bytes of log after which a snapshot of a small state is begun.
    pub log_bytes_min: u64,
    /// Bytes of log after which one is begun however large the state: bounds the replay.
    pub log_bytes_max: u64,
    /// Bytes after which a step between two commits ends while commands wait; a chunk is not cut.
    pub step_busy_bytes: usize,
    /// Bytes written before the queue is looked at again while none do.
    pub step_idle_bytes: usize,
    /// Bytes that may be kept of what has changed meanwhile; beyond, the snapshot goes before commits.
    pub kept_bytes_max: usize,
}

impl Default for SnapshotOptions {
    fn default() -> Self {
        Self {
            log_bytes_min: 64 << 20,
            log_bytes_max: 240 << 20,
            // Less than a chunk, so that it is one: a commit waits until all that sled's log has before it is written.
            step_busy_bytes: 32 << 10,
            step_idle_bytes: 256 << 10,
            kept_bytes_max: 64 << 20,
        }
    }
}

/// A finished snapshot.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct SnapshotReport {
    /// The last entry that it covers.
    pub seq: Seq,
    /// Bytes written for it; unchanged sections are not written again.
    pub bytes_written: u64,
    /// From its begin to its end.
    pub duration: Duration,
}

/// Takes snapshots of the state into the store, and drops the log behind them.
pub(super) struct Snapshotter {
    store: Arc<Store>,
    options: SnapshotOptions,
    latest: Option<Manifest>,
    running: Option<Running>,
    log_bytes: u64,
    /// Through where the log is not needed any more, until it has gone.
    prunable: Option<Seq>,
    /// What is on its way out.
    sweep: Option<Sweep>,
}

struct Running {
    writer: SnapshotWriter,
    head: Vec<u8>,
    taken_at: Timestamp,
    sections: VecDeque<Section>,
    /// What the snapshot before has; an equal section is taken over.
    stored: BTreeMap<SectionKey, SectionRef>,
    /// The section that is being written, and how many of its chunks are.
    current: Option<(Section, u32)>,
    bytes_written: u64,
    began: Instant,
}

/// Chunks that no snapshot names any more which are removed in one step: two megabytes for sled to look at.
const SWEEP_CHUNKS: usize = 32;

fn key(id: SectionId) -> SectionKey {
    SectionKey { filter: id.filter, part: id.part }
}

impl Snapshotter {
    /// Continues after the snapshot that the state was restored from; `log_bytes` have been replayed since.
    pub(super) fn new(
        store: Arc<Store>,
        options: SnapshotOptions,
        latest: Option<Manifest>,
        log_bytes: u64,
    ) -> Self {
        Self { store, options, latest, running: None, log_bytes, prunable: None, sweep: None }
    }

    /// Counts what has been logged.
    pub(super) fn note_logged(&mut self, bytes: u64) {
        self.log_bytes += bytes;
    }

    /// Whether a snapshot is being written.
    pub(super) fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Whether there is something to do between commits.
    pub(super) fn has_work(&self) -> bool {
        self.running.is_some() || self.prunable.is_some() || self.sweep.is_some()
    }

    /// Whether enough has been logged since the last snapshot: as much as a new one may have to write, within
    /// bounds, so that at most about twice the log is written and a replay stays short.
    pub(super) fn is_due(&self, state: &State) -> bool {
        let size = state.tables_bytes() + state.records_bytes();
        let threshold = size.clamp(self.options.log_bytes_min, self.options.log_bytes_max);
        self.running.is_none() && self.log_bytes >= threshold
    }

    /// Whether the newest snapshot covers everything.
    pub(super) fn is_current(&self, state: &State) -> bool {
        self.latest.as_ref().map_or(Seq(0), |latest| latest.seq) == state.applied()
    }

    /// The newest snapshot.
    pub(super) fn latest(&self) -> Option<&Manifest> {
        self.latest.as_ref()
    }

    /// Begins a snapshot of the state as it is.
    pub(super) fn begin(&mut self, state: &mut State, now: Timestamp) -> Result<(), StoreError> {
        let writer = self.store.begin_snapshot(state.applied())?;
        let image = state.begin_snapshot();
        self.log_bytes = 0;
        let latest = self.latest.iter().flat_map(|latest| &latest.sections);
        let stored = latest.map(|section| (section.key, *section)).collect();
        self.running = Some(Running {
            writer,
            head: image.head,
            taken_at: now,
            sections: image.sections.into(),
            stored,
            current: None,
            bytes_written: 0,
            began: Instant::now(),
        });
        Ok(())
    }

    /// Goes on with the running snapshot, or with what the last one has left to remove. `busy` tells whether
    /// commands wait. Answers a snapshot that this step has finished.
    pub(super) fn step(
        &mut self,
        state: &mut State,
        journal: &mut dyn Journal,
        busy: bool,
    ) -> Result<Option<SnapshotReport>, JournalError> {
        let Some(mut running) = self.running.take() else {
            if let Some(through) = self.prunable {
                self.prunable = journal.prune(through)?.then_some(through);
            } else if let Some(sweep) = &mut self.sweep
                && !sweep.step(&self.store, SWEEP_CHUNKS)?
            {
                self.sweep = None;
            }
            return Ok(None);
        };
        let budget = if busy { self.options.step_busy_bytes } else { self.options.step_idle_bytes };
        let mut whole = self.write(&mut running, state, budget)?;
        while !whole && state.snapshot_bytes() > self.options.kept_bytes_max {
            whole = self.write(&mut running, state, self.options.step_idle_bytes)?;
        }
        if !whole {
            self.running = Some(running);
            return Ok(None);
        }
        state.end_snapshot();
        let (seq, duration) = (running.writer.seq(), running.began.elapsed());
        let report = SnapshotReport { seq, bytes_written: running.bytes_written, duration };
        self.latest = Some(running.writer.finish(&self.store, running.taken_at, running.head)?);
        self.sweep = Some(self.store.sweep()?);
        self.prunable = self.store.prunable_through()?;
        Ok(Some(report))
    }

    /// Gives the running snapshot up.
    pub(super) fn abort(&mut self, state: &mut State) {
        state.end_snapshot();
        self.running = None;
    }

    /// Writes chunks until `budget` bytes are spent; true once there is none left.
    fn write(&self, running: &mut Running, state: &mut State, budget: usize) -> Result<bool, StoreError> {
        let mut chunk = Vec::new();
        let mut spent = 0;
        while spent < budget {
            let Some((section, number)) = &mut running.current else {
                let Some(section) = running.sections.pop_front() else { return Ok(true) };
                let stored = running.stored.get(&key(section.id));
                match stored.filter(|stored| stored.changes == section.changes) {
                    Some(stored) => {
                        state.skip_section(section.id);
                        running.writer.carry_over(stored);
                    }
                    None => running.current = Some((section, 0)),
                }
                continue;
            };
            if state.take_chunk(section.id, *number, &mut chunk) {
                running.writer.put_chunk(&self.store, key(section.id), *number, &chunk)?;
                running.bytes_written += chunk.len() as u64;
                spent += chunk.len();
                *number += 1;
            } else {
                running.writer.end_section(key(section.id), section.changes, *number)?;
                running.current = None;
            }
        }
        Ok(false)
    }
}
