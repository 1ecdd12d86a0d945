//! `/v1/campaigns/{campaign}/users` and `/v1/coupons/{coupon}/codes`: lists of items, checked, counted and changed.

use super::answer::outgoing::counted;
use super::answer::reply::{ListParts, Share};
use super::answer::{Answer, Code, Problem, reply};
use super::api::{Api, FilterHandle};
use super::call::{Call, Decided, LookUp, Read, Resource, Right, Write};
use super::redemptions::RedemptionAnswer;
use super::request::json::{self, Faults, Item};
use super::request::source::Source;
use crate::access::{Guesses, Scope};
use crate::domain::{
    Command, Digests, ITEMS_MAX, Inserted, ItemOutcome, Kind, Outcome, Removed, Target, Timestamp,
};
use crate::engine::{CodeFound, Digest, FilterView};
use axum::extract::{Path, Request};
use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;
use std::sync::Arc;
use utoipa::ToSchema;

/// Defines bodies with a list of items, and the flag that some have.
macro_rules! lists {
    ($($(#[$doc:meta])* $name:ident, $example:tt: $items:ident $(, $(#[$flag_doc:meta])* $flag:ident)?;)*) => {
        $(
            $(#[$doc])*
            #[derive(Deserialize, ToSchema)]
            #[serde(deny_unknown_fields)]
            #[schema(example = json!($example))]
            struct $name<'a> {
                /// Used exactly as given, 1 to 512 bytes each.
                #[serde(borrow, deserialize_with = "json::list::<{ ITEMS_MAX + 1 }, _, _>")]
                #[schema(min_items = 1, max_items = 10_000)]
                $items: Vec<Item<'a>>,
                $(
                    $(#[$flag_doc])*
                    #[serde(default)]
                    $flag: bool,
                )?
            }
        )*
    };
}

lists! {
    /// Users.
    UserList, {"users": ["u1", "u2"]}: users;
    /// Users to add.
    UsersToAdd, {"users": ["u1", "u2"]}: users,
        /// Skip users that appear to be present.
        if_absent;
    /// Users to remove.
    UsersToRemove, {"users": ["u1", "u2"]}: users,
        /// Remove every copy, not just one.
        all;
    /// Codes.
    CodeList, {"codes": ["K7Q2-9FXM"]}: codes;
    /// Codes to add.
    CodesToAdd, {"codes": ["K7Q2-9FXM"]}: codes,
        /// Make redeemed codes available again; requires the scope `admin`.
        revive;
}

/// A pair of items.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"from": "u1", "to": "u2"}))]
struct Replacement<'a> {
    /// The item to remove. If it is not present, nothing is added.
    #[serde(borrow, default)]
    #[schema(required = true)]
    from: Item<'a>,
    /// The item to add in its place.
    #[serde(borrow, default)]
    #[schema(required = true)]
    to: Item<'a>,
}

/// Pairs of items to replace.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"replacements": [{"from": "u1", "to": "u2"}]}))]
struct ReplacementList<'a> {
    /// The pairs.
    #[serde(borrow, deserialize_with = "json::list::<{ ITEMS_MAX + 1 }, _, _>")]
    #[schema(min_items = 1, max_items = 10_000)]
    replacements: Vec<Replacement<'a>>,
}

/// Which users are in the campaign.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({"present": [true, false]}))]
struct UsersPresent {
    /// In the order of the request.
    present: Vec<bool>,
}

/// Which codes may be redeemed now.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({"valid": [true, false]}))]
struct CodesValid {
    /// In the order of the request.
    valid: Vec<bool>,
}

/// The outcomes of replacements, one per pair.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({"outcomes": ["replaced", "already_present"]}))]
struct ReplacedItems {
    /// In the order of the request.
    outcomes: Vec<ItemOutcome>,
}

/// The number of copies of each item.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({"counts": [2, 0]}))]
struct ItemCounts {
    /// In the order of the request.
    counts: Vec<u32>,
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

/// The result of a lookup.
#[skip_serializing_none]
#[derive(Serialize, ToSchema)]
#[schema(example = json!({"status": "available"}))]
struct CodeLookup {
    status: CodeStatus,
    /// The redemption that holds or used the code, unless its retention is over.
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

/// The results of a lookup.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({"codes": [{"status": "available"}]}))]
struct CodeLookups {
    /// In the order of the request.
    codes: Vec<CodeLookup>,
}

const ORDER: &str = "In the order of the request";

/// The routes of one kind's items. Each calls a handler that both kinds share.
macro_rules! item_routes {
    (
        $items:ident: $kind:ident at $path:literal,
        add: $to_add:ident $add_fields:tt => $added:expr, $add_summary:literal, $add_text:literal, $full:literal, [$($not_added:tt)*];
        check: $list:ident => $present_type:ident { $present:ident }, $check_summary:literal, $check_text:literal;
        count: $count_text:literal;
        remove: $to_remove:ident $remove_fields:tt => $removed:expr, $remove_summary:literal, $remove_text:literal, [$($not_removed:tt)*];
        replace: $replace_text:literal, $not_replaced:literal;
        each: [$($guessing:tt)*];
    ) => {
        pub(crate) mod $items {
            use super::*;

            const KIND: Kind = Kind::$kind;

            #[utoipa::path(
                post, path = $path, operation_id = concat!("add_", stringify!($items)), tag = stringify!($items),
                summary = $add_summary, description = $add_text, request_body = $to_add<'_>,
                responses((status = 200, description = ORDER, body = Inserted), (status = 409, description = $full), $($not_added)*)
            )]
            pub(crate) async fn add(call: Call<Write>, Path(name): Path<String>, request: Request) -> Answer {
                super::add(&call, KIND, &name, request, |body| {
                    let $to_add $add_fields = json::parse(body)?;
                    Ok($added)
                })
                .await
            }

            #[utoipa::path(
                post, path = concat!($path, "/check"), operation_id = concat!("check_", stringify!($items)),
                tag = stringify!($items), summary = $check_summary, description = $check_text, request_body = $list<'_>,
                responses((status = 200, description = ORDER, body = $present_type), $($guessing)*)
            )]
            pub(crate) async fn check(call: Call<Read>, Path(name): Path<String>, request: Request) -> Answer {
                let read = super::read(&call, KIND, &name, request, |body| Ok((json::parse::<$list<'_>>(body)?.$items, false)));
                let $present = read.await?.check(call.api.engine.now());
                Ok(reply::ok(&$present_type { $present }))
            }

            #[utoipa::path(
                post, path = concat!($path, "/count"), operation_id = concat!("count_", stringify!($items)),
                tag = stringify!($items), summary = "Count the copies of each item", description = $count_text,
                request_body = $list<'_>,
                responses((status = 200, description = ORDER, body = ItemCounts), $($guessing)*)
            )]
            pub(crate) async fn count(call: Call<Read>, Path(name): Path<String>, request: Request) -> Answer {
                let read = super::read(&call, KIND, &name, request, |body| Ok((json::parse::<$list<'_>>(body)?.$items, false)));
                let counts = read.await?.count(call.api.engine.now());
                Ok(reply::ok(&ItemCounts { counts }))
            }

            #[utoipa::path(
                post, path = concat!($path, "/remove"), operation_id = concat!("remove_", stringify!($items)),
                tag = stringify!($items), summary = $remove_summary, description = $remove_text,
                request_body = $to_remove<'_>,
                responses((status = 200, description = ORDER, body = Removed), $($not_removed)* $($guessing)*)
            )]
            pub(crate) async fn remove(call: Call<Write>, Path(name): Path<String>, request: Request) -> Answer {
                let read = super::read(&call, KIND, &name, request, |body| {
                    let $to_remove $remove_fields = json::parse(body)?;
                    Ok($removed)
                });
                super::remove(&call, read.await?, Resource::Filter(KIND, &name)).await
            }

            #[utoipa::path(
                post, path = concat!($path, "/replace"), operation_id = concat!("replace_", stringify!($items)),
                tag = stringify!($items), summary = "Replace items, pair by pair", description = $replace_text,
                request_body = ReplacementList<'_>,
                responses(
                    (status = 200, description = ORDER, body = ReplacedItems),
                    (status = 409, description = $not_replaced),
                    $($guessing)*
                )
            )]
            pub(crate) async fn replace(call: Call<Write>, Path(name): Path<String>, request: Request) -> Answer {
                super::replace(&call, KIND, &name, request).await
            }
        }
    };
}

