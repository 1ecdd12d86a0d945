//! The hash function: XXH3 with a secret for each filter, so that outsiders can't craft collisions.

use crate::place::{stored_digest, strict_value};
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

impl Digest {
    /// The digest that a strict filter has of an item: without the two highest bits, and never zero. A walk finds it instead of the complete
    /// one, and it finds the same item.
    #[inline]
    pub fn stored(self) -> Self {
        stored_digest(strict_value(self))
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    /// Stored filters have digests of this function: a change would lose every item. XXH3 has another path for each of these lengths.
    #[test]
    fn digests_are_final() {
        let secret = Secret::new(std::array::from_fn(|at| (at as u8).wrapping_mul(101)));
        let item: Vec<u8> = (0..=255).cycle().take(2_000).collect();
        for (length, expected) in [
            (0, 0x5c41_5291_8ba6_9f81),
            (3, 0xb64d_a95a_c157_cb26),
            (8, 0x52bd_3348_9e1a_294f),
            (16, 0x0b46_3f31_e3e4_64aa),
            (128, 0x09c7_f30b_fec4_2646),
            (240, 0xe9f4_65a8_6b7a_ce10),
            (1_024, 0xe89e_40e3_87ba_d47a),
            (2_000, 0x2734_8320_9c07_a4e8),
        ] {
            assert_eq!(
                secret.digest(&item[..length]),
                Digest(expected),
                "{length} bytes"
            );
        }
    }
}
