//! Changes of a filter's items: insert, remove, replace, clear.

use super::ledger::Membership;
use super::machine::Subject;
use super::staging::{ChangeKind, REPEATED_FOR_EACH};
use crate::domain::{
    Count, FilterChange, Inserted, ItemOutcome, Kind, Meaning, Outcome, Refusal, Removed,
};
use cuckood_filter::{Digest, Full, Mode, SlotState};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

impl Subject<'_> {
    /// Adds items, all or none.
    pub(super) fn insert(
        &mut self,
        digests: &[Digest],
        if_absent: bool,
        revive: bool,
    ) -> Result<Outcome, Refusal> {
        self.filter.view.require_added_codes()?;
        let inserted = self.filter.tables.insert_many(digests, if_absent);
        let mut outcomes = inserted.map_err(|Full| Refusal::FilterFull)?;
        self.put_back(digests, &outcomes);
        if revive && !self.filter.view.spec.supply.has_several_uses() {
            for (outcome, &digest) in outcomes.iter_mut().zip(digests) {
                if *outcome == ItemOutcome::AlreadyRedeemed {
                    // If the code is in the request twice, it is available again the second time.
                    let revived = self.revive(digest);
                    *outcome = if revived {
                        ItemOutcome::Revived
                    } else {
                        ItemOutcome::AlreadyPresent
                    };
                }
            }
        }
        let is_added =
            |outcome: &&ItemOutcome| matches!(outcome, ItemOutcome::Added | ItemOutcome::Revived);
        let added = outcomes.iter().filter(is_added).count() as u64;
        self.filter
            .view
            .counters
            .adds
            .fetch_add(added, Ordering::Relaxed);
        self.count(Count::Added, added);
        self.queue_inserted(digests, &outcomes, if_absent);
        self.record_items(added, FilterChange::Added);
        Ok(Outcome::Inserted(Inserted { outcomes, added }))
    }

    /// Removes one copy of each item, or all.
    pub(super) fn remove(&mut self, digests: &[Digest], all: bool) -> Result<Outcome, Refusal> {
        self.filter.view.require_added_codes()?;
        let (removed, leaving) = self.take_out(digests, all);
        let kind = if all {
            ChangeKind::RemoveAll
        } else {
            ChangeKind::Remove
        };
        self.queue_changes(kind, leaving, REPEATED_FOR_EACH);
        self.record_items(removed.removed, FilterChange::Removed);
        Ok(Outcome::Removed(removed))
    }

    /// Whether used codes that are removed leave the pool.
    fn has_withdrawal(&self) -> bool {
        let view = &self.filter.view;
        self.shared.has(Meaning::Withdrawal)
            && view.kind == Kind::Coupon
            && view.spec.mode == Mode::Strict
            && !view.spec.supply.is_open_pool()
    }

    /// Puts used codes that were added again back into the pool.
    pub(super) fn put_back(&mut self, digests: &[Digest], outcomes: &[ItemOutcome]) {
        if self.filter.view.ledger.read().membership.is_whole() {
            return;
        }
        let mut ledger = self.filter.view.ledger.write();
        for (outcome, &digest) in outcomes.iter().zip(digests) {
            let is_there = match outcome {
                ItemOutcome::AlreadyPresent | ItemOutcome::AlreadyRedeemed => true,
                ItemOutcome::Added
                | ItemOutcome::Saturated
                | ItemOutcome::Revived
                | ItemOutcome::Removed
                | ItemOutcome::Absent
                | ItemOutcome::Replaced => false,
            };
            if is_there && let Some(number) = ledger.member_number(digest) {
                ledger.membership.join(number);
            }
        }
    }

    /// Takes a used code out of the pool; it stays used. Returns whether it was there.
    fn withdraw(&mut self, digest: Digest) -> bool {
        let mut ledger = self.filter.view.ledger.write();
        let Some(number) = ledger.member_number(digest) else {
            return false;
        };
        let was_member = ledger.membership.contains(number);
        ledger.membership.leave(number);
        was_member
    }

    /// Removes items, equivalent to one by one. Redeemed codes stay, but leave the pool, as do held ones with several uses; the hold of a
    /// code with one use is withdrawn. Also returns the items that staged tables must not have, whether they were present or not.
    fn take_out(&mut self, digests: &[Digest], all: bool) -> (Removed, Vec<Digest>) {
        let has_withdrawal = self.has_withdrawal();
        let keeps_holds = self.filter.view.spec.supply.has_several_uses();
        let states = self.filter.tables.filter.reader().view(0).states(digests);
        // The outcomes of codes that stay.
        let mut staying = Vec::with_capacity(digests.len());
        let mut leaving = Vec::with_capacity(digests.len());
        let mut held = Vec::new();
        for (state, &digest) in states.iter().zip(digests) {
            staying.push(match state {
                Some(SlotState::Redeemed) => {
                    if has_withdrawal {
                        self.withdraw(digest);
                    }
                    Some(ItemOutcome::AlreadyRedeemed)
                }
                Some(SlotState::Held) if keeps_holds => {
                    let was_member = self.withdraw(digest);
                    Some(if was_member {
                        ItemOutcome::Removed
                    } else {
                        ItemOutcome::Absent
                    })
                }
                Some(SlotState::Held) => {
                    held.push(digest);
                    leaving.push(digest);
                    None
                }
                Some(SlotState::Available) | None => {
                    leaving.push(digest);
                    None
                }
            });
        }
        let copies = self.filter.tables.filter.remove_many(&leaving, all);
        // Only now: a reader would find a code available whose hold is withdrawn and that is still there.
        for digest in held {
            self.withdraw_hold(digest);
        }
        let withdrawn = staying
            .iter()
            .filter(|staying| **staying == Some(ItemOutcome::Removed))
            .count() as u64;
        let mut left = copies.iter();
        let outcomes = staying.into_iter().map(|staying| match staying {
            Some(outcome) => outcome,
            None if left.next().is_some_and(|copies| *copies > 0) => ItemOutcome::Removed,
            None => ItemOutcome::Absent,
        });
        let outcomes = outcomes.collect();
        let removed: u64 = copies.iter().map(|copies| u64::from(*copies)).sum();
        self.filter
            .view
            .counters
            .removes
            .fetch_add(removed, Ordering::Relaxed);
        let removed = removed + withdrawn;
        self.count(Count::Removed, removed);
        if has_withdrawal {
            leaving = digests.to_vec();
        }
        (Removed { outcomes, removed }, leaving)
    }

    /// Replaces pairs in order; all or none. All new items are added before any old one is removed. So to undo it, the new ones are
    /// removed, which can't fail.
    pub(super) fn replace(&mut self, from: &[Digest], to: &[Digest]) -> Result<Outcome, Refusal> {
        self.filter.view.require_added_codes()?;
        let is_exact = self.shared.has(Meaning::ExactReplacement);
        let mut outcomes = Vec::with_capacity(from.len());
        let mut added = Vec::new();
        let mut coming = Vec::new();
        let mut staying = Vec::new();
        let mut returning = Vec::new();
        let mut leaving: BTreeMap<Digest, u32> = BTreeMap::new();
        for (&from, &to) in from.iter().zip(to) {
            let is_redeemed =
                |digest| self.filter.tables.filter.state(digest) == Some(SlotState::Redeemed);
            if is_redeemed(from) || is_redeemed(to) {
                outcomes.push(ItemOutcome::AlreadyRedeemed);
                continue;
            }
            if self.filter.tables.filter.count(from) <= leaving.get(&from).copied().unwrap_or(0) {
                outcomes.push(ItemOutcome::Absent);
                continue;
            }
            // An item that takes its own place stays.
            if from == to {
                outcomes.push(ItemOutcome::Replaced);
                staying.push(to);
                continue;
            }
            let Ok(inserted) = self.filter.tables.insert_many(&[to], false) else {
                for &digest in added.iter().rev() {
                    self.filter.tables.filter.remove(digest);
                }
                return Err(Refusal::FilterFull);
            };
            let is_strict = self.filter.tables.filter.mode() == Mode::Strict;
            if inserted == [ItemOutcome::Added] {
                added.push(to);
                coming.push(to);
            } else if is_exact {
                // A copy that was marked for removal takes the new one's place.
                if !take_one(&mut leaving, to) {
                    outcomes.extend(inserted);
                    continue;
                }
                staying.push(to);
                // As if the code had been removed, its hold ends.
                returning.extend(is_strict.then_some(to));
            } else {
                // A code that was marked for removal stays. As if it had been removed, its hold ends.
                returning.extend(is_strict.then(|| leaving.remove(&to)).flatten().map(|_| to));
                coming.push(to);
            }
            outcomes.push(ItemOutcome::Replaced);
            *leaving.entry(from).or_default() += 1;
        }
        let leaving: Vec<Digest> = leaving
            .into_iter()
            .flat_map(|(digest, count)| std::iter::repeat_n(digest, count as usize))
            .collect();
        self.take_out(&leaving, false);
        returning
            .into_iter()
            .for_each(|digest| self.withdraw_hold(digest));
        self.queue_changes(ChangeKind::Add, coming, REPEATED_FOR_EACH);
        self.queue_changes(ChangeKind::AddIfAbsent, staying, REPEATED_FOR_EACH);
        self.queue_changes(ChangeKind::Remove, leaving, REPEATED_FOR_EACH);
        self.filter
            .view
            .counters
            .adds
            .fetch_add(added.len() as u64, Ordering::Relaxed);
        self.count(Count::Added, added.len() as u64);
        let replaced = outcomes
            .iter()
            .filter(|outcome| **outcome == ItemOutcome::Replaced)
            .count() as u64;
        self.record_items(replaced, FilterChange::Replaced);
        Ok(Outcome::Replaced(outcomes))
    }

    /// Reports how many items a request has changed, if it has changed any.
    fn record_items(&mut self, count: u64, change: fn(u64) -> FilterChange) {
        if count > 0 {
            self.shared.record_filter(&self.filter.view, change(count));
        }
    }

    /// Removes everything but held and redeemed codes, which leave the pool.
    pub(super) fn clear(&mut self) -> Outcome {
        let removed = self.filter.tables.filter.clear();
        if self.has_withdrawal() {
            let pool = Membership::without_members(self.filter.tables.used());
            self.filter.view.ledger.write().membership.replace(pool);
        }
        self.filter
            .view
            .counters
            .removes
            .fetch_add(removed, Ordering::Relaxed);
        self.count(Count::Removed, removed);
        if let Some(staging) = &mut self.filter.staging {
            // If the upload is still running, the staged tables are cleared at its end.
            staging.changes.clear();
            staging.cleared = true;
            if staging.is_catching_up() {
                self.begin_catching_up();
            }
        }
        self.overtake_imports(None);
        self.shared
            .record_filter(&self.filter.view, FilterChange::Cleared(removed));
        Outcome::Cleared(removed)
    }
}

/// Takes one copy of an item out of those that are to be removed. Returns whether there was one.
fn take_one(leaving: &mut BTreeMap<Digest, u32>, item: Digest) -> bool {
    let Some(copies) = leaving.get_mut(&item) else {
        return false;
    };
    *copies -= 1;
    if *copies == 0 {
        leaving.remove(&item);
    }
    true
}
