//! The segments of compact filters: which table comes next, the memory of those that may still be needed, and what it takes to raise a
//! filter's capacity.
//!
//! A segment has one table. A segment that doubles has two for a while: the items of the older one are moving to the newer one.

use super::insert::Full;
use super::layout::{Expansion, FINGERPRINT_BITS_MAX, Layout, SEGMENT_BUCKETS_MAX};
use super::memory::MemoryNeed;
use super::plan::TablePlan;
use super::sizing::fill_limit;
use super::table_set::TableSet;
use super::writer::TableWriter;
use std::iter::successors;

/// Items that the second segment of a filter that doubles takes at least, or so many times those of the first, whichever is less. Look-ups
/// go through all segments: a filter that was created far too small gets no crowd of tiny ones.
const SECOND_SEGMENT_ITEMS: u64 = 64 << 10;
const SECOND_SEGMENT_TIMES: u64 = 64;

/// A segment begins with so many bits to spare that it can be doubled until it takes this many items.
const DOUBLED_ITEMS: u64 = 2 << 20;

/// The fewest and the most bits that a segment has to spare when it begins: each lets it double once, and is paid for in every slot until
/// then. Where fingerprints are nearly as long as they can be, there may be fewer.
const SPARE_BITS: (u32, u32) = (2, 6);

/// Buckets of a segment that is being folded which one remove empties.
pub(super) const BUCKETS_FOLDED: u64 = 32;

/// What it takes to raise a filter's capacity.
pub(super) enum Raise {
    /// There are segments enough.
    Nothing,
    /// The filter is empty, and begins anew.
    Anew,
    /// A table of this plan. If the newest one is empty, it takes its place.
    Table(TablePlan),
}

/// The plan of a filter's first table.
pub(super) fn first(layout: &Layout, expansion: Expansion) -> TablePlan {
    let Layout { fingerprint_bits: base_bits, step_bits, bucket_size, buckets: base_buckets, .. } = *layout;
    match expansion {
        Expansion::Segments => TablePlan::Segment { base_bits, step_bits, bucket_size, base_buckets, k: 0 },
        Expansion::Doubling => TablePlan::Doubling {
            base_bits,
            bucket_size,
            base_buckets,
            segment: 0,
            doublings: 0,
            spare_bits: 0,
        },
    }
}

/// The table that comes after this one when it is full; none if there can be none.
pub(super) fn next(newest: &TablePlan) -> Option<TablePlan> {
    let least = match newest {
        TablePlan::Doubling { segment: 0, .. } => {
            SECOND_SEGMENT_ITEMS.min(SECOND_SEGMENT_TIMES * newest.fill_limit())
        }
        _ => 1,
    };
    next_for(newest, least)
}

/// The table that comes next if an item finds no place in any of these.
///
/// If the newest one is less than half full, and searched well, copies of a few items crowd their buckets there. A doubling would not part
/// them, and would take its memory for nothing. So a further segment begins, which takes as many items as there are: so there are few, though
/// no filter is large for the sake of a crowd.
pub(super) fn next_for_item(set: &TableSet) -> Option<TablePlan> {
    let newest = set.tables.last()?;
    let plan = &newest.table.plan;
    let is_crowded = plan.spare_bits() > 0 && newest.items() < newest.room() && set.layout.is_searched_well();
    let beside = if is_crowded { next_segment(plan, set.items()) } else { None };
    beside.or_else(|| next(plan))
}

/// The table that comes after this one if so many items more are to find room; none if there can be no such table.
fn next_for(newest: &TablePlan, missing: u64) -> Option<TablePlan> {
    match *newest {
        TablePlan::Segment { base_bits, base_buckets, k, .. } => {
            let further = (k + 1..32)
                .filter(|&k| u32::from(base_bits) + k <= u32::from(FINGERPRINT_BITS_MAX))
                .filter(|&k| base_buckets <= SEGMENT_BUCKETS_MAX >> k);
            further.map(|k| newest.with_number(k)).find(|plan| plan.fill_limit() >= missing)
        }
        TablePlan::Doubling { spare_bits, .. } => {
            let mut doubled = (1..=spare_bits).filter_map(|times| newest.doubled(times));
            doubled
                .find(|plan| plan.fill_limit() - newest.fill_limit() >= missing)
                .or_else(|| next_segment(newest, missing))
        }
        TablePlan::Strict { .. } => None,
    }
}

