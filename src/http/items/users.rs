//! `/v1/campaigns/{campaign}/users`: the routes. Each calls a handler that users and codes share.

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
    /// Used exactly as given, 1 to 512 bytes each.
    #[schema(min_items = 1, max_items = 10_000)]
    users: Vec<Item>,
}

/// Users to add.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"users": ["u1", "u2"]}))]
#[allow(dead_code)] // For the document: `item_lists` reads it.
struct UsersToAdd {
    /// Used exactly as given, 1 to 512 bytes each.
    #[schema(min_items = 1, max_items = 10_000)]
    users: Vec<Item>,
    /// Skip users who seem to be present already.
    #[serde(default)]
    if_absent: bool,
}

/// Users to remove.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"users": ["u1", "u2"]}))]
#[allow(dead_code)] // For the document: `item_lists` reads it.
struct UsersToRemove {
    /// Used exactly as given, 1 to 512 bytes each.
    #[schema(min_items = 1, max_items = 10_000)]
    users: Vec<Item>,
    /// Remove every copy, not just one.
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
        (status = 409, description = "`filter-full`: none of them was added"),
    )
)]
pub(crate) async fn add(
    State(api): State<Arc<Api>>,
    Path(campaign): Path<String>,
    request: Request,
) -> Result<Response, Problem> {
    handlers::add(&api, KIND, &campaign, request).await
}

/// Check which users are in the campaign
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

/// Count the copies of each user
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

/// Remove users, for example because they registered or opted out
///
/// Remove only users who were added: in a compact campaign, removing another one may remove a user with the same fingerprint.
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

/// Replace users, pair by pair
#[utoipa::path(
    post,
    path = "/v1/campaigns/{campaign}/users/replace",
    operation_id = "replace_users",
    tag = "users",
    request_body = ReplacementList,
    responses(
        (status = 200, description = "In the order of the request", body = ReplacedItems),
        (status = 404, description = "`campaign-not-found`"),
        (status = 409, description = "`filter-full`: none of them was replaced"),
    )
)]
pub(crate) async fn replace(
    State(api): State<Arc<Api>>,
    Path(campaign): Path<String>,
    request: Request,
) -> Result<Response, Problem> {
    handlers::replace(&api, KIND, &campaign, request).await
}
