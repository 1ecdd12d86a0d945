//! Commands: everything that can change the state, the log entries that carry them, and their positions in the log.

use super::{
    AnnotationsChange, Digests, Ending, FORMAT_FIRST, FilterHead, FilterId, Guards, ImageBody,
    ImageRecord, ImportId, ImportMode, KeyName, Kind, LineError, LineUp, Meaning, Name,
    RedemptionId, Reference, Spec, Timestamp, UploadId, Window,
};
use cuckood_filter::{Digest, Layout, Secret};
use serde::{Deserialize, Serialize, Serializer};

/// The filter that a command addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Target(pub FilterId);

/// The capacity and layout of a larger filter.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Raise {
    /// The new capacity.
    pub capacity: u64,
    /// The initial layout of a filter of this capacity and otherwise the same spec.
    pub layout: Layout,
}

/// A change that a client or the service requests. Random ids, and everything that depends on configuration or the machine, are
/// decided beforehand and carried along: applying a command uses nothing but the state.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Command {
    /// Set the retentions and limits that hold from here on.
    Configure(Settings),
    /// Create a campaign or coupon.
    Create {
        /// Campaign or coupon.
        kind: Kind,
        /// Its name.
        name: Name,
        /// Its identity, drawn at random.
        id: FilterId,
        /// Its hash key, drawn at random.
        secret: Secret,
        /// The requested spec.
        spec: Spec,
        /// The layout that the sizing formula chose.
        layout: Layout,
        /// When it is active.
        window: Window,
        /// Its title and labels. If the filter exists, the change applies to it.
        annotations: AnnotationsChange,
    },
    /// Change when a campaign or coupon is active, raise its capacity, or change its stock, title or labels.
    Update(Update),
    /// Delete a campaign or coupon and everything that belongs to it. It is addressed by name, because a repeated request must find its
    /// outcome after the filter is deleted.
    Delete {
        /// Campaign or coupon.
        kind: Kind,
        /// Its name.
        name: Name,
    },
    /// Add items, all or none.
    Insert {
        /// The filter.
        target: Target,
        /// The items.
        digests: Digests,
        /// Compact: skip items that seem to be present.
        if_absent: bool,
        /// Strict: make redeemed codes available again.
        revive: bool,
    },
    /// Remove items.
    Remove {
        /// The filter.
        target: Target,
        /// The items.
        digests: Digests,
        /// Remove every copy, not just one.
        all: bool,
    },
    /// Replace items pair by pair, all or none.
    Replace {
        /// The filter.
        target: Target,
        /// The items to remove.
        from: Digests,
        /// The items to insert, one for each of `from`.
        to: Digests,
    },
    /// Remove everything except held and redeemed codes.
    Clear {
        /// The filter.
        target: Target,
    },
    /// Redeem a code, or hold it.
    Redeem(Redeem),
    /// Redeem a held code.
    Confirm {
        /// The coupon.
        target: Target,
        /// The redemption.
        redemption: RedemptionId,
    },
    /// Release a held or redeemed code.
    Cancel {
        /// The coupon.
        target: Target,
        /// The redemption.
        redemption: RedemptionId,
    },
    /// Begin or continue an import.
    ImportBegin(ImportBegin),
    /// The next piece of an import.
    ImportLines(ImportLines),
    /// The end of an upload. If a replacement is complete, the command is repeated until its outcome is that the import is done;
    /// each one does a part of the work that is left.
    ImportEnd(ImportEnd),
    /// Continues work that commands have started and every entry does a little of: items move to another table, slots of forgotten users
    /// are freed. The service logs it while no other command arrives, also for due work: every entry does that first.
    Advance {
        /// The most buckets to empty.
        buckets_max: u32,
    },
    /// Turn the time back to that of this entry, because earlier entries were stamped in the future. Only `cuckood repair clock`
    /// writes it.
    TurnBack,
    /// Create a line-up, or replace it.
    PutLineUp(PutLineUp),
    /// Delete a line-up.
    DeleteLineUp {
        /// Its name.
        name: Name,
    },
    /// The log continues from a backup. Only `cuckood restore` writes it.
    Restored {
        /// The reading of this machine's clock. The log's time does not follow it.
        clock: Timestamp,
    },
    /// Starts a campaign or coupon from an image, hidden until the image is complete. Aborts an upload of the same ID.
    ImageBegin(ImageBegin),
    /// The next record of an image after its head. If it is there already, nothing changes. The last one shows the filter.
    ImageRecord {
        /// The image.
        upload: UploadId,
        /// The record.
        record: ImageRecord,
    },
    /// Aborts an image upload.
    ImageAbandon {
        /// The image.
        upload: UploadId,
    },
    /// From here on entries may be of this version: every node that was heard of recently understands it. The service itself
    /// logs it.
    Enable {
        /// The version.
        version: u16,
    },
    /// Redeem a code for a customer, or hold it.
    RedeemFor {
        /// The code.
        redeem: Redeem,
        /// The customer.
        customer: Digest,
    },
    /// Cancel a redemption. Its use stays taken, as if it were redeemed.
    Forfeit {
        /// The coupon.
        target: Target,
        /// The redemption.
        redemption: RedemptionId,
    },
}

