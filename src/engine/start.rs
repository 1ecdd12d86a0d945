//! Start and stop of the engine: the writer's thread opens the store, recovers, serves, and shuts down. If the directory is empty, or the log
//! was trimmed past it, it is filled from a snapshot that nodes share first, as a restore does it.

use super::admission::Admission;
use super::applying::{Unappliable, message};
use super::backup::Downloads;
use super::cluster::{ClusterOptions, start_sharing};
use super::event_reader::EVENT_WAITERS_MAX;
use super::recovery::{Recovered, RecoveryError, recover};
use super::request::{Barriers, Inbox, Request, WaitingList};
use super::restore::load_shared;
use super::snapshotter::{SnapshotOptions, Snapshotter};
use super::timekeeping::Timekeeper;
use super::writer::Writer;
use super::{Engine, Inner, Metrics, Progress, QUEUE_UNIT_BYTES, SharingFigures, Status};
use crate::clock::Clock;
use crate::domain::{
    ClockReading, Command, Ending, FORMAT_VERSION, Import, ImportState, Proposal, Seq, Settings, Target,
    Timestamp,
};
use crate::journal::{
    self, Durability, Journal, JournalError, JournalOptions, LocalOptions, NatsSnapshots, SharedSnapshot,
    read_shared,
};
use crate::state::{RestoreStateError, State, enabled_in};
use crate::store::archive::Piece;
use crate::store::{Manifest, Store, StoreError, StoreOptions, is_unused};
use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use std::any::Any;
use std::collections::VecDeque;
use std::hash::RandomState;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};
use std::task::Waker;
use std::thread;
use std::time::{Duration, Instant};
use tokio::sync::{Semaphore, mpsc, oneshot, watch};

/// Bytes of log that a replayed entry is reckoned to take.
const ENTRY_BYTES: u64 = 128;

/// Bytes that tables must leave free for answers, redemptions, connections and the store. A start asks for less: what was
/// admitted before must find its place again.
const SPARE_BYTES: u64 = 64 << 20;

/// How long the journal may take to commit. A local commit takes milliseconds; a replicated log without a leader recovers within
/// seconds or is in trouble.
const COMMIT_PATIENCE: Duration = Duration::from_secs(30);

/// The same for a log that several nodes share: longer than a new leader takes, shorter than a client waits.
const SHARED_COMMIT_PATIENCE: Duration = Duration::from_secs(10);

/// Among several nodes, an import that has made no progress for so long has lost its upload. An upload ends itself after the
/// pause that `server.body_timeout` allows.
const UPLOAD_IDLE_MAX: Duration = Duration::from_secs(600);

/// Time between two log lines about a long phase of recovery.
const REPORT_PAUSE: Duration = Duration::from_secs(1);

/// Options of an engine.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// The data directory.
    pub path: PathBuf,
    /// Options of the store.
    pub store: StoreOptions,
    /// Which journal the engine runs on.
    pub journal: JournalOptions,
    /// What holds if other nodes share the log.
    pub cluster: ClusterOptions,
    /// Settings of the state machine; logged as an entry when they differ from those in the log.
    pub settings: Settings,
    /// When snapshots are taken.
    pub snapshots: SnapshotOptions,
    /// The most bytes that tables and records may take.
    pub memory_max_bytes: u64,
    /// The most bytes that stored events may take. Beyond it the oldest go before their retention is over.
    pub events_room_bytes: u64,
    /// How long the journal may take to commit a command. After that the caller is told that its outcome is unknown.
    pub commit_patience: Duration,
    /// The most commands that may be queued.
    pub queue_commands_max: usize,
    /// The most bytes of commands that may be queued.
    pub queue_bytes_max: u64,
}