item_routes! {
    users: Campaign at "/v1/campaigns/{campaign}/users",
    add: UsersToAdd { users, if_absent } => (users, if_absent), "Add users, all or none",
        "In a compact campaign, adding a user twice stores two copies, unless `if_absent` is set.",
        "`filter-full`: none of them was added", [];
    check: UserList => UsersPresent { present }, "Check which users are in the campaign",
        "In a compact campaign, an absent user is reported as present with a probability of at most `error_rate`.";
    count: "The number of copies of each user.";
    remove: UsersToRemove { users, all } => (users, all), "Remove users, for example because they registered or opted out",
        "Remove only users that were added: in a compact campaign, removing another one may remove a user with the same fingerprint.",
        [];
    replace: "Pairs are replaced atomically, in order. Only `replaced` has an effect: with `saturated` or `already_present`, `to` can't be stored, so `from` stays.",
        "`filter-full`: none of them was replaced";
    each: [];
}

item_routes! {
    codes: Coupon at "/v1/coupons/{coupon}/codes",
    add: CodesToAdd { codes, revive } => (codes, revive), "Add codes, all or none",
        "A redeemed code stays redeemed, unless `revive` is set. In a pool that does not grow, a rejected add counts as an invalid code.",
        "`filter-full`: none of them was added; `requires-added-codes`",
        [(status = 429, description = "`too-many-invalid-codes`")];
    check: CodeList => CodesValid { valid }, "Check which codes may be redeemed now",
        "Held, redeemed and withdrawn codes are not valid, nor is any code outside the coupon's window. In an open pool, every other code \
         is valid until the pool is sold out.";
    count: "The number of copies of each code: at most one in a strict coupon.";
    remove: CodeList { codes } => (codes, false), "Withdraw codes; a held code loses its hold", "Redeemed codes remain.",
        [(status = 409, description = "`requires-added-codes`"),];
    replace: "Pairs are replaced atomically, in order. Only `replaced` has an effect: with `already_present`, `already_redeemed` or, in a compact coupon, `saturated`, `to` can't be stored, so `from` stays.",
        "`filter-full`: none of them was replaced; `requires-added-codes`";
    each: [(status = 429, description = "`too-many-invalid-codes`")];
}

