//! What is answered to a request that could not even be parsed, and so has met no route and no gate.

pub use super::answer::headers::REQUEST_ID;

use super::answer::problem::{self, Code, Problem};
use axum::response::IntoResponse;
use bytes::Bytes;
use futures_util::FutureExt;
use http::StatusCode;
use http_body_util::BodyExt;
use std::hash::{BuildHasher, RandomState};

/// The problem document for this status, and the id of the request, which it also holds.
pub fn problem(status: StatusCode) -> (Bytes, String) {
    let detail = match status {
        StatusCode::URI_TOO_LONG => "the request line is too long; items travel in bodies",
        StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE => {
            "the headers are longer than server.header_bytes_max, or there are more than 100"
        }
        _ => "it is not HTTP/1.1 as RFC 9112 has it",
    };
    // The keys of a new state are new.
    let id = format!("{:016x}", RandomState::new().hash_one(status));
    let mut answer = Problem::new(Code::MalformedRequest, detail).into_response();
    *answer.status_mut() = status;
    let body = problem::render(answer, &id).into_body().collect().now_or_never();
    // The document is in memory, whole.
    (body.and_then(Result::ok).unwrap_or_default().to_bytes(), id)
}
