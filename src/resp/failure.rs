//! Failures as Redis clients read them: a code, which is the first word, and a text. This is the only map from denials, refusals and errors
//! of the engine to them.

use super::key::FilterKey;
use crate::access::Denied;
use crate::engine::{EngineStatus, SubmitError, UseReason};
use cuckood_filter::LayoutError;
use cuckood_state::domain::{ITEMS_MAX, Outcome, Refusal, Unusable};
use std::borrow::Cow;
use std::time::Duration;

/// The first word of an error. Clients know most of them, and raise errors of their own types.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ErrorCode(&'static str);

/// Declares the codes, and lists them in [`ErrorCode::ALL`].
macro_rules! codes {
    ($($doc:literal $code:ident;)*) => {
        impl ErrorCode {
            $(#[doc = $doc] pub const $code: Self = Self(stringify!($code));)*

            /// All codes.
            pub const ALL: &[Self] = &[$(Self::$code),*];
        }
    };
}

codes! {
    "The command is invalid or can't be executed." ERR;
    "An API key is required." NOAUTH;
    "The API key is unknown or has expired." WRONGPASS;
    "The API key lacks the permission." NOPERM;
    "The version of the protocol is not supported." NOPROTO;
    "A queued command was invalid, so none was executed." EXECABORT;
    "The service is recovering." LOADING;
    "The service is overloaded." BUSY;
    "A memory limit is reached." OOM;
    "The outcome of a write is unknown." MISCONF;
    "Writes are rejected; this one had no effect." READONLY;
    "The API key exceeds its rate limit." RATELIMIT;
    "The end user has tried too many invalid codes." GUESSLIMIT;
    "The campaign or coupon is in use, so it is not deleted." INUSE;
}

impl ErrorCode {
    /// Its spelling.
    pub fn as_str(self) -> &'static str {
        self.0
    }
}

/// An error reply.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// Its code.
    pub code: ErrorCode,
    /// The error and the next step.
    pub text: Cow<'static, str>,
}

impl Failure {
    /// An argument is no number, or too large.
    pub const NOT_AN_INTEGER: Self =
        Self::fixed(ErrorCode::ERR, "value is not an integer or out of range");

    /// The arguments don't follow the command's syntax.
    pub const SYNTAX: Self = Self::fixed(ErrorCode::ERR, "syntax error");

    /// The filter can't take the item.
    pub const FILTER_FULL: Self = Self::fixed(ErrorCode::ERR, "Filter is full");

    /// The engine's response did not arrive in time.
    pub const TOO_LATE: Self = Self::fixed(
        ErrorCode::MISCONF,
        "the response took too long; whether the write took effect is unknown",
    );

    /// The write was not tried, because earlier ones take too long.
    pub const NOT_TRIED: Self = Self::fixed(
        ErrorCode::BUSY,
        "the writes before this one take too long: it was not tried, try again",
    );

    /// Writes are rejected because storage failed earlier, so this one has certainly had no effect.
    pub const READ_ONLY: Self = Self::fixed(
        ErrorCode::READONLY,
        "storage has failed: writes are rejected, reads continue",
    );

    /// No key of the configuration was presented.
    pub const WRONG_PASSWORD: Self = Self::fixed(
        ErrorCode::WRONGPASS,
        "invalid username-password pair or user is disabled.",
    );

    const fn fixed(code: ErrorCode, text: &'static str) -> Self {
        Self {
            code,
            text: Cow::Borrowed(text),
        }
    }

    /// A failure with this code.
    pub fn new(code: ErrorCode, text: impl Into<Cow<'static, str>>) -> Self {
        Self {
            code,
            text: text.into(),
        }
    }

    /// A failure with the usual code.
    pub fn err(text: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorCode::ERR, text)
    }

    /// The command has too few or too many arguments.
    pub fn arity(command: &str) -> Self {
        Self::err(format!("wrong number of arguments for '{command}' command"))
    }

    /// The command has more of something than it may have.
    pub fn too_many(what: &str) -> Self {
        Self::err(format!("one command has at most {ITEMS_MAX} {what}"))
    }

    /// The filter is in use.
    pub fn in_use(key: &FilterKey<'_>, reasons: &[UseReason]) -> Self {
        let reasons: Vec<String> = reasons.iter().map(UseReason::to_string).collect();
        let reasons = reasons.join("; ");
        let kind = key.kind.as_str();
        let name = key.name();
        Self::new(
            ErrorCode::INUSE,
            format!("{key}: {reasons}. DELETE /v1/{kind}s/{name}?force=true over HTTP deletes it"),
        )
    }

    /// The engine returned the outcome of another command, which would be a bug.
    pub fn unexpected() -> Self {
        tracing::error!("a command has another command's outcome");
        Self::err("internal error: see the service's log")
    }

    /// A refusal of the state machine.
    pub fn refused(refusal: &Refusal) -> Self {
        match refusal {
            Refusal::FilterFull => Self::FILTER_FULL,
            Refusal::FilterGone => Self::err(
                "the filter was deleted during the command: nothing was changed, try again",
            ),
            Refusal::AlreadyExists(_) => Self::err("item exists"),
            Refusal::TooManyFilters => Self::new(
                ErrorCode::OOM,
                "limits.filters allows no more campaigns and coupons",
            ),
            _ => Self::err("this campaign or coupon does not take this command"),
        }
    }

    /// A refusal, or the outcome of another command.
    pub fn of(outcome: &Outcome) -> Self {
        match outcome {
            Outcome::Refused(refusal) => Self::refused(refusal),
            _ => Self::unexpected(),
        }
    }

    /// Returns the error for commands on filters if the service is not ready. Reads continue after storage has failed. A cluster node
    /// answers nothing then, because other nodes have entries that it can't get.
    pub fn unready(status: &EngineStatus, is_shared: bool) -> Option<Self> {
        match status {
            EngineStatus::Failed(_) | EngineStatus::Diverged(_) | EngineStatus::Panicked(_)
                if is_shared =>
            {
                Some(Self::new(
                    ErrorCode::MISCONF,
                    "this node no longer follows the log: use another node",
                ))
            }
            EngineStatus::Recovering(_) => Some(SubmitError::Recovering.into()),
            EngineStatus::Ready
            | EngineStatus::Draining
            | EngineStatus::Failed(_)
            | EngineStatus::Diverged(_)
            | EngineStatus::Panicked(_) => None,
        }
    }
}

