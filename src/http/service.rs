//! The service around the router. It checks readiness, keys, scopes and rates before the handler runs. Afterwards it adds metrics, log lines
//! and problem documents, and compresses a long response if the client accepts that.
//!
//! Layers of the router could do the same. But for every request, each of them would clone a boxed service and box a future, which costs about
//! a microsecond.

use super::api::ApiHandle;
use super::request::source::{self, RequestSource};
use super::request::{head, origin};
use super::response::outgoing::{SharedBytes, Uncompressed, paced};
use super::response::{Code, Problem, REQUEST_ID, document, refusals};
use super::router::{Operation, Operations, Route};
use crate::access::{Caller, Denied, LogLimiter};
use crate::budget::Owner;
use crate::engine::{Engine, EngineStatus};
use crate::socket::{Peer, Vitals};
use axum::Router;
use axum::body::{Body, HttpBody};
use axum::extract::{Path, Request};
use axum::response::{IntoResponse, Response};
use cuckood_state::domain::Seq;
use futures_util::FutureExt;
use http::{Extensions, HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use parking_lot::Mutex;
use std::cell::Cell;
use std::convert::Infallible;
use std::future::poll_fn;
use std::hash::{BuildHasher, RandomState};
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tower::{Service, ServiceExt, service_fn};
use tower_http::compression::predicate::{DefaultPredicate, Predicate, SizeAbove};
use tower_http::compression::{Compression, CompressionLevel};
use tracing::Instrument;

/// The authentication scheme before a key; its letters may have either case.
const SCHEME: &[u8] = b"Bearer ";

/// The longest request id that is accepted from a client.
const REQUEST_ID_BYTES_MAX: usize = 128;

/// Minimum size of a compressed response, in bytes. A shorter one fits a network packet uncompressed.
const COMPRESSED_BYTES_MIN: u64 = 1_024;

/// The HTTP interface; clones share it.
#[derive(Clone)]
pub struct HttpService {
    parts: Arc<ServiceParts>,
    /// For the handlers.
    api: ApiHandle,
    offer: Offer,
}

/// The routes that a listener offers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Offer {
    Everything,
    /// `/livez`, `/readyz` and `/metrics`, which need no key.
    Probes,
}

struct ServiceParts {
    operations: Arc<Operations>,
    router: Router,
    /// Limits the log lines about writes that were rejected for lack of memory or disk space.
    room: LogLimiter,
    /// Limits the log lines about slow requests.
    slow: LogLimiter,
}

impl HttpService {
    /// Puts the checks of these operations before a router.
    pub(super) fn new(api: ApiHandle, operations: Arc<Operations>, router: Router) -> Self {
        let room = LogLimiter::default();
        let slow = LogLimiter::for_slow_requests();
        let parts = Arc::new(ServiceParts {
            operations,
            router,
            room,
            slow,
        });
        Self {
            parts,
            api,
            offer: Offer::Everything,
        }
    }

    /// Returns the same interface for one connection, whose requests change no reference count that others change.
    pub fn for_connection(&self) -> Arc<Self> {
        Arc::new(Self {
            parts: self.parts.clone(),
            api: self.api.for_connection(),
            offer: self.offer,
        })
    }

    /// Returns the same interface without the routes that need a key.
    pub fn probes(&self) -> Self {
        Self {
            offer: Offer::Probes,
            ..self.clone()
        }
    }

    /// Answers a request.
    pub async fn respond(&self, request: Request) -> Response {
        if !request.headers().contains_key(header::ACCEPT_ENCODING) {
            let (response, _) = self.respond_uncompressed(request).await;
            return paced(response, None);
        }
        // Boxed: otherwise every request would reserve its memory.
        self.respond_compressed(request).boxed().await
    }

