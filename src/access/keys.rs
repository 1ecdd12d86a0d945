//! Callers and what they may do. A key is known by its SHA-256 only.

use super::denied::Denied;
use super::options::{AuthOptions, KeyOptions, Scope};
use crate::domain::import::KEY_NAME_BYTES_MAX;
use crate::domain::{KeyName, Timestamp};
use sha2::{Digest as _, Sha256};
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, OnceLock};
use subtle::ConstantTimeEq;
use thiserror::Error;

/// The origin of a request: the holder of a key, or anybody if no keys are configured.
#[derive(Clone, Debug)]
pub struct Caller(Option<Arc<KeyOptions>>);

impl Caller {
    /// The caller if no keys are configured.
    pub fn anybody() -> Self {
        Self(None)
    }

    /// The key; none for anybody.
    pub fn key(&self) -> Option<&KeyOptions> {
        self.0.as_deref()
    }

    /// The key's name; empty for anybody.
    pub fn name(&self) -> &str {
        self.0.as_ref().map_or("", |key| &key.name)
    }

    /// The key's name for the log; `None` for anybody.
    pub fn key_name(&self) -> Option<KeyName> {
        self.0.as_ref().map(|key| KeyName::new(&key.name))
    }

    /// The prefix of all names that the caller may use.
    pub fn prefix(&self) -> &str {
        self.0.as_ref().map_or("", |key| &key.prefix)
    }

    /// Whether the caller has this scope.
    pub fn may(&self, scope: Scope) -> bool {
        self.0
            .as_ref()
            .is_none_or(|key| key.scopes.iter().any(|granted| *granted == scope || *granted == Scope::Admin))
    }

    /// Refuses a caller whose key has expired. `now` is called only if the key can expire.
    ///
    /// # Errors
    /// [`Denied::KeyExpired`].
    pub fn require_unexpired(&self, now: impl FnOnce() -> Timestamp) -> Result<(), Denied> {
        match self.0.as_ref().and_then(|key| key.expires_at) {
            Some(expires_at) if now() >= expires_at => Err(Denied::KeyExpired(expires_at)),
            _ => Ok(()),
        }
    }

    /// Refuses a caller that lacks this scope.
    ///
    /// # Errors
    /// [`Denied::MissingScope`].
    pub fn require(&self, scope: Scope) -> Result<(), Denied> {
        if self.may(scope) {
            return Ok(());
        }
        Err(Denied::MissingScope(scope))
    }

    /// Refuses a name that the caller may not use.
    ///
    /// # Errors
    /// [`Denied::OtherPrefix`].
    pub fn require_name(&self, name: &str) -> Result<(), Denied> {
        if name.starts_with(self.prefix()) {
            return Ok(());
        }
        Err(Denied::OtherPrefix)
    }

    /// The prefix of the names that a caller who asks for those with the prefix `asked` may see; `None` if there can be none.
    pub fn narrow<'a>(&'a self, asked: &'a str) -> Option<&'a str> {
        let allowed = self.prefix();
        match (asked.starts_with(allowed), allowed.starts_with(asked)) {
            (true, _) => Some(asked),
            (false, true) => Some(allowed),
            (false, false) => None,
        }
    }

    /// Refuses a caller that may use only some names, where all names are concerned.
    ///
    /// # Errors
    /// [`Denied::OtherPrefix`].
    pub fn require_all_names(&self) -> Result<(), Denied> {
        self.require_name("")
    }
}

/// An invalid entry in `auth.keys`.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum InvalidKey {
    /// The name is missing.
    #[error("auth.keys: a key has no name")]
    NoName,
    /// The name is too long: it is logged with every write.
    #[error("auth.keys: the name `{0}` is longer than {KEY_NAME_BYTES_MAX} bytes")]
    LongName(String),
    /// Two keys have one name. They would share its rate, idempotency keys and end users.
    #[error("auth.keys: two keys have the name `{0}`")]
    SameName(String),
    /// Two names have one key.
    #[error("auth.keys: `{0}` and `{1}` have the same sha256")]
    SameKey(String, String),
    /// The SHA-256 is malformed.
    #[error("auth.keys: the sha256 of `{0}` is not 64 hexadecimal digits")]
    NoDigest(String),
    /// A reread would remove all keys and open the service to anybody.
    #[error("auth.keys: no key is left, which would let anybody in; that takes a restart")]
    LastGone,
}

/// All configured keys.
pub struct Keys {
    keys: Vec<Key>,
    /// Two secret hash functions of 64 bits each. Together they give a tag that nobody outside can compute or make collide.
    tagging: [RandomState; 2],
}

struct Key {
    options: Arc<KeyOptions>,
    sha256: [u8; 32],
    /// Tag of the key itself, once it has been presented. It saves later requests the SHA-256.
    tag: OnceLock<[u8; 16]>,
}

impl Keys {
    /// Takes the keys from the configuration.
    ///
    /// # Errors
    /// [`InvalidKey`].
    pub fn new(options: &AuthOptions) -> Result<Self, InvalidKey> {
        let mut keys: Vec<Key> = Vec::with_capacity(options.keys.len());
        for key in &options.keys {
            if key.name.is_empty() {
                return Err(InvalidKey::NoName);
            }
            if key.name.len() > KEY_NAME_BYTES_MAX {
                return Err(InvalidKey::LongName(key.name.clone()));
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

    /// Whether no keys are configured, so that anybody may call.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Identifies the caller that presents this key. Every configured key is compared in full, whichever matches, so that the
    /// time taken reveals nothing.
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
        // Concurrent callers compute the same tag; the first one is kept.
        let _ = key.tag.set(tag);
        Ok(Caller(Some(key.options.clone())))
    }

    /// The same caller under these keys.
    ///
    /// # Errors
    /// [`Denied::NoKey`], [`Denied::UnknownKey`].
    pub fn again(&self, caller: &Caller) -> Result<Caller, Denied> {
        let Some(known) = &caller.0 else {
            return if self.keys.is_empty() { Ok(Caller::anybody()) } else { Err(Denied::NoKey) };
        };
        if self.keys.iter().any(|key| Arc::ptr_eq(&key.options, known)) {
            return Ok(caller.clone());
        }
        let sha256 = parse_sha256(&known.sha256);
        let same = self.keys.iter().find(|key| Some(key.sha256) == sha256);
        same.map(|key| Caller(Some(key.options.clone()))).ok_or(Denied::UnknownKey)
    }

    /// The keys that can expire, by name, and when they do.
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

/// Decodes 64 hexadecimal digits into 32 bytes.
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
        assert_eq!(
            ["", "eu", "eu-s", "us-"].map(|asked| reader.narrow(asked)),
            [Some("eu-"), Some("eu-"), Some("eu-s"), None]
        );
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
        assert_eq!(of(renamed(&"k".repeat(128), &two)), None);
        assert_eq!(of(renamed(&"k".repeat(129), &two)), Some(InvalidKey::LongName("k".repeat(129))));
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
