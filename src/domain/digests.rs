//! A list of digests as a command carries it.

use crate::filter::Digest;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::fmt;

/// Digests in the order of the request; eight little-endian bytes each when serialized, because a random
/// number gains nothing from a variable-length encoding.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Digests(pub Vec<Digest>);

impl Serialize for Digests {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut bytes = Vec::with_capacity(self.0.len() * 8);
        for digest in &self.0 {
            bytes.extend_from_slice(&digest.0.to_le_bytes());
        }
        serializer.serialize_bytes(&bytes)
    }
}

impl<'de> Deserialize<'de> for Digests {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Bytes;
        impl de::Visitor<'_> for Bytes {
            type Value = Digests;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("digests of 8 bytes each")
            }

            fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> Result<Digests, E> {
                let (digests, rest) = bytes.as_chunks::<8>();
                if !rest.is_empty() {
                    return Err(E::invalid_length(bytes.len(), &self));
                }
                Ok(Digests(digests.iter().map(|bytes| Digest(u64::from_le_bytes(*bytes))).collect()))
            }
        }
        deserializer.deserialize_bytes(Bytes)
    }
}