    /// Answers a request, and compresses a long response.
    async fn respond_compressed(&self, request: Request) -> Response {
        let encoder = Mutex::new(None);
        let plain = service_fn(|request| async {
            let (mut response, owner) = self.respond_uncompressed(request).await;
            let status = response.status();
            response.extensions_mut().insert(status);
            let length = response.body().size_hint().exact();
            let extensions = response.extensions();
            if length.is_none_or(|length| length >= COMPRESSED_BYTES_MIN) && !is_final(extensions) {
                let share = self.api.responses.encoder(owner);
                if share.is_none() {
                    response.extensions_mut().insert(Uncompressed);
                }
                *encoder.lock() = share;
            }
            Ok::<_, Infallible>(response)
        });
        let may_be = |_, _, _: &HeaderMap, extensions: &Extensions| !is_final(extensions);
        let long = DefaultPredicate::new()
            .and(SizeAbove::new(COMPRESSED_BYTES_MIN))
            .and(may_be);
        let compression = Compression::new(plain)
            .quality(CompressionLevel::Fastest)
            .compress_when(long);
        let Ok(mut response) = compression.oneshot(request).await;
        // The layer makes it 406 if the client accepts no encoding that it knows, but the request has taken effect.
        if let Some(status) = response.extensions_mut().remove() {
            *response.status_mut() = status;
        }
        paced(response.map(Body::new), encoder.into_inner())
    }
}

/// Whether a response is sent as it is, whatever the client accepts.
fn is_final(extensions: &Extensions) -> bool {
    extensions.get::<Uncompressed>().is_some() || extensions.get::<SharedBytes>().is_some()
}

impl HttpService {
    /// Admits or rejects a request. Counts the response and its memory, and renders its problem if it has one. Returns the owner of the
    /// memory as well.
    async fn respond_uncompressed(&self, mut request: Request) -> (Response, Option<Owner>) {
        let parts = &*self.parts;
        let begun = Instant::now();
        let route = parts.operations.route(request.uri().path());
        let id = request_id(request.headers());
        let method = request.method().clone();
        let path = route.path.as_deref();
        let request_id = id.to_str().ok();
        let span = tracing::debug_span!("request", %method, route = path, request_id,
            trace = source::trace(request.headers())[0], parent = source::trace(request.headers())[1]);
        let mut slow = self
            .api
            .options
            .slow_request
            .map(|limit| Slow::new(limit, &request));
        let vitals = request
            .extensions()
            .get::<Peer>()
            .map(|peer| peer.vitals.clone());
        let operation = route.operation(&method);
        let is_read = operation.is_some_and(Operation::is_read);
        let is_api = path.unwrap_or(request.uri().path()).starts_with("/v1");
        let may_be_cached =
            !is_api && !matches!(request.uri().path(), "/livez" | "/readyz" | "/metrics");
        // The position shows how often others write.
        let mut is_stranger = !self.api.access.is_open();
        let mut act = None;
        let mut position = None;
        let mut owner = None;
        let mut response = {
            // Pinned where it is made: it is large, and each wrapper around it would copy it.
            let handled = pin!(async {
                let admitted = self.admit(&mut request, route, operation, &id, &mut is_stranger);
                owner = match self.offer {
                    Offer::Everything => request.extensions().get::<Caller>().map(Caller::owner),
                    Offer::Probes => Some(Owner::named(b"probes")),
                };
                let reached = match admitted {
                    Ok(()) if is_read => reach(&self.api.engine, request.headers()).await,
                    admitted => admitted,
                };
                // A read reflects everything applied before it started.
                position = is_read.then(|| self.api.engine.position());
                if let Err(problem) = reached {
                    return problem.into_response();
                }
                if let Some(slow) = &mut slow {
                    slow.caller = request.extensions().get().cloned();
                }
                act = operation
                    .and_then(|operation| AdministrativeAct::begun(operation, &request, &id));
                let direct = operation.and_then(|operation| {
                    let handler = operation.direct.as_ref()?;
                    let name = operation.name_in(request.uri().path())?;
                    Some((handler, Path(name.to_owned())))
                });
                let response = match direct {
                    Some((handler, name)) => {
                        handler(&self.api, name, request).await.into_response()
                    }
                    None => parts.router.clone().call(request).await.into_response(),
                };
                let counted = self.api.responses.count(owner, response);
                counted.unwrap_or_else(IntoResponse::into_response)
            });
            whole(in_turns(
                vitals.as_deref(),
                begun,
                handled.instrument(span.clone()),
            ))
            .await
        };
        let status = response.status();
        let took = begun.elapsed();
        route.count(&method, status, took);
        tracing::debug!(parent: &span, status = status.as_u16(), ?took, "answered");
        if let Some(slow) = slow.filter(|slow| took >= slow.limit)
            && let Some(suppressed) = parts.slow.next_line()
        {
            slow.log(&method, path, status, took, request_id, suppressed);
        }
        let code = response
            .extensions()
            .get::<Problem>()
            .map(|problem| problem.code);
        if let Some(mut act) = act {
            act.end = Some((status, code.map(Code::as_str)));
        }
        // The store logs the start and the end of a full disk.
        if let Some(code @ (Code::MemoryLimit | Code::TooManyFilters | Code::TooManyLineUps)) = code
            && let Some(suppressed) = parts.room.next_line()
        {
            tracing::warn!(
                route = path,
                code = code.as_str(),
                request_id,
                suppressed,
                "a write was refused"
            );
        }
        if status == StatusCode::INTERNAL_SERVER_ERROR {
            tracing::error!(parent: &span, request_id, route = path, "a request failed");
        }
        if !status.is_success() {
            let share = self.api.responses.share(owner);
            response = document::render(response, id.to_str().unwrap_or_default(), share);
        }
        // The key of an upload may have been removed since.
        if is_api && !is_stranger && code != Some(Code::Unauthenticated) {
            // A write's own entry was applied before its response.
            let position = position.unwrap_or_else(|| self.api.engine.position());
            response.headers_mut().insert(POSITION, position.0.into());
        }
        if !may_be_cached {
            response
                .headers_mut()
                .insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        }
        response.headers_mut().insert(REQUEST_ID, id);
        // hyper answers up to 16 requests of a client that has sent several before others have their turn.
        if let Some(vitals) = vitals
            && vitals.turn.lock().is_over(begun + took)
        {
            tokio::task::yield_now().await;
            vitals.turn.lock().end();
        }
        (response, owner)
    }

