//! The last acknowledged position, in a small file of our own beside sled. sled drops what it can't read at
//! the tail of its log without a word; this file is how a lost tail is noticed.
//!
//! A record is written after the data it speaks of is durable and before anybody is told, so it never claims
//! more than is there. Two slots, in sectors of their own, are written in turn: a torn write leaves the other.
//! A write costs a microsecond and survives the death of the process at once. It is synced by a thread of its
//! own, alongside the next commit: after a power cut the file can be behind by about one sync, never ahead.

use super::StoreError;
use crate::domain::Seq;
use parking_lot::{Condvar, Mutex};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use xxhash_rust::xxh3::xxh3_128;

const MAGIC: &[u8; 8] = b"ckackn\0\x01";
const SLOT_BYTES: u64 = 4096;
const RECORD_BYTES: usize = 72;

/// A position of the log and the checksum of the value that ends there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Acknowledged {
    pub(crate) seq: Seq,
    pub(crate) link: u128,
}

impl Acknowledged {
    /// The record; it carries the directory's identity, so that a file from elsewhere is told apart.
    pub(crate) fn encode(self, identity: &[u8; 16]) -> [u8; RECORD_BYTES] {
        let mut record = [0; RECORD_BYTES];
        record[..8].copy_from_slice(MAGIC);
        record[8..24].copy_from_slice(identity);
        record[24..32].copy_from_slice(&self.seq.0.to_le_bytes());
        record[32..48].copy_from_slice(&self.link.to_le_bytes());
        let checksum = xxh3_128(&record[..56]);
        record[56..].copy_from_slice(&checksum.to_le_bytes());
        record
    }

    fn decode(record: &[u8; RECORD_BYTES], identity: &[u8; 16]) -> Option<Acknowledged> {
        let (body, checksum) = record.split_last_chunk::<16>()?;
        if xxh3_128(body) != u128::from_le_bytes(*checksum) || &body[..8] != MAGIC || &body[8..24] != identity
        {
            return None;
        }
        Some(Acknowledged {
            seq: Seq(u64::from_le_bytes(*body[24..].first_chunk()?)),
            link: u128::from_le_bytes(*body[32..].first_chunk()?),
        })
    }
}

/// The bytes of a new file: at its full size, so that later writes change no metadata.
pub(crate) fn new_file(first: Acknowledged, identity: &[u8; 16]) -> Vec<u8> {
    let mut bytes = first.encode(identity).to_vec();
    bytes.resize(2 * SLOT_BYTES as usize, 0);
    bytes
}

/// Reads the later of the two records, and tells which slot the next one belongs into.
///
/// # Errors
/// [`StoreError::Damaged`] if the file is gone or neither record is whole.
pub(crate) fn load(dir: &Path, path: &Path, identity: &[u8; 16]) -> Result<(Acknowledged, u64), StoreError> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(StoreError::damaged(dir, format!("{} is missing", path.display())));
        }
        opened => opened.map_err(StoreError::io(path, "open"))?,
    };
    let mut latest = None;
    for slot in 0..2 {
        let mut record = [0; RECORD_BYTES];
        match file.read_exact_at(&mut record, slot * SLOT_BYTES) {
            Ok(()) => {
                let found = Acknowledged::decode(&record, identity).map(|found| (found, 1 - slot));
                latest = [latest, found].into_iter().flatten().max_by_key(|(found, _)| found.seq);
            }
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {}
            Err(error) => return Err(StoreError::io(path, "read")(error)),
        }
    }
    latest.ok_or_else(|| StoreError::damaged(dir, format!("{} holds no whole record", path.display())))
}

/// What the writer and the syncing thread share.
struct Progress {
    written: u64,
    synced: u64,
    slot: u64,
    failed: Option<io::ErrorKind>,
    stop: bool,
}

/// The file, open for writing, and the thread that syncs it.
pub(crate) struct AcknowledgedFile {
    file: Arc<File>,
    progress: Arc<(Mutex<Progress>, Condvar)>,
    syncer: Option<JoinHandle<()>>,
}

impl AcknowledgedFile {
    /// Opens the file; the next record goes into `slot`.
    pub(crate) fn open(path: &Path, slot: u64, pause: Duration) -> io::Result<AcknowledgedFile> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        let file = Arc::new(file);
        let progress = Progress { written: 0, synced: 0, slot, failed: None, stop: false };
        let progress = Arc::new((Mutex::new(progress), Condvar::new()));
        let syncer = {
            let (file, progress) = (file.clone(), progress.clone());
            std::thread::Builder::new()
                .name("acknowledged".to_owned())
                .spawn(move || sync_behind(&file, &progress, pause))?
        };
        Ok(AcknowledgedFile { file, progress, syncer: Some(syncer) })
    }

    /// Writes a record over the older one.
    pub(crate) fn write(&self, record: &[u8]) -> io::Result<()> {
        let (progress, changed) = &*self.progress;
        let mut progress = progress.lock();
        if let Some(kind) = progress.failed {
            return Err(kind.into());
        }
        self.file.write_all_at(record, progress.slot * SLOT_BYTES)?;
        progress.slot = 1 - progress.slot;
        progress.written += 1;
        changed.notify_all();
        Ok(())
    }

    /// Syncs the last record now.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}

impl Drop for AcknowledgedFile {
    fn drop(&mut self) {
        let (progress, changed) = &*self.progress;
        progress.lock().stop = true;
        changed.notify_all();
        if let Some(syncer) = self.syncer.take() {
            // A panic of the thread has nothing left to spoil.
            let _ = syncer.join();
        }
    }
}

fn sync_behind(file: &File, progress: &(Mutex<Progress>, Condvar), pause: Duration) {
    let (progress, changed) = progress;
    let mut state = progress.lock();
    loop {
        while state.written == state.synced && !state.stop {
            changed.wait(&mut state);
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
            // A stop is the only thing worth waking for; a new record is what the pause is to gather.
            let until = std::time::Instant::now() + pause;
            while !state.stop && !changed.wait_until(&mut state, until).timed_out() {}
        }
    }
}
