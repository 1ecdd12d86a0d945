//! The only writer. It proposes the pending commands in one group commit, applies what the journal has committed, in the
//! journal's order, and answers. There is no timer: a batch is whatever arrived while the last one was being flushed. It runs on
//! a thread of its own because storage blocks. Snapshots go on between commits.

use super::admission::{Admission, Verdict};
use super::applying;
use super::backup::Downloads;
use super::event_log::EventLog;
use super::held_up::HeldUp;
use super::inbox::{Inbox, Wake};
use super::metrics::Metrics;
use super::request::{EventsAnswer, Reply, Request, Submission};
use super::sharing::Sharing;
use super::snapshotter::{SnapshotReport, Snapshotter};
use super::timekeeping::Timekeeper;
use super::unlogged::Refusals;
use super::waiting::{Waiting, WaitingList};
use super::{Status, SubmitError};
use crate::domain::{Proposal, Seq, Timestamp};
use crate::journal::{Committed, Journal, JournalError, Ticket};
use crate::state::State;
use crate::store::Store;
use std::collections::VecDeque;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, oneshot, watch};

/// The most commands in one group commit.
pub(super) const BATCH_ENTRIES_MAX: usize = 4_096;

/// The most bytes in one group commit, approximately. A single command may exceed it.
pub(super) const BATCH_BYTES_MAX: u64 = 1 << 20;

/// The most callers that may wait for the next snapshot.
const SNAPSHOTS_ASKED_MAX: usize = 1_024;

/// How long after an answer the writer counts as idle and does work that is not urgent.
const QUIET: Duration = Duration::from_millis(2);

pub(super) struct Writer {
    pub(super) state: State,
    pub(super) events: EventLog,
    pub(super) journal: Box<dyn Journal>,
    pub(super) store: Arc<Store>,
    pub(super) snapshotter: Snapshotter,
    pub(super) time: Timekeeper,
    pub(super) metrics: Metrics,
    pub(super) status: watch::Sender<Status>,
    /// Told if the log was trimmed past this node.
    pub(super) outdated: Arc<Notify>,
    pub(super) latest_snapshot: watch::Sender<Option<super::LatestSnapshot>>,
    /// The number of the last event, for those who wait for the next one.
    pub(super) events_last: watch::Sender<u64>,
    pub(super) board: Arc<super::Board>,
    pub(super) refusals: Arc<Refusals>,
    pub(super) admission: Admission,
    /// Commands that were picked up but can't be judged until everything that was proposed is applied.
    pub(super) pending: VecDeque<Submission>,
    /// The callers that wait for the outcome of a proposed command.
    pub(super) waiting: WaitingList,
    /// A part of what was admitted is applied, so the memory that later commands need can't be bounded yet.
    pub(super) is_partly_applied: bool,
    /// How long the journal may take to commit a proposal before its outcome is reported as unknown.
    pub(super) patience: Duration,
    /// Wakes the writer when the journal has news.
    pub(super) waker: Waker,
    /// The callers whom the running snapshot serves: they asked before it began.
    pub(super) snapshot_waiters: Vec<Reply<SnapshotReport>>,
    /// The callers whom the next snapshot serves.
    pub(super) snapshots_asked: Vec<Reply<SnapshotReport>>,
    pub(super) sharing: Sharing,
    pub(super) downloads: Downloads,
    pub(super) held_up: HeldUp,
    /// Too little space is free for anything but operations that free space.
    pub(super) is_disk_short: bool,
    /// Storage has failed: nothing is written any more.
    pub(super) failed: bool,
}

/// Admitted commands that will form one group commit.
struct Batch {
    taken_up: Instant,
    /// The time of all of them, or the reason why none may be logged now.
    at: Result<Timestamp, SubmitError>,
    proposals: Vec<Proposal>,
    /// The caller of each.
    waiting: Vec<Waiting>,
    bytes: u64,
}

impl Batch {
    fn new(taken_up: Instant, at: Result<Timestamp, SubmitError>) -> Self {
        Self { taken_up, at, proposals: Vec::new(), waiting: Vec::new(), bytes: 0 }
    }

