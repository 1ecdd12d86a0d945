//! The order of the log: which messages of the stream count, and the positions of their entries. It follows from the messages before and
//! nothing else, so it is the same on every node.
//!
//! A node publishes in a *session*, which it starts in the log itself, and numbers its messages from 0. A message counts if it belongs to
//! its node's latest session and has the next number. So each counts once, in order, however often and however late servers deliver it: a
//! copy has a number that was counted, and a message after a lost one is ahead.
//!
//! A snapshot stores its place, and a restart reads on from there. The directory stores to which log it belongs.
//!
//! A message that starts a session states how far its node had read the log. It is void if the node has started another session after
//! that: then it is a copy, or a late message of a process that has ended.

use super::message::{self, Body, MessageError, SessionId};
use crate::domain::{Entry, Seq};
use crate::frame::Format;
use crate::journal::{JournalError, decode_entries};
use crate::store::backing::Change;
use crate::store::{META_TREE, REPLICATED_LOG_KEY, Store, StoreError, VALUE_BYTES_MAX};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Maximum number of nodes whose sessions are stored. The one that was silent for longest is dropped first, on every node alike.
pub(super) const NODES_MAX: usize = 256;

/// Maximum length of a node's name, in bytes.
pub(super) const NODE_BYTES_MAX: usize = 128;

const FORMAT: Format = Format { magic: *b"ckpl", version: 1, payload_max: VALUE_BYTES_MAX };

/// The random identity of a log, drawn when its stream is created.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LogId(pub(super) u128);

/// A node's latest session.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Session {
    id: SessionId,
    /// The stream's number of the message that started it.
    begun: u64,
    /// The stream's number of the last message that counted in it.
    heard: u64,
    /// The number of its next message.
    next: u64,
}

type Nodes = BTreeMap<String, Session>;

fn serialize_nodes<S: Serializer>(nodes: &Arc<Nodes>, serializer: S) -> Result<S::Ok, S::Error> {
    nodes.as_ref().serialize(serializer)
}

fn deserialize_nodes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Arc<Nodes>, D::Error> {
    Nodes::deserialize(deserializer).map(Arc::new)
}

/// A place in the log: between two messages of the stream.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(super) struct Place {
    /// The stream's number of the last message before it.
    pub(super) stream: u64,
    /// The last entry before it.
    pub(super) seq: Seq,
    /// Checksum of the last message before it; 0 for a foreign one.
    pub(super) checksum: u128,
    /// The latest session of each node. Shared, because each delivery to the writer has its place.
    #[serde(serialize_with = "serialize_nodes", deserialize_with = "deserialize_nodes")]
    nodes: Arc<Nodes>,
    /// No dropped node has started its last session after this message.
    forgotten: u64,
}

/// The sender of a message that counts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Sender {
    pub(super) node: String,
    pub(super) session: SessionId,
    pub(super) number: u64,
}

/// Why a message has no effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Void {
    /// Its number was counted before.
    Copy,
    /// A message before it is missing.
    Gap,
    /// Its session is over, or was dropped.
    Over,
    /// It would have started a session that the node did not know to be superseded.
    Begin,
}

