//! A node among several: positions that readers wait for, barriers, how far this node is behind, and the snapshots that it shares.

use super::request::{Reply, Request};
use super::{Engine, Inner, LatestSnapshot, Status, SubmitError};
use crate::domain::Seq;
use crate::journal::{JournalError, NatsSnapshots, Replication, SharedSnapshot};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::WeakSender;
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

/// It looks this many times while a snapshot becomes due.
const LOOKS: u32 = 8;

/// A node whose turn it is has this part of the interval until the next one shares.
const TURNS: u32 = 4;

/// The shortest and the longest pause between two looks.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// The thread of a node that shares snapshots with the others: it looks now and then whether a new one is due, and uploads this node's if
/// no other node does. It asks the writer for everything, as a backup does.
struct Sharer {
    inner: Arc<Inner>,
    requests: WeakSender<Request>,
    /// How old the newest shared snapshot may be; `None` if this node shares none.
    every: Option<Duration>,
}

/// Starts the thread, if this node is one of several. It ends once [`Inner::share`] is empty again and no server is being waited for.
pub(super) fn start_sharing(inner: &Arc<Inner>, requests: &WeakSender<Request>) {
    if !inner.options.journal.is_shared() {
        return;
    }
    let every = inner.options.cluster.share_every;
    let (share, asked) = mpsc::channel();
    let sharer = Sharer { inner: inner.clone(), requests: requests.clone(), every };
    let serve = move || {
        let pause = every.map_or(PAUSE_MAX, |every| (every / LOOKS).clamp(PAUSE_MIN, PAUSE_MAX));
        let (mut port, mut is_asked) = (None, false);
        loop {
            if let Err(error) = sharer.look(&mut port, is_asked) {
                tracing::warn!(%error, "can't share snapshots now");
            }
            is_asked = match asked.recv_timeout(pause) {
                Ok(()) => true,
                Err(RecvTimeoutError::Timeout) => false,
                Err(RecvTimeoutError::Disconnected) => return,
            };
        }
    };
    match std::thread::Builder::new().name("sharing".to_owned()).spawn(serve) {
        Ok(_) => *inner.share.lock() = Some(share),
        Err(error) => tracing::error!(%error, "can't start the thread that shares snapshots"),
    }
}

impl Sharer {
    /// Looks what is shared, and does what is due. Connects first, if it is not connected yet.
    fn look(&self, port: &mut Option<NatsSnapshots>, is_asked: bool) -> Result<(), JournalError> {
        if self.check().is_err() {
            // The status says why. The right to share one is left to others.
            return Ok(());
        }
        if port.is_none() {
            *port = self.inner.options.journal.shared_snapshots()?;
        }
        let Some(port) = port else { return Ok(()) };
        let newest = port.list()?.into_iter().next();
        self.inner.sharing.lock().newest = newest.as_ref().map(latest);
        self.keep_up_with(newest.as_ref())?;
        if !self.is_due(newest.as_ref(), is_asked) {
            return Ok(());
        }
        let shared = self.share(port);
        let mut sharing = self.inner.sharing.lock();
        match &shared {
            Ok(newest) => (sharing.newest, sharing.shared) = (Some(latest(newest)), sharing.shared + 1),
            Err(_) => sharing.failed += 1,
        }
        shared.map(drop)
    }

    /// Takes a snapshot of this node's own if all are older than the newest shared one. Once there are two newer shared ones the log is
    /// trimmed past them, and neither a backup nor the next start could go on from there.
    fn keep_up_with(&self, newest: Option<&SharedSnapshot>) -> Result<(), JournalError> {
        let own = self.inner.latest_snapshot.borrow().map_or(Seq(0), |latest| latest.seq);
        let applied = self.inner.info_position();
        match newest {
            Some(newest) if own < newest.seq && newest.seq <= applied => {
                self.ask(Request::Snapshot).map(drop)
            }
            _ => Ok(()),
        }
    }

