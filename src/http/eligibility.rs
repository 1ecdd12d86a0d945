//! `/v1/eligibility`: which of several campaigns a user may see. `/v1/line-ups`: named eligibility queries, so that an ad server need not
//! contain them.

use super::api::{Api, ApiHandle};
use super::call::{Call, Delete, Manage, Read, Resource};
use super::filters::spec::{labels_schema, visible};
use super::request::json::{self, Faults, Item, JsonText};
use super::request::query::{CollectionPage, PageQuery};
use super::response::outgoing::{counted, used_up};
use super::response::success::ListParts;
use super::response::{Code, HandlerResult, Problem, RequestFault, success};
use crate::access::Caller;
use axum::extract::{Path, Request};
use cuckood_state::domain::name::{CAMPAIGNS_MAX, UNLESS_MAX};
use cuckood_state::domain::{
    Annotations, AnnotationsChange, Command, Kind, Labels, LineUp, Name, Outcome, PutLineUp, Title,
    Unless, UnlessReach, WindowPosition,
};
use cuckood_state::{Eligibility, Explanation, NamedLineUp, Question, Uncountable};
use http::StatusCode;
use serde::{Deserialize, Serialize, Serializer};
use serde_with::skip_serializing_none;
use std::borrow::Cow;
use std::sync::Arc;
use utoipa::ToSchema;

/// The most requests in one batch.
const REQUESTS_MAX: usize = 1_000;

/// Requests answered before others get their turn: with 256 campaigns each, less than a millisecond of work. A single explained one takes
/// the same time.
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
    /// 1 to 512 bytes. `normalize` of each campaign decides which spellings are the same.
    #[serde(borrow)]
    #[schema(value_type = String, min_length = 1, max_length = 512)]
    user: Item<'a>,
    /// At least one name, in order of preference. Absent or empty with `line_up`.
    #[serde(
        borrow,
        default,
        deserialize_with = "json::list::<{ CAMPAIGNS_MAX + 1 }, _, _>"
    )]
    #[schema(value_type = Vec<String>, max_items = 256)]
    campaigns: Vec<JsonText<'a>>,
    /// Exclusion lists and frequency caps.
    #[serde(
        borrow,
        default,
        deserialize_with = "json::list::<{ UNLESS_MAX + 1 }, _, _>"
    )]
    #[schema(max_items = 32)]
    unless: Vec<Exclusion<'a>>,
    /// The line-up, instead of `campaigns` and `unless`.
    #[serde(borrow, default)]
    #[schema(value_type = Option<String>, pattern = "^[a-z0-9][a-z0-9._-]{0,127}$")]
    line_up: Option<JsonText<'a>>,
    /// Maximum number of campaigns; by default 1, or the line-up's limit.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 256)]
    limit: Option<u32>,
    /// Whether to explain the result for each evaluated campaign.
    #[serde(default)]
    explain: bool,
}

/// The campaigns that the user may see.
#[skip_serializing_none]
#[derive(Serialize, ToSchema)]
#[schema(as = Eligibility, example = json!({
    "eligible": ["summer"], "evaluated": 2, "unknown": [], "inactive": [], "excluded": ["spring"]
}))]
struct EligibilityResponse<'a> {
    /// The first `limit` campaigns, in order, that are active, contain the user, and are not excluded by `unless`.
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
    /// Evaluated campaigns that are active and contain the user, but are excluded by `unless`.
    #[schema(value_type = Vec<String>)]
    excluded: Vec<&'a str>,
    /// With `explain`: one for each evaluated campaign that exists.
    explanations: Option<Vec<ExplanationResponse<'a>>>,
}

/// The reasons for or against a campaign.
#[skip_serializing_none]
#[derive(Serialize, ToSchema)]
#[schema(as = Explanation, example = json!({
    "campaign": "spring", "present": true, "window": "inside", "excluded_by": "opted-out", "error_rate": 0.0005, "eligible": false
}))]
struct ExplanationResponse<'a> {
    /// The campaign's name.
    #[schema(value_type = String)]
    campaign: &'a str,
    /// Whether the campaign contains the user.
    present: bool,
    /// The current time relative to the campaign's window.
    window: WindowPosition,
    /// The campaign of the first `unless` that excludes the user, even if there are other reasons.
    #[schema(value_type = Option<String>)]
    excluded_by: Option<&'a str>,
    /// The probability that `present` is true for an absent user.
    error_rate: f64,
    /// Whether the user may see the campaign.
    eligible: bool,
}

