//! The messages of the replicated log. A message is a frame around its sender's session, its number in that session, and a body: a group
//! commit of one node, or something about the node itself. It has no positions: a node that publishes does not know what precedes the
//! message. Readers count.

use super::options::NODE_BYTES_MAX;
use super::peers::NodeReport;
use bytes::Bytes;
use cuckood_log::journal::JournalError;
use cuckood_log::journal::random;
use cuckood_state::frame::{FrameError, FrameFormat};
use serde::{Deserialize, Serialize};

pub(super) const FORMAT: FrameFormat = FrameFormat {
    magic: *b"cknl",
    version: 3,
    oldest: 3,
    payload_max: 8 << 20,
};

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
    Beat(NodeReport),
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
    let checksum = bytes
        .last_chunk()
        .filter(|_| bytes.starts_with(&FORMAT.magic));
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
            return if is_after_own && found < FORMAT.version {
                Ok(None)
            } else {
                Err(other_format(found))
            };
        }
        Ok(_) | Err(_) => return Ok(None),
    };
    let is_valid = |message: &Message| match &message.body {
        Body::Begin { node, .. } => {
            message.number == 0 && (1..=NODE_BYTES_MAX).contains(&node.len())
        }
        Body::Commit { entries, .. } => *entries > 0,
        Body::Beat(_) => true,
    };
    Ok(postcard::from_bytes(frame.payload).ok().filter(is_valid))
}

fn other_format(found: u16) -> String {
    let reads = FORMAT.version;
    format!(
        "format {found}; this build reads format {reads}: run one version of cuckood on all nodes"
    )
}

