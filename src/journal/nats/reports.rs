//! What this node tells the others about itself, when, and what it learns from what they tell: whether its state is theirs.

use super::comparison::{Comparison, Verdict};
use super::options::NatsOptions;
use super::report::Report;
use super::status::Replication;
use crate::domain::{Seq, StateHash};
use crate::journal::JournalError;
use std::time::{Duration, Instant};

/// However much a node writes, it tells the others of itself at least so often.
const REPORT_EVERY: Duration = Duration::from_secs(10);

/// This node's reports and the others'.
#[derive(Debug)]
pub(super) struct Reports {
    /// The highest version of entries that this node understands.
    understands: u16,
    /// How long this node goes on while it is open whether its state is right.
    open_time: Duration,
    comparison: Comparison,
    /// The last position whose hash the others were told.
    told: Option<Seq>,
    /// When the last report was made; `None` if another one is due.
    made_at: Option<Instant>,
    /// The first position at which hashes differ and it is open who is right, and since when.
    open: Option<(Seq, Instant)>,
}

impl Reports {
    pub(super) fn new(options: &NatsOptions) -> Reports {
        Reports {
            understands: options.understands,
            open_time: options.open_time,
            comparison: Comparison::default(),
            told: None,
            made_at: None,
            open: None,
        }
    }

    /// Somebody does not know this node yet: a session has begun, of this node or another.
    pub(super) fn introduce(&mut self) {
        self.made_at = None;
    }

    /// The next report, encoded.
    pub(super) fn next(&mut self, now: Instant) -> Vec<u8> {
        let hash = self.comparison.last();
        (self.told, self.made_at) = (hash.map(|hash| hash.at), Some(now));
        Report::of_this_build(self.understands, hash).encode()
    }

    /// When the next report is due; `now` or earlier for at once.
    pub(super) fn due_at(&self, now: Instant) -> Instant {
        let is_news = self.told < self.comparison.last().map(|hash| hash.at);
        self.made_at.filter(|_| !is_news).map_or(now, |at| at + REPORT_EVERY)
    }

    /// Takes the hash of this node's state.
    ///
    /// # Errors
    /// [`JournalError::Diverged`] if this node must not go on.
    pub(super) fn take_own(
        &mut self,
        hash: StateHash,
        status: &Replication,
        now: Instant,
    ) -> Result<(), JournalError> {
        self.comparison.note_own(hash);
        self.compare(hash.at, status, now)
    }

    /// Takes what another node has told.
    ///
    /// # Errors
    /// As for [`Self::take_own`].
    pub(super) fn take(
        &mut self,
        node: &str,
        report: Report,
        status: &Replication,
        now: Instant,
    ) -> Result<(), JournalError> {
        let hash = report.hash();
        status.note_report(node, report);
        let Some(hash) = hash else { return Ok(()) };
        self.comparison.note(node, hash);
        self.compare(hash.at, status, now)
    }

    /// When something is to be decided that is open.
    pub(super) fn wake_at(&self) -> Option<Instant> {
        self.open.map(|(_, since)| since + self.open_time)
    }

    /// Decides what was open for too long.
    ///
    /// # Errors
    /// As for [`Self::take_own`].
    pub(super) fn decide(&mut self, status: &Replication, now: Instant) -> Result<(), JournalError> {
        match self.open {
            Some((at, _)) if self.wake_at().is_some_and(|wake_at| wake_at <= now) => {
                self.judge(at, true, false, status, now)
            }
            _ => Ok(()),
        }
    }

    /// Something is new about a position. What is open at another one may be decided by it.
    fn compare(&mut self, at: Seq, status: &Replication, now: Instant) -> Result<(), JournalError> {
        let is_news = status.note_comparison(&self.comparison);
        self.judge(at, false, is_news, status, now)?;
        match self.open {
            Some((open, _)) if open != at => self.judge(open, false, is_news, status, now),
            _ => Ok(()),
        }
    }

