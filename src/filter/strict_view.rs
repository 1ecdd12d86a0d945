//! Strict filters as readers see them, while items may be moving to a larger table.

use super::strict::SlotState;
use super::table::Table;
use super::{Digest, SegmentStats};
use arc_swap::{ArcSwap, Guard};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

/// Items by state.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StateCounts {
    /// Available ones.
    pub available: u64,
    /// Held ones.
    pub held: u64,
    /// Redeemed ones.
    pub redeemed: u64,
}

/// What readers share with the writer.
pub(super) struct Shared {
    /// The table; while it moves, the smaller one first and the larger one second.
    pub(super) tables: ArcSwap<Vec<Arc<Table>>>,
    /// How often the tables were replaced: counted after it was done and before an item moves.
    pub(super) published: AtomicU64,
    pub(super) held: AtomicU64,
    pub(super) redeemed: AtomicU64,
}

/// A reader's side of a strict filter. Takes no lock; clones are cheap.
#[derive(Clone)]
pub struct StrictReader {
    pub(super) shared: Arc<Shared>,
}

/// What a reader sees of a strict filter, for a request: its tables as they are when it is taken, and newer ones when
/// an item has moved there.
pub struct StrictView<'a> {
    shared: &'a Shared,
    tables: Guard<Arc<Vec<Arc<Table>>>>,
    published: u64,
}

impl StrictReader {
    /// The filter as it is now: all that was added before is in it.
    #[inline]
    pub fn view(&self) -> StrictView<'_> {
        // Counted first: tables newer than the count cost a second look, older ones would miss an item.
        let published = self.shared.published.load(Acquire);
        StrictView { shared: &self.shared, tables: self.shared.tables.load(), published }
    }
}

impl StrictView<'_> {
    /// The item's state, if it is in.
    #[inline]
    pub fn get(&self, digest: Digest) -> Option<SlotState> {
        let held = self.tables.iter().find_map(|table| table.get(digest));
        match held {
            Some(held) => Some(SlotState::of(held)),
            None if self.is_current() => None,
            None => self.get_anew(digest),
        }
    }

    /// [`Self::get`] for many, faster; `states` is cleared first.
    pub fn get_many(&self, digests: &[Digest], states: &mut Vec<Option<SlotState>>) {
        states.clear();
        states.resize(digests.len(), None);
        self.tables.iter().for_each(|table| table.get_many(digests, states, SlotState::of));
        if !self.is_current() {
            for (state, &digest) in states.iter_mut().zip(digests).filter(|(state, _)| state.is_none()) {
                *state = self.get_anew(digest);
            }
        }
    }

    /// Whether no table has come since: an item that was not found can't have moved to one.
    #[inline]
    fn is_current(&self) -> bool {
        self.shared.published.load(Acquire) == self.published
    }

    #[cold]
    fn get_anew(&self, digest: Digest) -> Option<SlotState> {
        loop {
            let published = self.shared.published.load(Acquire);
            let tables = self.shared.tables.load();
            if let Some(held) = tables.iter().find_map(|table| table.get(digest)) {
                return Some(SlotState::of(held));
            }
            if self.shared.published.load(Acquire) == published {
                return None;
            }
        }
    }

    /// Whether each of many is in, in whatever state; `found` is cleared first.
    pub fn contains_many(&self, digests: &[Digest], found: &mut Vec<bool>) {
        let mut states = Vec::new();
        self.get_many(digests, &mut states);
        found.clear();
        found.extend(states.iter().map(Option::is_some));
    }

    /// Items in it.
    pub fn items(&self) -> u64 {
        self.tables.iter().map(|table| table.items()).sum()
    }

    /// Items by state.
    pub fn counts(&self) -> StateCounts {
        let (held, redeemed) = (self.shared.held.load(Relaxed), self.shared.redeemed.load(Relaxed));
        StateCounts { available: self.items().saturating_sub(held + redeemed), held, redeemed }
    }

    /// Bytes of all tables.
    pub fn memory_bytes(&self) -> u64 {
        self.tables.iter().map(|table| table.memory_bytes()).sum()
    }

    /// The table; while it moves, the smaller and the larger.
    pub fn segments(&self) -> Vec<SegmentStats> {
        self.tables.iter().map(|table| table.stats()).collect()
    }
}
