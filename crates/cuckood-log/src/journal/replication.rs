//! The state of the replicated log, for other threads: the connection, messages in flight, the other nodes, and the log's clock.

use cuckood_state::domain::{Seq, StateHash, Timestamp};
use serde::Serialize;
use serde_with::skip_serializing_none;
use std::time::{Duration, Instant};

/// An observation of the log's clock with a wider bracket than this replaces a better one only once that is old.
const BRACKET_GOOD: Duration = Duration::from_millis(500);

/// When a better observation is old.
const OBSERVATION_OLD: Duration = Duration::from_secs(600);

/// At most one event is reported in this time: a wrong password makes one with each attempt.
const EVENT_PAUSE: Duration = Duration::from_secs(1);

/// A message that was sent and not read back for this long indicates that the log has no quorum.
const READ_BACK_TIMEOUT: Duration = Duration::from_secs(1);

/// The reading of the log's clock, at some moment between two of ours.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogTime {
    /// The reading of the log's clock.
    pub log: Timestamp,
    /// The message was published then at the earliest.
    pub sent: Instant,
    /// It was acknowledged or read back then.
    pub seen: Instant,
}

/// Another node, as the log reports it.
#[skip_serializing_none]
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "utoipa", schema(as = ClusterNode))]
pub struct OtherNode {
    /// Its name.
    #[cfg_attr(feature = "utoipa", schema(example = "node-2"))]
    pub node: String,
    /// Its last reported position.
    #[serde(rename = "position")]
    #[cfg_attr(feature = "utoipa", schema(value_type = u64))]
    pub applied: Seq,
    /// When the log last had a message of it, by the log's clock.
    pub heard_at: Timestamp,
    /// Its build. Absent until it has reported one.
    pub build: Option<String>,
    /// The highest version of the log's entries that it understands. Absent until it has reported one.
    pub understands: Option<u16>,
    /// Its last reported state hash. Absent until it has reported one.
    pub hash: Option<StateHash>,
    /// Whether its state differs from that of this node. Absent until both have reported a hash of one position.
    pub differs: Option<bool>,
    /// Whether it was heard of within ten minutes, by the log's clock.
    #[serde(skip)]
    pub is_present: bool,
}

/// The state of the replicated log.
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
    /// Servers that store the stream.
    pub replicas: usize,
    /// Since when there is no connection.
    pub disconnected_since: Option<Instant>,
    /// How often the connection was made again.
    pub reconnects: u64,
    /// How often the reader was opened again.
    pub reopened: u64,
    /// Number of resent messages whose outcome was unknown.
    pub resent: u64,
    /// Messages in the log's stream that are not of this service.
    pub foreign: u64,
    /// Messages in flight.
    pub in_flight: usize,
    /// Since when the servers reject messages because the stream is full.
    pub full_since: Option<Instant>,
    /// For how long the oldest message in flight was not read back, as of the last time that this was evidence against the log.
    pub unconfirmed_for: Duration,
    /// The best observation of the log's clock.
    pub log_time: Option<LogTime>,
    /// This node's last hash.
    pub hash: Option<StateHash>,
    /// Whether this node's state differs from another's, and it is open whose is right.
    pub is_in_doubt: bool,
    /// The other nodes.
    pub peers: Vec<OtherNode>,
    /// Why the reader can't continue, if it can't.
    pub trouble: Option<String>,
    /// Elections of the stream's leader since the start.
    pub elections: u64,
    /// The last message that the log has shown to exist.
    pub known_end: u64,
    /// The last message that was read and whose entries are applied.
    reached: u64,
    /// A message that this node has to reach, and since when.
    target: Option<(u64, Instant)>,
    /// When an event was last reported.
    reported_at: Option<Instant>,
}

impl Replication {
    /// For how long the log has shown something that this node has not reached; zero if it has reached all.
    pub fn lag(&mut self, now: Instant) -> Duration {
        if self.target.is_none_or(|(target, _)| self.reached >= target) {
            self.target = (self.known_end > self.reached).then_some((self.known_end, now));
        }
        self.target.map_or(Duration::ZERO, |(_, since)| {
            now.saturating_duration_since(since)
        })
    }

    /// Messages that the log has shown and that this node has not reached.
    pub fn behind_messages(&self) -> u64 {
        self.known_end.saturating_sub(self.reached)
    }

    /// The log has shown a message.
    pub fn show(&mut self, message: u64, now: Instant) {
        self.known_end = self.known_end.max(message);
        self.lag(now);
    }

    /// Everything up to this message is read and applied.
    pub fn reach(&mut self, message: u64, now: Instant) {
        self.reached = message;
        self.lag(now);
    }

    /// The oldest message in flight was not read back for this time. That is no evidence of silence while the log responds: a node that was
    /// busy may have much to read before it.
    pub fn note_unconfirmed(&mut self, unconfirmed: Duration, is_responding: bool) {
        self.unconfirmed_for = if is_responding {
            unconfirmed.min(self.unconfirmed_for)
        } else {
            unconfirmed
        };
    }

    /// This node no longer follows the log: its messages in flight don't matter.
    pub fn end(&mut self) {
        (self.unconfirmed_for, self.full_since, self.in_flight) = (Duration::ZERO, None, 0);
    }

