//! A small record in a file beside sled, which survives if sled loses data. The journal decides what it says.
//!
//! There are two slots, in sectors of their own, written in turn: a torn write leaves the other one intact. A write costs a
//! microsecond and survives the death of the process at once. A thread syncs the file alongside the next commit: after a power
//! cut the record can be behind by about one sync, but never ahead.

use parking_lot::{Condvar, Mutex};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The number of slots.
pub const RECORD_SLOTS: u64 = 2;

/// The longest record, in bytes. A slot is as large as a sector of any disk.
pub const RECORD_BYTES_MAX: usize = 4096;

/// Contents of a new file, at its full size, so that later writes change no metadata.
pub(super) fn new_file() -> Vec<u8> {
    vec![0; RECORD_SLOTS as usize * RECORD_BYTES_MAX]
}

/// What the writer and the syncing thread share. Each reason to wake that thread has a condition variable of its own: while the
/// thread pauses, a new record must not cost a context switch.
struct Shared {
    progress: Mutex<SyncState>,
    written: Condvar,
    stopping: Condvar,
}

/// What has been written and synced.
struct SyncState {
    written: u64,
    synced: u64,
    failed: Option<io::ErrorKind>,
    stop: bool,
}

/// The file, open for writing, and the thread that syncs it.
pub(super) struct RecordFile {
    file: Arc<File>,
    shared: Arc<Shared>,
    syncer: Option<JoinHandle<()>>,
}

impl RecordFile {
    /// Opens the file. The syncing thread pauses for `pause` between two syncs.
    pub(super) fn open(path: &Path, pause: Duration) -> io::Result<RecordFile> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        let file = Arc::new(file);
        let progress = SyncState { written: 0, synced: 0, failed: None, stop: false };
        let shared =
            Shared { progress: Mutex::new(progress), written: Condvar::new(), stopping: Condvar::new() };
        let shared = Arc::new(shared);
        let syncer = {
            let (file, shared) = (file.clone(), shared.clone());
            std::thread::Builder::new()
                .name("record-sync".to_owned())
                .spawn(move || sync_behind(&file, &shared, pause))?
        };
        Ok(RecordFile { file, shared, syncer: Some(syncer) })
    }

    /// Reads a slot into `record`; bytes beyond the end of the file read as zeros.
    pub(super) fn read(&self, slot: u64, record: &mut [u8]) -> io::Result<()> {
        record.fill(0);
        let mut filled = 0;
        while filled < record.len() {
            let offset = slot * RECORD_BYTES_MAX as u64 + filled as u64;
            match self.file.read_at(&mut record[filled..], offset) {
                Ok(0) => return Ok(()),
                Ok(bytes) => filled += bytes,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Writes a record into a slot.
    pub(super) fn write(&self, slot: u64, record: &[u8]) -> io::Result<()> {
        let mut progress = self.shared.progress.lock();
        if let Some(kind) = progress.failed {
            return Err(kind.into());
        }
        self.file.write_all_at(record, slot * RECORD_BYTES_MAX as u64)?;
        progress.written += 1;
        self.shared.written.notify_one();
        Ok(())
    }

    /// Syncs the last record now.
    pub(super) fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}

impl Drop for RecordFile {
    fn drop(&mut self) {
        self.shared.progress.lock().stop = true;
        self.shared.written.notify_one();
        self.shared.stopping.notify_one();
        if let Some(syncer) = self.syncer.take() {
            // If the thread panicked there is nothing left to do.
            let _ = syncer.join();
        }
    }
}

fn sync_behind(file: &File, shared: &Shared, pause: Duration) {
    let mut state = shared.progress.lock();
    loop {
        while state.written == state.synced && !state.stop {
            shared.written.wait(&mut state);
        }
        if state.written == state.synced {
            return;
        }
        let written = state.written;
        let result = parking_lot::MutexGuard::unlocked(&mut state, || file.sync_data());
        match result {
            Ok(()) => state.synced = written,
            Err(error) => state.failed = Some(error.kind()),
        }
        if state.failed.is_some() {
            return;
        }
        if !pause.is_zero() && !state.stop {
            // Only a stop may end the pause; new records wait for its end.
            let until = Instant::now() + pause;
            while !state.stop && !shared.stopping.wait_until(&mut state, until).timed_out() {}
        }
    }
}
