//! The only writer. It runs on a separate thread because storage blocks. The thread only waits and calls [`Writer::turn`], which is a
//! function of the writer's state, the requests and the time; so a simulation can call it, too.
//!
//! A turn receives the requests that have arrived. Commands wait for the group commit (`commits.rs`); [`Writer::serve`] serves the
//! others immediately. Then it proposes the commands, applies what the journal has committed, responds, and does a step of the work
//! between commits (`upkeep.rs`). There is no timer: a batch is whatever arrived during the last flush.

use super::admission::Admission;
use super::backup::serve_parts;
use super::event_log::EventLog;
use super::images::ImageCopies;
use super::protocol::{EventsQuery, EventsResponse, Inbox, Request, Submission};
use super::request::{Proposed, Reply, respond, wait};
use super::snapshotter::{SnapshotReport, Snapshotter};
use super::timekeeping::Timekeeper;
use super::{EngineStatus, Inner, LatestSnapshot, SubmitError};
use cuckood_log::journal::{Journal, JournalError, Ticket};
use cuckood_log::store::Store;
use cuckood_state::State;
use cuckood_state::domain::Seq;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

/// The most commands in one group commit.
pub(super) const BATCH_ENTRIES_MAX: usize = 4_096;

/// The most bytes in one group commit, approximately. A single command may exceed it.
pub(super) const BATCH_BYTES_MAX: u64 = 1 << 20;

/// Time after a response until the writer counts as idle and does work that is not urgent.
const QUIET: Duration = Duration::from_millis(2);

/// The writer of an engine, and everything that only its thread touches.
pub(super) struct Writer {
    /// The state shared with the engine's handles.
    pub(super) inner: Arc<Inner>,
    pub(super) state: State,
    pub(super) store: Arc<Store>,
    pub(super) events: EventLog,
    pub(super) time: Timekeeper,
    pub(super) commits: Commits,
    pub(super) upkeep: Upkeep,
    /// Storage has failed: nothing is written any more.
    pub(super) failed: bool,
    /// The callers that have requested the end.
    pub(super) ending: Vec<Reply<()>>,
}

/// Commands on their way through the log, and their callers.
pub(super) struct Commits {
    pub(super) journal: Box<dyn Journal>,
    /// Wakes the writer when the journal or the queue has news.
    pub(super) waker: Waker,
    pub(super) admission: Admission,
    /// Commands that were received and not admitted. Some can't be admitted until all proposals are applied.
    pub(super) pending: VecDeque<Submission>,
    /// The callers that wait for the outcome of a proposed command.
    pub(super) proposed: Proposed,
    /// The callers that wait until everything acknowledged anywhere is applied, in the order of their tickets.
    pub(super) barriers: VecDeque<PendingBarrier>,
    /// The admitted commands are partly applied, so the memory of later commands can't be bounded yet.
    pub(super) is_partly_applied: bool,
    /// Too little space is free for anything but operations that free space.
    pub(super) is_disk_short: bool,
}

/// A caller that waits until everything is applied that any node had acknowledged at its request.
pub(super) struct PendingBarrier {
    pub(super) ticket: Ticket,
    pub(super) reply: Reply<()>,
}

/// Work between commits: what is in progress, and when it continues.
pub(super) struct Upkeep {
    pub(super) snapshotter: Snapshotter,
    /// The callers that wait for a snapshot. A running snapshot continues, so that callers who disconnect and ask again can't keep any
    /// from completing.
    pub(super) snapshot_requests: Vec<SnapshotRequest>,
    /// The images that are being copied.
    pub(super) images: ImageCopies,
    /// The node's own way to choose its turns among the nodes of a shared log.
    pub(super) turns: u64,
    /// Readers still see all that commands have dropped, so nothing of it can be freed yet.
    pub(super) is_freeing_blocked: bool,
    /// The entry of the writer's own that is proposed and not committed.
    pub(super) advance: Option<Ticket>,
    /// No entry of the writer's own is logged before: the last one could not be.
    pub(super) advance_after: Instant,
    /// When this node next tries to enable the version of entries that it understands, if it should.
    pub(super) enable_at: Option<Instant>,
    /// Work that is not urgent waits until then: a client with a new response may send again immediately.
    pub(super) rest_until: Instant,
    /// When there is work although no command arrives, as of the end of the last turn.
    pub(super) quiet_at: Option<Instant>,
}

/// A caller that waits for a snapshot.
pub(super) struct SnapshotRequest {
    /// The last entry applied at its request. The running snapshot serves it if it covers that, the next one otherwise.
    pub(super) applied: Seq,
    pub(super) reply: Reply<SnapshotReport>,
}

