//! Keeps web pages out of a service without keys. A browser sends requests for any page; only `Host` and `Origin`, which no page can forge,
//! identify the page.

use crate::http::options::{HostName, HostOptions};
use crate::http::response::{Code, Problem};
use http::uri::{Authority, Scheme};
use http::{HeaderMap, HeaderName, Method, Uri, header};
use std::net::IpAddr;

/// The header in which a browser says how the origin of a request relates to its target.
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Rejects a request that a page of another site may have caused: one to a name that is not the service's own, because a page can make its
/// own name resolve to any address; and one from such a page that is not a plain read, whose response the browser would hide from the page
/// anyway.
pub(crate) fn check(
    options: &HostOptions,
    method: &Method,
    uri: &Uri,
    headers: &HeaderMap,
) -> Result<(), Problem> {
    let other_host = || {
        let detail = "without keys only loopback names and those in server.hosts are accepted";
        Problem::new(Code::ForeignOrigin, detail)
    };
    let mut host = uri.authority().cloned();
    for value in headers.get_all(header::HOST) {
        let named = value
            .to_str()
            .ok()
            .and_then(authority)
            .ok_or_else(other_host)?;
        if host
            .as_ref()
            .is_some_and(|host| !is_same(host, &named, None))
        {
            return Err(other_host());
        }
        host = Some(named);
    }
    // Every browser sends a host, so a request without one was not sent by a browser.
    if host.as_ref().is_some_and(|host| !options.includes(host)) {
        return Err(other_host());
    }
    if method.is_safe() {
        return Ok(());
    }
    let is_own = |origin: &str| {
        let origin: Uri = origin.parse().ok()?;
        Some(is_same(
            host.as_ref()?,
            origin.authority()?,
            Some(origin.scheme()?),
        ))
    };
    let mut origins = headers.get_all(header::ORIGIN).iter();
    let mut sites = headers.get_all(SEC_FETCH_SITE).iter();
    if origins.all(|origin| origin.to_str().ok().and_then(is_own) == Some(true))
        && sites.all(|site| matches!(site.as_bytes(), b"same-origin" | b"none"))
    {
        return Ok(());
    }
    Err(Problem::new(
        Code::ForeignOrigin,
        "a page of another site may not change anything here",
    ))
}

fn authority(text: &str) -> Option<Authority> {
    text.parse()
        .ok()
        .filter(|authority: &Authority| !authority.as_str().contains('@'))
}

/// Whether two authorities are the same. A missing port means the scheme's default.
fn is_same(one: &Authority, other: &Authority, scheme: Option<&Scheme>) -> bool {
    let own = match scheme.map(Scheme::as_str) {
        Some("http") => Some(80),
        Some("https") => Some(443),
        _ => None,
    };
    let port = |authority: &Authority| authority.port_u16().or(own);
    one.host().eq_ignore_ascii_case(other.host()) && port(one) == port(other)
}

