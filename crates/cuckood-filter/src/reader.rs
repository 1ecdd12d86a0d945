//! The reader's side of a filter, which takes no lock.
//!
//! The writer replaces a table by a larger one in one store. A reader of the old table finds the items of that moment: no item moves
//! between tables that a reader sees.

use crate::hash::Digest;
use crate::layout::{GrowthRule, Mode};
use crate::plan::TablePlan;
use crate::slots::{LiveTags, STATE_MASK};
use crate::table::{ContainsFn, SegmentStats, Table};
use crate::tags::{Known, SlotState, StateCounts, StepStats};
use arc_swap::{ArcSwap, Guard};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// The tables that the writer publishes with one store.
pub(crate) struct Published {
    /// The largest table, which is read first.
    pub(crate) first: Arc<Table>,
    pub(crate) others: Box<[Arc<Table>]>,
    /// The plan of the table that the newest one is being copied to.
    pub(crate) copy: Option<TablePlan>,
    /// If items are forgotten.
    pub(crate) steps: Option<Box<Known>>,
    /// How the filter grows.
    pub(crate) rule: GrowthRule,
}

impl Published {
    pub(crate) fn new(
        mut tables: Vec<Arc<Table>>,
        copy: Option<TablePlan>,
        steps: Option<Box<Known>>,
        rule: GrowthRule,
    ) -> Self {
        let largest = (0..tables.len())
            .rev()
            .max_by_key(|&at| tables[at].plan.buckets())
            .unwrap_or(0);
        let first = tables.remove(largest);
        Self {
            first,
            others: tables.into(),
            copy,
            steps,
            rule,
        }
    }

    #[inline]
    fn tables(&self) -> impl Iterator<Item = &Arc<Table>> {
        std::iter::once(&self.first).chain(&self.others)
    }
}

/// The state that the readers of a filter share with its writer.
pub(crate) struct SharedFilter {
    pub(crate) published: ArcSwap<Published>,
    /// Of a strict filter: items by tag.
    pub(crate) counts: Box<[AtomicU64]>,
}

impl SharedFilter {
    pub(crate) fn new(mode: Mode, published: Published) -> Arc<Self> {
        let tags = if mode == Mode::Strict {
            STATE_MASK + 1
        } else {
            0
        };
        let counts = (0..tags).map(|_| AtomicU64::new(0)).collect();
        Arc::new(Self {
            published: ArcSwap::from_pointee(published),
            counts,
        })
    }

    /// Items of a strict filter by state.
    pub(crate) fn state_counts(&self, available_tag: u64) -> StateCounts {
        let count = |state: SlotState| {
            self.counts
                .get(state.tag(available_tag) as usize)
                .map_or(0, |count| count.load(Relaxed))
        };
        StateCounts {
            available: count(SlotState::Available),
            held: count(SlotState::Held),
            redeemed: count(SlotState::Redeemed),
        }
    }
}

/// A filter's current statistics.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FilterStats {
    /// Items in all tables.
    pub items: u64,
    /// Bytes of all tables.
    pub memory_bytes: u64,
    /// The tables, oldest first.
    pub segments: Vec<SegmentStats>,
    /// Items by state; none in a compact filter, which has no states.
    pub states: Option<StateCounts>,
    /// The maximum result of [`TableView::count`].
    pub copies_max: u32,
    /// If it forgets: the steps that have items, oldest first.
    pub steps: Vec<StepStats>,
}

/// The reader's side of a filter. Takes no lock; clones are cheap.
#[derive(Clone)]
pub struct Reader(pub(crate) Arc<SharedFilter>);

/// A view of a filter in one step, for one request. It finds everything that was added before it was taken.
pub struct TableView<'a> {
    shared: &'a SharedFilter,
    published: Guard<Arc<Published>>,
    step: u64,
    live: LiveTags,
    /// Looks an item up in the first table. Chosen once, since a single lookup is bound by its number of instructions.
    contains: ContainsFn,
}

impl Reader {
    /// A view of the filter's current state. If it forgets, as of this step.
    #[inline]
    pub fn view(&self, step: u64) -> TableView<'_> {
        let published = self.0.published.load();
        let live = published
            .steps
            .as_ref()
            .map_or(LiveTags::NONE, |steps| steps.live(step));
        let contains = published.first.contains_fn(live);
        TableView {
            shared: &self.0,
            published,
            step,
            live,
            contains,
        }
    }

    /// How the filter grows.
    pub fn growth_rule(&self) -> GrowthRule {
        self.0.published.load().rule
    }

    /// Prefetches the cache lines in which an item may be stored, so that a lookup soon after finds them in the cache.
    #[inline]
    pub fn prefetch(&self, digest: Digest) {
        self.0
            .published
            .load()
            .tables()
            .for_each(|table| table.prefetch(digest));
    }
}

