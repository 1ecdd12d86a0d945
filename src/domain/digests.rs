//! A list of digests inside a command.

use crate::filter::Digest;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::borrow::Cow;

/// Digests in the order of the request. Serialized as eight little-endian bytes each, because a variable-length encoding gains
/// nothing on random numbers.
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
        let bytes: Cow<'de, [u8]> = serde_bytes::deserialize(deserializer)?;
        let (digests, rest) = bytes.as_chunks::<8>();
        if !rest.is_empty() {
            return Err(de::Error::invalid_length(bytes.len(), &"digests of 8 bytes each"));
        }
        Ok(Digests(digests.iter().map(|bytes| Digest(u64::from_le_bytes(*bytes))).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_come_back_as_they_were_and_nothing_else_does() {
        let digests = Digests(vec![Digest(0), Digest(1), Digest(u64::MAX)]);
        let bytes = postcard::to_stdvec(&digests).unwrap();
        assert_eq!(bytes.len(), 1 + 3 * 8);
        assert_eq!(postcard::from_bytes::<Digests>(&bytes), Ok(digests));
        assert!(postcard::from_bytes::<Digests>(&[7, 0, 0, 0, 0, 0, 0, 0]).is_err());
    }
}
