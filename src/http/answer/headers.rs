//! Headers that answers of any kind carry.

use axum::response::Response;
use http::HeaderValue;

/// Carries an answer's id: every answer of the service has one.
pub const REQUEST_ID: &str = "x-request-id";

const IDEMPOTENCY_REPLAYED: &str = "idempotency-replayed";

/// Tells that an answer is an earlier request's.
pub(crate) fn mark_replayed(response: &mut Response) {
    response.headers_mut().insert(IDEMPOTENCY_REPLAYED, HeaderValue::from_static("true"));
}
