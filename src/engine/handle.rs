//! The handle to the engine: what requests ask of the state, of the writer, and of both together.

use super::protocol::{OutcomeQuery, Request, Submission};
use super::refusals::PendingRedemption;
use super::request::{Reply, Waiter};
use super::{EngineInfo, EngineMetrics, EngineStatus, Inner, SnapshotReport, SubmitError};
use cuckood_filter::Digest;
use cuckood_filter::{Filter, RestoreError};
use cuckood_state::FilterView;
use cuckood_state::domain::{
    Applied, Command, FORMAT_FIRST, FilterId, IdempotencyKey, KeyName, Kind, Meaning, Proposal,
    Reference, Refusal, Timestamp,
};
use cuckood_state::{Lookup, Views};
use std::panic::resume_unwind;
use std::sync::atomic::Ordering;
use std::sync::{Arc, LazyLock};
use tokio::runtime::Handle;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};
use tokio::task::spawn_blocking;

/// Maximum number of attempts to copy the tables of a filter that forgets: a step that begins during a copy makes it unusable.
const COPIES_MAX: u32 = 5;

/// Bytes of queued commands per semaphore permit.
pub(super) const QUEUE_UNIT_BYTES: u64 = 256;

/// The receiver of the writer's response.
type Response<T> = oneshot::Receiver<Result<T, SubmitError>>;

/// A handle to the engine; clones share the same engine. Dropping the last one starts the shutdown;
/// [`Engine::shutdown`] also waits for it.
#[derive(Clone)]
pub struct Engine {
    pub(super) inner: Arc<Inner>,
    pub(super) requests: mpsc::Sender<Request>,
}

/// A reference to an engine that does not keep it running.
#[derive(Clone)]
pub(super) struct WeakEngine {
    pub(super) inner: Arc<Inner>,
    pub(super) requests: mpsc::WeakSender<Request>,
}

impl WeakEngine {
    /// Returns the engine, for one request.
    ///
    /// # Errors
    /// [`SubmitError::Draining`] if it has ended, or its last handle is gone.
    pub(super) fn upgrade(&self) -> Result<Engine, SubmitError> {
        let requests = self
            .requests
            .upgrade()
            .filter(|requests| !requests.is_closed());
        let requests = requests.ok_or(SubmitError::Draining)?;
        Ok(Engine {
            inner: self.inner.clone(),
            requests,
        })
    }
}

impl Engine {
    /// Returns a reference that does not keep the engine running.
    pub(super) fn downgrade(&self) -> WeakEngine {
        WeakEngine {
            inner: self.inner.clone(),
            requests: self.requests.downgrade(),
        }
    }

    /// Returns the engine's status.
    pub fn status(&self) -> EngineStatus {
        self.inner.status.get()
    }

    /// Waits until the log was trimmed past this node while it was running. Then only a restart helps: it loads a shared snapshot.
    pub async fn outdated(&self) {
        self.inner.outdated.notified().await;
    }

    /// Waits until recovery has succeeded or failed.
    pub async fn recovered(&self) -> EngineStatus {
        self.wait_for_status(|status| !matches!(status, EngineStatus::Recovering(_)))
            .await
    }

    /// Waits for a status.
    pub async fn wait_for_status(
        &self,
        is_wanted: impl FnMut(&EngineStatus) -> bool,
    ) -> EngineStatus {
        let mut status = self.inner.status.subscribe();
        let found = status
            .wait_for(is_wanted)
            .await
            .map(|status| status.clone());
        // The sender lives as long as the engine.
        found.unwrap_or(EngineStatus::Draining)
    }

    /// The time that reads of the state go by. It stops while entries are in progress.
    pub fn now(&self) -> Timestamp {
        self.inner.clock.read()
    }

    /// The time that everything else goes by.
    pub fn time_of_day(&self) -> Timestamp {
        self.inner.clock.time_of_day()
    }

    /// The time of the last entry applied, or a little earlier.
    pub fn logged_at(&self) -> Timestamp {
        Timestamp(self.inner.logged_at.load(Ordering::Relaxed))
    }

    /// Why writes are rejected although the engine is ready; `None` if they aren't. Updates the clock's metrics.
    pub fn writes_refused(&self) -> Option<SubmitError> {
        let Inner {
            store,
            figures,
            memory_short_bytes,
            ..
        } = &*self.inner;
        let unsure = self.inner.stamp(self.logged_at()).err();
        let is_disk_full = || {
            store
                .load()
                .as_ref()
                .is_some_and(|store| store.space.check().is_err())
        };
        let is_memory_full =
            || figures.lock().sizes.memory_bytes() >= memory_short_bytes.load(Ordering::Relaxed);
        let refusal = self.inner.log_refusal().or(unsure.map(SubmitError::from));
        refusal
            .or_else(|| is_disk_full().then_some(SubmitError::DiskFull))
            .or_else(|| is_memory_full().then_some(SubmitError::MemoryLimit))
    }

