//! `/v1/coupons/{coupon}/codes`: lists of codes, and their lookup for a help desk.

use super::api::{ApiHandle, FilterHandle};
use super::call::{Call, LookUp, Read, Resource, Write};
use super::customers::UseParts;
use super::items::{self, ItemCounts, Listed, ORDER, ReplacedItems, ReplacementList};
use super::redemptions::RedemptionResponse;
use super::request::json::{self, Item};
use super::response::success::ListParts;
use super::response::{Code, HandlerResult, Problem, success};
use crate::budget::BudgetShare;
use axum::extract::{Path, Request};
use cuckood_filter::Digest;
use cuckood_state::domain::{ITEMS_MAX, Inserted, Kind, Removed};
use cuckood_state::{CodeFound, CodeStatus, CodeUses};
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;
use utoipa::ToSchema;

/// Codes.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"codes": ["K7Q2-9FXM"]}))]
pub(super) struct CodeList<'a> {
    /// 1 to 512 bytes each. `normalize` decides which spellings are the same.
    #[serde(borrow, deserialize_with = "json::list::<{ ITEMS_MAX + 1 }, _, _>")]
    #[schema(min_items = 1, max_items = 10_000)]
    codes: Vec<Item<'a>>,
}

/// Codes to add.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"codes": ["K7Q2-9FXM"]}))]
pub(super) struct CodesToAdd<'a> {
    /// 1 to 512 bytes each. `normalize` decides which spellings are the same.
    #[serde(borrow, deserialize_with = "json::list::<{ ITEMS_MAX + 1 }, _, _>")]
    #[schema(min_items = 1, max_items = 10_000)]
    codes: Vec<Item<'a>>,
    /// Make redeemed codes available again; requires the scope `admin`.
    #[serde(default)]
    revive: bool,
}

/// Which codes may be redeemed now.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({"valid": [true, false]}))]
struct CodesValid {
    /// In the order of the request.
    valid: Vec<bool>,
}

/// The uses of a code.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({"taken": 2, "held": 1}))]
struct UsesTaken {
    /// Uses that are held or redeemed, also those whose redemption is past its retention, or was cancelled with `release` `false`.
    taken: u32,
    /// Those of them that are held.
    held: u32,
}

/// The result of a lookup.
#[skip_serializing_none]
#[derive(Serialize, ToSchema)]
#[schema(example = json!({"status": "available"}))]
struct CodeLookup {
    status: CodeStatus,
    /// The redemption that holds or used the code, unless its retention is over. Absent if codes have several uses.
    redemption: Option<RedemptionResponse>,
    /// If codes have several uses.
    uses: Option<UsesTaken>,
    /// If codes have several uses: up to 64 held or redeemed redemptions, the latest first. If a code has more than 64 redemptions, those
    /// among the latest 100 000 changes of the coupon.
    #[schema(max_items = 64)]
    redemptions: Option<Vec<RedemptionResponse>>,
}

impl From<CodeFound> for CodeLookup {
    fn from(found: CodeFound) -> Self {
        let (status, redemption) = match found {
            CodeFound::Absent => (CodeStatus::Absent, None),
            CodeFound::Available => (CodeStatus::Available, None),
            CodeFound::Held(redemption) => (CodeStatus::Held, Some(redemption)),
            CodeFound::Redeemed(redemption) => (CodeStatus::Redeemed, redemption),
        };
        Self {
            status,
            redemption: redemption.map(RedemptionResponse::from),
            uses: None,
            redemptions: None,
        }
    }
}

impl From<CodeUses> for CodeLookup {
    fn from(found: CodeUses) -> Self {
        let redemptions = found.redemptions.into_iter();
        Self {
            status: found.status,
            redemption: None,
            uses: Some(UsesTaken {
                taken: found.taken,
                held: found.held,
            }),
            redemptions: Some(redemptions.map(RedemptionResponse::from).collect()),
        }
    }
}

/// The results of a lookup.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({"codes": [{"status": "available"}]}))]
struct CodeLookups {
    /// In the order of the request.
    codes: Vec<CodeLookup>,
}

