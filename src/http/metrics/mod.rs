//! The service's metrics: those that requests count, those that are read on demand, and their text format.

mod exposition;
mod figures;
mod process;

pub(super) use exposition::Format;
pub(super) use figures::Figures;

use process::ProcessFigures;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use std::fmt;
use std::sync::atomic::AtomicU64;

/// A counter for each outcome.
pub(super) type ByOutcome = Family<[(&'static str, &'static str); 1], Counter>;

/// All metrics of the service.
pub(super) struct HttpMetrics {
    registry: Registry,
    /// Bytes that bodies take while they are read.
    pub(super) body_bytes: Gauge<u64, AtomicU64>,
    /// Bodies refused because of that limit.
    pub(super) bodies_refused: Counter,
    /// Redemption requests (redeem, hold, confirm and cancel) by outcome.
    pub(super) redemptions: ByOutcome,
}

impl HttpMetrics {
    /// Creates the metrics, beside those that are registered already.
    pub(super) fn new(mut registry: Registry) -> Self {
        registry.register_collector(Box::new(ProcessFigures));
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
        Self { registry, body_bytes, bodies_refused, redemptions }
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
