//! The configuration sections `auth`, `guessing` and `rate_limit`.

use cuckood_state::domain::Timestamp;
use serde::{Deserialize, Deserializer, de};

/// The section `auth`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AuthOptions {
    /// API keys. Without any, all requests are allowed.
    pub keys: Vec<KeyOptions>,
    /// Whether to serve beyond loopback although there are no keys.
    pub allow_anonymous: bool,
}

/// One API key.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyOptions {
    /// The key's name in messages, where the key itself never appears.
    pub name: String,
    /// SHA-256 of the key, 64 hexadecimal digits.
    pub sha256: String,
    /// Scopes of the key.
    pub scopes: Vec<Scope>,
    /// The prefix of the names of all campaigns and coupons that the key may use.
    #[serde(default)]
    pub prefix: String,
    /// When the key expires; `None` for never.
    #[serde(default, deserialize_with = "time")]
    pub expires_at: Option<Timestamp>,
}

/// Parses a time as in RFC 3339.
fn time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Timestamp>, D::Error> {
    let text = String::deserialize(deserializer)?;
    let time = text.parse::<jiff::Timestamp>().ok();
    let milliseconds = time.and_then(|time| u64::try_from(time.as_millisecond()).ok());
    let time = milliseconds.ok_or_else(|| {
        de::Error::custom(format!(
            "wrong time '{text}', expected a time such as \"2027-01-31T00:00:00Z\""
        ))
    })?;
    Ok(Some(Timestamp(time)))
}

/// A permission of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// Every GET under /v1 except for events and backup; check, count, eligibility and plan.
    Read,
    /// Create, change, add, remove, replace, clear and import.
    Write,
    /// Redemptions.
    Redeem,
    /// Everything. The only scope that may delete campaigns, coupons and line-ups, revive codes, and use snapshots, backup and events.
    Admin,
}

impl Scope {
    /// Its name in the configuration and in the OpenAPI document.
    pub fn as_str(self) -> &'static str {
        match self {
            Scope::Read => "read",
            Scope::Write => "write",
            Scope::Redeem => "redeem",
            Scope::Admin => "admin",
        }
    }
}

/// The section `guessing`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GuessingOptions {
    /// Invalid codes that one end user may try per minute: codes that don't exist or can't be used. 0 for no limit.
    pub invalid_codes_per_minute: u32,
    /// Names of the keys that may say which end user a request is for. For other callers the network address counts.
    pub trusted_keys: Vec<String>,
    /// Names of the keys that have no such limit.
    pub unlimited_keys: Vec<String>,
}

/// The section `rate_limit`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RateLimitOptions {
    /// Requests that one key may make per second; 0 for no limit.
    pub requests_per_second: u32,
}
