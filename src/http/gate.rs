//! What every request passes on its way in and out: readiness, keys, scopes and rates; metrics and problems.

use super::api::Api;
use super::auth::Caller;
use super::error;
use super::openapi;
use super::options::Scope;
use super::problem::{self, Code, Problem};
use crate::engine::Status;
use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, HeaderValue, Method};
use std::any::Any;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use tower_http::request_id::{MakeRequestId, RequestId};

/// The header that carries a request's id.
pub(super) const REQUEST_ID: &str = "x-request-id";

/// The longest request id that is taken over.
const REQUEST_ID_BYTES_MAX: usize = 128;

/// What the gate knows.
pub(super) struct Gate {
    api: Arc<Api>,
    /// The scope of each method of each route that takes one.
    scopes: HashMap<String, Vec<(Method, Scope)>>,
}

impl Gate {
    /// A gate for the routes of this document.
    pub(super) fn new(api: Arc<Api>, document: &serde_json::Value) -> Self {
        let mut scopes: HashMap<String, Vec<(Method, Scope)>> = HashMap::new();
        for (path, method, scope) in openapi::scopes(document) {
            if let (Ok(method), Some(scope)) = (method.parse(), scope.as_deref().and_then(Scope::named)) {
                scopes.entry(path).or_default().push((method, scope));
            }
        }
        Self { api, scopes }
    }

    fn admit(&self, request: &mut Request) -> Result<(), Problem> {
        let matched = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str);
        if matched == Some("/livez") {
            return Ok(());
        }
        if !self.api.engine.is_ready()
            && let status @ Status::Recovering(_) = self.api.engine.status()
        {
            return error::unready(status).map_or(Ok(()), Err);
        }
        let path = request.uri().path();
        if !matched.unwrap_or(path).starts_with("/v1") {
            return Ok(());
        }
        let caller = self.api.keys.caller(request.headers())?;
        self.api.rates.count(&caller)?;
        if let Some(route) = matched {
            self.permit(&caller, route, request.method(), path)?;
        }
        request.extensions_mut().insert(caller);
        Ok(())
    }

    fn permit(&self, caller: &Caller, route: &str, method: &Method, path: &str) -> Result<(), Problem> {
        let method = if method == Method::HEAD { &Method::GET } else { method };
        let methods = self.scopes.get(route).map(Vec::as_slice).unwrap_or_default();
        if let Some((_, scope)) = methods.iter().find(|(known, _)| known == method) {
            caller.require(*scope)?;
        }
        // Names have no characters that a path would escape, so what is escaped is no name that begins well.
        if (route.starts_with("/v1/campaigns/") || route.starts_with("/v1/coupons/"))
            && let Some(name) = path.split('/').nth(3)
        {
            caller.require_name(name)?;
        }
        Ok(())
    }
}

/// Lets a request in, or answers why not.
pub(super) async fn admit(State(gate): State<Arc<Gate>>, mut request: Request, next: Next) -> Response {
    match gate.admit(&mut request) {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    }
}

/// Counts an answer, and writes its problem if it has one.
pub(super) async fn observe(State(api): State<Arc<Api>>, request: Request, next: Next) -> Response {
    let begun = Instant::now();
    let route = request.extensions().get::<MatchedPath>().cloned();
    let id = request.headers().get(REQUEST_ID).cloned();
    let response = next.run(request).await;
    let (route, status) = (route.as_ref().map(MatchedPath::as_str), response.status());
    api.metrics.count(route, status, begun.elapsed());
    if status.is_success() {
        return response;
    }
    let id = id.as_ref().and_then(|id| id.to_str().ok()).unwrap_or_default();
    if matches!(status.as_u16(), 500 | 507) {
        let code = response.extensions().get::<Problem>().map_or("internal", |problem| problem.code.as_str());
        tracing::error!(request_id = id, route, code, "a request failed");
    }
    problem::render(response, id)
}

/// What is answered in place of a handler that panicked.
pub(super) fn panicked(_: Box<dyn Any + Send>) -> Response {
    Problem::new(Code::Internal, "see the service's log").into_response()
}

/// No route.
pub(super) async fn no_route() -> Problem {
    Problem::new(Code::RouteNotFound, "see /docs for what there is")
}

/// A route, but not with this method.
pub(super) async fn no_method() -> Problem {
    Problem::new(Code::MethodNotAllowed, "see the header Allow")
}

/// Drops a request id that should not come back, or into a log.
pub(super) fn vet_request_id<B>(mut request: http::Request<B>) -> http::Request<B> {
    let is_fine = |id: &HeaderValue| {
        (1..=REQUEST_ID_BYTES_MAX).contains(&id.len())
            && id.as_bytes().iter().all(|&b| b.is_ascii_alphanumeric() || b"-_.:/+=@".contains(&b))
    };
    let mut ids = request.headers().get_all(REQUEST_ID).iter();
    let is_sent_well = ids.next().is_none_or(is_fine) && ids.next().is_none();
    if !is_sent_well {
        request.headers_mut().remove(REQUEST_ID);
    }
    request
}

/// Request ids that cost next to nothing: a counter, hashed with a secret of the process.
#[derive(Clone, Default)]
pub(super) struct RequestIds {
    secret: RandomState,
    count: Arc<AtomicU64>,
}

impl MakeRequestId for RequestIds {
    fn make_request_id<B>(&mut self, _: &http::Request<B>) -> Option<RequestId> {
        let count = self.count.fetch_add(1, Ordering::Relaxed);
        let id = format!("{:016x}", self.secret.hash_one(count));
        HeaderValue::try_from(id).ok().map(RequestId::new)
    }
}

/// The span of a request, part of the caller's trace if there is one.
pub(super) fn span<B>(request: &http::Request<B>) -> tracing::Span {
    let text = |name| request.headers().get(name).and_then(|value| value.to_str().ok());
    let trace = trace_id(request.headers());
    let route = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str);
    let parent = trace.map(|(_, parent)| parent);
    let trace = trace.map(|(trace, _)| trace);
    tracing::debug_span!("request", method = %request.method(), route, request_id = text(REQUEST_ID), trace, parent)
}

/// Trace and parent ids of a W3C `traceparent`.
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
        let vetted = |ids: &[&[u8]]| {
            let mut request = http::Request::new(());
            for id in ids {
                request.headers_mut().append(REQUEST_ID, HeaderValue::from_bytes(id).unwrap());
            }
            vet_request_id(request).headers().contains_key(REQUEST_ID)
        };
        assert!(vetted(&[b"order-42/7"]));
        for bad in [&[&b""[..]][..], &[b"a b"], &[b"a\"b"], &[&[b'x'; 129]], &[b"a", b"b"]] {
            assert!(!vetted(bad));
        }
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
