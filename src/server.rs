//! The composition root: turns a configuration and its listeners into a running service, until it is told to stop.
//!
//! The ports are bound before recovery begins, so that `/livez` answers at once.

mod activity;
mod connections;
mod descriptors;
mod door;
mod doors;
pub mod heap;
mod http_door;
mod refusals;
mod rereading;
mod resp_door;
mod unread;
mod watch;
mod workers;

pub use descriptors::TooFewDescriptors;
pub use doors::Listeners;
pub use rereading::Rereads;

use crate::access::{Access, InvalidKey};
use crate::clock::Clock;
use crate::config::Config;
use crate::engine::{Engine, Status};
use crate::http::{self, Control};
use crate::resp;
use crate::tls::{Tls, TlsError};
use doors::Doors;
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
    /// The state can't be trusted any more.
    #[error("{0}")]
    Panicked(String),
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
    listeners: Listeners,
    rereads: Rereads,
    shutdown: impl Future<Output = ()>,
) -> Result<(), ServerError> {
    let address = reachable(&config, &listeners.http)?;
    let resp_address = listeners.resp.as_ref().map(|listener| reachable(&config, listener)).transpose()?;
    let tls = match config.tls() {
        true => Some(Arc::new(Tls::new(&config.server.tls_cert, &config.server.tls_key)?)),
        false => None,
    };
    let workers = Arc::new(Workers::start().map_err(ServerError::Workers)?);
    // Before storage opens files, so that enough descriptors are left for it.
    let resp_max = resp_address.map_or(0, |_| config.resp.connections_max);
    let places = descriptors::connections_max([config.server.connections_max, resp_max])?;
    let engine = Engine::start(config.engine_options(), Clock::system(config.clock.limits()));
    let access = Arc::new(Access::new(&config.auth, &config.rate_limit, &config.guessing)?);
    let door = resp::Door::new(engine.clone(), access.clone(), config.resp_options());
    let (service, control) = http::service(engine.clone(), access, config.http_options(), |registry| {
        resp_address.iter().for_each(|_| door.register(registry));
    });
    tell_resp(resp_address, tls.is_some());
    tracing::info!(%address, tls = tls.is_some(), path = %config.storage.path.display(), "listening");
    let rereading = Rereading {
        rereads,
        control: control.clone(),
        engine: engine.clone(),
        tls: tls.clone(),
        files: (config.server.tls_cert.clone(), config.server.tls_key.clone()),
    };
    let mut doors = Doors::new(&config, listeners, places, workers, tls, (service, door));
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
        () = doors.accept() => Ok(()),
        () = stop => Ok(()),
        () = rereading.run() => Ok(()),
        reason = failed_recovery(&engine) => Err(ServerError::Recovery(reason)),
        reason = engine.panicked() => Err(ServerError::Panicked(reason)),
        // A supervisor starts the service again, which then begins with a shared snapshot.
        () = engine.outdated() => Ok(()),
    };
    doors.close();
    if ended.is_ok() {
        tracing::info!("stopping: running requests are being finished");
        drain(&mut doors, &control, config.server.drain_timeout).await;
    }
    engine.shutdown().await;
    ended?;
    match engine.status() {
        Status::Failed(reason) | Status::Diverged(reason) => Err(ServerError::Storage(reason)),
        Status::Panicked(reason) => Err(ServerError::Panicked(reason)),
        Status::Recovering(_) | Status::Ready | Status::Draining => Ok(()),
    }
}

/// The address of a listener. Beyond loopback there have to be keys, unless it is allowed to do without.
fn reachable(config: &Config, listener: &TcpListener) -> Result<SocketAddr, ServerError> {
    let address = listener.local_addr()?;
    let needs_keys = !config.auth.allow_anonymous && !address.ip().is_loopback();
    if config.auth.keys.is_empty() && needs_keys { Err(ServerError::NeedsKeys(address)) } else { Ok(address) }
}

fn tell_resp(address: Option<SocketAddr>, tls: bool) {
    if let Some(address) = address {
        tracing::info!(%address, tls, "listening for Redis clients");
    }
}

/// Resolves with the reason if the data directory can't be recovered; never resolves if it can.
async fn failed_recovery(engine: &Engine) -> String {
    match engine.recovered().await {
        Status::Failed(reason) | Status::Diverged(reason) => reason,
        Status::Recovering(_) | Status::Ready | Status::Draining | Status::Panicked(_) => {
            std::future::pending().await
        }
    }
}

/// Lets running requests finish. Uploads can be of any length; one that needs more than its share of the time is told to continue
/// later.
async fn drain(doors: &mut Doors, control: &Control, patience: Duration) {
    let uploads_end = async {
        tokio::time::sleep(patience / UPLOADS_SHARE).await;
        control.end_uploads();
        std::future::pending().await
    };
    tokio::select! {
        () = doors.drain() => {}
        () = uploads_end => {}
        () = tokio::time::sleep(patience) => tracing::warn!("some requests were still running and are cut off"),
    }
}
