//! The only map from the engine's refusals and failures to problems.

use super::problem::{Code, Problem, RequestFault, retry};
use crate::access::Denied;
use crate::budget::UsedUp;
use crate::engine::{EngineStatus, EventsError, SubmitError};
use cuckood_filter::LayoutError;
use cuckood_state::domain::annotations::LABELS_MAX;
use cuckood_state::domain::redemption::CUSTOMER_BYTES_MAX;
use cuckood_state::domain::{Kind, Refusal};
use std::time::Duration;

/// The problem of a missing campaign or coupon.
pub(crate) fn not_found(kind: Kind) -> Problem {
    match kind {
        Kind::Campaign => Code::CampaignNotFound.into(),
        Kind::Coupon => Code::CouponNotFound.into(),
    }
}

/// Maps a refusal of the state machine to a problem.
pub(crate) fn refused(kind: Kind, refusal: Refusal) -> Problem {
    let invalid = |pointer: &str, detail: String| Problem::invalid_at(pointer, detail);
    match refusal {
        Refusal::FilterGone => not_found(kind),
        Refusal::AlreadyExists(fields) => already_exists(fields),
        Refusal::FilterFull => Code::FilterFull.into(),
        Refusal::TooManyFilters => Code::TooManyFilters.into(),
        Refusal::CodeUnknown => Code::CodeUnknown.into(),
        Refusal::CodeRedeemed => Code::CodeRedeemed.into(),
        Refusal::CodeHeld => Code::CodeHeld.into(),
        Refusal::CustomerLimit => Code::CustomerLimit.into(),
        Refusal::CustomerRequired => Problem::invalid_at(
            "/customer",
            format!("expected a string of 1 to {CUSTOMER_BYTES_MAX} bytes"),
        ),
        Refusal::HoldExpired => Code::HoldExpired.into(),
        Refusal::RedemptionCancelled => Code::RedemptionCancelled.into(),
        Refusal::RedemptionNotFound => Code::RedemptionNotFound.into(),
        Refusal::RequiresStrictMode => Code::RequiresStrictMode.into(),
        Refusal::OutsideWindow => Code::OutsideWindow.into(),
        Refusal::SoldOut => Code::SoldOut.into(),
        Refusal::RequiresAddedCodes => Code::RequiresAddedCodes.into(),
        Refusal::WindowEndsFirst => invalid("/ends_at", "the window would end before it begins".into()),
        Refusal::TooManyLabels => invalid("/labels", format!("expected at most {LABELS_MAX} labels")),
        Refusal::CapacityLowered { capacity } => {
            invalid("/capacity", format!("the capacity is {capacity} and can only be raised"))
        }
        Refusal::CapacityFixed => {
            invalid("/capacity", "growth is fixed: create a larger filter and import its items".into())
        }
        Refusal::CapacityBeyondReach => invalid(
            "/capacity",
            "beyond capacity_max: create a filter of this capacity, or a strict one, and import its items"
                .into(),
        ),
        Refusal::NoStock => invalid("/stock", "this coupon was created without a stock".into()),
        Refusal::StockBeyondCapacity { capacity } => {
            invalid("/stock", format!("growth is fixed: at most the capacity, {capacity}"))
        }
        Refusal::KeyReused => Code::IdempotencyKeyReused.into(),
        Refusal::IdempotencyFull { retry_after_seconds } => {
            Problem::from(Code::IdempotencyFull).retry_after(retry_after_seconds)
        }
        Refusal::ImportDiffers => Code::ImportDiffers.into(),
        Refusal::ImportGuarded(tripped) => {
            let detail = format!("{tripped}: nothing more is added, and nothing replaced");
            Problem::new(Code::ImportGuarded, detail)
        }
        Refusal::TooManyImports => Code::TooManyImports.into(),
        Refusal::ImportNotFound => Code::ImportNotFound.into(),
        Refusal::ImportOvertaken => Code::ImportOvertaken.into(),
        Refusal::LineUpNotFound => Code::LineUpNotFound.into(),
        Refusal::TooManyLineUps => Code::TooManyLineUps.into(),
        Refusal::NameTaken => Code::AlreadyExists.into(),
        Refusal::TooManyImages => {
            let detail = "too many image uploads in progress, of this key or in all; retry later";
            Problem::new(Code::Overloaded, detail).retry_after(retry::MINUTE)
        }
        Refusal::ImageNotFound => Code::ImageDamaged.into(),
        Refusal::ImageDamaged(fault) => {
            Problem::new(Code::ImageDamaged, format!("{fault}: nothing was created"))
        }
    }
}

fn already_exists(fields: Vec<String>) -> Problem {
    let detail = format!(
        "the name belongs to a filter with another spec; these fields differ: {}",
        fields.join(", ")
    );
    let differs = |field| RequestFault {
        pointer: format!("/{field}"),
        detail: "differs".into(),
    };
    let faults = fields.into_iter().map(differs).collect();
    Problem {
        faults,
        ..Problem::new(Code::AlreadyExists, detail)
    }
}

