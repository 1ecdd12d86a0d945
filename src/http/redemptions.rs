//! `/v1/coupons/{coupon}/redemptions`: redeeming codes, once each.

use super::api::{Api, FilterHandle, RedemptionOutcomes};
use super::call::{Call, Decided, Read, Redeem, Resource};
use super::request::json::{self, Faults, Item, JsonText};
use super::request::query;
use super::response::success::{self, LineFormat};
use super::response::{Code, HandlerResult, Problem, refusals};
use super::router::NOTHING_BYTES;
use axum::BoxError;
use axum::body::HttpBody;
use axum::extract::{Path, Request};
use axum::response::Response;
use cuckood_filter::{Digest, Mode};
use cuckood_log::journal::random;
use cuckood_state::domain::redemption::{
    CUSTOMER_BYTES_MAX, HOLD_SECONDS_MAX, REFERENCE_BYTES_MAX,
};
use cuckood_state::domain::{
    Command, Kind, Outcome, Redemption, RedemptionId, RedemptionStatus, Reference, Target,
    Timestamp,
};
use cuckood_state::{
    ChangeNumber, CodeFound, FilterView, RedemptionOrder, RedemptionPage, RedemptionQuery,
};
use futures_util::stream;
use http::HeaderValue;
use http::StatusCode;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, TRANSFER_ENCODING};
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;
use std::sync::Arc;
use utoipa::{IntoParams, ToSchema};

/// A code to redeem or hold.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"code": "K7Q2-9FXM", "reference": "order-42"}))]
struct RedemptionRequest<'a> {
    /// 1 to 512 bytes.
    #[serde(borrow)]
    #[schema(value_type = String, min_length = 1, max_length = 512)]
    code: Item<'a>,
    /// The caller's id of this redemption, stored as given. The same code and reference identify the same redemption.
    #[serde(borrow)]
    #[schema(value_type = String, min_length = 1, max_length = 128)]
    reference: JsonText<'a>,
    /// 0 redeems the code immediately. Otherwise the code is held for this time, until confirmation or cancellation.
    #[serde(default)]
    #[schema(maximum = 604_800)]
    hold_seconds: u64,
    /// Who uses the code, such as an account's id: 1 to 512 bytes, used exactly as given, never stored or returned. Required if the coupon
    /// has `per_customer`. A repeat of code and reference finds its redemption with any.
    #[serde(borrow, default)]
    #[schema(value_type = Option<String>, min_length = 1, max_length = 512)]
    customer: Option<JsonText<'a>>,
}

/// A request for the use of a code, without the raw code and customer.
struct RequestedUse {
    code: Digest,
    reference: Reference,
    hold_seconds: u64,
    customer: Option<Digest>,
}

impl RequestedUse {
    fn command(self, target: Target) -> Command {
        let redeem = cuckood_state::domain::Redeem {
            target,
            digest: self.code,
            redemption: RedemptionId(random()),
            reference: self.reference,
            hold_seconds: self.hold_seconds,
        };
        match self.customer {
            None => Command::Redeem(redeem),
            Some(customer) => Command::RedeemFor { redeem, customer },
        }
    }
}

impl RedemptionRequest<'_> {
    /// The use that is requested, or everything that is wrong with the request.
    fn check(&self, view: &FilterView) -> Result<RequestedUse, Problem> {
        let mut faults = Faults::default();
        let digest = faults.digest(view, &self.code, || "/code".into());
        if self.hold_seconds > HOLD_SECONDS_MAX {
            let detail = format!("expected a whole number from 0 to {HOLD_SECONDS_MAX}");
            faults.note(|| "/hold_seconds".into(), detail);
        }
        let reference = Reference::new(self.reference.as_ref());
        if reference.is_err() {
            let detail = format!("expected a string of 1 to {REFERENCE_BYTES_MAX} bytes");
            faults.note(|| "/reference".into(), detail);
        }
        let customer = self.customer.as_ref().map(AsRef::as_ref);
        match customer.map(str::len) {
            None if view.spec.supply.per_customer.is_some() => {
                let detail = "missing: the coupon has `per_customer`";
                faults.note(|| "/customer".into(), detail);
            }
            None | Some(1..=CUSTOMER_BYTES_MAX) => {}
            Some(_) => {
                let detail = format!("expected a string of 1 to {CUSTOMER_BYTES_MAX} bytes");
                faults.note(|| "/customer".into(), detail);
            }
        }
        faults.check()?;
        Ok(RequestedUse {
            code: digest,
            reference: reference.map_err(Problem::at("/reference"))?,
            hold_seconds: self.hold_seconds,
            customer: customer.map(|customer| view.customer_digest(customer)),
        })
    }
}