impl Writer {
    /// Takes turns until a shutdown, or until no sender is left, and finishes the accepted commands. Returns the callers to answer
    /// after the writer and its resources are dropped.
    pub(super) fn run(mut self, mut inbox: Inbox) -> Vec<Reply<()>> {
        loop {
            if !inbox.is_empty() {
                // A worker that shares the processor queues what has arrived there, and the group commit is larger.
                thread::yield_now();
            }
            let next = self.turn(self.inner.instant(), &mut inbox);
            if self.is_done(&inbox) {
                break;
            }
            wait(next, self.inner.instant());
        }
        self.finish();
        self.ending
    }

    /// Serves what has arrived: one group commit, and a step of the other work. Returns when the next turn is due if neither the queue nor
    /// the journal wakes the writer before; `None` if only they do. It starts at `now`; the engine's clock shows how long its steps take.
    pub(super) fn turn(&mut self, now: Instant, inbox: &mut Inbox) -> Option<Instant> {
        let held_back = self.commits.pending.len();
        let is_inbox_empty = self.receive(now, inbox);
        let is_busy = self.commits.pending.len() > held_back;
        let is_quiet = !is_busy && self.is_quiet_work_due();
        if self.make_progress() || is_busy {
            self.upkeep.rest_until = self.inner.instant() + QUIET;
        }
        self.save_time_if_due();
        self.enable_if_due();
        self.step_between_commits(is_quiet);
        if !self.ending.is_empty() {
            inbox.close();
        }
        let now = self.inner.instant();
        self.upkeep.quiet_at = self.quiet_work_at(now);
        if is_inbox_empty {
            self.wake_at(now)
        } else {
            Some(now)
        }
    }

    /// Whether no request can arrive any more, and no command is unfinished.
    fn is_done(&self, inbox: &Inbox) -> bool {
        inbox.is_closed() && inbox.is_empty() && !self.commits.has_callers()
    }

    /// Receives the requests that arrived during the last turn, within the limits of a batch: their commands form the next group commit.
    /// Returns whether the inbox is empty. Then it wakes the writer when a request arrives.
    fn receive(&mut self, now: Instant, inbox: &mut Inbox) -> bool {
        let mut taken = 0;
        let mut bytes = 0;
        while taken < BATCH_ENTRIES_MAX && bytes < BATCH_BYTES_MAX {
            let next = inbox.poll_recv(&mut Context::from_waker(&self.commits.waker));
            let Poll::Ready(Some(request)) = next else {
                return true;
            };
            taken += 1;
            bytes += request.cost_bytes();
            self.serve(request, now);
        }
        false
    }

    /// Serves a request. Without storage, some are dropped: that reports the failure.
    fn serve(&mut self, request: Request, now: Instant) {
        match request {
            Request::Submit(submission) => self.queue(*submission, now),
            Request::StoredOutcome(query) => {
                let found = self.state.recorded(&query.command, &query.key, query.now);
                respond(query.reply, Ok(found));
            }
            Request::OutcomeRetention(reply) => {
                respond(reply, Ok(self.state.idempotency_retention_min_seconds()));
            }
            Request::Snapshot(reply) => {
                let applied = self.state.applied();
                let request = SnapshotRequest { applied, reply };
                self.upkeep.snapshot_requests.push(request);
            }
            Request::CopyTables { filter, reply } => {
                respond(reply, Ok(self.state.tables_of(filter)));
            }
            Request::Barrier(reply) => {
                if !self.failed {
                    self.commits.request_barrier(reply);
                }
            }
            Request::Events(query) => self.find_events(query),
            Request::StartBackup(reply) => {
                // Storage may have failed since the snapshot.
                if !self.failed {
                    let pinned = self.store.pin_newest();
                    respond(reply, pinned.map_err(SubmitError::unreadable));
                }
            }
            Request::StartImage { filter, reply } => {
                if !self.failed {
                    let Upkeep {
                        images,
                        snapshotter,
                        ..
                    } = &mut self.upkeep;
                    let latest = snapshotter.latest.as_ref();
                    images.start(filter, &mut self.state, &self.store, latest, reply);
                }
            }
            Request::DownloadParts(query) => serve_parts(query, &self.inner, &self.store),
            Request::End(reply) => self.ending.push(reply),
        }
    }

