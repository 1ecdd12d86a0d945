//! The other nodes, as the log tells of them: who is present, and which entries all of those understand.
//!
//! A node's silence is measured by the log's own time, and only while the log goes on. Every node writes every five seconds. So a long gap in
//! the log says that the log stood still, or that its clock was set, and nothing about any node.

use super::report::Report;
use crate::domain::{Seq, Timestamp};
use std::collections::BTreeMap;
use std::time::Duration;

/// A longer gap between two messages is nobody's silence.
const GAP_MAX: Duration = Duration::from_secs(15);

/// A node that was silent for so long is gone: it is not asked what it understands, and nobody waits for its hash.
const GONE_AFTER: Duration = Duration::from_secs(600);

/// The most other nodes that are remembered.
const PEERS_MAX: usize = 256;

/// What is known about another node.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// The last position that it said it had applied.
    pub(super) applied: Seq,
    /// When it was last heard of, by the log's clock; `None` if it has a session from before this process began to read.
    pub(super) heard_at: Option<Timestamp>,
    /// What it has told of itself last.
    pub(super) report: Report,
    /// Whether its state differs from this node's, as far as that is known.
    pub(super) differs: Option<bool>,
    /// How long the log had gone on when it was last heard of.
    heard: Duration,
}

/// The other nodes.
#[derive(Debug, Default)]
pub(super) struct Peers {
    all: BTreeMap<String, Known>,
    /// How long the log has gone on since this process began to read it: all gaps between messages, but for the long ones.
    gone_on: Duration,
    /// The time of the last message.
    read_at: Option<Timestamp>,
    /// From where on everything is heard that the others write.
    listens_from: Option<Duration>,
}

impl Peers {
    /// This node has a session from before this process began to read: it counts as present until it was silent for long.
    pub(super) fn expect(&mut self, node: &str) {
        self.known(node);
    }

    /// A message of this time was read.
    pub(super) fn note_time(&mut self, at: Timestamp) {
        let before = self.read_at.replace(at).unwrap_or(at);
        let gap = Duration::from_millis(at.0.saturating_sub(before.0));
        if gap <= GAP_MAX {
            self.gone_on += gap;
        } else if self.listens_from.is_some() {
            // Those who were cut off, too, have to be heard again.
            self.listens_from = Some(self.gone_on);
        }
    }

    /// The last message was this node's.
    pub(super) fn heard(&mut self, node: &str, applied: Option<Seq>) {
        let (heard, heard_at) = (self.gone_on, self.read_at);
        let known = self.known(node);
        known.applied = applied.unwrap_or(known.applied);
        (known.heard, known.heard_at) = (heard, heard_at);
    }

    /// A node has begun a session, maybe as another build: until it has told, nobody knows what it understands.
    pub(super) fn began_session(&mut self, node: &str) {
        self.heard(node, None);
        self.known(node).report.understands = 0;
    }

    /// What is known about a node. If there are too many, the one that was silent for longest is forgotten.
    pub(super) fn known(&mut self, node: &str) -> &mut Known {
        if !self.all.contains_key(node) && self.all.len() >= PEERS_MAX {
            let silent = self.all.iter().min_by_key(|(_, known)| known.heard);
            if let Some(silent) = silent.map(|(silent, _)| silent.clone()) {
                self.all.remove(&silent);
            }
        }
        let heard = self.gone_on;
        self.all.entry(node.to_owned()).or_insert_with(|| Known { heard, ..Known::default() })
    }

    /// All that are known.
    pub(super) fn all(&self) -> impl Iterator<Item = (&str, &Known)> {
        self.all.iter().map(|(node, known)| (node.as_str(), known))
    }

    /// All that are known, to be changed.
    pub(super) fn all_mut(&mut self) -> impl Iterator<Item = (&str, &mut Known)> {
        self.all.iter_mut().map(|(node, known)| (node.as_str(), known))
    }

    /// Whether a node is there, or may be back at once.
    pub(super) fn is_present(&self, known: &Known) -> bool {
        self.gone_on.saturating_sub(known.heard) <= GONE_AFTER
    }

    /// Those that are.
    pub(super) fn present(&self) -> impl Iterator<Item = (&str, &Known)> {
        self.all().filter(|(_, known)| self.is_present(known))
    }

    /// From now on everything is heard that the others write.
    pub(super) fn listens(&mut self) {
        self.listens_from.get_or_insert(self.gone_on);
    }

