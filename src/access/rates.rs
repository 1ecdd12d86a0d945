//! Limits how often a key may call. Off unless configured.

use super::denied::Denied;
use super::keys::Caller;
use super::options::{AuthOptions, RateLimitOptions};
use governor::clock::{Clock as _, DefaultClock};
use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::Arc;

/// One rate limiter per key, and one for callers without a key.
pub struct Rates {
    by_key: HashMap<String, Arc<DefaultDirectRateLimiter>>,
    clock: DefaultClock,
}

impl Rates {
    /// Creates limiters for the configured keys.
    pub fn new(options: &RateLimitOptions, auth: &AuthOptions) -> Self {
        let none = Self { by_key: HashMap::new(), clock: DefaultClock::default() };
        none.with_keys(options, auth)
    }

    /// Keeps the limiters of names that stay, and creates new ones for new names.
    pub(super) fn with_keys(&self, options: &RateLimitOptions, auth: &AuthOptions) -> Self {
        let mut by_key = HashMap::new();
        if let Some(rate) = NonZeroU32::new(options.requests_per_second) {
            let limiter = |name| match self.by_key.get(name) {
                Some(known) => known.clone(),
                None => Arc::new(RateLimiter::direct(Quota::per_second(rate))),
            };
            let names = auth.keys.iter().map(|key| key.name.as_str()).chain([""]);
            by_key.extend(names.map(|name| (name.to_owned(), limiter(name))));
        }
        Self { by_key, clock: self.clock.clone() }
    }

    /// Counts a request, or refuses it.
    ///
    /// # Errors
    /// [`Denied::TooManyRequests`].
    pub fn count(&self, caller: &Caller) -> Result<(), Denied> {
        let Some(limiter) = self.by_key.get(caller.name()) else { return Ok(()) };
        limiter
            .check()
            .map_err(|until| Denied::TooManyRequests { wait: until.wait_time_from(self.clock.now()) })
    }
}

#[cfg(test)]
mod tests {
    use super::super::options::KeyOptions;
    use super::*;

    fn auth(names: &[&str]) -> AuthOptions {
        let key = |name: &&str| KeyOptions { name: (*name).into(), ..KeyOptions::default() };
        AuthOptions { keys: names.iter().map(key).collect(), allow_anonymous: false }
    }

    #[test]
    fn a_rate_is_off_unless_it_is_set_and_refuses_beyond_it() {
        let none = Rates::new(&RateLimitOptions::default(), &auth(&["shop"]));
        assert!((0..1_000).all(|_| none.count(&Caller::anybody()).is_ok()));
        let one = RateLimitOptions { requests_per_second: 1 };
        let rates = Rates::new(&one, &auth(&["shop"]));
        assert_eq!(rates.count(&Caller::anybody()), Ok(()));
        let refused = (0..1_000).find_map(|_| rates.count(&Caller::anybody()).err());
        assert!(matches!(refused, Some(Denied::TooManyRequests { wait }) if !wait.is_zero()));
    }
}
