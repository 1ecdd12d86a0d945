//! Metrics of requests: a counter for each route, method and status, and a latency histogram for each group of routes. All are
//! found without a lock, in tables that never change.

use http::{Method, StatusCode};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The label of requests that match no documented route.
const NO_ROUTE: &str = "none";

const METHODS: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "other"];

/// The statuses that have counters of their own, in order; the last one stands for all others.
const STATUSES: [u16; 25] = [
    200, 201, 204, 206, 304, 308, 400, 401, 403, 404, 405, 406, 408, 409, 410, 413, 414, 415, 422, 429, 431,
    500, 503, 507, 0,
];

type Labels = [(&'static str, String); 1];

/// Counters and histograms of all routes.
#[derive(Debug)]
pub(super) struct Requests {
    routes: HashMap<String, Route>,
    other: Route,
}

#[derive(Debug)]
struct Route {
    answers: [[AtomicU64; STATUSES.len()]; METHODS.len()],
    /// By method.
    seconds: [Histogram; METHODS.len()],
}

impl Requests {
    /// Registers the metrics of these operations: path, method and group of each.
    pub(super) fn register(operations: Vec<(String, String, String)>, registry: &mut Registry) -> Arc<Self> {
        let seconds = Family::<Labels, Histogram>::new_with_constructor(|| {
            Histogram::new(exponential_buckets(25e-6, 2.0, 20))
        });
        let help = "Time from a request's head to the head of its answer";
        registry.register("http_request_duration_seconds", help, seconds.clone());
        let of_group = |group: String| seconds.get_or_create(&[("group", group)]).clone();
        let route = |groups: &HashMap<&str, String>| Route {
            answers: Default::default(),
            seconds: METHODS.map(|method| {
                let group = groups.get(if method == "HEAD" { "GET" } else { method });
                of_group(group.cloned().unwrap_or_else(|| NO_ROUTE.into()))
            }),
        };
        let mut groups: HashMap<String, HashMap<&str, String>> = HashMap::new();
        for (path, method, group) in operations {
            let method = METHODS.into_iter().find(|known| known.eq_ignore_ascii_case(&method));
            groups.entry(path).or_default().extend(method.map(|method| (method, group)));
        }
        let routes = groups.iter().map(|(path, groups)| (path.clone(), route(groups))).collect();
        let requests = Arc::new(Self { routes, other: route(&HashMap::new()) });
        registry.register_collector(Box::new(requests.clone()));
        requests
    }

    /// Counts an answer.
    pub(super) fn count(&self, route: Option<&str>, method: &Method, status: StatusCode, took: Duration) {
        let route = route.and_then(|route| self.routes.get(route)).unwrap_or(&self.other);
        let other = METHODS.len() - 1;
        let method = METHODS.iter().position(|known| *known == method.as_str()).unwrap_or(other);
        let known = &STATUSES[..STATUSES.len() - 1];
        let status = known.binary_search(&status.as_u16()).unwrap_or(known.len());
        route.answers[method][status].fetch_add(1, Ordering::Relaxed);
        route.seconds[method].observe(took.as_secs_f64());
    }
}

impl Collector for Requests {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut family =
            encoder.encode_descriptor("http_requests", "Requests answered.", None, MetricType::Counter)?;
        let routes = self.routes.iter().map(|(path, route)| (path.as_str(), route));
        for (path, route) in routes.chain([(NO_ROUTE, &self.other)]) {
            for (method, answers) in METHODS.iter().zip(&route.answers) {
                for (status, count) in STATUSES.iter().zip(answers) {
                    let count = count.load(Ordering::Relaxed);
                    if count == 0 {
                        continue;
                    }
                    let status = if *status == 0 { "other".to_owned() } else { status.to_string() };
                    let labels = [("route", path), ("method", *method), ("status", &status)];
                    ConstCounter::new(count).encode(family.encode_family(&labels)?)?;
                }
            }
        }
        Ok(())
    }
}
