//! What is known about the replicated log, for readers on other threads: the connection, what is under way, the other nodes, and how
//! the log's clock compares.

use super::comparison::Comparison;
use super::peers::{Known, Peers};
use super::report::Report;
use crate::domain::{Seq, StateHash, Timestamp};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// An observation with a wider bracket than this replaces a better one only once that is old.
const BRACKET_GOOD: Duration = Duration::from_millis(500);

/// When a better observation is old.
const OBSERVATION_OLD: Duration = Duration::from_secs(600);

/// What the log's clock said, at some moment between two of ours.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogTime {
    /// What the log's clock said.
    pub log: Timestamp,
    /// The message was published by then at the earliest.
    pub sent: Instant,
    /// It was acknowledged or read back by then.
    pub seen: Instant,
}

impl LogTime {
    /// How far the two moments are apart.
    fn bracket(&self) -> Duration {
        self.seen.saturating_duration_since(self.sent)
    }
}

/// Another node, as the log tells of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Peer {
    /// Its name.
    pub node: String,
    /// The last position that it said it had applied.
    pub applied: Seq,
    /// When it was last heard of, by the log's clock.
    pub heard_at: Timestamp,
    /// Its build; empty if it has not told.
    pub build: String,
    /// The highest version of entries that it understands; 0 if it has not told.
    pub understands: u16,
    /// The hash of its state that it told last.
    pub hash: Option<StateHash>,
    /// Whether its state differs from this node's; `None` if they have told no hashes of one position.
    pub differs: Option<bool>,
    /// Whether it was heard of within ten minutes, as long as the log goes on.
    pub is_present: bool,
}

/// Figures of the replicated log at one moment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReplicationFigures {
    /// This node's name.
    pub node: String,
    /// The stream.
    pub stream: String,
    /// The server that it is connected to, or was last.
    pub server: String,
    /// That server's version.
    pub server_version: String,
    /// Servers that hold the stream.
    pub replicas: usize,
    /// Whether there is a connection.
    pub connected: bool,
    /// How often the connection was made again.
    pub reconnects: u64,
    /// How often the reader was opened again because the log had not come as it should.
    pub reopened: u64,
    /// How often this node has begun a new session because a commit's fate was unknown.
    pub sessions: u64,
    /// Commits that are under way.
    pub in_flight: u64,
    /// Messages of the log that the reader has been told of and has not got.
    pub behind_messages: u64,
    /// For how long it can't be shown that this node has everything; zero while that is checked often enough.
    pub lag: Duration,
    /// The hash of this node's state that it told last.
    pub hash: Option<StateHash>,
    /// The other nodes.
    pub peers: Vec<Peer>,
}

#[derive(Debug, Default)]
struct Inner {
    server: String,
    server_version: String,
    replicas: usize,
    disconnected_since: Option<Instant>,
    connections: u64,
    /// It is connected again, maybe to another server.
    is_reconnected: bool,
    reopened: u64,
    /// Why the reader does not get on.
    trouble: Option<String>,
    sessions: u64,
    in_flight: usize,
    behind: u64,
    unread_since: Option<Instant>,
    peers: Peers,
    observed: Option<LogTime>,
    hash: Option<StateHash>,
    /// Whether this node's state may be wrong.
    is_in_doubt: bool,
}

impl Inner {
    fn lag(&self, now: Instant) -> Duration {
        let since = [self.disconnected_since, self.unread_since].into_iter().flatten().min();
        since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since))
    }

    /// The other nodes that this process has heard of.
    fn heard_peers(&self) -> Vec<Peer> {
        let heard = self.peers.all().filter_map(|(node, known)| Some((node, known, known.heard_at?)));
        let peer = |(node, known, heard_at): (&str, &Known, Timestamp)| Peer {
            node: node.to_owned(),
            applied: known.applied,
            heard_at,
            build: known.report.build.clone(),
            understands: known.report.understands,
            hash: known.report.hash(),
            differs: known.differs,
            is_present: self.peers.is_present(known),
        };
        heard.map(peer).collect()
    }
}

