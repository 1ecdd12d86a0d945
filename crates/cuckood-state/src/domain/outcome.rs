//! Outcomes: the results of applying commands. A refusal is an outcome too. Unlike a storage failure, it follows from the log and
//! is the same on every machine.

use super::{
    Annotations, Description, ImageFault, Import, Inserted, ItemOutcome, Redemption, Removed,
    Tripped,
};
use serde::{Deserialize, Serialize};

/// The reason to refuse a command. A refused command has changed nothing.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Refusal {
    /// The filter was deleted.
    FilterGone,
    /// A filter of this name exists with another spec; these fields differ.
    AlreadyExists(Vec<String>),
    /// The items don't all fit, and the filter can't grow further.
    FilterFull,
    /// The limit on the number of filters is reached.
    TooManyFilters,
    /// The coupon has no such code.
    CodeUnknown,
    /// All uses of the code are redeemed, under other references.
    CodeRedeemed,
    /// All uses of the code are held or redeemed, under other references, and some are held.
    CodeHeld,
    /// The hold expired before it was confirmed.
    HoldExpired,
    /// The redemption has been cancelled.
    RedemptionCancelled,
    /// There is no such redemption, or its retention is over.
    RedemptionNotFound,
    /// Compact filters can't distinguish codes with certainty.
    RequiresStrictMode,
    /// The coupon is not active now.
    OutsideWindow,
    /// The window would end before it starts.
    WindowEndsFirst,
    /// There would be too many labels.
    TooManyLabels,
    /// A capacity can only be raised.
    CapacityLowered {
        /// The capacity in force.
        capacity: u64,
    },
    /// A filter of fixed size keeps its capacity.
    CapacityFixed,
    /// The filter can't have a table that is large enough.
    CapacityBeyondReach,
    /// The coupon is no open pool, so it has no stock.
    NoStock,
    /// A coupon of fixed size has too little capacity for the stock.
    StockBeyondCapacity {
        /// The capacity.
        capacity: u64,
    },
    /// All codes of the open pool's stock are held or redeemed.
    SoldOut,
    /// The coupon is an open pool, whose codes are not added.
    RequiresAddedCodes,
    /// The idempotency key was used for another request.
    KeyReused,
    /// There is no space for another idempotency record, and none may be deleted yet.
    IdempotencyFull {
        /// Seconds until the oldest record may be dropped.
        retry_after_seconds: u64,
    },
    /// The import of this id has another target, another mode, other guards or other lines.
    ImportDiffers,
    /// The import violates one of its guards. Nothing more is added, and nothing is replaced.
    ImportGuarded(Tripped),
    /// The owner has the maximum number of unfinished imports.
    TooManyImports,
    /// No import of this id is running.
    ImportNotFound,
    /// Another replacement started, or more changes arrived than can be queued for this one. It has changed nothing.
    ImportOvertaken,
    /// There is no line-up of this name.
    LineUpNotFound,
    /// The limit on the number or the size of all line-ups is reached.
    TooManyLineUps,
    /// A filter has the name that was meant for an image's.
    NameTaken,
    /// The maximum number of images is being uploaded.
    TooManyImages,
    /// No such image upload exists. It may have made no progress for too long.
    ImageNotFound,
    /// The image is rejected, and its upload dropped.
    ImageDamaged(ImageFault),
    /// Redemptions of the coupon have a customer.
    CustomerRequired,
    /// The customer has as many uses as one can have.
    CustomerLimit,
}

/// The result of applying a command.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Outcome {
    /// The new settings are in force.
    Configured,
    /// A filter was created.
    Created(Box<Description>),
    /// A filter with the same spec already exists. Its title and labels may have changed.
    Exists(Box<Description>),
    /// The window, the capacity, the stock, the title or labels were changed.
    Updated(Box<Description>),
    /// The filter was deleted.
    Deleted,
    /// Items were added.
    Inserted(Inserted),
    /// Items were removed.
    Removed(Removed),
    /// Pairs were replaced, in the order of the request.
    Replaced(#[serde(serialize_with = "super::items::serialize_outcomes")] Vec<ItemOutcome>),
    /// This many items were removed.
    Cleared(u64),
    /// A new redemption, or a new hold.
    Redeemed(Redemption),
    /// An existing redemption: repeated, confirmed, extended or cancelled.
    Settled(Redemption),
    /// The import's progress.
    Import(Box<Import>),
    /// The command was refused; nothing was changed.
    Refused(Refusal),
    /// Some items have moved, if any had to.
    Advanced,
    /// The time was turned back.
    TurnedBack {
        /// Redemptions whose times were moved back.
        redemptions: u64,
        /// Holds that are active again.
        holds: u64,
    },
    /// The line-up is as the command says.
    LineUpStored {
        /// Whether there was none of this name before.
        created: bool,
        /// Its title and labels.
        annotations: Box<Annotations>,
    },
    /// The line-up was deleted.
    LineUpDeleted,
    /// The log continues from a backup.
    Restored,
    /// A part of an image was received.
    ImageReceived,
    /// The image upload was aborted, if it existed.
    ImageAbandoned,
    /// Entries of the version may follow.
    Enabled,
    /// The entry can't be applied, and `cuckood repair skip` has marked it.
    Skipped,
}

/// An outcome, and whether it was replayed.
#[derive(Clone, PartialEq, Debug)]
pub struct Applied {
    /// The outcome.
    pub outcome: Outcome,
    /// Whether an earlier request with the same idempotency key produced it.
    pub replayed: bool,
}
