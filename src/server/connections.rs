//! The connections of one listener: accepted up to a limit, observed, closed after their timeouts.
//!
//! One sweep several times a second checks all connections: a timer for every request would cost more than many requests do. When all
//! connections are taken, clients without a finished request are closed first, so that strangers can't block the listener.

use super::http::Http;
use super::workers::Workers;
use crate::budget::Budget;
use crate::resp;
use crate::socket::{Moment, Phase, Socket, Vitals};
use crate::tls::Tls;
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::AbortHandle;
use tokio::time::{Interval, MissedTickBehavior};

/// Pause after a failed accept: no socket can be opened until a file is closed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(250);

/// Maximum time between two sweeps.
const SWEEP_INTERVAL_MAX: Duration = Duration::from_millis(250);

/// Bytes of a response that a client must accept within the write timeout.
const ACCEPTED_BYTES_MIN: u64 = 32 << 10;

/// Time in which a client must accept some of its response while the service drains.
const DRAIN_WRITE_TIMEOUT: Duration = Duration::from_secs(3);

/// Maximum duration of a TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Time for a rejected client to read its response and close its side.
const CLOSING_TIMEOUT: Duration = Duration::from_secs(2);

/// Minimum age at which a client without a finished request is closed for a new one: time for its first request.
const UNPROVEN_AGE_MIN: Duration = Duration::from_millis(250);

/// Minimum idle time before a connection is closed for a new client: its next request may be in flight.
const REST_MIN: Duration = Duration::from_secs(1);

/// Clients with a finished request are only closed while strangers hold less than this fraction of the connections.
const UNPROVEN_FRACTION: usize = 8;

/// Timeouts of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timeouts {
    /// For the head of a request to arrive.
    pub(super) header: Duration,
    /// For the next request to start.
    pub(super) idle: Duration,
    /// For the client to accept the next [`ACCEPTED_BYTES_MIN`] bytes.
    pub(super) write: Duration,
}

/// The protocol of a listener.
#[derive(Clone)]
pub(super) enum Protocol {
    Http(Http),
    Resp(resp::Service),
}

/// The last observation of a connection.
struct Open {
    vitals: Arc<Vitals>,
    task: AbortHandle,
    last: Moment,
    /// When it was first observed in this phase.
    phase_since: Instant,
    /// When it was first observed in this phase with this number of bytes written.
    rest_since: Instant,
    /// When it was first observed blocked, and the bytes written by then. Starts again whenever the client has accepted enough.
    blocked_since: Option<(Instant, u64)>,
}

impl Open {
    fn new(vitals: Arc<Vitals>, task: AbortHandle, now: Instant) -> Self {
        let last = vitals.moment();
        Self { vitals, task, last, phase_since: now, rest_since: now, blocked_since: None }
    }

    fn observe(&mut self, now: Instant) {
        let moment = self.vitals.moment();
        let last = std::mem::replace(&mut self.last, moment);
        if moment.changes != last.changes {
            self.phase_since = now;
        }
        if moment.changes != last.changes || moment.bytes_written != last.bytes_written {
            self.rest_since = now;
        }
        self.blocked_since = moment.is_blocked.then(|| match self.blocked_since {
            Some((since, before)) if moment.bytes_written - before < ACCEPTED_BYTES_MIN => (since, before),
            _ => (now, moment.bytes_written),
        });
    }

    fn is_overdue(&self, timeouts: &Timeouts, is_draining: bool, now: Instant) -> bool {
        let waited = |since: Instant| now.duration_since(since);
        if self.blocked_since.is_some_and(|(since, _)| waited(since) >= timeouts.write)
            || is_draining && self.last.is_blocked && waited(self.rest_since) >= DRAIN_WRITE_TIMEOUT
        {
            return true;
        }
        match self.last.phase {
            Phase::Handshake => is_draining || waited(self.phase_since) >= HANDSHAKE_TIMEOUT,
            Phase::New | Phase::Head => waited(self.phase_since) >= timeouts.header,
            // While a response is still being written, the client sometimes accepts some of it.
            Phase::Idle => waited(self.rest_since) >= timeouts.idle,
            // The code that reads the body or computes the response has its own timeouts.
            Phase::Busy => false,
            Phase::Closing => waited(self.phase_since) >= CLOSING_TIMEOUT,
        }
    }

