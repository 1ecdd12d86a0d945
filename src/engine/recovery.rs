//! Recovery: loads the newest complete snapshot, then replays the log after it, entry by entry.

use super::admission::{Admission, Verdict};
use super::applying;
use super::event_log::EventLog;
use super::request::{bell, wait};
use super::snapshotter::RunningSnapshot;
use crate::clock::MonotonicClock;
use cuckood_filter::{MemoryNeed, OutOfMemory, Reservation, RestoreError, Restoring};
use cuckood_log::journal::{Delivery, Journal, JournalError};
use cuckood_log::store::{Manifest, Store, StoreError};
use cuckood_nats::is_of_replicated_log;
use cuckood_state::domain::{Proposal, SectionId, Seq, Timestamp};
use cuckood_state::{RestoreStateError, Sections, State};
use std::num::NonZero;
use std::panic::resume_unwind;
use std::task::{Context, Poll};
use std::thread;
use std::time::Duration;
use thiserror::Error;

/// Entries replayed between two progress reports.
const REPORT_EVERY: u64 = 65_536;

/// Minimum number of a table's chunks for a separate thread: about 2 MB.
const SHARE_CHUNKS_MIN: u32 = 256;

/// Bytes that must stay free next to a table while the state is built: for threads, read buffers and the store's cache.
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
    /// The system has less memory than the data needs: the directory, and the failed allocation.
    #[error(
        "{0}: {1} for the data, which is intact: give the service more memory (`ulimit -v`, the container's limit, \
         vm.overcommit_memory, vm.max_map_count) and start it again"
    )]
    Memory(String, OutOfMemory),
    /// An entry can't be applied, so no later one can be. The text contains the reason and the remedy.
    #[error("{1}")]
    Unappliable(Seq, String),
    /// The service was stopped while it waited for a shared snapshot.
    #[error("stopped while waiting for a shared snapshot")]
    Stopped,
}

impl RecoveryError {
    /// Whether nothing is damaged, and this build is too old.
    pub(super) fn is_newer(&self) -> bool {
        matches!(
            self,
            Self::Store(StoreError::Newer { .. }) | Self::Journal(JournalError::Newer(_))
        )
    }

    /// Whether the servers of the log did not respond, so that another attempt may succeed.
    pub(super) fn is_silence(&self) -> bool {
        matches!(self, Self::Journal(JournalError::Failed(_)))
    }
}

/// The result of opening, filling or recovering a directory.
pub type Result<T, E = RecoveryError> = std::result::Result<T, E>;

/// A recovered state.
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
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Progress {
    /// The phase that is running.
    pub phase: &'static str,
    /// Sections loaded or entries replayed so far.
    pub done: u64,
    /// The total, if it is known.
    pub total: Option<u64>,
    /// What the phase waits for, if it waits.
    pub why: Option<String>,
}

impl Progress {
    /// Progress of a phase that is doing something.
    pub fn of(phase: &'static str, done: u64, total: Option<u64>) -> Self {
        Self {
            phase,
            done,
            total,
            why: None,
        }
    }
}

/// Takes reports of progress.
pub type ReportProgress<'a> = dyn FnMut(Progress) + 'a;

/// Builds the state from the store's newest complete snapshot and the journal's entries after it. Removes damaged snapshots: otherwise they
/// would count as retained ones.
///
/// # Errors
/// If anything acknowledged can't be restored.
pub fn recover(
    store: &Store,
    journal: &mut dyn Journal,
    report: &mut ReportProgress<'_>,
) -> Result<Recovered> {
    recover_by(&MonotonicClock::system(), store, journal, report)
}

