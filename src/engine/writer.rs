//! The only writer: takes up what waits, makes it durable in one group commit, applies it in the journal's order
//! and answers. There is no timer: a batch is whatever came while the last one was flushing. Only commits that were
//! acknowledged at once are flushed by the clock.
//!
//! It runs on a thread of its own, because storage blocks. Snapshots go on between commits.

use super::admission::{Admission, Verdict};
use super::metrics::Metrics;
use super::snapshotter::{SnapshotReport, Snapshotter};
use super::timekeeping::Timekeeper;
use super::{Status, SubmitError};
use crate::clock::ClockUnsure;
use crate::domain::{Applied, Command, IdempotencyKey, Proposal, Seq, Timestamp};
use crate::journal::{Journal, JournalError};
use crate::state::State;
use crate::store::{Store, archive::ArchiveSource};
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot, watch};

/// The most commands in one group commit.
pub(super) const BATCH_ENTRIES_MAX: usize = 4_096;

/// The most bytes in one group commit, about; one command may exceed it alone.
pub(super) const BATCH_BYTES_MAX: u64 = 1 << 20;

/// Backups that may be under way at once.
const BACKUPS_MAX: usize = 4;

/// So long after an answer the time counts as nobody's, to be used for what is not urgent.
const QUIET: Duration = Duration::from_millis(2);

/// Who waits for an answer.
pub(super) type Reply<T> = oneshot::Sender<Result<T, SubmitError>>;

/// What the writer is asked for.
pub(super) enum Request {
    /// Log and apply a command.
    Submit(Box<Submission>),
    /// Take a snapshot now.
    Snapshot(Reply<SnapshotReport>),
    /// Begin a backup; the token keeps it alive.
    Backup(Weak<()>, Reply<u64>),
    /// The next piece of a backup.
    BackupPart(u64, Reply<Option<Vec<u8>>>),
    /// Finish what waits, take a snapshot, end.
    Shutdown(oneshot::Sender<()>),
}

/// A command on its way in.
pub(super) struct Submission {
    pub(super) command: Command,
    pub(super) key: Option<IdempotencyKey>,
    /// Its size in the log, about, in bytes.
    pub(super) bytes: u64,
    pub(super) since: Instant,
    pub(super) reply: Reply<Applied>,
    /// Its share of the queue's bytes, given back once it is answered.
    pub(super) _room: OwnedSemaphorePermit,
}

pub(super) struct Writer {
    pub(super) state: State,
    pub(super) journal: Box<dyn Journal>,
    pub(super) store: Arc<Store>,
    pub(super) snapshotter: Snapshotter,
    pub(super) time: Timekeeper,
    pub(super) metrics: Metrics,
    pub(super) status: watch::Sender<Status>,
    pub(super) latest_snapshot: watch::Sender<Option<super::LatestSnapshot>>,
    pub(super) figures: Arc<super::Figures>,
    pub(super) admission: Admission,
    pub(super) snapshot_waiters: Vec<Reply<SnapshotReport>>,
    pub(super) backups: BTreeMap<u64, (Weak<()>, ArchiveSource)>,
    pub(super) backups_begun: u64,
    /// When commits that were acknowledged before they were durable are to become so, if there are any.
    pub(super) durable_by: Option<Instant>,
    /// Storage has failed: nothing is written any more.
    pub(super) failed: bool,
}

/// Commands that were admitted, on their way into one group commit.
struct Batch {
    taken_up: Instant,
    /// The time of all of them.
    at: Result<Timestamp, ClockUnsure>,
    proposals: Vec<Proposal>,
    /// Who waits for each, with its share of the queue.
    replies: Vec<Option<(Reply<Applied>, OwnedSemaphorePermit)>>,
    bytes: u64,
}

impl Batch {
    fn new(taken_up: Instant, at: Result<Timestamp, ClockUnsure>) -> Self {
        Self { taken_up, at, proposals: Vec::new(), replies: Vec::new(), bytes: 0 }
    }

    fn push(&mut self, at: Timestamp, submission: Submission) {
        let Submission { command, key, bytes, reply, _room: room, .. } = submission;
        self.bytes += bytes;
        self.proposals.push(Proposal { at, command, idempotency: key });
        self.replies.push(Some((reply, room)));
    }
}

