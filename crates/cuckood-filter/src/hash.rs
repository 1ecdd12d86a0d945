//! The hash function: XXH3 with a secret for each filter, so that outsiders can't craft collisions.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Bytes of a [`Secret`]. XXH3 needs at least 136; 192 is the length that it was analysed with.
pub const SECRET_BYTES: usize = 192;

/// The 64-bit XXH3 hash of an item under one filter's [`Secret`].
///
/// Filters, the log and snapshots contain nothing else of an item.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[repr(transparent)]
pub struct Digest(pub u64);

/// The random key of a filter's hash function, drawn once when the filter is created.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Box<[u8; SECRET_BYTES]>);

impl Secret {
    /// A secret of these bytes. The caller has drawn them at random.
    pub fn new(bytes: [u8; SECRET_BYTES]) -> Self {
        Self(Box::new(bytes))
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

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl Serialize for Secret {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0[..])
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Bytes;
        impl<'de> serde::de::Visitor<'de> for Bytes {
            type Value = Secret;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{SECRET_BYTES} bytes")
            }

            fn visit_bytes<E: serde::de::Error>(self, bytes: &[u8]) -> Result<Secret, E> {
                let bytes = bytes.try_into().map_err(|_| E::invalid_length(bytes.len(), &self))?;
                Ok(Secret::new(bytes))
            }

            // Formats without byte strings, such as JSON.
            fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut values: A) -> Result<Secret, A::Error> {
                let mut bytes = Vec::with_capacity(SECRET_BYTES);
                while let Some(byte) = values.next_element()?.filter(|_| bytes.len() <= SECRET_BYTES) {
                    bytes.push(byte);
                }
                self.visit_bytes(&bytes)
            }
        }
        deserializer.deserialize_bytes(Bytes)
    }
}
