//! What becomes of an item that is to be added to a filter.

use super::slot_state::SlotState;

/// What became of an item that was to be added.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Insert {
    /// A copy was stored.
    Added,
    /// Nothing was stored: the item was there already, in this state. A compact filter takes an item that looks alike for it,
    /// and every item in it is available.
    Present(SlotState),
    /// Nothing was stored: two full buckets of a compact filter hold nothing but copies of items that look alike.
    Saturated,
}

/// The filter can't take all the items, and has changed nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the filter is full")]
pub struct Full;