/// One use of one code.
#[skip_serializing_none]
#[derive(Serialize, ToSchema)]
#[schema(as = Redemption, example = json!({
    "id": "0f5e3c2b9a7d4f1e8c6b5a4938271605", "status": "redeemed", "reference": "order-42",
    "created_at": "2026-12-01T00:00:00.000Z", "redeemed_at": "2026-12-01T00:00:00.000Z"
}))]
pub(super) struct RedemptionResponse {
    /// A random ID.
    #[schema(
        pattern = "^[0-9a-f]{32}$",
        example = "0f5e3c2b9a7d4f1e8c6b5a4938271605"
    )]
    id: String,
    status: RedemptionStatus,
    /// The caller's id.
    #[schema(example = "order-42")]
    reference: String,
    created_at: Timestamp,
    /// When the hold expires or expired.
    expires_at: Option<Timestamp>,
    /// When the code was redeemed, also if the redemption was cancelled later.
    redeemed_at: Option<Timestamp>,
    /// When it was cancelled.
    cancelled_at: Option<Timestamp>,
    /// In an open pool, while it is held or redeemed: a number from 1 to `stock`, unique among held and redeemed ones.
    #[schema(minimum = 1)]
    ordinal: Option<u64>,
    /// False if the redemption ended, and its code did not become available by that: it was cancelled with `release` `false`, or its code
    /// was withdrawn. Otherwise absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    released: Option<bool>,
}

impl From<Redemption> for RedemptionResponse {
    fn from(redemption: Redemption) -> Self {
        Self {
            id: redemption.id.to_string(),
            status: redemption.status,
            reference: redemption.reference.as_str().to_owned(),
            created_at: redemption.created_at,
            expires_at: redemption.expires_at,
            redeemed_at: redemption.redeemed_at,
            cancelled_at: (redemption.status == RedemptionStatus::Cancelled)
                .then_some(redemption.changed_at),
            ordinal: redemption.details.ordinal.filter(|_| redemption.stands()),
            released: redemption.details.is_unreleased.then_some(false),
        }
    }
}

/// A page of redemptions, in the order of their last change, or newest first.
#[skip_serializing_none]
#[derive(Serialize, ToSchema)]
#[schema(example = json!({"redemptions": []}))]
struct RedemptionList {
    redemptions: Vec<RedemptionResponse>,
    /// The cursor of the next page; absent on the last one. A short page is not necessarily the last.
    next_cursor: Option<String>,
}

/// Which redemptions to list.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ListQuery {
    /// Only redemptions with this reference.
    #[param(min_length = 1, max_length = 128)]
    reference: Option<String>,
    /// Only redemptions with this status.
    #[param(inline)]
    status: Option<RedemptionStatus>,
    /// Only redemptions that changed after this time.
    #[param(value_type = Option<String>, format = DateTime)]
    changed_after: Option<Timestamp>,
    /// By the last change, the oldest first (the default) or the newest first. NDJSON and CSV return 422 for `newest`. A redemption that
    /// changes between two pages moves to the start; the next page does not list it.
    #[param(inline)]
    order: Option<RedemptionOrder>,
    /// Maximum number of redemptions per page. Ignored for NDJSON and CSV.
    #[param(minimum = 1, maximum = 1000, default = 100)]
    limit: Option<usize>,
    /// The `next_cursor` of the previous page, of the same `order`. Empty means the first page.
    cursor: Option<String>,
}

/// The columns of the list as CSV.
pub(super) const COLUMNS: &str =
    "id,status,reference,created_at,expires_at,redeemed_at,cancelled_at,ordinal,released";

/// Parts of the ledger that one request reads before it returns its results so far.
const SCANS_MAX: usize = 100;

