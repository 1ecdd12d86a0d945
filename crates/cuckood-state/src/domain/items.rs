//! The items of a list, as digests, and the outcome for each.

use cuckood_filter::Digest;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::borrow::Cow;

/// The outcome for one item of a list.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ItemOutcome {
    /// The item was added.
    Added,
    /// The item was already present.
    AlreadyPresent,
    /// The filter holds the maximum number of copies of the item; nothing was stored.
    Saturated,
    /// The code is redeemed: it can't be added again or removed.
    AlreadyRedeemed,
    /// The redeemed code is available again.
    Revived,
    /// The item was removed.
    Removed,
    /// The item was not present.
    Absent,
    /// The item was replaced by the other one of its pair.
    Replaced,
}

/// Serializes outcomes as a list. In binary, each is one byte. To write them as bytes is the same, but takes a tenth of the time, which the
/// hash of every entry needs.
pub(super) fn serialize_outcomes<S: Serializer>(
    outcomes: &[ItemOutcome],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    if serializer.is_human_readable() {
        return outcomes.serialize(serializer);
    }
    let bytes: Vec<u8> = outcomes.iter().map(|outcome| *outcome as u8).collect();
    serializer.serialize_bytes(&bytes)
}

/// The outcomes of an insert, one per item.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "utoipa", schema(as = InsertedItems, example = json!({"outcomes": ["added", "already_present"], "added": 1})))]
pub struct Inserted {
    /// In the order of the request.
    #[serde(serialize_with = "serialize_outcomes")]
    pub outcomes: Vec<ItemOutcome>,
    /// Number of added and revived items.
    pub added: u64,
}

/// The outcomes of a removal, one per item.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "utoipa", schema(as = RemovedItems, example = json!({"outcomes": ["removed", "absent"], "removed": 1})))]
pub struct Removed {
    /// In the order of the request.
    #[serde(serialize_with = "serialize_outcomes")]
    pub outcomes: Vec<ItemOutcome>,
    /// Number of removed copies.
    pub removed: u64,
}

/// Digests in the order of the request. Serialized as eight little-endian bytes each, because a variable-length encoding gains
/// nothing on random numbers.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Digests(pub Vec<Digest>);

impl Serialize for Digests {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut bytes = vec![0; self.0.len() * 8];
        let (chunks, _) = bytes.as_chunks_mut::<8>();
        for (chunk, digest) in chunks.iter_mut().zip(&self.0) {
            *chunk = digest.0.to_le_bytes();
        }
        serializer.serialize_bytes(&bytes)
    }
}

impl<'de> Deserialize<'de> for Digests {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bytes: Cow<'de, [u8]> = serde_bytes::deserialize(deserializer)?;
        let (digests, rest) = bytes.as_chunks::<8>();
        if !rest.is_empty() {
            return Err(de::Error::invalid_length(
                bytes.len(),
                &"digests of 8 bytes each",
            ));
        }
        Ok(Digests(
            digests
                .iter()
                .map(|bytes| Digest(u64::from_le_bytes(*bytes)))
                .collect(),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_round_trip_and_others_fail() {
        let digests = Digests(vec![Digest(0), Digest(1), Digest(u64::MAX)]);
        let bytes = postcard::to_stdvec(&digests).unwrap();
        assert_eq!(bytes.len(), 1 + 3 * 8);
        assert_eq!(postcard::from_bytes::<Digests>(&bytes), Ok(digests));
        assert!(postcard::from_bytes::<Digests>(&[7, 0, 0, 0, 0, 0, 0, 0]).is_err());
    }

    #[test]
    fn outcomes_are_written_as_list() {
        let all = [
            ItemOutcome::Added,
            ItemOutcome::AlreadyPresent,
            ItemOutcome::Saturated,
            ItemOutcome::AlreadyRedeemed,
            ItemOutcome::Revived,
            ItemOutcome::Removed,
            ItemOutcome::Absent,
            ItemOutcome::Replaced,
        ];
        for length in [0, 1, 8, 300] {
            let outcomes: Vec<ItemOutcome> = all.into_iter().cycle().take(length).collect();
            let list = postcard::to_stdvec(&(&outcomes, 7_u64)).unwrap();
            let inserted = Inserted { outcomes, added: 7 };
            assert_eq!(postcard::to_stdvec(&inserted).unwrap(), list);
            assert_eq!(postcard::from_bytes(&list), Ok(inserted));
        }
    }
}