impl<'a> From<Eligibility<'a>> for EligibilityResponse<'a> {
    fn from(found: Eligibility<'a>) -> Self {
        let explanations = found
            .explanations
            .map(|all| all.into_iter().map(ExplanationResponse::from).collect());
        Self {
            eligible: found.eligible,
            evaluated: found.evaluated,
            unknown: found.unknown,
            inactive: found.inactive,
            excluded: found.excluded,
            explanations,
        }
    }
}

impl<'a> From<Explanation<'a>> for ExplanationResponse<'a> {
    fn from(explanation: Explanation<'a>) -> Self {
        Self {
            campaign: explanation.campaign,
            present: explanation.present,
            window: explanation.window,
            excluded_by: explanation.excluded_by,
            error_rate: explanation.error_rate,
            eligible: explanation.eligible,
        }
    }
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
#[derive(Serialize, ToSchema)]
#[schema(example = json!({"results": [{
    "eligible": ["summer"], "evaluated": 2, "unknown": [], "inactive": [], "excluded": ["spring"]
}]}))]
struct EligibilityResults<'a> {
    /// In the order of the requests.
    results: Vec<EligibilityResponse<'a>>,
}

/// Select the campaigns that a user may see
///
/// Evaluates the campaigns in order until `limit` of them are eligible.
#[utoipa::path(
    post, path = "/v1/eligibility", operation_id = "check_eligibility", tag = "eligibility",
    request_body = EligibilityRequest<'_>,
    responses(
        (status = 200, description = "The first `limit` eligible campaigns", body = EligibilityResponse<'_>),
        (status = 404, description = "`line-up-not-found`"),
    )
)]
pub(super) async fn one(call: Call<Read>, request: Request) -> HandlerResult {
    let Call { api, caller, .. } = &call;
    let body = call.body(request).await?;
    let request: EligibilityRequest<'_> = json::parse(&body)?;
    let mut faults = Faults::default();
    request.check("", caller, &mut faults)?;
    faults.check()?;
    request.respond(api, caller, "", |response| success::ok(&response))
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
pub(super) async fn batch(call: Call<Read>, request: Request) -> HandlerResult {
    let Call { api, caller, .. } = &call;
    let mut share = api.responses.share(Some(caller.owner()));
    let body = call.body(request).await?;
    let EligibilityBatch { requests } = json::parse(&body)?;
    let mut faults = Faults::default();
    json::check_length("requests", requests.len(), REQUESTS_MAX)?;
    for (index, request) in requests.iter().enumerate() {
        request.check(&format!("/requests/{index}"), caller, &mut faults)?;
    }
    faults.check()?;
    let taken: usize = requests.iter().map(EligibilityRequest::memory_bytes).sum();
    let empty = EligibilityResults {
        results: Vec::new(),
    };
    let mut results = serde_json::to_vec(&empty).map_err(success::unwritable)?;
    let end = results.split_off(results.len() - "]}".len());
    for (index, request) in requests.into_iter().enumerate() {
        if index > 0 {
            results.push(b',');
        }
        let is_explained = request.explain;
        request.respond(api, caller, &format!("/requests/{index}"), |response| {
            serde_json::to_writer(&mut results, &response).map_err(success::unwritable)
        })??;
        if is_explained || (index + 1).is_multiple_of(REQUESTS_AT_ONCE) {
            // The parsed requests and the results stay in memory while others get their turn.
            share
                .hold((taken + results.capacity()) as u64)
                .map_err(|_| used_up())?;
            tokio::task::yield_now().await;
        }
    }
    results.extend_from_slice(&end);
    // A slow client keeps the response in memory until it has accepted it.
    share
        .hold(results.capacity() as u64)
        .map_err(|_| used_up())?;
    Ok(success::json_held(results, share))
}

impl<'a> EligibilityRequest<'a> {
    fn memory_bytes(&self) -> usize {
        size_of::<Self>()
            + self.campaigns.capacity() * size_of::<JsonText<'_>>()
            + self.unless.capacity() * size_of::<Exclusion<'_>>()
    }

    /// Adds the request's errors to `faults`.
    fn check(&self, at: &str, caller: &Caller, faults: &mut Faults) -> Result<(), Problem> {
        if let Err(fault) = self.user.text() {
            faults.note(|| format!("{at}/user"), fault);
        }
        if let Some(limit) = self.limit {
            check_limit(limit, at, faults);
        }
        let Some(JsonText(line_up)) = &self.line_up else {
            return check(&self.campaigns, &self.unless, at, caller, faults);
        };
        check_name(line_up, || format!("{at}/line_up"), caller, faults)?;
        if !(self.campaigns.is_empty() && self.unless.is_empty()) {
            faults.note(
                || format!("{at}/line_up"),
                "give either a line-up, or campaigns and unless",
            );
        }
        Ok(())
    }

    /// Passes the result to `write`, since it borrows from the request.
    fn respond<T>(
        self,
        api: &Api,
        caller: &Caller,
        at: &str,
        write: impl FnOnce(EligibilityResponse<'_>) -> T,
    ) -> Result<T, Problem> {
        let Self {
            user,
            campaigns,
            unless,
            line_up,
            limit,
            explain,
        } = self;
        let user = user
            .text()
            .map_err(|fault| Problem::invalid_at(&format!("{at}/user"), fault))?;
        let limit = limit.map(|limit| limit as usize);
        let Some(JsonText(name)) = line_up else {
            let condition = |Exclusion {
                                 campaign,
                                 at_least,
                                 only_for,
                                 is_required,
                             }| Unless {
                campaign,
                at_least,
                reach: UnlessReach {
                    only_for,
                    is_required,
                },
            };
            let unless = unless.into_iter().map(condition).collect();
            let line_up = LineUp {
                campaigns,
                unless,
                limit: 1,
            };
            let question = Question {
                user,
                line_up: &line_up,
                limit: limit.unwrap_or(1),
                explain,
            };
            let found = api.engine.view().evaluate(&question, api.engine.now());
            let found = found.map_err(|uncountable| too_many_copies(&uncountable, at))?;
            return Ok(write(found.into()));
        };
        let at = || format!("{at}/line_up");
        let line_up = Name::new(&name)
            .ok()
            .and_then(|name| api.engine.view().line_up(&name));
        let line_up = line_up.ok_or_else(|| {
            let faults = vec![RequestFault {
                pointer: at(),
                detail: "unknown".into(),
            }];
            Problem {
                faults,
                ..Code::LineUpNotFound.into()
            }
        })?;
        let line_up = &line_up.line_up;
        // It may have been stored under another key, which may use other names.
        line_up
            .names()
            .try_for_each(|name| caller.require_name(name.as_str()))?;
        let limit = limit.unwrap_or(line_up.limit as usize);
        let found = api.engine.view().evaluate(
            &Question {
                user,
                line_up,
                limit,
                explain,
            },
            api.engine.now(),
        );
        let found = found.map_err(|uncountable| {
            let detail = format!("unless {}: {uncountable}", uncountable.condition);
            Problem::invalid_at(&at(), detail)
        })?;
        Ok(write(found.into()))
    }
}

/// A line-up to store.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"campaigns": ["spring", "summer"], "unless": [{"campaign": "opted-out"}]}))]
struct LineUpSpec<'a> {
    /// Names in order of preference. Campaigns that don't exist yet are allowed.
    #[serde(borrow, deserialize_with = "json::list::<{ CAMPAIGNS_MAX + 1 }, _, _>")]
    #[schema(value_type = Vec<String>, min_items = 1, max_items = 256)]
    campaigns: Vec<JsonText<'a>>,
    /// Exclusion lists and frequency caps.
    #[serde(
        borrow,
        default,
        deserialize_with = "json::list::<{ UNLESS_MAX + 1 }, _, _>"
    )]
    #[schema(max_items = 32)]
    unless: Vec<Exclusion<'a>>,
    /// Maximum number of campaigns, unless a request overrides it.
    #[serde(default = "one_by_default")]
    #[schema(minimum = 1, maximum = 256, default = 1)]
    limit: u32,
    /// Title in any language, up to 200 bytes without control characters, bidirectional marks and zero-width characters. If omitted, it remains; an empty string clears it.
    #[schema(value_type = Option<String>, max_length = 200, example = "Start page")]
    title: Option<Title>,
    #[schema(schema_with = labels_schema, required = false)]
    labels: Option<Labels>,
}