impl HostOptions {
    fn includes(&self, host: &Authority) -> bool {
        let name = host.host();
        let address: Option<IpAddr> = name
            .strip_prefix('[')
            .and_then(|name| name.strip_suffix(']'))
            .unwrap_or(name)
            .parse()
            .ok();
        let is_loopback = match address {
            Some(address) => address.to_canonical().is_loopback(),
            None => name.eq_ignore_ascii_case("localhost"),
        };
        let is_listed = |listed: &HostName| listed.matches(name, host.port_u16());
        // An address can't be made to resolve elsewhere. If no names are listed, names beyond loopback can't be checked.
        let is_open = self.is_public && (address.is_some() || self.names.is_empty());
        is_loopback || is_open || self.names.iter().any(is_listed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn options(names: &[&str], is_public: bool) -> HostOptions {
        let names = names
            .iter()
            .map(|name| HostName::try_from(name.to_string()).unwrap())
            .collect();
        HostOptions { names, is_public }
    }

    fn is_let_in(options: &HostOptions, method: Method, headers: &[(HeaderName, &str)]) -> bool {
        let headers = headers
            .iter()
            .map(|(name, value)| (name.clone(), HeaderValue::from_str(value).unwrap()));
        let mut all = HeaderMap::new();
        for (name, value) in headers {
            all.append(name, value);
        }
        check(options, &method, &Uri::from_static("/v1/info"), &all).is_ok()
    }

    fn get(options: &HostOptions, host: &str) -> bool {
        is_let_in(options, Method::GET, &[(header::HOST, host)])
    }

    #[test]
    fn loopback_accepts_loopback_and_listed_names() {
        let options = options(&["cuckood.internal", "proxy:8443"], false);
        for own in [
            "localhost",
            "LocalHost:8080",
            "127.0.0.1",
            "127.9.9.9:1",
            "[::1]",
            "[::1]:8080",
            "[::ffff:127.0.0.1]",
            "cuckood.internal",
            "Cuckood.Internal:99",
            "proxy:8443",
        ] {
            assert!(get(&options, own), "{own}");
        }
        for foreign in [
            "",
            "evil.example",
            "evil.example:8080",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "192.0.2.1",
            "[2001:db8::1]",
            "0.0.0.0:8080",
            "proxy",
            "proxy:1",
            "evil@localhost",
            "a b",
            "localhost/evil",
            "::1",
            "x.localhost",
        ] {
            assert!(!get(&options, foreign), "{foreign}");
        }
        // No browser sends this.
        assert!(is_let_in(&options, Method::POST, &[]));
    }

    #[test]
    fn every_host_in_request_is_checked() {
        let options = options(&[], false);
        let hosts = [(header::HOST, "localhost"), (header::HOST, "evil.example")];
        assert!(!is_let_in(&options, Method::GET, &hosts));
        let absolute = |uri: &'static str, host: &'static str| {
            let headers = HeaderMap::from_iter([(header::HOST, HeaderValue::from_static(host))]);
            check(&options, &Method::GET, &Uri::from_static(uri), &headers).is_ok()
        };
        assert!(absolute("http://localhost:1/v1/info", "localhost:1"));
        assert!(!absolute("http://evil.example/v1/info", "evil.example"));
        assert!(!absolute("http://evil.example/v1/info", "localhost"));
        assert!(!absolute("http://localhost/v1/info", "evil.example"));
    }

    #[test]
    fn public_address_accepts_any_host_unless_listed() {
        assert!(get(&options(&[], true), "cuckood.svc:8080"));
        let listed = options(&["cuckood.svc"], true);
        for own in [
            "cuckood.svc:8080",
            "192.0.2.1:8080",
            "[2001:db8::1]",
            "localhost",
        ] {
            assert!(get(&listed, own), "{own}");
        }
        assert!(!get(&listed, "evil.example"));
    }

    #[test]
    fn foreign_origin_is_rejected() {
        let options = options(&["cuckood.internal"], false);
        let with = |method: Method, host, name: HeaderName, value| {
            is_let_in(&options, method, &[(header::HOST, host), (name, value)])
        };
        for (host, origin) in [
            ("localhost:8080", "http://localhost:8080"),
            ("LOCALHOST:8080", "http://localhost:8080"),
            ("[::1]:8080", "http://[::1]:8080"),
            ("cuckood.internal", "https://cuckood.internal"),
            ("cuckood.internal:443", "https://cuckood.internal"),
            ("localhost", "http://localhost:80"),
        ] {
            assert!(
                with(Method::POST, host, header::ORIGIN, origin),
                "{origin} to {host}"
            );
        }
        for (host, origin) in [
            ("localhost:8080", "null"),
            ("localhost:8080", ""),
            ("localhost:8080", "http://localhost:3000"),
            ("localhost:8080", "http://localhost"),
            ("localhost:8080", "http://127.0.0.1:8080"),
            ("localhost:8080", "https://evil.example"),
            ("localhost:8080", "localhost:8080"),
            ("localhost", "https://localhost:80"),
        ] {
            for method in [Method::POST, Method::PUT, Method::PATCH, Method::DELETE] {
                assert!(
                    !with(method, host, header::ORIGIN, origin),
                    "{origin} to {host}"
                );
            }
            // The browser hides the response from the page.
            assert!(
                with(Method::GET, host, header::ORIGIN, origin),
                "{origin} to {host}"
            );
        }
        for (site, is_own) in [
            ("same-origin", true),
            ("none", true),
            ("same-site", false),
            ("cross-site", false),
        ] {
            assert_eq!(
                with(Method::POST, "localhost", SEC_FETCH_SITE, site),
                is_own,
                "{site}"
            );
        }
        let both = [
            (header::HOST, "localhost"),
            (header::ORIGIN, "http://localhost"),
            (header::ORIGIN, "http://evil"),
        ];
        assert!(!is_let_in(&options, Method::POST, &both));
    }
}
