//! The engine: one state, one journal and one writer, and everything that requests need of them.
//!
//! [`Engine::submit`] is the only way to change anything. It resolves once the change is durable and applied. Reads go straight
//! to the filters and take no lock.

mod admission;
pub mod applying;
mod backup;
mod chores;
mod cluster;
pub mod event_log;
mod event_reader;
pub mod imports;
mod metrics;
mod offline;
mod plan;
pub mod recovery;
mod refusals;
mod request;
mod restore;
mod snapshotter;
mod start;
mod timekeeping;
mod verify;
mod writer;

pub use crate::filter::{Digest, Growth, Layout, LayoutError, Mode, Secret, SegmentStats, StateCounts};
pub use crate::journal::{Durability, JournalOptions, Peer, Replication, random};
pub use crate::state::{
    Change, CodeFound, Eligibility, Explanation, FilterView, ImportTrial, NamedLineUp, Question,
    RedemptionPage, RedemptionQuery, Uncountable,
};
pub use backup::{ArchiveParts, Download, archive};
pub use cluster::{ClusterOptions, SharingFigures};
pub use event_log::EventFigures;
pub use event_reader::{EventReader, EventsError, NumberedEvent};
pub use metrics::Metrics;
pub use offline::{
    ClockRepair, archive_directory, positions, repair_clock, restore_into_cluster, skip_entry,
};
pub use plan::{Plan, creation, plan, update};
pub use recovery::{Progress, RecoveryError};
pub use request::SubmitError;
pub use restore::restore;
pub use snapshotter::{RunningSnapshot, SnapshotOptions, SnapshotReport};
pub use start::EngineOptions;
pub use verify::verify;

pub use crate::clock::ClockUnsure;
pub use crate::store::StoreFigures;
pub use crate::store::archive::{IMAGE_RECORD_BYTES_MAX, ImageReader};

use crate::clock::Clock;
use crate::domain::{
    Applied, Command, IdempotencyKey, Import, ImportId, KeyName, Kind, Name, Reference, Refusal, Seq,
    Timestamp,
};
use crate::state::{Sizes, State, View};
use crate::store::Store;
use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use refusals::{Attempt, Refusals};
use request::{Request, Room, Submission, Waiting};
use serde::Serialize;
use std::borrow::Borrow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;
use tokio::sync::{Notify, Semaphore, mpsc, oneshot, watch};
use utoipa::ToSchema;

/// Bytes of queued commands that one semaphore permit stands for.
const QUEUE_UNIT_BYTES: u64 = 256;

/// What the engine is doing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Status {
    /// It is loading the snapshot or replaying the log.
    Recovering(Progress),
    /// It serves reads and writes.
    Ready,
    /// It finishes the commands that it has accepted, and accepts no more.
    Draining,
    /// Storage or recovery has failed, for this reason.
    Failed(String),
    /// The state is not that of the other nodes, so nothing is served any more.
    Diverged(String),
    /// The writer has panicked, so the state can't be trusted: the process ends.
    Panicked(String),
}

/// The newest snapshot.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, ToSchema)]
#[schema(as = SnapshotInfo)]
pub struct LatestSnapshot {
    /// The last log entry that it covers.
    #[schema(value_type = u64)]
    pub seq: Seq,
    /// When it was taken.
    pub taken_at: Timestamp,
}

/// Sizes and positions of the whole engine.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Info {
    /// What an acknowledged write survives.
    pub durability: Durability,
    /// The last entry applied.
    pub last_seq: Seq,
    /// The newest snapshot, if there is one.
    pub snapshot: Option<LatestSnapshot>,
    /// Number of campaigns.
    pub campaigns: u64,
    /// Number of coupons.
    pub coupons: u64,
    /// Number of line-ups.
    pub line_ups: u64,
    /// Sizes of the state.
    pub sizes: Sizes,
    /// The most bytes that stored answers may take.
    pub idempotency_room_bytes: u64,
    /// Bytes of tables, including those that are dropped but not freed yet.
    pub tables_bytes: u64,
    /// Bytes of redemptions and stored answers, approximately; in the same way.
    pub records_bytes: u64,
    /// The most bytes that tables and records may take together.
    pub memory_max_bytes: u64,
    /// The store's own figures.
    pub storage: StoreFigures,
    /// Disk space that must stay free, in bytes.
    pub storage_free_min_bytes: u64,
    /// When the last backup was completed, if one was since the start.
    pub backup_at: Option<Timestamp>,
    /// Commands in the queue.
    pub queue_commands: u64,
    /// Sizes of the log of events.
    pub events: EventFigures,
    /// Seconds since the start.
    pub uptime_seconds: u64,
}

