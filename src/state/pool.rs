//! What the ledger of an open pool keeps beside its redemptions: which ordinals are taken, and in which order holds run out.

use super::ordinals::Ordinals;
use super::piece::Piece;
use crate::domain::{Redemption, RedemptionId, Timestamp};
use std::collections::BTreeSet;

/// Memory of a hold, in bytes. Rounded up.
const HOLD_BYTES: u64 = 48;

/// The most holds that one redemption ends because they have run out and it needs the room. Its entry has ended others before, of whatever
/// filter.
pub(super) const ENDED_MAX: usize = 1_024;

/// What the ledger of an open pool keeps beside its redemptions.
#[derive(Debug, Default)]
pub(super) struct Pool {
    pub(super) ordinals: Ordinals,
    /// Held redemptions by the time at which they expire.
    holds: BTreeSet<(Timestamp, RedemptionId)>,
}

/// A redemption's place in the order of holds, if it is one.
fn hold(redemption: &Redemption) -> Option<(Timestamp, RedemptionId)> {
    redemption.held_until().map(|expires_at| (expires_at, redemption.id))
}

impl Pool {
    /// Restores a pool from its ordinals. None if the redemptions contradict them.
    pub(super) fn restore<'a>(
        ordinals: Ordinals,
        redemptions: impl Iterator<Item = &'a Redemption>,
    ) -> Option<Self> {
        let mut holds = BTreeSet::new();
        for redemption in redemptions {
            if redemption.stands() && !redemption.ordinal.is_some_and(|own| ordinals.is_taken(own)) {
                return None;
            }
            holds.extend(hold(redemption));
        }
        Some(Self { ordinals, holds })
    }

    /// Takes a redemption of an image. Returns whether that can be.
    pub(super) fn load(&mut self, redemption: &Redemption) -> bool {
        let is_taken = redemption.ordinal.is_some_and(|own| self.ordinals.is_taken(own));
        self.holds.extend(hold(redemption));
        is_taken || !redemption.stands()
    }

    /// Notes that a redemption has changed; `before` is what it was, `after` what it is. The code of one that is forgotten stays redeemed, so
    /// its ordinal stays taken.
    pub(super) fn note(&mut self, before: Option<&Redemption>, after: Option<&Redemption>) {
        if let Some(hold) = before.and_then(hold) {
            self.holds.remove(&hold);
        }
        self.holds.extend(after.and_then(hold));
        let had = before.filter(|redemption| redemption.stands()).and_then(|redemption| redemption.ordinal);
        if let (Some(ordinal), Some(after)) = (had, after)
            && !after.stands()
        {
            self.ordinals.give_back(ordinal);
        }
    }

    /// Takes the ordinal of a hold that stands again, or another one if that is taken.
    pub(super) fn hold_again(&mut self, redemption: &mut Redemption) {
        redemption.ordinal = redemption.ordinal.map(|ordinal| self.ordinals.take_again(ordinal));
        self.holds.extend(hold(redemption));
    }

    /// Puts the holds of these redemptions in order anew.
    pub(super) fn order_holds<'a>(&mut self, redemptions: impl Iterator<Item = &'a Redemption>) {
        self.holds = redemptions.filter_map(hold).collect();
    }

    /// The hold that ran out first, at `now` or earlier.
    pub(super) fn overdue(&self, now: Timestamp) -> Option<RedemptionId> {
        let (expires_at, id) = self.holds.first()?;
        (*expires_at <= now).then_some(*id)
    }

    /// Whether a redemption at `now` would find fewer codes held or redeemed than `stock`. It ends at most [`ENDED_MAX`] holds that have run
    /// out.
    pub(super) fn has_room(&self, stock: u64, now: Timestamp) -> bool {
        let surplus = (self.ordinals.taken() + 1).saturating_sub(stock);
        let Some(surplus) = usize::try_from(surplus).ok().filter(|surplus| *surplus <= ENDED_MAX) else {
            return false;
        };
        let overdue = self.holds.iter().take_while(|(expires_at, _)| *expires_at <= now);
        overdue.take(surplus).count() == surplus
    }

    /// Memory that it takes, in bytes, approximately.
    pub(super) fn memory_bytes(&self) -> u64 {
        self.ordinals.memory_bytes() + self.holds.len() as u64 * HOLD_BYTES
    }

    /// The most memory that so many redemptions can ask for, in bytes.
    pub(super) fn growth_bytes(redemptions: u64) -> u64 {
        Ordinals::growth_bytes(redemptions).saturating_add(redemptions.saturating_mul(HOLD_BYTES))
    }

    /// Its parts, to be freed a little at a time.
    pub(super) fn into_pieces(self) -> Vec<Piece> {
        let mut pieces = self.ordinals.into_pieces();
        pieces.push(Piece::new(self.holds, 1, HOLD_BYTES));
        pieces
    }
}
