//! `/v1/campaigns`: the routes. Each calls a handler that campaigns and coupons share.

use super::handlers::{self, Cleared, PageQuery};
use super::representation::Filter;
use super::spec::{CampaignSpec, FilterPatch};
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

const KIND: Kind = Kind::Campaign;

/// A page of campaigns, sorted by name.
#[derive(Serialize, ToSchema)]
struct CampaignList {
    campaigns: Vec<Filter>,
    /// The cursor of the next page; absent on the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

/// Create a campaign
///
/// Answers 200 if a campaign with the same resolved spec already exists.
#[utoipa::path(
    put,
    path = "/v1/campaigns/{campaign}",
    operation_id = "put_campaign",
    tag = "campaigns",
    request_body = CampaignSpec,
    responses(
        (status = 200, description = "It already exists", body = Filter),
        (status = 201, description = "Created", body = Filter, headers(("Location" = String, description = "Its path"))),
        (status = 409, description = "`already-exists`: `errors` points to the fields that differ"),
    )
)]
pub(crate) async fn put(
    State(api): State<Arc<Api>>,
    Path(campaign): Path<String>,
    request: Request,
) -> Result<Response, Problem> {
    handlers::put::<CampaignSpec>(&api, KIND, &campaign, request).await
}

/// List campaigns
#[utoipa::path(
    get,
    path = "/v1/campaigns",
    operation_id = "list_campaigns",
    tag = "campaigns",
    params(PageQuery),
    responses((status = 200, description = "A page, sorted by name", body = CampaignList))
)]
pub(crate) async fn list(State(api): State<Arc<Api>>, request: Request) -> Result<Response, Problem> {
    let (campaigns, next_cursor) = handlers::list(&api, KIND, &request)?;
    Ok(reply::json(StatusCode::OK, false, &CampaignList { campaigns, next_cursor }))
}

/// Show a campaign
#[utoipa::path(
    get,
    path = "/v1/campaigns/{campaign}",
    operation_id = "get_campaign",
    tag = "campaigns",
    responses(
        (status = 200, description = "Its spec and statistics", body = Filter),
        (status = 404, description = "`campaign-not-found`"),
    )
)]
pub(crate) async fn get(
    State(api): State<Arc<Api>>,
    Path(campaign): Path<String>,
) -> Result<Response, Problem> {
    handlers::get(&api, KIND, &campaign)
}

/// Change when a campaign is active, or raise its capacity
#[utoipa::path(
    patch,
    path = "/v1/campaigns/{campaign}",
    operation_id = "patch_campaign",
    tag = "campaigns",
    request_body(content((FilterPatch = "application/json"), (FilterPatch = "application/merge-patch+json"))),
    responses(
        (status = 200, description = "Changed, or as it was asked to be", body = Filter),
        (status = 404, description = "`campaign-not-found`"),
    )
)]
pub(crate) async fn patch(
    State(api): State<Arc<Api>>,
    Path(campaign): Path<String>,
    request: Request,
) -> Result<Response, Problem> {
    handlers::patch::<FilterPatch>(&api, KIND, &campaign, request).await
}

/// Delete a campaign and everything that belongs to it
#[utoipa::path(
    delete,
    path = "/v1/campaigns/{campaign}",
    operation_id = "delete_campaign",
    tag = "campaigns",
    responses(
        (status = 204, description = "Dropped"),
        (status = 404, description = "`campaign-not-found`"),
    )
)]
pub(crate) async fn delete(
    State(api): State<Arc<Api>>,
    Path(campaign): Path<String>,
    request: Request,
) -> Result<Response, Problem> {
    handlers::delete(&api, KIND, &campaign, request).await
}

/// Remove all users from a campaign
#[utoipa::path(
    post,
    path = "/v1/campaigns/{campaign}/clear",
    operation_id = "clear_campaign",
    tag = "campaigns",
    responses(
        (status = 200, description = "Cleared", body = Cleared),
        (status = 404, description = "`campaign-not-found`"),
    )
)]
pub(crate) async fn clear(
    State(api): State<Arc<Api>>,
    Path(campaign): Path<String>,
    request: Request,
) -> Result<Response, Problem> {
    handlers::clear(&api, KIND, &campaign, request).await
}
