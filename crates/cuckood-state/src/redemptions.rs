//! The life of a code: available, held, redeemed, and back. A code and its redemption always change together.

use super::ledger::{ENDED_MAX, RedemptionView, UseStep};
use super::machine::Subject;
use super::staging::{ChangeKind, REPEATED_FOR_EACH, is_used};
use super::tables::slot_state;
use crate::domain::{
    Happened, ImportState, Kind, Meaning, Outcome, Redeem, Redemption, RedemptionDetails,
    RedemptionId, RedemptionStatus, RedemptionStep, Reference, Refusal, Timestamp,
};
use cuckood_filter::{Digest, Full, Mode, SlotState};
use std::borrow::Cow;
use std::sync::atomic::Ordering;

impl Subject<'_> {
    /// Redeems or holds a code. If the same reference asks again, its current redemption is returned.
    pub(super) fn redeem(
        &mut self,
        redeem: &Redeem,
        customer: Option<Digest>,
    ) -> Result<Outcome, Refusal> {
        let &Redeem {
            digest,
            redemption: id,
            ref reference,
            hold_seconds,
            ..
        } = redeem;
        // A campaign may be strict, but has no ledger.
        if self.filter.view.kind == Kind::Campaign || self.filter.view.spec.mode == Mode::Compact {
            return Err(Refusal::RequiresStrictMode);
        }
        let now = self.shared.now;
        let hold = (hold_seconds > 0).then(|| now.plus_seconds(hold_seconds));
        if let Some(current) = self
            .current_for(digest, reference)
            .filter(|current| current.reference == *reference)
        {
            return Ok(Outcome::Settled(match (current.status, hold) {
                (RedemptionStatus::Held, None) => {
                    self.settle(current, RedemptionStatus::Redeemed, None, false)
                }
                (RedemptionStatus::Held, Some(hold)) => {
                    let later = current
                        .expires_at
                        .map_or(hold, |expires_at| expires_at.max(hold));
                    self.settle(current, RedemptionStatus::Held, Some(later), false)
                }
                _ => current,
            }));
        }
        if self.stored(&id).is_some() {
            return Err(Refusal::AlreadyExists(vec!["id".into()]));
        }
        let supply = self.filter.view.spec.supply;
        if supply.per_customer.is_some() && customer.is_none() {
            return Err(Refusal::CustomerRequired);
        }
        self.end_overdue_holds_for(digest, customer)?;
        if supply.is_open_pool() {
            self.admit(digest)?;
        }
        let redemption = Redemption {
            id,
            digest,
            reference: reference.clone(),
            status: if hold.is_some() {
                RedemptionStatus::Held
            } else {
                RedemptionStatus::Redeemed
            },
            created_at: now,
            changed_at: now,
            expires_at: hold,
            redeemed_at: hold.is_none().then_some(now),
            details: RedemptionDetails {
                ordinal: self.filter.view.ledger.write().take_ordinal(),
                customer,
                is_unreleased: false,
            },
        };
        self.enter(redemption.clone());
        Ok(Outcome::Redeemed(redemption))
    }

    /// Lets a new redemption take a use, if there is one. Holds of the coupon that have run out are ended while that may free it.
    fn end_overdue_holds_for(
        &mut self,
        digest: Digest,
        customer: Option<Digest>,
    ) -> Result<(), Refusal> {
        let has_several_uses = self.filter.view.spec.supply.has_several_uses();
        for _ in 0..ENDED_MAX {
            let may_be_freed = match self.refusal_of_use(digest, customer) {
                None => return Ok(()),
                Some(Refusal::SoldOut | Refusal::CustomerLimit) => true,
                // Of a single use, the hold has not run out.
                Some(Refusal::CodeHeld) => has_several_uses,
                Some(_) => false,
            };
            let overdue = self.filter.view.ledger.read().overdue(self.shared.now);
            match overdue {
                Some(overdue) if may_be_freed => self.expire_hold(&overdue),
                Some(_) | None => break,
            }
        }
        self.refusal_of_use(digest, customer).map_or(Ok(()), Err)
    }

    /// Why a new redemption can't take a use of this code now.
    fn refusal_of_use(&self, digest: Digest, customer: Option<Digest>) -> Option<Refusal> {
        let view = &self.filter.view;
        let state = self.filter.tables.filter.state(digest);
        let ledger = view.ledger.read();
        let is_at_limit = |customer| ledger.is_at_limit(customer);
        match (state, view.spec.supply.stock) {
            (None, None) => Some(Refusal::CodeUnknown),
            (Some(SlotState::Redeemed), _) => Some(Refusal::CodeRedeemed),
            (Some(SlotState::Held), _) => Some(Refusal::CodeHeld),
            // Only that of an image that was made up.
            _ if ledger.is_used_up(digest) => Some(Refusal::CodeRedeemed),
            _ if !view.window.contains(self.shared.now) => Some(Refusal::OutsideWindow),
            _ if customer.is_some_and(is_at_limit) => Some(Refusal::CustomerLimit),
            (None, Some(stock)) if ledger.taken() >= stock => Some(Refusal::SoldOut),
            (Some(SlotState::Available), _) | (None, Some(_)) => None,
        }
    }

    /// Adds a code to an open pool, if the next use is its last one.
    fn admit(&mut self, digest: Digest) -> Result<(), Refusal> {
        let taken = self.filter.view.ledger.read().tally(digest);
        let taken = taken.map_or(0, |tally| tally.taken);
        let is_there = self.filter.tables.filter.state(digest).is_some();
        if is_there || taken + 1 < self.filter.view.spec.supply.uses {
            return Ok(());
        }
        self.filter
            .tables
            .filter
            .put(digest, SlotState::Available)
            .map_err(|Full| Refusal::FilterFull)?;
        self.filter
            .view
            .counters
            .adds
            .fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Turns a hold into a redemption.
    pub(super) fn confirm(&mut self, id: &RedemptionId) -> Result<Outcome, Refusal> {
        let redemption = self.redemption(id).ok_or(Refusal::RedemptionNotFound)?;
        match redemption.status {
            RedemptionStatus::Redeemed => Ok(Outcome::Settled(redemption)),
            RedemptionStatus::Held => Ok(Outcome::Settled(self.settle(
                redemption,
                RedemptionStatus::Redeemed,
                None,
                false,
            ))),
            RedemptionStatus::Expired => Err(Refusal::HoldExpired),
            RedemptionStatus::Cancelled => Err(Refusal::RedemptionCancelled),
        }
    }

    /// Cancels a redemption and frees its use, unless it `keeps_use`. An ended redemption is returned unchanged: its code may have another
    /// one by now.
    pub(super) fn cancel(
        &mut self,
        id: &RedemptionId,
        keeps_use: bool,
    ) -> Result<Outcome, Refusal> {
        let redemption = self.redemption(id).ok_or(Refusal::RedemptionNotFound)?;
        Ok(Outcome::Settled(match redemption.status {
            RedemptionStatus::Held | RedemptionStatus::Redeemed => {
                let expires_at = redemption.expires_at;
                let status = RedemptionStatus::Cancelled;
                self.settle(redemption, status, expires_at, keeps_use)
            }
            RedemptionStatus::Expired | RedemptionStatus::Cancelled => redemption,
        }))
    }

    /// Makes a redeemed code available again. Returns whether it was redeemed.
    pub(super) fn revive(&mut self, digest: Digest) -> bool {
        let current = self.current(digest);
        let was_redeemed = self.filter.tables.filter.state(digest) == Some(SlotState::Redeemed);
        match current {
            Some(current) if was_redeemed => {
                drop(self.settle(current, RedemptionStatus::Cancelled, None, false))
            }
            // The code's redemption may have been deleted after its retention.
            None if was_redeemed => self.set_code(digest, SlotState::Available, REPEATED_FOR_EACH),
            Some(_) | None => {}
        }
        was_redeemed
    }

    /// Cancels the hold of a code that has been removed, or that is available again.
    pub(super) fn withdraw_hold(&mut self, digest: Digest) {
        if let Some(current) = self
            .current(digest)
            .filter(|current| current.status == RedemptionStatus::Held)
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
        self.settle(redemption, status, expires_at, false)
    }

    /// Returns the current redemption of a code with one use. An expired hold is ended first.
    fn current(&mut self, digest: Digest) -> Option<Redemption> {
        let current = self.filter.view.ledger.read().current(digest)?.unpack();
        self.unless_run_out(current)
    }

    /// Returns the redemption that a request for a code under a reference competes with. An expired hold is ended first.
    fn current_for(&mut self, digest: Digest, reference: &Reference) -> Option<Redemption> {
        let ledger = self.filter.view.ledger.read();
        let current = ledger.current_for(digest, reference)?.unpack();
        drop(ledger);
        self.unless_run_out(current)
    }

    fn unless_run_out(&mut self, current: Redemption) -> Option<Redemption> {
        if current.has_run_out(self.shared.now) {
            self.expire_hold(&current.id);
            return None;
        }
        self.unless_over(current)
    }

    /// A redemption that can be looked up. If it is a hold that has run out, the hold is ended first.
    fn redemption(&mut self, id: &RedemptionId) -> Option<Redemption> {
        let has_run_out = self
            .filter
            .view
            .ledger
            .read()
            .get(id)?
            .has_run_out(self.shared.now);
        if has_run_out {
            self.expire_hold(id);
        }
        self.stored(id)
            .and_then(|redemption| self.unless_over(redemption))
    }

    /// Returns a redemption, unless its retention has passed. An overdue one is deleted now, except an expired hold: that is retained as
    /// long as it may be revived.
    fn unless_over(&mut self, redemption: Redemption) -> Option<Redemption> {
        let retention = self.shared.settings.redemptions_retention_seconds;
        if !redemption.is_past_retention(self.shared.now, retention) {
            return Some(redemption);
        }
        if redemption.status != RedemptionStatus::Expired {
            self.filter.view.ledger.write().remove(&redemption.id);
        }
        None
    }

    fn stored(&self, id: &RedemptionId) -> Option<Redemption> {
        let ledger = self.filter.view.ledger.read();
        ledger.get(id).map(RedemptionView::unpack)
    }

    /// Stores a new redemption, and sets the state of its code.
    fn enter(&mut self, redemption: Redemption) {
        let step = match redemption.status {
            RedemptionStatus::Held => UseStep::Hold,
            RedemptionStatus::Redeemed
            | RedemptionStatus::Cancelled
            | RedemptionStatus::Expired => UseStep::Redeem,
        };
        let Redemption {
            digest,
            status,
            details: RedemptionDetails { customer, .. },
            ..
        } = redemption;
        self.record_redemption(&redemption, RedemptionStep::Created);
        self.count(status.into(), 1);
        let mut ledger = self.filter.view.ledger.write();
        ledger.count_use(digest, customer, step);
        ledger.insert(redemption);
        drop(ledger);
        if let Some(state) = self.state_of_use(digest, slot_state(status)) {
            self.set_code(digest, state, REPEATED_FOR_EACH);
        }
    }

    /// The state of a code that is used, for a redemption whose own state is `state`: of several uses, all of them decide. `None` if the code
    /// can be used.
    pub(super) fn state_of_use(&self, digest: Digest, state: SlotState) -> Option<SlotState> {
        let ledger = self.filter.view.ledger.read();
        if !self.filter.view.spec.supply.has_several_uses() {
            return Some(state).filter(|state| is_used(Some(*state)));
        }
        let tally = ledger.tally(digest).filter(|_| ledger.is_used_up(digest))?;
        if tally.held > 0 {
            Some(SlotState::Held)
        } else {
            Some(SlotState::Redeemed)
        }
    }

    /// Frees a code after a use of it, if that was its last one.
    fn free_code(&mut self, digest: Digest, repeated: u64) {
        let view = &self.filter.view;
        let is_open_pool = view.spec.supply.is_open_pool();
        if !is_open_pool && !self.shared.has(Meaning::Withdrawal) {
            return self.set_code(digest, SlotState::Available, repeated);
        }
        // It may have been removed, and of several uses others may have been left.
        if is_used(self.filter.tables.filter.state(digest)) {
            let ledger = view.ledger.read();
            let number = ledger.member_number(digest);
            let is_member = number.is_none_or(|number| ledger.membership.contains(number));
            drop(ledger);
            // In an open pool a code that is not in use is as if it had never been there.
            if is_member && !is_open_pool {
                self.filter
                    .tables
                    .filter
                    .set_state(digest, SlotState::Available);
            } else {
                self.filter.tables.filter.remove(digest);
                self.filter
                    .view
                    .counters
                    .removes
                    .fetch_add(1, Ordering::Relaxed);
            }
        }
        self.follow_use(digest, None, repeated);
    }

    /// Changes the status of a current redemption, and the state of its code. One that ends frees its use, unless it `keeps_use`.
    fn settle(
        &mut self,
        redemption: Redemption,
        status: RedemptionStatus,
        expires_at: Option<Timestamp>,
        keeps_use: bool,
    ) -> Redemption {
        let Redemption {
            digest, details, ..
        } = redemption;
        if let Some(step) = use_step(&redemption, status, keeps_use) {
            let mut ledger = self.filter.view.ledger.write();
            ledger.count_use(digest, details.customer, step);
        }
        // Changes caused by time cost commands nothing: no queued change is repeated for them, and no table grows.
        let repeated = match status {
            RedemptionStatus::Expired => 0,
            RedemptionStatus::Held | RedemptionStatus::Redeemed | RedemptionStatus::Cancelled => {
                REPEATED_FOR_EACH
            }
        };
        let state = if keeps_use {
            SlotState::Redeemed
        } else {
            slot_state(status)
        };
        match self.state_of_use(digest, state) {
            Some(state) => self.set_code(digest, state, repeated),
            None => self.free_code(digest, repeated),
        }
        let is_unreleased = match status {
            RedemptionStatus::Held | RedemptionStatus::Redeemed => false,
            RedemptionStatus::Cancelled | RedemptionStatus::Expired => {
                keeps_use || self.is_withdrawn(digest)
            }
        };
        let now = self.shared.now;
        let redeemed_at = if status == RedemptionStatus::Redeemed {
            Some(now)
        } else {
            redemption.redeemed_at
        };
        if redemption.status != status {
            self.count(status.into(), 1);
        }
        let step = step(&redemption, status, expires_at, is_unreleased);
        let settled = Redemption {
            status,
            expires_at,
            changed_at: now,
            redeemed_at,
            details: RedemptionDetails {
                is_unreleased,
                ..details
            },
            ..redemption
        };
        if let Some(step) = step {
            self.record_redemption(&settled, step);
        }
        let mut ledger = self.filter.view.ledger.write();
        ledger.settle(settled.clone(), keeps_use);
        drop(ledger);
        settled
    }

    /// Whether a code that must be added can't be used, although one of its uses has just ended.
    fn is_withdrawn(&self, digest: Digest) -> bool {
        self.shared.has(Meaning::Withdrawal)
            && !self.filter.view.spec.supply.is_open_pool()
            && self.filter.tables.filter.state(digest) != Some(SlotState::Available)
    }

    /// Changes a code's state. While an import catches up, `repeated` queued changes are repeated for it.
    pub(super) fn set_code(&mut self, digest: Digest, state: SlotState, repeated: u64) {
        self.filter.tables.filter.set_state(digest, state);
        let used = Some(state).filter(|state| is_used(Some(*state)));
        self.follow_use(digest, used, repeated);
    }

    /// Lets staged tables that catch up follow the use of a code. Before they start to, that is not necessary: their walk will find the code
    /// in this state.
    fn follow_use(&mut self, digest: Digest, used: Option<SlotState>, repeated: u64) {
        let Some(staging) = &mut self.filter.staging else {
            return;
        };
        if !staging.is_catching_up() {
            return;
        }
        if staging.membership.is_none() {
            return self.queue_changes(ChangeKind::State, [digest], repeated);
        }
        let number = self.filter.view.ledger.read().member_number(digest);
        if staging.follow(digest, number, used).is_err() {
            self.abort_staging(ImportState::Failed);
        }
    }

    /// Records a change of a redemption. The expiry or revival of a hold has no requester.
    pub(super) fn record_redemption(&mut self, redemption: &Redemption, step: RedemptionStep) {
        let what = || Happened::Redemption {
            coupon: Cow::Borrowed(self.filter.view.name.as_str()),
            id: redemption.id,
            reference: Cow::Borrowed(redemption.reference.as_str()),
            step,
            status: redemption.status,
            expires_at: redemption.held_until(),
            ordinal: redemption.details.ordinal,
        };
        let now = self.shared.now;
        match step {
            RedemptionStep::Expired
            | RedemptionStep::ExpiredUnreleased
            | RedemptionStep::HeldAgain => self.shared.events.record_unrequested(now, what),
            RedemptionStep::Created
            | RedemptionStep::Extended
            | RedemptionStep::Confirmed
            | RedemptionStep::Cancelled
            | RedemptionStep::CancelledUnreleased => self.shared.events.record(now, what),
        }
    }
}

