//! `/v1/events`: what has happened, in order: the audit trail, and what a webhook sender or a data warehouse reads.

use super::answer::problem::{Code, Problem};
use super::api::{Api, caller};
use super::imports::representation::{ImportModeName, ImportStateName, failure};
use super::lines::Lines;
use super::redemptions::RedemptionStatus;
use super::request::query;
use super::request::time::Time;
use super::schema::Bytes;
use crate::domain::{
    Event, FilterChange, Happened, ImportCounts, Kind, LineUpChange, RedemptionStep, Timestamp, Window,
};
use crate::engine::{EventReader, NumberedEvent};
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use futures_util::{StreamExt, stream};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use utoipa::{IntoParams, ToSchema};

/// The default and the largest number of events in one answer.
const LIMIT_DEFAULT: usize = 1_000;
const LIMIT_MAX: usize = 10_000;

/// The columns of events as CSV.
const COLUMNS: &[&str] = &[
    "seq",
    "at",
    "key",
    "event",
    "campaign",
    "coupon",
    "line_up",
    "capacity",
    "stock",
    "starts_at",
    "ends_at",
    "id",
    "reference",
    "status",
    "expires_at",
    "ordinal",
    "import",
    "mode",
    "state",
    "failure",
    "lines",
    "added",
    "already_present",
    "already_redeemed",
    "rejected",
    "removed",
    "replaced",
    "redemptions",
    "holds",
];

/// The longest time to wait for the next event, in seconds.
const WAIT_MAX: u64 = 30;

/// The highest number of an event: clients have them as 64 bits with a sign.
const NUMBER_MAX: u64 = i64::MAX as u64;

fn limit_default() -> usize {
    LIMIT_DEFAULT
}

/// Which events to read.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct EventQuery {
    /// Only those after the event of this number. If the one that follows it is no longer kept, the answer is 410. By default all
    /// that are kept.
    #[param(minimum = 0)]
    after: Option<u64>,
    /// The most events in the answer.
    #[serde(default = "limit_default")]
    #[param(minimum = 1, maximum = 10_000, default = 1_000)]
    limit: usize,
    /// How many seconds to wait for the next event if there is none yet.
    #[serde(default)]
    #[param(minimum = 0, maximum = 30, default = 0)]
    wait: u64,
}

/// What has happened. More kinds may come.
#[derive(Clone, Copy, Serialize, ToSchema)]
#[schema(as = EventName)]
pub(super) enum EventName {
    /// A campaign was created.
    #[serde(rename = "campaign.created")]
    CampaignCreated,
    /// Its capacity, `starts_at` or `ends_at` was changed. All are as they are now.
    #[serde(rename = "campaign.changed")]
    CampaignChanged,
    /// All users of a campaign were removed.
    #[serde(rename = "campaign.cleared")]
    CampaignCleared,
    /// A campaign was deleted.
    #[serde(rename = "campaign.deleted")]
    CampaignDeleted,
    /// A coupon was created.
    #[serde(rename = "coupon.created")]
    CouponCreated,
    /// Its capacity, stock, `starts_at` or `ends_at` was changed. All are as they are now.
    #[serde(rename = "coupon.changed")]
    CouponChanged,
    /// All codes that were neither held nor redeemed were removed.
    #[serde(rename = "coupon.cleared")]
    CouponCleared,
    /// A coupon was deleted, with its redemptions.
    #[serde(rename = "coupon.deleted")]
    CouponDeleted,
    /// A line-up was created.
    #[serde(rename = "line_up.created")]
    LineUpCreated,
    /// A line-up was replaced by another one.
    #[serde(rename = "line_up.changed")]
    LineUpChanged,
    /// A line-up was deleted.
    #[serde(rename = "line_up.deleted")]
    LineUpDeleted,
    /// A request has added users.
    #[serde(rename = "users.added")]
    UsersAdded,
    /// A request has removed users.
    #[serde(rename = "users.removed")]
    UsersRemoved,
    /// A request has replaced users by others.
    #[serde(rename = "users.replaced")]
    UsersReplaced,
    /// A request has added codes, or made redeemed ones available again.
    #[serde(rename = "codes.added")]
    CodesAdded,
    /// A request has withdrawn codes.
    #[serde(rename = "codes.withdrawn")]
    CodesWithdrawn,
    /// A request has replaced codes by others.
    #[serde(rename = "codes.replaced")]
    CodesReplaced,
    /// An import is no longer running.
    #[serde(rename = "import.ended")]
    ImportEnded,
    /// A code was redeemed or held.
    #[serde(rename = "redemption.created")]
    RedemptionCreated,
    /// A hold was extended.
    #[serde(rename = "redemption.extended")]
    RedemptionExtended,
    /// A held code was redeemed.
    #[serde(rename = "redemption.confirmed")]
    RedemptionConfirmed,
    /// A redemption was cancelled, or its code was withdrawn or made available again.
    #[serde(rename = "redemption.cancelled")]
    RedemptionCancelled,
    /// A hold expired.
    #[serde(rename = "redemption.expired")]
    RedemptionExpired,
    /// A hold that only a wrong clock had ended is active again. At most 10 000 of them are told one by one.
    #[serde(rename = "redemption.reinstated")]
    RedemptionReinstated,
    /// `cuckood repair clock` has turned the time back.
    #[serde(rename = "clock.turned_back")]
    ClockTurnedBack,
    /// The data was restored from a backup: earlier events that are not kept here may be undone.
    #[serde(rename = "backup.restored")]
    BackupRestored,
    /// `cuckood repair skip` has marked an entry of the log: its write has had no effect.
    #[serde(rename = "entry.skipped")]
    EntrySkipped,
}

