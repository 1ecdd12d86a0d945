//! The writer's work between commits, a step at a time, so that no commit waits long: snapshots, removing old events, and freeing dropped
//! data. While no command arrives it continues, but leaves half of the time to readers, which share its processors. Then it also logs
//! separate entries, which continue the work that every entry does a little of: emptying tables, expiring holds, and forgetting redemptions
//! and users. Otherwise an idle service would not report that a hold has expired.

use super::SubmitError;
use super::backup::DOWNLOADS_MAX;
use super::images::ImageCopies;
use super::request::respond;
use super::snapshotter::{SnapshotReport, Snapshotter};
use super::writer::{Upkeep, Writer};
use cuckood_log::journal::{JournalError, OtherNode, Ticket, random};
use cuckood_state::domain::{Command, Proposal, Seq, Timestamp, understood_version};
use std::time::{Duration, Instant};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Buckets that a separate entry empties while no command arrives: about a millisecond's work.
const BUCKETS_AN_ADVANCE: u32 = 4_096;

/// Entries of a ledger that a step frees: about a millisecond's work.
const FREED_ENTRIES: u64 = 4_096;

/// Bytes of old events that a step reads or drops.
const OLD_EVENTS_STEP_BYTES: u64 = 64 << 10;

/// Milliseconds that the writer waits before it logs an entry for due work, so that one entry covers all of it.
const GATHERED_MS: u64 = 100;

/// The longest that a node waits for its turn to do what any node of a shared log may do, in milliseconds.
const TURN_MS_MAX: u64 = 500;

/// Time until a later version of entries may be enabled, and between two attempts: every running node reports twice in it.
const ENABLE_PAUSE: Duration = Duration::from_secs(10);

impl Upkeep {
    /// The work of a writer that starts at `now`. It tries to enable the newest version of entries if `enables`.
    pub(super) fn new(snapshotter: Snapshotter, now: Instant, enables: bool) -> Self {
        Self {
            snapshotter,
            snapshot_requests: Vec::new(),
            images: ImageCopies::default(),
            turns: u64::from_le_bytes(random()),
            is_freeing_blocked: false,
            advance: None,
            advance_after: now,
            enable_at: enables.then_some(now + ENABLE_PAUSE),
            rest_until: now,
            quiet_at: None,
        }
    }

    /// Responds to the callers whom a snapshot serves; to all of them if it failed.
    fn answer_snapshots(&mut self, result: &Result<SnapshotReport, SubmitError>) {
        let covered = result.as_ref().map_or(Seq(u64::MAX), |report| report.seq);
        let served = self
            .snapshot_requests
            .extract_if(.., |request| request.applied <= covered);
        for request in served {
            respond(request.reply, result.clone());
        }
    }
}

impl Writer {
    /// When there is work although no command arrives: now, or once something is due; not before the pause after the last work.
    pub(super) fn quiet_work_at(&self, now: Instant) -> Option<Instant> {
        let has_work = self.upkeep.snapshotter.has_work()
            || !self.upkeep.snapshot_requests.is_empty()
            || !self.upkeep.images.is_empty()
            || self.has_old_events()
            || self.state.has_discarded() && !self.upkeep.is_freeing_blocked;
        let at = if has_work {
            Some(now)
        } else {
            self.advance_at(now)
        };
        at.map(|at| at.max(self.upkeep.rest_until))
    }

    /// Whether the work is due that the last turn has found.
    pub(super) fn is_quiet_work_due(&self) -> bool {
        let now = self.inner.instant();
        self.upkeep.quiet_at.is_some_and(|at| at <= now)
    }

    /// When a separate entry should be logged, if there is a reason for one: there are tables to be emptied, or something is due. A
    /// snapshot precedes the former, because it copies all data that changes during it.
    fn advance_at(&self, now: Instant) -> Option<Instant> {
        if self.failed || self.upkeep.advance.is_some() {
            return None;
        }
        let is_now = self.state.can_advance() && !self.upkeep.snapshotter.has_work();
        let wait = if is_now {
            0
        } else {
            self.due_at()?.0.saturating_sub(self.time.read().0)
        };
        let at = now.checked_add(Duration::from_millis(wait))?;
        Some(at.max(self.upkeep.advance_after))
    }

    /// When an entry must be logged because something is due. Only a clock that can be trusted says so. One entry of any node is enough,
    /// so nodes that share a log wait differently long after its last one.
    fn due_at(&self) -> Option<Timestamp> {
        let due = self.state.due_at().filter(|_| self.time.is_trusted())?;
        let (since, turn) = match self.inner.options.journal.is_shared() {
            true => (
                due.max(self.state.now()),
                xxh3_64_with_seed(&due.0.to_le_bytes(), self.upkeep.turns) % TURN_MS_MAX,
            ),
            false => (due, 0),
        };
        Some(Timestamp(since.0.saturating_add(GATHERED_MS + turn)))
    }

