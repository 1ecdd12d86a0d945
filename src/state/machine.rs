//! The state machine's data: every filter, what all filters share, and the answers kept for repeated requests.

use super::agenda::{AT_ONCE, Agenda, NO_TASKS, Tasks};
use super::catalog::{Catalog, View};
use super::discarded::Discarded;
use super::events::{Events, FreshEvents};
use super::history::History;
use super::idempotency::Records;
use super::images::Images;
use super::ledger::{Change, Ledger};
use super::section::Epoch;
use super::staging::Staging;
use super::tables::Tables;
use super::view::FilterView;
use crate::domain::{FilterChange, FilterId, Happened, Kind, Seq, Settings, Spec, StateHash, Timestamp};
use crate::filter::StateCounts;
use crate::paged::Copied;
use parking_lot::RwLock;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The most holds that one entry expires, and the most ended redemptions, stored answers and broken imports that it forgets: no
/// single command pays for a crowd.
pub(super) const SWEEP_MAX: usize = 1_024;

/// The version of entries that needs no enabling.
const FORMAT_FIRST: u16 = 1;

/// The state machine: every campaign and coupon, their redemptions, and the answers kept for repeated requests.
///
/// Invariants:
/// - The catalog names exactly the filters in `filters` that are not hidden. Line-ups lie in the catalog alone.
/// - A code is held or redeemed exactly while it has a redemption in that status, but for codes that were redeemed so long ago
///   that the redemption is forgotten.
/// - Totals and agenda have of each filter what it was counted with.
pub struct State {
    pub(super) applied: Seq,
    pub(super) filters: BTreeMap<FilterId, Box<FilterState>>,
    pub(super) records: Records,
    /// The hash of all that was applied.
    pub(super) history: History,
    /// The highest version of entries that may follow.
    pub(super) format: u16,
    pub(super) shared: Shared,
}

/// One campaign or coupon, as the writer sees it.
pub(super) struct FilterState {
    pub(super) view: Arc<FilterView>,
    pub(super) tables: Tables,
    /// What an import with `mode=replace` builds aside, if one does.
    pub(super) staging: Option<Box<Staging>>,
    /// It is not to be seen yet: an image of it arrives.
    pub(super) is_hidden: bool,
    /// Its part of the totals, as it was counted last.
    totals: Totals,
    /// Its part of the agenda, as it was counted last; few filters have any.
    tasks: Option<Box<Tasks>>,
}

/// Sizes of the state. Bytes are estimated.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sizes {
    /// Bytes of all tables.
    pub tables_bytes: u64,
    /// Bytes of redemptions, stored answers, line-ups, records of imports and the changes kept for them, and events that are not stored
    /// yet.
    pub records_bytes: u64,
    /// Bytes of tables that commands have dropped, and that are not freed yet.
    pub discarded_tables_bytes: u64,
    /// Bytes of redemptions that commands have dropped, and that are not freed yet.
    pub discarded_records_bytes: u64,
    /// Redemptions on record.
    pub redemptions: u64,
    /// Answers stored for repeated requests.
    pub idempotency_records: u64,
    /// Bytes of those answers: never more than the settings allow.
    pub idempotency_bytes: u64,
    /// Codes of all strict coupons by status.
    pub codes: StateCounts,
    /// Images that arrive.
    pub images_loading: u64,
    /// Bytes that only running snapshots need: records of changed words, and pages that have changed since. Dropped tables and ledgers are not
    /// among them: they only go later.
    pub snapshot_bytes: u64,
    /// Holds that have run out since this state was made.
    pub holds_expired: u64,
    /// Users who were forgotten since then. Copies count.
    pub users_forgotten: u64,
}

impl Sizes {
    /// Bytes of tables and records, including those that are dropped but not freed yet.
    pub fn memory_bytes(&self) -> u64 {
        let discarded = self.discarded_tables_bytes + self.discarded_records_bytes;
        self.tables_bytes + self.records_bytes + discarded
    }
}

/// Sums over all filters.
#[derive(Clone, Copy, Default)]
pub(super) struct Totals {
    /// Bytes of tables.
    pub(super) tables_bytes: u64,
    /// Memory of ledgers.
    pub(super) ledgers_bytes: u64,
    /// Memory of the changes kept for imports that build aside.
    pub(super) kept_bytes: u64,
    /// Imports that are catching up.
    pub(super) catching_up: u64,
    pub(super) redemptions: u64,
    /// Held redemptions of filters that can be seen.
    pub(super) holds: u64,
    /// Codes of strict coupons that can be seen.
    pub(super) codes: StateCounts,
}

impl Totals {
    /// Counts other totals in the place of those that were counted before.
    fn change(&mut self, before: &Totals, now: &Totals) {
        let change = |total: &mut u64, before, now| *total = *total + now - before;
        change(&mut self.tables_bytes, before.tables_bytes, now.tables_bytes);
        change(&mut self.ledgers_bytes, before.ledgers_bytes, now.ledgers_bytes);
        change(&mut self.kept_bytes, before.kept_bytes, now.kept_bytes);
        change(&mut self.catching_up, before.catching_up, now.catching_up);
        change(&mut self.redemptions, before.redemptions, now.redemptions);
        change(&mut self.holds, before.holds, now.holds);
        self.codes -= before.codes;
        self.codes += now.codes;
    }
}

