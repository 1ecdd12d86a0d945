//! Rules about a request's head that hyper leaves to the service (RFC 9112).

use crate::http::response::{Code, Problem};
use axum::extract::Request;
use http::{HeaderMap, HeaderValue, Version, header};

/// Rejects a request whose target or length other recipients might understand differently.
///
/// # Errors
/// 400 unless a request of HTTP/1.1 names exactly one host (section 3.2); 501 if its body has a transfer coding other than `chunked`
/// (section 6.1).
pub(crate) fn check(request: &Request) -> Result<(), Problem> {
    if request.version() == Version::HTTP_11 && !has_one_host(request.headers()) {
        let detail = "a request of HTTP/1.1 has exactly one valid Host header";
        return Err(Problem::new(Code::MalformedRequest, detail));
    }
    let mut codings = request.headers().get_all(header::TRANSFER_ENCODING).iter();
    match (codings.next(), codings.next()) {
        (None, _) => Ok(()),
        (Some(coding), None) if coding.as_bytes().eq_ignore_ascii_case(b"chunked") => Ok(()),
        (Some(_), _) => Err(Code::NotImplemented.into()),
    }
}

fn has_one_host(headers: &HeaderMap) -> bool {
    let mut hosts = headers.get_all(header::HOST).iter();
    match (hosts.next(), hosts.next()) {
        (Some(host), None) => is_host(host),
        _ => false,
    }
}

/// Whether a value can be a host with an optional port (RFC 3986, section 3.2). A host of an `http` URI is not empty (RFC 9110, 4.2.1).
fn is_host(value: &HeaderValue) -> bool {
    let bytes = value.as_bytes();
    let is_allowed =
        |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=%:[]".contains(byte);
    !bytes.is_empty() && !bytes.starts_with(b":") && bytes.iter().all(is_allowed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;
    use http::StatusCode;

    /// Returns the status of the problem with a head, if it has one.
    fn status(version: Version, headers: &[(&'static str, &'static str)]) -> Option<StatusCode> {
        let mut request = Request::builder().version(version);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        check(&request.body(Body::empty()).unwrap())
            .err()
            .map(|problem| problem.code.status())
    }

    #[test]
    fn request_names_exactly_one_host() {
        let of = |hosts: &[&'static str]| {
            let headers: Vec<_> = hosts.iter().map(|host| ("host", *host)).collect();
            status(Version::HTTP_11, &headers)
        };
        for host in [
            "localhost",
            "127.0.0.1:8080",
            "[::1]:8080",
            "shop.example",
            "xn--bcher-kva.example:443",
        ] {
            assert_eq!(of(&[host]), None, "{host}");
        }
        for host in ["", ":80", "a b", "a/b", "user@host", "a,b?c"] {
            assert_eq!(of(&[host]), Some(StatusCode::BAD_REQUEST), "{host}");
        }
        assert_eq!(of(&[]), Some(StatusCode::BAD_REQUEST));
        assert_eq!(
            of(&["localhost", "localhost"]),
            Some(StatusCode::BAD_REQUEST)
        );
        assert_eq!(status(Version::HTTP_10, &[]), None);
    }

    #[test]
    fn only_chunked_transfer_coding_is_accepted() {
        let host = ("host", "localhost");
        let of = |coding| status(Version::HTTP_11, &[host, ("transfer-encoding", coding)]);
        assert_eq!(of("chunked"), None);
        assert_eq!(of("Chunked"), None);
        for coding in ["gzip, chunked", "gzip", "chunked, chunked", "identity"] {
            assert_eq!(of(coding), Some(StatusCode::NOT_IMPLEMENTED), "{coding}");
        }
        let two = [
            host,
            ("transfer-encoding", "gzip"),
            ("transfer-encoding", "chunked"),
        ];
        assert_eq!(
            status(Version::HTTP_11, &two),
            Some(StatusCode::NOT_IMPLEMENTED)
        );
    }
}
