//! The memory account: the state's memory, and an upper bound of a command's. With it, a command is rejected before it is logged if its
//! memory is not available. `apply` itself never reads it.

use super::agenda::Task;
use super::events;
use super::import_records::record_bytes;
use super::ledger::{KeyedUses, Ledger, Membership};
use super::machine::{FilterState, SWEEP_MAX, State};
use super::staging::{COPIED_BESIDES_MAX, QUEUED_CHANGE_BYTES, REPEATED_FOR_EACH, Staging};
use super::statistics::FilterStatistics;
use crate::domain::{
    Command, Ending, FilterId, ImageBegin, ImageBody, ImageChunk, ImageRecord, ImageSection,
    ImportBegin, ImportEnd, ImportLines, ImportMode, Kind, PutLineUp, Raise, Redeem, Target,
    Timestamp, Update,
};
use cuckood_filter::{Layout, MemoryNeed};
use derive_more::AddAssign;
use std::collections::BTreeMap;

/// Summary of admitted commands that are not applied yet, for the memory account.
#[derive(Debug, Default)]
pub struct WaitingDemand {
    filters: BTreeMap<FilterId, Demand>,
    commands: u64,
    /// Those of them that don't repeat a redemption.
    others: u64,
    /// The outcome of some command will be stored.
    keyed: bool,
}

/// The memory that a command can take after the waiting ones are applied.
#[derive(Debug, Default)]
pub struct Claim {
    /// The most memory that it can make the state ask for.
    pub need: MemoryNeed,
    /// The most that statistics, and which codes are in a pool, can take besides: too little to reject a command that frees memory.
    pub besides: MemoryNeed,
    /// The command frees memory, or repeats a redemption.
    pub is_relief: bool,
    is_repeated: bool,
    /// The filter of the command, and its possible effects there.
    filter: Option<(FilterId, Demand)>,
    keyed: bool,
}

/// Upper bounds of the commands' effects on one filter, where they may take memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, AddAssign)]
struct Demand {
    /// Items added to the live tables.
    items: u64,
    /// Copies removed from them.
    removes: u64,
    /// Items added to staged tables, and changes repeated in them.
    staged: u64,
    /// Changes queued for that import.
    changes: u64,
    /// Codes that become held or redeemed.
    uses: u64,
    /// Those of them that are for a customer.
    customers: u64,
    /// Commands after which other used codes may be in the pool.
    joins: u64,
    /// Commands after which other used codes may have left it.
    withdrawals: u64,
    /// Commands that replace the filter's tables: later ones can't be admitted yet.
    reshapes: u64,
}

impl WaitingDemand {
    /// Returns the memory that a command can take; `None` if that is unknown until the waiting ones are applied. `is_repeated` says that it
    /// [repeats](State::repeats) a redemption.
    pub fn claim(
        &self,
        state: &State,
        command: &Command,
        is_repeated: bool,
        keyed: bool,
    ) -> Option<Claim> {
        let is_relief = command.frees_memory() || is_repeated;
        let mut claim = Claim {
            keyed,
            is_repeated,
            is_relief,
            ..Claim::default()
        };
        let holds = state.shared.totals.holds;
        // The swept filters or holds that the waiting commands don't cover.
        let swept = |all: u64| {
            let swept_after = |commands| all.min(commands * SWEEP_MAX as u64);
            swept_after(self.commands + 1) - swept_after(self.commands)
        };
        let counted = if matches!(command, Command::TurnBack) {
            state.filters.len() as u64
        } else {
            swept(state.shared.agenda.len(Task::Expire)) + u64::from(command.target().is_some())
        };
        claim.besides = MemoryNeed::other(counted * FilterStatistics::GROWTH_BYTES);
        if let Command::Create { id, .. } = command {
            claim.filter = Some((
                *id,
                Demand {
                    reshapes: 1,
                    ..Demand::default()
                },
            ));
        }
        if let Some(Target(id)) = command.target() {
            let waiting = self.filters.get(&id);
            // These depend on the tables and their items.
            let is_dependent = matches!(
                command,
                Command::Clear { .. }
                    | Command::Update(Update {
                        capacity: Some(_),
                        ..
                    })
            );
            if waiting.is_some_and(|waiting| waiting.reshapes > 0 || is_dependent) {
                return None;
            }
            if let Some(filter) = state.filters.get(&id) {
                let waiting = waiting.copied().unwrap_or_default();
                let (need, here) = filter.claim(command, is_repeated, &waiting, holds);
                (claim.need, claim.filter) = (need, Some((id, here)));
                claim.besides += MemoryNeed::other(filter.withdrawing_bytes(command, &waiting));
            }
        } else {
            claim.need = memory_of_something_new(state, command);
        }
        claim.need += MemoryNeed::other(command.annotations_bytes());
        if keyed {
            claim.need += MemoryNeed::other(state.records.growth_bytes(command, self.keyed));
        }
        // Expiring holds are queued for an import that catches up. Whether it already does makes no difference here.
        if state.shared.totals.staged > 0 {
            claim.need += MemoryNeed::other(swept(holds) * QUEUED_CHANGE_BYTES);
        }
        Some(claim)
    }

