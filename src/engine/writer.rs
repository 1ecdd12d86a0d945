//! The only writer. It proposes the pending commands in one group commit, applies the entries that the journal has committed, in the
//! journal's order, and answers. There is no timer: a batch is whatever arrived during the last flush. It runs on a separate thread because
//! storage blocks. Snapshots continue between commits.

use super::admission::{Admission, Verdict};
use super::applying;
use super::event_log::EventLog;
use super::images::ImageCopy;
use super::request::{Proposed, Reply, Waiter, answer_all, wait};
use super::snapshotter::{SnapshotReport, Snapshotter};
use super::timekeeping::Timekeeper;
use super::{EngineStatus, Inner, LatestSnapshot, SubmitError};
use cuckood_log::journal::{Committed, Delivery, Journal, JournalError, Ticket};
use cuckood_log::store::Store;
use cuckood_state::State;
use cuckood_state::domain::{Applied, Command, Proposal, Seq, Timestamp};
use std::collections::VecDeque;
use std::hash::RandomState;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// The most commands in one group commit.
pub(super) const BATCH_ENTRIES_MAX: usize = 4_096;

/// The most bytes in one group commit, approximately. A single command may exceed it.
pub(super) const BATCH_BYTES_MAX: u64 = 1 << 20;

/// Entries of a ledger that are freed before a command without memory is admitted again.
const FREED_IN_NEED: u64 = 65_536;

/// Time after a response until the writer counts as idle and does work that is not urgent.
const QUIET: Duration = Duration::from_millis(2);

/// A request, which the writer serves between two group commits. Returns how much of the next one it takes up, in bytes.
pub(super) type Request = Box<dyn FnOnce(&mut Writer) -> u64 + Send>;

pub(super) struct Writer {
    /// The state shared with the engine's handles.
    pub(super) inner: Arc<Inner>,
    pub(super) state: State,
    pub(super) events: EventLog,
    pub(super) journal: Box<dyn Journal>,
    pub(super) store: Arc<Store>,
    pub(super) snapshotter: Snapshotter,
    pub(super) time: Timekeeper,
    pub(super) admission: Admission,
    /// Commands that were received, with their callers. They are stamped once they are admitted. Some can't be admitted until all proposals
    /// are applied.
    pub(super) pending: VecDeque<(Proposal, Waiter)>,
    /// The callers that wait for the outcome of a proposed command.
    pub(super) proposed: Proposed,
    /// The callers that wait until everything acknowledged anywhere is applied, in the order of their barriers.
    pub(super) barriers: VecDeque<(Ticket, Reply<()>)>,
    /// The admitted commands are partly applied, so the memory of later commands can't be bounded yet.
    pub(super) is_partly_applied: bool,
    /// Wakes the writer when the journal has news.
    pub(super) waker: Waker,
    /// The callers that wait for a snapshot, with the last entry applied at their request. The running one serves them if it covers that,
    /// the next one otherwise. A running one continues, so that callers who disconnect and ask again can't keep any from completing.
    pub(super) snapshot_requests: Vec<(Seq, Reply<SnapshotReport>)>,
    /// The images that are being copied. Their number is limited.
    pub(super) images: VecDeque<ImageCopy>,
    /// The node's own way to choose its turns among the nodes of a shared log.
    pub(super) turns: RandomState,
    /// Readers still see all that commands have dropped, so nothing of it can be freed yet.
    pub(super) is_freeing_blocked: bool,
    /// The entry of the writer's own that is proposed and not committed.
    pub(super) advance: Option<Ticket>,
    /// No entry of the writer's own is logged before: the last one could not be.
    pub(super) advance_after: Instant,
    /// When this node next tries to enable the version of entries that it understands, if it should.
    pub(super) enable_at: Option<Instant>,
    /// Too little space is free for anything but operations that free space.
    pub(super) is_disk_short: bool,
    /// Storage has failed: nothing is written any more.
    pub(super) failed: bool,
    /// The callers that have requested the end.
    pub(super) ending: Vec<Reply<()>>,
}

