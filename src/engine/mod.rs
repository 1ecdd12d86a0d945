//! The engine: everything that requests need, over one state, one journal and one writer.
//!
//! [`Engine::submit`] is the only way to change anything, and resolves once the change is durable and applied.
//! Reads go straight to the filters and take no lock.

mod admission;
mod backup;
pub mod imports;
mod inbox;
mod metrics;
pub mod recovery;
pub mod repair;
mod request;
mod restore;
pub mod running_snapshot;
mod snapshotter;
mod start;
mod timekeeping;
mod verify;
mod waiting;
mod writer;

pub use crate::filter::{Digest, Growth, Layout, LayoutError, Mode, Secret};
pub use crate::journal::{Durability, JournalOptions};
pub use crate::state::{Change, CodeFound, FilterView, RedemptionPage, RedemptionQuery};
pub use backup::{ArchiveSource, PART_BYTES_MAX};
pub use metrics::Metrics;
pub use recovery::{Progress, RecoveryError};
pub use restore::restore;
pub use snapshotter::{SnapshotOptions, SnapshotReport};
pub use start::EngineOptions;
pub use verify::verify;

pub use crate::clock::ClockUnsure;

use crate::clock::Clock;
use crate::domain::{
    Applied, Command, FilterId, IdempotencyKey, Import, ImportId, Kind, Name, RedemptionId, Seq, Sizing,
    Spec, Timestamp, Window,
};
use crate::filter::hash::SECRET_BYTES;
use crate::state::{State, View};
use crate::store::{Store, StoreFigures};
use arc_swap::ArcSwapOption;
use bytes::Bytes;
use request::{Request, Submission};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;
use thiserror::Error;
use tokio::sync::{Semaphore, mpsc, oneshot, watch};

/// Bytes that one permit of the queue stands for.
const QUEUE_UNIT_BYTES: u64 = 256;

/// What the engine is up to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Status {
    /// Reading the snapshot, replaying the log.
    Recovering(Progress),
    /// At work.
    Ready,
    /// Finishing what has been taken up; nothing more is.
    Draining,
    /// Storage has failed, or recovery was refused; why.
    Failed(String),
}

/// Why a command has no outcome. It was not applied, but for [`SubmitError::StorageFailed`].
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum SubmitError {
    /// Too much is waiting already.
    #[error("too many writes are waiting")]
    Overloaded,
    /// The state is not there yet.
    #[error("the service is recovering")]
    Recovering,
    /// The service is about to stop.
    #[error("the service is stopping")]
    Draining,
    /// A write or sync failed: whether the command will be found applied after a restart is unknown.
    #[error("storage has failed; whether the write took effect is unknown")]
    StorageFailed,
    /// It might have taken more memory than is allowed.
    #[error("the memory limit is reached")]
    MemoryLimit,
    /// It might have taken more memory than the system gives.
    #[error("the system gives no more memory")]
    NoMemory,
    /// Too little of the disk is free.
    #[error("the disk is too full")]
    DiskFull,
    /// The clock has jumped, or lags the log: holds would expire at the wrong time.
    #[error(transparent)]
    ClockUnsure(#[from] ClockUnsure),
}

/// The newest snapshot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LatestSnapshot {
    /// The last entry that it covers.
    pub seq: Seq,
    /// When it was taken.
    pub taken_at: Timestamp,
}

/// Figures of the whole.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Info {
    /// What an acknowledged write survives.
    pub durability: Durability,
    /// The last entry applied.
    pub last_seq: Seq,
    /// The newest snapshot, if there is one.
    pub snapshot: Option<LatestSnapshot>,
    /// Campaigns and coupons.
    pub filters: u64,
    /// Redemptions on record.
    pub redemptions: u64,
    /// Answers kept for repeated requests.
    pub idempotency_records: u64,
    /// Bytes of them.
    pub idempotency_bytes: u64,
    /// What those may come to.
    pub idempotency_room_bytes: u64,
    /// Bytes of tables.
    pub tables_bytes: u64,
    /// Bytes of redemptions and answers, about.
    pub records_bytes: u64,
    /// What those two may come to.
    pub memory_max_bytes: u64,
    /// The store's own figures.
    pub storage: StoreFigures,
    /// Seconds since the start.
    pub uptime_seconds: u64,
}

