//! `/v1/coupons`: the routes of coupons. Both kinds share the handlers in `mod.rs`.

use super::spec::{CouponPatch, CouponSpec, FilterResponse};
use super::statistics::{DESCRIPTION, StatisticsQuery, StatisticsResponse};
use super::{Cleared, DeletionQuery, FilterPage};
use crate::http::call::{Call, Delete, Export, Maintain, Manage, Read};
use crate::http::request::body::StreamedBody;
use crate::http::request::query::{self, PageQuery};
use crate::http::response::{HandlerResult, success};
use axum::extract::{Path, Request};
use cuckood_state::domain::Kind;
use serde::Serialize;
use serde_with::skip_serializing_none;
use utoipa::ToSchema;

// A page of coupons, sorted by name.
#[skip_serializing_none]
#[derive(Serialize, ToSchema)]
#[schema(example = json!({"coupons": []}))]
struct CouponList {
    coupons: Vec<FilterResponse>,
    /// The cursor of the next page; absent on the last one.
    next_cursor: Option<String>,
}

#[utoipa::path(
    get,
    path = "/v1/coupons",
    operation_id = "list_coupons",
    tag = "coupons",
    summary = "List coupons",
    description = "Sorted by name, page by page.",
    params(PageQuery),
    responses(
        (status = 200, description = "A page, sorted by name", body = CouponList),
    )
)]
pub(crate) async fn list(call: Call<Read>, request: Request) -> HandlerResult {
    let page = FilterPage::asked(call, Kind::Coupon, &request)?;
    success::list(
        &CouponList {
            coupons: Vec::new(),
            next_cursor: None,
        },
        page,
    )
    .await
}

#[utoipa::path(
    get,
    path = "/v1/coupons/{coupon}",
    operation_id = "get_coupon",
    tag = "coupons",
    summary = "Show a coupon",
    description = "Its spec in force, and its statistics.",
    responses(
        (status = 200, description = "Its spec and statistics", body = FilterResponse),
    )
)]
pub(crate) async fn get(call: Call<Read>, Path(name): Path<String>) -> HandlerResult {
    let view = call.filter(Kind::Coupon, &name)?;
    Ok(success::ok(&FilterResponse::of(
        &view,
        call.api.engine.now(),
    )))
}

#[utoipa::path(
    put,
    path = "/v1/coupons/{coupon}",
    operation_id = "put_coupon",
    tag = "coupons",
    summary = "Create a coupon",
    description = "Returns 200 if a coupon with the same resolved spec already exists. A title and \
        labels are not compared: they are set, or remain as they are if they are omitted. An omitted \
        `normalize` is not compared either.",
    request_body = CouponSpec,
    responses(
        (status = 200, description = "It already exists", body = FilterResponse),
        (status = 201, description = "Created", body = FilterResponse, headers(("Location" = String, description = "Its path"))),
        (status = 409, description = "`already-exists`: `errors` points to the fields that differ"),
    )
)]
pub(crate) async fn put(
    call: Call<Manage>,
    Path(name): Path<String>,
    request: Request,
) -> HandlerResult {
    super::put::<CouponSpec>(&call, Kind::Coupon, &name, request).await
}

#[utoipa::path(
    patch,
    path = "/v1/coupons/{coupon}",
    operation_id = "patch_coupon",
    tag = "coupons",
    summary = "Change when a coupon is active, its capacity, stock, title or labels",
    description = "A merge-patch (RFC 7396): absent fields remain.",
    request_body(content(
        (CouponPatch = "application/json"),
        (CouponPatch = "application/merge-patch+json"),
    )),
    responses(
        (status = 200, description = "Changed, or already as requested", body = FilterResponse),
    )
)]
pub(crate) async fn patch(
    call: Call<Manage>,
    Path(name): Path<String>,
    request: Request,
) -> HandlerResult {
    super::patch::<CouponPatch>(&call, Kind::Coupon, &name, request).await
}

