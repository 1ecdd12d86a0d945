//! Why somebody may not do something.

use super::options::Scope;
use crate::domain::Timestamp;
use std::time::Duration;
use thiserror::Error;

/// Why somebody may not do something. No message holds what was presented.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum Denied {
    /// A key is asked for.
    #[error("no key was presented")]
    NoKey,
    /// The key is none of those configured.
    #[error("the key is not known")]
    UnknownKey,
    /// The key's time is over.
    #[error("the key has expired: it was good until {0}")]
    KeyExpired(Timestamp),
    /// The key lacks the scope.
    #[error("this takes a key with the scope {}", .0.as_str())]
    MissingScope(Scope),
    /// The key has a prefix, and the name does not begin with it.
    #[error("the key is limited to names with another prefix")]
    OtherPrefix,
    /// The key calls too often.
    #[error("the key makes more requests a second than it may")]
    TooManyRequests {
        /// Until the next request is let in.
        wait: Duration,
    },
    /// The end user has fewer guesses left than the request has codes.
    #[error("this end user has tried too many codes that are not valid")]
    TooManyInvalidCodes {
        /// Until so many guesses are left.
        wait: Duration,
    },
    /// The request has more codes than an end user may guess in a minute: it will never be let in.
    #[error(
        "the request has {codes} codes, and an end user may try {most} that are not valid in a minute: send fewer"
    )]
    TooManyCodes {
        /// Codes in the request.
        codes: usize,
        /// Invalid codes allowed in a minute.
        most: u32,
    },
}
