//! Options of the HTTP layer: access control, limits and time-outs.

use crate::access::{AuthOptions, GuessingOptions, RateLimitOptions};

use http::uri::Authority;
use serde::Deserialize;
use std::time::Duration;

/// Options of the HTTP layer.
#[derive(Clone, Debug, Default)]
pub struct HttpOptions {
    /// The API keys.
    pub auth: AuthOptions,
    /// Limits on requests.
    pub limits: LimitOptions,
    /// The limit on guessing codes.
    pub guessing: GuessingOptions,
    /// The limit on requests per key.
    pub rate_limit: RateLimitOptions,
    /// Time-outs of requests.
    pub timeouts: RequestTimeouts,
    /// The host names of a service without keys.
    pub hosts: HostOptions,
    /// Options of the metrics.
    pub metrics: MetricsOptions,
    /// Time for which rendered metrics are served again. By default, each request renders them.
    pub metrics_age_max: Duration,
    /// Requests that take longer are logged; `None` for none.
    pub slow_request: Option<Duration>,
}

/// The section `metrics`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MetricsOptions {
    /// Whether each campaign and coupon has its own metrics.
    pub per_filter: bool,
}

/// The host names of a service without keys, so that no web page can reach it under another name.
#[derive(Clone, Debug, Default)]
pub struct HostOptions {
    /// Names besides those of loopback.
    pub names: Vec<HostName>,
    /// Whether it is reachable beyond loopback. It accepts any name then, unless some are listed.
    pub is_public: bool,
}

/// A host name, with one port or any.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(try_from = "String")]
pub struct HostName(Authority);

impl TryFrom<String> for HostName {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match text.parse::<Authority>() {
            Ok(authority) if !text.contains('@') => Ok(Self(authority)),
            _ => Err(format!(
                "'{text}' is not a host name such as \"cuckood.internal\" or \"cuckood.internal:8080\""
            )),
        }
    }
}

impl HostName {
    /// Whether a request to this host, and to this port if one was given, matches.
    pub fn matches(&self, host: &str, port: Option<u16>) -> bool {
        let own = self.0.port_u16();
        self.0.host().eq_ignore_ascii_case(host) && own.is_none_or(|own| port == Some(own))
    }
}

/// Time-outs of requests. Imports and backups are limited only by how long they may be silent.
#[derive(Clone, Copy, Debug)]
pub struct RequestTimeouts {
    /// From the end of the request to the response.
    pub request: Duration,
    /// For the whole body; for an import, between two pieces of it.
    pub body: Duration,
}

impl Default for RequestTimeouts {
    fn default() -> Self {
        Self {
            request: Duration::from_secs(30),
            body: Duration::from_secs(30),
        }
    }
}

/// The limits on requests in the section `limits`.
#[derive(Clone, Debug)]
pub struct LimitOptions {
    /// The longest body after decompression, in bytes; imports have no limit.
    pub body_bytes_max: usize,
    /// The most bytes of all bodies that are being read.
    pub bodies_bytes_max: u64,
    /// Maximum bytes of all responses that are being sent.
    pub responses_bytes_max: u64,
}

impl Default for LimitOptions {
    fn default() -> Self {
        Self {
            body_bytes_max: 32 << 20,
            bodies_bytes_max: 256 << 20,
            responses_bytes_max: 128 << 20,
        }
    }
}
