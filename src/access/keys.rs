//! Who calls, and what they may do: bearer keys, known by their SHA-256 alone.

use super::denied::Denied;
use super::options::{AuthOptions, KeyOptions, Scope};
use crate::domain::Timestamp;
use sha2::{Digest as _, Sha256};
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, OnceLock};
use subtle::ConstantTimeEq;
use thiserror::Error;

/// Who a request comes from: the holder of a key, or anybody where there are no keys.
#[derive(Clone, Debug)]
pub struct Caller(Option<Arc<KeyOptions>>);

impl Caller {
    /// A caller where there are no keys.
    pub fn anybody() -> Self {
        Self(None)
    }

    /// The key's name; empty for anybody.
    pub fn name(&self) -> &str {
        self.0.as_ref().map_or("", |key| &key.name)
    }

    /// Names that the caller may touch begin so.
    pub fn prefix(&self) -> &str {
        self.0.as_ref().map_or("", |key| &key.prefix)
    }

    /// Whether the caller may do what takes this scope.
    pub fn may(&self, scope: Scope) -> bool {
        self.0
            .as_ref()
            .is_none_or(|key| key.scopes.iter().any(|granted| *granted == scope || *granted == Scope::Admin))
    }

    /// Refuses a caller whose key's time is over. `now` is asked only if it may be.
    ///
    /// # Errors
    /// [`Denied::KeyExpired`].
    pub fn require_unexpired(&self, now: impl FnOnce() -> Timestamp) -> Result<(), Denied> {
        match self.0.as_ref().and_then(|key| key.expires_at) {
            Some(expires_at) if now() >= expires_at => Err(Denied::KeyExpired(expires_at)),
            _ => Ok(()),
        }
    }

    /// Refuses what takes a scope that the caller has not.
    ///
    /// # Errors
    /// [`Denied::MissingScope`].
    pub fn require(&self, scope: Scope) -> Result<(), Denied> {
        if self.may(scope) {
            return Ok(());
        }
        Err(Denied::MissingScope(scope))
    }

    /// Refuses a name that the caller may not touch.
    ///
    /// # Errors
    /// [`Denied::OtherPrefix`].
    pub fn require_name(&self, name: &str) -> Result<(), Denied> {
        if name.starts_with(self.prefix()) {
            return Ok(());
        }
        Err(Denied::OtherPrefix)
    }

    /// Refuses a caller who may touch some names only, for what concerns all.
    ///
    /// # Errors
    /// [`Denied::OtherPrefix`].
    pub fn require_all_names(&self) -> Result<(), Denied> {
        self.require_name("")
    }
}

/// A key's entry that can't be.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum InvalidKey {
    /// Nothing to tell its requests by.
    #[error("auth.keys: a key has no name")]
    NoName,
    /// Rates, idempotency keys and end users belong to a name: two keys of one name would share them.
    #[error("auth.keys: two keys bear the name `{0}`")]
    SameName(String),
    /// One key can't have two names.
    #[error("auth.keys: `{0}` and `{1}` have the same sha256")]
    SameKey(String, String),
    /// No SHA-256.
    #[error("auth.keys: the sha256 of `{0}` is not 64 hexadecimal digits")]
    NoDigest(String),
    /// A service that asks for keys would be open to anybody.
    #[error(
        "auth.keys: there is none any more, and whoever comes would be let in; a restart is needed for that"
    )]
    LastGone,
}

/// All keys.
pub struct Keys {
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
    ///
    /// # Errors
    /// [`InvalidKey`].
    pub fn new(options: &AuthOptions) -> Result<Self, InvalidKey> {
        let mut keys: Vec<Key> = Vec::with_capacity(options.keys.len());
        for key in &options.keys {
            if key.name.is_empty() {
                return Err(InvalidKey::NoName);
            }
            let sha256 = parse_sha256(&key.sha256).ok_or_else(|| InvalidKey::NoDigest(key.name.clone()))?;
            for other in &keys {
                if other.options.name == key.name {
                    return Err(InvalidKey::SameName(key.name.clone()));
                }
                if other.sha256 == sha256 {
                    return Err(InvalidKey::SameKey(other.options.name.clone(), key.name.clone()));
                }
            }
            keys.push(Key { options: Arc::new(key.clone()), sha256, tag: OnceLock::new() });
        }
        Ok(Self { keys, tagging: Default::default() })
    }

    /// Whether there are none, so that anybody may call.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Who presents this key, or none.
    ///
    /// Every key is compared whole, whichever matches, so that the time taken tells nothing of them.
    ///
    /// # Errors
    /// [`Denied::NoKey`], [`Denied::UnknownKey`].
    pub fn caller(&self, presented: Option<&[u8]>) -> Result<Caller, Denied> {
        if self.keys.is_empty() {
            return Ok(Caller::anybody());
        }
        let presented = presented.ok_or(Denied::NoKey)?;
        let tag = self.tag(presented);
        let known = self.select(|key| key.tag.get().is_some_and(|known| known.ct_eq(&tag).into()));
        if let Some(key) = known {
            return Ok(Caller(Some(key.options.clone())));
        }
        let sha256: [u8; 32] = Sha256::digest(presented).into();
        let Some(key) = self.select(|key| key.sha256.ct_eq(&sha256).into()) else {
            return Err(Denied::UnknownKey);
        };
        // Only the first caller's tag is kept; they are all the same.
        let _ = key.tag.set(tag);
        Ok(Caller(Some(key.options.clone())))
    }

