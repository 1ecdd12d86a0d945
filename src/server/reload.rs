//! SIGHUP: reloads keys and certificate. If they are invalid, the current ones stay in force. Also warns before they expire.

use crate::config::{Config, ConfigError};
use crate::engine::Engine;
use crate::http::Control;
use crate::tls::Tls;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::signal::unix::Signal;

/// Time before an expiry at which the warnings start, in milliseconds.
const WARN_BEFORE: u64 = 14 * 86_400_000;

/// Time between two warnings.
const WARN_INTERVAL: Duration = Duration::from_secs(86_400);

/// The SIGHUP signal, and the function that reloads the configuration.
pub struct Reloads {
    /// The signal. It is registered before the configuration is first read, so that none is missed.
    pub hangups: Signal,
    /// Reads the configuration again.
    pub read: Box<dyn Fn() -> Result<Config, ConfigError> + Send>,
}

/// Reloads keys and certificate for as long as the service runs.
pub(super) struct Reload {
    pub(super) reloads: Reloads,
    pub(super) control: Control,
    pub(super) engine: Engine,
    pub(super) tls: Option<Arc<Tls>>,
    /// Certificate and private key.
    pub(super) files: (PathBuf, PathBuf),
}

impl Reload {
    /// Never returns.
    pub(super) async fn run(mut self) {
        self.control
            .note_certificate(self.tls.as_ref().and_then(|tls| tls.expires_at()));
        let mut days = tokio::time::interval(WARN_INTERVAL);
        loop {
            tokio::select! {
                _ = days.tick() => self.warn(),
                Some(()) = self.reloads.hangups.recv() => {
                    self.reload();
                    self.warn();
                }
            }
        }
    }

    fn reload(&mut self) {
        tracing::info!("SIGHUP: reloading keys and certificate");
        let replaced = (self.reloads.read)()
            .map_err(|error| error.to_string())
            .and_then(|config| {
                self.control
                    .replace_keys(&config.auth)
                    .map_err(|error| error.to_string())?;
                if config.tls() {
                    self.files = (config.server.tls_cert, config.server.tls_key);
                }
                Ok(config.auth.keys.len())
            });
        match replaced {
            Ok(keys) => tracing::info!(keys, "reloaded API keys"),
            Err(error) => {
                tracing::error!(%error, "failed to reload API keys; keeping current keys")
            }
        }
        let Some(tls) = &self.tls else { return };
        match tls.read(&self.files.0, &self.files.1) {
            Ok(()) => tracing::info!("reloaded certificate"),
            Err(error) => {
                let error = format!("{error:#}");
                tracing::error!(
                    error,
                    "failed to reload certificate; keeping current certificate"
                )
            }
        }
        self.control.note_certificate(tls.expires_at());
    }

    /// Logs certificates and keys that have expired or will expire soon.
    fn warn(&self) {
        let now = self.engine.time_of_day();
        for (key, expires_at) in self.control.expiries() {
            if expires_at.0 <= now.0 + WARN_BEFORE {
                let subject = if key.is_some() { "key" } else { "certificate" };
                let event = if expires_at <= now {
                    "has expired"
                } else {
                    "expires soon"
                };
                tracing::warn!(key, %expires_at, "{subject} {event}");
            }
        }
    }
}