    /// The engine's metrics.
    pub fn metrics(&self) -> &EngineMetrics {
        &self.inner.metrics
    }

    /// The read side; empty before recovery is complete.
    pub fn view(&self) -> &Views {
        static NOTHING: LazyLock<Views> = LazyLock::new(Views::default);
        self.inner.view.get().unwrap_or(&NOTHING)
    }

    /// Returns the refusal of a redemption, if it is certain now. Then it need not be submitted: it would have no effect. A request whose
    /// outcome must be stored (idempotency) has to be submitted.
    pub fn certain_refusal(
        &self,
        coupon: &FilterView,
        digest: Digest,
        reference: &Reference,
        customer: Option<Digest>,
    ) -> Option<Refusal> {
        let Inner {
            options,
            refusals,
            metrics,
            clock,
            ..
        } = &*self.inner;
        // The attempts first: a failure of storage is known before the attempts end that it leaves undecided.
        if options.journal.is_shared()
            || refusals.is_attempted(digest)
            || self.refuse_unless_ready().is_err()
        {
            return None;
        }
        let refusal = refusals.between_commits(|| {
            let logged = self.logged_at();
            // Where the clock can't be trusted, the writer says so.
            let now = clock.stamp(logged).ok()?;
            // The request may have found it before its window, its stock or its tables were replaced.
            let newest = self.view().find(Kind::Coupon, &coupon.name);
            let newest = newest.filter(|newest| newest.id == coupon.id)?;
            newest.certain_refusal(digest, reference, customer, logged, now)
        })?;
        metrics.refused_unlogged.inc();
        Some(refusal)
    }

    /// Logs and applies a command, with the name of the API key of its caller. Resolves once it is durable, at the configured level, and
    /// applied. Dropping the future does not cancel the command: it is queued by the call, not when the future is first polled. So commands
    /// are applied in the order of the calls.
    ///
    /// # Errors
    /// [`SubmitError`]. A refusal by the state is not an error: it is an outcome.
    pub fn submit(
        &self,
        by: Option<KeyName>,
        command: Command,
        key: Option<IdempotencyKey>,
    ) -> impl Future<Output = Result<Applied, SubmitError>> + Send + use<> {
        let proposal = Proposal {
            at: Timestamp(0),
            by,
            command,
            idempotency: key,
        };
        let queued = self.queue(proposal);
        let is_overloaded = queued.as_ref().err() == Some(&SubmitError::Overloaded);
        self.inner.metrics.overloaded.inc_by(is_overloaded.into());
        async { queued?.await.unwrap_or(Err(SubmitError::StorageFailed)) }
    }

    /// Queues a proposal for the writer. Returns the receiver of its outcome.
    fn queue(&self, proposal: Proposal) -> Result<Response<Applied>, SubmitError> {
        self.refuse_unless_ready()?;
        let command = &proposal.command;
        self.refuse_unless_enabled(command.version())?;
        let weight_bytes = command.weight_bytes();
        let permits = u32::try_from(weight_bytes.div_ceil(QUEUE_UNIT_BYTES)).unwrap_or(u32::MAX);
        let share = self.inner.room.clone().try_acquire_many_owned(permits);
        let share = share.map_err(|_| SubmitError::Overloaded)?;
        let room = (share, PendingRedemption::of(&self.inner.refusals, command));
        let (reply, response) = oneshot::channel();
        let waiter = Waiter {
            reply: Some(reply),
            since: self.inner.instant(),
            room,
            runtime: Handle::current(),
        };
        let submission = Submission {
            proposal,
            waiter,
            weight_bytes,
        };
        match self
            .requests
            .try_send(Request::Submit(Box::new(submission)))
        {
            Ok(()) => Ok(response),
            Err(TrySendError::Full(_)) => Err(SubmitError::Overloaded),
            Err(TrySendError::Closed(_)) => Err(SubmitError::Draining),
        }
    }

    /// Looks up what is stored for a command under an idempotency key. Unlike a submitted command, it changes nothing: a new command is not
    /// executed.
    ///
    /// # Errors
    /// [`SubmitError`].
    pub async fn recorded(
        &self,
        command: Command,
        key: IdempotencyKey,
    ) -> Result<Lookup, SubmitError> {
        self.refuse_unless_ready()?;
        let now = self.now();
        self.ask(|reply| {
            Request::StoredOutcome(Box::new(OutcomeQuery {
                command,
                key,
                now,
                reply,
            }))
        })
        .await
    }

