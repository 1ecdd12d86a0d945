//! The order of the log: which messages of the stream count, and the positions of their entries. It follows from the messages before and
//! nothing else, so it is the same on every node.
//!
//! A node publishes in a *session*, whose first message starts it, and numbers its messages from 0. A message counts if it belongs to its
//! node's latest session and has the next number. So each counts once, in order, however often and however late servers deliver it: a copy
//! has a number that was counted, and a message after a lost one is ahead.
//!
//! A snapshot stores its place, and a restart reads on from there. The directory stores to which log it belongs.
//!
//! A message that starts a session states how far its node had read the log. It is void if the node has started another session after
//! that: then it is a copy, or a late message of a process that has ended.

use super::message::{self, Body, Message, SessionId};
use cuckood_log::journal::{JournalError, Result, check_understood, decode_entries};
use cuckood_log::store::backing::KeyChange;
use cuckood_log::store::{META_TREE, REPLICATED_LOG_KEY, Store, StoreError, VALUE_BYTES_MAX};
use cuckood_state::domain::{Entry, Seq};
use cuckood_state::frame::{FrameError, FrameFormat};
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;
use std::collections::BTreeMap;

/// Maximum number of nodes whose sessions are stored. The one that was silent for longest is dropped first, on every node alike.
pub(super) const NODES_MAX: usize = 256;

/// The version is that of messages: a place implies that messages of that version were read.
const FORMAT: FrameFormat = FrameFormat {
    magic: *b"ckpl",
    payload_max: VALUE_BYTES_MAX,
    ..message::FORMAT
};

/// The random identity of a log, drawn when its stream is created.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LogId(pub(super) u128);

/// A node's latest session.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct NodeSession {
    id: SessionId,
    /// The stream's number of the message that started it.
    begun: u64,
    /// The stream's number of the last message that counted in it.
    heard: u64,
    /// The number of its next message.
    next: u64,
}

/// A place in the log: between two messages of the stream.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct StreamPlace {
    /// The stream's number of the last message before it.
    pub(super) stream: u64,
    /// The last entry before it.
    pub(super) seq: Seq,
    /// Checksum of the last message before it; 0 for a foreign one.
    pub(super) checksum: u128,
    /// The latest session of each node.
    nodes: BTreeMap<String, NodeSession>,
    /// No dropped node has started its last session after this message.
    forgotten: u64,
}

/// Why a message has no effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Void {
    /// It was counted before.
    Copy,
    /// A message before it is missing.
    Gap,
    /// Its session is over, or was dropped, or can't start: its node did not know the session that would be superseded.
    Over,
}

/// The node and the entries of a message that counts, or the reason why it has no effect.
pub(super) type CountedMessage = Result<(String, Vec<Entry>), Void>;

impl StreamPlace {
    /// The place after a snapshot, at the start of a stream.
    pub(super) fn after_snapshot(stream: u64, seq: Seq) -> StreamPlace {
        StreamPlace {
            stream,
            seq,
            ..StreamPlace::default()
        }
    }

    /// Whether the log before it has messages of this format that count.
    pub(super) fn has_session(&self) -> bool {
        !self.nodes.is_empty()
    }

    /// Passes over the next message of the stream, which is foreign.
    pub(super) fn skip(&mut self, checksum: u128) {
        (self.stream, self.checksum) = (self.stream + 1, checksum);
    }

    /// Reads the next message of the stream. After an error the place is still before it.
    ///
    /// # Errors
    /// [`JournalError::Damaged`] if it counts and has no valid entries; [`JournalError::Newer`] if they enable a version that this build
    /// does not understand.
    pub(super) fn read(&mut self, message: &Message, checksum: u128) -> Result<CountedMessage> {
        let counted = match self.sender_of(message) {
            Err(void) => Err(void),
            Ok(node) => {
                let entries = self.entries_of(message)?;
                check_understood(&entries)?;
                self.seq.0 += entries.len() as u64;
                self.count(&node, message);
                Ok((node, entries))
            }
        };
        self.skip(checksum);
        Ok(counted)
    }