/// Does the same by this clock. Without a service, the operating system's is enough.
///
/// # Errors
/// Those of [`recover`].
pub(super) fn recover_by(
    clock: &MonotonicClock,
    store: &Store,
    journal: &mut dyn Journal,
    report: &mut ReportProgress<'_>,
) -> Result<Recovered> {
    let mut state = State::default();
    let mut manifest = None;
    let mut damaged = Vec::new();
    let mut why = None;
    for found in store.manifests()? {
        match load(store, &found, report) {
            Ok(loaded) => {
                (state, manifest) = (loaded, Some(found));
                break;
            }
            Err(error) if error.is_newer() || matches!(error, RecoveryError::Memory(..)) => {
                return Err(error);
            }
            Err(error) => {
                tracing::error!(seq = found.seq.0, %error, "a snapshot is damaged; trying the one before it");
                why.get_or_insert(error);
                damaged.push(found);
            }
        }
    }
    JournalError::check_version(state.applied(), state.format())?;
    let began = clock.now();
    let events = EventLog::open(store, &state)?;
    let mut recovered = Recovered {
        state,
        events,
        manifest,
        damaged,
        replayed: 0,
        replay_time: Duration::ZERO,
    };
    recovered
        .replay(clock, store, journal, report)
        .map_err(|error| match (error, why) {
            // No snapshot is complete, and the log does not reach back to its first entry.
            (RecoveryError::Journal(JournalError::Damaged(_)), Some(why))
                if recovered.manifest.is_none() =>
            {
                why
            }
            (error, _) => error,
        })?;
    recovered.events.settle(store, &recovered.state)?;
    recovered.replay_time = clock.since(began);
    recovered
        .damaged
        .iter()
        .try_for_each(|manifest| store.forget_snapshot(manifest))?;
    Ok(recovered)
}

/// Builds the state from one snapshot, without the log after it.
///
/// # Errors
/// [`StoreError::Damaged`] if a part of it is missing or damaged; [`JournalError::Newer`]; [`RecoveryError::Memory`].
pub fn load(store: &Store, manifest: &Manifest, report: &mut ReportProgress<'_>) -> Result<State> {
    let restored = State::restore(
        &manifest.meta,
        &mut StoredSections {
            store,
            manifest,
            begun: 0,
            report,
        },
    );
    restored.map_err(|error| match error {
        RestoreStateError::Load(error) | RestoreStateError::Tables(RestoreError::Load(error)) => {
            error
        }
        RestoreStateError::Tables(RestoreError::Memory(refused)) => out_of_memory(store, refused),
        RestoreStateError::Newer(found) => JournalError::newer(manifest.seq, found).into(),
        damage => store.damaged(damage.to_string()).into(),
    })
}

/// The sections of a snapshot, read from the store.
struct StoredSections<'a> {
    store: &'a Store,
    manifest: &'a Manifest,
    begun: u64,
    report: &'a mut ReportProgress<'a>,
}

impl StoredSections<'_> {
    fn report_one(&mut self) {
        self.begun += 1;
        let total = Some(self.manifest.sections.len() as u64);
        (self.report)(Progress::of("snapshot", self.begun, total));
    }
}

impl Sections for StoredSections<'_> {
    type Error = RecoveryError;

    fn chunk(&mut self, id: SectionId, chunk: u32, out: &mut Vec<u8>) -> Result<bool> {
        let section = self
            .manifest
            .find(id)
            .filter(|section| chunk < section.chunks);
        let Some(section) = section else {
            return Ok(false);
        };
        if chunk == 0 {
            self.report_one();
        }
        self.store.read_chunk(section, chunk, out)?;
        Ok(true)
    }

    fn reserve(&mut self, bytes: u64) -> Result<()> {
        let reserved =
            Reservation::new().extend(&MemoryNeed::default(), SPARE_BYTES.saturating_add(bytes));
        reserved.map_err(|refused| out_of_memory(self.store, refused))
    }

    /// Loads a large table with one thread per processor, each a share of it: checksums take time, and so does touching fresh memory.
    fn table(
        &mut self,
        id: SectionId,
        table: &Restoring<'_>,
    ) -> Result<(), RestoreError<RecoveryError>> {
        // A missing section is not loaded, and the check that follows rejects it.
        let Some(section) = self
            .manifest
            .find(id)
            .filter(|section| section.chunks == table.chunks())
        else {
            return Ok(());
        };
        self.report_one();
        let store = self.store;
        let chunks = section.chunks;
        let load = |first: u32, end: u32| {
            table.load(first..end, |chunk, out| {
                store
                    .read_chunk(section, chunk, out)
                    .map_err(RecoveryError::from)
            })
        };
        let share = share(chunks, || {
            thread::available_parallelism().map_or(1, NonZero::get) as u32
        });
        thread::scope(|scope| {
            // The first share is this thread's.
            let starts = (share..chunks).step_by(share as usize);
            let others: Vec<_> = starts
                .map(|first| scope.spawn(move || load(first, chunks.min(first + share))))
                .collect();
            load(0, chunks.min(share))?;
            others
                .into_iter()
                .try_for_each(|other| other.join().unwrap_or_else(|panic| resume_unwind(panic)))
        })
    }
}

