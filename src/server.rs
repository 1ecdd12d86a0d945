//! The composition root: configuration and listener in, a served engine out, until it is told to stop.
//!
//! The port is bound before recovery begins, so that `/livez` answers at once.

mod unread;
mod workers;

use crate::access::InvalidKey;
use crate::clock::Clock;
use crate::config::Config;
use crate::engine::{Engine, Status};
use crate::http;
use crate::tls::{Tls, TlsError};
use axum::Router;
use axum::extract::ConnectInfo;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tower::ServiceExt;
use unread::Unread;
use workers::Workers;

/// The least buffer that the HTTP parser works with, in bytes.
const HTTP_BUFFER_BYTES_MIN: u64 = 8_192;

/// How long a TLS handshake may take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Rest after a failed accept: mostly too many open files, which a little patience mends.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Why the server ended otherwise than by being told to.
#[derive(Debug, Error)]
pub enum ServerError {
    /// Anybody on the network could change everything.
    #[error(
        "{0} can be reached from elsewhere, and there are no keys: set auth.keys (see `cuckood key new`), \
         listen on 127.0.0.1, or set auth.allow_anonymous = true"
    )]
    NeedsKeys(SocketAddr),
    /// A key's entry is wrong.
    #[error(transparent)]
    Keys(#[from] InvalidKey),
    /// The certificate or its key can't be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The listener is gone.
    #[error("the listener: {0}")]
    Listener(#[from] io::Error),
    /// Threads to serve with can't be had.
    #[error("the threads that serve can't be started: {0}")]
    Workers(io::Error),
    /// The data directory can't be served.
    #[error("{0}")]
    Recovery(String),
    /// Writes were refused from some moment on.
    #[error("storage failed: {0}")]
    Storage(String),
}

/// Serves until `shutdown` resolves, then finishes what is under way, takes a last snapshot and comes back.
///
/// # Errors
/// [`ServerError`]; once it serves, only that the data directory could not be recovered, or that it failed later: then
/// it is read from until `shutdown` all the same.
pub async fn run(
    config: Config,
    listener: TcpListener,
    shutdown: impl Future<Output = ()>,
) -> Result<(), ServerError> {
    let address = listener.local_addr()?;
    if config.auth.keys.is_empty() && !config.auth.allow_anonymous && !address.ip().is_loopback() {
        return Err(ServerError::NeedsKeys(address));
    }
    let tls =
        if config.tls() { Some(Tls::load(&config.server.tls_cert, &config.server.tls_key)?) } else { None };
    let workers = Workers::start().map_err(ServerError::Workers)?;
    let engine = Engine::start(config.engine_options(), Clock::system());
    let router = http::router(engine.clone(), config.http_options())?;
    tracing::info!(%address, tls = tls.is_some(), path = %config.storage.path.display(), "listening");

    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(config.server.header_timeout)
        .max_buf_size(config.server.header_bytes_max.clamp(HTTP_BUFFER_BYTES_MIN, 1 << 24) as usize);
    let connections = Connections {
        workers,
        router,
        tls: tls.map(Arc::new),
        places: Arc::new(Semaphore::new(config.server.connections_max.clamp(1, Semaphore::MAX_PERMITS))),
        graceful: GracefulShutdown::new(),
        http,
    };
    let recovery_fails = async {
        match engine.recovered().await {
            Status::Failed(reason) => reason,
            _ => std::future::pending().await,
        }
    };
    let ended = tokio::select! {
        () = connections.accept(&listener) => Ok(()),
        () = shutdown => Ok(()),
        reason = recovery_fails => Err(ServerError::Recovery(reason)),
    };
    drop(listener);
    if ended.is_ok() {
        tracing::info!("stopping: requests under way are finished");
        if tokio::time::timeout(config.server.drain_timeout, connections.graceful.shutdown()).await.is_err() {
            tracing::warn!("some requests were still under way");
        }
    }
    engine.shutdown().await;
    ended?;
    match engine.status() {
        Status::Failed(reason) => Err(ServerError::Storage(reason)),
        _ => Ok(()),
    }
}

/// What every connection is served with.
struct Connections {
    workers: Workers,
    router: Router,
    tls: Option<Arc<Tls>>,
    places: Arc<Semaphore>,
    graceful: GracefulShutdown,
    http: http1::Builder,
}

impl Connections {
    /// Accepts connections as long as there are places. Never comes back.
    async fn accept(&self, listener: &TcpListener) {
        loop {
            // The semaphore is never closed.
            let Ok(place) = self.places.clone().acquire_owned().await else { return };
            // The worker is to watch the stream, not the runtime that accepts.
            let accepted = listener.accept().await.and_then(|(stream, peer)| Ok((stream.into_std()?, peer)));
            let (stream, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            // Small answers must not wait for more; a socket that refuses serves all the same.
            let _ = stream.set_nodelay(true);
            let (router, http) = (self.router.clone(), self.http.clone());
            let connection = Connection { router, http, peer, watcher: self.graceful.watcher() };
            let tls = self.tls.clone();
            self.workers.spawn(async move {
                if let Err(error) = connection.accepted(stream, tls).await {
                    tracing::debug!(%error, "a connection broke");
                }
                drop(place);
            });
        }
    }
}

/// What one connection is served with.
struct Connection {
    router: Router,
    peer: SocketAddr,
    watcher: Watcher,
    http: http1::Builder,
}

impl Connection {
    /// Serves a stream that was just accepted, in TLS if there is a certificate.
    async fn accepted(self, stream: std::net::TcpStream, tls: Option<Arc<Tls>>) -> io::Result<()> {
        let stream = TcpStream::from_std(stream)?;
        let Some(tls) = tls else { return self.serve(stream).await };
        match tokio::time::timeout(HANDSHAKE_TIMEOUT, tls.accept(stream)).await {
            Ok(Some(stream)) => self.serve(stream).await,
            _ => Ok(()),
        }
    }

    async fn serve<S>(self, stream: S) -> io::Result<()>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let Self { router, peer, watcher, http } = self;
        let service = service_fn(move |request: hyper::Request<Incoming>| {
            let (mut parts, body) = request.into_parts();
            parts.extensions.insert(ConnectInfo(peer));
            let body = Unread::new(body, &parts.headers);
            router.clone().oneshot(hyper::Request::from_parts(parts, axum::body::Body::new(body)))
        });
        watcher.watch(http.serve_connection(TokioIo::new(stream), service)).await.map_err(io::Error::other)
    }
}
