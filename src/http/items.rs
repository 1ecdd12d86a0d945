//! What the operations on lists of items share: `users.rs` and `codes.rs` have their routes.

use super::call::{Call, Decided, Resource, Right, Write};
use super::request::json::{self, Faults, Item};
use super::request::source::RequestSource;
use super::response::outgoing::counted;
use super::response::{Code, HandlerResult, Problem, refusals, success};
use crate::access::{Guesses, Scope};
use crate::turn::Turn;
use axum::extract::Request;
use cuckood_filter::Digest;
use cuckood_state::domain::{
    Command, Digests, ITEMS_MAX, ItemOutcome, Kind, Outcome, Removed, Target, Timestamp,
};
use cuckood_state::{Borrowed, FilterView};
use http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

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
pub(super) struct ReplacementList<'a> {
    /// The pairs.
    #[serde(borrow, deserialize_with = "json::list::<{ ITEMS_MAX + 1 }, _, _>")]
    #[schema(min_items = 1, max_items = 10_000)]
    replacements: Vec<Replacement<'a>>,
}

/// The outcomes of replacements, one per pair.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({"outcomes": ["replaced", "already_present"]}))]
pub(super) struct ReplacedItems {
    /// In the order of the request.
    outcomes: Vec<ItemOutcome>,
}

/// The number of copies of each item.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({"counts": [2, 0]}))]
pub(super) struct ItemCounts {
    /// In the order of the request.
    pub(super) counts: Vec<u32>,
}

/// The description of responses with one value for each item.
pub(super) const ORDER: &str = "In the order of the request";

/// A body's items and its flag.
pub(super) type Listed<'a> = Result<(Vec<Item<'a>>, bool), Problem>;

/// Reads the items of a body, and hashes them.
pub(super) async fn digests(
    view: &FilterView,
    body: &[u8],
    read: impl for<'a> FnOnce(&'a [u8]) -> Listed<'a>,
) -> Result<(Vec<Digest>, bool), Problem> {
    let (items, flag) = read(body)?;
    let field = match view.kind {
        Kind::Campaign => "users",
        Kind::Coupon => "codes",
    };
    Ok((json::digests(view, field, &items, ITEMS_MAX).await?, flag))
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
            guesses.settle(
                outcomes
                    .iter()
                    .filter(|outcome| is_wrong_guess(**outcome))
                    .count(),
            );
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
pub(super) struct ItemRequest<'a> {
    view: Borrowed<FilterView>,
    digests: Vec<Digest>,
    flag: bool,
    guesses: Guesses<'a>,
}

/// Reads the items of a request, unless its end user has made too many guesses.
pub(super) async fn read<'a, R: Right>(
    call: &'a Call<R>,
    kind: Kind,
    name: &str,
    request: Request,
    read: impl for<'b> FnOnce(&'b [u8]) -> Listed<'b>,
) -> Result<ItemRequest<'a>, Problem> {
    let before = call.borrow(kind, name)?;
    let id = before.id;
    let guesser = call.guesser(&before, &request)?;
    drop(before);
    let body = call.body(request).await?;
    let view = call.borrow(kind, name)?;
    // Another filter of this name may limit guesses although the first one didn't.
    if view.id != id {
        return Err(refusals::not_found(kind));
    }
    let (digests, flag) = digests(&view, body.as_ref(), read).await?;
    let guesses = guesser.take(digests.len())?;
    Ok(ItemRequest {
        view,
        digests,
        flag,
        guesses,
    })
}

impl ItemRequest<'_> {
    /// Returns which items are present.
    pub(super) fn check(self, now: Timestamp) -> Vec<bool> {
        let mut present = Vec::with_capacity(self.digests.len());
        self.view.contains_many(&self.digests, now, &mut present);
        self.guesses
            .settle(present.iter().filter(|&&present| !present).count());
        present
    }

    /// Returns how many copies of each item are present.
    pub(super) fn count(self, now: Timestamp) -> Vec<u32> {
        let counts: Vec<u32> = self
            .digests
            .iter()
            .map(|&digest| self.view.count(digest, now))
            .collect();
        self.guesses
            .settle(counts.iter().filter(|&&count| count == 0).count());
        counts
    }
}