/// Look up codes, for a help desk
///
/// Shows the status of each code, regardless of the window.
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
pub(crate) async fn look_up(call: Call<LookUp>, Path(name): Path<String>, request: Request) -> Answer {
    let view = call.filter(Kind::Coupon, &name)?;
    let guesser = call.guesser(&view, &request)?;
    let digests =
        digests(&call, &view, request, |body| Ok((json::parse::<CodeList<'_>>(body)?.codes, false)));
    let (digests, _) = digests.await?;
    let memory = call.reserve(size_of_val(&digests[..]) as u64)?;
    let guesses = guesser.take(digests.len())?;
    let mut absent = 0;
    let mut last = Vec::new();
    for part in digests.chunks(LOOKED_UP) {
        let Some(found) = view.look_up(part, call.api.engine.now()) else {
            guesses.return_unused();
            return Err(Code::RequiresStrictMode.into());
        };
        // A code that is held or redeemed does not count as a guess.
        absent += found.iter().filter(|found| **found == CodeFound::Absent).count();
        last = found;
        // Other requests on this processor get their turn.
        tokio::task::yield_now().await;
    }
    guesses.settle(absent);
    if digests.len() <= LOOKED_UP {
        return Ok(reply::ok(&CodeLookups { codes: last.into_iter().map(CodeLookup::from).collect() }));
    }
    let Call { api, .. } = call;
    let coupon = FilterHandle::of(&view);
    drop(view);
    let parts = LookUpParts { api, coupon, digests, next: 0, _memory: memory };
    reply::list(&CodeLookups { codes: Vec::new() }, parts).await
}

/// Codes that are looked up together. If a request has more, their results are read again while they are sent.
const LOOKED_UP: usize = 128;

/// The results of a lookup, which are read while they are sent.
struct LookUpParts {
    api: Arc<Api>,
    coupon: FilterHandle,
    digests: Vec<Digest>,
    next: usize,
    /// Of the digests.
    _memory: Share,
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
        let found = view.look_up(part, self.api.engine.now()).unwrap_or_default();
        Ok(Some(found.into_iter().map(CodeLookup::from).collect()))
    }

    fn next_cursor(&self) -> Option<String> {
        None
    }
}

/// A body's items and its flag.
type Listed<'a> = Result<(Vec<Item<'a>>, bool), Problem>;

/// Reads a body, and hashes its items.
async fn digests<R: Right>(
    call: &Call<R>,
    view: &FilterView,
    request: Request,
    read: impl for<'a> FnOnce(&'a [u8]) -> Listed<'a>,
) -> Result<(Vec<Digest>, bool), Problem> {
    let body = call.body(request).await?;
    let (items, flag) = read(body.as_ref())?;
    let field = match view.kind {
        Kind::Campaign => "users",
        Kind::Coupon => "codes",
    };
    Ok((json::digests(view, field, &items, ITEMS_MAX)?, flag))
}

