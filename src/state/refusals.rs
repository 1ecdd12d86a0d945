//! What readers can tell of a redemption before it is logged: that it will be refused, whenever it is applied.

use super::view::FilterView;
use crate::domain::{Reference, Refusal, Status, Timestamp, WindowPosition};
use crate::filter::{Digest, Mode, SlotState};

impl FilterView {
    /// The refusal that an entry which redeems or holds this code would get now. It must be the same at every time from `logged`, that of the
    /// last entry, to `now`, and the entry must do nothing else to this coupon. None otherwise.
    ///
    /// The state must not change meanwhile, and the view must be the newest one of its filter.
    pub fn certain_refusal(
        &self,
        digest: Digest,
        reference: &Reference,
        logged: Timestamp,
        now: Timestamp,
    ) -> Option<Refusal> {
        if self.spec.mode == Mode::Compact {
            return None;
        }
        let state = self.reader.view(0).state(digest);
        if state.is_none() && self.spec.stock.is_none() {
            return Some(Refusal::CodeUnknown);
        }
        let ledger = self.ledger.read();
        let current = ledger.current(digest);
        // The same reference gets its redemption again, and a hold that has run out is ended.
        if current.is_some_and(|current| current.reference == *reference || current.has_run_out(now)) {
            return None;
        }
        match (state, self.spec.stock) {
            (Some(SlotState::Redeemed), _) => Some(Refusal::CodeRedeemed),
            (Some(SlotState::Held), _) => {
                current.filter(|current| current.status == Status::Held).map(|_| Refusal::CodeHeld)
            }
            (Some(SlotState::Available), _) | (None, Some(_)) if self.is_certainly_inactive(logged, now) => {
                Some(Refusal::OutsideWindow)
            }
            // Holds that have run out make room.
            (None, Some(stock)) if ledger.taken() >= stock && ledger.overdue(now).is_none() => {
                self.is_certainly_active(logged, now).then_some(Refusal::SoldOut)
            }
            _ => None,
        }
    }

    /// Whether the coupon is outside its window from `logged` to `now`. Only an entry moves the time past the end for good: a clock may be set
    /// back.
    fn is_certainly_inactive(&self, logged: Timestamp, now: Timestamp) -> bool {
        self.window.position(now) == WindowPosition::Before
            || self.window.position(logged) == WindowPosition::After
    }

    fn is_certainly_active(&self, logged: Timestamp, now: Timestamp) -> bool {
        self.window.contains(logged) && self.window.contains(now)
    }
}