/// Sizes of the state and of the log of events.
#[derive(Clone, Copy, Debug, Default)]
struct Figures {
    /// The version of entries that is enabled.
    format: u16,
    sizes: Sizes,
    events: EventFigures,
}

/// What the writer publishes for threads that can't read the state itself.
#[derive(Debug, Default)]
struct Board {
    /// The last entry that readers see.
    applied: AtomicU64,
    /// The time of the last entry, in milliseconds since the epoch.
    logged_at: AtomicU64,
    figures: Mutex<Figures>,
}

impl Board {
    /// Publishes the state's position and sizes.
    fn note(&self, state: &State, events: EventFigures) {
        *self.figures.lock() = Figures { format: state.format(), sizes: state.sizes(), events };
        self.logged_at.store(state.now().0, Ordering::Relaxed);
        self.applied.store(state.applied().0, Ordering::Release);
    }

    fn logged_at(&self) -> Timestamp {
        Timestamp(self.logged_at.load(Ordering::Relaxed))
    }
}

/// A handle to the engine; clones share the same engine. Dropping the last one starts the shutdown;
/// [`Engine::shutdown`] also waits for it.
#[derive(Clone)]
pub struct Engine {
    inner: Arc<Inner>,
    requests: mpsc::Sender<Request>,
}

struct Inner {
    options: EngineOptions,
    clock: Clock,
    metrics: Metrics,
    started: Instant,
    /// Set once recovery is done.
    view: OnceLock<View>,
    /// Set while the writer has the store open.
    store: ArcSwapOption<Store>,
    status: watch::Sender<Status>,
    latest_snapshot: watch::Sender<Option<LatestSnapshot>>,
    /// When the last backup was completed, in milliseconds since the epoch; 0 for never.
    latest_backup: AtomicU64,
    board: Arc<Board>,
    refusals: Arc<Refusals>,
    /// Set once a replicated log is open.
    replication: OnceLock<Arc<Mutex<Replication>>>,
    /// What is known about the snapshots that the nodes share.
    sharing: Mutex<SharingFigures>,
    /// The log was trimmed past this node while it was running: only a restart helps.
    outdated: Arc<Notify>,
    /// Asks the thread that shares snapshots for one; `None` unless it is running.
    share: Mutex<Option<std::sync::mpsc::Sender<()>>>,
    /// The last entry applied, for those who wait for a position; only a shared log's is published.
    applied: watch::Sender<Seq>,
    /// The number of the last event.
    events_last: watch::Sender<u64>,
    event_waiters: Semaphore,
    room: Arc<Semaphore>,
}

impl Inner {
    fn info_position(&self) -> Seq {
        // Whoever sees a position must see what was published before it.
        Seq(self.board.applied.load(Ordering::Acquire))
    }
}

impl Engine {
    /// What the engine is doing.
    pub fn status(&self) -> Status {
        self.inner.status.borrow().clone()
    }

    /// Whether the engine serves reads and writes; cheaper than [`Self::status`].
    pub fn is_ready(&self) -> bool {
        matches!(*self.inner.status.borrow(), Status::Ready)
    }

    /// Waits until the log was trimmed past this node while it was running. Then only a restart helps: it begins with a shared snapshot.
    pub async fn outdated(&self) {
        self.inner.outdated.notified().await;
    }

    /// Waits until recovery has succeeded or failed.
    pub async fn recovered(&self) -> Status {
        let mut status = self.inner.status.subscribe();
        match status.wait_for(|status| !matches!(status, Status::Recovering(_))).await {
            Ok(status) => status.clone(),
            Err(_) => Status::Failed("the writer is gone".into()),
        }
    }

    /// Waits until the writer has panicked, and returns why.
    pub async fn panicked(&self) -> String {
        let mut status = self.inner.status.subscribe();
        loop {
            if let Status::Panicked(reason) = &*status.borrow_and_update() {
                return reason.clone();
            }
            if status.changed().await.is_err() {
                std::future::pending().await
            }
        }
    }

    /// The time that reads go by.
    pub fn now(&self) -> Timestamp {
        self.inner.clock.read()
    }