/// Parses a list of codes, which has no flag.
fn list(body: &[u8]) -> Listed<'_> {
    Ok((json::parse::<CodeList<'_>>(body)?.codes, false))
}

#[utoipa::path(
    post,
    path = "/v1/coupons/{coupon}/codes",
    operation_id = "add_codes",
    tag = "codes",
    summary = "Add codes, all or none",
    description = "A redeemed code stays redeemed, unless `revive` is set. In a pool that does not \
        grow, a rejected add counts as an invalid code.",
    request_body = CodesToAdd<'_>,
    responses(
        (status = 200, description = ORDER, body = Inserted),
        (status = 409, description = "`filter-full`: none of them was added; `requires-added-codes`"),
        (status = 429, description = "`too-many-invalid-codes`"),
    )
)]
pub(crate) async fn add(
    call: Call<Write>,
    Path(name): Path<String>,
    request: Request,
) -> HandlerResult {
    items::add(&call, Kind::Coupon, &name, request, |body| {
        let CodesToAdd { codes, revive } = json::parse(body)?;
        Ok((codes, revive))
    })
    .await
}

#[utoipa::path(
    post,
    path = "/v1/coupons/{coupon}/codes/check",
    operation_id = "check_codes",
    tag = "codes",
    summary = "Check which codes may be redeemed now",
    description = "Held, redeemed and withdrawn codes are not valid, nor is any code outside the \
        coupon's window. In an open pool, every other code is valid until the pool is sold \
        out.",
    request_body = CodeList<'_>,
    responses(
        (status = 200, description = ORDER, body = CodesValid),
        (status = 429, description = "`too-many-invalid-codes`"),
    )
)]
pub(crate) async fn check(
    call: Call<Read>,
    Path(name): Path<String>,
    request: Request,
) -> HandlerResult {
    let read = items::read(&call, Kind::Coupon, &name, request, list).await?;
    let valid = read.check(call.api.engine.now());
    Ok(success::ok(&CodesValid { valid }))
}

#[utoipa::path(
    post,
    path = "/v1/coupons/{coupon}/codes/count",
    operation_id = "count_codes",
    tag = "codes",
    summary = "Count the copies of each item",
    description = "The number of copies of each code: at most one in a strict coupon.",
    request_body = CodeList<'_>,
    responses(
        (status = 200, description = ORDER, body = ItemCounts),
        (status = 429, description = "`too-many-invalid-codes`"),
    )
)]
pub(crate) async fn count(
    call: Call<Read>,
    Path(name): Path<String>,
    request: Request,
) -> HandlerResult {
    let read = items::read(&call, Kind::Coupon, &name, request, list).await?;
    let counts = read.count(call.api.engine.now());
    Ok(success::ok(&ItemCounts { counts }))
}

#[utoipa::path(
    post,
    path = "/v1/coupons/{coupon}/codes/remove",
    operation_id = "remove_codes",
    tag = "codes",
    summary = "Withdraw codes",
    description = "Of codes with one use, a held one loses its hold. A code whose uses are all taken \
        stays used, and is absent once one of them ends; adding it again puts it back. Redemptions \
        remain.",
    request_body = CodeList<'_>,
    responses(
        (status = 200, description = ORDER, body = Removed),
        (status = 409, description = "`requires-added-codes`"),
        (status = 429, description = "`too-many-invalid-codes`"),
    )
)]
pub(crate) async fn remove(
    call: Call<Write>,
    Path(name): Path<String>,
    request: Request,
) -> HandlerResult {
    let read = items::read(&call, Kind::Coupon, &name, request, list);
    items::remove(&call, read.await?, Resource::Filter(Kind::Coupon, &name)).await
}

#[utoipa::path(
    post,
    path = "/v1/coupons/{coupon}/codes/replace",
    operation_id = "replace_codes",
    tag = "codes",
    summary = "Replace items, pair by pair",
    description = "Pairs are replaced atomically, in order. Only `replaced` has an effect: with \
        `already_present`, `already_redeemed` or, in a compact coupon, `saturated`, `to` \
        can't be stored, so `from` stays.",
    request_body = ReplacementList<'_>,
    responses(
        (status = 200, description = ORDER, body = ReplacedItems),
        (status = 409, description = "`filter-full`: none of them was replaced; `requires-added-codes`"),
        (status = 429, description = "`too-many-invalid-codes`"),
    )
)]
pub(crate) async fn replace(
    call: Call<Write>,
    Path(name): Path<String>,
    request: Request,
) -> HandlerResult {
    items::replace(&call, Kind::Coupon, &name, request).await
}

