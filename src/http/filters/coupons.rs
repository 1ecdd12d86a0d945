//! `/v1/coupons`: the routes. Each calls a handler that campaigns and coupons share.

use super::handlers::{self, Cleared, PageQuery};
use super::representation::Filter;
use super::spec::{CouponPatch, CouponSpec};
use crate::domain::Kind;
use crate::http::answer::problem::Problem;
use crate::http::answer::reply;
use crate::http::api::Api;
use axum::extract::{Path, Request, State};
use axum::response::Response;
use http::StatusCode;
use serde::Serialize;
use std::sync::Arc;
use utoipa::ToSchema;

const KIND: Kind = Kind::Coupon;

/// A page of coupons, sorted by name.
#[derive(Serialize, ToSchema)]
struct CouponList {
    coupons: Vec<Filter>,
    /// The cursor of the next page; absent on the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

/// Create a coupon
///
/// Answers 200 if a coupon with the same resolved spec already exists.
#[utoipa::path(
    put,
    path = "/v1/coupons/{coupon}",
    operation_id = "put_coupon",
    tag = "coupons",
    request_body = CouponSpec,
    responses(
        (status = 200, description = "It already exists", body = Filter),
        (status = 201, description = "Created", body = Filter, headers(("Location" = String, description = "Its path"))),
        (status = 409, description = "`already-exists`: `errors` points to the fields that differ"),
    )
)]
pub(crate) async fn put(
    State(api): State<Arc<Api>>,
    Path(coupon): Path<String>,
    request: Request,
) -> Result<Response, Problem> {
    handlers::put::<CouponSpec>(&api, KIND, &coupon, request).await
}

/// List coupons
#[utoipa::path(
    get,
    path = "/v1/coupons",
    operation_id = "list_coupons",
    tag = "coupons",
    params(PageQuery),
    responses((status = 200, description = "A page, sorted by name", body = CouponList))
)]
pub(crate) async fn list(State(api): State<Arc<Api>>, request: Request) -> Result<Response, Problem> {
    let (coupons, next_cursor) = handlers::list(&api, KIND, &request)?;
    Ok(reply::json(StatusCode::OK, false, &CouponList { coupons, next_cursor }))
}

/// Show a coupon
#[utoipa::path(
    get,
    path = "/v1/coupons/{coupon}",
    operation_id = "get_coupon",
    tag = "coupons",
    responses(
        (status = 200, description = "Its spec and statistics", body = Filter),
        (status = 404, description = "`coupon-not-found`"),
    )
)]
pub(crate) async fn get(
    State(api): State<Arc<Api>>,
    Path(coupon): Path<String>,
) -> Result<Response, Problem> {
    handlers::get(&api, KIND, &coupon)
}

/// Change when a coupon is active, its capacity or its stock
#[utoipa::path(
    patch,
    path = "/v1/coupons/{coupon}",
    operation_id = "patch_coupon",
    tag = "coupons",
    request_body(content((CouponPatch = "application/json"), (CouponPatch = "application/merge-patch+json"))),
    responses(
        (status = 200, description = "Changed, or as it was asked to be", body = Filter),
        (status = 404, description = "`coupon-not-found`"),
    )
)]
pub(crate) async fn patch(
    State(api): State<Arc<Api>>,
    Path(coupon): Path<String>,
    request: Request,
) -> Result<Response, Problem> {
    handlers::patch::<CouponPatch>(&api, KIND, &coupon, request).await
}

/// Delete a coupon and everything that belongs to it
#[utoipa::path(
    delete,
    path = "/v1/coupons/{coupon}",
    operation_id = "delete_coupon",
    tag = "coupons",
    responses(
        (status = 204, description = "Dropped"),
        (status = 404, description = "`coupon-not-found`"),
    )
)]
pub(crate) async fn delete(
    State(api): State<Arc<Api>>,
    Path(coupon): Path<String>,
    request: Request,
) -> Result<Response, Problem> {
    handlers::delete(&api, KIND, &coupon, request).await
}

/// Remove all codes that are neither held nor redeemed
#[utoipa::path(
    post,
    path = "/v1/coupons/{coupon}/clear",
    operation_id = "clear_coupon",
    tag = "coupons",
    responses(
        (status = 200, description = "Cleared", body = Cleared),
        (status = 404, description = "`coupon-not-found`"),
    )
)]
pub(crate) async fn clear(
    State(api): State<Arc<Api>>,
    Path(coupon): Path<String>,
    request: Request,
) -> Result<Response, Problem> {
    handlers::clear(&api, KIND, &coupon, request).await
}
