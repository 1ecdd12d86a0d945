//! The loop of a listener: accepts connections up to a limit, passes them to the workers, and sweeps them.
//!
//! A sweep checks all connections several times a second, because a timer per request would cost more than many requests. If all places
//! are taken, `clients.rs` closes others for the new ones. Each freed place wakes the loop.

use super::clients::{Clients, ConnectionPlace, ConnectionTimeouts, OpenConnection};
use super::http::Http;
use super::workers::Workers;
use crate::budget::Budget;
use crate::resp;
use crate::socket::{Peer, Phase, Socket, Vitals};
use crate::tls::{Inside, Tls};
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Interval, MissedTickBehavior};

/// Pause after a failed accept: no socket can be opened until a file is closed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(250);

/// Maximum time between two sweeps.
const SWEEP_INTERVAL_MAX: Duration = Duration::from_millis(250);

/// Maximum number of accepted connections that wait for a place. Further ones wait in the system's queue.
pub(super) const WAITING_MAX: usize = 16;

/// The protocol of a listener.
#[derive(Clone)]
pub(super) enum ListenerProtocol {
    Http(Http),
    Resp(resp::Service),
}

/// A connection that has been accepted and not served yet.
type Accepted = (std::net::TcpStream, SocketAddr);

/// The protocol of a listener's connections, and the memory of unfinished heads, which all listeners share.
#[derive(Clone)]
pub(super) struct ProtocolContext {
    pub(super) protocol: ListenerProtocol,
    pub(super) tls: Option<Arc<Tls>>,
    pub(super) heads: Arc<Budget>,
}

/// The connections of one listener.
pub(super) struct Connections {
    protocol_context: ProtocolContext,
    workers: Arc<Workers>,
    timeouts: ConnectionTimeouts,
    max: u32,
    free: Arc<Semaphore>,
    clients: Clients,
    heads_refused: u64,
    is_draining: bool,
}

impl Connections {
    /// Serves up to `max` connections, with TLS if there is a certificate.
    pub(super) fn new(
        protocol_context: ProtocolContext,
        workers: Arc<Workers>,
        max: usize,
        timeouts: ConnectionTimeouts,
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
            is_draining: false,
        }
    }

    /// Accepts connections up to the limit, and a few more that wait for a place. Never returns.
    pub(super) async fn accept(&mut self, listener: &TcpListener) {
        let mut ticks = self.ticks();
        let mut waiting: VecDeque<Accepted> = VecDeque::new();
        let mut retry_at: Option<Instant> = None;
        loop {
            let place = self.free.clone().acquire_owned();
            tokio::select! {
                accepted = listener.accept(), if waiting.len() < WAITING_MAX => {
                    match accepted.and_then(unregister) {
                        Ok(accepted) => waiting.push_back(accepted),
                        Err(error) if is_of_client(&error) => {}
                        Err(error) => {
                            tracing::warn!(%error, pause = ?ACCEPT_PAUSE, "failed to accept a connection; pausing");
                            tokio::time::sleep(ACCEPT_PAUSE).await;
                        }
                    }
                }
                Ok(place) = place, if !waiting.is_empty() => {
                    if let Some(accepted) = waiting.pop_front() {
                        self.serve(accepted, place);
                    }
                }
                _ = ticks.tick(), if !self.clients.is_empty() => self.sweep(Instant::now()),
                () = at(retry_at) => {}
            }
            while !waiting.is_empty()
                && let Ok(place) = self.free.clone().try_acquire_owned()
                && let Some(accepted) = waiting.pop_front()
            {
                self.serve(accepted, place);
            }
            retry_at = match waiting.len() {
                0 => None,
                wanted => self
                    .clients
                    .make_room(wanted, self.max as usize, Instant::now()),
            };
        }
    }

    /// Lets running requests finish. Returns once no connection is left.
    pub(super) async fn drain(&mut self) {
        self.is_draining = true;
        self.clients.drain();
        let mut ticks = self.ticks();
        let free = self.free.clone();
        loop {
            tokio::select! {
                _ = free.acquire_many(self.max) => return,
                _ = ticks.tick() => self.sweep(Instant::now()),
            }
        }
    }

    fn ticks(&self) -> Interval {
        let ConnectionTimeouts {
            header,
            idle,
            write,
        } = self.timeouts;
        let interval =
            (header.min(idle).min(write) / 8).clamp(Duration::from_millis(10), SWEEP_INTERVAL_MAX);
        let mut ticks = tokio::time::interval(interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks
    }

    fn serve(&mut self, accepted: Accepted, place: OwnedSemaphorePermit) {
        // Small responses must not be delayed. A socket that rejects the option still works.
        let _ = accepted.0.set_nodelay(true);
        let vitals = Arc::<Vitals>::default();
        let connection = serve(self.protocol_context.clone(), accepted, vitals.clone());
        let place = ConnectionPlace::new(place);
        let freed = Arc::downgrade(&place);
        let task = self.workers.spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "connection broke");
            }
            drop(place);
        });
        self.clients
            .add(OpenConnection::new(vitals, task, freed, Instant::now()));
    }

    /// Closes overdue connections and drops ended ones.
    fn sweep(&mut self, now: Instant) {
        let refused = self.protocol_context.heads.refused.get();
        let is_tight = std::mem::replace(&mut self.heads_refused, refused) != refused;
        self.clients
            .sweep(&self.timeouts, self.is_draining, is_tight, now);
    }
}

/// Whether a client caused the error. If so, accepting continues without a pause, because other connections are not affected.
fn is_of_client(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset
    )
}

/// Resolves at this time, or never.
async fn at(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time.into()).await,
        None => std::future::pending().await,
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
) -> io::Result<()> {
    let ProtocolContext {
        protocol,
        tls,
        heads,
    } = protocol_context;
    let stream = TcpStream::from_std(stream)?;
    if tls.is_none() {
        vitals.enter(Phase::New);
    }
    // Until the client sends something, a connection needs neither buffers nor a TLS session.
    tokio::select! {
        biased;
        ready = stream.readable() => ready?,
        () = vitals.draining() => return Ok(()),
    }
    let (counts_heads, inside) = match &protocol {
        ListenerProtocol::Http(_) => (true, Inside::Http),
        ListenerProtocol::Resp(_) => (false, Inside::Other),
    };
    let socket = Socket::new(stream, vitals.clone(), heads, counts_heads);
    match tls {
        None => serve_protocol(protocol, socket, peer, vitals).await,
        Some(tls) => match Box::pin(tls.accept(socket, inside)).await {
            Some(stream) => serve_protocol(protocol, stream, peer, vitals).await,
            None => Ok(()),
        },
    }
}

async fn serve_protocol(
    protocol: ListenerProtocol,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    peer: SocketAddr,
    vitals: Arc<Vitals>,
) -> io::Result<()> {
    vitals.enter(Phase::New);
    match protocol {
        ListenerProtocol::Http(http) => {
            Box::pin(http.serve(
                stream,
                Peer {
                    address: peer,
                    vitals,
                },
            ))
            .await
        }
        ListenerProtocol::Resp(service) => {
            Box::pin(service.serve(stream, Some(peer), &vitals)).await
        }
    }
}
