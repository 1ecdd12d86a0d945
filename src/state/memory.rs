//! The memory account: how much memory the state takes, and the most that a command can make it ask for. With it, a command is refused
//! before it is logged if its memory can't be had. `apply` itself never looks at it.

use super::imports::record_bytes;
use super::ledger::Ledger;
use super::machine::{FilterState, SWEEP_MAX, State};
use super::staging::{REPEATED_FOR_EACH, Staging, TAKEN_OVER_BESIDE};
use super::{events, staging};
use crate::domain::{Chunk, Command, Ending, FilterId, ImageSection, ImportMode, Raise, Target};
use crate::filter::MemoryNeed;
use crate::paged::Numbers;
use std::collections::BTreeMap;
use std::ops::AddAssign;

/// What the account has to know of commands that were admitted, but not applied yet.
#[derive(Debug, Default)]
pub struct Waiting {
    filters: BTreeMap<FilterId, WaitingHere>,
    commands: u64,
    /// The answer to some command will be stored.
    keyed: bool,
    /// Some import may begin to catch up: from then on, holds that run out are kept for it.
    catches_up: bool,
}

/// What the account has to know of such commands to one filter.
#[derive(Debug, Default)]
struct WaitingHere {
    demand: Demand,
    /// A command will replace the filter's tables: what comes after that can't be judged yet.
    reshaped: bool,
}

/// The most that commands can do to one filter, as far as it may take memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Demand {
    /// Items added to the live tables.
    items: u64,
    /// Copies removed from them.
    removes: u64,
    /// Items added to the tables that an import builds aside, and changes repeated in them.
    staged: u64,
    /// Changes kept for that import.
    changes: u64,
    /// Codes that become held or redeemed.
    uses: u64,
}

impl AddAssign for Demand {
    fn add_assign(&mut self, other: Self) {
        self.items += other.items;
        self.removes += other.removes;
        self.staged += other.staged;
        self.changes += other.changes;
        self.uses += other.uses;
    }
}

impl Waiting {
    /// Whether the need of a command can't be judged until the waiting ones are applied.
    pub fn must_be_applied_before(&self, command: &Command) -> bool {
        let target = command.target().and_then(|Target(filter)| self.filters.get(&filter));
        target.is_some_and(|waiting| {
            waiting.reshaped
                // These depend on the tables and on what they hold.
                || matches!(command, Command::Clear { .. } | Command::Update { capacity: Some(_), .. })
        })
    }

    /// Whether the need of later commands depends on none that waits.
    pub fn is_empty(&self) -> bool {
        self.filters.is_empty()
    }

    fn of(&self, filter: FilterId) -> Demand {
        self.filters.get(&filter).map_or_else(Demand::default, |waiting| waiting.demand)
    }

    /// Whether the filter of a command that clears it is still freeing much of what the last one cleared.
    pub fn has_to_move_first(state: &State, command: &Command) -> bool {
        matches!(command, Command::Clear { .. })
            && targeted(state, command).is_some_and(|(_, filter)| filter.tables.filter.has_much_to_sweep())
    }

    /// The most memory that a command can make the state ask for after the waiting ones are applied.
    pub fn need_of(&self, state: &State, command: &Command, is_keyed: bool) -> MemoryNeed {
        let mut need = self.need_of_command(state, command);
        if is_keyed {
            need += MemoryNeed::other(state.records.growth_bytes(command, self.keyed));
        }
        if state.shared.totals.catching_up > 0 || self.catches_up {
            let swept = swept_after(state, self.commands + 1) - swept_after(state, self.commands);
            need += MemoryNeed::other(swept * staging::KEPT_CHANGE_BYTES);
        }
        need
    }

