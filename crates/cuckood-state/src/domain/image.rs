//! The image of one filter, which transfers it to another name or another server: its head, and the parts that follow.

use super::{FORMAT_FIRST, Kind, Latest, Meaning, Profile};
use crate::frame::FrameError;
use cuckood_filter::FilterImage;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// How items become digests, and digests places in tables. An image of another algorithm can't be used.
pub const ALGORITHM: u32 = 2;

/// Maximum number of concurrent image uploads.
pub const IMAGES_MAX: usize = 16;

/// The most of them that one API key may send.
pub const IMAGES_OF_KEY_MAX: usize = 4;

/// The greatest position of a last change that an image may have. A position is a time in milliseconds followed by 20 bits, so this is in
/// the year 2248, and allows later changes.
pub const LAST_CHANGE_MAX: u64 = 1 << 63;

/// Time without progress after which an image upload is aborted, in seconds.
pub const IMAGE_IDLE_SECONDS: u64 = 600;

/// The ID of an image upload.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct UploadId(pub u128);

/// A filter without its tables' slots, its ledger and its earlier statistics: the head of an image, and a snapshot's entry for each filter.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct FilterHead {
    /// See [`ALGORITHM`].
    pub algorithm: u32,
    /// Everything but its items.
    pub profile: Profile,
    /// Items added since then.
    pub adds: u64,
    /// Items removed since then.
    pub removes: u64,
    /// Its tables, without their slots.
    pub tables: FilterImage,
    /// The position of the last change of a redemption.
    pub last_change: u64,
    /// Its latest counts per day and hour.
    pub latest: Latest,
}

/// The permanent name of a snapshot's section: after a delete, a recreated part has another one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct SectionId {
    /// The filter, or other owner.
    pub owner: u64,
    /// Which of the owner's parts.
    pub part: u64,
}

/// A chunk of a section.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ImageChunk(#[serde(with = "serde_bytes")] pub Vec<u8>);

/// The section of an image that a part belongs to. Tables arrive first, the ordinals, members and uses of a coupon before its redemptions,
/// statistics last.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ImageSection {
    /// The tables, one after the other.
    Tables,
    /// For an open pool: the ordinals in use.
    Ordinals,
    /// The redemptions.
    Redemptions,
    /// The counts of earlier days and hours.
    Statistics,
    /// The used codes that are not in the pool, if all others are.
    Withdrawn,
    /// The used codes that are in the pool, if no other is.
    Members,
    /// How often each code is used, if codes have several uses.
    Uses,
    /// How often each customer has used codes, if that is limited.
    Customers,
}

impl ImageSection {
    /// Returns the version of entries that it needs.
    fn version(self) -> u16 {
        match self {
            ImageSection::Tables
            | ImageSection::Ordinals
            | ImageSection::Redemptions
            | ImageSection::Statistics => FORMAT_FIRST,
            ImageSection::Withdrawn | ImageSection::Members => Meaning::Withdrawal.since(),
            ImageSection::Uses | ImageSection::Customers => Meaning::Uses.since(),
        }
    }
}

/// A part of an image: the next chunks of a section, as a snapshot has them.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ImagePart {
    /// The section.
    pub section: ImageSection,
    /// The chunks.
    pub chunks: Vec<ImageChunk>,
}

impl ImagePart {
    /// Its approximate size, in bytes.
    pub fn bytes(&self) -> usize {
        self.chunks.iter().map(|chunk| chunk.0.len() + 3).sum()
    }
}

/// The content of an image's record.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum ImageBody {
    /// The head of the image.
    Head(Box<FilterHead>),
    /// A part of it.
    Part(ImagePart),
    /// Its end, and the number of redemptions.
    End {
        /// The number.
        redemptions: u64,
    },
}

/// A record of an image.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ImageRecord {
    /// The checksum of the record before; 0 for the first one.
    pub before: u128,
    /// Its own.
    pub checksum: u128,
    /// Its content.
    pub body: ImageBody,
    /// The version of entries that was enabled where the image was made, if it was just read. No earlier version may be enabled where it is
    /// logged. The log does not have it.
    #[serde(skip)]
    pub version: u16,
}

impl ImageRecord {
    /// Returns the version of entries that it needs, whatever version its image says.
    pub fn version(&self) -> u16 {
        let needed = match &self.body {
            ImageBody::Head(head) => head.profile.spec.version(head.profile.kind),
            ImageBody::Part(ImagePart { section, .. }) => section.version(),
            ImageBody::End { .. } => FORMAT_FIRST,
        };
        needed.max(self.version)
    }
}

/// The reason to reject an image.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error, Serialize, Deserialize)]
pub enum ImageFault {
    /// Something else.
    #[error("it is not an image of a cuckood campaign or coupon")]
    Foreign,
    /// Of a newer build.
    #[error("a newer cuckood has written it (version {0})")]
    Newer(u16),
    /// Its digests are made in another way.
    #[error("its digests are made by another algorithm ({0})")]
    Algorithm(u32),
    /// It is of another kind.
    #[error("it is an image of a {}", .0.as_str())]
    Kind(Kind),
    /// A checksum is wrong.
    #[error("a checksum is wrong")]
    Checksum,
    /// Parts are out of order.
    #[error("a part is missing, duplicate, or from another image")]
    Order,
    /// It says one thing and holds another.
    #[error("it contradicts itself")]
    Contradiction,
    /// Its end is missing.
    #[error("it ends too early")]
    CutShort,
    /// Bytes follow its end.
    #[error("bytes follow its end")]
    TooLong,
}

impl From<FrameError> for ImageFault {
    fn from(error: FrameError) -> Self {
        match error {
            FrameError::Foreign => Self::Foreign,
            FrameError::Newer(version) => Self::Newer(version),
            FrameError::Damaged => Self::Checksum,
        }
    }
}