    /// Whether the need of later commands depends on none that waits.
    pub fn is_empty(&self) -> bool {
        self.filters.is_empty()
    }

    /// Whether a clear must wait because the filter is still freeing most slots of the previous one.
    pub fn must_wait_for_clear(state: &State, command: &Command) -> bool {
        let Command::Clear { target: Target(id) } = command else {
            return false;
        };
        state
            .filters
            .get(id)
            .is_some_and(|filter| filter.tables.filter.has_much_to_sweep())
    }

    /// Whether no waiting command can end a redemption: all of them repeat some.
    pub fn keeps_redemptions(&self) -> bool {
        self.others == 0
    }

    /// Adds a command that was admitted to the waiting ones.
    pub fn add(&mut self, claim: &Claim) {
        self.keyed |= claim.keyed;
        self.commands += 1;
        self.others += u64::from(!claim.is_repeated);
        if let Some((id, new)) = claim.filter
            && new != Demand::default()
        {
            *self.filters.entry(id).or_default() += new;
        }
    }
}

impl State {
    /// Whether a command gets an existing redemption if it is applied at `at`, before any entry that ends one.
    pub fn repeats(&self, command: &Command, at: Timestamp) -> bool {
        let (Command::Redeem(redeem) | Command::RedeemFor { redeem, .. }) = command else {
            return false;
        };
        let Redeem {
            target: Target(filter),
            digest,
            reference,
            ..
        } = redeem;
        let Some(filter) = self.filters.get(filter) else {
            return false;
        };
        let at = at.max(self.shared.now);
        let ledger = filter.view.ledger.read();
        ledger
            .current_for(*digest, reference)
            .is_some_and(|current| current.is_under(reference) && !current.has_run_out(at))
    }

    /// Seconds until the oldest stored outcome is deleted, for a request that has to wait for that.
    pub fn seconds_to_forgotten_record(&self) -> u64 {
        let now = self.shared.now;
        let retention = self.shared.settings.idempotency_retention_seconds;
        let forgotten_at = self.records.oldest().unwrap_or(now).plus_seconds(retention);
        forgotten_at.0.saturating_sub(now.0).div_ceil(1_000).max(1)
    }
}

/// An upper bound of the memory for turning the time back: in open pools, codes of prematurely ended holds are inserted again.
fn turning_back(state: &State) -> MemoryNeed {
    let mut need = MemoryNeed::default();
    for filter in state.filters.values() {
        let ended = filter.view.ledger.read().len() as u64;
        if !filter.view.spec.supply.is_open_pool() {
            need += MemoryNeed::other(filter.view.ledger.read().turning_back_bytes());
            continue;
        }
        need += filter.growth(&Demand {
            items: ended,
            uses: ended,
            customers: ended,
            ..Demand::default()
        });
    }
    need
}

