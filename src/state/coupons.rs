//! The life of a code: available, held, redeemed, and back. Slot and redemption always change together.

use super::State;
use crate::domain::{
    FilterId, Outcome, Redemption, RedemptionId, Reference, Refusal, Status, Target, Timestamp,
};
use crate::filter::{Digest, Mode, SlotState};

impl State {
    pub(super) fn redeem(
        &mut self,
        target: Target,
        digest: Digest,
        id: RedemptionId,
        reference: Reference,
        hold_seconds: u64,
    ) -> Outcome {
        let now = self.now;
        let Some(bearer) = self.filters.get(&target.0) else {
            return Outcome::Refused(Refusal::FilterGone);
        };
        if bearer.view.spec.mode == Mode::Compact {
            return Outcome::Refused(Refusal::RequiresStrictMode);
        }
        let window = bearer.view.window;
        let hold = (hold_seconds > 0).then(|| now.plus_seconds(hold_seconds));
        let current = self.current(target.0, digest);
        if let Some(current) = current.filter(|current| current.reference == reference) {
            return Outcome::Settled(match (current.status, hold) {
                (Status::Held, None) => self.settle(target.0, current, Status::Redeemed, None),
                (Status::Held, Some(hold)) => {
                    let later = current.expires_at.map_or(hold, |expires_at| expires_at.max(hold));
                    self.settle(target.0, current, Status::Held, Some(later))
                }
                _ => current,
            });
        }
        match self.filters.get(&target.0).and_then(|bearer| bearer.tables.state(digest)) {
            None => Outcome::Refused(Refusal::CodeUnknown),
            Some(SlotState::Redeemed) => Outcome::Refused(Refusal::CodeRedeemed),
            Some(SlotState::Held) => Outcome::Refused(Refusal::CodeHeld),
            Some(SlotState::Available) if !window.contains(now) => Outcome::Refused(Refusal::OutsideWindow),
            Some(SlotState::Available) => {
                let status = if hold.is_some() { Status::Held } else { Status::Redeemed };
                let redemption = Redemption {
                    id,
                    digest,
                    reference,
                    status,
                    created_at: now,
                    changed_at: now,
                    expires_at: hold,
                    redeemed_at: hold.is_none().then_some(now),
                };
                self.enter(target.0, redemption.clone());
                Outcome::Redeemed(redemption)
            }
        }
    }

    pub(super) fn confirm(&mut self, target: Target, id: &RedemptionId) -> Outcome {
        let Some(redemption) = self.redemption(target.0, id) else { return self.not_found(target) };
        match redemption.status {
            Status::Redeemed => Outcome::Settled(redemption),
            Status::Held => Outcome::Settled(self.settle(target.0, redemption, Status::Redeemed, None)),
            Status::Expired => Outcome::Refused(Refusal::HoldExpired),
            Status::Cancelled => Outcome::Refused(Refusal::RedemptionCancelled),
        }
    }

    /// Gives a code back. A redemption that has ended already is answered as it is: whatever has become of its
    /// code since is somebody else's.
    pub(super) fn cancel(&mut self, target: Target, id: &RedemptionId) -> Outcome {
        let Some(redemption) = self.redemption(target.0, id) else { return self.not_found(target) };
        match redemption.status {
            Status::Held | Status::Redeemed => {
                let expires_at = redemption.expires_at;
                Outcome::Settled(self.settle(target.0, redemption, Status::Cancelled, expires_at))
            }
            Status::Expired | Status::Cancelled => Outcome::Settled(redemption),
        }
    }

    fn not_found(&self, target: Target) -> Outcome {
        Outcome::Refused(if self.filters.contains_key(&target.0) {
            Refusal::RedemptionNotFound
        } else {
            Refusal::FilterGone
        })
    }

    /// Makes a used code available again; false if it was not used (any more).
    pub(super) fn revive(&mut self, filter: FilterId, digest: Digest) -> bool {
        if let Some(current) = self.current(filter, digest) {
            let used = current.status == Status::Redeemed;
            if used {
                self.settle(filter, current, Status::Cancelled, None);
            }
            return used;
        }
        // Used so long ago that its redemption is forgotten.
        let Some(bearer) = self.filters.get(&filter) else { return false };
        let used = bearer.tables.state(digest) == Some(SlotState::Redeemed);
        if used {
            self.set_code(filter, digest, SlotState::Available);
        }
        used
    }

