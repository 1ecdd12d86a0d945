//! Changes of a filter's items: insert, remove, replace, clear. And the life of a code: available, held, redeemed, and back. A code and its
//! redemption always change together.

use super::ledger::ENDED_MAX;
use super::machine::Subject;
use super::tables::{ChangeKind, REPEATED_FOR_EACH, slot_state};
use crate::domain::{
    Count, FilterChange, Inserted, ItemOutcome, Kind, Meaning, Outcome, Redeem, Redemption, RedemptionId,
    RedemptionStatus, RedemptionStep, Refusal, Removed, Timestamp,
};
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
        self.count(Count::Added, added);
        self.queue_inserted(digests, &outcomes, if_absent);
        self.record_items(added, FilterChange::Added);
        Ok(Outcome::Inserted(Inserted { outcomes, added }))
    }

    /// Removes one copy of each item, or all.
    pub(super) fn remove(&mut self, digests: &[Digest], all: bool) -> Result<Outcome, Refusal> {
        self.view.require_added_codes()?;
        let (removed, leaving) = self.take_out(digests, all);
        let kind = if all { ChangeKind::RemoveAll } else { ChangeKind::Remove };
        self.queue_changes(kind, leaving, REPEATED_FOR_EACH);
        self.record_items(removed.removed, FilterChange::Removed);
        Ok(Outcome::Removed(removed))
    }

    /// Removes items, equivalent to one by one: redeemed codes stay, and the hold of a code is withdrawn. Also returns the items that are
    /// absent now, whether they were present or not.
    fn take_out(&mut self, digests: &[Digest], all: bool) -> (Removed, Vec<Digest>) {
        let states = self.tables.filter.reader().view(0).states(digests);
        let is_redeemed = |state: &Option<SlotState>| *state == Some(SlotState::Redeemed);
        let (mut leaving, mut held) = (Vec::with_capacity(digests.len()), Vec::new());
        for (state, &digest) in states.iter().zip(digests).filter(|(state, _)| !is_redeemed(state)) {
            held.extend((*state == Some(SlotState::Held)).then_some(digest));
            leaving.push(digest);
        }
        let copies = self.tables.filter.remove_many(&leaving, all);
        // Only now: a reader would find a code available whose hold is withdrawn and that is still there.
        held.into_iter().for_each(|digest| self.withdraw_hold(digest));
        let mut left = copies.iter();
        let outcomes = states.iter().map(|state| match is_redeemed(state) {
            true => ItemOutcome::AlreadyRedeemed,
            false if left.next().is_some_and(|copies| *copies > 0) => ItemOutcome::Removed,
            false => ItemOutcome::Absent,
        });
        let outcomes = outcomes.collect();
        let removed = copies.iter().map(|copies| u64::from(*copies)).sum();
        self.view.counters.removes.fetch_add(removed, Ordering::Relaxed);
        self.count(Count::Removed, removed);
        (Removed { outcomes, removed }, leaving)
    }

    /// Replaces pairs in order; all or none. All new items are added before any old one is removed. So to undo it, the new ones are
    /// removed, which can't fail.
    pub(super) fn replace(&mut self, from: &[Digest], to: &[Digest]) -> Result<Outcome, Refusal> {
        self.view.require_added_codes()?;
        let is_exact = self.shared.has(Meaning::ExactReplacement);
        let mut outcomes = Vec::with_capacity(from.len());
        let (mut added, mut coming, mut staying) = (Vec::new(), Vec::new(), Vec::new());
        let mut returning = Vec::new();
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
            // An item that takes its own place stays.
            if from == to {
                outcomes.push(ItemOutcome::Replaced);
                staying.push(to);
                continue;
            }
            let Ok(inserted) = self.tables.insert_many(&[to], false) else {
                for &digest in added.iter().rev() {
                    self.tables.filter.remove(digest);
                }
                return Err(Refusal::FilterFull);
            };
            let is_strict = self.tables.filter.mode() == Mode::Strict;
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
        returning.into_iter().for_each(|digest| self.withdraw_hold(digest));
        self.queue_changes(ChangeKind::Add, coming, REPEATED_FOR_EACH);
        self.queue_changes(ChangeKind::AddIfAbsent, staying, REPEATED_FOR_EACH);
        self.queue_changes(ChangeKind::Remove, leaving, REPEATED_FOR_EACH);
        self.view.counters.adds.fetch_add(added.len() as u64, Ordering::Relaxed);
        self.count(Count::Added, added.len() as u64);
        let replaced = outcomes.iter().filter(|outcome| **outcome == ItemOutcome::Replaced).count() as u64;
        self.record_items(replaced, FilterChange::Replaced);
        Ok(Outcome::Replaced(outcomes))
    }

    /// Reports how many items a request has changed, if it has changed any.
    fn record_items(&mut self, count: u64, change: fn(u64) -> FilterChange) {
        if count > 0 {
            self.shared.record_filter(self.view, change(count));
        }
    }

    /// Removes everything but held and redeemed codes.
    pub(super) fn clear(&mut self) -> Outcome {
        let removed = self.tables.filter.clear();
        self.view.counters.removes.fetch_add(removed, Ordering::Relaxed);
        self.count(Count::Removed, removed);
        if let Some(staging) = self.staging {
            // If the upload is still running, the staged tables are cleared at its end.
            staging.changes.clear();
            staging.cleared = true;
            if staging.is_catching_up() {
                self.begin_catching_up();
            }
        }
        self.overtake_imports(None);
        self.shared.record_filter(self.view, FilterChange::Cleared(removed));
        Outcome::Cleared(removed)
    }

    /// Redeems or holds a code. If the same reference asks again, its current redemption is returned.
    pub(super) fn redeem(&mut self, redeem: &Redeem) -> Result<Outcome, Refusal> {
        let &Redeem { digest, redemption: id, ref reference, hold_seconds, .. } = redeem;
        // A campaign may be strict, but has no ledger.
        if self.view.kind == Kind::Campaign || self.view.spec.mode == Mode::Compact {
            return Err(Refusal::RequiresStrictMode);
        }
        let now = self.shared.now;
        let hold = (hold_seconds > 0).then(|| now.plus_seconds(hold_seconds));
        if let Some(current) = self.current(digest).filter(|current| current.reference == *reference) {
            return Ok(Outcome::Settled(match (current.status, hold) {
                (RedemptionStatus::Held, None) => self.settle(current, RedemptionStatus::Redeemed, None),
                (RedemptionStatus::Held, Some(hold)) => {
                    let later = current.expires_at.map_or(hold, |expires_at| expires_at.max(hold));
                    self.settle(current, RedemptionStatus::Held, Some(later))
                }
                _ => current,
            }));
        }
        if self.stored(&id).is_some() {
            return Err(Refusal::AlreadyExists(vec!["id".into()]));
        }
        let stock = self.view.spec.stock;
        match (self.tables.filter.state(digest), stock) {
            (None, None) => return Err(Refusal::CodeUnknown),
            (Some(SlotState::Redeemed), _) => return Err(Refusal::CodeRedeemed),
            (Some(SlotState::Held), _) => return Err(Refusal::CodeHeld),
            _ if !self.view.window.contains(now) => return Err(Refusal::OutsideWindow),
            (Some(SlotState::Available), _) => {}
            (None, Some(stock)) => self.admit(digest, stock)?,
        }
        let redemption = Redemption {
            id,
            digest,
            reference: reference.clone(),
            status: if hold.is_some() { RedemptionStatus::Held } else { RedemptionStatus::Redeemed },
            created_at: now,
            changed_at: now,
            expires_at: hold,
            redeemed_at: hold.is_none().then_some(now),
            ordinal: self.view.ledger.write().take_ordinal(),
        };
        self.enter(redemption.clone());
        Ok(Outcome::Redeemed(redemption))
    }

    /// Adds a code to an open pool, if fewer than `stock` are held or redeemed. Holds that have run out are ended first.
    fn admit(&mut self, digest: Digest, stock: u64) -> Result<(), Refusal> {
        let now = self.shared.now;
        let is_full = |filter: &Self| filter.view.ledger.read().taken() >= stock;
        for _ in 0..ENDED_MAX {
            let overdue = self.view.ledger.read().overdue(now);
            match overdue {
                Some(overdue) if is_full(self) => self.expire_hold(&overdue),
                _ => break,
            }
        }
        if is_full(self) {
            return Err(Refusal::SoldOut);
        }
        self.tables.filter.put(digest, SlotState::Available).map_err(|Full| Refusal::FilterFull)?;
        self.view.counters.adds.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Turns a hold into a redemption.
    pub(super) fn confirm(&mut self, id: &RedemptionId) -> Result<Outcome, Refusal> {
        let redemption = self.redemption(id).ok_or(Refusal::RedemptionNotFound)?;
        match redemption.status {
            RedemptionStatus::Redeemed => Ok(Outcome::Settled(redemption)),
            RedemptionStatus::Held => {
                Ok(Outcome::Settled(self.settle(redemption, RedemptionStatus::Redeemed, None)))
            }
            RedemptionStatus::Expired => Err(Refusal::HoldExpired),
            RedemptionStatus::Cancelled => Err(Refusal::RedemptionCancelled),
        }
    }

    /// Cancels a redemption and frees its code. An ended redemption is returned unchanged: its code may have another one by now.
    pub(super) fn cancel(&mut self, id: &RedemptionId) -> Result<Outcome, Refusal> {
        let redemption = self.redemption(id).ok_or(Refusal::RedemptionNotFound)?;
        Ok(Outcome::Settled(match redemption.status {
            RedemptionStatus::Held | RedemptionStatus::Redeemed => {
                self.end(redemption, RedemptionStatus::Cancelled)
            }
            RedemptionStatus::Expired | RedemptionStatus::Cancelled => redemption,
        }))
    }

    /// Makes a redeemed code available again. Returns whether it was redeemed.
    pub(super) fn revive(&mut self, digest: Digest) -> bool {
        let current = self.current(digest);
        let was_redeemed = self.tables.filter.state(digest) == Some(SlotState::Redeemed);
        match current {
            Some(current) if was_redeemed => drop(self.settle(current, RedemptionStatus::Cancelled, None)),
            // The code's redemption may have been deleted after its retention.
            None if was_redeemed => self.set_code(digest, SlotState::Available, REPEATED_FOR_EACH),
            Some(_) | None => {}
        }
        was_redeemed
    }

    /// Cancels the hold of a code that has been removed, or that is available again.
    pub(super) fn withdraw_hold(&mut self, digest: Digest) {
        if let Some(current) = self.current(digest).filter(|current| current.status == RedemptionStatus::Held)
        {
            self.end(current, RedemptionStatus::Cancelled);
        }
    }

    /// Ends an expired hold. However long ago it expired, its retention starts now: if the clock turns out to have been wrong, the hold is
    /// revived.
    pub(super) fn expire_hold(&mut self, id: &RedemptionId) {
        if let Some(redemption) = self.stored(id) {
            self.shared.holds_expired += 1;
            self.end(redemption, RedemptionStatus::Expired);
        }
    }

    /// Settles a redemption that ends. It retains the end of its hold.
    fn end(&mut self, redemption: Redemption, status: RedemptionStatus) -> Redemption {
        let expires_at = redemption.expires_at;
        self.settle(redemption, status, expires_at)
    }

    /// Returns the current redemption of a code. An expired hold is ended first.
    fn current(&mut self, digest: Digest) -> Option<Redemption> {
        let current = self.view.ledger.read().current(digest).cloned()?;
        if current.has_run_out(self.shared.now) {
            self.expire_hold(&current.id);
            return None;
        }
        self.unless_over(current)
    }

    /// A redemption that can be looked up. If it is a hold that has run out, the hold is ended first.
    fn redemption(&mut self, id: &RedemptionId) -> Option<Redemption> {
        let has_run_out = self.view.ledger.read().get(id)?.has_run_out(self.shared.now);
        if has_run_out {
            self.expire_hold(id);
        }
        self.stored(id).and_then(|redemption| self.unless_over(redemption))
    }

    /// Returns a redemption, unless its retention has passed. An overdue one is deleted now, except an expired hold: that is retained as
    /// long as it may be revived.
    fn unless_over(&mut self, redemption: Redemption) -> Option<Redemption> {
        let retention = self.shared.settings.redemptions_retention_seconds;
        if !redemption.is_past_retention(self.shared.now, retention) {
            return Some(redemption);
        }
        if redemption.status != RedemptionStatus::Expired {
            self.view.ledger.write().remove(&redemption.id);
        }
        None
    }

    fn stored(&self, id: &RedemptionId) -> Option<Redemption> {
        self.view.ledger.read().get(id).cloned()
    }

    /// Stores a new redemption, and sets the state of its code.
    fn enter(&mut self, redemption: Redemption) {
        self.set_code(redemption.digest, slot_state(redemption.status), REPEATED_FOR_EACH);
        self.record_redemption(&redemption, RedemptionStep::Created);
        self.count(redemption.status.into(), 1);
        self.view.ledger.write().insert(redemption);
    }

    /// Changes the status of a current redemption, and the state of its code.
    fn settle(
        &mut self,
        redemption: Redemption,
        status: RedemptionStatus,
        expires_at: Option<Timestamp>,
    ) -> Redemption {
        match status {
            RedemptionStatus::Cancelled | RedemptionStatus::Expired if self.view.spec.stock.is_some() => {
                // In an open pool a code that is not in use is as if it had never been there.
                self.tables.filter.remove(redemption.digest);
                self.view.counters.removes.fetch_add(1, Ordering::Relaxed);
            }
            // Changes caused by time cost commands nothing: no queued change is repeated for them, and no table grows.
            RedemptionStatus::Expired => self.set_code(redemption.digest, slot_state(status), 0),
            _ => self.set_code(redemption.digest, slot_state(status), REPEATED_FOR_EACH),
        }
        let now = self.shared.now;
        let redeemed_at =
            if status == RedemptionStatus::Redeemed { Some(now) } else { redemption.redeemed_at };
        if redemption.status != status {
            self.count(status.into(), 1);
        }
        let step = step(&redemption, status, expires_at);
        let settled = Redemption { status, expires_at, changed_at: now, redeemed_at, ..redemption };
        if let Some(step) = step {
            self.record_redemption(&settled, step);
        }
        self.view.ledger.write().settle(settled.clone());
        settled
    }
}

/// Takes one copy of an item out of those that are to be removed. Returns whether there was one.
fn take_one(leaving: &mut BTreeMap<Digest, u32>, item: Digest) -> bool {
    let Some(copies) = leaving.get_mut(&item) else { return false };
    *copies -= 1;
    if *copies == 0 {
        leaving.remove(&item);
    }
    true
}

/// The step from a current redemption to another status; `None` if no event reports it.
fn step(
    before: &Redemption,
    status: RedemptionStatus,
    expires_at: Option<Timestamp>,
) -> Option<RedemptionStep> {
    match status {
        RedemptionStatus::Held if before.expires_at == expires_at => None,
        RedemptionStatus::Held => Some(RedemptionStep::Extended),
        RedemptionStatus::Redeemed => Some(RedemptionStep::Confirmed),
        RedemptionStatus::Cancelled => Some(RedemptionStep::Cancelled),
        RedemptionStatus::Expired => Some(RedemptionStep::Expired),
    }
}
