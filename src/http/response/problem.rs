//! Problem documents (RFC 9457), the form of every failure.

use axum::response::{IntoResponse, Response};
use cuckood_state::domain::Timestamp;
use http::StatusCode;
use serde::Serialize;
use std::borrow::Cow;
use std::fmt::Display;
use std::ops::RangeInclusive;
use utoipa::ToSchema;

/// The most faults in one problem: two for each of the most pairs of a replacement.
pub const FAULTS_MAX: usize = 20_000;

/// The most faults that are reported whatever memory other bodies hold.
pub(super) const FAULTS_FREE: usize = 100;

/// Memory of a fault and its place in the document, in bytes. Rounded up: an item is named by its index.
pub(super) const FAULT_BYTES: usize = 256;

/// When to try again, in seconds.
pub mod retry {
    /// The obstacle is short: a full queue, a restart, other bodies. A client repeats a write several times within its deadline of 5 s.
    pub const MOMENT: u64 = 1;

    /// An operator must act, or a long operation must end.
    pub const MINUTE: u64 = 60;
}

/// Defines the codes: status, spelling and title of each; the detail of its problems, if they have one in common; and when to try again.
macro_rules! codes {
    ($($code:ident: $status:literal, $spelling:literal, $title:literal $(: $detail:literal)? $(, retry $seconds:ident)?;)*) => {
        /// The problem's code, for programs.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, ToSchema)]
        #[serde(rename_all = "kebab-case")]
        #[schema(as = ProblemCode)]
        #[allow(missing_docs)] // The titles say what each one means.
        pub enum Code {
            $($code,)*
        }

        impl Code {
            /// Its status, spelling and title.
            pub(super) fn row(self) -> (u16, &'static str, &'static str) {
                match self {
                    $(Code::$code => ($status, $spelling, $title),)*
                }
            }
        }

        impl From<Code> for Problem {
            /// The problem of this code with the detail that it has by default.
            fn from(code: Code) -> Problem {
                let (detail, retry_after_seconds) = match code {
                    $(Code::$code => (concat!($($detail)?), None$(.or(Some(retry::$seconds)))?),)*
                };
                let faults = Vec::new();
                let expires_at = None;
                let replayed = false;
                Problem { code, detail: detail.into(), faults, expires_at, retry_after_seconds, replayed }
            }
        }
    };
}

