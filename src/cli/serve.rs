//! `cuckood serve`: the service itself.

use crate::config::{Config, ConfigError};
use crate::server::{self, ServerError};
use crate::telemetry;
use std::path::PathBuf;
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

/// Serve until SIGTERM or SIGINT.
#[derive(clap::Args, Debug, Default)]
pub struct Args {
    /// A configuration file; without one the documented defaults hold.
    #[arg(long, value_name = "FILE", env = "CUCKOOD_CONFIG")]
    pub config: Option<PathBuf>,
}

/// Why the service did not start, or ended.
#[derive(Debug, Error)]
pub enum ServeError {
    /// The configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The log.
    #[error("{0}")]
    Telemetry(String),
    /// The port.
    #[error("can't listen on {address}: {source}")]
    Bind {
        /// Where.
        address: std::net::SocketAddr,
        /// Why not.
        source: std::io::Error,
    },
    /// The runtime, or signals.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// The service.
    #[error(transparent)]
    Server(#[from] ServerError),
}

/// Serves until SIGTERM or SIGINT.
///
/// # Errors
/// [`ServeError`].
pub fn run(args: &Args) -> Result<(), ServeError> {
    server::heap::share_c_heap();
    let environment = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    let config = Config::load(args.config.as_deref(), environment)?;
    telemetry::init(&config.log).map_err(ServeError::Telemetry)?;
    // This one accepts; what is accepted is served by the server's workers.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let (mut terminate, mut interrupt) =
            (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        // Unheard, it would end the process: with or without a certificate, it never does.
        let mut hangups = signal(SignalKind::hangup())?;
        if !config.tls() {
            tokio::spawn(async move {
                while hangups.recv().await.is_some() {
                    tracing::info!("SIGHUP: there is no certificate to read again");
                }
            });
        }
        let address = config.server.listen;
        let listener =
            TcpListener::bind(address).await.map_err(|source| ServeError::Bind { address, source })?;
        let shutdown = async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        };
        Ok(server::run(config, listener, shutdown).await?)
    })
}
