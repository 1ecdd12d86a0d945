//! `cuckood serve`: the service itself.

use crate::config::{Config, ConfigError};
use crate::server::{self, Rereads, ServerError};
use crate::telemetry;
use std::path::{Path, PathBuf};
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
    let config = configuration(args.config.as_deref())?;
    telemetry::init(&config.log).map_err(ServeError::Telemetry)?;
    // This one accepts; what is accepted is served by the server's workers.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let (mut terminate, mut interrupt) =
            (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        // Unheard, it would end the process.
        let hangups = signal(SignalKind::hangup())?;
        let file = args.config.clone();
        let rereads = Rereads { hangups, read: Box::new(move || configuration(file.as_deref())) };
        let address = config.server.listen;
        let listener =
            TcpListener::bind(address).await.map_err(|source| ServeError::Bind { address, source })?;
        let shutdown = async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        };
        Ok(server::run(config, listener, rereads, shutdown).await?)
    })
}

/// The configuration that the program serves by: the file, if one is named, and the environment.
///
/// # Errors
/// [`ConfigError`].
pub(super) fn configuration(file: Option<&Path>) -> Result<Config, ConfigError> {
    let environment = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    Config::load(file, environment)
}
