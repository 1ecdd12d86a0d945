//! Commands: everything that can change the state, the log entries that carry them, and their positions in the log.

use super::{
    AnnotationsChange, Digests, Ending, FilterHead, FilterId, Guards, ImageBody, ImageRecord, ImportId,
    ImportMode, KeyName, Kind, LineError, LineUp, Name, RedemptionId, Reference, Spec, Timestamp, UploadId,
    Window,
};
use crate::filter::{Digest, Layout, Secret};
use serde::{Deserialize, Serialize, Serializer};
use std::sync::OnceLock;
use utoipa::ToSchema;

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
    Update {
        /// The filter.
        target: Target,
        /// The new start: `Some(None)` clears it, `None` keeps it.
        starts_at: Option<Option<Timestamp>>,
        /// The new end, in the same way.
        ends_at: Option<Option<Timestamp>>,
        /// The new capacity; `None` keeps it.
        capacity: Option<Raise>,
        /// The new stock of an open pool; `None` keeps it.
        stock: Option<u64>,
        /// The change of its title and labels.
        annotations: AnnotationsChange,
    },
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
    Redeem {
        /// The coupon.
        target: Target,
        /// The code.
        digest: Digest,
        /// The id for a new redemption.
        redemption: RedemptionId,
        /// The caller's id of the redemption.
        reference: Reference,
        /// 0 to redeem immediately, otherwise how long to hold the code.
        hold_seconds: u64,
    },
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
    ImportBegin {
        /// The import's filter.
        target: Target,
        /// The import's id.
        import: ImportId,
        /// Append or replace.
        mode: ImportMode,
        /// Whether items that are present get no further copy.
        if_absent: bool,
        /// The conditions that it must satisfy.
        guards: Guards,
        /// The API key that started it.
        owner: KeyName,
        /// Whether the client chose the id; otherwise it was generated.
        is_named: bool,
    },
    /// The next piece of an import.
    ImportLines {
        /// The import's filter.
        target: Target,
        /// The import's id.
        import: ImportId,
        /// The items.
        digests: Digests,
        /// Lines in the piece, including blank and rejected ones.
        lines: u64,
        /// How many of them were rejected.
        rejected: u64,
        /// The first of those, at most [`super::import::LINE_ERRORS_MAX`].
        errors: Vec<LineError>,
        /// The chained hash of all lines up to here.
        chain: u64,
    },
    /// The end of an upload. If a replacement is complete, the command is repeated until its outcome is that the import is done;
    /// each one does a part of the work that is left.
    ImportEnd {
        /// The import's filter.
        target: Target,
        /// The import's id.
        import: ImportId,
        /// How it ended.
        ending: Ending,
        /// The most codes to copy, and queued changes to repeat, in this command.
        entries_max: u32,
    },
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
    PutLineUp {
        /// Its name.
        name: Name,
        /// The new line-up.
        line_up: LineUp,
        /// The change of its title and labels.
        annotations: AnnotationsChange,
    },
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
    ImageBegin {
        /// The upload's ID.
        upload: UploadId,
        /// The identity of the filter, drawn at random.
        id: FilterId,
        /// Campaign or coupon.
        kind: Kind,
        /// Its name.
        name: Name,
        /// The image's head.
        head: Box<FilterHead>,
        /// The checksum of the image up to here.
        checksum: u128,
    },
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
    /// From here on entries may be of this version: every node that is known understands it. The service itself logs it.
    Enable {
        /// The version.
        version: u16,
    },
}

