//! The state of an item in a strict filter, as two bits of its slot.

use std::ops::{AddAssign, SubAssign};

/// Bits of a strict slot that hold the state; the digest lies above them.
pub(super) const STATE_BITS: u32 = 2;

/// The bits of a strict slot that hold the state.
pub(super) const STATE_MASK: u64 = (1 << STATE_BITS) - 1;

/// What has become of an item in a strict filter.
///
/// No state is zero, so a taken slot is never zero either.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum SlotState {
    /// Nobody has claimed it.
    Available = 1,
    /// Somebody holds it for a while.
    Held = 2,
    /// It has been used.
    Redeemed = 3,
}

impl SlotState {
    /// The state in a slot's value.
    pub(super) fn of(value: u64) -> Self {
        match value & STATE_MASK {
            2 => SlotState::Held,
            3 => SlotState::Redeemed,
            _ => SlotState::Available,
        }
    }

    pub(super) fn bits(self) -> u64 {
        self as u64
    }
}

/// How many items of a strict filter are in each state.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StateCounts {
    /// Items that nobody has claimed.
    pub available: u64,
    /// Items that are held.
    pub held: u64,
    /// Items that have been used.
    pub redeemed: u64,
}

impl AddAssign for StateCounts {
    fn add_assign(&mut self, other: Self) {
        self.available += other.available;
        self.held += other.held;
        self.redeemed += other.redeemed;
    }
}

impl SubAssign for StateCounts {
    fn sub_assign(&mut self, other: Self) {
        self.available -= other.available;
        self.held -= other.held;
        self.redeemed -= other.redeemed;
    }
}