/// The effect of a message.
#[derive(PartialEq, Debug)]
pub(super) enum Read<'a> {
    /// A node's session starts.
    Begin { node: &'a str, session: SessionId },
    /// A group commit.
    Commit(Sender, Vec<Entry>),
    /// A message without entries: the node's last position, and its report.
    Beat(Sender, Seq, &'a [u8]),
    /// None.
    Void(SessionId, Void),
    /// Not a message of this service.
    Foreign,
}

impl Place {
    /// Whether a stream whose first message has this number can be read from here on.
    pub(super) fn can_be_read_from(&self, first_message: u64) -> bool {
        self.stream + 1 >= first_message
    }

    /// A place behind a snapshot, at the beginning of a stream.
    pub(super) fn after_snapshot(stream: u64, seq: Seq) -> Place {
        Place { stream, seq, ..Place::default() }
    }

    /// Reads the next message of the stream.
    ///
    /// # Errors
    /// [`JournalError::Damaged`] if it is not the next one, or of another format, or counts and has no valid entries.
    pub(super) fn read<'a>(&mut self, number: u64, bytes: &'a [u8]) -> Result<Read<'a>, JournalError> {
        let damaged = |why: &str| JournalError::Damaged(format!("message {number} of the stream: {why}"));
        if number != self.stream + 1 {
            return Err(damaged(&format!("expected the one after {}", self.stream)));
        }
        let message = match message::decode(bytes) {
            Ok(message) => message,
            Err(MessageError::Foreign) => {
                (self.stream, self.checksum) = (number, message::checksum(bytes));
                return Ok(Read::Foreign);
            }
            Err(error @ MessageError::Version { .. }) => return Err(damaged(&error.to_string())),
        };
        let session = message.session;
        let read = match message.body {
            Body::Begin { node, .. } if node.is_empty() || node.len() > NODE_BYTES_MAX => Read::Foreign,
            Body::Begin { node, read } if self.may_begin(node, read, number) => {
                self.begin(node, session, number);
                Read::Begin { node, session }
            }
            Body::Begin { .. } => Read::Void(session, Void::Begin),
            Body::Commit { number: commit, entries, payload } => match self.count(session, commit, number) {
                Err(void) => Read::Void(session, void),
                Ok(sender) => {
                    let entries = decode_entries(self.seq.next(), entries, payload);
                    let entries = entries.map_err(|why| damaged(&why))?;
                    let last = entries.last().ok_or_else(|| damaged("it has no entries"))?;
                    self.seq = last.seq;
                    Read::Commit(sender, entries)
                }
            },
            Body::Beat { number: beat, applied, report } => match self.count(session, beat, number) {
                Err(void) => Read::Void(session, void),
                Ok(sender) => Read::Beat(sender, Seq(applied), report),
            },
        };
        (self.stream, self.checksum) = (number, message.checksum);
        Ok(read)
    }

    fn may_begin(&self, node: &str, read: u64, number: u64) -> bool {
        let known = self.nodes.get(node).map_or(self.forgotten, |latest| latest.begun);
        known <= read && read < number
    }

    fn begin(&mut self, node: &str, id: SessionId, number: u64) {
        let nodes = Arc::make_mut(&mut self.nodes);
        nodes.insert(node.to_owned(), Session { id, begun: number, heard: number, next: 0 });
        if nodes.len() > NODES_MAX {
            let silent = nodes.iter().min_by_key(|(_, latest)| latest.heard).map(|(node, _)| node.clone());
            let silent = silent.and_then(|node| nodes.remove(&node));
            self.forgotten = silent.map_or(self.forgotten, |silent| self.forgotten.max(silent.begun));
        }
    }

    /// Counts a numbered message, if it is the next one of its node's latest session.
    fn count(&mut self, session: SessionId, sent: u64, number: u64) -> Result<Sender, Void> {
        let nodes = Arc::make_mut(&mut self.nodes);
        let found = nodes.iter_mut().find(|(_, latest)| latest.id == session);
        let (node, latest) = found.ok_or(Void::Over)?;
        match sent.cmp(&latest.next) {
            std::cmp::Ordering::Less => return Err(Void::Copy),
            std::cmp::Ordering::Greater => return Err(Void::Gap),
            std::cmp::Ordering::Equal => {}
        }
        (latest.next, latest.heard) = (sent + 1, number);
        Ok(Sender { node: node.clone(), session, number: sent })
    }
}

/// The replicated log that a directory belongs to; `None` if it belongs to none.
///
/// # Errors
/// [`StoreError::Damaged`].
pub fn log_of(store: &Store) -> Result<Option<LogId>, StoreError> {
    let mut log = Vec::new();
    if !store.run(store.backing().read(META_TREE, REPLICATED_LOG_KEY, &mut log))? {
        return Ok(None);
    }
    let log = log.try_into().map_err(|_| store.damaged("tree meta: the identity of the log is damaged"))?;
    Ok(Some(LogId(u128::from_be_bytes(log))))
}

