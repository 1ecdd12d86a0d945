//! `/v1/eligibility`: which of several campaigns a user may see.

use super::answer::problem::Problem;
use super::answer::reply;
use super::api::{Api, Sender};
use super::request::faults::Faults;
use super::request::item_lists;
use super::request::json::{self, Text};
use crate::access::Caller;
use crate::domain::{Kind, Name, Timestamp};
use axum::extract::{Request, State};
use axum::response::Response;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::sync::Arc;
use utoipa::ToSchema;

/// The most campaigns in one request.
const CAMPAIGNS_MAX: usize = 256;

/// The most requests in one batch.
const REQUESTS_MAX: usize = 1_000;

/// Requests answered before others get their turn: with 256 campaigns each, less than a millisecond of work.
const REQUESTS_AT_ONCE: usize = 16;

/// The user and the campaigns to choose from.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"user": "u1", "campaigns": ["spring", "summer"], "limit": 1}))]
struct EligibilityRequest<'a> {
    /// Used exactly as given, 1 to 512 bytes.
    #[serde(borrow)]
    #[schema(value_type = String, min_length = 1, max_length = 512)]
    user: Cow<'a, str>,
    /// Names in order of preference.
    #[serde(borrow, deserialize_with = "json::list::<{ CAMPAIGNS_MAX + 1 }, _, _>")]
    #[schema(value_type = Vec<String>, min_items = 1, max_items = 256)]
    campaigns: Vec<Text<'a>>,
    /// Stop after this many campaigns.
    #[serde(default = "limit_default")]
    #[schema(minimum = 1, maximum = 256, default = 1)]
    limit: usize,
}

fn limit_default() -> usize {
    1
}

/// The campaigns that the user may see.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({"eligible": ["summer"], "evaluated": 2, "unknown": [], "inactive": []}))]
struct Eligibility {
    /// The first `limit` campaigns that are active and contain the user, in order.
    eligible: Vec<String>,
    /// How many of the campaigns were evaluated, including unknown and inactive ones.
    evaluated: usize,
    /// Evaluated campaigns that don't exist.
    unknown: Vec<String>,
    /// Evaluated campaigns that are outside their window.
    inactive: Vec<String>,
}

/// Several eligibility requests.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct EligibilityBatch<'a> {
    #[serde(borrow, deserialize_with = "json::list::<{ REQUESTS_MAX + 1 }, _, _>")]
    #[schema(min_items = 1, max_items = 1_000)]
    requests: Vec<EligibilityRequest<'a>>,
}

/// The results of a batch.
#[derive(ToSchema)]
#[allow(dead_code)] // For the document: they are written one by one.
struct EligibilityResults {
    /// In the order of the requests.
    results: Vec<Eligibility>,
}

/// Select the campaigns that a user may see
#[utoipa::path(
    post,
    path = "/v1/eligibility",
    operation_id = "check_eligibility",
    tag = "eligibility",
    request_body = EligibilityRequest<'_>,
    responses((status = 200, description = "The first `limit` eligible campaigns", body = Eligibility))
)]
pub(super) async fn one(State(api): State<Arc<Api>>, request: Request) -> Result<Response, Problem> {
    let sender = Sender::of(&api, &request)?;
    let body = api.body(request).await?;
    let question: EligibilityRequest<'_> = json::parse(&body)?;
    let mut faults = Faults::default();
    question.check("", &sender.caller, &mut faults)?;
    faults.check()?;
    Ok(reply::json(StatusCode::OK, false, &answer(&api, &question, api.engine.now())))
}

/// Select the campaigns that several users may see
#[utoipa::path(
    post,
    path = "/v1/eligibility/batch",
    operation_id = "check_eligibility_batch",
    tag = "eligibility",
    request_body = EligibilityBatch<'_>,
    responses((status = 200, description = "In the order of the requests", body = EligibilityResults))
)]
pub(super) async fn batch(State(api): State<Arc<Api>>, request: Request) -> Result<Response, Problem> {
    let sender = Sender::of(&api, &request)?;
    let mut share = api.reading.share()?;
    let body = api.body(request).await?;
    let EligibilityBatch { requests } = json::parse(&body)?;
    let mut faults = Faults::default();
    if !(1..=REQUESTS_MAX).contains(&requests.len()) {
        faults.note(|| "/requests".into(), format!("expected 1 to {REQUESTS_MAX} elements"));
        return Err(faults.check().err().unwrap_or_else(|| Problem::invalid(Vec::new())));
    }
    for (index, request) in requests.iter().enumerate() {
        request.check(&format!("/requests/{index}"), &sender.caller, &mut faults)?;
    }
    faults.check()?;
    let campaigns: usize = requests.iter().map(|request| request.campaigns.capacity()).sum();
    let taken = size_of_val(&requests[..]) + campaigns * size_of::<Text<'_>>();
    let now = api.engine.now();
    let mut results = b"{\"results\":[".to_vec();
    for (index, request) in requests.iter().enumerate() {
        if index > 0 {
            results.push(b',');
        }
        serde_json::to_writer(&mut results, &answer(&api, request, now)).map_err(reply::unwritable)?;
        if (index + 1).is_multiple_of(REQUESTS_AT_ONCE) {
            // The parsed requests and the answers stay in memory while others get their turn.
            share.hold((taken + results.capacity()) as u64)?;
            tokio::task::yield_now().await;
        }
    }
    results.extend_from_slice(b"]}");
    Ok(reply::json_bytes(StatusCode::OK, false, results))
}

impl EligibilityRequest<'_> {
    /// Adds what is wrong with the request to `faults`.
    fn check(&self, at: &str, caller: &Caller, faults: &mut Faults) -> Result<(), Problem> {
        if let Some(fault) = item_lists::fault(&self.user) {
            faults.note(|| format!("{at}/user"), fault);
        }
        if !(1..=CAMPAIGNS_MAX).contains(&self.campaigns.len()) {
            faults.note(|| format!("{at}/campaigns"), format!("expected 1 to {CAMPAIGNS_MAX} elements"));
            return Ok(());
        }
        if !(1..=CAMPAIGNS_MAX).contains(&self.limit) {
            faults.note(|| format!("{at}/limit"), format!("expected 1 to {CAMPAIGNS_MAX}"));
        }
        for (index, Text(campaign)) in self.campaigns.iter().enumerate() {
            if let Err(error) = Name::new(campaign) {
                faults.note(|| format!("{at}/campaigns/{index}"), error.to_string());
            }
            caller.require_name(campaign)?;
        }
        Ok(())
    }
}

fn answer(api: &Api, question: &EligibilityRequest<'_>, now: Timestamp) -> Eligibility {
    let mut found =
        Eligibility { eligible: Vec::new(), evaluated: 0, unknown: Vec::new(), inactive: Vec::new() };
    // Invalid names have been reported by `check`.
    for name in question.campaigns.iter().filter_map(|Text(campaign)| Name::new(campaign).ok()) {
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