    /// Does a step of everything; `quiet` if no command has arrived. The next quiet step follows after as much time as this one took.
    pub(super) fn step_between_commits(&mut self, quiet: bool) {
        let began = self.inner.instant();
        self.upkeep.is_freeing_blocked &= quiet;
        self.continue_images();
        // While the disk is short of space, commits pay for nothing, and rejected clients may leave no quiet moment.
        self.continue_snapshot(quiet || self.commits.is_disk_short);
        self.remove_old_events();
        self.free_discarded(FREED_ENTRIES);
        let now = self.inner.instant();
        if quiet && self.advance_at(now).is_some_and(|at| at <= now) {
            self.advance();
        }
        let ended = self.inner.instant();
        let rested_at = ended + ended.saturating_duration_since(began);
        self.upkeep.rest_until = self.upkeep.rest_until.max(rested_at);
    }

    /// Logs and applies a command that continues started work.
    fn advance(&mut self) {
        let buckets_max = if self.upkeep.snapshotter.has_work() {
            0
        } else {
            BUCKETS_AN_ADVANCE
        };
        // A journal that commits later wakes the writer up when it does. Until then no other one follows.
        self.upkeep.advance = self.log_own(Command::Advance { buckets_max });
        if self.upkeep.advance.is_none() {
            self.upkeep.advance_after = self.inner.instant() + self.inner.options.commit_timeout;
        }
        self.apply_committed();
    }

    /// Logs a command of no caller, unless the clock or the disk forbids that.
    fn log_own(&mut self, command: Command) -> Option<Ticket> {
        let ticket = self.commits.proposed.reserve(1);
        let at = self.time.stamp_entries(self.state.now());
        at.is_ok_and(|at| self.log(ticket, vec![Proposal::new(at, command)]))
            .then_some(ticket)
    }

    /// Tries to enable the newest version of entries, if it is time.
    pub(super) fn enable_if_due(&mut self) {
        let now = self.inner.instant();
        if self.upkeep.enable_at.is_some_and(|at| at <= now) {
            self.enable(now);
        }
    }

    /// Logs that entries may be of the version that this build understands, once every other node that still runs has reported that it
    /// understands it, too. A node that doesn't would stop.
    fn enable(&mut self, now: Instant) {
        let version = understood_version();
        self.upkeep.enable_at = None;
        if self.failed || self.state.format() >= version {
            return;
        }
        self.upkeep.enable_at = Some(now + ENABLE_PAUSE);
        let peers = self
            .inner
            .replication
            .get()
            .map(|known| known.lock().peers.clone());
        let lacks = |peer: &OtherNode| {
            peer.is_present && peer.understands.is_none_or(|theirs| theirs < version)
        };
        let old: Vec<String> = peers
            .into_iter()
            .flatten()
            .filter(lacks)
            .map(|peer| peer.node)
            .collect();
        if old.is_empty() {
            self.log_own(Command::Enable { version });
            self.apply_committed();
        } else {
            let nodes = old.join(", ");
            tracing::warn!(
                version,
                nodes,
                "update these nodes, or stop them for ten minutes: cluster.configure enables no version that they don't understand"
            );
        }
    }

    /// Events go only while the clock can be trusted, and while no backup reads them.
    fn has_old_events(&self) -> bool {
        !self.failed
            && self.time.is_trusted()
            && self.inner.backups.available_permits() == DOWNLOADS_MAX
            && self.events.has_old(self.time.read())
    }

    /// Continues the images that are being copied. While changes pin too much memory, all of them precede commits.
    fn continue_images(&mut self) {
        let images = &mut self.upkeep.images;
        if self.failed {
            images.clear();
        }
        images.step(&self.store);
        let pinned_bytes_max = self.inner.options.snapshots.pinned_bytes_max;
        while !images.is_empty() && self.state.sizes().snapshot_bytes as usize > pinned_bytes_max {
            images.step(&self.store);
        }
    }

    fn remove_old_events(&mut self) {
        // Other nodes' writes make events here, with or without free space.
        self.events.is_disk_full =
            self.inner.options.journal.is_shared() && self.store.space.check().is_err();
        if !self.has_old_events() {
            return;
        }
        let began = self.inner.instant();
        let removed = self
            .events
            .remove_old(&self.store, self.time.read(), OLD_EVENTS_STEP_BYTES);
        self.inner
            .metrics
            .snapshot_step_seconds
            .observe(self.inner.seconds_since(began));
        self.note_figures();
        if let Err(error) = removed {
            self.storage_error(&error.into());
        }
    }

