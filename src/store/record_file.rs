//! A small record in a file of its own beside sled, which sled's losses don't reach. What it says is the journal's business.
//!
//! There are two slots, in sectors of their own, written in turn: a torn write leaves the other one whole. A write costs a
//! microsecond and survives the death of the process at once. It is synced by a thread of its own, alongside the next
//! commit: after a power cut the file can be behind by about one sync, never ahead.

use parking_lot::{Condvar, Mutex};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How many slots there are.
pub const RECORD_SLOTS: u64 = 2;

/// The longest record: a slot is as large as a sector of any disk.
pub const RECORD_BYTES_MAX: usize = 4096;

/// The bytes of a new file: at its full size, so that later writes change no metadata.
pub(super) fn new_file() -> Vec<u8> {
    vec![0; RECORD_SLOTS as usize * RECORD_BYTES_MAX]
}

/// What the writer and the syncing thread share. Each reason to wake that thread has a bell of its own: while it rests, a
/// new record must not cost a switch of threads.
struct Shared {
    progress: Mutex<Progress>,
    written: Condvar,
    stopping: Condvar,
}

/// How far the file is.
struct Progress {
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
    /// Opens the file; the syncing thread rests for `pause` between two syncs.
    pub(super) fn open(path: &Path, pause: Duration) -> io::Result<RecordFile> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        let file = Arc::new(file);
        let progress = Progress { written: 0, synced: 0, failed: None, stop: false };
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

    /// Reads a slot, as much as `record` takes; what lies behind the end of the file reads as zeros.
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
            // A panic of the thread has nothing left to spoil.
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
            // A stop is the only thing worth waking for; new records are what the pause is to gather.
            let until = Instant::now() + pause;
            while !state.stop && !shared.stopping.wait_until(&mut state, until).timed_out() {}
        }
    }
}
