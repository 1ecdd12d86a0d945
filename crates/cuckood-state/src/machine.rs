//! The state machine's data: every filter, data that all filters share, and the stored outcomes of repeated requests. Filters share the
//! image uploads, the agenda of due work, and the dropped data.

use super::agenda::{AT_ONCE, Agenda, NO_TASKS, Task, Tasks};
use super::catalog::{Catalog, Views};
use super::discarded::Discarded;
use super::events::{Events, FreshEvents, History};
use super::idempotency::Records;
use super::ledger::{ChangeNumber, Ledger, Membership};
use super::section::Epoch;
use super::staging::{
    CHANGE_BYTES, ChangeKind, QUEUED_CHANGE_BYTES, QUEUED_CHANGES_MAX, QueuedChange,
    REPEATED_FOR_EACH, Staging,
};
use super::tables::EpochFilter;
use super::view::FilterView;
use crate::domain::{
    ChangeCounts, Count, FORMAT_FIRST, FilterChange, FilterId, Happened, HourRetention,
    IMAGE_IDLE_SECONDS, ImportId, ImportState, ItemOutcome, KeyName, Kind, Meaning, Profile,
    Refusal, Seq, Settings, StateHash, Timestamp, UploadId,
};
use crate::paged::{Copied, Queue};
use cuckood_filter::{CopySource, Digest, Filled, GrowthRule, StateCounts, Walk};
use derive_more::{AddAssign, SubAssign};
use parking_lot::RwLock;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Maximum number of holds that one entry expires, and of ended redemptions, stored outcomes and interrupted imports that it deletes: no
/// single command pays for many.
pub(super) const SWEEP_MAX: usize = 1_024;

/// The state machine: every campaign and coupon, their redemptions, and the stored outcomes.
///
/// Invariants:
/// - The catalog names exactly the filters in `filters` that are not hidden. Line-ups are only in the catalog.
/// - A code is held or redeemed exactly while it has a redemption in that status, except for redeemed codes whose redemption was deleted
///   after its retention.
/// - Totals and agenda contain each filter's last noted values.
///
/// Its encoding is for the head of a snapshot, which has filters, stored outcomes, imports and line-ups besides.
#[derive(Serialize, Deserialize)]
pub struct State {
    pub(super) applied: Seq,
    #[serde(skip)]
    pub(super) filters: BTreeMap<FilterId, Box<FilterState>>,
    #[serde(skip)]
    pub(super) records: Records,
    /// The hash of all that was applied.
    pub(super) history: History,
    pub(super) shared: SharedState,
}

/// One campaign or coupon, as the writer sees it.
pub(super) struct FilterState {
    pub(super) view: Arc<FilterView>,
    pub(super) tables: EpochFilter,
    /// The staged tables of an import with `mode=replace`, if one is running.
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
    /// Bytes of redemptions, statistics, stored outcomes, titles, labels, line-ups, records of imports and the changes kept for them, and
    /// events that are not stored yet.
    pub records_bytes: u64,
    /// Bytes of tables that commands have dropped, and that are not freed yet.
    pub discarded_tables_bytes: u64,
    /// Bytes of redemptions that commands have dropped, and that are not freed yet.
    pub discarded_records_bytes: u64,
    /// Redemptions on record.
    pub redemptions: u64,
    /// Outcomes stored for repeated requests.
    pub idempotency_records: u64,
    /// Bytes of those outcomes: never more than the settings allow.
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
    /// Bytes of tables and records, including dropped ones that are not freed yet.
    pub fn memory_bytes(&self) -> u64 {
        self.tables_bytes
            + self.records_bytes
            + self.discarded_tables_bytes
            + self.discarded_records_bytes
    }
}

/// Sums over all filters.
#[derive(Clone, Copy, Default, AddAssign, SubAssign)]
pub(super) struct Totals {
    /// Bytes of tables.
    pub(super) tables_bytes: u64,
    /// Memory of titles, labels, statistics, ledgers, and of the changes queued for staged imports.
    pub(super) records_bytes: u64,
    /// Imports with staged tables.
    pub(super) staged: u64,
    pub(super) redemptions: u64,
    /// Held redemptions of filters that can be seen.
    pub(super) holds: u64,
    /// Codes of strict coupons that can be seen.
    pub(super) codes: StateCounts,
}

