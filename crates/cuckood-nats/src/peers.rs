//! The other nodes, as the log reports them, and whether their states are ours.
//!
//! Each node reports its build and the last hash of its state in its beats. A hash covers everything before its position, so nodes whose
//! hashes differ at a position differ at every later one. Only the number of nodes shows which of two is right. A hash counts once it was
//! read from the log, our own included, so all nodes compare the same hashes. A node that differs stops after a delay, unless more nodes
//! agree with it than differ.

use cuckood_log::journal::OtherNode;
use cuckood_log::journal::{JournalError, Result};
use cuckood_state::domain::{STATE_HASH_EVERY, Seq, StateHash, Timestamp, understood_version};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Number of positions whose own hashes are stored.
const POSITIONS_MAX: usize = 64;

/// Maximum number of other nodes.
const PEERS_MAX: usize = 256;

/// Maximum length of a build's name, in bytes.
const BUILD_BYTES_MAX: usize = 64;

/// A node reports at least this often, under any load. If it reads its reports back, the log can be written and read.
const REPORT_EVERY: Duration = Duration::from_secs(5);

/// A node that was silent for this long, by the log's clock, counts as stopped.
const GONE_AFTER: Duration = Duration::from_secs(600);

/// A node's report about itself.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(super) struct NodeReport {
    /// The last position that it has applied.
    pub(super) applied: Seq,
    /// Its build; empty if unknown.
    pub(super) build: String,
    /// The highest version of entries that it understands; 0 if unknown.
    pub(super) understands: u16,
    /// The hash of its state at the last position at which nodes compare.
    pub(super) hash: Option<StateHash>,
}

/// The other nodes, and this node's own hashes.
#[derive(Debug, Default)]
pub(super) struct Peers {
    /// How long this node continues after a difference.
    open_time: Duration,
    own: BTreeMap<Seq, u128>,
    /// The last position whose own hash was read from the log.
    confirmed: Seq,
    all: BTreeMap<String, OtherNode>,
    /// The time of the last message that was read.
    pub(super) read_at: Timestamp,
    /// The last position whose hash was reported, and when; `None` if a report is due.
    reported: Option<(Option<Seq>, Instant)>,
    /// Since when it is open whose state is right.
    doubt_since: Option<Instant>,
    /// Number of differing nodes that are known to be the minority.
    settled: usize,
}

impl Peers {
    pub(super) fn new(open_time: Duration) -> Peers {
        Peers {
            open_time,
            ..Peers::default()
        }
    }

    /// The next report, of a node that has applied everything up to a position.
    pub(super) fn report(&mut self, applied: Seq, now: Instant) -> NodeReport {
        let hash = self.last_hash();
        self.reported = Some((hash.map(|hash| hash.at), now));
        let build = env!("CARGO_PKG_VERSION").to_owned();
        let understands = understood_version();
        NodeReport {
            applied,
            build,
            understands,
            hash,
        }
    }

    /// When the next report is due.
    pub(super) fn report_at(&self, now: Instant) -> Instant {
        let last = self.last_hash().map(|hash| hash.at);
        self.reported
            .filter(|(at, _)| *at == last)
            .map_or(now, |(_, at)| at + REPORT_EVERY)
    }

    /// Some node does not know this node yet: a session has started, of this node or another.
    pub(super) fn introduce(&mut self) {
        self.reported = None;
    }

    /// Notes the hash of this node's state.
    pub(super) fn note_own(&mut self, hash: StateHash) {
        self.own.insert(hash.at, hash.hash);
        while self.own.len() > POSITIONS_MAX {
            self.own.pop_first();
        }
    }

    /// This node's last hash.
    fn last_hash(&self) -> Option<StateHash> {
        self.own
            .last_key_value()
            .map(|(&at, &hash)| StateHash { at, hash })
    }