/// A line-up.
#[derive(Serialize, ToSchema)]
#[schema(as = LineUp, example = json!({"name": "home", "campaigns": ["spring", "summer"], "unless": [], "limit": 1}))]
struct LineUpResponse<'a> {
    #[schema(value_type = String, example = "home")]
    name: &'a str,
    /// Names in order of preference.
    #[schema(value_type = Vec<String>)]
    campaigns: Vec<&'a str>,
    /// Exclusion lists and frequency caps.
    unless: Vec<Exclusion<'a>>,
    /// Maximum number of campaigns.
    limit: u32,
    #[serde(skip_serializing_if = "Title::is_empty")]
    #[schema(value_type = Option<String>, max_length = 200, example = "Start page")]
    title: Title,
    #[serde(skip_serializing_if = "Labels::is_empty")]
    #[schema(schema_with = labels_schema, required = false)]
    labels: Labels,
}

/// A page of line-ups, sorted by name.
#[skip_serializing_none]
#[derive(Serialize, ToSchema)]
#[schema(example = json!({"line_ups": []}))]
struct LineUpList<'a> {
    line_ups: Vec<LineUpResponse<'a>>,
    /// The cursor of the next page; absent on the last one.
    next_cursor: Option<String>,
}

/// Create or replace a line-up
///
/// A named eligibility query. An omitted title, or omitted labels, remain as they are.
#[utoipa::path(
    put, path = "/v1/line-ups/{line_up}", operation_id = "put_line_up", tag = "line-ups",
    request_body = LineUpSpec<'_>,
    responses(
        (status = 200, description = "Replaced", body = LineUpResponse<'_>),
        (status = 201, description = "Created", body = LineUpResponse<'_>, headers(("Location" = String, description = "Its path"))),
    )
)]
pub(super) async fn put_line_up(
    call: Call<Manage>,
    Path(name): Path<String>,
    request: Request,
) -> HandlerResult {
    let name = parse_name(&name)?;
    let body = call.body(request).await?;
    let LineUpSpec {
        campaigns,
        unless,
        limit,
        title,
        labels,
    } = json::parse(&body)?;
    let mut faults = Faults::default();
    check_limit(limit, "", &mut faults);
    check(&campaigns, &unless, "", &call.caller, &mut faults)?;
    faults.check()?;
    let line_up = owned(&campaigns, &unless, limit)?;
    check_copies(&call.api, &line_up)?;
    let annotations = visible(AnnotationsChange::set(title, labels))?;
    let room = call.reserve(LINE_UP_BYTES)?;
    let command = Command::PutLineUp(PutLineUp {
        name: name.clone(),
        line_up: line_up.clone(),
        annotations,
    });
    let decided = call
        .submit(Resource::LineUp(name.as_str()), command)
        .await?;
    let Outcome::LineUpStored {
        created,
        annotations,
    } = decided.outcome
    else {
        return Err(decided.unexpected());
    };
    let response = line_up_response(&name, &line_up, *annotations);
    let response = match created {
        true => success::created(&format!("/v1/line-ups/{name}"), decided.replayed, &response),
        false => success::json(StatusCode::OK, decided.replayed, &response),
    };
    Ok(counted(response, room))
}

