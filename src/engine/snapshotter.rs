//! Snapshots, taken in small steps between commits on the writer's own thread, so that no commit waits long.
//!
//! Commits set the pace. Each pays for a step in proportion to its logged bytes, so it never waits for much more than its own work. The
//! snapshot is complete before half of the log that triggers the next one is written; leftovers are removed during the other half. While no
//! command arrives the snapshot continues unpaid, but leaves half of that time to readers.

use super::event_log::EventLog;
use crate::clock::MonotonicClock;
use cuckood_log::journal::{Journal, Result};
use cuckood_log::store::{KEY_COST_BYTES, Manifest, SnapshotWriter, Store, StoreError, Sweep};
use cuckood_state::domain::{Seq, Timestamp};
use cuckood_state::{Section, State};
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};
use utoipa::ToSchema;

/// When snapshots are taken, and how fast.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SnapshotOptions {
    /// Bytes of log after which a small state's snapshot is due.
    pub log_bytes_min: u64,
    /// Bytes of log after which a snapshot is due however large the state. It bounds the replay.
    pub log_bytes_max: u64,
    /// Maximum bytes pinned by copy-on-write. Beyond it the snapshot precedes commits.
    pub pinned_bytes_max: usize,
}

impl Default for SnapshotOptions {
    fn default() -> Self {
        Self {
            log_bytes_min: 64 << 20,
            log_bytes_max: 240 << 20,
            pinned_bytes_max: 64 << 20,
        }
    }
}

/// A finished snapshot.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, ToSchema)]
#[schema(as = Snapshot, example = json!({"seq": 4711, "bytes_written": 65_536, "seconds": 0.1}))]
pub struct SnapshotReport {
    /// The last log entry that it covers.
    #[schema(value_type = u64)]
    pub seq: Seq,
    /// Bytes written; sections that have not changed are not written again.
    pub bytes_written: u64,
    /// Time from its start to its end.
    pub seconds: f64,
}

/// Takes snapshots of the state, and prunes the log up to them.
pub(super) struct Snapshotter {
    store: Arc<Store>,
    clock: MonotonicClock,
    options: SnapshotOptions,
    /// The newest snapshot.
    pub(super) latest: Option<Manifest>,
    running: Option<RunningSnapshot>,
    /// When the running one began.
    began: Instant,
    log_bytes: u64,
    /// Bytes of log that the running snapshot covers.
    covered_bytes: u64,
    /// The last snapshot was aborted while the disk was short of space. Until it is not, another one is taken on request only.
    is_out_of_space: bool,
    /// Bytes that commits have paid for, less what steps have written. The next step is shorter if it is negative.
    balance: i64,
    leftovers: Leftovers,
}

/// Superfluous parts of the log and of earlier snapshots.
enum Leftovers {
    /// It is not known yet. Finding out is a separate step.
    Unknown,
    Found(Sweep),
    Gone,
}

/// Bytes of a step while no command arrives. The next command may have to wait for it.
const QUIET_STEP_BYTES: u64 = 64 << 10;

/// The largest step, whatever a commit has paid for: the writer must not be held for more than 20 ms.
const STEP_BYTES_MAX: u64 = 2 << 20;

/// A step ends after this time once it has written something, however slow the disk is. Tests count bytes, and must not depend on
/// the speed of the machine.
const STEP_TIME_MAX: Duration = if cfg!(test) {
    Duration::from_secs(3_600)
} else {
    Duration::from_millis(10)
};

/// The largest step of removing leftovers. It is larger because they are only read and dropped.
const REMOVAL_BYTES_MAX: u64 = 4 << 20;

/// Returns the size of a full snapshot of the state, in bytes.
fn size(state: &State) -> u64 {
    let sizes = state.sizes();
    sizes.tables_bytes + sizes.records_bytes
}

impl Snapshotter {
    /// Continues after the snapshot that the state was restored from; `log_bytes` have been replayed since. Leftovers of a crashed process
    /// will be removed.
    pub(super) fn new(
        store: Arc<Store>,
        clock: MonotonicClock,
        options: SnapshotOptions,
        latest: Option<Manifest>,
        log_bytes: u64,
    ) -> Self {
        let began = clock.now();
        Self {
            store,
            clock,
            options,
            latest,
            running: None,
            began,
            log_bytes,
            covered_bytes: 0,
            is_out_of_space: false,
            balance: 0,
            leftovers: Leftovers::Unknown,
        }
    }