    /// Returns the time since which no request has been in progress; `None` if one is.
    fn resting_since(&self) -> Option<Instant> {
        let now = self.vitals.moment();
        let is_resting = !matches!(now.phase, Phase::Busy | Phase::Closing) && !now.is_blocked;
        (is_resting && now == self.last).then_some(self.rest_since)
    }
}

/// A connection that has been accepted and not served yet.
type Accepted = (std::net::TcpStream, SocketAddr);

/// The protocol of a listener's connections, and the memory of unfinished heads, which all listeners share.
#[derive(Clone)]
pub(super) struct ProtocolContext {
    pub(super) protocol: Protocol,
    pub(super) tls: Option<Arc<Tls>>,
    pub(super) heads: Arc<Budget>,
}

/// The connections of one listener.
pub(super) struct Connections {
    protocol_context: ProtocolContext,
    workers: Arc<Workers>,
    timeouts: Timeouts,
    max: u32,
    free: Arc<Semaphore>,
    clients: Clients,
    heads_refused: u64,
    /// Each connection has a receiver.
    draining: watch::Sender<bool>,
}

/// The open connections of one listener.
#[derive(Default)]
struct Clients {
    /// Clients without a finished request, in the order of their arrival.
    unproven: VecDeque<Open>,
    /// The other clients.
    proven: Vec<Open>,
    /// The connection that was last closed for a new one.
    closed: Option<AbortHandle>,
}

impl Connections {
    /// Serves up to `max` connections, with TLS if there is a certificate.
    pub(super) fn new(
        protocol_context: ProtocolContext,
        workers: Arc<Workers>,
        max: usize,
        timeouts: Timeouts,
    ) -> Self {
        let max = u32::try_from(max.clamp(1, Semaphore::MAX_PERMITS)).unwrap_or(u32::MAX);
        Self {
            protocol_context,
            workers,
            timeouts,
            max,
            free: Arc::new(Semaphore::new(max as usize)),
            clients: Clients::default(),
            heads_refused: 0,
            draining: watch::Sender::new(false),
        }
    }

    /// Accepts connections up to the limit, and one more. Never returns.
    pub(super) async fn accept(&mut self, listener: &TcpListener) {
        let mut ticks = self.ticks();
        let mut waiting: Option<Accepted> = None;
        loop {
            let place = self.free.clone().acquire_owned();
            tokio::select! {
                accepted = listener.accept(), if waiting.is_none() => match accepted.and_then(unregister) {
                    Ok(accepted) => match self.free.clone().try_acquire_owned() {
                        Ok(place) => self.serve(accepted, place),
                        Err(_) => {
                            self.clients.close_idle(self.max, Instant::now());
                            waiting = Some(accepted);
                        }
                    },
                    Err(error) => {
                        tracing::warn!(%error, pause = ?ACCEPT_PAUSE, "failed to accept a connection; pausing");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
                Ok(place) = place, if waiting.is_some() => {
                    if let Some(accepted) = waiting.take() {
                        self.serve(accepted, place);
                    }
                }
                _ = ticks.tick(), if !self.clients.is_empty() => {
                    self.sweep(Instant::now());
                    if waiting.is_some() {
                        self.clients.close_idle(self.max, Instant::now());
                    }
                }
            }
        }
    }

    /// Lets running requests finish. Returns once no connection is left.
    pub(super) async fn drain(&mut self) {
        self.draining.send_replace(true);
        let (mut ticks, free) = (self.ticks(), self.free.clone());
        loop {
            tokio::select! {
                _ = free.acquire_many(self.max) => return,
                _ = ticks.tick() => self.sweep(Instant::now()),
            }
        }
    }

    fn ticks(&self) -> Interval {
        let Timeouts { header, idle, write } = self.timeouts;
        let interval = (header.min(idle).min(write) / 8).clamp(Duration::from_millis(10), SWEEP_INTERVAL_MAX);
        let mut ticks = tokio::time::interval(interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks
    }

    fn serve(&mut self, accepted: Accepted, place: OwnedSemaphorePermit) {
        // Small responses must not be delayed. A socket that rejects the option still works.
        let _ = accepted.0.set_nodelay(true);
        let vitals = Arc::<Vitals>::default();
        let connection =
            serve(self.protocol_context.clone(), accepted, vitals.clone(), self.draining.subscribe());
        let task = self.workers.spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "connection broke");
            }
            drop(place);
        });
        self.clients.unproven.push_back(Open::new(vitals, task, Instant::now()));
    }

    /// Closes overdue connections and drops ended ones. If heads have used up their budget, closes the strangers that hold it.
    fn sweep(&mut self, now: Instant) {
        let refused = self.protocol_context.heads.refused.get();
        let is_tight = std::mem::replace(&mut self.heads_refused, refused) != refused;
        let (timeouts, is_draining) = (&self.timeouts, *self.draining.borrow());
        let stays = |open: &mut Open, is_unproven: bool| {
            if open.task.is_finished() {
                return false;
            }
            open.observe(now);
            let hoards = is_tight
                && is_unproven
                && open.vitals.holds_head.load(Relaxed)
                && now.duration_since(open.phase_since) >= UNPROVEN_AGE_MIN;
            let is_overdue = hoards || open.is_overdue(timeouts, is_draining, now);
            if is_overdue {
                tracing::debug!(last = ?open.last, "connection timed out");
                open.task.abort();
            }
            !is_overdue
        };
        self.clients.proven.retain_mut(|open| stays(open, false));
        self.clients.unproven.retain_mut(|open| stays(open, true));
    }
}