/// Something that has happened. It never names a code or a user.
#[derive(Serialize, ToSchema)]
#[schema(as = EventLine)]
pub(super) struct EventAnswer {
    /// Its number. Later events have higher ones, not always the next, and no number is ever used twice.
    #[schema(minimum = 1, example = 4711)]
    seq: u64,
    /// When it happened.
    at: Time,
    /// The name of the API key that asked for it. Absent if no key did: without keys, or if it happened by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "shop")]
    key: Option<String>,
    event: EventName,
    /// The campaign that it concerns.
    #[serde(skip_serializing_if = "Option::is_none")]
    campaign: Option<String>,
    /// The coupon that it concerns.
    #[serde(skip_serializing_if = "Option::is_none")]
    coupon: Option<String>,
    /// The line-up that it concerns.
    #[serde(skip_serializing_if = "Option::is_none")]
    line_up: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    capacity: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stock: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    starts_at: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ends_at: Option<Time>,
    /// The redemption.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(pattern = "^[0-9a-f]{32}$", example = "0f5e3c2b9a7d4f1e8c6b5a4938271605")]
    id: Option<String>,
    /// The caller's own id of the redemption.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "order-42")]
    reference: Option<String>,
    /// The redemption's status now.
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<RedemptionStatus>,
    /// When the hold expires.
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at: Option<Time>,
    /// In an open pool: the redemption's number. No other has it while this one is held or redeemed; an end frees it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, example = 17)]
    ordinal: Option<u64>,
    /// The id of the import.
    #[serde(skip_serializing_if = "Option::is_none")]
    import: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mode: Option<ImportModeName>,
    /// The state in which the import ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<ImportStateName>,
    /// Why the import failed or was stopped.
    #[serde(skip_serializing_if = "Option::is_none")]
    failure: Option<Code>,
    /// Lines that the import has read.
    #[serde(skip_serializing_if = "Option::is_none")]
    lines: Option<u64>,
    /// How many users or codes were added.
    #[serde(skip_serializing_if = "Option::is_none")]
    added: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    already_present: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    already_redeemed: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rejected: Option<u64>,
    /// How many users or codes were removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    removed: Option<u64>,
    /// How many users or codes were replaced.
    #[serde(skip_serializing_if = "Option::is_none")]
    replaced: Option<u64>,
    /// How many redemptions had times in the future.
    #[serde(skip_serializing_if = "Option::is_none")]
    redemptions: Option<u64>,
    /// How many holds are active again.
    #[serde(skip_serializing_if = "Option::is_none")]
    holds: Option<u64>,
    /// The position of the entry that was skipped.
    #[serde(skip_serializing_if = "Option::is_none")]
    entry: Option<u64>,
}

