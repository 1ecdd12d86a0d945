//! The service's metrics: those that requests count, those that are read on demand, and their text format.

mod exposition;
mod figures;
mod process;
mod requests;

pub(super) use exposition::Format;
pub(super) use figures::Figures;

use http::{Method, StatusCode};
use process::ProcessFigures;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use requests::Requests;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

/// A counter for each outcome.
pub(super) type ByOutcome = Family<[(&'static str, &'static str); 1], Counter>;

/// All metrics of the service.
pub(super) struct HttpMetrics {
    registry: Registry,
    requests: Arc<Requests>,
    /// Bytes that bodies take while they are read.
    pub(super) body_bytes: Gauge<u64, AtomicU64>,
    /// Bodies refused because of that limit.
    pub(super) bodies_refused: Counter,
    /// Redemption requests (redeem, hold, confirm and cancel) by outcome.
    pub(super) redemptions: ByOutcome,
}

impl HttpMetrics {
    /// Creates the metrics of these operations (path, method and group of each), and those that `register` adds.
    pub(super) fn new(
        operations: Vec<(String, String, String)>,
        register: impl FnOnce(&mut Registry),
    ) -> Self {
        let mut registry = Registry::with_prefix("cuckood");
        register(&mut registry);
        registry.register_collector(Box::new(ProcessFigures));
        let requests = Requests::register(operations, &mut registry);
        let redemptions = ByOutcome::default();
        let help = "Requests to redeem, hold, confirm or cancel, by outcome";
        registry.register("redemptions", help, redemptions.clone());
        let (body_bytes, bodies_refused) = (Gauge::default(), Counter::default());
        registry.register("body_bytes", "Bytes that bodies take while they are read", body_bytes.clone());
        registry.register(
            "bodies_refused",
            "Bodies refused because limits.bodies was reached",
            bodies_refused.clone(),
        );
        Self { registry, requests, body_bytes, bodies_refused, redemptions }
    }

    /// Counts an answer.
    pub(super) fn count(&self, route: Option<&str>, method: &Method, status: StatusCode, took: Duration) {
        self.requests.count(route, method, status, took);
    }

    /// Counts the outcome of a request about a redemption.
    pub(super) fn count_redemption(&self, outcome: &'static str) {
        self.redemptions.get_or_create(&[("outcome", outcome)]).inc();
    }

    /// Renders all metrics that have ever changed.
    pub(super) fn render(&self, format: Format) -> Result<String, fmt::Error> {
        exposition::write(&self.registry, format)
    }
}
