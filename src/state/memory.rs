//! The memory account: what the state takes, and the most that a command can make it ask for, so that it can be refused
//! before it is logged. `apply` knows nothing of it.

use super::imports::record_bytes;
use super::staging::{REPEATED_FOR_EACH, Staging, TAKEN_OVER_BESIDE};
use super::{Bearer, SWEEP_MAX, State, kept, ledger};
use crate::domain::{Command, FilterId, ImportMode, Target};
use crate::filter::MemoryNeed;
use std::collections::BTreeMap;
use std::ops::AddAssign;

/// Commands that were admitted but not applied yet, as far as later ones depend on them.
#[derive(Debug, Default)]
pub struct Waiting {
    filters: BTreeMap<FilterId, WaitingHere>,
    commands: u64,
    /// Some command will have its answer stored.
    keyed: bool,
    /// Some import may begin to catch up: from then on, holds that run out are kept for it.
    catches_up: bool,
}

/// What waits for one filter.
#[derive(Debug, Default)]
struct WaitingHere {
    demand: Demand,
    /// Its tables will be others.
    reshaped: bool,
}

/// The most that commands do to one filter, as far as it can take memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Demand {
    /// Items that come into the live tables.
    items: u64,
    /// Copies that leave them.
    removes: u64,
    /// Items that come into the tables that an import builds aside.
    staged: u64,
    /// Copies that leave those.
    unstaged: u64,
    /// Changes that are kept for it.
    changes: u64,
    /// Of them, those that are repeated.
    repeated: u64,
    /// Codes that become held or used.
    uses: u64,
}

impl AddAssign for Demand {
    fn add_assign(&mut self, other: Self) {
        self.items += other.items;
        self.removes += other.removes;
        self.staged += other.staged;
        self.unstaged += other.unstaged;
        self.changes += other.changes;
        self.repeated += other.repeated;
        self.uses += other.uses;
    }
}

impl Waiting {
    /// Whether what a command needs can only be told once those that wait are applied.
    pub fn must_be_applied_before(&self, command: &Command) -> bool {
        let target = command.target().and_then(|Target(filter)| self.filters.get(&filter));
        target.is_some_and(|waiting| {
            // What is used stays when a filter is cleared.
            waiting.reshaped || matches!(command, Command::Clear { .. }) && waiting.demand.uses > 0
        })
    }

    /// Whether nothing waits that later commands depend on.
    pub fn is_empty(&self) -> bool {
        self.filters.is_empty()
    }

    fn of(&self, filter: FilterId) -> Demand {
        self.filters.get(&filter).map_or_else(Demand::default, |waiting| waiting.demand)
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
        if self.catching_up > 0 || waiting.catches_up {
            let swept = self.swept_after(waiting.commands + 1) - self.swept_after(waiting.commands);
            need += MemoryNeed::other(swept * kept::KEPT_CHANGE_BYTES);
        }
        need
    }

    /// Holds, whosever they are, that can run out before the last of so many commands.
    fn swept_after(&self, commands: u64) -> u64 {
        (commands * SWEEP_MAX as u64).min(self.holds.len() as u64)
    }