    /// Queues a command for the next group commit.
    fn queue(&mut self, submission: Submission, now: Instant) {
        let waited = now.saturating_duration_since(submission.waiter.since);
        self.inner
            .metrics
            .queue_seconds
            .observe(waited.as_secs_f64());
        self.commits.pending.push_back(submission);
    }

    fn find_events(&self, query: EventsQuery) {
        let found = self
            .events
            .find(&self.store, query.number, query.must_exist);
        let response = found.map(|found| EventsResponse {
            found,
            retention_seconds: self.state.settings().events_retention_seconds,
            next: self.state.events().next(),
        });
        respond(query.reply, response.map_err(SubmitError::unreadable));
    }

    /// When a turn is due even if no request arrives and the journal has no news.
    fn wake_at(&self, now: Instant) -> Option<Instant> {
        if self.failed {
            return None;
        }
        let oldest = self.commits.oldest_since();
        let times = [
            self.commits.journal.wake_at(now),
            self.upkeep.quiet_at,
            oldest.map(|since| since + self.inner.options.commit_timeout),
            Some(self.time.save_at),
            self.upkeep.enable_at,
        ];
        times.into_iter().flatten().min()
    }

    fn save_time_if_due(&mut self) {
        let now = self.inner.instant();
        if self.time.save_at <= now {
            self.time.save(self.state.now(), now);
        }
    }

    /// Publishes positions and sizes.
    pub(super) fn note_figures(&mut self) {
        let Inner {
            figures,
            applied,
            logged_at,
            moved,
            events_last,
            replication,
            ..
        } = &*self.inner;
        let state = &self.state;
        let latest = self.upkeep.snapshotter.latest.as_ref();
        let mut noted = figures.lock();
        (noted.format, noted.sizes, noted.events) =
            (state.format(), state.sizes(), self.events.figures());
        noted.snapshot = latest.map(|latest| LatestSnapshot {
            seq: latest.seq,
            taken_at: latest.taken_at,
        });
        drop(noted);
        logged_at.store(state.now().0, Ordering::Relaxed);
        applied.store(state.applied().0, Ordering::Release);
        moved.notify_waiters();
        if let Some(replication) = replication.get() {
            let hash = state.last_hash();
            replication.lock().hash = (hash.at > Seq(0)).then_some(hash);
        }
        let last = state.events().last();
        events_last.send_if_modified(|known| std::mem::replace(known, last) != last);
    }

    /// Maps a failure of storage to the callers' error, and ends writes if it is final.
    pub(super) fn storage_error(&mut self, error: &JournalError) -> SubmitError {
        if let JournalError::DiskFull(reason) = error {
            // The store logs when a full disk starts and ends.
            tracing::debug!(reason, "a write is refused");
            return SubmitError::DiskFull;
        }
        if let JournalError::TooLong(reason) = error {
            tracing::error!(
                reason,
                "failed to store a snapshot; keeping the log and earlier snapshots"
            );
            return SubmitError::StorageFailed;
        }
        tracing::error!(%error, "storage failed; rejecting writes");
        self.failed = true;
        if let Some(replication) = self.inner.replication.get() {
            replication.lock().end();
        }
        self.upkeep.snapshotter.abort();
        let why = error.to_string();
        let is_diverged = matches!(error, JournalError::Diverged { .. });
        if is_diverged && let Err(error) = self.store.note_diverged(&why) {
            tracing::error!(%error, "the next start will not know that this node has diverged");
        }
        if matches!(error, JournalError::Trimmed(_)) {
            self.inner.outdated.notify_one();
        }
        self.inner.status.set(if is_diverged {
            EngineStatus::Diverged(why)
        } else {
            EngineStatus::Failed(why)
        });
        self.commits.abandon_callers();
        SubmitError::StorageFailed
    }
}

#[cfg(test)]
mod tests {
    use super::super::start::prepare;
    use super::*;
    use crate::clock::{Clock, ClockLimits, MonotonicClock};
    use crate::config::Config;
    use crate::engine::journal::JournalOptions;
    use crate::engine::{Engine, EngineOptions};
    use cuckood_log::journal::{Delivery, Durability, LocalJournal, LocalOptions, OpenJournal};
    use cuckood_state::domain::{Applied, ClockReading, Command, Proposal, Timestamp};
    use futures_util::FutureExt;
    use parking_lot::Mutex;
    use std::sync::atomic::{AtomicBool, AtomicUsize};
    use std::task::Wake;
    use tempfile::TempDir;
    use tokio::runtime::{Builder, Runtime};
    use tokio::sync::mpsc;

