//! Keys: `campaign:NAME` and `coupon:NAME`. A bare name is the campaign of that name. Rules of the configuration map other keys, and
//! patterns match keys as in Redis' SCAN: `*`, `?`, `[abc]`, `[^a-c]`, and `\` before a character that is meant as such, outside classes.

use crate::domain::{Kind, Name};
use regex::bytes::Regex;
use serde::Deserialize;
use std::borrow::Cow;
use std::fmt;

/// A rule that maps a client's keys to filters, such as `ads:*:seen` to `campaign:ads.*.seen`.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyRule {
    /// A client's keys, with `*` for what differs.
    pub key: String,
    /// The filters' keys, with the same.
    pub filter: String,
}

impl KeyRule {
    /// Whether it maps keys that no filter has to keys that filters can have.
    pub fn is_valid(&self) -> bool {
        let sample = self.key.replace('*', "x");
        let mapped = self.map(sample.as_bytes()).unwrap_or_default();
        [&self.key, &self.filter].iter().all(|pattern| pattern.matches('*').count() == 1)
            && Key::parse(sample.as_bytes(), &[]).is_none()
            && Key::parse(mapped.as_bytes(), &[]).is_some()
    }

    /// Returns the filter's key for a client's key.
    pub fn map(&self, key: &[u8]) -> Option<String> {
        Self::replace(str::from_utf8(key).ok()?, &self.key, &self.filter)
    }

    /// Returns the client's key for a filter's key.
    pub fn reverse(&self, key: &str) -> Option<String> {
        Self::replace(key, &self.filter, &self.key)
    }

    fn replace(key: &str, from: &str, to: &str) -> Option<String> {
        let (before, after) = from.split_once('*')?;
        let star = key.strip_prefix(before)?.strip_suffix(after).filter(|star| !star.is_empty())?;
        Some(to.replacen('*', star, 1))
    }
}

/// The key of a filter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Key<'a> {
    /// Campaign or coupon.
    pub kind: Kind,
    name: Cow<'a, str>,
}

const CAMPAIGN: &str = "campaign:";
const COUPON: &str = "coupon:";

impl<'a> Key<'a> {
    /// Parses a key, mapped by the first rule that applies to it; `None` if no filter can have it.
    pub fn parse(bytes: &'a [u8], rules: &[KeyRule]) -> Option<Self> {
        if let Some(mapped) = rules.iter().find_map(|rule| rule.map(bytes)) {
            let Key { kind, name } = Key::parse(mapped.as_bytes(), &[])?;
            return Some(Self { kind, name: name.into_owned().into() });
        }
        let text = str::from_utf8(bytes).ok()?;
        let (kind, name) = match (text.strip_prefix(CAMPAIGN), text.strip_prefix(COUPON)) {
            (Some(name), _) => (Kind::Campaign, name),
            (_, Some(name)) => (Kind::Coupon, name),
            (None, None) => (Kind::Campaign, text),
        };
        Name::is_valid(name).then_some(Self { kind, name: name.into() })
    }

    /// The key of a filter.
    pub fn of(kind: Kind, name: &'a Name) -> Self {
        Self { kind, name: name.as_str().into() }
    }

    /// The filter's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The filter's name, for a command.
    pub fn owned_name(&self) -> Name {
        Name::new(&self.name).expect("it was looked at when the key was parsed")
    }
}

impl fmt::Display for Key<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let prefix = if self.kind == Kind::Campaign { CAMPAIGN } else { COUPON };
        write!(f, "{prefix}{}", self.name)
    }
}

/// Compiles a pattern; `None` for a class without its `]`, or one that stands for nothing.
pub fn pattern(mut glob: &[u8]) -> Option<Regex> {
    let literal = |byte: &u8| format!("\\x{byte:02x}");
    let mut regex = "(?s-u)^".to_owned();
    while let [first, rest @ ..] = glob {
        glob = rest;
        match (first, rest) {
            (b'*', _) => regex.push_str(".*"),
            (b'?', _) => regex.push('.'),
            (b'\\', [escaped, rest @ ..]) => {
                regex.push_str(&literal(escaped));
                glob = rest;
            }
            (b'[', _) => {
                let end = rest.iter().position(|byte| *byte == b']')?;
                regex.push('[');
                regex.extend(rest[..end].iter().map(|byte| match byte {
                    b'^' | b'-' => char::from(*byte).to_string(),
                    other => literal(other),
                }));
                regex.push(']');
                glob = &rest[end + 1..];
            }
            (other, _) => regex.push_str(&literal(other)),
        }
    }
    Regex::new(&(regex + "$")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_map_in_both_directions() {
        let rule = |key: &str, filter: &str| KeyRule { key: key.into(), filter: filter.into() };
        let seen = rule("ads:*:seen", "campaign:ads.*.seen");
        assert!(seen.is_valid());
        assert_eq!(seen.map(b"ads:spring:seen").as_deref(), Some("campaign:ads.spring.seen"));
        let rules = [seen.clone()];
        let mapped = Key::parse(b"ads:spring:seen", &rules).unwrap();
        assert_eq!((mapped.kind, mapped.name()), (Kind::Campaign, "ads.spring.seen"));
        assert_eq!(Key::parse(b"ads:Spring:seen", &rules), None);
        assert_eq!(seen.reverse("campaign:ads.spring.seen").as_deref(), Some("ads:spring:seen"));
        for other in ["ads::seen", "ads:spring", "spring", "ads:seen"] {
            assert_eq!(seen.map(other.as_bytes()), None, "{other}");
        }
        for (key, filter) in [
            ("ads:*:seen", "campaign:ads"),
            ("ads:seen", "campaign:*"),
            ("*:*", "campaign:*"),
            ("ads:*", "ads:*"),
            ("ads:*", "campaign:Ads.*"),
            ("coupon:*", "campaign:*"),
        ] {
            assert!(!rule(key, filter).is_valid(), "{key} {filter}");
        }
    }

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
            let found = Key::parse(key.as_bytes(), &[]).map(|key| key.to_string());
            assert_eq!(found.as_deref(), wanted, "{key}");
        }
        assert_eq!(Key::parse(b"spring\xff", &[]), None);
    }

    #[test]
    fn patterns_match_as_in_redis() {
        for (pattern, text, wanted) in [
            ("*", "", true),
            ("", "", true),
            ("", "a", false),
            ("a*", "abc", true),
            ("*c", "abc", true),
            ("a*b*c", "axxbyyc", true),
            ("a*b*c", "axxbyy", false),
            ("h?llo", "hello", true),
            ("h?llo", "hllo", false),
            ("h[ae]llo", "hallo", true),
            ("h[ae]llo", "hillo", false),
            ("h[^e]llo", "hallo", true),
            ("h[^e]llo", "hello", false),
            ("h[a-b]llo", "hbllo", true),
            ("h\\*llo", "h*llo", true),
            ("h\\*llo", "hxllo", false),
            ("h[a.]llo", "h.llo", true),
            ("h.llo", "hello", false),
            ("a\\", "a\\", true),
            ("coupon:*", "coupon:spring", true),
        ] {
            let compiled = super::pattern(pattern.as_bytes()).unwrap();
            assert_eq!(compiled.is_match(text.as_bytes()), wanted, "{pattern} {text}");
        }
        for pattern in ["[a", "[]", "[b-a]"] {
            assert!(super::pattern(pattern.as_bytes()).is_none(), "{pattern}");
        }
    }
}
