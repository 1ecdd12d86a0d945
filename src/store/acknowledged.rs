//! The last acknowledged position, in a small file of our own beside sled. sled drops what it can't read at
//! the tail of its log without a word; this file is how a lost tail is noticed.
//!
//! At `flush` nothing is promised for the death of the machine, so a record also tells which boot of the machine it
//! belongs to and how much of it was synced: after another boot only that is asked for.
//!
//! A record is written after the data it speaks of is durable and before anybody is told, so it never claims
//! more than is there. Two slots, in sectors of their own, are written in turn: a torn write leaves the other.
//! A write costs a microsecond and survives the death of the process at once. It is synced by a thread of its
//! own, alongside the next commit: after a power cut the file can be behind by about one sync, never ahead.

use super::StoreError;
use super::log::Link;
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
const RECORD_BYTES: usize = 112;

/// What was acknowledged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Acknowledged {
    /// The last position that anybody was told of, as far as the process's death goes.
    pub(crate) last: Link,
    /// The last position that was synced before it was acknowledged.
    pub(crate) synced: Link,
}

/// Tells one boot of the machine from another; 0 where the system does not say.
pub(crate) fn boot() -> u128 {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    u128::from_str_radix(&id.trim().replace('-', ""), 16).unwrap_or(0)
}

impl Acknowledged {
    /// The record; it carries the directory's identity, so that a file from elsewhere is told apart.
    pub(crate) fn encode(self, identity: &[u8; 16], boot: u128) -> [u8; RECORD_BYTES] {
        let mut record = [0; RECORD_BYTES];
        record[..8].copy_from_slice(MAGIC);
        record[8..24].copy_from_slice(identity);
        record[24..48].copy_from_slice(&self.last.encode());
        record[48..72].copy_from_slice(&self.synced.encode());
        record[72..88].copy_from_slice(&boot.to_le_bytes());
        let checksum = xxh3_128(&record[..RECORD_BYTES - 16]);
        record[RECORD_BYTES - 16..].copy_from_slice(&checksum.to_le_bytes());
        record
    }

    /// The record as it counts in this boot of the machine.
    fn decode(record: &[u8; RECORD_BYTES], identity: &[u8; 16], boot: u128) -> Option<Acknowledged> {
        let (body, checksum) = record.split_last_chunk::<16>()?;
        if xxh3_128(body) != u128::from_le_bytes(*checksum) || &body[..8] != MAGIC || &body[8..24] != identity
        {
            return None;
        }
        let (last, synced) = (Link::decode(&body[24..48])?, Link::decode(&body[48..72])?);
        let same_boot = u128::from_le_bytes(*body[72..].first_chunk()?) == boot;
        Some(Acknowledged { last: if same_boot { last } else { synced }, synced })
    }
}

/// The bytes of a new file: at its full size, so that later writes change no metadata.
pub(crate) fn new_file(first: Acknowledged, identity: &[u8; 16]) -> Vec<u8> {
    let mut bytes = first.encode(identity, boot()).to_vec();
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
    let boot = boot();
    let mut latest = None;
    for slot in 0..2 {
        let mut record = [0; RECORD_BYTES];
        match file.read_exact_at(&mut record, slot * SLOT_BYTES) {
            Ok(()) => {
                let found = Acknowledged::decode(&record, identity, boot).map(|found| (found, 1 - slot));
                latest = [latest, found].into_iter().flatten().max_by_key(|(found, _)| found.last.seq);
            }
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {}
            Err(error) => return Err(StoreError::io(path, "read")(error)),
        }
    }
    latest.ok_or_else(|| StoreError::damaged(dir, format!("{} holds no whole record", path.display())))
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
    slot: u64,
    failed: Option<io::ErrorKind>,
    stop: bool,
}

/// The file, open for writing, and the thread that syncs it.
pub(crate) struct AcknowledgedFile {
    file: Arc<File>,
    shared: Arc<Shared>,
    syncer: Option<JoinHandle<()>>,
}

impl AcknowledgedFile {
    /// Opens the file; the next record goes into `slot`.
    pub(crate) fn open(path: &Path, slot: u64, pause: Duration) -> io::Result<AcknowledgedFile> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        let file = Arc::new(file);
        let progress = Progress { written: 0, synced: 0, slot, failed: None, stop: false };
        let shared =
            Shared { progress: Mutex::new(progress), written: Condvar::new(), stopping: Condvar::new() };
        let shared = Arc::new(shared);
        let syncer = {
            let (file, shared) = (file.clone(), shared.clone());
            std::thread::Builder::new()
                .name("acknowledged".to_owned())
                .spawn(move || sync_behind(&file, &shared, pause))?
        };
        Ok(AcknowledgedFile { file, shared, syncer: Some(syncer) })
    }

    /// Writes a record over the older one.
    pub(crate) fn write(&self, record: &[u8]) -> io::Result<()> {
        let mut progress = self.shared.progress.lock();
        if let Some(kind) = progress.failed {
            return Err(kind.into());
        }
        self.file.write_all_at(record, progress.slot * SLOT_BYTES)?;
        progress.slot = 1 - progress.slot;
        progress.written += 1;
        self.shared.written.notify_one();
        Ok(())
    }

    /// Syncs the last record now.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}

impl Drop for AcknowledgedFile {
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
            let until = std::time::Instant::now() + pause;
            while !state.stop && !shared.stopping.wait_until(&mut state, until).timed_out() {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::Seq;

    const IDENTITY: [u8; 16] = [3; 16];

    fn at(last: u64, synced: u64) -> Acknowledged {
        let link = |seq| Link { seq: Seq(seq), checksum: u128::from(seq) << 100 };
        Acknowledged { last: link(last), synced: link(synced) }
    }

    #[test]
    fn after_another_boot_only_what_was_synced_is_asked_for() {
        let record = at(9, 5).encode(&IDENTITY, 1);
        assert_eq!(Acknowledged::decode(&record, &IDENTITY, 1), Some(at(9, 5)));
        assert_eq!(Acknowledged::decode(&record, &IDENTITY, 2), Some(at(5, 5)));
        assert_eq!(Acknowledged::decode(&record, &[4; 16], 1), None);
    }

    #[test]
    fn a_torn_record_leaves_the_one_before() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("acknowledged");
        std::fs::write(&path, new_file(at(0, 0), &IDENTITY)).expect("written");
        for seq in 1..=5 {
            let (found, slot) = load(dir.path(), &path, &IDENTITY).expect("loaded");
            assert_eq!(found, at(seq - 1, seq - 1));
            let file = AcknowledgedFile::open(&path, slot, Duration::ZERO).expect("opened");
            file.write(&at(seq, seq).encode(&IDENTITY, boot())).expect("written");
        }
        let (_, slot) = load(dir.path(), &path, &IDENTITY).expect("loaded");
        let mut bytes = std::fs::read(&path).expect("read");
        bytes[((1 - slot) * SLOT_BYTES) as usize + 40] ^= 1;
        std::fs::write(&path, bytes).expect("written");
        assert_eq!(load(dir.path(), &path, &IDENTITY).expect("loaded").0, at(4, 4));
    }
}
