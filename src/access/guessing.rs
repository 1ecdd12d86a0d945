//! Limits how many invalid codes an end user may try. Off unless configured.
//!
//! A request takes one guess per code before it is answered, and returns those of valid codes. So neither one request nor many concurrent
//! ones reveal more codes than the limit. If the client disconnects, nothing is returned: its command may have taken effect.

use super::denied::Denied;
use super::keys::Caller;
use super::limiter::{Sketch, now};
use super::options::GuessingOptions;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;
use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, Ipv6Addr};
use std::num::NonZeroU32;
use std::time::Duration;

/// An end user, as a secret hash of the id that a trusted key gives, or else of the network address. A key is never an end user:
/// a shop is one key with many end users.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EndUser(u64);

/// Counts the invalid codes of each end user.
pub struct Guessing {
    /// Invalid codes of each end user.
    limit: Option<Sketch>,
    trusted_keys: Vec<String>,
    unlimited_keys: Vec<String>,
    hashing: RandomState,
    /// Requests rejected because their end user had tried too many codes.
    refused: Counter,
    /// Invalid codes in requests that reveal whether codes are valid.
    invalid: Counter,
}

impl Guessing {
    /// Takes the limit from the configuration.
    pub fn new(options: &GuessingOptions) -> Self {
        Self {
            limit: NonZeroU32::new(options.invalid_codes_per_minute).map(Sketch::new),
            trusted_keys: options.trusted_keys.clone(),
            unlimited_keys: options.unlimited_keys.clone(),
            hashing: RandomState::new(),
            refused: Counter::default(),
            invalid: Counter::default(),
        }
    }

    /// Registers its metrics. Their names start with the registry's prefix.
    pub fn register(&self, to: &mut Registry) {
        to.register(
            "guesses_refused",
            "Requests refused after too many invalid codes",
            self.refused.clone(),
        );
        to.register(
            "invalid_codes",
            "Invalid codes in checks and redemptions",
            self.invalid.clone(),
        );
    }

    /// The end user of a request; `None` if the number of codes is not limited.
    ///
    /// `named` is the caller's name for the end user. Only trusted keys are believed.
    pub fn client(
        &self,
        caller: &Caller,
        named: Option<&[u8]>,
        address: Option<IpAddr>,
    ) -> Option<EndUser> {
        self.limit.as_ref()?;
        let is_one_of = |keys: &[String]| {
            !caller.name().is_empty() && keys.iter().any(|key| key == caller.name())
        };
        if is_one_of(&self.unlimited_keys) {
            return None;
        }
        Some(EndUser(
            match named.filter(|_| is_one_of(&self.trusted_keys)) {
                Some(named) => self.hashing.hash_one((caller.name(), named)),
                None => self.hashing.hash_one(address.map(network)),
            },
        ))
    }

    /// Starts a request of this end user that reveals whether items are valid. Only secret codes are guessed: the users of a campaign and
    /// the codes of an open pool have no limit.
    ///
    /// # Errors
    /// [`Denied::TooManyInvalidCodes`] if the end user has no guess left.
    pub fn start(&self, has_secrets: bool, client: Option<EndUser>) -> Result<Guesses<'_>, Denied> {
        let client = client.filter(|_| has_secrets);
        if let (Some(limit), Some(EndUser(hash))) = (&self.limit, client) {
            limit
                .take(hash, 0, now())
                .map_err(|wait| self.too_many(wait))?;
        }
        Ok(Guesses {
            guessing: self,
            has_secrets,
            client,
            count: 0,
            taken_at: 0,
        })
    }

    fn too_many(&self, wait: u64) -> Denied {
        self.refused.inc();
        Denied::TooManyInvalidCodes {
            wait: Duration::from_nanos(wait),
        }
    }
}

/// The part of an address that a client can't choose freely. For IPv6 it is the first half, since a client can use all addresses
/// of the second half.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into()
        }
        address => address,
    }
}

/// The guesses that a request has taken and that are not settled yet: none until its items are known. Dropped, they stay used.
#[must_use]
pub struct Guesses<'a> {
    guessing: &'a Guessing,
    has_secrets: bool,
    client: Option<EndUser>,
    count: u32,
    taken_at: u64,
}