    /// Frees some of what commands have dropped. Returns whether it was anything.
    pub(super) fn free_discarded(&mut self, entries_max: u64) -> bool {
        if !self.state.has_discarded() {
            return false;
        }
        let began = self.inner.instant();
        let freed = self.state.free_discarded(entries_max);
        self.commits.admission.note_freed();
        self.upkeep.is_freeing_blocked = !freed;
        self.inner
            .metrics
            .free_step_seconds
            .observe(self.inner.seconds_since(began));
        self.note_figures();
        freed
    }

    fn continue_snapshot(&mut self, quiet: bool) {
        let upkeep = &mut self.upkeep;
        // Disconnected clients are removed, so the limit of connections also limits those that wait.
        upkeep
            .snapshot_requests
            .retain(|request| !request.reply.is_closed());
        // Leftovers of the last one go first: they would never go while callers ask for one after the other.
        let has_work = upkeep.snapshotter.has_work();
        let is_requested = !has_work && !upkeep.snapshot_requests.is_empty();
        let is_wanted = is_requested || upkeep.snapshotter.is_due(&self.state);
        if self.failed {
            upkeep.snapshot_requests.clear();
        } else if is_wanted || has_work {
            self.step_snapshot(is_wanted, quiet);
        }
    }

    /// Begins a snapshot of everything if one is wanted, and does a step of it or of removing leftovers.
    fn step_snapshot(&mut self, is_wanted: bool, quiet: bool) {
        let began = self.inner.instant();
        let mut begun = Ok(());
        if is_wanted {
            let place = self.commits.journal.place();
            let now = self.time.read();
            begun = self
                .upkeep
                .snapshotter
                .begin(&mut self.state, &mut self.events, place, now);
        }
        let stepped =
            begun
                .map_err(Into::into)
                .and_then(|()| match self.upkeep.snapshotter.is_running() {
                    true => self.upkeep.snapshotter.step(&self.state, quiet),
                    false => self
                        .upkeep
                        .snapshotter
                        .remove_leftovers(&mut *self.commits.journal, quiet)
                        .map(|()| None),
                });
        self.inner
            .metrics
            .snapshot_step_seconds
            .observe(self.inner.seconds_since(began));
        self.note_figures();
        match stepped {
            Ok(None) => {}
            Ok(Some(report)) => {
                self.inner.metrics.snapshots.inc();
                self.inner.metrics.snapshot_seconds.set(report.seconds);
                self.upkeep.answer_snapshots(&Ok(report));
            }
            Err(error) => {
                self.upkeep.snapshotter.abort();
                let error = self.storage_error(&error);
                self.upkeep.answer_snapshots(&Err(error));
            }
        }
    }

    /// Takes a snapshot in one go, unless the newest covers everything. No client waits any more. Returns whether there is one.
    fn take_last_snapshot(&mut self) -> bool {
        if !self.upkeep.snapshotter.is_current(&self.state) {
            self.upkeep.snapshotter.abort();
            self.step_snapshot(true, true);
        }
        while self.upkeep.snapshotter.is_running() {
            self.step_snapshot(false, true);
        }
        self.upkeep.snapshotter.is_current(&self.state)
    }

    /// Stores the state of a node whose log is no longer usable, before the node's status says so: it contains everything that the node has
    /// acknowledged, and may be the only copy.
    pub(super) fn save_state(&mut self, error: &JournalError) {
        if !self.inner.options.journal.is_shared() || matches!(error, JournalError::Diverged { .. })
        {
            return;
        }
        // Writes wait until the state is stored, so clients should use another node.
        self.inner.status.drain_if_ready();
        // The outcome of their commands is unknown, and the snapshot may take long.
        self.commits.proposed.callers.clear();
        let position = self.state.applied().0;
        match self.take_last_snapshot() {
            true => tracing::warn!(
                position,
                "stored the state; the data directory can begin a new log"
            ),
            false => tracing::error!(position, "can't store the state"),
        }
    }

    /// Ends cleanly: with a snapshot of everything, so that the next start replays nothing.
    pub(super) fn finish(&mut self) {
        if self.failed {
            return;
        }
        self.take_last_snapshot();
        self.time.save(self.state.now(), self.inner.instant());
        if let Err(error) = self.commits.journal.settle() {
            self.storage_error(&error);
        }
    }
}
