//! The memory account: what the state takes, and the most that a command can make it ask for, so that it can be refused
//! before it is logged. `apply` knows nothing of it.

use super::imports::record_bytes;
use super::staging::{REPEATED_FOR_EACH, Staging};
use super::{Bearer, State, kept, ledger};
use crate::domain::{Command, FilterId, ImportMode, Target};
use crate::filter::MemoryNeed;
use std::collections::BTreeMap;

/// Commands that were admitted but not applied yet, as far as later ones depend on them.
#[derive(Debug, Default)]
pub struct Waiting {
    filters: BTreeMap<FilterId, Items>,
    /// Some command will have its answer stored.
    keyed: bool,
}

/// What waits to come into one filter.
#[derive(Debug, Default)]
struct Items {
    live: u64,
    staged: u64,
    /// Its tables will be others.
    reshaped: bool,
}

impl Waiting {
    /// Whether what a command needs can only be told once those that wait are applied.
    pub fn must_be_applied_before(&self, command: &Command) -> bool {
        let target = command.target().and_then(|Target(filter)| self.filters.get(&filter));
        target.is_some_and(|items| items.reshaped)
    }

    /// Whether nothing waits that later commands depend on.
    pub fn is_empty(&self) -> bool {
        self.filters.is_empty()
    }

    fn items(&mut self, filter: FilterId) -> &mut Items {
        self.filters.entry(filter).or_default()
    }

    fn of(&self, filter: FilterId) -> (u64, u64) {
        self.filters.get(&filter).map_or((0, 0), |items| (items.live, items.staged))
    }
}

impl State {
    /// Bytes of all tables, those that only a running snapshot wants with them.
    pub fn tables_bytes(&self) -> u64 {
        self.tables_bytes + self.snapshot.tables_bytes()
    }

    /// Bytes of redemptions, stored answers, records of imports and changes kept for them, about.
    pub fn records_bytes(&self) -> u64 {
        let redemptions_bytes = self.redemptions * ledger::REDEMPTION_BYTES + self.references_bytes;
        let imports_bytes =
            self.view.imports.read().memory_bytes() + self.kept_changes * kept::KEPT_CHANGE_BYTES;
        redemptions_bytes + self.records.memory_bytes() + imports_bytes
    }

    /// The most memory that a command can make the state ask for, once those that wait are applied.
    pub fn memory_needed(&self, command: &Command, is_keyed: bool, waiting: &Waiting) -> MemoryNeed {
        let mut need = self.memory_of(command, waiting);
        if is_keyed {
            need += MemoryNeed::other(self.records.growth_bytes(command, waiting.keyed));
        }
        need
    }

    fn memory_of(&self, command: &Command, waiting: &Waiting) -> MemoryNeed {
        if let Command::Create { layout, .. } = command {
            return MemoryNeed::table(layout.memory_bytes());
        }
        let Some((filter, bearer)) = self.targeted(command) else { return MemoryNeed::default() };
        let (live, staged) = waiting.of(filter);
        let mut need = bearer.tables.growth_after(live, items_of(command));
        if let Some(staging) = &bearer.staging {
            need += staging.keeping(staged, changes_of(command));
        }
        need += MemoryNeed::other(match command {
            Command::ImportBegin { import, owner, .. } => record_bytes(import, owner, &bearer.view.name),
            Command::ImportLines { errors, .. } => size_of_val(errors.as_slice()) as u64,
            _ => 0,
        });
        match (command, &bearer.staging) {
            (Command::Clear { .. }, staging) => {
                // It takes back more than it asks for, but only afterwards.
                need += bearer.tables.clearing().passing();
                if staging.as_ref().is_some_and(Staging::is_catching_up) {
                    need += MemoryNeed::table(bearer.view.layout.memory_bytes());
                }
            }
            (Command::ImportBegin { mode: ImportMode::Replace, .. }, _) => {
                need += MemoryNeed::table(bearer.view.layout.memory_bytes());
            }
            // Which of the two the lines go to depends on the import.
            (Command::ImportLines { digests, .. }, Some(staging)) => {
                need += staging.tables.growth_after(staged, digests.0.len() as u64);
            }
            (Command::ImportEnd { complete: true, entries_max, .. }, Some(staging)) => {
                need += staging.catching_up(staged, &bearer.tables, u64::from(*entries_max));
            }
            (Command::Redeem { reference, .. }, _) => {
                need += MemoryNeed::other(ledger::REDEMPTION_BYTES + reference.as_str().len() as u64);
            }
            _ => {}
        }
        need
    }

    /// Notes that a command was admitted.
    pub fn note_waiting(&self, command: &Command, is_keyed: bool, waiting: &mut Waiting) {
        waiting.keyed |= is_keyed;
        if let Command::Create { id, .. } = command {
            waiting.items(*id).reshaped = true;
        }
        let Some((filter, bearer)) = self.targeted(command) else { return };
        let (items, changes) = (items_of(command), changes_of(command));
        let is_reshaping = matches!(
            command,
            Command::Clear { .. } | Command::ImportBegin { .. } | Command::ImportEnd { .. }
        );
        if items > 0 || changes > 0 || is_reshaping {
            let waiting = waiting.items(filter);
            waiting.live += items;
            waiting.reshaped |= is_reshaping;
            if bearer.staging.is_some() {
                waiting.staged += items + changes * REPEATED_FOR_EACH;
            }
        }
    }

    fn targeted(&self, command: &Command) -> Option<(FilterId, &Bearer)> {
        let Target(filter) = command.target()?;
        Some((filter, self.filters.get(&filter)?))
    }
}

/// Items that a command may put into the live tables.
fn items_of(command: &Command) -> u64 {
    match command {
        Command::Insert { digests, .. } | Command::ImportLines { digests, .. } => digests.0.len() as u64,
        Command::Replace { to, .. } => to.0.len() as u64,
        _ => 0,
    }
}

/// Changes that a command may have kept for an import: codes that it revives or whose holds it ends count besides.
fn changes_of(command: &Command) -> u64 {
    match command {
        Command::Insert { digests, .. } | Command::Remove { digests, .. } => 2 * digests.0.len() as u64,
        Command::ImportLines { digests, .. } => digests.0.len() as u64,
        Command::Replace { to, .. } => 4 * to.0.len() as u64,
        Command::Redeem { .. } | Command::Confirm { .. } | Command::Cancel { .. } => 2,
        _ => 0,
    }
}
