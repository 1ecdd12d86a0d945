//! A node among several: positions that readers wait for, barriers, and how far this node is behind.

use super::request::Request;
use super::{Engine, Inner, LatestSnapshot, Status, SubmitError};
use crate::domain::Seq;
use crate::journal::Replication;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use tokio::time::timeout;

/// Options of a node among several.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClusterOptions {
    /// How long a node may take to reach a position that the log has shown it and still be ready; also how long the log may be silent
    /// before writes are rejected.
    pub lag_max: Duration,
    /// How long a read waits for its position or barrier.
    pub wait: Duration,
    /// Whether this node's settings replace those in the log.
    pub configure: bool,
    /// How old the newest snapshot that the nodes share may be until this node shares one, if another does not; `None` if it never does.
    pub share_every: Option<Duration>,
}

/// What is known about the snapshots that the nodes share.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct SharingFigures {
    /// The newest one, when last looked up.
    pub newest: Option<LatestSnapshot>,
    /// Snapshots that this node has shared since its start.
    pub shared: u64,
    /// Those that it could not share.
    pub failed: u64,
    /// How long the start took, if the node began with a shared snapshot.
    pub bootstrap: Option<Duration>,
}

impl Default for ClusterOptions {
    fn default() -> Self {
        Self {
            lag_max: Duration::from_secs(10),
            wait: Duration::from_secs(2),
            configure: false,
            share_every: Some(Duration::from_secs(1_800)),
        }
    }
}

impl Inner {
    /// Why the log takes no messages now, if it doesn't: it is full, or was silent for too long. Then writes are rejected, and reads
    /// continue.
    pub(super) fn log_refusal(&self) -> Option<SubmitError> {
        let known = self.replication.get()?.lock();
        if known.full_since.is_some() {
            return Some(SubmitError::LogFull);
        }
        (known.silence(Instant::now()) > self.options.cluster.lag_max).then_some(SubmitError::NoQuorum)
    }
}

impl Engine {
    /// Whether other nodes write to the same log.
    pub fn is_shared(&self) -> bool {
        self.inner.options.journal.is_shared()
    }

    /// The last entry that every reader of this node sees.
    pub fn position(&self) -> Seq {
        self.inner.info_position()
    }

    /// The highest version of entries that is enabled in the log.
    pub fn format(&self) -> u16 {
        self.inner.board.figures.lock().format
    }

    /// What is known about the log's replication; `None` if it is not replicated, or not opened yet.
    pub fn replication(&self) -> Option<Replication> {
        let mut known = self.inner.replication.get()?.lock();
        known.lag(Instant::now());
        Some(known.clone())
    }

    /// What is known about the snapshots that the nodes share.
    pub fn shared_snapshots(&self) -> SharingFigures {
        *self.inner.sharing.lock()
    }

    /// Why this node should get no reads although it could answer them: it has not reached a position that the log has shown it. Silence of
    /// the log is no evidence for that.
    pub fn too_far_behind(&self) -> Option<SubmitError> {
        let lag = self.inner.replication.get()?.lock().lag(Instant::now());
        let lag_max = self.inner.options.cluster.lag_max;
        (lag > lag_max).then_some(SubmitError::TooFarBehind)
    }

    /// Why this node must answer nothing any more: it can't follow the log that others follow.
    pub fn has_stopped(&self) -> Option<Status> {
        let status = self.is_shared().then(|| self.status())?;
        matches!(status, Status::Failed(_) | Status::Diverged(_)).then_some(status)
    }

    /// Waits until this node has applied everything up to a position.
    ///
    /// # Errors
    /// [`SubmitError::TooFarBehind`] if it has not within [`ClusterOptions::wait`].
    pub async fn reached(&self, position: Seq) -> Result<(), SubmitError> {
        if self.position() >= position {
            return Ok(());
        }
        if !self.is_shared() {
            // Nobody else can have given it out.
            return Err(SubmitError::TooFarBehind);
        }
        let mut applied = self.inner.applied.subscribe();
        let reached = applied.wait_for(|applied| *applied >= position);
        match timeout(self.inner.options.cluster.wait, reached).await {
            Ok(Ok(_)) => Ok(()),
            _ => Err(SubmitError::TooFarBehind),
        }
    }

    /// Waits until this node has applied everything that any node had acknowledged before the call.
    ///
    /// # Errors
    /// [`SubmitError::NoQuorum`] if the log does not say so within [`ClusterOptions::wait`].
    pub async fn barrier(&self) -> Result<(), SubmitError> {
        self.refuse_unless_ready()?;
        if let Some(refusal) = self.inner.log_refusal() {
            return Err(refusal);
        }
        let (reply, answer) = oneshot::channel();
        self.send(Request::Barrier(reply))?;
        match timeout(self.inner.options.cluster.wait, answer).await {
            Ok(Ok(passed)) => passed,
            _ => Err(SubmitError::NoQuorum),
        }
    }
}
