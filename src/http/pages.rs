//! Pages for people: the operator's console at `/console`, to which `/` leads, and the OpenAPI document in Swagger UI at `/docs`.
//! Everything that they load is compiled in, so that they work without internet access (`console/` and `assets/` have the sources). What
//! never changes is compressed once: strangers may request it, and compressing it costs more than any other request.

use super::api::Api;
use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::get;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use sha2::{Digest as _, Sha256};
use std::io::Write;
use std::sync::{Arc, OnceLock};

/// Content Security Policy of the console: scripts, styles and images come from files of this service, and only this service is asked.
const CONSOLE: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
     base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Content Security Policy of the document: Swagger UI sets styles and draws its icons itself. No other page may embed it.
const DOCS: &str = "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; base-uri 'none'; \
     form-action 'none'; frame-ancestors 'none'";

const DOCS_PAGE: &str = r##"<!DOCTYPE html>
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

const DOCS_START: &str = r##"SwaggerUIBundle({ url: "../openapi.json", dom_id: "#page", deepLinking: true });
"##;

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";

/// A file that is compiled in. One whose name ends with `.gz` stays compressed: every browser can read it.
macro_rules! asset {
    ($name:literal) => {
        include_bytes!(concat!("../../assets/", $name))
    };
}

/// A file: its path, media type, content coding, policy and content.
type File = (&'static str, &'static str, Option<&'static str>, &'static str, &'static [u8]);

const FILES: [File; 8] = [
    ("/console", HTML, None, CONSOLE, asset!("console/index.html")),
    ("/console/app.js", SCRIPT, None, CONSOLE, asset!("console/app.js")),
    ("/console/app.css", STYLE, None, CONSOLE, asset!("console/app.css")),
    ("/console/icon.svg", "image/svg+xml", None, CONSOLE, asset!("console/icon.svg")),
    ("/docs/", HTML, None, DOCS, DOCS_PAGE.as_bytes()),
    ("/docs/start.js", SCRIPT, None, DOCS, DOCS_START.as_bytes()),
    ("/docs/swagger-ui-bundle.js", SCRIPT, Some("gzip"), DOCS, asset!("swagger-ui/swagger-ui-bundle.js.gz")),
    ("/docs/swagger-ui.css", STYLE, Some("gzip"), DOCS, asset!("swagger-ui/swagger-ui.css.gz")),
];

/// The compressed forms of the files that are not compressed.
static COMPRESSED: [Compressed; FILES.len()] = [const { Compressed::new() }; FILES.len()];

/// Show this document
///
/// If no keys are configured, every operation is marked as usable without one.
#[utoipa::path(
    get, path = "/openapi.json", operation_id = "openapi", tag = "operations",
    responses((status = 200, description = "OpenAPI 3.1", body = serde_json::Value))
)]
pub(super) async fn openapi(State(api): State<Arc<Api>>, asked: HeaderMap) -> Response {
    static COMPRESSED: [Compressed; 2] = [const { Compressed::new() }; 2];
    let asks_for_keys = !api.access.is_open();
    let (document, compressed) = ((api.document)(asks_for_keys), &COMPRESSED[usize::from(asks_for_keys)]);
    compressible(&asked, "application/json", document.as_bytes(), compressed)
}

/// The pages and what they load. All links are relative, so that they work behind a proxy that adds a prefix.
pub(super) fn routes() -> Router<Arc<Api>> {
    let redirects = [
        ("/", "console"),
        ("/console/", "../console"),
        ("/console/index.html", "../console"),
        ("/docs", "docs/"),
    ];
    let router = redirects.into_iter().fold(Router::new(), |router, (from, to)| {
        router.route(from, get(async move || Redirect::temporary(to)))
    });
    FILES.into_iter().zip(&COMPRESSED).fold(router, |router, (file, compressed)| {
        let (path, media_type, coding, policy, bytes) = file;
        // Weak, because responses may be compressed.
        let digest = hex::encode(&Sha256::digest(bytes)[..12]);
        let tag = HeaderValue::try_from(format!("W/\"{digest}\"")).expect("digits may stand in a header");
        let own = HeaderMap::from_iter(headers(coding, policy).chain([(header::ETAG, tag)]));
        router.route(
            path,
            get(async move |asked: HeaderMap| answer(own, (media_type, coding), (bytes, compressed), &asked)),
        )
    })
}