    /// Counts how often the writer was woken.
    #[derive(Default)]
    struct Bells(AtomicUsize);

    impl Wake for Bells {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// A log that commits nothing while it is held, like a replicated one whose servers don't respond.
    #[derive(Clone, Debug, Default)]
    struct HeldLog(Arc<AtomicBool>);

    impl OpenJournal for HeldLog {
        fn open(&self, store: &Arc<Store>) -> Result<Box<dyn Journal>, JournalError> {
            let journal = LocalJournal::open(store.clone(), LocalOptions::at(Durability::Relaxed))?;
            let held = self.clone();
            Ok(Box::new(HeldJournal { journal, held }))
        }
    }

    struct HeldJournal {
        journal: LocalJournal,
        held: HeldLog,
    }

    impl Journal for HeldJournal {
        fn propose(&mut self, first: Ticket, batch: Vec<Proposal>) -> Result<(), JournalError> {
            self.journal.propose(first, batch)
        }
        fn poll(
            &mut self,
            after: Seq,
            now: Instant,
            context: &mut Context<'_>,
        ) -> Poll<Result<Delivery, JournalError>> {
            if self.held.0.load(Ordering::SeqCst) {
                Poll::Pending
            } else {
                self.journal.poll(after, now, context)
            }
        }
        fn wake_at(&self, _: Instant) -> Option<Instant> {
            None
        }
        fn barrier(&mut self, barrier: Ticket) {
            self.journal.barrier(barrier);
        }
        fn prune(&mut self, through: Seq, budget: u64) -> Result<bool, JournalError> {
            self.journal.prune(through, budget)
        }
        fn settle(&mut self) -> Result<(), JournalError> {
            self.journal.settle()
        }
    }

    /// A writer without a thread, whose clocks a test moves.
    struct Stage {
        engine: Engine,
        writer: Writer,
        inbox: Inbox,
        now: Arc<Mutex<Instant>>,
        bells: Arc<Bells>,
        held: HeldLog,
        runtime: Runtime,
        _directory: TempDir,
    }

    impl Stage {
        fn new() -> Stage {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().to_owned();
            let config = Config::load(None, [("CUCKOOD__STORAGE__PATH", &path)]).unwrap();
            let held = HeldLog::default();
            let mut options = EngineOptions {
                journal: JournalOptions::Other(Arc::new(held.clone())),
                queue_commands_max: 2 * BATCH_ENTRIES_MAX,
                ..config.engine_options()
            };
            options.store.free_space_min_bytes = 0;
            options.store.ballast_bytes = 0;
            let now = Arc::new(Mutex::new(Instant::now()));
            let source = now.clone();
            let reading = ClockReading {
                wall: Timestamp(1_000_000),
                uptime: Duration::ZERO,
            };
            let clock = Clock::new(move || reading, ClockLimits::default())
                .with_monotonic(MonotonicClock::new(move || *source.lock()));
            let (requests, inbox) = mpsc::channel(options.queue_commands_max);
            let engine = Engine::with_queue(options, clock, requests);
            let bells = Arc::new(Bells::default());
            let writer = prepare(&engine.inner, Waker::from(bells.clone())).unwrap();
            engine.inner.status.set(EngineStatus::Ready);
            let mut stage = Stage {
                engine,
                writer,
                inbox,
                now,
                bells,
                held,
                runtime: Builder::new_current_thread().build().unwrap(),
                _directory: directory,
            };
            // Nothing of the startup is left: leftovers, events.
            while stage.turn() != Some(stage.writer.time.save_at) {
                stage.pass(QUIET);
            }
            stage
        }

        fn turn(&mut self) -> Option<Instant> {
            let now = *self.now.lock();
            self.writer.turn(now, &mut self.inbox)
        }

        fn pass(&self, time: Duration) {
            *self.now.lock() += time;
        }

        fn bells(&self) -> usize {
            self.bells.0.load(Ordering::SeqCst)
        }

        fn submit(&self) -> impl Future<Output = Result<Applied, SubmitError>> + use<> {
            let _entered = self.runtime.enter();
            let command = Command::Advance { buckets_max: 0 };
            self.engine.submit(None, command, None)
        }

        fn send<T>(&self, request: impl FnOnce(Reply<T>) -> Request) -> Response<T> {
            let (reply, response) = tokio::sync::oneshot::channel();
            assert!(self.engine.requests.try_send(request(reply)).is_ok());
            response
        }
    }

    type Response<T> = tokio::sync::oneshot::Receiver<Result<T, SubmitError>>;

