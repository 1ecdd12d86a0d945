//! `/v1/eligibility`: which of several campaigns a user may see.

use super::answer::reply::Held;
use super::answer::{Answer, Code, Fault, Problem, reply};
use super::api::Api;
use super::call::{Call, Read};
use super::line_ups::{self, Exclusion};
use super::request::items::Item;
use super::request::json::{self, Faults, Text};
use crate::access::Caller;
use crate::domain::Name;
use crate::domain::name::{CAMPAIGNS_MAX, UNLESS_MAX};
use crate::engine::{Eligibility, Question};
use axum::extract::Request;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The most requests in one batch.
const REQUESTS_MAX: usize = 1_000;

/// Requests answered before others get their turn: with 256 campaigns each, less than a millisecond of work. An explained one takes as
/// long by itself.
const REQUESTS_AT_ONCE: usize = 16;

/// The user and the campaigns to choose from.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({
    "user": "u1",
    "campaigns": ["spring", "summer"],
    "unless": [{"campaign": "opted-out"}, {"campaign": "summer.seen", "at_least": 3, "for": "summer"}]
}))]
struct EligibilityRequest<'a> {
    /// Used exactly as given, 1 to 512 bytes.
    #[serde(borrow)]
    #[schema(value_type = String, min_length = 1, max_length = 512)]
    user: Item<'a>,
    /// At least one name, in order of preference. Left out or empty if there is a `line_up`.
    #[serde(borrow, default, deserialize_with = "json::list::<{ CAMPAIGNS_MAX + 1 }, _, _>")]
    #[schema(value_type = Vec<String>, max_items = 256)]
    campaigns: Vec<Text<'a>>,
    /// Who is left out: exclusion lists and frequency caps.
    #[serde(borrow, default, deserialize_with = "json::list::<{ UNLESS_MAX + 1 }, _, _>")]
    #[schema(max_items = 32)]
    unless: Vec<Exclusion<'a>>,
    /// The line-up to choose from, in place of `campaigns` and `unless`.
    #[serde(borrow, default)]
    #[schema(value_type = Option<String>, pattern = "^[a-z0-9][a-z0-9._-]{0,127}$")]
    line_up: Option<Text<'a>>,
    /// Stop after this many campaigns; by default 1, or what the line-up says.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 256)]
    limit: Option<u32>,
    /// Whether to explain the answer for each campaign that was evaluated.
    #[serde(default)]
    explain: bool,
}

/// Several eligibility requests.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct EligibilityBatch<'a> {
    #[serde(borrow, deserialize_with = "json::list::<{ REQUESTS_MAX + 1 }, _, _>")]
    #[schema(min_items = 1, max_items = 1_000)]
    requests: Vec<EligibilityRequest<'a>>,
}

/// The results of a batch, which are written one by one.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({"results": [{
    "eligible": ["summer"], "evaluated": 2, "unknown": [], "inactive": [], "excluded": ["spring"]
}]}))]
struct EligibilityResults<'a> {
    /// In the order of the requests.
    results: Vec<Eligibility<'a>>,
}

/// Select the campaigns that a user may see
///
/// Evaluates the campaigns in order until `limit` of them are eligible.
#[utoipa::path(
    post, path = "/v1/eligibility", operation_id = "check_eligibility", tag = "eligibility",
    request_body = EligibilityRequest<'_>,
    responses(
        (status = 200, description = "The first `limit` eligible campaigns", body = Eligibility<'_>),
        (status = 404, description = "`line-up-not-found`"),
    )
)]
pub(super) async fn one(call: Call<Read>, request: Request) -> Answer {
    let Call { api, caller, .. } = &call;
    let body = call.body(request).await?;
    let request: EligibilityRequest<'_> = json::parse(&body)?;
    let mut faults = Faults::default();
    request.check("", caller, &mut faults)?;
    faults.check()?;
    request.answer(api, caller, "", |answer| reply::ok(&answer))
}

