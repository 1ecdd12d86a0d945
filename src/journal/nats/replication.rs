//! What is known about the replicated log, for other threads: the connection, messages in flight, the other nodes, and the log's clock.

use crate::domain::{Seq, StateHash, Timestamp};
use serde::Serialize;
use serde_with::skip_serializing_none;
use std::time::{Duration, Instant};
use utoipa::ToSchema;

/// An observation of the log's clock with a wider bracket than this replaces a better one only once that is old.
const BRACKET_GOOD: Duration = Duration::from_millis(500);

/// When a better observation is old.
const OBSERVATION_OLD: Duration = Duration::from_secs(600);

/// A message that was sent and not read back for this long indicates that the log has no quorum.
const READ_BACK_PATIENCE: Duration = Duration::from_secs(1);

/// What the log's clock said, at some moment between two of ours.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogTime {
    /// What the log's clock said.
    pub log: Timestamp,
    /// The message was published then at the earliest.
    pub sent: Instant,
    /// It was acknowledged or read back then.
    pub seen: Instant,
}

impl LogTime {
    fn bracket(&self) -> Duration {
        self.seen.saturating_duration_since(self.sent)
    }
}

/// Another node, as the log reports it.
#[skip_serializing_none]
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, ToSchema)]
#[schema(as = ClusterNode)]
pub struct Peer {
    /// Its name.
    #[schema(example = "node-2")]
    pub node: String,
    /// The last position that it reported as applied.
    #[serde(rename = "position")]
    #[schema(value_type = u64)]
    pub applied: Seq,
    /// When it was last heard of, by the log's clock.
    pub heard_at: Timestamp,
    /// Its build. Absent until it has reported one.
    pub build: Option<String>,
    /// The highest version of the log's entries that it understands. Absent until it has reported one.
    pub understands: Option<u16>,
    /// The last hash of its state that it reported. Absent until it has reported one.
    pub hash: Option<StateHash>,
    /// Whether its state differs from that of this node. Absent until both have reported a hash of one position.
    pub differs: Option<bool>,
    /// Whether it was heard of within ten minutes, by the log's clock.
    #[serde(skip)]
    pub is_present: bool,
}

/// What is known about the replicated log.
#[derive(Clone, Debug, Default)]
pub struct Replication {
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
    /// Since when there is no connection.
    pub disconnected_since: Option<Instant>,
    /// How often the connection was made again.
    pub reconnects: u64,
    /// How often the reader was opened again.
    pub reopened: u64,
    /// How often messages were sent again because their outcome was unknown.
    pub resent: u64,
    /// Messages in the log's stream that are not of this service.
    pub foreign: u64,
    /// Messages in flight.
    pub in_flight: usize,
    /// Since when the servers reject messages because the stream is full.
    pub full_since: Option<Instant>,
    /// When the oldest message was sent that was not read back.
    pub unread_since: Option<Instant>,
    /// The best observation of the log's clock.
    pub log_time: Option<LogTime>,
    /// This node's last hash.
    pub hash: Option<StateHash>,
    /// Whether this node's state differs from another's, and it is open whose is right.
    pub is_in_doubt: bool,
    /// The other nodes.
    pub peers: Vec<Peer>,
    /// Why the reader can't continue, if it can't.
    pub trouble: Option<String>,
    /// Since when the reader gets messages; `None` while it is being opened.
    pub(super) opened: Option<Instant>,
    /// The last message that the log has shown to exist.
    pub(super) shown: u64,
    /// The last message that was read.
    pub(super) read: u64,
    /// The last message whose entries went to the writer, and the last whose entries are applied.
    pub(super) passed: u64,
    pub(super) applied: u64,
    /// A message that this node has to reach, and since when.
    target: Option<(u64, Instant)>,
}

impl Replication {
    /// Nothing is known yet.
    pub(super) fn new(node: String, stream: String) -> Replication {
        Replication { node, stream, disconnected_since: Some(Instant::now()), ..Replication::default() }
    }