/// Redeem a code, or hold it
///
/// However many requests with different references redeem one code concurrently, exactly one returns 201, or as many as the code has
/// `uses`. In an open pool, any code can be redeemed or held, up to `stock` uses of all codes.
#[utoipa::path(
    post, path = "/v1/coupons/{coupon}/redemptions", operation_id = "redeem", tag = "redemptions",
    request_body = RedemptionRequest<'_>,
    responses(
        (status = 200, description = "A repeat of an earlier code and reference: that redemption, confirmed or extended", body = RedemptionResponse),
        (status = 201, description = "Redeemed or held", body = RedemptionResponse, headers(("Location" = String, description = "Its path"))),
        (status = 404, description = "`code-unknown`"),
        (status = 409, description = "`code-redeemed`, `code-held` (with the earliest `expires_at` of its holds), `customer-limit`, `outside-window`, `requires-strict-mode`, `sold-out`"),
        (status = 429, description = "`too-many-invalid-codes`"),
    )
)]
pub(super) async fn redeem(
    call: Call<Redeem>,
    Path(coupon): Path<String>,
    request: Request,
) -> HandlerResult {
    let view = call.filter(Kind::Coupon, &coupon)?;
    let guesser = call.guesser(&view, &request)?;
    let body = call.body(request).await?;
    let request: RedemptionRequest<'_> = json::parse(&body)?;
    let requested = request.check(&view)?;
    let guesses = guesser.take(1)?;
    let engine = &call.api.engine;
    let &RequestedUse {
        code: digest,
        ref reference,
        customer,
        ..
    } = &requested;
    // The outcome of a request with an idempotency key has to be stored.
    let refused = (!call.may_repeat())
        .then(|| engine.certain_refusal(&view, digest, reference, customer))
        .flatten();
    let decided = match refused {
        Some(refusal) => Err(refusals::refused(Kind::Coupon, refusal)),
        None => {
            let command = requested.command(Target(view.id));
            call.submit(Resource::Filter(Kind::Coupon, &coupon), command)
                .await
        }
    };
    let decided = decided.map_err(|problem| explain(&call, &coupon, digest, problem));
    let is_invalid = |problem: &Problem| {
        matches!(
            problem.code,
            Code::CodeUnknown | Code::CodeRedeemed | Code::CodeHeld
        )
    };
    guesses.settle(
        decided
            .as_ref()
            .err()
            .map_or(0, |problem| is_invalid(problem).into()),
    );
    let decided = counted(&call, decided, "repeated")?;
    match decided.outcome {
        Outcome::Redeemed(redemption) => {
            let path = format!("/v1/coupons/{coupon}/redemptions/{}", redemption.id);
            Ok(success::created(
                &path,
                decided.replayed,
                &RedemptionResponse::from(redemption),
            ))
        }
        _ => settled(decided),
    }
}

/// The labels of requests that had an effect, or had one before.
const EFFECTS: [&str; 5] = ["redeemed", "held", "repeated", "confirmed", "cancelled"];

/// Reasons for which a request about a redemption has no effect.
const REFUSALS: [Code; 22] = [
    Code::CouponNotFound,
    Code::CodeUnknown,
    Code::RedemptionNotFound,
    Code::CodeRedeemed,
    Code::CodeHeld,
    Code::HoldExpired,
    Code::RedemptionCancelled,
    Code::RequiresStrictMode,
    Code::OutsideWindow,
    Code::SoldOut,
    Code::CustomerLimit,
    Code::NotEnabled,
    Code::IdempotencyKeyReused,
    Code::IdempotencyFull,
    Code::Overloaded,
    Code::Draining,
    Code::StorageFailed,
    Code::ClockUnsure,
    Code::NoQuorum,
    Code::MemoryLimit,
    Code::DiskFull,
    Code::LogFull,
];

/// Returns the counter of each outcome.
pub(super) fn outcomes() -> RedemptionOutcomes {
    let outcomes = RedemptionOutcomes::default();
    for outcome in EFFECTS.into_iter().chain(REFUSALS.map(Code::as_str)) {
        drop(outcomes.get_or_create(&[("outcome", outcome)]));
    }
    outcomes
}

