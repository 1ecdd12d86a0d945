//! The service that all handlers share.

use super::metrics::HttpMetrics;
use super::options::HttpOptions;
use super::request::body::Reading;
use super::stopping::Stopping;
use crate::access::Access;
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
