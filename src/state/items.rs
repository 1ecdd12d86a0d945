//! Changes of a filter's items: insert, remove, replace, clear.

use super::staging::{ChangeKind, REPEATED_FOR_EACH};
use super::subject::Subject;
use crate::domain::{FilterChange, Inserted, ItemOutcome, Outcome, Refusal, Removed};
use crate::filter::{Digest, Full, Mode, SlotState};
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
        self.view.require_added_codes()?;
        let inserted = self.tables.insert_many(digests, if_absent);
        let mut outcomes = inserted.map_err(|Full| Refusal::FilterFull)?;
        if revive {
            for (outcome, &digest) in outcomes.iter_mut().zip(digests) {
                if *outcome == ItemOutcome::AlreadyRedeemed {
                    // If the code is in the request twice, it is available again the second time.
                    let revived = self.revive(digest);
                    *outcome = if revived { ItemOutcome::Revived } else { ItemOutcome::AlreadyPresent };
                }
            }
        }
        let is_added = |outcome: &&ItemOutcome| matches!(outcome, ItemOutcome::Added | ItemOutcome::Revived);
        let added = outcomes.iter().filter(is_added).count() as u64;
        self.view.counters.adds.fetch_add(added, Ordering::Relaxed);
        self.keep_inserted(digests, &outcomes, if_absent);
        self.tell_items(added, FilterChange::Added);
        Ok(Outcome::Inserted(Inserted { outcomes, added }))
    }

    /// Removes one copy of each item, or all.
    pub(super) fn remove(&mut self, digests: &[Digest], all: bool) -> Result<Outcome, Refusal> {
        self.view.require_added_codes()?;
        let (removed, leaving) = self.take_out(digests, all);
        let kind = if all { ChangeKind::RemoveAll } else { ChangeKind::Remove };
        self.keep(kind, leaving, REPEATED_FOR_EACH);
        self.tell_items(removed.removed, FilterChange::Removed);
        Ok(Outcome::Removed(removed))
    }

    /// Removes items, as if one by one: redeemed codes stay, and a hold is withdrawn before its code is removed. Returns also the items
    /// that are gone now, whether they were there or not.
    fn take_out(&mut self, digests: &[Digest], all: bool) -> (Removed, Vec<Digest>) {
        let states = self.tables.filter.states(digests);
        let is_redeemed = |state: &Option<SlotState>| *state == Some(SlotState::Redeemed);
        let mut leaving = Vec::with_capacity(digests.len());
        for (state, &digest) in states.iter().zip(digests).filter(|(state, _)| !is_redeemed(state)) {
            if *state == Some(SlotState::Held) {
                self.withdraw_hold(digest);
            }
            leaving.push(digest);
        }
        let copies = self.tables.filter.remove_many(&leaving, all);
        let mut left = copies.iter();
        let outcomes = states.iter().map(|state| match is_redeemed(state) {
            true => ItemOutcome::AlreadyRedeemed,
            false if left.next().is_some_and(|copies| *copies > 0) => ItemOutcome::Removed,
            false => ItemOutcome::Absent,
        });
        let outcomes = outcomes.collect();
        let removed = copies.iter().map(|copies| u64::from(*copies)).sum();
        self.view.counters.removes.fetch_add(removed, Ordering::Relaxed);
        (Removed { outcomes, removed }, leaving)
    }

    /// Replaces pairs in order; all or none. All new items are added before any old one is removed. So to undo it, the new ones are
    /// removed, which can't fail.
    pub(super) fn replace(&mut self, from: &[Digest], to: &[Digest]) -> Result<Outcome, Refusal> {
        self.view.require_added_codes()?;
        let mut outcomes = Vec::with_capacity(from.len());
        let (mut added, mut coming, mut staying) = (Vec::new(), Vec::new(), Vec::new());
        let mut leaving: BTreeMap<Digest, u32> = BTreeMap::new();
        for (&from, &to) in from.iter().zip(to) {
            let is_redeemed = |digest| self.tables.filter.state(digest) == Some(SlotState::Redeemed);
            if is_redeemed(from) || is_redeemed(to) {
                outcomes.push(ItemOutcome::AlreadyRedeemed);
                continue;
            }
            if self.tables.filter.count(from) <= leaving.get(&from).copied().unwrap_or(0) {
                outcomes.push(ItemOutcome::Absent);
                continue;
            }
            outcomes.push(ItemOutcome::Replaced);
            // An item that takes its own place stays.
            if from == to {
                staying.push(to);
                continue;
            }
            let Ok(inserted) = self.tables.insert_many(&[to], false) else {
                for &digest in added.iter().rev() {
                    self.tables.filter.remove(digest);
                }
                return Err(Refusal::FilterFull);
            };
            if inserted == [ItemOutcome::Added] {
                added.push(to);
            } else if self.tables.filter.mode() == Mode::Strict {
                // A code that was to be removed stays after all.
                leaving.remove(&to);
            }
            *leaving.entry(from).or_default() += 1;
            coming.push(to);
        }
        let leaving: Vec<Digest> = leaving
            .into_iter()
            .flat_map(|(digest, count)| std::iter::repeat_n(digest, count as usize))
            .collect();
        self.take_out(&leaving, false);
        self.keep(ChangeKind::Add, coming, REPEATED_FOR_EACH);
        self.keep(ChangeKind::AddIfAbsent, staying, REPEATED_FOR_EACH);
        self.keep(ChangeKind::Remove, leaving, REPEATED_FOR_EACH);
        self.view.counters.adds.fetch_add(added.len() as u64, Ordering::Relaxed);
        let replaced = outcomes.iter().filter(|outcome| **outcome == ItemOutcome::Replaced).count() as u64;
        self.tell_items(replaced, FilterChange::Replaced);
        Ok(Outcome::Replaced(outcomes))
    }

    /// Reports how many items a request has changed, if it has changed any.
    fn tell_items(&mut self, count: u64, change: fn(u64) -> FilterChange) {
        if count > 0 {
            self.shared.tell_filter(self.view, change(count));
        }
    }

    /// Removes everything but held and redeemed codes.
    pub(super) fn clear(&mut self) -> Outcome {
        let removed = self.tables.filter.clear();
        self.view.counters.removes.fetch_add(removed, Ordering::Relaxed);
        self.clear_staging();
        self.shared.tell_filter(self.view, FilterChange::Cleared(removed));
        Outcome::Cleared(removed)
    }
}
