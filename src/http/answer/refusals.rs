//! The one map from the engine's refusals and failures to problems.

use super::problem::{Code, Fault, Problem, retry};
use crate::access::Denied;
use crate::budget::UsedUp;
use crate::domain::{Kind, Refusal};
use crate::engine::{EventsError, LayoutError, Status, SubmitError};
use std::time::Duration;

/// The problem of a missing campaign or coupon.
pub(crate) fn not_found(kind: Kind) -> Problem {
    match kind {
        Kind::Campaign => Problem::new(Code::CampaignNotFound, "no campaign has this name"),
        Kind::Coupon => Problem::new(Code::CouponNotFound, "no coupon has this name"),
    }
}

/// Maps a refusal of the state machine to a problem.
pub(crate) fn refused(kind: Kind, refusal: Refusal) -> Problem {
    match refusal {
        Refusal::FilterGone => not_found(kind),
        Refusal::AlreadyExists(fields) => already_exists(fields),
        Refusal::FilterFull => {
            Problem::new(Code::FilterFull, "nothing was changed; create a larger filter, or one that grows")
        }
        Refusal::TooManyFilters => {
            Problem::new(Code::TooManyFilters, "limits.filters allows no more campaigns and coupons")
        }
        Refusal::CodeUnknown => Problem::new(Code::CodeUnknown, "the code was never added, or was withdrawn"),
        Refusal::CodeRedeemed => {
            Problem::new(Code::CodeRedeemed, "the code was redeemed under another reference")
        }
        Refusal::CodeHeld => Problem::new(Code::CodeHeld, "the code is held under another reference"),
        Refusal::HoldExpired => Problem::new(Code::HoldExpired, "the hold expired before it was confirmed"),
        Refusal::RedemptionCancelled => {
            Problem::new(Code::RedemptionCancelled, "the redemption was cancelled earlier")
        }
        Refusal::RedemptionNotFound => redemption_not_found(),
        Refusal::RequiresStrictMode => Problem::new(
            Code::RequiresStrictMode,
            "compact filters confuse some codes: check the code, query your own database, then remove it",
        ),
        Refusal::OutsideWindow => Problem::new(Code::OutsideWindow, "see its starts_at and ends_at"),
        Refusal::SoldOut => Problem::new(Code::SoldOut, "stock reached: retry after a cancellation"),
        Refusal::RequiresAddedCodes => Problem::new(
            Code::RequiresAddedCodes,
            "open pools accept any code: codes are neither added nor removed",
        ),
        Refusal::WindowEndsFirst => Problem::invalid_at("/ends_at", "the window would end before it begins"),
        Refusal::CapacityLowered { capacity } => {
            Problem::invalid_at("/capacity", format!("the capacity is {capacity} and can only be raised"))
        }
        Refusal::CapacityFixed => {
            Problem::invalid_at("/capacity", "growth is fixed: create a larger filter and import its items")
        }
        Refusal::CapacityBeyondReach => Problem::invalid_at(
            "/capacity",
            "too large for another table: create a filter of this capacity and import its items",
        ),
        Refusal::NoStock => Problem::invalid_at("/stock", "this coupon was created without a stock"),
        Refusal::StockBeyondCapacity { capacity } => {
            Problem::invalid_at("/stock", format!("growth is fixed: at most the capacity, {capacity}"))
        }
        Refusal::KeyReused => {
            Problem::new(Code::IdempotencyKeyReused, "the key was sent earlier with a different request")
        }
        Refusal::IdempotencyFull { retry_after_seconds } => Problem::new(
            Code::IdempotencyFull,
            "idempotency.room is full, and no stored response is older than idempotency.retention_min",
        )
        .retry_after(retry_after_seconds),
        Refusal::ImportDiffers => Problem::new(
            Code::ImportDiffers,
            "the import of this id has another target, another mode, other guards or other lines",
        ),
        Refusal::ImportGuarded(tripped) => Problem::new(
            Code::ImportGuarded,
            format!("{tripped}: nothing more is added, and nothing replaced"),
        ),
        Refusal::TooManyImports => Problem::new(
            Code::TooManyImports,
            "too many running or interrupted imports of this key: wait for them, or continue them",
        )
        .retry_after(retry::MINUTE),
        Refusal::ImportNotFound => import_not_found(),
        Refusal::ImportOvertaken => Problem::new(
            Code::ImportOvertaken,
            "another replacement or too many writes arrived during the import; nothing was replaced: repeat it",
        ),
        Refusal::LineUpNotFound => line_up_not_found(),
        Refusal::TooManyLineUps => Problem::new(
            Code::TooManyLineUps,
            "limits.line_ups allows no more of them, or all together would be larger than 16 MiB",
        ),
        Refusal::NameTaken => {
            Problem::new(Code::AlreadyExists, "the name is taken: choose a new one for an image")
        }
        Refusal::TooManyImages => Problem::new(
            Code::Overloaded,
            "too many image uploads in progress, of this key or in all; retry later",
        )
        .retry_after(retry::MINUTE),
        Refusal::ImageNotFound => {
            Problem::new(Code::ImageDamaged, "the upload made no progress and was aborted: start it again")
        }
        Refusal::ImageDamaged(fault) => {
            Problem::new(Code::ImageDamaged, format!("{fault}: nothing was created"))
        }
    }
}