impl Writer {
    /// Serves requests until a shutdown, or until no sender is left, and finishes the accepted commands. Returns the callers to answer
    /// after the writer and its resources are dropped.
    pub(super) fn run(mut self, mut requests: mpsc::Receiver<Request>) -> Vec<Reply<()>> {
        let mut go_on = Instant::now();
        while !requests.is_closed() || !requests.is_empty() || self.has_commands() {
            // A client with a new response may send again immediately, so other work waits.
            let quiet_at = self.quiet_work_at().map(|at| at.max(go_on));
            let held_back = self.pending.len();
            self.gather(&mut requests, self.wake_at(quiet_at));
            let is_busy = self.pending.len() > held_back;
            let quiet = !is_busy && quiet_at.is_some_and(|at| at <= Instant::now());
            if self.make_progress() || is_busy {
                go_on = Instant::now() + QUIET;
            }
            if self.time.save_at <= Instant::now() {
                self.time.save(self.state.now());
            }
            if self.enable_at.is_some_and(|at| at <= Instant::now()) {
                self.enable();
            }
            go_on = go_on.max(self.step_between_commits(quiet));
            if !self.ending.is_empty() {
                requests.close();
            }
        }
        self.finish();
        self.ending
    }

    /// Whether a caller waits for the outcome of its command.
    fn has_commands(&self) -> bool {
        !self.pending.is_empty() || self.proposed.oldest().is_some()
    }

    /// When there is work even if no request arrives and the journal has no news.
    fn wake_at(&self, quiet_at: Option<Instant>) -> Option<Instant> {
        if self.failed {
            return None;
        }
        let pending = self.pending.front().map(|(_, caller)| caller);
        let oldest = self
            .proposed
            .oldest()
            .into_iter()
            .chain(pending)
            .map(|caller| caller.since)
            .min();
        let overdue_at = oldest.map(|since| since + self.inner.options.commit_timeout);
        let times = [
            self.journal.wake_at(),
            quiet_at,
            overdue_at,
            Some(self.time.save_at),
            self.enable_at,
        ];
        times.into_iter().flatten().min()
    }

    /// Receives the commands that arrived during the last flush: they form the next group commit. If there are none, waits for a request,
    /// for news of the journal, or until `until`. Serves other requests immediately.
    fn gather(&mut self, requests: &mut mpsc::Receiver<Request>, until: Option<Instant>) {
        let mut next = match requests.poll_recv(&mut Context::from_waker(&self.waker)) {
            Poll::Ready(Some(request)) => Some(request),
            Poll::Ready(None) | Poll::Pending => {
                wait(until);
                requests.try_recv().ok()
            }
        };
        if next.is_some() {
            // A worker that shares the processor queues what has arrived there, and the group commit is larger.
            thread::yield_now();
        }
        let mut taken = 0;
        let mut bytes = 0;
        while let Some(serve) = next.take() {
            taken += 1;
            bytes += serve(self);
            if taken < BATCH_ENTRIES_MAX && bytes < BATCH_BYTES_MAX {
                next = requests.try_recv().ok();
            }
        }
    }

    /// Proposes the pending commands and applies committed entries. Returns whether anything was applied.
    fn make_progress(&mut self) -> bool {
        let mut any = false;
        loop {
            let is_full = self.propose_pending();
            any |= self.apply_committed();
            if self.pending.is_empty() || !is_full && !self.proposed.callers.is_empty() {
                break;
            }
        }
        self.fail_overdue_callers();
        any
    }

    /// Admits the pending commands and proposes them in one group commit. Some may have to wait until the others are applied. Returns
    /// whether there may be some that exceeded the batch.
    fn propose_pending(&mut self) -> bool {
        if self.pending.is_empty() {
            return false;
        }
        self.is_disk_short = self.store.space.check().is_err();
        if !self.is_disk_short {
            self.store.space.restore_ballast();
        }
        let began = Instant::now();
        let stamp = self.time.stamp_entries(self.state.now());
        let at = self
            .inner
            .log_refusal()
            .map_or(stamp.map_err(SubmitError::from), Err);
        let first = self.proposed.reserve(0);
        let mut proposals = Vec::new();
        let mut bytes = 0;
        let mut is_full = false;
        while !is_full && let Some((proposal, caller)) = self.pending.pop_front() {
            match self.admit(&at, &proposal) {
                Ok(Some(at)) => {
                    let ticket = self.proposed.reserve(1);
                    self.proposed.callers.insert(
                        ticket,
                        Waiter {
                            since: began,
                            ..caller
                        },
                    );
                    bytes += proposal.command.weight_bytes();
                    proposals.push(Proposal { at, ..proposal });
                    is_full = proposals.len() >= BATCH_ENTRIES_MAX || bytes >= BATCH_BYTES_MAX;
                }
                Ok(None) => {
                    self.pending.push_front((proposal, caller));
                    break;
                }
                Err(refusal) => {
                    caller.answer(self.stored_outcome(&proposal, &refusal).ok_or(refusal))
                }
            }
        }
        if !proposals.is_empty() {
            let is_proposed = self.log(first, proposals);
            self.inner
                .metrics
                .flush_seconds
                .observe(began.elapsed().as_secs_f64());
            self.inner.metrics.commits.inc_by(is_proposed.into());
        }
        is_full
    }

