//! The service that all handlers share.

use super::metrics::HttpMetrics;
use super::options::{AuthOptions, HttpOptions};
use super::request::body::Reading;
use super::stopping::{Expiries, Stage, Stopping};
use crate::access::{Access, InvalidKey};
use crate::domain::Timestamp;
use crate::engine::Engine;
use crate::engine::imports::LiveImports;
use std::sync::Arc;

/// Shared state of the handlers.
pub(super) struct Api {
    /// Decides everything.
    pub(super) engine: Engine,
    /// Options from the configuration.
    pub(super) options: HttpOptions,
    /// The keys, their rates, and the limit on guessing codes.
    pub(super) access: Arc<Access>,
    /// How bodies are read.
    pub(super) reading: Reading,
    /// Running uploads.
    pub(super) live_imports: LiveImports,
    /// Whether the service is shutting down.
    pub(super) stopping: Stopping,
    /// Metrics of requests.
    pub(super) metrics: HttpMetrics,
    /// The OpenAPI document as text, given whether keys are required. A function pointer, because the document refers to the
    /// handlers.
    pub(super) document: fn(bool) -> &'static str,
}

/// Controls a running service; clones control the same one.
#[derive(Clone)]
pub struct Control {
    api: Arc<Api>,
    expiries: Expiries,
}

/// Something that expires, and when.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Expiry {
    /// The key of this name.
    Key(String, Timestamp),
    /// The certificate.
    Certificate(Timestamp),
}

impl Control {
    pub(super) fn new(api: Arc<Api>, expiries: Expiries) -> Self {
        Self { api, expiries }
    }

    /// Replaces the keys.
    ///
    /// # Errors
    /// [`InvalidKey`] if they are invalid or none is left. The old ones stay in force then.
    pub fn replace_keys(&self, auth: &AuthOptions) -> Result<(), InvalidKey> {
        self.api.access.replace_keys(auth)
    }

    /// Sets the time at which the certificate expires, for the metrics.
    pub fn note_certificate(&self, expires_at: Option<Timestamp>) {
        self.expiries.note_certificate(expires_at);
    }

    /// Everything that expires.
    pub fn expiries(&self) -> Vec<Expiry> {
        let keys = self.expiries.keys().into_iter().map(|(name, at)| Expiry::Key(name, at));
        keys.chain(self.expiries.certificate().map(Expiry::Certificate)).collect()
    }

    /// Announces the shutdown: from now on `/readyz` reports it. Everything else is still served.
    pub fn announce_stop(&self) {
        self.api.stopping.enter(Stage::Announced);
    }

    /// Ends running uploads. Their answers say how to continue.
    pub fn end_uploads(&self) {
        self.api.stopping.enter(Stage::UploadsEnd);
    }
}
