//! The hash function: XXH3 with a secret for each filter, so that outsiders can't craft collisions.

use serde::{Deserialize, Serialize};
use serde_bytes::ByteArray;

/// Bytes of a [`Secret`]. XXH3 needs at least 136; 192 is the length that it was analysed with.
pub const SECRET_BYTES: usize = 192;

/// The 64-bit XXH3 hash of an item under one filter's [`Secret`].
///
/// Filters, the log and snapshots contain nothing else of an item.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[repr(transparent)]
pub struct Digest(pub u64);

/// The random key of a filter's hash function, drawn once when the filter is created.
#[derive(Clone, PartialEq, Eq, derive_more::Debug, Serialize, Deserialize)]
#[debug("Secret(..)")]
pub struct Secret(Box<ByteArray<SECRET_BYTES>>);

impl Secret {
    /// A secret of these bytes. The caller has drawn them at random.
    pub fn new(bytes: [u8; SECRET_BYTES]) -> Self {
        Self(Box::new(ByteArray::new(bytes)))
    }

    /// Returns its bytes, from which other secrets of the filter can be derived.
    pub fn as_bytes(&self) -> &[u8; SECRET_BYTES] {
        &self.0
    }

    /// The digest of an item, whose bytes are taken exactly as they are.
    #[inline]
    pub fn digest(&self, item: &[u8]) -> Digest {
        Digest(xxhash_rust::xxh3::xxh3_64_with_secret(item, &self.0[..]))
    }
}