/// Select the campaigns that several users may see
///
/// Each request is evaluated separately; an invalid one rejects the batch.
#[utoipa::path(
    post, path = "/v1/eligibility/batch", operation_id = "check_eligibility_batch", tag = "eligibility",
    request_body = EligibilityBatch<'_>,
    responses(
        (status = 200, description = "In the order of the requests", body = EligibilityResults<'_>),
        (status = 404, description = "`line-up-not-found`"),
    )
)]
pub(super) async fn batch(call: Call<Read>, request: Request) -> Answer {
    let Call { api, caller, .. } = &call;
    let mut share = api.reading.share();
    let body = call.body(request).await?;
    let EligibilityBatch { requests } = json::parse(&body)?;
    let mut faults = Faults::default();
    if !(1..=REQUESTS_MAX).contains(&requests.len()) {
        return Err(Problem::invalid_at("/requests", format!("expected 1 to {REQUESTS_MAX} elements")));
    }
    for (index, request) in requests.iter().enumerate() {
        request.check(&format!("/requests/{index}"), caller, &mut faults)?;
    }
    faults.check()?;
    let taken: usize = requests.iter().map(EligibilityRequest::memory_bytes).sum();
    let empty = EligibilityResults { results: Vec::new() };
    let mut results = serde_json::to_vec(&empty).map_err(reply::unwritable)?;
    let end = results.split_off(results.len() - "]}".len());
    for (index, request) in requests.into_iter().enumerate() {
        if index > 0 {
            results.push(b',');
        }
        let is_explained = request.explain;
        request.answer(api, caller, &format!("/requests/{index}"), |answer| {
            serde_json::to_writer(&mut results, &answer).map_err(reply::unwritable)
        })??;
        if is_explained || (index + 1).is_multiple_of(REQUESTS_AT_ONCE) {
            // The parsed requests and the answers stay in memory while others get their turn.
            share.hold((taken + results.capacity()) as u64)?;
            tokio::task::yield_now().await;
        }
    }
    results.extend_from_slice(&end);
    // A slow client keeps the answer in memory until it has accepted it.
    share.hold(results.capacity() as u64)?;
    Ok(reply::json_held(Held::new(results, share)))
}

impl<'a> EligibilityRequest<'a> {
    fn memory_bytes(&self) -> usize {
        size_of::<Self>()
            + self.campaigns.capacity() * size_of::<Text<'_>>()
            + self.unless.capacity() * size_of::<Exclusion<'_>>()
    }

    /// Adds what is wrong with the request to `faults`.
    fn check(&self, at: &str, caller: &Caller, faults: &mut Faults) -> Result<(), Problem> {
        if let Err(fault) = self.user.text() {
            faults.note(|| format!("{at}/user"), fault);
        }
        if let Some(limit) = self.limit {
            line_ups::check_limit(limit, at, faults);
        }
        let Some(Text(line_up)) = &self.line_up else {
            return line_ups::check(&self.campaigns, &self.unless, at, caller, faults);
        };
        line_ups::check_name(line_up, || format!("{at}/line_up"), caller, faults)?;
        if !(self.campaigns.is_empty() && self.unless.is_empty()) {
            faults.note(|| format!("{at}/line_up"), "give either a line-up, or campaigns and unless");
        }
        Ok(())
    }

    /// Hands the answer over to `write`, since it borrows from the request.
    fn answer<T>(
        self,
        api: &Api,
        caller: &Caller,
        at: &str,
        write: impl FnOnce(Eligibility<'_>) -> T,
    ) -> Result<T, Problem> {
        let Self { user, campaigns, unless, line_up, limit, explain } = self;
        let user = user.text().map_err(|fault| Problem::invalid_at(&format!("{at}/user"), fault))?;
        let limit = limit.map(|limit| limit as usize);
        let Some(Text(name)) = line_up else {
            let line_up = line_ups::line_up(campaigns, unless, 1);
            let question = Question { user, line_up: &line_up, limit: limit.unwrap_or(1), explain };
            let found = api.engine.evaluate(&question);
            return Ok(write(found.map_err(|uncountable| line_ups::uncountable(&uncountable, at))?));
        };
        let at = || format!("{at}/line_up");
        let line_up = Name::new(&name).ok().and_then(|name| api.engine.line_up(&name));
        let line_up = line_up.ok_or_else(|| {
            let faults = vec![Fault { pointer: at(), detail: "unknown".into() }];
            Problem { faults, ..Code::LineUpNotFound.into() }
        })?;
        let line_up = &line_up.line_up;
        // It may have been stored under another key, which may use other names.
        line_up.names().try_for_each(|name| caller.require_name(name.as_str()))?;
        let limit = limit.unwrap_or(line_up.limit as usize);
        let found = api.engine.evaluate(&Question { user, line_up, limit, explain });
        let found = found.map_err(|uncountable| {
            let detail = format!("unless {}: {uncountable}", uncountable.condition);
            Problem::invalid_at(&at(), detail)
        })?;
        Ok(write(found))
    }
}
