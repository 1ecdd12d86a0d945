//! A filter that comes piece by piece: made hollow of another one's image, it is filled with that one's chunks, in order. Once it is
//! whole it goes on as the other one would.
//!
//! It can be snapshotted and restored on the way. What counts items looks only at buckets that are there as a whole.

use super::codec::{
    BadChunk, CHUNK_WORDS, ChunkWords, FilterImage, Load, RestoreError, chunks, decode_chunk,
};
use super::compact::CompactFilter;
use super::forgetting::ForgettingFilter;
use super::layout::{Growth, Mode};
use super::memory::MemoryNeed;
use super::modes::Filter;
use super::plan::TablePlan;
use super::strict::StrictFilter;
use super::table_set::TableSet;
use super::writer::TableWriter;
use serde::{Deserialize, Serialize};
use std::ops::Range;
use thiserror::Error;

/// How far a filter is filled: which table comes next, and which of its chunks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Filled {
    table: u32,
    chunk: u32,
}

/// Why a filter can't be filled.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum FillError {
    /// The chunk is damaged, or is not the one that comes next.
    #[error(transparent)]
    Chunk(#[from] BadChunk),
    /// There are chunks too many.
    #[error("it has chunks too many")]
    TooMany,
    /// What the chunks hold is not what the image says.
    #[error("its tables hold something else than it says")]
    Contradiction,
}

/// How many of a table's buckets lie in its first words.
fn buckets_in(plan: TablePlan, words: u64) -> u64 {
    if words >= plan.words() {
        return plan.buckets();
    }
    let lanes = plan.lanes();
    (words * 64 / u64::from(lanes.slots * lanes.bits)).min(plan.buckets())
}

fn words_before(chunk: u32) -> u64 {
    u64::from(chunk) * CHUNK_WORDS as u64
}

impl FilterImage {
    /// The memory of its tables.
    ///
    /// # Errors
    /// If a table can't be as the image says.
    pub fn memory(&self) -> Result<MemoryNeed, RestoreError<std::convert::Infallible>> {
        let mut need = MemoryNeed::default();
        for table in &self.tables {
            if !table.plan.is_sane() {
                return Err(RestoreError::Image("a table has an impossible shape"));
            }
            need += table.plan.memory();
        }
        Ok(need)
    }

    /// The items of each table.
    pub fn items(&self) -> Vec<u64> {
        self.tables.iter().map(|table| table.items).collect()
    }

    /// What its filter does when it is full.
    pub fn growth(&self) -> Growth {
        self.growth
    }

    /// After how many steps its filter forgets, if it does.
    pub fn forgets_after(&self) -> Option<u32> {
        self.forgetting.as_ref().map(|forgetting| forgetting.steps.kept())
    }

    /// Bits of a slot that say in which step its item was added.
    pub fn step_bits(&self) -> u8 {
        self.first.step_bits
    }

    /// The same image, with all that was counted yet to be counted.
    fn uncounted(&self) -> Self {
        let mut image = self.clone();
        image.tables.iter_mut().for_each(|table| table.items = 0);
        image
    }
}

impl Filter {
    /// A filter with the tables of this image, which are empty: [`Self::fill`] fills them.
    ///
    /// # Errors
    /// When the image contradicts itself.
    pub fn hollow(mode: Mode, image: &FilterImage) -> Result<Self, RestoreError<std::convert::Infallible>> {
        if !image.tables.is_sorted_by(|one, next| one.id < next.id) {
            return Err(RestoreError::Image("its tables are out of order"));
        }
        Self::over(mode, &image.uncounted(), TableSet::hollow)
    }

    /// Restores a filter that was being filled from its snapshot.
    ///
    /// # Errors
    /// As for [`Self::restore`].
    pub fn restore_filling<E>(
        mode: Mode,
        image: &FilterImage,
        filled: Filled,
        load: &mut Load<'_, E>,
    ) -> Result<Self, RestoreError<E>> {
        let mut filter =
            Self::over(mode, &image.uncounted(), |mode, image| TableSet::restore(mode, image, load))?;
        for table in 0..filter.tables().tables.len().min(filled.table as usize + 1) {
            let plan = filter.tables().tables[table].table.plan;
            let words = if table < filled.table as usize { u64::MAX } else { words_before(filled.chunk) };
            filter
                .count_in(table, 0..buckets_in(plan, words))
                .map_err(|_| RestoreError::Image("its slots hold what no item has"))?;
        }
        Ok(filter)
    }

    fn over<E>(
        mode: Mode,
        image: &FilterImage,
        make: impl FnOnce(Mode, &FilterImage) -> Result<TableSet, RestoreError<E>>,
    ) -> Result<Self, RestoreError<E>> {
        match mode {
            Mode::Compact if image.is_forgetting() => {
                ForgettingFilter::uncounted(image, make).map(Self::Forgetting)
            }
            Mode::Compact => CompactFilter::uncounted(image, make).map(Self::Compact),
            Mode::Strict => StrictFilter::uncounted(image, make).map(Self::Strict),
        }
    }

    /// Fills in the next chunk.
    ///
    /// # Errors
    /// [`FillError`]. The filter is worth nothing then.
    pub fn fill(&mut self, filled: &mut Filled, bytes: &[u8]) -> Result<(), FillError> {
        let index = filled.table as usize;
        let table = self.tables_mut().tables.get_mut(index).ok_or(FillError::TooMany)?;
        let (plan, first) = (table.table.plan, words_before(filled.chunk));
        let words = decode_chunk(bytes, table.id, filled.chunk)?;
        let last = (first + CHUNK_WORDS as u64).min(plan.words());
        if words.len() as u64 != last - first {
            return Err(BadChunk::Length.into());
        }
        if let ChunkWords::Written(words) = words {
            table.fill(first as usize, words);
        }
        self.count_in(index, buckets_in(plan, first)..buckets_in(plan, last))?;
        filled.chunk += 1;
        if filled.chunk == chunks(plan.words()) {
            *filled = Filled { table: filled.table + 1, chunk: 0 };
        }
        Ok(())
    }

    /// Ends the filling: the filter holds what the image says.
    ///
    /// # Errors
    /// [`FillError::Contradiction`] if it does not.
    pub fn finish_filling(&mut self, filled: Filled, items: &[u64]) -> Result<(), FillError> {
        let tables = &self.tables().tables;
        if filled.table as usize != tables.len()
            || !tables.iter().map(TableWriter::items).eq(items.iter().copied())
        {
            return Err(FillError::Contradiction);
        }
        match self {
            Self::Forgetting(filter) => filter.finish_counting(),
            Self::Compact(_) | Self::Strict(_) => {}
        }
        Ok(())
    }

    /// Counts what lies in some buckets of a table.
    fn count_in(&mut self, table: usize, buckets: Range<u64>) -> Result<(), FillError> {
        let counted = match self {
            Self::Compact(filter) => filter.count_in(table, buckets).ok_or(FillError::Contradiction)?,
            Self::Forgetting(filter) => filter.count_in(table, buckets).ok_or(FillError::Contradiction)?,
            Self::Strict(filter) => filter.count_in(table, buckets),
        };
        let table = &self.tables().tables[table].table;
        table.set_items(table.items() + counted);
        Ok(())
    }
}
