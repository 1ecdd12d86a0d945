//! The only writer. It proposes the pending commands in one group commit, applies what the journal has committed, in the
//! journal's order, and answers. There is no timer: a batch is whatever arrived while the last one was being flushed. It runs on
//! a thread of its own because storage blocks. Snapshots go on between commits.

use super::admission::{Admission, Verdict};
use super::applying;
use super::backup::Downloads;
use super::event_log::EventLog;
use super::request::{Barriers, EventsAnswer, Inbox, Reply, Request, Submission, Waiting, WaitingList};
use super::snapshotter::{SnapshotReport, Snapshotter};
use super::timekeeping::Timekeeper;
use super::{Inner, Status, SubmitError};
use crate::domain::{Proposal, Seq, Timestamp};
use crate::journal::{Committed, Delivery, Journal, JournalError, Ticket};
use crate::state::State;
use crate::store::Store;
use std::collections::VecDeque;
use std::hash::RandomState;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// The most commands in one group commit.
pub(super) const BATCH_ENTRIES_MAX: usize = 4_096;

/// The most bytes in one group commit, approximately. A single command may exceed it.
pub(super) const BATCH_BYTES_MAX: u64 = 1 << 20;

/// How long after an answer the writer counts as idle and does work that is not urgent.
const QUIET: Duration = Duration::from_millis(2);

pub(super) struct Writer {
    /// What the writer shares with the engine's handles.
    pub(super) inner: Arc<Inner>,
    pub(super) state: State,
    pub(super) events: EventLog,
    pub(super) journal: Box<dyn Journal>,
    pub(super) store: Arc<Store>,
    pub(super) snapshotter: Snapshotter,
    pub(super) time: Timekeeper,
    pub(super) admission: Admission,
    /// Commands that were picked up but can't be judged until everything that was proposed is applied.
    pub(super) pending: VecDeque<Submission>,
    /// The callers that wait for the outcome of a proposed command.
    pub(super) waiting: WaitingList,
    /// The callers that wait until everything acknowledged anywhere is applied.
    pub(super) barriers: Barriers,
    /// A part of what was admitted is applied, so the memory that later commands need can't be bounded yet.
    pub(super) is_partly_applied: bool,
    /// Wakes the writer when the journal has news.
    pub(super) waker: Waker,
    /// The callers whom the running snapshot serves: they asked before it began.
    pub(super) snapshot_waiters: Vec<Reply<SnapshotReport>>,
    /// The callers whom the next snapshot serves.
    pub(super) snapshots_asked: Vec<Reply<SnapshotReport>>,
    pub(super) downloads: Downloads,
    /// The node's own way to choose its turns among the nodes of a shared log.
    pub(super) turns: RandomState,
    /// Readers still see all that commands have dropped, so nothing of it can be freed yet.
    pub(super) is_freeing_held_up: bool,
    /// The entry of the writer's own that is proposed and not committed.
    pub(super) advance: Option<Ticket>,
    /// When an entry of the writer's own was last proposed and not applied immediately, and the last entry applied before it.
    pub(super) proposed: Option<(Instant, Seq)>,
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
        let Submission { by, command, key, bytes, waiting } = submission;
        self.bytes += bytes;
        self.proposals.push(Proposal { at, by, command, idempotency: key });
        self.waiting.push(Waiting { since: self.taken_up, ..waiting });
    }

    fn is_full(&self) -> bool {
        self.proposals.len() >= BATCH_ENTRIES_MAX || self.bytes >= BATCH_BYTES_MAX
    }
}