    /// Whether a command may be logged in this batch, and its time; `None` if that is unknown until all proposals are applied.
    fn admit(
        &mut self,
        at: &Result<Timestamp, SubmitError>,
        proposal: &Proposal,
    ) -> Result<Option<Timestamp>, SubmitError> {
        let Proposal {
            command,
            idempotency,
            ..
        } = proposal;
        if self.failed {
            return Err(SubmitError::StorageFailed);
        }
        if self.is_disk_short && !command.frees_space() {
            return Err(SubmitError::DiskFull);
        }
        let at = at.clone().inspect_err(|refusal| {
            let is_unsure = matches!(refusal, SubmitError::ClockUnsure(_));
            self.inner.metrics.clock_refused.inc_by(is_unsure.into());
        })?;
        if self.is_partly_applied {
            return Ok(None);
        }
        if cuckood_state::WaitingDemand::must_wait_for_clear(&self.state, command) {
            return Err(SubmitError::Overloaded);
        }
        let is_keyed = idempotency.is_some();
        let mut verdict = self.admission.admit(&self.state, command, at, is_keyed);
        while matches!(
            verdict,
            Verdict::BeyondLimit | Verdict::NoMemory(_) | Verdict::ReserveUsedUp
        ) && self.free_discarded(FREED_IN_NEED)
        {
            verdict = self.admission.admit(&self.state, command, at, is_keyed);
        }
        if matches!(command, Command::Insert { .. } | Command::ImportLines(_)) {
            let is_short = matches!(verdict, Verdict::BeyondLimit | Verdict::NoMemory(_));
            let limit = self.inner.options.memory_max_bytes;
            let short = if is_short {
                self.state.sizes().memory_bytes().min(limit)
            } else {
                limit
            };
            self.inner
                .memory_short_bytes
                .store(short, Ordering::Relaxed);
        }
        match verdict {
            Verdict::Admitted => Ok(Some(at)),
            Verdict::Later if !self.proposed.callers.is_empty() => Ok(None),
            Verdict::Later | Verdict::BeyondLimit => Err(SubmitError::MemoryLimit),
            Verdict::ReserveUsedUp => {
                let retry_after_seconds = self.state.seconds_to_forgotten_record();
                Err(SubmitError::IdempotencyFull {
                    retry_after_seconds,
                })
            }
            Verdict::NoMemory(refused) => {
                tracing::warn!(
                    bytes = refused.bytes,
                    "the system has no more memory; write rejected"
                );
                Err(SubmitError::NoMemory)
            }
        }
    }

    /// Returns the stored outcome of a repeated request that can't be logged: it needs no memory and no space.
    fn stored_outcome(&self, proposal: &Proposal, refusal: &SubmitError) -> Option<Applied> {
        let Proposal {
            command,
            idempotency,
            ..
        } = proposal;
        let is_short = match refusal {
            SubmitError::MemoryLimit
            | SubmitError::NoMemory
            | SubmitError::IdempotencyFull { .. } => true,
            SubmitError::DiskFull | SubmitError::LogFull => true,
            SubmitError::Overloaded | SubmitError::Recovering | SubmitError::Draining => false,
            SubmitError::TooFarBehind | SubmitError::NoQuorum | SubmitError::NotEnabled => false,
            // The time, or the state of the log, is unknown.
            SubmitError::StorageFailed | SubmitError::ClockUnsure(_) => false,
        };
        let key = idempotency.as_ref().filter(|_| is_short)?;
        self.state.stored_outcome(command, key, self.time.read())
    }

    /// Proposes commands, if the disk has space for the events of the holds that they will expire. An entry of a few bytes in the log can
    /// expire a thousand. Returns whether they are proposed; otherwise they are rejected.
    pub(super) fn log(&mut self, first: Ticket, proposals: Vec<Proposal>) -> bool {
        let at = proposals
            .last()
            .map_or_else(Timestamp::default, |proposal| proposal.at);
        let frees_space = proposals
            .iter()
            .all(|proposal| proposal.command.frees_space());
        let has_room = match self.state.sweep_events_bytes(proposals.len(), at) {
            0 => Ok(()),
            events_bytes if frees_space => self.store.space.check_reserve(events_bytes),
            events_bytes => self.store.space.check_beyond(events_bytes),
        };
        let proposed = has_room
            .map_err(Into::into)
            .and_then(|()| self.journal.propose(first, proposals));
        if let Err(error) = &proposed {
            let refusal = self.storage_error(error);
            for caller in self.proposed.callers.split_off(&first).into_values() {
                caller.answer(Err(refusal.clone()));
            }
        }
        proposed.is_ok()
    }

