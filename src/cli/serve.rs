//! `cuckood serve`: runs the service.

use super::stop_signals;
use crate::config::{Config, ConfigError};
use crate::server::{self, Listeners, Reloads};
use crate::telemetry;
use anyhow::Context;
use futures_util::future::OptionFuture;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

/// Serve until SIGTERM or SIGINT.
#[derive(clap::Args, Debug, Default)]
pub struct Args {
    /// Configuration file; without one the documented defaults apply.
    #[arg(long, value_name = "FILE", env = "CUCKOOD_CONFIG")]
    pub config: Option<PathBuf>,
}

/// Serves until SIGTERM or SIGINT.
///
/// # Errors
/// If the service can't start, or has failed.
pub fn run(args: &Args) -> anyhow::Result<()> {
    server::heap::share_c_heap();
    let config = configuration(args.config.as_deref())?;
    telemetry::init(&config.log)?;
    config
        .warnings()
        .iter()
        .for_each(|warning| tracing::warn!("{warning}"));
    // This runtime only accepts connections; the server's workers serve them.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let mut stopped = stop_signals()?;
        // Without a handler the signal would end the process.
        let hangups = signal(SignalKind::hangup())?;
        let file = args.config.clone();
        let reloads = Reloads {
            hangups,
            read: Box::new(move || configuration(file.as_deref())),
        };
        let http = bind(config.server.listen).await?;
        let resp = OptionFuture::from(config.resp.listen.map(bind))
            .await
            .transpose()?;
        let probes = OptionFuture::from(config.server.probe_listen.map(bind))
            .await
            .transpose()?;
        server::run(config, Listeners { http, resp, probes }, reloads, stopped()).await
    })
}

async fn bind(address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address)
        .await
        .with_context(|| format!("can't listen on {address}: end what listens there, or set server.listen, resp.listen or server.probe_listen"))
}

/// Loads the configuration: the file, if one is named, and the environment.
///
/// # Errors
/// [`ConfigError`].
pub(super) fn configuration(file: Option<&Path>) -> Result<Config, ConfigError> {
    Config::load(file, std::env::vars_os())
}
