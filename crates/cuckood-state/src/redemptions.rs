//! The life of a code: available, held, redeemed, and back. A code and its redemption always change together.

use super::ledger::{ENDED_MAX, RedemptionView};
use super::machine::Subject;
use super::staging::{ChangeKind, REPEATED_FOR_EACH};
use super::tables::slot_state;
use crate::domain::{
    Happened, Kind, Outcome, Redeem, Redemption, RedemptionId, RedemptionStatus, RedemptionStep,
    Refusal, Timestamp,
};
use cuckood_filter::{Digest, Full, Mode, SlotState};
use std::borrow::Cow;
use std::sync::atomic::Ordering;

impl Subject<'_> {
    /// Redeems or holds a code. If the same reference asks again, its current redemption is returned.
    pub(super) fn redeem(&mut self, redeem: &Redeem) -> Result<Outcome, Refusal> {
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
            .current(digest)
            .filter(|current| current.reference == *reference)
        {
            return Ok(Outcome::Settled(match (current.status, hold) {
                (RedemptionStatus::Held, None) => {
                    self.settle(current, RedemptionStatus::Redeemed, None)
                }
                (RedemptionStatus::Held, Some(hold)) => {
                    let later = current
                        .expires_at
                        .map_or(hold, |expires_at| expires_at.max(hold));
                    self.settle(current, RedemptionStatus::Held, Some(later))
                }
                _ => current,
            }));
        }
        if self.stored(&id).is_some() {
            return Err(Refusal::AlreadyExists(vec!["id".into()]));
        }
        let stock = self.filter.view.spec.stock;
        match (self.filter.tables.filter.state(digest), stock) {
            (None, None) => return Err(Refusal::CodeUnknown),
            (Some(SlotState::Redeemed), _) => return Err(Refusal::CodeRedeemed),
            (Some(SlotState::Held), _) => return Err(Refusal::CodeHeld),
            _ if !self.filter.view.window.contains(now) => return Err(Refusal::OutsideWindow),
            (Some(SlotState::Available), _) => {}
            (None, Some(stock)) => self.admit(digest, stock)?,
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
            ordinal: self.filter.view.ledger.write().take_ordinal(),
        };
        self.enter(redemption.clone());
        Ok(Outcome::Redeemed(redemption))
    }

    /// Adds a code to an open pool, if fewer than `stock` are held or redeemed. Holds that have run out are ended first.
    fn admit(&mut self, digest: Digest, stock: u64) -> Result<(), Refusal> {
        let now = self.shared.now;
        let is_full = |subject: &Self| subject.filter.view.ledger.read().taken() >= stock;
        for _ in 0..ENDED_MAX {
            let overdue = self.filter.view.ledger.read().overdue(now);
            match overdue {
                Some(overdue) if is_full(self) => self.expire_hold(&overdue),
                _ => break,
            }
        }
        if is_full(self) {
            return Err(Refusal::SoldOut);
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
            ))),
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
        let was_redeemed = self.filter.tables.filter.state(digest) == Some(SlotState::Redeemed);
        match current {
            Some(current) if was_redeemed => {
                drop(self.settle(current, RedemptionStatus::Cancelled, None))
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
        self.settle(redemption, status, expires_at)
    }

    /// Returns the current redemption of a code. An expired hold is ended first.
    fn current(&mut self, digest: Digest) -> Option<Redemption> {
        let current = self.filter.view.ledger.read().current(digest)?.unpack();
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
        self.set_code(
            redemption.digest,
            slot_state(redemption.status),
            REPEATED_FOR_EACH,
        );
        self.record_redemption(&redemption, RedemptionStep::Created);
        self.count(redemption.status.into(), 1);
        self.filter.view.ledger.write().insert(redemption);
    }

    /// Changes the status of a current redemption, and the state of its code.
    fn settle(
        &mut self,
        redemption: Redemption,
        status: RedemptionStatus,
        expires_at: Option<Timestamp>,
    ) -> Redemption {
        match status {
            RedemptionStatus::Cancelled | RedemptionStatus::Expired
                if self.filter.view.spec.stock.is_some() =>
            {
                // In an open pool a code that is not in use is as if it had never been there.
                self.filter.tables.filter.remove(redemption.digest);
                self.filter
                    .view
                    .counters
                    .removes
                    .fetch_add(1, Ordering::Relaxed);
            }
            // Changes caused by time cost commands nothing: no queued change is repeated for them, and no table grows.
            RedemptionStatus::Expired => self.set_code(redemption.digest, slot_state(status), 0),
            _ => self.set_code(redemption.digest, slot_state(status), REPEATED_FOR_EACH),
        }
        let now = self.shared.now;
        let redeemed_at = if status == RedemptionStatus::Redeemed {
            Some(now)
        } else {
            redemption.redeemed_at
        };
        if redemption.status != status {
            self.count(status.into(), 1);
        }
        let step = step(&redemption, status, expires_at);
        let settled = Redemption {
            status,
            expires_at,
            changed_at: now,
            redeemed_at,
            ..redemption
        };
        if let Some(step) = step {
            self.record_redemption(&settled, step);
        }
        self.filter.view.ledger.write().settle(settled.clone());
        settled
    }

    /// Changes a code's state. While an import catches up, `repeated` queued changes are repeated for it.
    pub(super) fn set_code(&mut self, digest: Digest, state: SlotState, repeated: u64) {
        self.filter.tables.filter.set_state(digest, state);
        // Before an import starts to catch up this need not be queued: its walk will find the code in this state.
        if self
            .filter
            .staging
            .as_ref()
            .is_some_and(|staging| staging.is_catching_up())
        {
            self.queue_changes(ChangeKind::State, [digest], repeated);
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
            ordinal: redemption.ordinal,
        };
        let now = self.shared.now;
        match step {
            RedemptionStep::Expired | RedemptionStep::HeldAgain => {
                self.shared.events.record_unrequested(now, what)
            }
            _ => self.shared.events.record(now, what),
        }
    }
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
