//! The handlers for lists of users or codes. Their answers are written by hand: they are as long as the request, and contain only
//! known words and numbers.

use crate::access::Scope;
use crate::domain::{Command, Digests, Inserted, ItemOutcome, Kind, Outcome, Refusal, Removed};
use crate::engine::{CodeFound, FilterView};
use crate::http::answer::problem::Problem;
use crate::http::answer::{refusals, reply};
use crate::http::api::{Api, Sender, target};
use crate::http::request::item_lists::{ItemsBody, ReplacementsBody};
use crate::http::request::object;
use axum::extract::Request;
use axum::response::Response;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use utoipa::ToSchema;

/// The outcome for one item.
#[derive(Clone, Copy, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = ItemOutcome)]
#[allow(dead_code)] // Its names are for the document; `word` writes them.
pub(super) enum ItemOutcomeName {
    Added,
    AlreadyPresent,
    Saturated,
    AlreadyRedeemed,
    Revived,
    Removed,
    Absent,
    Replaced,
}

/// The outcomes of an insert, one per item.
#[derive(ToSchema)]
#[schema(example = json!({"outcomes": ["added", "already_present"], "added": 1}))]
#[allow(dead_code)] // For the document.
pub(super) struct InsertedItems {
    /// In the order of the request.
    outcomes: Vec<ItemOutcomeName>,
    /// How many were added or revived.
    added: u64,
}

/// The outcomes of a removal, one per item.
#[derive(ToSchema)]
#[schema(example = json!({"outcomes": ["removed", "absent"], "removed": 1}))]
#[allow(dead_code)] // For the document.
pub(super) struct RemovedItems {
    /// In the order of the request.
    outcomes: Vec<ItemOutcomeName>,
    /// How many copies were removed.
    removed: u64,
}

/// The outcomes of replacements, one per pair.
#[derive(ToSchema)]
#[schema(example = json!({"outcomes": ["replaced", "absent"]}))]
#[allow(dead_code)] // For the document.
pub(super) struct ReplacedItems {
    /// In the order of the request.
    outcomes: Vec<ItemOutcomeName>,
}

/// The number of copies of each item.
#[derive(ToSchema)]
#[schema(example = json!({"counts": [2, 0]}))]
#[allow(dead_code)] // For the document.
pub(super) struct ItemCounts {
    /// In the order of the request.
    counts: Vec<u32>,
}

/// A user id or a code, used exactly as given: 1 to 512 bytes of UTF-8.
#[derive(Deserialize, ToSchema)]
#[schema(value_type = String, min_length = 1, max_length = 512, example = "u1")]
#[allow(dead_code)] // For the document: `item_lists` reads items.
pub(super) struct Item(String);

/// A pair of items.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[allow(dead_code)] // For the document.
pub(super) struct Replacement {
    /// The item to remove. If it is not present, nothing is added.
    from: Item,
    /// The item to add in its place.
    to: Item,
}

/// Pairs of items to replace.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[allow(dead_code)] // For the document.
pub(super) struct ReplacementList {
    /// The pairs.
    #[schema(min_items = 1, max_items = 10_000)]
    replacements: Vec<Replacement>,
}

/// The field that lists a kind's items.
fn field(kind: Kind) -> &'static str {
    match kind {
        Kind::Campaign => "users",
        Kind::Coupon => "codes",
    }
}

/// Reads `{"users":[…]}` with a flag.
async fn read<'a>(
    api: &Api,
    view: &'a Arc<FilterView>,
    flag: Option<&'static str>,
    request: Request,
) -> Result<ItemsBody<'a>, Problem> {
    let body = api.body(request).await?;
    let mut items = ItemsBody::new(field(view.kind), flag, view, api.options.limits.items_max);
    object::read(&body, &mut items)?;
    Ok(items)
}

/// Counts codes that could not be removed.
fn invalid(outcomes: &[ItemOutcome]) -> usize {
    let is_valid = |outcome: &&ItemOutcome| matches!(outcome, ItemOutcome::Removed | ItemOutcome::Replaced);
    outcomes.len() - outcomes.iter().filter(is_valid).count()
}