    fn need_of_command(&self, state: &State, command: &Command) -> MemoryNeed {
        if let Some(need) = memory_of_something_new(command) {
            return need;
        }
        if matches!(command, Command::TurnBack) {
            return turning_back(state);
        }
        let Some((id, filter)) = targeted(state, command) else { return MemoryNeed::default() };
        let before = self.of(id);
        let mut all = before;
        all += filter.demand(command);
        let mut need = filter.growth(&all).beyond(&filter.growth(&before));
        match (command, &filter.staging) {
            (Command::Clear { .. }, staging) => {
                need += filter.tables.filter.clearing();
                if staging.as_ref().is_some_and(|staging| staging.is_catching_up()) {
                    need += MemoryNeed::table(filter.view.layout.memory_bytes());
                }
            }
            (Command::Update { capacity: Some(Raise { layout, .. }), .. }, staging)
                if layout.check(filter.view.spec.mode).is_ok() =>
            {
                let staged = staging.as_ref().map(|staging| &staging.tables);
                for tables in [Some(&filter.tables), staged].into_iter().flatten() {
                    need += tables.filter.tables().raising(layout).unwrap_or_default();
                }
            }
            (Command::ImportBegin { mode, import, owner, .. }, _) => {
                need += MemoryNeed::other(record_bytes(import, owner, &filter.view.name));
                if *mode == ImportMode::Replace {
                    need += MemoryNeed::table(filter.view.layout.memory_bytes());
                }
            }
            (Command::ImportLines { errors, .. }, _) => {
                need += MemoryNeed::other(size_of_val(errors.as_slice()) as u64);
            }
            (Command::ImportEnd { ending: Ending::Whole { warnings, .. }, entries_max, .. }, staging) => {
                need += MemoryNeed::other(size_of_val(warnings.as_slice()) as u64);
                if let Some(staging) = staging {
                    let (entries_max, swept) =
                        (u64::from(*entries_max).max(1), swept_after(state, self.commands + 1));
                    let repeated = entries_max.min(staging.changes.len() + before.changes + swept);
                    need += filter.catching_up(staging, &before, entries_max, repeated);
                }
            }
            (Command::Redeem { reference, .. }, _) => {
                need += MemoryNeed::other(reference.as_str().len() as u64);
            }
            (Command::Remove { .. } | Command::Replace { .. }, _) if filter.may_be_emptied(&all) => {
                need += filter.tables.filter.clearing();
            }
            _ => {}
        }
        need
    }

    /// Adds a command that was admitted to the waiting ones.
    pub fn note(&mut self, state: &State, command: &Command, is_keyed: bool) {
        self.keyed |= is_keyed;
        self.commands += 1;
        self.catches_up |= matches!(command, Command::ImportEnd { ending: Ending::Whole { .. }, .. });
        if let Command::Create { id, .. } = command {
            self.filters.entry(*id).or_default().reshaped = true;
        }
        let Some((id, filter)) = targeted(state, command) else { return };
        let demand = filter.demand(command);
        let is_reshaping = matches!(
            command,
            Command::Clear { .. }
                | Command::ImportBegin { .. }
                | Command::ImportEnd { .. }
                | Command::Update { capacity: Some(_), .. }
        ) || demand.removes > 0 && {
            let mut all = self.of(id);
            all += demand;
            filter.may_be_emptied(&all)
        };
        if demand != Demand::default() || is_reshaping {
            let here = self.filters.entry(id).or_default();
            here.demand += demand;
            here.reshaped |= is_reshaping;
        }
    }
}

/// Maximum number of holds, of any filter, that this number of commands expires before they are executed.
fn swept_after(state: &State, commands: u64) -> u64 {
    (commands * SWEEP_MAX as u64).min(state.shared.totals.holds)
}

/// The most memory that turning the time back can make the state ask for: in open pools, codes come back whose holds ended too soon.
fn turning_back(state: &State) -> MemoryNeed {
    let mut need = MemoryNeed::default();
    for filter in state.filters.values().filter(|filter| filter.view.spec.stock.is_some()) {
        let ended = filter.view.ledger.read().len() as u64;
        need += filter.growth(&Demand { items: ended, uses: ended, ..Demand::default() });
    }
    need
}

fn targeted<'a>(state: &'a State, command: &Command) -> Option<(FilterId, &'a FilterState)> {
    let Target(id) = command.target()?;
    Some((id, state.filters.get(&id)?))
}