/// Adds items, all or none.
pub(super) async fn add(
    call: &Call<Write>,
    kind: Kind,
    name: &str,
    request: Request,
    read: impl for<'a> FnOnce(&'a [u8]) -> Listed<'a>,
) -> HandlerResult {
    let view = call.filter(kind, name)?;
    // If a full pool rejects codes, one of them is absent.
    let guesser = view
        .may_refuse_codes()
        .then(|| call.guesser(&view, &request))
        .transpose()?;
    let source = (kind == Kind::Coupon).then(|| RequestSource::of(&request));
    let body = call.body(request).await?;
    let (digests, flag) = digests(&view, body.as_ref(), read).await?;
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
    let command = Command::Insert {
        target: Target(view.id),
        digests: Digests(digests),
        if_absent,
        revive,
    };
    let decided = call.submit(Resource::Filter(kind, name), command).await;
    if let Some(source) = source.filter(|_| revive) {
        // Used codes can be used again. The route doesn't show it.
        let outcome = decided
            .as_ref()
            .map_or_else(|problem| problem.code.as_str(), |_| "done");
        let key = Some(call.caller.name()).filter(|key| !key.is_empty());
        let peer = source.peer();
        let [trace, parent] = source.trace();
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
        let is_full = decided
            .as_ref()
            .is_err_and(|problem| problem.code == Code::FilterFull);
        guesses.settle(is_full.into());
    }
    let decided = decided?;
    let Outcome::Inserted(inserted) = &decided.outcome else {
        return Err(decided.unexpected());
    };
    Ok(counted(
        success::json(StatusCode::OK, decided.replayed, inserted),
        room,
    ))
}

/// Removes items.
pub(super) async fn remove(
    call: &Call<Write>,
    request: ItemRequest<'_>,
    about: Resource<'_>,
) -> HandlerResult {
    let ItemRequest {
        view,
        digests,
        flag: all,
        guesses,
    } = request;
    let target = Target(view.id);
    drop(view);
    let room = call.room_for(digests.len())?;
    let command = Command::Remove {
        target,
        digests: Digests(digests),
        all,
    };
    let decided = submit(call, about, command, guesses).await?;
    let Outcome::Removed(removed) = &decided.outcome else {
        return Err(decided.unexpected());
    };
    Ok(counted(
        success::json(StatusCode::OK, decided.replayed, removed),
        room,
    ))
}

/// Replaces items pair by pair.
pub(super) async fn replace(
    call: &Call<Write>,
    kind: Kind,
    name: &str,
    request: Request,
) -> HandlerResult {
    let view = call.filter(kind, name)?;
    let guesser = call.guesser(&view, &request)?;
    let body = call.body(request).await?;
    let (from, to) = pairs(body.as_ref(), &view, ITEMS_MAX).await?;
    let room = call.room_for(from.len())?;
    let guesses = guesser.take(from.len())?;
    let command = Command::Replace {
        target: Target(view.id),
        from: Digests(from),
        to: Digests(to),
    };
    let decided = submit(call, Resource::Filter(kind, name), command, guesses).await?;
    let Outcome::Replaced(outcomes) = decided.outcome else {
        return Err(decided.unexpected());
    };
    Ok(counted(
        success::json(
            StatusCode::OK,
            decided.replayed,
            &ReplacedItems { outcomes },
        ),
        room,
    ))
}

/// Parses a body `{"replacements":[{"from":…,"to":…}]}` into the digests of both sides.
///
/// # Errors
/// The problem that the service returns.
pub async fn pairs(
    body: &[u8],
    view: &FilterView,
    items_max: usize,
) -> Result<(Vec<Digest>, Vec<Digest>), Problem> {
    let ReplacementList { replacements } = json::parse(body)?;
    json::check_length("replacements", replacements.len(), items_max)?;
    let mut faults = Faults::default();
    let mut turn = Turn::default();
    let mut all_from = Vec::with_capacity(replacements.len());
    let mut all_to = Vec::with_capacity(replacements.len());
    for (index, Replacement { from, to }) in replacements.iter().enumerate() {
        all_from.push(faults.digest(view, from, || format!("/replacements/{index}/from")));
        all_to.push(faults.digest(view, to, || format!("/replacements/{index}/to")));
        turn.work(from.bytes() + to.bytes()).await;
    }
    faults.check()?;
    Ok((all_from, all_to))
}
