//! Files and documents that never change while the service runs. They are compressed once: strangers may request them, and compressing
//! them costs more than any other request.

use axum::response::{IntoResponse, Response};
use flate2::Compression;
use flate2::write::GzEncoder;
use http::{HeaderMap, HeaderValue, header};
use std::io::Write;
use std::sync::OnceLock;

/// Marks a response that is not compressed, whatever the client accepts.
#[derive(Clone, Copy)]
pub(super) struct Unchanging;

/// A compressed form, made when it is first requested.
pub(super) type Compressed = OnceLock<Vec<u8>>;

/// Responds with a file: compressed if the client accepts gzip.
pub(super) fn response(
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
