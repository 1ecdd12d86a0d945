//! Group commits: admits the pending commands, proposes them to the journal in one batch, applies the entries that the journal has
//! committed, in the journal's order, and responds.

use super::SubmitError;
use super::admission::{Admission, Verdict};
use super::applying;
use super::protocol::Submission;
use super::request::{Proposed, Reply, Waiter, answer_all, respond};
use super::writer::{BATCH_BYTES_MAX, BATCH_ENTRIES_MAX, Commits, PendingBarrier, Writer};
use cuckood_log::journal::{Committed, Delivery, Journal, Result, Ticket};
use cuckood_state::domain::{Applied, Command, Proposal, Seq, Timestamp};
use std::collections::VecDeque;
use std::panic::resume_unwind;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// Entries of a ledger that are freed before a command without memory is admitted again.
const FREED_IN_NEED: u64 = 65_536;

/// Beyond this number of callers that wait for a barrier, disconnected ones are dropped.
const BARRIERS_MAX: usize = 1_024;

impl Commits {
    /// The commits of a writer that this waker wakes. Commands of the startup may have been proposed before.
    pub(super) fn new(
        journal: Box<dyn Journal>,
        waker: Waker,
        admission: Admission,
        proposed: Proposed,
    ) -> Self {
        Self {
            journal,
            waker,
            admission,
            pending: VecDeque::new(),
            proposed,
            barriers: VecDeque::new(),
            is_partly_applied: false,
            is_disk_short: false,
        }
    }

    /// Whether a caller waits for the outcome of its command.
    pub(super) fn has_callers(&self) -> bool {
        !self.pending.is_empty() || self.proposed.oldest().is_some()
    }

    /// Since when the caller waits that has waited longest.
    pub(super) fn oldest_since(&self) -> Option<Instant> {
        let pending = self.pending.front().map(|submission| &submission.waiter);
        let oldest = self.proposed.oldest().into_iter().chain(pending);
        oldest.map(|waiter| waiter.since).min()
    }

    /// Requests a barrier from the journal.
    pub(super) fn request_barrier(&mut self, reply: Reply<()>) {
        let ticket = self.proposed.reserve(1);
        self.journal.barrier(ticket);
        self.barriers.push_back(PendingBarrier { ticket, reply });
        // A log that never answers must not accumulate disconnected callers.
        if self.barriers.len() > BARRIERS_MAX {
            self.barriers.retain(|barrier| !barrier.reply.is_closed());
        }
    }

    /// Responds to the callers of this barrier and of those before it.
    fn pass_barriers(&mut self, passed: Ticket) {
        while let Some(barrier) = self
            .barriers
            .pop_front_if(|barrier| barrier.ticket <= passed)
        {
            respond(barrier.reply, Ok(()));
        }
    }

    /// Returns the journal's next news after the last applied entry.
    fn poll(&mut self, applied: Seq, now: Instant) -> Poll<Result<Delivery>> {
        let mut context = Context::from_waker(&self.waker);
        self.journal.poll(applied, now, &mut context)
    }

    /// Reports an unknown outcome to callers that have waited for this time. If the journal commits their commands later, they are applied.
    /// Commands that waited for them are rejected.
    fn fail_overdue(&mut self, now: Instant, commit_timeout: Duration) {
        let Some(before) = now.checked_sub(commit_timeout) else {
            return;
        };
        self.proposed.fail_overdue(before);
        while !self.proposed.callers.is_empty()
            && let Some(overdue) = self
                .pending
                .pop_front_if(|submission| submission.waiter.since <= before)
        {
            overdue.waiter.answer(Err(SubmitError::Overloaded));
        }
    }

    /// Drops all callers of proposed commands and of barriers: they get an unknown outcome.
    pub(super) fn abandon_callers(&mut self) {
        self.proposed.callers.clear();
        self.barriers.clear();
    }
}

impl Writer {
    /// Proposes the pending commands and applies committed entries. Returns whether anything was applied.
    pub(super) fn make_progress(&mut self) -> bool {
        let mut any = false;
        loop {
            let is_full = self.propose_pending();
            any |= self.apply_committed();
            let is_waiting = !is_full && !self.commits.proposed.callers.is_empty();
            if self.commits.pending.is_empty() || is_waiting {
                break;
            }
        }
        let now = self.inner.instant();
        self.commits
            .fail_overdue(now, self.inner.options.commit_timeout);
        any
    }