    fn push(&mut self, at: Timestamp, submission: Submission) {
        let Submission { by, command, key, bytes, reply, room, .. } = submission;
        self.bytes += bytes;
        self.proposals.push(Proposal { at, by, command, idempotency: key });
        self.waiting.push(Waiting { reply, since: self.taken_up, room });
    }

    fn is_full(&self) -> bool {
        self.proposals.len() >= BATCH_ENTRIES_MAX || self.bytes >= BATCH_BYTES_MAX
    }
}

impl Writer {
    /// Serves requests until a shutdown or until every sender is gone. Returns the sender that is to be told once the writer and
    /// all that it owned are dropped.
    pub(super) fn run(mut self, mut inbox: Inbox) -> Option<oneshot::Sender<()>> {
        let mut go_on = Instant::now();
        let done = loop {
            // A client that was just answered may send again at once, so what can wait does.
            let quiet_at = self.has_quiet_work().then_some(go_on);
            let first = match inbox.wait(self.wake_at(quiet_at)) {
                Wake::Request(request) => Some(request),
                Wake::Woken => None,
                Wake::Closed => break None,
            };
            let quiet = first.is_none() && quiet_at.is_some_and(|at| at <= Instant::now());
            let shutdown = self.gather(&mut inbox, first);
            let had_work = !self.pending.is_empty();
            if self.make_progress() || had_work {
                go_on = Instant::now() + QUIET;
            }
            self.time.keep_if_due(self.state.now());
            go_on = go_on.max(self.step_between_commits(quiet));
            if let Some(done) = shutdown {
                self.drain(&mut inbox);
                break Some(done);
            }
        };
        self.finish();
        done
    }

    /// When there is work to do even if no request comes and the journal has no news.
    fn wake_at(&self, quiet_at: Option<Instant>) -> Option<Instant> {
        if self.failed {
            return None;
        }
        let pending = self.pending.front().map(|submission| submission.since);
        let give_up_at =
            self.waiting.oldest().into_iter().chain(pending).min().map(|since| since + self.patience);
        let times =
            [self.journal.poll_at(), quiet_at, give_up_at, self.due_wake_at(), Some(self.time.wake_at())];
        times.into_iter().flatten().min()
    }

    /// Picks up what arrived while the last batch was being flushed: it forms the next group commit. Serves other requests at
    /// once.
    fn gather(&mut self, inbox: &mut Inbox, first: Option<Request>) -> Option<oneshot::Sender<()>> {
        let (mut taken, mut bytes, mut shutdown) = (0, 0, None);
        let mut next = first;
        while let Some(request) = next.take() {
            match request {
                Request::Submit(submission) => {
                    taken += 1;
                    bytes += submission.bytes;
                    self.metrics.queue_seconds.observe(submission.since.elapsed().as_secs_f64());
                    self.pending.push_back(*submission);
                }
                Request::Shutdown(done) => {
                    shutdown = Some(done);
                    inbox.close();
                }
                other => self.serve(other),
            }
            if taken < BATCH_ENTRIES_MAX && bytes < BATCH_BYTES_MAX {
                next = inbox.next();
            }
        }
        shutdown
    }

    /// Finishes the commands that were accepted before a shutdown.
    fn drain(&mut self, inbox: &mut Inbox) {
        loop {
            let next = inbox.next();
            let is_last = next.is_none();
            self.gather(inbox, next);
            self.make_progress();
            if is_last && self.pending.is_empty() && self.waiting.oldest().is_none() {
                return;
            }
            if is_last {
                inbox.park(self.wake_at(None));
            }
        }
    }

    /// Proposes the pending commands and applies what is committed. Returns whether anything was applied.
    fn make_progress(&mut self) -> bool {
        self.propose_pending();
        let mut any = self.apply_committed();
        while !self.pending.is_empty() && self.waiting.is_empty() {
            self.propose_pending();
            any |= self.apply_committed();
        }
        self.give_up_overdue();
        if !self.failed {
            self.sharing.barriers.answer(&*self.journal);
        }
        any
    }