/// A start or continuation of an import.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ImportBegin {
    /// The import's filter.
    pub target: Target,
    /// The import's id.
    pub import: ImportId,
    /// Append or replace.
    pub mode: ImportMode,
    /// Whether items that are present get no further copy.
    pub if_absent: bool,
    /// The conditions that it must satisfy.
    pub guards: Guards,
    /// The API key that started it.
    pub owner: KeyName,
    /// Whether the client chose the id; otherwise it was generated.
    pub is_named: bool,
}

/// A piece of an import.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ImportLines {
    /// The import's filter.
    pub target: Target,
    /// The import's id.
    pub import: ImportId,
    /// The items.
    pub digests: Digests,
    /// Lines in the piece, including blank and rejected ones.
    pub lines: u64,
    /// How many of them were rejected.
    pub rejected: u64,
    /// The first of those, at most [`super::import::LINE_ERRORS_MAX`].
    pub errors: Vec<LineError>,
    /// The chained hash of all lines up to here.
    pub chain: u64,
}

/// The end of an upload.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ImportEnd {
    /// The import's filter.
    pub target: Target,
    /// The import's id.
    pub import: ImportId,
    /// How it ended.
    pub ending: Ending,
    /// The most codes to copy, and queued changes to repeat, in this command.
    pub entries_max: u32,
}

/// A change of a campaign or coupon itself.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Update {
    /// The filter.
    pub target: Target,
    /// The new start: `Some(None)` clears it, `None` keeps it.
    pub starts_at: Option<Option<Timestamp>>,
    /// The new end, in the same way.
    pub ends_at: Option<Option<Timestamp>>,
    /// The new capacity; `None` keeps it.
    pub capacity: Option<Raise>,
    /// The new stock of an open pool; `None` keeps it.
    pub stock: Option<u64>,
    /// The change of its title and labels.
    pub annotations: AnnotationsChange,
}

/// A request for the use of a code.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Redeem {
    /// The coupon.
    pub target: Target,
    /// The code.
    pub digest: Digest,
    /// The id for a new redemption.
    pub redemption: RedemptionId,
    /// The caller's id of the redemption.
    pub reference: Reference,
    /// 0 to redeem immediately, otherwise how long to hold the code.
    pub hold_seconds: u64,
}

/// A new line-up.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct PutLineUp {
    /// Its name.
    pub name: Name,
    /// The new line-up.
    pub line_up: LineUp,
    /// The change of its title and labels.
    pub annotations: AnnotationsChange,
}

/// The start of an image upload.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ImageBegin {
    /// The upload's ID.
    pub upload: UploadId,
    /// The identity of the filter, drawn at random.
    pub id: FilterId,
    /// Campaign or coupon.
    pub kind: Kind,
    /// Its name.
    pub name: Name,
    /// The image's head.
    pub head: Box<FilterHead>,
    /// The checksum of the image up to here.
    pub checksum: u128,
}

impl Command {
    /// Its name in messages, the filter that it addresses, whether it frees disk space, and the bytes of its content.
    fn facts(&self) -> (&'static str, Option<Target>, bool, usize) {
        match self {
            Command::Configure(_) => ("settings", None, false, 0),
            Command::Create { .. } => ("create", None, false, 512),
            Command::Update(Update { target, .. }) => ("update", Some(*target), false, 0),
            Command::Delete { .. } => ("delete", None, true, 0),
            Command::Insert {
                target, digests, ..
            } => ("insert", Some(*target), false, 8 * digests.0.len()),
            Command::Remove {
                target, digests, ..
            } => ("remove", Some(*target), false, 8 * digests.0.len()),
            Command::Replace { target, from, to } => (
                "replace",
                Some(*target),
                false,
                8 * (from.0.len() + to.0.len()),
            ),
            Command::Clear { target } => ("clear", Some(*target), true, 0),
            Command::Redeem(Redeem { target, .. }) => ("redeem", Some(*target), false, 0),
            Command::Confirm { target, .. } => ("confirm", Some(*target), false, 0),
            Command::Cancel { target, .. } => ("cancel", Some(*target), false, 0),
            Command::ImportBegin(ImportBegin { target, .. }) => {
                ("import start", Some(*target), false, 0)
            }
            Command::ImportLines(ImportLines {
                target, digests, ..
            }) => ("import lines", Some(*target), false, 8 * digests.0.len()),
            Command::ImportEnd(ImportEnd { target, ending, .. }) => (
                "import end",
                Some(*target),
                !matches!(ending, Ending::Whole { .. }),
                0,
            ),
            Command::Advance { .. } => ("advance", None, false, 0),
            Command::TurnBack => ("turn back", None, false, 0),
            Command::PutLineUp(PutLineUp { name, line_up, .. }) => (
                "put line-up",
                None,
                false,
                line_up.memory_bytes(name) as usize,
            ),
            Command::DeleteLineUp { .. } => ("delete line-up", None, true, 0),
            Command::Restored { .. } => ("restored", None, false, 0),
            Command::ImageBegin(_) => ("image start", None, false, 2_048),
            Command::ImageRecord { record, .. } => {
                let bytes = if let ImageBody::Part(part) = &record.body {
                    part.bytes()
                } else {
                    0
                };
                ("image record", None, false, bytes)
            }
            Command::ImageAbandon { .. } => ("image abandon", None, true, 0),
            Command::Enable { .. } => ("enable", None, false, 0),
            Command::RedeemFor { redeem, .. } => ("redeem", Some(redeem.target), false, 0),
            Command::Forfeit { target, .. } => ("forfeit", Some(*target), false, 0),
        }
    }

