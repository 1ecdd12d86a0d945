//! The image of one filter, by which it moves to another name or another server: its head, and the parts that follow.

use super::{Kind, Name, Redemption, Seq, Spec, Timestamp, Window};
use crate::filter::{FilterImage, Layout, Secret};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// How items become digests, and digests places in tables. An image of another algorithm can't be used.
pub const ALGORITHM: u32 = 1;

/// The most images that may be on their way in at once.
pub const IMAGES_MAX: usize = 16;

/// The most of them that one API key may send.
pub const IMAGES_OF_KEY_MAX: usize = 4;

/// The greatest position of a last change that an image may have. Positions begin with a time in milliseconds above 20 bits, so this is in
/// the year 2248, and leaves room for later changes.
pub const LAST_CHANGE_MAX: u64 = 1 << 63;

/// The most tables that the filter of an image may have had. A filter goes on counting from there.
pub const TABLES_HAD_MAX: u64 = 1 << 32;

/// How long an image that is on its way in may make no progress, in seconds.
pub const IMAGE_IDLE_SECONDS: u64 = 600;

/// What an image is known by while it comes in.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct UploadId(pub u128);

/// What an image begins with.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ImageHead {
    /// See [`ALGORITHM`].
    pub algorithm: u32,
    /// The last entry of its log that it covers.
    pub seq: Seq,
    /// That log's time.
    pub at: Timestamp,
    /// Campaign or coupon.
    pub kind: Kind,
    /// The filter's name where it was taken.
    pub name: Name,
    /// Its hash key.
    pub secret: Secret,
    /// What it was asked to be.
    pub spec: Spec,
    /// The layout that it begins with when it is empty.
    pub layout: Layout,
    /// When it is active.
    pub window: Window,
    /// When it was created.
    pub created_at: Timestamp,
    /// Items added since then.
    pub adds: u64,
    /// Items removed since then.
    pub removes: u64,
    /// Its tables, but for what lies in them.
    pub tables: FilterImage,
    /// The position of the last change of a redemption.
    pub last_change: u64,
}

/// A chunk of a table.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Chunk(#[serde(with = "serde_bytes")] pub Vec<u8>);

/// A redemption, with the position of its last change among all of its coupon.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PlacedRedemption {
    /// The redemption.
    pub redemption: Redemption,
    /// Where it lies in the order of changes.
    pub change: u64,
}

/// A part of an image. The parts come in this order: all chunks, table by table, then the ordinals, then the redemptions.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ImagePart {
    /// The next chunks of the tables.
    Chunks(Vec<Chunk>),
    /// Of an open pool: a bit for each of the next ordinals, whether it is taken.
    Ordinals(Chunk),
    /// Redemptions.
    Redemptions(Vec<PlacedRedemption>),
}

impl ImagePart {
    /// Its approximate size, in bytes.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Chunks(chunks) => chunks.iter().map(|chunk| chunk.0.len() + 2).sum(),
            Self::Ordinals(bits) => bits.0.len() + 2,
            Self::Redemptions(redemptions) => {
                let bytes = |placed: &PlacedRedemption| 96 + placed.redemption.reference.as_str().len();
                redemptions.iter().map(bytes).sum()
            }
        }
    }
}

/// Why an image is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error, Serialize, Deserialize)]
pub enum ImageFault {
    /// Something else.
    #[error("it is no image of a cuckood campaign or coupon")]
    Foreign,
    /// Of a newer program.
    #[error("a newer cuckood has written it (version {0})")]
    Newer(u16),
    /// Its digests are made in another way.
    #[error("its digests are made by another algorithm ({0})")]
    Algorithm(u32),
    /// It is of another kind.
    #[error("it is an image of a {}", match .0 { Kind::Campaign => "campaign", Kind::Coupon => "coupon" })]
    Kind(Kind),
    /// A checksum is wrong.
    #[error("a checksum is wrong")]
    Checksum,
    /// Parts are out of order.
    #[error("a part is missing, comes twice, or is another image's")]
    Order,
    /// It says one thing and holds another.
    #[error("it contradicts itself")]
    Contradiction,
    /// Its end is missing.
    #[error("it ends too early")]
    CutShort,
    /// There are bytes behind its end.
    #[error("there is something behind its end")]
    TooLong,
}
