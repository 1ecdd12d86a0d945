//! Responses: of success, and the problem documents of all failures.

pub(crate) mod document;
pub(crate) mod outgoing;
pub mod problem;
pub(crate) mod refusals;
pub(crate) mod success;

pub(crate) use problem::{Code, Problem, RequestFault};

use axum::response::Response;
use http::{HeaderName, HeaderValue};

/// The result of a handler.
pub(crate) type HandlerResult = Result<Response, Problem>;

/// The header with the request's ID; every response has it.
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Marks a response that repeats the stored outcome of an earlier request.
pub(crate) fn mark_replayed(mut response: Response, replayed: bool) -> Response {
    if replayed {
        response
            .headers_mut()
            .insert("idempotency-replayed", HeaderValue::from_static("true"));
    }
    response
}
