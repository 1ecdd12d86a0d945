//! Callers and their permissions: the keys in force, stored as SHA-256 only, and their rates. Both can change while requests arrive.

use super::Access;
use super::denied::Denied;
use super::limiter::Limiter;
use super::options::{AuthOptions, KeyOptions, RateLimitOptions, Scope};
use crate::budget::Owner;
use cuckood_state::NamedLineUp;
use cuckood_state::domain::import::KEY_NAME_BYTES_MAX;
use cuckood_state::domain::{KeyName, Name, Timestamp};
use sha2::{Digest as _, Sha256};
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;

/// An API key.
#[derive(Clone)]
struct ApiKey {
    options: KeyOptions,
    owner: Owner,
    rate: Option<Arc<Limiter>>,
}

/// The origin of a request or connection: the holder of a key, or anonymous if no keys are configured.
#[derive(Clone)]
pub struct Caller {
    key: Option<Arc<ApiKey>>,
    /// The address of an anonymous caller.
    address: Option<IpAddr>,
    /// The generation of the keys at the last lookup.
    generation: u64,
}

impl Caller {
    /// The caller if no keys are configured.
    pub fn anonymous() -> Self {
        Self {
            key: None,
            address: None,
            generation: 0,
        }
    }

    /// Sets the address, which distinguishes anonymous callers.
    pub fn set_address(&mut self, address: IpAddr) {
        self.address = Some(address.to_canonical());
    }

    /// Returns the owner of the caller's memory and connections: the key or, without keys, the address.
    pub fn owner(&self) -> Owner {
        match (&self.key, self.address) {
            (Some(key), _) => key.owner,
            (None, Some(IpAddr::V4(address))) => Owner::named(&address.octets()),
            // A subscriber usually owns all addresses with the same first 64 bits.
            (None, Some(IpAddr::V6(address))) => Owner::named(&address.octets()[..8]),
            (None, None) => Owner::named(b"anonymous"),
        }
    }

    /// The key; none for anonymous callers.
    pub fn key(&self) -> Option<&KeyOptions> {
        self.key.as_deref().map(|key| &key.options)
    }

    /// The key's name; empty for anonymous callers.
    pub fn name(&self) -> &str {
        self.key().map_or("", |key| &key.name)
    }

    /// The key's name for the log; `None` for anonymous callers.
    pub fn key_name(&self) -> Option<KeyName> {
        self.key()
            .map(|key| KeyName::new(&key.name).expect("a key with a longer name is not loaded"))
    }

    /// The prefix of all names that the caller may use.
    pub fn prefix(&self) -> &str {
        self.key().map_or("", |key| &key.prefix)
    }

    /// Whether the caller has this scope.
    pub fn may(&self, scope: Scope) -> bool {
        let grants = |granted: &Scope| *granted == scope || *granted == Scope::Admin;
        self.key().is_none_or(|key| key.scopes.iter().any(grants))
    }

    /// Rejects a caller whose key has expired. `now` is called only if the key can expire.
    ///
    /// # Errors
    /// [`Denied::KeyExpired`].
    pub fn require_unexpired(&self, now: impl FnOnce() -> Timestamp) -> Result<(), Denied> {
        match self.key().and_then(|key| key.expires_at) {
            Some(expires_at) if now() >= expires_at => Err(Denied::KeyExpired(expires_at)),
            _ => Ok(()),
        }
    }

    /// Rejects a caller that lacks this scope.
    ///
    /// # Errors
    /// [`Denied::MissingScope`].
    pub fn require(&self, scope: Scope) -> Result<(), Denied> {
        if self.may(scope) {
            Ok(())
        } else {
            Err(Denied::MissingScope(scope))
        }
    }

    /// Rejects a name that the caller may not use.
    ///
    /// # Errors
    /// [`Denied::OtherPrefix`].
    pub fn require_name(&self, name: &str) -> Result<(), Denied> {
        if name.starts_with(self.prefix()) {
            Ok(())
        } else {
            Err(Denied::OtherPrefix)
        }
    }

    /// Whether the caller may use the name of a line-up and all names in it.
    pub fn sees(&self, line_up: &NamedLineUp) -> bool {
        let names = line_up.line_up.names().chain([&line_up.name]);
        names
            .into_iter()
            .all(|name| self.require_name(name.as_str()).is_ok())
    }

    /// Returns the prefix of the names visible to a caller who lists the prefix `asked`; `None` if no name can match.
    pub fn narrow<'a>(&'a self, asked: &'a str) -> Option<&'a str> {
        let allowed = self.prefix();
        match (asked.starts_with(allowed), allowed.starts_with(asked)) {
            (true, _) => Some(asked),
            (false, true) => Some(allowed),
            (false, false) => None,
        }
    }