/// The data shared by all filters.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct SharedState {
    /// The highest version of entries that may follow.
    pub(super) format: u16,
    /// The latest time of an entry.
    pub(super) now: Timestamp,
    pub(super) settings: Settings,
    /// How many epochs have been given.
    pub(super) epochs: u64,
    pub(super) images: Images,
    pub(super) events: Events,
    /// The filters' due work. The image only contains whose turn it is.
    pub(super) agenda: Agenda,
    #[serde(skip)]
    pub(super) totals: Totals,
    /// Changes of the filter that is worked on, which are not in its statistics yet.
    #[serde(skip)]
    counts: ChangeCounts,
    /// Memory of all line-ups.
    #[serde(skip)]
    pub(super) line_ups_bytes: u64,
    /// Holds that have run out since this state was made, for the metrics.
    #[serde(skip)]
    pub(super) holds_expired: u64,
    /// Users who were forgotten since then, in the same way.
    #[serde(skip)]
    pub(super) users_forgotten: u64,
    #[serde(skip)]
    pub(super) catalog: Catalog,
    /// Readers don't have the catalog as it is now.
    #[serde(skip)]
    pub(super) catalog_changed: bool,
    #[serde(skip)]
    pub(super) view: Views,
    /// Bytes that only snapshots still need.
    #[serde(skip)]
    pub(super) copied: Copied,
    /// Dropped data that is not freed yet.
    #[serde(skip)]
    pub(super) discarded: Discarded,
    /// The ledger of all campaigns, which hold no redemptions.
    #[serde(skip)]
    pub(super) no_redemptions: Arc<RwLock<Ledger>>,
}

impl Default for State {
    /// The state before the first entry.
    fn default() -> Self {
        let mut shared = SharedState {
            format: FORMAT_FIRST,
            ..SharedState::default()
        };
        shared.configure(Settings::default());
        Self {
            applied: Seq(0),
            filters: BTreeMap::new(),
            records: Records::default(),
            history: History::default(),
            shared,
        }
    }
}

impl State {
    /// The number of the last entry applied.
    pub fn applied(&self) -> Seq {
        self.applied
    }

    /// Returns the latest time of an entry.
    pub fn now(&self) -> Timestamp {
        self.shared.now
    }

    /// Returns the highest enabled version of entries.
    pub fn format(&self) -> u16 {
        self.shared.format
    }

    /// The hash of everything applied so far.
    pub fn hash(&self) -> StateHash {
        StateHash {
            at: self.applied,
            hash: self.history.hash,
        }
    }

    /// The hash at the last position at which nodes compare; at position 0 before the first.
    pub fn last_hash(&self) -> StateHash {
        self.history.last
    }

    /// The settings in force.
    pub fn settings(&self) -> &Settings {
        &self.shared.settings
    }

    /// Returns the read side. It shows changes of items immediately, and created, deleted or changed filters after [`Self::publish`].
    pub fn view(&self) -> Views {
        self.shared.view.clone()
    }

    /// Publishes the current filters to readers. Cheap when none was created, deleted or changed.
    pub fn publish(&mut self) {
        if std::mem::take(&mut self.shared.catalog_changed) {
            self.shared
                .view
                .catalog
                .store(Arc::new(self.shared.catalog.clone()));
        }
    }

    /// The events' numbers, and the events that were not taken yet.
    pub fn events(&self) -> &Events {
        &self.shared.events
    }

    /// Takes the events that were made since the last call. `empty`, whose memory is used for the next ones, is replaced by them.
    pub fn take_events(&mut self, empty: &mut FreshEvents) {
        empty.clear();
        std::mem::swap(&mut self.shared.events.fresh, empty);
    }

    /// Frees some dropped data: about this many entries of ledgers, or tables of the same cost. Returns whether anything was freed.
    ///
    /// No command depends on when this happens.
    pub fn free_discarded(&mut self, entries_max: u64) -> bool {
        self.has_discarded() && self.shared.discarded.free(entries_max) > 0
    }

    /// What a copy of a filter's tables is made of; `None` if the filter does not exist.
    pub fn tables_of(&self, filter: FilterId) -> Option<CopySource> {
        Some(self.filters.get(&filter)?.tables.filter.tables().source())
    }

