//! JSON answers.

use super::held::Held;
use super::mark_replayed;
use super::problem::{Code, Problem};
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};
use serde::Serialize;

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
