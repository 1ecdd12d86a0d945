//! Failures as Redis clients read them: a code, which is the first word, and a text. Here is the one map from denials, refusals and
//! errors of the engine to them.

use crate::access::Denied;
use crate::domain::Refusal;
use crate::engine::{LayoutError, Status, SubmitError};
use std::borrow::Cow;
use std::time::Duration;

/// The first word of an error. Clients know most of them, and raise errors of their own types.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Code {
    /// The command is wrong, or can't be done.
    Err,
    /// A key must be presented first.
    NoAuth,
    /// The key is not known, or has expired.
    WrongPass,
    /// The key does not allow this.
    NoPerm,
    /// There is no such version of the protocol.
    NoProto,
    /// The service is starting.
    Loading,
    /// The service has too much to do.
    Busy,
    /// There is no memory for this.
    Oom,
    /// What only an operator can mend keeps writes from being taken: the disk, the clock.
    MisConf,
    /// Writes are refused until a restart.
    ReadOnly,
    /// The key calls too often.
    RateLimit,
    /// The end user has tried too many invalid codes.
    GuessLimit,
}

impl Code {
    /// All codes.
    pub const ALL: [Code; 12] = [
        Code::Err,
        Code::NoAuth,
        Code::WrongPass,
        Code::NoPerm,
        Code::NoProto,
        Code::Loading,
        Code::Busy,
        Code::Oom,
        Code::MisConf,
        Code::ReadOnly,
        Code::RateLimit,
        Code::GuessLimit,
    ];

    /// Its spelling.
    pub fn as_str(self) -> &'static str {
        match self {
            Code::Err => "ERR",
            Code::NoAuth => "NOAUTH",
            Code::WrongPass => "WRONGPASS",
            Code::NoPerm => "NOPERM",
            Code::NoProto => "NOPROTO",
            Code::Loading => "LOADING",
            Code::Busy => "BUSY",
            Code::Oom => "OOM",
            Code::MisConf => "MISCONF",
            Code::ReadOnly => "READONLY",
            Code::RateLimit => "RATELIMIT",
            Code::GuessLimit => "GUESSLIMIT",
        }
    }
}

/// An error to answer with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// Its code.
    pub code: Code,
    /// What is wrong, and what to do.
    pub text: Cow<'static, str>,
}

impl Failure {
    /// A failure with this code.
    pub fn new(code: Code, text: impl Into<Cow<'static, str>>) -> Self {
        Self { code, text: text.into() }
    }

    /// A failure with the usual code.
    pub fn err(text: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Code::Err, text)
    }

    /// The command has too few or too many arguments.
    pub fn arity(command: &str) -> Self {
        Self::err(format!("wrong number of arguments for '{command}' command"))
    }

    /// An argument is no number, or too large.
    pub fn not_an_integer() -> Self {
        Self::err("value is not an integer or out of range")
    }

    /// The arguments don't follow the command's syntax.
    pub fn syntax() -> Self {
        Self::err("syntax error")
    }

    /// The filter can't take the item.
    pub fn filter_full() -> Self {
        Self::err("Filter is full")
    }

    /// The answer of the engine did not come in time.
    pub fn too_late() -> Self {
        Self::new(Code::Busy, "the answer took too long; whether the write took effect is unknown")
    }

    /// The engine answered with the outcome of another command, which would be a bug.
    pub fn unexpected() -> Self {
        tracing::error!("a command has another command's outcome");
        Self::err("internal error: see the service's log")
    }

    /// A refusal of the state machine.
    pub fn refused(refusal: &Refusal) -> Self {
        match refusal {
            Refusal::FilterFull => Self::filter_full(),
            Refusal::FilterGone => {
                Self::err("the filter was deleted while this was on its way: nothing was changed, try again")
            }
            Refusal::AlreadyExists(_) => Self::err("item exists"),
            Refusal::TooManyFilters => {
                Self::new(Code::Oom, "limits.filters allows no more campaigns and coupons")
            }
            _ => Self::err("this campaign or coupon does not take this command"),
        }
    }

    /// The service is not ready for commands on filters; `None` if it is. Reads go on after storage has failed.
    pub fn unready(status: &Status) -> Option<Self> {
        match status {
            Status::Recovering(_) => Some(SubmitError::Recovering.into()),
            Status::Ready | Status::Draining | Status::Failed(_) => None,
        }
    }

    /// Writes are refused because storage has failed earlier, so this one has surely had no effect.
    pub fn read_only() -> Self {
        Self::new(Code::ReadOnly, "storage has failed: nothing is written any more, reads go on")
    }
}

impl From<SubmitError> for Failure {
    fn from(error: SubmitError) -> Self {
        match error {
            SubmitError::Overloaded => Self::new(Code::Busy, "too many writes are waiting: try again"),
            SubmitError::Recovering => {
                Self::new(Code::Loading, "cuckood is loading the dataset in memory: try again")
            }
            SubmitError::Draining => Self::new(Code::ReadOnly, "the service is stopping"),
            SubmitError::StorageFailed => {
                Self::new(Code::MisConf, "storage has failed; whether the write took effect is unknown")
            }
            SubmitError::MemoryLimit => {
                Self::new(Code::Oom, "the write might take more memory than limits.memory allows")
            }
            SubmitError::NoMemory => {
                Self::new(Code::Oom, "the machine has no memory for what the write might take")
            }
            SubmitError::DiskFull => Self::new(Code::MisConf, "too little disk space is free"),
            SubmitError::ClockUnsure(unsure) => Self::new(Code::MisConf, unsure.to_string()),
        }
    }
}

impl From<Denied> for Failure {
    fn from(denied: Denied) -> Self {
        let wait = |code, wait: Duration| {
            Self::new(code, format!("{denied}: try again in {:.3} s", wait.as_secs_f64()))
        };
        match denied {
            // The key was there when it was presented: SIGHUP has removed it, or keys were configured.
            Denied::NoKey | Denied::UnknownKey => Self::new(Code::NoAuth, "Authentication required."),
            Denied::KeyExpired(_) => Self::new(Code::NoAuth, denied.to_string()),
            Denied::MissingScope(_) | Denied::OtherPrefix => Self::new(Code::NoPerm, denied.to_string()),
            Denied::TooManyRequests { wait: time } => wait(Code::RateLimit, time),
            Denied::TooManyInvalidCodes { wait: time } => wait(Code::GuessLimit, time),
            Denied::TooManyCodes { .. } => Self::new(Code::GuessLimit, denied.to_string()),
        }
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

    #[test]
    fn clients_know_the_codes_of_what_passes_and_of_what_does_not() {
        for (error, code) in [
            (SubmitError::Recovering, "LOADING"),
            (SubmitError::Overloaded, "BUSY"),
            (SubmitError::MemoryLimit, "OOM"),
            (SubmitError::DiskFull, "MISCONF"),
            (SubmitError::StorageFailed, "MISCONF"),
        ] {
            assert_eq!(Failure::from(error.clone()).code.as_str(), code, "{error}");
        }
        let wait = Duration::from_millis(1_500);
        let denied = Failure::from(Denied::TooManyRequests { wait });
        assert_eq!(denied.code.as_str(), "RATELIMIT");
        assert!(denied.text.ends_with("try again in 1.500 s"), "{denied:?}");
    }
}