    /// Its sizes.
    pub fn sizes(&self) -> Sizes {
        let shared = &self.shared;
        let imports_bytes = shared.view.imports.read().memory_bytes();
        let others_bytes = shared.line_ups_bytes + shared.events.memory_bytes() + imports_bytes;
        Sizes {
            tables_bytes: shared.totals.tables_bytes,
            records_bytes: shared.totals.records_bytes + self.records.memory_bytes() + others_bytes,
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
    /// Works on the filter, and brings totals and agenda up to date afterwards.
    pub(super) fn work<T>(
        &mut self,
        shared: &mut SharedState,
        work: impl FnOnce(&mut Subject<'_>) -> T,
    ) -> T {
        let done = work(&mut Subject {
            filter: self,
            shared,
        });
        shared.note(self);
        done
    }

    /// Sets how its tables grow.
    pub(super) fn set_growth_rule(&mut self, rule: GrowthRule) {
        self.tables.filter.set_growth_rule(rule);
        self.staging
            .iter_mut()
            .for_each(|staging| staging.tables.filter.set_growth_rule(rule));
    }

    /// A filter that is not counted yet: see [`SharedState::note`].
    pub(super) fn new(view: Arc<FilterView>, tables: EpochFilter, is_hidden: bool) -> Box<Self> {
        Box::new(Self {
            view,
            tables,
            staging: None,
            is_hidden,
            totals: Totals::default(),
            tasks: None,
        })
    }

    /// Its part of the totals and of the agenda, as it is now. Adds changes to the statistics.
    fn footprint(
        &self,
        now: Timestamp,
        counts: &ChangeCounts,
        hours: HourRetention,
    ) -> (Totals, Tasks) {
        let Self {
            view,
            tables,
            staging,
            ..
        } = self;
        let is_moving = |tables: &EpochFilter| tables.filter.is_moving();
        let statistics_bytes = view.counters.statistics.lock().add(now, counts, hours);
        let records_bytes = statistics_bytes + view.annotations.memory_bytes();
        let mut totals = Totals {
            tables_bytes: tables.memory_bytes(),
            records_bytes,
            ..Totals::default()
        };
        let mut tasks = NO_TASKS;
        tasks[Task::ForgetUsers] = tables.due(&view.spec).map(|at| (at, AT_ONCE.1));
        tasks[Task::Retire] = tables.filter.is_retiring().then_some(AT_ONCE);
        tasks[Task::Move] = is_moving(tables).then_some(AT_ONCE);
        if let Some(staging) = staging {
            totals.tables_bytes += staging.tables.memory_bytes();
            totals.records_bytes += staging.changes.len() * QUEUED_CHANGE_BYTES;
            let membership = staging.membership.as_ref();
            totals.records_bytes += membership.map_or(0, Membership::memory_bytes);
            totals.staged = 1;
            if is_moving(&staging.tables) {
                tasks[Task::Move] = Some(AT_ONCE);
            }
        }
        if view.kind == Kind::Coupon {
            let ledger = view.ledger.read();
            totals.records_bytes += ledger.memory_bytes();
            totals.redemptions = ledger.len() as u64;
            if !self.is_hidden {
                totals.holds = ledger.holds_len() as u64;
                let states = tables.filter.counts();
                totals.codes = states.map_or_else(StateCounts::default, |states| {
                    view.code_counts(states, &ledger)
                });
            }
            tasks[Task::Expire] = ledger.first_hold();
            tasks[Task::Forget] = ledger.first_ended();
        }
        if self.is_hidden {
            // Nothing is due before it can be seen.
            tasks = NO_TASKS;
        }
        (totals, tasks)
    }
}

impl SharedState {
    /// Whether entries have this meaning.
    pub(super) fn has(&self, meaning: Meaning) -> bool {
        self.format >= meaning.since()
    }

    /// How tables grow.
    pub(super) fn growth_rule(&self) -> GrowthRule {
        if self.has(Meaning::PacedGrowth) {
            GrowthRule::Paced
        } else {
            GrowthRule::Immediate
        }
    }

    /// How long statistics have hours.
    pub(super) fn hour_retention(&self) -> HourRetention {
        if self.has(Meaning::HoursForLocalDays) {
            HourRetention::ThirtySixDays
        } else {
            HourRetention::TwoDays
        }
    }

    /// Brings the totals and the agenda up to date with a filter, and takes the tables that it has dropped. They grow by the rule in force.
    pub(super) fn note(&mut self, filter: &mut FilterState) {
        filter.set_growth_rule(self.growth_rule());
        let staged = filter.staging.as_mut().map(|staging| &mut staging.tables);
        for tables in [Some(&mut filter.tables), staged].into_iter().flatten() {
            self.discarded
                .tables
                .append(&mut tables.filter.tables_mut().take_dropped());
        }
        let counts = std::mem::take(&mut self.counts);
        let (totals, tasks) = filter.footprint(self.now, &counts, self.hour_retention());
        let before = filter.tasks.as_deref().unwrap_or(&NO_TASKS);
        self.totals -= filter.totals;
        self.totals += totals;
        self.agenda.change(filter.view.id, before, &tasks);
        filter.totals = totals;
        if tasks == NO_TASKS {
            filter.tasks = None;
        } else {
            **filter.tasks.get_or_insert_default() = tasks;
        }
    }

    /// Drops all tables of a filter, or staged ones.
    pub(super) fn drop_tables(&mut self, tables: EpochFilter) {
        self.discarded
            .tables
            .append(&mut tables.filter.into_dropped());
    }

    /// Drops a filter, which is no longer visible. Its memory is freed later.
    pub(super) fn drop_filter(&mut self, filter: FilterState) {
        let FilterState {
            view,
            tables,
            totals,
            tasks,
            ..
        } = filter;
        self.totals -= totals;
        self.agenda
            .change(view.id, tasks.as_deref().unwrap_or(&NO_TASKS), &NO_TASKS);
        view.counters.statistics.lock().discard();
        self.discarded.push_ledger(view.ledger.clone());
        self.drop_tables(tables);
    }

    /// Applies these settings, and publishes those that readers need.
    pub(super) fn configure(&mut self, settings: Settings) {
        let retention = settings.redemptions_retention_seconds;
        self.view
            .redemptions_retention
            .store(retention, Ordering::Relaxed);
        self.events.is_on = settings.events_retention_seconds > 0;
        self.settings = settings;
    }

    /// Gives a new epoch.
    pub(super) fn next_epoch(&mut self) -> Epoch {
        self.epochs += 1;
        Epoch(self.epochs)
    }

    /// Empty tables of a filter's initial shape.
    pub(super) fn empty_tables(&mut self, view: &FilterView) -> EpochFilter {
        let rule = self.growth_rule();
        EpochFilter::new(self.next_epoch(), &view.spec, view.layout, rule)
    }

    /// An empty ledger for a filter.
    pub(super) fn empty_ledger(
        &mut self,
        profile: &Profile,
        last_change: ChangeNumber,
    ) -> Arc<RwLock<Ledger>> {
        // Every filter takes a number: the hash of the state counts them.
        let epoch = self.next_epoch();
        match profile.kind {
            Kind::Campaign => self.no_redemptions.clone(),
            Kind::Coupon => {
                let Profile { secret, spec, .. } = profile;
                let ledger = Ledger::new(epoch, secret, &spec.supply, last_change);
                Arc::new(RwLock::new(ledger))
            }
        }
    }

    /// Puts a filter's new view where readers find it.
    pub(super) fn show(&mut self, view: Arc<FilterView>) {
        self.catalog.insert(view);
        self.catalog_changed = true;
    }

    /// Reports a change of a campaign or coupon.
    pub(super) fn record_filter(&mut self, view: &FilterView, change: FilterChange) {
        let name = Cow::Borrowed(view.name.as_str());
        self.events.record(self.now, || Happened::Filter {
            kind: view.kind,
            name,
            change,
        });
    }
}

/// The filter that a command works on, and what all filters share.
pub(super) struct Subject<'a> {
    pub(super) filter: &'a mut FilterState,
    pub(super) shared: &'a mut SharedState,
}

impl State {
    /// Works on the filter with this id as it is at the present time.
    ///
    /// # Errors
    /// [`Refusal::FilterGone`] if there is none.
    pub(super) fn on<T>(
        &mut self,
        filter: FilterId,
        work: impl FnOnce(&mut Subject<'_>) -> T,
    ) -> Result<T, Refusal> {
        let filter = self.filters.get_mut(&filter).ok_or(Refusal::FilterGone)?;
        Ok(filter.work(&mut self.shared, |subject| {
            let Subject { filter, shared } = &mut *subject;
            shared.users_forgotten += filter.tables.advance(&filter.view.spec, shared.now);
            work(subject)
        }))
    }
}

impl Subject<'_> {
    /// Adds to the statistics.
    pub(super) fn count(&mut self, what: Count, number: u64) {
        self.shared.counts[what as usize] += number;
    }

    /// Queues changes of items for the staged import, if there is one. While it catches up, `repeated` older ones are repeated for each.
    pub(super) fn queue_changes(
        &mut self,
        kind: ChangeKind,
        digests: impl IntoIterator<Item = Digest>,
        repeated: u64,
    ) {
        let Some(staging) = &mut self.filter.staging else {
            return;
        };
        let before = staging.changes.len();
        for digest in digests {
            let mut buffer = [0; CHANGE_BYTES];
            let encoded = postcard::to_slice(&QueuedChange { kind, digest }, &mut buffer);
            staging
                .changes
                .push(encoded.expect("a change has a maximum size"), &[]);
        }
        let repeated = (staging.changes.len() - before) * repeated;
        if staging.changes.len() > QUEUED_CHANGES_MAX {
            self.abort_staging(ImportState::Overtaken);
            return;
        }
        if !staging.is_catching_up() {
            return;
        }
        let ledger = self.filter.view.ledger.read();
        let repeated = staging.repeat(&self.filter.tables, &ledger, repeated);
        drop(ledger);
        if repeated.is_err() {
            self.abort_staging(ImportState::Failed);
        }
    }

    /// Queues an insert for the staged import. Before used codes could leave the pool, redeemed codes among its items had not changed.
    pub(super) fn queue_inserted(
        &mut self,
        digests: &[Digest],
        outcomes: &[ItemOutcome],
        if_absent: bool,
    ) {
        let kind = if if_absent {
            ChangeKind::AddIfAbsent
        } else {
            ChangeKind::Add
        };
        let has_withdrawal = self.shared.has(Meaning::Withdrawal);
        let taken = outcomes
            .iter()
            .zip(digests)
            .filter(|(outcome, _)| has_withdrawal || **outcome != ItemOutcome::AlreadyRedeemed);
        self.queue_changes(kind, taken.map(|(_, &digest)| digest), REPEATED_FOR_EACH);
    }

    /// Lets the staged tables start to catch up, or start over.
    pub(super) fn begin_catching_up(&mut self) {
        let has_withdrawal = self.shared.has(Meaning::Withdrawal);
        let Some(staging) = &mut self.filter.staging else {
            return;
        };
        let was_catching_up = staging.is_catching_up();
        staging.walk = Some(Walk::START);
        match &mut staging.membership {
            Some(membership) => membership.clear(),
            None if has_withdrawal && !was_catching_up => {
                staging.membership = Some(Membership::none());
            }
            None => {}
        }
        if std::mem::take(&mut staging.cleared) {
            let empty = self.shared.empty_tables(&self.filter.view);
            let replaced = std::mem::replace(&mut staging.tables, empty);
            self.shared.drop_tables(replaced);
        }
    }

    /// Stages empty tables for an import. Another staged import is superseded.
    pub(super) fn stage(&mut self, import: ImportId) {
        let is_same = Staging::is_of(&self.filter.staging, &import);
        self.abort_staging(if is_same {
            ImportState::Interrupted
        } else {
            ImportState::Overtaken
        });
        let epoch = self.shared.next_epoch();
        let tables = self.shared.empty_tables(&self.filter.view);
        let changes = Queue::default();
        let cleared = false;
        let walk = None;
        self.filter.staging = Some(Box::new(Staging {
            import,
            tables,
            changes,
            epoch,
            cleared,
            walk,
            membership: None,
        }));
    }

    /// Drops the staged tables, if there are any, and ends their import in this state.
    pub(super) fn abort_staging(&mut self, why: ImportState) {
        let Some(staging) = self.filter.staging.take() else {
            return;
        };
        self.shared
            .update_import(&staging.import, |import| import.state = why);
        self.shared.drop_tables(staging.tables);
    }
}

/// An image that arrives.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct ArrivingImage {
    /// The filter that is made of it, which is hidden.
    pub(super) filter: FilterId,
    /// The API key of the request that started it.
    pub(super) by: Option<KeyName>,
    /// How far the tables are filled.
    pub(super) filled: Filled,
    /// Maximum number of items of each table.
    pub(super) items: Vec<u64>,
    /// The checksum of all that has arrived.
    pub(super) checksum: u128,
    /// When the last part arrived.
    pub(super) changed_at: Timestamp,
}

/// All images that arrive.
#[derive(Clone, Default, Serialize, Deserialize)]
pub(super) struct Images(pub(super) BTreeMap<UploadId, ArrivingImage>);

impl Images {
    /// When the upload with the oldest progress is aborted.
    pub(super) fn abort_at(&self) -> Option<Timestamp> {
        let oldest = self.0.values().map(|image| image.changed_at).min()?;
        Some(oldest.plus_seconds(IMAGE_IDLE_SECONDS))
    }

    /// The number of this API key's image uploads. Requests without a key have no share.
    pub(super) fn of_key(&self, by: Option<&KeyName>) -> usize {
        self.0
            .values()
            .filter(|image| by.is_some() && image.by.as_ref() == by)
            .count()
    }

    /// How far the tables of a hidden filter are filled.
    pub(super) fn filled(&self, filter: FilterId) -> Option<Filled> {
        self.0
            .values()
            .find(|image| image.filter == filter)
            .map(|image| image.filled)
    }
}
