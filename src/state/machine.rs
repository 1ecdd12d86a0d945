//! The state machine's data: every filter, what all filters share, and the answers kept for repeated requests.

use super::epoch::Epoch;
use super::events::{Events, FreshEvents};
use super::idempotency::Records;
use super::running_snapshot::RunningSnapshot;
use super::staging::Staging;
use super::tables::Tables;
use super::view::{Catalog, FilterView, View};
use crate::domain::{
    FilterChange, FilterId, Happened, Redemption, RedemptionId, Seq, Settings, Status, Timestamp,
};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The most holds that one entry expires, and the most ended redemptions, stored answers and broken imports that it forgets: no
/// single command pays for a crowd.
pub(super) const SWEEP_MAX: usize = 1_024;

/// The state machine: every campaign and coupon, their redemptions, and the answers kept for repeated requests.
///
/// Invariants:
/// - The catalog names exactly the filters in `filters`. Line-ups lie in the catalog alone.
/// - A code is held or redeemed exactly while it has a redemption in that status, but for codes that were redeemed so long ago
///   that the redemption is forgotten.
/// - `holds` has every held redemption, `ended` every other one. Both may also have redemptions of deleted filters.
pub struct State {
    pub(super) applied: Seq,
    pub(super) filters: BTreeMap<FilterId, FilterState>,
    pub(super) records: Records,
    pub(super) shared: Shared,
}

/// One campaign or coupon, as the writer sees it.
pub(super) struct FilterState {
    pub(super) view: Arc<FilterView>,
    pub(super) tables: Tables,
    /// What an import with `mode=replace` builds aside, if one does.
    pub(super) staging: Option<Staging>,
}

/// What all filters share.
pub(super) struct Shared {
    /// The latest time that an entry has told.
    pub(super) now: Timestamp,
    pub(super) settings: Settings,
    /// How many epochs have been given.
    pub(super) epochs: u64,
    /// Held redemptions by the time at which they expire.
    pub(super) holds: BTreeSet<(Timestamp, RedemptionId, FilterId)>,
    /// All other redemptions by the time of their last change.
    pub(super) ended: BTreeSet<(Timestamp, RedemptionId, FilterId)>,
    pub(super) redemptions: u64,
    pub(super) references_bytes: u64,
    pub(super) tables_bytes: u64,
    /// Changes kept for all imports that build aside.
    pub(super) kept_changes: u64,
    /// Imports that are catching up.
    pub(super) catching_up: u64,
    /// Memory of all line-ups.
    pub(super) line_ups_bytes: u64,
    /// Holds that have run out since this state was made: for the metrics, not part of the image.
    pub(super) holds_expired: u64,
    pub(super) catalog: Catalog,
    /// Readers don't have the catalog as it is now.
    pub(super) catalog_changed: bool,
    pub(super) view: View,
    pub(super) snapshot: RunningSnapshot,
    pub(super) events: Events,
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
            holds: BTreeSet::new(),
            ended: BTreeSet::new(),
            redemptions: 0,
            references_bytes: 0,
            tables_bytes: 0,
            kept_changes: 0,
            catching_up: 0,
            line_ups_bytes: 0,
            holds_expired: 0,
            catalog: Catalog::default(),
            catalog_changed: false,
            view: View::default(),
            snapshot: RunningSnapshot::default(),
            events: Events::new(),
        };
        shared.configure(Settings::default());
        Self { applied: Seq(0), filters: BTreeMap::new(), records: Records::default(), shared }
    }

    /// The number of the last entry applied.
    pub fn applied(&self) -> Seq {
        self.applied
    }

    /// The latest time that an entry has told.
    pub fn now(&self) -> Timestamp {
        self.shared.now
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

    /// Changes kept for the import that builds aside.
    pub(super) fn kept_changes(&self) -> u64 {
        self.staging.as_ref().map_or(0, |staging| staging.changes.len())
    }

    /// Whether an import builds aside, and is catching up.
    pub(super) fn is_catching_up(&self) -> bool {
        self.staging.as_ref().is_some_and(Staging::is_catching_up)
    }
}

impl Shared {
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
        Tables::new(self.next_epoch(), view.spec.mode, view.layout, view.spec.growth)
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

    /// Puts a redemption into the queue that its status belongs to.
    pub(super) fn enqueue(&mut self, filter: FilterId, redemption: &Redemption) {
        match (redemption.status, redemption.expires_at) {
            (Status::Held, Some(expires_at)) => self.holds.insert((expires_at, redemption.id, filter)),
            _ => self.ended.insert((redemption.changed_at, redemption.id, filter)),
        };
    }

    /// Takes a redemption out of its queue.
    pub(super) fn dequeue(&mut self, filter: FilterId, redemption: &Redemption) {
        match (redemption.status, redemption.expires_at) {
            (Status::Held, Some(expires_at)) => self.holds.remove(&(expires_at, redemption.id, filter)),
            _ => self.ended.remove(&(redemption.changed_at, redemption.id, filter)),
        };
    }
}