/// The most memory that a command can ask for which is about no filter that is there; none if it is about one.
fn memory_of_something_new(command: &Command) -> Option<MemoryNeed> {
    match command {
        // What can't be created is rejected, and takes none.
        Command::Create { kind, spec, layout, .. } if !spec.fits(*kind, layout) => {
            Some(MemoryNeed::default())
        }
        Command::Create { layout, .. } => Some(MemoryNeed::table(layout.memory_bytes())),
        Command::PutLineUp { name, line_up } => Some(MemoryNeed::other(line_up.memory_bytes(name))),
        Command::Configure(settings) => {
            let is_on = settings.events_retention_seconds > 0;
            Some(MemoryNeed::other(if is_on { events::FIXED_BYTES } else { 0 }))
        }
        Command::ImageBegin { head, .. } => Some(head.tables.memory().unwrap_or_default()),
        Command::ImagePart { part, .. } => {
            let bytes = |Chunk(chunk): &Chunk| match part.section {
                ImageSection::Tables => 0,
                // Those of redemptions that stand are counted twice until the image is complete.
                ImageSection::Ordinals => 2 * Numbers::loading_bytes(chunk),
                ImageSection::Redemptions => Ledger::loading_bytes(chunk),
            };
            Some(MemoryNeed::other(part.chunks.iter().map(bytes).sum()))
        }
        _ => None,
    }
}

impl FilterState {
    /// The most that a command can do to the filter. What clearing it or ending an import takes is not included.
    fn demand(&self, command: &Command) -> Demand {
        let mut demand = Demand::default();
        match command {
            Command::Insert { digests, revive, .. } => {
                let items = digests.0.len() as u64;
                demand.items = items;
                demand.changes = items * if *revive { 2 } else { 1 };
            }
            // Lines go to the staged tables if these are the import's, and to the live ones otherwise.
            Command::ImportLines { digests, import, .. } => {
                let items = digests.0.len() as u64;
                match &self.staging {
                    Some(staging) if staging.import == *import => demand.staged = items,
                    _ => (demand.items, demand.changes) = (items, items),
                }
            }
            Command::Remove { digests, all, .. } => {
                let items = digests.0.len() as u64;
                demand.removes = if *all { items * self.tables.filter.copies_max() } else { items };
                // Each item may also end a hold.
                demand.changes = 2 * items;
            }
            Command::Replace { from, to, .. } => {
                demand.items = to.0.len() as u64;
                demand.removes = from.0.len() as u64;
                demand.changes = demand.items + 2 * demand.removes;
            }
            Command::Redeem { .. } => {
                (demand.changes, demand.uses) = (2, 1);
                // In an open pool it adds the code.
                demand.items = u64::from(self.view.spec.stock.is_some());
            }
            Command::Confirm { .. } | Command::Cancel { .. } => demand.changes = 2,
            _ => {}
        }
        match &self.staging {
            None => demand.changes = 0,
            Some(staging) if staging.is_catching_up() => demand.staged += demand.changes * REPEATED_FOR_EACH,
            Some(_) => {}
        }
        demand
    }

    /// The most memory that such demand can make the filter ask for.
    fn growth(&self, demand: &Demand) -> MemoryNeed {
        let mut need = self.tables.filter.tables().growth(demand.items);
        if demand.uses > 0 {
            need += MemoryNeed::other(Ledger::growth_bytes(demand.uses));
        }
        if let Some(staging) = &self.staging {
            need += MemoryNeed::other(demand.changes * staging::KEPT_CHANGE_BYTES);
            need += staging.tables.filter.tables().growth(demand.staged);
        }
        need
    }

    /// The most memory that copying so many codes and repeating so many changes can ask for after the waiting commands are applied.
    fn catching_up(&self, staging: &Staging, waiting: &Demand, codes_max: u64, repeated: u64) -> MemoryNeed {
        let (held, redeemed) = self.tables.used();
        let taken_over = (codes_max + TAKEN_OVER_BESIDE).min(held + redeemed + waiting.uses);
        let staged = taken_over + repeated;
        let from_empty = staging.tables.filter.tables().growth_from_empty(staged);
        if staging.cleared {
            return from_empty;
        }
        let mut all = *waiting;
        all += Demand { staged, ..Demand::default() };
        let mut need = self.growth(&all).beyond(&self.growth(waiting));
        // What is repeated may empty the staged tables, which then start over.
        if repeated * staging.tables.filter.copies_max() >= staging.tables.filter.items() {
            need += from_empty.beyond(&need).passing();
        }
        need
    }

    /// Whether such demand may remove all items. Then the tables start over.
    fn may_be_emptied(&self, demand: &Demand) -> bool {
        let items = self.tables.filter.items();
        demand.removes >= items && items + demand.items > 0
    }
}
