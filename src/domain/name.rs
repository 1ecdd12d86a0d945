//! Names of campaigns and coupons, and the ids that distinguish filters that have had the same name.

use serde::{Deserialize, Serialize};
use std::borrow::Borrow;
use std::fmt;
use thiserror::Error;

/// The longest name, in bytes.
pub const NAME_BYTES_MAX: usize = 128;

/// Whether a filter is a campaign or a coupon. The two have separate name spaces.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Kind {
    /// Users who have seen an ad, or may see it.
    Campaign,
    /// Codes and their redemptions.
    Coupon,
}

/// A name of the form `[a-z0-9][a-z0-9._-]{0,127}`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Name(Box<str>);

/// The error for a text that is not a [`Name`].
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("a name is 1 to {NAME_BYTES_MAX} of a-z, 0-9, '.', '_' and '-', and begins with a letter or a digit")]
pub struct InvalidName;

impl Name {
    /// Whether a text is a name.
    pub fn is_valid(text: &str) -> bool {
        let bytes = text.as_bytes();
        let starts_well = bytes.first().is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
        let goes_on_well = bytes
            .iter()
            .all(|&b| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'.' | b'_' | b'-'));
        starts_well && goes_on_well && bytes.len() <= NAME_BYTES_MAX
    }

    /// Parses a name.
    ///
    /// # Errors
    /// [`InvalidName`].
    pub fn new(text: &str) -> Result<Self, InvalidName> {
        if Self::is_valid(text) { Ok(Self(text.into())) } else { Err(InvalidName) }
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for Name {
    type Error = InvalidName;

    fn try_from(text: String) -> Result<Self, InvalidName> {
        Self::new(&text)
    }
}

impl From<Name> for String {
    fn from(name: Name) -> String {
        name.0.into()
    }
}

impl AsRef<str> for Name {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

/// A map by names can be searched for a text, which need not be a name.
impl Borrow<str> for Name {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The identity of one filter, drawn at random when it is created and never reused. A command addresses the filter by this id. If
/// the filter is deleted and created again under the same name, an older command can't reach the new one: its digests were made
/// with another secret.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FilterId(pub u64);

impl fmt::Debug for FilterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Display for FilterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_pattern() {
        for good in ["a", "0", "spring-sale_2026.v1", &"x".repeat(128)] {
            assert!(Name::new(good).is_ok(), "{good}");
        }
        for bad in ["", "-a", ".a", "_a", "A", "aB", "a b", "ä", "a/b", "a%20", &"x".repeat(129)] {
            assert!(Name::new(bad).is_err(), "{bad}");
        }
    }
}
