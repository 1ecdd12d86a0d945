//! The time turned back, after a clock that was far ahead has stamped entries. The log stays as it is: what was acknowledged
//! under the wrong time stands. What lies in the future is brought back to now, and a hold that only the wrong clock has
//! ended is given back, if its code is still there to be held.
//!
//! Whatever is later than now was made by the wrong clock, but for the ends of holds: those are believed as far as a hold can
//! last. What the wrong clock has forgotten is gone: stored answers, and redemptions whose end was
//! logged longer ago for it than their retention. Used codes stay used all the same. Of a hold that it has ended the end was logged
//! by itself: so that is there, however far ahead it was, until it has been wrong for as long as the retention.

use super::State;
use crate::domain::redemption::HOLD_SECONDS_MAX;
use crate::domain::{Outcome, Redemption, RedemptionId, Status, Timestamp};
use crate::filter::{Digest, SlotState};
use std::sync::Arc;

impl State {
    /// Turns the time back; answers what was changed.
    pub(super) fn turn_back(&mut self, now: Timestamp) -> Outcome {
        self.now = now;
        self.records.turn_back(now);
        self.view.imports.write().turn_back(now);
        // What deleted filters have left in the queues goes with them.
        self.holds.clear();
        self.ended.clear();
        let (mut redemptions, mut holds) = (0, 0);
        let filters: Vec<_> = self.filters.keys().copied().collect();
        for filter in filters {
            let Some(bearer) = self.filters.get_mut(&filter) else { continue };
            let shared = bearer.view.ledger.clone();
            let mut ledger = shared.write();
            let ended_too_soon = held_by_rights(ledger.iter(), now);
            redemptions += ledger.amend(|redemption| brought_back(redemption, now));
            let is_free = |digest| bearer.tables.state(digest) == Some(SlotState::Available);
            let again: Vec<Digest> = ended_too_soon
                .into_iter()
                .filter(|(id, digest)| is_free(*digest) && ledger.hold_again(id))
                .map(|(_, digest)| digest)
                .collect();
            if bearer.view.created_at > now {
                bearer.view = Arc::new(bearer.view.with_created_at(now));
                let view = bearer.view.clone();
                self.show(view);
            }
            for redemption in ledger.iter() {
                self.enqueue(filter, redemption);
            }
            drop(ledger);
            holds += again.len() as u64;
            for digest in again {
                self.set_code_by_time(filter, digest, SlotState::Held);
            }
        }
        Outcome::TurnedBack { redemptions, holds }
    }
}

/// The latest time at which a hold can end.
fn latest_end(now: Timestamp) -> Timestamp {
    now.plus_seconds(HOLD_SECONDS_MAX)
}

/// Holds that the wrong clock has ended: made before now, to end after it. Where two were made for one code, the older comes
/// first.
fn held_by_rights<'a>(
    redemptions: impl Iterator<Item = &'a Redemption>,
    now: Timestamp,
) -> Vec<(RedemptionId, Digest)> {
    let ended_too_soon = |redemption: &&Redemption| {
        let ends = redemption.expires_at.unwrap_or_default();
        redemption.status == Status::Expired
            && redemption.created_at <= now
            && now < ends
            && ends <= latest_end(now)
    };
    let mut found: Vec<_> = redemptions.filter(ended_too_soon).collect();
    found.sort_by_key(|redemption| (redemption.created_at, redemption.id));
    found.into_iter().map(|redemption| (redemption.id, redemption.digest)).collect()
}

/// A redemption that the wrong clock has changed, with no time later than now but the end of a hold: that lasts as long as it
/// was asked for, from now on.
fn brought_back(redemption: &Redemption, now: Timestamp) -> Option<Redemption> {
    if redemption.changed_at <= now && redemption.created_at <= now {
        return None;
    }
    let lasted =
        |end: Timestamp| Timestamp(now.0.saturating_add(end.0.saturating_sub(redemption.changed_at.0)));
    let brought = |end: Timestamp| match redemption.status {
        Status::Held if end > latest_end(now) => lasted(end).min(latest_end(now)),
        _ => end.min(latest_end(now)),
    };
    Some(Redemption {
        created_at: redemption.created_at.min(now),
        changed_at: redemption.changed_at.min(now),
        expires_at: redemption.expires_at.map(brought),
        redeemed_at: redemption.redeemed_at.map(|at| at.min(now)),
        ..redemption.clone()
    })
}