    /// Admits a request. `is_stranger` is cleared once its key is known to be valid, even if the request is rejected then.
    fn admit(
        &self,
        request: &mut Request,
        route: &Route,
        operation: Option<&Operation>,
        id: &HeaderValue,
        is_stranger: &mut bool,
    ) -> Result<(), Problem> {
        head::check(request)?;
        let path = request.uri().path();
        if self.offer == Offer::Probes {
            // Nothing else distinguishes clients without keys.
            if let Some(peer) = request.extensions().get::<Peer>() {
                let mut caller = Caller::anonymous();
                caller.set_address(peer.address.ip());
                peer.vitals.prove(caller.owner());
            }
            if !matches!(path, "/livez" | "/readyz" | "/metrics") {
                return Err(Code::RouteNotFound.into());
            }
        }
        // Health is not secret, and probes may use any host name.
        let is_probe = matches!(path, "/livez" | "/readyz");
        if !is_probe && self.offer == Offer::Everything && self.api.access.is_open() {
            let hosts = &self.api.options.hosts;
            origin::check(hosts, request.method(), request.uri(), request.headers())?;
        }
        if path == "/livez" {
            return Ok(());
        }
        let engine = &self.api.engine;
        let describes_node = matches!(path, "/readyz" | "/metrics");
        let stopped = if describes_node {
            None
        } else {
            engine.has_stopped()
        };
        let recovering =
            Some(engine.status()).filter(|status| matches!(status, EngineStatus::Recovering(_)));
        if let Some(problem) = stopped.or(recovering).and_then(refusals::unready) {
            return Err(problem);
        }
        if !route.path.as_deref().unwrap_or(path).starts_with("/v1") {
            return Ok(());
        }
        let refused = |denied: Denied, caller: Option<&Caller>| {
            if let Some(suppressed) = self.api.access.next_log_line(&denied) {
                let key = caller.map(Caller::name);
                let peer = request.extensions().get::<Peer>();
                let peer = peer.map(|peer| tracing::field::display(peer.address.ip()));
                // The path of an unknown route may contain a code.
                let route = route.path.as_deref().unwrap_or("none");
                let request_id = id.to_str().ok();
                let method = request.method();
                tracing::info!(%denied, key, peer, %method, route, request_id, suppressed, "a key was refused");
            }
            Problem::from(denied)
        };
        let access = &self.api.access;
        let mut caller = access
            .caller(presented_key(request.headers()))
            .map_err(|denied| refused(denied, None))?;
        let renewed = access.renew(&mut caller, || self.api.engine.time_of_day());
        *is_stranger &= renewed.is_err();
        if let Some(peer) = request.extensions().get::<Peer>() {
            caller.set_address(peer.address.ip());
            if renewed.is_ok() {
                peer.vitals.prove(caller.owner());
            }
        }
        let admitted = renewed.and_then(|()| access.count(&caller));
        let permitted = admitted.and_then(|()| match route.path.as_deref() {
            Some(route) => permit(&caller, route, operation, path),
            None => Ok(()),
        });
        permitted.map_err(|denied| refused(denied, Some(&caller)))?;
        operation.map_or(Ok(()), |operation| operation.require_expected(request))?;
        request.extensions_mut().insert(caller);
        Ok(())
    }
}