    /// Admits the pending commands and proposes them in one group commit. Some may have to wait until the others are applied. Returns
    /// whether there may be some that exceeded the batch.
    fn propose_pending(&mut self) -> bool {
        if self.commits.pending.is_empty() {
            return false;
        }
        self.commits.is_disk_short = self.store.space.check().is_err();
        if !self.commits.is_disk_short {
            self.store.space.restore_ballast();
        }
        let began = self.inner.instant();
        let stamp = self.time.stamp_entries(self.state.now());
        let at = self
            .inner
            .log_refusal()
            .map_or(stamp.map_err(SubmitError::from), Err);
        let first = self.commits.proposed.reserve(0);
        let mut proposals = Vec::new();
        let mut bytes = 0;
        let mut is_full = false;
        while !is_full && let Some(submission) = self.commits.pending.pop_front() {
            match self.admit(&at, &submission.proposal) {
                Ok(Some(at)) => {
                    let Submission {
                        proposal,
                        waiter,
                        weight_bytes,
                    } = submission;
                    let ticket = self.commits.proposed.reserve(1);
                    let since = began;
                    let waiter = Waiter { since, ..waiter };
                    self.commits.proposed.callers.insert(ticket, waiter);
                    proposals.push(Proposal { at, ..proposal });
                    bytes += weight_bytes;
                    is_full = proposals.len() >= BATCH_ENTRIES_MAX || bytes >= BATCH_BYTES_MAX;
                }
                Ok(None) => {
                    self.commits.pending.push_front(submission);
                    break;
                }
                Err(refusal) => {
                    let stored = self.stored_outcome(&submission.proposal, &refusal);
                    submission.waiter.answer(stored.ok_or(refusal));
                }
            }
        }
        if !proposals.is_empty() {
            let is_proposed = self.log(first, proposals);
            self.inner
                .metrics
                .flush_seconds
                .observe(self.inner.seconds_since(began));
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
        if self.commits.is_disk_short && !command.frees_space() {
            return Err(SubmitError::DiskFull);
        }
        let at = at.clone().inspect_err(|refusal| {
            let is_unsure = matches!(refusal, SubmitError::ClockUnsure(_));
            self.inner.metrics.clock_refused.inc_by(is_unsure.into());
        })?;
        if self.commits.is_partly_applied {
            return Ok(None);
        }
        if cuckood_state::WaitingDemand::must_wait_for_clear(&self.state, command) {
            return Err(SubmitError::Overloaded);
        }
        let is_keyed = idempotency.is_some();
        let mut verdict = self
            .commits
            .admission
            .admit(&self.state, command, at, is_keyed);
        while matches!(
            verdict,
            Verdict::BeyondLimit | Verdict::NoMemory(_) | Verdict::ReserveUsedUp
        ) && self.free_discarded(FREED_IN_NEED)
        {
            verdict = self
                .commits
                .admission
                .admit(&self.state, command, at, is_keyed);
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
            Verdict::Later if !self.commits.proposed.callers.is_empty() => Ok(None),
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
            .and_then(|()| self.commits.journal.propose(first, proposals));
        if let Err(error) = &proposed {
            let refusal = self.storage_error(error);
            for caller in self
                .commits
                .proposed
                .callers
                .split_off(&first)
                .into_values()
            {
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
                .commits
                .poll(self.state.applied(), self.inner.instant())
        {
            match news {
                Ok(Delivery::Entries(committed)) => {
                    self.apply(committed);
                    any = true;
                }
                Ok(Delivery::Passed(passed)) => self.commits.pass_barriers(passed),
                Ok(Delivery::Current) => {}
                Err(error) => {
                    self.save_state(&error);
                    self.storage_error(&error);
                }
            }
        }
        // Once all admitted commands are applied or rejected, later ones are admitted by the state alone.
        if self.commits.proposed.callers.is_empty() {
            self.commits.admission.settle();
            self.commits.is_partly_applied = false;
            self.inner.clock.release_readers();
        }
        any
    }

    fn apply(&mut self, committed: Vec<Committed>) {
        let began = self.inner.instant();
        self.inner.metrics.entries.inc_by(committed.len() as u64);
        let mut answers = Vec::with_capacity(committed.len());
        let mut bytes = 0;
        let mut stored = Ok(());
        self.inner.refusals.begin();
        for Committed { entry, ticket } in committed {
            bytes += entry.proposal.command.weight_bytes();
            self.upkeep
                .advance
                .take_if(|advance| Some(*advance) == ticket);
            let applied = applying::apply(&mut self.state, entry);
            // Unwinds without another message: the engine reports this one, and the process ends.
            let applied =
                applied.unwrap_or_else(|unappliable| resume_unwind(Box::new(unappliable)));
            stored = stored.and(self.events.take(&self.store, &mut self.state));
            let callers = &mut self.commits.proposed.callers;
            if let Some(caller) = ticket.and_then(|ticket| callers.remove(&ticket)) {
                answers.push((caller, applied));
            }
        }
        self.upkeep.snapshotter.note_logged(bytes, &self.state);
        self.upkeep.advance_after = began;
        self.commits.is_partly_applied = true;
        self.state.publish();
        self.inner
            .metrics
            .apply_seconds
            .observe(self.inner.seconds_since(began));
        self.note_figures();
        self.inner.refusals.end();
        // Before a caller knows: it may judge holds by the clock from here on.
        if self.commits.proposed.callers.is_empty() {
            self.inner.clock.release_readers();
        }
        answer_all(answers);
        // The commands are in the log, and the next start makes their events again.
        if let Err(error) = stored {
            self.storage_error(&error.into());
        }
    }
}