impl Command {
    /// Its name in messages, the filter that it addresses, and whether it frees disk space.
    fn facts(&self) -> (&'static str, Option<Target>, bool) {
        match self {
            Command::Configure(_) => ("settings", None, false),
            Command::Create { .. } => ("create", None, false),
            Command::Update { target, .. } => ("update", Some(*target), false),
            Command::Delete { .. } => ("delete", None, true),
            Command::Insert { target, .. } => ("insert", Some(*target), false),
            Command::Remove { target, .. } => ("remove", Some(*target), false),
            Command::Replace { target, .. } => ("replace", Some(*target), false),
            Command::Clear { target } => ("clear", Some(*target), true),
            Command::Redeem { target, .. } => ("redeem", Some(*target), false),
            Command::Confirm { target, .. } => ("confirm", Some(*target), false),
            Command::Cancel { target, .. } => ("cancel", Some(*target), false),
            Command::ImportBegin { target, .. } => ("import start", Some(*target), false),
            Command::ImportLines { target, .. } => ("import lines", Some(*target), false),
            Command::ImportEnd { target, ending, .. } => {
                ("import end", Some(*target), !matches!(ending, Ending::Whole { .. }))
            }
            Command::Advance { .. } => ("advance", None, false),
            Command::TurnBack => ("turn back", None, false),
            Command::PutLineUp { .. } => ("put line-up", None, false),
            Command::DeleteLineUp { .. } => ("delete line-up", None, true),
            Command::Restored { .. } => ("restored", None, false),
            Command::ImageBegin { .. } => ("image start", None, false),
            Command::ImageRecord { .. } => ("image record", None, false),
            Command::ImageAbandon { .. } => ("image abandon", None, true),
            Command::Enable { .. } => ("enable", None, false),
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

    /// Its approximate size in memory and in the log, in bytes. The limits of queue and batch count it.
    pub fn weight_bytes(&self) -> u64 {
        let beyond = match self {
            Command::Insert { digests, .. }
            | Command::Remove { digests, .. }
            | Command::ImportLines { digests, .. } => digests.0.len() * 8,
            Command::Replace { from, to, .. } => (from.0.len() + to.0.len()) * 8,
            Command::Create { .. } => 512,
            Command::ImageBegin { .. } => 2_048,
            Command::ImageRecord { record: ImageRecord { body: ImageBody::Part(part), .. }, .. } => {
                part.bytes()
            }
            Command::PutLineUp { name, line_up, .. } => line_up.memory_bytes(name) as usize,
            Command::Redeem { .. }
            | Command::Confirm { .. }
            | Command::Cancel { .. }
            | Command::Configure(_)
            | Command::Update { .. }
            | Command::Delete { .. }
            | Command::Clear { .. }
            | Command::ImportBegin { .. }
            | Command::ImportEnd { .. }
            | Command::Advance { .. }
            | Command::TurnBack
            | Command::DeleteLineUp { .. }
            | Command::Restored { .. }
            | Command::ImageRecord { .. }
            | Command::ImageAbandon { .. }
            | Command::Enable { .. } => 0,
        };
        64 + beyond as u64 + self.annotations_bytes()
    }

    /// Returns an upper bound of the memory that its title and labels add, in bytes.
    pub fn annotations_bytes(&self) -> u64 {
        match self {
            Command::Create { annotations, .. }
            | Command::Update { annotations, .. }
            | Command::PutLineUp { annotations, .. } => annotations.memory_bytes(),
            Command::ImageBegin { head, .. } => head.profile.annotations.memory_bytes(),
            _ => 0,
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
        Self { at, by: None, command, idempotency: None }
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
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
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

/// The highest version of entries that this release understands. Entries that an earlier build does not understand are only written once
/// [`Command::Enable`](super::Command::Enable) with their version is in the log.
///
/// - 1: the first.
pub const FORMAT_VERSION: u16 = 1;

/// The version of a later build, as which a test runs the real program. Builds without debug assertions, so every release, never set it.
pub static LATER_VERSION: OnceLock<u16> = OnceLock::new();

/// The highest version of entries that this build understands.
pub fn understood_version() -> u16 {
    LATER_VERSION.get().copied().unwrap_or(FORMAT_VERSION)
}

/// The hash of the state at a position.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
#[schema(as = ClusterHash)]
pub struct StateHash {
    /// The position, a multiple of 65,536.
    #[serde(rename = "position")]
    #[schema(value_type = u64, example = 65_536)]
    pub at: Seq,
    /// The hash of all entries up to the position and their outcomes.
    #[serde(serialize_with = "write_hash")]
    #[schema(value_type = String, example = "9f0c2a5e6f0b4d7c8e1a3b5d7f901234")]
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

/// Retentions and limits that [`crate::state::State::apply`](crate::state) obeys.
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