/// What a filter of some spec would be like.
#[derive(Clone, PartialEq, Debug)]
pub struct Plan {
    /// The first table.
    pub layout: Layout,
    /// Its memory.
    pub memory_bytes: u64,
    /// Memory an item at capacity, in bits.
    pub bits_per_item: f64,
    /// False positives at capacity: the share of "yes" among items that were never added.
    pub error_rate_at_capacity: f64,
    /// Items at capacity in each slot.
    pub load_at_capacity: f64,
    /// Why this layout.
    pub reason: String,
}

/// The state's sizes, for those who may not look at it.
#[derive(Debug, Default)]
struct Figures {
    applied: AtomicU64,
    logged_at: AtomicU64,
    redemptions: AtomicU64,
    idempotency_records: AtomicU64,
    idempotency_bytes: AtomicU64,
    tables_bytes: AtomicU64,
    records_bytes: AtomicU64,
}

impl Figures {
    fn note(&self, state: &State) {
        self.applied.store(state.applied().0, Ordering::Relaxed);
        self.logged_at.store(state.now().0, Ordering::Relaxed);
        self.redemptions.store(state.redemptions(), Ordering::Relaxed);
        self.idempotency_records.store(state.idempotency_records(), Ordering::Relaxed);
        self.idempotency_bytes.store(state.idempotency_bytes(), Ordering::Relaxed);
        self.tables_bytes.store(state.tables_bytes(), Ordering::Relaxed);
        self.records_bytes.store(state.records_bytes(), Ordering::Relaxed);
    }
}

/// A handle on the engine; clones are handles on the same one.
#[derive(Clone)]
pub struct Engine {
    inner: Arc<Inner>,
}

struct Inner {
    options: EngineOptions,
    clock: Clock,
    metrics: Metrics,
    started: Instant,
    /// Set once recovery is done.
    view: OnceLock<View>,
    /// Set while the writer has it.
    store: ArcSwapOption<Store>,
    status: watch::Sender<Status>,
    latest_snapshot: watch::Sender<Option<LatestSnapshot>>,
    figures: Arc<Figures>,
    requests: mpsc::Sender<Request>,
    room: Arc<Semaphore>,
}

impl Engine {
    /// What the engine is up to.
    pub fn status(&self) -> Status {
        self.inner.status.borrow().clone()
    }

    /// Whether the engine is at work; cheaper than [`Self::status`].
    pub fn is_ready(&self) -> bool {
        matches!(*self.inner.status.borrow(), Status::Ready)
    }

    /// Waits until recovery has ended, well or not.
    pub async fn recovered(&self) -> Status {
        let mut status = self.inner.status.subscribe();
        match status.wait_for(|status| !matches!(status, Status::Recovering(_))).await {
            Ok(status) => status.clone(),
            Err(_) => Status::Failed("the writer is gone".into()),
        }
    }

    /// The time that reads go by.
    pub fn now(&self) -> Timestamp {
        self.inner.clock.read()
    }

    /// Why nothing can be written now because of the clock, if that is so. Notes it in the metrics.
    pub fn clock_unsure(&self) -> Option<ClockUnsure> {
        let Inner { clock, figures, metrics, .. } = &*self.inner;
        let unsure = clock.stamp(Timestamp(figures.logged_at.load(Ordering::Relaxed))).err();
        metrics.note_clock(unsure.is_some(), clock.offset_seconds());
        unsure
    }

    /// Why writes are refused though the engine is at work, if they are.
    pub fn writes_refused(&self) -> Option<SubmitError> {
        let Inner { store, figures, options, .. } = &*self.inner;
        if store.load().as_ref().is_some_and(|store| store.check_space().is_err()) {
            return Some(SubmitError::DiskFull);
        }
        let taken_bytes =
            figures.tables_bytes.load(Ordering::Relaxed) + figures.records_bytes.load(Ordering::Relaxed);
        (taken_bytes >= options.memory_max_bytes).then_some(SubmitError::MemoryLimit)
    }