/// Submits a command whose outcomes reveal which items are valid. Most problems say nothing about items and return the guesses. They stay
/// used if the outcome of the command is unknown, and if the filter is full: then an old item is present, and a new one absent.
async fn submit(
    call: &Call<Write>,
    about: Resource<'_>,
    command: Command,
    guesses: Guesses<'_>,
) -> Result<Decided, Problem> {
    let decided = call.submit(about, command).await;
    match decided.as_ref().map(|decided| &decided.outcome) {
        Ok(Outcome::Removed(Removed { outcomes, .. }) | Outcome::Replaced(outcomes)) => {
            guesses.settle(outcomes.iter().filter(|outcome| is_wrong_guess(**outcome)).count());
        }
        Err(problem) if !matches!(problem.code, Code::StorageFailed | Code::FilterFull) => {
            guesses.return_unused();
        }
        Ok(_) | Err(_) => {}
    }
    decided
}

/// Whether the outcome of removing or replacing an item says that it is not valid.
fn is_wrong_guess(outcome: ItemOutcome) -> bool {
    match outcome {
        ItemOutcome::Absent | ItemOutcome::AlreadyRedeemed => true,
        // The item of a pair that stays, because the other one can't be stored, is there.
        ItemOutcome::Saturated | ItemOutcome::AlreadyPresent => false,
        ItemOutcome::Removed | ItemOutcome::Replaced => false,
        // Not of these commands.
        ItemOutcome::Added | ItemOutcome::Revived => false,
    }
}

/// Items of a request that reveals whether they are valid.
struct ItemRequest<'a> {
    view: Arc<FilterView>,
    digests: Vec<Digest>,
    flag: bool,
    guesses: Guesses<'a>,
}

/// Reads the items of a request, unless its end user has made too many guesses.
async fn read<'a, R: Right>(
    call: &'a Call<R>,
    kind: Kind,
    name: &str,
    request: Request,
    read: impl for<'b> FnOnce(&'b [u8]) -> Listed<'b>,
) -> Result<ItemRequest<'a>, Problem> {
    let view = call.filter(kind, name)?;
    let guesser = call.guesser(&view, &request)?;
    let (digests, flag) = digests(call, &view, request, read).await?;
    let guesses = guesser.take(digests.len())?;
    Ok(ItemRequest { view, digests, flag, guesses })
}

impl ItemRequest<'_> {
    /// Returns which items are present.
    fn check(self, now: Timestamp) -> Vec<bool> {
        let mut present = Vec::with_capacity(self.digests.len());
        self.view.contains_many(&self.digests, now, &mut present);
        self.guesses.settle(present.iter().filter(|&&present| !present).count());
        present
    }

    /// Returns how many copies of each item are present.
    fn count(self, now: Timestamp) -> Vec<u32> {
        let counts: Vec<u32> = self.digests.iter().map(|&digest| self.view.count(digest, now)).collect();
        self.guesses.settle(counts.iter().filter(|&&count| count == 0).count());
        counts
    }
}

