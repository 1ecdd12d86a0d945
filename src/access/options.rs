//! What can be configured: the sections `auth`, `guessing` and `rate_limit`.

use crate::domain::Timestamp;
use serde::{Deserialize, Deserializer, de};

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
#[derive(Clone, Debug, Default, Deserialize)]
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
    /// From when on it is refused; never without one.
    #[serde(default, deserialize_with = "time")]
    pub expires_at: Option<Timestamp>,
}

/// A time as RFC 3339 has it.
fn time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Timestamp>, D::Error> {
    let text = String::deserialize(deserializer)?;
    let time = text.parse::<jiff::Timestamp>().ok();
    let milliseconds = time.and_then(|time| u64::try_from(time.as_millisecond()).ok());
    let time = milliseconds
        .ok_or_else(|| de::Error::custom(format!("'{text}' is no time, such as \"2027-01-31T00:00:00Z\"")))?;
    Ok(Some(Timestamp(time)))
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

/// The section `guessing`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GuessingOptions {
    /// Codes that do not exist or can't be used, which one end user may try in a minute; 0 for any number.
    pub invalid_codes_per_minute: u32,
    /// Names of the keys that are believed when they say which end user a request is for; for any other caller the
    /// address counts.
    pub trusted_keys: Vec<String>,
    /// Names of the keys that may try any number of codes.
    pub unlimited_keys: Vec<String>,
}

/// The section `rate_limit`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RateLimitOptions {
    /// Requests that one key may make in a second; 0 for any number.
    pub requests_per_second: u32,
}