impl EngineOptions {
    /// The defaults for a data directory.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            store: StoreOptions::default(),
            journal: JournalOptions::default(),
            cluster: ClusterOptions::default(),
            settings: Settings::default(),
            snapshots: SnapshotOptions::default(),
            memory_max_bytes: 1 << 30,
            events_room_bytes: 8 << 30,
            commit_patience: COMMIT_PATIENCE,
            queue_commands_max: 65_536,
            queue_bytes_max: 64 << 20,
        }
    }

    /// Keeps the log in the node's own store at this durability. A snapshot survives no more than the log after it.
    pub fn on_local_journal(mut self, journal: LocalOptions) -> Self {
        self.store.sync_snapshots = journal.durability == Durability::Fsync;
        self.journal = JournalOptions::Local(journal);
        self
    }

    /// Shares a log with other nodes. Callers can try another node, so they are told sooner that an outcome is unknown.
    pub fn on_shared_journal(mut self, journal: JournalOptions, cluster: ClusterOptions) -> Self {
        self.store.sync_snapshots = true;
        self.commit_patience = SHARED_COMMIT_PATIENCE;
        (self.journal, self.cluster) = (journal, cluster);
        self
    }
}

impl Engine {
    /// Starts an engine over a data directory. Returns at once; [`Engine::recovered`] waits for recovery.
    pub fn start(options: EngineOptions, clock: Clock) -> Engine {
        let (requests, inbox) = mpsc::channel(options.queue_commands_max);
        let permits = usize::try_from(options.queue_bytes_max / QUEUE_UNIT_BYTES).unwrap_or(usize::MAX);
        let beginning = Progress { phase: "opening", done: 0, total: None };
        let inner = Arc::new(Inner {
            clock,
            metrics: Metrics::default(),
            started: Instant::now(),
            view: OnceLock::new(),
            store: ArcSwapOption::empty(),
            status: watch::Sender::new(Status::Recovering(beginning)),
            latest_snapshot: watch::Sender::new(None),
            latest_backup: AtomicU64::new(0),
            board: Arc::default(),
            refusals: Arc::default(),
            replication: OnceLock::new(),
            sharing: Mutex::new(SharingFigures::default()),
            outdated: Arc::default(),
            share: Mutex::default(),
            applied: watch::Sender::new(Seq(0)),
            events_last: watch::Sender::new(0),
            event_waiters: Semaphore::new(EVENT_WAITERS_MAX),
            room: Arc::new(Semaphore::new(permits.min(Semaphore::MAX_PERMITS))),
            options,
        });
        let (parts, weak) = (inner.clone(), requests.downgrade());
        let spawned = thread::Builder::new().name("writer".into()).spawn(move || serve(&parts, &weak, inbox));
        if let Err(error) = spawned {
            inner
                .status
                .send_replace(Status::Failed(format!("the writer's thread can't be started: {error}")));
        }
        Engine { inner, requests }
    }

    /// Stops accepting commands, finishes the pending ones, takes a last snapshot and closes the store.
    pub async fn shutdown(&self) {
        // Commands that arrive from here on are refused with `Draining`. An earlier failure stays visible.
        self.inner.status.send_if_modified(|status| match status {
            Status::Ready | Status::Recovering(_) => {
                *status = Status::Draining;
                true
            }
            _ => false,
        });
        let (done, finished) = oneshot::channel();
        if self.requests.send(Request::Shutdown(done)).await.is_ok() {
            // An error means that the writer has already ended.
            let _ = finished.await;
        }
    }
}

/// The writer's thread, from start to end: until a shutdown, or until no [`Engine`] is left to send requests.
fn serve(inner: &Arc<Inner>, requests: &mpsc::WeakSender<Request>, inbox: mpsc::Receiver<Request>) {
    let inbox = Inbox::new(inbox);
    let prepared = catch_unwind(AssertUnwindSafe(|| prepare(inner, inbox.waker())));
    match prepared.map_err(|panic| panic_reason(inner, panic)) {
        Ok(Ok(writer)) => {
            inner.status.send_if_modified(|status| {
                let recovering = matches!(status, Status::Recovering(_));
                if recovering {
                    *status = Status::Ready;
                }
                recovering
            });
            start_sharing(inner, requests);
            // A panic means that an invariant is broken: nothing may be written any more, and the status must say so.
            let ended = catch_unwind(AssertUnwindSafe(|| writer.run(inbox)));
            *inner.share.lock() = None;
            inner.store.store(None);
            match ended {
                // Answered only now that the store is closed: the caller may open it again at once.
                Ok(done) => drop(done.map(|done| done.send(()))),
                Err(panic) => {
                    let reason = panic_reason(inner, panic);
                    inner.status.send_replace(Status::Panicked(reason));
                }
            }
        }
        Err(reason) => drop(inner.status.send_replace(Status::Failed(reason))),
        Ok(Err(error)) => {
            tracing::error!(%error, "the engine can't start");
            inner.status.send_replace(Status::Failed(error.to_string()));
        }
    }
}

