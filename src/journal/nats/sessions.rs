//! The sessions in which nodes commit, as the log tells of them: the latest one of each node, and how far it is. It is the same on
//! every node at the same place of the log.
//!
//! Whoever begins a session says how far it has read the log. If its node has begun another session behind that, the new one is
//! void: it is the copy of a message that came twice, or comes late from a process that has ended. So a session begins once, and
//! only a process that knows the latest session can end it.

use super::message::Session;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The most nodes whose sessions are kept. Beyond it the one that was silent for longest is forgotten, on every node alike.
pub(super) const NODES_MAX: usize = 256;

/// How far a session is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Progress {
    pub(super) session: Session,
    /// The stream's number of the message that began it.
    pub(super) begun: u64,
    /// The stream's number of the last message that counted in it.
    pub(super) heard: u64,
    /// The number that its next commit has.
    pub(super) next: u64,
}

/// The latest session of each node.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Sessions {
    // Names are shared: many places of the log are remembered, each with its sessions.
    pub(super) nodes: BTreeMap<Arc<str>, Progress>,
    /// No node that was forgotten has begun its last session behind this message.
    pub(super) forgotten: u64,
}

impl Sessions {
    /// The node whose latest session this is.
    pub(super) fn node_of(&self, session: Session) -> Option<&str> {
        let found = self.nodes.iter().find(|(_, latest)| latest.session == session);
        found.map(|(node, _)| &**node)
    }

    /// Whether a node that has read everything up to message `read` begins a session in message `number`.
    pub(super) fn may_begin(&self, node: &str, read: u64, number: u64) -> bool {
        let known = self.nodes.get(node).map_or(self.forgotten, |latest| latest.begun);
        known <= read && read < number
    }

    /// A node has begun a session in message `number`.
    pub(super) fn begin(&mut self, node: &str, session: Session, number: u64) {
        self.nodes.insert(Arc::from(node), Progress { session, begun: number, heard: number, next: 0 });
        if self.nodes.len() > NODES_MAX {
            let silent = self.nodes.iter().min_by_key(|(_, latest)| latest.heard);
            if let Some((node, latest)) = silent.map(|(node, latest)| (node.clone(), *latest)) {
                self.nodes.remove(&node);
                self.forgotten = self.forgotten.max(latest.begun);
            }
        }
    }

    /// Message `number` is a commit. Whether it counts: it is the next one of a node's latest session, which then waits for the one
    /// after it.
    pub(super) fn commit(&mut self, session: Session, commit: u64, number: u64) -> bool {
        let is_next = |latest: &&mut Progress| latest.session == session && latest.next == commit;
        let Some(latest) = self.nodes.values_mut().find(is_next) else { return false };
        (latest.next, latest.heard) = (commit + 1, number);
        true
    }

    /// Message `number` is a beat. The node whose latest session it belongs to, if any.
    pub(super) fn beat(&mut self, session: Session, number: u64) -> Option<&str> {
        let (node, latest) = self.nodes.iter_mut().find(|(_, latest)| latest.session == session)?;
        latest.heard = number;
        Some(node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_begins_once_and_only_by_whoever_knows_the_latest() {
        let mut sessions = Sessions::default();
        let mut begin = |session, read, number| {
            let may = sessions.may_begin("a", read, number);
            if may {
                sessions.begin("a", Session(session), number);
            }
            may
        };
        assert!(begin(1, 0, 3));
        assert!(!begin(1, 0, 4), "it came twice");
        assert!(!begin(2, 2, 5), "of a process that did not know it");
        assert!(begin(3, 3, 6));
        assert!(!begin(1, 0, 7) && !begin(3, 3, 8), "later copies");
        assert!(!begin(4, 9, 9), "nobody has read what comes behind");
    }

    #[test]
    fn the_node_that_was_silent_for_longest_is_forgotten_when_there_are_too_many() {
        let mut sessions = Sessions::default();
        for number in 1..=NODES_MAX as u64 {
            sessions.begin(&format!("n{number}"), Session(u128::from(number)), number);
        }
        let next = NODES_MAX as u64 + 1;
        // The first ones live: they commit, beat and begin again.
        assert!(sessions.commit(Session(1), 0, next));
        assert_eq!(sessions.beat(Session(2), next + 1), Some("n2"));
        sessions.begin("n3", Session(1_003), next + 2);
        sessions.begin("another", Session(1_000), next + 3);
        assert_eq!(sessions.nodes.len(), NODES_MAX);
        assert_eq!(sessions.node_of(Session(4)), None);
        for (session, node) in [(1, "n1"), (2, "n2"), (1_003, "n3"), (1_000, "another"), (5, "n5")] {
            assert_eq!(sessions.node_of(Session(session)), Some(node));
        }
        // A late copy does not bring it back; the node itself has read on.
        assert!(!sessions.may_begin("n4", 3, next + 4));
        assert!(sessions.may_begin("n4", 4, next + 4));
    }
}
