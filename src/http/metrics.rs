//! What requests cost: counters and a histogram for each route, found by one look-up in a map that never changes.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

/// The media type of [`HttpMetrics::render`].
pub(super) const MEDIA_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The label of what matches no route.
const NO_ROUTE: &str = "none";

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct ByRoute {
    route: String,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct ByStatus {
    route: String,
    status: &'static str,
}

/// The figures of one route.
struct Route {
    by_class: [Counter; STATUS_CLASSES.len()],
    seconds: Histogram,
}

const STATUS_CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

/// What has been counted.
pub(super) struct HttpMetrics {
    registry: Registry,
    routes: HashMap<String, Route>,
    other: Route,
    /// Bytes that bodies take while they are read.
    pub(super) body_bytes: Gauge<u64, AtomicU64>,
    /// Bodies refused because others took all of that.
    pub(super) bodies_refused: Counter,
    /// Requests refused because their end user had tried too many codes.
    pub(super) guesses_refused: Counter,
    /// Codes that were not valid, in checks and redemptions.
    pub(super) invalid_codes: Counter,
}

impl HttpMetrics {
    /// Counters for these routes, and whatever `register` adds.
    pub(super) fn new(routes: impl Iterator<Item = String>, register: impl FnOnce(&mut Registry)) -> Self {
        let mut registry = Registry::with_prefix("cuckood");
        register(&mut registry);
        let requests = Family::<ByStatus, Counter>::default();
        let seconds = Family::<ByRoute, Histogram>::new_with_constructor(|| {
            Histogram::new(exponential_buckets(25e-6, 2.0, 18))
        });
        registry.register("http_requests", "Requests answered", requests.clone());
        registry.register("http_request_seconds", "From a request's head to its answer's", seconds.clone());
        let (guesses_refused, invalid_codes) = (Counter::default(), Counter::default());
        let help = "Requests refused after too many invalid codes";
        registry.register("guesses_refused", help, guesses_refused.clone());
        registry.register("invalid_codes", "Codes that were not valid", invalid_codes.clone());
        let (body_bytes, bodies_refused) = (Gauge::default(), Counter::default());
        registry.register("body_bytes", "Bytes that bodies take while they are read", body_bytes.clone());
        registry.register("bodies_refused", "Bodies refused beyond limits.bodies", bodies_refused.clone());
        let figures = |route: String| Route {
            by_class: STATUS_CLASSES
                .map(|status| requests.get_or_create(&ByStatus { route: route.clone(), status }).clone()),
            seconds: seconds.get_or_create(&ByRoute { route }).clone(),
        };
        let other = figures(NO_ROUTE.into());
        let routes = routes.map(|route| (route.clone(), figures(route))).collect();
        Self { registry, routes, other, body_bytes, bodies_refused, guesses_refused, invalid_codes }
    }

    /// Counts an answer.
    pub(super) fn count(&self, route: Option<&str>, status: http::StatusCode, took: Duration) {
        let route = route.and_then(|route| self.routes.get(route)).unwrap_or(&self.other);
        let class = usize::from(status.as_u16() / 100).clamp(1, STATUS_CLASSES.len()) - 1;
        route.by_class[class].inc();
        route.seconds.observe(took.as_secs_f64());
    }

    /// All figures as OpenMetrics text, which Prometheus reads.
    pub(super) fn render(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::StatusCode;

    #[test]
    fn every_name_begins_with_the_service_and_every_request_is_counted() {
        let metrics = HttpMetrics::new(["/v1/info".to_owned()].into_iter(), |_| {});
        metrics.count(Some("/v1/info"), StatusCode::OK, Duration::from_millis(1));
        metrics.count(None, StatusCode::NOT_FOUND, Duration::from_millis(1));
        let text = metrics.render().unwrap();
        assert!(text.contains(r#"cuckood_http_requests_total{route="/v1/info",status="2xx"} 1"#), "{text}");
        assert!(text.contains(r#"cuckood_http_requests_total{route="none",status="4xx"} 1"#), "{text}");
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            assert!(line.starts_with("cuckood_"), "{line}");
        }
    }
}