    /// For how long the log has not responded; zero while it does. Without a majority of its servers it does not.
    pub fn silence(&self, now: Instant) -> Duration {
        let disconnected = self
            .disconnected_since
            .map(|since| now.saturating_duration_since(since));
        let unconfirmed =
            Some(self.unconfirmed_for).filter(|unconfirmed| *unconfirmed >= READ_BACK_TIMEOUT);
        disconnected.max(unconfirmed).unwrap_or_default()
    }

    /// Notes an observation of the log's clock, unless an earlier one was better and is not old.
    pub fn observe(&mut self, time: LogTime) {
        let is_old =
            |known: LogTime| time.seen.saturating_duration_since(known.seen) >= OBSERVATION_OLD;
        let bracket = |time: LogTime| time.seen.saturating_duration_since(time.sent);
        let is_better = |known: LogTime| bracket(time) <= bracket(known);
        if bracket(time) <= BRACKET_GOOD
            || self
                .log_time
                .is_none_or(|known| is_old(known) || is_better(known))
        {
            self.log_time = Some(time);
        }
    }

    /// The connection was made, or made again.
    pub fn note_connected(&mut self) {
        if self.disconnected_since.take().is_some() {
            self.reconnects += 1;
        }
    }

    /// The connection was lost; only the first loss counts.
    pub fn note_disconnected(&mut self, now: Instant) {
        self.disconnected_since.get_or_insert(now);
    }

    /// Whether an event may be reported now. Then it counts as reported.
    pub fn may_report(&mut self, now: Instant) -> bool {
        let may_report = self.reported_at.is_none_or(|at| at + EVENT_PAUSE <= now);
        if may_report {
            self.reported_at = Some(now);
        }
        may_report
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connection_is_lost_until_reconnected() {
        let start = Instant::now();
        let mut known = Replication::default();
        let at = |seconds| start + Duration::from_secs(seconds);
        known.note_connected();
        assert_eq!(known.silence(at(1)), Duration::ZERO);
        assert_eq!(known.reconnects, 0);
        known.note_disconnected(at(1));
        known.note_disconnected(at(2));
        assert_eq!(
            known.silence(at(3)),
            Duration::from_secs(2),
            "it counts from the first"
        );
        known.note_connected();
        assert_eq!(known.silence(at(4)), Duration::ZERO);
        assert_eq!(known.reconnects, 1);
    }

    #[test]
    fn poor_observation_never_replaces_fresh_good_one() {
        let mut known = Replication::default();
        let start = Instant::now();
        let mut observe = |log, sent, seen| {
            let sent = start + Duration::from_millis(sent);
            let seen = start + Duration::from_millis(seen);
            known.observe(LogTime {
                log: Timestamp(log),
                sent,
                seen,
            });
            known.log_time.unwrap().log.0
        };
        assert_eq!(observe(1, 0, 9_000), 1, "better than none");
        assert_eq!(observe(2, 9_000, 9_100), 2);
        assert_eq!(observe(3, 9_200, 20_000), 2);
        assert_eq!(observe(4, 600_000, 620_000), 4);
    }

    #[test]
    fn unread_message_is_ignored_while_log_responds() {
        let now = Instant::now();
        let seconds = Duration::from_secs;
        let mut known = Replication::default();
        known.note_unconfirmed(seconds(12), true);
        assert_eq!(known.silence(now), Duration::ZERO);
        known.note_unconfirmed(seconds(13), false);
        known.note_unconfirmed(seconds(14), true);
        assert_eq!(
            known.silence(now),
            seconds(13),
            "nothing shows that it has ended"
        );
        known.note_unconfirmed(seconds(2), true);
        assert_eq!(known.silence(now), seconds(2));
        (known.full_since, known.in_flight) = (Some(now), 3);
        known.end();
        assert_eq!(
            (known.silence(now), known.full_since, known.in_flight),
            (Duration::ZERO, None, 0)
        );
    }

    /// Silence is no evidence that a node lags: it may be that nothing is written, or that no node can write.
    #[test]
    fn lag_counts_only_reported_messages() {
        let start = Instant::now();
        let seconds = Duration::from_secs;
        let mut known = Replication {
            unconfirmed_for: seconds(9),
            ..Replication::default()
        };
        assert_eq!(
            (known.lag(start), known.silence(start)),
            (Duration::ZERO, seconds(9))
        );
        known.unconfirmed_for = READ_BACK_TIMEOUT / 2;
        assert_eq!(known.silence(start), Duration::ZERO);
        known.reach(5, start);
        known.show(7, start);
        // It moves on, but has not reached that message; later ones don't matter.
        known.reach(6, start + seconds(1));
        known.show(90, start + seconds(2));
        assert_eq!(
            (known.lag(start + seconds(3)), known.behind_messages()),
            (seconds(3), 84)
        );
        known.reach(8, start + seconds(4));
        assert_eq!(
            known.lag(start + seconds(6)),
            seconds(2),
            "the next one counts from there"
        );
        known.reach(90, start + seconds(7));
        assert_eq!(known.lag(start + seconds(9)), Duration::ZERO);
    }
}