/// What is known about the replicated log.
#[derive(Debug)]
pub struct Replication {
    node: String,
    stream: String,
    /// The last position that this node has applied.
    applied: AtomicU64,
    inner: Mutex<Inner>,
}

impl Replication {
    pub(super) fn new(node: &str, stream: &str) -> Replication {
        let inner = Inner { disconnected_since: Some(Instant::now()), ..Inner::default() };
        Replication {
            node: node.to_owned(),
            stream: stream.to_owned(),
            applied: AtomicU64::new(0),
            inner: Mutex::new(inner),
        }
    }

    /// The figures now.
    pub fn figures(&self) -> ReplicationFigures {
        let inner = self.inner.lock();
        ReplicationFigures {
            node: self.node.clone(),
            stream: self.stream.clone(),
            server: inner.server.clone(),
            server_version: inner.server_version.clone(),
            replicas: inner.replicas,
            connected: inner.disconnected_since.is_none(),
            reconnects: inner.connections.saturating_sub(1),
            reopened: inner.reopened,
            sessions: inner.sessions,
            in_flight: inner.in_flight as u64,
            behind_messages: inner.behind,
            lag: inner.lag(Instant::now()),
            hash: inner.hash,
            peers: inner.heard_peers(),
        }
    }

    /// For how long it can't be shown that this node has everything; zero while that is checked often enough.
    pub fn lag(&self) -> Duration {
        self.inner.lock().lag(Instant::now())
    }

    /// Whether this node's state differs from another's, and it is open which of them is right, or was decided against this node.
    pub fn is_in_doubt(&self) -> bool {
        self.inner.lock().is_in_doubt
    }

    /// Whether it is known well what the log's clock says.
    pub(super) fn knows_log_time(&self) -> bool {
        self.inner.lock().observed.is_some_and(|time| time.bracket() <= BRACKET_GOOD)
    }

    /// What the log's clock last said.
    pub fn log_time(&self) -> Option<LogTime> {
        self.inner.lock().observed
    }

    pub(super) fn applied(&self) -> Seq {
        Seq(self.applied.load(Relaxed))
    }

    pub(super) fn note_applied(&self, applied: Seq) {
        self.applied.store(applied.0, Relaxed);
    }

    pub(super) fn opened(&self, server: &str, version: &str, replicas: usize) {
        let mut inner = self.inner.lock();
        (inner.server, inner.server_version) = (server.to_owned(), version.to_owned());
        (inner.replicas, inner.disconnected_since) = (replicas, None);
    }

    /// Takes note of the server, if it may be another one.
    pub(super) fn served_by(&self, server: impl FnOnce() -> (String, String)) {
        let mut inner = self.inner.lock();
        if std::mem::take(&mut inner.is_reconnected) {
            (inner.server, inner.server_version) = server();
        }
    }

    pub(super) fn connected(&self, is_connected: bool) {
        let mut inner = self.inner.lock();
        if is_connected {
            inner.connections += 1;
            (inner.disconnected_since, inner.is_reconnected) = (None, true);
        } else {
            inner.disconnected_since.get_or_insert_with(Instant::now);
        }
        if inner.connections > 1 || !is_connected {
            tracing::warn!(connected = is_connected, "the connection to the replicated log");
        }
    }

    pub(super) fn reopened(&self) {
        self.inner.lock().reopened += 1;
    }

    /// The reader has to begin anew for this reason. Returns whether it is another one than before.
    pub(super) fn reader_failed(&self, why: &str) -> bool {
        let mut inner = self.inner.lock();
        inner.reopened += 1;
        let is_news = inner.trouble.as_deref() != Some(why);
        inner.trouble = Some(why.to_owned());
        is_news
    }

    /// Why the reader does not get on, if it doesn't.
    pub(super) fn trouble(&self) -> Option<String> {
        self.inner.lock().trouble.clone()
    }

    pub(super) fn began_session(&self) {
        self.inner.lock().sessions += 1;
    }

    pub(super) fn note(&self, in_flight: usize, unread_since: Option<Instant>) {
        let mut inner = self.inner.lock();
        (inner.in_flight, inner.unread_since) = (in_flight, unread_since);
    }