    /// Whether a snapshot is to be shared: there is news, and a new one was requested or the newest is old. Nodes wait for their turns, so
    /// that usually one uploads it.
    fn is_due(&self, newest: Option<&SharedSnapshot>, is_asked: bool) -> bool {
        let Some(every) = self.every else { return false };
        let (now, applied) = (self.inner.clock.read(), self.inner.info_position());
        let position = newest.map_or(Seq(0), |newest| newest.seq);
        // One from far in the future was taken by a clock that was wrong.
        let latest = now.0.saturating_add(every.as_millis() as u64);
        let age = newest.filter(|newest| newest.taken_at.0 <= latest).map_or_else(
            || every + self.inner.started.elapsed(),
            |newest| Duration::from_millis(now.0.saturating_sub(newest.taken_at.0)),
        );
        applied > position && (is_asked || age >= every + self.turn(position) * (every / TURNS))
    }

    /// How many present nodes share the snapshot after this position before this node does.
    fn turn(&self, after: Seq) -> u32 {
        let Some(known) = self.inner.replication.get() else { return 0 };
        let known = known.lock();
        let others = known.peers.iter().filter(|peer| peer.is_present);
        turn(others.map(|peer| peer.node.as_str()), &known.node, after)
    }

    /// Takes a snapshot and shares it.
    fn share(&self, port: &NatsSnapshots) -> Result<SharedSnapshot, JournalError> {
        let began = Instant::now();
        self.ask(Request::Snapshot)?;
        let token = Arc::new(());
        let begun = self.ask(|reply| Request::Download(None, Arc::downgrade(&token), reply))?;
        let none = || JournalError::Failed("there is no snapshot that could be shared".to_owned());
        let (id, taken) = begun.ok_or_else(none)?;
        let part = &mut || {
            self.check()?;
            let parts = self.ask(|reply| Request::Parts(id, reply))?;
            Ok((!parts.is_empty()).then(|| parts.concat()))
        };
        let shared = port.share(&taken, part)?;
        let (name, bytes, milliseconds) = (&shared.name, shared.bytes, began.elapsed().as_millis() as u64);
        tracing::info!(name, bytes, milliseconds, seq = shared.seq.0, "shared a snapshot");
        Ok(shared)
    }

    /// Asks the writer, and waits for its answer.
    fn ask<T>(&self, request: impl FnOnce(Reply<T>) -> Request) -> Result<T, JournalError> {
        let (reply, answer) = oneshot::channel();
        let is_sent = self.requests.upgrade().is_some_and(|all| all.blocking_send(request(reply)).is_ok());
        let answer = if is_sent { answer.blocking_recv().ok() } else { None };
        let answer = answer.unwrap_or(Err(SubmitError::Draining));
        answer.map_err(|error| JournalError::Failed(format!("this node: {error}")))
    }

    /// Checks that others may have this node's state: it has not stopped, and there is no doubt that its state is right.
    fn check(&self) -> Result<(), JournalError> {
        if let Status::Failed(why) | Status::Diverged(why) = &*self.inner.status.borrow() {
            return Err(JournalError::Failed(why.clone()));
        }
        match self.inner.replication.get() {
            Some(replication) if replication.lock().is_in_doubt => Err(JournalError::Failed(
                "the state differs from that of another node, and it is open whose is right".to_owned(),
            )),
            _ => Ok(()),
        }
    }
}

/// The turn of a node among others. All nodes that know each other have different turns, and the first one changes.
fn turn<'a>(others: impl Iterator<Item = &'a str>, own: &'a str, after: Seq) -> u32 {
    let nodes: BTreeSet<&str> = others.chain([own]).collect();
    let before = nodes.range(..own).count() as u64;
    ((before + after.0) % nodes.len() as u64) as u32
}

fn latest(snapshot: &SharedSnapshot) -> LatestSnapshot {
    LatestSnapshot { seq: snapshot.seq, taken_at: snapshot.taken_at }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_share_in_turns() {
        let nodes = ["a", "b", "c"];
        for after in 0..10 {
            let mut turns =
                nodes.map(|own| turn(nodes.into_iter().filter(|node| *node != own), own, Seq(after)));
            turns.sort_unstable();
            assert_eq!(turns, [0, 1, 2]);
        }
        assert_ne!(turn(["b"].into_iter(), "a", Seq(4)), turn(["b"].into_iter(), "a", Seq(5)));
        assert_eq!(turn([].into_iter(), "a", Seq(7)), 0);
    }
}
