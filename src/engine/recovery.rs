//! Recovery: loads the newest whole snapshot, then replays the log after it, entry by entry.

use super::admission::{Admission, Verdict};
use super::applying;
use super::event_log::EventLog;
use super::request::Bell;
use crate::domain::{Entry, FORMAT_VERSION, Proposal, SectionId, Seq};
use crate::filter::{MemoryNeed, OutOfMemory, Reservation, RestoreError, Restoring};
use crate::journal::{Delivery, Journal, JournalError, is_of_replicated_log};
use crate::state::{RestoreStateError, Sections, State};
use crate::store::{Manifest, Store, StoreError};
use std::num::NonZero;
use std::panic::resume_unwind;
use std::task::{Context, Poll};
use std::thread;
use std::time::{Duration, Instant};
use thiserror::Error;

/// Entries replayed between two progress reports.
const REPORT_EVERY: u64 = 65_536;

/// The fewest chunks of a table that are worth a thread of their own: about 2 MB.
const SHARE_CHUNKS_MIN: u32 = 256;

/// Bytes that must stay free beside a table while the state is built: for threads, read buffers and the store's cache.
const SPARE_BYTES: u64 = 16 << 20;

/// Why the engine can't start.
#[derive(Debug, Error)]
pub enum RecoveryError {
    /// The store can't be opened or read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The log can't be read.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The system has less memory than the data needs.
    #[error(
        "{path}: {refused} for the data, which is intact: give the service more memory (`ulimit -v`, the container's limit, \
         vm.overcommit_memory, vm.max_map_count) and start it again"
    )]
    Memory {
        /// The data directory.
        path: String,
        /// The request for memory that was refused.
        refused: OutOfMemory,
    },
    /// An entry can't be applied, so no later one can be.
    #[error("{advice}")]
    Unappliable {
        /// The entry.
        entry: Seq,
        /// What is wrong, and what helps.
        advice: String,
    },
    /// No snapshot is whole, and the log does not reach back to the beginning.
    #[error(
        "{path} is damaged: no snapshot can be read ({why}), nor the log from its first entry on ({log}); run `cuckood verify {path}`, \
         then `cuckood restore FILE DIR` with your newest backup"
    )]
    NoWholeSnapshot {
        /// The data directory.
        path: String,
        /// What is wrong with the newest snapshot.
        why: String,
        /// What is wrong with the log.
        log: JournalError,
    },
}

/// The result of recovery.
pub struct Recovered {
    /// The state at the end of the log.
    pub state: State,
    /// The events up to there.
    pub events: EventLog,
    /// The snapshot that it was built from.
    pub manifest: Option<Manifest>,
    /// Newer snapshots that could not be read.
    pub damaged: Vec<Manifest>,
    /// Entries replayed.
    pub replayed: u64,
    /// How long that took.
    pub replay_time: Duration,
}

/// Progress of recovery.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// The phase that is running.
    pub phase: &'static str,
    /// Sections loaded or entries replayed so far.
    pub done: u64,
    /// The total, if it is known.
    pub total: Option<u64>,
}

/// Builds the state from the store's newest whole snapshot and the journal's entries after it.
///
/// # Errors
/// If anything acknowledged can't be restored.
pub fn recover(
    store: &Store,
    journal: &mut dyn Journal,
    report: &mut dyn FnMut(Progress),
) -> Result<Recovered, RecoveryError> {
    let (mut why, mut damaged) = (None, Vec::new());
    let mut found = None;
    for manifest in store.manifests()? {
        match load(store, &manifest, report) {
            Ok(state) => {
                found = Some((state, Some(manifest)));
                break;
            }
            Err(
                RestoreStateError::Load(error @ RecoveryError::Memory { .. })
                | RestoreStateError::Tables(RestoreError::Load(error @ RecoveryError::Memory { .. })),
            ) => return Err(error),
            Err(RestoreStateError::Tables(RestoreError::Memory(refused))) => {
                return Err(out_of_memory(store, refused));
            }
            Err(error) => {
                tracing::error!(seq = manifest.seq.0, %error, "a snapshot is damaged; trying the one before it");
                why.get_or_insert(error.to_string());
                damaged.push(manifest);
            }
        }
    }
    let (mut state, manifest) = found.unwrap_or_else(|| (State::new(), None));
    JournalError::check_version(state.applied(), state.format(), FORMAT_VERSION)?;
    let began = Instant::now();
    let mut events = EventLog::open(store, &state)?;
    let replayed = replay(store, &mut state, &mut events, journal, report);
    let replayed = replayed.map_err(|error| match (error, why) {
        (RecoveryError::Journal(log @ JournalError::Damaged(_)), Some(why)) if manifest.is_none() => {
            RecoveryError::NoWholeSnapshot { path: store.path().display().to_string(), why, log }
        }
        (error, _) => error,
    })?;
    events.settle(store, &state)?;
    Ok(Recovered { state, events, manifest, damaged, replayed, replay_time: began.elapsed() })
}