/// List line-ups
///
/// A key with a prefix sees the line-ups that contain only its names.
#[utoipa::path(
    get, path = "/v1/line-ups", operation_id = "list_line_ups", tag = "line-ups",
    params(PageQuery),
    responses((status = 200, description = "A page, sorted by name", body = LineUpList<'_>))
)]
pub(super) async fn list_line_ups(call: Call<Read>, request: Request) -> HandlerResult {
    let Call { api, caller, .. } = call;
    let page = LineUpPage {
        page: CollectionPage::asked(&request, &caller)?,
        api,
        caller,
    };
    success::list(
        &LineUpList {
            line_ups: Vec::new(),
            next_cursor: None,
        },
        page,
    )
    .await
}

/// Maximum size of a line-up in a response: 256 campaigns and 32 conditions with long names, a title and labels.
const LINE_UP_BYTES: u64 = 64 << 10;

/// Line-ups that are read together: a long one has 40 KB.
const LINE_UPS_READ: usize = 4;

/// A page of line-ups.
struct LineUpPage {
    api: ApiHandle,
    caller: Caller,
    page: CollectionPage,
}

impl ListParts for LineUpPage {
    type Entry = StoredLineUp;

    fn read(&mut self) -> Result<Option<Vec<StoredLineUp>>, Problem> {
        let view = self.api.engine.view();
        let find =
            |prefix: &str, after: Option<&Name>, limit| view.list_line_ups(prefix, after, limit);
        let read = self.page.read(LINE_UPS_READ, find, |found| {
            (&found.name, &found.annotations.labels)
        });
        let Some(mut found) = read else {
            return Ok(None);
        };
        found.retain(|found| self.caller.sees(found));
        Ok(Some(found.into_iter().map(StoredLineUp).collect()))
    }

