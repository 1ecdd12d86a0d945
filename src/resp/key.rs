//! Keys: `campaign:NAME` and `coupon:NAME`. A bare name is the campaign of that name.

use crate::domain::{Kind, Name};
use std::fmt;

/// The key of a filter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Key<'a> {
    /// Campaign or coupon.
    pub kind: Kind,
    name: &'a str,
}

const CAMPAIGN: &str = "campaign:";
const COUPON: &str = "coupon:";

impl<'a> Key<'a> {
    /// Parses a key; `None` if no filter can have it.
    pub fn parse(bytes: &'a [u8]) -> Option<Self> {
        let text = str::from_utf8(bytes).ok()?;
        let (kind, name) = match (text.strip_prefix(CAMPAIGN), text.strip_prefix(COUPON)) {
            (Some(name), _) => (Kind::Campaign, name),
            (_, Some(name)) => (Kind::Coupon, name),
            (None, None) => (Kind::Campaign, text),
        };
        Name::is_valid(name).then_some(Self { kind, name })
    }

    /// The filter's name.
    pub fn name(self) -> &'a str {
        self.name
    }

    /// The filter's name, for a command.
    pub fn owned_name(self) -> Name {
        Name::new(self.name).expect("it was looked at when the key was parsed")
    }
}

impl fmt::Display for Key<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(prefix(self.kind))?;
        f.write_str(self.name)
    }
}

/// What the keys of this kind begin with.
pub fn prefix(kind: Kind) -> &'static str {
    match kind {
        Kind::Campaign => CAMPAIGN,
        Kind::Coupon => COUPON,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_a_kind_and_a_name() {
        for (key, wanted) in [
            ("spring", Some("campaign:spring")),
            ("campaign:spring", Some("campaign:spring")),
            ("coupon:spring-2", Some("coupon:spring-2")),
            ("coupon", Some("campaign:coupon")),
            ("", None),
            ("coupon:", None),
            ("Spring", None),
            ("user:1", None),
            ("coupon:campaign:a", None),
            ("COUPON:a", None),
        ] {
            let found = Key::parse(key.as_bytes()).map(|key| key.to_string());
            assert_eq!(found.as_deref(), wanted, "{key}");
        }
        assert_eq!(Key::parse(b"spring\xff"), None);
    }
}
