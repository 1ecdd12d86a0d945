//! The last trusted reading of the clocks, in a small file beside sled. The next start judges the clock by it.
//!
//! The file is written now and then, never with a commit, and not synced. With an older reading, or none, the judgement is only
//! less precise, so nothing here can fail a start or a write.

use crate::domain::{ClockReading, Timestamp};
use crate::frame::{Format, decode};
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::Duration;

const FORMAT: Format = Format { magic: *b"ckcl", version: 1, payload_max: 64 };

/// The time of day and the time since the boot in milliseconds, and the boot.
type Record = (Timestamp, u64, u128);

/// A saved reading.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeptClock {
    /// What the clocks said.
    pub reading: ClockReading,
    /// Whether the machine has not been booted since, so that the monotonic clock has gone on.
    pub same_boot: bool,
}

/// The file.
pub(super) struct KeptClockFile {
    path: PathBuf,
    boot: u128,
}

impl KeptClockFile {
    /// `boot` identifies the current boot of the machine; 0 if the system does not say.
    pub(super) fn new(path: PathBuf, boot: u128) -> Self {
        Self { path, boot }
    }

    /// The saved reading, if it can be read.
    pub(super) fn load(&self) -> Option<KeptClock> {
        // The rest of a longer record may follow.
        let bytes = fs::read(&self.path).ok()?;
        let (frame, _) = FORMAT.open(&bytes).ok()??;
        let (wall, uptime, boot): Record = decode(frame.payload)?;
        let reading = ClockReading { wall, uptime: Duration::from_millis(uptime) };
        Some(KeptClock { reading, same_boot: boot == self.boot && boot != 0 })
    }

    /// Saves a reading in place of the last one.
    pub(super) fn keep(&self, reading: ClockReading) -> io::Result<()> {
        let uptime = u64::try_from(reading.uptime.as_millis()).unwrap_or(u64::MAX);
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(&self.path)?;
        file.write_all_at(&FORMAT.pack::<Record>(&(reading.wall, uptime, self.boot)), 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const READING: ClockReading =
        ClockReading { wall: Timestamp(1_800_000_000_000), uptime: Duration::from_millis(12_345) };

    fn file(dir: &tempfile::TempDir, boot: u128) -> KeptClockFile {
        KeptClockFile::new(dir.path().join("clock"), boot)
    }

    #[test]
    fn record_tells_its_boot() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        file(&dir, 7).keep(READING).expect("written");
        for (boot, same_boot) in [(7, true), (8, false), (0, false)] {
            assert_eq!(file(&dir, boot).load(), Some(KeptClock { reading: READING, same_boot }));
        }
        file(&dir, 0).keep(READING).expect("written");
        assert_eq!(file(&dir, 0).load(), Some(KeptClock { reading: READING, same_boot: false }));
    }

    #[test]
    fn damaged_record_is_none() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let file = file(&dir, 7);
        file.keep(READING).expect("written");
        let record = fs::read(&file.path).expect("read");
        for at in 0..record.len() {
            let mut damaged = record.clone();
            damaged[at] ^= 1;
            fs::write(&file.path, damaged).expect("written");
            assert_eq!(file.load(), None, "{at}");
            fs::write(&file.path, &record[..at]).expect("written");
            assert_eq!(file.load(), None, "{at}");
        }
    }

    #[test]
    fn last_reading_is_kept() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        assert_eq!(file(&dir, 7).load(), None);
        let open = file(&dir, 7);
        // The second one is shorter.
        for seconds in [1 << 40, 2] {
            let reading = ClockReading { wall: READING.wall.plus_seconds(seconds), ..READING };
            open.keep(reading).expect("written");
            assert_eq!(file(&dir, 7).load().map(|kept| kept.reading), Some(reading));
        }
    }
}