impl Writer {
    /// Serves requests until a shutdown, or until no sender is left. Returns the sender that is told once the writer and all that it owned
    /// are dropped.
    pub(super) fn run(mut self, mut inbox: Inbox) -> Option<oneshot::Sender<()>> {
        let mut go_on = Instant::now();
        let done = loop {
            // A client that was just answered may send again at once, so what can wait does.
            let quiet_at = self.has_quiet_work().then_some(go_on);
            let first = inbox.wait(self.wake_at(quiet_at));
            if first.is_none() && inbox.is_closed() {
                break None;
            }
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
        let pending = self.pending.front().map(|submission| submission.waiting.since);
        let give_up_at = self
            .waiting
            .oldest()
            .into_iter()
            .chain(pending)
            .min()
            .map(|since| since + self.inner.options.commit_patience);
        let times =
            [self.journal.wake_at(), quiet_at, give_up_at, self.due_wake_at(), Some(self.time.keep_at)];
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
                    self.inner
                        .metrics
                        .queue_seconds
                        .observe(submission.waiting.since.elapsed().as_secs_f64());
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
                Err(refusal) => submission.waiting.answer(Err(refusal)),
            }
        }
        self.propose(batch);
    }

    fn begin_batch(&mut self) -> Batch {
        self.is_disk_short = self.store.space.check().is_err();
        if !self.is_disk_short {
            self.store.space.restore_ballast();
        }
        let stamp = self.time.stamp(self.state.now()).map_err(SubmitError::from);
        Batch::new(Instant::now(), self.inner.log_refusal().map_or(stamp, Err))
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
                self.inner.metrics.clock_refused.inc();
            }
            return Err(refusal.clone());
        }
        if self.is_partly_applied {
            return Ok(Verdict::Later);
        }
        let Submission { command, key, .. } = submission;
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
            self.inner.metrics.flush_seconds.observe(taken_up.elapsed().as_secs_f64());
            match proposed {
                Ok(()) => {
                    self.snapshotter.note_logged(bytes, &self.state);
                    self.inner.metrics.commits.inc();
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
        let frees_space = proposals.iter().all(|proposal| proposal.command.frees_space());
        match self.state.sweep_events_bytes(proposals.len(), at) {
            0 => {}
            events_bytes if frees_space => self.store.space.check_reserve(events_bytes)?,
            events_bytes => self.store.space.check_beyond(events_bytes)?,
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
                Poll::Ready(Ok(Delivery::Entries(committed))) => self.apply(committed),
                Poll::Ready(Ok(Delivery::Passed(barrier))) => self.barriers.pass(barrier),
                Poll::Ready(Ok(Delivery::Current)) => {}
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

    fn apply(&mut self, committed: Vec<Committed>) {
        let began = Instant::now();
        self.inner.metrics.entries.inc_by(committed.len() as u64);
        let mut answers = Vec::with_capacity(committed.len());
        let (mut others_bytes, mut stored) = (0, Ok(()));
        self.inner.refusals.begin();
        for Committed { entry, ticket } in committed {
            if ticket.is_none() {
                others_bytes += entry.proposal.command.weight_bytes();
            }
            self.advance.take_if(|advance| Some(*advance) == ticket);
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
        self.inner.metrics.apply_seconds.observe(began.elapsed().as_secs_f64());
        self.note_figures();
        self.inner.refusals.end();
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
        self.advance.take_if(|advance| *advance >= first);
        for waiting in self.waiting.take_from(first) {
            waiting.answer(Err(refusal.clone()));
        }
    }

    /// Tells callers that have waited too long that the outcome is unknown. If the journal commits their commands later, they
    /// are applied all the same. Commands that were held back because of them are refused.
    fn give_up_overdue(&mut self) {
        let Some(before) = Instant::now().checked_sub(self.inner.options.commit_patience) else { return };
        self.waiting.give_up(before, &SubmitError::StorageFailed);
        while !self.waiting.is_empty()
            && let Some(overdue) = self.pending.pop_front_if(|pending| pending.waiting.since <= before)
        {
            overdue.waiting.answer(Err(SubmitError::Overloaded));
        }
    }

    pub(super) fn note_figures(&mut self) {
        let Inner { board, applied, events_last, replication, .. } = &*self.inner;
        board.note(&self.state, self.events.figures());
        if self.inner.options.journal.is_shared() {
            applied.send_replace(self.state.applied());
        }
        if let Some(replication) = replication.get() {
            let hash = self.state.last_hash();
            replication.lock().hash = (hash.at > Seq(0)).then_some(hash);
        }
        let last = self.state.events().last();
        events_last.send_if_modified(|known| std::mem::replace(known, last) != last);
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
            self.inner.outdated.notify_one();
        }
        self.inner.status.send_replace(if is_diverged { Status::Diverged(why) } else { Status::Failed(why) });
        for waiting in self.waiting.take_from(Ticket(0)) {
            waiting.answer(Err(SubmitError::StorageFailed));
        }
        SubmitError::StorageFailed
    }

    fn serve(&mut self, request: Request) {
        match request {
            Request::Snapshot(reply) if self.failed => drop(reply.send(Err(SubmitError::StorageFailed))),
            Request::Snapshot(reply) => self.ask_for_snapshot(reply),
            Request::Download(_, _, reply) if self.failed => {
                drop(reply.send(Err(SubmitError::StorageFailed)));
            }
            Request::Download(filter, token, reply) => {
                drop(reply.send(self.downloads.begin(&self.store, filter, token)));
            }
            Request::Events { number, is_wanted, reply } => {
                let found = self.events.find(&self.store, number, is_wanted).map_err(|error| {
                    tracing::error!(%error, "events can't be read");
                    SubmitError::StorageFailed
                });
                let retention_seconds = self.state.settings().events_retention_seconds;
                let next = self.state.events().next();
                drop(reply.send(found.map(|found| EventsAnswer { found, retention_seconds, next })));
            }
            Request::Parts(id, reply) => drop(reply.send(self.downloads.next_parts(id))),
            Request::Barrier(reply) => self.barriers.begin(&mut *self.journal, reply),
            Request::Submit(_) | Request::Shutdown(_) => unreachable!("the loop keeps these for itself"),
        }
    }
}