/// Notes the replicated log that a directory belongs to. It is durable with the next flush.
///
/// # Errors
/// [`StoreError::Failed`].
pub(super) fn note_log(store: &Store, LogId(log): LogId) -> Result<(), StoreError> {
    store.write(META_TREE, vec![Change::Put(REPLICATED_LOG_KEY.to_vec(), log.to_be_bytes().to_vec())])
}

/// Whether the directory belongs to a replicated log.
pub fn is_of_replicated_log(store: &Store) -> bool {
    !matches!(log_of(store), Ok(None))
}

/// Encodes a place in a log.
pub(super) fn encode(log: LogId, place: &Place) -> Vec<u8> {
    FORMAT.pack(&(log, place))
}

/// The inverse of [`encode`]; `None` if the bytes are damaged.
pub(super) fn decode(value: &[u8]) -> Option<(LogId, Place)> {
    FORMAT.unpack(value).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{Command, Proposal, Timestamp};
    use crate::store::StoreOptions;

    fn commit(session: u128, number: u64) -> bytes::Bytes {
        let payload = postcard::to_stdvec(&Proposal::new(Timestamp(5), Command::TurnBack)).unwrap();
        message::encode(SessionId(session), Body::Commit { number, entries: 1, payload: &payload })
    }

    fn begin(node: &str, session: u128, read: u64) -> bytes::Bytes {
        message::encode(SessionId(session), Body::Begin { node, read })
    }

    fn beat(session: u128, number: u64) -> bytes::Bytes {
        message::encode(SessionId(session), Body::Beat { number, applied: 1, report: &[] })
    }

    /// The number that counted, or the reason that none did.
    fn outcome(log: &mut Place, bytes: &[u8]) -> Result<u64, Void> {
        match log.read(log.stream + 1, bytes).unwrap() {
            Read::Commit(sender, _) | Read::Beat(sender, ..) => Ok(sender.number),
            Read::Void(_, void) => Err(void),
            Read::Begin { .. } => Ok(0),
            Read::Foreign => panic!("foreign"),
        }
    }

    #[test]
    fn message_counts_only_in_latest_session_of_its_node() {
        let mut log = Place::default();
        assert_eq!(outcome(&mut log, &commit(1, 0)), Err(Void::Over));
        outcome(&mut log, &begin("a", 1, 0)).unwrap();
        outcome(&mut log, &begin("b", 2, 0)).unwrap();
        assert_eq!(outcome(&mut log, &commit(1, 0)), Ok(0));
        assert_eq!(outcome(&mut log, &commit(2, 0)), Ok(0));
        outcome(&mut log, &begin("a", 3, 5)).unwrap();
        assert_eq!(outcome(&mut log, &commit(1, 1)), Err(Void::Over));
        assert_eq!(outcome(&mut log, &commit(3, 0)), Ok(0));
        assert_eq!((log.seq, log.stream), (Seq(3), 8));
    }

    #[test]
    fn message_counts_once_and_only_after_the_one_before() {
        let mut log = Place::default();
        outcome(&mut log, &begin("a", 1, 0)).unwrap();
        let read = [0, 0, 2, 1, 3, 2, 1, 0, 3].map(|number| outcome(&mut log, &commit(1, number)));
        let (copy, gap) = (Err(Void::Copy), Err(Void::Gap));
        assert_eq!(read, [Ok(0), copy, gap, Ok(1), gap, Ok(2), copy, copy, Ok(3)]);
        assert_eq!(log.seq, Seq(4));
        // A node that continues from this place knows it, too. Beats have numbers of the same row.
        let mut other: Place = postcard::from_bytes(&postcard::to_stdvec(&log).unwrap()).unwrap();
        assert_eq!(other, log);
        assert_eq!(outcome(&mut other, &commit(1, 3)), copy);
        assert_eq!(outcome(&mut other, &beat(1, 4)), Ok(4));
        assert_eq!(outcome(&mut other, &commit(1, 5)), Ok(5));
    }

    /// Whatever servers do with the messages that start a session: nothing of it takes effect twice.
    #[test]
    fn session_starts_once_and_only_by_process_that_knows_latest() {
        let mut log = Place::default();
        outcome(&mut log, &begin("a", 1, 0)).unwrap();
        outcome(&mut log, &commit(1, 0)).unwrap();
        assert_eq!(outcome(&mut log, &begin("a", 1, 0)), Err(Void::Begin));
        assert_eq!(outcome(&mut log, &commit(1, 0)), Err(Void::Copy));
        assert_eq!(outcome(&mut log, &commit(1, 1)), Ok(1));
        // The next process of the node, and messages of its predecessor.
        outcome(&mut log, &begin("a", 2, 4)).unwrap();
        assert_eq!(outcome(&mut log, &begin("a", 3, 5)), Err(Void::Begin));
        assert_eq!(
            outcome(&mut log, &begin("a", 3, 8)),
            Err(Void::Begin),
            "no node has read its own message"
        );
        assert_eq!(outcome(&mut log, &beat(1, 2)), Err(Void::Over));
        assert_eq!(outcome(&mut log, &commit(2, 0)), Ok(0));
        assert_eq!(log.seq, Seq(3));
    }

    #[test]
    fn silent_node_is_dropped_when_there_are_too_many() {
        let mut log = Place::default();
        for number in 1..=NODES_MAX as u64 {
            outcome(&mut log, &begin(&format!("n{number}"), number.into(), number - 1)).unwrap();
        }
        outcome(&mut log, &commit(1, 0)).unwrap();
        outcome(&mut log, &beat(2, 0)).unwrap();
        let read = log.stream;
        outcome(&mut log, &begin("another", 1_000, read)).unwrap();
        assert_eq!(log.nodes.len(), NODES_MAX);
        assert_eq!(outcome(&mut log, &commit(3, 0)), Err(Void::Over));
        assert_eq!(outcome(&mut log, &commit(1, 1)), Ok(1));
        // A late copy does not restore it; the node itself has read on.
        assert_eq!(outcome(&mut log, &begin("n3", 3, 2)), Err(Void::Begin));
        assert_eq!(outcome(&mut log, &begin("n3", 3, 3)), Ok(0));
    }

    /// One such message would stop all nodes for good.
    #[test]
    fn foreign_and_damaged_messages_are_skipped_and_other_formats_are_not() {
        let mut log = Place::default();
        log.read(1, &begin("a", 1, 0)).unwrap();
        let mut damaged = commit(1, 0).to_vec();
        damaged[30] ^= 1;
        let begin_without_name = begin("", 9, 0);
        for (number, rubbish) in (2..).zip([&b"hello"[..], b"", b"cknl", &damaged, &begin_without_name]) {
            assert_eq!(log.read(number, rubbish).unwrap(), Read::Foreign);
        }
        assert!(log.read(8, &commit(1, 0)).is_err(), "a gap");
        assert!(log.read(6, &commit(1, 0)).is_err(), "a repetition");
        assert!(matches!(log.read(7, &commit(1, 0)).unwrap(), Read::Commit(..)));
    }

    #[test]
    fn directory_knows_its_log_and_places_round_trip() {
        let dir = tempfile::tempdir().unwrap();
        let options = StoreOptions { free_space_min_bytes: 0, ballast_bytes: 0, ..StoreOptions::default() };
        let store = Store::open(dir.path(), &options).unwrap();
        assert_eq!((log_of(&store).unwrap(), is_of_replicated_log(&store)), (None, false));
        note_log(&store, LogId(9)).unwrap();
        assert_eq!((log_of(&store).unwrap(), is_of_replicated_log(&store)), (Some(LogId(9)), true));
        let place = Place::after_snapshot(600, Seq(300));
        let mut encoded = encode(LogId(9), &place);
        assert_eq!(decode(&encoded), Some((LogId(9), place)));
        encoded[40] ^= 1;
        assert_eq!(decode(&encoded), None);
    }
}
