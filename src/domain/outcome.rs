//! Outcomes: what the state machine answers to a command. A refusal is one, too: it is decided by the log
//! and the same on every machine, unlike a failure of storage.

use super::{Description, Import, Redemption};
use serde::{Deserialize, Serialize};

/// What became of one item of a list.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum ItemOutcome {
    /// It is in now.
    Added,
    /// It was in already.
    AlreadyPresent,
    /// The filter holds as many copies of it as it can: nothing was stored.
    Saturated,
    /// The code has been used: adding it does not bring it back, and it can't be withdrawn.
    AlreadyRedeemed,
    /// The used code is available again.
    Revived,
    /// It is out now.
    Removed,
    /// It was not in.
    Absent,
    /// The other one stands in its place now.
    Replaced,
}

/// Answer to an insert.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Inserted {
    /// In the order of the request.
    pub outcomes: Vec<ItemOutcome>,
    /// How many were added or revived.
    pub added: u64,
}

/// Answer to a remove.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Removed {
    /// In the order of the request.
    pub outcomes: Vec<ItemOutcome>,
    /// How many copies went.
    pub removed: u64,
}

/// Why a command was refused; it has changed nothing.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Refusal {
    /// The filter that the command was meant for is gone.
    FilterGone,
    /// The name is taken by a filter with another spec; these fields differ.
    AlreadyExists(Vec<String>),
    /// No room for all the items, and the filter can't grow (any more).
    FilterFull,
    /// As many filters as there may be.
    TooManyFilters,
    /// The coupon holds no such code.
    CodeUnknown,
    /// Somebody else has used the code.
    CodeRedeemed,
    /// Somebody else holds the code.
    CodeHeld,
    /// The hold ran out before it was confirmed.
    HoldExpired,
    /// The redemption was cancelled before.
    RedemptionCancelled,
    /// No such redemption, or no longer.
    RedemptionNotFound,
    /// Compact filters can't tell one code from another for sure.
    RequiresStrictMode,
    /// The coupon is not active now.
    OutsideWindow,
    /// The window would end before it begins.
    WindowEndsFirst,
    /// Another request came under the same idempotency key.
    KeyReused,
    /// No room for another idempotency record, and none is old enough to make way.
    IdempotencyFull {
        /// Until the oldest one is.
        retry_after_seconds: u64,
    },
    /// The import of this id went elsewhere, in another mode, or with other lines.
    ImportDiffers,
    /// Its owner has as many unfinished imports as one may have.
    TooManyImports,
    /// No import of this id is running.
    ImportNotFound,
    /// More was changed than could be kept for an import that takes the place of others. It has changed nothing.
    ImportOvertaken,
}

/// What the state machine answers to a command.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Outcome {
    /// The settings hold from here on.
    Configured,
    /// A new filter stands.
    Created(Box<Description>),
    /// A filter with the same spec stands already.
    Exists(Box<Description>),
    /// The window is changed.
    Rescheduled(Box<Description>),
    /// The filter is gone.
    Deleted,
    /// Items were added.
    Inserted(Inserted),
    /// Items were removed.
    Removed(Removed),
    /// Pairs were replaced, in the order of the request.
    Replaced(Vec<ItemOutcome>),
    /// This many items went.
    Cleared(u64),
    /// A new redemption.
    Redeemed(Redemption),
    /// A redemption that was there before: repeated, confirmed, extended or cancelled.
    Settled(Redemption),
    /// How far the import has come.
    Import(Box<Import>),
    /// Nothing was changed.
    Refused(Refusal),
    /// The time is turned back.
    TurnedBack {
        /// Redemptions whose times were brought back.
        redemptions: u64,
        /// Holds that stand again.
        holds: u64,
    },
}

/// An outcome and whether it is an earlier request's.
#[derive(Clone, PartialEq, Debug)]
pub struct Applied {
    /// The outcome.
    pub outcome: Outcome,
    /// Whether it was stored by an earlier request under the same idempotency key.
    pub replayed: bool,
}