    /// Ends the hold of a code that is being withdrawn.
    pub(super) fn withdraw_hold(&mut self, filter: FilterId, digest: Digest) {
        if let Some(current) = self.current(filter, digest).filter(|current| current.status == Status::Held) {
            let expires_at = current.expires_at;
            self.settle(filter, current, Status::Cancelled, expires_at);
        }
    }

    /// Ends a hold whose time has come. However long ago that was, it is kept from now on as others that end now are: a
    /// clock that was wrong may be found out, and then the hold is given back.
    pub(super) fn expire_hold(&mut self, filter: FilterId, id: &RedemptionId) {
        match self.stored(filter, id) {
            Some(redemption) => {
                let expires_at = redemption.expires_at;
                self.holds_expired += 1;
                self.settle(filter, redemption, Status::Expired, expires_at);
            }
            // Its filter was deleted.
            None => drop(self.holds.pop_first()),
        }
    }

    /// Drops a redemption whose retention is over. Its code stays as it is: used codes stay used.
    pub(super) fn forget_redemption(&mut self, filter: FilterId, id: &RedemptionId) {
        if let Some(bearer) = self.filters.get(&filter)
            && let Some(forgotten) = bearer.view.ledger.write().remove(id)
        {
            self.redemptions -= 1;
            self.references_bytes -= forgotten.reference.as_str().len() as u64;
        }
    }

    /// The redemption that stands for a code, its hold ended first if it has run out.
    fn current(&mut self, filter: FilterId, digest: Digest) -> Option<Redemption> {
        let bearer = self.filters.get(&filter)?;
        let current = bearer.view.ledger.read().current(digest).cloned()?;
        if current.has_run_out(self.now) {
            self.expire_hold(filter, &current.id);
            return None;
        }
        self.unless_over(filter, current)
    }

    /// A redemption that can be looked up, its hold ended first if it has run out.
    fn redemption(&mut self, filter: FilterId, id: &RedemptionId) -> Option<Redemption> {
        let redemption = self.stored(filter, id)?;
        if redemption.has_run_out(self.now) {
            self.expire_hold(filter, id);
            return self.stored(filter, id).filter(|expired| !self.is_over(expired));
        }
        self.unless_over(filter, redemption)
    }

    /// A redemption, unless its retention is over. One that only waits to be forgotten is forgotten now, but for a hold that ran
    /// out: that is kept for as long as it may be given back.
    fn unless_over(&mut self, filter: FilterId, redemption: Redemption) -> Option<Redemption> {
        if !self.is_over(&redemption) {
            return Some(redemption);
        }
        if redemption.status != Status::Expired {
            self.dequeue(filter, &redemption);
            self.forget_redemption(filter, &redemption.id);
        }
        None
    }

    fn is_over(&self, redemption: &Redemption) -> bool {
        redemption.is_over(self.now, self.settings.redemptions_retention_seconds)
    }

    fn stored(&self, filter: FilterId, id: &RedemptionId) -> Option<Redemption> {
        self.filters.get(&filter)?.view.ledger.read().get(id).cloned()
    }

    /// Enters a new redemption and sets its code's state.
    fn enter(&mut self, filter: FilterId, redemption: Redemption) {
        self.enqueue(filter, &redemption);
        self.set_code(filter, redemption.digest, slot_state(redemption.status));
        if let Some(bearer) = self.filters.get(&filter) {
            self.redemptions += 1;
            self.references_bytes += redemption.reference.as_str().len() as u64;
            bearer.view.ledger.write().insert(redemption);
        }
    }

    /// Gives a redemption that stands another status, and its code the state that goes with it.
    fn settle(
        &mut self,
        filter: FilterId,
        redemption: Redemption,
        status: Status,
        expires_at: Option<Timestamp>,
    ) -> Redemption {
        self.dequeue(filter, &redemption);
        match status {
            Status::Expired => self.set_code_by_time(filter, redemption.digest, slot_state(status)),
            _ => self.set_code(filter, redemption.digest, slot_state(status)),
        }
        let now = self.now;
        let settled = match self.filters.get(&filter) {
            None => redemption,
            Some(bearer) => {
                let settled = bearer.view.ledger.write().settle(&redemption.id, status, expires_at, now);
                settled.unwrap_or(redemption)
            }
        };
        self.enqueue(filter, &settled);
        settled
    }
}

/// The state of a code whose redemption has this status.
fn slot_state(status: Status) -> SlotState {
    match status {
        Status::Held => SlotState::Held,
        Status::Redeemed => SlotState::Redeemed,
        Status::Cancelled | Status::Expired => SlotState::Available,
    }
}