/// What is reported of a panic of the writer's thread.
fn panic_reason(inner: &Inner, panic: Box<dyn Any + Send>) -> String {
    let EngineOptions { path, journal, .. } = &inner.options;
    let dir = path.display();
    let reason = match panic.downcast::<Unappliable>() {
        Ok(unappliable) => unappliable.advice(path, journal.is_shared()),
        Err(panic) => {
            format!("{dir}: the writer has panicked: {}; run `cuckood verify {dir}`", message(&*panic))
        }
    };
    tracing::error!(reason, "the writer has panicked");
    reason
}

fn prepare(inner: &Arc<Inner>, waker: Waker) -> Result<Writer, RecoveryError> {
    let options = &inner.options;
    let began = Instant::now();
    let bootstrap = Bootstrap { options, clock: inner.clock.reading() };
    let Opened { store, journal: (mut journal, replication), is_filled } =
        bootstrap.open(&mut report_progress(inner))?;
    inner.store.store(Some(store.clone()));
    if let Some(replication) = replication {
        // It is set here and nowhere else.
        let _ = inner.replication.set(replication);
    }
    let recovered = recover(&store, &mut *journal, &mut report_progress(inner))?;
    if let JournalOptions::Nats(nats) = &options.journal {
        let (at, version) = (recovered.state.applied(), recovered.state.format());
        JournalError::check_version(at, version, nats.understands)?;
    }
    for manifest in &recovered.damaged {
        store.forget_snapshot(manifest)?;
    }
    let logged = recovered.state.now();
    let mut time = Timekeeper::new(inner, &store, logged);
    // If the clock can't be trusted, no time passes: what a start has to log is logged at the time of the last entry.
    let at = time.stamp(logged).unwrap_or(logged);
    let mut waiting = WaitingList::default();
    log_beginning(&mut *journal, &mut waiting, &recovered.state, options, at)?;
    note_recovered(inner, &recovered, is_filled, began.elapsed());
    // The view is set here and nowhere else, so it can't be set already.
    let _ = inner.view.set(recovered.state.view());
    let (log_bytes, mut events) = (recovered.replayed * ENTRY_BYTES, recovered.events);
    let snapshotter =
        Snapshotter::new(store.clone(), options.snapshots.clone(), recovered.manifest, log_bytes);
    events.room_bytes = options.events_room_bytes;
    let mut writer = Writer {
        inner: inner.clone(),
        state: recovered.state,
        events,
        journal,
        store,
        snapshotter,
        time,
        admission: Admission::new(options.memory_max_bytes, SPARE_BYTES),
        pending: VecDeque::new(),
        waiting,
        barriers: Barriers::default(),
        is_partly_applied: false,
        waker,
        snapshot_waiters: Vec::new(),
        snapshots_asked: Vec::new(),
        downloads: Downloads::default(),
        turns: RandomState::new(),
        is_freeing_held_up: false,
        advance: None,
        proposed: None,
        is_disk_short: false,
        failed: false,
    };
    writer.note_figures();
    writer.apply_committed();
    // Nobody waits for a command yet.
    writer.state.free_discarded(u64::MAX);
    writer.note_figures();
    writer.note_snapshot();
    Ok(writer)
}