/// The problem of a missing line-up.
pub(crate) fn line_up_not_found() -> Problem {
    Problem::new(Code::LineUpNotFound, "no line-up has this name")
}

/// The problem of a missing redemption.
pub(crate) fn redemption_not_found() -> Problem {
    Problem::new(Code::RedemptionNotFound, "it never existed, or its retention is over")
}

/// The id belongs to an import that the caller may not see. Ids are unique in the server, so it says no more than that.
pub(crate) fn import_id_taken() -> Problem {
    Problem::new(Code::ImportDiffers, "this id is in use: choose another")
}

/// The problem of a missing import.
pub(crate) fn import_not_found() -> Problem {
    Problem::new(Code::ImportNotFound, "it never existed, or is too old")
}

/// Somebody has stopped the import.
pub(crate) fn import_stopped() -> Problem {
    Problem::new(
        Code::ImportStopped,
        "DELETE /v1/imports/{id} has stopped it: upload again under the same id to continue",
    )
}

fn already_exists(fields: Vec<String>) -> Problem {
    let detail =
        format!("the name belongs to a filter with another spec; these fields differ: {}", fields.join(", "));
    let faults = fields
        .into_iter()
        .map(|field| Fault { pointer: format!("/{field}"), detail: "differs".into() })
        .collect();
    Problem { faults, ..Problem::new(Code::AlreadyExists, detail) }
}

impl From<SubmitError> for Problem {
    fn from(error: SubmitError) -> Self {
        match error {
            SubmitError::Overloaded => {
                Problem::new(Code::Overloaded, "too many writes are waiting").retry_after(retry::MOMENT)
            }
            SubmitError::Recovering => {
                Problem::new(Code::Recovering, "the service is still recovering").retry_after(retry::MOMENT)
            }
            SubmitError::Draining => {
                Problem::new(Code::Draining, "the service is shutting down").retry_after(retry::ELSEWHERE)
            }
            SubmitError::StorageFailed => Problem::new(
                Code::StorageFailed,
                "whether the write took effect is unknown: retry it, with the same idempotency key if it had one",
            ),
            SubmitError::MemoryLimit => {
                Problem::new(Code::MemoryLimit, "the write might take more memory than limits.memory allows")
            }
            SubmitError::NoMemory => {
                Problem::new(Code::MemoryLimit, "the machine has no memory for what the write might take")
            }
            SubmitError::DiskFull => Problem::new(Code::DiskFull, "too little disk space is free"),
            SubmitError::TooFarBehind => {
                Problem::new(Code::TooFarBehind, "this node has not applied that much of the log yet")
                    .retry_after(retry::MOMENT)
            }
            SubmitError::NoQuorum => {
                Problem::new(Code::NoQuorum, error.to_string()).retry_after(retry::MOMENT)
            }
            SubmitError::LogFull => Problem::new(Code::LogFull, error.to_string()),
            SubmitError::NotEnabled { .. } => {
                Problem::new(Code::Overloaded, error.to_string()).retry_after(retry::MINUTE)
            }
            SubmitError::ClockUnsure(unsure) => {
                Problem::new(Code::ClockUnsure, unsure.to_string()).retry_after(retry::MINUTE)
            }
        }
    }
}

impl From<UsedUp> for Problem {
    fn from(_: UsedUp) -> Self {
        let detail = "as many bytes of bodies are being read as limits.bodies allows";
        Problem::new(Code::Overloaded, detail).retry_after(retry::MOMENT)
    }
}

impl From<EventsError> for Problem {
    fn from(error: EventsError) -> Self {
        match error {
            EventsError::Gone => Problem::new(
                Code::EventsGone,
                "the next event is no longer kept; without `after` the answer begins with the oldest one that is",
            ),
            EventsError::TooManyWaiting => {
                Problem::new(Code::Overloaded, "too many requests are waiting for events")
                    .retry_after(retry::MOMENT)
            }
            EventsError::Off => {
                Problem::new(Code::EventsGone, "events.retention is 0, so no events are kept")
            }
            EventsError::Refused(refused) => refused.into(),
        }
    }
}