    /// For how long the log has shown something that this node has not reached; zero if it has reached all.
    pub fn lag(&mut self, now: Instant) -> Duration {
        let reached = if self.applied >= self.passed { self.read } else { self.applied };
        if self.target.is_none_or(|(target, _)| reached >= target) {
            self.target = (self.shown > reached).then_some((self.shown, now));
        }
        self.target.map_or(Duration::ZERO, |(_, since)| now.saturating_duration_since(since))
    }

    /// Messages that the log has shown and that were not read.
    pub fn behind_messages(&self) -> u64 {
        self.shown.saturating_sub(self.read)
    }

    /// For how long the log has not responded; zero while it does. Without a majority of its servers it does not.
    pub fn silence(&self, now: Instant) -> Duration {
        let unread = self.unread_since.filter(|since| *since + READ_BACK_PATIENCE <= now);
        let since = [self.disconnected_since, unread].into_iter().flatten().min();
        since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since))
    }

    /// Notes an observation of the log's clock, unless an earlier one was better and is not old.
    pub(super) fn observe(&mut self, time: LogTime) {
        let is_old = |known: LogTime| time.seen.saturating_duration_since(known.seen) >= OBSERVATION_OLD;
        let is_better = |known: LogTime| time.bracket() <= known.bracket();
        if time.bracket() <= BRACKET_GOOD
            || self.log_time.is_none_or(|known| is_old(known) || is_better(known))
        {
            self.log_time = Some(time);
        }
    }

    /// The connection was made or lost.
    pub(super) fn note_connection(&mut self, is_connected: bool) {
        if !is_connected {
            self.disconnected_since.get_or_insert_with(Instant::now);
        } else if self.disconnected_since.take().is_some() && !self.server.is_empty() {
            self.reconnects += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn poor_observation_does_not_replace_good_one_that_is_fresh() {
        let mut known = Replication::default();
        let start = Instant::now();
        let mut observe = |log, sent, seen| {
            let (sent, seen) = (start + Duration::from_millis(sent), start + Duration::from_millis(seen));
            known.observe(LogTime { log: Timestamp(log), sent, seen });
            known.log_time.unwrap().log.0
        };
        assert_eq!(observe(1, 0, 9_000), 1, "better than none");
        assert_eq!(observe(2, 9_000, 9_100), 2);
        assert_eq!(observe(3, 9_200, 20_000), 2);
        assert_eq!(observe(4, 600_000, 620_000), 4);
    }

    /// Silence is no evidence that a node is behind: it may be that nothing is written, or that no node can write.
    #[test]
    fn lag_counts_only_what_the_log_has_shown() {
        let (start, seconds) = (Instant::now(), Duration::from_secs);
        let mut known = Replication { unread_since: Some(start), ..Replication::default() };
        assert_eq!(
            (known.lag(start + seconds(9)), known.silence(start + seconds(9))),
            (Duration::ZERO, seconds(9))
        );
        (known.unread_since, known.shown, known.read) = (None, 7, 5);
        assert_eq!(known.lag(start), Duration::ZERO);
        // It moves on, but has not reached that message; later ones don't matter.
        (known.read, known.shown) = (6, 90);
        assert_eq!(known.lag(start + seconds(3)), seconds(3));
        known.read = 8;
        assert_eq!(known.lag(start + seconds(4)), Duration::ZERO, "the next one counts from here");
        assert_eq!(known.lag(start + seconds(6)), seconds(2));
        // Everything is read, and the writer has not applied it.
        (known.read, known.passed, known.applied) = (90, 80, 70);
        assert_eq!(known.lag(start + seconds(8)), seconds(4));
        known.applied = 80;
        assert_eq!(
            (known.lag(start + seconds(9)), known.silence(start + seconds(9))),
            (Duration::ZERO, Duration::ZERO)
        );
    }
}