    /// Judges the pending commands and proposes them in one group commit. Some may have to wait until the others are applied.
    fn propose_pending(&mut self) {
        if self.pending.is_empty() {
            return;
        }
        let mut batch = self.begin_batch();
        while let Some(submission) = self.pending.pop_front() {
            if batch.is_full() {
                let next = self.begin_batch();
                self.propose(std::mem::replace(&mut batch, next));
            }
            match self.admit(&mut batch, &submission) {
                Ok(Some(at)) => batch.push(at, submission),
                Ok(None) => {
                    self.pending.push_front(submission);
                    break;
                }
                Err(refusal) => drop(submission.reply.send(Err(refusal))),
            }
        }
        self.propose(batch);
    }

    fn begin_batch(&mut self) -> Batch {
        self.is_disk_short = self.store.check_space().is_err();
        if !self.is_disk_short {
            self.store.restore_ballast();
        }
        let stamp = self.time.stamp(self.state.now()).map_err(SubmitError::from);
        Batch::new(Instant::now(), self.sharing.refusal().map_or(stamp, Err))
    }

    /// Whether a command may be logged in this batch, and its time; `None` if it can't be judged until everything that was
    /// proposed is applied. May propose the batch first.
    fn admit(
        &mut self,
        batch: &mut Batch,
        submission: &Submission,
    ) -> Result<Option<Timestamp>, SubmitError> {
        let mut verdict = self.judge(batch, submission)?;
        if verdict == Verdict::Later {
            let next = self.begin_batch();
            self.propose(std::mem::replace(batch, next));
            self.apply_committed();
            if !self.waiting.is_empty() {
                return Ok(None);
            }
            verdict = self.judge(batch, submission)?;
        }
        match verdict {
            Verdict::Admitted => batch.at.clone().map(Some),
            Verdict::Later | Verdict::BeyondLimit => Err(SubmitError::MemoryLimit),
            Verdict::NoMemory(refused) => {
                tracing::warn!(
                    bytes = refused.bytes,
                    "a write is refused: the system has no more memory to give"
                );
                Err(SubmitError::NoMemory)
            }
        }
    }

    fn judge(&mut self, batch: &Batch, submission: &Submission) -> Result<Verdict, SubmitError> {
        if self.failed {
            return Err(SubmitError::StorageFailed);
        }
        if self.is_disk_short && !submission.command.frees_space() {
            return Err(SubmitError::DiskFull);
        }
        if let Err(refusal) = &batch.at {
            if matches!(refusal, SubmitError::ClockUnsure(_)) {
                self.metrics.clock_refused.inc();
            }
            return Err(refusal.clone());
        }
        if self.is_partly_applied {
            return Ok(Verdict::Later);
        }
        let Submission { command, key, .. } = submission;
        self.refuse_unless_enabled(command)?;
        if crate::state::Waiting::has_to_move_first(&self.state, command) {
            return Err(SubmitError::Overloaded);
        }
        let mut verdict = self.admission.judge(&self.state, command, key.is_some());
        while matches!(verdict, Verdict::BeyondLimit | Verdict::NoMemory(_)) && self.free_in_need() {
            verdict = self.admission.judge(&self.state, command, key.is_some());
        }
        Ok(verdict)
    }

    fn propose(&mut self, batch: Batch) {
        let Batch { taken_up, proposals, waiting, bytes, .. } = batch;
        if !proposals.is_empty() {
            let first = self.waiting.next_ticket();
            self.waiting.extend(waiting);
            let proposed = self.log(first, proposals);
            self.metrics.flush_seconds.observe(taken_up.elapsed().as_secs_f64());
            match proposed {
                Ok(()) => {
                    self.snapshotter.note_logged(bytes, &self.state);
                    self.metrics.commits.inc();
                }
                Err(error) => self.refuse_from(first, &error),
            }
        }
        self.settle_if_nothing_waits();
    }

