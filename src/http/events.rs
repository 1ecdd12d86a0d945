//! `/v1/events`: all changes in order: the audit trail, and the input of a webhook sender or a data warehouse.

use super::call::{Call, Follow};
use super::imports::{ImportStateName, failure};
use super::request::body::StreamedBody;
use super::request::query;
use super::response::success::LineFormat;
use super::response::{Code, HandlerResult, Problem};
use crate::engine::{EventReader, NumberedEvent};
use crate::socket::Peer;
use axum::extract::Request;
use axum::response::Response;
use cuckood_state::domain::{
    Event, FilterChange, Happened, ImportCounts, ImportMode, Kind, LineUpChange, RedemptionStatus,
    RedemptionStep, Timestamp, Window,
};
use futures_util::stream;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;
use std::borrow::Cow;
use std::time::Duration;
use utoipa::{IntoParams, ToSchema};

/// The largest number of events in one response.
const LIMIT_MAX: usize = 10_000;

/// The columns of events as CSV.
pub(super) const COLUMNS: &str = "seq,at,key,event,campaign,coupon,line_up,capacity,stock,starts_at,ends_at,id,reference,status,\
    expires_at,ordinal,import,mode,state,failure,lines,added,already_present,already_redeemed,rejected,\
    removed,replaced,redemptions,holds,entry,released";

/// The longest time to wait for the next event, in seconds.
const WAIT_MAX: u64 = 30;

/// The highest number of an event: clients have them as 64 bits with a sign.
const NUMBER_MAX: u64 = i64::MAX as u64;

/// The default number of events in a response.
const LIMIT_DEFAULT: usize = 1_000;

/// Which events to read.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct EventQuery {
    /// Only events after this number. If the next one is no longer stored, the response is 410. By default all stored events.
    #[param(minimum = 0)]
    after: Option<u64>,
    /// Maximum number of events in the response.
    #[param(minimum = 1, maximum = 10_000, default = 1_000)]
    limit: Option<usize>,
    /// Seconds to wait for the next event if there is none yet.
    #[serde(default)]
    #[param(minimum = 0, maximum = 30, default = 0)]
    wait: u64,
}

