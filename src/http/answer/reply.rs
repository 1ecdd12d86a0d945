//! JSON answers.

use super::headers::mark_replayed;
use super::problem::{Code, Problem};
use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};
use serde::Serialize;

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
    let mut response = (status, body).into_response();
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if replayed {
        mark_replayed(&mut response);
    }
    response
}