    /// Proposes commands, if there is room on the disk for the events of the holds that they will expire. An entry that takes a few bytes
    /// in the log can expire a thousand.
    pub(super) fn log(&mut self, first: Ticket, proposals: Vec<Proposal>) -> Result<(), JournalError> {
        let at = proposals.last().map_or_else(Timestamp::default, |proposal| proposal.at);
        let commands = proposals.iter().map(|proposal| &proposal.command);
        let frees_space = proposals.iter().all(|proposal| proposal.command.frees_space());
        match self.state.sweep_events_bytes(commands, at) {
            0 => {}
            events_bytes if frees_space => self.store.check_reserve(events_bytes)?,
            events_bytes => self.store.check_space_beyond(events_bytes)?,
        }
        self.journal.propose(first, proposals)
    }

    /// Applies what the journal has committed, our entries and other nodes', and answers. Returns whether there was anything.
    pub(super) fn apply_committed(&mut self) -> bool {
        let mut any = false;
        while !self.failed {
            let polled = self.journal.poll(self.state.applied(), &mut Context::from_waker(&self.waker));
            match polled {
                Poll::Pending => break,
                Poll::Ready(Ok(committed)) => self.apply_understood(committed),
                Poll::Ready(Err(error)) => {
                    self.refuse_from(Ticket(0), &error);
                    self.save_state();
                }
            }
            any = true;
        }
        self.settle_if_nothing_waits();
        any
    }

    pub(super) fn apply(&mut self, committed: Vec<Committed>) {
        let began = Instant::now();
        self.metrics.entries.inc_by(committed.len() as u64);
        let mut answers = Vec::with_capacity(committed.len());
        let (mut others_bytes, mut stored) = (0, Ok(()));
        self.refusals.begin();
        for Committed { entry, ticket } in committed {
            if ticket.is_none() {
                others_bytes += entry.proposal.command.weight_bytes();
            }
            self.held_up.advance.take_if(|advance| Some(*advance) == ticket);
            let applied = applying::apply(&mut self.state, entry);
            // Unwinds without another message: the engine reports this one, and the process ends.
            let applied = applied.unwrap_or_else(|unappliable| resume_unwind(Box::new(unappliable)));
            stored = stored.and(self.events.take(&self.store, &mut self.state));
            if let Some(waiting) = ticket.and_then(|ticket| self.waiting.take(ticket)) {
                answers.push((waiting, applied));
            }
        }
        if others_bytes > 0 {
            self.snapshotter.note_logged(others_bytes, &self.state);
        }
        self.is_partly_applied = true;
        self.state.publish();
        self.metrics.apply_seconds.observe(began.elapsed().as_secs_f64());
        self.note_figures();
        self.refusals.end();
        for (waiting, applied) in answers {
            waiting.answer(Ok(applied));
        }
        // The commands are in the log, and the next start makes their events again.
        if let Err(error) = stored {
            self.storage_error(&error.into());
        }
    }

    /// Once everything that was admitted is applied or refused, later commands are judged by the state alone.
    fn settle_if_nothing_waits(&mut self) {
        if self.waiting.is_empty() {
            self.admission.settle();
            self.is_partly_applied = false;
        }
    }

    /// Refuses all callers with this ticket or a later one.
    pub(super) fn refuse_from(&mut self, first: Ticket, error: &JournalError) {
        let refusal = self.storage_error(error);
        self.held_up.advance.take_if(|advance| *advance >= first);
        for waiting in self.waiting.take_from(first) {
            waiting.answer(Err(refusal.clone()));
        }
    }

    /// Tells callers that have waited too long that the outcome is unknown. If the journal commits their commands later, they
    /// are applied all the same. Commands that were held back because of them are refused.
    fn give_up_overdue(&mut self) {
        let Some(before) = Instant::now().checked_sub(self.patience) else { return };
        self.waiting.give_up(before, &SubmitError::StorageFailed);
        while !self.waiting.is_empty()
            && let Some(overdue) = self.pending.pop_front_if(|pending| pending.since <= before)
        {
            let _ = overdue.reply.send(Err(SubmitError::Overloaded));
        }
    }