/// Builds the state from one snapshot, without the log after it.
///
/// # Errors
/// If a part of it is missing, damaged or of a newer version.
pub fn load(
    store: &Store,
    manifest: &Manifest,
    report: &mut dyn FnMut(Progress),
) -> Result<State, RestoreStateError<RecoveryError>> {
    State::restore(&manifest.meta, &mut StoredSections { store, manifest, begun: 0, report })
}

/// The sections of a snapshot, read from the store.
struct StoredSections<'a> {
    store: &'a Store,
    manifest: &'a Manifest,
    begun: u64,
    report: &'a mut dyn FnMut(Progress),
}

impl StoredSections<'_> {
    fn report_one(&mut self) {
        self.begun += 1;
        let total = Some(self.manifest.sections.len() as u64);
        (self.report)(Progress { phase: "snapshot", done: self.begun, total });
    }
}

impl Sections for StoredSections<'_> {
    type Error = RecoveryError;

    fn chunk(&mut self, id: SectionId, chunk: u32, out: &mut Vec<u8>) -> Result<bool, RecoveryError> {
        let Some(section) = self.manifest.find(id) else { return Ok(false) };
        if chunk == 0 {
            self.report_one();
        }
        if chunk >= section.chunks {
            return Ok(false);
        }
        self.store.read_chunk(section, chunk, out)?;
        Ok(true)
    }

    fn reserve(&mut self, bytes: u64) -> Result<(), RecoveryError> {
        let reserved = Reservation::new().extend(&MemoryNeed::default(), SPARE_BYTES.saturating_add(bytes));
        reserved.map_err(|refused| out_of_memory(self.store, refused))
    }

    /// Loads a table with one thread per processor, each a share of it: checksums take time, and so does touching fresh memory.
    fn table(&mut self, id: SectionId, table: &Restoring<'_>) -> Result<(), RestoreError<RecoveryError>> {
        // A section that is missing is not loaded, and the check that follows refuses it.
        let Some(section) = self.manifest.find(id).filter(|section| section.chunks == table.chunks()) else {
            return Ok(());
        };
        self.report_one();
        let (store, chunks) = (self.store, section.chunks);
        let load = |first: u32, end: u32| {
            table.load(first..end, |chunk, out| {
                store.read_chunk(section, chunk, out).map_err(RecoveryError::from)
            })
        };
        let threads = thread::available_parallelism().map_or(1, NonZero::get) as u32;
        let share = chunks.div_ceil(threads).max(SHARE_CHUNKS_MIN);
        if chunks <= share {
            return load(0, chunks);
        }
        thread::scope(|scope| {
            let starts = (0..chunks).step_by(share as usize);
            let shares: Vec<_> =
                starts.map(|first| scope.spawn(move || load(first, chunks.min(first + share)))).collect();
            shares.into_iter().try_for_each(|share| share.join().unwrap_or_else(|panic| resume_unwind(panic)))
        })
    }
}

fn out_of_memory(store: &Store, refused: OutOfMemory) -> RecoveryError {
    RecoveryError::Memory { path: store.path().display().to_string(), refused }
}

/// Applies what the log has after the state; returns the number of entries.
fn replay(
    store: &Store,
    state: &mut State,
    events: &mut EventLog,
    journal: &mut dyn Journal,
    report: &mut dyn FnMut(Progress),
) -> Result<u64, RecoveryError> {
    let (skipped, mut replayed) = (store.skipped_entries()?, 0);
    let mut admission = Admission::new(u64::MAX, SPARE_BYTES);
    let bell = Bell::of_this_thread();
    let waker = bell.clone().into();
    loop {
        let committed = match journal.poll(state.applied(), &mut Context::from_waker(&waker)) {
            Poll::Pending => {
                bell.wait(journal.wake_at());
                continue;
            }
            Poll::Ready(delivery) => match delivery? {
                Delivery::Entries(committed) => committed,
                Delivery::Passed(_) => continue,
                Delivery::Current => break,
            },
        };
        for entry in committed.into_iter().map(|committed| committed.entry) {
            if replayed % REPORT_EVERY == 0 {
                report(Progress { phase: "replay", done: replayed, total: None });
            }
            if skipped.contains_key(&entry.seq) {
                tracing::warn!(
                    entry = entry.seq.0,
                    "`cuckood repair skip` has marked this entry; skipping it"
                );
                state.skip(&entry);
            } else {
                apply(store, state, &mut admission, entry)?;
            }
            events.take(store, state)?;
            replayed += 1;
        }
    }
    state.publish();
    Ok(replayed)
}

/// Applies an entry of the log, if there is memory for it.
fn apply(
    store: &Store,
    state: &mut State,
    admission: &mut Admission,
    entry: Entry,
) -> Result<(), RecoveryError> {
    let Proposal { command, idempotency, .. } = &entry.proposal;
    if let Verdict::NoMemory(refused) = admission.judge(state, command, idempotency.is_some()) {
        return Err(out_of_memory(store, refused));
    }
    applying::apply(state, entry).map_err(|unappliable| RecoveryError::Unappliable {
        entry: unappliable.entry,
        advice: unappliable.advice(store.path(), is_of_replicated_log(store)),
    })?;
    admission.settle();
    // No command is waiting during recovery, so everything can be freed at once.
    state.free_discarded(u64::MAX);
    Ok(())
}
