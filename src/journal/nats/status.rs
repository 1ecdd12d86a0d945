//! What is known about the replicated log, for readers on other threads: the connection, what is under way, the other nodes, and how
//! the log's clock compares.

use super::comparison::Comparison;
use super::report::Report;
use crate::domain::{Seq, StateHash, Timestamp};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// The most other nodes that are remembered.
const PEERS_MAX: usize = 256;

/// A node that was not heard of for so long is not asked what it understands.
const PEER_GONE: Duration = Duration::from_secs(600);

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

/// What is known about another node.
#[derive(Debug, Default)]
struct Known {
    applied: Seq,
    heard_at: Timestamp,
    report: Report,
    differs: Option<bool>,
}

impl Known {
    fn peer(&self, node: &str) -> Peer {
        let Known { applied, heard_at, report, differs } = self;
        Peer {
            node: node.to_owned(),
            applied: *applied,
            heard_at: *heard_at,
            build: report.build.clone(),
            understands: report.understands,
            hash: report.hash(),
            differs: *differs,
        }
    }

    fn is_heard_within(&self, now: Timestamp, time: Duration) -> bool {
        u128::from(now.0.saturating_sub(self.heard_at.0)) <= time.as_millis()
    }
}

#[derive(Debug, Default)]
struct Inner {
    server: String,
    server_version: String,
    replicas: usize,
    disconnected_since: Option<Instant>,
    connections: u64,
    reopened: u64,
    /// Why the reader does not get on.
    trouble: Option<String>,
    sessions: u64,
    in_flight: usize,
    behind: u64,
    unread_since: Option<Instant>,
    peers: BTreeMap<String, Known>,
    observed: Option<LogTime>,
    hash: Option<StateHash>,
    /// The latest time that the log's clock has told.
    now: Timestamp,
    /// Since when this node has heard what the others write.
    listens_since: Option<Instant>,
}

impl Inner {
    fn lag(&self) -> Duration {
        let since = [self.disconnected_since, self.unread_since].into_iter().flatten().min();
        since.map_or(Duration::ZERO, |since| since.elapsed())
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
        let peers = inner.peers.iter();
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
            lag: inner.lag(),
            hash: inner.hash,
            peers: peers.map(|(node, known)| known.peer(node)).collect(),
        }
    }

    /// For how long it can't be shown that this node has everything; zero while that is checked often enough.
    pub fn lag(&self) -> Duration {
        self.inner.lock().lag()
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

    pub(super) fn connected(&self, is_connected: bool) {
        let mut inner = self.inner.lock();
        if is_connected {
            inner.connections += 1;
            inner.disconnected_since = None;
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

    pub(super) fn heard(&self, node: &str, applied: Option<Seq>, at: Timestamp) {
        let mut inner = self.inner.lock();
        inner.now = inner.now.max(at);
        if node == self.node {
            return;
        }
        if !inner.peers.contains_key(node) && inner.peers.len() >= PEERS_MAX {
            return;
        }
        let known = inner.peers.entry(node.to_owned()).or_default();
        known.applied = applied.unwrap_or(known.applied);
        known.heard_at = at;
    }

    /// Another node, which was just heard of, has told of itself.
    pub(super) fn note_report(&self, node: &str, report: Report) {
        if let Some(known) = self.inner.lock().peers.get_mut(node) {
            known.report = report;
        }
    }

    /// Notes whose state differs. Returns whether somebody's does now whose did not.
    pub(super) fn note_comparison(&self, comparison: &Comparison) -> bool {
        let mut inner = self.inner.lock();
        inner.hash = comparison.last();
        let mut is_news = false;
        for (node, known) in &mut inner.peers {
            let differs = comparison.differs(node).or(known.differs);
            is_news |= differs == Some(true) && known.differs != differs;
            known.differs = differs;
        }
        is_news
    }

    /// How many other nodes were heard of within a time before the last message.
    pub(super) fn peers_heard_within(&self, time: Duration) -> usize {
        let inner = self.inner.lock();
        inner.peers.values().filter(|known| known.is_heard_within(inner.now, time)).count()
    }

    /// From now on everything is heard that the others write.
    pub(super) fn listens(&self) {
        self.inner.lock().listens_since.get_or_insert_with(Instant::now);
    }

    /// The highest version of entries that every node understands which was heard of lately; 0 while that can't be told.
    pub(super) fn understood(&self, ours: u16, patience: Duration) -> u16 {
        let inner = self.inner.lock();
        if inner.listens_since.is_none_or(|since| since.elapsed() < patience) {
            return 0;
        }
        let present = inner.peers.values().filter(|known| known.is_heard_within(inner.now, PEER_GONE));
        present.map(|known| known.report.understands).fold(ours, u16::min)
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
        let status = Replication::new("a", "shop");
        status.connected(true);
        assert_eq!(status.lag(), Duration::ZERO);
        let since = Instant::now().checked_sub(Duration::from_secs(7)).unwrap();
        status.note(1, Some(since));
        assert!(status.lag() >= Duration::from_secs(7));
        status.note(0, None);
        assert_eq!(status.lag(), Duration::ZERO);
    }
}