/// The most memory that a command can ask for which is about no filter that is there.
fn memory_of_something_new(state: &State, command: &Command) -> MemoryNeed {
    match command {
        // An invalid filter is rejected, and takes none.
        Command::Create {
            kind, spec, layout, ..
        } if !spec.fits(*kind, layout) => MemoryNeed::default(),
        Command::Create { layout, .. } => MemoryNeed::table(layout.memory_bytes()),
        Command::TurnBack => turning_back(state),
        Command::PutLineUp(PutLineUp { name, line_up, .. }) => {
            MemoryNeed::other(line_up.memory_bytes(name))
        }
        Command::Configure(settings) => {
            let is_on = settings.events_retention_seconds > 0;
            MemoryNeed::other(if is_on { events::FIXED_BYTES } else { 0 })
        }
        Command::ImageBegin(ImageBegin { head, .. }) => head.tables.memory().unwrap_or_default(),
        Command::ImageRecord {
            record:
                ImageRecord {
                    body: ImageBody::Part(part),
                    ..
                },
            ..
        } => {
            let bytes = |ImageChunk(chunk): &ImageChunk| match part.section {
                ImageSection::Tables => 0,
                // Ordinals of current redemptions are counted twice until the image is complete.
                ImageSection::Ordinals => 2 * Ledger::loading_ordinals_bytes(chunk),
                ImageSection::Redemptions => Ledger::loading_bytes(chunk),
                ImageSection::Members | ImageSection::Withdrawn => {
                    Ledger::loading_ordinals_bytes(chunk)
                }
                ImageSection::Uses | ImageSection::Customers => {
                    Ledger::loading_tallies_bytes(chunk)
                }
                ImageSection::Statistics => FilterStatistics::GROWTH_BYTES + chunk.len() as u64,
            };
            MemoryNeed::other(part.chunks.iter().map(bytes).sum())
        }
        // They ask for none, or are about a filter that is there.
        Command::ImageRecord { .. }
        | Command::ImageAbandon { .. }
        | Command::DeleteLineUp { .. }
        | Command::Delete { .. }
        | Command::Advance { .. }
        | Command::Restored { .. }
        | Command::Enable { .. }
        | Command::Update(_)
        | Command::Insert { .. }
        | Command::Remove { .. }
        | Command::Replace { .. }
        | Command::Clear { .. }
        | Command::Redeem(_)
        | Command::RedeemFor { .. }
        | Command::Confirm { .. }
        | Command::Cancel { .. }
        | Command::Forfeit { .. }
        | Command::ImportBegin(_)
        | Command::ImportLines(_)
        | Command::ImportEnd(_) => MemoryNeed::default(),
    }
}