/// Refuses a caller that lacks the operation's scope, or may not use the name in the path.
fn permit(
    caller: &Caller,
    route: &str,
    operation: Option<&Operation>,
    path: &str,
) -> Result<(), Denied> {
    if let Some(access) = operation.and_then(|operation| operation.access) {
        caller.require(access.scope)?;
        access.also.map_or(Ok(()), |also| caller.require(also))?;
    }
    // No valid name contains a character that must be escaped in a path, so an escaped prefix never matches.
    let is_named = ["/v1/campaigns/", "/v1/coupons/", "/v1/line-ups/"];
    if !caller.prefix().is_empty()
        && is_named
            .iter()
            .any(|collection| route.starts_with(collection))
        && let Some(name) = path.split('/').nth(3)
    {
        caller.require_name(name)?;
    }
    Ok(())
}

/// The key in the `Authorization` header, if there is exactly one.
fn presented_key(headers: &HeaderMap) -> Option<&[u8]> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let (Some(value), None) = (values.next(), values.next()) else {
        return None;
    };
    let (scheme, key) = value.as_bytes().split_at_checked(SCHEME.len())?;
    (scheme.eq_ignore_ascii_case(SCHEME) && !key.is_empty()).then_some(key)
}

/// Runs the handler as part of its connection's turn, which ends when the handler waits.
async fn in_turns<T>(
    vitals: Option<&Vitals>,
    begun: Instant,
    handler: impl Future<Output = T>,
) -> T {
    let Some(vitals) = vitals else {
        return handler.await;
    };
    vitals.turn.lock().start(begun);
    let mut handler = pin!(handler);
    poll_fn(|context| {
        let polled = handler.as_mut().poll(context);
        if polled.is_pending() {
            vitals.turn.lock().end();
        }
        polled
    })
    .await
}

/// Turns a panic of the handler into a failure, so that the connection survives.
async fn whole(response: impl Future<Output = Response>) -> Response {
    let response = AssertUnwindSafe(response).catch_unwind().await;
    response.unwrap_or_else(|_| StatusCode::INTERNAL_SERVER_ERROR.into_response())
}

