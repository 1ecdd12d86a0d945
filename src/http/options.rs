//! What the HTTP layer can be told: the configuration's sections on keys, limits, guessing and rates.

use serde::Deserialize;
use std::time::Duration;

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

/// The section `auth`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AuthOptions {
    /// Who may call; nobody in particular when empty.
    pub keys: Vec<KeyOptions>,
    /// Serve beyond loopback though there are no keys.
    pub allow_anonymous: bool,
}

/// One API key.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyOptions {
    /// What the key is called in messages; never the key itself.
    pub name: String,
    /// SHA-256 of the key, 64 hexadecimal digits.
    pub sha256: String,
    /// What it may do.
    pub scopes: Vec<Scope>,
    /// Campaigns and coupons that it may touch: those whose names begin so.
    #[serde(default)]
    pub prefix: String,
}

/// What a key may do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// Every GET under /v1, check, count, eligibility and plan.
    Read,
    /// Create, change, add, remove, replace, clear and import.
    Write,
    /// Redemptions.
    Redeem,
    /// All of it, and alone DELETE, revive, snapshots and backup.
    Admin,
}

impl Scope {
    /// Its name in the configuration and in the document.
    pub fn as_str(self) -> &'static str {
        match self {
            Scope::Read => "read",
            Scope::Write => "write",
            Scope::Redeem => "redeem",
            Scope::Admin => "admin",
        }
    }

    /// The scope of this name.
    pub fn named(name: &str) -> Option<Scope> {
        [Scope::Read, Scope::Write, Scope::Redeem, Scope::Admin]
            .into_iter()
            .find(|scope| scope.as_str() == name)
    }
}

/// The part of the section `limits` that concerns requests.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LimitOptions {
    /// The longest body once decompressed, in bytes; imports have no limit.
    pub body_bytes_max: usize,
    /// The most items in one request, at most [`crate::domain::ITEMS_MAX`].
    pub items_max: usize,
}

impl Default for LimitOptions {
    fn default() -> Self {
        Self { body_bytes_max: 32 << 20, items_max: crate::domain::ITEMS_MAX }
    }
}

/// The section `guessing`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GuessingOptions {
    /// Codes that do not exist or can't be used, which one end user may try in a minute; 0 for any number.
    pub invalid_codes_per_minute: u32,
    /// Names of the keys whose `X-Client-Id` is believed; for any other caller the address counts.
    pub trusted_keys: Vec<String>,
}

/// The section `rate_limit`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RateLimitOptions {
    /// Requests that one key may make in a second; 0 for any number.
    pub requests_per_second: u32,
}