    pub(super) fn note_figures(&mut self) {
        let figures = self.board.note(&self.state, self.events.figures());
        self.metrics.tables_bytes.set(figures.tables_bytes as i64);
        self.metrics.records_bytes.set(figures.records_bytes as i64);
        self.metrics.applied_seq.set(self.state.applied().0 as i64);
        self.sharing.publish(self.state.applied());
        self.sharing.compare(&mut *self.journal, self.state.last_hash());
        let last = self.state.events().last();
        self.events_last.send_if_modified(|known| std::mem::replace(known, last) != last);
    }

    /// Maps a failure of storage to the callers' error, and ends writes if it is final.
    pub(super) fn storage_error(&mut self, error: &JournalError) -> SubmitError {
        if let JournalError::DiskFull(reason) = error {
            // The store logs when a full disk begins and ends.
            tracing::debug!(reason, "a write is refused");
            return SubmitError::DiskFull;
        }
        tracing::error!(%error, "storage failed: nothing is written any more");
        self.failed = true;
        self.snapshotter.abort();
        self.answer_snapshot(Err(SubmitError::StorageFailed));
        let why = error.to_string();
        let is_diverged = matches!(error, JournalError::Diverged { .. });
        if is_diverged && let Err(error) = self.store.note_diverged(&why) {
            tracing::error!(%error, "the next start will not know that this node has diverged");
        }
        if is_diverged {
            // Nobody is to get the rest.
            self.downloads = Downloads::default();
        }
        if matches!(error, JournalError::Trimmed(_)) {
            self.outdated.notify_one();
        }
        self.status.send_replace(if is_diverged { Status::Diverged(why) } else { Status::Failed(why) });
        for waiting in self.waiting.take_from(Ticket(0)) {
            waiting.answer(Err(SubmitError::StorageFailed));
        }
        SubmitError::StorageFailed
    }

    fn serve(&mut self, request: Request) {
        match request {
            Request::Snapshot(reply) if self.failed => drop(reply.send(Err(SubmitError::StorageFailed))),
            Request::Snapshot(reply) => self.ask_for_snapshot(reply),
            Request::Backup(token, reply) => {
                // A replicated log can't be read again: what it has after the newest snapshot is not in the backup.
                let newest = self.snapshotter.latest().map_or(Seq(0), |manifest| manifest.seq);
                let through = if self.sharing.is_shared() { newest } else { self.state.applied() };
                drop(reply.send(self.downloads.begin_backup(&self.store, through, token)));
            }
            Request::Image(filter, token, reply) => {
                drop(reply.send(self.downloads.begin_image(&self.store, filter, token)));
            }
            Request::ShareSnapshot(_, reply) if self.failed => {
                drop(reply.send(Err(SubmitError::StorageFailed)));
            }
            Request::ShareSnapshot(token, reply) => {
                drop(reply.send(self.downloads.begin_sharing(&self.store, &*self.journal, token)));
            }
            Request::Events { number, is_wanted, reply } => {
                drop(reply.send(self.find_events(number, is_wanted)));
            }
            Request::Parts(id, reply) => {
                drop(reply.send(self.downloads.next_parts(&self.store, &mut *self.journal, id)));
            }
            Request::Barrier(reply) => self.sharing.barriers.begin(&mut *self.journal, reply),
            Request::Submit(_) | Request::Shutdown(_) => unreachable!("the loop keeps these for itself"),
        }
    }

    /// Has the next snapshot serve a caller. One that is running may have begun before the last write that the caller saw acknowledged; it
    /// goes on, so that callers who give up and ask again can't keep any snapshot from completing.
    fn ask_for_snapshot(&mut self, reply: Reply<SnapshotReport>) {
        self.snapshots_asked.retain(|asked| !asked.is_closed());
        if self.snapshots_asked.len() >= SNAPSHOTS_ASKED_MAX {
            drop(reply.send(Err(SubmitError::Overloaded)));
        } else {
            self.snapshots_asked.push(reply);
        }
    }