    /// The node of a message that counts: one that starts a session, or the next one of its node's latest session.
    fn sender_of(&self, message: &Message) -> Result<String, Void> {
        if let Body::Begin { node, read } = &message.body {
            let latest = self.nodes.get(node);
            if latest.is_some_and(|latest| latest.id == message.session) {
                return Err(Void::Copy);
            }
            let begun = latest.map_or(self.forgotten, |latest| latest.begun);
            return if (begun..=self.stream).contains(read) {
                Ok(node.clone())
            } else {
                Err(Void::Over)
            };
        }
        let found = self
            .nodes
            .iter()
            .find(|(_, latest)| latest.id == message.session);
        let (node, latest) = found.ok_or(Void::Over)?;
        match message.number.cmp(&latest.next) {
            Ordering::Less => Err(Void::Copy),
            Ordering::Greater => Err(Void::Gap),
            Ordering::Equal => Ok(node.clone()),
        }
    }

    fn entries_of(&self, message: &Message) -> Result<Vec<Entry>> {
        let Body::Commit { entries, payload } = &message.body else {
            return Ok(Vec::new());
        };
        let decoded = decode_entries(self.seq.next(), *entries, payload);
        let number = self.stream + 1;
        decoded
            .map_err(|why| JournalError::Damaged(format!("message {number} of the stream: {why}")))
    }

    /// Counts a message of a node.
    fn count(&mut self, node: &str, message: &Message) {
        let id = message.session;
        let heard = self.stream + 1;
        let known = self.nodes.get(node).filter(|latest| latest.id == id);
        let begun = known.map_or(heard, |latest| latest.begun);
        self.nodes.insert(
            node.to_owned(),
            NodeSession {
                id,
                begun,
                heard,
                next: message.number + 1,
            },
        );
        if self.nodes.len() > NODES_MAX {
            let silent = self.nodes.iter().min_by_key(|(_, latest)| latest.heard);
            let silent = silent
                .map(|(node, _)| node.clone())
                .and_then(|node| self.nodes.remove(&node));
            self.forgotten =
                silent.map_or(self.forgotten, |silent| self.forgotten.max(silent.begun));
        }
    }
}

/// The replicated log that a directory belongs to; `None` if it belongs to none.
///
/// # Errors
/// [`StoreError::Damaged`].
pub fn log_of(store: &Store) -> Result<Option<LogId>, StoreError> {
    let mut log = Vec::new();
    if !store.run(
        store
            .backing()
            .read(META_TREE, REPLICATED_LOG_KEY, &mut log),
    )? {
        return Ok(None);
    }
    let log = log
        .try_into()
        .map_err(|_| store.damaged("tree meta: the identity of the log is damaged"))?;
    Ok(Some(LogId(u128::from_be_bytes(log))))
}

/// Notes the replicated log that a directory belongs to. It is durable with the next flush.
///
/// # Errors
/// [`StoreError::Failed`].
pub(super) fn note_log(store: &Store, LogId(log): LogId) -> Result<(), StoreError> {
    store.write(
        META_TREE,
        vec![KeyChange::Put(
            REPLICATED_LOG_KEY.to_vec(),
            log.to_be_bytes().to_vec(),
        )],
    )
}

/// Whether the directory belongs to a replicated log.
pub fn is_of_replicated_log(store: &Store) -> bool {
    !matches!(log_of(store), Ok(None))
}

/// Encodes a place in a log.
pub(super) fn encode(log: LogId, place: &StreamPlace) -> Vec<u8> {
    FORMAT.pack(&(log, place))
}