/// Defines the names of events.
macro_rules! event_names {
    ($($(#[$attribute:meta])* $name:ident: $word:tt;)*) => {
        /// The kind of event. Later versions may add kinds.
        #[derive(Clone, Copy, Default, Serialize, ToSchema)]
        pub(super) enum EventName {
            $($(#[$attribute])* #[serde(rename = $word)] $name,)*
        }
    };
}

event_names! {
    /// A campaign was created.
    #[default]
    CampaignCreated: "campaign.created";
    /// Its capacity, window, title or labels were changed. The event has the current capacity and window.
    CampaignChanged: "campaign.changed";
    /// All users of a campaign were removed.
    CampaignCleared: "campaign.cleared";
    /// A campaign was deleted.
    CampaignDeleted: "campaign.deleted";
    /// A coupon was created.
    CouponCreated: "coupon.created";
    /// Its capacity, stock, window, title or labels were changed. The event has the current capacity, stock and window.
    CouponChanged: "coupon.changed";
    /// All codes that were neither held nor redeemed were removed.
    CouponCleared: "coupon.cleared";
    /// A coupon was deleted, with its redemptions.
    CouponDeleted: "coupon.deleted";
    /// A line-up was created.
    LineUpCreated: "line_up.created";
    /// A line-up was replaced by another one.
    LineUpChanged: "line_up.changed";
    /// A line-up was deleted.
    LineUpDeleted: "line_up.deleted";
    /// A request has added users.
    UsersAdded: "users.added";
    /// A request has removed users.
    UsersRemoved: "users.removed";
    /// A request has replaced users by others.
    UsersReplaced: "users.replaced";
    /// A request has added codes, or made redeemed ones available again.
    CodesAdded: "codes.added";
    /// A request has withdrawn codes.
    CodesWithdrawn: "codes.withdrawn";
    /// A request has replaced codes by others.
    CodesReplaced: "codes.replaced";
    /// An import is no longer running.
    ImportEnded: "import.ended";
    /// A code was redeemed or held.
    RedemptionCreated: "redemption.created";
    /// A hold was extended.
    RedemptionExtended: "redemption.extended";
    /// A held code was redeemed.
    RedemptionConfirmed: "redemption.confirmed";
    /// A redemption was cancelled, or its code was withdrawn or made available again.
    RedemptionCancelled: "redemption.cancelled";
    /// A hold expired.
    RedemptionExpired: "redemption.expired";
    /// A hold that only a wrong clock had ended is active again. At most 10 000 of them are reported individually.
    RedemptionReinstated: "redemption.reinstated";
    /// `cuckood repair clock` has turned the time back.
    ClockTurnedBack: "clock.turned_back";
    /// The data was restored from a backup: earlier events that are not kept here may be undone.
    BackupRestored: "backup.restored";
    /// `cuckood repair skip` has marked an entry of the log: its write has had no effect.
    EntrySkipped: "entry.skipped";
}

/// An event. It never contains a code or a user.
#[skip_serializing_none]
#[derive(Default, Serialize, ToSchema)]
#[schema(as = EventLine, example = json!({
    "seq": 4711, "at": "2026-12-01T00:00:00.000Z", "key": "shop", "event": "users.added", "campaign": "spring", "added": 2
}))]
pub(super) struct EventResponse {
    /// The event's number. Later events have higher, possibly not consecutive numbers. With `storage.durability = "fsync"`, numbers are never reused.
    #[schema(minimum = 1, example = 4711)]
    seq: u64,
    /// When it happened.
    at: Timestamp,
    /// The name of the request's API key. Absent without keys, and for expiries.
    #[schema(example = "shop")]
    key: Option<String>,
    event: EventName,
    /// The campaign that it concerns.
    campaign: Option<String>,
    /// The coupon that it concerns.
    coupon: Option<String>,
    /// The line-up that it concerns.
    line_up: Option<String>,
    capacity: Option<u64>,
    stock: Option<u64>,
    starts_at: Option<Timestamp>,
    ends_at: Option<Timestamp>,
    /// The redemption.
    #[schema(
        pattern = "^[0-9a-f]{32}$",
        example = "0f5e3c2b9a7d4f1e8c6b5a4938271605"
    )]
    id: Option<String>,
    /// The caller's id of the redemption.
    #[schema(example = "order-42")]
    reference: Option<String>,
    /// The redemption's status now.
    status: Option<RedemptionStatus>,
    /// When the hold expires.
    expires_at: Option<Timestamp>,
    /// In an open pool: the redemption's number, unique among held and redeemed ones.
    #[schema(minimum = 1, example = 17)]
    ordinal: Option<u64>,
    /// The id of the import.
    import: Option<String>,
    mode: Option<ImportMode>,
    /// The state in which the import ended.
    state: Option<ImportStateName>,
    /// The reason if the import failed or was stopped.
    failure: Option<Code>,
    /// Lines that the import has read.
    lines: Option<u64>,
    /// Number of added users or codes.
    added: Option<u64>,
    already_present: Option<u64>,
    already_redeemed: Option<u64>,
    rejected: Option<u64>,
    /// Number of removed users or codes.
    removed: Option<u64>,
    /// Number of replaced users or codes.
    replaced: Option<u64>,
    /// Number of redemptions with times in the future.
    redemptions: Option<u64>,
    /// Number of holds that are active again.
    holds: Option<u64>,
    /// The position of the entry that was skipped.
    entry: Option<u64>,
    /// False if a redemption ended, and its code did not become available by that.
    released: Option<bool>,
}

impl EventResponse {
    /// The same event of the campaign or coupon of this name.
    fn of(self, kind: Kind, name: Cow<'static, str>) -> Self {
        let name = Some(name.into_owned());
        match kind {
            Kind::Campaign => Self {
                campaign: name,
                ..self
            },
            Kind::Coupon => Self {
                coupon: name,
                ..self
            },
        }
    }
}