impl Writer {
    /// Serves requests until it is told to shut down or everybody who could ask is gone. Answers who wants to hear
    /// that the writer and all that it held are gone.
    pub(super) fn run(mut self, mut requests: mpsc::Receiver<Request>) -> Option<oneshot::Sender<()>> {
        let mut go_on = Instant::now();
        let done = loop {
            // A client that was just answered may come again at once, so a snapshot waits for it; then it goes on, but leaves
            // half of the time to those who read: they share its processors.
            let wake_at = self.durable_by.into_iter().chain(self.snapshotter.has_work().then_some(go_on));
            let wake_at = wake_at.chain([self.time.wake_at()]).min();
            let first = match wake_at.filter(|_| !self.failed) {
                Some(at) => receive_within(&mut requests, at.saturating_duration_since(Instant::now())),
                None => match requests.blocking_recv() {
                    Some(request) => Some(request),
                    None => break None,
                },
            };
            let quiet = first.is_none();
            let mut batch = Vec::new();
            let (mut bytes, mut next) = (0, first);
            let mut shutdown = None;
            while let Some(request) = next.take() {
                match request {
                    Request::Submit(submission) => {
                        bytes += submission.bytes;
                        batch.push(*submission);
                    }
                    Request::Shutdown(done) => {
                        shutdown = Some(done);
                        requests.close();
                    }
                    other => self.serve(other),
                }
                if batch.len() < BATCH_ENTRIES_MAX && bytes < BATCH_BYTES_MAX {
                    next = requests.try_recv().ok();
                }
            }
            if !batch.is_empty() {
                self.commit(batch);
                go_on = Instant::now() + QUIET;
            }
            self.flush_if_due();
            self.time.keep_if_due(self.state.now());
            if !self.failed && self.snapshotter.is_due(&self.state) {
                self.begin_snapshot();
            }
            if self.snapshotter.has_work() {
                let began = Instant::now();
                self.step_snapshot(quiet);
                let held = began.elapsed();
                self.metrics.snapshot_step_seconds.observe(held.as_secs_f64());
                if quiet {
                    go_on = Instant::now() + held;
                }
            }
            if let Some(done) = shutdown {
                while let Ok(request) = requests.try_recv() {
                    match request {
                        Request::Submit(submission) => self.commit(vec![*submission]),
                        other => self.serve(other),
                    }
                }
                break Some(done);
            }
        };
        self.finish();
        done
    }

    /// Judges what waits and commits it: in one group commit, unless some can only be judged once the others are applied.
    fn commit(&mut self, submissions: Vec<Submission>) {
        let taken_up = Instant::now();
        let mut batch = Batch::new(taken_up, self.time.stamp(self.state.now()));
        for submission in submissions {
            self.metrics.queue_seconds.observe((taken_up - submission.since).as_secs_f64());
            match self.admit(&mut batch, &submission) {
                Ok(at) => batch.push(at, submission),
                Err(refusal) => drop(submission.reply.send(Err(refusal))),
            }
        }
        self.commit_batch(batch);
    }

    /// Whether a command may be logged with the others, and its time. May commit the others first.
    fn admit(&mut self, batch: &mut Batch, submission: &Submission) -> Result<Timestamp, SubmitError> {
        let mut verdict = self.judge(batch, submission)?;
        if verdict == Verdict::Later {
            let next = Batch::new(batch.taken_up, self.time.stamp(self.state.now()));
            self.commit_batch(std::mem::replace(batch, next));
            verdict = self.judge(batch, submission)?;
        }
        match verdict {
            Verdict::Admitted => Ok(batch.at?),
            Verdict::Later | Verdict::BeyondLimit => Err(SubmitError::MemoryLimit),
            Verdict::NoMemory(refused) => {
                tracing::warn!(bytes = refused.bytes, "a write is refused: the system gives no more memory");
                Err(SubmitError::NoMemory)
            }
        }
    }

    fn judge(&mut self, batch: &Batch, submission: &Submission) -> Result<Verdict, SubmitError> {
        if self.failed {
            return Err(SubmitError::StorageFailed);
        }
        if let Err(unsure) = batch.at {
            self.metrics.clock_refused.inc();
            return Err(unsure.into());
        }
        Ok(self.admission.judge(&self.state, &submission.command, submission.key.is_some()))
    }

    /// Makes a batch durable, applies it and answers it.
    fn commit_batch(&mut self, batch: Batch) {
        if !batch.proposals.is_empty() {
            self.log_and_apply(batch);
        }
        self.admission.settle();
    }

    fn log_and_apply(&mut self, batch: Batch) {
        let Batch { taken_up, proposals, mut replies, bytes, .. } = batch;
        let appended = self.journal.append(proposals);
        let durable = Instant::now();
        self.metrics.flush_seconds.observe((durable - taken_up).as_secs_f64());
        let committed = match appended {
            Ok(committed) => committed,
            Err(error) => {
                let error = self.storage_error(&error);
                for (reply, _) in replies.into_iter().flatten() {
                    let _ = reply.send(Err(error.clone()));
                }
                return;
            }
        };
        self.durable_by = self.durable_by.or(self.store.patience().map(|patience| durable + patience));
        self.snapshotter.note_logged(bytes, &self.state);
        self.metrics.commits.inc();
        self.metrics.entries.inc_by(committed.len() as u64);
        let mut answers = Vec::with_capacity(replies.len());
        for committed in committed {
            let applied = self.state.apply(committed.entry);
            if let Some(reply) = committed.ticket.and_then(|ticket| replies.get_mut(ticket)?.take()) {
                answers.push((reply, applied));
            }
        }
        self.state.publish();
        self.metrics.apply_seconds.observe(durable.elapsed().as_secs_f64());
        self.note_figures();
        for ((reply, _room), applied) in answers {
            // Whoever asked may have gone; the command stands all the same.
            let _ = reply.send(Ok(applied));
        }
    }