    /// The last message is of this other node.
    pub(super) fn heard(&mut self, node: &str) -> &mut OtherNode {
        if !self.all.contains_key(node) && self.all.len() >= PEERS_MAX {
            let silent = self
                .all
                .values()
                .min_by_key(|peer| peer.heard_at)
                .map(|peer| peer.node.clone());
            silent.map(|node| self.all.remove(&node));
        }
        let peer = self.all.entry(node.to_owned()).or_default();
        (peer.node, peer.heard_at) = (node.to_owned(), self.read_at);
        peer
    }

    /// This node's own report was read; its hash counts from now on.
    pub(super) fn take_own(&mut self, report: &NodeReport) {
        self.confirmed = self
            .confirmed
            .max(report.hash.map_or(Seq(0), |hash| hash.at));
    }

    /// Another node's report was read, after position `read`. A hash of a later position is impossible and ignored.
    pub(super) fn take(&mut self, node: &str, report: NodeReport, read: Seq) {
        let is_possible = |hash: &StateHash| {
            (Seq(1)..=read).contains(&hash.at) && hash.at.0.is_multiple_of(STATE_HASH_EVERY)
        };
        let peer = self.heard(node);
        (peer.applied, peer.hash) = (report.applied, report.hash.filter(is_possible));
        peer.build =
            Some(report.build).filter(|build| (1..=BUILD_BYTES_MAX).contains(&build.len()));
        peer.understands = Some(report.understands).filter(|version| *version > 0);
    }

    /// Compares all hashes that count, and notes since when it is open whose state is right.
    pub(super) fn compare(&mut self, now: Instant) {
        for peer in self.all.values_mut() {
            let counting = peer.hash.filter(|hash| hash.at <= self.confirmed);
            let own = counting.and_then(|theirs| Some(*self.own.get(&theirs.at)? != theirs.hash));
            peer.differs = own.or(peer.differs);
        }
        let (differing, at, others) = self.difference();
        self.settled = self.settled.min(differing);
        if differing == self.settled {
            self.doubt_since = None;
        } else if self.doubt_since.is_none() {
            self.doubt_since = Some(now);
            tracing::error!(position = at.0, others, delay = ?self.open_time, "state differs from other nodes; the minority stops after a delay");
        }
    }

    /// How many nodes differ from this one, their first position that is known, and their names.
    fn difference(&self) -> (usize, Seq, String) {
        let differing = self.all.values().filter(|peer| peer.differs == Some(true));
        let at = differing
            .clone()
            .filter_map(|peer| Some(peer.hash?.at))
            .min()
            .unwrap_or_default();
        let others: Vec<&str> = differing.map(|peer| peer.node.as_str()).collect();
        (others.len(), at, others.join(", "))
    }

    /// Decides whose state is right once that was open for long enough, after all reports were taken that have arrived.
    ///
    /// # Errors
    /// [`JournalError::Diverged`] if this node has to stop.
    pub(super) fn decide(&mut self, now: Instant) -> Result<()> {
        if self.decided_at().is_none_or(|at| now < at) {
            return Ok(());
        }
        let agreeing = 1 + self
            .all
            .values()
            .filter(|peer| peer.differs == Some(false))
            .count();
        let (differing, at, others) = self.difference();
        if agreeing <= differing {
            return Err(JournalError::Diverged { at, others });
        }
        tracing::error!(
            position = at.0,
            others,
            "state of a minority of nodes differs; they have to stop"
        );
        (self.settled, self.doubt_since) = (differing, None);
        Ok(())
    }

    /// When it is decided whose state is right, if that is open.
    pub(super) fn decided_at(&self) -> Option<Instant> {
        self.doubt_since.map(|since| since + self.open_time)
    }