/// Returns how many of a table's chunks one thread loads. Most tables are small, and for them the number of processors is not asked:
/// that reads several files of the control group.
fn share(chunks: u32, processors: impl FnOnce() -> u32) -> u32 {
    if chunks <= SHARE_CHUNKS_MIN {
        chunks
    } else {
        chunks.div_ceil(processors()).max(SHARE_CHUNKS_MIN)
    }
}

fn out_of_memory(store: &Store, refused: OutOfMemory) -> RecoveryError {
    RecoveryError::Memory(store.path().display().to_string(), refused)
}

impl Recovered {
    /// Applies the log's entries after the state.
    fn replay(
        &mut self,
        clock: &MonotonicClock,
        store: &Store,
        journal: &mut dyn Journal,
        report: &mut ReportProgress<'_>,
    ) -> Result<()> {
        let Recovered {
            state,
            events,
            replayed,
            ..
        } = self;
        let skipped = store.skipped_entries()?;
        let mut admission = Admission::new(u64::MAX, SPARE_BYTES);
        let waker = bell();
        loop {
            let now = clock.now();
            let context = &mut Context::from_waker(&waker);
            let committed = match journal.poll(state.applied(), now, context)? {
                Poll::Ready(Delivery::Entries(committed)) => committed,
                Poll::Ready(Delivery::Current) => break,
                Poll::Ready(Delivery::Passed(_)) => continue,
                Poll::Pending => {
                    wait(journal.wake_at(now), now);
                    continue;
                }
            };
            for entry in committed.into_iter().map(|committed| committed.entry) {
                if *replayed % REPORT_EVERY == 0 {
                    report(Progress::of("replay", *replayed, None));
                }
                if skipped.contains_key(&entry.seq) {
                    tracing::warn!(
                        entry = entry.seq.0,
                        "skipping an entry marked by `cuckood repair skip`"
                    );
                    state.skip(&entry);
                } else {
                    let Proposal {
                        at,
                        command,
                        idempotency,
                        ..
                    } = &entry.proposal;
                    let verdict = admission.admit(state, command, *at, idempotency.is_some());
                    if let Verdict::NoMemory(refused) = verdict {
                        return Err(out_of_memory(store, refused));
                    }
                    applying::apply(state, entry).map_err(|unappliable| {
                        let advice = unappliable.advice(store.path(), is_of_replicated_log(store));
                        RecoveryError::Unappliable(unappliable.entry, advice)
                    })?;
                    admission.settle();
                    // No command is waiting during recovery, so everything can be freed.
                    state.free_discarded(u64::MAX);
                }
                events.take(store, state)?;
                *replayed += 1;
            }
        }
        state.publish();
        Ok(())
    }

    /// Takes a snapshot of a state with a separate log in one go: no client waits.
    ///
    /// # Errors
    /// Those of [`RunningSnapshot`].
    pub fn take_snapshot(&mut self, store: &Store, at: Timestamp) -> Result<Manifest, StoreError> {
        let Recovered {
            state,
            events,
            manifest,
            ..
        } = self;
        let place = Vec::new();
        let mut running =
            RunningSnapshot::begin(store, state, events, manifest.as_ref(), place, at)?;
        running.write(store, u64::MAX)?;
        running.finish(store)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_tables_ask_for_no_processors() {
        assert_eq!(share(SHARE_CHUNKS_MIN, || unreachable!()), SHARE_CHUNKS_MIN);
        assert_eq!(share(SHARE_CHUNKS_MIN + 1, || 2), SHARE_CHUNKS_MIN);
        assert_eq!(
            share(8 * SHARE_CHUNKS_MIN + 1, || 4),
            2 * SHARE_CHUNKS_MIN + 1
        );
    }
}
