//! The gate that every request passes on its way in and out. It checks readiness, keys, scopes and rates, and adds metrics and
//! problem documents. It is one function, [`pass`], rather than a layer for each: a layer costs a request about a microsecond.

use super::acts::{Acts, Refusals};
use super::answer::headers::REQUEST_ID;
use super::answer::problem::{self, Code, Problem};
use super::answer::refusals;
use super::api::Api;
use super::openapi;
use super::positions::{self, POSITION};
use super::request::origin;
use crate::access::{Caller, Denied, Scope};
use crate::domain::Seq;
use crate::engine::Status;
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use tracing::{Instrument, Span};

/// The authentication scheme before a key; its letters may have either case.
const SCHEME: &[u8] = b"Bearer ";

/// The longest request id that is accepted from a client.
const REQUEST_ID_BYTES_MAX: usize = 128;

/// What the document says about an operation that requires a key.
#[derive(Clone, Copy)]
struct Operation {
    /// The scope that it requires.
    scope: Scope,
    /// Whether it changes nothing.
    is_read: bool,
}

/// State of the gate.
pub(super) struct Gate {
    api: Arc<Api>,
    /// The operations of each route, by method.
    operations: HashMap<String, Vec<(Method, Operation)>>,
    acts: Acts,
    refusals: Refusals,
    ids: RequestIds,
}

impl Gate {
    /// Creates a gate for the routes of this document.
    pub(super) fn new(api: Arc<Api>, document: &serde_json::Value) -> Self {
        let mut operations: HashMap<String, Vec<(Method, Operation)>> = HashMap::new();
        for (path, method, scope) in openapi::scopes(document) {
            let Some(scope) = scope else { continue };
            let is_read = !openapi::is_write(&path, &method, &scope);
            if let (Ok(method), Some(scope)) = (method.parse(), Scope::named(&scope)) {
                operations.entry(path).or_default().push((method, Operation { scope, is_read }));
            }
        }
        let (acts, refusals) = (Acts::new(document), Refusals::new(api.access.clone()));
        Self { api, operations, acts, refusals, ids: RequestIds::default() }
    }

    /// The operation that a request is for, if it is one that requires a key. `HEAD` is answered as `GET` is.
    fn operation(&self, route: Option<&str>, method: &Method) -> Option<Operation> {
        let method = if method == Method::HEAD { &Method::GET } else { method };
        let (_, operation) = self.operations.get(route?)?.iter().find(|(known, _)| known == method)?;
        Some(*operation)
    }

    fn admit(
        &self,
        request: &mut Request,
        route: Option<&str>,
        operation: Option<Operation>,
        id: &HeaderValue,
    ) -> Result<(), Problem> {
        // Health is not secret, and probes may use any host name.
        let is_probe = matches!(route, Some("/livez" | "/readyz"));
        if !is_probe && self.api.access.entry.is_open() {
            let hosts = &self.api.options.hosts;
            origin::check(hosts, request.method(), request.uri(), request.headers())?;
        }
        if route == Some("/livez") {
            return Ok(());
        }
        if !self.api.engine.is_ready()
            && let status @ Status::Recovering(_) = self.api.engine.status()
        {
            return refusals::unready(status).map_or(Ok(()), Err);
        }
        if let Some(status) = self.api.engine.has_stopped()
            && !matches!(route, Some("/readyz" | "/metrics"))
        {
            return refusals::unready(status).map_or(Ok(()), Err);
        }
        let path = request.uri().path();
        if !route.unwrap_or(path).starts_with("/v1") {
            return Ok(());
        }
        let refused = |denied: Denied, caller: Option<&Caller>| {
            self.refusals.key(&denied, caller, request, route, id);
            Problem::from(denied)
        };
        let entry = &self.api.access.entry;
        let caller =
            entry.caller(presented_key(request.headers())).map_err(|denied| refused(denied, None))?;
        let admitted = entry.admit(&caller, || self.api.engine.now());
        let permitted = admitted.and_then(|()| match route {
            Some(route) => permit(&caller, route, operation, path),
            None => Ok(()),
        });
        permitted.map_err(|denied| refused(denied, Some(&caller)))?;
        request.extensions_mut().insert(caller);
        Ok(())
    }

