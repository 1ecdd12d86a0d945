//! Files for downloads that are taken from memory: an image is written to one as fast as the disk allows, and a slow client reads it from
//! there. A file has no name, so nothing is left of it after a crash.

use super::{Store, StoreError};
use std::collections::VecDeque;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

/// Records in a file, each of which is read once.
pub struct Spool {
    file: File,
    /// The data directory, for messages.
    dir: PathBuf,
    /// The lengths of the records that are still to be read.
    lengths: VecDeque<usize>,
    written_bytes: u64,
    read_bytes: u64,
}

impl Store {
    /// Creates an empty spool in the data directory.
    ///
    /// # Errors
    /// [`StoreError::DiskFull`]; [`StoreError::Io`].
    pub fn spool(&self) -> Result<Spool, StoreError> {
        self.space.check()?;
        let dir = self.path().to_owned();
        let file = tempfile::tempfile_in(&dir)
            .map_err(StoreError::io(&dir, "make a temporary file in"))?;
        Ok(Spool {
            file,
            dir,
            lengths: VecDeque::new(),
            written_bytes: 0,
            read_bytes: 0,
        })
    }
}

impl Spool {
    /// Appends a record. It takes no disk space below the watermark: that is reserved for operations that free space.
    ///
    /// # Errors
    /// [`StoreError::DiskFull`]; [`StoreError::Io`].
    pub fn push(&mut self, store: &Store, record: &[u8]) -> Result<(), StoreError> {
        store.space.check_beyond(record.len() as u64)?;
        let written = self.file.write_all_at(record, self.written_bytes);
        written.map_err(StoreError::io(&self.dir, "write a temporary file in"))?;
        self.written_bytes += record.len() as u64;
        self.lengths.push_back(record.len());
        Ok(())
    }

    /// Takes the next records until they have `bytes_max` together; none after the last one.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn pop(&mut self, bytes_max: usize) -> Result<Vec<Vec<u8>>, StoreError> {
        let mut records = Vec::new();
        let mut bytes = 0;
        while bytes < bytes_max
            && let Some(length) = self.lengths.pop_front()
        {
            let mut record = vec![0; length];
            let read = self.file.read_exact_at(&mut record, self.read_bytes);
            read.map_err(StoreError::io(&self.dir, "read a temporary file in"))?;
            self.read_bytes += length as u64;
            bytes += length;
            records.push(record);
        }
        Ok(records)
    }
}
