//! Begins a log that nodes share with a backup: the state in it becomes the first snapshot that they share.

use super::recovery::{Recovered, recover};
use super::restore::restore;
use super::running_snapshot::RunningSnapshot;
use super::{ArchiveSource, RecoveryError};
use crate::domain::{ClockReading, Seq};
use crate::journal::{JournalError, JournalOptions, LocalJournal, LocalOptions, Taken};
use crate::store::{Store, StoreOptions};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes of a snapshot that are written at once. Nobody waits meanwhile.
const STEP_BYTES: u64 = 64 << 20;

/// How long that may take.
const STEP_TIME: Duration = Duration::from_secs(3_600);

/// Begins an empty log with a backup. The backup is restored into `scratch` first, an empty or absent directory, which holds nothing of
/// use afterwards. Returns the position behind which the log goes on.
///
/// # Errors
/// If nodes share no such log, or it is not empty; otherwise those of [`restore`] and of the log.
pub fn restore_into_cluster(
    file: &Path,
    scratch: &Path,
    journal: &JournalOptions,
    clock: ClockReading,
) -> Result<Seq, RecoveryError> {
    let failed = |why: &str| JournalError::Failed(why.to_owned());
    let shared = journal.shared_snapshots()?;
    let mut shared = shared.ok_or_else(|| failed("journal.kind is not \"nats\": no nodes share a log"))?;
    if shared.has_begun()? {
        return Err(failed("the log is not empty: name another stream with nats.stream, or remove it").into());
    }
    let options = StoreOptions { ballast_bytes: 0, sync_snapshots: false, ..StoreOptions::default() };
    restore(file, scratch, &options, clock)?;
    let store = Arc::new(Store::open(scratch, &options)?);
    let mut log = LocalJournal::open(store.clone(), LocalOptions::default())?;
    let Recovered { mut state, mut events, .. } = recover(&store, &mut log, &mut |_| ())?;
    let mut running = RunningSnapshot::begin(&store, &mut state, &mut events, None, clock.wall)?;
    while !running.is_whole() {
        running.write(&store, STEP_BYTES, Instant::now() + STEP_TIME)?;
    }
    let manifest = running.finish(&store)?;
    let source = ArchiveSource::of_newest_snapshot(&store)?;
    let mut source = source.ok_or_else(|| failed("the snapshot of the backup is gone"))?;
    let taken = Taken { seq: manifest.seq, taken_at: manifest.taken_at, place: Vec::new() };
    let begun = shared.begin_log(&taken, &mut || source.next_part(&store, &mut log))?;
    Ok(begun.seq)
}