/// The headers of a file, whether it is sent or known.
fn headers(
    coding: Option<&'static str>,
    policy: &'static str,
) -> impl Iterator<Item = (HeaderName, HeaderValue)> {
    let headers = [
        (header::CONTENT_SECURITY_POLICY, policy),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        // A browser asks each time whether a file has changed, so that an upgrade shows immediately.
        (header::CACHE_CONTROL, "no-cache"),
    ];
    let coding = coding.map(|coding| (header::CONTENT_ENCODING, coding));
    headers.into_iter().chain(coding).map(|(name, value)| (name, HeaderValue::from_static(value)))
}

/// Serves a file, or says that the client has it already.
fn answer(
    own: HeaderMap,
    (media_type, coding): (&'static str, Option<&str>),
    (bytes, compressed): (&'static [u8], &'static Compressed),
    asked: &HeaderMap,
) -> Response {
    if is_known(asked, &own[header::ETAG]) {
        return (StatusCode::NOT_MODIFIED, own).into_response();
    }
    if coding.is_none() {
        return (own, compressible(asked, media_type, bytes, compressed)).into_response();
    }
    let mut response = (own, [(header::CONTENT_TYPE, media_type)], bytes).into_response();
    response.extensions_mut().insert(Unchanging);
    response
}

/// Whether `If-None-Match` names this tag.
fn is_known(headers: &HeaderMap, tag: &HeaderValue) -> bool {
    let lists = headers.get_all(header::IF_NONE_MATCH).into_iter().filter_map(|value| value.to_str().ok());
    lists.flat_map(|list| list.split(',')).map(str::trim).any(|known| known == "*" || known == tag)
}

/// Marks a response that is not compressed, whatever the client accepts.
#[derive(Clone, Copy)]
pub(super) struct Unchanging;

/// A compressed form, made when it is first requested.
type Compressed = OnceLock<Vec<u8>>;

/// Responds with a file: compressed if the client accepts gzip.
fn compressible(
    request: &HeaderMap,
    media_type: &'static str,
    file: &'static [u8],
    compressed: &'static Compressed,
) -> Response {
    let mut response = match accepts_gzip(request) {
        true => {
            let gzip = compressed.get_or_init(|| gzip(file)).as_slice();
            ([(header::CONTENT_ENCODING, "gzip")], gzip).into_response()
        }
        false => file.into_response(),
    };
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(media_type));
    headers.insert(header::VARY, HeaderValue::from_static("accept-encoding"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response.extensions_mut().insert(Unchanging);
    response
}

fn gzip(file: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    // Nothing fails when bytes are written to memory.
    let written = encoder.write_all(file).and_then(|()| encoder.finish());
    written.unwrap_or_default()
}

fn accepts_gzip(request: &HeaderMap) -> bool {
    let lists = request.get_all(header::ACCEPT_ENCODING).into_iter().filter_map(|value| value.to_str().ok());
    lists.flat_map(|list| list.split(',')).any(|entry| {
        let (coding, quality) = entry.split_once(';').unwrap_or((entry, ""));
        let is_refused = quality.trim().strip_prefix("q=").is_some_and(|q| q.parse() == Ok(0.0));
        coding.trim().eq_ignore_ascii_case("gzip") && !is_refused
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gzip_is_used_if_accepted() {
        for (accepted, wanted) in [
            ("gzip", true),
            ("br, GZIP;q=0.5", true),
            ("deflate, gzip;q=0", false),
            ("gzip;q=0.000", false),
            ("zstd", false),
            ("", false),
        ] {
            let headers = HeaderMap::from_iter([(header::ACCEPT_ENCODING, accepted.parse().unwrap())]);
            assert_eq!(accepts_gzip(&headers), wanted, "{accepted}");
        }
    }
}
