//! What the writer does between commits, a step at a time, so that no commit waits long: snapshots, removing old events, and
//! freeing what commands have dropped. While no command arrives it continues, but leaves half of the time to readers, which share
//! its processors. Then it also logs separate entries, which continue what every entry does a little of: emptying tables, expiring
//! holds, and forgetting redemptions and users. Otherwise an idle service would not report that a hold has expired.

use super::request::Reply;
use super::snapshotter::SnapshotReport;
use super::writer::Writer;
use super::{LatestSnapshot, Status, SubmitError};
use crate::domain::{Command, Proposal, Seq, Timestamp};
use crate::journal::{JournalError, Ticket};
use std::hash::BuildHasher;
use std::time::{Duration, Instant};

/// Buckets that a separate entry empties while no command arrives: about a millisecond's work.
const BUCKETS_AN_ADVANCE: u32 = 4_096;

/// What a step frees, in entries of a ledger: about a millisecond's work.
const FREED_ENTRIES: u64 = 4_096;

/// What is freed before a command is judged again that the memory has no room for.
const FREED_ENTRIES_IN_NEED: u64 = 65_536;

/// Bytes of old events that a step reads or drops.
const OLD_EVENTS_STEP_BYTES: u64 = 64 << 10;

/// How long the writer waits before it logs an entry for what is due. All that is due by then is done by one.
const GATHERED: Duration = Duration::from_millis(100);

/// The longest that a node waits for its turn to do what any node of a shared log may do.
const TURN_MAX: Duration = Duration::from_millis(500);

/// The most callers that may wait for the next snapshot.
const SNAPSHOTS_ASKED_MAX: usize = 1_024;

impl Writer {
    /// Whether there is something to do while no command comes.
    pub(super) fn has_quiet_work(&self) -> bool {
        self.snapshotter.has_work()
            || self.is_snapshot_asked()
            || self.has_old_events()
            || self.state.has_discarded() && !self.is_freeing_held_up
            || self.buckets_to_advance().is_some()
    }

    /// Whether the writer can't log a separate entry now.
    fn is_held_up(&self) -> bool {
        let (applied, patience) = (self.state.applied(), self.inner.options.commit_patience);
        // Since the last one nothing was applied: it could not be logged, or isn't committed yet.
        let is_proposed = |(since, before): (Instant, Seq)| before == applied && since.elapsed() < patience;
        self.failed || self.advance.is_some() || self.proposed.is_some_and(is_proposed)
    }

    /// How many buckets a separate entry should empty, if there is a reason to log one: there are some to be emptied, or something is
    /// due. A snapshot goes before the former, because it copies whatever changes during it.
    fn buckets_to_advance(&self) -> Option<u32> {
        if self.is_held_up() {
            return None;
        }
        if self.state.can_advance() && !self.snapshotter.has_work() {
            return Some(BUCKETS_AN_ADVANCE);
        }
        self.due_at().is_some_and(|at| at <= self.time.read()).then_some(0)
    }

    /// Does a step of everything; `quiet` if no command has come. Returns when the next quiet step may follow.
    pub(super) fn step_between_commits(&mut self, quiet: bool) -> Instant {
        let began = Instant::now();
        if !quiet {
            self.is_freeing_held_up = false;
        }
        self.downloads.forget_abandoned();
        // While the disk is short of space, commits pay for nothing, and rejected clients may leave no quiet moment.
        self.go_on_with_snapshot(quiet || self.is_disk_short);
        self.remove_old_events();
        self.free_discarded(FREED_ENTRIES);
        if let Some(buckets_max) = self.buckets_to_advance().filter(|_| quiet) {
            self.advance(buckets_max);
        }
        Instant::now() + began.elapsed()
    }

