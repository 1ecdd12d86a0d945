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
    /// How often the keys were replaced.
    generation: u64,
}

/// A caller whose connection stays open, while keys change and expire.
#[derive(Clone, Debug)]
pub struct Holder {
    caller: Arc<Caller>,
    /// The generation of the keys under which `caller` was last looked up.
    generation: u64,
}

impl Holder {
    /// Who it was when it was last looked up.
    pub fn caller(&self) -> &Arc<Caller> {
        &self.caller
    }
}

impl KeysAndRates {
    fn renew(&self, holder: &mut Holder, now: impl FnOnce() -> Timestamp) -> Result<(), Denied> {
        if holder.generation != self.generation {
            let caller = Arc::new(self.keys.again(&holder.caller)?);
            *holder = Holder { caller, generation: self.generation };
        }
        holder.caller.require_unexpired(now)
    }
}

impl Entry {
    /// Takes keys and rates from the configuration.
    ///
    /// # Errors
    /// [`InvalidKey`].
    pub fn new(auth: &AuthOptions, rate_limit: &RateLimitOptions) -> Result<Self, InvalidKey> {
        let keys = Keys::new(auth)?;
        let now = KeysAndRates { keys, rates: Rates::new(rate_limit, auth), generation: 0 };
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
        let generation = before.generation + 1;
        self.now.store(Arc::new(KeysAndRates { keys, rates, generation }));
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

    /// Identifies the caller that presents this key, for a connection that stays open.
    ///
    /// # Errors
    /// [`Denied::NoKey`], [`Denied::UnknownKey`].
    pub fn holder(&self, presented: Option<&[u8]>) -> Result<Holder, Denied> {
        let in_force = self.now.load();
        let caller = Arc::new(in_force.keys.caller(presented)?);
        Ok(Holder { caller, generation: in_force.generation })
    }

    /// Looks a holder up again if the keys have changed: its scopes may be others by now. `now` is called only if the key can expire.
    ///
    /// # Errors
    /// [`Denied::NoKey`] if keys are required by now, [`Denied::UnknownKey`] if its key is gone, [`Denied::KeyExpired`].
    pub fn renew(&self, holder: &mut Holder, now: impl FnOnce() -> Timestamp) -> Result<(), Denied> {
        self.now.load().renew(holder, now)
    }

    /// [`Self::renew`], and admits one more request.
    ///
    /// # Errors
    /// As for [`Self::renew`], and [`Denied::TooManyRequests`].
    pub fn admit_holder(&self, holder: &mut Holder, now: impl FnOnce() -> Timestamp) -> Result<(), Denied> {
        let in_force = self.now.load();
        in_force.renew(holder, now)?;
        in_force.rates.count(&holder.caller)
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
        let shop = &mut entry.holder(Some(b"shop")).unwrap();
        let early = || Timestamp(0);
        assert_eq!(entry.renew(shop, early), Ok(()));
        assert!(!shop.caller().may(Scope::Write));
        entry.replace(&with_scopes("shop", &[Scope::Write])).unwrap();
        assert_eq!(entry.renew(shop, early), Ok(()));
        assert!(shop.caller().may(Scope::Write));
        let mut expires = with_scopes("shop", &[Scope::Read]);
        expires.keys[0].expires_at = Some(Timestamp(10));
        entry.replace(&expires).unwrap();
        assert_eq!(entry.renew(shop, || Timestamp(9)), Ok(()));
        assert_eq!(entry.renew(shop, || Timestamp(10)), Err(Denied::KeyExpired(Timestamp(10))));
        entry.replace(&auth(&["other"])).unwrap();
        for _ in 0..2 {
            assert_eq!(entry.renew(shop, early), Err(Denied::UnknownKey));
        }
        entry.replace(&with_scopes("shop", &[Scope::Redeem])).unwrap();
        assert_eq!(entry.renew(shop, early), Ok(()));
        assert!(shop.caller().may(Scope::Redeem));
        let open = Entry::new(&auth(&[]), &RateLimitOptions::default()).unwrap();
        let anybody = &mut open.holder(None).unwrap();
        assert_eq!(open.renew(anybody, early), Ok(()));
        open.replace(&auth(&["first"])).unwrap();
        assert_eq!(open.renew(anybody, early), Err(Denied::NoKey));
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
