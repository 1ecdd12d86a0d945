//! Admission of callers: the keys in force and their rates. Both can change while requests arrive.

use super::denied::Denied;
use super::keys::{Caller, InvalidKey, Keys};
use super::options::{AuthOptions, RateLimitOptions};
use super::rates::Rates;
use crate::domain::Timestamp;
use arc_swap::ArcSwap;
use std::sync::Arc;

/// The keys in force, and their rates.
pub struct Entry {
    rate_limit: RateLimitOptions,
    now: ArcSwap<KeysAndRates>,
}

struct KeysAndRates {
    keys: Keys,
    rates: Rates,
}

impl Entry {
    /// Takes keys and rates from the configuration.
    ///
    /// # Errors
    /// [`InvalidKey`].
    pub fn new(auth: &AuthOptions, rate_limit: &RateLimitOptions) -> Result<Self, InvalidKey> {
        let keys = Keys::new(auth)?;
        let now = KeysAndRates { keys, rates: Rates::new(rate_limit, auth) };
        Ok(Self { rate_limit: rate_limit.clone(), now: ArcSwap::from_pointee(now) })
    }

    /// Replaces the keys. A key's name keeps what it has used of its rate.
    ///
    /// # Errors
    /// [`InvalidKey`]; nothing has changed then.
    pub fn replace(&self, auth: &AuthOptions) -> Result<(), InvalidKey> {
        let keys = Keys::new(auth)?;
        let before = self.now.load();
        if keys.is_empty() && !before.keys.is_empty() {
            return Err(InvalidKey::LastGone);
        }
        let rates = before.rates.with_keys(&self.rate_limit, auth);
        self.now.store(Arc::new(KeysAndRates { keys, rates }));
        Ok(())
    }

    /// Whether there are no keys, so that anybody may call.
    pub fn is_open(&self) -> bool {
        self.now.load().keys.is_empty()
    }

    /// Identifies the caller that presents this key.
    ///
    /// # Errors
    /// [`Denied::NoKey`], [`Denied::UnknownKey`].
    pub fn caller(&self, presented: Option<&[u8]>) -> Result<Caller, Denied> {
        self.now.load().keys.caller(presented)
    }

    /// The same caller under the keys in force now: its scopes may have changed since it presented its key, or the key may be gone.
    ///
    /// # Errors
    /// [`Denied::NoKey`] if keys are required by now, [`Denied::UnknownKey`].
    pub fn again(&self, caller: &Caller) -> Result<Caller, Denied> {
        self.now.load().keys.again(caller)
    }

    /// Admits one more request of a caller, or refuses it. `now` is called only if the key can expire.
    ///
    /// # Errors
    /// [`Denied::KeyExpired`], [`Denied::TooManyRequests`].
    pub fn admit(&self, caller: &Caller, now: impl FnOnce() -> Timestamp) -> Result<(), Denied> {
        caller.require_unexpired(now)?;
        self.now.load().rates.count(caller)
    }

    /// The keys that can expire, by name, and when they do.
    pub fn expiries(&self) -> Vec<(String, Timestamp)> {
        self.now.load().keys.expiries().map(|(name, at)| (name.to_owned(), at)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::options::{KeyOptions, Scope};
    use super::*;
    use sha2::{Digest as _, Sha256};

    fn auth(names: &[&str]) -> AuthOptions {
        let key = |name: &&str| KeyOptions {
            name: (*name).into(),
            sha256: hex::encode(Sha256::digest(name)),
            ..KeyOptions::default()
        };
        AuthOptions { keys: names.iter().map(key).collect(), allow_anonymous: false }
    }

    #[test]
    fn keys_change_and_what_was_used_up_stays_so() {
        let rate_limit = RateLimitOptions { requests_per_second: 1 };
        let entry = Entry::new(&auth(&["old", "both"]), &rate_limit).unwrap();
        let admit = |key: &str| {
            let caller = entry.caller(Some(key.as_bytes()))?;
            entry.admit(&caller, || Timestamp(0))
        };
        assert_eq!(admit("both"), Ok(()));
        assert_eq!(admit("new"), Err(Denied::UnknownKey));
        entry.replace(&auth(&["both", "new"])).unwrap();
        assert_eq!(admit("old"), Err(Denied::UnknownKey));
        assert_eq!(admit("new"), Ok(()));
        assert!(matches!(admit("both"), Err(Denied::TooManyRequests { .. })));
    }

    #[test]
    fn who_has_shown_a_key_is_known_by_it_for_as_long_as_it_is_there() {
        let with_scopes = |name: &str, scopes: &[Scope]| {
            let mut auth = auth(&[name]);
            auth.keys[0].scopes = scopes.to_vec();
            auth
        };
        let entry = Entry::new(&with_scopes("shop", &[Scope::Read]), &RateLimitOptions::default()).unwrap();
        let shop = entry.caller(Some(b"shop")).unwrap();
        assert!(!entry.again(&shop).unwrap().may(Scope::Write));
        entry.replace(&with_scopes("shop", &[Scope::Write])).unwrap();
        assert!(entry.again(&shop).unwrap().may(Scope::Write));
        entry.replace(&auth(&["other"])).unwrap();
        assert_eq!(entry.again(&shop).unwrap_err(), Denied::UnknownKey);
        assert_eq!(entry.again(&Caller::anybody()).unwrap_err(), Denied::NoKey);
        let open = Entry::new(&auth(&[]), &RateLimitOptions::default()).unwrap();
        assert!(open.again(&Caller::anybody()).is_ok());
    }

    #[test]
    fn keys_that_can_not_be_change_nothing() {
        let entry = Entry::new(&auth(&["old"]), &RateLimitOptions::default()).unwrap();
        assert_eq!(entry.replace(&auth(&["new", "new"])), Err(InvalidKey::SameName("new".into())));
        assert_eq!(entry.replace(&auth(&[])), Err(InvalidKey::LastGone));
        assert_eq!(entry.caller(Some(b"old")).unwrap().name(), "old");
        let open = Entry::new(&auth(&[]), &RateLimitOptions::default()).unwrap();
        assert!(open.is_open() && open.replace(&auth(&["first"])).is_ok() && !open.is_open());
    }
}
