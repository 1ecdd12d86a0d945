//! `apply`: what each command does to the state.

use super::answers::Asked;
use super::idempotency::{Bounds, Lookup, Records};
use super::kept::ChangeKind;
use super::ledger::Ledger;
use super::tables::Tables;
use super::view::{Counters, FilterView};
use super::{Bearer, SWEEP_MAX, State};
use crate::domain::{
    Applied, Command, Digests, Entry, FilterId, IdempotencyKey, Inserted, ItemOutcome, Kind, Name, Outcome,
    Refusal, Removed, Target, Timestamp,
};
use crate::filter::{Digest, SlotState};
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl State {
    /// Applies the entry that follows the last one, and answers.
    ///
    /// # Panics
    /// When the entry does not follow the last one: the log has a gap, and going on would lose writes.
    pub fn apply(&mut self, entry: Entry) -> Applied {
        assert_eq!(entry.seq, self.applied.next(), "the log has a gap");
        self.applied = entry.seq;
        if entry.proposal.command == Command::TurnBack && entry.proposal.at < self.now {
            return Applied { outcome: self.turn_back(entry.proposal.at), replayed: false };
        }
        self.now = self.now.max(entry.proposal.at);
        self.sweep();

        let command = entry.proposal.command;
        match entry.proposal.idempotency {
            None => Applied { outcome: self.execute(command), replayed: false },
            Some(key) => self.execute_once(command, &key),
        }
    }

    /// Executes a command unless it was before under the same key.
    fn execute_once(&mut self, command: Command, key: &IdempotencyKey) -> Applied {
        let (bounds, asked) = (self.idempotency_bounds(), Asked::of(&command));
        let scope = IdempotencyScope::of(&command);
        if let Some(filter) = self.scope_filter(&scope) {
            match self.records.look_up(filter, key, &asked, bounds.forgotten) {
                Lookup::New => {}
                Lookup::Answered(outcome) => return Applied { outcome, replayed: true },
                Lookup::Reused => return refused(Refusal::KeyReused),
            }
        }
        let room = self.records.make_room(Records::bytes_max(&command), &bounds, SWEEP_MAX);
        if let Err(full) = room {
            let until = full.oldest.unwrap_or(self.now).0.saturating_add(self.retention_min_milliseconds());
            let retry_after_seconds = until.saturating_sub(self.now.0).div_ceil(1_000).max(1);
            return refused(Refusal::IdempotencyFull { retry_after_seconds });
        }
        let outcome = self.execute(command);
        if let Some(filter) = self.scope_filter(&scope) {
            self.records.store(filter, key, &asked, &outcome, self.now);
        }
        Applied { outcome, replayed: false }
    }

    fn scope_filter(&self, scope: &IdempotencyScope) -> Option<FilterId> {
        match scope {
            IdempotencyScope::Filter(filter) => Some(*filter),
            IdempotencyScope::Bearer(kind, name) => self.catalog.get(*kind, name).map(|view| view.id),
            IdempotencyScope::None => None,
        }
    }

    /// What is kept of answers at this time.
    fn idempotency_bounds(&self) -> Bounds {
        let before = |milliseconds| self.now.0.checked_sub(milliseconds).map(Timestamp);
        Bounds {
            forgotten: before(self.settings.idempotency_retention_seconds.saturating_mul(1_000)),
            expendable: before(self.retention_min_milliseconds()),
            room_bytes: self.settings.idempotency_room_bytes,
        }
    }

    /// Nothing is kept for longer than the retention.
    fn retention_min_milliseconds(&self) -> u64 {
        let settings = &self.settings;
        let seconds = settings.idempotency_retention_min_seconds.min(settings.idempotency_retention_seconds);
        seconds.saturating_mul(1_000)
    }

    /// Expires holds that are due, and forgets redemptions and answers whose retention is over.
    fn sweep(&mut self) {
        // What deleted filters have left in the queues goes uncounted: a state restored from a snapshot hasn't
        // got it, and must expire the same holds.
        let mut left = SWEEP_MAX;
        while let Some(&(expires_at, id, filter)) = self.holds.first()
            && expires_at <= self.now
            && left > 0
        {
            left -= usize::from(self.filters.contains_key(&filter));
            self.expire_hold(filter, &id);
        }
        let retention = self.settings.redemptions_retention_seconds;
        let mut left = SWEEP_MAX;
        while let Some(&(changed_at, id, filter)) = self.ended.first()
            && changed_at.plus_seconds(retention) <= self.now
            && left > 0
        {
            left -= usize::from(self.filters.contains_key(&filter));
            self.ended.pop_first();
            self.forget_redemption(filter, &id);
        }
        self.records.forget(&self.idempotency_bounds(), SWEEP_MAX);
        self.forget_unmoved_imports();
    }

    fn execute(&mut self, command: Command) -> Outcome {
        match command {
            Command::Configure(settings) => {
                self.configure(settings);
                Outcome::Configured
            }
            // The time is not later than the entry says: nothing is to be turned back.
            Command::TurnBack => Outcome::TurnedBack { redemptions: 0, holds: 0 },
            Command::Create { .. } => self.create(command),
            Command::Reschedule { target, starts_at, ends_at } => self.reschedule(target, starts_at, ends_at),
            Command::Delete { kind, name } => match self.catalog.get(kind, &name).map(|view| view.id) {
                None => Outcome::Refused(Refusal::FilterGone),
                Some(id) => self.delete(id),
            },
            Command::Redeem { target, digest, redemption, reference, hold_seconds } => {
                self.redeem(target, digest, redemption, reference, hold_seconds)
            }
            Command::Confirm { target, redemption } => self.confirm(target, &redemption),
            Command::Cancel { target, redemption } => self.cancel(target, &redemption),
            Command::ImportBegin { .. } => self.import_begin(command),
            Command::ImportLines { .. } => self.import_lines(command),
            Command::ImportEnd { target, import, complete, entries_max } => {
                self.import_end(target, &import, complete, entries_max)
            }
            Command::Insert { target, .. }
            | Command::Remove { target, .. }
            | Command::Replace { target, .. }
            | Command::Clear { target } => self.write(target, command),
        }
    }

    fn create(&mut self, command: Command) -> Outcome {
        let Command::Create { kind, name, id, secret, spec, layout, window } = command else {
            unreachable!("create is called for creations")
        };
        if let Some(view) = self.catalog.get(kind, &name) {
            let mut differences = view.spec.differences(&spec);
            if view.window.starts_at != window.starts_at {
                differences.push("starts_at");
            }
            if view.window.ends_at != window.ends_at {
                differences.push("ends_at");
            }
            return if differences.is_empty() {
                Outcome::Exists(Box::new(view.describe()))
            } else {
                Outcome::Refused(Refusal::AlreadyExists(differences.into_iter().map(String::from).collect()))
            };
        }
        if !window.is_ordered() {
            return Outcome::Refused(Refusal::WindowEndsFirst);
        }
        if self.catalog.len() as u64 >= self.settings.filters_max || self.filters.contains_key(&id) {
            return Outcome::Refused(Refusal::TooManyFilters);
        }
        let tables = Tables::new(self.next_epoch(), spec.mode, layout, spec.growth);
        let ledger = Ledger::new(self.next_epoch());
        let view = Arc::new(FilterView {
            id,
            kind,
            name,
            spec,
            layout,
            window,
            created_at: self.now,
            secret,
            reader: tables.reader(),
            counters: Arc::new(Counters::default()),
            ledger: Arc::new(RwLock::new(ledger)),
            redemptions_retention: self.view.redemptions_retention.clone(),
        });
        self.tables_bytes += tables.memory_bytes();
        self.show(view.clone());
        let description = view.describe();
        self.filters.insert(id, Bearer { view, tables, staging: None });
        Outcome::Created(Box::new(description))
    }

    fn reschedule(
        &mut self,
        target: Target,
        starts_at: Option<Option<Timestamp>>,
        ends_at: Option<Option<Timestamp>>,
    ) -> Outcome {
        let Some(bearer) = self.filters.get_mut(&target.0) else {
            return Outcome::Refused(Refusal::FilterGone);
        };
        let mut window = bearer.view.window;
        window.starts_at = starts_at.unwrap_or(window.starts_at);
        window.ends_at = ends_at.unwrap_or(window.ends_at);
        if !window.is_ordered() {
            return Outcome::Refused(Refusal::WindowEndsFirst);
        }
        let view = Arc::new(bearer.view.with_window(window));
        bearer.view = view.clone();
        self.show(view.clone());
        Outcome::Rescheduled(Box::new(view.describe()))
    }

    fn delete(&mut self, id: FilterId) -> Outcome {
        let staging = self.take_staging(id);
        let Some(bearer) = self.filters.remove(&id) else {
            return Outcome::Refused(Refusal::FilterGone);
        };
        self.catalog.remove(bearer.view.kind, &bearer.view.name);
        self.catalog_changed = true;
        self.tables_bytes -= bearer.tables.memory_bytes();
        {
            let ledger = bearer.view.ledger.read();
            self.redemptions -= ledger.len() as u64;
            self.references_bytes -= ledger.references_bytes();
        }
        if let Some(staging) = staging {
            self.interrupt(&staging.import);
            self.drop_staging(staging);
        }
        self.snapshot.keep_alive(bearer);
        Outcome::Deleted
    }

    /// Puts a filter's new view where readers find it.
    pub(super) fn show(&mut self, view: Arc<FilterView>) {
        self.catalog.insert(view);
        self.catalog_changed = true;
    }

    /// A change to a filter's items.
    fn write(&mut self, target: Target, command: Command) -> Outcome {
        let Some(bearer) = self.filters.get_mut(&target.0) else {
            return Outcome::Refused(Refusal::FilterGone);
        };
        let before = bearer.tables.memory_bytes();
        let outcome = match command {
            Command::Insert { digests, if_absent, revive, .. } => {
                self.insert(target.0, &digests.0, if_absent, revive)
            }
            Command::Remove { digests, all, .. } => self.remove(target.0, &digests.0, all),
            Command::Replace { from, to, .. } => self.replace(target.0, &from, &to),
            Command::Clear { .. } => {
                let removed = bearer.tables.clear();
                bearer.view.counters.removes.fetch_add(removed, Ordering::Relaxed);
                self.note_cleared(target.0);
                Outcome::Cleared(removed)
            }
            _ => unreachable!("write is called for changes to items"),
        };
        if let Some(bearer) = self.filters.get_mut(&target.0) {
            self.tables_bytes = self.tables_bytes + bearer.tables.memory_bytes() - before;
        }
        outcome
    }

    fn insert(&mut self, filter: FilterId, digests: &[Digest], if_absent: bool, revive: bool) -> Outcome {
        let Some(bearer) = self.filters.get_mut(&filter) else {
            return Outcome::Refused(Refusal::FilterGone);
        };
        let Ok(mut outcomes) = bearer.tables.insert_many(digests, if_absent) else {
            return Outcome::Refused(Refusal::FilterFull);
        };
        let counters = bearer.view.counters.clone();
        if revive {
            for (outcome, &digest) in outcomes.iter_mut().zip(digests) {
                if *outcome == ItemOutcome::AlreadyRedeemed {
                    *outcome = if self.revive(filter, digest) {
                        ItemOutcome::Revived
                    } else {
                        ItemOutcome::AlreadyPresent
                    };
                }
            }
        }
        let added = outcomes
            .iter()
            .filter(|outcome| matches!(outcome, ItemOutcome::Added | ItemOutcome::Revived))
            .count() as u64;
        counters.adds.fetch_add(added, Ordering::Relaxed);
        self.keep_inserted(filter, digests, &outcomes, if_absent);
        Outcome::Inserted(Inserted { outcomes, added })
    }

    /// Keeps what was inserted for the import that builds aside: all but used codes is to be there from now on.
    pub(super) fn keep_inserted(
        &mut self,
        filter: FilterId,
        digests: &[Digest],
        outcomes: &[ItemOutcome],
        if_absent: bool,
    ) {
        let kind = if if_absent { ChangeKind::AddIfAbsent } else { ChangeKind::Add };
        let taken = outcomes.iter().zip(digests).filter(|(o, _)| **o != ItemOutcome::AlreadyRedeemed);
        self.keep(filter, kind, taken.map(|(_, &digest)| digest));
    }

    fn remove(&mut self, filter: FilterId, digests: &[Digest], all: bool) -> Outcome {
        let Some((removed, leaving)) = self.take_out(filter, digests, all) else {
            return Outcome::Refused(Refusal::FilterGone);
        };
        let kind = if all { ChangeKind::RemoveAll } else { ChangeKind::Remove };
        self.keep(filter, kind, leaving);
        Outcome::Removed(removed)
    }

    /// Takes items out, as if one by one: used codes stay, a hold is withdrawn before its code goes. Tells besides which
    /// items were to go and are gone, whether they were there or not.
    fn take_out(
        &mut self,
        filter: FilterId,
        digests: &[Digest],
        all: bool,
    ) -> Option<(Removed, Vec<Digest>)> {
        let states = self.filters.get(&filter)?.tables.states(digests);
        let is_used = |state: &Option<SlotState>| *state == Some(SlotState::Redeemed);
        let mut leaving = Vec::with_capacity(digests.len());
        for (state, &digest) in states.iter().zip(digests).filter(|(state, _)| !is_used(state)) {
            if *state == Some(SlotState::Held) {
                self.withdraw_hold(filter, digest);
            }
            leaving.push(digest);
        }
        let bearer = self.filters.get_mut(&filter)?;
        let copies = bearer.tables.remove_many(&leaving, all);
        let mut left = copies.iter();
        let outcomes = states.iter().map(|state| match is_used(state) {
            true => ItemOutcome::AlreadyRedeemed,
            false if left.next().is_some_and(|copies| *copies > 0) => ItemOutcome::Removed,
            false => ItemOutcome::Absent,
        });
        let outcomes = outcomes.collect();
        let removed = copies.iter().map(|copies| u64::from(*copies)).sum();
        bearer.view.counters.removes.fetch_add(removed, Ordering::Relaxed);
        Some((Removed { outcomes, removed }, leaving))
    }

    /// Replaces pairs in order; all or none. Every `to` goes in before any `from` goes out, so that undoing
    /// means removing only: that can't fail.
    fn replace(&mut self, filter: FilterId, from: &Digests, to: &Digests) -> Outcome {
        let Some(bearer) = self.filters.get_mut(&filter) else {
            return Outcome::Refused(Refusal::FilterGone);
        };
        let mut outcomes = Vec::with_capacity(from.0.len());
        let (mut added, mut coming, mut staying) = (Vec::new(), Vec::new(), Vec::new());
        let mut leaving: BTreeMap<Digest, u32> = BTreeMap::new();
        for (&from, &to) in from.0.iter().zip(&to.0) {
            let used = |digest| bearer.tables.state(digest) == Some(SlotState::Redeemed);
            if used(from) || used(to) {
                outcomes.push(ItemOutcome::AlreadyRedeemed);
                continue;
            }
            if bearer.tables.count(from) <= leaving.get(&from).copied().unwrap_or(0) {
                outcomes.push(ItemOutcome::Absent);
                continue;
            }
            // An item that takes its own place stays.
            if from != to {
                match bearer.tables.insert_many(&[to], false) {
                    Ok(inserted) => {
                        if inserted == [ItemOutcome::Added] {
                            added.push(to);
                        } else if let Some(count) = leaving.get_mut(&to).filter(|_| bearer.tables.is_strict())
                        {
                            // It was about to leave, and now comes back: it stays where it is.
                            *count = 0;
                        }
                    }
                    Err(_) => {
                        for &digest in added.iter().rev() {
                            bearer.tables.remove(digest);
                        }
                        return Outcome::Refused(Refusal::FilterFull);
                    }
                }
                *leaving.entry(from).or_default() += 1;
                coming.push(to);
            } else {
                staying.push(to);
            }
            outcomes.push(ItemOutcome::Replaced);
        }
        let counters = bearer.view.counters.clone();
        let leaving: Vec<Digest> = leaving
            .into_iter()
            .flat_map(|(digest, count)| std::iter::repeat_n(digest, count as usize))
            .collect();
        self.take_out(filter, &leaving, false);
        self.keep(filter, ChangeKind::Add, coming);
        self.keep(filter, ChangeKind::AddIfAbsent, staying);
        self.keep(filter, ChangeKind::Remove, leaving);
        counters.adds.fetch_add(added.len() as u64, Ordering::Relaxed);
        Outcome::Replaced(outcomes)
    }
}

/// Whose answers a command's key is looked up among.
enum IdempotencyScope {
    /// The answers about this filter.
    Filter(FilterId),
    /// Those about the filter that bears a name: a creation's has an id only afterwards.
    Bearer(Kind, Name),
    /// A command that goes to no filter has none.
    None,
}

impl IdempotencyScope {
    fn of(command: &Command) -> Self {
        match command {
            Command::Create { kind, name, .. } => Self::Bearer(*kind, name.clone()),
            // A deletion's answer outlives its filter.
            Command::Delete { .. } => Self::Filter(FilterId(0)),
            _ => command.target().map_or(Self::None, |target| Self::Filter(target.0)),
        }
    }
}

fn refused(refusal: Refusal) -> Applied {
    Applied { outcome: Outcome::Refused(refusal), replayed: false }
}