/// Adds what the coupon knows about a used code to the problem of its redemption.
fn explain(call: &Call<Redeem>, coupon: &str, digest: Digest, problem: Problem) -> Problem {
    if !matches!(problem.code, Code::CodeHeld | Code::CodeRedeemed) {
        return problem;
    }
    // The newest view, since the log has decided.
    let Ok(view) = call.filter(Kind::Coupon, coupon) else {
        return problem;
    };
    let now = call.api.engine.now();
    if view.spec.supply.has_several_uses() {
        let is_held = problem.code == Code::CodeHeld;
        return Problem {
            detail: "all uses of the code are taken, under other references".into(),
            expires_at: view.first_expiry(digest, now).filter(|_| is_held),
            ..problem
        };
    }
    let found = view.look_up(&[digest], now).unwrap_or_default().pop();
    match (problem.code, found) {
        (Code::CodeHeld, Some(CodeFound::Held(hold))) => Problem {
            expires_at: hold.expires_at,
            ..problem
        },
        (Code::CodeRedeemed, Some(CodeFound::Redeemed(None))) => {
            let detail = "the code was redeemed; under which reference is unknown after redemptions.retention";
            Problem {
                detail: detail.into(),
                ..problem
            }
        }
        _ => problem,
    }
}

/// Counts the outcome of a request about a redemption; `settled` is the outcome if the redemption existed before.
fn counted(
    call: &Call<Redeem>,
    decided: Result<Decided, Problem>,
    settled: &'static str,
) -> Result<Decided, Problem> {
    let outcome = match &decided {
        Ok(Decided {
            outcome:
                Outcome::Redeemed(Redemption {
                    status: RedemptionStatus::Held,
                    ..
                }),
            ..
        }) => "held",
        Ok(Decided {
            outcome: Outcome::Redeemed(_),
            ..
        }) => "redeemed",
        Ok(_) => settled,
        Err(problem) => problem.code.as_str(),
    };
    call.api
        .redemptions
        .get_or_create(&[("outcome", outcome)])
        .inc();
    decided
}

fn settled(decided: Decided) -> HandlerResult {
    match decided {
        Decided {
            outcome: Outcome::Settled(redemption),
            replayed,
        } => Ok(success::json(
            StatusCode::OK,
            replayed,
            &RedemptionResponse::from(redemption),
        )),
        decided => Err(decided.unexpected()),
    }
}

/// List redemptions
///
/// In the order of their last change, so a client that keeps requesting the next page sees every change. `order=newest` lists the latest
/// change first, for display. With `Accept:
/// application/x-ndjson` or `text/csv`, one response has all of them, one per line; a redemption that changes during the export
/// appears again at the end, in its new state.
#[utoipa::path(
    get, path = "/v1/coupons/{coupon}/redemptions", operation_id = "list_redemptions", tag = "redemptions",
    params(ListQuery),
    responses(
        (
            status = 200,
            description = "The redemptions on record: a page, or all as NDJSON or CSV (with a header row)",
            content(
                (RedemptionList = "application/json"),
                (RedemptionResponse = "application/x-ndjson"),
                (String = "text/csv"),
            )
        ),
    )
)]
pub(super) async fn list(
    call: Call<Read>,
    Path(coupon): Path<String>,
    request: Request,
) -> HandlerResult {
    let view = call.filter(Kind::Coupon, &coupon)?;
    let ListQuery {
        reference,
        status,
        changed_after,
        order,
        limit,
        cursor,
    } = query::parse(&request)?;
    let limit = limit.unwrap_or(query::PAGE_DEFAULT);
    Problem::unless_within("/limit", limit, 1..=query::PAGE_MAX)?;
    let order = order.unwrap_or_default();
    let reference = reference.as_deref().map(Reference::new).transpose();
    let reference = reference.map_err(Problem::at("/reference"))?;
    let query = RedemptionQuery {
        reference,
        status,
        changed_after,
        order,
    };
    let cursor = cursor.as_deref().filter(|cursor| !cursor.is_empty());
    let mut next = match cursor {
        Some(cursor) => Some(change_of(cursor, order)?),
        None => None,
    };
    if let Some(lines) = LineFormat::preferred(request.headers(), COLUMNS) {
        if order == RedemptionOrder::Newest {
            let detail = "NDJSON and CSV list the oldest first: omit `order`, or accept JSON";
            return Err(Problem::invalid_at("/order", detail));
        }
        return Ok(export(call, view, query, next, lines));
    }
    let mut redemptions = Vec::new();
    for _ in 0..SCANS_MAX {
        let page = view.redemptions(
            &query,
            next,
            limit - redemptions.len(),
            call.api.engine.now(),
        );
        redemptions.extend(page.redemptions.into_iter().map(RedemptionResponse::from));
        next = page.next;
        if next.is_none() || redemptions.len() == limit {
            break;
        }
        // Other requests on this processor get their turn.
        tokio::task::yield_now().await;
    }
    let next_cursor = next.map(|change| cursor_of(change, order));
    Ok(success::ok(&RedemptionList {
        redemptions,
        next_cursor,
    }))
}

