//! The format of the replicated log's messages. A message is a group commit of one node, or says something about the node itself.
//!
//! ```text
//! message: magic "cknl"  version u8  kind u8  0 u16  session u128  number u64  count u64
//!          payload  XXH3-128 of all that                                  (little-endian)
//! begin:   number of the last message that the node has read; count 0; payload: the node's name
//! commit:  number of the commit in its session, from 0; count of entries; payload: the proposals
//! beat:    number of the beat; count: the last position that the node has applied; payload: its report about itself
//! ```
//!
//! Positions are not in it: a node that publishes does not know what comes before it. Readers count.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_128;

const MAGIC: &[u8; 4] = b"cknl";
const VERSION: u8 = 1;
const HEADER_BYTES: usize = 40;
const CHECKSUM_BYTES: usize = 16;

/// What a message takes beside its payload, in bytes.
pub(super) const OVERHEAD_BYTES: usize = HEADER_BYTES + CHECKSUM_BYTES;

/// The random identity of a node's session. Whoever has not begun a session, or has begun another one since, can't commit in it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
pub(super) struct Session(pub(super) u128);

/// What a message says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Body<'a> {
    /// The node of this name, which has read the log up to message `read`, begins the session; its earlier ones are over.
    Begin { node: &'a str, read: u64 },
    /// A group commit.
    Commit { number: u64, entries: u64, payload: &'a [u8] },
    /// The node is there, and has applied everything up to this position.
    Beat { number: u64, applied: u64, report: &'a [u8] },
}

/// A decoded message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Message<'a> {
    pub(super) session: Session,
    pub(super) body: Body<'a>,
    pub(super) checksum: u128,
}

/// Why a message can't be decoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum MessageError {
    /// Somebody else has published it.
    #[error("it is not a message of this service")]
    Foreign,
    /// A later version of the service has written it.
    #[error("it has format {0}, which a later version has written")]
    Newer(u8),
    /// It is damaged.
    #[error("{0}")]
    Damaged(&'static str),
}

/// Encodes a message.
pub(super) fn encode(session: Session, body: Body<'_>) -> Bytes {
    let (kind, number, count, payload): (u8, u64, u64, &[u8]) = match body {
        Body::Begin { node, read } => (0, read, 0, node.as_bytes()),
        Body::Commit { number, entries, payload } => (1, number, entries, payload),
        Body::Beat { number, applied, report } => (2, number, applied, report),
    };
    let mut message = Vec::with_capacity(payload.len() + OVERHEAD_BYTES);
    message.extend_from_slice(MAGIC);
    message.extend_from_slice(&[VERSION, kind, 0, 0]);
    message.extend_from_slice(&session.0.to_le_bytes());
    message.extend_from_slice(&number.to_le_bytes());
    message.extend_from_slice(&count.to_le_bytes());
    message.extend_from_slice(payload);
    let checksum = xxh3_128(&message);
    message.extend_from_slice(&checksum.to_le_bytes());
    message.into()
}

/// The checksum that a message carries, right or wrong; 0 for a foreign one.
pub(super) fn checksum(bytes: &[u8]) -> u128 {
    let checksum = bytes.last_chunk::<CHECKSUM_BYTES>().filter(|_| bytes.starts_with(MAGIC));
    checksum.map_or(0, |checksum| u128::from_le_bytes(*checksum))
}

/// Decodes a message.
///
/// # Errors
/// [`MessageError`].
pub(super) fn decode(bytes: &[u8]) -> Result<Message<'_>, MessageError> {
    if !bytes.starts_with(MAGIC) {
        return Err(MessageError::Foreign);
    }
    let short = MessageError::Damaged("it is too short");
    let (body, checksum) = bytes.split_last_chunk::<CHECKSUM_BYTES>().ok_or(short)?;
    let checksum = u128::from_le_bytes(*checksum);
    if xxh3_128(body) != checksum {
        return Err(MessageError::Damaged("its checksum is wrong"));
    }
    let (header, payload) = body.split_first_chunk::<HEADER_BYTES>().ok_or(short)?;
    if header[4] != VERSION {
        return Err(MessageError::Newer(header[4]));
    }
    let (session, numbers) = header[8..].split_first_chunk::<16>().ok_or(short)?;
    let (number, count) = numbers.split_first_chunk::<8>().ok_or(short)?;
    let number = u64::from_le_bytes(*number);
    let count = u64::from_le_bytes(*count.first_chunk().ok_or(short)?);
    let body = match header[5] {
        0 => {
            let node = std::str::from_utf8(payload);
            let node = node.map_err(|_| MessageError::Damaged("the node's name is no text"))?;
            Body::Begin { node, read: number }
        }
        1 => Body::Commit { number, entries: count, payload },
        2 => Body::Beat { number, applied: count, report: payload },
        _ => return Err(MessageError::Damaged("its kind is unknown")),
    };
    Ok(Message { session: Session(u128::from_le_bytes(*session)), body, checksum })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_back_and_any_flipped_bit_is_noticed() {
        let session = Session(7 << 100 | 9);
        let commit = Body::Commit { number: 3, entries: 2, payload: b"two entries" };
        let beat = Body::Beat { number: 8, applied: 1 << 40, report: b"well" };
        for body in [Body::Begin { node: "a", read: 5 }, commit, beat] {
            let bytes = encode(session, body);
            let message = decode(&bytes).unwrap();
            assert_eq!((message.session, message.body), (session, body));
            for bit in 0..bytes.len() * 8 {
                let mut damaged = bytes.to_vec();
                damaged[bit / 8] ^= 1 << (bit % 8);
                assert!(decode(&damaged).is_err(), "bit {bit} of {body:?}");
            }
            assert!(decode(&bytes[..bytes.len() - 1]).is_err());
        }
    }

    #[test]
    fn a_strange_message_and_a_newer_one_are_told_apart() {
        assert_eq!(decode(b"hello"), Err(MessageError::Foreign));
        assert_eq!(decode(b""), Err(MessageError::Foreign));
        let mut newer = encode(Session(1), Body::Begin { node: "a", read: 0 }).to_vec();
        newer.truncate(newer.len() - CHECKSUM_BYTES);
        newer[4] = VERSION + 1;
        let checksum = xxh3_128(&newer);
        newer.extend_from_slice(&checksum.to_le_bytes());
        assert_eq!(decode(&newer), Err(MessageError::Newer(2)));
    }
}
