//! The reasons for which access is denied.

use super::options::Scope;
use cuckood_state::domain::Timestamp;
use std::time::Duration;
use thiserror::Error;

/// The reason to reject a caller. No message contains the presented key or code.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum Denied {
    /// A key is required.
    #[error("no key was presented")]
    NoKey,
    /// The key is not configured.
    #[error("the key is not known")]
    UnknownKey,
    /// The key has expired.
    #[error("the key has expired: it was valid until {0}")]
    KeyExpired(Timestamp),
    /// The key lacks the scope.
    #[error("this requires a key with the scope {}", .0.as_str())]
    MissingScope(Scope),
    /// The key has a prefix, and the name does not start with it.
    #[error("the key is limited to names with another prefix")]
    OtherPrefix,
    /// The key makes too many requests.
    #[error("rate limit exceeded for this key")]
    TooManyRequests {
        /// Time until the next request is admitted.
        wait: Duration,
    },
    /// The end user has fewer guesses left than the request has codes.
    #[error("this end user has tried too many invalid codes")]
    TooManyInvalidCodes {
        /// Time until enough guesses are left.
        wait: Duration,
    },
    /// The request has more codes than an end user may guess in a minute, so it can never be admitted.
    #[error(
        "the request has {codes} codes, but an end user may try {most} invalid ones per minute: send fewer"
    )]
    TooManyCodes {
        /// Codes in the request.
        codes: usize,
        /// Invalid codes allowed per minute.
        most: u32,
    },
}