impl From<NumberedEvent> for EventResponse {
    fn from(
        NumberedEvent {
            number,
            event: Event { at, by, what },
        }: NumberedEvent,
    ) -> Self {
        let key = by.map(Cow::into_owned);
        let plain = EventResponse {
            seq: number,
            at,
            key,
            event: name(&what),
            ..EventResponse::default()
        };
        match what {
            Happened::Filter { kind, name, change } => of_filter(plain.of(kind, name), change),
            Happened::LineUp { name, .. } => EventResponse {
                line_up: Some(name.into_owned()),
                ..plain
            },
            Happened::ImportEnded {
                kind,
                name,
                import,
                mode,
                state,
                counts,
            } => {
                let ImportCounts {
                    lines,
                    added,
                    already_present,
                    already_redeemed,
                    rejected,
                } = counts;
                EventResponse {
                    import: Some(import.into_owned()),
                    mode: Some(mode),
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
            Happened::Redemption {
                coupon,
                id,
                reference,
                status,
                expires_at,
                ordinal,
                step,
                ..
            } => EventResponse {
                id: Some(id.to_string()),
                reference: Some(reference.into_owned()),
                status: Some(status),
                expires_at,
                ordinal,
                released: match step {
                    RedemptionStep::CancelledUnreleased | RedemptionStep::ExpiredUnreleased => {
                        Some(false)
                    }
                    RedemptionStep::Created
                    | RedemptionStep::Extended
                    | RedemptionStep::Confirmed
                    | RedemptionStep::Cancelled
                    | RedemptionStep::Expired
                    | RedemptionStep::HeldAgain => None,
                },
                ..plain.of(Kind::Coupon, coupon)
            },
            Happened::TurnedBack { redemptions, holds } => EventResponse {
                redemptions: Some(redemptions),
                holds: Some(holds),
                ..plain
            },
            Happened::Restored => plain,
            Happened::Skipped { entry } => EventResponse {
                entry: Some(entry),
                ..plain
            },
        }
    }
}

fn of_filter(plain: EventResponse, change: FilterChange) -> EventResponse {
    match change {
        FilterChange::Created | FilterChange::Deleted => plain,
        FilterChange::Updated {
            window: Window { starts_at, ends_at },
            capacity,
            stock,
        } => EventResponse {
            capacity: Some(capacity),
            stock,
            starts_at,
            ends_at,
            ..plain
        },
        FilterChange::Cleared(removed) | FilterChange::Removed(removed) => EventResponse {
            removed: Some(removed),
            ..plain
        },
        FilterChange::Added(added) => EventResponse {
            added: Some(added),
            ..plain
        },
        FilterChange::Replaced(replaced) => EventResponse {
            replaced: Some(replaced),
            ..plain
        },
    }
}

fn name(what: &Happened<'_>) -> EventName {
    match what {
        Happened::Filter { kind, change, .. } => {
            let (campaign, coupon) = match change {
                FilterChange::Created => (EventName::CampaignCreated, EventName::CouponCreated),
                FilterChange::Updated { .. } => {
                    (EventName::CampaignChanged, EventName::CouponChanged)
                }
                FilterChange::Cleared(_) => (EventName::CampaignCleared, EventName::CouponCleared),
                FilterChange::Deleted => (EventName::CampaignDeleted, EventName::CouponDeleted),
                FilterChange::Added(_) => (EventName::UsersAdded, EventName::CodesAdded),
                FilterChange::Removed(_) => (EventName::UsersRemoved, EventName::CodesWithdrawn),
                FilterChange::Replaced(_) => (EventName::UsersReplaced, EventName::CodesReplaced),
            };
            if *kind == Kind::Campaign {
                campaign
            } else {
                coupon
            }
        }
        Happened::LineUp {
            change: LineUpChange::Created,
            ..
        } => EventName::LineUpCreated,
        Happened::LineUp {
            change: LineUpChange::Replaced,
            ..
        } => EventName::LineUpChanged,
        Happened::LineUp {
            change: LineUpChange::Deleted,
            ..
        } => EventName::LineUpDeleted,
        Happened::ImportEnded { .. } => EventName::ImportEnded,
        Happened::Redemption { step, .. } => match step {
            RedemptionStep::Created => EventName::RedemptionCreated,
            RedemptionStep::Extended => EventName::RedemptionExtended,
            RedemptionStep::Confirmed => EventName::RedemptionConfirmed,
            RedemptionStep::Cancelled | RedemptionStep::CancelledUnreleased => {
                EventName::RedemptionCancelled
            }
            RedemptionStep::Expired | RedemptionStep::ExpiredUnreleased => {
                EventName::RedemptionExpired
            }
            RedemptionStep::HeldAgain => EventName::RedemptionReinstated,
        },
        Happened::TurnedBack { .. } => EventName::ClockTurnedBack,
        Happened::Restored => EventName::BackupRestored,
        Happened::Skipped { .. } => EventName::EntrySkipped,
    }
}

/// Read events
///
/// Events in order, one per line: campaigns, coupons and line-ups created, changed, cleared or deleted, imports ended, redemptions, and the
/// numbers of items added and removed. To follow them, repeat the request with `after` set to the last `seq`, and with `wait`. `Accept:
/// text/csv` returns CSV with a header row. Events are retained for `events.retention`.
#[utoipa::path(
    get, path = "/v1/events", operation_id = "list_events", tag = "operations",
    params(EventQuery),
    responses(
        (
            status = 200,
            description = "The events, one `EventLine` per line; none if there are no new ones",
            content((inline(StreamedBody) = "application/x-ndjson"), (String = "text/csv"))
        ),
        (status = 410, description = "`events-gone`: the event after `after` is no longer stored, or events are disabled"),
        (status = 503, description = "`overloaded`: too many requests are waiting for events; `draining`, `storage-failed`"),
    )
)]
pub(super) async fn list(call: Call<Follow>, request: Request) -> HandlerResult {
    call.caller.require_all_names()?;
    let lines = LineFormat::preferred(request.headers(), COLUMNS).unwrap_or(LineFormat::Ndjson);
    let EventQuery { after, limit, wait } = query::parse(&request)?;
    let limit = limit.unwrap_or(LIMIT_DEFAULT);
    Problem::unless_within("/limit", limit, 1..=LIMIT_MAX)?;
    if wait > WAIT_MAX {
        return Err(Problem::invalid_at(
            "/wait",
            format!("expected 0 to {WAIT_MAX} seconds"),
        ));
    }
    Problem::unless_within("/after", after.unwrap_or(0), 0..=NUMBER_MAX)?;
    let mut reader = call.api.engine.events_after(after);
    let mut events = reader.read().await?;
    if events.is_empty() && wait > 0 {
        let timeout = tokio::time::sleep(Duration::from_secs(wait));
        let peer = request.extensions().get::<Peer>();
        let client_ended = async {
            match peer {
                Some(peer) => peer.vitals.ended().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            come = reader.wait() => {
                come?;
                events = reader.read().await?;
            }
            () = timeout => {}
            // A client that has gone frees its place among those that wait.
            () = client_ended => {}
            // This must not delay a shutdown.
            () = call.api.uploads_end.cancelled() => {}
        }
    }
    Ok(respond(reader, events, limit, lines))
}

/// Streams up to `limit` events, of which the first are read already.
fn respond(
    reader: EventReader,
    first: Vec<NumberedEvent>,
    limit: usize,
    lines: LineFormat,
) -> Response {
    let start = (reader, Some(first), limit);
    lines.stream(stream::try_unfold(
        start,
        async |(mut reader, first, limit)| {
            let mut events = match first {
                Some(first) => first,
                None if limit == 0 => return Ok(None),
                None => reader.read().await?,
            };
            events.truncate(limit);
            let left = limit - events.len();
            let responses: Vec<EventResponse> =
                events.into_iter().map(EventResponse::from).collect();
            Ok((!responses.is_empty()).then_some((responses, (reader, None, left))))
        },
    ))
}
