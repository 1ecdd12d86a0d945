//! The deterministic machine: commands in, outcomes out, and the read side that requests look at.
//!
//! [`State::apply`] sees only the state and the entry: no clock, no configuration, no memory size, no
//! randomness, no float, no I/O, no hash-map order. Replaying a log gives the same bytes on any machine.

mod answers;
mod apply;
mod coupons;
mod idempotency;
mod image;
mod importing;
mod imports;
mod kept;
mod ledger;
mod memory;
mod queue;
mod slab;
mod staging;
mod tables;
mod turn_back;
mod view;

pub use idempotency::FIXED_BYTES as IDEMPOTENCY_FIXED_BYTES;
pub use image::{RestoreStateError, Section, SectionId, Sections, SnapshotImage};
pub use ledger::{Change, RedemptionPage, RedemptionQuery};
pub use memory::Waiting;
pub use view::{CodeFound, FilterView, View};

use crate::domain::{FilterId, Redemption, RedemptionId, Seq, Settings, Status, Timestamp};
use idempotency::Records;
use serde::{Deserialize, Serialize};
use staging::Staging;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tables::Tables;
use view::Catalog;

/// Holds that one entry expires at most, and ended redemptions and old answers that it forgets at most, so that
/// no single command pays for a crowd.
const SWEEP_MAX: usize = 1_024;

/// The state machine: every campaign and coupon, their redemptions, and the answers kept for repeated requests.
///
/// Invariants:
/// - `catalog` names exactly the filters in `filters`.
/// - A slot is held or redeemed exactly while a redemption of its code stands, or stood until its retention
///   was over.
/// - `holds` has every held redemption, `ended` every other; entries of deleted filters may linger.
pub struct State {
    applied: Seq,
    now: Timestamp,
    settings: Settings,
    filters: BTreeMap<FilterId, Bearer>,
    /// Epochs that have been given.
    epochs: u64,
    holds: BTreeSet<(Timestamp, RedemptionId, FilterId)>,
    ended: BTreeSet<(Timestamp, RedemptionId, FilterId)>,
    records: Records,
    redemptions: u64,
    references_bytes: u64,
    tables_bytes: u64,
    /// Changes kept for all imports that build aside.
    kept_changes: u64,
    /// Imports that build aside and catch up.
    catching_up: u64,
    /// Holds that have run out since this state was made: told in figures, and no part of the image.
    holds_expired: u64,
    catalog: Catalog,
    catalog_changed: bool,
    view: View,
    snapshot: image::Cursor,
}

/// Tells what has sections of its own in a snapshot from all else that ever had: tables, ledgers, kept writes. A number that a
/// state gives once.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Epoch(pub u64);

/// One filter, for the writer.
struct Bearer {
    view: Arc<FilterView>,
    tables: Tables,
    staging: Option<Staging>,
}

impl Default for State {
    fn default() -> Self {
        Self::new()
    }
}

impl State {
    /// The state before the first entry.
    pub fn new() -> Self {
        let mut state = Self {
            applied: Seq(0),
            now: Timestamp(0),
            settings: Settings::default(),
            filters: BTreeMap::new(),
            epochs: 0,
            holds: BTreeSet::new(),
            ended: BTreeSet::new(),
            records: Records::default(),
            redemptions: 0,
            references_bytes: 0,
            tables_bytes: 0,
            kept_changes: 0,
            catching_up: 0,
            holds_expired: 0,
            catalog: Catalog::default(),
            catalog_changed: false,
            view: View::default(),
            snapshot: image::Cursor::default(),
        };
        state.configure(Settings::default());
        state
    }

    /// The number of the last entry applied.
    pub fn applied(&self) -> Seq {
        self.applied
    }

    /// The latest time that an entry has told.
    pub fn now(&self) -> Timestamp {
        self.now
    }

    /// The settings in force.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Goes by these settings, and shows readers what they have to know of them.
    fn configure(&mut self, settings: Settings) {
        let retention = settings.redemptions_retention_seconds;
        self.view.redemptions_retention.store(retention, Ordering::Relaxed);
        self.settings = settings;
    }

    /// The read side. Filters come and go in it when [`Self::publish`] is called, items at once.
    pub fn view(&self) -> View {
        self.view.clone()
    }

    /// Shows readers the filters that are there now. Cheap when none came, went or was changed.
    pub fn publish(&mut self) {
        if std::mem::take(&mut self.catalog_changed) {
            self.view.publish(self.catalog.clone());
        }
    }

    /// Holds that have run out since this state was made.
    pub fn holds_expired(&self) -> u64 {
        self.holds_expired
    }

    /// Redemptions on record.
    pub fn redemptions(&self) -> u64 {
        self.redemptions
    }

    /// Answers on record.
    pub fn idempotency_records(&self) -> u64 {
        self.records.len()
    }

    /// Bytes of answers: never more than the settings leave room for.
    pub fn idempotency_bytes(&self) -> u64 {
        self.records.memory_bytes()
    }

    /// An epoch that nothing has had before.
    fn next_epoch(&mut self) -> Epoch {
        self.epochs += 1;
        Epoch(self.epochs)
    }

    /// Enters a redemption into the queue that its status belongs to.
    fn enqueue(&mut self, filter: FilterId, redemption: &Redemption) {
        match (redemption.status, redemption.expires_at) {
            (Status::Held, Some(expires_at)) => self.holds.insert((expires_at, redemption.id, filter)),
            _ => self.ended.insert((redemption.changed_at, redemption.id, filter)),
        };
    }

    /// Takes a redemption out of its queue.
    fn dequeue(&mut self, filter: FilterId, redemption: &Redemption) {
        match (redemption.status, redemption.expires_at) {
            (Status::Held, Some(expires_at)) => self.holds.remove(&(expires_at, redemption.id, filter)),
            _ => self.ended.remove(&(redemption.changed_at, redemption.id, filter)),
        };
    }
}