/// The inverse of [`encode`].
pub(super) fn decode(value: &[u8]) -> Result<(LogId, StreamPlace), FrameError> {
    FORMAT.unpack(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::NodeReport;
    use cuckood_log::store::StoreOptions;
    use cuckood_state::domain::{Command, FORMAT_VERSION, Proposal, Timestamp};

    fn commit(session: u128, number: u64) -> Message {
        let payload = postcard::to_stdvec(&Proposal::new(Timestamp(5), Command::TurnBack)).unwrap();
        Message {
            session: SessionId(session),
            number,
            body: Body::Commit {
                entries: 1,
                payload,
            },
        }
    }

    fn begin(node: &str, session: u128, read: u64) -> Message {
        Message {
            session: SessionId(session),
            number: 0,
            body: Body::Begin {
                node: node.to_owned(),
                read,
            },
        }
    }

    fn beat(session: u128, number: u64) -> Message {
        Message {
            session: SessionId(session),
            number,
            body: Body::Beat(NodeReport::default()),
        }
    }

    /// The number that counted, or the reason that none did.
    fn outcome(log: &mut StreamPlace, message: &Message) -> Result<u64, Void> {
        log.read(message, 1).unwrap().map(|_| message.number)
    }

    #[test]
    fn message_counts_only_in_latest_session() {
        let mut log = StreamPlace::default();
        assert_eq!(outcome(&mut log, &commit(1, 1)), Err(Void::Over));
        outcome(&mut log, &begin("a", 1, 0)).unwrap();
        outcome(&mut log, &begin("b", 2, 0)).unwrap();
        assert_eq!(outcome(&mut log, &commit(1, 1)), Ok(1));
        let (node, entries) = log.read(&commit(2, 1), 7).unwrap().unwrap();
        assert_eq!(
            (node.as_str(), entries[0].seq, entries.len()),
            ("b", Seq(2), 1)
        );
        outcome(&mut log, &begin("a", 3, 5)).unwrap();
        assert_eq!(outcome(&mut log, &commit(1, 2)), Err(Void::Over));
        assert_eq!(outcome(&mut log, &commit(3, 1)), Ok(1));
        assert_eq!((log.seq, log.stream), (Seq(3), 8));
    }

    #[test]
    fn message_counts_once_and_in_order() {
        let mut log = StreamPlace::default();
        outcome(&mut log, &begin("a", 1, 0)).unwrap();
        let read = [1, 1, 3, 2, 4, 3, 2, 1, 4].map(|number| outcome(&mut log, &commit(1, number)));
        let copy = Err(Void::Copy);
        let gap = Err(Void::Gap);
        assert_eq!(
            read,
            [Ok(1), copy, gap, Ok(2), gap, Ok(3), copy, copy, Ok(4)]
        );
        assert_eq!(log.seq, Seq(4));
        // A node that continues from this place knows it, too. Beats have numbers of the same row.
        let mut other: StreamPlace =
            postcard::from_bytes(&postcard::to_stdvec(&log).unwrap()).unwrap();
        assert_eq!(other, log);
        assert_eq!(outcome(&mut other, &commit(1, 4)), copy);
        assert_eq!(outcome(&mut other, &beat(1, 5)), Ok(5));
        assert_eq!(outcome(&mut other, &commit(1, 6)), Ok(6));
    }

    /// Whatever servers do with the messages that start a session: nothing of it takes effect twice.
    #[test]
    fn session_start_requires_latest_session() {
        let mut log = StreamPlace::default();
        outcome(&mut log, &begin("a", 1, 0)).unwrap();
        outcome(&mut log, &commit(1, 1)).unwrap();
        assert_eq!(outcome(&mut log, &begin("a", 1, 0)), Err(Void::Copy));
        assert_eq!(outcome(&mut log, &commit(1, 1)), Err(Void::Copy));
        assert_eq!(outcome(&mut log, &commit(1, 2)), Ok(2));
        // The next process of the node, and messages of its predecessor.
        outcome(&mut log, &begin("a", 2, 4)).unwrap();
        assert_eq!(outcome(&mut log, &begin("a", 1, 0)), Err(Void::Over));
        assert_eq!(outcome(&mut log, &begin("a", 3, 5)), Err(Void::Over));
        assert_eq!(
            outcome(&mut log, &begin("a", 3, 9)),
            Err(Void::Over),
            "no node has read its own message"
        );
        assert_eq!(outcome(&mut log, &beat(1, 3)), Err(Void::Over));
        assert_eq!(outcome(&mut log, &commit(2, 1)), Ok(1));
        assert_eq!(log.seq, Seq(3));
    }

    #[test]
    fn silent_node_is_dropped_beyond_limit() {
        let mut log = StreamPlace::default();
        for number in 1..=NODES_MAX as u64 {
            outcome(
                &mut log,
                &begin(&format!("n{number}"), number.into(), number - 1),
            )
            .unwrap();
        }
        outcome(&mut log, &commit(1, 1)).unwrap();
        outcome(&mut log, &beat(2, 1)).unwrap();
        let read = log.stream;
        outcome(&mut log, &begin("another", 1_000, read)).unwrap();
        assert_eq!(log.nodes.len(), NODES_MAX);
        assert_eq!(outcome(&mut log, &commit(3, 1)), Err(Void::Over));
        assert_eq!(outcome(&mut log, &commit(1, 2)), Ok(2));
        // A late copy does not restore it; the node itself has read on.
        assert_eq!(outcome(&mut log, &begin("n3", 3, 2)), Err(Void::Over));
        assert_eq!(outcome(&mut log, &begin("n3", 3, 3)), Ok(0));
    }

    /// The place is part of the state that a node stores when it stops.
    #[test]
    fn place_stays_before_message_that_cannot_be_read() {
        let mut log = StreamPlace::default();
        outcome(&mut log, &begin("a", 1, 0)).unwrap();
        log.skip(0);
        assert_eq!(outcome(&mut log, &commit(1, 1)), Ok(1));
        assert_eq!((log.stream, log.seq), (3, Seq(1)));
        let before = log.clone();
        let enable = Command::Enable {
            version: FORMAT_VERSION + 1,
        };
        let newer = postcard::to_stdvec(&Proposal::new(Timestamp(5), enable)).unwrap();
        for (entries, payload) in [
            (1, vec![]),
            (1, vec![255; 9]),
            (1, newer.clone()),
            (2, newer.clone()),
        ] {
            let message = Message {
                body: Body::Commit { entries, payload },
                ..commit(1, 2)
            };
            log.read(&message, 0).unwrap_err();
            assert_eq!(log, before);
        }
        let message = Message {
            body: Body::Commit {
                entries: 1,
                payload: newer,
            },
            ..commit(1, 2)
        };
        let newer = log.read(&message, 0);
        assert!(matches!(newer, Err(JournalError::Newer(why)) if why.contains("position 2")));
    }

    #[test]
    fn directory_knows_its_log_and_places_round_trip() {
        let dir = tempfile::tempdir().unwrap();
        let options = StoreOptions {
            free_space_min_bytes: 0,
            ballast_bytes: 0,
            ..StoreOptions::default()
        };
        let store = Store::open(dir.path(), &options).unwrap();
        assert_eq!(
            (log_of(&store).unwrap(), is_of_replicated_log(&store)),
            (None, false)
        );
        note_log(&store, LogId(9)).unwrap();
        assert_eq!(
            (log_of(&store).unwrap(), is_of_replicated_log(&store)),
            (Some(LogId(9)), true)
        );
        let place = StreamPlace::after_snapshot(600, Seq(300));
        let mut encoded = encode(LogId(9), &place);
        assert_eq!(decode(&encoded), Ok((LogId(9), place)));
        encoded[40] ^= 1;
        assert_eq!(decode(&encoded), Err(FrameError::Damaged));
    }
}
