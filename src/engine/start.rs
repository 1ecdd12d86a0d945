//! Start and stop of the engine: the writer's thread opens the store, recovers, serves, and shuts down. If the directory is empty, or the log
//! was trimmed past it, it is filled from a snapshot that nodes share first, as a restore does it.

use super::admission::Admission;
use super::applying::Unappliable;
use super::backup::{DOWNLOADS_MAX, note_backup};
use super::cluster::{ClusterOptions, start_sharing};
use super::event_reader::EVENT_WAITERS_MAX;
use super::handle::{QUEUE_UNIT_BYTES, WeakEngine};
use super::journal::JournalOptions;
use super::protocol::{Inbox, Request};
use super::recovery::{Recovered, RecoveryError, ReportProgress, Result, recover_by};
use super::request::{Proposed, bell};
use super::restore::{verify_archive, write_archive};
use super::snapshotter::{SnapshotOptions, Snapshotter};
use super::status::CurrentStatus;
use super::timekeeping::Timekeeper;
use super::writer::{Commits, Upkeep, Writer};
use super::{Engine, EngineInfo, EngineMetrics, EngineStatus, Inner, Progress};
use crate::clock::Clock;
use arc_swap::ArcSwapOption;
use cuckood_log::journal::{Journal, JournalError};
use cuckood_log::store::archive::BackupPiece;
use cuckood_log::store::{Manifest, Store, StoreOptions, is_unused, panic_message};
use cuckood_nats::{NatsSnapshots, SharedSnapshot};
use cuckood_state::domain::{
    Command, Ending, Import, ImportEnd, ImportState, Proposal, Seq, Settings, Target, Timestamp,
    understood_version,
};
use cuckood_state::{RestoreStateError, State, enabled_in};
use parking_lot::Mutex;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};
use std::task::Waker;
use std::thread;
use std::time::Duration;
use tokio::sync::{Notify, Semaphore, mpsc, watch};

/// Bytes of log that a replayed entry is reckoned to take.
const ENTRY_BYTES: u64 = 128;

/// Bytes that tables must leave free for responses, redemptions, connections and the store. A startup needs less: commands admitted before
/// must fit again.
const SPARE_BYTES: u64 = 64 << 20;

/// In a cluster, an import without progress for this long has lost its upload. An upload ends itself after the pause that
/// `server.body_timeout` allows.
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
    /// Options if other nodes share the log.
    pub cluster: ClusterOptions,
    /// Settings of the state machine; logged as an entry when they differ from those in the log.
    pub settings: Settings,
    /// When snapshots are taken.
    pub snapshots: SnapshotOptions,
    /// The most bytes that tables and records may take.
    pub memory_max_bytes: u64,
    /// The most bytes that stored events may take. Beyond it the oldest go before their retention is over.
    pub events_room_bytes: u64,
    /// Maximum time for the journal to commit a command. After that the caller gets an unknown outcome.
    pub commit_timeout: Duration,
    /// The most commands that may be queued.
    pub queue_commands_max: usize,
    /// The most bytes of commands that may be queued.
    pub queue_bytes_max: u64,
}

impl Engine {
    /// Starts an engine over a data directory. Returns immediately; [`Engine::recovered`] waits for recovery.
    pub fn start(options: EngineOptions, clock: Clock) -> Engine {
        let (requests, inbox) = mpsc::channel(options.queue_commands_max);
        let engine = Engine::with_queue(options, clock, requests);
        let weak = engine.downgrade();
        let spawned = thread::Builder::new()
            .name("writer".into())
            .spawn(move || serve(&weak, inbox));
        if let Err(error) = spawned {
            let why = format!("the writer's thread can't be started: {error}");
            engine.inner.status.proceed(EngineStatus::Failed(why));
        }
        engine
    }