/// Logs the end of recovery and records its metrics.
fn note_recovered(inner: &Inner, recovered: &Recovered, is_filled: bool, took: Duration) {
    inner.sharing.lock().bootstrap = is_filled.then_some(took);
    let metrics = &inner.metrics;
    metrics.recovery_seconds.set(took.as_secs_f64());
    metrics.replay_seconds.set(recovered.replay_time.as_secs_f64());
    metrics.replayed_entries.set(recovered.replayed as i64);
    tracing::info!(
        seq = recovered.state.applied().0,
        snapshot = recovered.manifest.as_ref().map(|manifest| manifest.seq.0),
        replayed = recovered.replayed,
        milliseconds = took.as_millis() as u64,
        "recovered"
    );
}

/// Reports progress of recovery: in the log now and then, in the status always.
fn report_progress(inner: &Inner) -> impl FnMut(Progress) {
    let mut last: Option<(&str, Instant)> = None;
    move |progress| {
        if last.is_none_or(|(phase, at)| phase != progress.phase || at.elapsed() >= REPORT_PAUSE) {
            last = Some((progress.phase, Instant::now()));
            let Progress { phase, done, total } = progress;
            tracing::info!(phase, done, total, "recovering");
        }
        inner.status.send_if_modified(|status| {
            if matches!(status, Status::Recovering(_)) {
                *status = Status::Recovering(progress);
            }
            true
        });
    }
}

/// Logs what a startup has to log: its settings, and the end of images and imports whose uploads ended with a process. Their tables take
/// memory. If the disk is full, the service still starts and serves reads; the next startup logs it.
fn log_beginning(
    journal: &mut dyn Journal,
    waiting: &mut WaitingList,
    state: &State,
    options: &EngineOptions,
    at: Timestamp,
) -> Result<(), JournalError> {
    let (ours, logs) = (&options.settings, state.settings());
    let mut commands = Vec::new();
    if ours != logs && holds_settings(options, state) {
        tracing::warn!(
            ?ours,
            ?logs,
            "settings differ from the log's, which apply; cluster.configure replaces them"
        );
    } else if ours != logs {
        commands.push(Command::Configure(ours.clone()));
    }
    let dead_before = uploads_dead_before(options, at);
    let images = state.images_unmoved_since(dead_before).into_iter();
    commands.extend(images.map(|upload| Command::ImageAbandon { upload }));
    let is_dead = |import: &Import| import.state == ImportState::Running && import.changed_at < dead_before;
    let imports = state.view().imports().into_iter().filter(|import| is_dead(import));
    commands.extend(imports.map(|import| {
        let (target, import) = (Target(import.filter), import.id.clone());
        Command::ImportEnd { target, import, ending: Ending::BrokenOff, entries_max: 0 }
    }));
    if commands.is_empty() {
        return Ok(());
    }
    let proposals: Vec<_> = commands.into_iter().map(|command| Proposal::new(at, command)).collect();
    match journal.propose(waiting.reserve(proposals.len()), proposals) {
        Err(JournalError::DiskFull(reason)) => {
            tracing::warn!(reason, "disk full; settings stay, and interrupted uploads are not ended");
            Ok(())
        }
        proposed => proposed,
    }
}

/// Whether the log's settings hold, whatever this node's are: others share the log, and have begun it.
fn holds_settings(options: &EngineOptions, state: &State) -> bool {
    options.journal.is_shared() && !options.cluster.configure && state.applied() > Seq(0)
}

/// An import that has made no progress since then has lost its upload. A node on its own knows that all of them have. Among several
/// nodes another one may have it, and would have ended it if it were idle for so long.
fn uploads_dead_before(options: &EngineOptions, at: Timestamp) -> Timestamp {
    if !matches!(options.journal, JournalOptions::Nats(_)) {
        return Timestamp::MAX;
    }
    Timestamp(at.0.saturating_sub(UPLOAD_IDLE_MAX.as_millis() as u64))
}

/// Pause before shared snapshots are tried again.
const PAUSE: Duration = Duration::from_millis(500);

