//! `/v1/coupons/{coupon}/redemptions`: redeeming codes, once each.

use super::answer::problem::{Code, Problem};
use super::answer::refusals;
use super::answer::reply;
use super::api::{Api, Decided, Sender, target};
use super::lines::Lines;
use super::request::faults::Faults;
use super::request::item_lists::Item;
use super::request::object::{self, Fields, Scalar};
use super::request::time::Time;
use super::request::{page, query};
use crate::domain::redemption::{HOLD_SECONDS_MAX, REFERENCE_BYTES_MAX};
use crate::domain::{Command, Kind, Outcome, Redemption, RedemptionId, Reference, Refusal, Status};
use crate::engine::{Change, Digest, FilterView, Mode, RedemptionPage, RedemptionQuery};
use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::response::Response;
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use futures_util::{StreamExt, stream};
use http::{HeaderValue, StatusCode, header};
use serde::de::MapAccess;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use utoipa::{IntoParams, ToSchema};

/// A code to redeem or hold.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"code": "K7Q2-9FXM", "reference": "order-42"}))]
#[allow(dead_code)] // For the document: `RedemptionBody` reads it.
struct RedemptionRequest {
    /// 1 to 512 bytes.
    #[schema(min_length = 1, max_length = 512)]
    code: String,
    /// The caller's own id of this redemption, stored as given. The same code and reference mean the same redemption.
    #[schema(min_length = 1, max_length = 128)]
    reference: String,
    /// 0 redeems the code at once. Otherwise it is held for this long, to be confirmed or cancelled.
    #[serde(default)]
    #[schema(maximum = 604_800)]
    hold_seconds: u64,
}

/// A body like [`RedemptionRequest`], of which only the code's digest is kept.
struct RedemptionBody<'a> {
    view: &'a FilterView,
    digest: Option<Digest>,
    reference: Option<Reference>,
    hold_seconds: u64,
}

impl<'de> Fields<'de> for RedemptionBody<'_> {
    fn names(&self) -> &[&'static str] {
        &["code", "reference", "hold_seconds"]
    }

    fn required(&self) -> usize {
        2
    }

    fn read<A: MapAccess<'de>>(
        &mut self,
        index: usize,
        map: &mut A,
        faults: &mut Faults,
    ) -> Result<(), A::Error> {
        if index == 0 {
            match map.next_value_seed(Item(self.view))? {
                Ok(digest) => self.digest = Some(digest),
                Err(fault) => faults.note(|| "/code".into(), fault),
            }
            return Ok(());
        }
        let value: Scalar<'_> = map.next_value()?;
        if index == 1 {
            let reference = match value {
                Scalar::Text(text) => Reference::new(&text).ok(),
                _ => None,
            };
            match reference {
                Some(reference) => self.reference = Some(reference),
                None => faults.note(
                    || "/reference".into(),
                    format!("expected a string of 1 to {REFERENCE_BYTES_MAX} bytes"),
                ),
            }
        } else {
            match value {
                Scalar::Number(seconds @ 0..=HOLD_SECONDS_MAX) => self.hold_seconds = seconds,
                _ => faults.note(
                    || "/hold_seconds".into(),
                    format!("expected a whole number from 0 to {HOLD_SECONDS_MAX}"),
                ),
            }
        }
        Ok(())
    }
}

/// The status of a redemption.
#[derive(Clone, Copy, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum RedemptionStatus {
    /// The code is held until `expires_at`.
    Held,
    /// The code is redeemed.
    Redeemed,
    /// The redemption was cancelled; the code is available again.
    Cancelled,
    /// The hold expired; the code is available again.
    Expired,
}

impl From<Status> for RedemptionStatus {
    fn from(status: Status) -> Self {
        match status {
            Status::Held => RedemptionStatus::Held,
            Status::Redeemed => RedemptionStatus::Redeemed,
            Status::Cancelled => RedemptionStatus::Cancelled,
            Status::Expired => RedemptionStatus::Expired,
        }
    }
}

impl From<RedemptionStatus> for Status {
    fn from(status: RedemptionStatus) -> Self {
        match status {
            RedemptionStatus::Held => Status::Held,
            RedemptionStatus::Redeemed => Status::Redeemed,
            RedemptionStatus::Cancelled => Status::Cancelled,
            RedemptionStatus::Expired => Status::Expired,
        }
    }
}