impl EventAnswer {
    /// An event of which no more is said.
    fn plain(seq: u64, at: Timestamp, key: Option<String>, event: EventName) -> Self {
        Self {
            seq,
            at: Time(at),
            key,
            event,
            campaign: None,
            coupon: None,
            line_up: None,
            capacity: None,
            stock: None,
            starts_at: None,
            ends_at: None,
            id: None,
            reference: None,
            status: None,
            expires_at: None,
            ordinal: None,
            import: None,
            mode: None,
            state: None,
            failure: None,
            lines: None,
            added: None,
            already_present: None,
            already_redeemed: None,
            rejected: None,
            removed: None,
            replaced: None,
            redemptions: None,
            holds: None,
            entry: None,
        }
    }

    /// The same event of the campaign or coupon of this name.
    fn of(self, kind: Kind, name: Cow<'static, str>) -> Self {
        let name = Some(name.into_owned());
        match kind {
            Kind::Campaign => Self { campaign: name, ..self },
            Kind::Coupon => Self { coupon: name, ..self },
        }
    }
}

impl From<NumberedEvent> for EventAnswer {
    fn from(NumberedEvent { number, event: Event { at, by, what } }: NumberedEvent) -> Self {
        let plain = EventAnswer::plain(number, at, by.map(Cow::into_owned), name(&what));
        match what {
            Happened::Filter { kind, name, change } => of_filter(plain.of(kind, name), change),
            Happened::LineUp { name, .. } => EventAnswer { line_up: Some(name.into_owned()), ..plain },
            Happened::ImportEnded { kind, name, import, mode, state, counts } => {
                let ImportCounts { lines, added, already_present, already_redeemed, rejected } = counts;
                EventAnswer {
                    import: Some(import.into_owned()),
                    mode: Some(mode.into()),
                    failure: failure(kind, state).map(|problem| problem.code),
                    state: Some(state.into()),
                    lines: Some(lines),
                    added: Some(added),
                    already_present: Some(already_present),
                    already_redeemed: Some(already_redeemed),
                    rejected: Some(rejected),
                    ..plain.of(kind, name)
                }
            }
            Happened::Redemption { coupon, id, reference, status, expires_at, ordinal, .. } => EventAnswer {
                id: Some(id.to_string()),
                reference: Some(reference.into_owned()),
                status: Some(status.into()),
                expires_at: expires_at.map(Time),
                ordinal,
                ..plain.of(Kind::Coupon, coupon)
            },
            Happened::TurnedBack { redemptions, holds } => {
                EventAnswer { redemptions: Some(redemptions), holds: Some(holds), ..plain }
            }
            Happened::Restored => plain,
            Happened::Skipped { entry } => EventAnswer { entry: Some(entry), ..plain },
        }
    }
}

fn of_filter(plain: EventAnswer, change: FilterChange) -> EventAnswer {
    match change {
        FilterChange::Created | FilterChange::Deleted => plain,
        FilterChange::Updated { window: Window { starts_at, ends_at }, capacity, stock } => {
            let (starts_at, ends_at) = (starts_at.map(Time), ends_at.map(Time));
            EventAnswer { capacity: Some(capacity), stock, starts_at, ends_at, ..plain }
        }
        FilterChange::Cleared(removed) | FilterChange::Removed(removed) => {
            EventAnswer { removed: Some(removed), ..plain }
        }
        FilterChange::Added(added) => EventAnswer { added: Some(added), ..plain },
        FilterChange::Replaced(replaced) => EventAnswer { replaced: Some(replaced), ..plain },
    }
}

fn name(what: &Happened<'_>) -> EventName {
    match what {
        Happened::Filter { kind: Kind::Campaign, change, .. } => match change {
            FilterChange::Created => EventName::CampaignCreated,
            FilterChange::Updated { .. } => EventName::CampaignChanged,
            FilterChange::Cleared(_) => EventName::CampaignCleared,
            FilterChange::Deleted => EventName::CampaignDeleted,
            FilterChange::Added(_) => EventName::UsersAdded,
            FilterChange::Removed(_) => EventName::UsersRemoved,
            FilterChange::Replaced(_) => EventName::UsersReplaced,
        },
        Happened::Filter { kind: Kind::Coupon, change, .. } => match change {
            FilterChange::Created => EventName::CouponCreated,
            FilterChange::Updated { .. } => EventName::CouponChanged,
            FilterChange::Cleared(_) => EventName::CouponCleared,
            FilterChange::Deleted => EventName::CouponDeleted,
            FilterChange::Added(_) => EventName::CodesAdded,
            FilterChange::Removed(_) => EventName::CodesWithdrawn,
            FilterChange::Replaced(_) => EventName::CodesReplaced,
        },
        Happened::LineUp { change: LineUpChange::Created, .. } => EventName::LineUpCreated,
        Happened::LineUp { change: LineUpChange::Replaced, .. } => EventName::LineUpChanged,
        Happened::LineUp { change: LineUpChange::Deleted, .. } => EventName::LineUpDeleted,
        Happened::ImportEnded { .. } => EventName::ImportEnded,
        Happened::Redemption { step, .. } => match step {
            RedemptionStep::Created => EventName::RedemptionCreated,
            RedemptionStep::Extended => EventName::RedemptionExtended,
            RedemptionStep::Confirmed => EventName::RedemptionConfirmed,
            RedemptionStep::Cancelled => EventName::RedemptionCancelled,
            RedemptionStep::Expired => EventName::RedemptionExpired,
            RedemptionStep::HeldAgain => EventName::RedemptionReinstated,
        },
        Happened::TurnedBack { .. } => EventName::ClockTurnedBack,
        Happened::Restored => EventName::BackupRestored,
        Happened::Skipped { .. } => EventName::EntrySkipped,
    }
}