    /// Why the clock forbids writes now, if it does. Updates the clock's metrics.
    pub fn clock_unsure(&self) -> Option<ClockUnsure> {
        let Inner { clock, board, metrics, replication, .. } = &*self.inner;
        let logged = board.logged_at();
        let unsure = timekeeping::stamp(clock, replication.get().map(|known| &**known), logged).err();
        metrics.note_clock(unsure.is_some(), clock.offset_seconds());
        unsure
    }

    /// Why writes are rejected although the engine is ready; `None` if they aren't.
    pub fn writes_refused(&self) -> Option<SubmitError> {
        let Inner { store, board, options, .. } = &*self.inner;
        if let Some(refusal) = self.inner.log_refusal() {
            return Some(refusal);
        }
        if let Some(unsure) = self.clock_unsure() {
            return Some(unsure.into());
        }
        if store.load().as_ref().is_some_and(|store| store.space.check().is_err()) {
            return Some(SubmitError::DiskFull);
        }
        let sizes = board.figures.lock().sizes;
        (sizes.memory_bytes() >= options.memory_max_bytes).then_some(SubmitError::MemoryLimit)
    }

    /// The engine's metrics.
    pub fn metrics(&self) -> &Metrics {
        &self.inner.metrics
    }

    /// The filter of this name. There is none before recovery is done.
    pub fn find<N: Ord + ?Sized>(&self, kind: Kind, name: &N) -> Option<Arc<FilterView>>
    where
        Name: Borrow<N>,
    {
        self.inner.view.get()?.find(kind, name)
    }

    /// Lists up to `limit` filters by name, after `after`, whose names begin with `prefix`.
    pub fn list(&self, kind: Kind, prefix: &str, after: Option<&Name>, limit: usize) -> Vec<Arc<FilterView>> {
        self.inner.view.get().map(|view| view.list(kind, prefix, after, limit)).unwrap_or_default()
    }

    /// The line-up of this name.
    pub fn line_up(&self, name: &Name) -> Option<Arc<NamedLineUp>> {
        self.inner.view.get()?.line_up(name)
    }

    /// Lists up to `limit` line-ups by name, after `after`, whose names begin with `prefix`.
    pub fn list_line_ups(&self, prefix: &str, after: Option<&Name>, limit: usize) -> Vec<Arc<NamedLineUp>> {
        self.inner.view.get().map(|view| view.list_line_ups(prefix, after, limit)).unwrap_or_default()
    }

