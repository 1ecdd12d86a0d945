//! The service that connections call. It finds the route of a request, takes the request through the gate to its handler, and
//! compresses a long answer if the client asks for it. The busiest routes go past the router.
//!
//! Layers of the router could do the same. But for every request, each of them would clone a boxed service and box a future.

use super::api::Api;
use super::gate::{self, Gate};
use super::shortcuts::Shortcut;
use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use futures_util::future::BoxFuture;
use http::header;
use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};
use tower::{Service, ServiceExt};
use tower_http::compression::Compression;
use tower_http::compression::predicate::{DefaultPredicate, Predicate, SizeAbove};

/// The shortest answer that is compressed, in bytes. A shorter one fits a network packet as it is.
const COMPRESSED_BYTES_MIN: u64 = 1_024;

/// The whole HTTP interface.
#[derive(Clone)]
pub struct HttpService(Arc<Parts>);

struct Parts {
    /// The documented routes by their paths. The rest of the routes are public pages, which the gate need not tell apart.
    routes: matchit::Router<Route>,
    gate: Gate,
    api: Arc<Api>,
    router: Router,
}

/// A documented route.
struct Route {
    path: String,
    shortcut: Option<Shortcut>,
}

impl HttpService {
    /// Puts the gate before a router.
    pub(super) fn new<'a>(
        paths: impl IntoIterator<Item = &'a String>,
        gate: Gate,
        api: Arc<Api>,
        router: Router,
    ) -> Self {
        let mut routes = matchit::Router::new();
        for path in paths {
            let route = Route { path: path.clone(), shortcut: Shortcut::to(path) };
            routes.insert(path, route).expect("the router has accepted the same paths");
        }
        Self(Arc::new(Parts { routes, gate, api, router }))
    }

    /// Answers a request.
    pub async fn answer(self, request: Request) -> Response {
        if !request.headers().contains_key(header::ACCEPT_ENCODING) {
            return self.answer_plainly(request).await;
        }
        let long = DefaultPredicate::new().and(SizeAbove::new(COMPRESSED_BYTES_MIN));
        let Ok(answer) = Compression::new(Plain(self)).compress_when(long).oneshot(request).await;
        answer.map(Body::new)
    }

    /// Answers a request without compression.
    async fn answer_plainly(&self, request: Request) -> Response {
        let Parts { routes, gate, api, router } = &*self.0;
        let found = routes.at(request.uri().path()).ok();
        let route = found.as_ref().map(|found| found.value.path.as_str());
        let short = found.as_ref().and_then(|found| {
            let name = found.params.iter().next().map(|(_, name)| name);
            let shortcut = found.value.shortcut.filter(|to| to.takes(request.method(), name))?;
            Some((shortcut, name.unwrap_or_default().to_owned()))
        });
        let next = async |request| match short {
            Some((shortcut, name)) => shortcut.answer(api.clone(), name, request).await,
            None => {
                let Ok(answer) = router.clone().call(request).await;
                answer
            }
        };
        gate::pass(gate, route, request, next).await
    }
}

/// The service without compression.
#[derive(Clone)]
struct Plain(HttpService);

impl Service<Request> for Plain {
    type Response = Response;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request) -> Self::Future {
        let Self(service) = self.clone();
        Box::pin(async move { Ok(service.answer_plainly(request).await) })
    }
}