    fn judge(
        &mut self,
        at: Seq,
        is_final: bool,
        is_news: bool,
        status: &Replication,
        now: Instant,
    ) -> Result<(), JournalError> {
        let position = at.0;
        match self.comparison.verdict(at, &status.present(), is_final) {
            Verdict::Diverged(others) => {
                status.note_doubt(true);
                return Err(JournalError::Diverged { at, others: others.join(", ") });
            }
            Verdict::Open(others) if self.open.is_none() => {
                self.open = Some((at, now));
                tracing::error!(
                    position,
                    ?others,
                    "the state differs from that of other nodes; the rest will tell whose is right"
                );
            }
            Verdict::Open(_) => {}
            Verdict::OthersDiffer(others) => {
                // Whoever agrees here has agreed before.
                let is_decided = self.open.take_if(|(open, _)| *open <= at).is_some();
                if is_decided || is_news {
                    tracing::error!(
                        position,
                        ?others,
                        "the state of other nodes differs from that of this node and most: those have to stop"
                    );
                }
            }
            Verdict::Same | Verdict::Unknown => drop(self.open.take_if(|(open, _)| *open == at)),
        }
        status.note_doubt(self.open.is_some());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{FORMAT_VERSION, STATE_HASH_EVERY, Timestamp};

    const OPEN_TIME: Duration = Duration::from_secs(30);

    /// The reports of a node among others that are present.
    struct Node {
        reports: Reports,
        status: Replication,
        now: Instant,
    }

    impl Node {
        fn among(others: &[&str]) -> Node {
            let options = NatsOptions { open_time: OPEN_TIME, ..NatsOptions::new("", "shop", "own") };
            let node = Node {
                reports: Reports::new(&options),
                status: Replication::new("own", "shop"),
                now: Instant::now(),
            };
            node.status.note_time(Timestamp(0));
            others.iter().for_each(|other| node.status.heard(other, None));
            node
        }

        fn own(&mut self, number: u64, hash: u128) -> Result<(), JournalError> {
            self.reports.take_own(hash_at(number, hash), &self.status, self.now)
        }

        fn told(&mut self, node: &str, number: u64, hash: u128) -> Result<(), JournalError> {
            let report = Report::of_this_build(1, Some(hash_at(number, hash)));
            self.reports.take(node, report, &self.status, self.now)
        }

        /// Time passes, and the timer fires.
        fn wait(&mut self, time: Duration) -> Result<(), JournalError> {
            self.now += time;
            self.reports.decide(&self.status, self.now)
        }

        fn differs(&self, node: &str) -> Option<bool> {
            self.status.figures().peers.into_iter().find(|peer| peer.node == node)?.differs
        }
    }

    fn hash_at(number: u64, hash: u128) -> StateHash {
        StateHash { at: Seq(number * STATE_HASH_EVERY), hash }
    }

    fn diverged_at(judged: Result<(), JournalError>) -> Option<u64> {
        match judged {
            Err(JournalError::Diverged { at, .. }) => Some(at.0 / STATE_HASH_EVERY),
            other => {
                other.unwrap();
                None
            }
        }
    }

    #[test]
    fn what_is_open_is_decided_by_the_timer() {
        let mut node = Node::among(&["b", "c"]);
        assert_eq!(node.reports.wake_at(), None);
        node.own(1, 1).unwrap();
        assert!(!node.status.is_in_doubt());
        node.told("c", 1, 2).unwrap();
        assert!(node.status.is_in_doubt());
        assert_eq!(node.reports.wake_at(), Some(node.now + OPEN_TIME));
        node.wait(OPEN_TIME - Duration::from_millis(1)).unwrap();
        assert_eq!(diverged_at(node.wait(Duration::from_millis(1))), Some(1));
        assert!(node.status.is_in_doubt());
    }

    #[test]
    fn the_third_decides_it() {
        let mut right = Node::among(&["b", "c"]);
        right.own(1, 1).unwrap();
        right.told("c", 1, 2).unwrap();
        right.told("b", 1, 1).unwrap();
        assert!(!right.status.is_in_doubt());
        right.wait(OPEN_TIME).unwrap();
        assert_eq!((right.differs("b"), right.differs("c")), (Some(false), Some(true)));

        let mut wrong = Node::among(&["b", "c"]);
        wrong.own(1, 1).unwrap();
        wrong.told("c", 1, 2).unwrap();
        assert_eq!(diverged_at(wrong.told("b", 1, 2)), Some(1));
    }

    /// The others have not come to the later position, so nothing about it decides what is open.
    #[test]
    fn a_later_position_of_which_nothing_is_known_does_not_close_an_earlier_one() {
        let mut node = Node::among(&["b", "c"]);
        node.own(1, 1).unwrap();
        node.told("c", 1, 2).unwrap();
        node.wait(OPEN_TIME / 2).unwrap();
        node.own(2, 11).unwrap();
        node.told("b", 3, 111).unwrap();
        assert!(node.status.is_in_doubt());
        assert_eq!(diverged_at(node.wait(OPEN_TIME / 2)), Some(1), "its time began with the first one");
    }

    #[test]
    fn a_later_position_decides_an_earlier_one_that_somebody_passed_over() {
        let mut node = Node::among(&["b", "c"]);
        node.own(1, 1).unwrap();
        node.told("c", 1, 2).unwrap();
        node.own(2, 11).unwrap();
        node.told("b", 2, 11).unwrap();
        assert!(!node.status.is_in_doubt());
        node.wait(OPEN_TIME).unwrap();

        let mut node = Node::among(&["b", "c"]);
        node.own(1, 1).unwrap();
        node.told("c", 1, 2).unwrap();
        node.own(2, 11).unwrap();
        node.told("c", 2, 22).unwrap();
        assert_eq!(diverged_at(node.told("b", 2, 22)), Some(2));
    }

    #[test]
    fn nobody_waits_for_a_node_that_is_gone() {
        let mut node = Node::among(&["b", "gone"]);
        for beat in 0..=121 {
            node.status.note_time(Timestamp(beat * 5_000));
        }
        node.status.heard("b", None);
        node.own(1, 1).unwrap();
        assert_eq!(diverged_at(node.told("b", 1, 2)), Some(1));
        assert!(node.status.figures().peers.iter().all(|peer| peer.is_present == (peer.node == "b")));
    }

    #[test]
    fn a_report_is_due_with_news_now_and_then_and_for_whoever_is_new() {
        let mut node = Node::among(&["b"]);
        let now = node.now;
        assert_eq!(node.reports.due_at(now), now);
        node.reports.next(now);
        assert_eq!(node.reports.due_at(now), now + REPORT_EVERY);
        node.own(1, 1).unwrap();
        assert_eq!(node.reports.due_at(now), now);
        let told = Report::decode(&node.reports.next(now));
        assert_eq!((told.understands, told.hash()), (FORMAT_VERSION, Some(hash_at(1, 1))));
        assert_eq!(node.reports.due_at(now), now + REPORT_EVERY);
        node.reports.introduce();
        assert_eq!(node.reports.due_at(now), now);
    }
}
