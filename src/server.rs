//! The composition root: configuration and listener in, a served engine out, until it is told to stop.
//!
//! The port is bound before recovery begins, so that `/livez` answers at once.

mod activity;
mod connections;
mod descriptors;
pub mod heap;
mod refusals;
mod rereading;
mod unread;
mod watch;
mod workers;

pub use descriptors::TooFewDescriptors;
pub use rereading::Rereads;

use crate::access::InvalidKey;
use crate::clock::Clock;
use crate::config::Config;
use crate::engine::{Engine, Status};
use crate::http::{self, Control};
use crate::tls::{Tls, TlsError};
use connections::Connections;
use rereading::Rereading;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use tokio::net::TcpListener;
use workers::Workers;

/// Uploads may go on for the time of draining by this, so that what is left suffices to answer them.
const UPLOADS_SHARE: u32 = 4;

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
    /// Storage, and a handful of connections, need more files than may be open.
    #[error(transparent)]
    Descriptors(#[from] TooFewDescriptors),
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
    rereads: Rereads,
    shutdown: impl Future<Output = ()>,
) -> Result<(), ServerError> {
    let address = listener.local_addr()?;
    if config.auth.keys.is_empty() && !config.auth.allow_anonymous && !address.ip().is_loopback() {
        return Err(ServerError::NeedsKeys(address));
    }
    let tls =
        if config.tls() { Some(Tls::new(&config.server.tls_cert, &config.server.tls_key)?) } else { None };
    let tls = tls.map(Arc::new);
    let workers = Workers::start().map_err(ServerError::Workers)?;
    // Before storage opens anything: what it will need is kept for it.
    let connections_max = descriptors::connections_max(config.server.connections_max)?;
    let engine = Engine::start(config.engine_options(), Clock::system(config.clock.limits()));
    let (router, control) = http::service(engine.clone(), config.http_options())?;
    tracing::info!(%address, tls = tls.is_some(), path = %config.storage.path.display(), "listening");
    let rereading = Rereading {
        rereads,
        control: control.clone(),
        engine: engine.clone(),
        tls: tls.clone(),
        files: (config.server.tls_cert.clone(), config.server.tls_key.clone()),
    };
    let mut connections = Connections::new(&config.server, connections_max, workers, router, tls);
    let stop = async {
        shutdown.await;
        control.announce_stop();
        // Whoever sends requests here has to see that first.
        let delay = config.server.drain_delay;
        tracing::info!(?delay, "stopping: the listener closes after the delay");
        if engine.is_ready() {
            tokio::time::sleep(delay).await;
        }
    };
    let ended = tokio::select! {
        () = connections.accept(&listener) => Ok(()),
        () = stop => Ok(()),
        () = rereading.run() => Ok(()),
        reason = failed_recovery(&engine) => Err(ServerError::Recovery(reason)),
    };
    drop(listener);
    if ended.is_ok() {
        tracing::info!("stopping: requests under way are finished");
        drain(&mut connections, &control, config.server.drain_timeout).await;
    }
    engine.shutdown().await;
    ended?;
    match engine.status() {
        Status::Failed(reason) => Err(ServerError::Storage(reason)),
        _ => Ok(()),
    }
}

/// Why the data directory could not be recovered; waits for ever if it could.
async fn failed_recovery(engine: &Engine) -> String {
    match engine.recovered().await {
        Status::Failed(reason) => reason,
        _ => std::future::pending().await,
    }
}

/// Lets requests under way come to their end. Uploads may be of any length: those that need more than their share of the time
/// are told to continue later.
async fn drain(connections: &mut Connections, control: &Control, patience: Duration) {
    let uploads_end = async {
        tokio::time::sleep(patience / UPLOADS_SHARE).await;
        control.end_uploads();
        std::future::pending().await
    };
    tokio::select! {
        () = connections.drain() => {}
        () = uploads_end => {}
        () = tokio::time::sleep(patience) => tracing::warn!("some requests were still under way"),
    }
}
