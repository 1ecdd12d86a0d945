//! JSON answers.

use super::headers::mark_replayed;
use super::held::Held;
use super::problem::{Code, Problem};
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};
use serde::Serialize;

/// The media type of one JSON value per line.
pub(crate) const NDJSON: &str = "application/x-ndjson";

/// The media type of comma-separated values.
pub(crate) const CSV: &str = "text/csv";

/// Builds a JSON answer.
pub(crate) fn json(status: StatusCode, replayed: bool, body: &impl Serialize) -> Response {
    match serde_json::to_vec(body) {
        Ok(body) => json_bytes(status, replayed, body),
        Err(error) => unwritable(error).into_response(),
    }
}

/// The problem of an answer that can't be written as JSON.
pub(crate) fn unwritable(error: serde_json::Error) -> Problem {
    tracing::error!(%error, "an answer can't be written as JSON");
    Problem::new(Code::Internal, "see the service's log")
}

/// Builds an answer from JSON text.
pub(crate) fn json_bytes(status: StatusCode, replayed: bool, body: Vec<u8>) -> Response {
    let mut response = as_json((status, body));
    if replayed {
        mark_replayed(&mut response);
    }
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

/// Builds an answer from JSON text that is kept for as long as the process runs. It is not copied.
pub(crate) fn json_text(body: &'static str) -> Response {
    as_json(body)
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