    fn go_on_with_snapshot(&mut self, quiet: bool) {
        // Leftovers of the last one go first: they would never go while callers ask for one after the other.
        let is_wanted =
            self.snapshotter.is_due(&self.state) || !self.snapshotter.has_work() && self.is_snapshot_asked();
        if self.failed || !is_wanted && !self.snapshotter.has_work() {
            return;
        }
        let began = Instant::now();
        let begun = if is_wanted { self.begin_snapshot() } else { Ok(()) };
        let stepped = begun.and_then(|()| match self.snapshotter.is_running() {
            true => self.snapshotter.step(&self.state, quiet),
            false => self.snapshotter.remove_leftovers(&mut *self.journal, quiet).map(|()| None),
        });
        self.note_step(began);
        match stepped {
            Ok(None) => {}
            Ok(Some(report)) => {
                self.inner.metrics.snapshots.inc();
                self.inner.metrics.snapshot_seconds.set(report.seconds);
                self.note_snapshot();
                self.answer_snapshot(Ok(report));
            }
            Err(error) => {
                self.snapshotter.abort();
                let error = self.storage_error(&error);
                self.answer_snapshot(Err(error));
            }
        }
    }

    fn note_step(&self, began: Instant) {
        self.inner.metrics.snapshot_step_seconds.observe(began.elapsed().as_secs_f64());
        self.inner.board.figures.lock().events = self.events.figures();
    }

    /// Events go only while the clock can be trusted, and while no backup reads them.
    fn has_old_events(&self) -> bool {
        !self.failed
            && self.time.is_trusted()
            && !self.downloads.has_backup()
            && self.events.has_old(self.time.read())
    }

    fn remove_old_events(&mut self) {
        // What other nodes write makes events here, whether there is room for them or not.
        self.events.is_disk_full =
            self.inner.options.journal.is_shared() && self.store.space.check().is_err();
        if !self.has_old_events() {
            return;
        }
        let began = Instant::now();
        let removed = self.events.remove_old(&self.store, self.time.read(), OLD_EVENTS_STEP_BYTES);
        self.note_step(began);
        if let Err(error) = removed {
            self.storage_error(&error.into());
        }
    }

    /// Logs and applies a command that goes on with what others have begun.
    fn advance(&mut self, buckets_max: u32) {
        let before = self.state.applied();
        if let Ok(at) = self.time.stamp(self.state.now()) {
            let command = Command::Advance { buckets_max };
            let bytes = command.weight_bytes();
            let ticket = self.waiting.reserve(1);
            match self.log(ticket, vec![Proposal::new(at, command)]) {
                Ok(()) => {
                    // A journal that commits later wakes the writer up when it does. Until then no other one follows.
                    self.advance = Some(ticket);
                    self.snapshotter.note_logged(bytes, &self.state);
                }
                Err(JournalError::DiskFull(_)) => {}
                Err(error) => self.refuse_from(Ticket(u64::MAX), &error),
            }
            self.apply_committed();
        }
        // A journal that commits later wakes the writer up when it does.
        if self.state.applied() == before {
            self.proposed = Some((Instant::now(), before));
        }
    }

    /// Frees some of what commands have dropped because a command is in need of memory. Returns whether it was anything.
    pub(super) fn free_in_need(&mut self) -> bool {
        let freed = self.free_discarded(FREED_ENTRIES_IN_NEED);
        self.admission.note_freed();
        freed
    }

    fn free_discarded(&mut self, entries_max: u64) -> bool {
        if !self.state.has_discarded() {
            return false;
        }
        let began = Instant::now();
        let freed = self.state.free_discarded(entries_max);
        self.is_freeing_held_up = !freed;
        self.inner.metrics.free_step_seconds.observe(began.elapsed().as_secs_f64());
        self.note_figures();
        freed
    }
    /// When the writer must wake up because something is due, if nothing else happens before.
    pub(super) fn due_wake_at(&self) -> Option<Instant> {
        if self.is_held_up() {
            return None;
        }
        let left = self.due_at()?.0.saturating_sub(self.time.read().0);
        Instant::now().checked_add(Duration::from_millis(left))
    }