    fn next_cursor(&self) -> Option<String> {
        self.page.next_cursor()
    }
}

/// A line-up of a list.
struct StoredLineUp(Arc<NamedLineUp>);

impl Serialize for StoredLineUp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        stored(&self.0).serialize(serializer)
    }
}

/// Show a line-up
///
/// The query as it is stored.
#[utoipa::path(
    get, path = "/v1/line-ups/{line_up}", operation_id = "get_line_up", tag = "line-ups",
    responses((status = 200, description = "The line-up", body = LineUpResponse<'_>))
)]
pub(super) async fn get_line_up(call: Call<Read>, Path(name): Path<String>) -> HandlerResult {
    let Call { api, caller, .. } = &call;
    let found = api
        .engine
        .view()
        .line_up(&parse_name(&name)?)
        .ok_or(Code::LineUpNotFound)?;
    // It may have been stored under another key, which may use other names.
    found
        .line_up
        .names()
        .try_for_each(|name| caller.require_name(name.as_str()))?;
    Ok(success::ok(&stored(&found)))
}

/// Delete a line-up
///
/// Its campaigns remain.
#[utoipa::path(
    delete, path = "/v1/line-ups/{line_up}", operation_id = "delete_line_up", tag = "line-ups",
    responses((status = 204, description = "Deleted; its campaigns remain"))
)]
pub(super) async fn delete_line_up(call: Call<Delete>, Path(name): Path<String>) -> HandlerResult {
    let name = parse_name(&name)?;
    // A repeated request finds its stored outcome even after the line-up was deleted.
    if call.api.engine.view().line_up(&name).is_none() && !call.may_repeat() {
        return Err(Code::LineUpNotFound.into());
    }
    let command = Command::DeleteLineUp { name: name.clone() };
    let decided = call
        .submit(Resource::LineUp(name.as_str()), command)
        .await?;
    let Outcome::LineUpDeleted = decided.outcome else {
        return Err(decided.unexpected());
    };
    Ok(success::empty(decided.replayed))
}

fn parse_name(name: &str) -> Result<Name, Problem> {
    Name::new(name).map_err(Problem::at("/line_up"))
}

/// A line-up with owned names.
fn owned(
    campaigns: &[JsonText<'_>],
    unless: &[Exclusion<'_>],
    limit: u32,
) -> Result<LineUp, Problem> {
    let name = |JsonText(name): &JsonText<'_>| Name::new(name).map_err(Problem::at(""));
    let owned = |Exclusion {
                     campaign,
                     at_least,
                     only_for,
                     is_required,
                 }: &Exclusion<'_>| {
        let only_for = only_for.as_ref().map(name).transpose()?;
        Ok(Unless {
            campaign: name(campaign)?,
            at_least: *at_least,
            reach: UnlessReach {
                only_for,
                is_required: *is_required,
            },
        })
    };
    let campaigns = campaigns.iter().map(name).collect::<Result<_, _>>()?;
    let unless = unless.iter().map(owned).collect::<Result<_, Problem>>()?;
    Ok(LineUp {
        campaigns,
        unless,
        limit,
    })
}

/// Rejects a condition with more copies than its campaign can count. If the campaign is created later, requests are rejected.
fn check_copies(api: &Api, line_up: &LineUp) -> Result<(), Problem> {
    for (condition, unless) in line_up.unless.iter().enumerate() {
        if let Some(view) = api.engine.view().find(Kind::Campaign, &unless.campaign)
            && unless.at_least > view.copies_max()
        {
            let copies_max = view.copies_max();
            return Err(too_many_copies(
                &Uncountable {
                    condition,
                    copies_max,
                },
                "",
            ));
        }
    }
    Ok(())
}

fn stored(
    NamedLineUp {
        name,
        line_up,
        annotations,
        ..
    }: &NamedLineUp,
) -> LineUpResponse<'_> {
    line_up_response(name, line_up, annotations.clone())
}

fn line_up_response<'a>(
    name: &'a Name,
    line_up: &'a LineUp,
    annotations: Annotations,
) -> LineUpResponse<'a> {
    let Annotations { title, labels } = annotations;
    let text = |name: &'a Name| JsonText(Cow::Borrowed(name.as_str()));
    let exclusion = |unless: &'a Unless| Exclusion {
        campaign: text(&unless.campaign),
        at_least: unless.at_least,
        only_for: unless.reach.only_for.as_ref().map(text),
        is_required: unless.reach.is_required,
    };
    LineUpResponse {
        name: name.as_str(),
        campaigns: line_up.campaigns.iter().map(Name::as_str).collect(),
        unless: line_up.unless.iter().map(exclusion).collect(),
        limit: line_up.limit,
        title,
        labels,
    }
}

