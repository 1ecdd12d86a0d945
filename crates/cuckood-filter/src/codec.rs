//! The snapshot of a filter: a small image, and its tables as chunks of little-endian bytes, each with a header and a checksum.

use super::layout::{Expansion, Growth, Layout};
use super::memory::OutOfMemory;
use super::plan::TablePlan;
use super::steps::StepsImage;
use super::table::Table;
use super::words::AtomicU64;
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use thiserror::Error;
use xxhash_rust::xxh3::xxh3_64;

/// Words of a chunk; the last chunk of a table may have fewer. Chunks are small for two reasons: a commit waits until the chunk
/// before it is written, and sled writes all sixteen chunks of a leaf again with about every eighth.
pub const CHUNK_WORDS: usize = 1_000;

const MAGIC: [u8; 4] = *b"CKCH";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 24;
const CHECKSUM_BYTES: usize = 8;

/// The most bytes that a chunk has.
pub const CHUNK_BYTES_MAX: usize = HEADER_BYTES + CHUNK_WORDS * 8 + CHECKSUM_BYTES;

/// A table's number. A filter gives no number twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TableId(pub u64);

/// What a snapshot says of a filter, except for the contents of its tables, which lie in chunks.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct FilterImage {
    /// The layout that the tables follow from.
    pub(super) layout: Layout,
    /// The layout that the filter begins with once it is empty.
    pub(super) first: Layout,
    pub(super) growth: Growth,
    /// The number that the next table gets.
    pub(super) next_table: u64,
    /// Oldest first. Compact: the segments. Strict: the tables whose items are moving, and the one that they are moving to.
    pub(super) tables: Vec<TableImage>,
    /// Strict: so many of them, from the oldest on, were cleared.
    pub(super) cleared_tables: usize,
    /// Buckets that are empty already of the table that is being drained, if one is.
    pub(super) drained_buckets: u64,
    /// What a filter that forgets goes by.
    pub(super) forgetting: Option<ForgettingImage>,
}

/// What a snapshot says of a filter that forgets.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct ForgettingImage {
    pub(super) steps: StepsImage,
    /// The table and the bucket at which the removing of forgotten items goes on.
    pub(super) next: (u64, u64),
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct TableImage {
    pub(super) id: TableId,
    pub(super) plan: TablePlan,
    pub(super) items: u64,
    pub(super) changes: u64,
}

impl FilterImage {
    /// Whether it is of a filter that forgets.
    pub(super) fn is_forgetting(&self) -> bool {
        self.forgetting.is_some()
    }

    /// How many tables its filter has had.
    pub fn tables_had(&self) -> u64 {
        self.next_table
    }

    /// How its filter takes more memory.
    pub fn expansion(&self) -> Expansion {
        let doubles = |table: &TableImage| table.plan.expansion() == Expansion::Doubling;
        if self.tables.iter().any(doubles) { Expansion::Doubling } else { Expansion::Segments }
    }

    /// For each table its number, its count of changes and its number of chunks. While the count stays the same, so do the bytes.
    pub fn tables(&self) -> impl Iterator<Item = (TableId, u64, u32)> + '_ {
        self.tables.iter().map(|table| (table.id, table.changes, table.chunks()))
    }
}

impl TableImage {
    fn chunks(&self) -> u32 {
        // `restore_table` refuses a damaged image. Here it must only do no harm.
        if self.plan.is_sane() { chunks(self.plan.words()) } else { 0 }
    }
}

/// What is wrong with a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum BadChunk {
    /// It is not as long as it says, or longer than a chunk can be.
    #[error("its length is wrong")]
    Length,
    /// It does not begin with the bytes that every chunk begins with.
    #[error("it is not a chunk")]
    Magic,
    /// A newer program wrote it.
    #[error("it has version {0}")]
    Version(u32),
    /// Its checksum is wrong.
    #[error("its checksum is wrong")]
    Checksum,
    /// It is whole, but belongs to another table or to another place.
    #[error("it is another table's or another place's")]
    Misplaced,
}

/// Why a filter can't be restored.
#[derive(Debug, Error)]
pub enum RestoreError<E> {
    /// A chunk could not be loaded.
    #[error(transparent)]
    Load(E),
    /// A chunk is not what it should be.
    #[error("chunk {chunk} of table {table}: {fault}", table = table.0)]
    Chunk {
        /// The table.
        table: TableId,
        /// The chunk's number.
        chunk: u32,
        /// What is wrong with it.
        fault: BadChunk,
    },
    /// There is no memory for a table.
    #[error(transparent)]
    Memory(#[from] OutOfMemory),
    /// The image contradicts itself.
    #[error("the image of a filter is damaged: {0}")]
    Image(&'static str),
}

/// A function that loads all chunks of a table.
pub type Load<'a, E> = dyn FnMut(&Restoring<'_>) -> Result<(), RestoreError<E>> + 'a;

/// A table that is being restored. Each chunk must be loaded once, in any order and from any number of threads.
pub struct Restoring<'a> {
    id: TableId,
    words: &'a [AtomicU64],
    loaded: AtomicU32,
}

