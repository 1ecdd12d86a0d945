//! Turns the stream's messages into the log's entries. It is the same on every node: what a message means follows from the messages
//! before it and nothing else.
//!
//! A node commits in a *session*, which it has begun in the log itself (see `sessions`). A commit of a session that is not its
//! node's latest is void: nobody applies it. So a node whose publish got lost or timed out begins a new session. Once it reads that,
//! nothing of the old one that it has not read yet can ever take effect, and it may publish the same again.
//!
//! Commits are numbered in their session, from 0. One that is not the next is void as well: it comes twice, or one before it got
//! lost. So a node's commits take effect once, and in order, whatever the servers do with messages.

use super::message::{self, Body, MessageError, Session};
use super::report::Report;
use super::sessions::Sessions;
use crate::domain::{Entry, Proposal, Seq};
use crate::journal::JournalError;
use std::sync::Arc;

/// The longest name of a node, in bytes.
pub(super) const NODE_BYTES_MAX: usize = 128;

/// A place in the log: between two messages of the stream.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Place {
    /// The stream's number of the last message before it.
    pub(super) stream: u64,
    /// The last entry before it.
    pub(super) seq: Seq,
    /// The sessions in which commits count from here on.
    pub(super) sessions: Arc<Sessions>,
    /// Checksum of the last message before it; 0 for a foreign one.
    pub(super) checksum: u128,
}

impl Place {
    /// Whether a stream whose first message has this number can be read from here on.
    pub(super) fn can_be_read_from(&self, first_message: u64) -> bool {
        self.stream + 1 >= first_message
    }
}

/// What a message is that has no effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Void {
    /// It would have begun a session.
    Begin,
    /// The commit of this number.
    Commit(u64),
    /// The beat of this number.
    Beat(u64),
}

/// What a message turned out to be.
#[derive(PartialEq, Debug)]
pub(super) enum Read {
    /// A group commit that counts.
    Commit { session: Session, number: u64, entries: Vec<Entry> },
    /// A node has begun a session.
    Begin { session: Session, node: String },
    /// A node is there.
    Beat { session: Session, node: String, number: u64, applied: Seq, report: Report },
    /// Of a session that is over, or not the next in it: it came twice, or too late, or one before it got lost.
    Void { session: Session, what: Void },
    /// Not of this service.
    Foreign,
}

/// Reads the stream from a place on.
#[derive(Debug)]
pub(super) struct Sequencer {
    place: Place,
}

impl Sequencer {
    pub(super) fn new(place: Place) -> Sequencer {
        Sequencer { place }
    }

    /// The place behind the last message that was read.
    pub(super) fn place(&self) -> &Place {
        &self.place
    }

    /// Reads the next message of the stream.
    ///
    /// # Errors
    /// [`JournalError::Damaged`] if it is not the next one, or can't be decoded.
    pub(super) fn read(&mut self, number: u64, bytes: &[u8]) -> Result<Read, JournalError> {
        let damaged = |why: &str| JournalError::Damaged(format!("message {number} of the stream: {why}"));
        if number != self.place.stream + 1 {
            return Err(damaged(&format!("the one after {} was expected", self.place.stream)));
        }
        let message = match message::decode(bytes) {
            Ok(message) => message,
            Err(MessageError::Foreign) => {
                (self.place.stream, self.place.checksum) = (number, 0);
                return Ok(Read::Foreign);
            }
            Err(error) => return Err(damaged(&error.to_string())),
        };
        let session = message.session;
        let read = match message.body {
            Body::Begin { node, read } => {
                if node.is_empty() || node.len() > NODE_BYTES_MAX {
                    return Err(damaged("the node's name is empty or too long"));
                }
                if self.place.sessions.may_begin(node, read, number) {
                    self.sessions().begin(node, session, number);
                    Read::Begin { session, node: node.to_owned() }
                } else {
                    Read::Void { session, what: Void::Begin }
                }
            }
            Body::Commit { number: commit, entries, payload } => {
                if self.sessions().commit(session, commit, number) {
                    let entries = self.entries(entries, payload).map_err(|why| damaged(&why))?;
                    Read::Commit { session, number: commit, entries }
                } else {
                    Read::Void { session, what: Void::Commit(commit) }
                }
            }
            Body::Beat { number: beat, applied, report } => match self.sessions().beat(session, number) {
                None => Read::Void { session, what: Void::Beat(beat) },
                Some(node) => {
                    let (node, report) = (node.to_owned(), Report::decode(report));
                    Read::Beat { session, node, number: beat, applied: Seq(applied), report }
                }
            },
        };
        (self.place.stream, self.place.checksum) = (number, message.checksum);
        Ok(read)
    }

    /// The node whose latest session this is.
    pub(super) fn node_of(&self, session: Session) -> Option<&str> {
        self.place.sessions.node_of(session)
    }

    fn sessions(&mut self) -> &mut Sessions {
        Arc::make_mut(&mut self.place.sessions)
    }

