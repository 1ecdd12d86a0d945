//! Events: changes of campaigns, coupons, line-ups, imports and redemptions, as the state machine reports them. An event names no item.

use super::{
    ImportCounts, ImportMode, ImportState, Kind, RedemptionId, RedemptionStatus, Timestamp, Window,
};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// The most bytes of an encoded event. Its texts are limited to 128 bytes each.
pub const EVENT_BYTES_MAX: usize = 1_024;

/// How far event numbers jump at least when a backup is restored. Events that were made after the backup have lower numbers, so no
/// reader confuses them with the ones that follow.
pub const RESTORE_LEAP: u64 = 1 << 32;

/// Event numbers for each second of the clock at a restore: no machine makes more events in a second. So the numbers after two restores of
/// one backup differ. They stay below 2^53, up to which every JSON reader is exact.
pub const RESTORE_NUMBERS_A_SECOND: u64 = 1 << 20;

/// Something that has happened.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Event<'a> {
    /// The time of the log's entry.
    pub at: Timestamp,
    /// The name of the API key that asked for it; `None` if no key did, or time did it.
    pub by: Option<Cow<'a, str>>,
    /// The change.
    pub what: Happened<'a>,
}

/// A change. New kinds are appended, because events are stored.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Happened<'a> {
    /// To a campaign or coupon.
    Filter {
        /// Campaign or coupon.
        kind: Kind,
        /// Its name.
        name: Cow<'a, str>,
        /// What.
        change: FilterChange,
    },
    /// To a line-up.
    LineUp {
        /// Its name.
        name: Cow<'a, str>,
        /// What.
        change: LineUpChange,
    },
    /// An import ended: it is no longer running.
    ImportEnded {
        /// The kind of its target.
        kind: Kind,
        /// The name of its target.
        name: Cow<'a, str>,
        /// Its id.
        import: Cow<'a, str>,
        /// Its mode.
        mode: ImportMode,
        /// The state in which it ended.
        state: ImportState,
        /// Lines, and their results.
        counts: ImportCounts,
    },
    /// A redemption changed.
    Redemption {
        /// The coupon.
        coupon: Cow<'a, str>,
        /// Its id.
        id: RedemptionId,
        /// The caller's id.
        reference: Cow<'a, str>,
        /// How it changed.
        step: RedemptionStep,
        /// Its status now.
        status: RedemptionStatus,
        /// If it is held: until when.
        expires_at: Option<Timestamp>,
        /// In an open pool: its number.
        ordinal: Option<u64>,
    },
    /// The log's time was turned back by `cuckood repair clock`.
    TurnedBack {
        /// Redemptions whose times were moved back.
        redemptions: u64,
        /// Holds that are active again.
        holds: u64,
    },
    /// The data directory was restored from a backup: events with lower numbers may not have happened here.
    Restored,
    /// An entry of the log can't be applied, and `cuckood repair skip` has marked it.
    Skipped {
        /// Its position.
        entry: u64,
    },
}

/// A change of a campaign or coupon itself, or of its items by one request.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub enum FilterChange {
    /// It was created.
    Created,
    /// Its window, its capacity or its stock was changed. All are as they are now.
    Updated {
        /// When it is active.
        window: Window,
        /// Its capacity.
        capacity: u64,
        /// Its stock, if it is an open pool.
        stock: Option<u64>,
    },
    /// All items but held and redeemed codes were removed: this many.
    Cleared(u64),
    /// It was deleted with everything that belongs to it.
    Deleted,
    /// This many items were added, or redeemed codes made available again.
    Added(u64),
    /// This many items were removed.
    Removed(u64),
    /// This many items were replaced by others.
    Replaced(u64),
}

/// A change of a line-up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum LineUpChange {
    /// It was created.
    Created,
    /// Another one took its place.
    Replaced,
    /// It was deleted.
    Deleted,
}

/// A change of a redemption.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum RedemptionStep {
    /// It was made: as a hold, or as final.
    Created,
    /// Its hold was extended.
    Extended,
    /// Its hold became final.
    Confirmed,
    /// It was cancelled, or its code was withdrawn or revived.
    Cancelled,
    /// Its hold expired.
    Expired,
    /// Its hold had expired by a wrong clock only, and is active again.
    HeldAgain,
    /// It was cancelled, and its code did not become available by that.
    CancelledUnreleased,
    /// Its hold expired, and its code did not become available by that.
    ExpiredUnreleased,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::Tripped;

    #[test]
    fn event_round_trips_at_maximum_length() {
        let long = || Cow::<str>::Owned("x".repeat(128));
        let kind = Kind::Coupon;
        let name = long();
        let most = Timestamp(u64::MAX);
        let window = Window {
            starts_at: Some(most),
            ends_at: Some(most),
        };
        let tripped = Tripped::Rejected {
            rejected: u64::MAX,
            max_rejected: u64::MAX,
            last: None,
        };
        let all = [
            Happened::Filter {
                kind,
                name: name.clone(),
                change: FilterChange::Updated {
                    window,
                    capacity: u64::MAX,
                    stock: Some(u64::MAX),
                },
            },
            Happened::ImportEnded {
                kind,
                name,
                import: long(),
                mode: ImportMode::Replace,
                state: ImportState::Guarded(tripped),
                counts: ImportCounts {
                    lines: u64::MAX,
                    added: u64::MAX,
                    already_present: u64::MAX,
                    already_redeemed: u64::MAX,
                    rejected: u64::MAX,
                },
            },
            Happened::Redemption {
                coupon: long(),
                id: RedemptionId([255; 16]),
                reference: long(),
                step: RedemptionStep::HeldAgain,
                status: RedemptionStatus::Held,
                expires_at: Some(most),
                ordinal: Some(u64::MAX),
            },
            Happened::TurnedBack {
                redemptions: u64::MAX,
                holds: u64::MAX,
            },
            Happened::Restored,
            Happened::Skipped { entry: u64::MAX },
        ];
        for what in all {
            let event = Event {
                at: most,
                by: Some(long()),
                what,
            };
            let bytes = postcard::to_stdvec(&event).unwrap();
            assert!(bytes.len() <= EVENT_BYTES_MAX, "{} bytes", bytes.len());
            assert_eq!(postcard::from_bytes(&bytes), Ok(event));
            assert!(postcard::from_bytes::<Event<'_>>(&bytes[..bytes.len() - 1]).is_err());
        }
    }
}