    /// A message was read that has so many behind it.
    pub(super) fn note_behind(&self, messages: u64) {
        let mut inner = self.inner.lock();
        (inner.behind, inner.trouble) = (messages, None);
    }

    /// These nodes have sessions from before this process began to read.
    pub(super) fn expect<'a>(&self, nodes: impl IntoIterator<Item = &'a str>) {
        let mut inner = self.inner.lock();
        nodes.into_iter().filter(|node| *node != self.node).for_each(|node| inner.peers.expect(node));
    }

    /// A message of this time was read.
    pub(super) fn note_time(&self, at: Timestamp) {
        self.inner.lock().peers.note_time(at);
    }

    /// The last message was this node's.
    pub(super) fn heard(&self, node: &str, applied: Option<Seq>) {
        if node != self.node {
            self.inner.lock().peers.heard(node, applied);
        }
    }

    /// The last message has begun a session of another node.
    pub(super) fn heard_begin(&self, node: &str) {
        self.inner.lock().peers.began_session(node);
    }

    /// Another node, which was just heard of, has told of itself.
    pub(super) fn note_report(&self, node: &str, report: Report) {
        self.inner.lock().peers.known(node).report = report;
    }

    /// Notes whose state differs. Returns whether somebody's does now whose did not.
    pub(super) fn note_comparison(&self, comparison: &Comparison) -> bool {
        let mut inner = self.inner.lock();
        inner.hash = comparison.last();
        let mut is_news = false;
        for (node, known) in inner.peers.all_mut() {
            let differs = comparison.differs(node).or(known.differs);
            is_news |= differs == Some(true) && known.differs != differs;
            known.differs = differs;
        }
        is_news
    }

    pub(super) fn note_doubt(&self, is_in_doubt: bool) {
        self.inner.lock().is_in_doubt = is_in_doubt;
    }

    /// The nodes that are there, or may be back at once.
    pub(super) fn present(&self) -> BTreeSet<String> {
        self.inner.lock().peers.present().map(|(node, _)| node.to_owned()).collect()
    }

    /// From now on everything is heard that the others write.
    pub(super) fn listens(&self) {
        self.inner.lock().peers.listens();
    }

    /// The highest version of entries that every node understands which is present; 0 while that can't be told.
    pub(super) fn understood(&self, ours: u16, listen_time: Duration) -> u16 {
        self.inner.lock().peers.understood(ours, listen_time)
    }

    /// Notes what the log's clock said, unless an earlier observation was better and is not old.
    pub(super) fn observed(&self, time: LogTime) {
        let mut inner = self.inner.lock();
        let is_good = time.bracket() <= BRACKET_GOOD;
        let is_old = |known: LogTime| time.seen.saturating_duration_since(known.seen) >= OBSERVATION_OLD;
        if is_good || inner.observed.is_none_or(is_old) {
            inner.observed = Some(time);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_poor_observation_does_not_replace_a_good_one_that_is_fresh() {
        let status = Replication::new("a", "shop");
        let start = Instant::now();
        let observe = |log, sent, seen| {
            let (sent, seen) = (start + Duration::from_millis(sent), start + Duration::from_millis(seen));
            status.observed(LogTime { log: Timestamp(log), sent, seen });
            status.log_time().unwrap().log.0
        };
        assert_eq!(observe(1, 0, 9_000), 1, "better than none");
        assert_eq!(observe(2, 9_000, 9_100), 2);
        assert_eq!(observe(3, 9_200, 20_000), 2);
        assert_eq!(observe(4, 600_000, 620_000), 4);
    }

    #[test]
    fn the_lag_counts_from_what_was_not_read_back_first() {
        let (start, seconds) = (Instant::now(), Duration::from_secs);
        let mut inner = Inner::default();
        assert_eq!(inner.lag(start), Duration::ZERO);
        inner.unread_since = Some(start);
        inner.disconnected_since = Some(start + seconds(3));
        assert_eq!(inner.lag(start + seconds(7)), seconds(7));
        inner.unread_since = None;
        assert_eq!(inner.lag(start + seconds(7)), seconds(4));
        inner.disconnected_since = None;
        assert_eq!(inner.lag(start + seconds(7)), Duration::ZERO);
    }
}