    /// Rejects a caller that may use only some names, where all names are concerned.
    ///
    /// # Errors
    /// [`Denied::OtherPrefix`].
    pub fn require_all_names(&self) -> Result<(), Denied> {
        self.require_name("")
    }
}

/// Why `auth.keys` can't be used.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("auth.keys{0}")]
pub struct InvalidKey(String);

/// The keys in force.
#[derive(Default)]
pub struct Keys {
    by_digest: HashMap<[u8; 32], Arc<ApiKey>>,
    /// The rate of callers without a key.
    anonymous_rate: Option<Arc<Limiter>>,
    /// How often the keys were replaced.
    generation: u64,
}

impl Keys {
    /// Takes the keys from the configuration. A name that stays keeps its rate.
    ///
    /// # Errors
    /// [`InvalidKey`].
    pub fn new(
        auth: &AuthOptions,
        rate: &RateLimitOptions,
        before: &Keys,
    ) -> Result<Self, InvalidKey> {
        let limiter = || {
            Arc::new(Limiter::new(
                rate.requests_per_second,
                Duration::from_secs(1),
            ))
        };
        let limiter = || (rate.requests_per_second > 0).then(limiter);
        let mut by_digest: HashMap<_, Arc<ApiKey>> = HashMap::new();
        for options in &auth.keys {
            let digest = digest(options)?;
            if by_digest
                .values()
                .any(|other| other.options.name == options.name)
            {
                // They would share its rate, idempotency keys and end users.
                return Err(InvalidKey(format!(
                    ": two keys have the name `{}`",
                    options.name
                )));
            }
            let same_name = before
                .by_digest
                .values()
                .find(|known| known.options.name == options.name);
            let rate = same_name
                .and_then(|known| known.rate.clone())
                .or_else(limiter);
            let owner = Owner::named(options.name.as_bytes());
            let key = Arc::new(ApiKey {
                options: options.clone(),
                owner,
                rate,
            });
            if let Some(other) = by_digest.insert(digest, key) {
                let other = &other.options.name;
                let name = &options.name;
                return Err(InvalidKey(format!(
                    ": `{other}` and `{name}` have the same sha256"
                )));
            }
        }
        let anonymous_rate = before.anonymous_rate.clone().or_else(limiter);
        Ok(Self {
            by_digest,
            anonymous_rate,
            generation: before.generation + 1,
        })
    }

    fn find(&self, digest: [u8; 32]) -> Result<Caller, Denied> {
        let key = self
            .by_digest
            .get(&digest)
            .cloned()
            .ok_or(Denied::UnknownKey)?;
        Ok(Caller {
            key: Some(key),
            address: None,
            generation: self.generation,
        })
    }
}

/// Checks the entry of one key, and returns its digest.
///
/// # Errors
/// [`InvalidKey`].
pub fn digest(key: &KeyOptions) -> Result<[u8; 32], InvalidKey> {
    let KeyOptions {
        name,
        prefix,
        sha256,
        ..
    } = key;
    let invalid = |fault: String| InvalidKey(format!(": {fault}"));
    if name.is_empty() {
        return Err(invalid(
            "a key has no name; give it one, such as name = \"shop\"".to_owned(),
        ));
    }
    // It is logged with every write.
    if name.len() > KEY_NAME_BYTES_MAX {
        return Err(invalid(format!(
            "the name `{name}` is longer than {KEY_NAME_BYTES_MAX} bytes"
        )));
    }
    if !prefix.is_empty() && !Name::is_valid(prefix) {
        let example = "use one such as \"shop-\"";
        return Err(invalid(format!(
            "no name starts with the prefix `{prefix}` of `{name}`; {example}"
        )));
    }
    let fault = "is not 64 hexadecimal digits; `cuckood key new` prints one";
    parse_sha256(sha256).ok_or_else(|| invalid(format!("the sha256 of `{name}` {fault}")))
}

/// Decodes 64 hexadecimal digits into 32 bytes.
fn parse_sha256(text: &str) -> Option<[u8; 32]> {
    let mut digest = [0; 32];
    hex::decode_to_slice(text, &mut digest)
        .ok()
        .map(|()| digest)
}

