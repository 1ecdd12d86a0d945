//! The messages of the replicated log. A message is a frame around its sender's session, its number in that session, and a body: a group
//! commit of one node, or something about the node itself. It has no positions: a node that publishes does not know what precedes the
//! message. Readers count.

use super::options::NODE_BYTES_MAX;
use super::peers::Report;
use crate::frame::{Format, FrameError};
use crate::journal::JournalError;
use crate::journal::random;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

pub(super) const FORMAT: Format = Format { magic: *b"cknl", version: 3, payload_max: 8 << 20 };

/// Maximum size of a message without its payload, in bytes.
pub(super) const OVERHEAD_BYTES: usize = 128;

/// The random identity of a node's session.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(super) struct SessionId(pub(super) u128);

impl SessionId {
    pub(super) fn random() -> SessionId {
        SessionId(u128::from_le_bytes(random()))
    }
}

/// The content of a message.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum Body {
    /// The first message of a session: the node of this name, which has read the log up to message `read`, starts it. The node's earlier
    /// sessions are over.
    Begin { node: String, read: u64 },
    /// A group commit.
    Commit {
        entries: u64,
        #[serde(with = "serde_bytes")]
        payload: Vec<u8>,
    },
    /// The node is up, and reports about itself.
    Beat(Report),
}

/// A message of this service.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Message {
    pub(super) session: SessionId,
    /// Counts the session's messages from 0.
    pub(super) number: u64,
    pub(super) body: Body,
}

/// Encodes a message.
pub(super) fn encode(session: SessionId, number: u64, body: &Body) -> Bytes {
    FORMAT.pack(&(session, number, body)).into()
}

/// The last bytes of a message, which in an intact one are its checksum; 0 without the magic bytes.
pub(super) fn checksum(bytes: &[u8]) -> u128 {
    let checksum = bytes.last_chunk().filter(|_| bytes.starts_with(&FORMAT.magic));
    checksum.map_or(0, |checksum| u128::from_le_bytes(*checksum))
}

/// Decodes a message; `None` if it is foreign: not of this service, or damaged. Fields that a later build has appended are ignored.
///
/// A message of an earlier format is foreign after one of this format: its node stops at that one, so it was never acknowledged.
///
/// # Errors
/// Describes the mismatch if another version of the service has written the message.
pub(super) fn decode(bytes: &[u8], is_after_own: bool) -> Result<Option<Message>, String> {
    let frame = match FORMAT.open(bytes) {
        Ok(Some((frame, length))) if length == bytes.len() => frame,
        Err(FrameError::Newer(found)) if FORMAT.is_intact(bytes) => {
            return if is_after_own && found < FORMAT.version { Ok(None) } else { Err(other_format(found)) };
        }
        Ok(_) | Err(_) => return Ok(None),
    };
    let is_valid = |message: &Message| match &message.body {
        Body::Begin { node, .. } => message.number == 0 && (1..=NODE_BYTES_MAX).contains(&node.len()),
        Body::Commit { entries, .. } => *entries > 0,
        Body::Beat(_) => true,
    };
    Ok(postcard::from_bytes(frame.payload).ok().filter(is_valid))
}

fn other_format(found: u16) -> String {
    let reads = FORMAT.version;
    format!("format {found}; this build reads format {reads}: run one version of cuckood on all nodes")
}

/// The error for something that a build with another format of messages has written.
pub(super) fn of_other_build(what: &str, found: u16) -> JournalError {
    JournalError::Failed(format!("{what}: {}", other_format(found)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{Seq, StateHash};

    fn report() -> Report {
        let hash = Some(StateHash { at: Seq(1 << 16), hash: 5 });
        Report { applied: Seq(1 << 40), build: "1".to_owned(), understands: 3, hash }
    }

    #[test]
    fn messages_round_trip_and_flipped_bits_fail() {
        let (session, begin) = (SessionId(7 << 100 | 9), Body::Begin { node: "a".to_owned(), read: 5 });
        let commit = Body::Commit { entries: 2, payload: b"two entries".to_vec() };
        for (number, body) in (0..).zip([begin, commit, Body::Beat(report())]) {
            let bytes = encode(session, number, &body);
            for bit in 0..bytes.len() * 8 {
                let mut damaged = bytes.to_vec();
                damaged[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(decode(&damaged, false), Ok(None), "bit {bit} of {body:?}");
            }
            assert_eq!(decode(&bytes[..bytes.len() - 1], false), Ok(None));
            assert_eq!(decode(&bytes, false), Ok(Some(Message { session, number, body })));
        }
    }

    /// A stream has messages of earlier builds. If this fails, raise the version of the format.
    #[test]
    fn payloads_are_encoded_as_in_release() {
        let commit = Body::Commit { entries: 2, payload: vec![8, 9] };
        for (number, body, expected) in [
            (0, Body::Begin { node: "a".to_owned(), read: 300 }, "0700000161ac02"),
            (1, commit, "07010102020809"),
            (2, Body::Beat(report()), "0702028080808080200131030180800405"),
        ] {
            let bytes = encode(SessionId(7), number, &body);
            let payload = &bytes[28..bytes.len() - 16];
            assert_eq!(hex::encode(payload), expected, "{body:?}");
        }
    }

    #[test]
    fn fields_of_later_build_are_ignored() {
        let body = Body::Beat(report());
        let bytes = FORMAT.pack(&(SessionId(7), 1u64, &body, "more"));
        assert_eq!(decode(&bytes, false).unwrap().unwrap().body, body);
    }

    #[test]
    fn foreign_message_differs_from_another_version() {
        for foreign in [&b"hello"[..], b"", b"cknl and more"] {
            assert_eq!(decode(foreign, false), Ok(None));
        }
        assert!(checksum(b"cknl and more than that") != 0 && checksum(b"hello and more than that") == 0);
        let begin = |node| Body::Begin { node, read: 0 };
        let empty = Body::Commit { entries: 0, payload: Vec::new() };
        for body in [begin(String::new()), begin("x".repeat(NODE_BYTES_MAX + 1)), empty] {
            assert_eq!(decode(&encode(SessionId(1), 0, &body), false), Ok(None));
        }
        assert_eq!(decode(&encode(SessionId(1), 1, &begin("a".to_owned())), false), Ok(None));
        let (mut newer, version) = (Vec::new(), FORMAT.version + 1);
        Format { version, ..FORMAT }.seal(0, 0, b"whatever", &mut newer);
        assert!(decode(&newer, true).unwrap_err().starts_with(&format!("format {version};")));
        // Nothing shows that a later build has written it.
        newer[20] ^= 1;
        assert_eq!(decode(&newer, true), Ok(None));
    }

    #[test]
    fn earlier_format_is_foreign_after_present_one() {
        let (mut earlier, version) = (Vec::new(), FORMAT.version - 1);
        Format { version, ..FORMAT }.seal(0, 0, b"whatever", &mut earlier);
        assert!(decode(&earlier, false).unwrap_err().starts_with(&format!("format {version};")));
        assert_eq!(decode(&earlier, true), Ok(None));
    }
}