    /// An engine whose requests are sent to this queue. It has no writer yet.
    pub(super) fn with_queue(
        options: EngineOptions,
        clock: Clock,
        requests: mpsc::Sender<Request>,
    ) -> Engine {
        let permits =
            usize::try_from(options.queue_bytes_max / QUEUE_UNIT_BYTES).unwrap_or(usize::MAX);
        let beginning = Progress::of("opening", 0, None);
        let started = clock.monotonic().now();
        let inner = Arc::new(Inner {
            clock,
            metrics: EngineMetrics::default(),
            started,
            view: OnceLock::new(),
            store: ArcSwapOption::empty(),
            status: CurrentStatus::recovering(beginning),
            figures: Mutex::new(EngineInfo::default()),
            applied: AtomicU64::new(0),
            moved: Notify::new(),
            logged_at: AtomicU64::new(0),
            refusals: Arc::default(),
            replication: OnceLock::new(),
            outdated: Notify::new(),
            share: Notify::new(),
            memory_short_bytes: AtomicU64::new(options.memory_max_bytes),
            events_last: watch::Sender::new(0),
            event_waiters: Semaphore::new(EVENT_WAITERS_MAX),
            room: Arc::new(Semaphore::new(permits.min(Semaphore::MAX_PERMITS))),
            backups: Arc::new(Semaphore::new(DOWNLOADS_MAX)),
            images: Arc::new(Semaphore::new(DOWNLOADS_MAX)),
            options,
        });
        Engine { inner, requests }
    }

    /// Its options.
    pub fn options(&self) -> &EngineOptions {
        &self.inner.options
    }

    /// Stops accepting commands, finishes the pending ones, takes a last snapshot and closes the store.
    pub async fn shutdown(&self) {
        // Commands that arrive from here on are rejected with `Draining`.
        self.inner.status.proceed(EngineStatus::Draining);
        // An error means that the writer has already ended.
        let _ = self.ask(Request::End).await;
    }
}

/// The writer's thread, from start to end: until a shutdown, or until no [`Engine`] is left to send requests.
fn serve(engine: &WeakEngine, inbox: Inbox) {
    let inner = &engine.inner;
    // A panic means that an invariant is broken: nothing may be written any more, and the status must say so.
    let ended = catch_unwind(AssertUnwindSafe(|| {
        let writer = prepare(inner, bell())?;
        inner.status.proceed(EngineStatus::Ready);
        start_sharing(engine);
        Ok::<_, RecoveryError>(writer.run(inbox))
    }));
    inner.share.notify_one();
    inner.store.store(None);
    let status = match ended {
        // Answered only now that the store is closed: the caller may immediately reopen it.
        Ok(Ok(ending)) => return ending.into_iter().for_each(|done| drop(done.send(Ok(())))),
        // The status has been `Draining` since.
        Ok(Err(RecoveryError::Stopped)) => return,
        Ok(Err(error)) => EngineStatus::Failed(error.to_string()),
        // The view is there once recovery is done.
        Err(panic) if inner.view.get().is_none() => {
            EngineStatus::Failed(panic_reason(&inner.options, panic))
        }
        Err(panic) => EngineStatus::Panicked(panic_reason(&inner.options, panic)),
    };
    tracing::error!(?status, "the engine has ended");
    inner.status.set(status);
}

/// Returns the reported reason of a panic in the writer's thread.
fn panic_reason(
    EngineOptions { path, journal, .. }: &EngineOptions,
    panic: Box<dyn Any + Send>,
) -> String {
    let dir = path.display();
    match panic.downcast::<Unappliable>() {
        Ok(unappliable) => unappliable.advice(path, journal.is_shared()),
        Err(panic) => {
            format!(
                "{dir}: the writer has panicked: {}; run `cuckood verify {dir}`",
                panic_message(&*panic)
            )
        }
    }
}