/// An open directory and its log.
pub(super) struct Opened {
    pub(super) store: Arc<Store>,
    pub(super) journal: journal::Opened,
    /// Whether the directory was filled from a shared snapshot.
    pub(super) is_filled: bool,
}

/// The node whose directory is opened.
pub(super) struct Bootstrap<'a> {
    pub(super) options: &'a EngineOptions,
    /// What the clocks say now.
    pub(super) clock: ClockReading,
}

impl Bootstrap<'_> {
    /// Opens the directory and the log.
    ///
    /// # Errors
    /// If the log was trimmed past the directory, and no shared snapshot can be used; otherwise those of the store and the journal.
    pub(super) fn open(&self, report: &mut dyn FnMut(Progress)) -> Result<Opened, RecoveryError> {
        let may_fill = self.options.journal.is_shared() && is_unused(&self.options.path);
        let is_filled = may_fill && self.fill(report)?;
        let why = match self.open_directory(is_filled) {
            Err(RecoveryError::Journal(JournalError::Trimmed(why))) => why,
            opened => return opened,
        };
        tracing::warn!(why, "the log was trimmed: beginning with a snapshot that nodes share");
        if !self.fill(report)? {
            return Err(JournalError::Trimmed(format!("{why}; and the nodes share no snapshot")).into());
        }
        self.open_directory(true)
    }

    fn open_directory(&self, is_filled: bool) -> Result<Opened, RecoveryError> {
        let store = Arc::new(Store::open(&self.options.path, &self.options.store)?);
        Ok(Opened { journal: self.options.journal.open(&store)?, store, is_filled })
    }

    /// Fills the directory from the newest shared snapshot that is complete. What it held is given up, but not before such a snapshot was
    /// found. Servers that were just started may fail for a while, and other nodes may share another snapshot, so it tries again until
    /// `nats.connect_timeout`. Returns whether there is any; a log that reaches back to its first message does without.
    fn fill(&self, report: &mut dyn FnMut(Progress)) -> Result<bool, RecoveryError> {
        let Some(shared) = self.options.journal.shared_snapshots()? else { return Ok(false) };
        let until = Instant::now() + shared.options().connect_timeout;
        loop {
            let error = match self.fill_once(&shared, report) {
                Ok(is_filled) => return Ok(is_filled),
                Err(error) => error,
            };
            // Nothing is damaged: this build is too old.
            if is_newer(&error) || Instant::now() >= until && !shared.is_log_whole()? {
                return Err(error);
            }
            if Instant::now() >= until {
                tracing::warn!(%error, "can't use shared snapshots; reading the log from its first message");
                return Ok(false);
            }
            report(Progress { phase: "waiting for a shared snapshot", done: 0, total: None });
            thread::sleep(PAUSE);
        }
    }

    /// Tries the shared snapshots, the newest first.
    fn fill_once(
        &self,
        shared: &NatsSnapshots,
        report: &mut dyn FnMut(Progress),
    ) -> Result<bool, RecoveryError> {
        let mut faults = Vec::new();
        for snapshot in shared.list()? {
            match self.load(shared, &snapshot, report) {
                Ok(()) => {
                    let SharedSnapshot { name, bytes, node, seq, .. } = snapshot;
                    tracing::info!(name, bytes, node, seq = seq.0, "began with a shared snapshot");
                    return Ok(true);
                }
                Err(error) if is_newer(&error) => return Err(error),
                Err(error) => {
                    tracing::error!(snapshot.name, %error, "can't use a shared snapshot");
                    faults.push(error.to_string());
                }
            }
        }
        if faults.is_empty() {
            return Ok(false);
        }
        let why = format!("no shared snapshot can be used: {}", faults.join("; "));
        Err(JournalError::Damaged(why).into())
    }

    /// Reads a snapshot to its end, then into the directory.
    fn load(
        &self,
        shared: &NatsSnapshots,
        snapshot: &SharedSnapshot,
        report: &mut dyn FnMut(Progress),
    ) -> Result<(), RecoveryError> {
        let total = Some(snapshot.bytes);
        report(Progress { phase: "checking a shared snapshot", done: 0, total });
        let mut understood = Ok(());
        read_shared(snapshot, shared.read(snapshot)?, |piece| {
            if let Piece::Manifest(manifest) = piece {
                understood = check_snapshot(&snapshot.name, &manifest, shared.options().understands);
            }
            Ok(())
        })?;
        understood?;
        let archive = shared.read(snapshot)?;
        let store = Arc::new(Store::open_to_fill(&self.options.path, &self.options.store)?);
        // Durable with the snapshot.
        shared.adopt(snapshot, &store)?;
        load_shared(&store, snapshot, archive, &mut |done| {
            report(Progress { phase: "loading a shared snapshot", done, total });
        })?;
        // However old the snapshot is, this machine's clock counts.
        store.keep_clock(self.clock);
        Ok(store.seal()?)
    }
}