    /// The engine's own figures.
    pub fn metrics(&self) -> &Metrics {
        &self.inner.metrics
    }

    /// The bearer of a name. Nobody bears one before recovery is done.
    pub fn find(&self, kind: Kind, name: &Name) -> Option<Arc<FilterView>> {
        self.inner.view.get()?.find(kind, name)
    }

    /// Up to `limit` filters by name, those with `prefix`, after `after`.
    pub fn list(&self, kind: Kind, prefix: &str, after: Option<&Name>, limit: usize) -> Vec<Arc<FilterView>> {
        self.inner.view.get().map(|view| view.list(kind, prefix, after, limit)).unwrap_or_default()
    }

    /// The imports on record.
    pub fn imports(&self) -> Vec<Arc<Import>> {
        self.inner.view.get().map(View::imports).unwrap_or_default()
    }

    /// One import.
    pub fn import(&self, id: &ImportId) -> Option<Arc<Import>> {
        self.inner.view.get()?.import(id)
    }

    /// Has a command logged and applied. Resolves once it is durable at the configured level and applied; a
    /// caller who stops waiting does not stop it.
    ///
    /// # Errors
    /// [`SubmitError`]; a refusal by the state is an outcome instead.
    pub async fn submit(
        &self,
        command: Command,
        key: Option<IdempotencyKey>,
    ) -> Result<Applied, SubmitError> {
        self.refuse_unless_ready()?;
        let bytes = command.weight_bytes();
        let permits = u32::try_from(bytes.div_ceil(QUEUE_UNIT_BYTES)).unwrap_or(u32::MAX);
        let room = self.inner.room.clone().try_acquire_many_owned(permits).map_err(|_| self.overloaded())?;
        let (reply, answer) = oneshot::channel();
        let submission = Submission { command, key, bytes, since: Instant::now(), reply, room };
        self.send(Request::Submit(Box::new(submission)))?;
        answer.await.unwrap_or(Err(SubmitError::StorageFailed))
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

    /// Begins a backup: the newest snapshot and the log after it, as of now, while writes go on.
    ///
    /// # Errors
    /// [`SubmitError`]; [`SubmitError::Overloaded`] also when several are under way.
    pub async fn backup(&self) -> Result<Backup, SubmitError> {
        self.refuse_unless_ready()?;
        let token = Arc::new(());
        let (reply, answer) = oneshot::channel();
        self.send(Request::Backup(Arc::downgrade(&token), reply))?;
        let id = answer.await.unwrap_or(Err(SubmitError::StorageFailed))?;
        Ok(Backup { engine: self.clone(), id, _token: token })
    }

    fn refuse_unless_ready(&self) -> Result<(), SubmitError> {
        match *self.inner.status.borrow() {
            Status::Ready => Ok(()),
            Status::Recovering(_) => Err(SubmitError::Recovering),
            Status::Draining => Err(SubmitError::Draining),
            Status::Failed(_) => Err(SubmitError::StorageFailed),
        }
    }

    fn send(&self, request: Request) -> Result<(), SubmitError> {
        self.inner.requests.try_send(request).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => self.overloaded(),
            mpsc::error::TrySendError::Closed(_) => SubmitError::Draining,
        })
    }

    fn overloaded(&self) -> SubmitError {
        self.inner.metrics.overloaded.inc();
        SubmitError::Overloaded
    }

    /// The command that creates a filter: draws its id and secret and resolves its layout.
    ///
    /// # Errors
    /// When no layout fits the spec; the message names the field.
    pub fn creation(
        &self,
        kind: Kind,
        name: Name,
        spec: Spec,
        window: Window,
    ) -> Result<Command, LayoutError> {
        let layout = layout_of(&spec)?;
        let mut secret = [0; SECRET_BYTES];
        fill_random(&mut secret);
        let mut id = [0; 8];
        fill_random(&mut id);
        let id = FilterId(u64::from_le_bytes(id).max(1));
        Ok(Command::Create { kind, name, id, secret: Secret::new(secret), spec, layout, window })
    }

    /// A new redemption's id.
    pub fn redemption_id(&self) -> RedemptionId {
        let mut id = [0; 16];
        fill_random(&mut id);
        RedemptionId(id)
    }

    /// An id for an import that its client gave no name.
    pub fn import_id(&self) -> ImportId {
        let mut id = [0; 16];
        fill_random(&mut id);
        ImportId::new(&hex::encode(id)).expect("hexadecimal digits may stand in an import's id")
    }

    /// What a filter of this spec would be like.
    ///
    /// # Errors
    /// When no layout fits the spec; the message names the field.
    pub fn plan(&self, spec: &Spec) -> Result<Plan, LayoutError> {
        plan(spec)
    }

    /// Figures of the whole.
    pub fn info(&self) -> Info {
        let inner = &self.inner;
        let figures = &inner.figures;
        Info {
            durability: inner.options.journal.durability(),
            last_seq: Seq(figures.applied.load(Ordering::Relaxed)),
            snapshot: *inner.latest_snapshot.borrow(),
            filters: inner.view.get().map_or(0, |view| view.len() as u64),
            redemptions: figures.redemptions.load(Ordering::Relaxed),
            idempotency_records: figures.idempotency_records.load(Ordering::Relaxed),
            idempotency_bytes: figures.idempotency_bytes.load(Ordering::Relaxed),
            idempotency_room_bytes: inner.options.settings.idempotency_room_bytes,
            tables_bytes: figures.tables_bytes.load(Ordering::Relaxed),
            records_bytes: figures.records_bytes.load(Ordering::Relaxed),
            memory_max_bytes: inner.options.memory_max_bytes,
            storage: inner.store.load().as_ref().map(|store| store.figures()).unwrap_or_default(),
            uptime_seconds: inner.started.elapsed().as_secs(),
        }
    }
}

