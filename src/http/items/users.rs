//! `/v1/campaigns/{campaign}/users`: the routes, each one call of what both kinds share.

use super::handlers::{self, InsertedItems, Item, ItemCounts, RemovedItems, ReplacedItems, ReplacementList};
use crate::domain::Kind;
use crate::http::answer::problem::Problem;
use crate::http::api::Api;
use axum::extract::{Path, Request, State};
use axum::response::Response;
use serde::Deserialize;
use std::sync::Arc;
use utoipa::ToSchema;

const KIND: Kind = Kind::Campaign;

/// Users.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"users": ["u1", "u2"]}))]
#[allow(dead_code)] // For the document: `item_lists` reads it.
struct UserList {
    /// Taken exactly as they stand, 1 to 512 bytes each.
    #[schema(min_items = 1, max_items = 10_000)]
    users: Vec<Item>,
}

/// Users to be added.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"users": ["u1", "u2"]}))]
#[allow(dead_code)] // For the document: `item_lists` reads it.
struct UsersToAdd {
    /// Taken exactly as they stand, 1 to 512 bytes each.
    #[schema(min_items = 1, max_items = 10_000)]
    users: Vec<Item>,
    /// Leave alone whoever seems to be there already.
    #[serde(default)]
    if_absent: bool,
}

/// Users to be removed.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"users": ["u1", "u2"]}))]
#[allow(dead_code)] // For the document: `item_lists` reads it.
struct UsersToRemove {
    /// Taken exactly as they stand, 1 to 512 bytes each.
    #[schema(min_items = 1, max_items = 10_000)]
    users: Vec<Item>,
    /// Every copy, not just one.
    #[serde(default)]
    all: bool,
}

/// Which users are in the campaign.
#[derive(ToSchema)]
#[schema(example = json!({"present": [true, false]}))]
#[allow(dead_code)] // For the document: `handlers` writes it.
struct UsersPresent {
    /// In the order of the request.
    present: Vec<bool>,
}

/// Add users, all or none
#[utoipa::path(
    post,
    path = "/v1/campaigns/{campaign}/users",
    operation_id = "add_users",
    tag = "users",
    request_body = UsersToAdd,
    responses(
        (status = 200, description = "In the order of the request", body = InsertedItems),
        (status = 404, description = "`campaign-not-found`"),
        (status = 409, description = "`filter-full`: none of them was taken"),
    )
)]
pub(crate) async fn add(
    State(api): State<Arc<Api>>,
    Path(campaign): Path<String>,
    request: Request,
) -> Result<Response, Problem> {
    handlers::add(&api, KIND, &campaign, request).await
}

/// Tell which users are in the campaign
#[utoipa::path(
    post,
    path = "/v1/campaigns/{campaign}/users/check",
    operation_id = "check_users",
    tag = "users",
    request_body = UserList,
    responses(
        (status = 200, description = "In the order of the request", body = UsersPresent),
        (status = 404, description = "`campaign-not-found`"),
    )
)]
pub(crate) async fn check(
    State(api): State<Arc<Api>>,
    Path(campaign): Path<String>,
    request: Request,
) -> Result<Response, Problem> {
    handlers::check(&api, KIND, &campaign, request).await
}

/// Count copies of users
#[utoipa::path(
    post,
    path = "/v1/campaigns/{campaign}/users/count",
    operation_id = "count_users",
    tag = "users",
    request_body = UserList,
    responses(
        (status = 200, description = "In the order of the request", body = ItemCounts),
        (status = 404, description = "`campaign-not-found`"),
    )
)]
pub(crate) async fn count(
    State(api): State<Arc<Api>>,
    Path(campaign): Path<String>,
    request: Request,
) -> Result<Response, Problem> {
    handlers::count(&api, KIND, &campaign, request).await
}

/// Remove users: they have registered, or opted out
///
/// A compact campaign may lose a user who looks alike when one is removed who was never added.
#[utoipa::path(
    post,
    path = "/v1/campaigns/{campaign}/users/remove",
    operation_id = "remove_users",
    tag = "users",
    request_body = UsersToRemove,
    responses(
        (status = 200, description = "In the order of the request", body = RemovedItems),
        (status = 404, description = "`campaign-not-found`"),
    )
)]
pub(crate) async fn remove(
    State(api): State<Arc<Api>>,
    Path(campaign): Path<String>,
    request: Request,
) -> Result<Response, Problem> {
    handlers::remove(&api, KIND, &campaign, request).await
}

/// Put users in the place of others, pair by pair
#[utoipa::path(
    post,
    path = "/v1/campaigns/{campaign}/users/replace",
    operation_id = "replace_users",
    tag = "users",
    request_body = ReplacementList,
    responses(
        (status = 200, description = "In the order of the request", body = ReplacedItems),
        (status = 404, description = "`campaign-not-found`"),
        (status = 409, description = "`filter-full`: none of them was taken"),
    )
)]
pub(crate) async fn replace(
    State(api): State<Arc<Api>>,
    Path(campaign): Path<String>,
    request: Request,
) -> Result<Response, Problem> {
    handlers::replace(&api, KIND, &campaign, request).await
}
