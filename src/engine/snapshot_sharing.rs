//! The thread of a node that shares snapshots with the others: it looks now and then whether a new one is due, and uploads this node's if
//! no other node does. It asks the writer for everything, as a backup does.

use super::request::{Reply, Request};
use super::{Inner, LatestSnapshot, Status, SubmitError};
use crate::domain::Seq;
use crate::journal::{JournalError, NatsSnapshots, SharedSnapshot};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::WeakSender;
use tokio::sync::oneshot;

/// It looks this many times while a snapshot becomes due.
const LOOKS: u32 = 8;

/// The shortest and the longest pause between two looks.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// What the thread works with.
struct Sharer {
    inner: Arc<Inner>,
    requests: WeakSender<Request>,
    /// How old the newest shared snapshot may be; `None` if this node shares none.
    every: Option<Duration>,
}

/// Starts the thread, if this node is one of several. It ends once [`Inner::share`] is empty again and no server is being waited for.
pub(super) fn start(inner: &Arc<Inner>, requests: &WeakSender<Request>) {
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
        let newest = self.look_up(port)?;
        self.keep_up_with(newest.as_ref())?;
        if !self.is_due(newest.as_ref(), is_asked) || !port.claim()? {
            return Ok(());
        }
        let shared = self.share_if_due(port, is_asked);
        port.release();
        let mut sharing = self.inner.sharing.lock();
        match &shared {
            Ok(None) => {}
            Ok(Some(newest)) => (sharing.newest, sharing.shared) = (Some(latest(newest)), sharing.shared + 1),
            Err(_) => sharing.failed += 1,
        }
        shared.map(drop)
    }

    /// Looks up the newest snapshot that is shared, and publishes it. One whose archive is gone does not count.
    fn look_up(&self, port: &mut NatsSnapshots) -> Result<Option<SharedSnapshot>, JournalError> {
        let newest = match port.list()?.into_iter().next() {
            Some(newest) if port.has(&newest)? => Some(newest),
            Some(newest) => {
                tracing::warn!(newest.name, "archive of the newest shared snapshot is gone");
                None
            }
            None => None,
        };
        self.inner.sharing.lock().newest = newest.as_ref().map(latest);
        Ok(newest)
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

    /// Whether a snapshot is to be shared: there is news, and the newest is old or a new one was requested.
    fn is_due(&self, newest: Option<&SharedSnapshot>, is_asked: bool) -> bool {
        let Some(every) = self.every else { return false };
        let (now, applied) = (self.inner.clock.read(), self.inner.info_position());
        let is_old =
            |newest: &SharedSnapshot| newest.taken_at.0.saturating_add(every.as_millis() as u64) <= now.0;
        applied > newest.map_or(Seq(0), |newest| newest.seq) && (is_asked || newest.is_none_or(is_old))
    }

    /// Shares a snapshot, unless another node has done it since this one looked.
    fn share_if_due(
        &self,
        port: &mut NatsSnapshots,
        is_asked: bool,
    ) -> Result<Option<SharedSnapshot>, JournalError> {
        if !self.is_due(self.look_up(port)?.as_ref(), is_asked) {
            return Ok(None);
        }
        let began = Instant::now();
        self.ask(Request::Snapshot)?;
        let token = Arc::new(());
        let (id, taken) = self.ask(|reply| Request::ShareSnapshot(Arc::downgrade(&token), reply))?;
        let part = &mut || {
            let parts = self.ask(|reply| Request::Parts(id, reply))?;
            Ok(parts.into_iter().next())
        };
        let shared = port.share(&taken, part, &|| self.check())?;
        let (name, bytes, milliseconds) = (&shared.name, shared.bytes, began.elapsed().as_millis() as u64);
        tracing::info!(name, bytes, milliseconds, seq = shared.seq.0, "shared a snapshot");
        Ok(Some(shared))
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

fn latest(snapshot: &SharedSnapshot) -> LatestSnapshot {
    LatestSnapshot { seq: snapshot.seq, taken_at: snapshot.taken_at }
}
