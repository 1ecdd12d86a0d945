//! What the writer does for a log that several nodes share: it publishes positions and answers barriers.

use super::barriers::Barriers;
use super::cluster::log_refusal;
use super::{Inner, SubmitError};
use crate::domain::{Seq, StateHash, Timestamp};
use crate::journal::{Journal, Replication};
use parking_lot::Mutex;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// The longest that a node waits for its turn to do what any of them may do.
const TURN_MAX: Duration = Duration::from_millis(500);

/// The writer's part in a shared log; for a log of its own there is nothing to do.
pub(super) struct Sharing {
    /// The callers that wait until everything acknowledged anywhere is applied.
    pub(super) barriers: Barriers,
    /// The last entry applied, for those who wait for a position.
    applied: Option<watch::Sender<Seq>>,
    /// The node's own way to choose its turns.
    turns: Option<RandomState>,
    /// The last position whose hash the others were told.
    compared: Seq,
    /// What is known about the log's replication.
    replication: Option<Arc<Mutex<Replication>>>,
    /// How long the log may be silent before writes are rejected.
    silence_max: Duration,
}

impl Sharing {
    /// The part in this journal's log. From here on others can see what is known about its replication.
    pub(super) fn new(inner: &Inner, journal: &dyn Journal) -> Sharing {
        let replication = journal.replication();
        if let Some(replication) = &replication {
            // It is set here and nowhere else.
            let _ = inner.replication.set(replication.clone());
        }
        let silence_max = inner.options.cluster.lag_max;
        let is_shared = inner.options.journal.is_shared();
        let applied = is_shared.then(|| inner.applied.clone());
        let turns = is_shared.then(RandomState::new);
        Sharing { barriers: Barriers::default(), applied, turns, compared: Seq(0), replication, silence_max }
    }

    /// Why the log takes no messages now, if it doesn't.
    pub(super) fn refusal(&self) -> Option<SubmitError> {
        log_refusal(self.replication.as_deref()?, self.silence_max)
    }

    /// How long this node waits for its turn to do what is due at this time: by chance, for another time than other nodes do. `None` if it
    /// has the log for itself.
    pub(super) fn turn(&self, due: Timestamp) -> Option<Duration> {
        let turns = self.turns.as_ref()?;
        Some(Duration::from_millis(turns.hash_one(due.0) % TURN_MAX.as_millis() as u64))
    }

    /// Whether other nodes write to the log.
    pub(super) fn is_shared(&self) -> bool {
        self.applied.is_some()
    }

    /// Compares the state with those of other nodes, where it has come to another position at which they do.
    pub(super) fn compare(&mut self, journal: &mut dyn Journal, hash: StateHash) {
        if hash.at > self.compared {
            self.compared = hash.at;
            journal.compare(hash);
        }
    }

    /// Tells those who wait for a position that everything up to this one can be seen.
    pub(super) fn publish(&self, position: Seq) {
        if let Some(applied) = &self.applied {
            applied.send_replace(position);
        }
    }
}