    /// Returns the time that every stored outcome remains, in seconds, as logged.
    ///
    /// # Errors
    /// [`SubmitError`].
    pub async fn idempotency_retention_min_seconds(&self) -> Result<u64, SubmitError> {
        self.refuse_unless_ready()?;
        self.ask(Request::OutcomeRetention).await
    }

    /// Takes a snapshot of everything acknowledged so far.
    ///
    /// # Errors
    /// [`SubmitError`].
    pub async fn snapshot(&self) -> Result<SnapshotReport, SubmitError> {
        self.refuse_unless_ready()?;
        self.ask(Request::Snapshot).await
    }

    /// Copies the tables of a filter for a trial; `None` if the filter does not exist. `hold` accounts for their bytes.
    ///
    /// # Errors
    /// That of `hold`; [`SubmitError::NoMemory`], and [`SubmitError::Overloaded`] if a filter that forgets began a step during each copy.
    pub async fn copy_tables<E: From<SubmitError>>(
        &self,
        filter: FilterId,
        mut hold: impl FnMut(u64) -> Result<(), E>,
    ) -> Result<Option<Filter>, E> {
        for _ in 0..COPIES_MAX {
            self.refuse_unless_ready()?;
            let live = self
                .ask(|reply| Request::CopyTables { filter, reply })
                .await?;
            let Some(live) = live else {
                return Ok(None);
            };
            hold(live.memory_bytes())?;
            match spawn_blocking(move || live.copy())
                .await
                .unwrap_or_else(|panic| resume_unwind(panic.into_panic()))
            {
                Ok(copy) => return Ok(Some(copy)),
                Err(RestoreError::Memory(_)) => return Err(SubmitError::NoMemory.into()),
                Err(changed) => {
                    tracing::debug!(%changed, "the tables changed while they were copied")
                }
            }
        }
        Err(SubmitError::Overloaded.into())
    }

    /// Has a new snapshot shared with the other nodes soon, if this node shares any.
    pub fn share_snapshot(&self) {
        self.inner.share.notify_one();
    }

    /// Sends a request to the writer, and waits for its response. If the queue is full, it first waits for space.
    pub(super) async fn ask<T>(
        &self,
        request: impl FnOnce(Reply<T>) -> Request,
    ) -> Result<T, SubmitError> {
        let (reply, response) = oneshot::channel();
        self.requests
            .send(request(reply))
            .await
            .map_err(|_| SubmitError::Draining)?;
        response.await.unwrap_or(Err(SubmitError::StorageFailed))
    }

    /// Whether entries may have this meaning: all nodes understand it.
    pub fn has(&self, meaning: Meaning) -> bool {
        self.refuse_unless_enabled(meaning.since()).is_ok()
    }

    /// A version stays enabled, so a command that passes here may be logged.
    fn refuse_unless_enabled(&self, version: u16) -> Result<(), SubmitError> {
        let is_enabled = version <= FORMAT_FIRST || version <= self.inner.figures.lock().format;
        is_enabled.then_some(()).ok_or(SubmitError::NotEnabled)
    }

    pub(super) fn refuse_unless_ready(&self) -> Result<(), SubmitError> {
        match self.inner.status.get() {
            EngineStatus::Ready => Ok(()),
            EngineStatus::Recovering(_) => Err(SubmitError::Recovering),
            EngineStatus::Draining => Err(SubmitError::Draining),
            EngineStatus::Failed(_) | EngineStatus::Diverged(_) | EngineStatus::Panicked(_) => {
                Err(SubmitError::StorageFailed)
            }
        }
    }

    /// Sizes and positions of the engine.
    pub fn info(&self) -> EngineInfo {
        let noted = *self.inner.figures.lock();
        EngineInfo {
            last_seq: self.position(),
            tables_bytes: noted.sizes.tables_bytes + noted.sizes.discarded_tables_bytes,
            records_bytes: noted.sizes.records_bytes + noted.sizes.discarded_records_bytes,
            storage: self
                .inner
                .store
                .load()
                .as_ref()
                .map(|store| store.figures())
                .unwrap_or_default(),
            queue_commands: (self.requests.max_capacity() - self.requests.capacity()) as u64,
            uptime_seconds: self
                .inner
                .clock
                .monotonic()
                .since(self.inner.started)
                .as_secs(),
            ..noted
        }
    }
}