pub(super) fn prepare(inner: &Arc<Inner>, waker: Waker) -> Result<Writer> {
    let options = &inner.options;
    let clock = inner.clock.monotonic();
    let began = clock.now();
    let mut report = report_progress(inner);
    let mut is_filled =
        options.journal.is_shared() && is_unused(&options.path) && fill(inner, &mut report)?;
    let mut opened = open(options);
    // Other nodes may trim the log again while the directory is filled.
    for _ in 0..FILLS_MAX {
        let Err(RecoveryError::Journal(JournalError::Trimmed(why))) = &opened else {
            break;
        };
        tracing::warn!(
            why,
            "the log was trimmed: beginning with a snapshot that nodes share"
        );
        is_filled = fill(inner, &mut report)?;
        opened = open(options);
    }
    let (store, mut journal) = opened?;
    inner.store.store(Some(store.clone()));
    // It is set here and nowhere else.
    let _ = journal
        .replication()
        .map(|replication| inner.replication.set(replication));
    let recovered = recover_by(clock, &store, &mut *journal, &mut report)?;
    let logged = recovered.state.now();
    let mut time = Timekeeper::new(inner, &store, &recovered);
    // If the clock can't be trusted, no time passes: entries of the startup are logged at the time of the last entry.
    let at = time.stamp(logged).unwrap_or(logged);
    let mut proposed = Proposed::default();
    let commands = commands_at_start(options, &recovered.state, at).into_iter();
    let proposals: Vec<_> = commands.map(|command| Proposal::new(at, command)).collect();
    if !proposals.is_empty() {
        match journal.propose(proposed.reserve(proposals.len()), proposals) {
            // The service still starts and serves reads; the next startup logs them.
            Err(JournalError::DiskFull(reason)) => {
                tracing::warn!(
                    reason,
                    "disk full; settings stay, and interrupted uploads are not ended"
                );
            }
            logged => logged?,
        }
    }
    let wall = inner.clock.reading().wall;
    match store.backup_at() {
        // A clock that was ahead would silence the alert about old backups.
        Some(at) => inner.figures.lock().backup_at = Some(at.min(wall)),
        None => note_backup(inner, &store, wall),
    }
    note_recovered(inner, &recovered, is_filled, clock.since(began));
    // The view is set here and nowhere else, so it can't be set already.
    let _ = inner.view.set(recovered.state.view());
    let log_bytes = recovered.replayed * ENTRY_BYTES;
    let mut events = recovered.events;
    let snapshotter = Snapshotter::new(
        store.clone(),
        clock.clone(),
        options.snapshots.clone(),
        recovered.manifest,
        log_bytes,
    );
    events.room_bytes = options.events_room_bytes;
    let admission = Admission::new(options.memory_max_bytes, SPARE_BYTES);
    let mut writer = Writer {
        inner: inner.clone(),
        state: recovered.state,
        events,
        store,
        time,
        commits: Commits::new(journal, waker, admission, proposed),
        upkeep: Upkeep::new(snapshotter, clock.now(), options.cluster.configure),
        failed: false,
        ending: Vec::new(),
    };
    writer.note_figures();
    writer.apply_committed();
    // No command is waiting yet.
    writer.state.free_discarded(u64::MAX);
    writer.note_figures();
    Ok(writer)
}

/// Logs the end of recovery and records its metrics.
fn note_recovered(inner: &Inner, recovered: &Recovered, is_filled: bool, took: Duration) {
    inner.figures.lock().sharing.bootstrap = is_filled.then_some(took);
    let metrics = &inner.metrics;
    metrics.recovery_seconds.set(took.as_secs_f64());
    metrics
        .replay_seconds
        .set(recovered.replay_time.as_secs_f64());
    metrics.replayed_entries.set(recovered.replayed as i64);
    let seq = recovered.state.applied().0;
    let milliseconds = took.as_millis() as u64;
    let snapshot = recovered.manifest.as_ref().map(|manifest| manifest.seq.0);
    tracing::info!(
        seq,
        snapshot,
        replayed = recovered.replayed,
        milliseconds,
        "recovered"
    );
}

