//! The OpenAPI document for programs at `/openapi.json`, and for people at `/docs` in Swagger UI. The page and everything that it
//! loads are compiled in, so that it works without internet access (`assets/swagger-ui/README.md` names their origin).

use super::answer::reply;
use super::api::Api;
use axum::Router;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::get;
use http::{HeaderValue, StatusCode, header};
use std::sync::Arc;

const PAGE: &str = r##"<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>cuckood</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="./swagger-ui.css">
</head>
<body>
<div id="page"></div>
<script src="./swagger-ui-bundle.js"></script>
<script src="./start.js"></script>
</body>
</html>
"##;

const START: &str = r##"SwaggerUIBundle({ url: "../openapi.json", dom_id: "#page", deepLinking: true });
"##;

/// Content Security Policy: nothing may be loaded from elsewhere. Swagger UI sets styles and draws its icons itself.
const POLICY: &str = "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:";

/// Show this document
///
/// If no keys are configured, every operation is marked as usable without one.
#[utoipa::path(
    get,
    path = "/openapi.json",
    operation_id = "openapi",
    tag = "operations",
    responses((status = 200, description = "OpenAPI 3.1", body = serde_json::Value))
)]
pub(super) async fn openapi(State(api): State<Arc<Api>>) -> Response {
    reply::json_text((api.document)(!api.access.entry.is_open()))
}

/// The page and its parts. Their links are relative, so that they work behind a proxy that adds a prefix.
pub(super) fn routes() -> Router<Arc<Api>> {
    Router::new()
        .route("/docs", get(async || Redirect::temporary("docs/")))
        .route("/docs/", get(async || answer("text/html; charset=utf-8", None, PAGE.as_bytes())))
        .route("/docs/{part}", get(part))
}

async fn part(Path(part): Path<String>) -> Response {
    match part.as_str() {
        "start.js" => answer("text/javascript; charset=utf-8", None, START.as_bytes()),
        "swagger-ui-bundle.js" => answer(
            "text/javascript; charset=utf-8",
            Some("gzip"),
            include_bytes!("../../assets/swagger-ui/swagger-ui-bundle.js.gz"),
        ),
        "swagger-ui.css" => answer(
            "text/css; charset=utf-8",
            Some("gzip"),
            include_bytes!("../../assets/swagger-ui/swagger-ui.css.gz"),
        ),
        _ => StatusCode::NOT_FOUND.into_response(),
    }
}

/// Serves a compiled-in file. Compressed files stay compressed: every browser can read them.
fn answer(media_type: &'static str, coding: Option<&'static str>, body: &'static [u8]) -> Response {
    let mut response = body.into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(media_type));
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("max-age=3600"));
    if let Some(coding) = coding {
        headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static(coding));
    }
    response
}
