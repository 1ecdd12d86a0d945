//! The snapshot of a filter: a small image, and its tables as chunks ([`super::chunk`]).

use crate::AtomicU64;
use crate::Filter;
use crate::chunk::{BadChunk, CHUNK_WORDS, ChunkWords, TableId, chunks, decode_chunk};
use crate::layout::{Growth, GrowthRule, Layout, Mode};
use crate::memory::{MemoryNeed, OutOfMemory};
use crate::plan::TablePlan;
use crate::table::Table;
use crate::tags::StepsImage;
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use thiserror::Error;

/// The most tables that a filter can have had. Only a forged image states more.
pub(crate) const TABLES_EVER_MAX: u64 = 1 << 48;

/// The state of a filter, except for the contents of its tables, which are in chunks.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct FilterImage {
    /// The layout that the filter starts with once it is empty.
    pub first: Layout,
    /// How a full filter reacts to another item.
    pub growth: Growth,
    /// The number of the next table: how many the filter has had.
    pub next_table: u64,
    /// Oldest first.
    pub(crate) tables: Vec<TableImage>,
    /// If the newest table is being copied: the number of splits of each bucket, and the number of copied buckets. The copy follows.
    pub(crate) copy: Option<(u8, u64)>,
    /// The steps of a filter that forgets.
    pub(crate) steps: Option<StepsImage>,
    /// The table and the bucket at which freeing the slots of forgotten or cleared items continues.
    pub(crate) sweep: Option<(u64, u64)>,
    /// The tag of available items in a strict filter.
    pub(crate) available_tag: u64,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct TableImage {
    pub(crate) id: TableId,
    pub(crate) plan: TablePlan,
    pub(crate) items: u64,
    pub(crate) changes: u64,
}

impl FilterImage {
    /// For each table its number, its count of changes and its number of chunks. While the count stays the same, so do the bytes.
    pub fn tables(&self) -> impl Iterator<Item = (TableId, u64, u32)> + '_ {
        // A damaged image is rejected later. Here it must only do no harm.
        let chunks_of = |plan: &TablePlan| {
            if plan.is_sane() {
                chunks(plan.words())
            } else {
                0
            }
        };
        self.tables
            .iter()
            .map(move |table| (table.id, table.changes, chunks_of(&table.plan)))
    }

    /// The memory of its tables.
    ///
    /// # Errors
    /// If a table can't be as the image says.
    pub fn memory(&self) -> Result<MemoryNeed, RestoreError<std::convert::Infallible>> {
        let mut need = MemoryNeed::default();
        for plan in self
            .tables
            .iter()
            .map(|table| table.plan)
            .chain(self.copy_plan())
        {
            if !plan.is_sane() {
                return Err(RestoreError::Image("a table has an impossible shape"));
            }
            need += MemoryNeed::table(plan.memory_bytes());
        }
        Ok(need)
    }

    /// The items of each table.
    pub fn items(&self) -> Vec<u64> {
        self.tables.iter().map(|table| table.items).collect()
    }

    /// After how many steps its filter forgets, if it does.
    pub fn forgets_after(&self) -> Option<u32> {
        self.steps.as_ref().map(|steps| steps.retained)
    }

    /// The plan of the table that the newest one is being copied to.
    pub(crate) fn copy_plan(&self) -> Option<TablePlan> {
        let newest = self.tables.last()?.plan;
        newest
            .is_sane()
            .then(|| newest.doubled(self.copy?.0))
            .flatten()
    }

    /// Validates the tables of the image.
    pub(crate) fn check(&self, mode: Mode) -> Result<(), &'static str> {
        let plans: Vec<TablePlan> = self.tables.iter().map(|table| table.plan).collect();
        let Some(newest) = plans.last() else {
            return Err("a filter has no table");
        };
        let tag_bits = TablePlan::first(mode, &self.first).tag_bits;
        if self.first.check(mode).is_err() {
            return Err("a filter can't start with this layout");
        }
        if !plans
            .iter()
            .all(|plan| plan.is_sane() && (plan.mode, plan.tag_bits) == (mode, tag_bits))
        {
            return Err("a table has an impossible shape");
        }
        if !plans.is_sorted_by(|older, newer| newer.can_follow(older)) {
            return Err("a table is out of place");
        }
        if self.next_table > TABLES_EVER_MAX
            || self
                .tables
                .iter()
                .any(|table| table.id.0 >= self.next_table)
            || !self.tables.is_sorted_by(|one, next| one.id < next.id)
        {
            return Err("the numbers of its tables are wrong");
        }
        if self.steps.is_some() != (mode == Mode::Compact && tag_bits > 0) {
            return Err("its steps contradict its layout");
        }
        if !matches!((mode, self.available_tag), (_, 0) | (Mode::Strict, 3)) {
            return Err("the tag of available items is wrong");
        }
        let is_copy_possible =
            |(times, done)| times > 0 && newest.doubled(times).is_some() && done < newest.buckets();
        if self.growth == Growth::Fixed && self.copy.is_some()
            || !self.copy.is_none_or(is_copy_possible)
        {
            return Err("its newest table can't be copied so");
        }
        let bucket_exists = |(table, bucket): (u64, u64)| {
            usize::try_from(table)
                .ok()
                .and_then(|at| plans.get(at))
                .is_some_and(|plan| bucket < plan.buckets())
        };
        if !self.sweep.is_none_or(bucket_exists) {
            return Err("it continues at a bucket that does not exist");
        }
        Ok(())
    }
}

