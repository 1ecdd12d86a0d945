//! The last trusted reading of the clocks, in a small file beside sled. The next start judges the clock by it.
//!
//! The file is written now and then, never with a commit, and not synced. With an older reading, or none, the judgement is only
//! less precise, so nothing here can fail a start or a write.

use crate::domain::{ClockReading, Timestamp};
use parking_lot::Mutex;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::Duration;
use xxhash_rust::xxh3::xxh3_128;

const MAGIC: &[u8; 8] = b"ckclck\0\x01";
const RECORD_BYTES: usize = 56;

/// A saved reading.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeptClock {
    /// What the clocks said.
    pub reading: ClockReading,
    /// Whether the machine has not been booted since, so that the monotonic clock has gone on.
    pub same_boot: bool,
}

fn encode(reading: ClockReading, boot: u128) -> [u8; RECORD_BYTES] {
    let mut record = [0; RECORD_BYTES];
    record[..8].copy_from_slice(MAGIC);
    record[8..16].copy_from_slice(&reading.wall.0.to_le_bytes());
    let uptime = u64::try_from(reading.uptime.as_millis()).unwrap_or(u64::MAX);
    record[16..24].copy_from_slice(&uptime.to_le_bytes());
    record[24..40].copy_from_slice(&boot.to_le_bytes());
    let checksum = xxh3_128(&record[..RECORD_BYTES - 16]);
    record[RECORD_BYTES - 16..].copy_from_slice(&checksum.to_le_bytes());
    record
}

fn decode(bytes: &[u8], boot: u128) -> Option<KeptClock> {
    let record: &[u8; RECORD_BYTES] = bytes.try_into().ok()?;
    let (body, checksum) = record.split_last_chunk::<16>()?;
    if xxh3_128(body) != u128::from_le_bytes(*checksum) || &body[..8] != MAGIC {
        return None;
    }
    let wall = Timestamp(u64::from_le_bytes(*body[8..].first_chunk()?));
    let uptime = Duration::from_millis(u64::from_le_bytes(*body[16..].first_chunk()?));
    let then = u128::from_le_bytes(*body[24..].first_chunk()?);
    Some(KeptClock { reading: ClockReading { wall, uptime }, same_boot: then == boot && boot != 0 })
}

/// The file; it is opened when the first reading is written.
pub(super) struct KeptClockFile {
    path: PathBuf,
    boot: u128,
    file: Mutex<Option<File>>,
}

impl KeptClockFile {
    /// `boot` identifies the current boot of the machine; 0 if the system does not say.
    pub(super) fn new(path: PathBuf, boot: u128) -> Self {
        Self { path, boot, file: Mutex::new(None) }
    }

    /// The saved reading, if it can be read.
    pub(super) fn load(&self) -> Option<KeptClock> {
        decode(&fs::read(&self.path).ok()?, self.boot)
    }

    /// Saves a reading in place of the last one.
    pub(super) fn keep(&self, reading: ClockReading) -> io::Result<()> {
        let mut file = self.file.lock();
        let file = match &mut *file {
            Some(file) => file,
            none => {
                let opened = OpenOptions::new().write(true).create(true).truncate(false).open(&self.path)?;
                opened.set_len(RECORD_BYTES as u64)?;
                none.insert(opened)
            }
        };
        file.write_all_at(&encode(reading, self.boot), 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const READING: ClockReading =
        ClockReading { wall: Timestamp(1_800_000_000_000), uptime: Duration::from_millis(12_345) };

    #[test]
    fn a_record_tells_the_boot_that_it_belongs_to() {
        let record = encode(READING, 7);
        assert_eq!(decode(&record, 7), Some(KeptClock { reading: READING, same_boot: true }));
        assert_eq!(decode(&record, 8), Some(KeptClock { reading: READING, same_boot: false }));
        assert_eq!(decode(&encode(READING, 0), 0), Some(KeptClock { reading: READING, same_boot: false }));
    }

    #[test]
    fn a_damaged_record_is_none() {
        let record = encode(READING, 7);
        for at in 0..RECORD_BYTES {
            let mut record = record;
            record[at] ^= 1;
            assert_eq!(decode(&record, 7), None, "{at}");
        }
        assert_eq!(decode(&record[..40], 7), None);
    }

    #[test]
    fn the_last_reading_is_kept() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("clock");
        assert_eq!(KeptClockFile::new(path.clone(), 7).load(), None);
        let file = KeptClockFile::new(path.clone(), 7);
        for seconds in [1, 2] {
            let reading = ClockReading { wall: READING.wall.plus_seconds(seconds), ..READING };
            file.keep(reading).expect("written");
            assert_eq!(KeptClockFile::new(path.clone(), 7).load().map(|kept| kept.reading), Some(reading));
        }
    }
}
