//! The operator's page at `/console`; `/` leads there. `console/` has its source, and `assets/console/` what is built from it.
//! Everything is compiled in, so that it works without internet access. The page itself uses nothing but the API.

use super::api::Api;
use axum::Router;
use axum::extract::{Path, Request};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::get;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use sha2::{Digest as _, Sha256};
use std::sync::{Arc, LazyLock};

/// Content Security Policy: scripts, styles and images come from files of this service, and only this service is asked.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
     base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// A file that is compiled in.
struct File {
    name: &'static str,
    media_type: &'static str,
    bytes: &'static [u8],
}

const PAGE: &str = "index.html";

static FILES: [File; 4] = [
    File {
        name: PAGE,
        media_type: "text/html; charset=utf-8",
        bytes: include_bytes!("../../assets/console/index.html"),
    },
    File {
        name: "app.js",
        media_type: "text/javascript; charset=utf-8",
        bytes: include_bytes!("../../assets/console/app.js"),
    },
    File {
        name: "app.css",
        media_type: "text/css; charset=utf-8",
        bytes: include_bytes!("../../assets/console/app.css"),
    },
    File {
        name: "icon.svg",
        media_type: "image/svg+xml",
        bytes: include_bytes!("../../assets/console/icon.svg"),
    },
];

/// An entity tag for each file. Weak, because answers may be compressed.
static TAGS: LazyLock<[HeaderValue; FILES.len()]> = LazyLock::new(|| {
    FILES.each_ref().map(|file| {
        let digest = hex::encode(&Sha256::digest(file.bytes)[..12]);
        HeaderValue::try_from(format!("W/\"{digest}\"")).expect("hexadecimal digits may stand in a header")
    })
});

/// The page and its parts. All links are relative, so that they work behind a proxy that adds a prefix.
pub(super) fn routes() -> Router<Arc<Api>> {
    Router::new()
        .route("/", get(async || Redirect::temporary("console")))
        .route("/console", get(async |request: Request| answer(PAGE, request.headers())))
        .route("/console/", get(async || Redirect::temporary("../console")))
        .route("/console/{part}", get(part))
}

async fn part(Path(part): Path<String>, request: Request) -> Response {
    match part.as_str() {
        PAGE => Redirect::temporary("../console").into_response(),
        part => answer(part, request.headers()),
    }
}

/// Serves a file, or says that the client has it already.
fn answer(name: &str, headers: &HeaderMap) -> Response {
    let Some(index) = FILES.iter().position(|file| file.name == name) else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let (file, tag) = (&FILES[index], &TAGS[index]);
    let mut response = if is_known(headers, tag) {
        StatusCode::NOT_MODIFIED.into_response()
    } else {
        ([(header::CONTENT_TYPE, file.media_type)], file.bytes).into_response()
    };
    let own = response.headers_mut();
    own.insert(header::ETAG, tag.clone());
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        // A browser asks each time whether a file has changed, so that an upgrade shows at once.
        (header::CACHE_CONTROL, "no-cache"),
    ] {
        own.insert(name, HeaderValue::from_static(value));
    }
    response
}

/// Whether `If-None-Match` names this tag.
fn is_known(headers: &HeaderMap, tag: &HeaderValue) -> bool {
    let lists = headers.get_all(header::IF_NONE_MATCH).into_iter().filter_map(|value| value.to_str().ok());
    lists.flat_map(|list| list.split(',')).map(str::trim).any(|known| known == "*" || known == tag)
}
