//! The source of a request, for lines in the log: the client's address, and the trace that the client has named.

use crate::socket::Peer;
use axum::extract::Request;
use http::{HeaderMap, HeaderValue};
use std::net::IpAddr;
use tracing::field::{DisplayValue, display};

/// The source of a request.
#[derive(Clone, Debug)]
pub(crate) struct RequestSource {
    peer: Option<IpAddr>,
    traceparent: Option<HeaderValue>,
}

impl RequestSource {
    pub(crate) fn of(request: &Request) -> Self {
        let peer = request
            .extensions()
            .get::<Peer>()
            .map(|peer| peer.address.ip().to_canonical());
        Self {
            peer,
            traceparent: traceparent(request.headers()).cloned(),
        }
    }

    /// The client's address, if the server provides it.
    pub(crate) fn peer(&self) -> Option<DisplayValue<IpAddr>> {
        self.peer.map(display)
    }

    /// The ids of the trace and of the client's span, if the client has sent them.
    pub(crate) fn trace(&self) -> [Option<&str>; 2] {
        ids(self.traceparent.as_ref())
    }
}

/// Returns the ids of the trace and of the client's span in these headers.
pub(crate) fn trace(headers: &HeaderMap) -> [Option<&str>; 2] {
    ids(traceparent(headers))
}

/// The W3C header, if there is exactly one.
fn traceparent(headers: &HeaderMap) -> Option<&HeaderValue> {
    let mut values = headers.get_all("traceparent").iter();
    values.next().filter(|_| values.next().is_none())
}

fn ids(traceparent: Option<&HeaderValue>) -> [Option<&str>; 2] {
    match traceparent.and_then(parse) {
        Some((trace, parent)) => [Some(trace), Some(parent)],
        None => [None; 2],
    }
}

/// Returns the ids in a header. A later version may have more parts.
fn parse(traceparent: &HeaderValue) -> Option<(&str, &str)> {
    let mut parts = traceparent.to_str().ok()?.split('-');
    let version = parts.next()?;
    let trace = parts.next()?;
    let parent = parts.next()?;
    let is_hex = |text: &str, length| {
        text.len() == length && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
    };
    let is_set = |text: &str| text.bytes().any(|b| b != b'0');
    let is_fine = is_hex(version, 2) && version != "ff" && is_hex(trace, 32) && is_hex(parent, 16);
    (is_fine && is_set(trace) && is_set(parent)).then_some((trace, parent))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_trace_id_is_used() {
        let of = |values: &[&'static str]| {
            let values = values.iter().map(|value| HeaderValue::from_static(value));
            let headers: HeaderMap = values
                .map(|value| (http::HeaderName::from_static("traceparent"), value))
                .collect();
            trace(&headers).map(|id| id.map(str::to_owned))
        };
        let valid = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let ids = ["4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"];
        assert_eq!(of(&[valid]), ids.map(|id| Some(id.to_owned())));
        for invalid in [
            &[][..],
            &[valid, valid],
            &["00-00000000000000000000000000000000-00f067aa0ba902b7-01"],
            &["00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01"],
            &["ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"],
            &["00-4bf9-00f067aa0ba902b7-01"],
            &["00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01"],
        ] {
            assert_eq!(of(invalid), [None, None], "{invalid:?}");
        }
    }
}
