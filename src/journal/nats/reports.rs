//! What this node tells the others about itself, when, and what it learns from what they tell: whether its state is theirs, and
//! which entries all of them understand.

use super::comparison::{Comparison, Verdict};
use super::options::NatsOptions;
use super::report::Report;
use super::status::Replication;
use crate::domain::{Seq, StateHash};
use crate::journal::JournalError;
use std::time::{Duration, Instant};

/// However much a node writes, it tells the others of itself at least so often.
const REPORT_EVERY: Duration = Duration::from_secs(30);

/// A node that was not heard of for so long is not waited for when hashes are compared.
const PEER_SILENT: Duration = Duration::from_secs(15);

/// How long a node goes on whose hash differs from another's while it is open which of them is right.
const OPEN_MAX: Duration = Duration::from_secs(10);

/// This node's reports and the others'.
#[derive(Debug)]
pub(super) struct Reports {
    /// The highest version of entries that this node understands.
    understands: u16,
    /// How long it listens to the others before it takes those for all that it has heard.
    listen_time: Duration,
    comparison: Comparison,
    /// The last position whose hash the others were told.
    told: Option<Seq>,
    /// When the last report was made in this session.
    made_at: Option<Instant>,
    /// The position at which hashes differ and it is open who is right, and since when.
    open: Option<(Seq, Instant)>,
    /// The version of entries that every node is known to understand.
    understood: u16,
}

impl Reports {
    pub(super) fn new(options: &NatsOptions) -> Reports {
        Reports {
            understands: options.understands,
            listen_time: options.listen_time,
            comparison: Comparison::default(),
            told: None,
            made_at: None,
            open: None,
            understood: 0,
        }
    }

    /// A session of this node has begun: the others are to hear of its build at once.
    pub(super) fn began_session(&mut self) {
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
    pub(super) fn take_own(&mut self, hash: StateHash, status: &Replication) -> Result<(), JournalError> {
        self.comparison.note_own(hash);
        self.compare(hash.at, status)
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
    ) -> Result<(), JournalError> {
        let hash = report.hash();
        status.note_report(node, report);
        let Some(hash) = hash else { return Ok(()) };
        self.comparison.note(node, hash);
        self.compare(hash.at, status)
    }

    fn compare(&mut self, at: Seq, status: &Replication) -> Result<(), JournalError> {
        let is_final = self.open.is_some_and(|(_, since)| since.elapsed() >= OPEN_MAX);
        let nodes = 1 + status.peers_heard_within(PEER_SILENT);
        let is_news = status.note_comparison(&self.comparison);
        match self.comparison.verdict(at, nodes, is_final) {
            Verdict::Diverged(others) => {
                return Err(JournalError::Diverged { at, others: others.join(", ") });
            }
            Verdict::Open(others) => {
                self.open.get_or_insert((at, Instant::now()));
                if is_news {
                    tracing::error!(
                        position = at.0,
                        ?others,
                        "the state differs from that of other nodes; the rest will tell whose is right"
                    );
                }
                return Ok(());
            }
            Verdict::OthersDiffer(others) if is_news => tracing::error!(
                position = at.0,
                ?others,
                "the state of other nodes differs from that of this node and most: those have to stop"
            ),
            Verdict::OthersDiffer(_) | Verdict::Same => {}
        }
        self.open.take_if(|(open, _)| *open <= at);
        Ok(())
    }

    /// When something is to be decided that is open.
    pub(super) fn wake_at(&self) -> Option<Instant> {
        self.open.map(|(_, since)| since + OPEN_MAX)
    }

    /// Decides what was open for too long.
    ///
    /// # Errors
    /// As for [`Self::take_own`].
    pub(super) fn decide(&mut self, status: &Replication) -> Result<(), JournalError> {
        match self.open {
            Some((at, since)) if since.elapsed() >= OPEN_MAX => self.compare(at, status),
            _ => Ok(()),
        }
    }

    /// The version of entries that every node understands, if it is higher than what was returned before.
    pub(super) fn understood(&mut self, status: &Replication) -> Option<u16> {
        if self.understood == self.understands {
            return None;
        }
        let understood = status.understood(self.understands, self.listen_time);
        (understood > self.understood).then(|| {
            self.understood = understood;
            understood
        })
    }
}