/// Reports progress of recovery: in the log at intervals, in the status always.
fn report_progress(inner: &Inner) -> impl FnMut(Progress) {
    let mut last_phase = "";
    let mut last_at = inner.started;
    move |progress| {
        let Progress {
            phase, done, total, ..
        } = progress;
        let now = inner.instant();
        if phase != last_phase || now >= last_at + REPORT_PAUSE {
            last_phase = phase;
            last_at = now;
            tracing::info!(phase, done, total, "recovering");
        }
        inner.status.proceed(EngineStatus::Recovering(progress));
    }
}

/// Returns the commands of a startup: its settings, and the end of images and imports whose uploads ended with a process. Their tables take
/// memory.
fn commands_at_start(options: &EngineOptions, state: &State, at: Timestamp) -> Vec<Command> {
    let ours = &options.settings;
    let logs = state.settings();
    // Other nodes have started the shared log: its settings apply, not this node's.
    let is_joining = options.journal.is_shared() && state.applied() > Seq(0);
    let mut commands = Vec::new();
    if ours != logs && is_joining && !options.cluster.configure {
        tracing::warn!(
            ?ours,
            ?logs,
            "settings differ from the log's; cluster.configure replaces those"
        );
    } else if ours != logs {
        commands.push(Command::Configure(ours.clone()));
    }
    let version = understood_version();
    commands
        .extend((state.format() < version && !is_joining).then_some(Command::Enable { version }));
    // A single node knows that all uploads have ended. In a cluster another node may have one, but would have ended it after such an idle
    // time.
    let idle_since = Timestamp(at.0.saturating_sub(UPLOAD_IDLE_MAX.as_millis() as u64));
    let is_replicated = matches!(options.journal, JournalOptions::Nats(_));
    let dead_before = if is_replicated {
        idle_since
    } else {
        Timestamp::MAX
    };
    let images = state.images_unmoved_since(dead_before).into_iter();
    commands.extend(images.map(|upload| Command::ImageAbandon { upload }));
    let is_dead =
        |import: &Import| import.state == ImportState::Running && import.changed_at < dead_before;
    let imports = state
        .view()
        .imports()
        .into_iter()
        .filter(|import| is_dead(import));
    commands.extend(imports.map(|import| {
        let target = Target(import.filter);
        let import = import.id.clone();
        Command::ImportEnd(ImportEnd {
            target,
            import,
            ending: Ending::BrokenOff,
            entries_max: 0,
        })
    }));
    commands
}

/// How often a node fills its directory because the log was trimmed past it.
const FILLS_MAX: usize = 5;

/// Pause before shared snapshots are tried again.
const PAUSE: Duration = Duration::from_millis(500);

/// Opens the directory and its log.
///
/// # Errors
/// [`JournalError::Trimmed`] if only a shared snapshot helps; otherwise those of the store and the journal.
fn open(options: &EngineOptions) -> Result<(Arc<Store>, Box<dyn Journal>)> {
    let store = Arc::new(options.journal.open_store(&options.path, &options.store)?);
    let journal = options.journal.open(&store)?;
    Ok((store, journal))
}

