//! `apply`: what each command does to the state.

use super::idempotency::Lookup;
use super::kept::ChangeKind;
use super::ledger::Ledger;
use super::tables::Tables;
use super::view::{Counters, FilterView};
use super::{Bearer, SWEEP_MAX, State};
use crate::domain::{
    Applied, Command, Digests, Entry, FilterId, Inserted, ItemOutcome, Outcome, Refusal, Removed, Target,
    Timestamp,
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
        self.now = self.now.max(entry.proposal.at);
        self.sweep();

        let command = entry.proposal.command;
        let Some(key) = entry.proposal.idempotency else {
            return Applied { outcome: self.execute(command), replayed: false };
        };
        if let Some(scope) = self.idempotency_scope(&command) {
            match self.records.look_up(scope, &key) {
                Lookup::New => {}
                Lookup::Answered(outcome) => return Applied { outcome: outcome.clone(), replayed: true },
                Lookup::Reused => return refused(Refusal::KeyReused),
            }
        }
        if self.records.len() as u64 >= self.settings.idempotency_records_max {
            return refused(Refusal::IdempotencyFull);
        }
        let asked = command.clone();
        let outcome = self.execute(command);
        // A creation has a scope only now.
        if let Some(scope) = self.idempotency_scope(&asked) {
            self.records.store(scope, key, outcome.clone(), self.now);
        }
        Applied { outcome, replayed: false }
    }

    /// Whose answers a command's key is looked up among. A deletion outlives its filter.
    fn idempotency_scope(&self, command: &Command) -> Option<FilterId> {
        match command {
            Command::Create { kind, name, .. } => self.catalog.get(*kind, name).map(|view| view.id),
            Command::Delete { .. } => Some(FilterId(0)),
            _ => command.target().map(|target| target.0),
        }
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
        let retention_ms = self.settings.idempotency_retention_seconds.saturating_mul(1_000);
        if let Some(before) = self.now.0.checked_sub(retention_ms) {
            self.records.forget(Timestamp(before), SWEEP_MAX);
        }
    }

    fn execute(&mut self, command: Command) -> Outcome {
        match command {
            Command::Configure(settings) => {
                self.settings = settings;
                Outcome::Configured
            }
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
            Command::ImportBegin { target, import, mode } => self.import_begin(target, import, mode),
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
        let Some(mut bearer) = self.filters.remove(&id) else {
            return Outcome::Refused(Refusal::FilterGone);
        };
        self.catalog.remove(bearer.view.kind, &bearer.view.name);
        self.catalog_changed = true;
        self.tables_bytes -= bearer.tables.memory_bytes();
        self.redemptions -= bearer.view.ledger.read().len() as u64;
        if let Some(staging) = bearer.staging.take() {
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
        let mut removed = 0;
        let mut outcomes = Vec::with_capacity(digests.len());
        for &digest in digests {
            let (outcome, copies) = self.remove_one(filter, digest, all);
            removed += copies;
            outcomes.push(outcome);
        }
        if let Some(bearer) = self.filters.get(&filter) {
            bearer.view.counters.removes.fetch_add(removed, Ordering::Relaxed);
        }
        let kind = if all { ChangeKind::RemoveAll } else { ChangeKind::Remove };
        let gone = outcomes.iter().zip(digests).filter(|(o, _)| **o != ItemOutcome::AlreadyRedeemed);
        self.keep(filter, kind, gone.map(|(_, &digest)| digest));
        Outcome::Removed(Removed { outcomes, removed })
    }

    fn remove_one(&mut self, filter: FilterId, digest: Digest, all: bool) -> (ItemOutcome, u64) {
        let Some(bearer) = self.filters.get_mut(&filter) else { return (ItemOutcome::Absent, 0) };
        match bearer.tables.state(digest) {
            Some(SlotState::Redeemed) => return (ItemOutcome::AlreadyRedeemed, 0),
            Some(SlotState::Held) => {
                self.withdraw_hold(filter, digest);
            }
            _ => {}
        }
        let Some(bearer) = self.filters.get_mut(&filter) else { return (ItemOutcome::Absent, 0) };
        let mut copies = u64::from(bearer.tables.remove(digest));
        while all && copies > 0 && bearer.tables.remove(digest) {
            copies += 1;
        }
        (if copies > 0 { ItemOutcome::Removed } else { ItemOutcome::Absent }, copies)
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
        let mut removed = 0;
        let counters = bearer.view.counters.clone();
        let leaving: Vec<Digest> = leaving
            .into_iter()
            .flat_map(|(digest, count)| std::iter::repeat_n(digest, count as usize))
            .collect();
        for &digest in &leaving {
            removed += self.remove_one(filter, digest, false).1;
        }
        self.keep(filter, ChangeKind::Add, coming);
        self.keep(filter, ChangeKind::AddIfAbsent, staying);
        self.keep(filter, ChangeKind::Remove, leaving);
        counters.adds.fetch_add(added.len() as u64, Ordering::Relaxed);
        counters.removes.fetch_add(removed, Ordering::Relaxed);
        Outcome::Replaced(outcomes)
    }
}

fn refused(refusal: Refusal) -> Applied {
    Applied { outcome: Outcome::Refused(refusal), replayed: false }
}