/// What all filters share.
#[derive(Default)]
pub(super) struct Shared {
    /// The latest time that an entry has told.
    pub(super) now: Timestamp,
    pub(super) settings: Settings,
    /// How many epochs have been given.
    pub(super) epochs: u64,
    pub(super) totals: Totals,
    /// Memory of all line-ups.
    pub(super) line_ups_bytes: u64,
    pub(super) images: Images,
    /// Holds that have run out since this state was made: for the metrics, not part of the image.
    pub(super) holds_expired: u64,
    /// Users who were forgotten since then, in the same way.
    pub(super) users_forgotten: u64,
    /// What filters have to do. The image has only whose turn it was.
    pub(super) agenda: Agenda,
    pub(super) catalog: Catalog,
    /// Readers don't have the catalog as it is now.
    pub(super) catalog_changed: bool,
    pub(super) view: View,
    /// Bytes that only snapshots still need.
    pub(super) copied: Copied,
    pub(super) events: Events,
    /// What commands have dropped: no part of the image.
    pub(super) discarded: Discarded,
    /// The ledger of all campaigns, which hold no redemptions.
    pub(super) no_redemptions: Arc<RwLock<Ledger>>,
}

impl Default for State {
    fn default() -> Self {
        Self::new()
    }
}

impl State {
    /// The state before the first entry.
    pub fn new() -> Self {
        let mut shared = Shared::default();
        shared.configure(Settings::default());
        Self {
            applied: Seq(0),
            filters: BTreeMap::new(),
            records: Records::default(),
            history: History::default(),
            format: FORMAT_FIRST,
            shared,
        }
    }

    /// The number of the last entry applied.
    pub fn applied(&self) -> Seq {
        self.applied
    }

    /// The latest time that an entry has told.
    pub fn now(&self) -> Timestamp {
        self.shared.now
    }

    /// The highest version of entries that may follow: those that are enabled.
    pub fn format(&self) -> u16 {
        self.format
    }

    /// The hash of everything applied so far.
    pub fn hash(&self) -> StateHash {
        StateHash { at: self.applied, hash: self.history.hash }
    }

    /// The hash at the last position at which nodes compare; at position 0 before the first.
    pub fn last_hash(&self) -> StateHash {
        self.history.last
    }

    /// The settings in force.
    pub fn settings(&self) -> &Settings {
        &self.shared.settings
    }

    /// The read side. It shows changes of items at once, and filters that came, went or changed after [`Self::publish`].
    pub fn view(&self) -> View {
        self.shared.view.clone()
    }

    /// Shows readers the filters that are there now. Cheap when none came, went or was changed.
    pub fn publish(&mut self) {
        if std::mem::take(&mut self.shared.catalog_changed) {
            self.shared.view.publish(self.shared.catalog.clone());
        }
    }

    /// The numbers of events, and those that were not taken yet.
    pub fn events(&self) -> &Events {
        &self.shared.events
    }

    /// Takes the events that were made since the last call. `empty`, whose memory is used for the next ones, is replaced by them.
    pub fn take_events(&mut self, empty: &mut FreshEvents) {
        self.shared.events.take(empty);
    }

    /// Frees some of what commands have dropped: about this many entries of ledgers, or as much of tables as takes as long. Returns
    /// whether it was anything.
    ///
    /// No command depends on when this happens.
    pub fn free_discarded(&mut self, entries_max: u64) -> bool {
        self.has_discarded() && self.shared.discarded.free(entries_max) > 0
    }

    /// Its sizes.
    pub fn sizes(&self) -> Sizes {
        let shared = &self.shared;
        let imports_bytes = shared.view.imports.read().memory_bytes() + shared.totals.kept_bytes;
        let others_bytes = shared.line_ups_bytes + shared.events.memory_bytes();
        Sizes {
            tables_bytes: shared.totals.tables_bytes,
            records_bytes: shared.totals.ledgers_bytes
                + self.records.memory_bytes()
                + imports_bytes
                + others_bytes,
            discarded_tables_bytes: shared.discarded.tables.memory_bytes(),
            discarded_records_bytes: shared.discarded.records_bytes(),
            redemptions: shared.totals.redemptions,
            idempotency_records: self.records.len(),
            idempotency_bytes: self.records.memory_bytes(),
            codes: shared.totals.codes,
            images_loading: shared.images.0.len() as u64,
            snapshot_bytes: shared.copied.load(Ordering::Relaxed),
            holds_expired: shared.holds_expired,
            users_forgotten: shared.users_forgotten,
        }
    }

    /// Whether something that commands have dropped is not freed yet.
    pub fn has_discarded(&self) -> bool {
        !self.shared.discarded.is_empty()
    }
}

impl FilterState {
    /// A filter that is not counted yet: see [`Shared::note`].
    pub(super) fn new(
        view: Arc<FilterView>,
        tables: Tables,
        staging: Option<Box<Staging>>,
        is_hidden: bool,
    ) -> Box<Self> {
        Box::new(Self { view, tables, staging, is_hidden, totals: Totals::default(), tasks: None })
    }

