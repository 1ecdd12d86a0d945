//! Version 1 of entries, as 0.1.0 has it: frozen copies of the types that later versions have changed. What needs no later version has the
//! same bytes, so programs of both versions read one log and compute one hash.

use cuckood_filter::{Digest, FilterImage, Growth, Layout, Mode, Secret};
use cuckood_state::domain::annotations::{Annotations, AnnotationsChange};
use cuckood_state::domain::import::{LineError, UploadDigest};
use cuckood_state::domain::statistics::Latest;
use cuckood_state::domain::{
    Digests, Entry, FilterId, Forget, Guards, IdempotencyKey, ImageChunk, ImportId, ImportMode,
    KeyName, Kind, Name, Raise, Redemption, RedemptionDetails, RedemptionId, RedemptionStatus,
    Reference, Seq, Settings, Sizing, Target, Timestamp, UploadId, Window,
};
use cuckood_state::testing::random::Random;
use cuckood_state::testing::random_log::RandomLog;
use proptest::prelude::*;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Entry1 {
    seq: Seq,
    at: Timestamp,
    by: Option<KeyName>,
    command: Command1,
    idempotency: Option<IdempotencyKey>,
}

#[derive(Serialize, Deserialize)]
enum Command1 {
    Configure(Settings),
    Create {
        kind: Kind,
        name: Name,
        id: FilterId,
        secret: Secret,
        spec: Spec1,
        layout: Layout,
        window: Window,
        annotations: AnnotationsChange,
    },
    Update {
        target: Target,
        starts_at: Option<Option<Timestamp>>,
        ends_at: Option<Option<Timestamp>>,
        capacity: Option<Raise>,
        stock: Option<u64>,
        annotations: AnnotationsChange,
    },
    Delete {
        kind: Kind,
        name: Name,
    },
    Insert {
        target: Target,
        digests: Digests,
        if_absent: bool,
        revive: bool,
    },
    Remove {
        target: Target,
        digests: Digests,
        all: bool,
    },
    Replace {
        target: Target,
        from: Digests,
        to: Digests,
    },
    Clear {
        target: Target,
    },
    Redeem {
        target: Target,
        digest: Digest,
        redemption: RedemptionId,
        reference: Reference,
        hold_seconds: u64,
    },
    Confirm {
        target: Target,
        redemption: RedemptionId,
    },
    Cancel {
        target: Target,
        redemption: RedemptionId,
    },
    ImportBegin {
        target: Target,
        import: ImportId,
        mode: ImportMode,
        if_absent: bool,
        guards: Guards,
        owner: KeyName,
        is_named: bool,
    },
    ImportLines {
        target: Target,
        import: ImportId,
        digests: Digests,
        lines: u64,
        rejected: u64,
        errors: Vec<LineError>,
        chain: u64,
    },
    ImportEnd {
        target: Target,
        import: ImportId,
        ending: Ending1,
        entries_max: u32,
    },
    Advance {
        buckets_max: u32,
    },
    TurnBack,
    PutLineUp {
        name: Name,
        campaigns: Vec<Name>,
        unless: Vec<Unless1>,
        limit: u32,
        annotations: AnnotationsChange,
    },
    DeleteLineUp {
        name: Name,
    },
    Restored {
        clock: Timestamp,
    },
    ImageBegin {
        upload: UploadId,
        id: FilterId,
        kind: Kind,
        name: Name,
        head: Box<FilterHead1>,
        checksum: u128,
    },
    ImageRecord {
        upload: UploadId,
        before: u128,
        checksum: u128,
        body: ImageBody1,
    },
    ImageAbandon {
        upload: UploadId,
    },
    Enable {
        version: u16,
    },
}

#[derive(Serialize, Deserialize)]
struct Spec1 {
    capacity: u64,
    mode: Mode,
    growth: Growth,
    sizing: Sizing,
    ignore_case: bool,
    stock: Option<u64>,
    forget: Option<Forget>,
}

#[derive(Serialize, Deserialize)]
enum Ending1 {
    Whole {
        upload: UploadDigest,
        warnings: Vec<ImportWarning1>,
    },
    BrokenOff,
    Stopped,
}

