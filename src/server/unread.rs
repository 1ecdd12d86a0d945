//! Reads the rest of a request's body when the handler has not, so that the connection can be used again.
//!
//! hyper closes a connection whose request is answered before the whole body has arrived, and the answer does not say so. The
//! client's next request on it would be lost, and the client could not tell whether that took effect.

use super::activity::Activity;
use bytes::Bytes;
use http::{HeaderMap, header};
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// The most bytes that are read; with a longer rest the connection is closed.
const UNREAD_BYTES_MAX: usize = 1 << 20;

/// How long the rest may take to arrive.
const UNREAD_TIMEOUT: Duration = Duration::from_secs(5);

/// A request's body. If it is dropped before its end, the rest is read and discarded.
pub(super) struct Unread {
    /// `None` once the body has ended, or if the rest must not be read.
    rest: Option<Incoming>,
    is_awaited: bool,
    activity: Arc<Activity>,
}

impl Unread {
    /// Wraps the body of a request with these headers.
    pub(super) fn new(body: Incoming, headers: &HeaderMap, activity: Arc<Activity>) -> Self {
        // The client waits for `100 Continue`. Reading would ask it for a body that nobody wants.
        let is_awaited = headers.contains_key(header::EXPECT);
        activity.note_sending(false);
        Self { rest: Some(body), is_awaited, activity }
    }
}

impl Body for Unread {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let Some(rest) = &mut self.rest else { return Poll::Ready(None) };
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
        self.rest.as_ref().map_or_else(|| SizeHint::with_exact(0), Incoming::size_hint)
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        let Some(rest) = self.rest.take() else { return };
        if rest.is_end_stream() || self.is_awaited {
            return;
        }
        self.activity.note_sending(true);
        if rest.size_hint().lower() > UNREAD_BYTES_MAX as u64 {
            return;
        }
        // Outside a runtime there is no connection to keep.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let activity = self.activity.clone();
            runtime.spawn(tokio::time::timeout(UNREAD_TIMEOUT, take_in(rest, activity)));
        }
    }
}

async fn take_in(mut rest: Incoming, activity: Arc<Activity>) {
    let mut left = UNREAD_BYTES_MAX;
    while let Some(Ok(frame)) = rest.frame().await {
        let bytes = frame.data_ref().map_or(0, Bytes::len);
        let Some(less) = left.checked_sub(bytes) else { return };
        left = less;
    }
    activity.note_sending(false);
}