    /// Its part of the totals and of the agenda, as it is now.
    fn footprint(&self) -> (Totals, Tasks) {
        let Self { view, tables, staging, .. } = self;
        let is_moving = |tables: &Tables| tables.filter.is_moving();
        let mut totals = Totals { tables_bytes: tables.memory_bytes(), ..Totals::default() };
        let mut tasks = [
            None,
            None,
            tables.due(&view.spec).map(|at| (at, AT_ONCE.1)),
            tables.filter.is_retiring().then_some(AT_ONCE),
            is_moving(tables).then_some(AT_ONCE),
        ];
        if let Some(staging) = staging {
            totals.tables_bytes += staging.tables.memory_bytes();
            totals.kept_bytes = staging.changes.memory_bytes();
            totals.catching_up = u64::from(staging.is_catching_up());
            tasks[4] = tasks[4].or(is_moving(&staging.tables).then_some(AT_ONCE));
        }
        if view.kind == Kind::Coupon {
            let ledger = view.ledger.read();
            totals.ledgers_bytes = ledger.memory_bytes();
            totals.redemptions = ledger.len() as u64;
            if !self.is_hidden {
                totals.holds = ledger.holds_len() as u64;
                let states = tables.filter.counts();
                totals.codes = states.map_or_else(StateCounts::default, |states| view.code_counts(states));
            }
            (tasks[0], tasks[1]) = (ledger.first_hold(), ledger.first_ended());
        }
        if self.is_hidden {
            // Nothing is due before it can be seen.
            tasks = NO_TASKS;
        }
        (totals, tasks)
    }
}

impl Shared {
    /// Brings the totals and the agenda up to date with a filter, and takes the tables that it has dropped.
    pub(super) fn note(&mut self, filter: &mut FilterState) {
        let staged = filter.staging.as_mut().map(|staging| &mut staging.tables);
        for tables in [Some(&mut filter.tables), staged].into_iter().flatten() {
            self.discarded.tables.append(&mut tables.filter.tables_mut().take_dropped());
        }
        let (totals, tasks) = filter.footprint();
        let before = filter.tasks.as_deref().unwrap_or(&NO_TASKS);
        self.totals.change(&filter.totals, &totals);
        self.agenda.change(filter.view.id, before, &tasks);
        filter.totals = totals;
        if tasks == NO_TASKS {
            filter.tasks = None;
        } else {
            **filter.tasks.get_or_insert_default() = tasks;
        }
    }

    /// Drops all tables of a filter, or those that an import was building aside.
    pub(super) fn drop_tables(&mut self, tables: Tables) {
        self.discarded.tables.append(&mut tables.filter.into_dropped());
    }

    /// Drops a filter, of which nothing is to be seen any more. What it is made of is freed later.
    pub(super) fn drop_filter(&mut self, filter: FilterState) {
        let FilterState { view, tables, totals, tasks, .. } = filter;
        self.totals.change(&totals, &Totals::default());
        self.agenda.change(view.id, tasks.as_deref().unwrap_or(&NO_TASKS), &NO_TASKS);
        self.discarded.push_ledger(view.ledger.clone());
        self.drop_tables(tables);
    }

    /// Goes by these settings, and tells readers what they need of them.
    pub(super) fn configure(&mut self, settings: Settings) {
        let retention = settings.redemptions_retention_seconds;
        self.view.redemptions_retention.store(retention, Ordering::Relaxed);
        self.events.switch(settings.events_retention_seconds > 0);
        self.settings = settings;
    }

    /// Gives a new epoch.
    pub(super) fn next_epoch(&mut self) -> Epoch {
        self.epochs += 1;
        Epoch(self.epochs)
    }

    /// Empty tables of the shape that a filter begins with.
    pub(super) fn empty_tables(&mut self, view: &FilterView) -> Tables {
        Tables::new(self.next_epoch(), &view.spec, view.layout)
    }

    /// An empty ledger for a filter of this kind and spec.
    pub(super) fn empty_ledger(
        &mut self,
        kind: Kind,
        spec: &Spec,
        last_change: Change,
    ) -> Arc<RwLock<Ledger>> {
        // Every filter takes a number: the hash of the state counts them.
        let epoch = self.next_epoch();
        match kind {
            Kind::Campaign => self.no_redemptions.clone(),
            Kind::Coupon => Arc::new(RwLock::new(Ledger::new(epoch, spec.stock.is_some(), last_change))),
        }
    }

    /// Puts a filter's new view where readers find it.
    pub(super) fn show(&mut self, view: Arc<FilterView>) {
        self.catalog.insert(view);
        self.catalog_changed = true;
    }

    /// Reports a change of a campaign or coupon.
    pub(super) fn tell_filter(&mut self, view: &FilterView, change: FilterChange) {
        let name = Cow::Borrowed(view.name.as_str());
        self.events.tell(self.now, || Happened::Filter { kind: view.kind, name, change });
    }
}
