//! HTTP connections: hyper parses them, the service answers.

use super::activity::{Activity, Phase};
use super::door::{Door, Visit};
use super::refusals::Refusals;
use super::unread::Unread;
use crate::http::HttpService;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::ConnectInfo;
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite};

/// The smallest buffer of the HTTP parser, and the largest that it is given, in bytes.
const HTTP_BUFFER_BYTES: (usize, usize) = (8 << 10, 16 << 20);

/// The HTTP service.
pub(super) struct HttpDoor {
    service: HttpService,
    graceful: GracefulShutdown,
    http: http1::Builder,
    head_bytes_max: usize,
}

impl HttpDoor {
    /// Serves the service. A request's line and headers have at most `head_bytes_max` bytes.
    pub(super) fn new(service: HttpService, head_bytes_max: u64) -> Self {
        let head_bytes_max = usize::try_from(head_bytes_max).unwrap_or(usize::MAX);
        let (least, most) = HTTP_BUFFER_BYTES;
        let mut http = http1::Builder::new();
        // Our sweep replaces hyper's timer, which would be set again for every request.
        http.header_read_timeout(None)
            .max_header_size(head_bytes_max)
            .max_buf_size(head_bytes_max.clamp(least, most));
        Self { service, graceful: GracefulShutdown::new(), http, head_bytes_max }
    }
}

impl Door for HttpDoor {
    type Visit = Connection;

    fn admit(&self, peer: SocketAddr, activity: Arc<Activity>) -> Connection {
        Connection {
            service: self.service.clone(),
            peer,
            watcher: self.graceful.watcher(),
            http: self.http.clone(),
            head_bytes_max: self.head_bytes_max,
            activity,
        }
    }

    fn drain(&mut self) -> impl Future<Output = ()> + 'static {
        std::mem::take(&mut self.graceful).shutdown()
    }
}

/// Everything that one connection needs to be served.
pub(super) struct Connection {
    service: HttpService,
    peer: SocketAddr,
    watcher: Watcher,
    http: http1::Builder,
    head_bytes_max: usize,
    activity: Arc<Activity>,
}

impl Visit for Connection {
    async fn serve<S>(self, stream: S) -> io::Result<()>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let Self { service, peer, watcher, http, head_bytes_max, activity } = self;
        activity.enter(Phase::New);
        let stream = Refusals::new(stream, activity.clone(), head_bytes_max);
        let answers = service_fn(move |request: hyper::Request<Incoming>| {
            activity.enter(Phase::Busy);
            let (mut parts, body) = request.into_parts();
            parts.extensions.insert(ConnectInfo(peer));
            let body = Unread::new(body, &parts.headers, activity.clone());
            let answer = service.clone().answer(hyper::Request::from_parts(parts, Body::new(body)));
            let activity = activity.clone();
            async move { Ok::<_, std::convert::Infallible>(answered(answer.await, activity)) }
        });
        watcher.watch(http.serve_connection(TokioIo::new(stream), answers)).await.map_err(io::Error::other)
    }
}

/// Records that the handler is done: now if the whole answer is ready, otherwise at the end of its body.
fn answered(answer: hyper::Response<Body>, activity: Arc<Activity>) -> hyper::Response<Body> {
    if answer.body().size_hint().exact().is_some() {
        activity.enter(Phase::Idle);
        return answer;
    }
    answer.map(|body| Body::new(Streamed { body, activity }))
}

/// An answer's body that is produced while it is sent.
struct Streamed {
    body: Body,
    activity: Arc<Activity>,
}

impl HttpBody for Streamed {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Streamed {
    fn drop(&mut self) {
        self.activity.enter(Phase::Idle);
    }
}
