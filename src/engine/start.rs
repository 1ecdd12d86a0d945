//! The engine's beginning and end: the writer's thread, which opens the store, recovers, serves and settles.

use super::admission::Admission;
use super::inbox::Inbox;
use super::recovery::{RecoveryError, recover};
use super::request::Request;
use super::snapshotter::{SnapshotOptions, Snapshotter};
use super::timekeeping::Timekeeper;
use super::waiting::WaitingList;
use super::writer::Writer;
use super::{Engine, Figures, Inner, Metrics, Progress, QUEUE_UNIT_BYTES, Status};
use crate::clock::Clock;
use crate::domain::{Command, ImportState, Proposal, Settings, Target, Timestamp};
use crate::journal::{Durability, Journal, JournalError, JournalOptions, LocalOptions};
use crate::state::State;
use crate::store::{Store, StoreOptions};
use arc_swap::ArcSwapOption;
use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::task::Waker;
use std::time::{Duration, Instant};
use tokio::sync::{Semaphore, mpsc, oneshot, watch};

/// Bytes of log that an entry stands for when those replayed are not measured.
const ENTRY_BYTES: u64 = 128;

/// Bytes that tables leave to answers, redemptions, connections and the store. A start asks for less: what was admitted before
/// it has to find its place again.
const SPARE_BYTES: u64 = 64 << 20;

/// A local commit takes milliseconds; a replicated log without a leader is back after some seconds, or has trouble.
const COMMIT_PATIENCE: Duration = Duration::from_secs(30);

/// How often the log tells of a phase of recovery that takes long.
const TOLD_EVERY: Duration = Duration::from_secs(1);

/// How an engine works.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// The data directory.
    pub path: PathBuf,
    /// How the store is kept.
    pub store: StoreOptions,
    /// Which journal it runs on.
    pub journal: JournalOptions,
    /// What the state machine goes by; logged when it differs from what the log says.
    pub settings: Settings,
    /// When snapshots are taken.
    pub snapshots: SnapshotOptions,
    /// What tables and records may come to, in bytes.
    pub memory_max_bytes: u64,
    /// How long the journal may take to commit a command; after that the caller is told that its outcome is unknown.
    pub commit_patience: Duration,
    /// Commands that may wait.
    pub queue_commands_max: usize,
    /// Bytes of commands that may wait.
    pub queue_bytes_max: u64,
}

impl EngineOptions {
    /// The defaults over a data directory.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            store: StoreOptions::default(),
            journal: JournalOptions::default(),
            settings: Settings::default(),
            snapshots: SnapshotOptions::default(),
            memory_max_bytes: 1 << 30,
            commit_patience: COMMIT_PATIENCE,
            queue_commands_max: 65_536,
            queue_bytes_max: 64 << 20,
        }
    }

    /// The log in the node's own store, at this durability. A snapshot survives no more than the log after it.
    pub fn on_local_journal(mut self, journal: LocalOptions) -> Self {
        self.store.sync_snapshots = journal.durability == Durability::Fsync;
        self.journal = JournalOptions::Local(journal);
        self
    }
}

impl Engine {
    /// Starts an engine over a data directory. Comes back at once; [`Engine::recovered`] waits for the rest.
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
            figures: Arc::new(Figures::default()),
            requests,
            room: Arc::new(Semaphore::new(permits.min(Semaphore::MAX_PERMITS))),
            options,
        });
        let parts = inner.clone();
        let spawned = std::thread::Builder::new().name("writer".into()).spawn(move || serve(&parts, inbox));
        if let Err(error) = spawned {
            inner.status.send_replace(Status::Failed(format!("no thread for the writer: {error}")));
        }
        Engine { inner }
    }

    /// Takes nothing more up, finishes what waits, takes a last snapshot and lets go of the store.
    pub async fn shutdown(&self) {
        // What arrives from here on hears that the service is stopping; a failure stays told.
        self.inner.status.send_if_modified(|status| match status {
            Status::Ready | Status::Recovering(_) => {
                *status = Status::Draining;
                true
            }
            _ => false,
        });
        let (done, finished) = oneshot::channel();
        if self.inner.requests.send(Request::Shutdown(done)).await.is_ok() {
            // An error means that the writer is gone, which is what was wanted.
            let _ = finished.await;
        }
    }
}