    fn memory_of(&self, command: &Command, waiting: &Waiting) -> MemoryNeed {
        if let Command::Create { layout, .. } = command {
            return MemoryNeed::table(layout.memory_bytes());
        }
        let Some((filter, bearer)) = self.targeted(command) else { return MemoryNeed::default() };
        let before = waiting.of(filter);
        let mut all = before;
        all += bearer.demand(command);
        let mut need = bearer.growth(&all).beyond(&bearer.growth(&before));
        match (command, &bearer.staging) {
            (Command::Clear { .. }, staging) => {
                // It takes back more than it asks for, but only afterwards.
                need += bearer.tables.clearing().passing();
                if staging.as_ref().is_some_and(Staging::is_catching_up) {
                    need += MemoryNeed::table(bearer.view.layout.memory_bytes());
                }
            }
            (Command::ImportBegin { mode, import, owner, .. }, _) => {
                need += MemoryNeed::other(record_bytes(import, owner, &bearer.view.name));
                if *mode == ImportMode::Replace {
                    need += MemoryNeed::table(bearer.view.layout.memory_bytes());
                }
            }
            (Command::ImportLines { errors, .. }, _) => {
                need += MemoryNeed::other(size_of_val(errors.as_slice()) as u64);
            }
            (Command::ImportEnd { complete: true, entries_max, .. }, Some(staging)) => {
                let (entries_max, swept) =
                    (u64::from(*entries_max).max(1), self.swept_after(waiting.commands + 1));
                let repeated = entries_max.min(staging.changes.len() + before.changes + swept);
                need += bearer.catching_up(staging, &before, entries_max, repeated);
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
        waiting.commands += 1;
        waiting.catches_up |= matches!(command, Command::ImportEnd { complete: true, .. });
        if let Command::Create { id, .. } = command {
            waiting.filters.entry(*id).or_default().reshaped = true;
        }
        let Some((filter, bearer)) = self.targeted(command) else { return };
        let demand = bearer.demand(command);
        let is_reshaping = matches!(
            command,
            Command::Clear { .. } | Command::ImportBegin { .. } | Command::ImportEnd { .. }
        );
        if demand != Demand::default() || is_reshaping {
            let here = waiting.filters.entry(filter).or_default();
            here.demand += demand;
            here.reshaped |= is_reshaping;
        }
    }

    fn targeted(&self, command: &Command) -> Option<(FilterId, &Bearer)> {
        let Target(filter) = command.target()?;
        Some((filter, self.filters.get(&filter)?))
    }
}

impl Bearer {
    /// The most that a command does to the filter; what it takes to clear it and to end an import is not in it.
    fn demand(&self, command: &Command) -> Demand {
        let mut demand = Demand::default();
        match command {
            Command::Insert { digests, revive, .. } => {
                let items = digests.0.len() as u64;
                demand.items = items;
                demand.changes = items * if *revive { 2 } else { 1 };
            }
            // Which of the two the lines go to depends on the import.
            Command::ImportLines { digests, import, .. } => {
                let items = digests.0.len() as u64;
                match &self.staging {
                    Some(staging) if staging.import == *import => demand.staged = items,
                    _ => (demand.items, demand.changes) = (items, items),
                }
            }
            Command::Remove { digests, all, .. } => {
                let items = digests.0.len() as u64;
                demand.removes = if *all { items * self.tables.copies_max() } else { items };
                // Holds are ended besides.
                demand.changes = 2 * items;
            }
            Command::Replace { from, to, .. } => {
                demand.items = to.0.len() as u64;
                demand.removes = from.0.len() as u64;
                demand.changes = demand.items + 2 * demand.removes;
            }
            Command::Redeem { .. } => (demand.changes, demand.uses) = (2, 1),
            Command::Confirm { .. } | Command::Cancel { .. } => demand.changes = 2,
            _ => {}
        }
        match &self.staging {
            None => demand.changes = 0,
            Some(staging) if staging.is_catching_up() => demand.repeated = demand.changes * REPEATED_FOR_EACH,
            Some(_) => {}
        }
        demand
    }

    /// The most memory that so much can make the filter ask for.
    fn growth(&self, demand: &Demand) -> MemoryNeed {
        let mut need = self.tables.growth(demand.items, demand.removes);
        if let Some(staging) = &self.staging {
            need += MemoryNeed::other(demand.changes * kept::KEPT_CHANGE_BYTES);
            let removes = demand.unstaged + demand.repeated * staging.tables.copies_max();
            need += staging.tables.growth(demand.staged + demand.repeated, removes);
        }
        need
    }

    /// The most memory that it can ask for to take over so many codes and repeat so many changes, once what waits is applied.
    fn catching_up(&self, staging: &Staging, waiting: &Demand, codes_max: u64, repeated: u64) -> MemoryNeed {
        let (held, redeemed) = self.tables.used();
        let taken_over = (codes_max + TAKEN_OVER_BESIDE).min(held + redeemed + waiting.uses);
        let (staged, unstaged) = (taken_over + repeated, repeated * staging.tables.copies_max());
        if staging.cleared {
            return staging.tables.growth_from_empty(staged, unstaged);
        }
        let mut all = *waiting;
        all += Demand { staged, unstaged, ..Demand::default() };
        self.growth(&all).beyond(&self.growth(waiting))
    }
}