    /// When an entry must be logged because something is due. Only a clock that can be trusted says so. One entry of any node is enough,
    /// so nodes that share a log wait differently long after its last one.
    fn due_at(&self) -> Option<Timestamp> {
        let due = self.state.due_at().filter(|_| self.time.is_trusted())?;
        let after = |moment: Timestamp, wait: Duration| {
            Timestamp(moment.0.saturating_add(u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)))
        };
        if !self.inner.options.journal.is_shared() {
            return Some(after(due, GATHERED));
        }
        let turn = Duration::from_millis(self.turns.hash_one(due.0) % TURN_MAX.as_millis() as u64);
        Some(after(due.max(self.state.now()), GATHERED + turn))
    }

    /// Has the next snapshot serve a caller. One that is running may have begun before the last write that the caller saw acknowledged; it
    /// goes on, so that callers who give up and ask again can't keep any snapshot from completing.
    pub(super) fn ask_for_snapshot(&mut self, reply: Reply<SnapshotReport>) {
        self.snapshots_asked.retain(|asked| !asked.is_closed());
        if self.snapshots_asked.len() >= SNAPSHOTS_ASKED_MAX {
            drop(reply.send(Err(SubmitError::Overloaded)));
        } else {
            self.snapshots_asked.push(reply);
        }
    }

    /// Whether a caller waits for the next snapshot.
    fn is_snapshot_asked(&self) -> bool {
        self.snapshots_asked.iter().any(|asked| !asked.is_closed())
    }

    /// Stores the state of a node whose log can't be used any more: it has everything that the node has acknowledged, and may be what is
    /// left of it. Nothing is written any more, so no client waits.
    pub(super) fn save_state(&mut self) {
        let is_diverged = matches!(*self.inner.status.borrow(), Status::Diverged(_));
        if !self.inner.options.journal.is_shared() || is_diverged || self.snapshotter.is_current(&self.state)
        {
            return;
        }
        match self.take_last_snapshot() {
            Ok(()) => tracing::warn!(
                position = self.state.applied().0,
                "stored the state; the data directory can begin a new log"
            ),
            Err(error) => {
                self.snapshotter.abort();
                tracing::error!(%error, "can't store the state");
            }
        }
    }

    /// Takes a snapshot in one go, unless the newest covers everything. No client waits any more.
    fn take_last_snapshot(&mut self) -> Result<(), JournalError> {
        if self.snapshotter.is_current(&self.state) {
            return Ok(());
        }
        self.snapshotter.abort();
        self.begin_snapshot()?;
        let report = loop {
            if let Some(report) = self.snapshotter.step(&self.state, true)? {
                break report;
            }
        };
        self.note_snapshot();
        self.answer_snapshot(Ok(report));
        Ok(())
    }

    /// Begins a snapshot of everything; it serves the callers who have asked until now.
    fn begin_snapshot(&mut self) -> Result<(), JournalError> {
        self.snapshot_waiters.append(&mut self.snapshots_asked);
        let (place, now) = (self.journal.place(), self.time.read());
        Ok(self.snapshotter.begin(&mut self.state, &mut self.events, place, now)?)
    }

    /// Publishes the newest snapshot to readers.
    pub(super) fn note_snapshot(&self) {
        let latest = self.snapshotter.latest.as_ref();
        let latest = latest.map(|latest| LatestSnapshot { seq: latest.seq, taken_at: latest.taken_at });
        self.inner.latest_snapshot.send_replace(latest);
    }

    pub(super) fn answer_snapshot(&mut self, result: Result<SnapshotReport, SubmitError>) {
        for reply in self.snapshot_waiters.drain(..) {
            let _ = reply.send(result.clone());
        }
        if self.failed {
            for reply in self.snapshots_asked.drain(..) {
                let _ = reply.send(Err(SubmitError::StorageFailed));
            }
        }
    }

    /// Ends cleanly: with a snapshot of everything, so that the next start replays nothing.
    pub(super) fn finish(&mut self) {
        if self.failed {
            return;
        }
        if let Err(error) = self.take_last_snapshot() {
            self.snapshotter.abort();
            let error = self.storage_error(&error);
            self.answer_snapshot(Err(error));
        }
        self.time.keep(self.state.now());
        if let Err(error) = self.journal.settle() {
            tracing::error!(%error, "the log could not be synced at the end");
            self.inner.status.send_replace(Status::Failed(error.to_string()));
        }
    }
}