/// Look up codes, for a help desk
///
/// Shows the status of each code, regardless of the window. If codes have several uses, up to 1,000 codes per request.
#[utoipa::path(
    post,
    path = "/v1/coupons/{coupon}/codes/lookup",
    operation_id = "look_up_codes",
    tag = "codes",
    request_body = CodeList<'_>,
    responses(
        (status = 200, description = ORDER, body = CodeLookups),
        (status = 409, description = "`requires-strict-mode`"),
        (status = 429, description = "`too-many-invalid-codes`"),
    )
)]
pub(crate) async fn look_up(
    call: Call<LookUp>,
    Path(name): Path<String>,
    request: Request,
) -> HandlerResult {
    let view = call.filter(Kind::Coupon, &name)?;
    let guesser = call.guesser(&view, &request)?;
    let body = call.body(request).await?;
    let (digests, _) = items::digests(&view, body.as_ref(), list).await?;
    let memory = call.reserve(size_of_val(&digests[..]) as u64)?;
    if view.spec.supply.has_several_uses() {
        json::check_length("codes", digests.len(), USES_LOOKED_UP_MAX)?;
        let guesses = guesser.take(digests.len())?;
        guesses.settle(view.absent_codes(&digests));
        let empty = CodeLookups { codes: Vec::new() };
        let parts = UseParts::new(call.api, &view, digests, memory, |view, part, scan| {
            let found = view.look_up_uses(part, scan);
            found.into_iter().map(CodeLookup::from).collect()
        });
        return success::list(&empty, parts).await;
    }
    let guesses = guesser.take(digests.len())?;
    let mut absent = 0;
    let mut last = Vec::new();
    for part in digests.chunks(LOOKED_UP) {
        let Some(found) = view.look_up(part, call.api.engine.now()) else {
            guesses.return_unused();
            return Err(Code::RequiresStrictMode.into());
        };
        // A code that is held or redeemed does not count as a guess.
        absent += found
            .iter()
            .filter(|found| **found == CodeFound::Absent)
            .count();
        last = found;
        // Other requests on this processor get their turn.
        tokio::task::yield_now().await;
    }
    guesses.settle(absent);
    if digests.len() <= LOOKED_UP {
        let codes = last.into_iter().map(CodeLookup::from).collect();
        return Ok(success::ok(&CodeLookups { codes }));
    }
    let Call { api, .. } = call;
    let coupon = FilterHandle::of(&view);
    drop(view);
    let parts = LookUpParts {
        api,
        coupon,
        digests,
        next: 0,
        _memory: memory,
    };
    success::list(&CodeLookups { codes: Vec::new() }, parts).await
}

/// Maximum number of codes with several uses that a request looks up.
pub(super) const USES_LOOKED_UP_MAX: usize = 1_000;

/// Codes that are looked up together. If a request has more, their results are read again while they are sent.
const LOOKED_UP: usize = 128;

/// The results of a lookup, which are read while they are sent.
struct LookUpParts {
    api: ApiHandle,
    coupon: FilterHandle,
    digests: Vec<Digest>,
    next: usize,
    /// Of the digests.
    _memory: BudgetShare,
}

impl ListParts for LookUpParts {
    type Entry = CodeLookup;

    fn read(&mut self) -> Result<Option<Vec<CodeLookup>>, Problem> {
        let rest = &self.digests[self.next..];
        if rest.is_empty() {
            return Ok(None);
        }
        let part = &rest[..rest.len().min(LOOKED_UP)];
        self.next += part.len();
        let view = self.coupon.view(&self.api)?;
        let found = view
            .look_up(part, self.api.engine.now())
            .unwrap_or_default();
        Ok(Some(found.into_iter().map(CodeLookup::from).collect()))
    }

    fn next_cursor(&self) -> Option<String> {
        None
    }
}