impl Guesses<'_> {
    /// Takes one guess per item of the request.
    ///
    /// # Errors
    /// [`Denied::TooManyInvalidCodes`] if fewer are left; [`Denied::TooManyCodes`] if there can never be as many.
    pub fn take(&self, items: usize) -> Result<Self, Denied> {
        self.take_at(items, self.client.map_or(0, |_| now()))
    }

    fn take_at(&self, items: usize, now: u64) -> Result<Self, Denied> {
        let mut guesses = Self {
            count: 0,
            taken_at: now,
            ..*self
        };
        if let (Some(limit), Some(EndUser(hash)), 1..) = (&self.guessing.limit, self.client, items)
        {
            let most = limit.most.get();
            guesses.count = u32::try_from(items)
                .ok()
                .filter(|&codes| codes <= most)
                .ok_or_else(|| {
                    self.guessing.refused.inc();
                    Denied::TooManyCodes { codes: items, most }
                })?;
            let taken = limit.take(hash, guesses.count, now);
            taken.map_err(|wait| self.guessing.too_many(wait))?;
        }
        Ok(guesses)
    }

    /// Uses up one guess for each invalid code and returns the others.
    pub fn settle(self, invalid: usize) {
        let now = self.client.map_or(0, |_| now());
        self.settle_at(invalid, now);
    }

    /// Returns all guesses: the request was rejected without a look at its codes.
    pub fn return_unused(self) {
        self.settle(0);
    }

    fn settle_at(self, invalid: usize, now: u64) {
        let Self {
            guessing,
            has_secrets,
            client,
            count,
            taken_at,
        } = self;
        if has_secrets {
            guessing.invalid.inc_by(invalid as u64);
        }
        let rest = count.saturating_sub(u32::try_from(invalid).unwrap_or(u32::MAX));
        if let (Some(limit), Some(EndUser(hash)), 1..) = (&guessing.limit, client, rest) {
            limit.return_unused(hash, rest, taken_at, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::limiter::MINUTE;
    use super::*;
    use proptest::prelude::*;

    fn guessing(invalid_codes_per_minute: u32) -> Guessing {
        Guessing::new(&GuessingOptions {
            invalid_codes_per_minute,
            ..GuessingOptions::default()
        })
    }

    fn take(
        guessing: &Guessing,
        client: EndUser,
        codes: usize,
        now: u64,
    ) -> Result<Guesses<'_>, Denied> {
        Guesses {
            guessing,
            has_secrets: true,
            client: Some(client),
            count: 0,
            taken_at: 0,
        }
        .take_at(codes, now)
    }

    fn wait(guessing: &Guessing, client: EndUser, codes: usize, now: u64) -> Option<Duration> {
        match take(guessing, client, codes, now) {
            Ok(guesses) => {
                guesses.settle_at(0, now);
                None
            }
            Err(Denied::TooManyInvalidCodes { wait }) => Some(wait),
            Err(denied) => panic!("{denied}"),
        }
    }

    #[test]
    fn code_beyond_limit_waits() {
        let guessing = guessing(3);
        let now = MINUTE;
        for _ in 0..3 {
            take(&guessing, EndUser(1), 1, now)
                .unwrap()
                .settle_at(1, now);
        }
        assert_eq!(
            wait(&guessing, EndUser(1), 1, now),
            Some(Duration::from_secs(20))
        );
        assert_eq!(
            wait(&guessing, EndUser(1), 0, now),
            None,
            "nothing is guessed"
        );
        assert_eq!(
            wait(&guessing, EndUser(2), 3, now),
            None,
            "another end user must wait"
        );
        assert_eq!(wait(&guessing, EndUser(1), 1, now + 20_000_000_000), None);
        assert!(matches!(
            take(&guessing, EndUser(2), 4, now),
            Err(Denied::TooManyCodes { codes: 4, most: 3 })
        ));
    }

    #[test]
    fn guesses_in_flight_count_until_returned() {
        let guessing = guessing(5);
        let now = MINUTE;
        let under_way = take(&guessing, EndUser(1), 3, now).unwrap();
        assert!(wait(&guessing, EndUser(1), 3, now).is_some());
        under_way.settle_at(1, now);
        assert_eq!(wait(&guessing, EndUser(1), 4, now), None);
        take(&guessing, EndUser(1), 4, now)
            .unwrap()
            .settle_at(0, now);
        assert_eq!(wait(&guessing, EndUser(1), 4, now), None);
        drop(take(&guessing, EndUser(1), 4, now));
        assert!(
            wait(&guessing, EndUser(1), 1, now).is_some(),
            "a client that hangs up learns nothing for free"
        );
    }

    #[test]
    fn client_use_is_never_evicted() {
        let guessing = guessing(5);
        let now = MINUTE;
        let client = |n: u32| {
            guessing.client(
                &Caller::anonymous(),
                None,
                Some(IpAddr::from(n.to_be_bytes())),
            )
        };
        take(&guessing, client(0).unwrap(), 5, now)
            .unwrap()
            .settle_at(5, now);
        for other in 1..500_000 {
            let _ = take(&guessing, client(other).unwrap(), 1, now)
                .map(|guesses| guesses.settle_at(1, now));
        }
        assert!(wait(&guessing, client(0).unwrap(), 1, now).is_some());
    }

    #[test]
    fn most_clients_keep_guesses_under_load() {
        let guessing = guessing(5);
        let now = MINUTE;
        let client = |n: u32| {
            guessing.client(
                &Caller::anonymous(),
                None,
                Some(IpAddr::from(n.to_be_bytes())),
            )
        };
        for heavy in 0..20_000 {
            let _ = take(&guessing, client(heavy).unwrap(), 5, now)
                .map(|guesses| guesses.settle_at(5, now));
        }
        let refused = |n: &u32| wait(&guessing, client(*n).unwrap(), 5, now).is_some();
        assert!((1_000_000..1_010_000).filter(refused).count() < 50);
    }

    #[test]
    fn end_user_is_address_or_trusted_header() {
        let guessing = guessing(1);
        let of = |address: &str| {
            guessing.client(&Caller::anonymous(), Some(b"alice"), address.parse().ok())
        };
        assert_eq!(of("2001:db8:1:2::1"), of("2001:db8:1:2:ffff::"));
        assert_ne!(of("2001:db8:1:2::1"), of("2001:db8:1:3::1"));
        assert_eq!(of("::ffff:192.0.2.1"), of("192.0.2.1"));
        assert_ne!(of("192.0.2.1"), of("192.0.2.2"));
        assert_eq!(
            super::Guessing::new(&GuessingOptions::default()).client(
                &Caller::anonymous(),
                None,
                None
            ),
            None
        );
    }

    proptest! {
        /// However requests follow and overlap, an end user never learns of more invalid codes in any period than the limit and the guesses
        /// that this period returns.
        #[test]
        fn end_user_never_exceeds_guess_limit(
            steps in prop::collection::vec((0u64..3, 1usize..6, 0usize..6, 0u64..9_000, 0usize..4), 1..120),
        ) {
            let guessing = guessing(5);
            let mut now = MINUTE;
            let mut under_way = std::collections::VecDeque::new();
            let mut told: Vec<(u64, u64, u64, usize)> = Vec::new();
            for (client, codes, invalid, milliseconds, overlap) in steps {
                // All fall into the same cells of some rows.
                let client = client << 12 | 7;
                if let Ok(guesses) = take(&guessing, EndUser(client), codes, now) {
                    under_way.push_back((client, guesses, now, invalid.min(codes)));
                }
                now += milliseconds * 1_000_000;
                while under_way.len() > overlap {
                    let (client, guesses, taken, invalid) = under_way.pop_front().unwrap();
                    guesses.settle_at(invalid, now);
                    told.push((client, taken, now, invalid));
                }
            }
            for (client, from, _, _) in &told {
                for (_, until, _, _) in &told {
                    let within = told.iter().filter(|(of, taken, _, _)| of == client && (from..=until).contains(&taken));
                    let sum: usize = within.map(|(_, _, _, invalid)| invalid).sum();
                    let allowed = 5.0 + until.saturating_sub(*from) as f64 / 12e9;
                    prop_assert!(sum as f64 <= allowed + 1e-6, "{sum} of {allowed}");
                }
            }
        }
    }
}
