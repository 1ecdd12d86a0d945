//! How often somebody may call, and how many codes an end user may guess. Both are off unless configured.

use super::auth::Caller;
use super::options::{AuthOptions, GuessingOptions, RateLimitOptions};
use super::problem::{Code, Problem};
use axum::extract::ConnectInfo;
use governor::clock::{Clock as _, DefaultClock};
use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use http::{Extensions, HeaderMap};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::time::{Duration, Instant};
use xxhash_rust::xxh3::xxh3_64;

/// The most end users that are remembered at a time.
const CLIENTS_MAX: usize = 100_000;

/// The time over which invalid codes count.
const MINUTE: Duration = Duration::from_secs(60);

/// One limiter a key, and one for callers without.
pub(super) struct Rates {
    by_key: HashMap<String, DefaultDirectRateLimiter>,
    clock: DefaultClock,
}

impl Rates {
    /// Limiters for the configured keys.
    pub(super) fn new(options: &RateLimitOptions, auth: &AuthOptions) -> Self {
        let mut by_key = HashMap::new();
        if let Some(rate) = NonZeroU32::new(options.requests_per_second) {
            let names = auth.keys.iter().map(|key| key.name.as_str()).chain([""]);
            by_key.extend(names.map(|name| (name.to_owned(), RateLimiter::direct(Quota::per_second(rate)))));
        }
        Self { by_key, clock: DefaultClock::default() }
    }

    /// Counts a request, or refuses it.
    pub(super) fn count(&self, caller: &Caller) -> Result<(), Problem> {
        let Some(limiter) = self.by_key.get(caller.name()) else { return Ok(()) };
        limiter.check().map_err(|until| {
            let wait = until.wait_time_from(self.clock.now());
            Problem::new(Code::RateLimited, "the key makes more requests a second than it may")
                .retry_after(seconds(wait))
        })
    }
}

/// Who an end user is, as a hash: of `X-Client-Id` when a trusted key sends it, else of the address. A shop is one
/// key with many end users, so a key never is one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Client(u64);

/// Counts the invalid codes of each end user.
///
/// The generic cell rate algorithm, by hand: a limiter of the crate that counts requests can't be asked whether
/// it would refuse without counting, and codes are known to be invalid only afterwards.
pub(super) struct Guard {
    /// The time that one invalid code uses up, if there is a limit.
    each: Option<Duration>,
    trusted_keys: Vec<String>,
    /// When each end user's use will have been forgotten.
    used_until: Mutex<HashMap<Client, Instant>>,
}

impl Guard {
    /// A guard by the configuration.
    pub(super) fn new(options: &GuessingOptions) -> Self {
        let each = NonZeroU32::new(options.invalid_codes_per_minute).map(|codes| MINUTE / codes.get());
        Self { each, trusted_keys: options.trusted_keys.clone(), used_until: Mutex::default() }
    }

    /// Who the end user is; nobody while there is no limit.
    pub(super) fn client(
        &self,
        caller: &Caller,
        headers: &HeaderMap,
        extensions: &Extensions,
    ) -> Option<Client> {
        self.each?;
        let is_trusted = self.trusted_keys.iter().any(|name| !name.is_empty() && name == caller.name());
        if let Some(id) = headers.get("x-client-id").filter(|_| is_trusted) {
            return Some(Client(xxh3_64(id.as_bytes())));
        }
        let address = extensions.get::<ConnectInfo<SocketAddr>>().map(|ConnectInfo(address)| address.ip());
        Some(Client(xxh3_64(address.map(|ip| ip.to_string()).unwrap_or_default().as_bytes())))
    }

    /// Refuses an end user who has tried too many invalid codes.
    pub(super) fn check(&self, client: Option<Client>) -> Result<(), Problem> {
        let (Some(each), Some(client)) = (self.each, client) else { return Ok(()) };
        let used_until = self.used_until.lock().get(&client).copied();
        let used =
            used_until.map(|until| until.saturating_duration_since(Instant::now())).unwrap_or_default();
        if used + each <= MINUTE {
            return Ok(());
        }
        Err(Problem::new(
            Code::TooManyInvalidCodes,
            "this end user has tried too many codes that are not valid",
        )
        .retry_after(seconds(used + each - MINUTE)))
    }

    /// Counts invalid codes.
    pub(super) fn count(&self, client: Option<Client>, invalid: usize) {
        let (Some(each), Some(client)) = (self.each, client) else { return };
        if invalid == 0 {
            return;
        }
        let now = Instant::now();
        let mut used_until = self.used_until.lock();
        if used_until.len() >= CLIENTS_MAX && !used_until.contains_key(&client) {
            used_until.retain(|_, until| *until > now);
            // Whoever has used the least is forgotten: an attacker with many addresses clears no other's record
            // that is worse than the attacker's own.
            if used_until.len() >= CLIENTS_MAX
                && let Some(least) =
                    used_until.iter().min_by_key(|(_, until)| **until).map(|(client, _)| *client)
            {
                used_until.remove(&least);
            }
        }
        let until = used_until.entry(client).or_insert(now);
        *until = (*until).max(now) + each * u32::try_from(invalid).unwrap_or(u32::MAX);
    }
}

/// Whole seconds, rounded up.
fn seconds(wait: Duration) -> u64 {
    wait.as_millis().div_ceil(1_000).max(1) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guard(invalid_codes_per_minute: u32) -> Guard {
        Guard::new(&GuessingOptions { invalid_codes_per_minute, trusted_keys: Vec::new() })
    }

    #[test]
    fn the_code_after_the_last_allowed_one_is_refused() {
        let (guard, client) = (guard(3), Some(Client(1)));
        for _ in 0..3 {
            assert!(guard.check(client).is_ok());
            guard.count(client, 1);
        }
        let problem = guard.check(client).unwrap_err();
        assert_eq!(problem.code, Code::TooManyInvalidCodes);
        assert!((1..=20).contains(&problem.retry_after_seconds.unwrap()));
        assert!(guard.check(Some(Client(2))).is_ok(), "somebody else");
    }

    #[test]
    fn a_batch_counts_each_of_its_codes() {
        let (guard, client) = (guard(60), Some(Client(1)));
        guard.count(client, 600);
        let wait = guard.check(client).unwrap_err().retry_after_seconds.unwrap();
        assert!((530..=541).contains(&wait), "{wait}");
    }

    #[test]
    fn without_a_limit_nobody_is_counted() {
        let guard = guard(0);
        assert_eq!(guard.client(&Caller::anybody(), &HeaderMap::new(), &Extensions::new()), None);
    }
}
