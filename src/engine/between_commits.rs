//! What the writer does between commits, a step at a time, so that no commit waits long: snapshots, removing old events, and
//! freeing what commands have dropped. While no command comes it goes on by itself, but leaves half of the time to readers, which share
//! its processors. Then it also logs commands that go on with what every entry does a little of.

use super::writer::Writer;
use crate::domain::{Command, Proposal};
use crate::journal::{JournalError, Ticket};
use std::time::Instant;

/// Buckets that are emptied by an entry of its own while no command comes: about a millisecond's work.
const BUCKETS_AN_ADVANCE: u32 = 4_096;

/// What a step frees, in entries of a ledger: about a millisecond's work.
const FREED_ENTRIES: u64 = 4_096;

/// What is freed before a command is judged again that the memory has no room for.
const FREED_ENTRIES_IN_NEED: u64 = 65_536;

/// Bytes of old events that a step reads or drops.
const OLD_EVENTS_STEP_BYTES: u64 = 64 << 10;

impl Writer {
    /// Whether there is something to do while no command comes.
    pub(super) fn has_quiet_work(&self) -> bool {
        self.snapshotter.has_work()
            || self.is_snapshot_asked()
            || self.has_old_events()
            || self.state.has_discarded() && !self.held_up.freeing
            || self.buckets_to_advance().is_some()
    }

    /// Whether the writer can't log an entry of its own now.
    pub(super) fn is_held_up(&self) -> bool {
        self.failed
            || self.held_up.advance.is_some()
            || self.held_up.is_proposed(self.state.applied(), self.patience)
    }

    /// How many buckets an entry of its own should empty, if there is a reason to log one: there are some to be emptied, or something is
    /// due. A snapshot goes before the former, because it copies whatever changes meanwhile.
    fn buckets_to_advance(&self) -> Option<u32> {
        if self.is_held_up() {
            return None;
        }
        if self.state.can_advance() && !self.snapshotter.has_work() {
            return Some(BUCKETS_AN_ADVANCE);
        }
        self.is_due().then_some(0)
    }

    /// Does a step of everything; `quiet` if no command has come. Returns when the next quiet step may follow.
    pub(super) fn step_between_commits(&mut self, quiet: bool) -> Instant {
        let began = Instant::now();
        if !quiet {
            self.held_up.freeing = false;
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
        if !self.failed && is_wanted {
            self.begin_snapshot();
        }
        if self.snapshotter.has_work() {
            let began = Instant::now();
            self.step_snapshot(quiet);
            self.metrics.snapshot_step_seconds.observe(began.elapsed().as_secs_f64());
        }
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
        self.events.note_disk(self.sharing.is_shared() && self.store.check_space().is_err());
        if !self.has_old_events() {
            return;
        }
        let began = Instant::now();
        let removed = self.events.remove_old(&self.store, self.time.read(), OLD_EVENTS_STEP_BYTES);
        self.metrics.snapshot_step_seconds.observe(began.elapsed().as_secs_f64());
        self.board.figures.lock().events = self.events.figures();
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
                    self.held_up.advance = Some(ticket);
                    self.snapshotter.note_logged(bytes, &self.state);
                }
                Err(JournalError::DiskFull(_)) => {}
                Err(error) => self.refuse_from(Ticket(u64::MAX), &error),
            }
            self.apply_committed();
        }
        // A journal that commits later wakes the writer up when it does.
        if self.state.applied() == before {
            self.held_up.note_proposed(before);
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
        self.held_up.freeing = !freed;
        self.metrics.free_step_seconds.observe(began.elapsed().as_secs_f64());
        self.note_figures();
        freed
    }
}
