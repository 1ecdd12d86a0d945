//! JSON answers.

use super::mark_replayed;
use super::problem::{Code, Problem};
use crate::budget::{Budget, Share};
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};
use hyper::body::{Frame, SizeHint};
use serde::Serialize;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// The media type of one JSON value per line.
pub(crate) const NDJSON: &str = "application/x-ndjson";

/// The media type of comma-separated values.
pub(crate) const CSV: &str = "text/csv";

/// Builds the response to a query: 200 with this JSON.
pub(crate) fn ok(body: &impl Serialize) -> Response {
    json(StatusCode::OK, false, body)
}

/// Builds a JSON answer.
pub(crate) fn json(status: StatusCode, replayed: bool, body: &impl Serialize) -> Response {
    let mut response = match serde_json::to_vec(body) {
        Ok(body) => as_json((status, body)),
        Err(error) => return unwritable(error).into_response(),
    };
    if replayed {
        mark_replayed(&mut response);
    }
    response
}

/// The problem of an answer that can't be written as JSON.
pub(crate) fn unwritable(error: serde_json::Error) -> Problem {
    tracing::error!(%error, "an answer can't be written as JSON");
    Problem::new(Code::Internal, "see the service's log")
}

/// Builds the response about something new, which is at this path.
pub(crate) fn created(path: &str, replayed: bool, body: &impl Serialize) -> Response {
    let mut response = json(StatusCode::CREATED, replayed, body);
    let path = HeaderValue::try_from(path).expect("names and ids are visible ASCII");
    response.headers_mut().insert(header::LOCATION, path);
    response
}

/// Builds the response of a file to download.
pub(crate) fn attachment(name: &str, body: Body) -> Response {
    let mut response = with_type("application/octet-stream", body);
    let disposition = format!("attachment; filename=\"{name}\"");
    let disposition = HeaderValue::try_from(disposition).expect("a file's name is visible ASCII");
    response.headers_mut().insert(header::CONTENT_DISPOSITION, disposition);
    response
}

/// Builds an answer that says no more than that it is done.
pub(crate) fn empty(replayed: bool) -> Response {
    let mut response = StatusCode::NO_CONTENT.into_response();
    if replayed {
        mark_replayed(&mut response);
    }
    response
}

/// Builds an answer from long JSON text, which has a share of the memory until it is sent.
pub(crate) fn json_held(body: Held) -> Response {
    as_json(Body::new(body))
}

fn as_json(body: impl IntoResponse) -> Response {
    with_type("application/json", body)
}

pub(crate) fn with_type(media_type: &'static str, body: impl IntoResponse) -> Response {
    let mut response = body.into_response();
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(media_type));
    response
}

/// The most bytes that are handed on at once: a connection may copy them.
const PIECE_BYTES_MAX: usize = 64 << 10;

/// A long answer.
pub(crate) struct Held(Bytes);

/// A text and its share; the text is dropped first.
struct Text {
    text: Vec<u8>,
    _share: Share<Arc<Budget>>,
}

impl AsRef<[u8]> for Text {
    fn as_ref(&self) -> &[u8] {
        &self.text
    }
}

impl Held {
    /// An answer of this text. The share is returned once no piece of the text is in memory any more.
    pub(crate) fn new(text: Vec<u8>, share: Share<Arc<Budget>>) -> Self {
        Self(Bytes::from_owner(Text { text, _share: share }))
    }
}

impl hyper::body::Body for Held {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.0.is_empty() {
            return Poll::Ready(None);
        }
        let length = self.0.len().min(PIECE_BYTES_MAX);
        Poll::Ready(Some(Ok(Frame::data(self.0.split_to(length)))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt;
    use hyper::body::Body as _;
    use prometheus_client::metrics::counter::Counter;
    use prometheus_client::metrics::gauge::Gauge;

    #[tokio::test]
    async fn the_share_is_returned_with_the_last_piece() {
        let taken = Gauge::default();
        let budget = Arc::new(Budget::new(1 << 20, taken.clone(), Counter::default()));
        let text: Vec<u8> = (0..2 * PIECE_BYTES_MAX + 1).map(|index| index as u8).collect();
        let share = Share::of(budget, text.len() as u64).unwrap();
        let mut held = Held::new(text.clone(), share);
        assert_eq!(held.size_hint().exact(), Some(text.len() as u64));
        let mut pieces = Vec::new();
        while let Some(Ok(frame)) = held.frame().await {
            pieces.push(frame.into_data().unwrap());
        }
        assert_eq!(pieces.concat(), text);
        assert_eq!(pieces.len(), 3);
        drop(held);
        pieces.drain(..2);
        assert_eq!(taken.get(), text.len() as u64, "a piece is left");
        drop(pieces);
        assert_eq!(taken.get(), 0);
    }
}
