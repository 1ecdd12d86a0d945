//! Problem documents (RFC 9457): the body of every failure.

use super::outgoing::counted;
use super::problem::{Code, FAULT_BYTES, FAULTS_FREE, Problem, RequestFault};
use crate::budget::BudgetShare;
use axum::response::Response;
use cuckood_state::domain::Timestamp;
use http::{HeaderValue, StatusCode, header};
use serde::Serialize;
use utoipa::ToSchema;

/// A problem document (RFC 9457).
#[derive(Serialize, ToSchema)]
#[schema(as = Problem)]
pub struct Document<'a> {
    /// `urn:cuckood:problem:` and the code.
    #[schema(example = "urn:cuckood:problem:campaign-not-found")]
    r#type: String,
    /// What went wrong, for programs.
    code: Code,
    /// What went wrong, for people.
    title: &'a str,
    /// The HTTP status.
    #[schema(minimum = 400, maximum = 599)]
    status: u16,
    /// What happened in this case.
    detail: &'a str,
    /// The `X-Request-Id` of the response.
    request_id: &'a str,
    /// The parts of the request that are not valid.
    #[serde(skip_serializing_if = "<[RequestFault]>::is_empty")]
    #[schema(required = false, max_items = 20_000)]
    errors: &'a [RequestFault],
    /// With `code-held`: when the first hold of the code expires. Absent if it has ended since.
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at: Option<Timestamp>,
}

/// Writes a problem into the response's body. A failure without a problem gets the one that fits its status.
///
/// Many faults are held in the memory of bodies. If that is used up, the first ones are reported.
pub fn render(mut response: Response, request_id: &str, mut share: BudgetShare) -> Response {
    let status = response.status();
    let Some(mut problem) = response
        .extensions_mut()
        .remove::<Problem>()
        .or_else(|| bare(&response))
    else {
        return response;
    };
    if problem.faults.len() > FAULTS_FREE
        && share
            .hold((problem.faults.len() * FAULT_BYTES) as u64)
            .is_err()
    {
        problem.faults.truncate(FAULTS_FREE);
    }
    let (_, spelling, title) = problem.code.row();
    let document = Document {
        r#type: format!("urn:cuckood:problem:{spelling}"),
        code: problem.code,
        title,
        status: status.as_u16(),
        detail: &problem.detail,
        request_id,
        errors: &problem.faults,
        expires_at: problem.expires_at,
    };
    let body = serde_json::to_vec(&document).expect("a problem has no maps with odd keys");
    let (mut parts, _) = response.into_parts();
    parts.headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/problem+json"),
    );
    if problem.code == Code::Unauthenticated {
        parts
            .headers
            .insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    if problem.code == Code::UnsupportedMediaType {
        parts.headers.insert(
            header::ACCEPT_ENCODING,
            HeaderValue::from_static("gzip, zstd"),
        );
    }
    if let Some(seconds) = problem.retry_after_seconds {
        parts.headers.insert(header::RETRY_AFTER, seconds.into());
    }
    parts
        .headers
        .insert(header::CONTENT_LENGTH, body.len().into());
    let response = super::mark_replayed(Response::from_parts(parts, body.into()), problem.replayed);
    if problem.faults.len() > FAULTS_FREE {
        counted(response, share)
    } else {
        response
    }
}

/// Returns the problem for a failure without a document.
fn bare(response: &Response) -> Option<Problem> {
    let code = match response.status() {
        StatusCode::NOT_FOUND => Code::RouteNotFound,
        StatusCode::METHOD_NOT_ALLOWED => Code::MethodNotAllowed,
        status if status.is_server_error() => Code::Internal,
        status if status.is_client_error() => Code::MalformedRequest,
        _ => return None,
    };
    Some(code.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::Budget;
    use crate::http::response::problem::retry;
    use axum::response::IntoResponse;
    use futures_util::FutureExt;
    use http_body_util::BodyExt;
    use std::sync::Arc;

    /// A share of this much memory.
    fn share(bytes: u64) -> BudgetShare {
        BudgetShare::empty(Arc::new(Budget::new(bytes)), None)
    }

    fn render(response: Response, request_id: &str) -> Response {
        super::render(response, request_id, share(0))
    }

    #[test]
    fn many_faults_are_held_or_cut() {
        for (memory, reported) in [(1 << 20, 1_000), (0, FAULTS_FREE)] {
            let faults = (0..1_000).map(|at| RequestFault {
                pointer: format!("/users/{at}"),
                detail: "empty".into(),
            });
            let problem = Problem::invalid(faults.collect());
            let (_, document) =
                document(super::render(problem.into_response(), "1", share(memory)));
            assert_eq!(document["errors"].as_array().unwrap().len(), reported);
        }
    }

    fn document(response: Response) -> (StatusCode, serde_json::Value) {
        let status = response.status();
        let body = response
            .into_body()
            .collect()
            .now_or_never()
            .unwrap()
            .unwrap();
        (status, serde_json::from_slice(&body.to_bytes()).unwrap())
    }

    #[test]
    fn problem_document_contains_request_id() {
        let problem = Problem::invalid_at("/users/3", "empty");
        let (status, document) = document(render(problem.into_response(), "checkout-9"));
        assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
        assert_eq!(document["type"], "urn:cuckood:problem:invalid-request");
        assert_eq!(
            (&document["status"], &document["request_id"]),
            (&422.into(), &"checkout-9".into())
        );
        assert_eq!(document["detail"], "/users/3 empty");
        assert_eq!(document["errors"][0]["pointer"], "/users/3");
    }

    #[test]
    fn problem_headers_guide_client() {
        let headers = |problem: Problem| render(problem.into_response(), "1").headers().clone();
        let busy = headers(Problem::new(Code::Overloaded, "").retry_after(retry::MOMENT));
        assert_eq!(busy[header::RETRY_AFTER], "1");
        let stranger = headers(Problem::new(Code::Unauthenticated, ""));
        assert_eq!(stranger[header::WWW_AUTHENTICATE], "Bearer");
        let replayed = headers(Problem {
            replayed: true,
            ..Problem::new(Code::FilterFull, "")
        });
        assert_eq!(replayed["idempotency-replayed"], "true");
        assert!(!busy.contains_key("idempotency-replayed"));
    }

    #[test]
    fn bare_failure_becomes_problem_of_its_status() {
        for (status, code) in [
            (404, "route-not-found"),
            (405, "method-not-allowed"),
            (500, "internal"),
            (418, "malformed-request"),
        ] {
            let bare = StatusCode::from_u16(status).unwrap().into_response();
            let (kept, document) = document(render(bare, "1"));
            assert_eq!((kept.as_u16(), &document["code"]), (status, &code.into()));
        }
        let fine = render(StatusCode::NO_CONTENT.into_response(), "1");
        assert!(!fine.headers().contains_key(header::CONTENT_TYPE));
    }
}
