//! Answers to requests that could not be parsed, and so have passed neither route nor gate.

pub use super::answer::headers::REQUEST_ID;

use super::answer::problem::{self, Code, Problem};
use axum::response::IntoResponse;
use bytes::Bytes;
use futures_util::FutureExt;
use http::StatusCode;
use http_body_util::BodyExt;
use std::hash::{BuildHasher, RandomState};

/// The problem document for this status, and the request id in it.
pub fn problem(status: StatusCode) -> (Bytes, String) {
    let detail = match status {
        StatusCode::URI_TOO_LONG => "the request line is too long; send items in the body",
        StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE => {
            "the headers are longer than server.header_bytes_max, or there are more than 100"
        }
        _ => "the request is not valid HTTP/1.1 (RFC 9112)",
    };
    // A new state has new random keys.
    let id = format!("{:016x}", RandomState::new().hash_one(status));
    let mut answer = Problem::new(Code::MalformedRequest, detail).into_response();
    *answer.status_mut() = status;
    let body = problem::render(answer, &id).into_body().collect().now_or_never();
    // The whole document is in memory.
    (body.and_then(Result::ok).unwrap_or_default().to_bytes(), id)
}
