//! Keys: `campaign:NAME` and `coupon:NAME`. A bare name is the campaign of that name. Rules of the configuration map other keys, and
//! patterns match keys as in Redis' SCAN: `*`, `?`, `[abc]`, `[^a-c]`, and `\` before a character that is meant as such.

use cuckood_state::domain::{Kind, Name};
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
    /// Whether it maps keys that no filter has to valid names.
    pub fn is_valid(&self) -> bool {
        let sample = self.key.replace('*', "x");
        let mapped = self.map(sample.as_bytes()).unwrap_or_default();
        [&self.key, &self.filter]
            .iter()
            .all(|pattern| pattern.matches('*').count() == 1)
            && FilterKey::parse(sample.as_bytes(), &[]).is_none()
            && FilterKey::parse(mapped.as_bytes(), &[]).is_some()
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
        let star = key
            .strip_prefix(before)?
            .strip_suffix(after)
            .filter(|star| !star.is_empty())?;
        Some(to.replacen('*', star, 1))
    }
}

/// The key of a filter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FilterKey<'a> {
    /// Campaign or coupon.
    pub kind: Kind,
    name: Cow<'a, str>,
}

const CAMPAIGN: &str = "campaign:";
const COUPON: &str = "coupon:";

impl<'a> FilterKey<'a> {
    /// Parses a key, mapped by the first rule that applies to it; `None` if no filter can have it.
    pub fn parse(bytes: &'a [u8], rules: &[KeyRule]) -> Option<Self> {
        if let Some(mapped) = rules.iter().find_map(|rule| rule.map(bytes)) {
            let FilterKey { kind, name } = FilterKey::parse(mapped.as_bytes(), &[])?;
            return Some(Self {
                kind,
                name: name.into_owned().into(),
            });
        }
        let text = str::from_utf8(bytes).ok()?;
        let (kind, name) = match (text.strip_prefix(CAMPAIGN), text.strip_prefix(COUPON)) {
            (Some(name), _) => (Kind::Campaign, name),
            (_, Some(name)) => (Kind::Coupon, name),
            (None, None) => (Kind::Campaign, text),
        };
        Name::is_valid(name).then_some(Self {
            kind,
            name: name.into(),
        })
    }

    /// The key of a filter.
    pub fn of(kind: Kind, name: &'a Name) -> Self {
        Self {
            kind,
            name: name.as_str().into(),
        }
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

impl fmt::Display for FilterKey<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let prefix = if self.kind == Kind::Campaign {
            CAMPAIGN
        } else {
            COUPON
        };
        write!(f, "{prefix}{}", self.name)
    }
}

/// Whether a string matches a pattern. Takes at most `pattern.len() × text.len()` steps.
pub fn matches(mut pattern: &[u8], mut text: &[u8]) -> bool {
    // The pattern after the last `*`, and the text that it was last compared with.
    let mut again = None;
    loop {
        match (pattern, text) {
            ([b'*', rest @ ..], _) => (pattern, again) = (rest, Some((rest, text))),
            (_, []) => return pattern.is_empty(),
            (_, [first, others @ ..]) => match (one(pattern, *first), again) {
                (Some(rest), _) => (pattern, text) = (rest, others),
                (None, Some((after_star, [_, later @ ..]))) => {
                    (pattern, text, again) = (after_star, later, Some((after_star, later)));
                }
                _ => return false,
            },
        }
    }
}

/// Returns the rest of the pattern if its first element, other than `*`, matches this byte.
fn one(pattern: &[u8], byte: u8) -> Option<&[u8]> {
    let (is_meant, rest) = match pattern {
        [] => return None,
        [b'?', rest @ ..] => (true, rest),
        [b'[', b'^', rest @ ..] => {
            let (is_in, rest) = class(rest, byte);
            (!is_in, rest)
        }
        [b'[', rest @ ..] => class(rest, byte),
        [b'\\', single, rest @ ..] | [single, rest @ ..] => (*single == byte, rest),
    };
    is_meant.then_some(rest)
}

/// Returns whether a class contains a byte, and the pattern after it. A class without `]` extends to the end.
fn class(mut pattern: &[u8], byte: u8) -> (bool, &[u8]) {
    let mut is_in = false;
    loop {
        let (from, to, rest) = match pattern {
            [] => return (is_in, pattern),
            [b']', rest @ ..] => return (is_in, rest),
            [from, b'-', to, rest @ ..] if *from != b'\\' => (from.min(to), from.max(to), rest),
            [b'\\', single, rest @ ..] | [single, rest @ ..] => (single, single, rest),
        };
        is_in |= (from..=to).contains(&&byte);
        pattern = rest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn rules_map_in_both_directions() {
        let rule = |key: &str, filter: &str| KeyRule {
            key: key.into(),
            filter: filter.into(),
        };
        let seen = rule("ads:*:seen", "campaign:ads.*.seen");
        assert!(seen.is_valid());
        assert_eq!(
            seen.map(b"ads:spring:seen").as_deref(),
            Some("campaign:ads.spring.seen")
        );
        let rules = [seen.clone()];
        let mapped = FilterKey::parse(b"ads:spring:seen", &rules).unwrap();
        assert_eq!(
            (mapped.kind, mapped.name()),
            (Kind::Campaign, "ads.spring.seen")
        );
        assert_eq!(FilterKey::parse(b"ads:Spring:seen", &rules), None);
        assert_eq!(
            seen.reverse("campaign:ads.spring.seen").as_deref(),
            Some("ads:spring:seen")
        );
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
    fn key_has_kind_and_name() {
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
            let found = FilterKey::parse(key.as_bytes(), &[]).map(|key| key.to_string());
            assert_eq!(found.as_deref(), wanted, "{key}");
        }
        assert_eq!(FilterKey::parse(b"spring\xff", &[]), None);
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
            ("h[b-a]llo", "hbllo", true),
            ("h\\*llo", "h*llo", true),
            ("h\\*llo", "hxllo", false),
            ("[\\]]", "]", true),
            ("[\\]]", "a]", false),
            ("[\\-_]", "-", true),
            ("[\\-_]", "^", false),
            ("[a\\-z]", "-", true),
            ("[a\\-z]", "m", false),
            ("[a--z]", "z", true),
            ("[a--z]", "b", false),
            ("[^a]", "b", true),
            ("[^a]", "", false),
            ("[a", "a", true),
            ("[]", "a", false),
            ("[^]", "a", true),
            ("[a-]", "^", true),
            ("h[a.]llo", "h.llo", true),
            ("h.llo", "hello", false),
            ("a\\", "a\\", true),
            ("coupon:*", "coupon:spring", true),
        ] {
            assert_eq!(
                matches(pattern.as_bytes(), text.as_bytes()),
                wanted,
                "{pattern} {text}"
            );
        }
    }

    /// By trying everything.
    fn slow(pattern: &[u8], text: &[u8]) -> bool {
        match (pattern, text) {
            ([], _) => text.is_empty(),
            ([b'*', rest @ ..], _) => (0..=text.len()).any(|skipped| slow(rest, &text[skipped..])),
            (_, []) => false,
            (_, [first, rest @ ..]) => {
                one(pattern, *first).is_some_and(|pattern| slow(pattern, rest))
            }
        }
    }

    proptest! {
        #[test]
        fn patterns_match_as_in_naive_search(pattern in "[ab*?]{0,8}", text in "[ab]{0,10}") {
            prop_assert_eq!(matches(pattern.as_bytes(), text.as_bytes()), slow(pattern.as_bytes(), text.as_bytes()));
        }
    }
}
