//! Connections: accepted while there is room, served by the workers, closed when their time is up.

use super::activity::{Activity, Phase, Watched};
use super::refusals::Refusals;
use super::unread::Unread;
use super::watch::{Timeouts, Watch};
use super::workers::Workers;
use crate::config;
use crate::tls::Tls;
use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::ConnectInfo;
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Interval, MissedTickBehavior};
use tower::ServiceExt;

/// The smallest buffer of the HTTP parser, and the largest that it is given, in bytes.
const HTTP_BUFFER_BYTES: (usize, usize) = (8 << 10, 16 << 20);

/// The first and the longest pause after a failed accept: there can be no new socket until a file is closed.
const ACCEPT_PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// Everything that a connection needs to be served.
pub(super) struct Connections {
    workers: Workers,
    router: Router,
    tls: Option<Arc<Tls>>,
    places: Arc<Semaphore>,
    graceful: GracefulShutdown,
    http: http1::Builder,
    head_bytes_max: usize,
    watch: Watch,
}

/// A connection that has been accepted and not served yet.
type Accepted = (std::net::TcpStream, SocketAddr);

impl Connections {
    /// Serves up to `connections_max` connections, with these settings.
    pub(super) fn new(
        server: &config::Server,
        connections_max: usize,
        workers: Workers,
        router: Router,
        tls: Option<Arc<Tls>>,
    ) -> Self {
        let head_bytes_max = usize::try_from(server.header_bytes_max).unwrap_or(usize::MAX);
        let (least, most) = HTTP_BUFFER_BYTES;
        let mut http = http1::Builder::new();
        // Our sweep replaces hyper's timer, which would be set again for every request.
        http.header_read_timeout(None)
            .max_header_size(head_bytes_max)
            .max_buf_size(head_bytes_max.clamp(least, most));
        let timeouts = Timeouts {
            header: server.header_timeout,
            idle: server.idle_timeout,
            write: server.write_timeout,
        };
        Self {
            workers,
            router,
            tls,
            places: Arc::new(Semaphore::new(connections_max.clamp(1, Semaphore::MAX_PERMITS))),
            graceful: GracefulShutdown::new(),
            http,
            head_bytes_max,
            watch: Watch::new(timeouts),
        }
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
        let mut done = pin!(std::mem::take(&mut self.graceful).shutdown());
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
        let connection = Connection {
            router: self.router.clone(),
            peer,
            watcher: self.graceful.watcher(),
            http: self.http.clone(),
            head_bytes_max: self.head_bytes_max,
            activity: activity.clone(),
        };
        let tls = self.tls.clone();
        let task = self.workers.spawn(async move {
            if let Err(error) = connection.accepted(stream, tls).await {
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

/// Everything that one connection needs to be served.
struct Connection {
    router: Router,
    peer: SocketAddr,
    watcher: Watcher,
    http: http1::Builder,
    head_bytes_max: usize,
    activity: Arc<Activity>,
}

impl Connection {
    /// Serves a new stream, with TLS if there is a certificate.
    async fn accepted(self, stream: std::net::TcpStream, tls: Option<Arc<Tls>>) -> io::Result<()> {
        let stream = Watched::new(TcpStream::from_std(stream)?, self.activity.clone());
        let Some(tls) = tls else { return self.serve(stream).await };
        match tls.accept(stream).await {
            Some(stream) => self.serve(stream).await,
            None => Ok(()),
        }
    }

    async fn serve<S>(self, stream: S) -> io::Result<()>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let Self { router, peer, watcher, http, head_bytes_max, activity } = self;
        activity.enter(Phase::New);
        let stream = Refusals::new(stream, activity.clone(), head_bytes_max);
        let service = service_fn(move |request: hyper::Request<Incoming>| {
            activity.enter(Phase::Busy);
            let (mut parts, body) = request.into_parts();
            parts.extensions.insert(ConnectInfo(peer));
            let body = Unread::new(body, &parts.headers, activity.clone());
            let answer = router.clone().oneshot(hyper::Request::from_parts(parts, Body::new(body)));
            let activity = activity.clone();
            async move { Ok::<_, std::convert::Infallible>(answered(answer.await?, activity)) }
        });
        watcher.watch(http.serve_connection(TokioIo::new(stream), service)).await.map_err(io::Error::other)
    }
}

/// Records that the handler is done: now if the whole answer is ready, otherwise at the end of its body.
fn answered(answer: hyper::Response<Body>, activity: Arc<Activity>) -> hyper::Response<Body> {
    if answer.body().size_hint().exact().is_some() {
        activity.enter(Phase::Idle);
        return answer;
    }
    answer.map(|body| Body::new(Streamed { body, activity }))
}

/// An answer's body that is produced while it is sent.
struct Streamed {
    body: Body,
    activity: Arc<Activity>,
}

impl HttpBody for Streamed {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Streamed {
    fn drop(&mut self) {
        self.activity.enter(Phase::Idle);
    }
}
