//! A node of a cluster: positions that readers wait for, barriers, the lag of this node, and the snapshots that it shares.

use super::handle::WeakEngine;
use super::protocol::Request;
use super::{Engine, EngineStatus, Inner, LatestSnapshot, SubmitError};
use cuckood_log::journal::{JournalError, Replication};
use cuckood_nats::{NatsSnapshots, SharedSnapshot};
use cuckood_state::domain::Seq;
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
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

/// The shared snapshots.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct SharingFigures {
    /// The newest one, when last looked up.
    pub newest: Option<LatestSnapshot>,
    /// Snapshots that this node has shared since its start.
    pub shared: u64,
    /// Snapshots that it failed to share.
    pub failed: u64,
    /// Duration of the startup, if the node started from a shared snapshot.
    pub bootstrap: Option<Duration>,
}

impl Inner {
    /// Why the log takes no messages now, if it doesn't: it is full, or was silent for too long. Then writes are rejected, and reads
    /// continue.
    pub(super) fn log_refusal(&self) -> Option<SubmitError> {
        let known = self.replication.get()?.lock();
        let is_silent = known.silence(self.instant()) > self.options.cluster.lag_max;
        known
            .full_since
            .map(|_| SubmitError::LogFull)
            .or(is_silent.then_some(SubmitError::NoQuorum))
    }
}

impl Engine {
    /// Whether other nodes write to the same log.
    pub fn is_shared(&self) -> bool {
        self.inner.options.journal.is_shared()
    }

    /// The last entry that every reader of this node sees.
    pub fn position(&self) -> Seq {
        // A client that sees a position must see everything published before it.
        Seq(self.inner.applied.load(Ordering::Acquire))
    }

    /// Returns the state of the log's replication; `None` if it is not replicated, or not opened yet.
    pub fn replication(&self) -> Option<Replication> {
        let mut known = self.inner.replication.get()?.lock();
        known.lag(self.inner.instant());
        Some(known.clone())
    }

    /// Whether this node should get no reads although it could answer them: it has not reached a position that it knows to be in the log.
    /// Silence of the log is no evidence for that.
    pub fn is_too_far_behind(&self) -> bool {
        let lag = self
            .inner
            .replication
            .get()
            .map(|known| known.lock().lag(self.inner.instant()));
        lag.is_some_and(|lag| lag > self.inner.options.cluster.lag_max)
    }

    /// Why this node must stop answering: it can't follow the others' log.
    pub fn has_stopped(&self) -> Option<EngineStatus> {
        let status = self.is_shared().then(|| self.status())?;
        matches!(status, EngineStatus::Failed(_) | EngineStatus::Diverged(_)).then_some(status)
    }

    /// Waits until this node has applied everything up to a position.
    ///
    /// # Errors
    /// [`SubmitError::TooFarBehind`] if it has not within [`ClusterOptions::wait`].
    pub async fn reached(&self, position: Seq) -> Result<(), SubmitError> {
        let reached = async {
            let mut moved = self.inner.moved.notified();
            while self.position() < position {
                moved.await;
                moved = self.inner.moved.notified();
            }
        };
        // Only another node of a shared log can have returned a later one.
        let wait = if self.is_shared() {
            self.inner.options.cluster.wait
        } else {
            Duration::ZERO
        };
        timeout(wait, reached)
            .await
            .map_err(|_| SubmitError::TooFarBehind)
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
        let passed = self.ask(Request::Barrier);
        timeout(self.inner.options.cluster.wait, passed)
            .await
            .unwrap_or(Err(SubmitError::NoQuorum))
    }
}

/// It looks this many times while a snapshot becomes due.
const CHECKS_PER_INTERVAL: u32 = 8;

/// A node whose turn it is has this part of the interval until the next one shares.
const TURNS: u32 = 4;

/// The shortest and the longest pause between two looks.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// Starts the thread of a node that shares snapshots with the others: it checks periodically whether a new one is due, and uploads this
/// node's if no other node does. It ends with the engine, once no server is being waited for.
pub(super) fn start_sharing(engine: &WeakEngine) {
    if !engine.inner.options.journal.is_shared() {
        return;
    }
    let engine = engine.clone();
    let share = move |runtime: Runtime| {
        let Inner { options, share, .. } = &*engine.inner;
        let every = options.cluster.share_every;
        let pause = every.map_or(PAUSE_MAX, |every| {
            (every / CHECKS_PER_INTERVAL).clamp(PAUSE_MIN, PAUSE_MAX)
        });
        let mut port = None;
        let mut is_requested = false;
        let sharer = Sharer {
            engine: &engine,
            runtime: &runtime,
        };
        while engine.upgrade().is_ok() {
            // Otherwise the status says why. The right to share one is left to others.
            if sharer.check().is_ok()
                && let Err(error) = sharer.check_shared(&mut port, is_requested)
            {
                tracing::warn!(%error, "can't share snapshots now");
            }
            is_requested =
                runtime.block_on(async { timeout(pause, share.notified()).await.is_ok() });
        }
    };
    let runtime = Builder::new_current_thread().enable_time().build();
    let thread = thread::Builder::new().name("sharing".to_owned());
    if let Err(error) = runtime.and_then(|runtime| thread.spawn(move || share(runtime))) {
        tracing::error!(%error, "can't start the thread that shares snapshots");
    }
}

/// A node that shares snapshots. It asks its engine as clients do, and blocks; between two requests the engine may end.
struct Sharer<'a> {
    engine: &'a WeakEngine,
    runtime: &'a Runtime,
}