/// Adds items, all or none.
async fn add(
    call: &Call<Write>,
    kind: Kind,
    name: &str,
    request: Request,
    read: impl for<'a> FnOnce(&'a [u8]) -> Listed<'a>,
) -> Answer {
    let view = call.filter(kind, name)?;
    // If a full pool rejects codes, one of them is absent.
    let guesser = view.may_refuse_codes().then(|| call.guesser(&view, &request)).transpose()?;
    let source = (kind == Kind::Coupon).then(|| Source::of(&request));
    let (digests, flag) = digests(call, &view, request, read).await?;
    let (if_absent, revive) = match kind {
        Kind::Campaign => (flag, false),
        Kind::Coupon => (false, flag),
    };
    if revive {
        call.caller.require(Scope::Admin)?;
    }
    let codes = digests.len();
    let room = call.room_for(codes)?;
    let guesses = guesser.map(|guesser| guesser.take(1)).transpose()?;
    let command = Command::Insert { target: Target(view.id), digests: Digests(digests), if_absent, revive };
    let decided = call.submit(Resource::Filter(kind, name), command).await;
    if let Some(source) = source.filter(|_| revive) {
        // Used codes can be used again. The route doesn't show it.
        let outcome = decided.as_ref().map_or_else(|problem| problem.code.as_str(), |_| "done");
        let key = Some(call.caller.name()).filter(|key| !key.is_empty());
        let (peer, [trace, parent]) = (source.peer(), source.trace());
        tracing::info!(
            act = "revive_codes",
            key,
            target = name,
            codes,
            outcome,
            peer,
            trace,
            parent,
            "administrative act"
        );
    }
    if let Some(guesses) = guesses {
        let is_full = decided.as_ref().is_err_and(|problem| problem.code == Code::FilterFull);
        guesses.settle(is_full.into());
    }
    let decided = decided?;
    let Outcome::Inserted(inserted) = &decided.outcome else { return Err(decided.unexpected()) };
    Ok(counted(reply::json(StatusCode::OK, decided.replayed, inserted), room))
}

/// Removes items.
async fn remove(call: &Call<Write>, request: ItemRequest<'_>, about: Resource<'_>) -> Answer {
    let ItemRequest { view, digests, flag: all, guesses } = request;
    let room = call.room_for(digests.len())?;
    let command = Command::Remove { target: Target(view.id), digests: Digests(digests), all };
    let decided = submit(call, about, command, guesses).await?;
    let Outcome::Removed(removed) = &decided.outcome else { return Err(decided.unexpected()) };
    Ok(counted(reply::json(StatusCode::OK, decided.replayed, removed), room))
}

/// Replaces items pair by pair.
async fn replace(call: &Call<Write>, kind: Kind, name: &str, request: Request) -> Answer {
    let view = call.filter(kind, name)?;
    let guesser = call.guesser(&view, &request)?;
    let body = call.body(request).await?;
    let (from, to) = pairs(body.as_ref(), &view, ITEMS_MAX)?;
    let room = call.room_for(from.len())?;
    let guesses = guesser.take(from.len())?;
    let command = Command::Replace { target: Target(view.id), from: Digests(from), to: Digests(to) };
    let decided = submit(call, Resource::Filter(kind, name), command, guesses).await?;
    let Outcome::Replaced(outcomes) = decided.outcome else { return Err(decided.unexpected()) };
    Ok(counted(reply::json(StatusCode::OK, decided.replayed, &ReplacedItems { outcomes }), room))
}

/// Parses a body `{"replacements":[{"from":…,"to":…}]}` into the digests of both sides.
///
/// # Errors
/// The problem that the service answers.
pub fn pairs(
    body: &[u8],
    view: &FilterView,
    items_max: usize,
) -> Result<(Vec<Digest>, Vec<Digest>), Problem> {
    let ReplacementList { replacements } = json::parse(body)?;
    json::check_length("replacements", replacements.len(), items_max)?;
    let mut faults = Faults::default();
    let each = replacements.iter().enumerate().map(|(index, Replacement { from, to })| {
        let from = faults.digest(view, from, || format!("/replacements/{index}/from"));
        (from, faults.digest(view, to, || format!("/replacements/{index}/to")))
    });
    let pairs = each.unzip();
    faults.check()?;
    Ok(pairs)
}

/// Parses a body `{"users":[…],"if_absent":…}` into the items' digests and the flag.
///
/// # Errors
/// The problem that the service answers.
#[cfg(any(feature = "fuzzing", test))]
pub fn users_to_add(
    body: &[u8],
    view: &FilterView,
    items_max: usize,
) -> Result<(Vec<Digest>, bool), Problem> {
    let UsersToAdd { users, if_absent } = json::parse(body)?;
    Ok((json::digests(view, "users", &users, items_max)?, if_absent))
}