/// Read events
///
/// What has happened, in order, one event per line: campaigns, coupons and line-ups created, changed, cleared or deleted, imports ended,
/// redemptions, and how many items requests have added or removed. To follow them, ask again with `after` set to the last `seq`,
/// and with `wait`. `Accept: text/csv` returns them as CSV with a header row. Events are kept for `events.retention`.
#[utoipa::path(
    get,
    path = "/v1/events",
    operation_id = "list_events",
    tag = "operations",
    params(EventQuery),
    responses(
        (
            status = 200,
            description = "The events, one `EventLine` per line; none if there are no new ones",
            content(
                (inline(Bytes) = "application/x-ndjson"),
                (String = "text/csv"),
            )
        ),
        (status = 410, description = "`events-gone`: the event after `after` is no longer kept, or none are kept at all"),
        (status = 503, description = "`overloaded`: too many requests are waiting for events; `draining`, `storage-failed`"),
    )
)]
pub(super) async fn list(State(api): State<Arc<Api>>, request: Request) -> Result<Response, Problem> {
    caller(&request)?.require_all_names()?;
    let lines = Lines::preferred(request.headers(), COLUMNS).unwrap_or(Lines::Ndjson);
    let EventQuery { after, limit, wait } = query::parse(&request)?;
    if !(1..=LIMIT_MAX).contains(&limit) {
        return Err(Problem::invalid_at("/limit", format!("expected 1 to {LIMIT_MAX}")));
    }
    if wait > WAIT_MAX {
        return Err(Problem::invalid_at("/wait", format!("expected 0 to {WAIT_MAX} seconds")));
    }
    if after > Some(NUMBER_MAX) {
        return Err(Problem::invalid_at("/after", format!("expected 0 to {NUMBER_MAX}")));
    }
    let mut reader = api.engine.events_after(after);
    let mut events = reader.read().await?;
    if events.is_empty() && wait > 0 {
        let patience = tokio::time::sleep(Duration::from_secs(wait));
        tokio::select! {
            come = reader.wait() => {
                come?;
                events = reader.read().await?;
            }
            () = patience => {}
            // Nobody should have to wait for this.
            () = api.stopping.uploads_end() => {}
        }
    }
    Ok(answer(reader, events, limit, lines))
}

/// Streams up to `limit` events, of which the first are read already.
fn answer(reader: EventReader, first: Vec<NumberedEvent>, limit: usize, lines: Lines) -> Response {
    let start = (reader, Some(first), limit, lines.header());
    let parts = stream::unfold(start, move |(mut reader, first, limit, mut part)| async move {
        let events = match first {
            Some(first) => Ok(first),
            None if limit == 0 => return None,
            None => reader.read().await,
        };
        let (part, left) = match events {
            Ok(events) if events.is_empty() && part.is_empty() => return None,
            Ok(mut events) => {
                events.truncate(limit);
                let left = if events.is_empty() { 0 } else { limit - events.len() };
                let written = lines.write(events.into_iter().map(EventAnswer::from), &mut part);
                (written.map(|()| part).map_err(io::Error::from), left)
            }
            // The client notices, because the response breaks off.
            Err(error) => (Err(io::Error::other(error)), 0),
        };
        Some((part, (reader, None, left, Vec::new())))
    });
    lines.response(Body::from_stream(parts.fuse()))
}
