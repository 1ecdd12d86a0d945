//! Headers that every kind of answer can have.

use axum::response::Response;
use http::HeaderValue;

/// The header with the request's id; every answer has it.
pub const REQUEST_ID: &str = "x-request-id";

const IDEMPOTENCY_REPLAYED: &str = "idempotency-replayed";

/// Marks an answer as that of an earlier request.
pub(crate) fn mark_replayed(response: &mut Response) {
    response.headers_mut().insert(IDEMPOTENCY_REPLAYED, HeaderValue::from_static("true"));
}