    /// Its name in messages.
    pub fn word(&self) -> &'static str {
        self.facts().0
    }

    /// The filter that the command addresses by ID; `None` if by name or none.
    pub fn target(&self) -> Option<Target> {
        self.facts().1
    }

    /// Whether it eventually frees disk space, so that it is accepted while space is short.
    pub fn frees_space(&self) -> bool {
        self.facts().2
    }

    /// Whether it frees memory, or makes that possible, so that it is accepted while memory is short.
    pub fn frees_memory(&self) -> bool {
        match self {
            Command::Delete { .. }
            | Command::DeleteLineUp { .. }
            | Command::Remove { .. }
            | Command::Clear { .. }
            | Command::Confirm { .. }
            | Command::Cancel { .. }
            | Command::Forfeit { .. }
            | Command::ImageAbandon { .. } => true,
            Command::ImportEnd(ImportEnd { ending, .. }) => !matches!(ending, Ending::Whole { .. }),
            Command::Configure(_)
            | Command::Create { .. }
            | Command::Update(_)
            | Command::Insert { .. }
            | Command::Replace { .. }
            | Command::Redeem(_)
            | Command::ImportBegin(_)
            | Command::ImportLines(_)
            | Command::Advance { .. }
            | Command::TurnBack
            | Command::PutLineUp(_)
            | Command::Restored { .. }
            | Command::ImageBegin(_)
            | Command::ImageRecord { .. }
            | Command::RedeemFor { .. }
            | Command::Enable { .. } => false,
        }
    }

    /// Returns the version of entries that the command needs. A build of an earlier version can't read it.
    pub fn version(&self) -> u16 {
        match self {
            Command::Create { kind, spec, .. } => spec.version(*kind),
            Command::ImageBegin(ImageBegin { kind, head, .. }) => head.profile.spec.version(*kind),
            Command::RedeemFor { .. } | Command::Forfeit { .. } => Meaning::Uses.since(),
            Command::PutLineUp(PutLineUp { line_up, .. }) => line_up.version(),
            Command::ImageRecord { record, .. } => record.version(),
            Command::Configure(_)
            | Command::Update(_)
            | Command::Delete { .. }
            | Command::Insert { .. }
            | Command::Remove { .. }
            | Command::Replace { .. }
            | Command::Clear { .. }
            | Command::Redeem(_)
            | Command::Confirm { .. }
            | Command::Cancel { .. }
            | Command::ImportBegin(_)
            | Command::ImportLines(_)
            | Command::ImportEnd(_)
            | Command::Advance { .. }
            | Command::TurnBack
            | Command::DeleteLineUp { .. }
            | Command::Restored { .. }
            | Command::ImageAbandon { .. }
            | Command::Enable { .. } => FORMAT_FIRST,
        }
    }

    /// Its approximate size in memory and in the log, in bytes. The limits of queue and batch count it.
    pub fn weight_bytes(&self) -> u64 {
        64 + self.facts().3 as u64 + self.annotations_bytes()
    }

    /// Returns an upper bound of the memory that its title and labels add, in bytes.
    pub fn annotations_bytes(&self) -> u64 {
        match self {
            Command::Create { annotations, .. }
            | Command::Update(Update { annotations, .. })
            | Command::PutLineUp(PutLineUp { annotations, .. }) => annotations.memory_bytes(),
            Command::ImageBegin(ImageBegin { head, .. }) => head.profile.annotations.memory_bytes(),
            Command::Configure(_)
            | Command::Delete { .. }
            | Command::Insert { .. }
            | Command::Remove { .. }
            | Command::Replace { .. }
            | Command::Clear { .. }
            | Command::Redeem(_)
            | Command::Confirm { .. }
            | Command::Cancel { .. }
            | Command::ImportBegin(_)
            | Command::ImportLines(_)
            | Command::ImportEnd(_)
            | Command::Advance { .. }
            | Command::TurnBack
            | Command::DeleteLineUp { .. }
            | Command::Restored { .. }
            | Command::ImageRecord { .. }
            | Command::ImageAbandon { .. }
            | Command::RedeemFor { .. }
            | Command::Forfeit { .. }
            | Command::Enable { .. } => 0,
        }
    }
}