/// The writer's thread, from its beginning to its end. The handle on the channel's other side that `inner` holds
/// doesn't keep the loop alive: a shutdown request ends it.
fn serve(inner: &Arc<Inner>, requests: mpsc::Receiver<Request>) {
    let inbox = Inbox::new(requests);
    match prepare(inner, inbox.waker()) {
        Ok(writer) => {
            inner.status.send_if_modified(|status| {
                let recovering = matches!(status, Status::Recovering(_));
                if recovering {
                    *status = Status::Ready;
                }
                recovering
            });
            // A panic means that an invariant is broken: nothing may be written any more, and everybody must know.
            let ended = catch_unwind(AssertUnwindSafe(|| writer.run(inbox)));
            inner.store.store(None);
            match ended {
                // Told only now that nothing holds the store: whoever waits may open it again.
                Ok(Some(done)) => drop(done.send(())),
                Ok(None) => {}
                Err(_) => {
                    let reason = "the writer has panicked, see the log; restart the service".to_string();
                    inner.status.send_replace(Status::Failed(reason));
                }
            }
        }
        Err(error) => {
            tracing::error!(%error, "the engine does not start");
            inner.status.send_replace(Status::Failed(error.to_string()));
        }
    }
}

fn prepare(inner: &Arc<Inner>, waker: Waker) -> Result<Writer, RecoveryError> {
    let options = &inner.options;
    let began = Instant::now();
    let store = Arc::new(Store::open(&options.path, &options.store)?);
    inner.store.store(Some(store.clone()));
    let mut journal = options.journal.open(&store)?;
    let recovered = recover(&store, &mut *journal, &mut telling(inner))?;
    for manifest in &recovered.damaged {
        store.forget_snapshot(manifest)?;
    }
    let snapshot_at = recovered.manifest.as_ref().map(|manifest| manifest.taken_at);
    let logged = recovered.state.now();
    let mut time =
        Timekeeper::new(inner.clock.clone(), store.clone(), inner.metrics.clone(), logged, snapshot_at);
    // No time goes by if the clock can't be trusted: what a start has to log is logged all the same.
    let at = time.stamp(logged).unwrap_or(logged);
    let mut waiting = WaitingList::default();
    if *recovered.state.settings() != options.settings {
        let command = Command::Configure(options.settings.clone());
        journal.propose(waiting.reserve(1), vec![Proposal { at, command, idempotency: None }])?;
    }
    end_uploads(&mut *journal, &mut waiting, &recovered.state, at)?;
    tracing::info!(
        seq = recovered.state.applied().0,
        snapshot = recovered.manifest.as_ref().map(|manifest| manifest.seq.0),
        replayed = recovered.replayed,
        milliseconds = began.elapsed().as_millis() as u64,
        "recovered"
    );
    // Recovery may have been the first to hear of it; nobody has asked for a view before.
    let _ = inner.view.set(recovered.state.view());
    inner.figures.note(&recovered.state);
    let log_bytes = recovered.replayed * ENTRY_BYTES;
    let snapshotter =
        Snapshotter::new(store.clone(), options.snapshots.clone(), recovered.manifest, log_bytes);
    let mut writer = Writer {
        state: recovered.state,
        journal,
        store,
        snapshotter,
        time,
        metrics: inner.metrics.clone(),
        status: inner.status.clone(),
        latest_snapshot: inner.latest_snapshot.clone(),
        figures: inner.figures.clone(),
        admission: Admission::new(options.memory_max_bytes, SPARE_BYTES),
        held: VecDeque::new(),
        waiting,
        is_partly_applied: false,
        patience: options.commit_patience,
        waker,
        snapshot_waiters: Vec::new(),
        backups: BTreeMap::new(),
        backups_begun: 0,
        failed: false,
    };
    writer.apply_committed();
    writer.note_snapshot();
    Ok(writer)
}

/// Tells of recovery's progress: in the log now and then, in the status always.
fn telling(inner: &Inner) -> impl FnMut(Progress) {
    let mut told: Option<(&str, Instant)> = None;
    move |progress| {
        if told.is_none_or(|(phase, at)| phase != progress.phase || at.elapsed() >= TOLD_EVERY) {
            told = Some((progress.phase, Instant::now()));
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

/// Ends the uploads that ended with the last process: only they can be running, and what they have built aside takes memory.
fn end_uploads(
    journal: &mut dyn Journal,
    waiting: &mut WaitingList,
    state: &State,
    at: Timestamp,
) -> Result<(), JournalError> {
    let imports = state.view().imports();
    let running = imports.into_iter().filter(|import| import.state == ImportState::Running);
    let ends: Vec<Proposal> = running
        .map(|import| {
            let target = Target(import.filter);
            let command =
                Command::ImportEnd { target, import: import.id.clone(), complete: false, entries_max: 0 };
            Proposal { at, command, idempotency: None }
        })
        .collect();
    if ends.is_empty() {
        return Ok(());
    }
    match journal.propose(waiting.reserve(ends.len()), ends) {
        Ok(()) => Ok(()),
        // They can wait: who asks is told that they are interrupted, and the next one into the same filter drops them.
        Err(JournalError::DiskFull(reason)) => {
            tracing::warn!(reason, "broken imports could not be ended");
            Ok(())
        }
        Err(error) => Err(error),
    }
}