/// The segment after one that doubles. It is no smaller, and its bucket numbers have no fewer bits: so it nests. If it can hardly be doubled
/// itself, it begins with twice as many buckets.
fn next_segment(newest: &TablePlan, missing: u64) -> Option<TablePlan> {
    let TablePlan::Doubling { base_bits, bucket_size, base_buckets, segment, doublings, .. } = *newest else {
        return None;
    };
    let segment = segment + 1;
    let (fewest, most) = SPARE_BITS;
    let spare_max = u32::from(FINGERPRINT_BITS_MAX).saturating_sub(u32::from(base_bits) + u32::from(segment));
    let smallest = doublings + u8::from(spare_max < fewest);
    (smallest..32).find_map(|doublings| {
        let buckets = base_buckets.checked_mul(1 << doublings).filter(|&all| all <= SEGMENT_BUCKETS_MAX)?;
        let items = fill_limit(buckets, bucket_size);
        if items < missing {
            return None;
        }
        let usual = DOUBLED_ITEMS.ilog2().saturating_sub(items.ilog2()).clamp(fewest, most) as u8;
        let nesting = newest.level().saturating_sub(u32::from(doublings)) as u8;
        (nesting..=usual.max(nesting)).rev().find_map(|spare_bits| {
            let plan =
                TablePlan::Doubling { base_bits, bucket_size, base_buckets, segment, doublings, spare_bits };
            plan.is_sane().then_some(plan)
        })
    })
}

/// The plans of all tables that come after the first, up to this segment.
pub(super) fn after_first(first: TablePlan, last_segment: u32) -> impl Iterator<Item = TablePlan> {
    successors(next(&first), next).take_while(move |plan| plan.segment() <= last_segment)
}

/// Whether a table takes new items: none takes any whose items are moving to a newer one of its segment.
pub(super) fn takes_items(tables: &[TableWriter], index: usize) -> bool {
    let segment = |table: &TableWriter| table.table.plan.segment();
    tables.get(index + 1).is_none_or(|newer| segment(newer) != segment(&tables[index]))
}

/// Items that these tables take together before they count as full.
pub(super) fn capacity(tables: &[TableWriter]) -> u64 {
    let taking = tables.iter().enumerate().filter(|(index, _)| takes_items(tables, *index));
    taking.map(|(_, table)| table.capacity()).sum()
}

/// What more items may make a filter ask for.
pub(super) struct Outlook {
    /// The memory of the tables that they may need.
    pub(super) need: MemoryNeed,
    /// These tables.
    pub(super) plans: Vec<TablePlan>,
    /// Whether all items have a place then.
    pub(super) is_enough: bool,
}

/// What so many more items may make a filter ask for that has these tables, with so many items each.
pub(super) fn outlook(layout: &Layout, tables: &[(TablePlan, u64)], items: u64) -> Outlook {
    let (mut left, mut held) = (items, 0);
    let fill = |plan: &TablePlan, held: u64, left: &mut u64| {
        let before = std::mem::replace(left, layout.most_left(&plan.layout(), held, *left));
        held + before - *left
    };
    for segment in tables.chunk_by(|one, next| one.0.segment() == next.0.segment()) {
        if let Some((plan, _)) = segment.last() {
            held = fill(plan, segment.iter().map(|(_, held)| held).sum(), &mut left);
        }
    }
    let mut outlook = Outlook { need: MemoryNeed::default(), plans: Vec::new(), is_enough: false };
    let mut last = tables.last().map(|(plan, _)| *plan);
    while left > 0
        && let Some(plan) = last.and_then(|last| next(&last))
    {
        let is_same = last.is_some_and(|last| last.segment() == plan.segment());
        held = fill(&plan, if is_same { held } else { 0 }, &mut left);
        outlook.need += plan.memory();
        outlook.plans.push(plan);
        last = Some(plan);
    }
    Outlook { is_enough: left == 0, ..outlook }
}

/// The memory of those tables that may be folded and made again while so many copies are removed, if so many buckets are emptied
/// already. In between it is given back.
pub(super) fn made_again(
    plans: impl Iterator<Item = TablePlan>,
    drained_buckets: u64,
    removes: u64,
) -> MemoryNeed {
    let emptied = removes.saturating_mul(BUCKETS_FOLDED).saturating_add(drained_buckets);
    let mut need = MemoryNeed::default();
    for plan in plans.filter(|plan| plan.memory().mapped_bytes() > 0) {
        (0..emptied / plan.buckets()).for_each(|_| need += plan.memory().passing());
    }
    need
}

