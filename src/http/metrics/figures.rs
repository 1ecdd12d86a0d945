//! Metrics that are read when they are collected, one line each.

use crate::domain::Timestamp;
use prometheus_client::encoding::{DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use std::fmt;

/// A help text as the registry writes those of its own metrics: with a full stop.
fn sentence(help: &str) -> String {
    format!("{help}.")
}

/// Collects metrics that are read on demand.
pub(crate) struct Figures<'a>(pub(crate) DescriptorEncoder<'a>);

impl Figures<'_> {
    /// A gauge.
    pub(crate) fn gauge(&mut self, name: &str, help: &str, value: impl EncodeGaugeValue) -> fmt::Result {
        ConstGauge::new(value).encode(self.0.encode_descriptor(
            name,
            &sentence(help),
            None,
            MetricType::Gauge,
        )?)
    }

    /// A counter; `name` is given without `_total`.
    pub(crate) fn counter(&mut self, name: &str, help: &str, value: impl EncodeCounterValue) -> fmt::Result {
        ConstCounter::new(value).encode(self.0.encode_descriptor(
            name,
            &sentence(help),
            None,
            MetricType::Counter,
        )?)
    }

    /// Gauges: name, help and value of each.
    pub(crate) fn all_gauges<const N: usize>(&mut self, all: [(&str, &str, u64); N]) -> fmt::Result {
        all.into_iter().try_for_each(|(name, help, value)| self.gauge(name, help, value))
    }

    /// Counters: name, help and value of each.
    pub(crate) fn all_counters<const N: usize>(&mut self, all: [(&str, &str, u64); N]) -> fmt::Result {
        all.into_iter().try_for_each(|(name, help, value)| self.counter(name, help, value))
    }

    /// Times since the epoch, as far as there are any.
    pub(crate) fn times<const N: usize>(&mut self, all: [(&str, &str, Option<Timestamp>); N]) -> fmt::Result {
        let times = all.into_iter().filter_map(|(name, help, at)| Some((name, help, at?)));
        times.into_iter().try_for_each(|(name, help, at)| {
            self.gauge(name, &format!("{help}, since the epoch"), at.0 as f64 / 1_000.0)
        })
    }

    /// A gauge for each value of a label.
    pub(crate) fn gauges<'a, V: EncodeGaugeValue>(
        &mut self,
        name: &str,
        help: &str,
        label: &str,
        values: impl IntoIterator<Item = (&'a str, V)>,
    ) -> fmt::Result {
        let values = values.into_iter().map(|(of, value)| ([(label, of)], value));
        self.labelled(name, help, values)
    }

    /// A gauge for each set of labels.
    pub(crate) fn labelled<'a, V: EncodeGaugeValue, const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = ([(&'a str, &'a str); N], V)>,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, &sentence(help), None, MetricType::Gauge)?;
        for (labels, value) in values {
            ConstGauge::new(value).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }
}