codes! {
    MalformedJson: 400, "malformed-json", "The body is not JSON";
    MalformedRequest: 400, "malformed-request", "The request can't be read": "the request can't be read";
    Unauthenticated: 401, "unauthenticated", "A valid API key is required";
    Forbidden: 403, "forbidden", "The API key does not allow this";
    ForeignOrigin: 403, "foreign-origin", "A web page of another site may have sent this";
    RouteNotFound: 404, "route-not-found", "There is no such route": "see /docs for the routes";
    CampaignNotFound: 404, "campaign-not-found", "There is no such campaign": "no campaign has this name";
    CouponNotFound: 404, "coupon-not-found", "There is no such coupon": "no coupon has this name";
    CodeUnknown: 404, "code-unknown", "The coupon has no such code": "the code was never added, or was withdrawn";
    RedemptionNotFound: 404, "redemption-not-found", "There is no such redemption": "it never existed, or its retention is over";
    ImportNotFound: 404, "import-not-found", "There is no such import": "it never existed, or is too old";
    LineUpNotFound: 404, "line-up-not-found", "There is no such line-up": "no line-up has this name";
    MethodNotAllowed: 405, "method-not-allowed", "The method is not allowed here": "see the header Allow";
    RequestTimeout: 408, "request-timeout", "The body took too long to arrive";
    AlreadyExists: 409, "already-exists", "The name is taken": "the name is taken: choose a new one for an image";
    InUse: 409, "in-use", "The campaign or coupon is in use": "see errors for the reasons; force=true deletes it all the same";
    FilterFull: 409, "filter-full", "The filter can't take all of the items":
        "nothing was changed, but an appending import keeps the lines before; create a larger filter, one that grows, or, beyond \
         its capacity_max, a strict one";
    CodeRedeemed: 409, "code-redeemed", "The code has been redeemed": "the code was redeemed under another reference";
    CodeHeld: 409, "code-held", "The code is held": "the code is held under another reference";
    CustomerLimit: 409, "customer-limit", "The customer has used up their share": "the customer has as many held and redeemed uses as `per_customer` allows";
    HoldExpired: 409, "hold-expired", "The hold has expired": "the hold expired before it was confirmed";
    RedemptionCancelled: 409, "redemption-cancelled", "The redemption was cancelled": "the redemption was cancelled earlier";
    RequiresStrictMode: 409, "requires-strict-mode", "Only a strict coupon can do this":
        "compact filters confuse some codes: check the code, query your own database, then remove it";
    OutsideWindow: 409, "outside-window", "The coupon is not active now": "see its starts_at and ends_at";
    SoldOut: 409, "sold-out", "The open pool is sold out": "stock reached: retry after a cancellation";
    RequiresAddedCodes: 409, "requires-added-codes", "Only a pool of added codes does this":
        "open pools accept any code: codes are neither added nor removed";
    ImportDiffers: 409, "import-differs", "The import's id belongs to a different import":
        "the import of this id has another target, another mode, other guards or other lines";
    ImportRunning: 409, "import-running", "The import is still running": "an upload with this id is running";
    ImportGuarded: 409, "import-guarded", "The import violates one of its guards";
    ImportStopped: 409, "import-stopped", "The import was stopped":
        "DELETE /v1/imports/{id} has stopped it: upload again under the same id to continue";
    ImportFinished: 409, "import-finished", "The import is no longer running": "it had already ended: see its state";
    ImportOvertaken: 409, "import-overtaken", "Other writes went ahead of the import":
        "another replacement or too many writes arrived during the import; nothing was replaced: repeat it";
    EventsGone: 410, "events-gone", "The events are no longer kept":
        "the next event is no longer kept; without `after` the answer begins with the oldest one that is";
    BodyTooLarge: 413, "body-too-large", "The body is too large": "the body is longer than allowed";
    UnsupportedMediaType: 415, "unsupported-media-type", "The media type is not accepted";
    InvalidRequest: 422, "invalid-request", "The request is not valid";
    IdempotencyKeyReused: 422, "idempotency-key-reused", "The idempotency key was used for another request":
        "the key was sent earlier with a different request";
    ImageDamaged: 422, "image-damaged", "The image is damaged, or is none":
        "the upload made no progress and was aborted: start it again";
    TooManyInvalidCodes: 429, "too-many-invalid-codes", "Too many invalid codes were tried", retry MINUTE;
    RateLimited: 429, "rate-limited", "Too many requests", retry MOMENT;
    IdempotencyFull: 429, "idempotency-full", "There is no room for another key":
        "idempotency.room is full, and no stored response is older than idempotency.retention_min", retry MINUTE;
    TooManyImports: 429, "too-many-imports", "Too many imports are unfinished":
        "too many running or interrupted imports of this key: wait for them, or continue them", retry MINUTE;
    NotImplemented: 501, "not-implemented", "The transfer coding is not supported": "send the body with Content-Length, or chunked";
    Internal: 500, "internal", "The service failed": "see the service's log";
    Overloaded: 503, "overloaded", "The service is busy": "too many writes are waiting", retry MOMENT;
    Recovering: 503, "recovering", "The service is recovering": "the service is still recovering", retry MOMENT;
    Draining: 503, "draining", "The service is draining": "the service is shutting down", retry MOMENT;
    StorageFailed: 503, "storage-failed", "The storage has failed, or takes too long":
        "whether the write took effect is unknown: retry it, with the same idempotency key if it had one";
    ClockUnsure: 503, "clock-unsure", "The machine's clock can't be trusted", retry MINUTE;
    TooFarBehind: 503, "too-far-behind", "This node is behind the log":
        "this node has not applied that much of the log yet", retry MOMENT;
    NoQuorum: 503, "no-quorum", "The log does not answer", retry MOMENT;
    NotEnabled: 503, "not-enabled", "Some nodes do not understand this yet":
        "update all nodes; one with cluster.configure = true then enables it", retry MINUTE;
    Diverged: 503, "diverged", "The state differs from that of other nodes";
    MemoryLimit: 507, "memory-limit", "The memory limit is reached": "the write might take more memory than limits.memory allows";
    TooManyFilters: 507, "too-many-filters", "The limit on campaigns and coupons is reached":
        "limits.filters allows no more campaigns and coupons";
    TooManyLineUps: 507, "too-many-line-ups", "The limit on line-ups is reached":
        "limits.line_ups allows no more of them, or all together would be larger than 16 MiB";
    DiskFull: 507, "disk-full", "The disk is full": "too little disk space is free";
    LogFull: 507, "log-full", "The replicated log is full";
}