    #[test]
    fn turn_commits_what_has_arrived() {
        let mut stage = Stage::new();
        let before = stage.engine.position();
        let outcomes = [stage.submit(), stage.submit()];
        assert_eq!(stage.engine.position(), before);
        let next = stage.turn();
        assert_eq!(stage.engine.position().0, before.0 + 2);
        assert_eq!(stage.engine.metrics().commits.get(), 1);
        for outcome in outcomes {
            stage.runtime.block_on(outcome).unwrap();
        }
        // An idle writer has nothing to do but to save the time.
        assert_eq!(next, Some(stage.writer.time.save_at));
    }

    /// Otherwise the writer would sleep while a command waits.
    #[test]
    fn request_after_turn_wakes_writer() {
        let mut stage = Stage::new();
        let before = stage.bells();
        drop(stage.submit());
        assert_eq!(stage.bells(), before + 1);
        // The queue is not known to be empty after a full batch, and its waker may not be set.
        for number in [BATCH_ENTRIES_MAX, BATCH_ENTRIES_MAX + 1] {
            let mut asked: Vec<_> = (1..number)
                .map(|_| stage.send(Request::OutcomeRetention))
                .collect();
            let now = *stage.now.lock();
            assert_eq!(stage.turn(), Some(now));
            asked.push(stage.send(Request::OutcomeRetention));
            assert_ne!(stage.turn(), Some(now));
            assert!(asked.iter_mut().all(|asked| asked.try_recv().is_ok()));
            let before = stage.bells();
            drop(stage.submit());
            assert_eq!(stage.bells(), before + 1);
        }
    }

    #[test]
    fn other_work_waits_after_response() {
        let mut stage = Stage::new();
        let mut snapshot = stage.send(Request::Snapshot);
        let outcome = stage.submit();
        let answered_at = *stage.now.lock();
        assert_eq!(stage.turn(), Some(answered_at + QUIET));
        stage.runtime.block_on(outcome).unwrap();
        stage.pass(QUIET - Duration::from_nanos(1));
        assert_eq!(stage.turn(), Some(answered_at + QUIET));
        stage.pass(Duration::from_nanos(1));
        // The clock does not show that steps take time, so the next one is due immediately.
        while snapshot.try_recv().is_err() {
            let next = stage.turn();
            assert!(next == Some(answered_at + QUIET), "{next:?}");
        }
    }

    #[test]
    fn overdue_command_ends_wait() {
        let mut stage = Stage::new();
        stage.held.0.store(true, Ordering::SeqCst);
        let mut outcome = Box::pin(stage.submit());
        let timeout = stage.engine.options().commit_timeout;
        let due = *stage.now.lock() + timeout;
        stage.turn();
        while *stage.now.lock() < due {
            assert_eq!(outcome.as_mut().now_or_never(), None);
            let next = stage.turn().unwrap();
            assert!(next > *stage.now.lock() && next <= due);
            *stage.now.lock() = next;
        }
        stage.turn();
        assert_eq!(
            outcome.now_or_never(),
            Some(Err(SubmitError::StorageFailed))
        );
    }

    #[test]
    fn barrier_passes_after_earlier_commands() {
        let mut stage = Stage::new();
        stage.held.0.store(true, Ordering::SeqCst);
        let before = stage.engine.position();
        let outcome = stage.submit();
        let mut passed = stage.send(Request::Barrier);
        stage.turn();
        assert!(passed.try_recv().is_err());
        assert_eq!(stage.engine.position(), before);
        stage.held.0.store(false, Ordering::SeqCst);
        stage.turn();
        assert_eq!(passed.try_recv(), Ok(Ok(())));
        assert!(stage.engine.position() > before);
        stage.runtime.block_on(outcome).unwrap();
    }

    #[test]
    fn end_finishes_accepted_commands() {
        let mut stage = Stage::new();
        let mut ended = stage.send(Request::End);
        let outcome = stage.submit();
        stage.held.0.store(true, Ordering::SeqCst);
        stage.turn();
        assert!(stage.inbox.is_closed() && !stage.writer.is_done(&stage.inbox));
        let late = stage.submit();
        assert_eq!(late.now_or_never(), Some(Err(SubmitError::Draining)));
        stage.held.0.store(false, Ordering::SeqCst);
        stage.turn();
        assert!(stage.writer.is_done(&stage.inbox));
        stage.runtime.block_on(outcome).unwrap();
        // The thread responds once the store is closed.
        assert!(ended.try_recv().is_err());
        assert_eq!(stage.writer.ending.len(), 1);
    }
}