impl Clients {
    fn is_empty(&self) -> bool {
        self.unproven.is_empty() && self.proven.is_empty()
    }

    /// Closes one of `max` connections for a new one: the oldest without a finished request, otherwise the one that has rested longest.
    fn close_idle(&mut self, max: u32, now: Instant) {
        // The last one's place is about to be free.
        if self.closed.as_ref().is_some_and(|task| !task.is_finished()) {
            return;
        }
        self.closed = self.take_idle(max, now).map(|open| open.task);
        self.closed.iter().for_each(AbortHandle::abort);
    }

    fn take_idle(&mut self, max: u32, now: Instant) -> Option<Open> {
        while let Some(oldest) = self.unproven.pop_front() {
            // A request in progress is finished; afterwards its client is proven.
            if oldest.vitals.has_finished.load(Relaxed) || oldest.vitals.phase() == Phase::Busy {
                self.proven.push(oldest);
            } else if now.duration_since(oldest.phase_since) >= UNPROVEN_AGE_MIN {
                return Some(oldest);
            } else {
                self.unproven.push_front(oldest);
                break;
            }
        }
        if self.unproven.len() * UNPROVEN_FRACTION >= max as usize {
            return None;
        }
        let resting = self.proven.iter().enumerate();
        let (since, at) = resting.filter_map(|(at, open)| Some((open.resting_since()?, at))).min()?;
        // The others keep their order: of those observed in the same sweep, the oldest is closed first.
        (now.duration_since(since) >= REST_MIN).then(|| self.proven.remove(at))
    }
}

/// Removes a connection from this runtime: its worker registers it.
fn unregister((stream, peer): (TcpStream, SocketAddr)) -> io::Result<Accepted> {
    Ok((stream.into_std()?, peer))
}

/// Serves a connection until its end.
async fn serve(
    protocol_context: ProtocolContext,
    (stream, peer): Accepted,
    vitals: Arc<Vitals>,
    mut draining: watch::Receiver<bool>,
) -> io::Result<()> {
    let ProtocolContext { protocol, tls, heads } = protocol_context;
    let stream = TcpStream::from_std(stream)?;
    if tls.is_none() {
        vitals.enter(Phase::New);
    }
    // Until the client sends something, a connection needs neither buffers nor a TLS session.
    tokio::select! {
        biased;
        ready = stream.readable() => ready?,
        _ = draining.wait_for(|is_draining| *is_draining) => return Ok(()),
    }
    let counts_heads = matches!(protocol, Protocol::Http(_));
    let socket = Socket::new(stream, vitals.clone(), heads, counts_heads);
    match tls {
        None => serve_protocol(protocol, socket, peer, vitals, draining).await,
        Some(tls) => match Box::pin(tls.accept(socket)).await {
            Some(stream) => serve_protocol(protocol, stream, peer, vitals, draining).await,
            None => Ok(()),
        },
    }
}