impl Restoring<'_> {
    /// The table's number.
    pub fn id(&self) -> TableId {
        self.id
    }

    /// How many chunks it has; they are numbered from 0.
    pub fn chunks(&self) -> u32 {
        chunks(self.words.len() as u64)
    }

    /// Loads these chunks. `load` replaces the bytes that it is given by the chunk of a number.
    ///
    /// # Errors
    /// The error of `load`, or [`RestoreError::Chunk`] for a chunk that is damaged or belongs elsewhere.
    ///
    /// # Panics
    /// If the table has fewer chunks.
    pub fn load<E>(
        &self,
        chunks: Range<u32>,
        mut load: impl FnMut(u32, &mut Vec<u8>) -> Result<(), E>,
    ) -> Result<(), RestoreError<E>> {
        let mut bytes = Vec::new();
        let first = chunks.start as usize * CHUNK_WORDS;
        let end = self.words.len().min(chunks.end as usize * CHUNK_WORDS);
        for (chunk, words) in chunks.zip(self.words[first..end].chunks(CHUNK_WORDS)) {
            load(chunk, &mut bytes).map_err(RestoreError::Load)?;
            let bad = |fault| RestoreError::Chunk { table: self.id, chunk, fault };
            let loaded = decode_chunk(&bytes, self.id, chunk).map_err(bad)?;
            if loaded.len() != words.len() {
                return Err(bad(BadChunk::Length));
            }
            // The table is all zero so far. Memory that stays zero is not even touched.
            if let ChunkWords::Written(loaded) = loaded {
                for (word, bytes) in words.iter().zip(loaded) {
                    word.store(u64::from_le_bytes(*bytes), Relaxed);
                }
            }
            self.loaded.fetch_add(1, Relaxed);
        }
        Ok(())
    }
}

/// How many chunks so many words take.
pub(super) fn chunks(words: u64) -> u32 {
    words.div_ceil(CHUNK_WORDS as u64) as u32
}

/// Replaces `out` with an encoded chunk. If all words are zero, only their number is written. Even so, no chunk of an empty table may
/// be missing when it is restored.
pub(super) fn encode_chunk(table: TableId, chunk: u32, words: &[u64], out: &mut Vec<u8>) {
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

/// What a chunk holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChunkWords<'a> {
    /// So many words, all zero.
    Zero(usize),
    /// These words, little-endian.
    Written(&'a [[u8; 8]]),
}

impl ChunkWords<'_> {
    /// How many words there are.
    pub fn len(&self) -> usize {
        match self {
            Self::Zero(words) => *words,
            Self::Written(words) => words.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Decodes a chunk of which table and number are known.
///
/// # Errors
/// [`BadChunk`] if it is damaged, or another chunk. No bytes make it panic.
pub fn decode_chunk(bytes: &[u8], table: TableId, chunk: u32) -> Result<ChunkWords<'_>, BadChunk> {
    if bytes.len() > CHUNK_BYTES_MAX {
        return Err(BadChunk::Length);
    }
    let (content, checksum) = bytes.split_last_chunk::<CHECKSUM_BYTES>().ok_or(BadChunk::Length)?;
    let (header, words) = content.split_first_chunk::<HEADER_BYTES>().ok_or(BadChunk::Length)?;
    if header[..4] != MAGIC {
        return Err(BadChunk::Magic);
    }
    let field = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
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

/// Restores a table from its chunks.
pub(super) fn restore_table<E>(image: &TableImage, load: &mut Load<'_, E>) -> Result<Table, RestoreError<E>> {
    if !image.plan.is_sane() {
        return Err(RestoreError::Image("a table has an impossible shape"));
    }
    let table = Table::try_new(image.plan)?;
    let restoring = Restoring { id: image.id, words: &table.words, loaded: AtomicU32::new(0) };
    load(&restoring)?;
    if restoring.loaded.load(Relaxed) != restoring.chunks() {
        return Err(RestoreError::Image("not all chunks of a table were loaded"));
    }
    table.set_items(image.items);
    Ok(table)
}
