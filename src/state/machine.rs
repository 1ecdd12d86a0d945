//! The state machine's data: every filter, what all filters share, and the answers kept for repeated requests.

use super::agenda::Agenda;
use super::catalog::{Catalog, View};
use super::discarded::Discarded;
use super::due::{Due, Heads};
use super::epoch::Epoch;
use super::events::{Events, FreshEvents};
use super::history::History;
use super::idempotency::Records;
use super::loading::Loading;
use super::running_snapshot::RunningSnapshot;
use super::staging::Staging;
use super::tables::Tables;
use super::view::FilterView;
use crate::domain::{FilterChange, FilterId, Happened, Kind, Seq, Settings, StateHash, Timestamp, UploadId};
use crate::filter::{Expansion, StateCounts};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
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
/// - Of each filter, `holds` has every held redemption, `ended` every other one.
pub struct State {
    pub(super) applied: Seq,
    pub(super) filters: BTreeMap<FilterId, FilterState>,
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
    pub(super) due: Due,
    /// What an import with `mode=replace` builds aside, if one does.
    pub(super) staging: Option<Staging>,
    /// Of a filter that is not to be seen yet: what is known of the image that it is made of.
    pub(super) loading: Option<Box<Loading>>,
}

/// What all filters share.
pub(super) struct Shared {
    /// The latest time that an entry has told.
    pub(super) now: Timestamp,
    pub(super) settings: Settings,
    /// How many epochs have been given.
    pub(super) epochs: u64,
    /// Held redemptions by the time at which they expire.
    pub(super) holds: Heads,
    /// All other redemptions by the time of their last change.
    pub(super) ended: Heads,
    pub(super) redemptions: u64,
    pub(super) tables_bytes: u64,
    /// Bytes of tables that are not among those.
    pub(super) uncounted_bytes: u64,
    /// Changes kept for all imports that build aside.
    pub(super) kept_changes: u64,
    /// Imports that are catching up.
    pub(super) catching_up: u64,
    /// Codes of all strict coupons.
    pub(super) codes: StateCounts,
    /// Memory of all line-ups.
    pub(super) line_ups_bytes: u64,
    /// Memory of all ledgers.
    pub(super) ledgers_bytes: u64,
    /// The hidden filters, by the images that they are made of.
    pub(super) loading: BTreeMap<UploadId, FilterId>,
    /// Filters whose items are moving to other tables.
    pub(super) moving: BTreeSet<FilterId>,
    /// Holds that have run out since this state was made: for the metrics, not part of the image.
    pub(super) holds_expired: u64,
    /// Users who were forgotten since then, in the same way.
    pub(super) users_forgotten: u64,
    /// What campaigns that forget have to do. The image has only whose turn it was.
    pub(super) agenda: Agenda,
    pub(super) catalog: Catalog,
    /// Readers don't have the catalog as it is now.
    pub(super) catalog_changed: bool,
    pub(super) view: View,
    pub(super) snapshot: RunningSnapshot,
    pub(super) events: Events,
    /// What commands have dropped: no part of the image.
    pub(super) discarded: Discarded,
}

impl Default for State {
    fn default() -> Self {
        Self::new()
    }
}