    /// Whether a caller waits for the next snapshot.
    pub(super) fn is_snapshot_asked(&self) -> bool {
        self.snapshots_asked.iter().any(|asked| !asked.is_closed())
    }

    /// Stores the state of a node whose log can't be used any more: it has everything that the node has acknowledged, and may be what is
    /// left of it. Nothing is written any more, so no client waits.
    fn save_state(&mut self) {
        let is_diverged = matches!(*self.status.borrow(), Status::Diverged(_));
        if !self.sharing.is_shared() || is_diverged || self.snapshotter.is_current(&self.state) {
            return;
        }
        let applied = self.state.applied();
        let now = self.time.read();
        let mut saved = self.journal.note_snapshot(applied).and_then(|()| {
            Ok(self.snapshotter.begin(&mut self.state, &mut self.events, now).map(|()| None)?)
        });
        while matches!(saved, Ok(None)) {
            saved = self.snapshotter.step(&self.state, true);
        }
        match saved {
            Ok(_) => {
                self.note_snapshot();
                tracing::warn!(
                    position = applied.0,
                    "stored the state; the data directory can begin a new log"
                );
            }
            Err(error) => {
                self.snapshotter.abort();
                tracing::error!(%error, "can't store the state");
            }
        }
    }

    pub(super) fn begin_snapshot(&mut self) {
        self.snapshot_waiters.append(&mut self.snapshots_asked);
        let (now, began) = (self.time.read(), Instant::now());
        let noted = self.journal.note_snapshot(self.state.applied());
        let begun =
            noted.and_then(|()| Ok(self.snapshotter.begin(&mut self.state, &mut self.events, now)?));
        self.metrics.snapshot_step_seconds.observe(began.elapsed().as_secs_f64());
        self.board.figures.lock().events = self.events.figures();
        if let Err(error) = begun {
            self.snapshotter.abort();
            let error = self.storage_error(&error);
            self.answer_snapshot(Err(error));
        }
    }

    /// Continues the running snapshot, or removes leftovers of the last one; `quiet` if no command has come.
    pub(super) fn step_snapshot(&mut self, quiet: bool) {
        if self.failed {
            return;
        }
        let stepped = if self.snapshotter.is_running() {
            self.snapshotter.step(&self.state, quiet)
        } else {
            self.snapshotter.remove_leftovers(&mut *self.journal, quiet).map(|()| None)
        };
        match stepped {
            Ok(None) => {}
            Ok(Some(report)) => {
                self.metrics.snapshots.inc();
                self.metrics.snapshot_seconds.set(report.duration.as_secs_f64());
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

    fn find_events(&self, number: u64, is_wanted: bool) -> Result<EventsAnswer, SubmitError> {
        let found = self.events.find(&self.store, number, is_wanted).map_err(|error| {
            tracing::error!(%error, "events can't be read");
            SubmitError::StorageFailed
        })?;
        let retention_seconds = self.events.retention_seconds();
        Ok(EventsAnswer { found, retention_seconds, next: self.state.events().next() })
    }

    /// Publishes the newest snapshot to readers.
    pub(super) fn note_snapshot(&self) {
        self.latest_snapshot.send_replace(
            self.snapshotter
                .latest()
                .map(|manifest| super::LatestSnapshot { seq: manifest.seq, taken_at: manifest.taken_at }),
        );
    }

    fn answer_snapshot(&mut self, result: Result<SnapshotReport, SubmitError>) {
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
    fn finish(&mut self) {
        if self.failed {
            return;
        }
        if !self.snapshotter.is_current(&self.state) && self.state.applied() > Seq(0) {
            self.snapshotter.abort();
            self.begin_snapshot();
            while self.snapshotter.is_running() && !self.failed {
                self.step_snapshot(true);
            }
        }
        self.time.keep(self.state.now());
        if let Err(error) = self.journal.settle() {
            tracing::error!(%error, "the log could not be synced at the end");
            self.status.send_replace(Status::Failed(error.to_string()));
        }
    }
}
