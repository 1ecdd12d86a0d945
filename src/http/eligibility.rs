//! `/v1/eligibility`: which of several campaigns a user may see.

use super::answer::problem::Problem;
use super::answer::reply;
use super::api::{Api, Sender};
use super::filters::representation::error_rate_now;
use super::request::faults::Faults;
use super::request::item_lists;
use super::request::json::{self, Text};
use crate::access::Caller;
use crate::domain::line_up::{CAMPAIGNS_MAX, UNLESS_MAX};
use crate::domain::{LineUp, Name, Unless, WindowPosition};
use crate::engine::{self, Question, Uncountable};
use axum::extract::{Request, State};
use axum::response::Response;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::sync::Arc;
use utoipa::ToSchema;

/// The most requests in one batch.
const REQUESTS_MAX: usize = 1_000;

/// Requests answered before others get their turn: with 256 campaigns each, less than a millisecond of work.
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
    user: Cow<'a, str>,
    /// Names in order of preference.
    #[serde(borrow, deserialize_with = "json::list::<{ CAMPAIGNS_MAX + 1 }, _, _>")]
    #[schema(value_type = Vec<String>, min_items = 1, max_items = 256)]
    campaigns: Vec<Text<'a>>,
    /// Who is left out: exclusion lists and frequency caps.
    #[serde(borrow, default, deserialize_with = "json::list::<{ UNLESS_MAX + 1 }, _, _>")]
    #[schema(max_items = 32)]
    unless: Vec<Exclusion<'a>>,
    /// Stop after this many campaigns.
    #[serde(default = "limit_default")]
    #[schema(minimum = 1, maximum = 256, default = 1)]
    limit: u32,
    /// Whether to explain the answer for each campaign that was evaluated.
    #[serde(default)]
    explain: bool,
}

fn limit_default() -> u32 {
    1
}

/// Leaves the user out while another campaign is active and holds enough copies of the user.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"campaign": "summer.seen", "at_least": 3, "for": "summer"}))]
struct Exclusion<'a> {
    /// The campaign to look at. One that doesn't exist leaves nobody out, and is listed under `unknown`.
    #[serde(borrow)]
    #[schema(value_type = String, pattern = "^[a-z0-9][a-z0-9._-]{0,127}$")]
    campaign: Text<'a>,
    /// How many copies it must hold: 1 for an exclusion list, more for a frequency cap. At most its `stats.copies_max`.
    #[serde(default = "at_least_default")]
    #[schema(minimum = 1, default = 1)]
    at_least: u32,
    /// The campaign that the user is left out of; by default all.
    #[serde(borrow, rename = "for", default)]
    #[schema(value_type = Option<String>, pattern = "^[a-z0-9][a-z0-9._-]{0,127}$")]
    only_for: Option<Text<'a>>,
}

fn at_least_default() -> u32 {
    1
}

/// The campaigns that the user may see.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({
    "eligible": ["summer"], "evaluated": 2, "unknown": [], "inactive": [], "excluded": ["spring"]
}))]
struct Eligibility<'a> {
    /// The first `limit` campaigns, in order, that are active, contain the user, and from which no `unless` excludes the user.
    #[schema(value_type = Vec<String>)]
    eligible: Vec<&'a str>,
    /// How many of the campaigns were evaluated, including unknown and inactive ones.
    evaluated: usize,
    /// Evaluated campaigns that don't exist, then those in `unless` that don't.
    #[schema(value_type = Vec<String>)]
    unknown: Vec<&'a str>,
    /// Evaluated campaigns that are outside their window.
    #[schema(value_type = Vec<String>)]
    inactive: Vec<&'a str>,
    /// Evaluated campaigns that are active and contain the user, but an `unless` excludes the user.
    #[schema(value_type = Vec<String>)]
    excluded: Vec<&'a str>,
    /// With `explain`: one for each evaluated campaign that exists.
    #[serde(skip_serializing_if = "Option::is_none")]
    explanations: Option<Vec<Explanation<'a>>>,
}

/// Why the user may see a campaign, or may not.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({
    "campaign": "spring", "present": true, "window": "inside", "excluded_by": "opted-out", "error_rate": 0.0005, "eligible": false
}))]
struct Explanation<'a> {
    #[schema(value_type = String)]
    campaign: &'a str,
    /// Whether the campaign contains the user.
    present: bool,
    /// Where the present time lies, as seen from the campaign's window.
    window: PositionName,
    /// The campaign of the first `unless` that excludes the user, even if there are other reasons.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    excluded_by: Option<&'a str>,
    /// The probability that `present` is true for a user who was never added.
    error_rate: f64,
    /// Whether the user may see the campaign.
    eligible: bool,
}

/// Where a moment lies, as seen from a window.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = WindowPosition)]
enum PositionName {
    /// Before its start.
    Before,
    /// The campaign is active.
    Inside,
    /// At its end or later.
    After,
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
    results: Vec<Eligibility<'static>>,
}