impl Code {
    /// The HTTP status.
    pub fn status(self) -> StatusCode {
        StatusCode::from_u16(self.row().0).expect("the table holds valid statuses")
    }

    /// Its spelling in `code` and at the end of `type`.
    pub fn as_str(self) -> &'static str {
        self.row().1
    }
}

/// A part of a request that is not valid.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, ToSchema)]
#[schema(as = Fault)]
pub struct RequestFault {
    /// The part, as a JSON pointer (RFC 6901) into the body, or `/` and the name of a parameter.
    #[schema(example = "/users/3")]
    pub pointer: String,
    /// The error.
    pub detail: Cow<'static, str>,
}

/// A refusal or failure that is not written yet. [`render`] writes the document when the request's ID is known.
#[derive(Clone, Debug)]
pub struct Problem {
    /// What went wrong.
    pub code: Code,
    /// What happened in this case, for people.
    pub detail: Cow<'static, str>,
    /// The parts of the request that are not valid.
    pub faults: Vec<RequestFault>,
    /// When the hold of the code expires.
    pub expires_at: Option<Timestamp>,
    /// When to try again, in seconds.
    pub retry_after_seconds: Option<u64>,
    /// Whether an earlier request with the same idempotency key got this response.
    pub replayed: bool,
}

impl Problem {
    /// A problem with this detail.
    pub fn new(code: Code, detail: impl Into<Cow<'static, str>>) -> Self {
        Self {
            detail: detail.into(),
            ..code.into()
        }
    }

    /// The problem of a request with these invalid parts.
    pub fn invalid(faults: Vec<RequestFault>) -> Self {
        let detail = match faults.len() {
            1 => format!("{} {}", faults[0].pointer, faults[0].detail)
                .trim_start()
                .to_owned()
                .into(),
            count => Cow::Owned(format!(
                "{count} parts of the request are not valid, see errors"
            )),
        };
        Self {
            faults,
            ..Self::new(Code::InvalidRequest, detail)
        }
    }

    /// The problem of a request with one invalid part.
    pub fn invalid_at(pointer: &str, detail: impl Into<Cow<'static, str>>) -> Self {
        Self::invalid(vec![RequestFault {
            pointer: pointer.to_owned(),
            detail: detail.into(),
        }])
    }

    /// Refuses a number that is not within its limits.
    pub fn unless_within<T: PartialOrd + Display>(
        pointer: &str,
        number: T,
        limits: RangeInclusive<T>,
    ) -> Result<(), Self> {
        if limits.contains(&number) {
            return Ok(());
        }
        Err(Self::invalid_at(
            pointer,
            format!("expected {} to {}", limits.start(), limits.end()),
        ))
    }

    /// Makes the problem of an invalid part from an error.
    pub fn at<E: Display>(pointer: &str) -> impl Fn(E) -> Self {
        move |error| Self::invalid_at(pointer, error.to_string())
    }

    /// Sets when to try again, in seconds.
    pub fn retry_after(self, seconds: u64) -> Self {
        Self {
            retry_after_seconds: Some(seconds),
            ..self
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = self.code.status().into_response();
        response.extensions_mut().insert(self);
        response
    }
}