#[utoipa::path(
    delete,
    path = "/v1/coupons/{coupon}",
    operation_id = "delete_coupon",
    tag = "coupons",
    summary = "Delete a coupon and everything that belongs to it",
    params(DeletionQuery),
    description = "Irreversible. A repeated request with the same key affects no successor of the same \
        name.",
    responses(
        (status = 204, description = "Dropped"),
        (
            status = 409,
            description = "`in-use` if a line-up names the campaign, or if codes of the coupon are held or, before its \
                `ends_at`, redeemed within `redemptions.retention`; not with `force`. `errors` has at most 10 reasons; \
                line-ups that the key may not see are counted"
        ),
    )
)]
pub(crate) async fn delete(
    call: Call<Delete>,
    Path(name): Path<String>,
    request: Request,
) -> HandlerResult {
    let deletion = query::parse(&request)?;
    super::delete(&call, Kind::Coupon, &name, deletion).await
}

#[utoipa::path(
    post,
    path = "/v1/coupons/{coupon}/clear",
    operation_id = "clear_coupon",
    tag = "coupons",
    summary = "Remove all codes that are neither held nor redeemed",
    description = "Its spec and its secret remain.",
    responses(
        (status = 200, description = "Cleared", body = Cleared),
    )
)]
pub(crate) async fn clear(call: Call<Manage>, Path(name): Path<String>) -> HandlerResult {
    super::clear(&call, Kind::Coupon, &name).await
}

#[utoipa::path(
    get,
    path = "/v1/coupons/{coupon}/statistics",
    operation_id = "get_coupon_statistics",
    tag = "coupons",
    summary = "Count the changes of a coupon per day and hour",
    description = DESCRIPTION,
    params(StatisticsQuery),
    responses(
        (status = 200, description = "Counts per day and per hour", body = StatisticsResponse),
    )
)]
pub(crate) async fn statistics(
    call: Call<Read>,
    Path(name): Path<String>,
    request: Request,
) -> HandlerResult {
    super::statistics::get(&call, Kind::Coupon, &name, &request)
}

#[utoipa::path(
    get,
    path = "/v1/coupons/{coupon}/image",
    operation_id = "get_coupon_image",
    tag = "coupons",
    summary = "Download the image of a coupon",
    description = "The whole coupon as of one position of the log: its spec, its secret, its codes with \
        their states, and its redemptions, with checksums. Writes continue during the \
        download. A `PUT` creates a coupon from it, here or on another server, and rejects \
        an incomplete image. Keep it secret: its owner can test codes.",
    responses(
        (
            status = 200,
            description = "The image, streamed",
            body = inline(StreamedBody),
            content_type = "application/octet-stream",
        ),
        (status = 503, description = "`overloaded`: too many downloads of images; `draining`, `storage-failed`"),
        (
            status = 507,
            description = "`disk-full`: a filter that has changed since the last snapshot is copied to the disk first",
        ),
    )
)]
pub(crate) async fn get_image(call: Call<Export>, Path(name): Path<String>) -> HandlerResult {
    super::get_image(&call, Kind::Coupon, &name).await
}

#[utoipa::path(
    put,
    path = "/v1/coupons/{coupon}/image",
    operation_id = "put_coupon_image",
    tag = "coupons",
    summary = "Create a coupon from an image",
    description = "All or nothing: the coupon appears once the image has been read and verified to its \
        end. An interrupted upload leaves nothing. Codes and redemptions keep their ids, and \
        holds expire as in the original. The two coupons are independent: stop redeeming \
        from the original before you use the copy. The body can be of any length, and \
        compressed with gzip or zstd. `Idempotency-Key` is ignored: a repeated upload is \
        rejected, because the name is taken.",
    request_body(content = inline(StreamedBody), content_type = "application/octet-stream"),
    responses(
        (status = 201, description = "Made", body = FilterResponse, headers(("Location" = String, description = "Its path"))),
        (status = 409, description = "`already-exists`: the name is taken"),
        (status = 422, description = "`image-damaged`: the image is damaged, incomplete or foreign"),
        (status = 507, description = "`memory-limit`, `disk-full`, `too-many-filters`"),
    )
)]
pub(crate) async fn put_image(
    call: Call<Maintain>,
    Path(name): Path<String>,
    request: Request,
) -> HandlerResult {
    super::put_image(call, Kind::Coupon, &name, request).await
}