    /// The highest version of entries that this node and all that are present understand; 0 before this node has listened for so long.
    pub(super) fn understood(&self, ours: u16, listen_time: Duration) -> u16 {
        let has_listened = self.listens_from.is_some_and(|from| self.gone_on - from >= listen_time);
        if !has_listened {
            return 0;
        }
        self.present().map(|(_, known)| known.report.understands).fold(ours, u16::min)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTEN_TIME: Duration = Duration::from_secs(15);

    /// What this node understands.
    const OURS: u16 = 2;

    /// The log of some nodes, second by second.
    struct Log {
        peers: Peers,
        second: u64,
    }

    impl Log {
        fn begin() -> Log {
            let mut log = Log { peers: Peers::default(), second: 1_000_000 };
            log.goes_on(0);
            log.peers.listens();
            log
        }

        /// Nothing is written for so long, then this node's own message.
        fn stands_still(&mut self, seconds: u64) {
            self.second += seconds;
            self.peers.note_time(Timestamp(self.second * 1_000));
        }

        /// This node beats, and nobody else.
        fn goes_on(&mut self, seconds: u64) {
            for _ in 0..=seconds / 5 {
                self.stands_still(5);
            }
        }

        fn tells(&mut self, node: &str, understands: u16) {
            self.peers.heard(node, Some(Seq(7)));
            self.peers.known(node).report = Report::of_this_build(understands, None);
        }

        fn understood(&self) -> u16 {
            self.peers.understood(OURS, LISTEN_TIME)
        }

        fn present(&self) -> Vec<&str> {
            self.peers.present().map(|(node, _)| node).collect()
        }
    }

    #[test]
    fn the_least_counts_of_those_that_are_present_once_the_node_has_listened() {
        let mut log = Log::begin();
        assert_eq!(log.understood(), 0, "it has not listened yet");
        log.goes_on(15);
        assert_eq!(log.understood(), OURS, "it is alone");
        log.tells("a", 1);
        log.tells("b", 3);
        assert_eq!(log.understood(), 1);
        log.tells("a", 2);
        assert_eq!(log.understood(), 2);
        // It may be another build.
        log.peers.began_session("a");
        assert_eq!(log.understood(), 0);
        log.tells("a", 1);
        assert_eq!((log.understood(), log.present()), (1, vec!["a", "b"]));
        log.goes_on(605);
        log.tells("b", 3);
        assert_eq!((log.understood(), log.present()), (OURS, vec!["b"]));
    }

    /// After the servers were gone, this node's own message is the first one.
    #[test]
    fn the_silence_of_the_log_is_not_the_silence_of_a_node() {
        let mut log = Log::begin();
        log.tells("old", 1);
        log.goes_on(15);
        log.stands_still(3_600);
        assert_eq!((log.understood(), log.present()), (0, vec!["old"]));
        log.goes_on(15);
        assert_eq!(log.understood(), 1, "it has listened anew, and the old one is not gone");
        log.goes_on(600);
        assert_eq!((log.understood(), log.present()), (OURS, vec![]));
    }

    #[test]
    fn a_clock_that_is_set_makes_nobody_silent() {
        let mut log = Log::begin();
        log.tells("old", 1);
        log.goes_on(15);
        for back in [7_200, 14, 900_000] {
            log.second -= back;
            log.goes_on(15);
            assert_eq!((log.understood(), log.present()), (1, vec!["old"]), "{back} s");
        }
        // Nobody who was last heard at a later time stays present for longer than others.
        log.goes_on(600);
        assert_eq!(log.present(), Vec::<&str>::new());
    }

    /// An old node is down while this one begins with a snapshot: the log that it reads says nothing of it.
    #[test]
    fn a_node_with_a_session_counts_although_it_was_not_heard_of_yet() {
        let mut log = Log { peers: Peers::default(), second: 1_000_000 };
        log.peers.expect("old");
        log.goes_on(0);
        log.peers.listens();
        log.goes_on(60);
        assert_eq!((log.understood(), log.present()), (0, vec!["old"]));
        log.tells("old", 1);
        assert_eq!(log.understood(), 1);

        let mut log = Log::begin();
        log.peers.expect("removed long ago");
        log.goes_on(605);
        assert_eq!(log.understood(), OURS);
    }

    #[test]
    fn the_one_that_was_silent_for_longest_is_forgotten_when_there_are_too_many() {
        let mut log = Log::begin();
        for number in 0..PEERS_MAX {
            log.tells(&format!("n{number}"), 2);
            log.stands_still(1);
        }
        log.tells("n0", 2);
        log.tells("another", 1);
        assert_eq!(log.peers.all().count(), PEERS_MAX);
        let is_known = |node: &str| log.peers.all().any(|(known, _)| known == node);
        assert!(is_known("n0") && is_known("another") && !is_known("n1"));
        assert_eq!(log.understood(), 1);
    }
}
