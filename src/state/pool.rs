//! What the ledger of an open pool keeps beside its redemptions: which ordinals are taken, and in which order holds run out.

use super::ordinals::Ordinals;
use super::piece::Piece;
use crate::domain::spec::STOCK_MAX;
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
    /// While an image comes in: the ordinals of its redemptions that stand. No two have the same one.
    loaded: Ordinals,
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
        mut redemptions: impl Iterator<Item = &'a Redemption>,
        is_loading: bool,
    ) -> Option<Self> {
        let mut pool = Self { ordinals, ..Self::default() };
        let is_right = redemptions.all(|redemption| pool.load(redemption));
        if !is_loading {
            pool.loaded = Ordinals::default();
        }
        is_right.then_some(pool)
    }

    /// Takes a redemption of an image. Returns whether that can be: its ordinal is one that a pool can give, and taken by it alone if it
    /// stands.
    pub(super) fn load(&mut self, redemption: &Redemption) -> bool {
        let Some(own) = redemption.ordinal.filter(|own| (1..=STOCK_MAX).contains(own)) else { return false };
        self.holds.extend(hold(redemption));
        !redemption.stands() || self.ordinals.is_taken(own) && self.loaded.take_this(own)
    }

    /// Forgets what only the image needed.
    pub(super) fn finish_loading(&mut self) {
        self.loaded = Ordinals::default();
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

    /// Takes the ordinal of a hold that stands again, or another one if that is taken, or so high that a pool with this many redemptions
    /// can't have given it.
    pub(super) fn hold_again(&mut self, redemption: &mut Redemption, redemptions: u64) {
        let highest = self.ordinals.taken().saturating_add(redemptions);
        redemption.ordinal =
            redemption.ordinal.map(|ordinal| match ordinal <= highest && self.ordinals.take_this(ordinal) {
                true => ordinal,
                false => self.ordinals.take(),
            });
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
        self.ordinals.memory_bytes() + self.loaded.memory_bytes() + self.holds.len() as u64 * HOLD_BYTES
    }

    /// The most memory that so many redemptions can ask for, in bytes.
    pub(super) fn growth_bytes(redemptions: u64) -> u64 {
        // Twice while an image comes in.
        (2 * Ordinals::growth_bytes(redemptions)).saturating_add(redemptions.saturating_mul(HOLD_BYTES))
    }

    /// Its parts, to be freed a little at a time.
    pub(super) fn into_pieces(self) -> Vec<Piece> {
        let mut pieces = self.ordinals.into_pieces();
        pieces.extend(self.loaded.into_pieces());
        pieces.push(Piece::new(self.holds, 1, HOLD_BYTES));
        pieces
    }
}
