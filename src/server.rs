//! The composition root: turns a configuration and a listener into a running service, until it is told to stop.
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

use crate::access::{Access, InvalidKey};
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

/// Uploads may use this fraction of the drain time, so that enough is left to answer them.
const UPLOADS_SHARE: u32 = 4;

/// Why the server could not start, or stopped by itself.
#[derive(Debug, Error)]
pub enum ServerError {
    /// The service can be reached from the network, and has no keys.
    #[error(
        "{0} can be reached from other machines, and there are no keys: set auth.keys (see `cuckood key new`), \
         listen on 127.0.0.1, or set auth.allow_anonymous = true"
    )]
    NeedsKeys(SocketAddr),
    /// An entry of `auth.keys` is invalid.
    #[error(transparent)]
    Keys(#[from] InvalidKey),
    /// The certificate or its key can't be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The listener has failed.
    #[error("the listener: {0}")]
    Listener(#[from] io::Error),
    /// The limit on open files is too low for storage and a few connections.
    #[error(transparent)]
    Descriptors(#[from] TooFewDescriptors),
    /// The worker threads can't be started.
    #[error("the worker threads can't be started: {0}")]
    Workers(io::Error),
    /// The data directory can't be served.
    #[error("{0}")]
    Recovery(String),
    /// Storage has failed, and writes were refused from then on.
    #[error("storage failed: {0}")]
    Storage(String),
}

/// Serves until `shutdown` resolves. Then finishes running requests, takes a last snapshot and returns.
///
/// # Errors
/// [`ServerError`]. Once it serves, only that the data directory could not be recovered or that storage failed later; in that
/// case reads go on until `shutdown`.
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
    // Before storage opens files, so that enough descriptors are left for it.
    let connections_max = descriptors::connections_max(config.server.connections_max)?;
    let engine = Engine::start(config.engine_options(), Clock::system(config.clock.limits()));
    let access = Arc::new(Access::new(&config.auth, &config.rate_limit, &config.guessing)?);
    let (router, control) = http::service(engine.clone(), access, config.http_options(), |_| ());
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
        // Load balancers must notice before the listener closes.
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
        tracing::info!("stopping: running requests are being finished");
        drain(&mut connections, &control, config.server.drain_timeout).await;
    }
    engine.shutdown().await;
    ended?;
    match engine.status() {
        Status::Failed(reason) => Err(ServerError::Storage(reason)),
        _ => Ok(()),
    }
}

/// Resolves with the reason if the data directory can't be recovered; never resolves if it can.
async fn failed_recovery(engine: &Engine) -> String {
    match engine.recovered().await {
        Status::Failed(reason) => reason,
        _ => std::future::pending().await,
    }
}

/// Lets running requests finish. Uploads can be of any length; one that needs more than its share of the time is told to continue
/// later.
async fn drain(connections: &mut Connections, control: &Control, patience: Duration) {
    let uploads_end = async {
        tokio::time::sleep(patience / UPLOADS_SHARE).await;
        control.end_uploads();
        std::future::pending().await
    };
    tokio::select! {
        () = connections.drain() => {}
        () = uploads_end => {}
        () = tokio::time::sleep(patience) => tracing::warn!("some requests were still running and are cut off"),
    }
}
