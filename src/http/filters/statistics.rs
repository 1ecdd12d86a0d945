//! `GET …/statistics`: the changes of a campaign's or coupon's items, per day and per hour.

use crate::http::call::{Call, Read};
use crate::http::request::query;
use crate::http::response::{HandlerResult, Problem, success};
use axum::extract::Request;
use cuckood_state::domain::statistics::Unit;
use cuckood_state::domain::{ChangeCounts, Kind, Timestamp};
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;
use utoipa::{IntoParams, ToSchema};

/// The rules of counting.
pub(super) const DESCRIPTION: &str = "The counts are part of the log's state, so every node returns the same ones. The time is the log's, in \
    UTC: `days` and `hours` end with the last write to the service. An import with `mode=replace` counts what it has added when it is \
    swapped in; the items that it replaces don't count as removed. A hold counts as expired when the log notices it. The CF.* commands \
    count as the requests that they stand for. Not counted: dry runs, repeated requests, users that a campaign forgets, and codes that \
    redemptions add to an open pool. An image includes the counts. A campaign or coupon that is deleted and created again starts without \
    any. If the log's time is turned back, later counts move to the present day and hour.";

/// How many days to return.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct StatisticsQuery {
    /// The last days to return, today (UTC) included.
    #[param(minimum = 1, maximum = 400, default = 30)]
    days: Option<u64>,
}

/// The default number of days.
const DAYS_DEFAULT: u64 = 30;

/// Counts per day and per hour. Days and hours without changes are omitted.
#[derive(Serialize, ToSchema)]
#[schema(as = Statistics, example = json!({
    "days": [{"date": "2026-11-23", "added": 120, "removed": 3, "imported": 50_000}],
    "hours": [{"hour": "2026-11-23T14:00:00.000Z", "added": 120, "removed": 3, "imported": 50_000}]
}))]
pub(super) struct StatisticsResponse {
    /// In order, the oldest first.
    #[schema(max_items = 400)]
    days: Vec<DayCounts>,
    /// The same counts for the last 48 hours, whatever `days` is.
    #[schema(max_items = 48)]
    hours: Vec<HourCounts>,
}

/// One day.
#[derive(Serialize, ToSchema)]
struct DayCounts {
    /// The day in UTC.
    #[schema(format = Date, example = "2026-11-23")]
    date: String,
    #[serde(flatten)]
    counts: PeriodCounts,
}

/// One hour.
#[derive(Serialize, ToSchema)]
struct HourCounts {
    /// When the hour begins.
    hour: Timestamp,
    #[serde(flatten)]
    counts: PeriodCounts,
}

/// The counts of one day or hour.
#[skip_serializing_none]
#[derive(Serialize, ToSchema)]
struct PeriodCounts {
    /// Items added by requests, including generated and revived codes and the new items of replacements.
    added: u64,
    /// Copies removed by requests: remove, replace and clear.
    removed: u64,
    /// Items added by imports.
    imported: u64,
    /// Coupons only: codes redeemed, immediately or by confirming a hold.
    redeemed: Option<u64>,
    /// Coupons only: codes held. Extending a hold doesn't count.
    held: Option<u64>,
    /// Coupons only: holds and redemptions cancelled, including those of removed and revived codes.
    cancelled: Option<u64>,
    /// Coupons only: holds expired.
    expired: Option<u64>,
}

impl PeriodCounts {
    fn new(
        [added, removed, imported, redeemed, held, cancelled, expired]: ChangeCounts,
        kind: Kind,
    ) -> Self {
        let of_coupon = |count| (kind == Kind::Coupon).then_some(count);
        let [redeemed, held, cancelled, expired] =
            [redeemed, held, cancelled, expired].map(of_coupon);
        Self {
            added,
            removed,
            imported,
            redeemed,
            held,
            cancelled,
            expired,
        }
    }
}

/// Shows the statistics of a filter.
pub(super) fn get(call: &Call<Read>, kind: Kind, name: &str, request: &Request) -> HandlerResult {
    let view = call.filter(kind, name)?;
    let days = query::parse::<StatisticsQuery>(request)?
        .days
        .unwrap_or(DAYS_DEFAULT);
    Problem::unless_within("/days", days, 1..=Unit::Day.periods_max())?;
    let now = call.api.engine.logged_at();
    let day = |(begin, counts): (Timestamp, ChangeCounts)| {
        let mut date = begin.to_string();
        date.truncate("2026-11-23".len());
        DayCounts {
            date,
            counts: PeriodCounts::new(counts, kind),
        }
    };
    let hour = |(hour, counts)| HourCounts {
        hour,
        counts: PeriodCounts::new(counts, kind),
    };
    Ok(success::ok(&StatisticsResponse {
        days: view
            .statistics(Unit::Day, days, now)
            .into_iter()
            .map(day)
            .collect(),
        hours: view
            .statistics(Unit::Hour, Unit::Hour.periods_max(), now)
            .into_iter()
            .map(hour)
            .collect(),
    }))
}