/// The error for something that a build with another format of messages has written.
pub(super) fn of_other_build(what: &str, found: u16) -> JournalError {
    JournalError::Unusable(format!("{what}: {}", other_format(found)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::order::{self, LogId, StreamPlace};
    use crate::snapshots::{LABEL, SharedSnapshot};
    use cuckood_filter::Digest;
    use cuckood_state::domain::{
        Command, Digests, Entry, FilterId, IdempotencyKey, KeyName, Proposal, Redeem, RedemptionId,
        Reference, Seq, StateHash, Target, Timestamp,
    };
    use std::fs;
    use std::path::{Path, PathBuf};

    fn report() -> NodeReport {
        let hash = Some(StateHash {
            at: Seq(1 << 16),
            hash: 5,
        });
        NodeReport {
            applied: Seq(1 << 40),
            build: "1".to_owned(),
            understands: 3,
            hash,
        }
    }

    #[test]
    fn messages_round_trip_and_flipped_bits_fail() {
        let session = SessionId(7 << 100 | 9);
        let begin = Body::Begin {
            node: "a".to_owned(),
            read: 5,
        };
        let commit = Body::Commit {
            entries: 2,
            payload: b"two entries".to_vec(),
        };
        for (number, body) in (0..).zip([begin, commit, Body::Beat(report())]) {
            let bytes = encode(session, number, &body);
            for bit in 0..bytes.len() * 8 {
                let mut damaged = bytes.to_vec();
                damaged[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(decode(&damaged, false), Ok(None), "bit {bit} of {body:?}");
            }
            assert_eq!(decode(&bytes[..bytes.len() - 1], false), Ok(None));
            assert_eq!(
                decode(&bytes, false),
                Ok(Some(Message {
                    session,
                    number,
                    body
                }))
            );
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
        assert!(
            checksum(b"cknl and more than that") != 0 && checksum(b"hello and more than that") == 0
        );
        let begin = |node| Body::Begin { node, read: 0 };
        let empty = Body::Commit {
            entries: 0,
            payload: Vec::new(),
        };
        for body in [
            begin(String::new()),
            begin("x".repeat(NODE_BYTES_MAX + 1)),
            empty,
        ] {
            assert_eq!(decode(&encode(SessionId(1), 0, &body), false), Ok(None));
        }
        assert_eq!(
            decode(&encode(SessionId(1), 1, &begin("a".to_owned())), false),
            Ok(None)
        );
        let mut newer = Vec::new();
        let version = FORMAT.version + 1;
        FrameFormat { version, ..FORMAT }.seal(0, 0, b"whatever", &mut newer);
        assert!(
            decode(&newer, true)
                .unwrap_err()
                .starts_with(&format!("format {version};"))
        );
        // Nothing shows that a later build has written it.
        newer[20] ^= 1;
        assert_eq!(decode(&newer, true), Ok(None));
    }

    #[test]
    fn earlier_format_is_foreign_after_present_one() {
        let mut earlier = Vec::new();
        let version = FORMAT.version - 1;
        FrameFormat { version, ..FORMAT }.seal(0, 0, b"whatever", &mut earlier);
        assert!(
            decode(&earlier, false)
                .unwrap_err()
                .starts_with(&format!("format {version};"))
        );
        assert_eq!(decode(&earlier, true), Ok(None));
    }

    const FINAL: &str = "the format is final: undo the change, or raise the version in the frame";

    const LOG: LogId = LogId(0x0123_4567_89ab_cdef << 64 | 0xfedc);

    /// A file of `tests/fixtures/format-1/stream`: a message of one session, the place after its messages, or the label of a snapshot there.
    /// The release build wrote them (`cargo test --release --lib make_stream -- --ignored`). Every later build must read and write the same.
    fn file(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../tests/fixtures/format-1/stream")
            .join(name)
    }

    fn proposals() -> [Proposal; 2] {
        let target = Target(FilterId(300));
        let at = Timestamp(1_790_000_000_000);
        let digests = Digests(vec![Digest(1), Digest(u64::MAX)]);
        let insert = Command::Insert {
            target,
            digests,
            if_absent: true,
            revive: false,
        };
        let redeem = Command::Redeem(Redeem {
            target,
            digest: Digest(1 << 60),
            redemption: RedemptionId([0xab; 16]),
            reference: Reference::new("注文-1").unwrap(),
            hold_seconds: 600,
        });
        let by = KeyName::new("shop").unwrap();
        let idempotency = IdempotencyKey {
            scope: 1 << 127,
            request: 3,
        };
        [
            Proposal {
                by: Some(by),
                idempotency: Some(idempotency),
                ..Proposal::new(at, insert)
            },
            Proposal::new(at, redeem),
        ]
    }

    /// The messages of a session, in order, each with the name of its file.
    fn messages() -> [(&'static str, Message); 3] {
        let hash = Some(StateHash {
            at: Seq(1 << 16),
            hash: 5 << 100,
        });
        let report = NodeReport {
            applied: Seq(70_000),
            build: "0.1.0".to_owned(),
            understands: 1,
            hash,
        };
        let payload = proposals()
            .iter()
            .flat_map(cuckood_state::frame::encode)
            .collect();
        let bodies = [
            (
                "begin",
                Body::Begin {
                    node: "node-1".to_owned(),
                    read: 0,
                },
            ),
            (
                "commit",
                Body::Commit {
                    entries: 2,
                    payload,
                },
            ),
            ("beat", Body::Beat(report)),
        ];
        let mut number = 0..;
        bodies.map(|(name, body)| {
            (
                name,
                Message {
                    session: SessionId(7 << 100 | 9),
                    number: number.next().unwrap(),
                    body,
                },
            )
        })
    }

    /// The snapshot whose place is this.
    fn shared(place: Vec<u8>) -> SharedSnapshot {
        let name = format!("{:032x}-{:020}-x", LOG.0, 2);
        let node = "node-1".to_owned();
        SharedSnapshot {
            name,
            seq: Seq(2),
            taken_at: Timestamp(44),
            node,
            bytes: 12_831,
            place,
        }
    }

    /// The bytes of each file, as this build writes them.
    fn written() -> Vec<(&'static str, Vec<u8>)> {
        let mut place = StreamPlace::default();
        let mut files = Vec::new();
        for (name, message) in messages() {
            let bytes = encode(message.session, message.number, &message.body);
            place.read(&message, checksum(&bytes)).unwrap().unwrap();
            files.push((name, bytes.to_vec()));
        }
        let place = order::encode(LOG, &place);
        files.extend([
            ("place", place.clone()),
            ("label", LABEL.pack(&shared(place))),
        ]);
        files
    }

    #[test]
    #[ignore = "writes into the source tree; the format is final"]
    fn make_stream() {
        fs::create_dir_all(file("")).unwrap();
        written()
            .into_iter()
            .for_each(|(name, bytes)| fs::write(file(name), bytes).unwrap());
    }

    #[test]
    fn stream_of_release_is_read_and_written() {
        let read = |name| fs::read(file(name)).unwrap();
        let mut place = StreamPlace::default();
        let mut entries = Vec::new();
        for (name, expected) in messages() {
            let bytes = read(name);
            let message =
                decode(&bytes, false).unwrap_or_else(|error| panic!("{name}: {error}\n{FINAL}"));
            assert_eq!(message.as_ref(), Some(&expected), "{name}\n{FINAL}");
            entries.extend(place.read(&expected, checksum(&bytes)).unwrap().unwrap().1);
        }
        let positions = (1..).zip(proposals()).map(|(seq, proposal)| Entry {
            seq: Seq(seq),
            proposal,
        });
        assert_eq!(entries, positions.collect::<Vec<_>>(), "{FINAL}");
        assert_eq!(order::decode(&read("place")), Ok((LOG, place)), "{FINAL}");
        assert_eq!(
            LABEL.unpack(&read("label")),
            Ok(shared(read("place"))),
            "{FINAL}"
        );
        for (name, bytes) in written() {
            assert_eq!(
                hex::encode(bytes),
                hex::encode(read(name)),
                "{name}\n{FINAL}"
            );
        }
    }
}