    /// Counts the bytes logged by a commit, and its payment. By the time a snapshot is due, the payments cover removing this much log and
    /// one complete snapshot, and writing another.
    pub(super) fn note_logged(&mut self, bytes: u64, state: &State) {
        self.log_bytes += bytes;
        // Whatever is removed must be found first.
        let key = if self.is_running() { 0 } else { KEY_COST_BYTES };
        let pace = 1 + 3 * size(state) / self.due_after(state).max(1);
        self.balance = self.balance.saturating_add_unsigned((bytes + key) * pace);
    }

    /// Whether a snapshot is being written.
    pub(super) fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Whether there is something to do between commits.
    pub(super) fn has_work(&self) -> bool {
        self.running.is_some() || !matches!(self.leftovers, Leftovers::Gone)
    }

    /// Whether enough has been logged since the last snapshot: the size of a new one, within bounds. So at most about twice the log is
    /// written, and a replay stays short. Leftovers of the last snapshot are removed first: under steady load they would never be removed
    /// otherwise.
    pub(super) fn is_due(&self, state: &State) -> bool {
        !self.has_work()
            && self.log_bytes >= self.due_after(state)
            && (!self.is_out_of_space || self.store.space.check().is_ok())
    }

    /// Bytes of log after which a snapshot is due.
    fn due_after(&self, state: &State) -> u64 {
        size(state).clamp(self.options.log_bytes_min, self.options.log_bytes_max)
    }

    /// Whether the newest snapshot covers everything.
    pub(super) fn is_current(&self, state: &State) -> bool {
        self.latest.as_ref().map_or(Seq(0), |latest| latest.seq) == state.applied()
    }

    /// Begins a snapshot of the state as it is now. A replicated log continues at `place`.
    pub(super) fn begin(
        &mut self,
        state: &mut State,
        events: &mut EventLog,
        place: Vec<u8>,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let latest = self.latest.as_ref();
        self.running = Some(RunningSnapshot::begin(
            &self.store,
            state,
            events,
            latest,
            place,
            now,
        )?);
        self.began = self.clock.now();
        self.covered_bytes = self.log_bytes;
        self.balance = 0;
        Ok(())
    }

    /// Continues the running snapshot; `quiet` if no command has arrived. Returns its report if this step has finished it.
    pub(super) fn step(&mut self, state: &State, quiet: bool) -> Result<Option<SnapshotReport>> {
        let Some(mut running) = self.running.take() else {
            return Ok(None);
        };
        if !running.is_complete() {
            self.write(&mut running, state, quiet)?;
            self.running = Some(running);
            return Ok(None);
        }
        // With ten thousand filters, this takes a separate step.
        let bytes_written = running.bytes_written;
        let duration = self.clock.since(self.began);
        let finished = running.finish(&self.store);
        if matches!(finished, Err(StoreError::TooLong(_))) {
            // The next attempt is due after as much log.
            self.log_bytes -= std::mem::take(&mut self.covered_bytes);
        }
        let manifest = finished?;
        let report = SnapshotReport {
            seq: manifest.seq,
            bytes_written,
            seconds: duration.as_secs_f64(),
        };
        self.latest = Some(manifest);
        self.log_bytes -= std::mem::take(&mut self.covered_bytes);
        self.is_out_of_space = false;
        self.leftovers = Leftovers::Unknown;
        Ok(Some(report))
    }

    /// Writes the amount that commits have paid for, a little if no command has arrived, and more if copy-on-write pins too much memory.
    fn write(
        &mut self,
        running: &mut RunningSnapshot,
        state: &State,
        quiet: bool,
    ) -> Result<(), StoreError> {
        let pinned = || state.sizes().snapshot_bytes as usize;
        let pinned_max = self.options.pinned_bytes_max;
        // As the pinned bytes approach their limit each commit pays for more, so the limit is hardly ever reached.
        let haste =
            1 + pinned().saturating_sub(pinned_max / 2).saturating_mul(16) / pinned_max.max(1);
        let paid = u64::try_from(self.balance)
            .unwrap_or(0)
            .saturating_mul(haste as u64);
        let least = if quiet { QUIET_STEP_BYTES } else { 1 };
        let budget = paid.clamp(least, STEP_BYTES_MAX);
        let written = self.write_step(running, budget)?;
        self.balance = budget as i64 - written as i64;
        while !running.is_complete() && pinned() > pinned_max {
            self.write_step(running, STEP_BYTES_MAX)?;
        }
        Ok(())
    }

