//! A table as it was when a snapshot started. The snapshot owns it, and takes its chunks while the writer continues.

use crate::chunk::{CHUNK_WORDS, TableId, chunks, encode_chunk};
use crate::table::Table;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Changed words of a chunk with their old values, in the order of the changes.
type Records = Vec<(u32, u64)>;

/// The undo log of a snapshot: the old values of words that have changed since it began.
pub(crate) struct Undo {
    /// For each chunk its records; `None` once the chunk is taken. Empty once the snapshot has let go of the table.
    chunks: Mutex<Vec<Option<Records>>>,
    /// Bytes that only snapshots still need. Shared with everything else that the snapshot consists of.
    copied: Arc<AtomicU64>,
}

impl Undo {
    fn chunks(&self) -> MutexGuard<'_, Vec<Option<Records>>> {
        self.chunks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a word's old value, unless its chunk is taken.
    pub(crate) fn push(&self, word: usize, before: u64) {
        if let Some(Some(records)) = self.chunks().get_mut(word / CHUNK_WORDS) {
            records.push(((word % CHUNK_WORDS) as u32, before));
            self.copied.fetch_add(size_of::<(u32, u64)>() as u64, Relaxed);
        }
    }

    /// Takes the records of a chunk: later changes of it are not recorded.
    fn take(&self, chunk: usize) -> Records {
        let records = self.chunks()[chunk].take().unwrap_or_default();
        self.copied.fetch_sub(size_of_val(records.as_slice()) as u64, Relaxed);
        records
    }
}

/// A table as it was when a snapshot began.
pub struct FrozenTable {
    id: TableId,
    changes: u64,
    table: Arc<Table>,
    undo: Arc<Undo>,
    next: u32,
}

impl FrozenTable {
    /// The table as it is now, and the undo log that its writer must fill from now on.
    pub(crate) fn new(
        id: TableId,
        changes: u64,
        table: Arc<Table>,
        copied: Arc<AtomicU64>,
    ) -> (Self, Arc<Undo>) {
        let records = (0..chunks(table.words.len() as u64)).map(|_| Some(Vec::new()));
        let undo = Arc::new(Undo { chunks: Mutex::new(records.collect()), copied });
        (Self { id, changes, table, undo: undo.clone(), next: 0 }, undo)
    }

    /// The table's number.
    pub fn id(&self) -> TableId {
        self.id
    }

    /// The number of changes of its words so far. While it stays the same, so do the bytes.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Replaces `out` with the next chunk; `false` after the last one.
    pub fn next_chunk(&mut self, out: &mut Vec<u8>) -> bool {
        out.clear();
        let (chunk, first) = (self.next, self.next as usize * CHUNK_WORDS);
        if first >= self.table.words.len() {
            return false;
        }
        self.next += 1;
        let last = self.table.words.len().min(first + CHUNK_WORDS);
        let mut words: Vec<u64> =
            self.table.words[first..last].iter().map(|word| word.load(Relaxed)).collect();
        for (word, before) in self.undo.take(chunk as usize).into_iter().rev() {
            words[word as usize] = before;
        }
        encode_chunk(self.id, chunk, &words, out);
        true
    }
}

impl Drop for FrozenTable {
    fn drop(&mut self) {
        let left = std::mem::take(&mut *self.undo.chunks());
        let bytes: usize = left.iter().flatten().map(|records| size_of_val(records.as_slice())).sum();
        self.undo.copied.fetch_sub(bytes as u64, Relaxed);
    }
}
