//! The composition root: turns a configuration and its listeners into a running service, until a signal stops it.
//!
//! The ports are bound before recovery starts, so that `/livez` responds immediately.

mod capacity;
mod clients;
mod connections;
pub mod heap;
mod http;
mod reload;
mod workers;

pub use reload::Reloads;

use crate::access::Access;
use crate::budget::Budget;
use crate::clock::Clock;
use crate::config::{Config, HEADS_BYTES_MAX};
use crate::engine::{Engine, EngineStatus};
use crate::http::Control;
use crate::resp::{self, RespOptions};
use crate::tls::Tls;
use anyhow::{Context, anyhow, bail};
use clients::ConnectionTimeouts;
use connections::{Connections, ListenerProtocol, ProtocolContext};
use futures_util::future::OptionFuture;
use http::Http;
use reload::Reload;
use std::future::{Future, pending};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use workers::Workers;

/// Uploads may use this fraction of the drain time, so that enough is left to respond to them.
const UPLOADS_FRACTION: u32 = 4;

/// The sockets to serve.
#[derive(Debug)]
pub struct Listeners {
    /// For HTTP.
    pub http: TcpListener,
    /// For Redis clients, if they are served.
    pub resp: Option<TcpListener>,
    /// For probes and scrapers; `None` without `server.probe_listen`.
    pub probes: Option<TcpListener>,
}

/// Serves until `shutdown` resolves. Then finishes running requests, takes a last snapshot and returns.
///
/// # Errors
/// If the service can't start. Once it serves, only that the data directory could not be recovered or that storage failed later; in that
/// case reads continue until `shutdown`.
pub async fn run(
    config: Config,
    listeners: Listeners,
    reloads: Reloads,
    shutdown: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    let address = reachable(&config, &listeners.http)?;
    let resp_address = listeners
        .resp
        .as_ref()
        .map(|listener| reachable(&config, listener))
        .transpose()?;
    let server = &config.server;
    let tls = config
        .tls()
        .then(|| Tls::new(&server.tls_cert, &server.tls_key))
        .transpose()?
        .map(Arc::new);
    let workers = Arc::new(Workers::start().context("failed to start worker threads")?);
    // Before storage opens files, so that enough descriptors are left for it.
    let [http_max, resp_max] = capacity::connections_max(&config)?;
    // Before the engine, which may log that it can't start.
    if let Some(address) = resp_address {
        tracing::info!(%address, tls = tls.is_some(), "listening for Redis clients");
    }
    if let Some(probes) = &listeners.probes {
        let address = probes.local_addr().context("the listener for probes")?;
        tracing::info!(%address, tls = tls.is_some(), "listening for probes");
    }
    tracing::info!(%address, tls = tls.is_some(), path = %config.storage.path.display(), "listening");
    let engine = Engine::start(
        config.engine_options(),
        Clock::system(config.clock.limits()),
    );
    let access = Arc::new(Access::new(
        &config.auth,
        &config.rate_limit,
        &config.guessing,
    )?);
    let port = resp_address.map_or(0, |address| address.port());
    let resp_options = RespOptions {
        port,
        ..config.resp_options()
    };
    let resp = resp::Service::new(engine.clone(), access.clone(), resp_options);
    let heads = Arc::new(Budget::new(HEADS_BYTES_MAX));
    let (service, control) =
        crate::http::service(engine.clone(), access, config.http_options(), |registry| {
            resp_address.iter().for_each(|_| resp.register(registry));
            let help = "Connections closed because unfinished request heads took too much memory";
            heads.register(
                registry,
                ("head_bytes", "Memory of unfinished request heads"),
                ("heads_refused", help),
            );
        });
    let reload = Reload {
        reloads,
        control: control.clone(),
        engine: engine.clone(),
        tls: tls.clone(),
        files: (server.tls_cert.clone(), server.tls_key.clone()),
    };
    let connections = |protocol, max, idle| {
        let timeouts = ConnectionTimeouts {
            header: server.header_timeout.0,
            idle,
            write: server.write_timeout.0,
        };
        let speech = ProtocolContext {
            protocol,
            tls: tls.clone(),
            heads: heads.clone(),
        };
        Connections::new(speech, workers.clone(), max, timeouts)
    };
    let probes = ListenerProtocol::Http(Http::new(service.probes(), server.header_bytes_max.0));
    let http = ListenerProtocol::Http(Http::new(service, server.header_bytes_max.0));
    let mut served = Served {
        http: connections(http, http_max, server.idle_timeout.0),
        resp: connections(
            ListenerProtocol::Resp(resp),
            resp_max,
            config.resp.idle_timeout(),
        ),
        probes: connections(probes, capacity::PROBES_MAX, server.idle_timeout.0),
    };
    let stop = async {
        shutdown.await;
        control.announce_stop();
        // Load balancers must notice before the listener closes.
        tracing::info!(delay = ?server.drain_delay.0, "draining; the listener closes after the delay");
        if engine.status() == EngineStatus::Ready {
            tokio::time::sleep(server.drain_delay.0).await;
        }
    };
    let ended = tokio::select! {
        () = served.accept(&listeners) => Ok(()),
        () = stop => Ok(()),
        () = reload.run() => Ok(()),
        error = failure(&engine, &config, address) => Err(error),
        // A supervisor restarts the service, which then loads a shared snapshot.
        () = engine.outdated() => Ok(()),
    };
    drop(listeners);
    if ended.is_ok() {
        tracing::info!("draining; finishing running requests");
        served.drain(&control, server.drain_timeout.0).await;
    }
    engine.shutdown().await;
    ended?;
    match engine.status() {
        EngineStatus::Failed(reason) | EngineStatus::Diverged(reason) => {
            bail!("storage failed: {reason}")
        }
        EngineStatus::Panicked(reason) => bail!(reason),
        EngineStatus::Recovering(_) | EngineStatus::Ready | EngineStatus::Draining => Ok(()),
    }
}