    /// All nodes that were heard of.
    pub(super) fn list(&self) -> Vec<OtherNode> {
        let gone_before = self.read_at.0.saturating_sub(GONE_AFTER.as_millis() as u64);
        let peer = |peer: &OtherNode| OtherNode {
            is_present: peer.heard_at.0 >= gone_before,
            ..peer.clone()
        };
        self.all.values().map(peer).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPEN_TIME: Duration = Duration::from_secs(30);
    const EVERY: u64 = STATE_HASH_EVERY;

    /// A node that reads others' reports.
    struct Node {
        peers: Peers,
        now: Instant,
    }

    impl Node {
        fn new() -> Node {
            Node {
                peers: Peers::new(OPEN_TIME),
                now: Instant::now(),
            }
        }

        fn own(&mut self, number: u64, hash: u128) -> Result<()> {
            self.peers.note_own(StateHash {
                at: Seq(number * EVERY),
                hash,
            });
            let report = self.peers.report(Seq(1), self.now);
            self.peers.take_own(&report);
            self.wait(Duration::ZERO)
        }

        fn report_hash(&mut self, node: &str, number: u64, hash: u128) -> Result<()> {
            let hash = Some(StateHash {
                at: Seq(number * EVERY),
                hash,
            });
            self.peers.take(
                node,
                NodeReport {
                    hash,
                    ..NodeReport::default()
                },
                Seq(u64::MAX),
            );
            self.wait(Duration::ZERO)
        }

        fn wait(&mut self, time: Duration) -> Result<()> {
            self.now += time;
            self.peers.compare(self.now);
            self.peers.decide(self.now)
        }

        fn differs(&self, node: &str) -> Option<bool> {
            self.peers
                .list()
                .into_iter()
                .find(|peer| peer.node == node)?
                .differs
        }
    }

    fn is_diverged(compared: Result<()>) -> bool {
        matches!(compared, Err(JournalError::Diverged { .. }))
    }

    #[test]
    fn minority_stops_after_delay_and_majority_continues() {
        let mut right = Node::new();
        let mut wrong = Node::new();
        right.own(1, 1).unwrap();
        right.report_hash("b", 1, 1).unwrap();
        assert!(right.peers.decided_at().is_none());
        right.report_hash("c", 1, 2).unwrap();
        assert!(right.peers.decided_at().is_some());
        right.wait(OPEN_TIME).unwrap();
        assert!(right.peers.decided_at().is_none());
        assert_eq!(
            (right.differs("b"), right.differs("c")),
            (Some(false), Some(true))
        );
        wrong.own(1, 2).unwrap();
        wrong.report_hash("a", 1, 1).unwrap();
        wrong.report_hash("b", 1, 1).unwrap();
        wrong.wait(OPEN_TIME - Duration::from_millis(1)).unwrap();
        assert!(is_diverged(wrong.wait(Duration::from_millis(1))));
        // A replaced node reports another hash.
        right.report_hash("c", 1, 1).unwrap();
        assert_eq!(right.differs("c"), Some(false));
        right.report_hash("c", 1, 3).unwrap();
        assert!(right.peers.decided_at().is_some(), "again");
    }

    #[test]
    fn both_nodes_stop_when_two_differ() {
        let mut node = Node::new();
        node.own(1, 1).unwrap();
        node.report_hash("b", 1, 2).unwrap();
        assert!(is_diverged(node.wait(OPEN_TIME)));
        let mut node = Node::new();
        node.own(1, 1).unwrap();
        for (other, hash) in [("b", 1), ("c", 2), ("d", 2)] {
            node.report_hash(other, 1, hash).unwrap();
        }
        assert!(is_diverged(node.wait(OPEN_TIME)), "two against two");
    }

    /// A busy node must not stop before it has taken the report that shows that it is right.
    #[test]
    fn all_reports_that_have_arrived_count_before_decision() {
        let mut node = Node::new();
        node.own(1, 1).unwrap();
        node.report_hash("c", 1, 2).unwrap();
        node.now += OPEN_TIME;
        for (other, hash) in [("c", 2), ("b", 1)] {
            let hash = Some(StateHash {
                at: Seq(EVERY),
                hash,
            });
            node.peers.take(
                other,
                NodeReport {
                    hash,
                    ..NodeReport::default()
                },
                Seq(u64::MAX),
            );
            node.peers.compare(node.now);
        }
        node.peers.decide(node.now).unwrap();
        assert!(node.peers.decided_at().is_none());
    }

    /// Otherwise nodes would compare hashes that others can't know.
    #[test]
    fn own_hash_counts_once_read_from_log() {
        let mut node = Node::new();
        node.peers.note_own(StateHash {
            at: Seq(EVERY),
            hash: 1,
        });
        node.report_hash("b", 1, 2).unwrap();
        node.wait(OPEN_TIME * 2).unwrap();
        assert_eq!(node.differs("b"), None);
        let report = node.peers.report(Seq(1), node.now);
        node.peers.take_own(&report);
        node.peers.compare(node.now);
        assert_eq!(node.differs("b"), Some(true));
    }

    #[test]
    fn last_comparison_stays_valid_where_positions_differ() {
        let mut node = Node::new();
        node.own(1, 1).unwrap();
        node.report_hash("b", 1, 2).unwrap();
        node.report_hash("b", 3, 7).unwrap();
        assert_eq!(node.differs("b"), Some(true));
        node.own(2, 5).unwrap();
        assert!(
            is_diverged(node.wait(OPEN_TIME)),
            "the delay counts from the first difference"
        );
    }

    #[test]
    fn report_is_due_with_news_or_new_nodes() {
        let mut node = Node::new();
        let now = node.now;
        assert_eq!(node.peers.report_at(now), now);
        node.peers.report(Seq(1), now);
        assert_eq!(node.peers.report_at(now), now + REPORT_EVERY);
        node.peers.note_own(StateHash {
            at: Seq(EVERY),
            hash: 1,
        });
        assert_eq!(node.peers.report_at(now), now);
        let report = node.peers.report(Seq(9), now);
        let hash = Some(StateHash {
            at: Seq(EVERY),
            hash: 1,
        });
        assert_eq!(
            (report.applied, report.understands, report.hash),
            (Seq(9), understood_version(), hash)
        );
        node.peers.introduce();
        assert_eq!(node.peers.report_at(now), now);
    }

    #[test]
    fn impossible_content_of_report_is_ignored() {
        let mut node = Node::new();
        let mut report_hash = |at, build: &str, read| {
            let hash = Some(StateHash {
                at: Seq(at),
                hash: 5,
            });
            let report = NodeReport {
                applied: Seq(1),
                build: build.to_owned(),
                understands: 3,
                hash,
            };
            node.peers.take("b", report, Seq(read));
            let peer = node.peers.list().remove(0);
            (peer.hash.map(|hash| hash.at), peer.build)
        };
        assert_eq!(
            report_hash(EVERY, "1", EVERY),
            (Some(Seq(EVERY)), Some("1".to_owned()))
        );
        for at in [0, EVERY + 1, EVERY * 2] {
            assert_eq!(report_hash(at, "1", EVERY * 2 - 1).0, None, "{at}");
        }
        for build in [String::new(), "x".repeat(BUILD_BYTES_MAX + 1)] {
            assert_eq!(report_hash(EVERY, &build, EVERY).1, None);
        }
    }

    #[test]
    fn stored_nodes_and_hashes_are_limited() {
        let mut node = Node::new();
        for number in 1..1_000u64 {
            node.peers.read_at = Timestamp(number * 1_000);
            node.own(number, 1).unwrap();
            node.peers.heard(&format!("n{number}"));
        }
        assert_eq!(
            (node.peers.own.len(), node.peers.all.len()),
            (POSITIONS_MAX, PEERS_MAX)
        );
        assert_eq!(node.peers.last_hash().unwrap().at, Seq(999 * EVERY));
        let list = node.peers.list();
        assert!(list.iter().all(|peer| peer.heard_at >= Timestamp(744_000)));
        node.peers.read_at = Timestamp(1_500_000);
        assert_eq!(
            node.peers
                .list()
                .iter()
                .filter(|peer| peer.is_present)
                .count(),
            100
        );
    }
}