/// Select the campaigns that a user may see
#[utoipa::path(
    post,
    path = "/v1/eligibility",
    operation_id = "check_eligibility",
    tag = "eligibility",
    request_body = EligibilityRequest<'_>,
    responses((status = 200, description = "The first `limit` eligible campaigns", body = Eligibility<'_>))
)]
pub(super) async fn one(State(api): State<Arc<Api>>, request: Request) -> Result<Response, Problem> {
    let sender = Sender::of(&api, &request)?;
    let body = api.body(request).await?;
    let request: EligibilityRequest<'_> = json::parse(&body)?;
    let mut faults = Faults::default();
    request.check("", &sender.caller, &mut faults)?;
    faults.check()?;
    request.answer(&api, "", |answer| reply::json(StatusCode::OK, false, &answer))
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
    let taken: usize = requests.iter().map(EligibilityRequest::memory_bytes).sum();
    let mut results = b"{\"results\":[".to_vec();
    for (index, request) in requests.into_iter().enumerate() {
        if index > 0 {
            results.push(b',');
        }
        request.answer(&api, &format!("/requests/{index}"), |answer| {
            serde_json::to_writer(&mut results, &answer).map_err(reply::unwritable)
        })??;
        if (index + 1).is_multiple_of(REQUESTS_AT_ONCE) {
            // The parsed requests and the answers stay in memory while others get their turn.
            share.hold((taken + results.capacity()) as u64)?;
            tokio::task::yield_now().await;
        }
    }
    results.extend_from_slice(b"]}");
    Ok(reply::json_bytes(StatusCode::OK, false, results))
}

impl<'a> EligibilityRequest<'a> {
    fn memory_bytes(&self) -> usize {
        size_of::<Self>()
            + self.campaigns.capacity() * size_of::<Text<'_>>()
            + self.unless.capacity() * size_of::<Exclusion<'_>>()
    }

    /// Adds what is wrong with the request to `faults`.
    fn check(&self, at: &str, caller: &Caller, faults: &mut Faults) -> Result<(), Problem> {
        if let Some(fault) = item_lists::fault(&self.user) {
            faults.note(|| format!("{at}/user"), fault);
        }
        if !(1..=CAMPAIGNS_MAX).contains(&self.campaigns.len()) {
            faults.note(|| format!("{at}/campaigns"), format!("expected 1 to {CAMPAIGNS_MAX} elements"));
            return Ok(());
        }
        if self.unless.len() > UNLESS_MAX {
            faults.note(|| format!("{at}/unless"), format!("expected at most {UNLESS_MAX} elements"));
            return Ok(());
        }
        if !(1..=CAMPAIGNS_MAX as u32).contains(&self.limit) {
            faults.note(|| format!("{at}/limit"), format!("expected 1 to {CAMPAIGNS_MAX}"));
        }
        for (index, campaign) in self.campaigns.iter().enumerate() {
            check_name(campaign, || format!("{at}/campaigns/{index}"), caller, faults)?;
        }
        for (index, Exclusion { campaign, at_least, only_for }) in self.unless.iter().enumerate() {
            check_name(campaign, || format!("{at}/unless/{index}/campaign"), caller, faults)?;
            if *at_least == 0 {
                faults.note(|| format!("{at}/unless/{index}/at_least"), "expected 1 or more");
            }
            if let Some(only_for) = only_for {
                check_name(only_for, || format!("{at}/unless/{index}/for"), caller, faults)?;
            }
        }
        Ok(())
    }

    /// Hands the answer over to `write`, since it borrows from the request.
    fn answer<T>(self, api: &Api, at: &str, write: impl FnOnce(Eligibility<'_>) -> T) -> Result<T, Problem> {
        let Self { user, campaigns, unless, limit, explain } = self;
        let unless = unless
            .into_iter()
            .map(|Exclusion { campaign, at_least, only_for }| Unless { campaign, at_least, only_for })
            .collect();
        let line_up = LineUp { campaigns, unless, limit };
        let question = Question { user: &user, line_up: &line_up, limit: limit as usize, explain };
        let found = api.engine.evaluate(&question).map_err(|uncountable| {
            let Uncountable { condition, .. } = uncountable;
            Problem::invalid_at(&format!("{at}/unless/{condition}/at_least"), uncountable.to_string())
        })?;
        Ok(write(Eligibility::new(found, explain)))
    }
}

/// Refuses a name that the caller may not use, and adds one that is none to `faults`.
fn check_name(
    Text(name): &Text<'_>,
    at: impl FnOnce() -> String,
    caller: &Caller,
    faults: &mut Faults,
) -> Result<(), Problem> {
    if let Err(error) = Name::new(name) {
        faults.note(at, error.to_string());
    }
    Ok(caller.require_name(name)?)
}

impl<'a> Eligibility<'a> {
    fn new(found: engine::Eligibility<'a>, explain: bool) -> Self {
        let engine::Eligibility { eligible, evaluated, unknown, inactive, excluded, explanations } = found;
        let explanations = explain.then(|| explanations.iter().map(Explanation::new).collect());
        Self { eligible, evaluated, unknown, inactive, excluded, explanations }
    }
}

impl<'a> Explanation<'a> {
    fn new(explanation: &engine::Explanation<'a>) -> Self {
        Self {
            campaign: explanation.campaign,
            present: explanation.present,
            window: match explanation.window {
                WindowPosition::Before => PositionName::Before,
                WindowPosition::Inside => PositionName::Inside,
                WindowPosition::After => PositionName::After,
            },
            excluded_by: explanation.excluded_by,
            error_rate: error_rate_now(&explanation.view.describe().stats.segments),
            eligible: explanation.is_eligible(),
        }
    }
}
