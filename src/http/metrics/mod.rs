//! The service's metrics: those read on demand, and the text of all. OpenMetrics if the client accepts it, otherwise Prometheus' own
//! format. Counters and histograms exist, as 0, before their first event: otherwise `increase()` would miss it.

pub(super) mod exposition;
mod state;

pub(super) use state::render;

use cuckood_state::domain::Timestamp;
use exposition::TextFormat;
use prometheus_client::encoding::text::encode_registry;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, EncodeMetric, MetricEncoder,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use std::fmt::{self, Write};

/// A collection, to which metrics are added.
pub(super) struct Figures<'a>(DescriptorEncoder<'a>);

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
        ConstGauge::new(value).encode(self.family(name, help, MetricType::Gauge)?)
    }

    /// Adds a counter; `name` is given without `_total`.
    fn counter(&mut self, name: &str, help: &str, value: impl EncodeCounterValue) -> fmt::Result {
        ConstCounter::new(value).encode(self.family(name, help, MetricType::Counter)?)
    }

    /// Adds a time since the epoch, if there is one.
    fn time(&mut self, name: &str, help: &str, at: Option<Timestamp>) -> fmt::Result {
        let Some(at) = at else { return Ok(()) };
        self.gauge(
            name,
            &format!("{help}, since the epoch"),
            at.0 as f64 / 1_000.0,
        )
    }

    /// Adds a gauge for each set of labels.
    fn gauges<'a, V: EncodeGaugeValue, const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = ([(&'a str, &'a str); N], V)>,
    ) -> fmt::Result {
        let mut family = self.family(name, help, MetricType::Gauge)?;
        for (labels, value) in values {
            ConstGauge::new(value).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }

    /// Begins a metric. The help text gets a full stop, as in the registry.
    fn family<'s>(
        &'s mut self,
        name: &'s str,
        help: &str,
        kind: MetricType,
    ) -> Result<MetricEncoder<'s>, fmt::Error> {
        self.0
            .encode_descriptor(name, &format!("{help}."), None, kind)
    }
}

/// Writes all metrics of these registries.
fn write_text<const N: usize>(
    registries: [&Registry; N],
    format: TextFormat,
) -> Result<String, fmt::Error> {
    let mut all = String::new();
    let mut text = String::new();
    registries
        .iter()
        .try_for_each(|registry| encode_registry(&mut all, registry))?;
    let lines: Vec<&str> = all.lines().collect();
    for family in lines.chunk_by(|_, next| !next.starts_with("# HELP ")) {
        write_family(family, format, &mut text)?;
    }
    if format == TextFormat::OpenMetrics {
        text.push_str("# EOF\n");
    }
    Ok(text)
}

/// Writes a metric, given all its lines. One without a series is omitted.
fn write_family(lines: &[&str], format: TextFormat, text: &mut String) -> fmt::Result {
    let about = |prefix| {
        lines
            .iter()
            .find_map(|line| line.strip_prefix(prefix)?.split_once(' '))
    };
    let (Some((name, help)), Some((_, kind))) = (about("# HELP "), about("# TYPE ")) else {
        return Ok(());
    };
    let mut samples = lines
        .iter()
        .filter(|line| !line.starts_with('#'))
        .peekable();
    if samples.peek().is_none() {
        return Ok(());
    }
    let (suffix, kind) = match (format, kind) {
        (TextFormat::Prometheus, "counter") => ("_total", "counter"),
        (_, kind) => ("", kind),
    };
    writeln!(
        text,
        "# HELP {name}{suffix} {help}\n# TYPE {name}{suffix} {kind}"
    )?;
    samples.try_for_each(|sample| writeln!(text, "{sample}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus_client::metrics::counter::Counter;
    use prometheus_client::metrics::family::Family as Series;
    use prometheus_client::metrics::gauge::Gauge;
    use prometheus_client::metrics::histogram::Histogram;

    #[test]
    fn unused_series_are_zero() {
        type Labels = [(&'static str, &'static str); 1];
        let mut registry = Registry::with_prefix("cuckood");
        let counters = Series::<Labels, Counter>::default();
        registry.register("requests", "Requests", counters.clone());
        registry.register("failures", "Failures", Counter::<u64>::default());
        registry.register(
            "nothing",
            "A family without series",
            Series::<Labels, Counter>::default(),
        );
        let histograms =
            Series::<Labels, Histogram>::new_with_constructor(|| Histogram::new([0.5]));
        registry.register("wait_seconds", "Waits", histograms.clone());
        registry.register("free_bytes", "Free", Gauge::<i64>::default());
        drop(counters.get_or_create(&[("route", "a")]));
        drop(histograms.get_or_create(&[("group", "a")]));
        let text = write_text([&registry], TextFormat::Prometheus).unwrap();
        assert_eq!(
            text,
            "# HELP cuckood_requests_total Requests.\n# TYPE cuckood_requests_total counter\n\
             cuckood_requests_total{route=\"a\"} 0\n\
             # HELP cuckood_failures_total Failures.\n# TYPE cuckood_failures_total counter\n\
             cuckood_failures_total 0\n\
             # HELP cuckood_wait_seconds Waits.\n# TYPE cuckood_wait_seconds histogram\n\
             cuckood_wait_seconds_sum{group=\"a\"} 0.0\ncuckood_wait_seconds_count{group=\"a\"} 0\n\
             cuckood_wait_seconds_bucket{le=\"0.5\",group=\"a\"} 0\n\
             cuckood_wait_seconds_bucket{le=\"+Inf\",group=\"a\"} 0\n\
             # HELP cuckood_free_bytes Free.\n# TYPE cuckood_free_bytes gauge\ncuckood_free_bytes 0\n"
        );
        let text = write_text([&registry], TextFormat::OpenMetrics).unwrap();
        assert!(
            text.starts_with(
                "# HELP cuckood_requests Requests.\n# TYPE cuckood_requests counter\n"
            ),
            "{text}"
        );
        assert!(
            text.ends_with("# EOF\n") && !text.contains("nothing"),
            "{text}"
        );
    }
}