/// The step from a current redemption to another status; `None` if no event reports it.
fn step(
    before: &Redemption,
    status: RedemptionStatus,
    expires_at: Option<Timestamp>,
    is_unreleased: bool,
) -> Option<RedemptionStep> {
    match status {
        RedemptionStatus::Held if before.expires_at == expires_at => None,
        RedemptionStatus::Held => Some(RedemptionStep::Extended),
        RedemptionStatus::Redeemed => Some(RedemptionStep::Confirmed),
        RedemptionStatus::Cancelled if is_unreleased => Some(RedemptionStep::CancelledUnreleased),
        RedemptionStatus::Cancelled => Some(RedemptionStep::Cancelled),
        RedemptionStatus::Expired if is_unreleased => Some(RedemptionStep::ExpiredUnreleased),
        RedemptionStatus::Expired => Some(RedemptionStep::Expired),
    }
}

/// How the step from a current redemption to another status changes the uses of its code and its customer, if it does.
fn use_step(before: &Redemption, status: RedemptionStatus, keeps_use: bool) -> Option<UseStep> {
    let was_held = before.status == RedemptionStatus::Held;
    match status {
        RedemptionStatus::Held => None,
        RedemptionStatus::Redeemed => was_held.then_some(UseStep::Settle),
        RedemptionStatus::Cancelled | RedemptionStatus::Expired if keeps_use => {
            was_held.then_some(UseStep::Settle)
        }
        RedemptionStatus::Cancelled | RedemptionStatus::Expired if was_held => {
            Some(UseStep::EndHold)
        }
        RedemptionStatus::Cancelled | RedemptionStatus::Expired => Some(UseStep::EndRedemption),
    }
}