    /// Applies the entries that the journal has committed, our own and other nodes', and answers. Returns whether there was anything.
    pub(super) fn apply_committed(&mut self) -> bool {
        let mut any = false;
        while !self.failed
            && let Poll::Ready(news) = self
                .journal
                .poll(self.state.applied(), &mut Context::from_waker(&self.waker))
        {
            match news {
                Ok(Delivery::Entries(committed)) => {
                    self.apply(committed);
                    any = true;
                }
                Ok(Delivery::Passed(passed)) => {
                    while let Some((_, reply)) = self
                        .barriers
                        .pop_front_if(|(barrier, _)| *barrier <= passed)
                    {
                        let _ = reply.send(Ok(()));
                    }
                }
                Ok(Delivery::Current) => {}
                Err(error) => {
                    self.save_state(&error);
                    self.storage_error(&error);
                }
            }
        }
        // Once all admitted commands are applied or rejected, later ones are admitted by the state alone.
        if self.proposed.callers.is_empty() {
            self.admission.settle();
            self.is_partly_applied = false;
            self.inner.clock.release_readers();
        }
        any
    }

    fn apply(&mut self, committed: Vec<Committed>) {
        let began = Instant::now();
        self.inner.metrics.entries.inc_by(committed.len() as u64);
        let mut answers = Vec::with_capacity(committed.len());
        let mut bytes = 0;
        let mut stored = Ok(());
        self.inner.refusals.begin();
        for Committed { entry, ticket } in committed {
            bytes += entry.proposal.command.weight_bytes();
            self.advance.take_if(|advance| Some(*advance) == ticket);
            let applied = applying::apply(&mut self.state, entry);
            // Unwinds without another message: the engine reports this one, and the process ends.
            let applied =
                applied.unwrap_or_else(|unappliable| resume_unwind(Box::new(unappliable)));
            stored = stored.and(self.events.take(&self.store, &mut self.state));
            if let Some(caller) = ticket.and_then(|ticket| self.proposed.callers.remove(&ticket)) {
                answers.push((caller, applied));
            }
        }
        self.snapshotter.note_logged(bytes, &self.state);
        self.advance_after = began;
        self.is_partly_applied = true;
        self.state.publish();
        self.inner
            .metrics
            .apply_seconds
            .observe(began.elapsed().as_secs_f64());
        self.note_figures();
        self.inner.refusals.end();
        // Before a caller knows: it may judge holds by the clock from here on.
        if self.proposed.callers.is_empty() {
            self.inner.clock.release_readers();
        }
        answer_all(answers);
        // The commands are in the log, and the next start makes their events again.
        if let Err(error) = stored {
            self.storage_error(&error.into());
        }
    }

    /// Reports an unknown outcome to overdue callers. If the journal commits their commands later, they are applied. Commands that waited
    /// for them are rejected.
    fn fail_overdue_callers(&mut self) {
        let Some(before) = Instant::now().checked_sub(self.inner.options.commit_timeout) else {
            return;
        };
        self.proposed.fail_overdue(before);
        while !self.proposed.callers.is_empty()
            && let Some((_, overdue)) = self
                .pending
                .pop_front_if(|(_, caller)| caller.since <= before)
        {
            overdue.answer(Err(SubmitError::Overloaded));
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
        let latest = self.snapshotter.latest.as_ref();
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
        self.snapshotter.abort();
        let why = error.to_string();
        let is_diverged = matches!(error, JournalError::Diverged { .. });
        if is_diverged && let Err(error) = self.store.note_diverged(&why) {
            tracing::error!(%error, "the next start will not know that this node has diverged");
        }
        if matches!(error, JournalError::Trimmed(_)) {
            self.inner.outdated.notify_one();
        }
        self.inner.status.send_replace(if is_diverged {
            EngineStatus::Diverged(why)
        } else {
            EngineStatus::Failed(why)
        });
        self.proposed.callers.clear();
        self.barriers.clear();
        SubmitError::StorageFailed
    }
}
