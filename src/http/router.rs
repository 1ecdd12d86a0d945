//! All routes of the API, and their operations as the routes declare them. The first argument of a handler, a [`Call`](super::call::Call),
//! declares the required permission. The checks before handlers, audit log, metrics and document read this one table.

use super::api::ApiHandle;
use super::call::{AccessRule, Direct, Effect, Right, Takes, direct};
use super::filters::{campaigns, coupons};
use super::response::{Code, Problem};
use super::{
    admin, codes, customers, eligibility, events, generate, imports, pages, redemptions, users,
};
use crate::access::Scope;
use crate::tally::{WorkerCounter, WorkerHistogram};
use axum::body::HttpBody;
use axum::extract::Request;
use http::{Method, StatusCode};
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use utoipa::openapi::path::{Parameter, ParameterIn};
use utoipa::openapi::{self, RefOr, SecurityRequirement};
use utoipa_axum::router::{OpenApiRouter, UtoipaMethodRouter};
use utoipa_axum::routes;

/// The name of the security scheme in the OpenAPI document.
pub(super) const SECURITY_SCHEME: &str = "bearer";

/// The route of a handler, and its requirements; `direct` for frequent requests, which are routed once.
macro_rules! route {
    (direct $($handler:tt)*) => {
        (Some(rule($($handler)*)), Some(direct($($handler)*)), routes!($($handler)*))
    };
    ($($handler:tt)*) => {
        (Some(rule($($handler)*)), None, routes!($($handler)*))
    };
}

/// What [`route!`] declares.
type DeclaredRoute = (
    Option<AccessRule>,
    Option<Direct>,
    UtoipaMethodRouter<ApiHandle>,
);

/// Returns the requirements of a handler.
fn rule<A, H: Takes<A>>(_: H) -> AccessRule {
    H::Right::RULE
}

fn documented_statuses(operation: &openapi::path::Operation) -> Vec<u16> {
    operation
        .responses
        .responses
        .keys()
        .filter_map(|status| status.parse().ok())
        .collect()
}

fn is_in_query(parameter: &RefOr<Parameter>) -> bool {
    matches!(parameter, RefOr::T(parameter) if parameter.parameter_in == ParameterIn::Query)
}

/// All routes, and the document that describes them.
pub(super) fn routes() -> Routes {
    let all = [
        // Campaigns
        route!(campaigns::list),
        route!(campaigns::get),
        route!(campaigns::put),
        route!(campaigns::patch),
        route!(campaigns::delete),
        route!(campaigns::clear),
        route!(campaigns::statistics),
        route!(campaigns::get_image),
        route!(campaigns::put_image),
        route!(direct users::add),
        route!(direct users::check),
        route!(users::count),
        route!(users::remove),
        route!(users::replace),
        route!(imports::import_users),
        // Which campaigns a user may see
        route!(eligibility::one),
        route!(eligibility::batch),
        route!(eligibility::list_line_ups),
        route!(eligibility::get_line_up),
        route!(eligibility::put_line_up),
        route!(eligibility::delete_line_up),
        // Coupons
        route!(coupons::list),
        route!(coupons::get),
        route!(coupons::put),
        route!(coupons::patch),
        route!(coupons::delete),
        route!(coupons::clear),
        route!(coupons::statistics),
        route!(coupons::get_image),
        route!(coupons::put_image),
        route!(codes::add),
        route!(generate::generate),
        route!(direct codes::check),
        route!(codes::count),
        route!(codes::look_up),
        route!(codes::remove),
        route!(codes::replace),
        route!(imports::import_codes),
        // Using codes
        route!(direct redemptions::redeem),
        route!(redemptions::list),
        route!(redemptions::get),
        route!(redemptions::confirm),
        route!(redemptions::cancel),
        route!(customers::look_up),
        // Operations
        route!(imports::list),
        route!(imports::get),
        route!(imports::stop),
        route!(admin::info),
        route!(admin::plan),
        route!(admin::cluster),
        route!(events::list),
        route!(admin::snapshot),
        route!(admin::backup),
        // For everybody
        (None, None, routes!(admin::livez)),
        (None, None, routes!(admin::readyz)),
        (None, None, routes!(admin::metrics)),
        (None, None, routes!(pages::openapi)),
    ];
    all.into_iter().fold(Routes::default(), Routes::add)
}

/// Routes, and their declarations.
#[derive(Default)]
pub(super) struct Routes {
    pub(super) router: OpenApiRouter<ApiHandle>,
    pub(super) operations: Vec<Operation>,
}

