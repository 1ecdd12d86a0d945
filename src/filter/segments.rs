//! The segments of compact filters: the plan of each, the memory of those that may still be needed, and what it takes to raise a
//! filter's capacity.

use super::insert::Full;
use super::layout::{FINGERPRINT_BITS_MAX, Layout, SEGMENT_BUCKETS_MAX};
use super::memory::MemoryNeed;
use super::plan::TablePlan;
use super::table_set::TableSet;
use super::writer::TableWriter;

/// What it takes to raise a filter's capacity.
pub(super) enum Raise {
    /// There are segments enough.
    Nothing,
    /// The filter is empty, and begins anew.
    Anew,
    /// A segment of this number. If the newest one is empty, it takes its place.
    Segment(u32),
}

/// The plan of segment `k`.
pub(super) fn plan(layout: &Layout, k: u32) -> TablePlan {
    TablePlan::Segment {
        base_bits: layout.fingerprint_bits,
        step_bits: layout.step_bits,
        bucket_size: layout.bucket_size,
        base_buckets: layout.buckets,
        k,
    }
}

/// The number of a segment.
pub(super) fn number(segment: &TableWriter) -> u32 {
    segment.table.plan.segment()
}

/// The number of the segment after the newest.
pub(super) fn next(set: &TableSet) -> u32 {
    set.tables.last().map_or(0, |newest| number(newest) + 1)
}

/// Whether a filter can have a segment `k`.
pub(super) fn can_be(layout: &Layout, k: u32) -> bool {
    let bits = u32::from(layout.fingerprint_bits) + k;
    bits <= u32::from(FINGERPRINT_BITS_MAX) && layout.buckets <= SEGMENT_BUCKETS_MAX >> k
}

/// The memory of the segments from `first` on that so many items may need. Returns also where these segments end, and whether all
/// items have a place in them.
pub(super) fn needed(layout: &Layout, first: u32, mut items: u64) -> (MemoryNeed, u32, bool) {
    let (mut need, mut k) = (MemoryNeed::default(), first);
    while items > 0 && can_be(layout, k) {
        need += plan(layout, k).memory();
        items = layout.most_left(k, 0, items);
        k += 1;
    }
    (need, k, items == 0)
}

/// What it takes to make room for as many items as a filter of this layout begins with.
///
/// # Errors
/// [`Full`] if no segment can be so large.
pub(super) fn plan_raise(set: &TableSet, first: &Layout) -> Result<Raise, Full> {
    if set.items() == 0 {
        let is_right = set.tables.len() == 1 && set.layout == *first;
        return Ok(if is_right { Raise::Nothing } else { Raise::Anew });
    }
    if set.capacity() >= first.capacity() {
        return Ok(Raise::Nothing);
    }
    let staying = &set.tables[..set.idle().unwrap_or(set.tables.len())];
    further(set, staying, first).map(Raise::Segment).ok_or(Full)
}

/// The number of a further segment that gives these ones room for as many items as a filter of this layout begins with.
fn further(set: &TableSet, staying: &[TableWriter], first: &Layout) -> Option<u32> {
    let missing = first.capacity().saturating_sub(staying.iter().map(TableWriter::capacity).sum());
    let newest = staying.iter().map(number).max().unwrap_or(0);
    let mut further = (newest + 1..).take_while(|&k| can_be(&set.layout, k));
    further.find(|&k| plan(&set.layout, k).fill_limit() >= missing)
}

/// The memory that it takes to raise a filter to this layout.
///
/// # Errors
/// [`Full`] as for [`plan_raise`].
pub(super) fn raising(set: &TableSet, first: &Layout) -> Result<MemoryNeed, Full> {
    Ok(match plan_raise(set, first)? {
        Raise::Nothing => MemoryNeed::default(),
        Raise::Anew => plan(first, 0).memory(),
        Raise::Segment(k) => plan(&set.layout, k).memory(),
    })
}

/// The memory of every table that it may take to raise a filter, if it is emptied before, or any of its newest segments are.
pub(super) fn raising_after_drops(set: &TableSet, first: &Layout) -> MemoryNeed {
    let mut need = plan(first, 0).memory();
    for staying in (1..=set.tables.len()).map(|count| &set.tables[..count]) {
        let capacity: u64 = staying.iter().map(TableWriter::capacity).sum();
        if capacity < first.capacity()
            && let Some(k) = further(set, staying, first)
        {
            need += plan(&set.layout, k).memory();
        }
    }
    need
}

/// Whether these segments of an image are a filter's: in order, and each of the right shape.
pub(super) fn are_in_place(layout: &Layout, plans: impl Iterator<Item = TablePlan>) -> bool {
    let plans: Vec<TablePlan> = plans.collect();
    plans.first().is_some_and(|first| first.segment() == 0)
        && plans.is_sorted_by(|older, newer| older.segment() < newer.segment())
        && plans.iter().all(|own| own.segment() < 32 && *own == plan(layout, own.segment()))
}
