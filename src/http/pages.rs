//! Pages for people: the operator's console at `/console`, to which `/` leads, and the OpenAPI document in Swagger UI at `/docs`.
//! Everything that they load is compiled in, so that they work without internet access (`console/` and `assets/` have the sources). What
//! never changes is compressed once: strangers may request it, and compressing it costs more than any other request.

use super::api::ApiHandle;
use super::response::outgoing::SharedBytes;
use super::response::success::{compressed, quality_in};
use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::get;
use bytes::Bytes;
use flate2::Compression;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use sha2::{Digest as _, Sha256};
use std::sync::{Arc, OnceLock};

/// Content Security Policy of the console: scripts, styles and images are files of this service, and requests only go to this service.
const CONSOLE: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
     base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Content Security Policy of the document: Swagger UI sets styles and draws its icons itself. No other page may embed it.
const DOCS: &str = "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; base-uri 'none'; \
     form-action 'none'; frame-ancestors 'none'";

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";

/// A file that is compiled in. One whose name ends with `.gz` stays compressed: every browser can read it.
macro_rules! asset {
    ($name:literal) => {
        include_bytes!(concat!("../../assets/", $name))
    };
}

/// A file of a page.
struct Asset {
    path: &'static str,
    media_type: &'static str,
    content: &'static [u8],
    /// Whether the content is compressed with gzip.
    is_gzip: bool,
    /// Its Content Security Policy.
    policy: &'static str,
}

impl Asset {
    const fn of_console(
        path: &'static str,
        media_type: &'static str,
        content: &'static [u8],
    ) -> Self {
        Self {
            path,
            media_type,
            content,
            is_gzip: false,
            policy: CONSOLE,
        }
    }

    const fn of_docs(path: &'static str, media_type: &'static str, content: &'static [u8]) -> Self {
        Self {
            path,
            media_type,
            content,
            is_gzip: false,
            policy: DOCS,
        }
    }

    const fn gzip(self) -> Self {
        Self {
            is_gzip: true,
            ..self
        }
    }
}

const ASSETS: [Asset; 8] = [
    Asset::of_console("/console", HTML, asset!("console/index.html")),
    Asset::of_console("/console/app.js", SCRIPT, asset!("console/app.js")),
    Asset::of_console("/console/app.css", STYLE, asset!("console/app.css")),
    Asset::of_console(
        "/console/icon.svg",
        "image/svg+xml",
        asset!("console/icon.svg"),
    ),
    Asset::of_docs("/docs/", HTML, asset!("swagger-ui/index.html")),
    Asset::of_docs("/docs/start.js", SCRIPT, asset!("swagger-ui/start.js")),
    Asset::of_docs(
        "/docs/swagger-ui-bundle.js",
        SCRIPT,
        asset!("swagger-ui/swagger-ui-bundle.js.gz"),
    )
    .gzip(),
    Asset::of_docs(
        "/docs/swagger-ui.css",
        STYLE,
        asset!("swagger-ui/swagger-ui.css.gz"),
    )
    .gzip(),
];

/// Show this document
///
/// If no keys are configured, every operation is marked as usable without one.
#[utoipa::path(
    get, path = "/openapi.json", operation_id = "openapi", tag = "operations",
    responses((status = 200, description = "OpenAPI 3.1", body = serde_json::Value))
)]
pub(super) async fn openapi(State(api): State<ApiHandle>, asked: HeaderMap) -> Response {
    static DOCUMENTS: [OnceLock<File>; 2] = [const { OnceLock::new() }; 2];
    let asks_for_keys = !api.access.is_open();
    let file = DOCUMENTS[usize::from(asks_for_keys)].get_or_init(|| {
        let document = Bytes::from((api.document)(asks_for_keys));
        File::new(
            "application/json",
            None,
            document,
            [(header::X_CONTENT_TYPE_OPTIONS, "nosniff")],
        )
    });
    file.respond(&asked)
}