impl FilterState {
    /// An upper bound of the memory of a command after waiting ones with this demand, and its effects on the filter. Up to `holds` expire
    /// before. `is_repeated` says that it gets an existing redemption.
    fn claim(
        &self,
        command: &Command,
        is_repeated: bool,
        before: &Demand,
        holds: u64,
    ) -> (MemoryNeed, Demand) {
        let mut demand = Demand::default();
        let mut need = MemoryNeed::default();
        let table = || MemoryNeed::table(self.view.layout.memory_bytes());
        match command {
            Command::Insert {
                digests, revive, ..
            } => {
                demand.items = digests.0.len() as u64;
                demand.changes = demand.items * if *revive { 2 } else { 1 };
                demand.joins = 1;
            }
            // Lines go to the staged tables if these are the import's, and to the live ones otherwise.
            Command::ImportLines(ImportLines {
                digests,
                import,
                errors,
                ..
            }) => {
                need += MemoryNeed::other(size_of_val(errors.as_slice()) as u64);
                demand.joins = 1;
                let items = digests.0.len() as u64;
                match Staging::is_of(&self.staging, import) {
                    true => demand.staged = items,
                    false => (demand.items, demand.changes) = (items, items),
                }
            }
            Command::Remove { digests, all, .. } => {
                let items = digests.0.len() as u64;
                demand.removes = if *all {
                    items * self.tables.filter.copies_max()
                } else {
                    items
                };
                // Each item may also end a hold.
                demand.changes = 2 * items;
            }
            Command::Replace { from, to, .. } => {
                (demand.items, demand.removes) = (to.0.len() as u64, from.0.len() as u64);
                demand.changes = demand.items + 2 * demand.removes;
                (demand.joins, demand.withdrawals) = (1, 1);
            }
            // It may confirm the hold.
            Command::Redeem(_) | Command::RedeemFor { .. } if is_repeated => demand.changes = 2,
            Command::Redeem(redeem) | Command::RedeemFor { redeem, .. } => {
                need += MemoryNeed::other(Ledger::reference_bytes(&redeem.reference));
                (demand.changes, demand.uses) = (2, 1);
                demand.customers = u64::from(matches!(command, Command::RedeemFor { .. }));
                demand.joins = 1;
                // In an open pool it adds the code.
                demand.items = u64::from(self.view.spec.supply.is_open_pool());
            }
            Command::Confirm { .. } | Command::Cancel { .. } | Command::Forfeit { .. } => {
                demand.changes = 2;
            }
            Command::Clear { .. } => {
                demand.reshapes = 1;
                need += self.tables.filter.clearing();
                if self
                    .staging
                    .as_ref()
                    .is_some_and(|staging| staging.is_catching_up())
                {
                    need += table();
                }
            }
            Command::Update(Update {
                capacity: Some(Raise { layout, .. }),
                ..
            }) => {
                demand.reshapes = 1;
                need += self.raising(layout);
            }
            Command::ImportBegin(ImportBegin {
                mode,
                import,
                owner,
                ..
            }) => {
                demand.reshapes = 1;
                need += MemoryNeed::other(record_bytes(import, owner, &self.view.name));
                if *mode == ImportMode::Replace {
                    need += table();
                }
            }
            Command::ImportEnd(ImportEnd {
                ending,
                entries_max,
                ..
            }) => {
                demand.reshapes = 1;
                if let Ending::Whole { warnings, .. } = ending {
                    need += MemoryNeed::other(size_of_val(warnings.as_slice()) as u64);
                    need += self.catching_up(before, u64::from(*entries_max).max(1), holds);
                    need += self.staged_membership(before);
                }
            }
            // It changes no item, or it is about no filter that is there.
            Command::Update(Update { capacity: None, .. })
            | Command::Configure(_)
            | Command::Create { .. }
            | Command::Delete { .. }
            | Command::Advance { .. }
            | Command::TurnBack
            | Command::PutLineUp(_)
            | Command::DeleteLineUp { .. }
            | Command::Restored { .. }
            | Command::ImageBegin(_)
            | Command::ImageRecord { .. }
            | Command::ImageAbandon { .. }
            | Command::Enable { .. } => {}
        }
        match &self.staging {
            None => demand.changes = 0,
            Some(staging) if staging.is_catching_up() => {
                demand.staged += demand.changes * REPEATED_FOR_EACH
            }
            Some(_) => {}
        }
        let mut all = *before;
        all += demand;
        let mut growth = self.growth(&all).beyond(&self.growth(before));
        growth += need;
        if demand.removes > 0 && self.may_be_emptied(&all) {
            demand.reshapes = 1;
            growth += self.tables.filter.clearing();
        }
        (growth, demand)
    }