    /// Writes chunks within [`STEP_TIME_MAX`]. Returns the number of bytes written.
    fn write_step(&self, running: &mut RunningSnapshot, budget: u64) -> Result<u64, StoreError> {
        let until = self.clock.now() + STEP_TIME_MAX;
        let is_over = || self.clock.now() >= until;
        running.write_until(&self.store, budget, &is_over)
    }

    /// Removes some superfluous data: the log first, then earlier snapshots. While commands arrive, only the amount they have paid for.
    pub(super) fn remove_leftovers(
        &mut self,
        journal: &mut dyn Journal,
        quiet: bool,
    ) -> Result<()> {
        let paid = u64::try_from(self.balance).unwrap_or(0);
        let budget = paid.clamp(QUIET_STEP_BYTES, REMOVAL_BYTES_MAX);
        if !quiet && paid < budget {
            return Ok(());
        }
        self.balance = paid.saturating_sub(budget) as i64;
        self.leftovers = match std::mem::replace(&mut self.leftovers, Leftovers::Gone) {
            Leftovers::Unknown => Leftovers::Found(self.store.sweep()?),
            Leftovers::Found(mut sweep) => {
                let goes_on =
                    journal.prune(sweep.log_through, budget)? || sweep.step(&self.store, budget)?;
                if goes_on {
                    Leftovers::Found(sweep)
                } else {
                    Leftovers::Gone
                }
            }
            Leftovers::Gone => Leftovers::Gone,
        };
        Ok(())
    }

    /// Aborts the running snapshot, if there is one. Its written parts are removed, like those of an older snapshot.
    pub(super) fn abort(&mut self) {
        self.running = None;
        self.store.abandon_snapshot();
        self.leftovers = Leftovers::Unknown;
        self.is_out_of_space = self.store.space.check().is_err();
    }
}

/// A section is written again after this many snapshots have shared it. sled frees space in segments of its file, and a segment
/// is free only once all its pages are: one old chunk pins eight megabytes until sled moves it.
const REUSED_MAX: u64 = 16;

/// A running snapshot: the sections still to be written, and the progress. The snapshotter decides how much is written when.
pub struct RunningSnapshot {
    writer: SnapshotWriter,
    head: Vec<u8>,
    taken_at: Timestamp,
    /// The sections that must be written.
    fresh: VecDeque<Section>,
    bytes_written: u64,
}

impl RunningSnapshot {
    /// Begins a snapshot of the state as it is now, after the latest one. Stores the events up to there, because a
    /// start from the snapshot does not make them again. A replicated log continues at `place`.
    ///
    /// # Errors
    /// Those of [`Store::begin_snapshot`] and [`EventLog::take`].
    pub fn begin(
        store: &Store,
        state: &mut State,
        events: &mut EventLog,
        latest: Option<&Manifest>,
        place: Vec<u8>,
        now: Timestamp,
    ) -> Result<Self, StoreError> {
        let mut writer = store.begin_snapshot(state.applied())?;
        events.take(store, state)?;
        events.save(store)?;
        writer.events_last = state.events().last();
        writer.place = place;
        let image = state.begin_snapshot();
        let fresh = reuse(&mut writer, image.sections, latest);
        Ok(Self {
            writer,
            head: image.head,
            taken_at: now,
            fresh,
            bytes_written: 0,
        })
    }

    /// Whether everything but the manifest is written.
    pub fn is_complete(&self) -> bool {
        self.fresh.is_empty()
    }

    /// Writes chunks, at least one, until `budget` bytes are spent or the snapshot is complete. Returns the number of bytes written.
    ///
    /// # Errors
    /// Those of [`SnapshotWriter::put_chunk`].
    pub fn write(&mut self, store: &Store, budget: u64) -> Result<u64, StoreError> {
        self.write_until(store, budget, &|| false)
    }

    /// Does the same, and stops after a chunk once the time is over.
    fn write_until(
        &mut self,
        store: &Store,
        budget: u64,
        is_over: &dyn Fn() -> bool,
    ) -> Result<u64, StoreError> {
        let mut chunk = Vec::new();
        let mut written = 0;
        while written < budget
            && (written == 0 || !is_over())
            && let Some(section) = self.fresh.front_mut()
        {
            if section.next_chunk(&mut chunk) {
                self.writer.put_chunk(store, section.id, &chunk)?;
                written += chunk.len() as u64;
            } else {
                self.writer.end_section(section.id, section.changes);
                self.fresh.pop_front();
            }
        }
        self.bytes_written += written;
        Ok(written)
    }