    /// Logs a failure that operators should know of.
    fn log_failure(
        &self,
        status: StatusCode,
        code: Option<Code>,
        route: Option<&str>,
        id: &HeaderValue,
        span: &Span,
    ) {
        match code {
            // The store logs when this begins and ends.
            Some(Code::DiskFull) => {}
            Some(code @ (Code::MemoryLimit | Code::TooManyFilters | Code::TooManyLineUps)) => {
                self.refusals.room(route, code, id)
            }
            _ if status == StatusCode::INTERNAL_SERVER_ERROR => {
                tracing::error!(parent: span, request_id = id.to_str().ok(), route, "a request failed");
            }
            _ => {}
        }
    }

    /// The position that this node has applied, for an answer under `/v1` of one of several nodes.
    fn position(&self, route: Option<&str>) -> Option<Seq> {
        let engine = &self.api.engine;
        (engine.is_shared() && route.is_some_and(|route| route.starts_with("/v1"))).then(|| engine.position())
    }
}

/// Refuses a caller that lacks the operation's scope, or may not use the name in the path.
fn permit(caller: &Caller, route: &str, operation: Option<Operation>, path: &str) -> Result<(), Denied> {
    if let Some(Operation { scope, .. }) = operation {
        caller.require(scope)?;
    }
    // No valid name contains a character that must be escaped in a path, so an escaped prefix never matches.
    let is_named = ["/v1/campaigns/", "/v1/coupons/", "/v1/line-ups/"];
    if is_named.iter().any(|collection| route.starts_with(collection))
        && let Some(name) = path.split('/').nth(3)
    {
        caller.require_name(name)?;
    }
    Ok(())
}

/// The key in the `Authorization` header, if there is exactly one.
fn presented_key(headers: &HeaderMap) -> Option<&[u8]> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let (Some(value), None) = (values.next(), values.next()) else { return None };
    let (scheme, key) = value.as_bytes().split_at_checked(SCHEME.len())?;
    (scheme.eq_ignore_ascii_case(SCHEME) && !key.is_empty()).then_some(key)
}

/// Admits a request or refuses it. Counts the answer, and renders its problem if it has one. `next` is what lies behind the gate.
pub(super) async fn pass(
    gate: &Gate,
    route: Option<&str>,
    mut request: Request,
    next: impl AsyncFnOnce(Request) -> Response,
) -> Response {
    let begun = Instant::now();
    let id = gate.ids.of(request.headers());
    let span = span(&request, route, &id);
    let method = request.method().clone();
    let operation = gate.operation(route, &method);
    let is_read = operation.is_some_and(|operation| operation.is_read);
    let (mut act, mut before) = (None, None);
    let mut response = {
        // Pinned where it is made: it is large, and each wrapper around it would copy it.
        let answer = pin!(async {
            let admitted = gate.admit(&mut request, route, operation, &id);
            let reached = match admitted {
                Ok(()) if is_read => positions::reach(&gate.api.engine, request.headers()).await,
                admitted => admitted,
            };
            before = gate.position(route);
            match reached {
                Ok(()) => {
                    act = gate.acts.begun(&request, route, &id);
                    next(request).await
                }
                Err(problem) => problem.into_response(),
            }
        });
        whole(answer.instrument(span.clone())).await
    };
    let (status, took) = (response.status(), begun.elapsed());
    gate.api.metrics.count(route, &method, status, took);
    tracing::debug!(parent: &span, status = status.as_u16(), ?took, "answered");
    let code = response.extensions().get::<Problem>().map(|problem| problem.code);
    if let Some(act) = act {
        act.end(status, code.map(Code::as_str));
    }
    if !status.is_success() {
        gate.log_failure(status, code, route, &id, &span);
        response = problem::render(response, id.to_str().unwrap_or_default());
    }
    if let Some(before) = before {
        // A read reflects what was applied before it began; a write, its own entry, which was applied before it was answered.
        let position = if is_read { before } else { gate.position(route).unwrap_or(before) };
        response.headers_mut().insert(POSITION, position.0.into());
    }
    response.headers_mut().insert(REQUEST_ID, id);
    response
}

/// Turns a panic of the handler into a failure, so that the connection survives.
async fn whole(answer: impl Future<Output = Response>) -> Response {
    let answer = AssertUnwindSafe(answer).catch_unwind().await;
    answer.unwrap_or_else(|_| StatusCode::INTERNAL_SERVER_ERROR.into_response())
}

