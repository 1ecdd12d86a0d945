//! HTTP connections: hyper parses requests, the service responds.

use crate::http::HttpService;
use crate::socket::{Peer, Phase, Vitals};
use axum::body::{Body, Bytes, HttpBody};
use http::header;
use http_body_util::BodyExt;
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};

/// Minimum and maximum size of the parser's buffer, in bytes.
const HTTP_BUFFER_BYTES: (usize, usize) = (8 << 10, 16 << 20);

/// Maximum number of bytes read after a response that did not wait for the body; with a longer rest, the connection is closed.
const UNREAD_BYTES_MAX: usize = 1 << 20;

/// Time for that rest to arrive.
const UNREAD_TIMEOUT: Duration = Duration::from_secs(5);

/// The protocol HTTP; clones serve the same service.
#[derive(Clone)]
pub(super) struct Http {
    service: HttpService,
    connections: http1::Builder,
}

impl Http {
    /// Serves a service. A request's line and headers have at most `head_bytes_max` bytes.
    pub(super) fn new(service: HttpService, head_bytes_max: u64) -> Self {
        let head_bytes_max = usize::try_from(head_bytes_max).unwrap_or(usize::MAX);
        let (least, most) = HTTP_BUFFER_BYTES;
        let mut connections = http1::Builder::new();
        // The sweep replaces hyper's timer, which counts the time between two requests as well.
        connections
            .header_read_timeout(None)
            // A client may close its sending side after the request, and still receives the response.
            .half_close(true)
            .max_header_size(head_bytes_max)
            .max_buf_size(head_bytes_max.clamp(least, most));
        Self {
            service,
            connections,
        }
    }

    /// Serves a connection until it ends, or until it shall drain and its request is finished.
    pub(super) async fn serve(
        self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        peer: Peer,
    ) -> io::Result<()> {
        let Self {
            service,
            connections,
        } = self;
        let service = service.for_connection();
        let vitals = peer.vitals.clone();
        let respond = service_fn(move |mut request: hyper::Request<Incoming>| {
            let service = service.clone();
            let vitals = peer.vitals.clone();
            vitals.enter(Phase::Busy);
            vitals.is_body_unread.store(false, Relaxed);
            request.extensions_mut().insert(peer.clone());
            let is_awaited = request.headers().contains_key(header::EXPECT);
            let request = request.map(|body| {
                Body::new(Unread {
                    rest: Some(body),
                    is_awaited,
                    vitals: vitals.clone(),
                })
            });
            // Boxed: otherwise an idle connection would reserve the memory of a handler.
            Box::pin(async move {
                let response = service.respond(request).await;
                Ok::<_, Infallible>(responded(response, vitals))
            })
        });
        let mut connection = pin!(connections.serve_connection(TokioIo::new(stream), respond));
        tokio::select! {
            biased;
            ended = connection.as_mut() => return ended.map_err(io::Error::other),
            () = vitals.draining() => {}
        }
        connection.as_mut().graceful_shutdown();
        connection.await.map_err(io::Error::other)
    }
}

/// Records the end of the response: immediately if it is complete, otherwise at the end of its body.
fn responded(response: hyper::Response<Body>, vitals: Arc<Vitals>) -> hyper::Response<Body> {
    if response.body().size_hint().exact().is_some() {
        vitals.enter(Phase::Idle);
        return response;
    }
    let end = StreamedResponse { vitals };
    // Dropped with the body.
    response.map(|body| Body::new(body.map_frame(move |frame| (&end, frame).1)))
}

/// A response body that is produced while it is sent, until it is dropped.
struct StreamedResponse {
    vitals: Arc<Vitals>,
}

impl Drop for StreamedResponse {
    fn drop(&mut self) {
        self.vitals.enter(Phase::Idle);
    }
}

/// A request body. If it is dropped before its end, the rest is read and discarded.
///
/// hyper closes a connection whose request is answered before the complete body has arrived, and the response does not say so. The
/// client's next request on it would be lost, and the client could not learn whether that took effect.
struct Unread {
    /// `None` once the body has ended.
    rest: Option<Incoming>,
    /// Whether the client waits for `100 Continue`. Reading would request a body that no handler reads.
    is_awaited: bool,
    vitals: Arc<Vitals>,
}

impl HttpBody for Unread {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let Some(rest) = &mut self.rest else {
            return Poll::Ready(None);
        };
        let frame = Pin::new(rest).poll_frame(context);
        if matches!(frame, Poll::Ready(None | Some(Err(_)))) {
            self.rest = None;
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.rest.as_ref().is_none_or(Incoming::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.rest
            .as_ref()
            .map_or_else(|| SizeHint::with_exact(0), Incoming::size_hint)
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        let Some(rest) = self.rest.take() else { return };
        if rest.is_end_stream() || self.is_awaited {
            return;
        }
        self.vitals.is_body_unread.store(true, Relaxed);
        if rest.size_hint().lower() > UNREAD_BYTES_MAX as u64 {
            return;
        }
        // Outside a runtime there is no connection to keep.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(tokio::time::timeout(
                UNREAD_TIMEOUT,
                discard(rest, self.vitals.clone()),
            ));
        }
    }
}

async fn discard(mut rest: Incoming, vitals: Arc<Vitals>) {
    let mut left = UNREAD_BYTES_MAX;
    while let Some(Ok(frame)) = rest.frame().await {
        let bytes = frame.data_ref().map_or(0, Bytes::len);
        let Some(less) = left.checked_sub(bytes) else {
            return;
        };
        left = less;
    }
    vitals.is_body_unread.store(false, Relaxed);
}
