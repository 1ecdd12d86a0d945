//! Chunks: the contents of tables as little-endian bytes, each with a header and a checksum. A snapshot takes those of a table as of its
//! start ([`FrozenTable`]), while the writer continues.

use crate::table::Table;
use serde::{Deserialize, Serialize};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use thiserror::Error;
use xxhash_rust::xxh3::xxh3_64;

/// Words of a chunk; the last chunk of a table may have fewer. Chunks are small for two reasons: a commit waits until the chunk
/// before it is written, and sled writes all sixteen chunks of a leaf again with about every eighth.
pub const CHUNK_WORDS: usize = 1_000;

const MAGIC: [u8; 4] = *b"CKCH";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 24;
const CHECKSUM_BYTES: usize = 8;

/// Maximum size of a chunk.
pub const CHUNK_BYTES_MAX: usize = HEADER_BYTES + CHUNK_WORDS * 8 + CHECKSUM_BYTES;

/// A table's number. A filter uses no number twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TableId(pub u64);

/// The defect of a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum BadChunk {
    /// Its length differs from the one that it states, or exceeds that of any chunk.
    #[error("its length is wrong")]
    Length,
    /// It does not start with the bytes that every chunk starts with.
    #[error("it is not a chunk")]
    Magic,
    /// A newer program wrote it.
    #[error("it has version {0}")]
    Version(u32),
    /// Its checksum is wrong.
    #[error("its checksum is wrong")]
    Checksum,
    /// It is intact, but belongs to another table or place.
    #[error("it is another table's or another place's")]
    Misplaced,
}

/// The number of chunks of a table of this many words.
pub(crate) fn chunks(words: u64) -> u32 {
    words.div_ceil(CHUNK_WORDS as u64) as u32
}

/// Replaces `out` with an encoded chunk. If all words are zero, only their number is written. Even so, no chunk of an empty table may
/// be missing when it is restored.
pub(crate) fn encode_chunk(table: TableId, chunk: u32, words: &[u64], out: &mut Vec<u8>) {
    out.clear();
    out.reserve(HEADER_BYTES + words.len() * 8 + CHECKSUM_BYTES);
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&VERSION.to_le_bytes());
    out.extend_from_slice(&table.0.to_le_bytes());
    out.extend_from_slice(&chunk.to_le_bytes());
    out.extend_from_slice(&(words.len() as u32).to_le_bytes());
    if words.iter().any(|word| *word != 0) {
        for word in words {
            out.extend_from_slice(&word.to_le_bytes());
        }
    }
    let checksum = xxh3_64(out);
    out.extend_from_slice(&checksum.to_le_bytes());
}

/// The content of a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ChunkWords<'a> {
    /// This many words, all zero.
    Zero(usize),
    /// These words, little-endian.
    Written(&'a [[u8; 8]]),
}

impl ChunkWords<'_> {
    /// How many words there are.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Zero(words) => *words,
            Self::Written(words) => words.len(),
        }
    }
}

/// Decodes a chunk whose table and number are known.
///
/// # Errors
/// [`BadChunk`] if it is damaged, or another chunk. No bytes make it panic.
pub(crate) fn decode_chunk(
    bytes: &[u8],
    table: TableId,
    chunk: u32,
) -> Result<ChunkWords<'_>, BadChunk> {
    if bytes.len() > CHUNK_BYTES_MAX {
        return Err(BadChunk::Length);
    }
    let (content, checksum) = bytes
        .split_last_chunk::<CHECKSUM_BYTES>()
        .ok_or(BadChunk::Length)?;
    let (header, words) = content
        .split_first_chunk::<HEADER_BYTES>()
        .ok_or(BadChunk::Length)?;
    if header[..4] != MAGIC {
        return Err(BadChunk::Magic);
    }
    let field = |at: usize| {
        u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
    };
    if field(4) != VERSION {
        return Err(BadChunk::Version(field(4)));
    }
    if xxh3_64(content) != u64::from_le_bytes(*checksum) {
        return Err(BadChunk::Checksum);
    }
    let (words, rest) = words.as_chunks::<8>();
    let count = field(20) as usize;
    let words = match words.len() {
        0 if count <= CHUNK_WORDS => ChunkWords::Zero(count),
        written if written == count => ChunkWords::Written(words),
        _ => return Err(BadChunk::Length),
    };
    if !rest.is_empty() {
        return Err(BadChunk::Length);
    }
    let found = TableId(u64::from(field(8)) | u64::from(field(12)) << 32);
    if found != table || field(16) != chunk {
        return Err(BadChunk::Misplaced);
    }
    Ok(words)
}

/// Changed words of a chunk with their old values, in the order of the changes.
type OldWords = Vec<(u32, u64)>;

/// The undo log of a snapshot: the old values of words that have changed since its start.
pub(crate) struct Undo {
    /// For each chunk its records; `None` once the chunk is taken. Empty once the snapshot has let go of the table.
    chunks: Mutex<Vec<Option<OldWords>>>,
    /// Bytes that only snapshots still need. Shared with everything else that the snapshot consists of.
    copied: Arc<AtomicU64>,
}

impl Undo {
    fn chunks(&self) -> MutexGuard<'_, Vec<Option<OldWords>>> {
        self.chunks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a word's old value, unless its chunk is taken.
    pub(crate) fn push(&self, word: usize, before: u64) {
        if let Some(Some(records)) = self.chunks().get_mut(word / CHUNK_WORDS) {
            records.push(((word % CHUNK_WORDS) as u32, before));
            self.copied
                .fetch_add(size_of::<(u32, u64)>() as u64, Relaxed);
        }
    }

    /// Takes the records of a chunk: its later changes are not recorded.
    fn take(&self, chunk: usize) -> OldWords {
        let records = self.chunks()[chunk].take().unwrap_or_default();
        self.copied
            .fetch_sub(size_of_val(records.as_slice()) as u64, Relaxed);
        records
    }
}

/// A table as of the start of a snapshot.
pub struct FrozenTable {
    id: TableId,
    changes: u64,
    table: Arc<Table>,
    undo: Arc<Undo>,
    next: u32,
}

impl FrozenTable {
    /// The current table, and the undo log that its writer must fill from now on.
    pub(crate) fn new(
        id: TableId,
        changes: u64,
        table: Arc<Table>,
        copied: Arc<AtomicU64>,
    ) -> (Self, Arc<Undo>) {
        let records = (0..chunks(table.words.len() as u64)).map(|_| Some(Vec::new()));
        let undo = Arc::new(Undo {
            chunks: Mutex::new(records.collect()),
            copied,
        });
        (
            Self {
                id,
                changes,
                table,
                undo: undo.clone(),
                next: 0,
            },
            undo,
        )
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
        let chunk = self.next;
        let first = self.next as usize * CHUNK_WORDS;
        if first >= self.table.words.len() {
            return false;
        }
        self.next += 1;
        let last = self.table.words.len().min(first + CHUNK_WORDS);
        let mut words: Vec<u64> = self.table.words[first..last]
            .iter()
            .map(|word| word.load(Relaxed))
            .collect();
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
        let bytes: usize = left
            .iter()
            .flatten()
            .map(|records| size_of_val(records.as_slice()))
            .sum();
        self.undo.copied.fetch_sub(bytes as u64, Relaxed);
    }
}