/// Admission of callers.
impl Access {
    /// Replaces the keys. A key with the same name keeps its use of the rate.
    ///
    /// # Errors
    /// [`InvalidKey`]; nothing has changed then.
    pub fn replace_keys(&self, auth: &AuthOptions) -> Result<(), InvalidKey> {
        let before = self.keys.load();
        let keys = Keys::new(auth, &self.rate_limit, &before)?;
        if keys.by_digest.is_empty() && !before.by_digest.is_empty() {
            // Any caller would be admitted.
            let fault = " is empty: reloading would disable authentication; restart to apply";
            return Err(InvalidKey(fault.to_owned()));
        }
        self.keys.store(Arc::new(keys));
        Ok(())
    }

    /// Whether there are no keys, so that any caller is admitted.
    pub fn is_open(&self) -> bool {
        self.keys.load().by_digest.is_empty()
    }

    /// Identifies the caller that presents this key.
    ///
    /// # Errors
    /// [`Denied::NoKey`], [`Denied::UnknownKey`].
    pub fn caller(&self, presented: Option<&[u8]>) -> Result<Caller, Denied> {
        let keys = self.keys.load();
        if keys.by_digest.is_empty() {
            return Ok(Caller {
                key: None,
                address: None,
                generation: keys.generation,
            });
        }
        // The time that the lookup takes depends on the digest, from which nothing about another key follows.
        keys.find(Sha256::digest(presented.ok_or(Denied::NoKey)?).into())
    }

    /// Looks a caller up again if the keys have changed: its scopes may be others by now. Rejects an expired key. `now` is called only if
    /// the key can expire.
    ///
    /// # Errors
    /// [`Denied::NoKey`] if keys are now required, [`Denied::UnknownKey`] if its key was removed, [`Denied::KeyExpired`].
    pub fn renew(
        &self,
        caller: &mut Caller,
        now: impl FnOnce() -> Timestamp,
    ) -> Result<(), Denied> {
        let keys = self.keys.load();
        if caller.generation != keys.generation {
            let current = match &caller.key {
                None => self.caller(None)?,
                Some(known) => {
                    keys.find(parse_sha256(&known.options.sha256).unwrap_or_default())?
                }
            };
            *caller = Caller {
                address: caller.address,
                ..current
            };
        }
        caller.require_unexpired(now)
    }

    /// [`Self::renew`], and admits one more request.
    ///
    /// # Errors
    /// Those of [`Self::renew`], and [`Denied::TooManyRequests`].
    pub fn admit(
        &self,
        caller: &mut Caller,
        now: impl FnOnce() -> Timestamp,
    ) -> Result<(), Denied> {
        self.renew(caller, now)?;
        self.count(caller)
    }

    /// Counts a request in the caller's rate, also one that requires no key.
    ///
    /// # Errors
    /// [`Denied::TooManyRequests`].
    pub fn count(&self, caller: &Caller) -> Result<(), Denied> {
        let taken = match &caller.key {
            Some(key) => key.rate.as_ref().map_or(Ok(()), |rate| rate.take()),
            None => self
                .keys
                .load()
                .anonymous_rate
                .as_ref()
                .map_or(Ok(()), |rate| rate.take()),
        };
        taken.map_err(|wait| Denied::TooManyRequests { wait })
    }

    /// The keys that can expire, by name, and when they do.
    pub fn expiries(&self) -> Vec<(String, Timestamp)> {
        let keys = self.keys.load();
        let options = keys.by_digest.values().map(|key| &key.options);
        let mut expiries: Vec<_> = options
            .filter_map(|key| Some((key.name.clone(), key.expires_at?)))
            .collect();
        expiries.sort_unstable();
        expiries
    }
}

#[cfg(test)]
mod tests {
    use super::super::GuessingOptions;
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

    fn keys(keys: &[KeyOptions]) -> Result<Access, InvalidKey> {
        let auth = AuthOptions {
            keys: keys.to_vec(),
            allow_anonymous: false,
        };
        Access::new(
            &auth,
            &RateLimitOptions::default(),
            &GuessingOptions::default(),
        )
    }

    fn two() -> Access {
        keys(&[
            key("reader", &[Scope::Read], "eu-"),
            key("root", &[Scope::Admin], ""),
        ])
        .unwrap()
    }

    #[test]
    fn key_is_recognized_repeatedly() {
        let keys = two();
        for _ in 0..2 {
            assert_eq!(keys.caller(Some(b"root")).unwrap().name(), "root");
            assert_eq!(keys.caller(Some(b"reader")).unwrap().name(), "reader");
            for stranger in [&b""[..], b"roo", b"reader2"] {
                assert_eq!(keys.caller(Some(stranger)).err(), Some(Denied::UnknownKey));
            }
        }
        assert_eq!(keys.caller(None).err(), Some(Denied::NoKey));
    }

