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
mod queue;
mod slab;
mod staging;
mod tables;
mod view;

pub use idempotency::FIXED_BYTES as IDEMPOTENCY_FIXED_BYTES;
pub use image::{RestoreStateError, Section, SectionId, Sections, SnapshotImage};
pub use ledger::{Change, RedemptionPage, RedemptionQuery};
pub use view::{FilterView, View};

use crate::domain::{
    Command, FilterId, ImportMode, Redemption, RedemptionId, Seq, Settings, Status, Timestamp,
};
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
    tables_bytes: u64,
    /// Changes kept for all imports that build aside.
    kept_changes: u64,
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
            tables_bytes: 0,
            kept_changes: 0,
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

    /// Bytes of all tables.
    pub fn tables_bytes(&self) -> u64 {
        self.tables_bytes
    }

    /// Bytes of redemptions, stored answers, records of imports and changes kept for them, about.
    pub fn records_bytes(&self) -> u64 {
        let imports = self.view.imports.read().memory_bytes();
        let kept_bytes = self.kept_changes * kept::KEPT_CHANGE_BYTES;
        self.redemptions * ledger::REDEMPTION_BYTES + self.records.memory_bytes() + imports + kept_bytes
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

    /// The most memory that a command can make the state ask for, in bytes, so that it can be refused before
    /// it is logged.
    pub fn memory_needed(&self, command: &Command) -> u64 {
        let bearer = command.target().and_then(|target| self.filters.get(&target.0));
        match (command, bearer) {
            (Command::Create { layout, .. }, _) => layout.memory_bytes(),
            (Command::Insert { digests, .. }, Some(bearer)) => {
                bearer.growth_bytes(digests.0.len()) + bearer.kept_bytes(digests.0.len())
            }
            (Command::Replace { to, .. }, Some(bearer)) => {
                bearer.growth_bytes(to.0.len()) + bearer.kept_bytes(2 * to.0.len())
            }
            (Command::Remove { digests, .. }, Some(bearer)) => bearer.kept_bytes(digests.0.len()),
            (Command::Clear { .. }, Some(bearer)) if bearer.is_catching_up() => {
                bearer.view.layout.memory_bytes()
            }
            (Command::ImportBegin { mode: ImportMode::Replace, .. }, Some(bearer)) => {
                bearer.view.layout.memory_bytes()
            }
            (Command::ImportLines { import, digests, .. }, Some(bearer)) => match &bearer.staging {
                Some(staging) if staging.import == *import => {
                    staging.tables.growth_bytes(digests.0.len() as u64)
                }
                _ => bearer.growth_bytes(digests.0.len()) + bearer.kept_bytes(digests.0.len()),
            },
            (Command::ImportEnd { entries_max, .. }, Some(bearer)) => {
                bearer.catch_up_bytes(u64::from(*entries_max))
            }
            (Command::Redeem { reference, .. }, Some(bearer)) => {
                ledger::REDEMPTION_BYTES + reference.as_str().len() as u64 + bearer.kept_state_bytes()
            }
            (Command::Confirm { .. } | Command::Cancel { .. }, Some(bearer)) => bearer.kept_state_bytes(),
            _ => 0,
        }
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

impl Bearer {
    fn growth_bytes(&self, items: usize) -> u64 {
        self.tables.growth_bytes(items as u64)
    }

    fn is_catching_up(&self) -> bool {
        self.staging.as_ref().is_some_and(Staging::is_catching_up)
    }

    /// What so many changes ask for beside the filter's own tables.
    fn kept_bytes(&self, changes: usize) -> u64 {
        self.staging.as_ref().map_or(0, |staging| staging.kept_bytes(changes as u64))
    }

    /// What a code that is held, used or given back asks for.
    fn kept_state_bytes(&self) -> u64 {
        if self.is_catching_up() { self.kept_bytes(1) } else { 0 }
    }

    /// What an import asks for that catches up by so many entries.
    fn catch_up_bytes(&self, entries_max: u64) -> u64 {
        let Some(staging) = &self.staging else { return 0 };
        let empty = if staging.cleared { self.view.layout.memory_bytes() } else { 0 };
        empty + staging.catch_up_bytes(&self.tables, entries_max)
    }
}