/// Why a filter can't be restored.
#[derive(Debug, Error)]
pub enum RestoreError<E> {
    /// A chunk could not be loaded.
    #[error(transparent)]
    Load(E),
    /// A chunk is damaged or misplaced.
    #[error("chunk {chunk} of table {table}: {fault}", table = table.0)]
    Chunk {
        /// The table.
        table: TableId,
        /// The chunk's number.
        chunk: u32,
        /// Its defect.
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

    /// The number of its chunks, which are numbered from 0.
    pub fn chunks(&self) -> u32 {
        chunks(self.words.len() as u64)
    }

    /// Loads these chunks. `load` replaces the buffer's content by the chunk of a number.
    ///
    /// # Errors
    /// The error of `load`, or [`RestoreError::Chunk`] for a chunk that is damaged or misplaced.
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
            let bad = |fault| RestoreError::Chunk {
                table: self.id,
                chunk,
                fault,
            };
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

/// What a copy of a filter is made of: its state at one moment, and its tables, which its writer goes on to change.
pub struct CopySource {
    pub(crate) mode: Mode,
    pub(crate) rule: GrowthRule,
    pub(crate) image: FilterImage,
    pub(crate) tables: Vec<Arc<Table>>,
}

impl CopySource {
    /// The memory of a copy.
    pub fn memory_bytes(&self) -> u64 {
        self.image.memory().map_or(u64::MAX, |need| need.bytes)
    }

    /// Copies the filter for a trial. Items that the writer changes during the copy may be missing or present twice.
    ///
    /// # Errors
    /// [`RestoreError::Memory`]. Any other one is a defect.
    pub fn copy(&self) -> Result<Filter, RestoreError<std::convert::Infallible>> {
        let mut tables = self.tables.iter();
        let restored = Filter::restore(self.mode, &self.image, None, &mut |restoring| {
            let table = tables
                .next()
                .ok_or(RestoreError::Image("a table is missing"))?;
            for (copy, word) in restoring.words.iter().zip(&*table.words) {
                // Memory that stays zero is not even touched.
                match word.load(Relaxed) {
                    0 => {}
                    word => copy.store(word, Relaxed),
                }
            }
            restoring.loaded.store(restoring.chunks(), Relaxed);
            Ok(())
        });
        let mut filter = restored?;
        filter.set_growth_rule(self.rule);
        Ok(filter)
    }
}

/// Restores a table from its chunks.
pub(crate) fn restore_table<E>(
    image: &TableImage,
    load: &mut Load<'_, E>,
) -> Result<Table, RestoreError<E>> {
    let table = Table::try_new(image.plan)?;
    let restoring = Restoring {
        id: image.id,
        words: &table.words,
        loaded: AtomicU32::new(0),
    };
    load(&restoring)?;
    if restoring.loaded.load(Relaxed) != restoring.chunks() {
        return Err(RestoreError::Image("not all chunks of a table were loaded"));
    }
    Ok(table)
}

/// The progress of filling a filter: the next table, and the next of its chunks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Filled {
    pub(crate) table: u32,
    pub(crate) chunk: u32,
}

/// Why a filter can't be filled.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum FillError {
    /// The chunk is damaged, or is not the next one.
    #[error(transparent)]
    Chunk(#[from] BadChunk),
    /// There are too many chunks.
    #[error("it has chunks too many")]
    TooMany,
    /// The contents of the chunks differ from the image.
    #[error("its tables hold something else than it says")]
    Contradiction,
}