    #[test]
    fn key_scopes_limit_operations() {
        let keys = two();
        let reader = keys.caller(Some(b"reader")).unwrap();
        assert!(reader.may(Scope::Read) && !reader.may(Scope::Write) && !reader.may(Scope::Admin));
        assert!(
            reader.require_name("eu-spring").is_ok() && reader.require_name("us-spring").is_err()
        );
        assert!(reader.require_all_names().is_err());
        assert_eq!(
            ["", "eu", "eu-s", "us-"].map(|asked| reader.narrow(asked)),
            [Some("eu-"), Some("eu-"), Some("eu-s"), None]
        );
        let root = keys.caller(Some(b"root")).unwrap();
        assert!(root.may(Scope::Redeem) && root.require_all_names().is_ok());
    }

    #[test]
    fn key_is_valid_until_expiry() {
        let until = KeyOptions {
            expires_at: Some(Timestamp(1_000)),
            ..key("guest", &[Scope::Read], "")
        };
        let keys = keys(&[until, key("root", &[Scope::Admin], "")]).unwrap();
        assert_eq!(keys.expiries(), [("guest".to_owned(), Timestamp(1_000))]);
        let guest = keys.caller(Some(b"guest")).unwrap();
        assert_eq!(guest.require_unexpired(|| Timestamp(999)), Ok(()));
        let expired = Denied::KeyExpired(Timestamp(1_000));
        assert_eq!(guest.require_unexpired(|| Timestamp(1_000)), Err(expired));
        let root = keys.caller(Some(b"root")).unwrap();
        assert_eq!(
            root.require_unexpired(|| unreachable!("it never expires")),
            Ok(())
        );
    }

    #[test]
    fn duplicate_key_name_or_digest_is_rejected() {
        let one = key("one", &[Scope::Read], "");
        let of = |other: KeyOptions| {
            keys(&[one.clone(), other])
                .err()
                .map(|fault| fault.to_string())
        };
        let says = |fault: &str| Some(format!("auth.keys: {fault}"));
        let renamed = |name: &str, other: &KeyOptions| KeyOptions {
            name: name.into(),
            ..other.clone()
        };
        let two = key("two", &[Scope::Read], "");
        assert_eq!(of(two.clone()), None);
        assert_eq!(
            of(renamed("one", &two)),
            says("two keys have the name `one`")
        );
        assert_eq!(
            of(renamed("", &two)),
            says("a key has no name; give it one, such as name = \"shop\"")
        );
        assert_eq!(of(renamed(&"k".repeat(128), &two)), None);
        assert_eq!(
            of(renamed(&"k".repeat(129), &two)),
            says(&format!(
                "the name `{}` is longer than 128 bytes",
                "k".repeat(129)
            ))
        );
        assert_eq!(
            of(renamed("two", &one)),
            says("`one` and `two` have the same sha256")
        );
        let short = KeyOptions {
            sha256: "0f".into(),
            ..two.clone()
        };
        let wanted =
            says("the sha256 of `two` is not 64 hexadecimal digits; `cuckood key new` prints one");
        assert_eq!(of(short), wanted);
        let prefixed = |prefix: &str| KeyOptions {
            prefix: prefix.into(),
            ..two.clone()
        };
        assert_eq!(of(prefixed("eu-")), None);
        for prefix in ["EU-", "-eu", "eu/", "coupon:eu"] {
            let wanted = format!(
                "no name starts with the prefix `{prefix}` of `two`; use one such as \"shop-\""
            );
            assert_eq!(of(prefixed(prefix)), says(&wanted));
        }
    }

    #[test]
    fn digest_of_wrong_length_is_rejected() {
        assert_eq!(parse_sha256(&"0F".repeat(32)), Some([15; 32]));
        for bad in [
            "",
            "0f",
            &"0f".repeat(33),
            &"0g".repeat(32),
            &"é".repeat(32),
        ] {
            assert_eq!(parse_sha256(bad), None);
        }
    }

    fn auth(names: &[&str]) -> AuthOptions {
        let key = |name: &&str| KeyOptions {
            name: (*name).into(),
            sha256: hex::encode(Sha256::digest(name)),
            ..KeyOptions::default()
        };
        AuthOptions {
            keys: names.iter().map(key).collect(),
            allow_anonymous: false,
        }
    }