/// The data of a request that is logged if the response takes longer than the limit.
struct Slow {
    limit: Duration,
    source: RequestSource,
    /// Once it is admitted.
    caller: Option<Caller>,
}

impl Slow {
    fn new(limit: Duration, request: &Request) -> Self {
        Self {
            limit,
            source: RequestSource::of(request),
            caller: None,
        }
    }

    fn log(
        &self,
        method: &Method,
        route: Option<&str>,
        status: StatusCode,
        took: Duration,
        request_id: Option<&str>,
        suppressed: u64,
    ) {
        let key = self.key();
        let peer = self.source.peer();
        let [trace, parent] = self.source.trace();
        let status = status.as_u16();
        let seconds = took.as_secs_f64();
        tracing::info!(
            %method, route, status, seconds, key, peer, trace, parent, request_id, suppressed,
            "a request was slow"
        );
    }

    /// The name of its key.
    fn key(&self) -> Option<&str> {
        self.caller
            .as_ref()
            .map(Caller::name)
            .filter(|key| !key.is_empty())
    }
}

/// The longest target that is logged in full, in bytes. A path can have any length before it is rejected.
const TARGET_BYTES_MAX: usize = 300;

/// A running administrative act. It is dropped before its end if its connection is closed.
struct AdministrativeAct {
    name: String,
    key: String,
    target: String,
    source: RequestSource,
    request_id: HeaderValue,
    /// The status and the problem, once it has ended.
    end: Option<(StatusCode, Option<&'static str>)>,
}

impl AdministrativeAct {
    /// The administrative act of an admitted request, if it is one.
    fn begun(operation: &Operation, request: &Request, id: &HeaderValue) -> Option<Self> {
        operation.access.filter(|access| access.is_audited)?;
        let path = request.uri().path();
        let caller = request.extensions().get::<Caller>();
        Some(Self {
            name: operation.id.clone(),
            key: caller
                .map(|caller| caller.name().to_owned())
                .unwrap_or_default(),
            target: path.get(..TARGET_BYTES_MAX).unwrap_or(path).to_owned(),
            source: RequestSource::of(request),
            request_id: id.clone(),
            end: None,
        })
    }
}

impl Drop for AdministrativeAct {
    fn drop(&mut self) {
        let Self {
            name: act,
            key,
            target,
            source,
            request_id,
            end,
        } = self;
        let key = Some(key).filter(|key| !key.is_empty());
        let request_id = request_id.to_str().ok();
        let outcome = end.map_or("aborted: connection closed", |(_, problem)| {
            problem.unwrap_or("done")
        });
        let status = end.map(|(status, _)| status.as_u16());
        let peer = source.peer();
        let [trace, parent] = source.trace();
        tracing::info!(
            act,
            key,
            target,
            outcome,
            status,
            peer,
            trace,
            parent,
            request_id,
            "administrative act"
        );
    }
}

thread_local! {
    /// Makes the request ids of a worker.
    static REQUEST_IDS: RequestIds = RequestIds::default();
}

/// The id of a request: the client's own if it is harmless.
fn request_id(headers: &HeaderMap) -> HeaderValue {
    let mut sent = headers.get_all(REQUEST_ID).iter();
    match (sent.next(), sent.next()) {
        (Some(id), None) if is_harmless(id) => id.clone(),
        _ => REQUEST_IDS.with(RequestIds::make),
    }
}

/// Makes request ids cheaply, by hashing a counter with a secret.
#[derive(Default)]
struct RequestIds {
    secret: RandomState,
    count: Cell<u64>,
}

impl RequestIds {
    fn make(&self) -> HeaderValue {
        let count = self.count.get();
        self.count.set(count.wrapping_add(1));
        let id = self.secret.hash_one(count);
        let mut digits = [0; 16];
        hex::encode_to_slice(id.to_be_bytes(), &mut digits)
            .expect("eight bytes have sixteen digits");
        HeaderValue::from_bytes(&digits).expect("a header may contain hexadecimal digits")
    }
}

/// Whether a request id is safe to send back and to log.
fn is_harmless(id: &HeaderValue) -> bool {
    (1..=REQUEST_ID_BYTES_MAX).contains(&id.len())
        && id
            .as_bytes()
            .iter()
            .all(|&b| b.is_ascii_alphanumeric() || b"-_.:/+=@".contains(&b))
}

/// The position of the log that a response reflects.
pub(super) const POSITION: HeaderName = HeaderName::from_static("x-cuckood-position");

/// The minimum position that a response must reflect.
const MIN_POSITION: HeaderName = HeaderName::from_static("x-cuckood-min-position");

/// `strong` if nothing may be missing that was acknowledged before the request, on any node.
const CONSISTENCY: HeaderName = HeaderName::from_static("x-cuckood-consistency");

/// Waits until this node can respond as requested by the headers of a read.
///
/// # Errors
/// `malformed-request`, `too-far-behind`, `no-quorum`.
async fn reach(engine: &Engine, headers: &HeaderMap) -> Result<(), Problem> {
    let (min, is_strong) = asked(headers)?;
    if let Some(min) = min {
        engine.reached(min).await?;
    }
    if is_strong {
        engine.barrier().await?;
    }
    Ok(())
}

/// The position that a read must reflect at least, and whether it must reflect all that was acknowledged before.
fn asked(headers: &HeaderMap) -> Result<(Option<Seq>, bool), Problem> {
    let malformed = |detail: &'static str| Problem::new(Code::MalformedRequest, detail);
    let min = headers.get(MIN_POSITION).map(|value| {
        let number = value.to_str().ok().and_then(|text| text.parse().ok());
        number
            .map(Seq)
            .ok_or_else(|| malformed("X-Cuckood-Min-Position must be a number"))
    });
    let consistency = headers.get(CONSISTENCY);
    if consistency.is_some_and(|consistency| consistency != "strong") {
        return Err(malformed("X-Cuckood-Consistency can be `strong` only"));
    }
    Ok((min.transpose()?, consistency.is_some()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::{Budget, Share};

    #[test]
    fn harmless_request_id_is_echoed() {
        let is_taken_over = |ids: &[&[u8]]| {
            let mut headers = HeaderMap::new();
            for id in ids {
                headers.append(REQUEST_ID, HeaderValue::from_bytes(id).unwrap());
            }
            headers.get(REQUEST_ID) == Some(&request_id(&headers))
        };
        assert!(is_taken_over(&[b"order-42/7"]));
        for bad in [
            &[&b""[..]][..],
            &[b"a b"],
            &[b"a\"b"],
            &[&[b'x'; 129]],
            &[b"a", b"b"],
        ] {
            assert!(!is_taken_over(bad));
        }
    }

    #[tokio::test]
    async fn panic_fails_one_request() {
        let panics = async { panic!("on purpose") };
        let budget = Budget::new(0);
        let response = document::render(
            whole(panics).await,
            "checkout-9",
            Share::empty(Arc::new(budget), None),
        );
        assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
        assert_eq!(
            response.headers()["content-type"],
            "application/problem+json"
        );
    }

    #[test]
    fn consistency_headers_are_parsed_or_rejected() {
        let of = |pairs: &[(HeaderName, &'static str)]| {
            let headers = pairs
                .iter()
                .map(|(name, value)| (name.clone(), http::HeaderValue::from_static(value)));
            asked(&headers.collect())
        };
        assert_eq!(of(&[]).unwrap(), (None, false));
        let both = of(&[(MIN_POSITION, "17"), (CONSISTENCY, "strong")]).unwrap();
        assert_eq!(both, (Some(Seq(17)), true));
        for bad in [
            (MIN_POSITION, "-1"),
            (MIN_POSITION, ""),
            (CONSISTENCY, "weak"),
        ] {
            assert_eq!(of(&[bad]).unwrap_err().code, Code::MalformedRequest);
        }
    }
}