/// One use of one code.
#[derive(Serialize, ToSchema)]
#[schema(as = Redemption)]
pub(super) struct RedemptionAnswer {
    /// A random id that can't be guessed.
    #[schema(pattern = "^[0-9a-f]{32}$", example = "0f5e3c2b9a7d4f1e8c6b5a4938271605")]
    id: String,
    status: RedemptionStatus,
    /// The caller's own id.
    #[schema(example = "order-42")]
    reference: String,
    created_at: Time,
    /// When the hold expires or expired.
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at: Option<Time>,
    /// When the code was redeemed. Kept if the redemption is cancelled later.
    #[serde(skip_serializing_if = "Option::is_none")]
    redeemed_at: Option<Time>,
    /// When it was cancelled.
    #[serde(skip_serializing_if = "Option::is_none")]
    cancelled_at: Option<Time>,
    /// In an open pool, while it is held or redeemed: a number from 1 to `stock` that no other one has meanwhile.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    ordinal: Option<u64>,
}

impl From<Redemption> for RedemptionAnswer {
    fn from(redemption: Redemption) -> Self {
        Self {
            id: redemption.id.to_string(),
            status: redemption.status.into(),
            reference: redemption.reference.as_str().to_owned(),
            created_at: Time(redemption.created_at),
            expires_at: redemption.expires_at.map(Time),
            redeemed_at: redemption.redeemed_at.map(Time),
            cancelled_at: redemption.cancelled_at().map(Time),
            ordinal: redemption
                .ordinal
                .filter(|_| matches!(redemption.status, Status::Held | Status::Redeemed)),
        }
    }
}

/// A page of redemptions, in the order of their last change.
#[derive(Serialize, ToSchema)]
struct RedemptionList {
    redemptions: Vec<RedemptionAnswer>,
    /// The cursor of the next page; absent on the last one. A page can be short without being the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

/// Which redemptions to list.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ListQuery {
    /// Only those with this reference.
    #[param(min_length = 1, max_length = 128)]
    reference: Option<String>,
    /// Only those with this status.
    #[param(inline)]
    status: Option<RedemptionStatus>,
    /// Only those that changed after this time.
    #[param(value_type = Option<String>, format = DateTime)]
    changed_after: Option<Time>,
    /// Maximum number of redemptions per page. Ignored for NDJSON and CSV.
    #[serde(default = "page::limit_default")]
    #[param(minimum = 1, maximum = 1000, default = 100)]
    limit: usize,
    /// The `next_cursor` of the previous page.
    cursor: Option<String>,
}

/// The columns of the list as CSV.
const COLUMNS: &[&str] =
    &["id", "status", "reference", "created_at", "expires_at", "redeemed_at", "cancelled_at", "ordinal"];

/// How many parts of the ledger one request reads before it answers with what it has found.
const LOOKS_MAX: usize = 100;

/// Redeem a code, or hold it
///
/// Of all requests for one code with different references, exactly one gets 201. In an open pool any code may be redeemed or held
/// once, until as many are as its `stock` says.
#[utoipa::path(
    post,
    path = "/v1/coupons/{coupon}/redemptions",
    operation_id = "redeem",
    tag = "redemptions",
    request_body = RedemptionRequest,
    responses(
        (status = 200, description = "A repeat of an earlier code and reference: that redemption, confirmed or extended", body = RedemptionAnswer),
        (status = 201, description = "Redeemed or held", body = RedemptionAnswer, headers(("Location" = String, description = "Its path"))),
        (status = 404, description = "`coupon-not-found`, `code-unknown`"),
        (status = 409, description = "`code-redeemed`, `code-held`, `outside-window`, `requires-strict-mode`, `sold-out`"),
        (status = 429, description = "`too-many-invalid-codes`"),
    )
)]
pub(super) async fn redeem(
    State(api): State<Arc<Api>>,
    Path(coupon): Path<String>,
    request: Request,
) -> Result<Response, Problem> {
    let sender = Sender::of(&request)?;
    let view = api.filter(Kind::Coupon, &coupon)?;
    let guesser = api.guesser(&view, &request)?;
    let bytes = api.body(request).await?;
    let mut body = RedemptionBody { view: &view, digest: None, reference: None, hold_seconds: 0 };
    object::read(&bytes, &mut body)?;
    let RedemptionBody { digest: Some(digest), reference: Some(reference), hold_seconds, .. } = body else {
        return Err(Problem::invalid(Vec::new()));
    };
    let guesses = guesser.take(1)?;
    // The answer to a request with an idempotency key has to be kept.
    let refused = match sender.may_repeat() {
        true => None,
        false => api.engine.certain_refusal(&view, digest, &reference),
    };
    let decided = match refused {
        Some(refusal) => Err(refusals::refused(Kind::Coupon, refusal)),
        None => {
            let redemption = api.engine.redemption_id();
            let target = target(&view);
            let command = Command::Redeem { target, digest, redemption, reference, hold_seconds };
            api.submit(Kind::Coupon, &coupon, &sender, command).await
        }
    };
    let is_invalid =
        |problem: &Problem| matches!(problem.code, Code::CodeUnknown | Code::CodeRedeemed | Code::CodeHeld);
    guesses.settle(decided.as_ref().err().map_or(0, |problem| is_invalid(problem).into()));
    api.count_redemption(decided.as_ref(), "repeated");
    let Decided { outcome, replayed } = decided?;
    match outcome {
        Outcome::Redeemed(redemption) => {
            let location = format!("/v1/coupons/{coupon}/redemptions/{}", redemption.id);
            let mut response =
                reply::json(StatusCode::CREATED, replayed, &RedemptionAnswer::from(redemption));
            let location = HeaderValue::try_from(location).expect("names and ids are visible ASCII");
            response.headers_mut().insert(header::LOCATION, location);
            Ok(response)
        }
        outcome => settled(Decided { outcome, replayed }),
    }
}