/// Redemptions that are exported together.
const EXPORTED: usize = 128;

/// Streams all redemptions that match a query, one per line. The ledger is read in parts, as fast as the client accepts them.
fn export(
    call: Call<Read>,
    view: Arc<FilterView>,
    query: RedemptionQuery,
    after: Option<ChangeNumber>,
    lines: LineFormat,
) -> Response {
    let coupon = FilterHandle::of(&view);
    drop(view);
    lines.stream(stream::try_unfold(Some(after), move |after| {
        let page = after.map(|after| {
            let view = coupon
                .view(&call.api)
                .map_err(|gone| BoxError::from(gone.detail.into_owned()))?;
            Ok::<_, BoxError>(view.redemptions(&query, after, EXPORTED, call.api.engine.now()))
        });
        async move {
            let Some(page) = page else { return Ok(None) };
            let RedemptionPage { redemptions, next } = page?;
            tokio::task::yield_now().await;
            let responses: Vec<_> = redemptions
                .into_iter()
                .map(RedemptionResponse::from)
                .collect();
            Ok(Some((responses, next.map(Some))))
        }
    }))
}

/// The last byte of a cursor of a list with the newest first; other cursors lack it.
const NEWEST: &[u8] = b"n";

fn cursor_of(change: ChangeNumber, order: RedemptionOrder) -> String {
    let mark = match order {
        RedemptionOrder::Oldest => &[],
        RedemptionOrder::Newest => NEWEST,
    };
    query::write_cursor([&change.0.to_be_bytes(), mark].concat())
}

/// Reads a cursor. One of the other order is invalid.
fn change_of(cursor: &str, order: RedemptionOrder) -> Result<ChangeNumber, Problem> {
    let bytes = query::read_cursor(cursor)?;
    let change = match order {
        RedemptionOrder::Oldest => Some(&*bytes),
        RedemptionOrder::Newest => bytes.strip_suffix(NEWEST),
    };
    match change.map(<[u8; 8]>::try_from) {
        Some(Ok(change)) => Ok(ChangeNumber(u64::from_be_bytes(change))),
        Some(Err(_)) | None => Err(query::invalid_cursor()),
    }
}

/// Show a redemption
///
/// Its current status and times, until its retention is over.
#[utoipa::path(
    get, path = "/v1/coupons/{coupon}/redemptions/{id}", operation_id = "get_redemption", tag = "redemptions",
    responses((status = 200, description = "The redemption", body = RedemptionResponse))
)]
pub(super) async fn get(
    call: Call<Read>,
    Path((coupon, redemption)): Path<(String, String)>,
) -> HandlerResult {
    let id = parse_id(&redemption)?;
    let find = || {
        let view = call.filter(Kind::Coupon, &coupon)?;
        view.redemption(&id, call.api.engine.now())
            .ok_or(Code::RedemptionNotFound.into())
    };
    let redemption = after_barrier(&call.api, find).await?;
    Ok(success::ok(&RedemptionResponse::from(redemption)))
}

/// Redeem a held code
///
/// Can be repeated, and works after the coupon's `ends_at`.
#[utoipa::path(
    post, path = "/v1/coupons/{coupon}/redemptions/{id}/confirm", operation_id = "confirm_redemption", tag = "redemptions",
    responses(
        (status = 200, description = "Redeemed", body = RedemptionResponse),
        (status = 409, description = "`hold-expired`, `redemption-cancelled`, `requires-strict-mode`"),
    )
)]
pub(super) async fn confirm(
    call: Call<Redeem>,
    Path((coupon, redemption)): Path<(String, String)>,
) -> HandlerResult {
    let view = strict_coupon(&call, &coupon).await?;
    let target = Target(view.id);
    let redemption = parse_id(&redemption)?;
    let command = Command::Confirm { target, redemption };
    change(&call, &coupon, command, "confirmed").await
}