/// Fills the directory from the newest usable shared snapshot. Its content is deleted, but not before such a snapshot was read completely.
/// Servers that were just started may fail for a while, and other nodes may share another snapshot, so it tries again until
/// `nats.connect_timeout`; and until the service is stopped while the servers don't respond and the log alone is not enough. Returns whether
/// it is filled; a complete log needs no snapshot, and then the directory is empty.
fn fill(inner: &Inner, report: &mut ReportProgress<'_>) -> Result<bool> {
    let EngineOptions {
        path,
        store,
        journal,
        ..
    } = &inner.options;
    let Some(shared) = journal.shared_snapshots()? else {
        return Ok(false);
    };
    let until = inner.instant() + shared.options.connect_timeout;
    let mut is_late = false;
    let is_filled = loop {
        let error = match fill_once(inner, &shared, report) {
            Ok(is_filled) => break is_filled,
            Err(error) if error.is_newer() => return Err(error),
            Err(error) => error,
        };
        if inner.instant() >= until {
            if shared.is_log_whole().unwrap_or(false) {
                tracing::warn!(%error, "reading the log from its first entry on");
                break false;
            }
            if !error.is_silence() {
                return Err(error);
            }
            if !std::mem::replace(&mut is_late, true) {
                tracing::warn!(%error, "no shared snapshot within nats.connect_timeout; retrying until stopped");
            }
        }
        if inner.status.get() == EngineStatus::Draining {
            return Err(RecoveryError::Stopped);
        }
        let phase = "waiting for a shared snapshot";
        report(Progress {
            why: Some(error.to_string()),
            ..Progress::of(phase, 0, None)
        });
        thread::sleep(PAUSE);
    };
    if is_unused(path) {
        // It may hold a part of a snapshot.
        Store::open_to_fill(path, store)?.seal()?;
    }
    Ok(is_filled)
}

/// Tries the shared snapshots, the newest first. Returns whether there is any; it is an error if the log does not do without.
fn fill_once(
    inner: &Inner,
    shared: &NatsSnapshots,
    report: &mut ReportProgress<'_>,
) -> Result<bool> {
    let snapshots = shared.list()?;
    let mut why = "there is none".to_owned();
    let mut silence = None;
    for snapshot in &snapshots {
        match load(inner, shared, snapshot, report) {
            Err(error) if !error.is_newer() => {
                tracing::error!(snapshot.name, %error, "can't use a shared snapshot");
                why = error.to_string();
                silence = silence.or(Some(error).filter(RecoveryError::is_silence));
            }
            loaded => return loaded.map(|()| true),
        }
    }
    if let Some(error) = silence {
        return Err(error);
    }
    match snapshots.is_empty() && shared.is_log_whole()? {
        true => Ok(false),
        false => Err(JournalError::Trimmed(format!(
            "no shared snapshot can be used: {why}; have a running node share one with `POST /v1/snapshots`"
        ))
        .into()),
    }
}

/// Reads a snapshot to its end, then into the directory.
fn load(
    inner: &Inner,
    shared: &NatsSnapshots,
    from: &SharedSnapshot,
    report: &mut ReportProgress<'_>,
) -> Result<()> {
    let SharedSnapshot {
        name,
        bytes,
        node,
        seq,
        ..
    } = from;
    let total = Some(*bytes);
    let mut done = 0;
    report(Progress::of("checking a shared snapshot", done, total));
    let mut manifest = verify_archive(|sink| shared.read(from, sink))?;
    check_usable(from, &manifest)?;
    NatsSnapshots::check_place(from)?;
    let store = Arc::new(Store::open_to_fill(
        &inner.options.path,
        &inner.options.store,
    )?);
    // Durable with the snapshot.
    shared.adopt(from, &store)?;
    manifest.place.clone_from(&from.place);
    write_archive(&store, manifest, |sink| {
        shared.read(from, |piece| {
            if let BackupPiece::Chunk { bytes, .. } = &piece {
                done += bytes.len() as u64;
                report(Progress::of("loading a shared snapshot", done, total));
            }
            sink(piece)
        })
    })?;
    // However old the snapshot is, this machine's clock counts.
    store.save_clock(inner.clock.reading());
    store.seal()?;
    tracing::info!(
        name,
        bytes,
        node,
        seq = seq.0,
        "began with a shared snapshot"
    );
    Ok(())
}