impl Sharer<'_> {
    /// Checks the shared snapshots, and does due work. Connects first if necessary.
    fn check_shared(
        &self,
        port: &mut Option<NatsSnapshots>,
        is_requested: bool,
    ) -> Result<(), JournalError> {
        let Inner {
            options, figures, ..
        } = &*self.engine.inner;
        if port.is_none() {
            *port = options.journal.shared_snapshots()?;
        }
        let Some(port) = port else { return Ok(()) };
        let newest = port.list()?.first().map(latest);
        figures.lock().sharing.newest = newest;
        let position = newest.map_or(Seq(0), |newest| newest.seq);
        let own = figures.lock().snapshot.map_or(Seq(0), |own| own.seq);
        if own < position && position <= self.engine.upgrade()?.position() {
            // Once there are two newer shared ones the log is trimmed past this node's own, and neither a backup nor the next start
            // could go on from there.
            self.runtime.block_on(self.engine.upgrade()?.snapshot())?;
        }
        if !self.is_due(newest, is_requested)? {
            return Ok(());
        }
        let shared = self.share(port);
        let mut noted = figures.lock();
        match &shared {
            Ok(newest) => {
                (noted.sharing.newest, noted.sharing.shared) =
                    (Some(*newest), noted.sharing.shared + 1)
            }
            Err(_) => noted.sharing.failed += 1,
        }
        shared.map(drop)
    }

    /// Whether a snapshot must be shared: there are new entries, and a snapshot was requested or the newest is old. Nodes take turns, so
    /// that usually one uploads it.
    fn is_due(
        &self,
        newest: Option<LatestSnapshot>,
        is_requested: bool,
    ) -> Result<bool, JournalError> {
        let engine = self.engine.upgrade()?;
        let Inner {
            options,
            clock,
            started,
            replication,
            ..
        } = &*self.engine.inner;
        let Some(every) = options.cluster.share_every else {
            return Ok(false);
        };
        let now = engine.now();
        let position = newest.map_or(Seq(0), |newest| newest.seq);
        // One from far in the future was taken by a clock that was wrong.
        let latest = now.0.saturating_add(every.as_millis() as u64);
        let age = newest
            .filter(|newest| newest.taken_at.0 <= latest)
            .map_or_else(
                || every + clock.monotonic().since(*started),
                |newest| Duration::from_millis(now.0.saturating_sub(newest.taken_at.0)),
            );
        let turn = replication
            .get()
            .map_or(0, |known| turn(&known.lock(), position));
        let is_wanted = is_requested || age >= every + turn * (every / TURNS);
        Ok(is_wanted && engine.position() > position)
    }

    /// Takes a snapshot and shares it.
    fn share(&self, port: &NatsSnapshots) -> Result<LatestSnapshot, JournalError> {
        let clock = self.engine.inner.clock.monotonic();
        let began = clock.now();
        let engine = self.engine.upgrade()?;
        let (snapshot, mut download) = self.runtime.block_on(engine.archive())?;
        drop(engine);
        let part = &mut || {
            self.check()?;
            let parts = self.runtime.block_on(download.next())?;
            Ok((!parts.is_empty()).then(|| parts.concat()))
        };
        let shared = port.share(&snapshot, part)?;
        let name = &shared.name;
        let bytes = shared.bytes;
        let milliseconds = clock.since(began).as_millis() as u64;
        tracing::info!(
            name,
            bytes,
            milliseconds,
            seq = shared.seq.0,
            "shared a snapshot"
        );
        Ok(latest(&shared))
    }

    /// Checks that others may have this node's state: it has not stopped, and there is no doubt that its state is right.
    fn check(&self) -> Result<(), JournalError> {
        if let EngineStatus::Failed(why) | EngineStatus::Diverged(why) =
            self.engine.upgrade()?.status()
        {
            return Err(JournalError::Failed(why));
        }
        if self
            .engine
            .inner
            .replication
            .get()
            .is_some_and(|known| known.lock().is_in_doubt)
        {
            let why = "the state differs from that of another node, and it is open whose is right";
            return Err(JournalError::Failed(why.to_owned()));
        }
        Ok(())
    }
}

impl From<SubmitError> for JournalError {
    fn from(error: SubmitError) -> JournalError {
        JournalError::Failed(format!("this node: {error}"))
    }
}

/// How many present nodes share the snapshot after this position before this node does. All nodes that know each other have different turns,
/// and the first one changes.
fn turn(known: &Replication, after: Seq) -> u32 {
    let others = known
        .peers
        .iter()
        .filter(|peer| peer.is_present)
        .map(|peer| peer.node.as_str());
    let nodes: BTreeSet<&str> = others.chain([known.node.as_str()]).collect();
    let before = nodes.range(..known.node.as_str()).count() as u64;
    ((before + after.0) % nodes.len() as u64) as u32
}

fn latest(snapshot: &SharedSnapshot) -> LatestSnapshot {
    LatestSnapshot {
        seq: snapshot.seq,
        taken_at: snapshot.taken_at,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cuckood_log::journal::OtherNode;

    fn turn_among(others: &[&str], own: &str, after: u64) -> u32 {
        let peer = |node: &&str| OtherNode {
            node: (*node).to_owned(),
            is_present: true,
            ..OtherNode::default()
        };
        let mut known = Replication::default();
        (known.node, known.peers) = (own.to_owned(), others.iter().map(peer).collect());
        turn(&known, Seq(after))
    }

    #[test]
    fn nodes_take_turns_to_share() {
        for after in 0..10 {
            let among = [("a", ["b", "c"]), ("b", ["a", "c"]), ("c", ["a", "b"])];
            let mut turns = among.map(|(own, others)| turn_among(&others, own, after));
            turns.sort_unstable();
            assert_eq!(turns, [0, 1, 2]);
        }
        assert_ne!(turn_among(&["b"], "a", 4), turn_among(&["b"], "a", 5));
        assert_eq!(turn_among(&[], "a", 7), 0);
    }
}