fn is_newer(error: &RecoveryError) -> bool {
    matches!(
        error,
        RecoveryError::Store(StoreError::Newer { .. }) | RecoveryError::Journal(JournalError::Newer { .. })
    )
}

/// Refuses a snapshot that this build can't load, or behind which there may be entries that it does not understand.
///
/// # Errors
/// [`StoreError::Newer`] or [`JournalError::Newer`]; [`JournalError::Damaged`] if it can't be told.
fn check_snapshot(name: &str, manifest: &Manifest, understands: u16) -> Result<(), RecoveryError> {
    match enabled_in(&manifest.meta) {
        Ok(version) => Ok(JournalError::check_version(manifest.seq, version, understands)?),
        Err(RestoreStateError::Newer(found)) => {
            let (path, found, known) = (name.into(), found.into(), FORMAT_VERSION.into());
            Err(StoreError::Newer { path, found, known }.into())
        }
        Err(error) => Err(JournalError::Damaged(error.to_string()).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ClockLimits;
    use crate::domain::Entry;

    /// The status channel closes when the engine and its writer are dropped.
    #[tokio::test]
    async fn engine_ends_when_its_last_handle_is_dropped() {
        let directory = tempfile::tempdir().unwrap();
        let reading = ClockReading { wall: Timestamp(1_000), uptime: Duration::ZERO };
        let clock = Clock::new(move || reading, ClockLimits::default());
        let engine = Engine::start(EngineOptions::new(directory.path()), clock);
        assert_eq!(engine.recovered().await, Status::Ready);
        let mut status = engine.inner.status.subscribe();
        drop(engine);
        let ended = async { while status.changed().await.is_ok() {} };
        assert!(tokio::time::timeout(Duration::from_secs(60), ended).await.is_ok(), "the writer goes on");
    }

    #[test]
    fn a_snapshot_of_a_later_build_says_that_this_one_is_to_be_updated() {
        let mut state = State::new();
        let enable = Proposal::new(Timestamp(1), Command::Enable { version: 2 });
        state.apply(Entry { seq: Seq(1), proposal: enable });
        let meta = state.begin_snapshot().head;
        let (seq, taken_at, place) = (Seq(1), Timestamp(1), Vec::new());
        let sections = Vec::new();
        let manifest =
            Manifest { generation: 1, seq, taken_at, events_last: 0, place, sections, meta: Vec::new() };
        let manifest = |meta| Manifest { meta, ..manifest.clone() };
        let check = |meta, understands| check_snapshot("snapshot-1", &manifest(meta), understands);
        check(meta.clone(), 2).unwrap();
        let refused = check(meta.clone(), 1).unwrap_err().to_string();
        assert!(refused.contains("update this node"), "{refused}");
        // The head begins with its version.
        let mut newer = meta.clone();
        newer[0] += 1;
        let refused = check(newer, 2).unwrap_err().to_string();
        assert!(refused.contains("snapshot-1") && refused.contains("run a newer cuckood"), "{refused}");
        assert!(matches!(
            check(meta[..2].to_vec(), 2),
            Err(RecoveryError::Journal(JournalError::Damaged(_)))
        ));
    }
}