async fn serve_protocol(
    protocol: Protocol,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    peer: SocketAddr,
    vitals: Arc<Vitals>,
    draining: watch::Receiver<bool>,
) -> io::Result<()> {
    vitals.enter(Phase::New);
    match protocol {
        Protocol::Http(http) => Box::pin(http.serve(stream, peer, vitals, draining)).await,
        Protocol::Resp(service) => Box::pin(service.serve(stream, Some(peer), &vitals, draining)).await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::runtime::Runtime;

    const TIMEOUTS: Timeouts = Timeouts {
        header: Duration::from_secs(30),
        idle: Duration::from_secs(75),
        write: Duration::from_secs(20),
    };

    /// A connection in this phase whose task never ends.
    fn open(runtime: &Runtime, phase: Phase, since: Instant) -> Open {
        let vitals = Arc::<Vitals>::default();
        vitals.enter(phase);
        let task = runtime.spawn(std::future::pending::<()>()).abort_handle();
        Open::new(vitals, task, since)
    }

    /// Checks once a second, after `step`. Returns the second in which the connection was overdue, if that was within an hour.
    fn overdue_after(phase: Phase, is_draining: bool, mut step: impl FnMut(u64, &Vitals)) -> Option<u64> {
        let (runtime, start) = (Runtime::new().unwrap(), Instant::now());
        let mut open = open(&runtime, phase, start);
        (1..=3_600).find(|&second| {
            step(second, &open.vitals);
            let now = start + Duration::from_secs(second);
            open.observe(now);
            open.is_overdue(&TIMEOUTS, is_draining, now)
        })
    }

    #[test]
    fn each_phase_has_its_timeout() {
        for (phase, wanted) in [
            (Phase::Handshake, Some(10)),
            (Phase::New, Some(30)),
            (Phase::Head, Some(30)),
            (Phase::Idle, Some(75)),
            (Phase::Busy, None),
            (Phase::Closing, Some(2)),
        ] {
            assert_eq!(overdue_after(phase, false, |_, _| ()), wanted, "{phase:?}");
        }
    }

    #[test]
    fn each_request_restarts_timeout() {
        let request = |second, vitals: &Vitals| {
            if second % 70 == 0 && second <= 700 {
                [Phase::Head, Phase::Busy, Phase::Idle].into_iter().for_each(|phase| vitals.enter(phase));
            }
        };
        assert_eq!(overdue_after(Phase::Idle, false, request), Some(775));
    }

    #[test]
    fn response_must_be_accepted_at_minimum_rate() {
        let at_rate = |bytes_a_second: usize, is_draining| {
            overdue_after(Phase::Idle, is_draining, |_, vitals| vitals.note_progress(bytes_a_second, true))
        };
        let least = ACCEPTED_BYTES_MIN as usize / 20;
        assert_eq!(at_rate(0, false), Some(21));
        assert_eq!(at_rate(1, false), Some(21));
        assert_eq!(at_rate(least - 100, false), Some(21));
        assert_eq!(at_rate(least + 100, false), None);
        assert_eq!(at_rate(1 << 30, false), None);
        assert_eq!(at_rate(0, true), Some(3));
        assert_eq!(at_rate(least + 100, true), None);
    }

    #[test]
    fn long_response_is_not_idleness() {
        let written = |second, vitals: &Vitals| {
            if second <= 500 {
                vitals.note_progress(1, false);
            }
        };
        assert_eq!(overdue_after(Phase::Idle, false, written), Some(575));
    }

    #[test]
    fn next_connection_is_closed_once_last_one_ended() {
        // Its tasks run in `block_on` only.
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let start = Instant::now();
        let mut clients = Clients::default();
        clients.proven.extend((0..2).map(|_| open(&runtime, Phase::Idle, start)));
        let now = start + REST_MIN;
        for (left, what) in [(1, "none was closed"), (1, "a second one was closed while the first ends")] {
            clients.close_idle(2, now);
            assert_eq!(clients.proven.len(), left, "{what}");
        }
        runtime.block_on(tokio::task::yield_now());
        clients.close_idle(2, now);
        assert!(clients.is_empty(), "the second one stays although the first ended");
    }
}