/// `POST …/check`: which items are present.
pub(super) async fn check(api: &Api, kind: Kind, name: &str, request: Request) -> Result<Response, Problem> {
    let view = api.filter(kind, name)?;
    let guesser = api.guesser(&view, &request)?;
    let items = read(api, &view, None, request).await?;
    let guesses = guesser.take(items.digests.len())?;
    let mut present = Vec::with_capacity(items.digests.len());
    view.contains_many(&items.digests, api.engine.now(), &mut present);
    guesses.settle(present.iter().filter(|&&present| !present).count());
    let field = match kind {
        Kind::Campaign => "present",
        Kind::Coupon => "valid",
    };
    let words = present.iter().map(|&present| if present { "true" } else { "false" });
    let mut answer = Answer::new(present.len() * ",false".len());
    answer.list(field, words, |buffer, word| buffer.extend_from_slice(word.as_bytes()));
    Ok(answer.reply(false))
}

/// `POST …/count`: how many copies of each item are present.
pub(super) async fn count(api: &Api, kind: Kind, name: &str, request: Request) -> Result<Response, Problem> {
    let view = api.filter(kind, name)?;
    let guesser = api.guesser(&view, &request)?;
    let items = read(api, &view, None, request).await?;
    let guesses = guesser.take(items.digests.len())?;
    let now = api.engine.now();
    let counts: Vec<u32> = items.digests.iter().map(|&digest| view.count(digest, now)).collect();
    guesses.settle(counts.iter().filter(|&&count| count == 0).count());
    let mut answer = Answer::new(counts.len() * ",0".len());
    answer.list("counts", counts, |buffer, count| buffer.extend_from_slice(count.to_string().as_bytes()));
    Ok(answer.reply(false))
}

/// `POST …/codes/lookup`: the status of each code. A code that is held or redeemed does not count as a guess.
pub(super) async fn look_up(api: &Api, name: &str, request: Request) -> Result<Vec<CodeFound>, Problem> {
    let view = api.filter(Kind::Coupon, name)?;
    let guesser = api.guesser(&view, &request)?;
    let items = read(api, &view, None, request).await?;
    let found = view.look_up(&items.digests, api.engine.now());
    let found = found.ok_or_else(|| refusals::refused(Kind::Coupon, Refusal::RequiresStrictMode))?;
    let guesses = guesser.take(items.digests.len())?;
    guesses.settle(found.iter().filter(|found| **found == CodeFound::Absent).count());
    Ok(found)
}

/// `POST …/users` or `…/codes`: adds them, all or none.
pub(super) async fn add(api: &Api, kind: Kind, name: &str, request: Request) -> Result<Response, Problem> {
    let sender = Sender::of(&request)?;
    let view = api.filter(kind, name)?;
    let flag = match kind {
        Kind::Campaign => "if_absent",
        Kind::Coupon => "revive",
    };
    let ItemsBody { digests, flag, .. } = read(api, &view, Some(flag), request).await?;
    let (if_absent, revive) = (flag && kind == Kind::Campaign, flag && kind == Kind::Coupon);
    if revive {
        sender.caller.require(Scope::Admin)?;
    }
    let codes = digests.len();
    let command = Command::Insert { target: target(&view), digests: Digests(digests), if_absent, revive };
    let decided = api.submit(kind, name, &sender, command).await;
    if revive {
        // Used codes can be used again. The gate can't tell by the route.
        let outcome = decided.as_ref().map_or_else(|problem| problem.code.as_str(), |_| "done");
        let key = Some(sender.caller.name()).filter(|key| !key.is_empty());
        tracing::info!(act = "revive_codes", key, target = name, codes, outcome, "administrative act");
    }
    let decided = decided?;
    match &decided.outcome {
        Outcome::Inserted(Inserted { outcomes, added }) => {
            Ok(outcomes_answer(outcomes).number("added", *added).reply(decided.replayed))
        }
        _ => Err(decided.unexpected()),
    }
}

/// `POST …/remove`.
pub(super) async fn remove(api: &Api, kind: Kind, name: &str, request: Request) -> Result<Response, Problem> {
    let sender = Sender::of(&request)?;
    let view = api.filter(kind, name)?;
    let guesser = api.guesser(&view, &request)?;
    let flag = (kind == Kind::Campaign).then_some("all");
    let ItemsBody { digests, flag: all, .. } = read(api, &view, flag, request).await?;
    let guesses = guesser.take(digests.len())?;
    let command = Command::Remove { target: target(&view), digests: Digests(digests), all };
    let decided = api.submit(kind, name, &sender, command).await?;
    match &decided.outcome {
        Outcome::Removed(Removed { outcomes, removed }) => {
            guesses.settle(invalid(outcomes));
            Ok(outcomes_answer(outcomes).number("removed", *removed).reply(decided.replayed))
        }
        _ => Err(decided.unexpected()),
    }
}

