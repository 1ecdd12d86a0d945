//! The service's metrics: those that requests count, those that are read on demand, and their text format.

mod state;
mod text;

pub(super) use state::{StateFigures, write_process};
pub(super) use text::Format;

use crate::domain::Timestamp;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
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
    /// Bodies rejected because of that limit.
    pub(super) bodies_refused: Counter,
    /// Redemption requests (redeem, hold, confirm and cancel) by outcome.
    pub(super) redemptions: ByOutcome,
}

impl HttpMetrics {
    /// Creates the metrics, in addition to those that are registered already.
    pub(super) fn new(mut registry: Registry) -> Self {
        let redemptions = ByOutcome::default();
        let help = "Requests to redeem, hold, confirm or cancel, by outcome";
        registry.register("redemptions", help, redemptions.clone());
        let (body_bytes, bodies_refused) = (Gauge::default(), Counter::default());
        registry.register("body_bytes", "Bytes that bodies take while they are read", body_bytes.clone());
        let help = "Bodies refused because limits.bodies was reached";
        registry.register("bodies_refused", help, bodies_refused.clone());
        Self { registry, body_bytes, bodies_refused, redemptions }
    }

    /// Counts the outcome of a request about a redemption.
    pub(super) fn count_redemption(&self, outcome: &'static str) {
        self.redemptions.get_or_create(&[("outcome", outcome)]).inc();
    }

    /// Renders all metrics that have ever changed.
    pub(super) fn render(&self, format: Format) -> Result<String, fmt::Error> {
        text::write(&self.registry, format)
    }
}

/// Registers metrics that are read on demand: `write` adds them to each collection.
pub(super) fn register<F>(registry: &mut Registry, write: F)
where
    F: Fn(&mut Figures<'_>) -> fmt::Result + Send + Sync + 'static,
{
    registry.register_collector(Box::new(OnDemand(write)));
}

/// The function that adds metrics to a collection.
struct OnDemand<F>(F);

impl<F> fmt::Debug for OnDemand<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnDemand")
    }
}

impl<F: Fn(&mut Figures<'_>) -> fmt::Result + Send + Sync + 'static> Collector for OnDemand<F> {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        (self.0)(&mut Figures(encoder))
    }
}

/// A collection, to which metrics are added. Help texts get a full stop, as in the registry.
pub(super) struct Figures<'a>(pub(super) DescriptorEncoder<'a>);

/// Adds metrics of one kind, one per row: name, help text and value.
macro_rules! rows {
    ($figures:ident.$kind:ident { $($name:literal, $help:literal => $value:expr;)* }) => {
        $($figures.$kind($name, $help, $value)?;)*
    };
}
use rows;

impl Figures<'_> {
    /// Adds a gauge.
    fn gauge(&mut self, name: &str, help: &str, value: impl EncodeGaugeValue) -> fmt::Result {
        let help = format!("{help}.");
        ConstGauge::new(value).encode(self.0.encode_descriptor(name, &help, None, MetricType::Gauge)?)
    }

    /// Adds a counter; `name` is given without `_total`.
    fn counter(&mut self, name: &str, help: &str, value: impl EncodeCounterValue) -> fmt::Result {
        let help = format!("{help}.");
        ConstCounter::new(value).encode(self.0.encode_descriptor(name, &help, None, MetricType::Counter)?)
    }

    /// Adds a time since the epoch, if there is one.
    fn time(&mut self, name: &str, help: &str, at: Option<Timestamp>) -> fmt::Result {
        let Some(at) = at else { return Ok(()) };
        self.gauge(name, &format!("{help}, since the epoch"), at.0 as f64 / 1_000.0)
    }

    /// Adds a gauge for each value of a label.
    pub(super) fn gauges<'a, V: EncodeGaugeValue>(
        &mut self,
        name: &str,
        help: &str,
        label: &str,
        values: impl IntoIterator<Item = (&'a str, V)>,
    ) -> fmt::Result {
        let values = values.into_iter().map(|(of, value)| ([(label, of)], value));
        self.labelled(name, help, values)
    }

    /// Adds a gauge for each set of labels.
    fn labelled<'a, V: EncodeGaugeValue, const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = ([(&'a str, &'a str); N], V)>,
    ) -> fmt::Result {
        let help = format!("{help}.");
        let mut family = self.0.encode_descriptor(name, &help, None, MetricType::Gauge)?;
        for (labels, value) in values {
            ConstGauge::new(value).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }
}
