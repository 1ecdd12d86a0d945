//! Access control: keys with scopes and prefixes, request rates per key, and the limit on guessing codes.
//!
//! It is independent of protocols. Each protocol passes in the data it received, and maps [`Denied`] to its own responses. All share one
//! [`Access`], so a key has one rate and an end user one number of guesses across protocols.

mod denied;
mod guessing;
mod keys;
mod limiter;
mod options;

pub use denied::Denied;
pub use guessing::{EndUser, Guesses, Guessing};
pub use keys::{Caller, InvalidKey, Keys, digest};
pub use limiter::LogLimiter;
pub use options::{AuthOptions, GuessingOptions, KeyOptions, RateLimitOptions, Scope};

use arc_swap::ArcSwap;

/// The state that all protocols share.
pub struct Access {
    keys: ArcSwap<Keys>,
    rate_limit: RateLimitOptions,
    /// The limit on guessing codes.
    pub guessing: Guessing,
    log: LogLimiter,
}

impl Access {
    /// Takes keys, rates and limits from the configuration.
    ///
    /// # Errors
    /// [`InvalidKey`].
    pub fn new(
        auth: &AuthOptions,
        rate_limit: &RateLimitOptions,
        guessing: &GuessingOptions,
    ) -> Result<Self, InvalidKey> {
        let keys = ArcSwap::from_pointee(Keys::new(auth, rate_limit, &Keys::default())?);
        let rate_limit = rate_limit.clone();
        let guessing = Guessing::new(guessing);
        Ok(Self {
            keys,
            rate_limit,
            guessing,
            log: LogLimiter::default(),
        })
    }

    /// Returns how many rejections were suppressed since the last one logged, or `None` to suppress this one. A key over its rate is valid,
    /// so that is never logged.
    pub fn next_log_line(&self, denied: &Denied) -> Option<u64> {
        let is_valid = matches!(denied, Denied::TooManyRequests { .. });
        if is_valid { None } else { self.log.next_line() }
    }
}
