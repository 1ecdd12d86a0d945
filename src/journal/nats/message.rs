//! The messages of the replicated log. A message is a frame around the sender's session and a body: a group commit of one node, or
//! something about the node itself. It has no positions: a node that publishes does not know what precedes the message. Readers count.

use crate::frame::{Format, FrameError};
use crate::journal::random;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

const FORMAT: Format = Format { magic: *b"cknl", version: 2, payload_max: 8 << 20 };

/// Maximum size of a message without its payload, in bytes.
pub(super) const OVERHEAD_BYTES: usize = 128;

/// The random identity of a node's session.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct SessionId(pub(super) u128);

impl SessionId {
    pub(super) fn random() -> SessionId {
        SessionId(u128::from_le_bytes(random()))
    }
}

/// The content of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum Body<'a> {
    /// The node of this name, which has read the log up to message `read`, starts the session; its earlier ones are over.
    Begin { node: &'a str, read: u64 },
    /// A group commit.
    Commit {
        number: u64,
        entries: u64,
        #[serde(with = "serde_bytes")]
        payload: &'a [u8],
    },
    /// The node is up, and has applied everything up to this position.
    Beat { number: u64, applied: u64, report: &'a [u8] },
}

/// A decoded message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Message<'a> {
    pub(super) session: SessionId,
    pub(super) body: Body<'a>,
    pub(super) checksum: u128,
}

/// Why a message can't be decoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum MessageError {
    /// It is not a message of this service, or a damaged one.
    #[error("not a message of this service")]
    Foreign,
    /// Another version of the service has written it.
    #[error("format {found}; this build reads format {}: run one version of cuckood on all nodes", FORMAT.version)]
    Version { found: u16 },
}

/// Encodes a message.
pub(super) fn encode(session: SessionId, body: Body<'_>) -> Bytes {
    let payload = postcard::to_stdvec(&(session, body)).expect("plain data always encodes");
    let mut message = Vec::new();
    FORMAT.seal(0, 0, &payload, &mut message);
    message.into()
}

/// The last bytes of a message, which in an intact one are its checksum; 0 without the magic bytes.
pub(super) fn checksum(bytes: &[u8]) -> u128 {
    let checksum = bytes.last_chunk().filter(|_| bytes.starts_with(&FORMAT.magic));
    checksum.map_or(0, |checksum| u128::from_le_bytes(*checksum))
}

/// Whether a message claims to be of this service and can't be decoded: it is foreign, or was damaged on its way.
pub(super) fn is_suspect(bytes: &[u8]) -> bool {
    bytes.starts_with(&FORMAT.magic) && decode(bytes).is_err()
}

/// Decodes a message.
///
/// # Errors
/// [`MessageError`].
pub(super) fn decode(bytes: &[u8]) -> Result<Message<'_>, MessageError> {
    let (frame, length) = match FORMAT.open(bytes) {
        Ok(Some(found)) => found,
        Err(FrameError::Newer(found)) if FORMAT.is_intact(bytes) => {
            return Err(MessageError::Version { found });
        }
        Ok(None) | Err(_) => return Err(MessageError::Foreign),
    };
    let decoded = postcard::from_bytes(frame.payload).ok().filter(|_| length == bytes.len());
    let (session, body) = decoded.ok_or(MessageError::Foreign)?;
    Ok(Message { session, body, checksum: frame.checksum })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_round_trip_and_any_flipped_bit_is_noticed() {
        let session = SessionId(7 << 100 | 9);
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
    fn foreign_message_differs_from_another_version() {
        assert_eq!(decode(b"hello"), Err(MessageError::Foreign));
        assert!(!is_suspect(b"hello") && is_suspect(b"cknl and more"));
        let (mut newer, version) = (Vec::new(), FORMAT.version + 1);
        Format { version, ..FORMAT }.seal(0, 0, b"whatever", &mut newer);
        assert_eq!(decode(&newer), Err(MessageError::Version { found: version }));
        // Nothing shows that a later build has written it.
        newer[20] ^= 1;
        assert_eq!(decode(&newer), Err(MessageError::Foreign));
    }
}