/// The pages and their files. All links are relative, so that they work with a proxy that adds a prefix.
pub(super) fn routes() -> Router<ApiHandle> {
    let redirects = [
        ("/", "console"),
        ("/console/", "../console"),
        ("/console/index.html", "../console"),
        ("/docs", "docs/"),
    ];
    let mut router = Router::new();
    for (from, to) in redirects {
        router = router.route(from, get(async move || Redirect::temporary(to)));
    }
    for asset in ASSETS {
        let file = Arc::new(File::of(&asset));
        let respond = get(async move |asked: HeaderMap| file.respond(&asked));
        router = router.route(asset.path, respond);
    }
    router
}

/// A file that never changes.
struct File {
    media_type: &'static str,
    /// The headers of a response, whether the file is sent or known.
    headers: HeaderMap,
    content: Bytes,
    /// The compressed form, made when it is first requested; `None` if the content is compressed itself.
    gzip: Option<OnceLock<Bytes>>,
}

impl File {
    fn of(asset: &Asset) -> Self {
        // Weak, because responses may be compressed.
        let tag = format!(
            "W/\"{}\"",
            hex::encode(&Sha256::digest(asset.content)[..12])
        );
        let headers = [
            (header::CONTENT_SECURITY_POLICY, asset.policy),
            (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (header::REFERRER_POLICY, "no-referrer"),
            // A browser asks each time whether a file has changed, so that an upgrade shows immediately.
            (header::CACHE_CONTROL, "no-cache"),
            (header::ETAG, &tag),
        ];
        let coding = asset.is_gzip.then_some("gzip");
        Self::new(
            asset.media_type,
            coding,
            Bytes::from_static(asset.content),
            headers,
        )
    }

    fn new<const N: usize>(
        media_type: &'static str,
        coding: Option<&str>,
        content: Bytes,
        headers: [(HeaderName, &str); N],
    ) -> Self {
        let coding = coding.map(|coding| (header::CONTENT_ENCODING, coding));
        let gzip = coding.is_none().then(OnceLock::new);
        let text = |text| HeaderValue::from_str(text).expect("a file's headers are visible ASCII");
        let headers = headers
            .into_iter()
            .chain(coding)
            .map(|(name, value)| (name, text(value)))
            .collect();
        Self {
            media_type,
            headers,
            content,
            gzip,
        }
    }

    /// Responds with the file, compressed if the client accepts gzip, or says that the client has it already.
    fn respond(&self, asked: &HeaderMap) -> Response {
        let headers = self.headers.clone();
        if self
            .headers
            .get(header::ETAG)
            .is_some_and(|tag| is_known(asked, tag))
        {
            return (StatusCode::NOT_MODIFIED, headers).into_response();
        }
        let mut response = (
            headers,
            [(header::CONTENT_TYPE, self.media_type)],
            self.content.clone(),
        )
            .into_response();
        if let Some(gzip) = &self.gzip {
            response
                .headers_mut()
                .insert(header::VARY, HeaderValue::from_static("accept-encoding"));
            if quality_in(asked, &header::ACCEPT_ENCODING, "gzip") > 0.0 {
                response
                    .headers_mut()
                    .insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
                *response.body_mut() = gzip
                    .get_or_init(|| compressed(&self.content, Compression::best()))
                    .clone()
                    .into();
            }
        }
        response.extensions_mut().insert(SharedBytes);
        response
    }
}

/// Whether `If-None-Match` names this tag.
fn is_known(headers: &HeaderMap, tag: &HeaderValue) -> bool {
    let lists = headers
        .get_all(header::IF_NONE_MATCH)
        .into_iter()
        .filter_map(|value| value.to_str().ok());
    lists
        .flat_map(|list| list.split(','))
        .map(str::trim)
        .any(|known| known == "*" || known == tag)
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
            let headers =
                HeaderMap::from_iter([(header::ACCEPT_ENCODING, accepted.parse().unwrap())]);
            assert_eq!(
                quality_in(&headers, &header::ACCEPT_ENCODING, "gzip") > 0.0,
                wanted,
                "{accepted}"
            );
        }
    }
}