fn settled(decided: Decided) -> Result<Response, Problem> {
    match decided {
        Decided { outcome: Outcome::Settled(redemption), replayed } => {
            Ok(reply::json(StatusCode::OK, replayed, &RedemptionAnswer::from(redemption)))
        }
        decided => Err(decided.unexpected()),
    }
}

/// List redemptions
///
/// In the order of their last change, so a client that keeps requesting the next page sees every change. With `Accept:
/// application/x-ndjson` or `text/csv`, one response has all of them, one per line; a redemption that changes during the export
/// appears again at the end, in its new state.
#[utoipa::path(
    get,
    path = "/v1/coupons/{coupon}/redemptions",
    operation_id = "list_redemptions",
    tag = "redemptions",
    params(ListQuery),
    responses(
        (
            status = 200,
            description = "The redemptions on record: a page, or all as NDJSON or CSV (with a header row)",
            content(
                (RedemptionList = "application/json"),
                (RedemptionAnswer = "application/x-ndjson"),
                (String = "text/csv"),
            )
        ),
        (status = 404, description = "`coupon-not-found`"),
    )
)]
pub(super) async fn list(
    State(api): State<Arc<Api>>,
    Path(coupon): Path<String>,
    request: Request,
) -> Result<Response, Problem> {
    let view = api.filter(Kind::Coupon, &coupon)?;
    let ListQuery { reference, status, changed_after, limit, cursor } = query::parse(&request)?;
    page::check_limit(limit)?;
    let reference = reference.as_deref().map(Reference::new).transpose();
    let reference = reference.map_err(|error| Problem::invalid_at("/reference", error.to_string()))?;
    let query = RedemptionQuery {
        reference,
        status: status.map(Status::from),
        changed_after: changed_after.map(|time| time.0),
    };
    let mut next = cursor.as_deref().map(change_of).transpose()?;
    if let Some(lines) = Lines::preferred(request.headers(), COLUMNS) {
        return Ok(export(api, view, query, next, lines));
    }
    let mut redemptions = Vec::new();
    for _ in 0..LOOKS_MAX {
        let page = view.redemptions(&query, next, limit - redemptions.len(), api.engine.now());
        redemptions.extend(page.redemptions.into_iter().map(RedemptionAnswer::from));
        next = page.next;
        if next.is_none() || redemptions.len() == limit {
            break;
        }
        // Other requests on this processor get their turn.
        tokio::task::yield_now().await;
    }
    let next_cursor = next.map(|change| BASE64_URL_SAFE_NO_PAD.encode(change.0.to_be_bytes()));
    Ok(reply::json(StatusCode::OK, false, &RedemptionList { redemptions, next_cursor }))
}

/// Streams all redemptions that match a query, one per line. The ledger is read in parts, as fast as the client accepts them.
fn export(
    api: Arc<Api>,
    view: Arc<FilterView>,
    query: RedemptionQuery,
    after: Option<Change>,
    lines: Lines,
) -> Response {
    let parts = stream::unfold((lines.header(), Some(after)), move |(mut part, after)| {
        let page = after.map(|after| view.redemptions(&query, after, usize::MAX, api.engine.now()));
        async move {
            let RedemptionPage { redemptions, next } = page?;
            tokio::task::yield_now().await;
            let written = lines.write(redemptions.into_iter().map(RedemptionAnswer::from), &mut part);
            Some((written.map(|()| part), (Vec::new(), next.map(Some))))
        }
    });
    lines.response(Body::from_stream(parts.fuse()))
}