/// `POST …/replace`: replaces items pair by pair.
pub(super) async fn replace(
    api: &Api,
    kind: Kind,
    name: &str,
    request: Request,
) -> Result<Response, Problem> {
    let sender = Sender::of(&request)?;
    let view = api.filter(kind, name)?;
    let guesser = api.guesser(&view, &request)?;
    let body = api.body(request).await?;
    let mut pairs = ReplacementsBody::new(&view, api.options.limits.items_max);
    object::read(&body, &mut pairs)?;
    let ReplacementsBody { from, to, .. } = pairs;
    let guesses = guesser.take(from.len())?;
    let command = Command::Replace { target: target(&view), from: Digests(from), to: Digests(to) };
    let decided = api.submit(kind, name, &sender, command).await?;
    match &decided.outcome {
        Outcome::Replaced(outcomes) => {
            guesses.settle(invalid(outcomes));
            Ok(outcomes_answer(outcomes).reply(decided.replayed))
        }
        _ => Err(decided.unexpected()),
    }
}

fn outcomes_answer(outcomes: &[ItemOutcome]) -> Answer {
    let mut answer = Answer::new(outcomes.len() * ",\"replaced\"".len());
    answer.list("outcomes", outcomes, |buffer, &outcome| {
        buffer.push(b'"');
        buffer.extend_from_slice(word(outcome).as_bytes());
        buffer.push(b'"');
    });
    answer
}

fn word(outcome: ItemOutcome) -> &'static str {
    match outcome {
        ItemOutcome::Added => "added",
        ItemOutcome::AlreadyPresent => "already_present",
        ItemOutcome::Saturated => "saturated",
        ItemOutcome::AlreadyRedeemed => "already_redeemed",
        ItemOutcome::Revived => "revived",
        ItemOutcome::Removed => "removed",
        ItemOutcome::Absent => "absent",
        ItemOutcome::Replaced => "replaced",
    }
}

/// Approximate bytes for the field names and the number of an answer.
const FIELDS_BYTES: usize = 64;

/// A JSON object with one list, and perhaps a number.
struct Answer(Vec<u8>);

impl Answer {
    /// An answer whose list takes about this many bytes.
    fn new(list_bytes: usize) -> Self {
        let mut buffer = Vec::with_capacity(list_bytes + FIELDS_BYTES);
        buffer.push(b'{');
        Self(buffer)
    }

    fn list<T>(&mut self, field: &str, values: impl IntoIterator<Item = T>, write: impl Fn(&mut Vec<u8>, T)) {
        self.field(field);
        self.0.push(b'[');
        for (index, value) in values.into_iter().enumerate() {
            if index > 0 {
                self.0.push(b',');
            }
            write(&mut self.0, value);
        }
        self.0.push(b']');
    }

    fn number(mut self, field: &str, number: u64) -> Self {
        self.0.push(b',');
        self.field(field);
        self.0.extend_from_slice(number.to_string().as_bytes());
        self
    }

    fn field(&mut self, field: &str) {
        self.0.push(b'"');
        self.0.extend_from_slice(field.as_bytes());
        self.0.extend_from_slice(b"\":");
    }

    fn reply(mut self, replayed: bool) -> Response {
        self.0.push(b'}');
        reply::json_bytes(StatusCode::OK, replayed, self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_json() {
        let outcomes = [ItemOutcome::Added, ItemOutcome::Saturated];
        let mut answer = outcomes_answer(&outcomes).number("added", 1);
        answer.0.push(b'}');
        assert_eq!(str::from_utf8(&answer.0), Ok(r#"{"outcomes":["added","saturated"],"added":1}"#));
    }

    #[test]
    fn the_document_spells_outcomes_as_answers_do() {
        for (name, outcome) in [
            (ItemOutcomeName::AlreadyPresent, ItemOutcome::AlreadyPresent),
            (ItemOutcomeName::AlreadyRedeemed, ItemOutcome::AlreadyRedeemed),
            (ItemOutcomeName::Revived, ItemOutcome::Revived),
        ] {
            assert_eq!(serde_json::to_value(name).unwrap(), word(outcome));
        }
    }
}
