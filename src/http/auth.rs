//! Who calls, and what they may do: bearer keys, known by their SHA-256 alone.

use super::options::{AuthOptions, KeyOptions, Scope};
use super::problem::{Code, Problem};
use http::{HeaderMap, header};
use sha2::{Digest as _, Sha256};
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, OnceLock};
use subtle::ConstantTimeEq;
use thiserror::Error;

/// Who a request comes from: the holder of a key, or anybody where there are no keys.
#[derive(Clone, Debug)]
pub(super) struct Caller(Option<Arc<KeyOptions>>);

impl Caller {
    /// A caller where there are no keys.
    pub(super) fn anybody() -> Self {
        Self(None)
    }

    /// The key's name; empty for anybody.
    pub(super) fn name(&self) -> &str {
        self.0.as_ref().map_or("", |key| &key.name)
    }

    /// Names that the caller may touch begin so.
    pub(super) fn prefix(&self) -> &str {
        self.0.as_ref().map_or("", |key| &key.prefix)
    }

    /// Whether the caller may do what takes this scope.
    pub(super) fn may(&self, scope: Scope) -> bool {
        self.0
            .as_ref()
            .is_none_or(|key| key.scopes.iter().any(|held| *held == scope || *held == Scope::Admin))
    }

    /// Refuses what takes a scope that the caller has not.
    pub(super) fn require(&self, scope: Scope) -> Result<(), Problem> {
        if self.may(scope) {
            return Ok(());
        }
        Err(Problem::new(Code::Forbidden, format!("this takes a key with the scope {}", scope.as_str())))
    }

    /// Refuses a name that the caller may not touch.
    pub(super) fn require_name(&self, name: &str) -> Result<(), Problem> {
        if name.starts_with(self.prefix()) {
            return Ok(());
        }
        Err(Problem::new(Code::Forbidden, "the key is limited to names with another prefix"))
    }

    /// Refuses a caller who may touch some names only, for what concerns all.
    pub(super) fn require_all_names(&self) -> Result<(), Problem> {
        self.require_name("")
    }
}

/// A key's entry that can't be.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("auth.keys: the sha256 of `{0}` is not 64 hexadecimal digits")]
pub struct InvalidKey(String);

/// All keys.
pub(super) struct Keys {
    keys: Vec<Key>,
    /// Two secret hash functions of 64 bits each: a tag that nobody outside can compute or collide with.
    tagging: [RandomState; 2],
}

struct Key {
    options: Arc<KeyOptions>,
    sha256: [u8; 32],
    /// Tag of the key itself, once it has been seen: spares its later requests the SHA-256.
    tag: OnceLock<[u8; 16]>,
}

impl Keys {
    /// The keys of the configuration.
    pub(super) fn new(options: &AuthOptions) -> Result<Self, InvalidKey> {
        let keys = options.keys.iter().map(|key| {
            let sha256 = hex(&key.sha256).ok_or_else(|| InvalidKey(key.name.clone()))?;
            Ok(Key { options: Arc::new(key.clone()), sha256, tag: OnceLock::new() })
        });
        Ok(Self { keys: keys.collect::<Result<_, _>>()?, tagging: Default::default() })
    }

    /// Whether there are none, so that anybody may call.
    pub(super) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Who sends these headers.
    ///
    /// Every key is compared whole, whichever matches, so that the time taken tells nothing of them.
    pub(super) fn caller(&self, headers: &HeaderMap) -> Result<Caller, Problem> {
        if self.keys.is_empty() {
            return Ok(Caller::anybody());
        }
        let presented = bearer(headers).ok_or_else(|| {
            Problem::new(Code::Unauthenticated, "send the header Authorization: Bearer KEY")
        })?;
        let tag = self.tag(presented);
        let known = self.select(|key| key.tag.get().is_some_and(|known| known.ct_eq(&tag).into()));
        if let Some(key) = known {
            return Ok(Caller(Some(key.options.clone())));
        }
        let sha256: [u8; 32] = Sha256::digest(presented).into();
        let Some(key) = self.select(|key| key.sha256.ct_eq(&sha256).into()) else {
            return Err(Problem::new(Code::Unauthenticated, "the key is not known"));
        };
        // Only the first caller's tag is kept; they are all the same.
        let _ = key.tag.set(tag);
        Ok(Caller(Some(key.options.clone())))
    }

