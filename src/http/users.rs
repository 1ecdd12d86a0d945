//! `/v1/campaigns/{campaign}/users`: lists of users.

use super::call::{Call, Read, Resource, Write};
use super::items::{self, ItemCounts, Listed, ORDER, ReplacedItems, ReplacementList};
use super::request::json::{self, Item};
#[cfg(feature = "testing")]
use super::response::Problem;
use super::response::{HandlerResult, success};
use axum::extract::{Path, Request};
#[cfg(feature = "testing")]
use cuckood_filter::Digest;
#[cfg(feature = "testing")]
use cuckood_state::FilterView;
use cuckood_state::domain::{ITEMS_MAX, Inserted, Kind, Removed};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Users.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"users": ["u1", "u2"]}))]
pub(super) struct UserList<'a> {
    /// 1 to 512 bytes each. `normalize` decides which spellings are the same.
    #[serde(borrow, deserialize_with = "json::list::<{ ITEMS_MAX + 1 }, _, _>")]
    #[schema(min_items = 1, max_items = 10_000)]
    users: Vec<Item<'a>>,
}

/// Users to add.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"users": ["u1", "u2"]}))]
pub(super) struct UsersToAdd<'a> {
    /// 1 to 512 bytes each. `normalize` decides which spellings are the same.
    #[serde(borrow, deserialize_with = "json::list::<{ ITEMS_MAX + 1 }, _, _>")]
    #[schema(min_items = 1, max_items = 10_000)]
    users: Vec<Item<'a>>,
    /// Skip users that appear to be present.
    #[serde(default)]
    if_absent: bool,
}

/// Users to remove.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"users": ["u1", "u2"]}))]
pub(super) struct UsersToRemove<'a> {
    /// 1 to 512 bytes each. `normalize` decides which spellings are the same.
    #[serde(borrow, deserialize_with = "json::list::<{ ITEMS_MAX + 1 }, _, _>")]
    #[schema(min_items = 1, max_items = 10_000)]
    users: Vec<Item<'a>>,
    /// Remove every copy, not just one.
    #[serde(default)]
    all: bool,
}

/// Which users are in the campaign.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({"present": [true, false]}))]
struct UsersPresent {
    /// In the order of the request.
    present: Vec<bool>,
}

/// Parses a list of users, which has no flag.
fn list(body: &[u8]) -> Listed<'_> {
    Ok((json::parse::<UserList<'_>>(body)?.users, false))
}

#[utoipa::path(
    post,
    path = "/v1/campaigns/{campaign}/users",
    operation_id = "add_users",
    tag = "users",
    summary = "Add users, all or none",
    description = "In a compact campaign, adding a user twice stores two copies, unless `if_absent` is \
        set.",
    request_body = UsersToAdd<'_>,
    responses(
        (status = 200, description = ORDER, body = Inserted),
        (status = 409, description = "`filter-full`: none of them was added"),
    )
)]
pub(crate) async fn add(
    call: Call<Write>,
    Path(name): Path<String>,
    request: Request,
) -> HandlerResult {
    items::add(&call, Kind::Campaign, &name, request, |body| {
        let UsersToAdd { users, if_absent } = json::parse(body)?;
        Ok((users, if_absent))
    })
    .await
}

#[utoipa::path(
    post,
    path = "/v1/campaigns/{campaign}/users/check",
    operation_id = "check_users",
    tag = "users",
    summary = "Check which users are in the campaign",
    description = "In a compact campaign, an absent user is reported as present with a probability of \
        at most `error_rate`.",
    request_body = UserList<'_>,
    responses(
        (status = 200, description = ORDER, body = UsersPresent),
    )
)]
pub(crate) async fn check(
    call: Call<Read>,
    Path(name): Path<String>,
    request: Request,
) -> HandlerResult {
    let read = items::read(&call, Kind::Campaign, &name, request, list).await?;
    let present = read.check(call.api.engine.now());
    Ok(success::ok(&UsersPresent { present }))
}

#[utoipa::path(
    post,
    path = "/v1/campaigns/{campaign}/users/count",
    operation_id = "count_users",
    tag = "users",
    summary = "Count the copies of each item",
    description = "The number of copies of each user.",
    request_body = UserList<'_>,
    responses(
        (status = 200, description = ORDER, body = ItemCounts),
    )
)]
pub(crate) async fn count(
    call: Call<Read>,
    Path(name): Path<String>,
    request: Request,
) -> HandlerResult {
    let read = items::read(&call, Kind::Campaign, &name, request, list).await?;
    let counts = read.count(call.api.engine.now());
    Ok(success::ok(&ItemCounts { counts }))
}

#[utoipa::path(
    post,
    path = "/v1/campaigns/{campaign}/users/remove",
    operation_id = "remove_users",
    tag = "users",
    summary = "Remove users, for example because they registered or opted out",
    description = "Remove only users that were added: in a compact campaign, removing another one may \
        remove a user with the same fingerprint.",
    request_body = UsersToRemove<'_>,
    responses(
        (status = 200, description = ORDER, body = Removed),
    )
)]
pub(crate) async fn remove(
    call: Call<Write>,
    Path(name): Path<String>,
    request: Request,
) -> HandlerResult {
    let read = items::read(&call, Kind::Campaign, &name, request, |body| {
        let UsersToRemove { users, all } = json::parse(body)?;
        Ok((users, all))
    });
    items::remove(&call, read.await?, Resource::Filter(Kind::Campaign, &name)).await
}

#[utoipa::path(
    post,
    path = "/v1/campaigns/{campaign}/users/replace",
    operation_id = "replace_users",
    tag = "users",
    summary = "Replace items, pair by pair",
    description = "Pairs are replaced atomically, in order. Only `replaced` has an effect: with \
        `saturated` or `already_present`, `to` can't be stored, so `from` stays.",
    request_body = ReplacementList<'_>,
    responses(
        (status = 200, description = ORDER, body = ReplacedItems),
        (status = 409, description = "`filter-full`: none of them was replaced"),
    )
)]
pub(crate) async fn replace(
    call: Call<Write>,
    Path(name): Path<String>,
    request: Request,
) -> HandlerResult {
    items::replace(&call, Kind::Campaign, &name, request).await
}

/// Parses a body `{"users":[…],"if_absent":…}` into the items' digests and the flag.
///
/// # Errors
/// The problem that the service returns.
#[cfg(feature = "testing")]
pub async fn users_to_add(
    body: &[u8],
    view: &FilterView,
    items_max: usize,
) -> Result<(Vec<Digest>, bool), Problem> {
    let UsersToAdd { users, if_absent } = json::parse(body)?;
    Ok((
        json::digests(view, "users", &users, items_max).await?,
        if_absent,
    ))
}