    /// The most memory that such demand can make the filter ask for.
    fn growth(&self, demand: &Demand) -> MemoryNeed {
        let mut need = self.tables.filter.tables().growth(demand.items);
        if demand.uses > 0 {
            need += MemoryNeed::other(Ledger::growth_bytes(demand.uses));
            if self.view.spec.supply.has_several_uses() {
                need += MemoryNeed::other(KeyedUses::growth_bytes(demand.uses));
            }
        }
        need += MemoryNeed::other(KeyedUses::growth_bytes(demand.customers));
        if self.view.kind == Kind::Coupon && demand.joins + demand.withdrawals > 0 {
            let ledger = self.view.ledger.read();
            let exceptions = if ledger.membership.is_cleared() {
                demand.joins
            } else {
                demand.withdrawals
            };
            if exceptions > 0 {
                let end = ledger.members_end(demand.uses);
                need += MemoryNeed::other(ledger.membership.growth_bytes(end));
            }
        }
        if demand.joins > 0 && self.staging.as_ref().is_some_and(|it| it.is_catching_up()) {
            need += self.staged_membership(demand);
        }
        if let Some(staging) = &self.staging {
            need += MemoryNeed::other(demand.changes * QUEUED_CHANGE_BYTES);
            need += staging.tables.filter.tables().growth(demand.staged);
        }
        need
    }

    /// An upper bound of the memory for noting which used codes a command that frees memory takes out of the pool.
    fn withdrawing_bytes(&self, command: &Command, before: &Demand) -> u64 {
        if self.view.kind == Kind::Campaign {
            return 0;
        }
        let ledger = self.view.ledger.read();
        if matches!(command, Command::Remove { .. }) && !ledger.membership.is_cleared() {
            let end = ledger.members_end(before.uses);
            return ledger.membership.growth_bytes(end);
        }
        // That of the pool, and of a staged one.
        if matches!(command, Command::Clear { .. }) {
            return 2 * Membership::none_bytes();
        }
        0
    }

    /// An upper bound of the memory of the staged membership, from when the staged tables catch up.
    fn staged_membership(&self, demand: &Demand) -> MemoryNeed {
        let Some(staging) = &self.staging else {
            return MemoryNeed::default();
        };
        if self.view.kind == Kind::Campaign {
            return MemoryNeed::default();
        }
        let end = self.view.ledger.read().members_end(demand.uses);
        let none = Membership::default();
        let before = staging.membership.as_ref().unwrap_or(&none);
        MemoryNeed::other(before.growth_bytes(end))
    }

    /// An upper bound of the memory for raising the filter to a layout, including staged tables.
    fn raising(&self, layout: &Layout) -> MemoryNeed {
        let mut need = MemoryNeed::default();
        if layout.check(self.view.spec.mode).is_ok() {
            let staged = self.staging.as_ref().map(|staging| &staging.tables);
            for tables in [Some(&self.tables), staged].into_iter().flatten() {
                need += tables.filter.tables().raising(layout).unwrap_or_default();
            }
        }
        need
    }

    /// An upper bound of the memory for copying `entries_max` codes and repeating the same number of changes, after the waiting commands.
    fn catching_up(&self, waiting: &Demand, entries_max: u64, holds: u64) -> MemoryNeed {
        let Some(staging) = &self.staging else {
            return MemoryNeed::default();
        };
        let repeated = entries_max.min(staging.changes.len() + waiting.changes + holds);
        let (held, redeemed) = self.tables.used();
        let taken_over = (entries_max + COPIED_BESIDES_MAX).min(held + redeemed + waiting.uses);
        let staged = taken_over + repeated;
        let from_empty = staging.tables.filter.tables().growth_from_empty(staged);
        if staging.cleared {
            return from_empty;
        }
        let mut all = *waiting;
        all += Demand {
            staged,
            ..Demand::default()
        };
        let mut need = self.growth(&all).beyond(&self.growth(waiting));
        // Repeated changes may empty the staged tables, which then start over.
        if repeated * staging.tables.filter.copies_max() >= staging.tables.filter.items() {
            need += from_empty.beyond(&need).temporary();
        }
        need
    }

    /// Whether such demand may remove all items. Then the tables start over.
    fn may_be_emptied(&self, demand: &Demand) -> bool {
        let items = self.tables.filter.items();
        demand.removes >= items && items + demand.items > 0
    }
}