/// A backup under way; dropped, it ends.
pub struct Backup {
    engine: Engine,
    id: u64,
    _token: Arc<()>,
}

impl Backup {
    /// The next piece of the archive; none after its end. An archive that lacks its end is refused when read.
    pub async fn next(&mut self) -> Option<Result<Bytes, SubmitError>> {
        let (reply, answer) = oneshot::channel();
        if self.engine.inner.requests.send(Request::BackupPart(self.id, reply)).await.is_err() {
            return Some(Err(SubmitError::Draining));
        }
        answer.await.unwrap_or(Err(SubmitError::StorageFailed)).map(|part| part.map(Bytes::from)).transpose()
    }
}

/// What a filter of this spec would be like.
///
/// # Errors
/// When no layout fits the spec; the message names the field.
pub fn plan(spec: &Spec) -> Result<Plan, LayoutError> {
    let layout = layout_of(spec)?;
    let load_at_capacity = spec.capacity as f64 / layout.slots() as f64;
    let reason = match (spec.sizing, spec.growth) {
        (Sizing::Exact, _) => "a strict slot holds 62 bits of digest and 2 of state".to_string(),
        (Sizing::Layout { .. }, _) => "the layout was given".to_string(),
        (Sizing::ErrorRate(rate), Growth::Fixed) => {
            format!("the smallest table whose error stays within {rate} even when it is full")
        }
        (Sizing::ErrorRate(rate), Growth::Auto) => format!(
            "the smallest first segment that spends half of {rate}: each further one spends half of what is left"
        ),
    };
    Ok(Plan {
        layout,
        memory_bytes: layout.memory_bytes(),
        bits_per_item: layout.bits_per_item(spec.capacity),
        error_rate_at_capacity: layout.error_rate_at(load_at_capacity),
        load_at_capacity,
        reason,
    })
}

fn layout_of(spec: &Spec) -> Result<Layout, LayoutError> {
    match spec.sizing {
        Sizing::ErrorRate(rate) => Layout::compact(spec.capacity, rate, spec.growth),
        Sizing::Layout { fingerprint_bits, bucket_size, max_search } => {
            Layout::compact_with(spec.capacity, fingerprint_bits, bucket_size, max_search, spec.growth)
        }
        Sizing::Exact => Layout::strict(spec.capacity),
    }
}

/// Random bytes from the operating system.
fn fill_random(bytes: &mut [u8]) {
    getrandom::fill(bytes).expect("the operating system gives random bytes once it has booted");
}
