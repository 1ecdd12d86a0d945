//! SIGHUP: reads keys and certificate again. If they are invalid that is logged, and the old ones stay. It also warns before they
//! expire.

use crate::config::{Config, ConfigError};
use crate::domain::Timestamp;
use crate::engine::Engine;
use crate::http::{Control, Expiry};
use crate::tls::Tls;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::signal::unix::Signal;

/// How long before an expiry the warnings begin, in milliseconds.
const WARN_BEFORE: u64 = 14 * 86_400_000;

/// Time between two warnings.
const WARN_EVERY: Duration = Duration::from_secs(86_400);

/// The SIGHUP signal, and how to read the configuration again.
pub struct Rereads {
    /// The signal. It is registered before the configuration is first read, so that none is missed.
    pub hangups: Signal,
    /// Reads the configuration again.
    pub read: Box<dyn Fn() -> Result<Config, ConfigError> + Send>,
}

/// Rereads keys and certificate for as long as the service runs.
pub(super) struct Rereading {
    pub(super) rereads: Rereads,
    pub(super) control: Control,
    pub(super) engine: Engine,
    pub(super) tls: Option<Arc<Tls>>,
    /// Certificate and private key.
    pub(super) files: (PathBuf, PathBuf),
}

impl Rereading {
    /// Never returns.
    pub(super) async fn run(mut self) {
        self.control.note_certificate(self.tls.as_ref().and_then(|tls| tls.expires_at()));
        let mut days = tokio::time::interval(WARN_EVERY);
        loop {
            tokio::select! {
                _ = days.tick() => self.warn(),
                Some(()) = self.rereads.hangups.recv() => {
                    self.reread();
                    self.warn();
                }
            }
        }
    }

    fn reread(&mut self) {
        tracing::info!("SIGHUP: reading keys and certificate again");
        match (self.rereads.read)() {
            Ok(config) => {
                match self.control.replace_keys(&config.auth) {
                    Ok(()) => tracing::info!(keys = config.auth.keys.len(), "the keys were read again"),
                    Err(error) => {
                        tracing::error!(%error, "the new keys can't be used; the old ones stay in force")
                    }
                }
                if config.tls() {
                    self.files = (config.server.tls_cert, config.server.tls_key);
                }
            }
            Err(error) => tracing::error!(%error, "the new keys can't be used; the old ones stay in force"),
        }
        let Some(tls) = &self.tls else { return };
        match tls.read(&self.files.0, &self.files.1) {
            Ok(()) => tracing::info!("the certificate was read again"),
            Err(error) => {
                tracing::error!(%error, "the new certificate can't be used; the old one stays in force")
            }
        }
        self.control.note_certificate(tls.expires_at());
    }

    /// Logs what has expired and what will expire soon.
    fn warn(&self) {
        let now = self.engine.now();
        let has_run_out = |at: Timestamp| at <= now;
        for expiry in self.control.expiries() {
            match expiry {
                Expiry::Key(_, at) | Expiry::Certificate(at) if at.0 > now.0 + WARN_BEFORE => {}
                Expiry::Key(key, expires_at) if has_run_out(expires_at) => {
                    tracing::warn!(key, %expires_at, "the key has expired");
                }
                Expiry::Key(key, expires_at) => tracing::warn!(key, %expires_at, "the key expires soon"),
                Expiry::Certificate(expires_at) if has_run_out(expires_at) => {
                    tracing::warn!(%expires_at, "the certificate has expired");
                }
                Expiry::Certificate(expires_at) => {
                    tracing::warn!(%expires_at, "the certificate expires soon");
                }
            }
        }
    }
}
