//! `/v1/eligibility`: which of several campaigns a user may see.

use super::api::{self, Api, Sender};
use super::body::{self, Faults};
use super::item_list;
use super::problem::Problem;
use crate::access::Caller;
use crate::domain::{Kind, Name, Timestamp};
use axum::extract::{Request, State};
use axum::response::Response;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::sync::Arc;
use utoipa::ToSchema;

/// The most campaigns that one question may name.
const CAMPAIGNS_MAX: usize = 256;

/// The most questions of one batch.
const REQUESTS_MAX: usize = 1_000;

/// Questions answered before others get their turn: with 256 campaigns each, less than a millisecond of work.
const REQUESTS_AT_ONCE: usize = 16;

/// Which of these campaigns may this user see?
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"user": "u1", "campaigns": ["spring", "summer"], "limit": 1}))]
struct EligibilityRequest<'a> {
    /// Taken exactly as it stands, 1 to 512 bytes.
    #[serde(borrow)]
    #[schema(value_type = String, min_length = 1, max_length = 512)]
    user: Cow<'a, str>,
    /// Names in order of preference.
    #[serde(borrow)]
    #[schema(value_type = Vec<String>, min_items = 1, max_items = 256)]
    campaigns: Vec<Cow<'a, str>>,
    /// Stop when so many are found.
    #[serde(default = "limit_default")]
    #[schema(minimum = 1, maximum = 256, default = 1)]
    limit: usize,
}

fn limit_default() -> usize {
    1
}

/// The campaigns that the user may see, and what was found on the way to them.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({"eligible": ["summer"], "evaluated": 2, "unknown": [], "inactive": []}))]
struct Eligibility {
    /// The first `limit` that are active and hold the user, in order.
    eligible: Vec<String>,
    /// How many of the campaigns were looked at before it stopped, unknown and inactive ones included.
    evaluated: usize,
    /// Those of them that there are not.
    unknown: Vec<String>,
    /// Those of them that are outside their window.
    inactive: Vec<String>,
}

/// Several questions.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct EligibilityBatch<'a> {
    #[serde(borrow, deserialize_with = "body::objects")]
    #[schema(min_items = 1, max_items = 1_000)]
    requests: Vec<EligibilityRequest<'a>>,
}

/// Their answers.
#[derive(Serialize, ToSchema)]
struct EligibilityResults {
    /// In the order of the requests.
    results: Vec<Eligibility>,
}

/// Tell which campaigns a user may see
#[utoipa::path(
    post,
    path = "/v1/eligibility",
    operation_id = "eligibility",
    tag = "eligibility",
    request_body = EligibilityRequest<'_>,
    responses((status = 200, description = "The first `limit` campaigns that fit", body = Eligibility))
)]
pub(super) async fn one(State(api): State<Arc<Api>>, request: Request) -> Result<Response, Problem> {
    let sender = Sender::of(&api, &request)?;
    let body = api.body(request).await?;
    let question: EligibilityRequest<'_> = body::json(&body)?;
    let mut faults = Faults::default();
    let names = question.check("", &sender.caller, &mut faults)?;
    faults.check()?;
    Ok(api::json(StatusCode::OK, false, &answer(&api, &question, names, api.engine.now())))
}

/// Tell which campaigns users may see
#[utoipa::path(
    post,
    path = "/v1/eligibility/batch",
    operation_id = "eligibility_batch",
    tag = "eligibility",
    request_body = EligibilityBatch<'_>,
    responses((status = 200, description = "In the order of the requests", body = EligibilityResults))
)]
pub(super) async fn batch(State(api): State<Arc<Api>>, request: Request) -> Result<Response, Problem> {
    let sender = Sender::of(&api, &request)?;
    let body = api.body(request).await?;
    let EligibilityBatch { requests } = body::json(&body)?;
    let mut faults = Faults::default();
    if !(1..=REQUESTS_MAX).contains(&requests.len()) {
        faults.note(|| "/requests".into(), format!("expected 1 to {REQUESTS_MAX} elements"));
        return Err(faults.check().err().unwrap_or_else(|| Problem::invalid(Vec::new())));
    }
    let mut names = Vec::with_capacity(requests.len());
    for (index, request) in requests.iter().enumerate() {
        names.push(request.check(&format!("/requests/{index}"), &sender.caller, &mut faults)?);
    }
    faults.check()?;
    let now = api.engine.now();
    let mut results = Vec::with_capacity(requests.len());
    for (request, names) in requests.iter().zip(names) {
        results.push(answer(&api, request, names, now));
        if results.len().is_multiple_of(REQUESTS_AT_ONCE) {
            tokio::task::yield_now().await;
        }
    }
    Ok(api::json(StatusCode::OK, false, &EligibilityResults { results }))
}

impl EligibilityRequest<'_> {
    /// The campaigns' names; what is wrong with the question goes to `faults`.
    fn check(&self, at: &str, caller: &Caller, faults: &mut Faults) -> Result<Vec<Name>, Problem> {
        if let Some(fault) = item_list::fault(&self.user) {
            faults.note(|| format!("{at}/user"), fault);
        }
        if !(1..=CAMPAIGNS_MAX).contains(&self.campaigns.len()) {
            faults.note(|| format!("{at}/campaigns"), format!("expected 1 to {CAMPAIGNS_MAX} elements"));
            return Ok(Vec::new());
        }
        if !(1..=CAMPAIGNS_MAX).contains(&self.limit) {
            faults.note(|| format!("{at}/limit"), format!("expected 1 to {CAMPAIGNS_MAX}"));
        }
        let mut names = Vec::with_capacity(self.campaigns.len());
        for (index, campaign) in self.campaigns.iter().enumerate() {
            match Name::new(campaign) {
                Ok(name) => names.push(name),
                Err(error) => faults.note(|| format!("{at}/campaigns/{index}"), error.to_string()),
            }
            caller.require_name(campaign)?;
        }
        Ok(names)
    }
}

fn answer(api: &Api, question: &EligibilityRequest<'_>, names: Vec<Name>, now: Timestamp) -> Eligibility {
    let mut found =
        Eligibility { eligible: Vec::new(), evaluated: 0, unknown: Vec::new(), inactive: Vec::new() };
    for name in names {
        found.evaluated += 1;
        match api.engine.find(Kind::Campaign, &name) {
            None => found.unknown.push(name.into()),
            Some(view) if !view.window.contains(now) => found.inactive.push(name.into()),
            Some(view) => {
                if view.contains(view.digest(&question.user), now) {
                    found.eligible.push(name.into());
                    if found.eligible.len() == question.limit {
                        break;
                    }
                }
            }
        }
    }
    found
}