/// Returns the address of a listener. Beyond loopback there must be keys, unless the configuration says otherwise.
fn reachable(config: &Config, listener: &TcpListener) -> anyhow::Result<SocketAddr> {
    let address = listener.local_addr().context("the listener")?;
    let needs_keys = !config.auth.allow_anonymous && !address.ip().is_loopback();
    if config.auth.keys.is_empty() && needs_keys {
        bail!(
            "{address} can be reached from other machines, and there are no keys: set auth.keys (see `cuckood key new`), \
             listen on 127.0.0.1, or set auth.allow_anonymous = true"
        );
    }
    Ok(address)
}

/// The connections of each listener.
struct Served {
    http: Connections,
    resp: Connections,
    probes: Connections,
}

impl Served {
    /// Accepts connections. Never returns.
    async fn accept(&mut self, listeners: &Listeners) {
        let resp = OptionFuture::from(
            listeners
                .resp
                .as_ref()
                .map(|listener| self.resp.accept(listener)),
        );
        let probes = OptionFuture::from(
            listeners
                .probes
                .as_ref()
                .map(|listener| self.probes.accept(listener)),
        );
        tokio::join!(self.http.accept(&listeners.http), resp, probes);
    }

    /// Lets running requests finish. An upload that exceeds its share of the time gets a response that asks the client to continue
    /// later.
    async fn drain(&mut self, control: &Control, timeout: Duration) {
        let uploads_end = async {
            tokio::time::sleep(timeout / UPLOADS_FRACTION).await;
            control.end_uploads();
            pending().await
        };
        let drained = async {
            tokio::join!(self.http.drain(), self.resp.drain(), self.probes.drain());
        };
        tokio::select! {
            () = drained => {}
            () = uploads_end => {}
            () = tokio::time::sleep(timeout) => {
                tracing::warn!("requests still running at drain_timeout; closing their connections");
            }
        }
    }
}

/// Resolves if the data directory can't be recovered, or the state can't be trusted any more. Logs when the service is ready.
async fn failure(engine: &Engine, config: &Config, address: SocketAddr) -> anyhow::Error {
    match engine.recovered().await {
        EngineStatus::Failed(reason) | EngineStatus::Diverged(reason) => return anyhow!(reason),
        EngineStatus::Ready => announce(config, address),
        EngineStatus::Recovering(_) | EngineStatus::Draining | EngineStatus::Panicked(_) => {}
    }
    let status = engine
        .wait_for_status(|status| matches!(status, EngineStatus::Panicked(_)))
        .await;
    let EngineStatus::Panicked(reason) = status else {
        return pending().await;
    };
    anyhow!(reason)
}

/// Logs the addresses that a new user needs.
fn announce(config: &Config, address: SocketAddr) {
    let scheme = if config.tls() { "https" } else { "http" };
    let data =
        std::path::absolute(&config.storage.path).unwrap_or_else(|_| config.storage.path.clone());
    tracing::info!(version = env!("CARGO_PKG_VERSION"), "ready");
    tracing::info!(path = %data.display(), "data");
    tracing::info!(url = %format_args!("{scheme}://{address}/console"), "console");
    tracing::info!(url = %format_args!("{scheme}://{address}/docs"), "API documents");
}
