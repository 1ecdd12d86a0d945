//! A small record in a file beside sled, which survives if sled loses data. The journal decides what it says.
//!
//! There are two slots, in sectors of their own, written in turn: a torn write leaves the other one intact. A write costs a
//! microsecond and survives the death of the process at once. A thread syncs the file alongside the next commit: after a power
//! cut the record can be behind by about one sync, but never ahead.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

/// The number of slots.
pub const RECORD_SLOTS: u64 = 2;

/// The longest record, in bytes. A slot is as large as a sector of any disk.
pub const RECORD_BYTES_MAX: usize = 4096;

/// Contents of a new file, at its full size, so that later writes change no metadata.
pub(super) fn new_file() -> Vec<u8> {
    vec![0; RECORD_SLOTS as usize * RECORD_BYTES_MAX]
}

/// The file, open for writing, and the thread that syncs it.
pub(super) struct RecordFile {
    file: Arc<File>,
    failed: Arc<OnceLock<io::ErrorKind>>,
    syncer: Option<Syncer>,
}

/// The syncing thread. Each reason to wake it has a channel: while it pauses, a new record must not cost a context switch.
struct Syncer {
    written: SyncSender<()>,
    _stopping: SyncSender<()>,
    thread: JoinHandle<()>,
}

impl RecordFile {
    /// Opens the file. The syncing thread pauses for `pause` between two syncs.
    pub(super) fn open(path: &Path, pause: Duration) -> io::Result<RecordFile> {
        let file = Arc::new(OpenOptions::new().read(true).write(true).open(path)?);
        let failed = Arc::new(OnceLock::new());
        let ((written, is_written), (_stopping, is_stopping)) = (sync_channel(1), sync_channel(0));
        let thread = {
            let (file, failed) = (file.clone(), failed.clone());
            let sync = move || sync_behind(&file, &failed, &is_written, &is_stopping, pause);
            std::thread::Builder::new().name("record-sync".to_owned()).spawn(sync)?
        };
        Ok(RecordFile { file, failed, syncer: Some(Syncer { written, _stopping, thread }) })
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
        if let Some(kind) = self.failed.get() {
            return Err((*kind).into());
        }
        self.file.write_all_at(record, slot * RECORD_BYTES_MAX as u64)?;
        if let Some(syncer) = &self.syncer {
            // If the channel is full, the sync that it asks for has not started.
            let _ = syncer.written.try_send(());
        }
        Ok(())
    }

    /// Syncs the last record now.
    pub(super) fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}

impl Drop for RecordFile {
    fn drop(&mut self) {
        if let Some(Syncer { written, _stopping, thread }) = self.syncer.take() {
            drop((written, _stopping));
            // If the thread panicked there is nothing left to do.
            let _ = thread.join();
        }
    }
}

/// Syncs what is written until the file is dropped or a sync fails.
fn sync_behind(
    file: &File,
    failed: &OnceLock<io::ErrorKind>,
    written: &Receiver<()>,
    stopping: &Receiver<()>,
    pause: Duration,
) {
    while written.recv().is_ok() {
        if let Err(error) = file.sync_data() {
            let _ = failed.set(error.kind());
            return;
        }
        // Only a stop ends the pause; new records wait for its end.
        let _ = stopping.recv_timeout(pause);
    }
}