    /// Selects the campaigns that a user may see now.
    ///
    /// # Errors
    /// [`Uncountable`].
    pub fn evaluate<'a, N: AsRef<str>>(
        &self,
        question: &Question<'a, N>,
    ) -> Result<Eligibility<'a>, Uncountable> {
        match self.inner.view.get() {
            Some(view) => view.evaluate(question, self.now()),
            None => Ok(Eligibility::default()),
        }
    }

    /// The imports on record.
    pub fn imports(&self) -> Vec<Arc<Import>> {
        self.inner.view.get().map(View::imports).unwrap_or_default()
    }

    /// One import.
    pub fn import(&self, id: &ImportId) -> Option<Arc<Import>> {
        self.inner.view.get()?.import(id)
    }

    /// The refusal that a redemption gets now, if it is certain. Then it need not be submitted: nothing would come of it. A request that
    /// asks for its answer to be kept (idempotency) has to be.
    pub fn certain_refusal(
        &self,
        coupon: &FilterView,
        digest: Digest,
        reference: &Reference,
    ) -> Option<Refusal> {
        let Inner { options, refusals, metrics, clock, board, .. } = &*self.inner;
        // The attempts first: a failure of storage is known before the attempts end that it leaves undecided.
        if options.journal.is_shared() || refusals.is_attempted(digest) || self.refuse_unless_ready().is_err()
        {
            return None;
        }
        let refusal = refusals.between_commits(|| {
            let logged = board.logged_at();
            // Where the clock can't be trusted, the writer says so.
            let now = timekeeping::stamp(clock, None, logged).ok()?;
            // The request may have found it before its window, its stock or its tables were replaced.
            let newest = self.find(Kind::Coupon, &coupon.name).filter(|newest| newest.id == coupon.id)?;
            newest.certain_refusal(digest, reference, logged, now)
        })?;
        metrics.refused_unlogged.inc();
        Some(refusal)
    }

    /// Logs and applies a command. Resolves once it is durable, at the configured level, and applied. Dropping the future does
    /// not cancel the command.
    ///
    /// # Errors
    /// [`SubmitError`]. A refusal by the state is not an error: it is an outcome.
    pub async fn submit(
        &self,
        command: Command,
        key: Option<IdempotencyKey>,
    ) -> Result<Applied, SubmitError> {
        self.submit_by(None, command, key).await
    }

    /// [`Self::submit`] for the holder of an API key, whose name is logged with the command. The command is queued by the call, not when
    /// the future is first polled, so commands are applied in the order of the calls.
    ///
    /// # Errors
    /// As for [`Self::submit`].
    pub fn submit_by(
        &self,
        by: Option<KeyName>,
        command: Command,
        key: Option<IdempotencyKey>,
    ) -> impl Future<Output = Result<Applied, SubmitError>> + Send + use<> {
        let queue = || {
            self.refuse_unless_ready()?;
            let bytes = command.weight_bytes();
            let permits = u32::try_from(bytes.div_ceil(QUEUE_UNIT_BYTES)).unwrap_or(u32::MAX);
            let share =
                self.inner.room.clone().try_acquire_many_owned(permits).map_err(|_| self.overloaded())?;
            let room = Room { _share: share, _attempt: Attempt::of(&self.inner.refusals, &command) };
            let (reply, answer) = oneshot::channel();
            let waiting = Waiting { reply, since: Instant::now(), room };
            self.send(Request::Submit(Box::new(Submission { by, command, key, bytes, waiting })))?;
            Ok(answer)
        };
        let queued: Result<_, SubmitError> = queue();
        async { queued?.await.unwrap_or(Err(SubmitError::StorageFailed)) }
    }

    /// Takes a snapshot of everything acknowledged so far.
    ///
    /// # Errors
    /// [`SubmitError`].
    pub async fn snapshot(&self) -> Result<SnapshotReport, SubmitError> {
        self.refuse_unless_ready()?;
        let (reply, answer) = oneshot::channel();
        self.send(Request::Snapshot(reply))?;
        answer.await.unwrap_or(Err(SubmitError::StorageFailed))
    }

    /// Has a new snapshot shared with the other nodes soon, if this node shares any.
    pub fn share_snapshot(&self) {
        if let Some(share) = &*self.inner.share.lock() {
            let _ = share.send(());
        }
    }

    fn refuse_unless_ready(&self) -> Result<(), SubmitError> {
        match *self.inner.status.borrow() {
            Status::Ready => Ok(()),
            Status::Recovering(_) => Err(SubmitError::Recovering),
            Status::Draining => Err(SubmitError::Draining),
            Status::Failed(_) | Status::Diverged(_) | Status::Panicked(_) => Err(SubmitError::StorageFailed),
        }
    }

    fn send(&self, request: Request) -> Result<(), SubmitError> {
        self.requests.try_send(request).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => self.overloaded(),
            mpsc::error::TrySendError::Closed(_) => SubmitError::Draining,
        })
    }

    fn overloaded(&self) -> SubmitError {
        self.inner.metrics.overloaded.inc();
        SubmitError::Overloaded
    }

    /// Sizes and positions of the whole engine.
    pub fn info(&self) -> Info {
        let inner = &self.inner;
        let Figures { sizes, events, .. } = *inner.board.figures.lock();
        let count = |kind| inner.view.get().map_or(0, |view| view.count(kind) as u64);
        Info {
            durability: inner.options.journal.durability(),
            last_seq: inner.info_position(),
            snapshot: *inner.latest_snapshot.borrow(),
            campaigns: count(Kind::Campaign),
            coupons: count(Kind::Coupon),
            line_ups: inner.view.get().map_or(0, |view| view.line_ups_len() as u64),
            idempotency_room_bytes: inner.options.settings.idempotency_room_bytes,
            tables_bytes: sizes.tables_bytes + sizes.discarded_tables_bytes,
            records_bytes: sizes.records_bytes + sizes.discarded_records_bytes,
            sizes,
            memory_max_bytes: inner.options.memory_max_bytes,
            storage: inner.store.load().as_ref().map(|store| store.figures()).unwrap_or_default(),
            storage_free_min_bytes: inner.options.store.free_space_min_bytes,
            backup_at: Some(Timestamp(inner.latest_backup.load(Ordering::Relaxed))).filter(|at| at.0 > 0),
            queue_commands: (self.requests.max_capacity() - self.requests.capacity()) as u64,
            events,
            uptime_seconds: inner.started.elapsed().as_secs(),
        }
    }
}