/// Answers for paths without a route.
pub(super) async fn no_route() -> Problem {
    Problem::new(Code::RouteNotFound, "see /docs for the routes")
}

/// Answers for methods that a route does not have.
pub(super) async fn no_method() -> Problem {
    Problem::new(Code::MethodNotAllowed, "see the header Allow")
}

/// Request ids. The client's own is used if it is harmless. Otherwise one is made cheaply, by hashing a counter with a secret of
/// the process.
#[derive(Default)]
struct RequestIds {
    secret: RandomState,
    count: AtomicU64,
}

impl RequestIds {
    fn of(&self, headers: &HeaderMap) -> HeaderValue {
        let mut sent = headers.get_all(REQUEST_ID).iter();
        match (sent.next(), sent.next()) {
            (Some(id), None) if is_harmless(id) => id.clone(),
            _ => self.make(),
        }
    }

    fn make(&self) -> HeaderValue {
        let id = self.secret.hash_one(self.count.fetch_add(1, Ordering::Relaxed));
        let mut digits = [0; 16];
        hex::encode_to_slice(id.to_be_bytes(), &mut digits).expect("eight bytes have sixteen digits");
        HeaderValue::from_bytes(&digits).expect("hexadecimal digits may stand in a header")
    }
}

/// Whether a request id is safe to send back and to log.
fn is_harmless(id: &HeaderValue) -> bool {
    (1..=REQUEST_ID_BYTES_MAX).contains(&id.len())
        && id.as_bytes().iter().all(|&b| b.is_ascii_alphanumeric() || b"-_.:/+=@".contains(&b))
}

/// The span of a request, which continues the caller's trace if there is one.
fn span(request: &Request, route: Option<&str>, id: &HeaderValue) -> Span {
    let (trace, parent) = trace_id(request.headers()).unzip();
    let id = id.to_str().ok();
    tracing::debug_span!("request", method = %request.method(), route, request_id = id, trace, parent)
}

/// The trace and parent ids in a W3C `traceparent` header.
fn trace_id(headers: &HeaderMap) -> Option<(&str, &str)> {
    let mut parts = headers.get("traceparent")?.to_str().ok()?.split('-');
    let (version, trace, parent) = (parts.next()?, parts.next()?, parts.next()?);
    let is_hex = |text: &str, length| {
        text.len() == length && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
    };
    let is_set = |text: &str| text.bytes().any(|b| b != b'0');
    let is_fine = is_hex(version, 2) && version != "ff" && is_hex(trace, 32) && is_hex(parent, 16);
    (is_fine && is_set(trace) && is_set(parent)).then_some((trace, parent))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_id_is_taken_over_if_it_is_harmless() {
        let is_taken_over = |ids: &[&[u8]]| {
            let mut headers = HeaderMap::new();
            for id in ids {
                headers.append(REQUEST_ID, HeaderValue::from_bytes(id).unwrap());
            }
            headers.get(REQUEST_ID) == Some(&RequestIds::default().of(&headers))
        };
        assert!(is_taken_over(&[b"order-42/7"]));
        for bad in [&[&b""[..]][..], &[b"a b"], &[b"a\"b"], &[&[b'x'; 129]], &[b"a", b"b"]] {
            assert!(!is_taken_over(bad));
        }
    }

    #[tokio::test]
    async fn a_panic_is_a_failure_of_one_request() {
        let panics = async { panic!("on purpose") };
        let answer = problem::render(whole(panics).await, "checkout-9");
        assert_eq!(answer.status(), StatusCode::INTERNAL_SERVER_ERROR);
        assert_eq!(answer.headers()["content-type"], "application/problem+json");
    }

    #[test]
    fn a_trace_is_taken_over_if_it_is_one() {
        let of = |value: &'static str| {
            let headers =
                HeaderMap::from_iter([("traceparent".parse().unwrap(), HeaderValue::from_static(value))]);
            trace_id(&headers).is_some()
        };
        assert!(of("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"));
        assert!(!of("00-00000000000000000000000000000000-00f067aa0ba902b7-01"));
        assert!(!of("ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"));
        assert!(!of("00-4bf9-00f067aa0ba902b7-01"));
    }
}
