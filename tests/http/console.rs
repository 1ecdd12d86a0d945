//! The operator's page: served whole, from this service alone, and fit for caches.

use crate::service::{Answer, Service, request};
use axum::body::Body;
use http::Method;
use std::io::Read;

/// The files that the page loads: everything that an attribute links to.
fn parts(page: &str) -> Vec<&str> {
    let of = |attribute| {
        page.split(attribute)
            .skip(1)
            .filter_map(|rest| rest.split('"').next())
    };
    ["src=\"", "href=\""].into_iter().flat_map(of).collect()
}

fn assert_guarded(answer: &Answer) {
    let policy = answer.header("content-security-policy");
    assert!(policy.starts_with("default-src 'none'; "), "{policy}");
    for loose in ["unsafe", "data:", "http", "*"] {
        assert!(!policy.contains(loose), "{loose} in {policy}");
    }
    assert!(policy.contains("frame-ancestors 'none'"), "{policy}");
    assert_eq!(answer.header("x-content-type-options"), "nosniff");
}

#[tokio::test]
async fn root_redirects_to_console() {
    let service = Service::start().await;
    for (from, to) in [
        ("/", "console"),
        ("/console/", "../console"),
        ("/console/index.html", "../console"),
    ] {
        let answer = service.get(from).await;
        assert_eq!(
            (answer.status, answer.header("location")),
            (307, to),
            "{from}"
        );
    }
}

#[tokio::test]
async fn console_loads_no_external_resource() {
    let service = Service::start().await;
    let page = service.get("/console").await;
    assert_eq!(page.status, 200);
    assert!(page.header("content-type").starts_with("text/html"));
    assert_guarded(&page);
    let text = page.text();
    // The policy forbids both.
    assert!(
        !text.contains("<style") && !text.contains("style=") && !text.contains("<script>"),
        "{text}"
    );
    let parts = parts(&text);
    assert_eq!(parts.len(), 3, "{parts:?}");
    for part in parts {
        assert!(part.starts_with("console/"), "{part}");
        let answer = service.get(&format!("/{part}")).await;
        assert_eq!(answer.status, 200, "{part}");
        let (_, extension) = part.rsplit_once('.').unwrap();
        let expected = match extension {
            "css" => "text/css; charset=utf-8",
            "js" => "text/javascript; charset=utf-8",
            _ => "image/svg+xml",
        };
        assert_eq!(answer.header("content-type"), expected, "{part}");
        assert_guarded(&answer);
    }
    service
        .get("/console/other.js")
        .await
        .problem(404, "route-not-found");
}

#[tokio::test]
async fn unchanged_file_returns_304() {
    let service = Service::start().await;
    let first = service.get("/console/app.js").await;
    let tag = first.header("etag").to_owned();
    assert!(
        tag.starts_with("W/\"") && first.header("cache-control") == "no-cache",
        "{tag}"
    );
    let again = |known: &str| {
        let headers = [("if-none-match", known)];
        service.send(request(
            Method::GET,
            "/console/app.js",
            &headers,
            Body::empty(),
        ))
    };
    for known in [tag.as_str(), &format!("\"x\", {tag}"), "*"] {
        let answer = again(known).await;
        assert_eq!(
            (answer.status, answer.body.len(), answer.header("etag")),
            (304, 0, tag.as_str())
        );
        assert_guarded(&answer);
    }
    assert_eq!(again("W/\"x\"").await.status, 200);
    assert_ne!(service.get("/console/app.css").await.header("etag"), tag);
}

#[tokio::test]
async fn static_files_are_stored_gzipped() {
    let service = Service::start().await;
    for path in [
        "/openapi.json",
        "/console",
        "/console/app.js",
        "/console/app.css",
    ] {
        let plain = service
            .send(request(Method::GET, path, &[], Body::empty()))
            .await;
        let gzip = [("accept-encoding", "br, zstd, gzip")];
        let compressed = service
            .send(request(Method::GET, path, &gzip, Body::empty()))
            .await;
        assert_eq!(compressed.header("content-encoding"), "gzip", "{path}");
        assert_eq!(compressed.header("vary"), "accept-encoding", "{path}");
        assert_eq!(
            compressed.header("x-content-type-options"),
            "nosniff",
            "{path}"
        );
        let mut text = Vec::new();
        flate2::read::GzDecoder::new(&compressed.body[..])
            .read_to_end(&mut text)
            .unwrap();
        assert!(
            text == plain.body && compressed.body.len() < plain.body.len() + 50,
            "{path}"
        );
        // Anything else would be compressed again for each request.
        let zstd = service
            .send(request(
                Method::GET,
                path,
                &[("accept-encoding", "zstd")],
                Body::empty(),
            ))
            .await;
        assert!(zstd.body == plain.body, "{path}");
    }
    let page = service
        .send(request(Method::GET, "/docs/", &[], Body::empty()))
        .await;
    assert!(
        page.header("content-security-policy")
            .contains("frame-ancestors 'none'")
    );
    assert_eq!(page.header("x-content-type-options"), "nosniff");
}
