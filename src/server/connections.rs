//! Connections: accepted while there is room, served by the workers, closed when their time is up.

use super::activity::{Activity, Watched};
use super::door::{Door, Visit};
use super::watch::{Timeouts, Watch};
use super::workers::Workers;
use crate::tls::Tls;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Interval, MissedTickBehavior};

/// The first and the longest pause after a failed accept: there can be no new socket until a file is closed.
const ACCEPT_PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// The connections of one listener.
pub(super) struct Connections<D> {
    workers: Arc<Workers>,
    door: D,
    tls: Option<Arc<Tls>>,
    places: Arc<Semaphore>,
    watch: Watch,
}

/// A connection that has been accepted and not served yet.
type Accepted = (std::net::TcpStream, SocketAddr);

impl<D: Door> Connections<D> {
    /// Serves up to `connections_max` connections, with TLS if there is a certificate.
    pub(super) fn new(
        door: D,
        workers: Arc<Workers>,
        tls: Option<Arc<Tls>>,
        connections_max: usize,
        timeouts: Timeouts,
    ) -> Self {
        let places = Arc::new(Semaphore::new(connections_max.clamp(1, Semaphore::MAX_PERMITS)));
        Self { workers, door, tls, places, watch: Watch::new(timeouts) }
    }

    /// Accepts connections, one more than there is room for. When it is full, the connection that has been idle longest is
    /// closed. Never returns.
    pub(super) async fn accept(&mut self, listener: &TcpListener) {
        let mut ticks = ticks(&self.watch);
        let mut waiting: Option<Accepted> = None;
        let mut pause = ACCEPT_PAUSE.0;
        loop {
            let place = self.places.clone().acquire_owned();
            tokio::select! {
                accepted = accept(listener), if waiting.is_none() => match accepted {
                    Ok(accepted) => {
                        pause = ACCEPT_PAUSE.0;
                        match self.places.clone().try_acquire_owned() {
                            Ok(place) => self.serve(accepted, place),
                            Err(_) => {
                                self.watch.close_longest_idle();
                                waiting = Some(accepted);
                            }
                        }
                    }
                    Err(error) => {
                        tracing::warn!(%error, ?pause, "a connection could not be accepted");
                        tokio::time::sleep(pause).await;
                        pause = (pause * 2).min(ACCEPT_PAUSE.1);
                    }
                },
                Ok(place) = place, if waiting.is_some() => {
                    if let Some(accepted) = waiting.take() {
                        self.serve(accepted, place);
                    }
                }
                _ = ticks.tick(), if !self.watch.is_empty() => {
                    self.watch.sweep();
                    if waiting.is_some() {
                        self.watch.close_longest_idle();
                    }
                }
            }
        }
    }

    /// Lets running requests finish. Returns once no connection is left.
    pub(super) async fn drain(&mut self) {
        let mut ticks = ticks(&self.watch);
        self.watch.close_handshakes();
        let mut done = pin!(self.door.drain());
        loop {
            tokio::select! {
                () = &mut done => return,
                _ = ticks.tick() => self.watch.sweep(),
            }
        }
    }

    fn serve(&mut self, (stream, peer): Accepted, place: OwnedSemaphorePermit) {
        // Small answers must not be delayed. A socket that refuses the option still works.
        let _ = stream.set_nodelay(true);
        let activity = Arc::<Activity>::default();
        let visit = self.door.admit(peer, activity.clone());
        let (tls, watched) = (self.tls.clone(), activity.clone());
        let task = self.workers.spawn(async move {
            if let Err(error) = serve(visit, stream, watched, tls).await {
                tracing::debug!(%error, "a connection broke");
            }
            drop(place);
        });
        self.watch.add(activity, task);
    }
}

/// Accepts the next connection without registering it with this runtime: its worker does that.
async fn accept(listener: &TcpListener) -> io::Result<Accepted> {
    let (stream, peer) = listener.accept().await?;
    Ok((stream.into_std()?, peer))
}

fn ticks(watch: &Watch) -> Interval {
    let mut ticks = tokio::time::interval(watch.interval());
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

/// Serves a new stream, with TLS if there is a certificate.
async fn serve<V: Visit>(
    visit: V,
    stream: std::net::TcpStream,
    activity: Arc<Activity>,
    tls: Option<Arc<Tls>>,
) -> io::Result<()> {
    let stream = Watched::new(TcpStream::from_std(stream)?, activity);
    let Some(tls) = tls else { return visit.serve(stream).await };
    match tls.accept(stream).await {
        Some(stream) => visit.serve(stream).await,
        None => Ok(()),
    }
}
