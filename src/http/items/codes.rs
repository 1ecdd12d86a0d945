//! `/v1/coupons/{coupon}/codes`: the routes. Most call a handler that users and codes share.

use super::handlers::{self, InsertedItems, Item, ItemCounts, RemovedItems, ReplacedItems, ReplacementList};
use crate::domain::Kind;
use crate::engine::CodeFound;
use crate::http::answer::problem::Problem;
use crate::http::answer::reply;
use crate::http::api::Api;
use crate::http::redemptions::RedemptionAnswer;
use axum::extract::{Path, Request, State};
use axum::response::Response;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use utoipa::ToSchema;

const KIND: Kind = Kind::Coupon;

/// Codes.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"codes": ["K7Q2-9FXM"]}))]
#[allow(dead_code)] // For the document: `item_lists` reads it.
struct CodeList {
    /// Used exactly as given, 1 to 512 bytes each.
    #[schema(min_items = 1, max_items = 10_000)]
    codes: Vec<Item>,
}

/// Codes to add.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"codes": ["K7Q2-9FXM"]}))]
#[allow(dead_code)] // For the document: `item_lists` reads it.
struct CodesToAdd {
    /// Used exactly as given, 1 to 512 bytes each.
    #[schema(min_items = 1, max_items = 10_000)]
    codes: Vec<Item>,
    /// Make redeemed codes available again; requires the scope `admin`.
    #[serde(default)]
    revive: bool,
}

/// Which codes may be redeemed now.
#[derive(ToSchema)]
#[schema(example = json!({"valid": [true, false]}))]
#[allow(dead_code)] // For the document: `handlers` writes it.
struct CodesValid {
    /// In the order of the request.
    valid: Vec<bool>,
}

/// The status of a code.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum CodeStatus {
    /// The code may be redeemed while the coupon is active.
    Available,
    /// A redemption holds the code.
    Held,
    /// The code is redeemed.
    Redeemed,
    /// The code was never added, or was withdrawn.
    Absent,
}

/// The result of a look-up.
#[derive(Serialize, ToSchema)]
struct CodeLookup {
    status: CodeStatus,
    /// The redemption that holds or used the code, unless its retention is over.
    #[serde(skip_serializing_if = "Option::is_none")]
    redemption: Option<RedemptionAnswer>,
}

impl From<CodeFound> for CodeLookup {
    fn from(found: CodeFound) -> Self {
        let (status, redemption) = match found {
            CodeFound::Absent => (CodeStatus::Absent, None),
            CodeFound::Available => (CodeStatus::Available, None),
            CodeFound::Held(redemption) => (CodeStatus::Held, Some(redemption)),
            CodeFound::Redeemed(redemption) => (CodeStatus::Redeemed, redemption),
        };
        Self { status, redemption: redemption.map(RedemptionAnswer::from) }
    }
}

/// The results of a look-up.
#[derive(Serialize, ToSchema)]
struct CodeLookups {
    /// In the order of the request.
    codes: Vec<CodeLookup>,
}

/// Add codes, all or none
#[utoipa::path(
    post,
    path = "/v1/coupons/{coupon}/codes",
    operation_id = "add_codes",
    tag = "codes",
    request_body = CodesToAdd,
    responses(
        (status = 200, description = "In the order of the request", body = InsertedItems),
        (status = 404, description = "`coupon-not-found`"),
        (status = 409, description = "`filter-full`: none of them was added; `requires-added-codes`"),
    )
)]
pub(crate) async fn add(
    State(api): State<Arc<Api>>,
    Path(coupon): Path<String>,
    request: Request,
) -> Result<Response, Problem> {
    handlers::add(&api, KIND, &coupon, request).await
}

/// Check which codes may be redeemed now
///
/// A held, redeemed or withdrawn code is not valid, and outside the coupon's window no code is. In an open pool every other code is
/// valid, unless the pool is sold out.
#[utoipa::path(
    post,
    path = "/v1/coupons/{coupon}/codes/check",
    operation_id = "check_codes",
    tag = "codes",
    request_body = CodeList,
    responses(
        (status = 200, description = "In the order of the request", body = CodesValid),
        (status = 404, description = "`coupon-not-found`"),
        (status = 429, description = "`too-many-invalid-codes`"),
    )
)]
pub(crate) async fn check(
    State(api): State<Arc<Api>>,
    Path(coupon): Path<String>,
    request: Request,
) -> Result<Response, Problem> {
    handlers::check(&api, KIND, &coupon, request).await
}

/// Look up codes, for a help desk
///
/// Shows the status of each code, whatever the window.
#[utoipa::path(
    post,
    path = "/v1/coupons/{coupon}/codes/lookup",
    operation_id = "look_up_codes",
    tag = "codes",
    request_body = CodeList,
    responses(
        (status = 200, description = "In the order of the request", body = CodeLookups),
        (status = 404, description = "`coupon-not-found`"),
        (status = 409, description = "`requires-strict-mode`"),
        (status = 429, description = "`too-many-invalid-codes`"),
    )
)]
pub(crate) async fn look_up(
    State(api): State<Arc<Api>>,
    Path(coupon): Path<String>,
    request: Request,
) -> Result<Response, Problem> {
    let found = handlers::look_up(&api, &coupon, request).await?;
    let codes = found.into_iter().map(CodeLookup::from).collect();
    Ok(reply::json(StatusCode::OK, false, &CodeLookups { codes }))
}

/// Count the copies of each code
#[utoipa::path(
    post,
    path = "/v1/coupons/{coupon}/codes/count",
    operation_id = "count_codes",
    tag = "codes",
    request_body = CodeList,
    responses(
        (status = 200, description = "In the order of the request", body = ItemCounts),
        (status = 404, description = "`coupon-not-found`"),
        (status = 429, description = "`too-many-invalid-codes`"),
    )
)]
pub(crate) async fn count(
    State(api): State<Arc<Api>>,
    Path(coupon): Path<String>,
    request: Request,
) -> Result<Response, Problem> {
    handlers::count(&api, KIND, &coupon, request).await
}

/// Withdraw codes; a held code loses its hold
#[utoipa::path(
    post,
    path = "/v1/coupons/{coupon}/codes/remove",
    operation_id = "remove_codes",
    tag = "codes",
    request_body = CodeList,
    responses(
        (status = 200, description = "In the order of the request", body = RemovedItems),
        (status = 404, description = "`coupon-not-found`"),
        (status = 409, description = "`requires-added-codes`"),
        (status = 429, description = "`too-many-invalid-codes`"),
    )
)]
pub(crate) async fn remove(
    State(api): State<Arc<Api>>,
    Path(coupon): Path<String>,
    request: Request,
) -> Result<Response, Problem> {
    handlers::remove(&api, KIND, &coupon, request).await
}

/// Replace codes, pair by pair
#[utoipa::path(
    post,
    path = "/v1/coupons/{coupon}/codes/replace",
    operation_id = "replace_codes",
    tag = "codes",
    request_body = ReplacementList,
    responses(
        (status = 200, description = "In the order of the request", body = ReplacedItems),
        (status = 404, description = "`coupon-not-found`"),
        (status = 409, description = "`filter-full`: none of them was replaced; `requires-added-codes`"),
        (status = 429, description = "`too-many-invalid-codes`"),
    )
)]
pub(crate) async fn replace(
    State(api): State<Arc<Api>>,
    Path(coupon): Path<String>,
    request: Request,
) -> Result<Response, Problem> {
    handlers::replace(&api, KIND, &coupon, request).await
}