impl From<Denied> for Problem {
    fn from(denied: Denied) -> Self {
        let detail = match denied {
            Denied::NoKey => "send the header Authorization: Bearer KEY".into(),
            denied => denied.to_string(),
        };
        match denied {
            Denied::NoKey | Denied::UnknownKey | Denied::KeyExpired(_) => {
                Problem::new(Code::Unauthenticated, detail)
            }
            Denied::MissingScope(_) | Denied::OtherPrefix => Problem::new(Code::Forbidden, detail),
            Denied::TooManyRequests { wait } => {
                Problem::new(Code::RateLimited, detail).retry_after(seconds(wait))
            }
            Denied::TooManyInvalidCodes { wait } => {
                Problem::new(Code::TooManyInvalidCodes, detail).retry_after(seconds(wait))
            }
            Denied::TooManyCodes { .. } => {
                Problem::new(Code::TooManyInvalidCodes, detail).retry_after(retry::MINUTE)
            }
        }
    }
}

/// Whole seconds, rounded up.
fn seconds(wait: Duration) -> u64 {
    wait.as_millis().div_ceil(1_000).max(1) as u64
}

impl From<LayoutError> for Problem {
    fn from(error: LayoutError) -> Self {
        let pointer = match error {
            LayoutError::Capacity(_) | LayoutError::Buckets(_) => "/capacity",
            LayoutError::ErrorRate(_) => "/error_rate",
            LayoutError::FingerprintBits(_) | LayoutError::FixedFingerprintBits { .. } => {
                "/layout/fingerprint_bits"
            }
            LayoutError::BucketSize(_) => "/layout/bucket_size",
            LayoutError::MaxSearch(_) | LayoutError::FixedSearch(_) => "/layout/max_search",
            LayoutError::Steps(_) | LayoutError::StepBits(_) => "/forget_steps",
        };
        Problem::invalid_at(pointer, error.to_string())
    }
}

/// The problem of a service that is not ready; `None` if it is.
pub(crate) fn unready(status: Status) -> Option<Problem> {
    match status {
        Status::Ready => None,
        Status::Recovering(progress) => {
            let total = progress.total.map(|total| format!(" of {total}")).unwrap_or_default();
            let detail = format!("{}: {}{total}", progress.phase, progress.done);
            Some(Problem::new(Code::Recovering, detail).retry_after(retry::MOMENT))
        }
        Status::Draining => Some(SubmitError::Draining.into()),
        Status::Failed(reason) | Status::Panicked(reason) => Some(Problem::new(Code::StorageFailed, reason)),
        Status::Diverged(reason) => Some(Problem::new(Code::Diverged, reason)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::StatusCode;

    #[test]
    fn what_may_go_away_says_when_to_try_again() {
        for (error, seconds) in [
            (SubmitError::Overloaded, Some(retry::MOMENT)),
            (SubmitError::Recovering, Some(retry::MOMENT)),
            (SubmitError::Draining, Some(retry::ELSEWHERE)),
            (SubmitError::StorageFailed, None),
        ] {
            let problem = Problem::from(error);
            assert_eq!(problem.code.status(), StatusCode::SERVICE_UNAVAILABLE);
            assert_eq!(problem.retry_after_seconds, seconds, "{problem:?}");
        }
        assert_eq!(Problem::from(SubmitError::DiskFull).code.status(), StatusCode::INSUFFICIENT_STORAGE);
    }

    #[test]
    fn a_wait_is_told_in_whole_seconds_and_never_as_none() {
        for (wait, told) in [(0, 1), (1, 1), (1_000, 1), (1_001, 2), (59_999, 60)] {
            let denied = Denied::TooManyRequests { wait: Duration::from_millis(wait) };
            assert_eq!(Problem::from(denied).retry_after_seconds, Some(told), "{wait}");
        }
    }

    #[test]
    fn each_kind_has_a_problem_of_its_own_for_what_is_missing() {
        assert_eq!(refused(Kind::Campaign, Refusal::FilterGone).code, Code::CampaignNotFound);
        assert_eq!(refused(Kind::Coupon, Refusal::FilterGone).code, Code::CouponNotFound);
    }

    #[test]
    fn another_spec_under_the_name_is_told_field_by_field() {
        let problem = refused(Kind::Coupon, Refusal::AlreadyExists(vec!["capacity".into(), "mode".into()]));
        let pointers: Vec<&str> = problem.faults.iter().map(|fault| fault.pointer.as_str()).collect();
        assert_eq!((problem.code, &pointers[..]), (Code::AlreadyExists, &["/capacity", "/mode"][..]));
    }
}
