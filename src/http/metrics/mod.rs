//! The service's metrics: those read on demand, and the text of all. OpenMetrics if the client accepts it, otherwise Prometheus' own
//! format. Series that have never changed are omitted from both.

mod state;

pub(super) use state::render;

use super::answer::reply::quality;
use crate::domain::Timestamp;
use http::HeaderMap;
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
        self.gauge(name, &format!("{help}, since the epoch"), at.0 as f64 / 1_000.0)
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
        self.0.encode_descriptor(name, &format!("{help}."), None, kind)
    }
}

/// The text format of metrics.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Format {
    /// Prometheus' text format, version 0.0.4.
    Prometheus,
    /// OpenMetrics, version 1.0.0.
    OpenMetrics,
}

impl Format {
    /// Chooses the format by the header `Accept`: OpenMetrics if it is named and not ranked below plain text.
    pub(crate) fn preferred(headers: &HeaderMap) -> Format {
        let open = quality(headers, "application/openmetrics-text");
        let is_first = open > 0.0 && open >= quality(headers, "text/plain");
        if is_first { Format::OpenMetrics } else { Format::Prometheus }
    }

    /// Its media type.
    pub(crate) fn media_type(self) -> &'static str {
        match self {
            Format::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// Writes all metrics of these registries that have ever changed.
fn write_text<const N: usize>(registries: [&Registry; N], format: Format) -> Result<String, fmt::Error> {
    let (mut all, mut text) = (String::new(), String::new());
    registries.iter().try_for_each(|registry| encode_registry(&mut all, registry))?;
    let lines: Vec<&str> = all.lines().collect();
    for family in lines.chunk_by(|_, next| !next.starts_with("# HELP ")) {
        write_family(family, format, &mut text)?;
    }
    if format == Format::OpenMetrics {
        text.push_str("# EOF\n");
    }
    Ok(text)
}

/// Writes a metric, given all its lines, without the series that have never changed.
fn write_family(lines: &[&str], format: Format, text: &mut String) -> fmt::Result {
    let about = |prefix| lines.iter().find_map(|line| line.strip_prefix(prefix)?.split_once(' '));
    let (Some((name, help)), Some((_, kind))) = (about("# HELP "), about("# TYPE ")) else { return Ok(()) };
    let samples: Vec<&str> = lines.iter().copied().filter(|line| !line.starts_with('#')).collect();
    // A histogram starts with the sum, and ends with the bucket of all observations.
    let sum = format!("{name}_sum");
    let series = samples.chunk_by(|_, next| kind == "histogram" && !next.starts_with(&sum));
    let is_counted = matches!(kind, "counter" | "histogram");
    let is_zero = |sample: &&str| sample.rsplit(' ').next().is_some_and(|value| value.parse() == Ok(0.0));
    let has_moved = |series: &&[&str]| !(is_counted && series.last().is_some_and(is_zero));
    let mut moved = series.filter(has_moved).flatten().peekable();
    if moved.peek().is_none() {
        return Ok(());
    }
    let (suffix, kind) = match (format, kind) {
        (Format::Prometheus, "counter") => ("_total", "counter"),
        (_, kind) => ("", kind),
    };
    writeln!(text, "# HELP {name}{suffix} {help}\n# TYPE {name}{suffix} {kind}")?;
    moved.try_for_each(|sample| writeln!(text, "{sample}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{HeaderValue, header};
    use prometheus_client::metrics::counter::Counter;
    use prometheus_client::metrics::family::Family as Series;
    use prometheus_client::metrics::gauge::Gauge;
    use prometheus_client::metrics::histogram::Histogram;

    #[test]
    fn openmetrics_requires_accept_header() {
        // The header that Prometheus 2 and 3 send.
        let prometheus = "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;\
                          q=0.4,text/plain;version=0.0.4;q=0.2,*/*;q=0.1";
        for (accept, wanted) in [
            ("", Format::Prometheus),
            ("*/*", Format::Prometheus),
            ("text/plain", Format::Prometheus),
            ("text/plain;version=0.0.4;q=0.5, application/openmetrics-text;q=0.2", Format::Prometheus),
            ("application/openmetrics-text;q=0", Format::Prometheus),
            ("application/openmetrics-text", Format::OpenMetrics),
            ("Application/OpenMetrics-Text; version=1.0.0, text/plain", Format::OpenMetrics),
            (prometheus, Format::OpenMetrics),
        ] {
            let headers = HeaderMap::from_iter([(header::ACCEPT, HeaderValue::from_static(accept))]);
            assert_eq!(Format::preferred(&headers), wanted, "{accept}");
        }
    }

    #[test]
    fn unused_metrics_are_omitted() {
        type Labels = [(&'static str, &'static str); 1];
        let mut registry = Registry::with_prefix("cuckood");
        let counters = Series::<Labels, Counter>::default();
        registry.register("requests", "Requests", counters.clone());
        let never = Series::<Labels, Counter>::default();
        registry.register("failures", "Failures", never.clone());
        let histograms = Series::<Labels, Histogram>::new_with_constructor(|| Histogram::new([0.5, 1.0]));
        registry.register("wait_seconds", "Waits", histograms.clone());
        registry.register("free_bytes", "Free", Gauge::<i64>::default());
        counters.get_or_create(&[("route", "a")]).inc();
        drop(counters.get_or_create(&[("route", "b")]));
        drop(never.get_or_create(&[("route", "a")]));
        drop(histograms.get_or_create(&[("group", "still")]));
        histograms.get_or_create(&[("group", "moved")]).observe(0.75);
        let text = write_text([&registry], Format::Prometheus).unwrap();
        assert_eq!(
            text,
            "# HELP cuckood_requests_total Requests.\n# TYPE cuckood_requests_total counter\n\
             cuckood_requests_total{route=\"a\"} 1\n\
             # HELP cuckood_wait_seconds Waits.\n# TYPE cuckood_wait_seconds histogram\n\
             cuckood_wait_seconds_sum{group=\"moved\"} 0.75\ncuckood_wait_seconds_count{group=\"moved\"} 1\n\
             cuckood_wait_seconds_bucket{le=\"0.5\",group=\"moved\"} 0\n\
             cuckood_wait_seconds_bucket{le=\"1.0\",group=\"moved\"} 1\n\
             cuckood_wait_seconds_bucket{le=\"+Inf\",group=\"moved\"} 1\n\
             # HELP cuckood_free_bytes Free.\n# TYPE cuckood_free_bytes gauge\ncuckood_free_bytes 0\n"
        );
        let text = write_text([&registry], Format::OpenMetrics).unwrap();
        assert!(
            text.starts_with("# HELP cuckood_requests Requests.\n# TYPE cuckood_requests counter\n"),
            "{text}"
        );
        assert!(text.ends_with("# EOF\n"), "{text}");
        assert!(!text.contains("still") && !text.contains("failures"), "{text}");
    }
}
