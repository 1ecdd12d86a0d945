//! The service that connections call: it takes a request through the gate to its handler, and compresses a long answer if the client
//! asks for it.
//!
//! Layers of the router could do the same. But for every request, each of them would clone a boxed service and box a future.

use super::gate::Gate;
use super::pages::Unchanging;
use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use http::{Extensions, HeaderMap, header};
use std::convert::Infallible;
use std::sync::Arc;
use tower::{Service, ServiceExt, service_fn};
use tower_http::compression::Compression;
use tower_http::compression::predicate::{DefaultPredicate, Predicate, SizeAbove};

/// The shortest answer that is compressed, in bytes. A shorter one fits a network packet as it is.
const COMPRESSED_BYTES_MIN: u64 = 1_024;

/// The whole HTTP interface.
#[derive(Clone)]
pub struct HttpService(Arc<Parts>);

struct Parts {
    gate: Gate,
    router: Router,
}

impl HttpService {
    /// Puts the gate before a router.
    pub(super) fn new(gate: Gate, router: Router) -> Self {
        Self(Arc::new(Parts { gate, router }))
    }

    /// Answers a request.
    pub async fn answer(self, request: Request) -> Response {
        if !request.headers().contains_key(header::ACCEPT_ENCODING) {
            return self.answer_plainly(request).await;
        }
        let service = &self;
        let plain =
            service_fn(|request| async move { Ok::<_, Infallible>(service.answer_plainly(request).await) });
        let changes = |_, _, _: &HeaderMap, extensions: &Extensions| extensions.get::<Unchanging>().is_none();
        let long = DefaultPredicate::new().and(SizeAbove::new(COMPRESSED_BYTES_MIN)).and(changes);
        let Ok(answer) = Compression::new(plain).compress_when(long).oneshot(request).await;
        answer.map(Body::new)
    }

    /// Answers a request without compression.
    async fn answer_plainly(&self, request: Request) -> Response {
        let Parts { gate, router } = &*self.0;
        let next = async |request| {
            let Ok(answer) = router.clone().call(request).await;
            answer
        };
        gate.pass(request, next).await
    }
}
