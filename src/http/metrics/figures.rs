//! Figures that are looked up when somebody asks for them, one line each.

use prometheus_client::encoding::{DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use std::fmt;

/// Where figures are written to.
pub(crate) struct Figures<'a>(pub(crate) DescriptorEncoder<'a>);

impl Figures<'_> {
    /// What goes up and down.
    pub(crate) fn gauge(&mut self, name: &str, help: &str, value: impl EncodeGaugeValue) -> fmt::Result {
        ConstGauge::new(value).encode(self.0.encode_descriptor(name, help, None, MetricType::Gauge)?)
    }

    /// What only goes up; its name does without `_total`.
    pub(crate) fn counter(&mut self, name: &str, help: &str, value: impl EncodeCounterValue) -> fmt::Result {
        ConstCounter::new(value).encode(self.0.encode_descriptor(name, help, None, MetricType::Counter)?)
    }

    /// One figure for each value of a label.
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

    /// One figure for each set of labels.
    pub(crate) fn labelled<'a, V: EncodeGaugeValue, const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = ([(&'a str, &'a str); N], V)>,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (labels, value) in values {
            ConstGauge::new(value).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }
}