fn change_of(cursor: &str) -> Result<Change, Problem> {
    let change = BASE64_URL_SAFE_NO_PAD.decode(cursor).ok().and_then(|bytes| bytes.try_into().ok());
    change.map(|bytes| Change(u64::from_be_bytes(bytes))).ok_or_else(page::strange_cursor)
}

/// Show a redemption
#[utoipa::path(
    get,
    path = "/v1/coupons/{coupon}/redemptions/{id}",
    operation_id = "get_redemption",
    tag = "redemptions",
    responses(
        (status = 200, description = "The redemption", body = RedemptionAnswer),
        (status = 404, description = "`coupon-not-found`, `redemption-not-found`"),
    )
)]
pub(super) async fn get(
    State(api): State<Arc<Api>>,
    Path((coupon, redemption)): Path<(String, String)>,
) -> Result<Response, Problem> {
    let view = api.filter(Kind::Coupon, &coupon)?;
    let found = view.redemption(&parse_id(&redemption)?, api.engine.now());
    let redemption = found.ok_or_else(refusals::redemption_not_found)?;
    Ok(reply::json(StatusCode::OK, false, &RedemptionAnswer::from(redemption)))
}

/// Redeem a held code
///
/// Can be repeated, and works after the coupon's `ends_at`.
#[utoipa::path(
    post,
    path = "/v1/coupons/{coupon}/redemptions/{id}/confirm",
    operation_id = "confirm_redemption",
    tag = "redemptions",
    responses(
        (status = 200, description = "Redeemed", body = RedemptionAnswer),
        (status = 404, description = "`coupon-not-found`, `redemption-not-found`"),
        (status = 409, description = "`hold-expired`, `redemption-cancelled`, `requires-strict-mode`"),
    )
)]
pub(super) async fn confirm(
    State(api): State<Arc<Api>>,
    Path((coupon, redemption)): Path<(String, String)>,
    request: Request,
) -> Result<Response, Problem> {
    let sender = Sender::of(&request)?;
    let view = strict(&api, &coupon)?;
    let command = Command::Confirm { target: target(&view), redemption: parse_id(&redemption)? };
    let decided = api.submit(Kind::Coupon, &coupon, &sender, command).await;
    api.count_redemption(decided.as_ref(), "confirmed");
    settled(decided?)
}

/// Release a held or redeemed code
///
/// Can be repeated, and never undoes a newer redemption of the same code. An expired redemption stays expired, with 200: its code
/// is available already.
#[utoipa::path(
    post,
    path = "/v1/coupons/{coupon}/redemptions/{id}/cancel",
    operation_id = "cancel_redemption",
    tag = "redemptions",
    responses(
        (status = 200, description = "Cancelled, or expired earlier", body = RedemptionAnswer),
        (status = 404, description = "`coupon-not-found`, `redemption-not-found`"),
        (status = 409, description = "`requires-strict-mode`"),
    )
)]
pub(super) async fn cancel(
    State(api): State<Arc<Api>>,
    Path((coupon, redemption)): Path<(String, String)>,
    request: Request,
) -> Result<Response, Problem> {
    let sender = Sender::of(&request)?;
    let view = strict(&api, &coupon)?;
    let command = Command::Cancel { target: target(&view), redemption: parse_id(&redemption)? };
    let decided = api.submit(Kind::Coupon, &coupon, &sender, command).await;
    api.count_redemption(decided.as_ref(), "cancelled");
    settled(decided?)
}

/// The coupon of this name, which must be one that has redemptions.
fn strict(api: &Api, coupon: &str) -> Result<Arc<FilterView>, Problem> {
    let view = api.filter(Kind::Coupon, coupon)?;
    match view.spec.mode {
        Mode::Strict => Ok(view),
        Mode::Compact => Err(refusals::refused(Kind::Coupon, Refusal::RequiresStrictMode)),
    }
}

/// Parses an id. An invalid one is answered as an unknown one.
fn parse_id(text: &str) -> Result<RedemptionId, Problem> {
    text.parse().map_err(|_| refusals::redemption_not_found())
}