/// Marks requests as repeats of one another, and lets the service check that they really are.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct IdempotencyKey {
    /// Cryptographic hash of the API key's name, the kind and name of the filter, and the idempotency key. No caller can forge
    /// another caller's.
    pub scope: u128,
    /// Hash of the request. A different request under the same key is the caller's mistake.
    pub request: u64,
}

/// A command that is proposed to the log.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Proposal {
    /// When the writer picked it up, by its clock.
    pub at: Timestamp,
    /// The API key of the request; `None` for requests without one, and for the service's own commands.
    pub by: Option<KeyName>,
    /// The command.
    pub command: Command,
    /// Present if repeated requests must have the effect of one.
    pub idempotency: Option<IdempotencyKey>,
}

impl Proposal {
    /// A command without a key and without idempotency.
    pub fn new(at: Timestamp, command: Command) -> Self {
        Self {
            at,
            by: None,
            command,
            idempotency: None,
        }
    }
}

/// A command at its position in the log.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Entry {
    /// Its position.
    pub seq: Seq,
    /// The command, with its time, the key's name and the idempotency key.
    pub proposal: Proposal,
}

/// A position in the log. The first entry has position 1.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Seq(pub u64);

impl Seq {
    /// The position after this one.
    pub fn next(self) -> Seq {
        Seq(self.0 + 1)
    }
}

/// Nodes compare their hashes at the positions that are multiples of this.
pub const STATE_HASH_EVERY: u64 = 1 << 16;

/// The hash of the state at a position.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "utoipa", schema(as = ClusterHash))]
pub struct StateHash {
    /// The position, a multiple of 65,536.
    #[serde(rename = "position")]
    #[cfg_attr(feature = "utoipa", schema(value_type = u64, example = 65_536))]
    pub at: Seq,
    /// The hash of all entries up to the position and their outcomes.
    #[serde(serialize_with = "write_hash")]
    #[cfg_attr(feature = "utoipa", schema(value_type = String, example = "9f0c2a5e6f0b4d7c8e1a3b5d7f901234"))]
    pub hash: u128,
}

/// Writes a hash: in JSON as hexadecimal digits, elsewhere as a number.
fn write_hash<S: Serializer>(hash: &u128, serializer: S) -> Result<S::Ok, S::Error> {
    match serializer.is_human_readable() {
        true => serializer.collect_str(&format_args!("{hash:032x}")),
        false => serializer.serialize_u128(*hash),
    }
}

/// The smallest useful limit of stored outcomes, in bytes.
pub const IDEMPOTENCY_ROOM_MIN_BYTES: u64 = 1 << 20;

/// The largest useful limit of stored outcomes, in bytes.
pub const IDEMPOTENCY_ROOM_MAX_BYTES: u64 = 16 << 30;

/// Retentions and limits that [`State::apply`](crate::State) obeys.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Settings {
    /// How long a redemption can be looked up after its last change, in seconds.
    pub redemptions_retention_seconds: u64,
    /// How long an outcome is stored for repeated requests if there is space, in seconds.
    pub idempotency_retention_seconds: u64,
    /// How long an outcome is stored even if space runs out, in seconds.
    pub idempotency_retention_min_seconds: u64,
    /// Maximum bytes of stored outcomes; more than [`IDEMPOTENCY_ROOM_MAX_BYTES`] has no effect.
    pub idempotency_room_bytes: u64,
    /// Number of API keys that share this space; 0 and 1 leave all of it to one.
    pub idempotency_keys: u64,
    /// How long an event is stored, in seconds; 0 for no events.
    pub events_retention_seconds: u64,
    /// How long an interrupted import can be continued after its last change, in seconds.
    pub imports_retention_seconds: u64,
    /// The most campaigns and coupons together.
    pub filters_max: u64,
    /// The most line-ups.
    pub line_ups_max: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            redemptions_retention_seconds: 30 * 86_400,
            idempotency_retention_seconds: 86_400,
            idempotency_retention_min_seconds: 3_600,
            idempotency_room_bytes: 64 << 20,
            idempotency_keys: 0,
            events_retention_seconds: 30 * 86_400,
            imports_retention_seconds: 7 * 86_400,
            filters_max: 10_000,
            line_ups_max: 1_000,
        }
    }
}