/// Excludes the user while another campaign is active and holds enough copies of the user.
#[derive(Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"campaign": "summer.seen", "at_least": 3, "for": "summer"}))]
struct Exclusion<'a> {
    /// The other campaign. A missing one excludes no user, unless it is `required`, and is listed under `unknown`.
    #[serde(borrow)]
    #[schema(value_type = String, pattern = "^[a-z0-9][a-z0-9._-]{0,127}$")]
    campaign: JsonText<'a>,
    /// Minimum number of copies: 1 for an exclusion list, more for a frequency cap. At most its `stats.copies_max`.
    #[serde(default = "one_by_default")]
    #[schema(value_type = u64, minimum = 1, maximum = 4_294_967_295_u64, default = 1)]
    at_least: u32,
    /// The campaign from which the user is excluded; by default all.
    #[serde(
        borrow,
        rename = "for",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    #[schema(value_type = Option<String>, pattern = "^[a-z0-9][a-z0-9._-]{0,127}$")]
    only_for: Option<JsonText<'a>>,
    /// The campaign excludes every user while it is missing, or outside its window: for opt-outs, which must never fail open. Then it is
    /// listed under `unknown` or `inactive`.
    #[serde(
        rename = "required",
        default,
        skip_serializing_if = "std::ops::Not::not"
    )]
    #[schema(default = false)]
    is_required: bool,
}

/// The default of `limit` and `at_least`, for serde.
fn one_by_default() -> u32 {
    1
}

/// Adds errors of campaigns and conditions to `faults`. The pointers start with `at`.
///
/// # Errors
/// A name that the caller may not use (403).
fn check(
    campaigns: &[JsonText<'_>],
    unless: &[Exclusion<'_>],
    at: &str,
    caller: &Caller,
    faults: &mut Faults,
) -> Result<(), Problem> {
    if !(1..=CAMPAIGNS_MAX).contains(&campaigns.len()) {
        faults.note(
            || format!("{at}/campaigns"),
            format!("expected 1 to {CAMPAIGNS_MAX} elements"),
        );
        return Ok(());
    }
    if unless.len() > UNLESS_MAX {
        faults.note(
            || format!("{at}/unless"),
            format!("expected at most {UNLESS_MAX} elements"),
        );
        return Ok(());
    }
    for (index, JsonText(campaign)) in campaigns.iter().enumerate() {
        check_name(
            campaign,
            || format!("{at}/campaigns/{index}"),
            caller,
            faults,
        )?;
    }
    for (
        index,
        Exclusion {
            campaign: JsonText(campaign),
            at_least,
            only_for,
            ..
        },
    ) in unless.iter().enumerate()
    {
        check_name(
            campaign,
            || format!("{at}/unless/{index}/campaign"),
            caller,
            faults,
        )?;
        if *at_least == 0 {
            faults.note(
                || format!("{at}/unless/{index}/at_least"),
                "expected 1 or more",
            );
        }
        if let Some(JsonText(only_for)) = only_for {
            check_name(
                only_for,
                || format!("{at}/unless/{index}/for"),
                caller,
                faults,
            )?;
        }
    }
    Ok(())
}

/// Adds to `faults` that a limit is too low or too high.
fn check_limit(limit: u32, at: &str, faults: &mut Faults) {
    if !(1..=CAMPAIGNS_MAX as u32).contains(&limit) {
        faults.note(
            || format!("{at}/limit"),
            format!("expected 1 to {CAMPAIGNS_MAX}"),
        );
    }
}

/// Adds a name that is none to `faults`.
///
/// # Errors
/// A name that the caller may not use (403).
fn check_name(
    name: &str,
    at: impl FnOnce() -> String,
    caller: &Caller,
    faults: &mut Faults,
) -> Result<(), Problem> {
    if let Err(error) = Name::new(name) {
        faults.note(at, error.to_string());
    }
    Ok(caller.require_name(name)?)
}

/// The problem of a condition that asks for too many copies.
fn too_many_copies(uncountable: &Uncountable, at: &str) -> Problem {
    let pointer = format!("{at}/unless/{}/at_least", uncountable.condition);
    Problem::invalid_at(&pointer, uncountable.to_string())
}
