//! Metrics as text: OpenMetrics if the client accepts it, otherwise Prometheus' own format. Series that have never changed are
//! left out of both.

use crate::http::lines;
use http::HeaderMap;
use prometheus_client::encoding::text::encode_registry;
use prometheus_client::registry::Registry;
use std::fmt::{self, Write};

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
    pub(crate) fn asked_for(headers: &HeaderMap) -> Format {
        let open = lines::wish(headers, "application/openmetrics-text");
        let is_first = open > 0.0 && open >= lines::wish(headers, "text/plain");
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

/// Writes all metrics of a registry that have ever changed.
pub(super) fn write(registry: &Registry, format: Format) -> Result<String, fmt::Error> {
    let mut all = String::new();
    encode_registry(&mut all, registry)?;
    let mut text = String::with_capacity(all.len());
    let mut lines = all.lines().peekable();
    while let Some(head) = lines.next() {
        let Some((name, help)) = head.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')) else {
            continue;
        };
        let mut family = Family { name, help, kind: "unknown", samples: Vec::new() };
        while let Some(line) = lines.next_if(|line| !line.starts_with("# HELP ")) {
            match line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
                Some((_, kind)) => family.kind = kind,
                None if line.starts_with('#') => {}
                None => family.samples.push(line),
            }
        }
        family.leave_out_what_never_moved();
        family.write(format, &mut text)?;
    }
    if format == Format::OpenMetrics {
        text.push_str("# EOF\n");
    }
    Ok(text)
}

/// All series of one metric.
struct Family<'a> {
    name: &'a str,
    help: &'a str,
    kind: &'a str,
    samples: Vec<&'a str>,
}

impl Family<'_> {
    fn leave_out_what_never_moved(&mut self) {
        match self.kind {
            "counter" => self.samples.retain(|sample| value(sample) != Some(0.0)),
            // In each series the sum comes first, then the count, then the buckets.
            "histogram" => {
                let (sum, count) = (format!("{}_sum", self.name), format!("{}_count", self.name));
                let is_of = |sample: &str, name: &str| {
                    sample.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']))
                };
                let mut kept = Vec::with_capacity(self.samples.len());
                for series in self.samples.chunk_by(|_, next| !is_of(next, &sum)) {
                    let has_moved = |sample: &&str| {
                        is_of(sample, &count) && value(sample).is_some_and(|count| count > 0.0)
                    };
                    if series.iter().any(has_moved) {
                        kept.extend_from_slice(series);
                    }
                }
                self.samples = kept;
            }
            _ => {}
        }
    }

    fn write(&self, format: Format, text: &mut String) -> fmt::Result {
        if self.samples.is_empty() {
            return Ok(());
        }
        let Family { name, help, kind, samples } = self;
        let (suffix, kind) = match (format, *kind) {
            (Format::Prometheus, "counter") => ("_total", "counter"),
            (Format::Prometheus, "info") => ("_info", "gauge"),
            (_, kind) => ("", kind),
        };
        writeln!(text, "# HELP {name}{suffix} {help}\n# TYPE {name}{suffix} {kind}")?;
        samples.iter().try_for_each(|sample| writeln!(text, "{sample}"))
    }
}

/// The value of a sample.
fn value(sample: &str) -> Option<f64> {
    sample.rsplit(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{HeaderValue, header};
    use prometheus_client::metrics::counter::Counter;
    use prometheus_client::metrics::family::Family as Series;
    use prometheus_client::metrics::gauge::Gauge;
    use prometheus_client::metrics::histogram::Histogram;
    use prometheus_client::metrics::info::Info;

    #[test]
    fn only_who_asks_gets_openmetrics() {
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
            assert_eq!(Format::asked_for(&headers), wanted, "{accept}");
        }
    }

    #[test]
    fn what_never_moved_is_left_out() {
        type Labels = [(&'static str, &'static str); 1];
        let mut registry = Registry::with_prefix("cuckood");
        let counters = Series::<Labels, Counter>::default();
        registry.register("requests", "Requests", counters.clone());
        let never = Series::<Labels, Counter>::default();
        registry.register("failures", "Failures", never.clone());
        let histograms = Series::<Labels, Histogram>::new_with_constructor(|| Histogram::new([0.5, 1.0]));
        registry.register("wait_seconds", "Waits", histograms.clone());
        registry.register("free_bytes", "Free", Gauge::<i64>::default());
        registry.register("build", "Build", Info::new([("version", "1")]));
        counters.get_or_create(&[("route", "a")]).inc();
        drop(counters.get_or_create(&[("route", "b")]));
        drop(never.get_or_create(&[("route", "a")]));
        drop(histograms.get_or_create(&[("group", "still")]));
        histograms.get_or_create(&[("group", "moved")]).observe(0.75);
        let text = write(&registry, Format::Prometheus).unwrap();
        assert_eq!(
            text,
            "# HELP cuckood_requests_total Requests.\n# TYPE cuckood_requests_total counter\n\
             cuckood_requests_total{route=\"a\"} 1\n\
             # HELP cuckood_wait_seconds Waits.\n# TYPE cuckood_wait_seconds histogram\n\
             cuckood_wait_seconds_sum{group=\"moved\"} 0.75\ncuckood_wait_seconds_count{group=\"moved\"} 1\n\
             cuckood_wait_seconds_bucket{le=\"0.5\",group=\"moved\"} 0\n\
             cuckood_wait_seconds_bucket{le=\"1.0\",group=\"moved\"} 1\n\
             cuckood_wait_seconds_bucket{le=\"+Inf\",group=\"moved\"} 1\n\
             # HELP cuckood_free_bytes Free.\n# TYPE cuckood_free_bytes gauge\ncuckood_free_bytes 0\n\
             # HELP cuckood_build_info Build.\n# TYPE cuckood_build_info gauge\n\
             cuckood_build_info{version=\"1\"} 1\n"
        );
        let text = write(&registry, Format::OpenMetrics).unwrap();
        assert!(
            text.starts_with("# HELP cuckood_requests Requests.\n# TYPE cuckood_requests counter\n"),
            "{text}"
        );
        assert!(text.contains("# TYPE cuckood_build info\n") && text.ends_with("# EOF\n"), "{text}");
        assert!(!text.contains("still") && !text.contains("failures"), "{text}");
    }
}
