//! Outgoing answers, and the problem documents of all failures.

pub(crate) mod held;
pub mod problem;
pub(crate) mod refusals;
pub(crate) mod reply;

use axum::response::Response;
use http::HeaderValue;

/// The header with the request's id; every answer has it.
pub(crate) const REQUEST_ID: &str = "x-request-id";

/// Marks an answer as that of an earlier request.
pub(crate) fn mark_replayed(response: &mut Response) {
    response.headers_mut().insert("idempotency-replayed", HeaderValue::from_static("true"));
}
