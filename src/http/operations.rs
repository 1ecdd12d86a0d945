//! The operations of the API as their routes declare them: what each requires, and how often it was answered. Gate, audit log, metrics
//! and document read this one table.

use super::call::{AccessRule, Effect};
use super::metrics::{self, Figures};
use http::{Method, StatusCode};
use prometheus_client::encoding::EncodeMetric;
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The label of requests that match no documented route.
const NO_ROUTE: &str = "none";

const METHODS: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "other"];

/// The statuses that have counters of their own, in order; the last one stands for all others.
const STATUSES: [u16; 23] = [
    200, 201, 204, 206, 304, 308, 400, 401, 403, 404, 405, 406, 408, 409, 410, 413, 415, 422, 429, 500, 503,
    507, 0,
];

/// One operation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Operation {
    pub(super) path: String,
    pub(super) method: Method,
    /// Its id in the document, which names it in the audit log.
    pub(super) id: String,
    pub(super) tag: String,
    /// `None` for an operation that requires no key.
    pub(super) access: Option<AccessRule>,
}

impl Operation {
    /// Whether it changes nothing, and has a position of the log.
    pub(super) fn is_read(&self) -> bool {
        self.access.is_some_and(|access| access.effect == Effect::Reads)
    }

    /// Whether it answers requests of this method. `HEAD` is answered as `GET` is.
    fn answers(&self, method: &str) -> bool {
        self.method == method || (method == "HEAD" && self.method == Method::GET)
    }

    /// The label of its latency histogram.
    fn group(&self) -> String {
        match self.access {
            Some(access) => format!("{}-{}", self.tag, access.scope.as_str()),
            None => self.tag.clone(),
        }
    }
}

/// All operations, by path and method, with their metrics.
pub(super) struct Operations {
    paths: matchit::Router<usize>,
    routes: Vec<Route>,
    other: Route,
}

/// A path and the operations that it has.
pub(super) struct Route {
    path: Option<String>,
    operations: Vec<Operation>,
    answers: [[AtomicU64; STATUSES.len()]; METHODS.len()],
    /// By method.
    seconds: [Histogram; METHODS.len()],
}

impl Operations {
    /// The table of these operations, whose metrics are registered.
    pub(super) fn register(operations: Vec<Operation>, registry: &mut Registry) -> Arc<Self> {
        let seconds = Family::<[(&'static str, String); 1], Histogram>::new_with_constructor(|| {
            Histogram::new(exponential_buckets(25e-6, 2.0, 20))
        });
        let help = "Time from a request's head to the head of its answer";
        registry.register("http_request_duration_seconds", help, seconds.clone());
        let route = |path: Option<String>, operations: Vec<Operation>| Route {
            seconds: METHODS.map(|method| {
                let operation = operations.iter().find(|operation| operation.answers(method));
                let group = operation.map_or_else(|| NO_ROUTE.into(), Operation::group);
                seconds.get_or_create(&[("group", group)]).clone()
            }),
            path,
            operations,
            answers: Default::default(),
        };
        let (mut paths, mut routes) = (matchit::Router::new(), Vec::new());
        let mut sorted = operations;
        sorted.sort_by(|a, b| a.path.cmp(&b.path));
        for operations in sorted.chunk_by(|a, b| a.path == b.path) {
            let path = &operations[0].path;
            paths.insert(path, routes.len()).expect("the router has accepted the same paths");
            routes.push(route(Some(path.clone()), operations.to_vec()));
        }
        let table = Arc::new(Self { paths, routes, other: route(None, Vec::new()) });
        let counters = table.clone();
        metrics::register(registry, move |figures| counters.write(figures));
        table
    }

    /// The route of a path; a common one for all paths without operations.
    pub(super) fn route(&self, path: &str) -> &Route {
        self.paths.at(path).map_or(&self.other, |found| &self.routes[*found.value])
    }
}

impl Route {
    /// The path with its parameters in braces, if it has operations.
    pub(super) fn path(&self) -> Option<&str> {
        self.path.as_deref()
    }

    /// The operation of this method.
    pub(super) fn operation(&self, method: &Method) -> Option<&Operation> {
        self.operations.iter().find(|operation| operation.answers(method.as_str()))
    }

    /// Counts an answer.
    pub(super) fn count(&self, method: &Method, status: StatusCode, took: Duration) {
        let other = METHODS.len() - 1;
        let method = METHODS.iter().position(|known| *known == method.as_str()).unwrap_or(other);
        let known = &STATUSES[..STATUSES.len() - 1];
        let status = known.binary_search(&status.as_u16()).unwrap_or(known.len());
        self.answers[method][status].fetch_add(1, Ordering::Relaxed);
        self.seconds[method].observe(took.as_secs_f64());
    }
}

impl Operations {
    /// Adds the counters of answers.
    fn write(&self, figures: &mut Figures<'_>) -> fmt::Result {
        let (kind, encoder) = (MetricType::Counter, &mut figures.0);
        let mut family = encoder.encode_descriptor("http_requests", "Requests answered.", None, kind)?;
        for route in self.routes.iter().chain([&self.other]) {
            for (method, answers) in METHODS.iter().zip(&route.answers) {
                for (status, count) in STATUSES.iter().zip(answers) {
                    let count = count.load(Ordering::Relaxed);
                    if count == 0 {
                        continue;
                    }
                    let status = if *status == 0 { "other".to_owned() } else { status.to_string() };
                    let route = route.path().unwrap_or(NO_ROUTE);
                    let labels = [("route", route), ("method", *method), ("status", &status)];
                    ConstCounter::new(count).encode(family.encode_family(&labels)?)?;
                }
            }
        }
        Ok(())
    }
}