/// What a cancellation does to the code.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"release": true}))]
struct Cancellation {
    /// False keeps the use taken, as if it were redeemed: it counts toward `uses`, `per_customer` and `stock`, and keeps its ordinal.
    #[serde(default = "released")]
    #[schema(default = true)]
    release: bool,
}

fn released() -> bool {
    true
}

/// Whether a cancellation releases the code. Its body may be missing, or empty: some clients send an empty one in chunks, without a type.
async fn is_released(call: &Call<Redeem>, mut request: Request) -> Result<bool, Problem> {
    let headers = request.headers();
    let declared = headers.get(CONTENT_LENGTH);
    let declared = declared.and_then(|length| length.to_str().ok()?.parse().ok());
    let bytes: u64 = declared.unwrap_or_else(|| request.body().size_hint().lower());
    if bytes <= NOTHING_BYTES && !headers.contains_key(TRANSFER_ENCODING) {
        return Ok(true);
    }
    let json_type = HeaderValue::from_static("application/json");
    request
        .headers_mut()
        .entry(CONTENT_TYPE)
        .or_insert(json_type);
    let body = call.body(request).await?;
    Ok(body.bytes.is_empty() || json::parse::<Cancellation>(&body)?.release)
}

/// Release a held or redeemed code
///
/// Can be repeated, and never undoes a newer redemption of the same code. An expired redemption stays expired, with 200. The
/// first cancellation decides whether the use is released. A withdrawn code does not become available.
#[utoipa::path(
    post, path = "/v1/coupons/{coupon}/redemptions/{id}/cancel", operation_id = "cancel_redemption", tag = "redemptions",
    request_body = Option<Cancellation>,
    responses(
        (status = 200, description = "Cancelled, or expired earlier", body = RedemptionResponse),
        (status = 409, description = "`requires-strict-mode`"),
    )
)]
pub(super) async fn cancel(
    call: Call<Redeem>,
    Path((coupon, redemption)): Path<(String, String)>,
    request: Request,
) -> HandlerResult {
    let view = strict_coupon(&call, &coupon).await?;
    let is_released = is_released(&call, request).await?;
    let target = Target(view.id);
    let redemption = parse_id(&redemption)?;
    let command = if is_released {
        Command::Cancel { target, redemption }
    } else {
        Command::Forfeit { target, redemption }
    };
    change(&call, &coupon, command, "cancelled").await
}

/// Finds a coupon that has redemptions. Another node may have created it just now.
async fn strict_coupon(call: &Call<Redeem>, coupon: &str) -> Result<Arc<FilterView>, Problem> {
    let view = after_barrier(&call.api, || call.filter(Kind::Coupon, coupon)).await?;
    if view.spec.mode == Mode::Compact {
        return Err(Code::RequiresStrictMode.into());
    }
    Ok(view)
}

/// Submits a command about a redemption; `outcome` is the label of its success.
async fn change(
    call: &Call<Redeem>,
    coupon: &str,
    command: Command,
    outcome: &'static str,
) -> HandlerResult {
    let decided = call
        .submit(Resource::Filter(Kind::Coupon, coupon), command)
        .await;
    settled(counted(call, decided, outcome)?)
}

/// Looks something up; if this node does not know it, again after a barrier: another node may have acknowledged it just now.
async fn after_barrier<T>(api: &Api, find: impl Fn() -> Result<T, Problem>) -> Result<T, Problem> {
    match find() {
        Err(problem)
            if problem.code.status() == StatusCode::NOT_FOUND && api.engine.is_shared() =>
        {
            api.engine.barrier().await?;
            find()
        }
        found => found,
    }
}

/// Parses an ID. An invalid one is treated as an unknown one.
fn parse_id(text: &str) -> Result<RedemptionId, Problem> {
    text.parse().map_err(|_| Code::RedemptionNotFound.into())
}