impl Routes {
    /// Adds a route.
    fn add(mut self, (access, direct, mut routes): DeclaredRoute) -> Self {
        for (path, item) in &mut routes.1.paths {
            let operations = [
                (Method::GET, &mut item.get),
                (Method::PUT, &mut item.put),
                (Method::POST, &mut item.post),
                (Method::PATCH, &mut item.patch),
                (Method::DELETE, &mut item.delete),
            ];
            for (method, operation) in operations {
                let Some(operation) = operation else { continue };
                let security = access.map(|access| {
                    let scopes = [Some(access.scope), access.also];
                    let scopes = scopes.into_iter().flatten().map(Scope::as_str);
                    SecurityRequirement::new(SECURITY_SCHEME, scopes)
                });
                operation.security = Some(security.into_iter().collect());
                self.operations.push(Operation {
                    name_at: path.find('{').unwrap_or(path.len()),
                    path: path.clone(),
                    method,
                    id: operation.operation_id.clone().unwrap_or_default(),
                    tag: operation
                        .tags
                        .iter()
                        .flatten()
                        .next()
                        .cloned()
                        .unwrap_or_default(),
                    access,
                    takes_query: operation.parameters.iter().flatten().any(is_in_query),
                    takes_body: operation.request_body.is_some(),
                    statuses: documented_statuses(operation),
                    direct: direct.clone(),
                });
            }
        }
        self.router = self.router.routes(routes);
        self
    }
}

/// The length of `{}`, which some clients send as no body.
pub(super) const NOTHING_BYTES: u64 = 2;

/// The label of requests that match no documented route.
const NO_ROUTE: &str = "none";

const METHODS: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "other"];

/// The statuses with separate counters, in order; the last one is for all others.
const STATUSES: [u16; 24] = [
    200, 201, 204, 206, 304, 308, 400, 401, 403, 404, 405, 406, 408, 409, 410, 413, 415, 422, 429,
    500, 501, 503, 507, 0,
];

/// Usual responses on paths without operations: pages for people, and mistakes.
const NO_ROUTE_ANSWERS: [(&str, u16); 7] = [
    ("GET", 200),
    ("GET", 304),
    ("GET", 401),
    ("GET", 403),
    ("GET", 404),
    ("GET", 503),
    ("POST", 404),
];

fn method_index(method: &str) -> usize {
    METHODS
        .iter()
        .position(|known| *known == method)
        .unwrap_or(METHODS.len() - 1)
}

/// One operation.
#[derive(Clone)]
pub(super) struct Operation {
    pub(super) path: String,
    /// Where its first parameter is, in bytes.
    name_at: usize,
    pub(super) method: Method,
    /// Its id in the document, which names it in the audit log.
    pub(super) id: String,
    pub(super) tag: String,
    /// `None` for an operation that requires no key.
    pub(super) access: Option<AccessRule>,
    /// Whether it has parameters in the query.
    pub(super) takes_query: bool,
    pub(super) takes_body: bool,
    /// The statuses that its handler documents. `openapi.rs` adds those of all operations of its kind.
    pub(super) statuses: Vec<u16>,
    pub(super) direct: Option<Direct>,
}

impl Operation {
    /// Whether it changes nothing, and has a position of the log.
    pub(super) fn is_read(&self) -> bool {
        self.access
            .is_some_and(|access| access.effect == Effect::Reads)
    }

