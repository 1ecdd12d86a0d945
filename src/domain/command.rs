//! Commands: everything that can change the state, and the log entries that carry them.

use super::{
    Digests, FilterId, ImportId, ImportMode, KeyName, Kind, LineError, Name, RedemptionId, Reference,
    Settings, Spec, Timestamp, Window,
};
use crate::filter::{Digest, Layout, Secret};
use serde::{Deserialize, Serialize};

/// A position in the log; the first entry has number 1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Seq(pub u64);

impl Seq {
    /// The position after this one.
    pub fn next(self) -> Seq {
        Seq(self.0 + 1)
    }
}

/// The filter that a command is meant for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Target(pub FilterId);

/// A change that somebody asks for. Random ids and everything that depends on configuration or machine are
/// decided before and carried along: applying a command draws on nothing but the state.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Command {
    /// Retentions and limits to go by from here on.
    Configure(Settings),
    /// Make a campaign or coupon.
    Create {
        /// Campaign or coupon.
        kind: Kind,
        /// Its name.
        name: Name,
        /// Its identity, drawn at random.
        id: FilterId,
        /// Its hash key, drawn at random.
        secret: Secret,
        /// What was asked for.
        spec: Spec,
        /// What the sizing formula made of it.
        layout: Layout,
        /// When it is active.
        window: Window,
    },
    /// Change when it is active.
    Reschedule {
        /// Which filter.
        target: Target,
        /// A new start: `Some(None)` clears it, `None` leaves it.
        starts_at: Option<Option<Timestamp>>,
        /// A new end, likewise.
        ends_at: Option<Option<Timestamp>>,
    },
    /// Drop a campaign or coupon and all that belongs to it. Goes by name: a repeated request must find its
    /// answer when the filter is gone.
    Delete {
        /// Campaign or coupon.
        kind: Kind,
        /// Its name.
        name: Name,
    },
    /// Add items, all or none.
    Insert {
        /// Which filter.
        target: Target,
        /// The items.
        digests: Digests,
        /// Compact: leave alone what seems to be there.
        if_absent: bool,
        /// Strict: make used codes available again.
        revive: bool,
    },
    /// Remove items.
    Remove {
        /// Which filter.
        target: Target,
        /// The items.
        digests: Digests,
        /// Every copy, not just one.
        all: bool,
    },
    /// Put one item in another's place, pair by pair; all or none.
    Replace {
        /// Which filter.
        target: Target,
        /// The items to take out.
        from: Digests,
        /// The items to put in, as many.
        to: Digests,
    },
    /// Remove everything (held and redeemed codes stay).
    Clear {
        /// Which filter.
        target: Target,
    },
    /// Use a code, or hold it.
    Redeem {
        /// Which coupon.
        target: Target,
        /// The code.
        digest: Digest,
        /// The identity that a new redemption gets.
        redemption: RedemptionId,
        /// On whose behalf.
        reference: Reference,
        /// 0 redeems at once; else the code is held for so long.
        hold_seconds: u64,
    },
    /// Turn a hold into a redemption.
    Confirm {
        /// Which coupon.
        target: Target,
        /// Which redemption.
        redemption: RedemptionId,
    },
    /// Give a held or redeemed code back.
    Cancel {
        /// Which coupon.
        target: Target,
        /// Which redemption.
        redemption: RedemptionId,
    },
    /// Begin or continue an import.
    ImportBegin {
        /// Where it goes.
        target: Target,
        /// Its name.
        import: ImportId,
        /// Append or replace.
        mode: ImportMode,
        /// Who asks.
        owner: KeyName,
        /// Whether the name was given rather than made up.
        is_named: bool,
    },
    /// The next piece of an import.
    ImportLines {
        /// Where it goes.
        target: Target,
        /// Its name.
        import: ImportId,
        /// The items.
        digests: Digests,
        /// Lines that the piece stands for, blank and rejected ones included.
        lines: u64,
        /// How many of them were rejected.
        rejected: u64,
        /// The first of those, at most [`super::import::LINE_ERRORS_MAX`].
        errors: Vec<LineError>,
        /// The chained hash of all lines up to here.
        chain: u64,
    },
    /// The upload has ended: with its last line, or broken off. Where it takes the place of others and is whole, the command is
    /// repeated until it answers that the import is done: each does a part of what is left.
    ImportEnd {
        /// Where it goes.
        target: Target,
        /// Its name.
        import: ImportId,
        /// Whether the upload was whole.
        complete: bool,
        /// How much is done now: codes that come over, and changes that are repeated.
        entries_max: u32,
    },
    /// Turn the time back to this entry's: what an earlier entry told lies in the future. Only `cuckood repair clock` writes it.
    TurnBack,
}

impl Command {
    /// The filter that the command is meant for, if it goes by id.
    pub fn target(&self) -> Option<Target> {
        match self {
            Command::Configure(_) | Command::Create { .. } | Command::Delete { .. } | Command::TurnBack => {
                None
            }
            Command::Reschedule { target, .. }
            | Command::Insert { target, .. }
            | Command::Remove { target, .. }
            | Command::Replace { target, .. }
            | Command::Clear { target }
            | Command::Redeem { target, .. }
            | Command::Confirm { target, .. }
            | Command::Cancel { target, .. }
            | Command::ImportBegin { target, .. }
            | Command::ImportLines { target, .. }
            | Command::ImportEnd { target, .. } => Some(*target),
        }
    }
}

impl Command {
    /// Its size in memory and in the log, about, in bytes: what the limits of queue and batch count.
    pub fn weight_bytes(&self) -> u64 {
        let beyond = match self {
            Command::Insert { digests, .. }
            | Command::Remove { digests, .. }
            | Command::ImportLines { digests, .. } => digests.0.len() * 8,
            Command::Replace { from, to, .. } => (from.0.len() + to.0.len()) * 8,
            Command::Create { .. } => 512,
            _ => 0,
        };
        64 + beyond as u64
    }
}

/// The caller's promise that two requests are one, with what tells whether they really are.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct IdempotencyKey {
    /// Cryptographic hash of the API key's name, the kind and name of the filter, and the key itself: nobody can
    /// make up a key that is taken for another caller's.
    pub scope: u128,
    /// Hash of the request: another one under the same key is a mistake, and only the caller's own.
    pub request: u64,
}

/// A command on its way to the log.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Proposal {
    /// When it was taken up, by the writer's clock.
    pub at: Timestamp,
    /// What to do.
    pub command: Command,
    /// If repeated requests shall have the effect of one.
    pub idempotency: Option<IdempotencyKey>,
}

/// A command at its place in the log.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Entry {
    /// Its place.
    pub seq: Seq,
    /// What stands there.
    pub proposal: Proposal,
}