impl State {
    /// The state before the first entry.
    pub fn new() -> Self {
        let mut shared = Shared {
            now: Timestamp(0),
            settings: Settings::default(),
            epochs: 0,
            holds: Heads::default(),
            ended: Heads::default(),
            redemptions: 0,
            tables_bytes: 0,
            uncounted_bytes: 0,
            kept_changes: 0,
            catching_up: 0,
            codes: StateCounts::default(),
            line_ups_bytes: 0,
            ledgers_bytes: 0,
            loading: BTreeMap::new(),
            moving: BTreeSet::new(),
            holds_expired: 0,
            users_forgotten: 0,
            agenda: Agenda::default(),
            catalog: Catalog::default(),
            catalog_changed: false,
            view: View::default(),
            snapshot: RunningSnapshot::default(),
            events: Events::new(),
            discarded: Discarded::default(),
        };
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

    /// Holds that have run out since this state was made.
    pub fn holds_expired(&self) -> u64 {
        self.shared.holds_expired
    }

    /// Whether items of some filter are moving to another table, or the slots of forgotten users are being freed. Every entry does some of
    /// that, and [`crate::domain::Command::Advance`] as much as it says.
    pub fn can_advance(&self) -> bool {
        !self.shared.moving.is_empty() || self.shared.agenda.is_any_retiring()
    }

    /// The number of the last event; 0 if there never was one.
    pub fn events_last(&self) -> u64 {
        self.shared.events.last()
    }

    /// The number that the next event gets.
    pub fn events_next(&self) -> u64 {
        self.shared.events.next()
    }

    /// The events that were not taken yet.
    pub fn fresh_events(&self) -> &FreshEvents {
        self.shared.events.fresh()
    }

    /// Takes the events that were made since the last call. `empty`, whose memory is used for the next ones, is replaced by them.
    pub fn take_events(&mut self, empty: &mut FreshEvents) {
        self.shared.events.take(empty);
    }

    /// Codes of all strict coupons by status.
    pub fn codes(&self) -> StateCounts {
        self.shared.codes
    }

    /// Redemptions on record.
    pub fn redemptions(&self) -> u64 {
        self.shared.redemptions
    }

    /// Answers kept for repeated requests.
    pub fn idempotency_records(&self) -> u64 {
        self.records.len()
    }

    /// Bytes of those answers: never more than the settings allow.
    pub fn idempotency_bytes(&self) -> u64 {
        self.records.memory_bytes()
    }
}

impl FilterState {
    /// Bytes of its tables, and of those that an import builds aside.
    pub(super) fn tables_bytes(&self) -> u64 {
        self.tables.memory_bytes() + self.staging.as_ref().map_or(0, |staging| staging.tables.memory_bytes())
    }

    /// Bytes of tables that are not among those.
    pub(super) fn uncounted_bytes(&self) -> u64 {
        let staged =
            self.staging.as_ref().map_or(0, |staging| staging.tables.filter.tables().uncounted_bytes());
        self.tables.filter.tables().uncounted_bytes() + staged
    }

    /// Memory of its ledger.
    pub(super) fn ledger_bytes(&self) -> u64 {
        match self.view.kind {
            Kind::Campaign => 0,
            Kind::Coupon => self.view.ledger.read().memory_bytes(),
        }
    }

    /// Whether it is not to be seen yet.
    pub(super) fn is_hidden(&self) -> bool {
        self.loading.is_some()
    }

    /// Codes by status, if it is a strict coupon that can be seen.
    pub(super) fn codes(&self) -> StateCounts {
        let states = (self.view.kind == Kind::Coupon && !self.is_hidden())
            .then(|| self.tables.filter.counts())
            .flatten();
        states.map_or_else(StateCounts::default, |states| self.view.code_counts(states))
    }

    /// Changes kept for the import that builds aside.
    pub(super) fn kept_changes(&self) -> u64 {
        self.staging.as_ref().map_or(0, |staging| staging.changes.len())
    }

    /// Whether its items are moving to another table, or those of an import that builds aside.
    pub(super) fn is_moving(&self) -> bool {
        let staged = self.staging.as_ref().map(|staging| &staging.tables);
        let is_moving = |tables: &Tables| tables.filter.is_moving();
        !self.is_hidden() && (is_moving(&self.tables) || staged.is_some_and(is_moving))
    }

    /// Whether an import builds aside, and is catching up.
    pub(super) fn is_catching_up(&self) -> bool {
        self.staging.as_ref().is_some_and(Staging::is_catching_up)
    }
}

impl Shared {
    /// Notes whether the items of a filter are moving to another table.
    pub(super) fn note_moving(&mut self, filter: FilterId, is_moving: bool) {
        if is_moving {
            self.moving.insert(filter);
        } else if !self.moving.is_empty() {
            self.moving.remove(&filter);
        }
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
    pub(super) fn empty_tables(&mut self, view: &FilterView, expansion: Expansion) -> Tables {
        Tables::new(self.next_epoch(), &view.spec, view.layout, expansion)
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
