//! The reader's side of strict filters, whose items may be moving to a larger table.

use super::hash::Digest;
use super::shown::{Look, Shown};
use super::slot_state::{SlotState, StateCounts};
use super::table::{SegmentStats, Table};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// The tables of a strict filter as readers see them.
#[derive(Default)]
pub(super) struct Tables {
    /// One table, or several while items move: they go from the oldest to the newest.
    pub(super) tables: Vec<Arc<Table>>,
    /// So many of them, from the oldest on, were cleared.
    pub(super) cleared: usize,
}

/// What the readers of a strict filter share with its writer.
#[derive(Default)]
pub(super) struct Shared {
    pub(super) shown: Shown<Tables>,
    pub(super) held: AtomicU64,
    pub(super) redeemed: AtomicU64,
    /// Held and redeemed items in tables that were cleared.
    pub(super) staying: AtomicU64,
}

/// The state of an item that a table holds; none if the table is one of the first `cleared` and the item is gone.
#[inline]
pub(super) fn state_in(table: usize, cleared: usize, held: u64) -> Option<SlotState> {
    let state = SlotState::of(held);
    (table >= cleared || state != SlotState::Available).then_some(state)
}

impl Tables {
    #[inline]
    fn get(&self, digest: Digest) -> Option<SlotState> {
        let mut tables = self.tables.iter().enumerate();
        tables.find_map(|(index, table)| state_in(index, self.cleared, table.get(digest)?))
    }
}

/// A reader's side of a strict filter. Takes no lock; clones are cheap.
#[derive(Clone)]
pub struct StrictReader {
    pub(super) shared: Arc<Shared>,
}

/// A view of a strict filter, for one request. It has the tables from when it was taken, and gets newer ones if an item may have
/// moved there.
pub struct StrictView<'a> {
    shared: &'a Shared,
    shown: Look<'a, Tables>,
}

impl StrictReader {
    /// A view of the filter as it is now. It finds everything that was added before.
    #[inline]
    pub fn view(&self) -> StrictView<'_> {
        StrictView { shared: &self.shared, shown: self.shared.shown.look() }
    }
}

impl StrictView<'_> {
    /// The state of an item, if it is there.
    #[inline]
    pub fn get(&self, digest: Digest) -> Option<SlotState> {
        match self.shown.get(digest) {
            Some(state) => Some(state),
            None if self.shown.is_current() => None,
            None => self.get_anew(digest),
        }
    }

    /// [`Self::get`] for many, faster; `states` is cleared first.
    pub fn get_many(&self, digests: &[Digest], states: &mut Vec<Option<SlotState>>) {
        states.clear();
        states.resize(digests.len(), None);
        for (index, table) in self.shown.tables.iter().enumerate() {
            table.get_many(digests, states, |held| state_in(index, self.shown.cleared, held));
        }
        if !self.shown.is_current() {
            for (state, &digest) in states.iter_mut().zip(digests).filter(|(state, _)| state.is_none()) {
                *state = self.get_anew(digest);
            }
        }
    }

    #[cold]
    fn get_anew(&self, digest: Digest) -> Option<SlotState> {
        self.shown.again(|tables| tables.get(digest), Option::is_some)
    }

    /// Whether the filter holds each of many items, in whatever state; `found` is cleared first.
    pub fn contains_many(&self, digests: &[Digest], found: &mut Vec<bool>) {
        let mut states = Vec::new();
        self.get_many(digests, &mut states);
        found.clear();
        found.extend(states.iter().map(Option::is_some));
    }

    /// Prefetches the cache lines in which an item may lie.
    #[inline]
    pub fn prefetch(&self, digest: Digest) {
        self.shown.tables.iter().for_each(|table| table.prefetch_item(digest));
    }

    /// Items in it.
    pub fn items(&self) -> u64 {
        let live = &self.shown.tables[self.shown.cleared..];
        live.iter().map(|table| table.items()).sum::<u64>() + self.shared.staying.load(Relaxed)
    }

    /// Items by state.
    pub fn counts(&self) -> StateCounts {
        let (held, redeemed) = (self.shared.held.load(Relaxed), self.shared.redeemed.load(Relaxed));
        StateCounts { available: self.items().saturating_sub(held + redeemed), held, redeemed }
    }

    /// Bytes of all tables.
    pub fn memory_bytes(&self) -> u64 {
        self.shown.tables.iter().map(|table| table.memory_bytes()).sum()
    }

    /// The figures of its table, or of all while items move. Only the newest has a capacity: the others take nothing more.
    pub fn segments(&self) -> Vec<SegmentStats> {
        let mut segments: Vec<_> = self.shown.tables.iter().map(|table| table.stats()).collect();
        if let Some((_, moving)) = segments.split_last_mut() {
            moving.iter_mut().for_each(|table| table.capacity = 0);
        }
        // Nobody counts by table what is held or redeemed.
        let mut staying = self.shared.staying.load(Relaxed);
        for table in &mut segments[..self.shown.cleared] {
            table.items = std::mem::take(&mut staying);
        }
        segments
    }
}