    #[test]
    fn used_rate_survives_reload() {
        let rate_limit = RateLimitOptions {
            requests_per_second: 1,
        };
        let entry = Access::new(
            &auth(&["old", "both"]),
            &rate_limit,
            &GuessingOptions::default(),
        )
        .unwrap();
        let admit = |key: &str| {
            let mut caller = entry.caller(Some(key.as_bytes()))?;
            entry.admit(&mut caller, || Timestamp(0))
        };
        assert_eq!(admit("both"), Ok(()));
        assert_eq!(admit("new"), Err(Denied::UnknownKey));
        entry.replace_keys(&auth(&["both", "new"])).unwrap();
        assert_eq!(admit("old"), Err(Denied::UnknownKey));
        assert_eq!(admit("new"), Ok(()));
        assert!(matches!(admit("both"), Err(Denied::TooManyRequests { .. })));
    }

    #[test]
    fn caller_is_known_until_key_is_removed() {
        let with_scopes = |name: &str, scopes: &[Scope]| {
            let mut auth = auth(&[name]);
            auth.keys[0].scopes = scopes.to_vec();
            auth
        };
        let entry = Access::new(
            &with_scopes("shop", &[Scope::Read]),
            &RateLimitOptions::default(),
            &GuessingOptions::default(),
        )
        .unwrap();
        let shop = &mut entry.caller(Some(b"shop")).unwrap();
        let early = || Timestamp(0);
        assert_eq!(entry.renew(shop, early), Ok(()));
        assert!(!shop.may(Scope::Write));
        entry
            .replace_keys(&with_scopes("shop", &[Scope::Write]))
            .unwrap();
        assert_eq!(entry.renew(shop, early), Ok(()));
        assert!(shop.may(Scope::Write));
        let mut expires = with_scopes("shop", &[Scope::Read]);
        expires.keys[0].expires_at = Some(Timestamp(10));
        entry.replace_keys(&expires).unwrap();
        assert_eq!(entry.renew(shop, || Timestamp(9)), Ok(()));
        assert_eq!(
            entry.renew(shop, || Timestamp(10)),
            Err(Denied::KeyExpired(Timestamp(10)))
        );
        entry.replace_keys(&auth(&["other"])).unwrap();
        for _ in 0..2 {
            assert_eq!(entry.renew(shop, early), Err(Denied::UnknownKey));
        }
        entry
            .replace_keys(&with_scopes("shop", &[Scope::Redeem]))
            .unwrap();
        assert_eq!(entry.renew(shop, early), Ok(()));
        assert!(shop.may(Scope::Redeem));
        let open = Access::new(
            &auth(&[]),
            &RateLimitOptions::default(),
            &GuessingOptions::default(),
        )
        .unwrap();
        let anonymous = &mut open.caller(None).unwrap();
        assert_eq!(open.renew(anonymous, early), Ok(()));
        open.replace_keys(&auth(&["first"])).unwrap();
        assert_eq!(open.renew(anonymous, early), Err(Denied::NoKey));
    }

    #[test]
    fn invalid_keys_change_nothing() {
        let entry = Access::new(
            &auth(&["old"]),
            &RateLimitOptions::default(),
            &GuessingOptions::default(),
        )
        .unwrap();
        let refused = |names: &[&str]| entry.replace_keys(&auth(names)).unwrap_err().to_string();
        assert_eq!(
            refused(&["new", "new"]),
            "auth.keys: two keys have the name `new`"
        );
        let last = "auth.keys is empty: reloading would disable authentication; restart to apply";
        assert_eq!(refused(&[]), last);
        assert_eq!(entry.caller(Some(b"old")).unwrap().name(), "old");
        let open = Access::new(
            &auth(&[]),
            &RateLimitOptions::default(),
            &GuessingOptions::default(),
        )
        .unwrap();
        assert!(open.is_open() && open.replace_keys(&auth(&["first"])).is_ok() && !open.is_open());
    }

    #[test]
    fn rate_is_off_unless_set() {
        let off = Access::new(
            &auth(&[]),
            &RateLimitOptions::default(),
            &GuessingOptions::default(),
        )
        .unwrap();
        let admit = |entry: &Access| entry.admit(&mut Caller::anonymous(), || Timestamp(0));
        assert!((0..1_000).all(|_| admit(&off).is_ok()));
        let on = Access::new(
            &auth(&[]),
            &RateLimitOptions {
                requests_per_second: 1,
            },
            &GuessingOptions::default(),
        )
        .unwrap();
        assert_eq!(admit(&on), Ok(()));
        let refused = (0..1_000).find_map(|_| admit(&on).err());
        assert!(matches!(refused, Some(Denied::TooManyRequests { wait }) if !wait.is_zero()));
    }
}