    /// The keys that expire, by name, and when.
    pub fn expiries(&self) -> impl Iterator<Item = (&str, Timestamp)> {
        self.keys.iter().filter_map(|key| Some((key.options.name.as_str(), key.options.expires_at?)))
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

/// 32 bytes from 64 hexadecimal digits.
fn parse_sha256(text: &str) -> Option<[u8; 32]> {
    let mut digest = [0; 32];
    hex::decode_to_slice(text, &mut digest).ok().map(|()| digest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str, scopes: &[Scope], prefix: &str) -> KeyOptions {
        let sha256 = hex::encode(Sha256::digest(name));
        KeyOptions {
            name: name.into(),
            sha256,
            scopes: scopes.to_vec(),
            prefix: prefix.into(),
            ..KeyOptions::default()
        }
    }

    fn keys(keys: &[KeyOptions]) -> Result<Keys, InvalidKey> {
        Keys::new(&AuthOptions { keys: keys.to_vec(), allow_anonymous: false })
    }

    fn two() -> Keys {
        keys(&[key("reader", &[Scope::Read], "eu-"), key("root", &[Scope::Admin], "")]).unwrap()
    }

    #[test]
    fn a_key_is_known_the_first_time_and_ever_after() {
        let keys = two();
        for _ in 0..2 {
            assert_eq!(keys.caller(Some(b"root")).unwrap().name(), "root");
            assert_eq!(keys.caller(Some(b"reader")).unwrap().name(), "reader");
            for stranger in [&b""[..], b"roo", b"reader2"] {
                assert_eq!(keys.caller(Some(stranger)).unwrap_err(), Denied::UnknownKey);
            }
        }
        assert_eq!(keys.caller(None).unwrap_err(), Denied::NoKey);
    }

    #[test]
    fn a_key_may_do_what_its_scopes_say() {
        let keys = two();
        let reader = keys.caller(Some(b"reader")).unwrap();
        assert!(reader.may(Scope::Read) && !reader.may(Scope::Write) && !reader.may(Scope::Admin));
        assert!(reader.require_name("eu-spring").is_ok() && reader.require_name("us-spring").is_err());
        assert!(reader.require_all_names().is_err());
        let root = keys.caller(Some(b"root")).unwrap();
        assert!(root.may(Scope::Redeem) && root.require_all_names().is_ok());
    }

    #[test]
    fn a_key_is_good_until_it_expires() {
        let until = KeyOptions { expires_at: Some(Timestamp(1_000)), ..key("guest", &[Scope::Read], "") };
        let keys = keys(&[until, key("root", &[Scope::Admin], "")]).unwrap();
        assert_eq!(keys.expiries().collect::<Vec<_>>(), [("guest", Timestamp(1_000))]);
        let guest = keys.caller(Some(b"guest")).unwrap();
        assert_eq!(guest.require_unexpired(|| Timestamp(999)), Ok(()));
        let expired = Denied::KeyExpired(Timestamp(1_000));
        assert_eq!(guest.require_unexpired(|| Timestamp(1_000)), Err(expired));
        let root = keys.caller(Some(b"root")).unwrap();
        assert_eq!(root.require_unexpired(|| unreachable!("it never expires")), Ok(()));
    }

    #[test]
    fn every_key_has_a_name_and_a_digest_of_its_own() {
        let one = key("one", &[Scope::Read], "");
        let of = |other: KeyOptions| keys(&[one.clone(), other]).err();
        let renamed = |name: &str, other: &KeyOptions| KeyOptions { name: name.into(), ..other.clone() };
        let two = key("two", &[Scope::Read], "");
        assert_eq!(of(two.clone()), None);
        assert_eq!(of(renamed("one", &two)), Some(InvalidKey::SameName("one".into())));
        assert_eq!(of(renamed("", &two)), Some(InvalidKey::NoName));
        assert_eq!(of(renamed("two", &one)), Some(InvalidKey::SameKey("one".into(), "two".into())));
        let short = KeyOptions { sha256: "0f".into(), ..two };
        assert_eq!(of(short), Some(InvalidKey::NoDigest("two".into())));
    }

    #[test]
    fn a_digest_has_one_length() {
        assert_eq!(parse_sha256(&"0F".repeat(32)), Some([15; 32]));
        for bad in ["", "0f", &"0f".repeat(33), &"0g".repeat(32), &"é".repeat(32)] {
            assert_eq!(parse_sha256(bad), None);
        }
    }
}
