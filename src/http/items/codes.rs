//! `/v1/coupons/{coupon}/codes`: the routes, each one call of what both kinds share.

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
    /// Taken exactly as they stand, 1 to 512 bytes each.
    #[schema(min_items = 1, max_items = 10_000)]
    codes: Vec<Item>,
}

/// Codes to be added.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"codes": ["K7Q2-9FXM"]}))]
#[allow(dead_code)] // For the document: `item_lists` reads it.
struct CodesToAdd {
    /// Taken exactly as they stand, 1 to 512 bytes each.
    #[schema(min_items = 1, max_items = 10_000)]
    codes: Vec<Item>,
    /// Make used codes available again; takes the scope `admin`.
    #[serde(default)]
    revive: bool,
}

/// Which codes may be used now.
#[derive(ToSchema)]
#[schema(example = json!({"valid": [true, false]}))]
#[allow(dead_code)] // For the document: `handlers` writes it.
struct CodesValid {
    /// In the order of the request.
    valid: Vec<bool>,
}

/// What has become of a code.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum CodeStatus {
    /// It may be used, while the coupon is active.
    Available,
    /// It is set aside by a redemption.
    Held,
    /// It is used.
    Redeemed,
    /// It was never added, or was withdrawn.
    Absent,
}

/// A code that was looked up.
#[derive(Serialize, ToSchema)]
struct CodeLookup {
    status: CodeStatus,
    /// What holds or has used it, unless that is past its retention.
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

/// Codes that were looked up.
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
        (status = 409, description = "`filter-full`: none of them was taken"),
    )
)]
pub(crate) async fn add(
    State(api): State<Arc<Api>>,
    Path(coupon): Path<String>,
    request: Request,
) -> Result<Response, Problem> {
    handlers::add(&api, KIND, &coupon, request).await
}

/// Tell which codes may be used now
///
/// A held, used or withdrawn code is not valid, nor is any code outside the window.
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

/// Look codes up: what a help desk asks
///
/// Tells what has become of each code, whatever the window.
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

/// Count copies of codes
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

/// Withdraw codes, a held one with its hold
#[utoipa::path(
    post,
    path = "/v1/coupons/{coupon}/codes/remove",
    operation_id = "remove_codes",
    tag = "codes",
    request_body = CodeList,
    responses(
        (status = 200, description = "In the order of the request", body = RemovedItems),
        (status = 404, description = "`coupon-not-found`"),
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

/// Put codes in the place of others, pair by pair
#[utoipa::path(
    post,
    path = "/v1/coupons/{coupon}/codes/replace",
    operation_id = "replace_codes",
    tag = "codes",
    request_body = ReplacementList,
    responses(
        (status = 200, description = "In the order of the request", body = ReplacedItems),
        (status = 404, description = "`coupon-not-found`"),
        (status = 409, description = "`filter-full`: none of them was taken"),
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