impl From<SubmitError> for Problem {
    fn from(error: SubmitError) -> Self {
        match error {
            SubmitError::Overloaded => Code::Overloaded.into(),
            SubmitError::Recovering => Code::Recovering.into(),
            SubmitError::Draining => Code::Draining.into(),
            SubmitError::StorageFailed => Code::StorageFailed.into(),
            SubmitError::MemoryLimit => Code::MemoryLimit.into(),
            SubmitError::NoMemory => Problem::new(Code::MemoryLimit, error.to_string()),
            SubmitError::IdempotencyFull {
                retry_after_seconds,
            } => {
                let detail = format!("{error}; free memory without a key");
                Problem::new(Code::IdempotencyFull, detail).retry_after(retry_after_seconds)
            }
            SubmitError::DiskFull => Code::DiskFull.into(),
            SubmitError::TooFarBehind => Code::TooFarBehind.into(),
            SubmitError::NoQuorum => Problem::new(Code::NoQuorum, error.to_string()),
            SubmitError::NotEnabled => Code::NotEnabled.into(),
            SubmitError::LogFull => Problem::new(Code::LogFull, error.to_string()),
            SubmitError::ClockUnsure(unsure) => Problem::new(Code::ClockUnsure, unsure.to_string()),
        }
    }
}

impl From<UsedUp> for Problem {
    fn from(_: UsedUp) -> Self {
        Problem::new(
            Code::Overloaded,
            "too many bytes of bodies are being read (limits.bodies); retry later",
        )
    }
}

impl From<EventsError> for Problem {
    fn from(error: EventsError) -> Self {
        match error {
            EventsError::Gone => Code::EventsGone.into(),
            EventsError::TooManyWaiting => {
                Problem::new(Code::Overloaded, "too many requests are waiting for events")
            }
            EventsError::Off => Problem::new(
                Code::EventsGone,
                "events.retention is 0, so no events are kept",
            ),
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
            Denied::TooManyCodes { .. } => Problem::new(Code::TooManyInvalidCodes, detail),
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
pub(crate) fn unready(status: EngineStatus) -> Option<Problem> {
    match status {
        EngineStatus::Ready => None,
        EngineStatus::Recovering(progress) => {
            let total = progress
                .total
                .map(|total| format!(" of {total}"))
                .unwrap_or_default();
            let state = progress
                .why
                .unwrap_or_else(|| format!("{}{total}", progress.done));
            let detail = format!("{}: {state}", progress.phase);
            Some(Problem::new(Code::Recovering, detail))
        }
        EngineStatus::Draining => Some(SubmitError::Draining.into()),
        EngineStatus::Failed(reason) | EngineStatus::Panicked(reason) => {
            Some(Problem::new(Code::StorageFailed, reason))
        }
        EngineStatus::Diverged(reason) => Some(Problem::new(Code::Diverged, reason)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::StatusCode;

    #[test]
    fn transient_errors_set_retry_after() {
        for (error, seconds) in [
            (SubmitError::Overloaded, Some(retry::MOMENT)),
            (SubmitError::Recovering, Some(retry::MOMENT)),
            (SubmitError::Draining, Some(retry::MOMENT)),
            (SubmitError::StorageFailed, None),
        ] {
            let problem = Problem::from(error);
            assert_eq!(problem.code.status(), StatusCode::SERVICE_UNAVAILABLE);
            assert_eq!(problem.retry_after_seconds, seconds, "{problem:?}");
        }
        assert_eq!(
            Problem::from(SubmitError::DiskFull).code.status(),
            StatusCode::INSUFFICIENT_STORAGE
        );
    }

    #[test]
    fn retry_after_rounds_up_to_seconds() {
        for (wait, told) in [(0, 1), (1, 1), (1_000, 1), (1_001, 2), (59_999, 60)] {
            let denied = Denied::TooManyRequests {
                wait: Duration::from_millis(wait),
            };
            assert_eq!(
                Problem::from(denied).retry_after_seconds,
                Some(told),
                "{wait}"
            );
        }
    }

    #[test]
    fn missing_filter_problem_names_its_kind() {
        assert_eq!(
            refused(Kind::Campaign, Refusal::FilterGone).code,
            Code::CampaignNotFound
        );
        assert_eq!(
            refused(Kind::Coupon, Refusal::FilterGone).code,
            Code::CouponNotFound
        );
    }

    #[test]
    fn conflicting_spec_names_each_field() {
        let problem = refused(
            Kind::Coupon,
            Refusal::AlreadyExists(vec!["capacity".into(), "mode".into()]),
        );
        let pointers: Vec<&str> = problem
            .faults
            .iter()
            .map(|fault| fault.pointer.as_str())
            .collect();
        assert_eq!(
            (problem.code, &pointers[..]),
            (Code::AlreadyExists, &["/capacity", "/mode"][..])
        );
    }
}