    /// Writes the manifest, which completes the snapshot.
    ///
    /// # Errors
    /// Those of [`SnapshotWriter::finish`].
    pub fn finish(self, store: &Store) -> Result<Manifest, StoreError> {
        self.writer.finish(store, self.taken_at, self.head)
    }
}

/// Shares the sections that have not changed since the latest snapshot and are not too old. Returns the others, which must be written.
/// Sections that change often are first: parts written together are later replaced together, and leave no holes in sled's file.
fn reuse(
    writer: &mut SnapshotWriter,
    mut sections: Vec<Section>,
    latest: Option<&Manifest>,
) -> VecDeque<Section> {
    let young = writer.generation.saturating_sub(REUSED_MAX);
    let stored = |section: &Section| latest.and_then(|latest| latest.find(section.id));
    sections.retain(|section| match stored(section) {
        Some(stored) if stored.changes == section.changes && stored.generation >= young => {
            writer.carry_over(stored);
            false
        }
        _ => true,
    });
    sections.sort_by_cached_key(|section| stored(section).map(|stored| Reverse(stored.generation)));
    sections.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use cuckood_filter::{Digest, Growth, Layout, Mode, Secret};
    use cuckood_log::journal::JournalError;
    use cuckood_log::journal::{LocalJournal, LocalOptions};
    use cuckood_log::store::StoreOptions;
    use cuckood_state::domain::{
        Command, Digests, Entry, FilterId, Kind, Name, Normalization, Proposal, RedemptionId,
        Reference, Sizing, Spec, Target, Window,
    };
    use cuckood_state::domain::{Redeem, SectionId};

    fn store_in(dir: &tempfile::TempDir) -> Arc<Store> {
        let options = StoreOptions {
            free_space_min_bytes: 0,
            ballast_bytes: 0,
            manifest_bytes_max: 1 << 20,
            ..StoreOptions::default()
        };
        Arc::new(Store::open(dir.path(), &options).unwrap())
    }

    /// Begins a snapshot of a state whose events were not taken so far.
    fn begin(snapshotter: &mut Snapshotter, state: &mut State) {
        let mut events = EventLog::open(&snapshotter.store, &State::default()).unwrap();
        snapshotter
            .begin(state, &mut events, Vec::new(), Timestamp(1_000))
            .unwrap();
    }

    fn apply(state: &mut State, command: Command) {
        let proposal = Proposal::new(Timestamp(1_000), command);
        state.apply(Entry {
            seq: state.applied().next(),
            proposal,
        });
    }

    /// A state with an empty filter for a million items.
    fn state(mode: Mode, growth: Growth) -> State {
        let mut state = State::default();
        let (layout, sizing) = match mode {
            Mode::Compact => (
                Layout::compact(1_000_000, 0.001, growth),
                Sizing::ErrorRate(0.001),
            ),
            Mode::Strict => (Layout::strict(1_000_000), Sizing::Exact),
        };
        let create = Command::Create {
            kind: if mode == Mode::Strict {
                Kind::Coupon
            } else {
                Kind::Campaign
            },
            name: Name::new("launch").unwrap(),
            id: FilterId(1),
            secret: Secret::new([7; 192]),
            layout: layout.unwrap(),
            spec: Spec {
                capacity: 1_000_000,
                mode,
                growth,
                sizing,
                normalization: Normalization::Exact,
                supply: Default::default(),
                forget: None,
            },
            window: Window::default(),
            annotations: Default::default(),
        };
        apply(&mut state, create);
        state
    }

    fn pinned_bytes(state: &State) -> usize {
        state.sizes().snapshot_bytes as usize
    }

    fn insert(state: &mut State, items: std::ops::Range<u64>) {
        let digests = items
            .map(|item| Digest(item.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
            .collect();
        let target = Target(FilterId(1));
        apply(
            state,
            Command::Insert {
                target,
                digests: Digests(digests),
                if_absent: false,
                revive: false,
            },
        );
    }

    /// A commit that pays for a chunk and a half gets one and two chunks in turn, not two each time.
    #[test]
    fn snapshot_work_is_proportional_to_commits() {
        const LOGGED: u64 = 12 << 10;
        let mut state = state(Mode::Compact, Growth::Fixed);
        let dir = tempfile::tempdir().unwrap();
        let mut snapshotter = Snapshotter::new(
            store_in(&dir),
            MonotonicClock::system(),
            SnapshotOptions::default(),
            None,
            0,
        );
        begin(&mut snapshotter, &mut state);
        let mut paid = 0;
        let report = loop {
            paid += LOGGED;
            snapshotter.note_logged(LOGGED, &state);
            if let Some(report) = snapshotter.step(&state, false).unwrap() {
                break report;
            }
        };
        let more = paid.abs_diff(report.bytes_written);
        assert!(
            more <= 2 * LOGGED,
            "{paid} paid, {} written",
            report.bytes_written
        );
    }

    /// On a disk so slow that no time is left for more, a step still writes one chunk, and no payment is lost.
    #[test]
    fn step_without_time_writes_one_chunk() {
        let mut state = state(Mode::Compact, Growth::Fixed);
        let dir = tempfile::tempdir().unwrap();
        let mut snapshotter = Snapshotter::new(
            store_in(&dir),
            MonotonicClock::system(),
            SnapshotOptions::default(),
            None,
            0,
        );
        begin(&mut snapshotter, &mut state);
        let mut running = snapshotter.running.take().unwrap();
        let mut sizes = Vec::new();
        while !running.is_complete() {
            running
                .write_until(&snapshotter.store, STEP_BYTES_MAX, &|| true)
                .unwrap();
            sizes.push(running.bytes_written);
        }
        assert!(
            sizes.len() as u64 >= size(&state) / 16_384,
            "{} steps",
            sizes.len()
        );
        assert!(sizes.windows(2).all(|pair| pair[1] - pair[0] <= 16_384));
    }

    /// It is not repeated immediately, and the log stays.
    #[test]
    fn snapshot_too_long_is_postponed() {
        let mut state = state(Mode::Compact, Growth::Fixed);
        let dir = tempfile::tempdir().unwrap();
        let options = SnapshotOptions {
            log_bytes_min: 1_000,
            log_bytes_max: 1_000,
            ..SnapshotOptions::default()
        };
        let mut snapshotter =
            Snapshotter::new(store_in(&dir), MonotonicClock::system(), options, None, 0);
        snapshotter.leftovers = Leftovers::Gone;
        snapshotter.note_logged(1_000, &state);
        assert!(snapshotter.is_due(&state));
        begin(&mut snapshotter, &mut state);
        snapshotter.running.as_mut().unwrap().head = vec![7; 2 << 20];
        let failed = loop {
            if let Err(error) = snapshotter.step(&state, true) {
                break error;
            }
        };
        assert!(matches!(failed, JournalError::TooLong(_)), "{failed}");
        snapshotter.abort();
        snapshotter.leftovers = Leftovers::Gone;
        assert!(!snapshotter.is_due(&state) && snapshotter.latest.is_none());
        snapshotter.note_logged(1_000, &state);
        assert!(snapshotter.is_due(&state));
    }

    /// Under any load, copy-on-write pins a bounded number of bytes: the snapshot precedes commits.
    #[test]
    fn memory_pinned_by_snapshot_is_bounded() {
        const BATCH: u64 = 2_000;
        const FIRST: u64 = 400_000;
        const PINNED_BYTES_MAX: usize = 256 << 10;
        let mut state = state(Mode::Compact, Growth::Fixed);
        // Empty chunks are not written, and the snapshot would end immediately.
        for item in (0..FIRST).step_by(BATCH as usize) {
            insert(&mut state, item..item + BATCH);
        }
        let dir = tempfile::tempdir().unwrap();
        let options = SnapshotOptions {
            pinned_bytes_max: PINNED_BYTES_MAX,
            ..SnapshotOptions::default()
        };
        let mut snapshotter =
            Snapshotter::new(store_in(&dir), MonotonicClock::system(), options, None, 0);
        begin(&mut snapshotter, &mut state);
        let mut item = FIRST;
        let mut most = 0;
        while snapshotter.is_running() && item < 900_000 {
            insert(&mut state, item..item + BATCH);
            item += BATCH;
            most = most.max(pinned_bytes(&state));
            snapshotter.note_logged(BATCH * 8, &state);
            snapshotter.step(&state, false).unwrap();
            assert!(pinned_bytes(&state) < PINNED_BYTES_MAX + PINNED_BYTES_MAX / 8);
        }
        assert!(!snapshotter.is_running(), "the snapshot never ended");
        assert!(
            most > PINNED_BYTES_MAX / 2,
            "the bound was never near: {most}"
        );
    }

    /// The bound also holds when entries change more than they log: each item frees slots of cleared ones.
    #[test]
    fn memory_pinned_during_clear_is_bounded() {
        const PINNED_BYTES_MAX: usize = 32 << 10;
        const ITEMS: u64 = 400_000;
        let mut state = state(Mode::Strict, Growth::Auto);
        for item in (0..ITEMS).step_by(10_000) {
            insert(&mut state, item..item + 10_000);
        }
        let target = Target(FilterId(1));
        let digest = Digest(0x9e37_79b9_7f4a_7c15);
        let redemption = RedemptionId([1; 16]);
        let reference = Reference::new("order").unwrap();
        apply(
            &mut state,
            Command::Redeem(Redeem {
                target,
                digest,
                redemption,
                reference,
                hold_seconds: 0,
            }),
        );
        apply(&mut state, Command::Clear { target });
        // The sweep gets ahead of the snapshot, which would otherwise have written each bucket before it is swept.
        for item in ITEMS..ITEMS + 4_000 {
            insert(&mut state, item..item + 1);
        }
        let item = ITEMS + 4_000;
        let dir = tempfile::tempdir().unwrap();
        let options = SnapshotOptions {
            pinned_bytes_max: PINNED_BYTES_MAX,
            ..SnapshotOptions::default()
        };
        let mut snapshotter =
            Snapshotter::new(store_in(&dir), MonotonicClock::system(), options, None, 0);
        begin(&mut snapshotter, &mut state);
        let mut most = 0;
        for item in item..item + 1_000 {
            insert(&mut state, item..item + 1);
            most = most.max(pinned_bytes(&state));
            // So little that the log alone would not trigger another count.
            snapshotter.note_logged(1, &state);
            snapshotter.step(&state, false).unwrap();
        }
        assert!(
            most < PINNED_BYTES_MAX + PINNED_BYTES_MAX / 2,
            "{most} bytes were pinned"
        );
        assert!(
            most > PINNED_BYTES_MAX / 2,
            "the bound was never near: {most}"
        );
    }

    /// A section that never changes does not stay alone in a part of the file that could otherwise be freed.
    #[test]
    fn unchanged_tables_are_rewritten_occasionally() {
        let mut state = state(Mode::Compact, Growth::Fixed);
        let dir = tempfile::tempdir().unwrap();
        let mut snapshotter = Snapshotter::new(
            store_in(&dir),
            MonotonicClock::system(),
            SnapshotOptions::default(),
            None,
            0,
        );
        let mut written = Vec::new();
        for generation in 1..=40 {
            begin(&mut snapshotter, &mut state);
            let report = loop {
                if let Some(report) = snapshotter.step(&state, true).unwrap() {
                    break report;
                }
            };
            if report.bytes_written > 0 {
                written.push(generation);
            }
            let sections = &snapshotter.latest.as_ref().unwrap().sections;
            assert!(
                sections
                    .iter()
                    .all(|section| section.generation + REUSED_MAX >= generation)
            );
        }
        assert_eq!(written, [1, 18, 35]);
    }

    /// Leftovers of a process that crashed during a snapshot are removed after the next startup: immediately while no command arrives,
    /// otherwise when commits have paid for it.
    #[test]
    fn leftovers_are_removed_by_commits_or_idle() {
        let dir = tempfile::tempdir().unwrap();
        let store = store_in(&dir);
        let abandon = |seq| {
            let mut writer = store.begin_snapshot(Seq(seq)).unwrap();
            writer
                .put_chunk(&store, SectionId { owner: 1, part: 0 }, &[1; 100])
                .unwrap();
        };
        abandon(1);
        abandon(2);
        abandon(3);
        // The newest snapshot counts as unfinished until the store is opened again.
        let mut snapshotter = Snapshotter::new(
            store.clone(),
            MonotonicClock::system(),
            SnapshotOptions::default(),
            None,
            0,
        );
        let mut journal = LocalJournal::open(store.clone(), LocalOptions::default()).unwrap();
        let mut left_after = |logged, quiet| {
            snapshotter.note_logged(logged, &State::default());
            snapshotter.remove_leftovers(&mut journal, quiet).unwrap();
            store
                .backing()
                .tree_names()
                .iter()
                .filter(|tree| tree.starts_with("chunks/"))
                .count()
        };
        assert_eq!(left_after(0, false), 3);
        assert_eq!(left_after(0, true), 3, "the leftovers are listed");
        assert!((0..10).any(|_| left_after(0, true) == 2));
        assert_eq!(left_after(QUIET_STEP_BYTES - KEY_COST_BYTES - 1, false), 2);
        assert_eq!(left_after(REMOVAL_BYTES_MAX, false), 1);
        left_after(0, true);
        assert!(!snapshotter.has_work());
    }
}