    fn entries(&mut self, count: u64, mut payload: &[u8]) -> Result<Vec<Entry>, String> {
        let mut entries = Vec::new();
        let mut seq = self.place.seq;
        for _ in 0..count {
            let (proposal, rest) =
                postcard::take_from_bytes::<Proposal>(payload).map_err(|error| error.to_string())?;
            payload = rest;
            seq = seq.next();
            entries.push(Entry { seq, proposal });
        }
        if !payload.is_empty() || entries.is_empty() {
            return Err("its entries do not fill it".to_owned());
        }
        self.place.seq = seq;
        Ok(entries)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{Command, Timestamp};

    fn commit(session: u128, number: u64, at: u64) -> bytes::Bytes {
        let payload = postcard::to_stdvec(&Proposal::new(Timestamp(at), Command::TurnBack)).unwrap();
        message::encode(Session(session), Body::Commit { number, entries: 1, payload: &payload })
    }

    fn begin(node: &str, session: u128, read: u64) -> bytes::Bytes {
        message::encode(Session(session), Body::Begin { node, read })
    }

    fn beat(session: u128, number: u64) -> bytes::Bytes {
        message::encode(Session(session), Body::Beat { number, applied: 1, report: &[] })
    }

    fn void(session: u128, what: Void) -> Read {
        Read::Void { session: Session(session), what }
    }

    #[test]
    fn a_commit_counts_only_in_the_latest_session_of_its_node() {
        let mut log = Sequencer::new(Place::default());
        assert_eq!(log.read(1, &commit(1, 0, 5)).unwrap(), void(1, Void::Commit(0)));
        log.read(2, &begin("a", 1, 0)).unwrap();
        log.read(3, &begin("b", 2, 0)).unwrap();
        assert!(matches!(log.read(4, &commit(1, 0, 5)).unwrap(), Read::Commit { number: 0, .. }));
        assert!(matches!(log.read(5, &commit(2, 0, 6)).unwrap(), Read::Commit { .. }));
        log.read(6, &begin("a", 3, 5)).unwrap();
        // It comes late, and its node has given it up.
        assert_eq!(log.read(7, &commit(1, 1, 7)).unwrap(), void(1, Void::Commit(1)));
        let Read::Commit { entries, .. } = log.read(8, &commit(3, 0, 7)).unwrap() else { panic!() };
        assert_eq!((entries[0].seq, log.place().seq, log.place().stream), (Seq(3), Seq(3), 8));
        assert_eq!((log.node_of(Session(3)), log.node_of(Session(1))), (Some("a"), None));
    }

    #[test]
    fn a_commit_counts_once_and_only_behind_the_one_before_it() {
        let mut log = Sequencer::new(Place::default());
        log.read(1, &begin("a", 1, 0)).unwrap();
        let mut counted = Vec::new();
        for (message, number) in (2..).zip([0, 0, 2, 1, 3, 2, 1, 0, 3]) {
            if let Read::Commit { number, .. } = log.read(message, &commit(1, number, 5)).unwrap() {
                counted.push(number);
            }
        }
        assert_eq!(counted, [0, 1, 2, 3]);
        assert_eq!(log.place().seq, Seq(4));
        // Whoever goes on from this place knows it, too.
        let mut other = Sequencer::new(log.place().clone());
        assert_eq!(other.read(11, &commit(1, 3, 5)).unwrap(), void(1, Void::Commit(3)));
        assert!(matches!(other.read(12, &commit(1, 4, 5)).unwrap(), Read::Commit { .. }));
    }

    /// Whatever the servers do with the messages that begin a session: nothing of it takes effect twice.
    #[test]
    fn a_session_that_is_begun_twice_goes_on_where_it_was() {
        let mut log = Sequencer::new(Place::default());
        log.read(1, &begin("a", 1, 0)).unwrap();
        assert!(matches!(log.read(2, &commit(1, 0, 5)).unwrap(), Read::Commit { .. }));
        assert_eq!(log.read(3, &begin("a", 1, 0)).unwrap(), void(1, Void::Begin));
        assert_eq!(log.read(4, &commit(1, 0, 5)).unwrap(), void(1, Void::Commit(0)));
        assert!(matches!(log.read(5, &commit(1, 1, 5)).unwrap(), Read::Commit { .. }));
        // The next process of the node, and what its dead predecessor has sent.
        log.read(6, &begin("a", 2, 4)).unwrap();
        assert_eq!(log.read(7, &begin("a", 3, 5)).unwrap(), void(3, Void::Begin));
        assert_eq!(log.read(8, &beat(1, 4)).unwrap(), void(1, Void::Beat(4)));
        assert!(matches!(log.read(9, &commit(2, 0, 5)).unwrap(), Read::Commit { .. }));
        assert_eq!(log.place().seq, Seq(3));
    }

    #[test]
    fn what_is_not_ours_is_passed_over_and_what_is_damaged_is_not() {
        let mut log = Sequencer::new(Place::default());
        assert_eq!(log.read(1, b"hello").unwrap(), Read::Foreign);
        log.read(2, &begin("a", 1, 0)).unwrap();
        assert!(log.read(4, &commit(1, 0, 5)).is_err(), "a gap");
        assert!(log.read(2, &begin("a", 1, 0)).is_err(), "a repetition");
        let mut damaged = commit(1, 0, 5).to_vec();
        damaged[30] ^= 1;
        assert!(log.read(3, &damaged).is_err());
        assert!(matches!(log.read(3, &commit(1, 0, 5)).unwrap(), Read::Commit { .. }));
    }
}