/// Rejects a snapshot that this build can't load, or that may precede entries it does not understand.
///
/// # Errors
/// [`JournalError::Newer`]; [`JournalError::Damaged`] if it can't be determined.
fn check_usable(shared: &SharedSnapshot, found: &Manifest) -> Result<(), JournalError> {
    let at = shared.seq;
    match enabled_in(&found.meta) {
        Ok(version) if found.seq == at => JournalError::check_version(at, version),
        Ok(_) => Err(JournalError::Damaged(format!(
            "{} is of another position",
            shared.name
        ))),
        Err(RestoreStateError::Newer(version)) => Err(JournalError::newer(at, version)),
        Err(error) => Err(JournalError::Damaged(error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::super::SubmitError;
    use super::*;
    use crate::clock::ClockLimits;
    use crate::config::Config;
    use cuckood_state::domain::{ClockReading, Entry, FORMAT_VERSION};
    use std::path::Path;

    fn options(path: &Path) -> EngineOptions {
        Config::load(None, [("CUCKOOD__STORAGE__PATH", path)])
            .unwrap()
            .engine_options()
    }

    /// The status channel closes when the engine and its writer are dropped.
    #[tokio::test]
    async fn engine_ends_with_last_handle() {
        let directory = tempfile::tempdir().unwrap();
        let reading = ClockReading {
            wall: Timestamp(1_000),
            uptime: Duration::ZERO,
        };
        let clock = Clock::new(move || reading, ClockLimits::default());
        let engine = Engine::start(options(directory.path()), clock);
        assert_eq!(engine.recovered().await, EngineStatus::Ready);
        let mut status = engine.inner.status.subscribe();
        drop(engine);
        let ended = async { while status.changed().await.is_ok() {} };
        assert!(
            tokio::time::timeout(Duration::from_secs(60), ended)
                .await
                .is_ok(),
            "the writer goes on"
        );
    }

    #[tokio::test]
    async fn download_does_not_keep_engine_running() {
        let directory = tempfile::tempdir().unwrap();
        let engine = Engine::start(
            options(directory.path()),
            Clock::system(ClockLimits::default()),
        );
        assert_eq!(engine.recovered().await, EngineStatus::Ready);
        let mut backup = engine.backup().await.unwrap();
        drop(engine);
        assert_eq!(backup.next().await, Err(SubmitError::Draining));
    }

    #[test]
    fn snapshot_of_later_build_names_its_version() {
        let head = |version| {
            let mut state = State::default();
            let enable = Proposal::new(Timestamp(1), Command::Enable { version });
            state.apply(Entry {
                seq: Seq(1),
                proposal: enable,
            });
            state.begin_snapshot().head
        };
        let check = |seq, meta: &[u8]| {
            let name = "snapshot-1".to_owned();
            let seq = Seq(seq);
            let taken_at = Timestamp(1);
            let node = "node".to_owned();
            let bytes = 0;
            let place = Vec::new();
            let sections = Vec::new();
            let shared = SharedSnapshot {
                name,
                seq,
                taken_at,
                node,
                bytes,
                place: place.clone(),
            };
            let generation = 1;
            let events_last = 0;
            let meta = meta.to_vec();
            let manifest = Manifest {
                generation,
                seq: Seq(1),
                taken_at,
                events_last,
                place,
                sections,
                meta,
            };
            check_usable(&shared, &manifest)
        };
        let meta = head(1);
        check(1, &meta).unwrap();
        let later = FORMAT_VERSION + 1;
        let rejected = check(1, &head(later)).unwrap_err().to_string();
        let version = format!("version {later}");
        assert!(
            rejected.contains(&version) && rejected.contains("update this node"),
            "{rejected}"
        );
        // The head starts with its version.
        let mut newer = meta.clone();
        newer[0] = 77;
        let rejected = check(1, &newer).unwrap_err();
        assert!(
            matches!(&rejected, JournalError::Newer(why) if why.contains("version 77")),
            "{rejected}"
        );
        for damaged in [check(1, &meta[..2]), check(2, &meta)] {
            assert!(
                matches!(damaged, Err(JournalError::Damaged(_))),
                "{damaged:?}"
            );
        }
    }
}