    /// Makes durable what was acknowledged at once, when its time has come.
    fn flush_if_due(&mut self) {
        if !self.failed && self.durable_by.is_some_and(|by| by <= Instant::now()) {
            self.durable_by = None;
            if let Err(error) = self.store.make_durable() {
                self.storage_error(&error.into());
            }
        }
    }

    fn note_figures(&self) {
        let (tables, records) = (self.state.tables_bytes(), self.state.records_bytes());
        self.metrics.tables_bytes.set(tables as i64);
        self.metrics.records_bytes.set(records as i64);
        self.metrics.applied_seq.set(self.state.applied().0 as i64);
        self.figures.note(&self.state);
    }

    /// Says what a failure of storage means for those who wait, and stops writing if it is final.
    fn storage_error(&mut self, error: &JournalError) -> SubmitError {
        if let JournalError::DiskFull(reason) = error {
            tracing::warn!(reason, "the disk is too full to write");
            return SubmitError::DiskFull;
        }
        tracing::error!(%error, "storage failed: reads go on, writes are refused");
        self.failed = true;
        self.snapshotter.abort(&mut self.state);
        self.answer_snapshot(Err(SubmitError::StorageFailed));
        self.status.send_replace(Status::Failed(error.to_string()));
        SubmitError::StorageFailed
    }

    fn serve(&mut self, request: Request) {
        match request {
            Request::Snapshot(reply) if self.failed => drop(reply.send(Err(SubmitError::StorageFailed))),
            Request::Snapshot(reply) => {
                self.snapshot_waiters.push(reply);
                // One under way may have begun before what the caller has seen acknowledged.
                if self.snapshotter.is_running() {
                    self.snapshotter.abort(&mut self.state);
                }
                self.begin_snapshot();
            }
            Request::Backup(token, reply) => drop(reply.send(self.begin_backup(token))),
            Request::BackupPart(id, reply) => drop(reply.send(self.backup_part(id))),
            Request::Submit(_) | Request::Shutdown(_) => unreachable!("the loop keeps these for itself"),
        }
    }

    fn begin_snapshot(&mut self) {
        let (now, began) = (self.time.read(), Instant::now());
        let begun = self.snapshotter.begin(&mut self.state, now);
        self.metrics.snapshot_step_seconds.observe(began.elapsed().as_secs_f64());
        if let Err(error) = begun {
            let error = self.storage_error(&error.into());
            self.answer_snapshot(Err(error));
        }
    }

    /// Goes on with the running snapshot, or removes what the last one has left over; `quiet` if no command has come.
    fn step_snapshot(&mut self, quiet: bool) {
        if self.failed {
            return;
        }
        let stepped = if self.snapshotter.is_running() {
            self.snapshotter.step(&mut self.state, quiet)
        } else {
            self.snapshotter.remove_leftovers(&mut *self.journal, quiet).map(|()| None)
        };
        match stepped {
            Ok(None) => {}
            Ok(Some(report)) => {
                self.metrics.snapshots.inc();
                self.metrics.snapshot_milliseconds.set(report.duration.as_millis() as i64);
                self.note_snapshot();
                self.answer_snapshot(Ok(report));
            }
            Err(error) => {
                self.snapshotter.abort(&mut self.state);
                let error = self.storage_error(&error);
                self.answer_snapshot(Err(error));
            }
        }
    }

    /// Tells readers of the newest snapshot.
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
    }

    fn begin_backup(&mut self, token: Weak<()>) -> Result<u64, SubmitError> {
        self.backups.retain(|_, (token, _)| token.strong_count() > 0);
        if self.backups.len() >= BACKUPS_MAX {
            return Err(SubmitError::Overloaded);
        }
        let source = self.store.begin_backup(self.journal.last());
        let source = source.map_err(|error| {
            tracing::error!(%error, "a backup could not begin");
            SubmitError::StorageFailed
        })?;
        self.backups_begun += 1;
        self.backups.insert(self.backups_begun, (token, source));
        Ok(self.backups_begun)
    }

    fn backup_part(&mut self, id: u64) -> Result<Option<Vec<u8>>, SubmitError> {
        let Some((_, source)) = self.backups.get_mut(&id) else { return Err(SubmitError::StorageFailed) };
        let part = source.next_part().map_err(|error| {
            tracing::error!(%error, "a backup could not go on");
            SubmitError::StorageFailed
        });
        if !matches!(part, Ok(Some(_))) {
            self.backups.remove(&id);
        }
        part
    }

    /// A clean end: a snapshot of everything, so that the next start replays nothing.
    fn finish(&mut self) {
        if self.failed {
            return;
        }
        if !self.snapshotter.is_current(&self.state) && self.state.applied() > Seq(0) {
            self.snapshotter.abort(&mut self.state);
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

/// The next request, unless it takes longer to come than `patience`.
fn receive_within(requests: &mut mpsc::Receiver<Request>, patience: Duration) -> Option<Request> {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let until = Instant::now() + patience;
    loop {
        if let Poll::Ready(request) = requests.poll_recv(&mut Context::from_waker(&waker)) {
            return request;
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return None;
        }
        thread::park_timeout(left);
    }
}