/// The tables of a filter, with their items.
pub(super) fn filled(set: &TableSet) -> Vec<(TablePlan, u64)> {
    set.tables.iter().map(|table| (table.table.plan, table.items())).collect()
}

/// What it takes to make room for as many items as a filter of this layout begins with.
///
/// # Errors
/// [`Full`] if no table can be so large.
pub(super) fn plan_raise(set: &TableSet, begin: &Layout) -> Result<Raise, Full> {
    if set.items() == 0 {
        let is_right = set.tables.len() == 1 && set.layout == *begin;
        return Ok(if is_right { Raise::Nothing } else { Raise::Anew });
    }
    if capacity(&set.tables) >= begin.capacity() {
        return Ok(Raise::Nothing);
    }
    let staying = &set.tables[..set.idle().unwrap_or(set.tables.len())];
    further(staying, begin).map(Raise::Table).ok_or(Full)
}

/// A further table that gives these ones room for as many items as a filter of this layout begins with.
fn further(staying: &[TableWriter], begin: &Layout) -> Option<TablePlan> {
    let missing = begin.capacity().saturating_sub(capacity(staying));
    next_for(&staying.last()?.table.plan, missing)
}

/// The memory that it takes to raise a filter to this layout.
///
/// # Errors
/// [`Full`] as for [`plan_raise`].
pub(super) fn raising(set: &TableSet, begin: &Layout) -> Result<MemoryNeed, Full> {
    Ok(match plan_raise(set, begin)? {
        Raise::Nothing => MemoryNeed::default(),
        Raise::Anew => first(begin, set.expansion()).memory(),
        Raise::Table(plan) => plan.memory(),
    })
}

/// The most memory that it may take to raise a filter if newest segments of it may be dropped before.
pub(super) fn raising_at_most(set: &TableSet, begin: &Layout) -> MemoryNeed {
    let after_drops = raising_after_drops(set, begin);
    let Ok(mut need) = raising(set, begin) else { return after_drops };
    need += after_drops.beyond(&need).passing();
    need
}

/// The memory of every table that it may take to raise a filter, if it is emptied before, or any of its newest segments are.
fn raising_after_drops(set: &TableSet, begin: &Layout) -> MemoryNeed {
    let mut need = first(begin, set.expansion()).memory();
    for staying in (1..=set.tables.len()).map(|count| &set.tables[..count]) {
        if capacity(staying) < begin.capacity()
            && let Some(plan) = further(staying, begin)
        {
            need += plan.memory();
        }
    }
    need
}

/// Whether these tables of an image are a filter's: in order, and each of the right shape.
pub(super) fn are_in_place(layout: &Layout, plans: impl Iterator<Item = TablePlan>) -> bool {
    let plans: Vec<TablePlan> = plans.collect();
    let Some(begin) = plans.first() else { return false };
    let is_first = match begin {
        TablePlan::Segment { .. } => *begin == first(layout, Expansion::Segments),
        TablePlan::Doubling { .. } => layout.step_bits == 0 && *begin == first(layout, Expansion::Doubling),
        TablePlan::Strict { .. } => false,
    };
    is_first && plans.iter().all(TablePlan::is_sane) && plans.is_sorted_by(can_follow)
}

fn can_follow(older: &TablePlan, newer: &TablePlan) -> bool {
    match (*older, *newer) {
        (TablePlan::Segment { k: before, .. }, TablePlan::Segment { k, .. }) => {
            before < k && *newer == older.with_number(k)
        }
        (
            TablePlan::Doubling {
                base_bits,
                bucket_size,
                base_buckets,
                segment: before,
                doublings: fewer,
                ..
            },
            TablePlan::Doubling { segment, doublings, spare_bits, .. },
        ) => {
            let is_next =
                if before == segment { fewer < doublings && older.level() == newer.level() } else { true };
            let like =
                TablePlan::Doubling { base_bits, bucket_size, base_buckets, segment, doublings, spare_bits };
            *newer == like && before <= segment && older.level() <= newer.level() && is_next
        }
        _ => false,
    }
}