    /// The first parameter of a path that matches this operation's, if it has no escapes.
    pub(super) fn name_in<'a>(&self, path: &'a str) -> Option<&'a str> {
        let rest = path.get(self.name_at..)?;
        if path.contains('%') {
            return None;
        }
        rest.split('/').next()
    }

    /// Rejects parameters and a body if the operation has none. A client that sends `?dry_run=true` with a clear expects no change.
    pub(super) fn require_expected(&self, request: &Request) -> Result<(), Problem> {
        let query = request
            .uri()
            .query()
            .filter(|_| self.access.is_some() && !self.takes_query);
        if let Some((name, _)) =
            query.and_then(|query| form_urlencoded::parse(query.as_bytes()).next())
        {
            return Err(Problem::invalid_at(
                &format!("/{name}"),
                "this operation has no parameters",
            ));
        }
        let writes = self.access.is_some() && !self.is_read();
        if writes && !self.takes_body && request.body().size_hint().lower() > NOTHING_BYTES {
            return Err(Problem::new(
                Code::InvalidRequest,
                "this operation takes no body",
            ));
        }
        Ok(())
    }

    /// Whether it accepts requests of this method. `HEAD` is answered like `GET`.
    fn accepts(&self, method: &str) -> bool {
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

/// Responses, by route, method and status.
type Requests = Family<[(&'static str, String); 3], WorkerCounter>;

/// All operations, by path and method, with their metrics.
pub(super) struct Operations {
    paths: matchit::Router<usize>,
    routes: Vec<Route>,
    other: Route,
}

/// A path and the operations that it has.
pub(super) struct Route {
    /// With its parameters in braces, if it has operations.
    pub(super) path: Option<String>,
    operations: Vec<Operation>,
    requests: Requests,
    /// The counters of `requests` that have ever been used, by method and status.
    responses: [[OnceLock<WorkerCounter>; STATUSES.len()]; METHODS.len()],
    /// By method.
    seconds: [WorkerHistogram; METHODS.len()],
}

impl Operations {
    /// The table of these operations, whose metrics are registered. `statuses` returns all documented statuses of an operation: their
    /// counters exist before the first event.
    pub(super) fn register(
        operations: Vec<Operation>,
        statuses: impl Fn(&Operation) -> Vec<u16>,
        registry: &mut Registry,
    ) -> Arc<Self> {
        let seconds =
            Family::<[(&'static str, String); 1], WorkerHistogram>::new_with_constructor(|| {
                WorkerHistogram::new(25e-6)
            });
        let help = "Time from a request's head to the head of its response";
        registry.register("http_request_duration_seconds", help, seconds.clone());
        let requests = Requests::default();
        registry.register("http_requests", "Requests answered", requests.clone());
        let route = |path: Option<String>, operations: Vec<Operation>| Route {
            seconds: METHODS.map(|method| {
                let operation = operations
                    .iter()
                    .find(|operation| operation.accepts(method));
                let group = operation.map_or_else(|| NO_ROUTE.into(), Operation::group);
                seconds.get_or_create(&[("group", group)]).clone()
            }),
            path,
            operations,
            requests: requests.clone(),
            responses: Default::default(),
        };
        let mut paths = matchit::Router::new();
        let mut routes = Vec::new();
        let mut sorted = operations;
        sorted.sort_by(|a, b| a.path.cmp(&b.path));
        for operations in sorted.chunk_by(|a, b| a.path == b.path) {
            let path = &operations[0].path;
            paths
                .insert(path, routes.len())
                .expect("the router has accepted the same paths");
            routes.push(route(Some(path.clone()), operations.to_vec()));
        }
        let other = route(None, Vec::new());
        for route in &routes {
            for operation in &route.operations {
                for status in statuses(operation) {
                    route.counter(operation.method.as_str(), status);
                }
            }
        }
        for (method, status) in NO_ROUTE_ANSWERS {
            other.counter(method, status);
        }
        Arc::new(Self {
            paths,
            routes,
            other,
        })
    }

    /// The route of a path; a common one for all paths without operations.
    pub(super) fn route(&self, path: &str) -> &Route {
        self.paths
            .at(path)
            .map_or(&self.other, |found| &self.routes[*found.value])
    }
}

impl Route {
    /// The operation of this method.
    pub(super) fn operation(&self, method: &Method) -> Option<&Operation> {
        self.operations
            .iter()
            .find(|operation| operation.accepts(method.as_str()))
    }

    /// Counts a response.
    pub(super) fn count(&self, method: &Method, status: StatusCode, took: Duration) {
        self.counter(method.as_str(), status.as_u16()).inc_by(1);
        self.seconds[method_index(method.as_str())].observe(took);
    }

    /// Returns the counter of a method's responses with this status. It is 0 before the first one.
    fn counter(&self, method: &str, status: u16) -> &WorkerCounter {
        let method = method_index(method);
        let known = &STATUSES[..STATUSES.len() - 1];
        let status = known.binary_search(&status).unwrap_or(known.len());
        self.responses[method][status].get_or_init(|| {
            let route = self.path.as_deref().unwrap_or(NO_ROUTE).to_owned();
            let status = match STATUSES[status] {
                0 => "other".to_owned(),
                status => status.to_string(),
            };
            let labels = [
                ("route", route),
                ("method", METHODS[method].to_owned()),
                ("status", status),
            ];
            self.requests.get_or_create(&labels).clone()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(is_wanted: impl Fn(&AccessRule) -> bool) -> Vec<String> {
        let operations = routes().operations.into_iter();
        let mut ids: Vec<String> = operations
            .filter(|operation| operation.access.as_ref().is_some_and(&is_wanted))
            .map(|operation| operation.id)
            .collect();
        ids.sort();
        ids
    }

    #[test]
    fn operations_require_contract_scopes() {
        let admin = [
            "backup",
            "delete_campaign",
            "delete_coupon",
            "delete_line_up",
            "get_campaign_image",
            "get_coupon_image",
            "list_events",
            "put_campaign_image",
            "put_coupon_image",
            "take_snapshot",
        ];
        assert_eq!(ids(|access| access.scope == Scope::Admin), admin);
        let redeem = [
            "cancel_redemption",
            "confirm_redemption",
            "look_up_codes",
            "look_up_customers",
            "redeem",
        ];
        assert_eq!(ids(|access| access.scope == Scope::Redeem), redeem);
        assert_eq!(
            ids(|access| access.scope == Scope::Read && access.effect != Effect::Reads),
            [""; 0]
        );
        assert_eq!(
            ids(|access| access.scope == Scope::Write && access.effect == Effect::Reads),
            [""; 0]
        );
        let without_key = [
            "import_codes",
            "import_users",
            "put_campaign_image",
            "put_coupon_image",
            "stop_import",
            "take_snapshot",
        ];
        assert_eq!(ids(|access| access.effect == Effect::Writes), without_key);
    }

    #[test]
    fn administrative_acts_are_audited() {
        let acts = [
            "backup",
            "clear_campaign",
            "clear_coupon",
            "delete_campaign",
            "delete_coupon",
            "delete_line_up",
            "get_campaign_image",
            "get_coupon_image",
            "import_codes",
            "import_users",
            "patch_campaign",
            "patch_coupon",
            "put_campaign",
            "put_campaign_image",
            "put_coupon",
            "put_coupon_image",
            "put_line_up",
            "stop_import",
            "take_snapshot",
        ];
        assert_eq!(ids(|access| access.is_audited), acts);
    }
}