const UNKNOWN_OUTCOME: &str = "storage has failed; whether the write took effect is unknown";

impl From<SubmitError> for Failure {
    fn from(error: SubmitError) -> Self {
        let (code, text) = match error {
            SubmitError::Overloaded => (ErrorCode::BUSY, "too many writes are waiting: try again"),
            SubmitError::Recovering => (
                ErrorCode::LOADING,
                "cuckood is loading the dataset in memory: try again",
            ),
            SubmitError::Draining => (ErrorCode::READONLY, "the service is draining"),
            SubmitError::StorageFailed => (ErrorCode::MISCONF, UNKNOWN_OUTCOME),
            SubmitError::MemoryLimit => (
                ErrorCode::OOM,
                "the write might take more memory than limits.memory allows",
            ),
            // Redis clients send no keys.
            SubmitError::IdempotencyFull { .. } => (ErrorCode::OOM, "the memory limit is reached"),
            SubmitError::NoMemory => (
                ErrorCode::OOM,
                "the machine has too little memory for the write",
            ),
            SubmitError::DiskFull => (
                ErrorCode::READONLY,
                "too little disk space is free: nothing was changed",
            ),
            SubmitError::TooFarBehind | SubmitError::NoQuorum => {
                return Self::new(ErrorCode::BUSY, error.to_string());
            }
            SubmitError::NotEnabled => {
                return Self::new(ErrorCode::READONLY, error.to_string());
            }
            SubmitError::LogFull => return Self::new(ErrorCode::READONLY, error.to_string()),
            SubmitError::ClockUnsure(unsure) => {
                return Self::new(
                    ErrorCode::READONLY,
                    format!("{unsure}: nothing was changed"),
                );
            }
        };
        Self::new(code, text)
    }
}

impl From<Denied> for Failure {
    fn from(denied: Denied) -> Self {
        let wait = |code, wait: Duration| {
            Self::new(
                code,
                format!("{denied}: try again in {:.3} s", wait.as_secs_f64()),
            )
        };
        match denied {
            // The key was there when it was presented: SIGHUP has removed it, or keys were configured.
            Denied::NoKey | Denied::UnknownKey => {
                Self::new(ErrorCode::NOAUTH, "Authentication required.")
            }
            Denied::KeyExpired(_) => Self::new(ErrorCode::NOAUTH, denied.to_string()),
            Denied::MissingScope(_) | Denied::OtherPrefix => {
                Self::new(ErrorCode::NOPERM, denied.to_string())
            }
            Denied::TooManyRequests { wait: time } => wait(ErrorCode::RATELIMIT, time),
            Denied::TooManyInvalidCodes { wait: time } => wait(ErrorCode::GUESSLIMIT, time),
            Denied::TooManyCodes { .. } => Self::new(ErrorCode::GUESSLIMIT, denied.to_string()),
        }
    }
}

impl From<Unusable> for Failure {
    fn from(unusable: Unusable) -> Self {
        Self::err(match unusable {
            Unusable::Empty => "nothing is left of an item after normalization",
            Unusable::NotUtf8 => "an item is not UTF-8, which this filter normalizes",
        })
    }
}

impl From<LayoutError> for Failure {
    fn from(error: LayoutError) -> Self {
        Self::err(error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{ClockUnsure, Evidence};
    use cuckood_state::domain::Timestamp;

    #[test]
    fn unknown_outcome_has_separate_code() {
        let clock = Timestamp(0);
        let expected = Timestamp(1);
        let evidence = Evidence::LastEntry;
        let lags = ClockUnsure {
            clock,
            expected,
            evidence,
        };
        for (error, code) in [
            (SubmitError::Recovering, "LOADING"),
            (SubmitError::Overloaded, "BUSY"),
            (SubmitError::MemoryLimit, "OOM"),
            (SubmitError::NoMemory, "OOM"),
            (SubmitError::DiskFull, "READONLY"),
            (SubmitError::ClockUnsure(lags), "READONLY"),
            (SubmitError::Draining, "READONLY"),
            (SubmitError::StorageFailed, "MISCONF"),
        ] {
            assert_eq!(Failure::from(error.clone()).code.as_str(), code, "{error}");
        }
        assert_eq!(Failure::TOO_LATE.code, ErrorCode::MISCONF);
        for not_tried in [Failure::READ_ONLY, Failure::NOT_TRIED] {
            assert_ne!(not_tried.code, ErrorCode::MISCONF, "{not_tried:?}");
        }
    }

    #[test]
    fn rate_limit_error_names_retry_time() {
        let wait = Duration::from_millis(1_500);
        let denied = Failure::from(Denied::TooManyRequests { wait });
        assert_eq!(denied.code.as_str(), "RATELIMIT");
        assert!(denied.text.ends_with("try again in 1.500 s"), "{denied:?}");
    }
}