    fn select(&self, matches: impl Fn(&Key) -> bool) -> Option<&Key> {
        self.keys.iter().fold(None, |found, key| if matches(key) { Some(key) } else { found })
    }

    fn tag(&self, presented: &[u8]) -> [u8; 16] {
        let [low, high] = &self.tagging;
        let tag = u128::from(low.hash_one(presented)) | u128::from(high.hash_one(presented)) << 64;
        tag.to_le_bytes()
    }
}

/// The key in the header, if there is exactly one.
fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let (Some(value), None) = (values.next(), values.next()) else { return None };
    let (scheme, key) = value.as_bytes().split_at_checked(7)?;
    (scheme.eq_ignore_ascii_case(b"bearer ") && !key.is_empty()).then_some(key)
}

/// 32 bytes from 64 hexadecimal digits.
fn hex(text: &str) -> Option<[u8; 32]> {
    let digits: Option<Vec<u8>> = text.chars().map(|c| c.to_digit(16).map(|digit| digit as u8)).collect();
    let bytes: Vec<u8> =
        digits?.chunks(2).filter_map(|pair| Some(pair.first()? << 4 | pair.get(1)?)).collect();
    (text.len() == 64).then(|| bytes.try_into().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn keys() -> Keys {
        let sha256 = |key: &str| Sha256::digest(key).iter().map(|byte| format!("{byte:02x}")).collect();
        let key = |name: &str, scopes, prefix: &str| KeyOptions {
            name: name.into(),
            sha256: sha256(name),
            scopes,
            prefix: prefix.into(),
        };
        let keys = vec![key("reader", vec![Scope::Read], "eu-"), key("root", vec![Scope::Admin], "")];
        Keys::new(&AuthOptions { keys, allow_anonymous: false }).unwrap()
    }

    fn headers(value: &str) -> HeaderMap {
        HeaderMap::from_iter([(header::AUTHORIZATION, HeaderValue::from_str(value).unwrap())])
    }

    #[test]
    fn a_key_is_known_the_first_time_and_ever_after() {
        let keys = keys();
        for _ in 0..2 {
            assert_eq!(keys.caller(&headers("Bearer root")).unwrap().name(), "root");
            assert_eq!(keys.caller(&headers("bearer reader")).unwrap().name(), "reader");
            for stranger in ["Bearer roo", "Bearer ", "Bearer", "Basic root", "root", "Bearer reader2"] {
                let problem = keys.caller(&headers(stranger)).unwrap_err();
                assert_eq!(problem.code, Code::Unauthenticated, "{stranger}");
            }
        }
        assert!(keys.caller(&HeaderMap::new()).is_err());
    }

    #[test]
    fn a_key_may_do_what_its_scopes_say() {
        let keys = keys();
        let reader = keys.caller(&headers("Bearer reader")).unwrap();
        assert!(reader.may(Scope::Read) && !reader.may(Scope::Write) && !reader.may(Scope::Admin));
        assert!(reader.require_name("eu-spring").is_ok() && reader.require_name("us-spring").is_err());
        assert!(reader.require_all_names().is_err());
        let root = keys.caller(&headers("Bearer root")).unwrap();
        assert!(root.may(Scope::Redeem) && root.require_all_names().is_ok());
    }

    #[test]
    fn a_digest_has_one_length() {
        assert_eq!(hex(&"0F".repeat(32)), Some([15; 32]));
        for bad in ["", "0f", &"0f".repeat(33), &"0g".repeat(32), &"é".repeat(32)] {
            assert_eq!(hex(bad), None);
        }
    }
}