#[derive(Serialize, Deserialize)]
enum ImportWarning1 {
    ItemsAlike { items: u64, different: u64 },
    MostPresent { present: u64, items: u64 },
    LooksLikeCsv { separator: char },
    LooksLikeJson,
    WhiteSpace { items: u64 },
    MostRejected { rejected: u64, lines: u64 },
}

#[derive(Serialize, Deserialize)]
struct Unless1 {
    campaign: Name,
    at_least: u32,
    only_for: Option<Name>,
}

#[derive(Serialize, Deserialize)]
struct FilterHead1 {
    algorithm: u32,
    kind: Kind,
    name: Name,
    secret: Secret,
    spec: Spec1,
    layout: Layout,
    window: Window,
    created_at: Timestamp,
    annotations: Annotations,
    adds: u64,
    removes: u64,
    tables: FilterImage,
    last_change: u64,
    latest: Latest,
}

#[derive(Serialize, Deserialize)]
enum ImageBody1 {
    Head(Box<FilterHead1>),
    Part {
        section: ImageSection1,
        chunks: Vec<ImageChunk>,
    },
    End {
        redemptions: u64,
    },
}

#[derive(Serialize, Deserialize)]
enum ImageSection1 {
    Tables,
    Ordinals,
    Redemptions,
    Statistics,
}

#[derive(Serialize, Deserialize)]
struct Redemption1 {
    id: RedemptionId,
    digest: Digest,
    reference: Reference,
    status: RedemptionStatus,
    created_at: Timestamp,
    changed_at: Timestamp,
    expires_at: Option<Timestamp>,
    redeemed_at: Option<Timestamp>,
    ordinal: Option<u64>,
}

/// Whether the frozen type reads all bytes of a value, and writes the same.
fn has_bytes_of<T: Serialize + DeserializeOwned>(value: &impl Serialize) -> bool {
    let bytes = postcard::to_stdvec(value).unwrap();
    let read = postcard::take_from_bytes::<T>(&bytes);
    read.is_ok_and(|(frozen, rest)| {
        rest.is_empty() && postcard::to_stdvec(&frozen).unwrap() == bytes
    })
}

/// Entries of version 1 have the bytes of 0.1.0, and all others don't: no program of version 1 mistakes them.
#[test]
fn entries_keep_their_bytes() {
    let mut random = Random::new(1);
    let mut log = RandomLog::new();
    let mut entries = log.beginning();
    for _ in 0..4_000 {
        let (a, b) = (random.next(), random.next());
        entries.push(log.next((random.next() as u8, a, b, random.next() as u16)));
    }
    let mut later = 0;
    for Entry { seq, proposal } in &entries {
        let is_first = has_bytes_of::<Entry1>(&(seq, proposal));
        match proposal.command.version() {
            1 => assert!(is_first, "{proposal:?}"),
            _ => {
                assert!(!is_first, "{proposal:?}");
                later += 1;
            }
        }
    }
    assert!((100..entries.len() - 1_000).contains(&later), "{later}");
}

proptest! {
    /// Redemptions without later fields have the bytes of 0.1.0, in snapshots and images.
    #[test]
    fn redemptions_keep_their_bytes(
        ordinal: Option<u64>,
        customer in proptest::option::weighted(0.3, any::<u64>()),
        is_unreleased in proptest::bool::weighted(0.2),
        expires_at: Option<u64>,
    ) {
        let redemption = Redemption {
            id: RedemptionId([7; 16]),
            digest: Digest(9),
            reference: Reference::new("order-1").unwrap(),
            status: RedemptionStatus::Cancelled,
            created_at: Timestamp(5),
            changed_at: Timestamp(6),
            expires_at: expires_at.map(Timestamp),
            redeemed_at: None,
            details: RedemptionDetails { ordinal, customer: customer.map(Digest), is_unreleased },
        };
        prop_assert_eq!(has_bytes_of::<Redemption1>(&redemption), !redemption.details.need_uses());
    }
}