impl TableView<'_> {
    #[inline]
    fn mode(&self) -> Mode {
        self.published.first.plan.mode
    }

    /// Returns whether the filter holds an item. A compact filter may take another item for it, but never misses one that it holds.
    #[inline]
    pub fn contains(&self, digest: Digest) -> bool {
        (self.contains)(&self.published.first, digest, self.live)
            || (!self.published.others.is_empty() && self.is_in_others(digest))
    }

    /// [`Self::contains`] for many, faster; `found` is cleared first.
    pub fn contains_many(&self, digests: &[Digest], found: &mut Vec<bool>) {
        self.accepts_many(digests, found, |_, _| true);
    }

    /// Returns whether the filter holds an item, in a strict filter also whether `accepts` returns true for its state.
    #[inline]
    pub fn accepts(&self, digest: Digest, accepts: impl FnOnce(SlotState) -> bool) -> bool {
        match self.mode() {
            Mode::Compact => self.contains(digest),
            Mode::Strict => self.state(digest).is_some_and(accepts),
        }
    }

    /// A separate function, so that a lookup in the first table needs no stack.
    #[inline(never)]
    fn is_in_others(&self, digest: Digest) -> bool {
        self.published
            .others
            .iter()
            .any(|table| table.contains(digest, self.live))
    }

    /// [`Self::accepts`] for many, faster; `found` is cleared first.
    pub fn accepts_many(
        &self,
        digests: &[Digest],
        found: &mut Vec<bool>,
        accepts: impl Fn(Digest, SlotState) -> bool,
    ) {
        found.clear();
        match self.mode() {
            Mode::Compact => {
                found.resize(digests.len(), false);
                self.published
                    .first
                    .contains_many(digests, self.live, found);
                for table in &self.published.others {
                    self.look_further(table, digests, found);
                }
            }
            Mode::Strict => {
                found.reserve(digests.len());
                let mut digests_left = digests.iter();
                self.report_states(digests, |state| {
                    let digest = digests_left.next();
                    found.push(
                        digest
                            .zip(state)
                            .is_some_and(|(&digest, state)| accepts(digest, state)),
                    );
                });
            }
        }
    }

    /// Looks in one more table for the items that were not found before. If many were, it leaves those out: to gather the others takes a
    /// fifth of the time of a lookup.
    #[inline(never)]
    fn look_further(&self, table: &Table, digests: &[Digest], found: &mut [bool]) {
        let missing = found.iter().filter(|found| !**found).count();
        if missing > digests.len() / 5 * 4 {
            return table.contains_many(digests, self.live, found);
        }
        let mut missed = Vec::with_capacity(missing);
        missed.extend(
            digests
                .iter()
                .zip(&*found)
                .filter_map(|(digest, found)| (!found).then_some(*digest)),
        );
        let mut found_here = vec![false; missed.len()];
        table.contains_many(&missed, self.live, &mut found_here);
        let not_found = found.iter_mut().filter(|found| !**found);
        for (found, found_here) in not_found.zip(found_here) {
            *found = found_here;
        }
    }

    /// Copies of an item. Never too low; in a compact filter, colliding items count too.
    pub fn count(&self, digest: Digest) -> u32 {
        match self.mode() {
            Mode::Compact => self
                .published
                .tables()
                .map(|table| table.count(digest, self.live))
                .sum(),
            Mode::Strict => u32::from(self.state(digest).is_some()),
        }
    }

    /// The state of an item; none if it is absent, and in a compact filter.
    #[inline]
    pub fn state(&self, digest: Digest) -> Option<SlotState> {
        let table = &self.published.first;
        match self.mode() {
            Mode::Compact => None,
            Mode::Strict => table.state(table.get(digest)),
        }
    }

    /// [`Self::state`] of many items, faster.
    pub fn states(&self, digests: &[Digest]) -> Vec<Option<SlotState>> {
        let mut states = Vec::with_capacity(digests.len());
        self.report_states(digests, |state| states.push(state));
        states
    }

    fn report_states(&self, digests: &[Digest], mut report: impl FnMut(Option<SlotState>)) {
        let table = &self.published.first;
        match self.mode() {
            Mode::Compact => digests.iter().for_each(|_| report(None)),
            Mode::Strict => table.get_many(digests, |held| report(table.state(held))),
        }
    }

    /// The maximum result of [`Self::count`].
    pub fn copies_max(&self) -> u32 {
        self.published.first.plan.copies_max()
    }

    /// Items, every copy counted.
    pub fn items(&self) -> u64 {
        match (self.mode(), &self.published.steps) {
            (Mode::Strict, _) => self.state_counts().unwrap_or_default().all(),
            (Mode::Compact, Some(steps)) => {
                steps.stats(self.step).iter().map(|step| step.items).sum()
            }
            (Mode::Compact, None) => self.published.tables().map(|table| table.items()).sum(),
        }
    }

    fn state_counts(&self) -> Option<StateCounts> {
        let of_strict = || {
            self.shared
                .state_counts(self.published.first.available_tag())
        };
        (self.mode() == Mode::Strict).then(of_strict)
    }

    /// Bytes of all tables.
    pub fn memory_bytes(&self) -> u64 {
        let tables: u64 = self
            .published
            .tables()
            .map(|table| table.memory_bytes())
            .sum();
        tables + self.published.copy.map_or(0, |plan| plan.memory_bytes())
    }

    /// The statistics of each table, oldest first. The slots of forgotten and cleared items that are not free yet are counted.
    pub fn segments(&self) -> Vec<SegmentStats> {
        let mut tables: Vec<&Arc<Table>> = self.published.tables().collect();
        tables.sort_by_key(|table| table.plan.number);
        let mut segments: Vec<SegmentStats> = tables.iter().map(|table| table.stats()).collect();
        if let Some((newest, copy)) = segments.last_mut().zip(self.published.copy) {
            newest.capacity = copy.capacity();
        }
        if let (Some(counts), [only]) = (self.state_counts(), &mut segments[..]) {
            only.items = counts.all();
        }
        segments
    }

    /// Its statistics.
    pub fn stats(&self) -> FilterStats {
        FilterStats {
            items: self.items(),
            memory_bytes: self.memory_bytes(),
            segments: self.segments(),
            states: self.state_counts(),
            copies_max: self.copies_max(),
            steps: self
                .published
                .steps
                .as_ref()
                .map_or_else(Vec::new, |steps| steps.stats(self.step)),
        }
    }
}
