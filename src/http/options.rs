//! What the HTTP layer can be told: who may do what, how much a request may carry, and how long it may take.

pub use crate::access::{AuthOptions, GuessingOptions, KeyOptions, RateLimitOptions, Scope};

use http::uri::Authority;
use serde::Deserialize;
use std::time::Duration;
use thiserror::Error;

/// All that [`super::router`] goes by.
#[derive(Clone, Debug, Default)]
pub struct HttpOptions {
    /// Who may call.
    pub auth: AuthOptions,
    /// How much a request may carry.
    pub limits: LimitOptions,
    /// What stops the guessing of codes.
    pub guessing: GuessingOptions,
    /// How often a key may call.
    pub rate_limit: RateLimitOptions,
    /// How long a request may take.
    pub timeouts: Timeouts,
    /// What the service is called where it asks for no key.
    pub hosts: HostOptions,
    /// Options of the metrics.
    pub metrics: MetricsOptions,
}

/// The section `metrics`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MetricsOptions {
    /// Whether each campaign and coupon has metrics of its own.
    pub per_filter: bool,
}

/// What the service is called where it asks for no key, so that no web page reaches it under another name.
#[derive(Clone, Debug)]
pub struct HostOptions {
    /// Names besides those of loopback.
    pub names: Vec<HostName>,
    /// Whether it can be reached over loopback only. Else, unless names are listed, it answers to any.
    pub is_loopback: bool,
}

impl Default for HostOptions {
    fn default() -> Self {
        Self { names: Vec::new(), is_loopback: true }
    }
}

/// A host's name, at one port or at any.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(try_from = "String")]
pub struct HostName(Authority);

/// A text is no [`HostName`].
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("'{0}' is no name of a host, such as \"cuckood.internal\" or \"cuckood.internal:8080\"")]
pub struct InvalidHostName(String);

impl TryFrom<String> for HostName {
    type Error = InvalidHostName;

    fn try_from(text: String) -> Result<Self, InvalidHostName> {
        match text.parse::<Authority>() {
            Ok(authority) if !text.contains('@') => Ok(Self(authority)),
            _ => Err(InvalidHostName(text)),
        }
    }
}

impl HostName {
    /// Whether a request for this host, at this port if one was told, is for it.
    pub fn matches(&self, host: &str, port: Option<u16>) -> bool {
        let own = self.0.port_u16();
        self.0.host().eq_ignore_ascii_case(host) && own.is_none_or(|own| port == Some(own))
    }
}

/// How long a request may take; imports and backups are bounded by silence alone.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// From the whole request to the answer.
    pub request: Duration,
    /// Until the whole body is there; for an import, between two pieces of it.
    pub body: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self { request: Duration::from_secs(30), body: Duration::from_secs(30) }
    }
}

/// The part of the section `limits` that concerns requests.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LimitOptions {
    /// The longest body once decompressed, in bytes; imports have no limit.
    pub body_bytes_max: usize,
    /// What all bodies that are being read may take together, in bytes.
    pub bodies_bytes_max: u64,
    /// The most items in one request, at most [`crate::domain::ITEMS_MAX`].
    pub items_max: usize,
}

impl Default for LimitOptions {
    fn default() -> Self {
        Self { body_bytes_max: 32 << 20, bodies_bytes_max: 256 << 20, items_max: crate::domain::ITEMS_MAX }
    }
}
